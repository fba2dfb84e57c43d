"""attn.torch's function compared with PyTorch's own."""

import subprocess
import sys
import unittest

import numpy as np
import torch

import attn
import attn.torch
from attn import _torch_plans
from torch_common import F64, OPERATOR, PYTORCH, AttnTorch, formula, laid_out, sdpa


class Case:
    """A call that both support, with `rank` dimensions."""

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
        # PyTorch adds a mask to the scores in place, so it cannot be larger than they are.
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


class Forward(AttnTorch):
    def test_as_pytorch(self):
        """Ranks, broadcasting, layouts, masks, scales: 400 random calls."""
        g = torch.Generator().manual_seed(3)
        for n in range(400):
            with self.subTest(n=n):
                case = Case(g)
                want = PYTORCH(*case.tensors, **case.options)
                for _ in range(2):  # the second time the call's plan is known
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
        """The heads of a result can be joined without a copy, as with PyTorch's."""
        q, k = torch.randn(2, 5, 4, 8).transpose(1, 2), torch.randn(2, 4, 7, 8)
        self.assertTrue(sdpa(q, k, k).transpose(1, 2).is_contiguous())
        for x in (q, q.contiguous(), torch.randn(2, 5, 3, 4, 8)[:, :, 1].transpose(1, 2)):
            want = PYTORCH(x, k, k).stride()
            for y in (x, x, x.detach().requires_grad_()):
                self.assertEqual(sdpa(y, k, k).stride(), want)

    def test_strides_of_one(self):
        """Strides of dimensions with one element do not matter: such calls share a plan."""
        q, memory = torch.randn(1, 2, 3, 8), torch.randn(64)
        for strides in ((16, 8, 8, 1), (5, 8, 3, 1), (0, 8, 40, 1)):
            k = memory.as_strided((1, 2, 1, 8), strides)
            self.near(sdpa(q, k, k), PYTORCH(q, k.clone(), k.clone()))
        for strides in ((8, 16, 8, 1), (8, 24, 8, 1)):  # other strides do matter
            k = memory.as_strided((1, 2, 1, 8), strides)
            self.near(sdpa(q, k, k), PYTORCH(q, k.clone(), k.clone()))

    def test_numbers_that_change(self):
        """Numbers given as tensors, which are changed in place between two equal calls."""
        q, k, v = (torch.randn(1, 2, 5, 8) for _ in "qkv")
        window = {"window": (1, 1)}
        for before, after, use, more in (
            (0.5, 2.0, lambda x: {"scale": x}, {}),
            (1.0, 30.0, lambda x: {"softcap": x}, {}),
            (1, 3, lambda x: {"diagonal": x}, window),
            (1, 4, lambda x: {"window": (x, 0)}, {}),
            (1, 4, lambda x: {"window": [0, x]}, {}),
            ([1, 0], [4, 0], lambda x: {"window": x}, {}),
        ):
            for make in (torch.tensor, np.array):
                x = make(before)
                for numbers in (before, after):
                    x[...] = make(numbers)
                    for _ in range(2):
                        want = sdpa(q, k, v, **use(numbers), **more)
                        self.assertTrue(torch.equal(sdpa(q, k, v, **use(x), **more), want))

    def test_numbers_of_a_fast_call(self):
        q = torch.randn(1, 2, 5, 8)
        for options in ({}, {"scale": 0.5}, {"scale": np.float64(0.25)}, {"scale": np.float32(2)},
                        {"window": [1, 2]}, {"softcap": 2.0, "diagonal": "bottom-right"}):
            _torch_plans._plans.clear()
            sdpa(q, q, q, **options)
            # Without PyTorch's private functions, no call is fast.
            self.assertEqual(len(_torch_plans._plans), int(_torch_plans.private.known))

    def test_masks_lie_anywhere(self):
        """Calls whose masks differ only in strides share a plan."""
        r = torch.randn
        q, k = r(1, 2, 5, 8), r(1, 2, 7, 8)
        for mask in (
            r(5, 7), r(7, 5).t(), r(1, 7).expand(5, 7), r(5, 1).expand(5, 7), r(5, 14)[:, ::2],
            r(2, 5, 7), r(7, 5, 2).permute(2, 1, 0), r(1, 7, 2, 5).permute(0, 2, 3, 1),
        ):  # fmt: skip
            self.near(sdpa(q, k, k, mask), PYTORCH(q, k, k, mask))

    def test_growing_keys(self):
        """A call that differs from the one before only in its number of keys, as in a decoder."""
        q = torch.randn(2, 4, 1, 8)
        for S in (1, 2, 3, 9, 40, 300):
            for way in range(4):
                k, v = (laid_out(torch.randn(2, 2, S, n), way) for n in (8, 5))
                if way == 3:
                    v = v[:, :, :1].expand(-1, -1, S, -1)
                row, dense = torch.rand(2, 1, 1, S) < 0.7, torch.randn(1, S)
                for mask in (None, row, dense, row[..., :1], dense[..., :1]):
                    got = sdpa(q, k, v, mask, enable_gqa=True)
                    self.near(got, PYTORCH(q, k, v, mask, enable_gqa=True))
        with self.assertRaisesRegex(ValueError, "value has S=300"):
            sdpa(q, k[:, :, 1:], v, enable_gqa=True)
        with self.assertRaisesRegex(ValueError, "must divide query's 4"):
            sdpa(q, *(x[:, :1].expand(-1, 3, -1, -1) for x in (k, v)), enable_gqa=True)

    def test_own_options(self):
        """window, softcap, alibi, sinks, key_lengths, causal_offset and lse compared with the
        definition."""
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
                for a, b in zip(got, want):  # a query that sees no key: 0, where b is 0 / 0
                    self.near(a, torch.where(b.isnan(), 0.0, b), F64)

        check(softcap=1.5, more={"softcap": 1.5})
        check(sinks=logits, more={"sinks": logits})
        check(sinks=0.5, more={"sinks": torch.full((H,), 0.5, dtype=F64)})
        check(key_lengths=lengths, visible=seen)
        check(window=(2, 1), visible=(j >= i - 2) & (j <= i + 1))
        check(window=[2, -1], visible=j >= i - 2)
        check(is_causal=True, causal_offset=2, visible=j <= i + 2)
        check(alibi=slopes, bias=slopes[:, None, None] * (j - i))
        back = -(j - i - (S - T)).abs()
        right = {"diagonal": "bottom-right"}
        check(alibi=slopes, alibi_symmetric=True, bias=slopes[:, None, None] * back, **right)
        check(window=(1, 2), visible=(j - i - (S - T) >= -1) & (j - i - (S - T) <= 2), **right)
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
        """NaN and infinities at masked positions change no bit; a query that sees no key gives
        0."""
        q, k, v = (torch.randn(1, 2, 5, 8) for _ in "qkv")
        mask = torch.ones(5, 5, dtype=torch.bool)
        mask[:, 3] = False
        mask[2] = False
        want = sdpa(q, k, v, mask)
        k[:, :, 3], v[:, :, 3] = torch.nan, torch.inf
        self.assertTrue(torch.equal(sdpa(q, k, v, mask), want))
        self.assertEqual(want[:, :, 2].count_nonzero(), 0)

    def test_threads(self):
        """Bits do not depend on the threads, whose number is that of torch.set_num_threads()."""
        q, k, v = (torch.randn(1, 4, 300, 64) for _ in "qkv")
        torch.set_num_threads(1)
        want = sdpa(q, k, v)
        torch.set_num_threads(2)
        self.assertTrue(torch.equal(sdpa(q, k, v), want))
        from attn import _torch_threads

        self.assertLessEqual({1, 2}, set(_torch_threads._contexts))

    def test_not_what_memory_says(self):
        """A tensor whose memory holds the negated numbers, and a tensor of zeros without memory."""
        z = torch.randn(1, 2, 5, 8, dtype=torch.complex128)
        q = z.conj().imag
        self.assertTrue(q.is_neg())
        zero = torch._efficientzerotensor(1, 2, 5, 8, dtype=F64)
        for x in (q, zero):
            for _ in range(2):
                self.near(sdpa(x, x, x), PYTORCH(x.clone(), x.clone(), x.clone()))
        mask = torch.randn(5, 5, dtype=torch.complex128).conj().imag
        x = z.real
        for y in (mask.clone(), mask):  # the first call stores the plan
            self.near(sdpa(x, x, x, y), PYTORCH(x, x, x, mask.clone()))

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
            (ValueError, "attn_mask has 0 dim", (q, q, q, torch.tensor(True)), {}),
            (ValueError, "attn_mask has 1 dim", (q, q, q, torch.ones(3)), {}),
            (ValueError, "attn_mask has 5 dim", (q, q, q, torch.ones(1, 1, 1, 3, 3)), {}),
            (ValueError, "exclude each other", (q, q, q, torch.ones(3, 3)), {"is_causal": True}),
            (ValueError, "dropout_p is 1.5", (q, q, q), {"dropout_p": 1.5}),
            (ValueError, "seed is -1", (q, q, q), {"dropout_p": 0.5, "seed": -1}),
            (ValueError, "diagonal is 'right'", (q, q, q), {"diagonal": "right"}),
            (ValueError, "alibi_symmetric is given without", (q, q, q), {"alibi_symmetric": True}),
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
            (ValueError, "key is on meta and query on cpu", (q, q.to("meta"), q), {}),
            (ValueError, "value is on meta", (q, q, q.to("meta")), {}),
            (ValueError, "attn_mask is on meta", (q, q, q, torch.ones(3, 3).to("meta")), {}),
            (ValueError, "alibi is on meta", (q, q, q), {"alibi": r(4).to("meta")}),
            (ValueError, "sinks is on meta", (q, q, q), {"sinks": r(4).to("meta")}),
            (ValueError, "key_lengths is on meta", (q, q, q),
             {"key_lengths": torch.ones(2).long().to("meta")}),
            (TypeError, "key_lengths is torch.bool", (q, q, q),
             {"key_lengths": torch.tensor([True, False])}),
            (TypeError, "alibi is torch.complex64", (q, q, q), {"alibi": r(4) * 1j}),
            (TypeError, "scale is 'x'; it must be a number", (q, q, q), {"scale": "x"}),
            (TypeError, "softcap is 1j; it must be a number", (q, q, q), {"softcap": 1j}),
            (TypeError, "scale needs a gradient", (q, q, q),
             {"scale": torch.tensor(0.3, requires_grad=True)}),
            (TypeError, "seed is 1.9; it must be an integer", (q, q, q),
             {"dropout_p": 0.5, "seed": 1.9}),
            (ValueError, "seed is -1", (q, q, q), {"seed": -1}),
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
        """Only the operator's own kernel checks its arguments."""
        q = torch.randn(1, 2, 3, 4)
        numbers = 0.0, 0, 0, -1, -1, 0.0, 0.0, 0, 0
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
        for seed in (0, 5, (1 << 64) - 1):  # the names of the package for NumPy
            want = attn.scaled_dot_product_attention(
                q.numpy(), k.numpy(), v.numpy(), dropout_p=0.4, seed=seed
            )
            for inputs in (self.tensors, needs):
                got = sdpa(*inputs, dropout_p=0.4, seed=seed)
                self.assertTrue(np.array_equal(got.detach().numpy(), want))

    def test_what_it_does(self):
        """With unit vectors as values the result is the weights: kept and scaled, or 0."""
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


if __name__ == "__main__":
    unittest.main()
