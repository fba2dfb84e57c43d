#!/usr/bin/env python3
"""The arguments that the package accepts as arrays, and its errors for those that it refuses."""

import array
import copy
import pickle
import unittest

from common import DTYPES, attn, laid_out
import numpy as np

from attn import _array, _sdpa

sdpa = attn.scaled_dot_product_attention


def numbers(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


class Arguments(unittest.TestCase):
    def setUp(self):
        self.q, self.k, self.v = (numbers(2, 4, n, 8, seed=n) for n in (5, 6, 7))
        self.v = self.v[:, :, :6]

    def refused(self, kind, says, *args, function=sdpa, **options):
        """The error is one line, and nothing was written."""
        args = args or (self.q, self.k, self.v)
        before = [x.tobytes() for x in (self.q, self.k, self.v)]
        with self.assertRaises(kind) as caught:
            function(*args, **options)
        line = str(caught.exception)
        self.assertIn(says, line)
        self.assertNotIn("\n", line)
        self.assertEqual([x.tobytes() for x in (self.q, self.k, self.v)], before)

    def test_types(self):
        for wrong in (np.int64, np.int8, np.uint16, np.complex64, bool, object, "S4", "M8[s]"):
            self.refused(TypeError, "q is ", *[np.zeros((5, 8), wrong)] * 3)
            if wrong is not bool:
                self.refused(TypeError, "mask is ", mask=np.zeros((5, 6), wrong))
        self.refused(TypeError, "k is f64", self.q, self.k.astype("f8"), self.v)
        self.refused(TypeError, "v is f16", self.q, self.k, self.v.astype("f2"))
        self.refused(TypeError, "out is f16", out=np.zeros((2, 4, 5, 8), "f2"))
        self.refused(TypeError, "out is list", out=[])
        self.refused(TypeError, "q is NoneType", None, self.k, self.v)
        self.refused(TypeError, "key_lengths is float", key_lengths=np.ones(2))
        self.refused(TypeError, "alibi is complex", alibi=np.ones(4, complex))
        self.refused(ValueError, "q is not an array", [[1.0], [1.0, 2.0]], self.k, self.v)

    def test_byte_order(self):
        for dtype in ("f8", "f4", "f2"):
            q, k, v = (x.astype(dtype) for x in (self.q, self.k, self.v))
            other = q.dtype.newbyteorder()
            self.refused(ValueError, "q has the other byte order", q.astype(other), k, v)
            self.refused(ValueError, "v has the other byte order", q, k, v.astype(other))
            self.refused(ValueError, "mask has the other byte order", q, k, v,
                         mask=np.zeros((5, 6), other))
            self.refused(ValueError, "out has the other byte order", q, k, v,
                         out=np.zeros((2, 4, 5, 8), other))
        for name, n, dtype in (("alibi", 4, "f4"), ("sinks", 4, "f8"), ("key_lengths", 2, "i8"),
                               ("key_lengths", 2, "i4"), ("alibi", 4, "i2")):
            swapped = np.ones(n, np.dtype(dtype).newbyteorder())
            self.refused(ValueError, name + " has the other byte order", **{name: swapped})

    @unittest.skipIf(len(DTYPES) < 4, "ml_dtypes is not installed")
    def test_byte_order_of_bfloat16(self):
        """The swapped type has the name of the native one."""
        q, k, v = (x.astype(DTYPES[3]) for x in (self.q, self.k, self.v))
        other = DTYPES[3].newbyteorder()
        self.refused(ValueError, "q has the other byte order", q.astype(other), k, v)
        self.refused(ValueError, "v has the other byte order", q, k, v.astype(other))
        self.refused(ValueError, "out has the other byte order", q, k, v,
                     out=np.zeros((2, 4, 5, 8), other))
        self.assertEqual(sdpa(q, k, v).dtype, DTYPES[3])

    def test_lines_that_say_what_is_right(self):
        """Each error names the argument as the caller knows it, and says what would be right."""
        self.refused(ValueError,
                     "key_lengths has 9223372036854775809; a length must be at most 2^63-1",
                     key_lengths=np.array([1, 2**63 + 1], np.uint64))
        self.refused(ValueError, "q is not an array", [[1.0], [1.0, 2.0]], self.k, self.v)
        for name in ("B", "Hk", "D", "Dv", "max_keys", "page_keys", "pages"):
            sizes = dict(B=1, Hk=1, D=4, Dv=4, max_keys=64, page_keys=64, pages=1)
            for wrong in (1.5, "2", None) if name != "Dv" else (1.5, "2"):
                self.refused(TypeError, "%s is %r; it must be an integer" % (name, wrong),
                             function=lambda *_, **options: attn.KVCache(**options),
                             **dict(sizes, **{name: wrong}))
            self.refused(ValueError, name + " is ",
                         function=lambda *_, **options: attn.KVCache(**options),
                         **dict(sizes, **{name: 2**63}))
        cache = attn.KVCache(1, 1, 4, max_keys=64)
        self.refused(TypeError, "length is 1.5; it must be an integer", 1.5,
                     function=cache.truncate)
        self.refused(TypeError, "b is 0.5; it must be an integer", 0, 0.5,
                     function=cache.truncate)
        self.refused(TypeError, "num_heads is 2.0; it must be an integer", 2.0,
                     function=attn.MultiHeadAttention)

    def test_copies(self):
        """A copy would share the library's memory, and both would free it."""
        x = numbers(1, 1, 64, 8)
        out, lse = sdpa(x, x, x, return_lse=True)
        cache = attn.KVCache(1, 1, 8, max_keys=64)
        cache.append(x, x)
        for owner in cache, attn.Pieces(x, 64), attn.PiecesGrad(x, x, out, lse, 64):
            message = "a %s cannot be copied or pickled; " % type(owner).__name__
            for make in copy.copy, copy.deepcopy, pickle.dumps:
                self.refused(TypeError, message, owner, function=make)
        self.assertEqual(cache.attend(x, is_causal=False).tobytes(), out.tobytes())

    def test_no_memory(self):
        """A cache and a call's scratch that need more memory than any machine has; nothing is
        written."""
        self.refused(MemoryError, "no memory", function=lambda *_: attn.KVCache(
            1, 1, 1 << 20, max_keys=1 << 30))
        wide = np.broadcast_to(np.float32(1), (1, 1 << 40))  # a tile of it is 16 TiB
        out = np.full((1, 1), 7, "f4")
        one = np.ones((1, 1), "f4")
        self.refused(MemoryError, "no memory", wide, wide, one, function=lambda *x: sdpa(
            *x, out=out, softcap=1.0))
        self.assertEqual(out[0, 0], 7)

    def test_shapes(self):
        q, k, v = self.q, self.k, self.v
        self.refused(ValueError, "k has D=7", q, k[..., :7], v)
        self.refused(ValueError, "k has B=1", q, k[:1], v[:1])
        self.refused(ValueError, "v has S=5", q, k, v[:, :, :5])
        self.refused(ValueError, "v has Hk=2", q, k, v[:, :2])
        self.refused(ValueError, "enable_gqa", q, k[:, :2], v[:, :2])
        self.refused(ValueError, "multiple of Hk", q, k[:, :3], v[:, :3], enable_gqa=True)
        self.refused(ValueError, "must be equal", q[0], k, v)
        self.refused(ValueError, "q has 1 dimensions", q[0, 0, 0], k, v)
        self.refused(ValueError, "q has 5 dimensions", q[None], k[None], v[None])
        self.refused(ValueError, "mask has 7 in dimension 3", mask=np.ones((5, 7), bool))
        self.refused(ValueError, "mask has 5 dimensions", mask=np.ones((1, 1, 1, 5, 6), bool))
        self.refused(ValueError, "key_lengths has shape (3,)", key_lengths=[1, 2, 3])
        self.refused(ValueError, "key_lengths[1] is 7", key_lengths=[1, 7])
        self.refused(ValueError, "alibi has shape (3,)", alibi=[1, 2, 3])
        self.refused(ValueError, "sinks has shape (2, 2)", sinks=[[1, 2], [3, 4]])
        self.refused(ValueError, "out has Dv=7", out=np.zeros((2, 4, 5, 7), "f4"))
        self.refused(ValueError, "out has 3 dimensions", out=np.zeros((4, 5, 8), "f4"))

    def test_values(self):
        self.refused(ValueError, "scale is 0", scale=0)
        self.refused(ValueError, "scale is inf", scale=np.inf)
        self.refused(TypeError, "must be real numbers", scale="one")
        self.refused(ValueError, "softcap is -1", softcap=-1)
        self.refused(ValueError, "dropout_p is 1", dropout_p=1.0)
        self.refused(ValueError, "without is_causal", causal_offset=1)
        self.refused(ValueError, "'bottom-right'", is_causal=True, causal_offset="top")
        self.refused(ValueError, "diagonal is 'left'", diagonal="left")
        self.refused(TypeError, "diagonal is 1.5", diagonal=1.5)
        self.refused(ValueError, "diagonal is 3, but is_causal", is_causal=True, diagonal=3)
        right = {"diagonal": "bottom-right"}
        self.refused(ValueError, "pass causal_offset='bottom-right'", is_causal=True, **right)
        self.refused(ValueError, "alibi_symmetric is given without alibi", alibi_symmetric=True)
        self.refused(TypeError, "causal_offset is 1.5", is_causal=True, causal_offset=1.5)
        self.refused(ValueError, "must fit a 64-bit integer", is_causal=True, causal_offset=2**64)
        for large in (2**63, -(2**63) - 1):
            for options in (dict(is_causal=True, causal_offset=large), dict(diagonal=large),
                            dict(window=(0, large))):
                self.refused(ValueError, "is %d; it must fit a 64-bit integer" % large, **options)
        self.refused(ValueError, "window is 3", window=3)
        self.refused(ValueError, "window is -2,0", window=(-2, 0))
        self.refused(TypeError, "window is 0.5", window=(0.5, 0))
        self.refused(TypeError, "window is None; it must be an integer", window=(None, 1))
        self.refused(TypeError, "window is 'a'; it must be an integer", window=("a", 1))
        self.refused(TypeError, "seed is None; it must be an integer", seed=None)
        self.refused(ValueError, "seed is -1", seed=-1)
        self.refused(ValueError, "threads is -1", threads=-1)
        self.refused(ValueError, "threads is 5000", threads=5000)
        self.refused(TypeError, "threads is str", threads="two")
        self.refused(TypeError, "threads is list", threads=[])

    def test_outputs(self):
        q, k, v = (x.copy() for x in (self.q, self.k, self.v))
        locked = np.zeros_like(q)
        locked.flags.writeable = False
        self.refused(ValueError, "out is read-only; it must be writable", out=locked)
        self.refused(ValueError, "out shares memory", q, k, v, out=q)
        self.refused(ValueError, "out shares memory", q, k, v, out=v[:, :, :5])
        self.refused(ValueError, "out ", out=np.lib.stride_tricks.as_strided(
            np.zeros(8, "f4"), (2, 4, 5, 8), (0, 0, 0, 4), writeable=True))
        # adjacent parts of one array do not overlap
        both = np.zeros((2, 4, 5, 16), "f4")
        both[..., :8] = q
        got = sdpa(both[..., :8], k, v, out=both[..., 8:])
        self.assertEqual(both[..., 8:].tobytes(), sdpa(q, k, v).tobytes())
        self.assertEqual(got.base is both, True)

    def test_strides_that_are_no_elements(self):
        records = np.zeros(6, np.dtype([("a", "u1"), ("x", "f4", 8)]))
        odd = records["x"]  # 33 bytes from row to row
        self.refused(ValueError, "use numpy.ascontiguousarray(q)", odd, odd, odd)
        sdpa(*[np.ascontiguousarray(odd)] * 3)
        even = np.zeros(6, np.dtype([("a", "u4"), ("x", "f4", 8)]))
        even["x"] = numbers(6, 8)
        dense = np.ascontiguousarray(even["x"])
        self.assertEqual(sdpa(*[even["x"]] * 3).tobytes(), sdpa(dense, dense, dense).tobytes())

    def test_whatever_is_an_array(self):
        q = numbers(3, 4)
        want = sdpa(q, q, q).tobytes()

        class Interface:
            __array_interface__ = q.__array_interface__

        class Capsule:
            def __dlpack__(self, **more):
                return q.__dlpack__(**more)

            def __dlpack_device__(self):
                return q.__dlpack_device__()

        memory = memoryview(array.array("f", q.ravel().tolist())).cast("B").cast("f", (3, 4))
        for x in (Interface(), memory, Capsule(), q.view(np.matrix)):
            self.assertEqual(sdpa(x, x, x).tobytes(), want)
        as_list = q.astype("f8").tolist()
        self.assertEqual(sdpa(as_list, as_list, as_list).dtype, np.float64)

    def test_as_pytorch_shapes(self):
        q, k, v = self.q, self.k, self.v
        whole = sdpa(q, k, v)
        for b in range(2):
            self.assertEqual(sdpa(q[b], k[b], v[b]).tobytes(), whole[b].tobytes())
            self.assertEqual(sdpa(q[b, 1], k[b, 1], v[b, 1]).tobytes(), whole[b, 1].tobytes())
        causal = np.tri(5, 6, dtype=bool)
        self.assertEqual(sdpa(q, k, v, is_causal=True).tobytes(),
                         sdpa(q, k, v, mask=causal).tobytes())

    def test_broadcast_input_and_zero_size(self):
        one = numbers(1, 1, 1, 8)
        rows = np.broadcast_to(one, (2, 4, 6, 8))  # strides of 0
        want = np.broadcast_to(one, (2, 4, 5, 8))
        np.testing.assert_allclose(sdpa(self.q, rows, rows), want, rtol=1e-6)
        for dtype in DTYPES:
            nothing = np.zeros((2, 4, 0, 8), dtype)
            q = self.q.astype(dtype)
            self.assertEqual(sdpa(nothing, q, q).shape, (2, 4, 0, 8))
            out, lse = sdpa(q, nothing, nothing, return_lse=True)
            self.assertFalse(out.any())
            self.assertTrue(np.isneginf(lse.astype("f8")).all())

    def test_addresses(self):
        """The address is NumPy's for arrays of every kind, and the fast way is in use."""
        whole = numbers(6, 8)
        locked = whole[1:]
        locked.flags.writeable = False
        kinds = [whole, whole[::-1], whole[2:, ::-3], whole.T, whole[3, 3, ...], whole[:0], locked]
        kinds += [np.broadcast_to(whole[0], (3, 8)), np.frombuffer(bytes(16), "f4"), np.zeros(())]
        kinds += [whole.view(np.matrix), np.ma.masked_array(whole), np.zeros((0, 4), "f2")]
        for a in kinds:
            self.assertEqual(_array.address(a), a.__array_interface__["data"][0], a.shape)
        self.assertIs(_array.address, _array._fast_address)  # with CPython

    def test_the_short_way_is_the_long_one(self):
        """Calls without options are planned once for each layout. Their results are bit-identical
        to those of a call with options that have no effect, and the table does not grow."""
        rng = np.random.default_rng(3)
        for n in range(2 * _array.MOST_KEPT):
            T, S, D = rng.integers(0, 9, 3) if n % 50 == 0 else (1, n, 2)
            q, k, v = (laid_out(rng, numbers(2, x, D, seed=n)) for x in (T, S, S))
            causal = bool(n % 3)
            want = sdpa(q, k, v, is_causal=causal, key_lengths=S)
            for _ in range(2):
                got = sdpa(q, k, v, is_causal=causal)
                self.assertEqual((got.shape, got.tobytes()), (want.shape, want.tobytes()))
        self.assertLessEqual(len(_sdpa._plans), _array.MOST_KEPT)
        self.assertLessEqual(len(_array._described), _array.MOST_KEPT)
        self.refused(ValueError, "k has D=7", self.q, self.k[..., :7], self.v)
        self.refused(ValueError, "enable_gqa", self.q, self.k[:, :2], self.v[:, :2])
        sdpa(self.q, self.k[:, :2], self.v[:, :2], enable_gqa=True)
        self.refused(ValueError, "enable_gqa", self.q, self.k[:, :2], self.v[:, :2])

    def test_what_is_hidden_is_harmless(self):
        k, v = self.k.copy(), self.v.copy()
        want = sdpa(self.q, k, v, key_lengths=4)
        k[:, :, 4:], v[:, :, 4:] = np.nan, np.inf
        self.assertEqual(sdpa(self.q, k, v, key_lengths=[4, 4]).tobytes(), want.tobytes())

    def test_gradients_refuse(self):
        dout = np.ones_like(self.q)
        call = (self.q, self.k, self.v, dout)
        self.refused(ValueError, "want has 'x'", *call, function=attn.grad, want=["x"])
        self.refused(ValueError, "mask is not given", *call, function=attn.grad, want=["mask"])
        self.refused(ValueError, "dout has", *call[:3], dout[..., :3], function=attn.grad)
        self.refused(ValueError, "must have q's", *call[:3], dout[0], function=attn.grad)
        self.refused(TypeError, "dout is ", *call[:3], dout.astype("f2"), function=attn.grad)


if __name__ == "__main__":
    unittest.main()
