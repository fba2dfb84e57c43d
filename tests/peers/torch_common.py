"""Shared by the tests of attn.torch: layouts, the definition, tolerances."""

import unittest

import torch
import torch.nn.functional as F

import attn.torch

PYTORCH = F.scaled_dot_product_attention
OPERATOR, BACKWARD = torch.ops.attn.sdpa.default, torch.ops.attn.sdpa_backward.default
F64 = torch.float64
sdpa = attn.torch.scaled_dot_product_attention
# Relative to the largest |value|, for inputs of unit variance: a few roundings of the type.
TOLERANCE = {
    torch.float64: 1e-14,
    torch.float32: 4e-6,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}


def laid_out(x, way):
    """The same numbers with another memory layout."""
    if way == 1:  # every second element of every dimension
        big = torch.zeros([2 * n for n in x.shape], dtype=x.dtype)
        view = big[tuple(slice(None, None, 2) for _ in x.shape)]
    elif way == 2:  # [..,T,H,D]
        order = list(range(x.dim()))
        order[-3:-1] = order[-3:-1][::-1]
        view = torch.zeros([x.shape[d] for d in order], dtype=x.dtype).permute(order)
    elif way == 3:  # a part of a wider tensor
        view = torch.zeros(*x.shape[:-1], x.shape[-1] + 5, dtype=x.dtype)[..., 2:-3]
    else:
        return x
    view.copy_(x)
    return view


def formula(q, k, v, bias=None, visible=None, scale=None, softcap=0.0, sinks=None):
    """The definition (docs/NUMERICS.md), in PyTorch's operations: the result and lse."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    s = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    if bias is not None:
        s = s + bias
    if visible is not None:
        s = s.masked_fill(~visible, -torch.inf)
    logits = s
    if sinks is not None:
        logits = torch.cat([s, sinks[:, None, None].expand(*s.shape[:-1], 1)], -1)
    lse = logits.logsumexp(-1)
    return torch.exp(s - lse[..., None]) @ v, lse


def leaf(*shape):
    return torch.randn(shape, dtype=F64, requires_grad=True)


class AttnTorch(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(7)
        torch.set_num_threads(2)
        self.addCleanup(torch._dynamo.reset)

    def near(self, got, want, dtype=None, factor=1.0):
        self.assertEqual(got.shape, want.shape)
        if got.numel():
            error = (got.double() - want.double()).abs().max().item()
            bound = TOLERANCE[dtype or got.dtype] * max(1.0, want.abs().max().item()) * factor
            self.assertLessEqual(error, bound)
