"""attn.torch beside PyTorch's own function, its gradcheck, its opcheck and its compilers."""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import unittest

import numpy as np
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

import attn
import attn.torch
from attn.torch import scaled_dot_product_attention as sdpa

PYTORCH = F.scaled_dot_product_attention
OPERATOR, BACKWARD = torch.ops.attn.sdpa.default, torch.ops.attn.sdpa_backward.default
F64 = torch.float64
# Of the largest |value|, for inputs of unit variance: some roundings of the type.
TOLERANCE = {
    torch.float64: 1e-14,
    torch.float32: 4e-6,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}


def laid_out(x, way):
    """The same numbers, in memory of another layout."""
    if way == 1:  # every second one, in every dimension
        big = torch.zeros([2 * n for n in x.shape], dtype=x.dtype)
        view = big[tuple(slice(None, None, 2) for _ in x.shape)]
    elif way == 2:  # [..,T,H,D]
        order = list(range(x.dim()))
        order[-3:-1] = order[-3:-1][::-1]
        view = torch.zeros([x.shape[d] for d in order], dtype=x.dtype).permute(order)
    elif way == 3:  # a part of something wider
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


class Case:
    """A call that both understand, of `rank` dimensions."""

    def __init__(self, g, dtype=F64):
        def chance(p):
            return torch.rand((), generator=g).item() < p

        def integer(low, high):
            return int(torch.randint(low, high + 1, (), generator=g))

        def randn(*shape):
            x = torch.randn(shape, generator=g, dtype=F64).to(dtype)
            return laid_out(x, integer(0, 3)) if len(shape) > 2 else x

        rank = integer(2, 6)
        T, S, D, Dv = integer(1, 20), integer(1, 40), integer(1, 20), integer(1, 20)
        gqa = rank > 2 and chance(0.3)
        H = 4 if gqa else integer(1, 3)
        lead = [integer(1, 3) for _ in range(rank - 3)] + [H] * (rank > 2)

        def broadcast():
            some = [1 if chance(0.2) else n for n in lead]
            if gqa:
                some[-1] = (1, 2, 4)[integer(0, 2)]
            return some

        q_lead = lead if gqa else broadcast()
        k_lead, v_lead = broadcast(), broadcast()
        self.tensors = [randn(*q_lead, T, D), randn(*k_lead, S, D), randn(*v_lead, S, Dv)]
        self.options = {"enable_gqa": gqa}
        kind = integer(0, 3)
        # PyTorch adds a mask to the scores in place: it cannot be larger than they are.
        scores = [max(a, b) for a, b in zip(q_lead, k_lead if not gqa else q_lead)]
        shape = [1 if chance(0.2) else n for n in scores + [T, S]]
        shape = shape[integer(0, rank - 2) :]
        if kind == 1:
            self.options["attn_mask"] = torch.rand(shape, generator=g) < 0.6
        elif kind == 2:
            self.options["attn_mask"] = torch.randn(shape, generator=g, dtype=F64).to(dtype)
        elif kind == 3:
            self.options["is_causal"] = True
        if chance(0.3):
            self.options["scale"] = (0.0, -0.7, 0.3)[integer(0, 2)]


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


class Forward(AttnTorch):
    def test_as_pytorch(self):
        """Ranks, broadcasting, layouts, masks, scales: 400 random calls."""
        g = torch.Generator().manual_seed(3)
        for n in range(400):
            with self.subTest(n=n):
                case = Case(g)
                want = PYTORCH(*case.tensors, **case.options)
                for _ in range(2):  # the second time, a call of that kind is known
                    got = sdpa(*case.tensors, **case.options)
                    self.assertEqual(got.dtype, want.dtype)
                    self.near(got, want)
                    if got.dim() != 4:
                        self.assertTrue(got.is_contiguous())

    def test_types(self):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            g = torch.Generator().manual_seed(5)
            for n in range(60):
                with self.subTest(dtype=dtype, n=n):
                    case = Case(g, dtype)
                    wider = [x.double() for x in case.tensors]
                    options = dict(case.options)
                    if "attn_mask" in options and options["attn_mask"].is_floating_point():
                        options["attn_mask"] = options["attn_mask"].double()
                    got = sdpa(*case.tensors, **case.options)
                    self.assertEqual(got.dtype, dtype)
                    self.near(got, PYTORCH(*wider, **options))

    def test_no_elements(self):
        r = torch.randn
        for q, k, v in (
            (r(2, 3, 0, 8), r(2, 3, 5, 8), r(2, 3, 5, 4)),
            (r(2, 3, 4, 8), r(2, 3, 0, 8), r(2, 3, 0, 4)),
            (r(2, 3, 4, 0), r(2, 3, 5, 0), r(2, 3, 5, 4)),
            (r(0, 3, 4, 8), r(0, 3, 5, 8), r(0, 3, 5, 4)),
            (r(2, 0, 4, 8), r(2, 0, 5, 8), r(2, 0, 5, 4)),
            (r(2, 0, 3, 4, 8), r(2, 0, 3, 5, 8), r(2, 0, 3, 5, 4)),
        ):
            self.near(sdpa(q, k, v), PYTORCH(q, k, v))
            inputs = [x.clone().requires_grad_() for x in (q, k, v)]
            sdpa(*inputs).sum().backward()
            self.assertEqual([x.grad.shape for x in inputs], [x.shape for x in (q, k, v)])

    def test_layout(self):
        """The heads of a result can be put together without a copy, as those of PyTorch's."""
        q, k = torch.randn(2, 5, 4, 8).transpose(1, 2), torch.randn(2, 4, 7, 8)
        self.assertTrue(sdpa(q, k, k).transpose(1, 2).is_contiguous())
        for x in (q, q.contiguous(), torch.randn(2, 5, 3, 4, 8)[:, :, 1].transpose(1, 2)):
            want = PYTORCH(x, k, k).stride()
            for y in (x, x, x.detach().requires_grad_()):
                self.assertEqual(sdpa(y, k, k).stride(), want)

    def test_own_options(self):
        """window, softcap, alibi, sinks, key_lengths, causal_offset, lse against the definition."""
        B, H, Hk, T, S, D = 3, 4, 2, 6, 9, 5
        q, k, v = (torch.randn(B, h, n, D, dtype=F64) for h, n in ((H, T), (Hk, S), (Hk, S)))
        i, j = torch.arange(T)[:, None], torch.arange(S)
        lengths, slopes = torch.tensor([9, 4, 7]), torch.tensor([0.5, 0.25, -1.0, 2.0])
        logits = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=F64)
        seen = (j < lengths[:, None])[:, None, None]
        off = (lengths - T)[:, None, None, None]
        mask = torch.randn(B, 1, T, S, dtype=F64)

        def check(visible=None, bias=None, more=None, **options):
            for inputs in ((q, k, v), [x.clone().requires_grad_() for x in (q, k, v)]):
                got = sdpa(*inputs, enable_gqa=True, return_lse=True, **options)
                want = formula(q, k, v, bias, visible, **(more or {}))
                for a, b in zip(got, want):  # a row that sees nothing: 0, where b is 0 / 0
                    self.near(a, torch.where(b.isnan(), 0.0, b), F64)

        check(softcap=1.5, more={"softcap": 1.5})
        check(sinks=logits, more={"sinks": logits})
        check(sinks=0.5, more={"sinks": torch.full((H,), 0.5, dtype=F64)})
        check(key_lengths=lengths, visible=seen)
        check(window=(2, 1), visible=(j >= i - 2) & (j <= i + 1))
        check(window=[2, -1], visible=j >= i - 2)
        check(is_causal=True, causal_offset=2, visible=j <= i + 2)
        check(alibi=slopes, bias=slopes[:, None, None] * (j - i))
        check(alibi=slopes.tolist(), attn_mask=mask, bias=slopes[:, None, None] * (j - i) + mask)
        check(
            is_causal=True, causal_offset="bottom-right", key_lengths=lengths, sinks=logits,
            window=(3, -1), more={"sinks": logits},
            visible=seen & (j <= i + off) & (j >= i + off - 3),
        )  # fmt: skip

    def test_lse(self):
        for dtype, want in ((F64, F64), (torch.float32, torch.float32)):
            q = torch.randn(2, 3, 4, 5, dtype=dtype)
            for shape in (q.shape, (3, 4, 5), (4, 5), (1, 2, 3, 4, 5)):
                x = q[0, 0] if len(shape) == 2 else q[0] if len(shape) == 3 else q.view(shape)
                for y in (x, x.clone().requires_grad_()):
                    out, lse = sdpa(y, y, y, return_lse=True)
                    self.assertEqual((out.shape, lse.shape), (x.shape, x.shape[:-1]))
                    self.assertEqual(lse.dtype, want)

    def test_hidden(self):
        """NaN and infinities that nobody sees change no bit; a row that sees nothing is 0."""
        q, k, v = (torch.randn(1, 2, 5, 8) for _ in "qkv")
        mask = torch.ones(5, 5, dtype=torch.bool)
        mask[:, 3] = False
        mask[2] = False
        want = sdpa(q, k, v, mask)
        k[:, :, 3], v[:, :, 3] = torch.nan, torch.inf
        self.assertTrue(torch.equal(sdpa(q, k, v, mask), want))
        self.assertEqual(want[:, :, 2].count_nonzero(), 0)

    def test_threads(self):
        """Bits do not depend on them, and torch.set_num_threads() is what counts."""
        q, k, v = (torch.randn(1, 4, 300, 64) for _ in "qkv")
        torch.set_num_threads(1)
        want = sdpa(q, k, v)
        torch.set_num_threads(2)
        self.assertTrue(torch.equal(sdpa(q, k, v), want))
        from attn import _context

        self.assertLessEqual({1, 2}, set(_context._contexts))

    def test_not_what_memory_says(self):
        """A tensor whose memory holds its numbers negated, and one that is all zeros, unwritten."""
        z = torch.randn(1, 2, 5, 8, dtype=torch.complex128)
        q = z.conj().imag
        self.assertTrue(q.is_neg())
        zero = torch._efficientzerotensor(1, 2, 5, 8, dtype=F64)
        for x in (q, zero):
            for _ in range(2):
                self.near(sdpa(x, x, x), PYTORCH(x.clone(), x.clone(), x.clone()))
        mask = torch.randn(5, 5, dtype=torch.complex128).conj().imag
        self.near(sdpa(z.real, z.real, z.real, mask), PYTORCH(z.real, z.real, z.real, mask.clone()))

    def test_errors(self):
        r = torch.randn
        q, k, v = r(2, 4, 3, 8), r(2, 2, 5, 8), r(2, 2, 5, 8)
        for error, text, args, options in (
            (ValueError, "pass enable_gqa=True", (q, k, v), {}),
            (ValueError, "they must divide query's 4", (q, r(2, 3, 5, 8), v), {"enable_gqa": True}),
            (ValueError, "2 or more", (q[0, 0, 0], k, v), {}),
            (ValueError, "key has D=7", (q, r(2, 4, 5, 7), r(2, 4, 5, 7)), {}),
            (ValueError, "value has S=6", (q, r(2, 4, 5, 8), r(2, 4, 6, 8)), {}),
            (ValueError, "2, 3 and 3 in a dim", (q, r(3, 4, 5, 8), r(3, 4, 5, 8)), {}),
            (TypeError, "share one dtype", (q, q.double(), q), {}),
            (TypeError, "query is torch.int32", (q.int(), q.int(), q.int()), {}),
            (TypeError, "query is ndarray", (q.numpy(), q, q), {}),
            (TypeError, "attn_mask is torch.int64", (q, q, q, torch.ones(3, 3).long()), {}),
            (ValueError, "[..,H,T,S] = (2, 4, 3, 3)", (q, q, q, torch.ones(4, 3)), {}),
            (ValueError, "attn_mask has 1 dim", (q, q, q, torch.ones(3)), {}),
            (ValueError, "attn_mask has 5 dim", (q, q, q, torch.ones(1, 1, 1, 3, 3)), {}),
            (ValueError, "exclude each other", (q, q, q, torch.ones(3, 3)), {"is_causal": True}),
            (ValueError, "dropout_p is 1.5", (q, q, q), {"dropout_p": 1.5}),
            (ValueError, "seed is -1", (q, q, q), {"dropout_p": 0.5, "seed": -1}),
            (ValueError, "alibi has shape (3,)", (q, q, q), {"alibi": [1.0, 2.0, 3.0]}),
            (ValueError, "sinks has shape (2, 2)", (q, q, q), {"sinks": r(2, 2)}),
            (TypeError, "key_lengths is torch.float32", (q, q, q), {"key_lengths": [1.0, 2.0]}),
            (ValueError, "key_lengths[1] is 4", (q, q, q), {"key_lengths": [3, 4]}),
            (ValueError, "window is 3", (q, q, q), {"window": 3}),
            (TypeError, "window is 0.5", (q, q, q), {"window": (0.5, 1)}),
            (ValueError, "softcap is -1", (q, q, q), {"softcap": -1.0}),
            (ValueError, "causal_offset is given", (q, q, q), {"causal_offset": 1}),
            (ValueError, "'top'", (q, q, q), {"is_causal": True, "causal_offset": "top"}),
            (TypeError, "query is not dense", (q.to_sparse(), q, q), {}),
        ):  # fmt: skip
            for make in (lambda x: x, lambda x: x.clone().requires_grad_()):
                made = [
                    make(x) if isinstance(x, torch.Tensor) and x.is_floating_point() else x
                    for x in args
                ]
                with self.subTest(text=text), self.assertRaises(error) as caught:
                    sdpa(*made, **options)
                self.assertIn(text, str(caught.exception))
                self.assertNotIn("\n", str(caught.exception))

    def test_operator_alone(self):
        """Nobody but the operator's own kernel checks what it is called with."""
        q = torch.randn(1, 2, 3, 4)
        numbers = 0.0, 0, 0, -1, -1, 0.0, 0.0
        with self.assertRaisesRegex(ValueError, "3 dimensions"):
            OPERATOR(q[0], q[0], q[0], None, None, None, None, None, *numbers)
        with self.assertRaisesRegex(ValueError, "alibi has shape"):
            OPERATOR(q, q, q, None, torch.ones(3), None, None, None, *numbers)
        with self.assertRaisesRegex(ValueError, "k has D=3"):
            OPERATOR(q, q[..., :3], q, None, None, None, None, None, *numbers)

    def test_autocast(self):
        q, k, v = (torch.randn(2, 3, 4, 8) for _ in "qkv")
        with torch.autocast("cpu"):
            for x in ((q, k, v), (q.half(), k, v), (q.double(),) * 3):
                for mask in (None, torch.randn(4, 4, dtype=x[0].dtype)):
                    got, want = sdpa(*x, mask), PYTORCH(*x, mask)
                    self.assertEqual(got.dtype, want.dtype)
                    self.near(got, want)
        with torch.autocast("cpu", dtype=torch.float16):
            self.assertEqual(sdpa(q, k, v).dtype, torch.float16)

    def test_import(self):
        """attn alone does not load PyTorch."""
        code = "import attn, sys; sys.exit('torch' in sys.modules)"
        self.assertEqual(subprocess.run([sys.executable, "-c", code]).returncode, 0)


class Dropout(AttnTorch):
    def setUp(self):
        super().setUp()
        self.tensors = [torch.randn(2, 3, 40, 16, dtype=F64) for _ in "qkv"]

    def test_seed(self):
        q, k, v = self.tensors
        needs = [x.clone().requires_grad_() for x in self.tensors]
        outs = []
        for inputs in (self.tensors, self.tensors, needs):
            torch.manual_seed(11)
            outs.append(sdpa(*inputs, dropout_p=0.4))
        self.assertTrue(torch.equal(outs[0], outs[1]))
        self.assertTrue(torch.equal(outs[0], outs[2]))
        self.assertFalse(torch.equal(outs[0], sdpa(q, k, v, dropout_p=0.4)))
        for seed in (0, 5, (1 << 64) - 1):  # those of the package for NumPy
            want = attn.scaled_dot_product_attention(
                q.numpy(), k.numpy(), v.numpy(), dropout_p=0.4, seed=seed
            )
            for inputs in (self.tensors, needs):
                got = sdpa(*inputs, dropout_p=0.4, seed=seed)
                self.assertTrue(np.array_equal(got.detach().numpy(), want))

    def test_what_it_does(self):
        """With the unit vectors for values the result is the weights: kept and scaled, or 0."""
        q, k, _ = self.tensors
        v = torch.eye(40, dtype=F64).expand(2, 3, 40, 40)
        whole, got = sdpa(q, k, v), sdpa(q, k, v, dropout_p=0.25)
        kept = got != 0
        self.near(got[kept], whole[kept] / 0.75)
        share, n = kept.double().mean().item(), kept.numel()
        self.assertLess(abs(share - 0.75), 5 * (0.25 * 0.75 / n) ** 0.5)

    def test_all_dropped(self):
        inputs = [x.clone().requires_grad_() for x in self.tensors]
        out = sdpa(*inputs, dropout_p=1.0)
        self.assertTrue(torch.equal(out, PYTORCH(*inputs, dropout_p=1.0)))
        out.sum().backward()
        self.assertTrue(all(x.grad.count_nonzero() == 0 for x in inputs))

    def test_checkpoint(self):
        """Activation checkpointing draws the same seed again."""
        from torch.utils.checkpoint import checkpoint

        grads = []
        for way in (lambda f, *x: f(*x), lambda f, *x: checkpoint(f, *x, use_reentrant=False)):
            inputs = [x.clone().requires_grad_() for x in self.tensors]
            torch.manual_seed(13)
            way(lambda *x: sdpa(*x, dropout_p=0.5), *inputs).square().sum().backward()
            grads.append([x.grad for x in inputs])
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(*grads)))


def samples():
    """Arguments of the operator: every input there and not there, layouts, all sizes small."""
    g = torch.Generator().manual_seed(17)
    for n in range(40):
        dtype = (F64, torch.float32, torch.float16, torch.bfloat16)[n % 4]
        B, H, Hk, T, S, D, Dv = 1 + n % 3, 4, (1, 2, 4)[n % 3], 1 + n % 6, 1 + n % 9, 3, 5
        if n == 39:
            T = 0

        def randn(*shape, dtype=dtype):
            return torch.randn(shape, generator=g, dtype=F64).to(dtype)

        q, k, v = randn(B, H, T, D), randn(B, Hk, S, D), randn(B, Hk, S, Dv)
        q, k, v = laid_out(q, n % 4), laid_out(k, n // 2 % 4), laid_out(v, n // 3 % 4)
        if n % 5 == 0:
            k = k[:, :, :1].expand_as(k)
        if n % 2:
            q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        mask = alibi = sinks = lengths = seed = None
        if n % 3 == 1:
            mask = randn(1, H, 1, S) if n % 2 else randn(B, 1, T, S)
            mask.requires_grad_(n % 4 == 3)
        elif n % 3 == 2:
            mask = torch.rand(B, 1, T, S, generator=g) < 0.7
        if n % 4 == 1:
            alibi = randn(H, dtype=(torch.float32, dtype)[n // 4 % 2]).requires_grad_()
        if n % 5 == 1:
            sinks = randn(H).requires_grad_(n % 2 == 0)
        if n % 6 == 1:
            lengths = torch.randint(S + 1, (B,), generator=g)
        dropout = 0.0
        if n % 7 == 1:
            seed, dropout = torch.tensor(-n), 0.3
        numbers = (0.0, 0.3)[n % 2], n % 4, n % 3, (-1, 3)[n // 2 % 2], -1, (0.0, 2.0)[n // 3 % 2]
        yield (q, k, v, mask, alibi, sinks, lengths, seed, *numbers, dropout)


class Operator(AttnTorch):
    def test_opcheck(self):
        for n, sample in enumerate(samples()):
            with self.subTest(n=n):
                torch.library.opcheck(OPERATOR, sample)

    def test_opcheck_backward(self):
        for n, sample in enumerate(samples()):
            with self.subTest(n=n):
                plain = [x.detach() if isinstance(x, torch.Tensor) else x for x in sample]
                out, lse = OPERATOR(*plain)
                want = [n % 2 == 0, n % 3 != 1, True]
                want += [x is not None and x.is_floating_point() for x in plain[3:6]]
                dlse = torch.randn_like(lse) if n % 2 else None
                dout = torch.ones((), dtype=out.dtype).expand_as(out)
                arguments = (dout, dlse, *plain[:3], out, lse, *plain[3:], want)
                torch.library.opcheck(BACKWARD, arguments)

    def test_fake(self):
        from torch._subclasses import FakeTensorMode

        for shape in ((2, 3, 4, 8), (3, 4, 8), (2, 1, 3, 4, 8)):
            real = torch.randn(shape)
            with FakeTensorMode() as mode:
                fake = mode.from_tensor(real)
                got, lse = sdpa(fake, fake, fake, torch.ones(4, 4), return_lse=True)
            want, want_lse = sdpa(real, real, real, torch.ones(4, 4), return_lse=True)
            self.assertEqual((got.shape, got.stride()), (want.shape, want.stride()))
            self.assertEqual((lse.shape, lse.dtype), (want_lse.shape, want_lse.dtype))

    def test_meta(self):
        x = torch.empty(2, 3, 4, 8, device="meta")
        self.assertEqual(sdpa(x, x, x).device.type, "meta")


def leaf(*shape):
    return torch.randn(shape, dtype=F64, requires_grad=True)


class Gradients(AttnTorch):
    def test_gradcheck(self):
        mask = torch.rand(1, 4, 5, 7) < 0.7
        mask[..., 1, :] = False
        for inputs, options in (
            ((leaf(2, 4, 5, 3), leaf(2, 2, 7, 3), leaf(2, 2, 7, 2)), {"enable_gqa": True}),
            ((leaf(2, 4, 5, 3), leaf(2, 4, 7, 3), leaf(2, 1, 7, 2)), {"is_causal": True}),
            ((leaf(4, 5, 3), leaf(1, 7, 3), leaf(4, 7, 2), leaf(4, 1, 7)), {}),
            ((leaf(2, 1, 2, 3, 4), leaf(3, 2, 5, 4), leaf(1, 1, 1, 5, 4), leaf(2, 3, 5)), {}),
            ((leaf(1, 4, 5, 3), leaf(1, 4, 7, 3), leaf(1, 4, 7, 2), mask), {}),
            ((leaf(1, 4, 5, 3), leaf(1, 4, 7, 3), leaf(1, 4, 7, 2)), {"dropout_p": 0.3, "seed": 5}),
            ((leaf(1, 4, 5, 3), leaf(1, 1, 7, 3), leaf(1, 1, 7, 2), leaf(1, 4, 5, 7)),
             {"softcap": 1.5, "window": (3, 2), "return_lse": True, "scale": 0.8,
              "key_lengths": [6], "sinks": 0.5, "alibi": [0.5, 0.25, 1.0, 0.0]}),
        ):  # fmt: skip
            with self.subTest(options=options):
                self.assertTrue(
                    torch.autograd.gradcheck(lambda *x: sdpa(*x, **options), inputs, atol=1e-7)
                )

    def test_gradcheck_vectors(self):
        """alibi and sinks, which the engine has as floats: steps and values that are exact in one,
        and a tolerance for the step's square."""
        q, k, v = (torch.randn(2, 4, 5, 3, dtype=F64) for _ in "qkv")
        vectors = [
            torch.tensor(x, dtype=F64, requires_grad=True)
            for x in ([0.5, -0.25, 1.0, 0.125], [0.5, 2.0, -1.0, 0.0])
        ]
        self.assertTrue(
            torch.autograd.gradcheck(
                lambda a, s: sdpa(q, k, v, alibi=a, sinks=s, return_lse=True),
                vectors, eps=2**-10, atol=2e-5,
            )
        )  # fmt: skip

    def test_as_autograd(self):
        """Against PyTorch's, through its operations one by one, in each type."""
        for dtype in TOLERANCE:
            q, k, v = (torch.randn(2, h, 20, 16).to(dtype) for h in (4, 2, 2))
            mask = torch.randn(1, 4, 20, 20).to(dtype)
            sinks = torch.randn(4).to(dtype)
            mine = [x.clone().requires_grad_() for x in (q, k, v, mask, sinks)]
            yours = [x.double().requires_grad_() for x in (q, k, v, mask, sinks)]
            dout = torch.randn(2, 4, 20, 16).to(dtype)
            sdpa(*mine[:4], enable_gqa=True, sinks=mine[4]).backward(dout)
            formula(*yours[:4], sinks=yours[4])[0].backward(dout.double())
            for a, b in zip(mine, yours):
                self.assertEqual(a.grad.dtype, dtype)
                self.near(a.grad, b.grad, factor=8)

    def test_only_what_is_wanted(self):
        q, k, v = leaf(1, 2, 5, 4), leaf(1, 2, 5, 4), leaf(1, 2, 5, 4).detach()
        sdpa(q, k.detach(), v).sum().backward()
        self.assertIsNone(k.grad)
        _, lse = sdpa(q.detach(), k, v, return_lse=True)
        lse.sum().backward()
        self.assertIsNotNone(k.grad)

    def test_memory_that_changed(self):
        q, k, v = (leaf(1, 2, 5, 4) for _ in "qkv")
        out = sdpa(q, k, v)
        with torch.no_grad():
            k.add_(1)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            out.sum().backward()

    def test_second_derivative(self):
        q, k, v = (leaf(1, 2, 5, 4) for _ in "qkv")
        (dq,) = torch.autograd.grad(sdpa(q, k, v).sum(), q, create_graph=True)
        with self.assertRaisesRegex(NotImplementedError, "no second derivatives"):
            dq.sum().backward()

    def test_transforms(self):
        """Tangents and batches are never dropped in silence."""
        x = torch.randn(3, 1, 2, 4, 8)
        for transformed in (
            lambda: torch.func.vmap(sdpa)(x, x, x),
            lambda: torch.func.grad(lambda y: sdpa(y, y, y).sum())(x[0]),
            lambda: torch.func.jvp(lambda y: sdpa(y, y, y), (x[0],), (x[0],)),
        ):
            with self.assertRaisesRegex(NotImplementedError, "no rules for torch.func"):
                transformed()
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x[0], x[0])
            with self.assertRaisesRegex(NotImplementedError, "forward-mode"):
                sdpa(dual, dual, dual)
            self.near(sdpa(x[0], x[0], x[0]), PYTORCH(x[0], x[0], x[0]))


def block(q, k, v, mask):
    """What the compilers get: views before, arithmetic after, three calls of different kinds."""
    one = sdpa(q * 2, k, v, mask, enable_gqa=True)
    two, lse = sdpa(q, k, v, is_causal=True, enable_gqa=True, softcap=2.0, return_lse=True)
    three = sdpa(q[0, 0], k[0, 0], v[0, 0], scale=1 / q.shape[-1])
    return (one + two) * 2 + three + lse[..., None]


class Compilers(AttnTorch):
    def compiled(self, backend, **options):
        f = torch.compile(block, backend=backend, fullgraph=True, **options)
        for T in (5, 9, 12):
            inputs = leaf(2, 4, T, 8), leaf(2, 2, 7, 8), leaf(2, 2, 7, 8), leaf(4, T, 7)
            want, got = block(*inputs), f(*inputs)
            self.near(got, want)
            dout = torch.randn_like(want)
            for a, b in zip(
                torch.autograd.grad(got, inputs, dout), torch.autograd.grad(want, inputs, dout)
            ):
                self.near(a, b)
            with torch.no_grad():
                self.near(f(*inputs), want)

    def test_aot_eager(self):
        self.compiled("aot_eager")

    def test_dynamic(self):
        self.compiled("aot_eager", dynamic=True)

    def test_inductor(self):
        if not shutil.which(os.environ.get("CXX", "g++")):
            self.skipTest("there is no C++ compiler")
        self.compiled("inductor")

    def test_dropout(self):
        q, k, v = (torch.randn(1, 2, 30, 8) for _ in "qkv")
        f = torch.compile(lambda *x: sdpa(*x, dropout_p=0.5), backend="aot_eager", fullgraph=True)
        outs = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            outs.append(f(q, k, v))
        torch.manual_seed(1)
        self.assertTrue(torch.equal(outs[0], sdpa(q, k, v, dropout_p=0.5)))
        self.assertTrue(torch.equal(outs[0], outs[1]))
        self.assertFalse(torch.equal(outs[0], outs[2]))

    def test_jit_trace(self):
        q, k, v = (torch.randn(1, 2, 30, 8) for _ in "qkv")
        traced = torch.jit.trace(lambda *x: sdpa(*x, is_causal=True), (q, k, v))
        self.near(traced(k, v, q), PYTORCH(k, v, q, is_causal=True))


class Patch(AttnTorch):
    def setUp(self):
        super().setUp()
        self.q, self.k, self.v = (torch.randn(2, 4, 6, 8) for _ in "qkv")
        self.assertIs(F.scaled_dot_product_attention, PYTORCH)
        self.addCleanup(lambda: self.assertIs(F.scaled_dot_product_attention, PYTORCH))

    @contextlib.contextmanager
    def calls(self, *, attn_has, pytorch_has):
        """Who is asked, while patched."""
        mine, yours = [], []
        whole = attn.torch.scaled_dot_product_attention

        def count_mine(*args, **options):
            result = whole(*args, **options)
            mine.append(1)
            return result

        def count_yours(*args, **options):
            yours.append(1)
            return PYTORCH(*args, **options)

        attn.torch.scaled_dot_product_attention = count_mine
        F.scaled_dot_product_attention = count_yours
        try:
            with attn.torch.patch():
                yield
            self.assertIs(F.scaled_dot_product_attention, count_yours)
        finally:
            attn.torch.scaled_dot_product_attention = whole
            F.scaled_dot_product_attention = PYTORCH
        self.assertEqual((len(mine), len(yours)), (attn_has, pytorch_has))

    def test_swaps(self):
        with self.calls(attn_has=2, pytorch_has=0):
            got = F.scaled_dot_product_attention(self.q, self.k, self.v)
            torch.nn.functional.scaled_dot_product_attention(
                query=self.q, key=self.k, value=self.v, attn_mask=None, dropout_p=0.5, scale=1.0
            )
        self.near(got, PYTORCH(self.q, self.k, self.v))

    def test_hands_back(self):
        q, k, v = self.q, self.k, self.v
        with self.calls(attn_has=0, pytorch_has=8):
            f = F.scaled_dot_product_attention
            f(*(x.to("meta") for x in (q, k, v)))
            f(q, k, v, torch.ones(6, 6, dtype=torch.bool), is_causal=True)
            torch.func.vmap(f)(q[None], k[None], v[None])
            torch.func.grad(lambda x: f(x, k, v).sum())(q)
            with forward_ad.dual_level():
                with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                    out = f(forward_ad.make_dual(q, q), k, v)
                self.assertIsNotNone(forward_ad.unpack_dual(out).tangent)
            for bad in ((q, k, v.double()), (q.int(), k.int(), v.int()), (q, k[..., :7], v)):
                with self.assertRaises(RuntimeError):  # in PyTorch's words
                    f(*bad)

    def test_nested_tensors(self):
        """PyTorch takes them apart; what it then calls may be attn's again."""
        parts = [torch.randn(n, 4, 8) for n in (5, 2)]
        nested = torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
        with attn.torch.patch():
            got = F.scaled_dot_product_attention(nested, nested, nested)
        for part, a in zip(parts, got.transpose(1, 2).unbind()):
            x = part.transpose(0, 1)
            self.near(a.transpose(0, 1), PYTORCH(x, x, x))

    def test_nests(self):
        with attn.torch.patch():
            inner = F.scaled_dot_product_attention
            self.assertIsNot(inner, PYTORCH)
            with self.assertRaises(KeyError), attn.torch.patch():
                self.assertIs(F.scaled_dot_product_attention, inner)
                raise KeyError
            self.assertIs(F.scaled_dot_product_attention, inner)

    def test_threads_overlap(self):
        """The last to leave restores: A enters, B enters, A leaves, B still has it."""
        entered, left = threading.Event(), threading.Event()
        seen = []

        def other():
            with attn.torch.patch():
                entered.set()
                left.wait(60)
                seen.append(F.scaled_dot_product_attention)

        thread = threading.Thread(target=other)
        with attn.torch.patch():
            thread.start()
            entered.wait(60)
            mine = F.scaled_dot_product_attention
        left.set()
        thread.join()
        self.assertEqual(seen, [mine])

    def test_others_patch(self):
        """What somebody else put there meanwhile stays; attn's, beneath, calls PyTorch's then."""
        with attn.torch.patch():
            beneath = F.scaled_dot_product_attention

            def theirs(*args, **options):
                return beneath(*args, **options)

            F.scaled_dot_product_attention = theirs
        self.addCleanup(setattr, F, "scaled_dot_product_attention", PYTORCH)
        self.assertIs(F.scaled_dot_product_attention, theirs)
        q, k, v = self.q, self.k, self.v
        self.assertTrue(torch.equal(theirs(q, k, v), PYTORCH(q, k, v)))
        F.scaled_dot_product_attention = PYTORCH

    def test_second_derivative(self):
        q = leaf(1, 2, 5, 4)
        with attn.torch.patch():
            (dq,) = torch.autograd.grad(
                F.scaled_dot_product_attention(q, q, q).sum(), q, create_graph=True
            )
            with self.assertRaises(NotImplementedError):
                dq.sum().backward()

    def test_compile(self):
        def f(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True) * 2

        graphs = []

        def look(graph, _):
            graphs.append([node.target for node in graph.graph.nodes])
            return graph

        with attn.torch.patch():
            got = torch.compile(f, backend=look, fullgraph=True)(self.q, self.k, self.v)
        self.near(got, f(self.q, self.k, self.v))
        self.assertIn(OPERATOR, graphs[0])

    def test_modules(self):
        """nn.MultiheadAttention calls the function unless weights are wanted; and neither it nor an
        encoder's layer does for inference, where both have a way of their own."""
        x = torch.randn(2, 6, 32)
        module = torch.nn.MultiheadAttention(32, 4, batch_first=True)
        layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        want = module(x, x, x, need_weights=False)[0], layer(x)
        with self.calls(attn_has=2, pytorch_has=0):
            got = module(x, x, x, need_weights=False)[0], layer(x)
        for a, b in zip(got, want):
            self.near(a, b)
        with self.calls(attn_has=0, pytorch_has=0):
            module(x, x, x)
            with torch.no_grad():
                module.eval()(x, x, x, need_weights=False)
                layer.eval()(x)
        torch.backends.mha.set_fastpath_enabled(False)
        self.addCleanup(torch.backends.mha.set_fastpath_enabled, True)
        with self.calls(attn_has=2, pytorch_has=0), torch.no_grad():
            module(x, x, x, need_weights=False)
            layer(x)


if __name__ == "__main__":
    unittest.main()
