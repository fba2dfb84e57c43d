#!/usr/bin/env python3
"""attn.Pieces: bit-identical to one call with all keys, from files larger than what is read at a
time, and arguments that do not fit are refused."""

import os
import tempfile
import unittest
from unittest import mock
import weakref

from common import DTYPES, attn
import numpy as np

sdpa = attn.scaled_dot_product_attention


def arrays(rng, dtype, S=1500, T=40, H=4, Hk=2, D=16, Dv=12, B=2):
    shapes = (B, H, T, D), (B, Hk, S, D), (B, Hk, S, Dv)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


class Gradients(unittest.TestCase):
    rules = [
        {},
        dict(is_causal=True, causal_offset="bottom-right", sinks=[1, 2, 3, 4]),
        dict(is_causal=True, causal_offset=700, window=(300, 0), softcap=3.0),
        dict(alibi=[0.5, 0.25, 0.1, 0.01], dropout_p=0.25, seed=9, key_lengths=[1500, 777]),
        dict(mask=np.linspace(-1, 1, 40 * 1500, dtype="f4").reshape(40, 1500), threads=3),
    ]

    @staticmethod
    def names(rule):
        return ["q", "k", "v"] + [x for x in ("mask", "alibi", "sinks") if x in rule]

    def test_bits_of_one_call(self):
        rng = np.random.default_rng(11)
        compared = 0
        for dtype in DTYPES:
            q, k, v = arrays(rng, dtype)
            dout = rng.standard_normal(q.shape[:-1] + (12,)).astype(dtype)
            for rule in self.rules:
                rule = dict(rule)
                if "mask" in rule:
                    rule["mask"] = rule["mask"].astype(dtype)
                out, lse = sdpa(q, k, v, enable_gqa=True, return_lse=True, **rule)
                want = attn.grad(q, k, v, dout, out=out, lse=lse, enable_gqa=True,
                                 want=self.names(rule), **rule)  # fmt: skip
                for piece in (256, 1024, 65536):
                    g = attn.PiecesGrad(q, dout, out, lse, 1500, Hk=2, want=self.names(rule),
                                        **rule)  # fmt: skip
                    got = g.run(k, v, piece=piece) + (g.mask, g.alibi, g.sinks)
                    self.assertIs(got[0], g.q)
                    for x, y in zip(got, want):
                        self.assertEqual(x is None, y is None)
                        if x is not None:
                            self.assertEqual(x.dtype, y.dtype)
                            self.assertEqual(x.tobytes(), y.tobytes())
                            compared += x.size
        self.assertGreater(compared, 1_000_000)

    def test_queries_in_pieces(self):
        """The last rows first, each part with a loop over pieces of keys in files."""
        rng = np.random.default_rng(12)
        q, k, v = arrays(rng, "float32", T=150)
        dout = rng.standard_normal(q.shape[:-1] + (12,)).astype("f4")
        rule = dict(is_causal=True, causal_offset=900, dropout_p=0.1, seed=3)
        out, lse = sdpa(q, k, v, enable_gqa=True, return_lse=True, **rule)
        want = attn.grad(q, k, v, dout, out=out, lse=lse, enable_gqa=True, **rule)
        with tempfile.TemporaryDirectory() as folder:
            dk, dv = (np.lib.format.open_memmap(os.path.join(folder, name), "w+", "f4", x.shape)
                      for name, x in (("dk", k), ("dv", v)))  # fmt: skip
            for first, past in ((128, 150), (64, 128), (0, 64)):
                rows = (..., slice(first, past), slice(None))
                g = attn.PiecesGrad(
                    q[rows], dout[rows], out[rows], lse[..., first:past], 1500, Hk=2,
                    q_positions=np.arange(first, past), whole_T=150, sums_in=past < 150,
                    sums_out=first > 0, **rule,
                )  # fmt: skip
                dq, _, _ = g.run(k, v, dk, dv, piece=512)
                self.assertEqual(dq.tobytes(), want.q[rows].tobytes())
            self.assertEqual(dk.tobytes(), want.k.tobytes())
            self.assertEqual(dv.tobytes(), want.v.tobytes())
            del dk, dv

    def test_gradient_of_lse_as_a_list(self):
        """The state reads dlse in every feed(), so the array made of a list must live."""
        rng = np.random.default_rng(15)
        q, k, v = arrays(rng, "float64", H=2)
        dout, dlse = rng.standard_normal(q.shape[:-1] + (12,)), rng.standard_normal(q.shape[:-1])
        out, lse = sdpa(q, k, v, return_lse=True)
        want = attn.grad(q, k, v, dout, dlse=dlse, out=out, lse=lse)
        g = attn.PiecesGrad(q, dout, out, lse, 1500, dlse=dlse.tolist())
        kept = [np.full(dlse.shape, 7.0) for _ in range(20)]  # take any memory that was freed
        for x, y in zip(g.run(k, v), want):
            self.assertEqual(x.tobytes(), y.tobytes())
        del kept

    def test_overlapping_outputs(self):
        """dk and dv may not lie over each other, nor over anything that a later piece needs."""
        rng = np.random.default_rng(16)
        both = rng.standard_normal((1, 2, 512 + 256, 16))
        k, later = both[:, :, :512], both[:, :, 256:]
        v = rng.standard_normal(k.shape)
        q = np.zeros(k.shape)[:, :, :70]
        out, lse = sdpa(q, k, v, return_lse=True)
        dout = np.ones_like(out)
        before, new = both.tobytes(), np.zeros_like(k)
        for dk, dv, name in ((new, new, "dv"), (later, new, "dk"), (q.base, new, "dk"),
                             (new, v, "dv"), (new, later, "dv")):  # fmt: skip
            for call in ("run", "feed"):
                g = attn.PiecesGrad(q, dout, out, lse, 512)
                first = () if call == "run" else (0,)
                with self.assertRaisesRegex(ValueError, "^%s shares memory" % name):
                    getattr(g, call)(*first, k, v, dk, dv)
        p = attn.Pieces(q, 512, out=v[:, :, :70])
        with self.assertRaisesRegex(ValueError, "^out shares memory"):
            p.run(k, v)
        self.assertEqual(both.tobytes(), before)

    def test_only_what_is_wanted(self):
        rng = np.random.default_rng(13)
        q, k, v = arrays(rng, "float64")
        dout = rng.standard_normal(q.shape[:-1] + (12,))
        out, lse = sdpa(q, k, v, enable_gqa=True, return_lse=True)
        want = attn.grad(q, k, v, dout, out=out, lse=lse, enable_gqa=True, want=["v"])
        g = attn.PiecesGrad(q, dout, out, lse, 1500, Hk=2, want=["v"])
        dq, dk, dv = g.run(k, v)
        self.assertIsNone(dq)
        self.assertIsNone(dk)
        self.assertEqual(dv.tobytes(), want.v.tobytes())
        self.assertGreater(g.nbytes, q.size)

    def test_bad_arguments(self):
        rng = np.random.default_rng(14)
        q, k, v = arrays(rng, "float32")
        dout = rng.standard_normal(q.shape[:-1] + (12,)).astype("f4")
        out, lse = sdpa(q, k, v, enable_gqa=True, return_lse=True)

        def make(**options):
            return attn.PiecesGrad(q, dout, out, lse, 1500, **{"Hk": 2, **options})

        for options, message in (
            (dict(want=["x"]), "^want has 'x'"),
            (dict(want=["sinks"]), "^want has 'sinks', but sinks is not given"),
            (dict(Hk=3), "^k has Hk=3 heads"),
            (dict(q_positions=[0] * 40, whole_T=50), "^q_positions"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                make(**options)
        with self.assertRaisesRegex(ValueError, "^dk is not given; with sums_in"):
            make(sums_in=True).feed(0, k, v)
        with self.assertRaisesRegex(ValueError, "^dk is given, but want"):
            make(want=["v"]).feed(0, k, v, np.zeros_like(k))
        with self.assertRaisesRegex(ValueError, "^k has 1499 keys"):
            make().run(k[:, :, 1:], v)
        with self.assertRaisesRegex(ValueError, "^dv has the shape"):
            make().run(k, v, None, np.zeros((2, 2, 3, 12)))
        with self.assertRaisesRegex(ValueError, "^piece is 100"):
            make().run(k, v, piece=100)
        g = make()
        self.assertEqual(g.next(), (0, 1500))
        with self.assertRaisesRegex(ValueError, "^keys 0 to 255 have not been fed"):
            for _ in g.needed(256):
                pass
        with self.assertRaisesRegex(ValueError, "^state needs keys 0"):
            g.finish()


class Pieces(unittest.TestCase):
    def test_bits_of_one_call(self):
        rng = np.random.default_rng(1)
        rules = [
            {},
            dict(is_causal=True, causal_offset="bottom-right", sinks=[1, 2, 3, 4]),
            dict(is_causal=True, causal_offset=700, window=(300, 0), softcap=3.0),
            dict(alibi=[0.5, 0.25, 0.1, 0.01], dropout_p=0.25, seed=9, key_lengths=[1500, 777]),
            dict(mask=rng.random((40, 1500)) < 0.5, threads=3),
        ]
        compared = 0
        for dtype in DTYPES:
            q, k, v = arrays(rng, dtype)
            for rule in rules:
                want, lse = sdpa(q, k, v, enable_gqa=True, return_lse=True, **rule)
                for piece in (256, 1024, 65536):
                    p = attn.Pieces(q, 1500, Hk=2, Dv=12, **rule)
                    self.assertIs(p.run(k, v, piece), p.out)
                    self.assertEqual(p.out.tobytes(), want.tobytes())
                    self.assertEqual(p.lse.tobytes(), lse.tobytes())
                    compared += p.out.size
        self.assertGreater(compared, 3 * 5 * 3 * 2 * 4 * 40 * 12 - 1)

    def test_memory_maps(self):
        rng = np.random.default_rng(2)
        q, k, v = arrays(rng, "float32")
        with tempfile.TemporaryDirectory() as folder:
            maps = []
            for name, x in (("k", k), ("v", v)):
                path = os.path.join(folder, name + ".npy")
                np.save(path, x)
                maps.append(np.load(path, mmap_mode="r"))
            out = attn.Pieces(q, 1500, Hk=2, Dv=12).run(*maps, piece=512)
        self.assertEqual(out.tobytes(), sdpa(q, k, v, enable_gqa=True).tobytes())

    def test_only_what_is_seen(self):
        """Rows 40 to 79 of 100,000 with a window of 1000 around each: NumPy's softmax of those."""
        rng = np.random.default_rng(3)
        q = rng.standard_normal((40, 8)).astype("f4")
        positions = 50_000 + np.arange(40)
        p = attn.Pieces(q, 100_000, window=(500, 499), q_positions=positions, whole_T=100_000)
        k, v = (rng.standard_normal((100_000, 8)).astype("f4") for _ in range(2))
        fed = []
        for first, past in p.needed(512):
            fed.append((first, past))
            p.feed(first, k[first:past], v[first:past])
        self.assertEqual(fed[0][0], 49_500 // 256 * 256)
        self.assertEqual(fed[-1][1], -(-50_539 // 256) * 256)
        self.assertEqual([x for x, _ in fed[1:]], [x for _, x in fed[:-1]])
        self.assertLess(p.nbytes, 100_000)
        for i, at in enumerate(positions):
            keys = slice(at - 500, at + 500)
            w = np.exp(k[keys].astype("f8") @ q[i] / np.sqrt(8))
            want = w @ v[keys] / w.sum()
            np.testing.assert_allclose(p.out[i], want, rtol=0, atol=1e-5)

    def test_save_and_load(self):
        """After each step, also in the second sweep, as bytes or as a file."""
        rng = np.random.default_rng(5)
        q, k, v = arrays(rng, "float32")
        v[0, 0, 1490, 3] = np.nan
        rules = dict(Hk=2, Dv=12, is_causal=True, causal_offset="bottom-right")
        want, lse = sdpa(q, k, v, enable_gqa=True, return_lse=True, is_causal=True,
                         causal_offset="bottom-right")  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "state")
            p, steps = attn.Pieces(q, 1500, **rules), 0
            for past in p.steps(k, v, 512):
                steps += 1
                self.assertIsNone(p.save(path))
                self.assertEqual(os.listdir(folder), ["state"])
                with open(path, "rb") as file:
                    state = file.read()
                self.assertEqual(p.save(), state)
                for saved in state, path, bytearray(state):
                    other = attn.Pieces(q.copy(), 1500, threads=1 + steps % 3, saved=saved, **rules)
                    self.assertEqual(other.next()[0], min(past, 1500))
                    self.assertEqual(other.run(k, v, 256).tobytes(), want.tobytes())
                    self.assertEqual(other.lse.tobytes(), lse.tobytes())
            self.assertGreaterEqual(steps, 6)  # two sweeps or more
            with self.assertRaisesRegex(ValueError, "^bytes do not have their checksum"):
                attn.Pieces(q, 1500, saved=state[:-1], **rules)
            with self.assertRaisesRegex(ValueError, "^q differs"):
                attn.Pieces(q + 1, 1500, saved=state, **rules)
            with self.assertRaisesRegex(ValueError, "^args: the rules"):
                attn.Pieces(q, 1500, saved=state, Hk=2, Dv=12)
            with self.assertRaises(FileNotFoundError):
                attn.Pieces(q, 1500, saved=os.path.join(folder, "none"), **rules)
            with self.assertRaises(FileNotFoundError):
                p.save(os.path.join(folder, "none", "state"))

    def test_interrupted_while_writing(self):
        """A signal's handler raises while a part of the file is written."""
        p = attn.Pieces(np.ones((2, 64, 8), "f4"), 512)
        p.feed(0, *[np.ones((2, 256, 8), "f4")] * 2)
        opened = os.fdopen

        def open_slowly(*arguments):
            file, writes = opened(*arguments), []

            def write(data):
                writes.append(data)
                if len(writes) == 2:
                    raise KeyboardInterrupt
                return file.write(data)

            wrapped = mock.MagicMock(wraps=file, write=write)
            wrapped.__enter__.return_value = wrapped
            wrapped.__exit__.side_effect = lambda *_: file.close()
            return wrapped

        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "state")
            p.save(path)
            with mock.patch.object(os, "fdopen", open_slowly):
                self.assertRaises(KeyboardInterrupt, p.save, path)
            self.assertEqual(os.listdir(folder), ["state"])
            with open(path, "rb") as file:
                self.assertEqual(file.read(), p.save())

    def test_interrupted_save(self):
        """The interrupt reaches the caller, whenever it comes, and the file is the old one."""
        rng = np.random.default_rng(6)
        q, k, v = arrays(rng, "float32", Hk=4)
        p = attn.Pieces(q, 1500, Dv=12)
        p.feed(0, k[:, :, :256], v[:, :, :256])
        put = type(p)._saved_bytes

        def once(error, calls):
            """As _saved_bytes, but its put() raises the error at the given call."""
            def run(self, given):
                def stop(data):
                    calls.append(len(data))
                    if len(calls) == 15:
                        raise error
                    given(data)
                return put(self, stop)
            return run

        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "state")
            p.save(path)
            with open(path, "rb") as file:
                good = file.read()
            for error in (KeyboardInterrupt(), SystemExit(), OSError("full")):
                for to in path, None:
                    calls = []
                    with mock.patch.object(type(p), "_saved_bytes", once(error, calls)):
                        with self.assertRaises(type(error)) as caught:
                            p.save(to)
                    self.assertIs(caught.exception, error)
                    self.assertEqual(len(calls), 15)
            # An exception in the callback's first instruction is lost, and with it some bytes.
            short = iter((len(good), len(good) - 8) * 2)
            with mock.patch.object(type(p), "_saved_bytes", lambda *_: next(short)):
                for to in path, None:
                    with self.assertRaisesRegex(RuntimeError, "nothing was saved"):
                        p.save(to)
            with mock.patch.object(os, "replace", side_effect=KeyboardInterrupt), \
                    mock.patch.object(os, "unlink", side_effect=FileNotFoundError):
                self.assertRaises(KeyboardInterrupt, p.save, path)
            with open(path, "rb") as file:
                self.assertEqual(file.read(), good)
            self.assertEqual(p.save(), good)

    def test_swept_again(self):
        """A NaN that causal hides from the first rows: they are computed a second time."""
        rng = np.random.default_rng(4)
        q, k, v = arrays(rng, "float32", B=1, Hk=4)
        v[..., 1490, :] = np.nan
        p = attn.Pieces(q, 1500, Dv=12, is_causal=True, causal_offset="bottom-right")
        first = [x for x, _ in p.needed(256) if p.feed(x, k[:, :, x : x + 256],
                                                       v[:, :, x : x + 256]) is None]
        self.assertGreater(first.count(0), 1)
        want = sdpa(q, k, v, is_causal=True, causal_offset="bottom-right")
        np.testing.assert_array_equal(p.out, want)
        self.assertTrue(np.isfinite(p.out[0, 0, 0]).all() and np.isnan(p.out[0, 0, -1]).all())

    def test_results_live_as_long_as_the_state(self):
        """The state writes to out and lse, so it keeps them even if the attributes are replaced."""
        p = attn.Pieces(np.zeros((2, 3, 4), "f4"), 256)
        kept = weakref.ref(p.out), weakref.ref(p.lse)
        p.out = p.lse = None
        self.assertTrue(all(ref() is not None for ref in kept))
        del p
        self.assertTrue(all(ref() is None for ref in kept))

    def test_refused(self):
        q = np.zeros((2, 3, 4), "f4")
        k = np.zeros((2, 512, 4), "f4")
        p = attn.Pieces(q, 1000)
        for first, rows, what in ((0, 100, "k has 100 keys"), (100, 256, "first_key is 100"),
                                  (256, 256, "first_key is 256, but key 0 is needed")):  # fmt: skip
            with self.assertRaisesRegex(ValueError, what):
                p.feed(first, k[:, :rows], k[:, :rows])
        with self.assertRaisesRegex(ValueError, "state needs keys 0 to 999 first"):
            p.finish()
        with self.assertRaisesRegex(TypeError, "v is f64"):
            p.feed(0, k, k.astype("f8"))
        with self.assertRaisesRegex(ValueError, "piece is 100"):
            p.run(np.zeros((2, 1000, 4), "f4"), np.zeros((2, 1000, 4), "f4"), 100)
        with self.assertRaisesRegex(ValueError, "total_keys = 1000"):
            p.run(k, k)
        with self.assertRaisesRegex(ValueError, "have not been fed"):
            list(p.needed(256))
        with self.assertRaisesRegex(ValueError, "q_positions"):
            attn.Pieces(q, 10, q_positions=[0, 1])
        with self.assertRaisesRegex(ValueError, "total_keys is -1"):
            attn.Pieces(q, -1)
        with self.assertRaises(TypeError):
            attn.Pieces(q, 10.5)


if __name__ == "__main__":
    unittest.main()
