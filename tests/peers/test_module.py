"""attn.MultiHeadAttention compared with torch.nn.MultiheadAttention, in f32 and f64."""

import os
import sys
import unittest
from pathlib import Path

os.environ.setdefault("ATTN_LIBRARY", os.path.join(os.environ["ATTN_BUILD"], "libattn.so"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import torch  # noqa: E402

import attn  # noqa: E402

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}  # relative to the largest element
B, T, S, E, H = 3, 21, 30, 48, 4


def numpy(t):
    return None if t is None else t.detach().numpy()


def ours(module):
    """The same module in attn, and its weights' names with PyTorch's parameters."""
    named = {"w_o": module.out_proj.weight, "b_o": module.out_proj.bias}
    named["in_proj_bias"] = module.in_proj_bias
    if module.in_proj_weight is not None:
        named["in_proj_weight"] = module.in_proj_weight
    else:
        named.update(("w_" + x, getattr(module, x + "_proj_weight")) for x in "qkv")
    named = {name: p for name, p in named.items() if p is not None}
    weights = {name: numpy(p) for name, p in named.items()}
    return attn.MultiHeadAttention(module.num_heads, **weights), named


class Module(unittest.TestCase):
    def near(self, got, want, what):
        got = torch.from_numpy(got)
        self.assertEqual(got.shape, want.shape, what)
        worst, largest = (got - want).abs().max().item(), want.abs().max().item()
        self.assertLessEqual(worst, TOLERANCE[want.dtype] * max(largest, 1), what)

    def both(self, dtype, cross, bias, kdim=None, theirs=None, apart=False, **options):
        """theirs: options of PyTorch's call; the others are attn's. apart: values from another
        array than keys."""
        torch.manual_seed(7)
        module = torch.nn.MultiheadAttention(
            E, H, bias=bias, kdim=kdim, vdim=kdim, batch_first=True, dtype=dtype
        )
        if bias:
            torch.nn.init.normal_(module.in_proj_bias)
            torch.nn.init.normal_(module.out_proj.bias)
        x = torch.randn(B, T, E, dtype=dtype, requires_grad=True)
        source = x
        if cross:
            source = torch.randn(B, S, kdim or E, dtype=dtype, requires_grad=True)
        values = source
        if apart:
            values = torch.randn_like(source, requires_grad=True)
        what = (dtype, cross, bias, kdim, apart, options)
        out, weights = module(
            x, source, values, average_attn_weights=False, **(theirs or {})
        )
        mine, named = ours(module)
        inputs = [numpy(x)]
        if cross or apart:
            inputs.append(numpy(source) if cross else inputs[0])
        if apart:
            inputs.append(numpy(values))
        got, got_weights = mine(*inputs, return_weights=True, **options)
        self.near(got, out, what)
        self.near(got_weights, weights, what)
        dout = torch.randn_like(out)
        leaves = {"query": x, **named}
        leaves.update({"key": source} if cross else {}, **({"value": values} if apart else {}))
        wanted = torch.autograd.grad(out, list(leaves.values()), dout)
        grads = mine.grad(numpy(dout), *inputs, **options)
        for name, want in zip(leaves, wanted):
            mine_of_it = getattr(grads, name)
            if name == "query" and apart and not cross:  # it is the key too
                mine_of_it = mine_of_it + grads.key
            self.near(mine_of_it, want, (name, what))

    def test_self_and_cross(self):
        for dtype in TOLERANCE:
            for bias in (True, False):
                self.both(dtype, cross=False, bias=bias)
                self.both(dtype, cross=True, bias=bias)
                self.both(dtype, cross=True, bias=bias, kdim=20)
                self.both(dtype, cross=True, bias=bias, kdim=20, apart=True)
                self.both(dtype, cross=False, bias=bias, apart=True)

    def test_masks(self):
        for dtype in TOLERANCE:
            hidden = torch.ones(T, T, dtype=torch.bool).triu(1)  # True: masked
            self.both(dtype, False, True, theirs={"attn_mask": hidden}, is_causal=True)
            added = torch.randn(T, T, dtype=dtype)
            self.both(dtype, False, True, theirs={"attn_mask": added}, mask=numpy(added))
            padding = torch.arange(S)[None] >= torch.tensor([S, 11, 1])[:, None]
            self.both(dtype, True, True, theirs={"key_padding_mask": padding},
                      key_lengths=[S, 11, 1])


if __name__ == "__main__":
    unittest.main()
