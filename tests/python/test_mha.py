#!/usr/bin/env python3
"""attn.MultiHeadAttention compared with its definition in float64 NumPy, forward and gradients."""

import copy
import pickle
import threading
import unittest

from common import attn, laid_out, reference
import numpy as np

TOLERANCE = {"float32": 2e-5, "float64": 1e-12}  # of the largest element


def draw(rng):
    """A module's weights and a call's arguments; all sizes differ."""
    dtype = np.dtype(rng.choice(["float32", "float64"]))
    B, Hk, group = rng.integers(1, 4), rng.integers(1, 4), rng.integers(1, 4)
    H, packed, apart = Hk * group, rng.random() < 0.5, rng.random() < 0.3
    T, S, E, Es, D, Dv, Out = (int(x) for x in rng.choice([1, 2, 5, 8, 17, 33], 7))
    cross = rng.random() < 0.5
    if packed:
        Es, Dv = E, D
    if not cross:
        S, Es = T, E

    def normal(*shape):
        return rng.standard_normal(shape).astype(dtype)

    given = {}
    rows = {"q": H * D, "k": Hk * D, "v": Hk * Dv}
    if packed:
        given["in_proj_weight"] = normal(sum(rows.values()), E)
    else:
        given.update(("w_" + x, normal(rows[x], E if x == "q" else Es)) for x in "qkv")
    if rng.random() < 0.5:
        if packed or D == Dv and rng.random() < 0.5:
            given["in_proj_bias"] = normal(sum(rows.values()))
        else:
            given.update(("b_" + x, normal(rows[x])) for x in "qkv" if rng.random() < 0.8)
    if rng.random() < 0.8:
        given["w_o"] = normal(Out, H * Dv)
        if rng.random() < 0.5:
            given["b_o"] = normal(Out)
    whole = dict(given)
    for letter in "wb":
        if "in_proj_" + ("weight" if letter == "w" else "bias") in given:
            x = whole["in_proj_" + ("weight" if letter == "w" else "bias")]
            parts = np.split(x, [H * D, (H + Hk) * D])
            whole.update(zip((letter + "_q", letter + "_k", letter + "_v"), parts))
    heads = {"q": H, "k": Hk, "v": Hk}
    if apart:
        for name in given:
            if name[2] in "qkv" and name[1] == "_":
                x = given[name]
                given[name] = x.reshape((heads[name[2]], -1) + x.shape[1:])
    given = {name: laid_out(rng, x) for name, x in given.items()}
    x, source = normal(B, T, E), normal(B, S, Es) if cross else None
    return H, Hk, given, whole, x, source


def draw_options(rng, B, H, T, S):
    """Options of the package and of the reference."""
    ours, theirs = {}, {}
    if rng.random() < 0.4:
        ours["is_causal"], theirs["causal"] = True, "top-left"
    if rng.random() < 0.3:
        ours["softcap"] = theirs["softcap"] = float(rng.uniform(1, 20))
    if rng.random() < 0.2:
        ours["scale"] = theirs["scale"] = float(rng.uniform(0.1, 1))
    if rng.random() < 0.3:
        ours["key_lengths"] = theirs["lengths"] = rng.integers(1, S + 1, B)
    if rng.random() < 0.2:
        ours["alibi"] = theirs["alibi"] = rng.standard_normal(H).astype("f4")
    if rng.random() < 0.2:
        ours["sinks"] = theirs["sinks"] = rng.standard_normal(H).astype("f4")
    if rng.random() < 0.2:
        ours["dropout_p"], ours["seed"] = theirs["dropout"], theirs["seed"] = 0.25, 77
    if rng.random() < 0.4:
        ours["mask"] = theirs["mask"] = rng.standard_normal((H, 1, S)).astype("f4")
    return ours, theirs


def project(x, w, b, heads):
    """[B,heads,rows,D] in float64."""
    y = x.astype("f8") @ w.astype("f8").T
    if b is not None:
        y = y + b.astype("f8")
    return y.reshape(y.shape[:2] + (heads, -1)).swapaxes(1, 2)


def joined(x):
    """[B,heads,rows,D] as [B,rows,heads*D]."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


class MultiHead(unittest.TestCase):
    def near(self, got, want, dtype, what, largest=1e-3):
        self.assertEqual(got.shape, want.shape, what)
        largest = abs(want).max(initial=largest)
        reference.expect_near(got, want, TOLERANCE[dtype.name] * largest, what)

    def test_random_modules(self):
        for case in range(150):
            rng = np.random.default_rng(case)
            H, Hk, given, w, x, source = draw(rng)
            B, T, S = x.shape[0], x.shape[1], (x if source is None else source).shape[1]
            ours, theirs = draw_options(rng, B, H, T, S)
            what = (case, x.shape, H, Hk, sorted(given), ours)
            module = attn.MultiHeadAttention(H, kv_heads=Hk, **given)
            keys = x if source is None else source
            q = project(x, w["w_q"], w.get("b_q"), H)
            k, v = (project(keys, w["w_" + n], w.get("b_" + n), Hk) for n in "kv")
            want = reference.attention(q, k, v, **theirs)
            heads = joined(want["out"])
            full = heads @ w["w_o"].astype("f8").T if "w_o" in w else heads
            full = full + w.get("b_o", 0)
            threads = [None, 1, 2][case % 3]
            out, weights, lse = module(
                laid_out(rng, x), None if source is None else laid_out(rng, source),
                return_weights=True, return_lse=True, threads=threads, **ours
            )  # fmt: skip
            self.assertEqual(out.dtype, x.dtype)
            self.near(out, full, x.dtype, what)
            self.near(weights, want["weights"], x.dtype, what)
            self.near(lse, want["lse"][..., 0], x.dtype, what)
            self.gradients(rng, module, (q, k, v), (x, source, w), ours, theirs, what)

    def gradients(self, rng, module, qkv, inputs, ours, theirs, what):
        (q, k, v), (x, source, w) = qkv, inputs
        H, Hk, keys = q.shape[1], k.shape[1], (x if source is None else source).astype("f8")
        Out = w["w_o"].shape[0] if "w_o" in w else H * v.shape[3]
        dout = rng.standard_normal(x.shape[:2] + (Out,)).astype(x.dtype)
        dheads = dout.astype("f8") @ w["w_o"].astype("f8") if "w_o" in w else dout.astype("f8")
        dheads = dheads.reshape(x.shape[:2] + (H, -1)).swapaxes(1, 2)
        options = dict(theirs)
        exact, _ = reference.gradients(q, k, v, dheads, "f64", **options)
        heads = joined(reference.attention(q, k, v, **theirs)["out"])
        want, d = {}, {n: joined(exact["grad-" + n]) for n in "qkv"}
        for n, rows in (("q", x.astype("f8")), ("k", keys), ("v", keys)):
            want["w_" + n] = np.einsum("bto,bti->oi", d[n], rows)
            want["b_" + n] = d[n].sum((0, 1))
        want["query"] = d["q"] @ w["w_q"].astype("f8")
        want["key"] = sum(d[n] @ w["w_" + n].astype("f8") for n in "kv")
        if source is None:
            want["query"] = want["query"] + want["key"]
        want["w_o"] = np.einsum("bto,bti->oi", dout.astype("f8"), heads)
        want["b_o"] = dout.astype("f8").sum((0, 1))
        for name, letter in (("in_proj_weight", "w_"), ("in_proj_bias", "b_")):
            if name in module._given:
                want[name] = np.concatenate([want[letter + n] for n in "qkv"])
        want["mask"] = exact["grad-mask"]
        names = None
        if "mask" in ours:
            names = ["query", "mask"] + [n for n in attn.MultiHeadGradients._fields if n in w
                                         and n in module._given]
        got = module.grad(laid_out(rng, dout), x, source, want=names, **ours)
        found = [n for n in got._fields if getattr(got, n) is not None]
        self.assertIn("query", found)
        self.assertTrue(set(module._given) <= set(found), what)
        # relative to the largest of all gradients, because that of b_k is a sum that cancels to 0
        # in each row
        largest = max(abs(want[n]).max(initial=0) for n in found)
        for name in found:
            mine = getattr(got, name)
            if name in module._given:
                self.assertEqual(mine.shape, module._given[name].shape)
            self.near(mine.reshape(want[name].shape), want[name], x.dtype, (name, what), largest)

    def test_values_of_their_own(self):
        """Values from another array. If this is a copy of the keys' source, the results are
        bit-identical to the module's. Otherwise they are compared with the definition."""
        for case in range(60):
            rng = np.random.default_rng(case)
            H, Hk, given, w, x, source = draw(rng)
            keys = x if source is None else source
            ours, theirs = draw_options(rng, x.shape[0], H, x.shape[1], keys.shape[1])
            module = attn.MultiHeadAttention(H, kv_heads=Hk, **given)
            asked = {"return_weights": True, "return_lse": True, **ours}
            if case % 4 == 0:
                asked["output_dropout"] = 0.25, case
            want = module(x, keys, **asked)
            got = module(x, keys, keys.copy(), **asked)
            for a, b in zip(got, want):
                self.assertEqual((a.shape, a.tobytes()), (b.shape, b.tobytes()), case)
            dout = rng.standard_normal(want[0].shape).astype(x.dtype)
            more = {n: a for n, a in asked.items() if not n.startswith("return")}
            whole = module.grad(dout, x, keys.copy(), **more)
            parts = module.grad(dout, x, keys.copy(), keys.copy(), **more)
            size = max(abs(getattr(whole, n)).max(initial=1) for n in ("query", "key"))
            self.near(parts.query, whole.query.astype("f8"), x.dtype, case, size)
            self.near(parts.key + parts.value, whole.key.astype("f8"), x.dtype, case, size)
            for name in given:
                a, b = getattr(parts, name), getattr(whole, name).astype("f8")
                self.near(a, b, x.dtype, (case, name), max(size, abs(b).max(initial=0)))
            values = laid_out(rng, rng.standard_normal(keys.shape).astype(x.dtype))
            q, k = (project(s, w["w_" + n], w.get("b_" + n), m)
                    for s, n, m in ((x, "q", H), (keys, "k", Hk)))
            v = project(values, w["w_v"], w.get("b_v"), Hk)
            heads = joined(reference.attention(q, k, v, **theirs)["out"])
            full = heads @ w["w_o"].astype("f8").T if "w_o" in w else heads
            self.near(module(x, keys, values, **ours), full + w.get("b_o", 0), x.dtype, case)
            alone = [module(a, b, c, is_causal=True)
                     for a, b, c in zip(x, keys, np.array(values))]
            all_of_them = module(x, keys, values, is_causal=True)
            self.assertEqual(np.array(alone).tobytes(), all_of_them.tobytes())

    def test_gradients_of_slopes_and_sinks(self):
        """Central differences of the float64 forward."""
        rng = np.random.default_rng(5)
        module = attn.MultiHeadAttention(2, in_proj_weight=rng.standard_normal((12, 4)))
        x, dout = rng.standard_normal((2, 5, 4)), rng.standard_normal((2, 5, 4))
        point = {"alibi": np.float32([0.5, -0.25]), "sinks": np.float32([1, -1])}
        got = module.grad(dout, x, want=["alibi", "sinks"], **point)
        self.assertIsNone(got.query)
        step = 2.0**-10
        for name in point:
            for h in range(2):
                loss = []
                for sign in (1, -1):
                    moved = {n: a.copy() for n, a in point.items()}
                    moved[name][h] += np.float32(sign * step)
                    loss.append((module(x, **moved) * dout).sum())
                difference = (loss[0] - loss[1]) / (2 * step)
                self.assertAlmostEqual(getattr(got, name)[h], difference, delta=1e-4)

    def test_same_bits(self):
        """The bits are the same for any number of threads, without B, with `out`, in a copy, and in
        many threads at once."""
        rng = np.random.default_rng(2)
        w = [rng.standard_normal(s).astype("f4") for s in ((96, 32), (96,), (32, 32))]
        module = attn.MultiHeadAttention(4, in_proj_weight=w[0], in_proj_bias=w[1], w_o=w[2])
        x = rng.standard_normal((3, 40, 32)).astype("f4")
        want = module(x, is_causal=True).tobytes()
        w[0][:] = 0  # it has its own copy
        for n in (1, 2, 3):
            self.assertEqual(module(x, is_causal=True, threads=n).tobytes(), want)
        self.assertEqual(module(x, x, x, is_causal=True).tobytes(), want)
        self.assertEqual(b"".join(module(y, is_causal=True).tobytes() for y in x), want)
        out = np.zeros_like(x)
        self.assertIs(module(x, out=out, is_causal=True), out)
        self.assertEqual(out.tobytes(), want)
        for other in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
            self.assertEqual(other(x, is_causal=True).tobytes(), want)
        wrong = []

        def work():
            for _ in range(30):
                wrong.append(module(x, is_causal=True, threads=1).tobytes() != want)

        workers = [threading.Thread(target=work) for _ in range(4)]
        for one in workers:
            one.start()
        for one in workers:
            one.join()
        self.assertEqual((len(wrong), any(wrong)), (120, False))

    def test_output_dropout(self):
        """By the rule of attn_nn.h: Philox with b*T + i as row and h = 0."""
        x = np.random.default_rng(4).standard_normal((2, 6, 8))
        module = attn.MultiHeadAttention(2, in_proj_weight=np.eye(24, 8), w_o=np.eye(8))
        kept = reference.dropout_keep((1, 1, 12, 8), 0.5, 9).reshape(2, 6, 8)
        np.testing.assert_allclose(module(x, output_dropout=(0.5, 9)), module(x) * kept / 0.5)

    def test_nothing_is_written_before_an_error(self):
        """Also if values come from another array than keys, with and without w_o."""
        rng = np.random.default_rng(5)
        w, x = (rng.standard_normal(shape).astype("f4") for shape in ((24, 8), (2, 8, 8)))
        other = x + 1
        for more in {}, {"w_o": w[:8]}:
            module = attn.MultiHeadAttention(2, in_proj_weight=w, **more)
            for inputs in (x,), (x, other), (x, other, x.copy()):
                for dropout, kind, says in (
                    ((0.3, -1), ValueError, "the seed of output_dropout is -1"),
                    ((0.3, 2**64 + 5), ValueError, "the seed of output_dropout is 18446"),
                    ((0.3, 5.0), TypeError, "the seed of output_dropout is 5.0"),
                    ((1.5, 0), ValueError, "output_dropout is 1.5"),
                    ((np.nan, 0), ValueError, "output_dropout is nan"),
                    (("a", 0), TypeError, "output_dropout has the probability 'a'"),
                    (0.3, ValueError, "output_dropout is 0.3; it must be"),
                ):
                    out = np.full(x.shape, 7, "f4")
                    with self.assertRaisesRegex(kind, says):
                        module(*inputs, out=out, output_dropout=dropout)
                    with self.assertRaisesRegex(kind, says):
                        module.grad(x, *inputs, output_dropout=dropout)
                    self.assertTrue((out == 7).all())
                for dtype in ("f8", "f2", "i4", "?"):
                    out = np.ones(x.shape, dtype)
                    with self.assertRaisesRegex(TypeError, "^out is "):
                        module(*inputs, out=out)
                    self.assertTrue((out == 1).all())
                out = np.ones(x.shape, ">f4" if np.little_endian else "<f4")
                with self.assertRaisesRegex(ValueError, "^out has the other byte order"):
                    module(*inputs, out=out)
                out = x.copy()
                with self.assertRaisesRegex(ValueError, "^out shares memory"):
                    module(*inputs, out=out, mask=out[:, None])
                self.assertEqual(out.tobytes(), x.tobytes())

    def test_broadcast_gradient(self):
        """dout is an input: its elements may share memory."""
        rng = np.random.default_rng(3)
        x = rng.standard_normal((2, 3, 4))
        w = rng.standard_normal((12, 4))
        module = attn.MultiHeadAttention(2, in_proj_weight=w, w_o=rng.standard_normal((4, 4)))
        dy = np.broadcast_to(0.5, x.shape)
        got, want = module.grad(dy, x), module.grad(dy.copy(), x)
        self.assertEqual(got.query.tobytes(), want.query.tobytes())
        with self.assertRaisesRegex((TypeError, ValueError), "^dout "):
            module.grad(dy.astype("f4"), x)

    def test_output_that_overlaps_itself(self):
        w, x = np.ones((12, 4)), np.ones((1, 3, 4))
        module = attn.MultiHeadAttention(2, in_proj_weight=w)
        out = np.lib.stride_tricks.as_strided(np.zeros(4), x.shape, (0, 0, 8))
        for inputs in (x,), (x, x.copy(), x.copy()):
            with self.assertRaisesRegex(ValueError, "share memory"):
                module(*inputs, out=out)
        self.assertEqual(abs(out).max(), 0)

    def test_refused(self):
        w, x = np.ones((24, 8), "f4"), np.ones((2, 3, 8), "f4")
        module = attn.MultiHeadAttention(2, in_proj_weight=w)
        make = attn.MultiHeadAttention
        for call, kind, says in (
            (lambda: make(2), ValueError, "w_q is not given"),
            (lambda: make(5, in_proj_weight=w), ValueError, r"multiple of num_heads"),
            (lambda: make(0, in_proj_weight=w), ValueError, "num_heads is 0"),
            (lambda: make(2, kv_heads=3, in_proj_weight=w), ValueError, "kv_heads is 3"),
            (lambda: make(2, in_proj_weight=w, w_k=w[:8]), ValueError, "w_k is given together"),
            (lambda: make(2, w_q=w, w_k=w, w_v=w[:7]), ValueError, "w_v has 7 rows"),
            (lambda: make(2, w_q=w, w_k=w[:8], w_v=w), ValueError, r"must be \[1, 2, 12, 8\]"),
            (lambda: make(3, kv_heads=2, w_q=w, w_k=w, w_v=w), ValueError, "multiple of w_k's"),
            (lambda: make(2, w_q=w[0], w_k=w, w_v=w), ValueError, "w_q has 1 dimensions"),
            (lambda: make(2, in_proj_weight=w, w_o=w[0]), ValueError, "w_o has 1 dimensions"),
            (lambda: make(2, in_proj_weight=w, b_o=w[0]), ValueError, "b_o is given without w_o"),
            (lambda: make(2, in_proj_weight=w.astype("f2")), TypeError, "w_q is f16"),
            (lambda: make(2, in_proj_weight=w, w_o=np.ones((3, 8))), TypeError, "w_o is f64"),
            (lambda: make(2, in_proj_weight=w.astype(">f4")), ValueError, "other byte order"),
            (lambda: make("2", in_proj_weight=w), TypeError, "integer"),
            (lambda: module(x[0, 0]), ValueError, "query has 1 dimensions"),
            (lambda: module(x[..., :7]), ValueError, "^query has E=7"),
            (lambda: module(x.astype("f8")), TypeError, "^query is float64"),
            (lambda: module(x, x.astype("f2")), TypeError, "^key is float16"),
            (lambda: module(x, x[..., 1:]), ValueError, "^key has Es=7"),
            (lambda: module(x, x[0]), ValueError, "key has 2 dimensions"),
            (lambda: module(x, None, x), ValueError, "value is given without key"),
            (lambda: module(x, x, x[:, :2]), ValueError, "^value has shape"),
            (lambda: module(x, x, x.astype("f8")), TypeError, "^value is float64"),
            (lambda: module(x, x[:1].copy()), ValueError, "^key "),
            (lambda: module(x, maks=1), TypeError, "maks"),
            (lambda: module(x, out=x), ValueError, "shares memory"),
            (lambda: module(x, out=np.ones((3, 8), "f4")), ValueError, "^out has shape"),
            (lambda: module(x, output_dropout=(1.0, 0)), ValueError, "output_dropout is 1"),
            (lambda: module.grad(x, x, want=["w_q"]), ValueError, "want has 'w_q'"),
            (lambda: module.grad(x[0], x), ValueError, r"^dout .* must be \(2, 3, 8\)"),
            (lambda: module.grad(x[..., :5], x), ValueError, "^dout has shape"),
        ):
            with self.assertRaisesRegex(kind, says):
                call()


if __name__ == "__main__":
    unittest.main()
