#!/usr/bin/env python3
# timeout: 300
"""attn.scaled_dot_product_attention and attn.grad against the definition in float64 NumPy."""

import unittest

import numpy as np

from common import DTYPES, NAMES, attn, laid_out, reference, weight_error


def draw(rng):
    """A call: q, k, v, the options of the package and those of the reference."""
    dtype = DTYPES[rng.integers(len(DTYPES))]
    B, Hk, group = rng.integers(1, 3), rng.integers(1, 3), rng.integers(1, 4)
    T, S = (int(x) for x in rng.choice([1, 2, 5, 17, 40, 70], 2))
    D, Dv = (int(x) for x in rng.choice([1, 3, 8, 16, 33, 64], 2))
    if rng.random() < 0.1:
        B, Hk, group, T, S, D, Dv = (
            0 if rng.random() < 0.2 else x for x in (B, Hk, group, T, S, D, Dv)
        )
    rank = int(rng.choice([4, 4, 3, 2]))
    B, Hk, group = (B if rank > 3 else 1), (Hk if rank > 2 else 1), (group if rank > 2 else 1)
    H = Hk * group
    shapes = (B, H, T, D), (B, Hk, S, D), (B, Hk, S, Dv)
    q, k, v = (rng.standard_normal(s).astype(dtype) for s in shapes)
    ours, theirs = {"enable_gqa": group != 1}, {}

    def give(name, value, other=None, other_value=None):
        ours[name] = value
        theirs[other or name] = value if other_value is None else other_value

    if rng.random() < 0.4:
        ours["is_causal"], theirs["causal"] = True, "top-left"
        if rng.random() < 0.3:
            ours["causal_offset"] = theirs["causal"] = "bottom-right"
        elif rng.random() < 0.5:
            ours["causal_offset"] = theirs["causal"] = int(rng.integers(-5, 20))
    if rng.random() < 0.3:
        give("window", tuple(int(x) for x in rng.integers(-1, 20, 2)))
    if rng.random() < 0.2:
        give("softcap", float(rng.uniform(0.5, 30)))
    if rng.random() < 0.2:
        give("scale", float(rng.uniform(-2, 2)))
    if D == 0 and "scale" not in theirs:
        theirs["scale"] = 1  # the scores are 0 whatever it is, but 1/sqrt(0) is not a number
    if rng.random() < 0.2:
        give("alibi", rng.standard_normal(H).astype(np.float32))
    if rng.random() < 0.2:
        give("sinks", rng.standard_normal(H).astype(np.float32))
    if rng.random() < 0.3:
        lengths = rng.integers(0, S + 1, B)
        give("key_lengths", lengths, "lengths")
    if rng.random() < 0.2:
        give("dropout_p", float(rng.uniform(0, 0.9)), "dropout")
        give("seed", int(rng.integers(0, 2**64, dtype=np.uint64)))
    if rng.random() < 0.5:
        shape = [n if rng.random() < 0.6 else 1 for n in (B, H, T, S)]
        shape = shape[-min(rank, rng.integers(2, 5)) :]
        if rng.random() < 0.5:
            mask = rng.random(shape) < 0.7
        else:
            mask = rng.standard_normal(shape).astype(np.float32)
            mask[rng.random(shape) < 0.2] = -np.inf
        give("mask", laid_out(rng, mask), None, mask.reshape((1,) * (4 - mask.ndim) + mask.shape))
    q, k, v = (laid_out(rng, x.reshape(x.shape[4 - rank :])) for x in (q, k, v))
    return q, k, v, ours, theirs


def full(x):
    return x.astype(np.float64).reshape((1,) * (4 - x.ndim) + x.shape)


class Sdpa(unittest.TestCase):
    def near(self, got, want, bound, what):
        self.assertEqual(got.size, want.size, what)
        got = got.astype(np.float64).reshape(want.shape)
        with np.errstate(invalid="ignore"):
            good = (np.abs(got - want) <= bound) | (got == want)
        self.assertTrue(good.all(), (what, got[~good], want[~good]))

    def test_random_calls(self):
        empty = 0
        for case in range(1000):
            rng = np.random.default_rng(case)
            q, k, v, ours, theirs = draw(rng)
            what = (case, q.dtype, q.shape, k.shape, v.shape, ours)
            threads = [None, 1, 2, 3][case % 4]
            out, weights, lse = attn.scaled_dot_product_attention(
                q, k, v, return_weights=True, return_lse=True, threads=threads, **ours
            )
            want = reference.attention(full(q), full(k), full(v), **theirs)
            kind = NAMES[q.dtype.name]
            error = weight_error(kind)
            self.assertEqual(out.dtype, q.dtype)
            self.assertEqual(out.shape, q.shape[:-1] + v.shape[-1:])
            self.assertEqual(weights.shape, q.shape[:-1] + k.shape[-2:-1])
            self.assertEqual(lse.shape, q.shape[:-1])
            self.near(out, want["out"], reference.bound(want, "out", kind, error), what)
            self.near(lse, want["lse"], reference.bound(want, "lse", kind, error), what)
            bound = reference.bound(want, "weights", kind, error)
            relative, least = reference.STORE[kind]
            bound = bound + relative * want["weights"] * 1.01 + least
            self.near(weights, want["weights"], bound, what)
            # `out` given, and in another layout: the same bits
            place = laid_out(rng, np.zeros(out.shape, out.dtype))
            if place.flags.writeable:
                ours["out"] = place
                got = attn.scaled_dot_product_attention(q, k, v, threads=1, **ours)
                self.assertIs(got, place)
                self.assertEqual(got.tobytes(), out.tobytes(), what)
            empty += out.size == 0
        self.assertGreater(empty, 10)

    def test_random_gradients(self):
        for case in range(300):
            rng = np.random.default_rng(1000 + case)
            q, k, v, ours, theirs = draw(rng)
            kind = NAMES[q.dtype.name]
            dout = rng.standard_normal(q.shape[:-1] + v.shape[-1:]).astype(q.dtype)
            want_names = ["q", "k", "v"]
            if "mask" in ours and ours["mask"].dtype != bool:
                want_names.append("mask")
            got = attn.grad(q, k, v, laid_out(rng, dout), want=want_names, **ours)
            self.assertEqual((got.alibi, got.sinks), (None, None))
            error = weight_error(kind)
            exact, bounds = reference.gradients(
                full(q), full(k), full(v), full(dout), kind, error, **theirs
            )
            for name in want_names:
                mine = getattr(got, name)
                self.assertEqual(mine.shape, {"q": q, "k": k, "v": v, **ours}[name].shape)
                if q.size == 0 and q.shape[-3:-2] == (0,):  # no head asks
                    self.assertFalse(mine.any(), (case, name))
                    continue
                name = "grad-" + name
                self.near(mine, exact[name], bounds[name], (case, name, kind, q.shape, ours))

    def test_gradients_of_slopes_and_sinks(self):
        """Central differences of the float64 forward."""
        rng = np.random.default_rng(7)
        q, k, v, dout = (rng.standard_normal((1, 3, n, 4)) for n in (5, 6, 6, 5))
        # numbers whose step stays exact in float32
        point = {"alibi": np.float32([0.5, -0.25, 0.125]), "sinks": np.float32([1, 0, -1])}
        got = attn.grad(q, k, v, dout, want=["alibi", "sinks"], **point)
        self.assertIsNone(got.q)
        step = 2.0**-10
        for name in point:
            for h in range(3):
                loss = []
                for sign in (1, -1):
                    moved = {n: x.copy() for n, x in point.items()}
                    moved[name][h] += np.float32(sign * step)
                    loss.append((attn.scaled_dot_product_attention(q, k, v, **moved) * dout).sum())
                difference = (loss[0] - loss[1]) / (2 * step)
                self.assertAlmostEqual(getattr(got, name)[h], difference, delta=1e-4)

    def test_given_out_and_lse(self):
        rng = np.random.default_rng(8)
        q, k, v, dout = (rng.standard_normal((2, 9, 4)) for _ in range(4))
        out, lse = attn.scaled_dot_product_attention(q, k, v, return_lse=True, is_causal=True)
        first = attn.grad(q, k, v, dout, is_causal=True)
        second = attn.grad(q, k, v, dout, out=out, lse=lse, is_causal=True)
        for name in "qkv":
            self.assertEqual(getattr(first, name).tobytes(), getattr(second, name).tobytes())
        # the gradient of lse itself is softmax(scores) k * scale
        zero = np.zeros_like(dout)
        got = attn.grad(q, k, v, zero, dlse=np.ones_like(lse)).q
        weights = reference.attention(full(q), full(k), full(v))["weights"][0]
        np.testing.assert_allclose(got, weights @ k / 2, rtol=0, atol=1e-14)


if __name__ == "__main__":
    unittest.main()
