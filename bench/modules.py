"""The players of cells.Module: libattn's modules through ctypes, and PyTorch's functions.

Each builder returns libattn's call, PyTorch's, and two functions that return the tensors of their
last call, in the same order, for comparison.
"""

import ctypes
from ctypes import byref, c_double, c_int64

import torch
import torch.nn.functional as F

import library
from race import Player

SEED = 123
IGNORE = -100
EPS = 1e-5


def view(t):
    """attn_tensor of a dense f32 tensor of at most four dimensions."""
    t4 = t.reshape((1,) * (4 - t.dim()) + tuple(t.shape))
    return library.tensor(t.data_ptr(), "f32", t4.shape, t4.stride())


def caller(lib, function, *arguments):
    """A function without arguments that makes the call. Tensors become attn_tensor, None NULL."""
    error, keep = library.Error(), []

    def passed(x):
        if isinstance(x, torch.Tensor) and x.dtype == torch.float32:
            keep.append((x, view(x)))
            return byref(keep[-1][1])
        if isinstance(x, torch.Tensor):
            keep.append(x)
            return ctypes.c_void_p(x.data_ptr())
        return x

    ready = [passed(x) for x in arguments]

    def call():
        if function(*ready, byref(error)):
            raise library.Failed(error.message.decode())

    call.keep = keep
    return call


def gradients(output, inputs, dout, keep):
    """A function that runs autograd on a retained graph."""

    def call():
        with torch.inference_mode(False):
            keep["out"] = torch.autograd.grad(output, inputs, dout, retain_graph=True)

    return call


def gelu(lib, context, m):
    x = torch.randn(m.sizes)
    out = torch.empty_like(x)
    keep = {}
    if m.passes == "forward":
        ours = caller(lib, lib.c.attn_gelu_forward, context, x, out)

        def theirs():
            keep["out"] = (F.gelu(x),)

        return ours, theirs, lambda: (out,), lambda: keep["out"]
    dout = torch.randn(m.sizes)
    with torch.inference_mode(False):
        leaf, grad = x.clone().requires_grad_(), dout.clone()
        theirs = gradients(F.gelu(leaf), (leaf,), grad, keep)
    ours = caller(lib, lib.c.attn_gelu_backward, context, dout, x, out)
    return ours, theirs, lambda: (out,), lambda: keep["out"]


def layer_norm(lib, context, m):
    E = m.sizes[1]
    x, weight, bias = torch.randn(m.sizes), torch.randn(E), torch.randn(E)
    out, keep = torch.empty_like(x), {}
    if m.passes == "forward":
        function = lib.c.attn_layer_norm_forward
        ours = caller(lib, function, context, x, weight, bias, c_double(EPS), out)

        def theirs():
            keep["out"] = (F.layer_norm(x, (E,), weight, bias, EPS),)

        return ours, theirs, lambda: (out,), lambda: keep["out"]
    dout = torch.randn(m.sizes)
    grads = (torch.empty_like(x), torch.empty(E), torch.empty(E))
    with torch.inference_mode(False):
        leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
        output = F.layer_norm(leaves[0], (E,), leaves[1], leaves[2], EPS)
        theirs = gradients(output, leaves, dout.clone(), keep)
    function = lib.c.attn_layer_norm_backward
    ours = caller(lib, function, context, dout, x, weight, c_double(EPS), *grads)
    return ours, theirs, lambda: grads, lambda: keep["out"]


def cross_entropy(lib, context, m):
    logits, targets = torch.randn(m.sizes), torch.randint(m.sizes[1], (m.sizes[0],))
    keep = {}
    if m.passes == "forward":
        loss = c_double()
        function = lib.c.attn_cross_entropy_forward
        ours = caller(lib, function, context, logits, targets, c_int64(IGNORE), byref(loss))

        def theirs():
            keep["out"] = (F.cross_entropy(logits, targets),)

        return ours, theirs, lambda: (torch.tensor(loss.value),), lambda: keep["out"]
    grad = torch.empty_like(logits)
    with torch.inference_mode(False):
        leaf, own_targets = logits.clone().requires_grad_(), targets.clone()
        theirs = gradients(F.cross_entropy(leaf, own_targets), (leaf,), None, keep)
    function = lib.c.attn_cross_entropy_backward
    ours = caller(lib, function, context, c_double(1), logits, targets, c_int64(IGNORE), grad)
    return ours, theirs, lambda: (grad,), lambda: keep["out"]


def linear(lib, context, m):
    rows, width, wide = m.sizes
    x, weight, bias = torch.randn(rows, width), torch.randn(wide, width), torch.randn(wide)
    out, keep = torch.empty(rows, wide), {}
    ours = caller(lib, lib.c.attn_linear_forward, context, x, weight, bias, out)

    def theirs():
        keep["out"] = (F.linear(x, weight, bias),)

    return ours, theirs, lambda: (out,), lambda: keep["out"]


class AdamwOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t)] + [
        (name, c_double) for name in ("lr", "beta1", "beta2", "eps", "weight_decay")
    ]


def adamw(lib, context, m):
    """The first step of both is compared; later ones have the same cost."""
    n = m.sizes[0]
    with torch.inference_mode(False):
        param = torch.randn(n)
        theirs_param = param.clone().requires_grad_()
        theirs_param.grad = torch.randn(n)
        optimiser = torch.optim.AdamW([theirs_param], fused=True)
    grad, first, second = theirs_param.grad.clone(), torch.zeros(n), torch.zeros(n)
    options = AdamwOptions(ctypes.sizeof(AdamwOptions), 1e-3, 0.9, 0.999, 1e-8, 1e-2)
    function = lib.c.attn_adamw_step
    state = (param, grad, first, second)
    ours = caller(lib, function, context, byref(options), c_int64(1), *state)
    ours.keep.append(options)

    def theirs():
        with torch.inference_mode(False):
            optimiser.step()

    return ours, theirs, lambda: (param,), lambda: (theirs_param.detach(),)


def append(lib, context, m):
    """Appends to an empty cache of type i8; the peer only copies keys and values."""
    heads, rows, columns = m.sizes
    k, v = torch.randn(heads, rows, columns), torch.randn(heads, rows, columns)
    copies = torch.empty_like(k), torch.empty_like(v)
    options = library.CacheOptions(
        struct_size=ctypes.sizeof(library.CacheOptions),
        B=1, Hk=heads, D=columns, Dv=columns, dtype=library.structures.I8, max_keys=rows,
    )  # fmt: skip
    made, error = ctypes.c_void_p(), library.Error()
    if lib.c.attn_cache_create(byref(options), byref(made), byref(error)):
        raise library.Failed(error.message.decode())
    add = caller(lib, lib.c.attn_cache_append, made, c_int64(0), k, v)
    clear = caller(lib, lib.c.attn_cache_truncate, made, c_int64(0), c_int64(0))

    def ours():
        clear()
        add()

    def theirs():
        copies[0].copy_(k)
        copies[1].copy_(v)

    return ours, theirs, None, None


# ------------------------------------------------------------------------------------ training


class Block(torch.nn.Module):
    """A block of `attn train --mlp`."""

    def __init__(self, embed, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(embed), torch.nn.LayerNorm(embed)
        self.project, self.join = torch.nn.Linear(embed, 3 * embed), torch.nn.Linear(embed, embed)
        self.widen, self.narrow = (
            torch.nn.Linear(embed, 4 * embed),
            torch.nn.Linear(4 * embed, embed),
        )

    def forward(self, x):
        B, T, E = x.shape
        qkv = self.project(self.norm1(x)).view(B, T, 3, self.heads, E // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.join(y.transpose(1, 2).reshape(B, T, E))
        return x + self.narrow(F.gelu(self.widen(self.norm2(x))))


class Model(torch.nn.Module):
    def __init__(self, vocabulary, embed, layers, heads, length):
        super().__init__()
        self.tokens = torch.nn.Embedding(vocabulary, embed)
        self.places = torch.nn.Embedding(length, embed)
        self.blocks = torch.nn.ModuleList(Block(embed, heads) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(embed)
        self.head = torch.nn.Linear(embed, vocabulary)

    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


VOCABULARY = 32


def train(lib, context, m, threads):
    embed, layers, heads, length, batch = m.sizes
    steps = 12 if embed < 128 else 2
    program = lib.path.parent / "attn"

    def ours():
        speed = library.train_speed(
            program, mlp=True, embed=embed, layers=layers, heads=heads, length=length, batch=batch,
            vocab=VOCABULARY, steps=steps, every=steps, unseen=1, threads=threads,
        )  # fmt: skip
        return batch * length / speed

    with torch.inference_mode(False):
        model = Model(VOCABULARY, embed, layers, heads, length)
        ids = torch.randint(VOCABULARY, (batch, length + 1))
        optimiser = torch.optim.AdamW(model.parameters(), fused=True)

    def theirs():
        with torch.inference_mode(False):
            optimiser.zero_grad()
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            optimiser.step()

    return ours, theirs, None, None


BUILDERS = {
    "gelu": gelu,
    "layer norm": layer_norm,
    "cross-entropy": cross_entropy,
    "linear": linear,
    "adamw": adamw,
    "append": append,
}
PEER = {"adamw": "torch.optim.AdamW, fused", "append": "a copy", "train": "eager, fused AdamW"}
# The largest difference, relative to the largest element.
TOLERANCE = 2e-5


def players(m, lib, threads):
    """libattn's player and PyTorch's. Raises library.Failed if the results differ."""
    torch.set_num_threads(threads)
    torch.manual_seed(SEED)
    context = lib.context(threads)
    if m.kind == "train":
        ours, theirs, got, want = train(lib, context, m, threads)
    else:
        ours, theirs, got, want = BUILDERS[m.kind](lib, context, m)
    ours()
    theirs()
    if got:
        for a, b in zip(got(), want()):
            error = (a.double() - b.double()).abs().max() / b.double().abs().max()
            if not error <= TOLERANCE:
                raise library.Failed(f"the result differs from PyTorch's by {error:.0e}")
    return [Player("libattn", "", ours), Player("torch", PEER.get(m.kind, ""), theirs)]
