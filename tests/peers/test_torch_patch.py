"""attn.torch.patch(): which function computes a call, and that everything is restored."""

import contextlib
import threading
import unittest

import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

import attn.torch
from torch_common import OPERATOR, PYTORCH, AttnTorch, leaf


class Patch(AttnTorch):
    def setUp(self):
        super().setUp()
        self.q, self.k, self.v = (torch.randn(2, 4, 6, 8) for _ in "qkv")
        self.assertIs(F.scaled_dot_product_attention, PYTORCH)
        self.addCleanup(lambda: self.assertIs(F.scaled_dot_product_attention, PYTORCH))

    @contextlib.contextmanager
    def calls(self, *, attn_has, pytorch_has):
        """Which function computes a call while patched."""
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
        """PyTorch decomposes them, and may then call attn's function again."""
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
        """The last patch to end restores: A enters, B enters, A leaves, B still has attn's
        function."""
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
        """If other code has replaced the function in between, its function stays, and attn's below
        it calls PyTorch's."""
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
        """nn.MultiheadAttention calls the function unless weights are wanted. In inference, neither
        it nor an encoder layer calls it, because both have a fast path."""
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
