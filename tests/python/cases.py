"""Random calls of every kind, for attn and for the reference in float64 NumPy. The generator is
NumPy's, or an object of Hypothesis with the same methods (test_properties.py)."""

import numpy as np

from common import DTYPES, NAMES, attn, laid_out, reference, weight_error


def draw(rng):
    """Draws a call: q, k, v, the options of the package and those of the reference."""
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
    elif rng.random() < 0.4:
        give("diagonal", "bottom-right" if rng.random() < 0.5 else int(rng.integers(-5, 20)))
    if rng.random() < 0.3:
        give("window", tuple(int(x) for x in rng.integers(-1, 20, 2)))
    if rng.random() < 0.2:
        give("softcap", float(rng.uniform(0.5, 30)))
    if rng.random() < 0.2:
        give("scale", float(rng.uniform(-2, 2)) or 1.0)  # 0 is refused
    if D == 0 and "scale" not in theirs:
        theirs["scale"] = 1  # with D = 0 all scores are 0, but 1/sqrt(0) is infinite
    if rng.random() < 0.2:
        give("alibi", rng.standard_normal(H).astype(np.float32))
        give("alibi_symmetric", bool(rng.random() < 0.5))
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


class Compared:
    """For a TestCase: results within the bounds of docs/NUMERICS.md."""

    def near(self, got, want, bound, what):
        self.assertEqual(got.size, want.size, what)
        got = got.astype(np.float64).reshape(want.shape)
        with np.errstate(invalid="ignore"):
            good = (np.abs(got - want) <= bound) | (got == want)
        self.assertTrue(good.all(), (what, got[~good], want[~good]))

    def check_forward(self, q, k, v, results, theirs, what, wider=1.0):
        """Compares out, weights and lse of a call with the reference's; bounds may be widened."""
        out, weights, lse = results
        want = reference.attention(full(q), full(k), full(v), **theirs)
        kind = NAMES[q.dtype.name]
        error = weight_error(kind)
        self.assertEqual(out.dtype, q.dtype)
        self.assertEqual(out.shape, q.shape[:-1] + v.shape[-1:])
        self.assertEqual(weights.shape, q.shape[:-1] + k.shape[-2:-1])
        self.assertEqual(lse.shape, q.shape[:-1])
        for got, name in ((out, "out"), (lse, "lse")):
            self.near(got, want[name], wider * reference.bound(want, name, kind, error), what)
        bound = reference.bound(want, "weights", kind, error)
        relative, least = reference.STORE[kind]
        # A weight below 2^-125 of its row's largest may become 0 (docs/NUMERICS.md, "Bits").
        bound = bound + relative * want["weights"] * 1.01 + least + 2.0**-125
        self.near(weights, want["weights"], wider * bound, what)

    def check_gradients(self, rng, q, k, v, ours, theirs, what, hand=lambda x: x):
        """Compares attn.grad with the reference's gradients; `hand` converts each array before the
        call."""
        kind = NAMES[q.dtype.name]
        dout = rng.standard_normal(q.shape[:-1] + v.shape[-1:]).astype(q.dtype)
        want_names = ["q", "k", "v"]
        if "mask" in ours and ours["mask"].dtype != bool:
            want_names.append("mask")
        shapes = {"q": q, "k": k, "v": v, **ours}
        ours = {**ours, "mask": hand(ours["mask"])} if "mask" in ours else ours
        got = attn.grad(
            hand(q), hand(k), hand(v), hand(laid_out(rng, dout)), want=want_names, **ours
        )
        self.assertEqual((got.alibi, got.sinks), (None, None))
        error = weight_error(kind)
        exact, bounds = reference.gradients(
            full(q), full(k), full(v), full(dout), kind, error, **theirs
        )
        for name in want_names:
            mine = getattr(got, name)
            self.assertEqual(mine.shape, shapes[name].shape)
            if q.size == 0 and q.shape[-3:-2] == (0,):  # no query heads
                self.assertFalse(mine.any(), (what, name))
                continue
            name = "grad-" + name
            self.near(mine, exact[name], bounds[name], (name, kind, what))
