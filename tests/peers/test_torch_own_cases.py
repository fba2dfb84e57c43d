"""PyTorch's own tests of scaled_dot_product_attention, for attn.torch.patch(): PyTorch's sample
inputs of the operator, and cases that its files test only on a GPU although a CPU can compute them.
The expected result is PyTorch's, from the same numbers in double precision."""

import contextlib
import itertools
import unittest

import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.testing._internal.common_methods_invocations import op_db

import attn.torch
from attn import _torch_engine, _torch_plans
from torch_common import F64, OPERATOR, PYTORCH, TOLERANCE, AttnTorch, leaf

NAME = "nn.functional.scaled_dot_product_attention"
INFO = next(op for op in op_db if op.name == NAME)
FLOATS = tuple(TOLERANCE)


# Larger for gradients than for results: the samples are numbers up to 9, so one weight of a row is
# 1, and the gradient of its score cancels to an error of the rounded result.
CANCELLED = 16

# The products of a score add up to 125 in these samples. So the rounding of a score, in either
# library, changes its weight by 125 * 2**-52 = 2.8e-14, and the tolerance for f64 is 1e-14.
SAMPLES = 4


def unlike():
    """PyTorch's sample inputs, ((q, k, v), options): each kind once, and values with Dv > D, which
    PyTorch's samples omit by mistake."""
    seen = set()
    for sample in INFO.sample_inputs("cpu", F64, requires_grad=False):
        inputs, options = (sample.input, *sample.args), sample.kwargs
        kind = str([*(x.shape for x in inputs), *sorted(map(str, options)), options["is_causal"],
                    options["dropout_p"]])  # fmt: skip
        if kind not in seen:
            seen.add(kind)
            yield inputs, options
    yield (torch.randn(4, 4, 3, 8), torch.randn(4, 4, 6, 8), torch.randn(4, 4, 6, 16)), {}


def certain():
    """The samples without dropout."""
    for inputs, options in unlike():
        if not options.get("dropout_p"):
            yield inputs, options


def leaves(tensors, dtype):
    return [x.detach().to(dtype).clone().requires_grad_() for x in tensors]


def cast(options, dtype):
    """The options with a float mask in this type."""
    mask = options.get("attn_mask")
    floats = mask is not None and mask.is_floating_point()
    return {**options, "attn_mask": mask.to(dtype)} if floats else dict(options)


def attention(q, k, v, **options):
    return F.scaled_dot_product_attention(q, k, v, **options)


class Cases(AttnTorch):
    def setUp(self):
        super().setUp()
        self.calls = 0
        self.count(_torch_engine, "_forward")
        self.count(_torch_engine, "_backward")
        self.count(_torch_plans, "_forward")

    def count(self, module, name):
        """Counts the library's calls, because a comparison without calls would prove nothing."""
        function = getattr(module, name)

        def counting(*arguments):
            self.calls += 1
            return function(*arguments)

        setattr(module, name, counting)
        self.addCleanup(setattr, module, name, function)

    @contextlib.contextmanager
    def patched(self, calls=None):
        """attn.torch.patch(), in which libattn is called this number of times, or at least once."""
        before = self.calls
        with attn.torch.patch():
            yield
        if calls is None:
            self.assertGreater(self.calls, before)
        else:
            self.assertEqual(self.calls - before, calls)

    def same(self, inputs, dtype=F64, function=attention, calls=2, factor=4, whole=1, **options):
        """Result and gradients of the function, patched in this type, and PyTorch's in double
        precision. whole and factor: of the tolerances of the result and of the gradients."""
        mine, yours = leaves(inputs, dtype), leaves([x.to(dtype) for x in inputs], F64)
        options = cast(options, dtype)
        want = function(*yours, **cast(options, F64))
        dout = torch.randn(want.shape, dtype=dtype)
        want.backward(dout.double())
        with self.patched(calls):
            got = function(*mine, **options)
            got.backward(dout)
        self.assertEqual(got.dtype, dtype)
        self.near(got, want, factor=whole)
        for a, b in zip(mine, yours):
            self.near(a.grad, b.grad, factor=factor)
        return got


class Samples(Cases):
    def test_results_and_gradients(self):
        for dtype in FLOATS:
            for inputs, options in certain():
                with self.subTest(dtype=dtype, options=options):
                    got = self.same(inputs, dtype, factor=CANCELLED, whole=SAMPLES, **options)
                    plain = [x.to(dtype) for x in inputs]
                    want = PYTORCH(*plain, **cast(options, dtype))
                    self.assertEqual(got.stride(), want.stride())
                    self.near(got, want, factor=SAMPLES)
                    with self.patched(1), torch.no_grad():
                        self.assertTrue(torch.equal(got, attention(*plain, **cast(options, dtype))))

    def test_dropout(self):
        """With a unit matrix as values the result shows which weights are kept. With the same seed
        they are the same for any values."""
        for dtype, ((q, k, v), options) in itertools.product(FLOATS, unlike()):
            if not options.get("dropout_p"):
                continue
            q, k, v = (x.to(dtype) for x in (q, k, v))
            unit = torch.eye(k.shape[-2], dtype=dtype).expand(*k.shape[:-1], -1)
            whole = PYTORCH(q, k, unit, is_causal=options["is_causal"])
            with self.subTest(dtype=dtype, options=options), self.patched(2):
                torch.manual_seed(3)
                kept = attention(q, k, unit, **options)
                torch.manual_seed(3)
                got = attention(q, k, v, **options)
                self.near(kept, torch.where(kept != 0, 2 * whole, 0), factor=2)
                self.near(got, kept.double() @ v.double(), factor=4)
                share = (kept != 0).sum() / (whole != 0).sum()
                self.assertTrue(0.3 < share < 0.7, share)

    def test_gradcheck(self):
        """Also with dropout: PyTorch's sample is called with a fixed seed."""
        for inputs, options in unlike():
            inputs = leaves((x.reshape(-1, *x.shape[-2:])[:2] for x in inputs), F64)
            with self.subTest(options=options), self.patched():
                f = lambda *x: INFO.op(*x, **options)  # noqa: E731
                self.assertTrue(torch.autograd.gradcheck(f, inputs, fast_mode=True))

    def test_float_mask_has_a_gradient(self):
        for dtype, shape in itertools.product(FLOATS, ((3, 6), (4, 1, 1, 6), (4, 4, 3, 6))):
            q, k, v, mask = (torch.randn(s) for s in ((4, 4, 3, 8), *[(4, 4, 6, 8)] * 2, shape))
            f = lambda q, k, v, mask: attention(q, k, v, attn_mask=mask)  # noqa: E731
            with self.subTest(dtype=dtype, shape=shape):
                self.same((q, k, v, mask), dtype, f)

    def test_compiled(self):
        for dtype, (inputs, options) in itertools.product((F64, torch.bfloat16), certain()):
            torch._dynamo.reset()
            with self.subTest(dtype=dtype, options=options):
                mine = leaves(inputs, dtype)
                f = lambda q, k, v: attention(q, k, v, **cast(options, dtype))  # noqa: B023, E731
                yours = leaves([x.to(dtype) for x in inputs], F64)
                want = PYTORCH(*yours, **cast(options, F64))
                dout = torch.randn(want.shape, dtype=dtype)
                want.backward(dout.double())
                with self.patched(2):
                    got = torch.compile(f, backend="aot_eager", fullgraph=True)(*mine)
                    got.backward(dout)
                for a, b in zip((got, *(x.grad for x in mine)), (want, *(x.grad for x in yours))):
                    self.near(a, b, factor=CANCELLED)

    def test_exported(self):
        """A program exported by Dynamo has attn's operator; otherwise it has PyTorch's and runs
        anywhere."""

        class Module(torch.nn.Module):
            def __init__(self, options):
                super().__init__()
                self.options = options

            def forward(self, q, k, v):
                return attention(q, k, v, **self.options)

        for strict, (inputs, options) in itertools.product((True, False), unlike()):
            inputs = tuple(x.double() for x in inputs)
            with self.subTest(strict=strict, options=options):
                with self.patched(0):
                    program = torch.export.export(Module(options), inputs, strict=strict)
                targets = [node.target for node in program.graph.nodes]
                self.assertEqual(OPERATOR in targets, strict)
                got = program.module()(*inputs)
                if not options.get("dropout_p"):
                    self.near(got, PYTORCH(*inputs, **options), factor=SAMPLES)

    def test_transforms(self):
        """torch.func's transforms get PyTorch's function; the bits are the same."""
        for inputs, options in unlike():
            batches = [torch.stack([x, -x, 2 * x]) for x in inputs]
            f = lambda *x: attention(*x, **options)  # noqa: B023, E731
            tasks = [
                lambda: torch.func.vmap(f, randomness="different")(*batches),
                lambda: torch.func.vmap(f, (0, None, None), randomness="same")(
                    batches[0], *inputs[1:]
                ),
                lambda: torch.func.grad(lambda q: f(q, *inputs[1:]).sum())(inputs[0]),
                lambda: torch.func.vjp(f, *inputs)[0],
            ]
            for task in tasks:
                with self.subTest(options=options):
                    torch.manual_seed(5)
                    want = task()
                    torch.manual_seed(5)
                    with self.patched(0):
                        self.assertTrue(torch.equal(task(), want))


class Masks(Cases):
    def setUp(self):
        super().setUp()
        self.qkv = [torch.randn(2, 3, n, 8) for n in (9, 13, 13)]

    def test_every_shape(self):
        for bool_, dtype in itertools.product((True, False), FLOATS):
            for size in itertools.product((2, 1), (3, 1), (9, 1), (13, 1)):
                for shape in {size, size[2:]} if size[:2] == (1, 1) else {size}:
                    mask = torch.randn(shape)
                    with self.subTest(dtype=dtype, bool=bool_, shape=shape):
                        self.same(self.qkv, dtype, attn_mask=mask > -1 if bool_ else mask)

    def test_strides(self):
        wide = torch.randn(2, 3, 9, 40)
        for mask in (wide[..., 7:20], wide[..., 1:40:3], wide[:, :, :, :13].transpose(0, 1)[:2, :2],
                     torch.randn(13, 9).t(), torch.randn(1, 13).expand(9, 13)):  # fmt: skip
            if mask.dim() == 4 and mask.shape[1] != 3:
                mask = mask[:, :1]
            for x in (mask, mask > 0.5):
                with self.subTest(shape=mask.shape, strides=mask.stride(), dtype=x.dtype):
                    self.same(self.qkv, torch.float32, attn_mask=x)

    def test_bands_of_infinity(self):
        """-inf at either end of a row, for more keys than any kernel's block."""
        full = torch.full((600, 600), -torch.inf)
        mask = torch.triu(full, diagonal=1) + torch.tril(full, diagonal=-10)
        qkv = [torch.rand(1, 2, 600, 8) for _ in "qkv"]
        for x in (mask, mask == 0):
            self.same(qkv, torch.float32, attn_mask=x)

    def test_rows_that_see_nothing(self):
        """Such rows are 0, and so are their gradients; the other rows do not change."""
        mask = (torch.arange(64)[:, None] - torch.arange(64)) % 5 == 0
        mask[::4] = False
        bias = torch.zeros(64, 64).masked_fill(~mask, -torch.inf)
        for dtype, x in itertools.product(FLOATS, (mask, bias)):
            qkv = leaves([torch.rand(1, 1, 64, 16) for _ in "qkv"], dtype)
            with self.subTest(dtype=dtype, mask=x.dtype), self.patched(2):
                out = attention(*qkv, attn_mask=x.to(dtype) if x is bias else x)
                out.sum().backward()
                for y in (out, qkv[0].grad):
                    self.assertEqual(y[:, :, ::4].abs().max(), 0)
                self.assertFalse(any(y.isnan().any() for y in (out, *(y.grad for y in qkv))))
            self.same([y.detach() for y in qkv], dtype, attn_mask=x)

    def test_not_a_number_spreads(self):
        for dtype, bad in itertools.product(FLOATS, (torch.nan, torch.inf)):
            q, k, v = (torch.randn(1, 2, 4, 16) for _ in "qkv")
            q[0, 1, 2, 3] = bad
            q, k, v = leaves((q, k, v), dtype)
            with self.subTest(dtype=dtype, bad=bad), self.patched(2):
                out = attention(q, k, v)
                out.sum().backward()
                nan = out.isnan().any(-1)[0]
                self.assertEqual(nan.nonzero().tolist(), [[1, 2]])
                self.assertTrue(q.grad[0, 1, 2].isnan().any())
                self.assertFalse(q.grad[0, 0].isnan().any())

    def test_causal_bias(self):
        """Gradients with both rules, with more keys or more queries, compiled into one graph or
        not."""
        for T, S in ((12, 12), (12, 25), (25, 12)):
            for make in (causal_upper_left, causal_lower_right):
                if make is causal_lower_right and T > S:
                    continue  # some queries see no key, for which PyTorch gives NaN
                bias = make(T, S)
                mask = bias._materialize("cpu")
                qkv = [torch.rand(2, 4, n, 16) for n in (T, S, S)]
                for dtype in (F64, torch.float16):
                    with self.subTest(T=T, S=S, make=make.__name__, dtype=dtype):
                        self.same(qkv, dtype, self.by_rule(bias, mask))
                torch._dynamo.reset()
                counts = CompileCounterWithBackend("aot_eager")
                compiled = torch.compile(attention, backend=counts)
                self.same(qkv, torch.float32, self.by_rule(bias, mask, compiled), calls=2)
                self.assertEqual(counts.frame_count, 1)

    def by_rule(self, bias, mask, function=attention):
        """The attention gets the rule if it is patched, otherwise the same mask."""

        def f(q, k, v):
            if F.scaled_dot_product_attention is PYTORCH:
                return PYTORCH(q, k, v, mask)
            return function(q, k, v, attn_mask=bias)

        return f


class Shapes(Cases):
    def test_grouped_heads(self):
        for dtype, (H, Hk, Hv) in itertools.product(
            FLOATS, ((8, 4, 4), (9, 3, 3), (8, 2, 8), (6, 1, 3), (4, 4, 4))
        ):
            qkv = [torch.rand(2, h, n, 16) for h, n in ((H, 7), (Hk, 11), (Hv, 11))]
            with self.subTest(dtype=dtype, heads=(H, Hk, Hv)):
                self.same(qkv, dtype, enable_gqa=True)
                self.same([x[1] for x in qkv], dtype, enable_gqa=True, is_causal=True)

    def test_packed_projections(self):
        """Views of one projection, as modules create them, with one gradient for all."""
        for dtype, shape in itertools.product(FLOATS, ((2, 17, 96), (17, 96))):

            def f(x):
                q, k, v = (
                    y.unflatten(-1, (4, 8)).transpose(-2, -3) for y in x.chunk(3, dim=-1)
                )
                return attention(q, k, v).transpose(-2, -3).flatten(-2)

            with self.subTest(dtype=dtype, shape=shape):
                self.same([torch.rand(shape)], dtype, f)

    def test_layouts_are_the_queries(self):
        """The result has query's memory order, in any order of batch, heads and rows, so a view can
        join what a view has split."""
        for order in itertools.permutations(range(3)):
            sizes = [(2, 4, 6)[i] for i in order]
            back = [order.index(i) for i in range(3)]
            k = torch.randn(2, 4, 7, 8)
            for whole in (torch.randn(*sizes, 8), torch.randn(*sizes, 3, 8)[..., 1, :]):
                q = whole.permute(*back, 3)
                for x, options in itertools.product(
                    (q, q.half(), q.detach().requires_grad_()),
                    ({}, {"is_causal": True}, {"attn_mask": torch.ones(6, 7, dtype=torch.bool)}),
                ):
                    want = PYTORCH(x, k.to(x.dtype), k.to(x.dtype), **options)
                    for _ in range(2):
                        with self.patched(1):
                            got = attention(x, k.to(x.dtype), k.to(x.dtype), **options)
                        self.assertEqual(got.stride(), want.stride(), (order, options))
                    got.permute(*order, 3).view(-1, 8)

    def test_expanded_queries(self):
        """A dimension of stride 0 has no place in the memory order; the result has it where it is
        in the shape."""
        k = torch.randn(2, 4, 7, 8)
        for shape in ((1, 4, 6, 8), (2, 1, 6, 8), (2, 4, 1, 8)):
            q = torch.randn(shape).expand(2, 4, 6, 8)
            self.assertEqual(self.same([q, k, k], torch.float32).shape, q.shape)
            with self.patched(1):
                got = attention(q, k, k)
            self.assertEqual(got.stride(), PYTORCH(q, k, k).stride())

    def test_one_row_and_none(self):
        for T, S in ((1, 1), (1, 9), (9, 1), (0, 4), (4, 0), (0, 0)):
            qkv = [torch.rand(2, 3, n, 8) for n in (T, S, S)]
            for options in ({}, {"is_causal": True}):
                with self.subTest(T=T, S=S, options=options):
                    self.same(qkv, torch.float32, **options)

    def test_broadcast(self):
        for shapes in (((1, 4, 3, 8), (2, 4, 3, 8)), ((2, 4, 3, 8), (1, 1, 3, 8)),
                       ((2, 1, 3, 8), (4, 3, 8)), ((3, 8), (2, 4, 3, 8))):  # fmt: skip
            q, kv = (torch.rand(s) for s in shapes)
            with self.subTest(shapes=shapes):
                self.same((q, kv, kv + 1), torch.float32)

    def test_scales(self):
        x = torch.randn(1, 3, 64, 64, dtype=F64)
        for scale in (-1e4, -1.0, 0.0, 1e-30, 3.5):
            with self.subTest(scale=scale):
                self.same((x, x, x), scale=scale, factor=1e5 if abs(scale) > 1 else 4)


class Nested(Cases):
    def heads_first(self, x):
        """PyTorch wants jagged tensors contiguous before this, strided ones after it."""
        if x.layout == torch.jagged:
            return x.contiguous().transpose(1, 2)
        return x.transpose(1, 2).contiguous()

    def test_parts_of_many_lengths(self):
        """Each part of jagged and strided tensors gets the same result as alone, gradients too."""
        lengths = (5, 2, 9)
        for layout in (torch.jagged, torch.strided):
            parts = [[leaf(n, 4, 8) for n in lengths] for _ in "qkv"]
            with attn.torch.patch():
                q, k, v = (
                    self.heads_first(torch.nested.as_nested_tensor(x, layout=layout)) for x in parts
                )
                got = attention(q, k, v).transpose(1, 2).unbind()
            sum((x * x).sum() for x in got).backward()
            for a, q, k, v in zip(got, *parts):
                grads = [x.grad.clone() for x in (q, k, v)]
                for x in (q, k, v):
                    x.grad = None
                want = PYTORCH(*(x.transpose(0, 1) for x in (q, k, v))).transpose(0, 1)
                (want * want).sum().backward()
                self.near(a, want)
                for x, grad in zip((q, k, v), grads):
                    self.near(grad, x.grad, factor=4)

    def test_packed_projection(self):
        rows = [torch.randn(n, 96) for n in (3, 8)]
        x = torch.nested.nested_tensor(rows, layout=torch.jagged)
        q, k, v = (self.heads_first(y.unflatten(-1, (4, 8))) for y in x.chunk(3, dim=-1))
        want = attention(q, k, v).transpose(1, 2).unbind()
        with self.patched(0):
            got = attention(q, k, v).transpose(1, 2).unbind()
        for a, b in zip(got, want):
            self.near(a, b)


class Ways(Cases):
    def setUp(self):
        super().setUp()
        self.qkv = [torch.randn(2, 4, 6, 8) for _ in "qkv"]

    def test_errors_are_pytorchs(self):
        x = self.qkv[0]
        ones = torch.ones
        for q, k, v, options in (
            (x, x.half(), x.half(), {}),
            (x[0, 0, 0], x[0, 0, 0], x[0, 0, 0], {}),
            (x, x.to("meta"), x, {}),
            (x, x[..., :7], x, {}),
            (x, x[:, :3], x[:, :3], {}),
            (x, x[:, :3], x[:, :3], {"enable_gqa": True}),
            (x, x, x, {"attn_mask": ones(7, 6)}),
            (x, x, x, {"attn_mask": ones(6, 6, dtype=torch.int32)}),
            (x, x, x, {"attn_mask": causal_upper_left(6, 6), "is_causal": True}),
            (x, x, x, {"dropout_p": 2.0}),
            (x, x, x, {"is_causal": 1}),
            (x.int(), x.int(), x.int(), {}),
            (x.to_sparse(), x, x, {}),
            (x, None, x, {}),
        ):
            with self.subTest(q=q.dtype, k=k, options=options):
                with self.assertRaises(Exception) as theirs:
                    PYTORCH(q, k, v, **options)
                with attn.torch.patch(), self.assertRaises(type(theirs.exception)) as mine:
                    attention(q, k, v, **options)
                self.assertEqual(str(mine.exception), str(theirs.exception))

    def test_script(self):
        """torch.jit.script finds PyTorch's function under attn's name, also in modules."""

        def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        module = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        x = self.qkv[0][0]
        with self.patched(0):
            got = torch.jit.script(f)(*self.qkv)
            self.near(got, PYTORCH(*self.qkv, is_causal=True))
            self.near(torch.jit.script(module)(x, x, x)[0], module(x, x, x)[0])

    def test_trace(self):
        with self.patched(0):
            traced = torch.jit.trace(attention, tuple(self.qkv), check_trace=False)
        self.near(traced(*self.qkv), PYTORCH(*self.qkv))

    def test_graphs(self):
        """Graphs of torch.fx and make_fx contain PyTorch's functions."""
        from torch.fx.experimental.proxy_tensor import make_fx

        def f(q, k, v):
            return F.scaled_dot_product_attention(q, k, v)

        for mode in ("real", "fake", "symbolic"):
            with self.patched(0):
                graph = make_fx(f, tracing_mode=mode)(*self.qkv)
            self.near(graph(*self.qkv), PYTORCH(*self.qkv))
        with self.patched(0):
            graph = torch.fx.symbolic_trace(f)
        self.near(graph(*self.qkv), PYTORCH(*self.qkv))

    def test_autocast(self):
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype):
                with self.patched(1):
                    got = attention(*self.qkv)
                want = PYTORCH(*self.qkv)
            self.assertEqual((got.dtype, want.dtype), (dtype, dtype))
            self.near(got, want, factor=2)

    def test_backward_twice(self):
        """A retained graph gives the same bits again, and so does a new one."""
        grads = []
        dout = torch.randn(2, 4, 6, 8)
        with self.patched(6):
            for _ in range(2):
                qkv = leaves(self.qkv, torch.float32)
                torch.manual_seed(9)
                out = attention(*qkv, dropout_p=0.2)
                for _ in range(2):
                    grads.append(torch.autograd.grad(out, qkv, dout, retain_graph=True))
        for other in grads[1:]:
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(grads[0], other)))

    def test_checkpointing(self):
        from torch.utils.checkpoint import checkpoint

        for reentrant in (True, False):
            f = lambda *x: checkpoint(attention, *x, use_reentrant=reentrant)  # noqa: B023, E731
            self.same(self.qkv, torch.float32, f, calls=3)


class Modules(Cases):
    def compare(self, module, *inputs, **options):
        """A module's result and all gradients, patched and not."""

        def run():
            module.zero_grad()
            out = module(*inputs, **options)
            (out[0] if isinstance(out, tuple) else out).square().sum().backward()
            return [out[0] if isinstance(out, tuple) else out, *(
                p.grad.clone() for p in module.parameters() if p.grad is not None)]  # fmt: skip

        want = run()
        with self.patched():
            got = run()
        for a, b in zip(got, want, strict=True):
            self.near(a, b, factor=16)

    def test_layers_with_masks(self):
        """Encoders and decoders in training, with padding, a mask, and the hint is_causal."""
        x, memory = torch.randn(3, 7, 16, dtype=F64), torch.randn(3, 5, 16, dtype=F64)
        padding = torch.arange(7) >= torch.tensor([[7], [5], [2]])
        causal = torch.nn.Transformer.generate_square_subsequent_mask(7, dtype=F64)
        for batch_first, norm_first in itertools.product((True, False), repeat=2):
            more = dict(dropout=0.0, batch_first=batch_first, norm_first=norm_first, dtype=F64)
            a, b = (x, memory) if batch_first else (x.transpose(0, 1), memory.transpose(0, 1))
            encoder = torch.nn.TransformerEncoderLayer(16, 4, 32, **more)
            decoder = torch.nn.TransformerDecoderLayer(16, 4, 32, **more)
            for options in ({}, {"src_key_padding_mask": padding}, {"src_mask": causal},
                            {"src_mask": causal, "is_causal": True},
                            {"src_mask": causal < 0, "src_key_padding_mask": padding}):  # fmt: skip
                with self.subTest(batch_first=batch_first, norm_first=norm_first, options=options):
                    self.compare(encoder, a, **options)
            for options in ({}, {"tgt_mask": causal, "tgt_is_causal": True},
                            {"tgt_key_padding_mask": padding}):  # fmt: skip
                self.compare(decoder, a, b, **options)

    def test_multihead_attention(self):
        q, kv = torch.randn(2, 5, 12, dtype=F64), torch.randn(2, 6, 10, dtype=F64)
        for more in ({}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}):
            module = torch.nn.MultiheadAttention(
                12, 3, kdim=10, vdim=10, batch_first=True, dtype=F64, **more
            )
            with self.subTest(more=more):
                self.compare(module, q, kv, kv, need_weights=False)
                self.compare(module, q[0], kv[0], kv[0], need_weights=False)

    def test_whole_transformer_is_compiled(self):
        module = torch.nn.Transformer(16, 4, 1, 1, 32, dropout=0.0, batch_first=True, dtype=F64)
        x, y = torch.randn(2, 5, 16, dtype=F64), torch.randn(2, 6, 16, dtype=F64)
        want = module(x, y)
        with self.patched():
            self.near(torch.compile(module, backend="aot_eager")(x, y), want, factor=16)


if __name__ == "__main__":
    unittest.main()
