#!/usr/bin/env python3
# timeout: 1200
"""Properties of calls that Hypothesis generates, compared with float64 NumPy. ATTN_PROPERTY_CASES
is the number of calls for each test; they are the same every time."""

import os
import unittest

from common import DTYPES, attn, laid_out
import numpy as np

from cases import Compared, draw

try:
    import hypothesis
    from hypothesis import strategies as st
except ImportError:
    print("not run: Hypothesis is not installed (Debian's python3-hypothesis)")
    raise SystemExit(0)

CASES = int(os.environ.get("ATTN_PROPERTY_CASES", 300))
hypothesis.settings.register_profile(
    "attn",
    max_examples=CASES,
    derandomize=True,  # the draws depend only on the test, so no seed is needed
    database=None,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
hypothesis.settings.load_profile("attn")
sdpa = attn.scaled_dot_product_attention
SMALL = 2.0**-20


def alike(S):
    """The additional units of the bound if S equal or nearly equal numbers are added: within a
    chunk of 256 they are all rounded in the same direction (docs/NUMERICS.md)."""
    return 1 + min(S, 256) / 8


class Drawn:
    """The methods of numpy.random.Generator that cases.py and common.py use. Hypothesis chooses the
    values, so it searches for small calls and combinations. Arrays are drawn from a seed that it
    chooses."""

    def __init__(self, data):
        self.draw = data.draw
        self.numbers = np.random.default_rng(self.draw(st.integers(0, 2**32 - 1), "seed"))
        # ordinary numbers, equal ones, very small ones, or such large ones that one key gets all
        # the weight
        self.size = self.draw(st.sampled_from([1.0, 1.0, 0.0, SMALL, 30.0]), "size")

    def integers(self, low, high=None, size=None, dtype=int):
        low, high = (0, low) if high is None else (low, high)
        one = st.integers(int(low), int(high) - 1)
        if size is None:
            return np.dtype(dtype).type(self.draw(one))
        return np.array([self.draw(one) for _ in range(size)], dtype)

    def random(self, shape=None):
        if shape is None:  # options that are used if this is small are absent in small examples
            return 1 - self.draw(st.integers(0, 1000)) / 1001
        return self.numbers.random(shape)

    def choice(self, values, size=None):
        one = st.sampled_from([np.int64(x) for x in values])
        return self.draw(one) if size is None else [self.draw(one) for _ in range(size)]

    def uniform(self, low, high):
        return self.draw(st.floats(low, high))

    def permutation(self, n):
        return np.array(self.draw(st.permutations(range(n))), int)

    def standard_normal(self, shape):
        return self.numbers.standard_normal(shape) * self.size


class Interface:
    def __init__(self, a):
        self.kept, self.__array_interface__ = a, a.__array_interface__


class Capsule:
    def __init__(self, a):
        self.a = a

    def __dlpack__(self, **more):
        return self.a.__dlpack__(**more)

    def __dlpack_device__(self):
        return self.a.__dlpack_device__()


class Converted:
    def __init__(self, a):
        self.a = a

    def __array__(self, dtype=None, copy=None):
        return self.a


def handed_over(rng, a):
    """The array itself, or an object of another kind with the same numbers."""
    native = a.dtype.kind in "fb" and a.dtype.isnative and a.dtype.name != "bfloat16"
    way = rng.integers(5)
    if way == 1 and native:
        return Interface(a)
    if way == 2 and native and a.size:
        return memoryview(a)  # the buffer protocol
    if way == 3 and native and a.size and a.flags.writeable and a.dtype != bool:
        return Capsule(a)
    if way == 4:
        return Converted(a)
    return a


def dense(a):
    return np.array(a, order="C")


class Properties(Compared, unittest.TestCase):
    @hypothesis.given(st.data())
    def test_forward(self, data):
        rng = Drawn(data)
        q, k, v, ours, theirs = draw(rng)
        what = (q.dtype, q.shape, q.strides, k.shape, v.shape, ours)
        before = [x.tobytes() for x in (q, k, v)]
        options = {n: handed_over(rng, x) if n == "mask" else x for n, x in ours.items()}
        inputs = [handed_over(rng, x) for x in (q, k, v)]
        asked = {"return_weights": True, "return_lse": True}
        results = sdpa(*inputs, threads=rng.choice([1, 2, 3]), **asked, **options)
        wider = alike(k.shape[-2]) if rng.size == SMALL else 1.0  # each weight is nearly e^0
        self.check_forward(q, k, v, results, theirs, what, wider)
        # bits do not depend on layout, threads or other outputs
        if "mask" in ours:
            ours["mask"] = dense(ours["mask"])
        again = sdpa(dense(q), dense(k), dense(v), threads=1, **ours)
        self.assertEqual(again.tobytes(), results[0].tobytes(), what)
        place = laid_out(rng, np.zeros(again.shape, again.dtype))
        if place.flags.writeable:
            self.assertIs(sdpa(q, k, v, out=place, **ours), place)
            self.assertEqual(place.tobytes(), again.tobytes(), what)
        self.assertEqual([x.tobytes() for x in (q, k, v)], before)

    @hypothesis.given(st.data())
    def test_gradients(self, data):
        rng = Drawn(data)
        rng.size = min(rng.size, 1)  # larger scores: tests/unit/grad/
        q, k, v, ours, theirs = draw(rng)
        what = (q.dtype, q.shape, k.shape, v.shape, ours)
        self.check_gradients(rng, q, k, v, ours, theirs, what, lambda x: handed_over(rng, x))

    @hypothesis.given(st.data())
    def test_repeated_inputs(self, data):
        """Arrays with strides of 0 are read like their copies."""
        rng = Drawn(data)
        q, k, v, ours, theirs = draw(rng)
        k, v = (
            np.broadcast_to(x[tuple(slice(1) for _ in x.shape[:-1])], x.shape) if x.size else x
            for x in (k, v)
        )
        results = sdpa(q, k, v, return_weights=True, return_lse=True, **ours)
        what = (q.shape, k.shape, ours)
        self.check_forward(q, k, v, results, theirs, what, alike(k.shape[-2]))
        self.assertEqual(results[0].tobytes(), sdpa(q, dense(k), dense(v), **ours).tobytes())

    @hypothesis.given(st.data())
    def test_wrong_arrays(self, data):
        """A wrong type, byte order or shape is refused with a one-line error that names it, and
        nothing is written."""
        rng = Drawn(data)
        q, k, v, ours, _ = draw(rng)
        out = np.full(q.shape[:-1] + v.shape[-1:], 7, q.dtype)
        arrays = {"q": q, "k": k, "v": v, "out": out}
        if "mask" in ours:
            arrays["mask"] = ours.pop("mask")
        name = data.draw(st.sampled_from(sorted(arrays)))
        wrong, errors = arrays[name], (TypeError,)
        how = data.draw(st.sampled_from(["type", "order", "size", "rank"]))
        if how == "type":
            kinds = ["i8", "i4", "u1", "c8", "c16", "S4", "O", "M8[s]", "V6"]
            kinds += [] if name == "mask" else ["?"]
            if name in "qkv":  # differs from that of the two others
                kinds += [d for d in DTYPES if d != q.dtype]
            wrong = np.zeros(wrong.shape, data.draw(st.sampled_from(kinds)))
        elif how == "order":
            hypothesis.assume(wrong.dtype.name in ("float64", "float32", "float16"))
            wrong, errors = wrong.astype(wrong.dtype.newbyteorder()), (ValueError,)
        elif how == "size":
            axis = data.draw(st.integers(0, wrong.ndim - 1))
            # if both arrays that share this size changed, the call would be valid
            shape = list(wrong.shape)
            shape[axis] += 2 if name != "mask" or shape[axis] != 1 else 1000
            wrong, errors = np.ones(shape, wrong.dtype), (ValueError,)
            hypothesis.assume(not (ours["enable_gqa"] and name == "q" and axis == q.ndim - 3))
        else:
            wrong, errors = np.ones((1,) * 5 + wrong.shape[-1:], wrong.dtype), (ValueError,)
        arrays[name] = handed_over(rng, wrong) if name != "out" else wrong
        kept = out.tobytes()
        with self.assertRaises(errors) as caught:
            sdpa(**arrays, **ours)
        line = str(caught.exception)
        self.assertNotIn("\n", line)
        self.assertTrue(line and line.split()[0].split("[")[0] in (*"qkv", "mask", "out",
                                                                   "key_lengths"), line)
        self.assertEqual(out.tobytes(), kept)


if __name__ == "__main__":
    print("Hypothesis %s, %d cases of each, derandomized" % (hypothesis.__version__, CASES))
    unittest.main()
