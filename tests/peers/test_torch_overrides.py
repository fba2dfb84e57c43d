"""attn.torch with code that overrides PyTorch's functions: tensor subclasses and modes get the call
by PyTorch's rules, and CausalBias, whose memory has no numbers, is used as its rule."""

import threading
import unittest

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.overrides import TorchFunctionMode

import attn.torch
from torch_common import PYTORCH, AttnTorch, formula, sdpa


class Plain(torch.Tensor):
    """A subclass with PyTorch's default override: results keep the type."""


class Counting(torch.Tensor):
    """Compares the called function with the one that it saved before any patch."""

    seen = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), options=None):
        if function is PYTORCH:
            cls.seen.append("known before")
        if function is F.scaled_dot_product_attention:
            cls.seen.append("found now")
        if function is sdpa:
            cls.seen.append("attn")
        return super().__torch_function__(function, types, args, options or {})


class Answering(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), options=None):
        return "answered" if function in (PYTORCH, sdpa) else NotImplemented


class Watching(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), options=None):
        self.seen.append(function)
        return function(*args, **(options or {}))


def below(T, S, offset):
    return torch.ones(T, S, dtype=torch.bool).tril(offset)


class Overrides(AttnTorch):
    def setUp(self):
        super().setUp()
        self.q = torch.randn(2, 4, 3, 8)
        self.k, self.v = (torch.randn(2, 4, 7, 8) for _ in "kv")
        Counting.seen.clear()

    def want(self, visible):
        return formula(self.q, self.k, self.v, visible=visible)[0]

    def test_causal_bias(self):
        for bias, offset in ((causal_upper_left(3, 7), 0), (causal_lower_right(3, 7), 4)):
            want = self.want(below(3, 7, offset))
            self.near(sdpa(self.q, self.k, self.v, bias), want)
            self.near(sdpa(self.q, self.k, self.v, attn_mask=bias, window=(-1, -1)), want)
            with attn.torch.patch():
                self.near(F.scaled_dot_product_attention(self.q, self.k, self.v, bias), want)
                self.near(
                    torch.nn.functional.scaled_dot_product_attention(
                        self.q, self.k, self.v, attn_mask=bias, dropout_p=0.0
                    ),
                    want,
                )

    def test_causal_bias_compiles(self):
        for bias, offset in ((causal_upper_left(3, 7), 0), (causal_lower_right(3, 7), 4)):
            want = self.want(below(3, 7, offset))
            for function in (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, bias),
                             lambda q, k, v: sdpa(q, k, v, bias)):  # fmt: skip
                torch._dynamo.reset()
                compiled = torch.compile(function, backend="eager")
                with attn.torch.patch():
                    self.near(compiled(self.q, self.k, self.v), want)

    def test_causal_bias_of_another_call(self):
        with self.assertRaisesRegex(ValueError, "T=3 and S=6; the call has T=3 and S=7"):
            sdpa(self.q, self.k, self.v, causal_lower_right(3, 6))
        for more in ({"is_causal": True}, {"causal_offset": 2}):
            with self.assertRaisesRegex(ValueError, "CausalBias"):
                sdpa(self.q, self.k, self.v, causal_lower_right(3, 7), **more)
        with attn.torch.patch():  # PyTorch's result or error
            got = F.scaled_dot_product_attention(self.q, self.k, self.v, causal_upper_left(3, 6))
            self.near(got, self.want(below(3, 7, 0)))
            with self.assertRaisesRegex(ValueError, "CausalBias should not be used"):
                F.scaled_dot_product_attention(
                    self.q, self.k, self.v, causal_lower_right(3, 7), is_causal=True
                )

    def test_subclasses_keep_their_type(self):
        x = self.q.as_subclass(Plain)
        want = PYTORCH(self.q, self.k, self.v)
        for q, k, v in ((x, self.k, self.v), (self.q, self.k, self.v.as_subclass(Plain))):
            with attn.torch.patch():
                got = F.scaled_dot_product_attention(q, k, v)
            for out in (got, sdpa(q, k, v)):
                self.assertIs(type(out), Plain)
                self.near(out.as_subclass(torch.Tensor), want)
        self.assertIs(type(sdpa(x, self.k, self.v, return_lse=True)[1]), Plain)

    def test_subclasses_are_asked(self):
        q = self.q.as_subclass(Counting)
        with attn.torch.patch():
            patched = F.scaled_dot_product_attention
            patched(q, self.k, self.v)
            self.assertEqual(Counting.seen[:2], ["known before", "found now"])
            self.assertIs(F.scaled_dot_product_attention, patched)
        self.assertIs(F.scaled_dot_product_attention, PYTORCH)
        Counting.seen.clear()
        sdpa(q, self.k, self.v)
        self.assertEqual(Counting.seen[0], "attn")
        answer = self.k.as_subclass(Answering)
        with attn.torch.patch():
            self.assertEqual(F.scaled_dot_product_attention(self.q, answer, self.v), "answered")
        self.assertEqual(sdpa(self.q, answer, self.v), "answered")

    def test_masks_are_asked(self):
        mask = torch.zeros(3, 7).as_subclass(Counting)
        with attn.torch.patch():
            F.scaled_dot_product_attention(self.q, self.k, self.v, mask)
        self.assertEqual(Counting.seen[0], "known before")

    def test_modes_are_asked(self):
        with attn.torch.patch(), Watching() as mode:
            got = F.scaled_dot_product_attention(self.q, self.k, self.v)
        self.assertEqual(mode.seen, [PYTORCH])
        self.near(got, PYTORCH(self.q, self.k, self.v))
        for _ in range(2):  # the second call has a known plan
            with Watching() as mode:
                sdpa(self.q, self.k, self.v)
            self.assertEqual(mode.seen[0], sdpa)

    def test_parameters_are_ordinary(self):
        p = torch.nn.Parameter(self.q)
        with attn.torch.patch():
            self.near(F.scaled_dot_product_attention(p, self.k, self.v), self.want(None))

    def test_threads_step_aside(self):
        """While a subclass handles a call of one thread, another thread enters and leaves a
        patch."""
        asked, entered = threading.Event(), threading.Event()

        class Waiting(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function, types, args=(), options=None):
                if function is PYTORCH:
                    asked.set()
                    entered.wait(60)
                return super().__torch_function__(function, types, args, options or {})

        q = self.q.as_subclass(Waiting)

        def ask():
            with attn.torch.patch():
                F.scaled_dot_product_attention(q, self.k, self.v)

        thread = threading.Thread(target=ask)
        thread.start()
        asked.wait(60)
        with attn.torch.patch():
            got = F.scaled_dot_product_attention(self.q, self.k, self.v)
            entered.set()
            thread.join()
            self.assertIsNot(F.scaled_dot_product_attention, PYTORCH)
        self.assertIs(F.scaled_dot_product_attention, PYTORCH)
        self.near(got, self.want(None))

    def test_raises_where_pytorch_does(self):
        q = self.q
        flags = [{name: value} for name in ("is_causal", "enable_gqa")
                 for value in (1, 0, None, torch.tensor(True), "yes")]  # fmt: skip
        sdpa(q, q, q, None, 0.0, True, None, False)  # True == 1: the call has a known plan now
        for option in flags:
            for function in (PYTORCH, sdpa):
                with self.assertRaises(TypeError, msg=option):
                    function(q, q, q, **option)
        floats = torch.float64, torch.float32, torch.float16, torch.bfloat16
        answers = 0
        for dtype in floats:
            x = q.to(dtype)
            for kind in (*floats, torch.bool, torch.int32, torch.uint8):
                mask = torch.ones(3, 3, dtype=kind)
                try:
                    want = PYTORCH(x, x, x, mask)
                except RuntimeError:
                    with self.assertRaisesRegex(TypeError, "must be bool, float32 or query's"):
                        sdpa(x, x, x, mask)
                else:
                    self.near(sdpa(x, x, x, mask), want)
                    answers += 1
        self.assertEqual(answers, 4 * 3 - 1)


if __name__ == "__main__":
    unittest.main()
