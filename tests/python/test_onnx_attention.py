#!/usr/bin/env python3
"""ONNX's Attention without the package onnx, compared with an implementation of the operator's text
in float64 NumPy. Tests that need the package are in tests/peers/test_onnx.py."""

import os
import subprocess
import sys
import unittest

import numpy as np

from common import DTYPES, NAMES, SOURCE, attn, laid_out, reference, weight_error
from attn._onnx_attention import Options, attention

STAGES = ("raw", "softcap", "biased", "weights")


def visible(o, B, T, S, P, lengths):
    """The keys that each query sees by its position, pair by pair, by the text of Attention-25:
    [B,1,T,S]."""
    seen = np.zeros((B, 1, T, S), bool)
    for b in range(B):
        offset = P if lengths is None else int(lengths[b]) - T
        for i in range(T):
            for j in range(S):
                p = offset + i
                seen[b, 0, i, j] = (
                    (not o.is_causal or j <= i + offset)
                    and (o.left_window_size < 0 or p - o.left_window_size <= j)
                    and (o.right_window_size < 0 or j <= p + o.right_window_size)
                    and (lengths is None or j < lengths[b])
                )
    return seen


def draw_mask(rng, opset, dtype, full, lengths):
    """Draws attn_mask, or None, and what it adds to the scores, [B|1,H|1,T|1,S|1]."""
    if rng.random() < 0.4:
        return None, np.zeros((1, 1, 1, 1))
    shape, total = [n if rng.random() < 0.6 else 1 for n in full[:3]][rng.integers(4) :], full[3]
    keys = total
    if opset > 23 and rng.random() < 0.5:
        keys = int(rng.integers(1 if lengths is None else max(1, lengths.max()), total + 1))
    elif opset == 23 and rng.random() < 0.2:
        keys = 1
    if rng.random() < 0.5:
        mask = rng.random(shape + [keys]) < 0.7
        whole = np.where(mask, 0.0, -np.inf)
    else:
        mask = rng.standard_normal(shape + [keys]).astype(dtype)
        mask[rng.random(mask.shape) < 0.2] = -np.inf
        whole = mask.astype(np.float64)
    if opset > 23 or keys > 1:
        beyond = [(0, 0)] * len(shape) + [(0, total - keys)]
        whole = np.pad(whole, beyond, constant_values=-np.inf)
    return mask, whole.reshape((1,) * (4 - whole.ndim) + whole.shape)


def draw(rng):
    """Draws options, inputs of the operator, and arguments of the definition."""
    opset = int(rng.choice([23, 24, 25]))
    dtype = DTYPES[rng.integers(len(DTYPES))]
    B, Hk, group = (int(x) for x in rng.integers(1, 4, 3))
    T, S, P = (int(x) for x in rng.choice([1, 2, 3, 5, 9, 20, 70], 3))
    D, Dv = (int(x) for x in rng.choice([1, 3, 8, 16], 2))
    H, rank, lengths = Hk * group, int(rng.choice([3, 4])), None
    how = rng.choice(["none", "past", "lengths"]) if opset > 23 else rng.choice(["none", "past"])
    P = P if how == "past" else 0
    if how == "lengths":
        lengths = rng.integers(0, S + 1, B)
    values = {"opset": opset}
    if rank == 3:
        values.update(q_num_heads=H, kv_num_heads=Hk)
    if rng.random() < 0.5:
        values["is_causal"] = 1
    if rng.random() < 0.3:
        values["scale"] = float(rng.choice([0.0, 0.25, 0.7, -1.5]))
    if rng.random() < 0.3:
        values["softcap"] = float(rng.choice([0.5, 3.0]))
    if rng.random() < 0.4:
        values["softmax_precision"] = int(rng.choice([1, 10, 11, 16]))
    if opset == 25 and rng.random() < 0.6:
        for name in ("left_window_size", "right_window_size"):
            values[name] = int(rng.choice([-1, 0, 1, 2, 5, 2**62]))
    values["qk_matmul_output_mode"] = int(rng.integers(4))
    o = Options(**values).checked()
    q, k, v = (rng.standard_normal((B, h, n, d)).astype(dtype)
               for h, n, d in ((H, T, D), (Hk, P + S, D), (Hk, P + S, Dv)))
    if rng.random() < 0.2:
        v = v.astype(DTYPES[rng.integers(len(DTYPES))])
    mask, whole = draw_mask(rng, opset, dtype, (B, H, T, P + S), lengths)
    whole = np.where(visible(o, B, T, P + S, P, lengths), whole, -np.inf)

    def given(x):
        if rank == 3:
            x = x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)
        return laid_out(rng, x)

    inputs = [given(q), given(k[:, :, P:]), given(v[:, :, P:])]
    inputs.append(None if mask is None else laid_out(rng, mask))
    if how == "past":
        inputs += [laid_out(rng, k[:, :, :P]), laid_out(rng, v[:, :, :P])]
    elif how == "lengths":
        inputs += [None, None, lengths]
    return o, inputs, (q, k, v), np.broadcast_to(whole, (B, H, T, P + S))


class Attention(unittest.TestCase):
    def near(self, got, want, bound, what):
        self.assertEqual(got.shape, want.shape, what)
        got = got.astype(np.float64)
        with np.errstate(invalid="ignore"):
            good = (np.abs(got - want) <= bound) | (got == want)
        self.assertTrue(good.all(), (what, got[~good], want[~good], bound[~good]))

    def test_random_nodes(self):
        hidden = 0
        for case in range(700):
            rng = np.random.default_rng(case)
            o, inputs, (q, k, v), mask = draw(rng)
            past = len(inputs) == 6
            what = (case, o, q.dtype, v.dtype, [None if x is None else x.shape for x in inputs])
            y, key, value, qk = attention(o, inputs, (True, past, past, True), threads=case % 4)
            exact = [x.astype(np.float64) for x in (q, k, v)]
            want = reference.attention(*exact, mask=mask, scale=o.scale, softcap=o.softcap)
            kind = NAMES[q.dtype.name]
            error = weight_error(kind)
            B, H, T, _ = q.shape
            self.assertEqual((y.dtype, qk.dtype), (q.dtype, q.dtype), what)
            if o.q_num_heads:
                self.assertEqual(y.shape, (B, T, H * v.shape[3]))
                y = y.reshape(B, T, H, -1).transpose(0, 2, 1, 3)
            relative, least = reference.STORE[kind]
            self.near(y, want["out"], reference.bound(want, "out", kind, error), what)
            stage = STAGES[o.qk_matmul_output_mode]
            bound = reference.bound(want, stage, kind, error if stage == "weights" else 0)
            with np.errstate(invalid="ignore"):
                bound = bound + relative * np.abs(want[stage]) * 1.01 + least
            self.near(qk, want[stage], bound, what + (stage,))
            if past:
                self.assertEqual(key.tobytes(), k.tobytes(), what)
                self.assertEqual(value.tobytes(), v.tobytes(), what)
                self.assertEqual((key.dtype, value.dtype), (k.dtype, v.dtype))
            hidden += int((want["weights"].sum(-1) == 0).sum())
        self.assertGreater(hidden, 1000)  # queries that see no key, which must give 0

    def test_double_precision_rounds_once(self):
        """softmax_precision = 11: the result is the exact one, rounded to Q's type."""
        rng = np.random.default_rng(5)
        for dtype in DTYPES:
            q, k, v = (rng.standard_normal((2, 3, n, 16)).astype(dtype) for n in (9, 40, 40))
            y = attention(Options(25, softmax_precision=11), [q, k, v])[0]
            want = reference.attention(*(x.astype(np.float64) for x in (q, k, v)))["out"]
            if dtype == np.float64:
                np.testing.assert_allclose(y, want, rtol=1e-13, atol=1e-15)
            else:
                self.assertEqual((y != want.astype(dtype)).sum(), 0, dtype)
        # 1 + u + 2^-28, with u half of the distance to the next float16; in float this would be a
        # tie
        q, k = np.ones((1, 1, 1, 1), np.float16), np.zeros((1, 1, 2, 1), np.float16)
        v = 1 + k
        k[0, 0, 1], v[0, 0, 1] = 2.0**-15, 1 + 2.0**-10
        y = attention(Options(25, softmax_precision=11), [q, k, v])[0]
        self.assertEqual(y.item(), 1 + 2.0**-10)
        for bf in (d for d in DTYPES if d.name == "bfloat16"):  # a tie in float, none in double
            q, k = np.zeros((1, 1, 1, 4), bf), np.zeros((1, 1, 4, 4), bf)
            v = np.array([4, 2.0**-6, 2.0**-38, 0], bf).reshape(1, 1, 4, 1)
            for sign in (1, -1):
                y = attention(Options(25, softmax_precision=11), [q, k, sign * v])[0]
                self.assertEqual(float(y.item()), sign * (1 + 2.0**-7))

    def test_window_open_to_the_right_of_each_batch(self):
        """Windows without causal and several lengths in nonpad_kv_seqlen: the library has one
        offset per call."""
        q = np.zeros((3, 1, 2, 4), np.float32)
        k = np.zeros((3, 1, 8, 4), np.float32)
        v = np.broadcast_to(np.arange(8, dtype=np.float32)[:, None], (3, 1, 8, 1))
        o = Options(25, left_window_size=1, right_window_size=1)
        y = attention(o, [q, k, v, None, None, None, np.array([8, 5, 1])])[0]
        # len 8: p = 6, 7 sees 5..7, 6..7; len 5: p = 3, 4 sees 2..4, 3..4; len 1: p = -1, 0: 0, 0
        np.testing.assert_allclose(y[:, 0, :, 0], [[6, 6.5], [3, 3.5], [0, 0]], rtol=1e-6)
        mask = np.ones((3, 1, 2, 8), bool)
        mask[0, :, :, 7] = False
        y = attention(o, [q, k, v, mask, None, None, np.array([8, 5, 1])])[0]
        np.testing.assert_allclose(y[:, 0, :, 0], [[5.5, 6], [3, 3.5], [0, 0]], rtol=1e-6)

    def test_nan_where_nothing_looks(self):
        """NaN beyond nonpad_kv_seqlen and at masked positions influences neither Y nor the scores
        after the mask."""
        rng = np.random.default_rng(6)
        q, k, v = (rng.standard_normal((2, 2, n, 8)).astype(np.float32) for n in (3, 6, 6))
        mask = np.array([True, False, True, True, True, True])
        lengths = np.array([6, 4])
        for mode in (2, 3):
            o = Options(24, qk_matmul_output_mode=mode, is_causal=1)
            clean = attention(o, [q, k, v, mask, None, None, lengths], (True, False, False, True))
            for x in (k, v):
                x[:, :, 1] = np.nan
                x[1, :, 4:] = np.inf
            got = attention(o, [q, k, v, mask, None, None, lengths], (True, False, False, True))
            self.assertEqual(got[0].tobytes(), clean[0].tobytes())
            self.assertEqual(got[3].tobytes(), clean[3].tobytes())

    def refused(self, kind, says, o, *inputs, wanted=(True, False, False, False)):
        with self.assertRaises(kind) as caught:
            attention(Options(**dict({"opset": 25}, **o)).checked(), inputs, wanted)
        self.assertIn(says, str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))

    def test_refused(self):
        q, k, v = (np.zeros((2, 4, n, 8), np.float32) for n in (3, 5, 5))
        three = [x.reshape(2, -1, 32) for x in (q, k, v)]
        past = np.zeros((2, 4, 7, 8), np.float32)
        seven = [q, k, v, None, None, None]
        refused = self.refused
        refused(ValueError, "qk_matmul_output_mode is 4", {"qk_matmul_output_mode": 4}, q, k, v)
        refused(ValueError, "is_causal is 2", {"is_causal": 2}, q, k, v)
        refused(ValueError, "softmax_precision is 7", {"softmax_precision": 7}, q, k, v)
        refused(ValueError, "softcap is -1", {"softcap": -1.0}, q, k, v)
        refused(ValueError, "scale is inf", {"scale": np.inf}, q, k, v)
        refused(ValueError, "left_window_size is -2", {"left_window_size": -2}, q, k, v)
        refused(ValueError, "q_num_heads is 0", {"q_num_heads": 0}, *three)
        refused(ValueError, "must have q_num_heads", {}, *three)
        refused(ValueError, "must have kv_num_heads", {"q_num_heads": 4}, *three)
        refused(ValueError, "not a multiple of q_num_heads = 5",
                {"q_num_heads": 5, "kv_num_heads": 4}, *three)
        refused(ValueError, "not a multiple of kv_num_heads = 3",
                {"q_num_heads": 4, "kv_num_heads": 3}, *three)
        refused(ValueError, "K has shape (2, 2, 5, 16); it must be (B=2, Hk, S, D=8)",
                {"q_num_heads": 4, "kv_num_heads": 2}, *three)
        refused(ValueError, "since opset 25", {"q_num_heads": 4}, q, k, v)
        refused(ValueError, "q_num_heads is 2, but Q has 4",
                {"q_num_heads": 2, "opset": 24}, q, k, v)
        refused(ValueError, "Q has 4 heads and K has 3", {}, q, k[:, :3], v[:, :3])
        refused(ValueError, "V has shape", {}, q, k, v[:, :3])
        refused(ValueError, "K has shape (1, 4, 5, 8); it must be (B=2, ", {}, q, k[:1], v[:1])
        refused(ValueError, "all have 3, or all 4", {}, q, three[1], v)
        refused(ValueError, "all have 3, or all 4", {}, q[0, 0], k[0, 0], v[0, 0])
        refused(ValueError, "K is not given", {}, q, None, v)
        refused(TypeError, "Q is int64", {}, q.astype(int), k, v)
        refused(TypeError, "K is float64; it must be Q's float32", {}, q, k.astype("f8"), v)
        refused(TypeError, "attn_mask is int64", {}, q, k, v, np.ones((3, 5), int))
        refused(ValueError, "attn_mask has shape (3, 6)", {}, q, k, v, np.ones((3, 6), bool))
        refused(ValueError, "attn_mask has shape (2, 5)", {}, q, k, v, np.ones((2, 5), bool))
        refused(ValueError, "attn_mask has 5 dim", {}, q, k, v, np.ones((1, 1, 1, 3, 5), bool))
        refused(ValueError, "attn_mask has 0 dim", {}, q, k, v, np.bool_(True))
        refused(ValueError, "must broadcast to (B, H, T, S) = (2, 4, 3, 5)", {"opset": 23},
                q, k, v, np.ones((3, 4), bool))
        refused(ValueError, "given together", {}, q, k, v, None, past)
        refused(ValueError, "given together", {}, q, k, v, None, None, past)
        refused(ValueError, "past_key has shape", {}, q, k, v, None, past[:, :3], past)
        refused(ValueError, "past_value has shape", {}, q, k, v, None, past, past[..., :7])
        refused(ValueError, "present_value has shape", {}, q, k, v, None, past, past[:, :, :6])
        refused(TypeError, "past_key is float64", {}, q, k, v, None, past.astype("f8"), past)
        for n in (1, 2):
            wanted = [True, n == 1, n == 2, False]
            refused(ValueError, "need past_key", {}, q, k, v, wanted=wanted)
            refused(ValueError, "exclude each other", {}, *seven, np.array([1, 2]), wanted=wanted)
        refused(ValueError, "exclude each other", {}, q, k, v, None, past, past, np.array([1, 2]))
        refused(TypeError, "nonpad_kv_seqlen is int32", {}, *seven, np.array([1, 2], np.int32))
        refused(ValueError, "nonpad_kv_seqlen has shape (3,)", {}, *seven, np.array([1, 2, 3]))
        refused(ValueError, "within 0..S = 5", {}, *seven, np.array([1, 6]))
        refused(ValueError, "fewer than nonpad_kv_seqlen's largest, 5", {}, q, k, v,
                np.ones((3, 4), bool), None, None, np.array([1, 5]))


class Import(unittest.TestCase):
    def works(self, code):
        env = dict(os.environ, PYTHONPATH=os.path.join(SOURCE, "python"))
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, check=True
        )
        return done.stdout.decode()

    def test_attn_does_not_import_onnx(self):
        code = "import sys, attn; assert 'onnx' not in sys.modules, sys.modules['onnx']"
        self.assertEqual(self.works(code), "")

    def test_without_onnx(self):
        code = "import sys; sys.modules['onnx'] = None\ntry:\n import attn.onnx\n"
        code += "except ModuleNotFoundError as e: print(e)"
        self.assertRegex(self.works(code), r"^attn.onnx needs the package onnx.*pip install onnx$")


if __name__ == "__main__":
    unittest.main()
