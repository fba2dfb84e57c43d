"""The modules and their gradients compared with PyTorch's, in f32 and f64."""

import ctypes
import os
import unittest
from ctypes import byref, c_double, c_int64, c_void_p

import torch
import torch.nn.functional as F

import library
from library import Error, structures

LIB = library.Library(os.path.join(os.environ["ATTN_BUILD"], "libattn.so"))
MhaArgs, MhaGrads = structures.MhaArgs, structures.MhaGrads
NAMES = {torch.float32: "f32", torch.float64: "f64"}
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}  # relative to the largest element


class AdamwOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *((name, c_double) for name in ("lr", "beta1", "beta2", "eps", "weight_decay")),
    ]


def view(t):
    """A PyTorch tensor of up to four dimensions as an attn_tensor, without a copy."""
    ones = 4 - t.dim()
    return library.tensor(
        t.data_ptr(), NAMES[t.dtype], [1] * ones + list(t.shape), [0] * ones + list(t.stride())
    )


def at(t):
    return None if t is None else byref(view(t))


def ids_of(t):
    return ctypes.cast(t.data_ptr(), ctypes.POINTER(c_int64))


def call(name, *arguments):
    error = Error()
    if getattr(LIB.c, name)(LIB.context(2), *arguments, byref(error)):
        raise AssertionError(f"{name}: {error.message.decode()}")


class Modules(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(12)

    def near(self, got, want, what):
        self.assertEqual(got.shape, want.shape, what)
        worst = (got - want).abs().max().item()
        largest = want.abs().max().item()
        self.assertLessEqual(worst, TOLERANCE[got.dtype] * max(largest, 1e-3), what)

    def for_dtypes(self, test):
        for dtype in NAMES:
            with self.subTest(dtype=dtype):
                test(lambda *shape: torch.randn(*shape, dtype=dtype), dtype)

    def check(self, inputs, out, got):
        """Compares gradients of sum(dout * out) by autograd with attn's."""
        wanted = torch.autograd.grad(out, inputs, self.dout)
        for name, g, w in zip("xwb", got, wanted):
            self.near(g, w.reshape(g.shape), name)

    def test_linear(self):
        def test(randn, dtype):
            x, w, b = (randn(*s).requires_grad_() for s in ((3, 1, 70, 33), (50, 33), (50,)))
            self.dout = randn(3, 1, 70, 50)
            out = F.linear(x, w, b)
            got = [torch.empty_like(t) for t in (x, w, b)]
            mine = torch.empty_like(out)
            call("attn_linear_forward", at(x), at(w), at(b), at(mine))
            call(
                "attn_linear_backward", at(self.dout), at(x), at(w), *(at(t) for t in got)
            )
            self.near(mine, out, "out")
            self.check((x, w, b), out, got)

        self.for_dtypes(test)

    def test_layer_norm(self):
        def test(randn, dtype):
            x, w, b = (randn(*s).requires_grad_() for s in ((4, 2, 9, 200), (200,), (200,)))
            self.dout = randn(4, 2, 9, 200)
            out = F.layer_norm(x, (200,), w, b)
            got = [torch.empty_like(t) for t in (x, w, b)]
            mine, eps = torch.empty_like(out), c_double(1e-5)
            call("attn_layer_norm_forward", at(x), at(w), at(b), eps, at(mine))
            call(
                "attn_layer_norm_backward", at(self.dout), at(x), at(w), eps, *(at(t) for t in got)
            )
            self.near(mine, out, "out")
            self.check((x, w, b), out, got)

        self.for_dtypes(test)

    def test_gelu(self):
        def test(randn, dtype):
            x = (3 * randn(5, 300)).requires_grad_()
            self.dout = randn(5, 300)
            out, mine, dx = F.gelu(x), torch.empty_like(x), torch.empty_like(x)
            call("attn_gelu_forward", at(x), at(mine))
            call("attn_gelu_backward", at(self.dout), at(x), at(dx))
            self.near(mine, out, "out")
            self.check((x,), out, [dx])

        self.for_dtypes(test)

    def test_embedding(self):
        def test(randn, dtype):
            table = randn(11, 40).requires_grad_()
            ids, self.dout = torch.randint(11, (60,)), randn(60, 40)
            out, d = F.embedding(ids, table), torch.empty_like(table)
            call("attn_embedding_backward", at(self.dout), ids_of(ids), c_int64(60), at(d))
            self.check((table,), out, [d])

        self.for_dtypes(test)

    def test_cross_entropy(self):
        def test(randn, dtype):
            logits, targets = (5 * randn(40, 70)).requires_grad_(), torch.randint(70, (40,))
            targets[::7] = -100
            loss = F.cross_entropy(logits, targets)
            mine, d = c_double(), torch.empty_like(logits)
            ignore = c_int64(-100)
            call("attn_cross_entropy_forward", at(logits), ids_of(targets), ignore, byref(mine))
            call(
                "attn_cross_entropy_backward",
                c_double(2.5), at(logits), ids_of(targets), ignore, at(d),
            )
            self.assertLess(abs(mine.value - loss.item()), TOLERANCE[dtype] * 10)
            self.dout = torch.tensor(2.5, dtype=dtype)
            self.check((logits,), loss, [d])

        self.for_dtypes(test)

    def test_adamw(self):
        def test(randn, dtype):
            p = torch.nn.Parameter(randn(7, 90))
            mine, m, v = p.detach().clone(), *(torch.zeros(7, 90, dtype=dtype) for _ in "mv")
            optimiser = torch.optim.AdamW([p])  # defaults on both sides
            options = AdamwOptions(ctypes.sizeof(AdamwOptions), 1e-3, 0.9, 0.999, 1e-8, 1e-2)
            for step in range(1, 21):
                p.grad = randn(7, 90)
                optimiser.step()
                call(
                    "attn_adamw_step",
                    byref(options), c_int64(step), at(mine), at(p.grad), at(m), at(v),
                )
            self.near(mine, p.detach(), "param")

        self.for_dtypes(test)

    def test_multi_head_attention(self):
        E, H, B, T = 48, 4, 3, 37

        def test(randn, dtype):
            module = torch.nn.MultiheadAttention(E, H, batch_first=True, dtype=dtype)
            torch.nn.init.normal_(module.in_proj_bias)
            torch.nn.init.normal_(module.out_proj.bias)
            x, self.dout = randn(B, T, E).requires_grad_(), randn(B, T, E)
            mask = torch.ones(T, T, dtype=bool).triu(1)
            out, _ = module(x, x, x, attn_mask=mask, need_weights=False)
            weights = [
                module.in_proj_weight, module.in_proj_bias,
                module.out_proj.weight, module.out_proj.bias,
            ]
            got = [torch.empty_like(t) for t in (x, *weights)]
            args, grads, error = MhaArgs(), MhaGrads(ctypes.sizeof(MhaGrads)), Error()
            LIB.c.attn_mha_args_init_sized(byref(args), ctypes.c_size_t(ctypes.sizeof(args)))
            self.assertEqual(args.struct_size, ctypes.sizeof(MhaArgs))
            for struct, function, (w, b) in (
                (args, "attn_mha_packed", weights[:2]),
                (grads, "attn_mha_packed_grads", got[1:3]),
            ):
                status = getattr(LIB.c, function)(
                    byref(struct), c_void_p(w.data_ptr()), c_void_p(b.data_ptr()),
                    library.DTYPES[NAMES[dtype]], c_int64(E), c_int64(H), byref(error),
                )
                self.assertEqual(status, 0, error.message)
            mine = torch.empty_like(out)
            rows = lambda t: view(t[:, None])  # [B,1,T,E]
            args.x, args.out = rows(x.detach()), rows(mine)
            args.w_o, args.b_o = view(weights[2]), view(weights[3])
            attention = library.new_args()
            attention.causal = library.CAUSAL["top-left"]
            args.attention = library.pointed(attention)
            grads.dout, grads.dx = rows(self.dout), rows(got[0])
            grads.dw_o, grads.db_o = view(got[3]), view(got[4])
            call("attn_mha_forward", byref(args))
            call("attn_mha_backward", byref(args), byref(grads))
            self.near(mine, out, "out")
            wanted = torch.autograd.grad(out, (x, *weights), self.dout)
            for name, g, w in zip(("x", "in", "in bias", "out", "out bias"), got, wanted):
                self.near(g, w, name)

        self.for_dtypes(test)


if __name__ == "__main__":
    unittest.main()
