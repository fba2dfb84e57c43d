"""attn.torch's operators: PyTorch's opcheck, its gradcheck, and its compilers."""

import os
import shutil
import unittest

import numpy as np
import torch
from torch._inductor.utils import fresh_inductor_cache
from torch.autograd import forward_ad

from torch_common import BACKWARD, F64, OPERATOR, PYTORCH, TOLERANCE
from torch_common import AttnTorch, formula, laid_out, leaf, sdpa


def samples():
    """Arguments of the operator: with and without every input, several layouts, small sizes."""
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
        places = (0 if numbers[1] in (1, 3) else n // 4 % 2, n // 5 % 2)
        yield (q, k, v, mask, alibi, sinks, lengths, seed, *numbers, dropout, *places)


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
        """alibi and sinks, which the library reads as floats: steps and values are exact in float,
        and the tolerance allows for the step's square."""
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
        """Compared with PyTorch's gradients through single operations, in each type."""
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

    def test_numpy_vectors_that_changed(self):
        """Between forward and backward. Autograd notices it for tensors only, so it needs a
        copy."""
        q, k, v = (leaf(2, 2, 5, 4) for _ in "qkv")
        for name, given in (("key_lengths", np.array([2, 5])),
                            ("alibi", np.array([1, 2], "f4")), ("sinks", np.array([1, 2], "f4"))):
            out = sdpa(q, k, v, **{name: given})
            want = torch.autograd.grad(out.pow(2).sum(), (q, k, v), retain_graph=True)
            given[:] = 1
            for x, y in zip(torch.autograd.grad(out.pow(2).sum(), (q, k, v)), want):
                self.assertTrue(torch.equal(x, y))

    def test_second_derivative(self):
        q, k, v = (leaf(1, 2, 5, 4) for _ in "qkv")
        (dq,) = torch.autograd.grad(sdpa(q, k, v).sum(), q, create_graph=True)
        with self.assertRaisesRegex(NotImplementedError, "no second derivatives"):
            dq.sum().backward()

    def test_transforms(self):
        """Tangents and batches are never ignored silently."""
        x = torch.randn(3, 1, 2, 4, 8)
        for transformed in (
            lambda: torch.func.vmap(sdpa)(x, x, x),
            lambda: torch.func.grad(lambda y: sdpa(y, y, y).sum())(x[0]),
            lambda: torch.func.jvp(lambda y: sdpa(y, y, y), (x[0],), (x[0],)),
        ):
            with self.assertRaisesRegex(NotImplementedError, "neither torch.func"):
                transformed()
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x[0], x[0])
            with self.assertRaisesRegex(NotImplementedError, "forward-mode"):
                sdpa(dual, dual, dual)
            self.near(sdpa(x[0], x[0], x[0]), PYTORCH(x[0], x[0], x[0]))


def block(q, k, v, mask):
    """The compiled function: views before, arithmetic after, three calls of different kinds."""
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
        with fresh_inductor_cache():  # old code has other layouts
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


if __name__ == "__main__":
    unittest.main()
