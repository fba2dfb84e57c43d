"""The operators attn::sdpa and attn::sdpa_backward, through which PyTorch's dispatcher, autograd
and compilers use libattn. Importing this module defines them, once in a process."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import _torch_engine as engine
from ._torch_engine import Options

_INPUTS = (
    "Tensor? mask, Tensor? alibi, Tensor? sinks, Tensor? key_lengths, Tensor? seed, float scale, "
    "int causal, SymInt offset, SymInt left, SymInt right, float softcap, float dropout, "
    "int diagonal, int symmetric"
)
_TAGS = (torch.Tag.pt2_compliant_tag,)

# out [B,H,T,Dv] and lse [B,H,T] of q [B,H,T,D], k [B,Hk,S,D], v [B,Hk,S,Dv]; mask
# [B|1,H|1,T|1,S|1], alibi and sinks [H], key_lengths [B], seed [] int64. numbers: engine.Options.
torch.library.define(
    "attn::sdpa",
    "(Tensor q, Tensor k, Tensor v, %s) -> (Tensor out, Tensor lse)" % _INPUTS,
    tags=_TAGS,
)
# The gradients of the six differentiable inputs, in the order of `want`; an empty tensor where it
# is false.
torch.library.define(
    "attn::sdpa_backward",
    "(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, %s, "
    "bool[] want) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)" % _INPUTS,
    tags=_TAGS,
)
sdpa = torch.ops.attn.sdpa.default
sdpa_backward = torch.ops.attn.sdpa_backward.default
MaybeTensor = Optional[Tensor]


def _seed(seed: MaybeTensor) -> int:
    return 0 if seed is None else int(seed.item()) % (1 << 64)


@torch.library.impl("attn::sdpa", "CPU")
def _(
    q: Tensor, k: Tensor, v: Tensor, mask: MaybeTensor, alibi: MaybeTensor, sinks: MaybeTensor,
    key_lengths: MaybeTensor, seed: MaybeTensor, *numbers: Any,
) -> Tuple[Tensor, MaybeTensor]:  # fmt: skip
    engine.check_ranks(q, k, v, mask)
    return engine.forward(
        q, k, v, mask, alibi, sinks, key_lengths, _seed(seed), Options(*numbers),
        engine.lse_dtype(q.dtype),
    )  # fmt: skip


@torch.library.register_fake("attn::sdpa")
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tuple[Tensor, Tensor]:
    B, H, T, _D = q.shape
    Dv = v.shape[3]
    out = q.new_empty_strided((B, H, T, Dv), engine.out_strides(q, Dv))
    return out, q.new_empty((B, H, T), dtype=engine.lse_dtype(q.dtype))


@torch.library.impl("attn::sdpa_backward", "CPU")
def _(
    dout: Tensor, dlse: MaybeTensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    mask: MaybeTensor, alibi: MaybeTensor, sinks: MaybeTensor, key_lengths: MaybeTensor,
    seed: MaybeTensor, *rest: Any,
) -> Tuple[Tensor, ...]:  # fmt: skip
    *numbers, want = rest
    engine.check_ranks(dout, q, k, v, out, mask)
    return engine.backward(
        dout, dlse, q, k, v, out, lse, mask, alibi, sinks, key_lengths, _seed(seed),
        Options(*numbers), want,
    )  # fmt: skip


@torch.library.register_fake("attn::sdpa_backward")
def _(
    dout: Tensor, dlse: MaybeTensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    mask: MaybeTensor, alibi: MaybeTensor, sinks: MaybeTensor, *rest: Any,
) -> Tuple[Tensor, ...]:  # fmt: skip
    want: Sequence[bool] = rest[-1]
    given = (q, k, v, mask, alibi, sinks)
    made = engine.gradients(*given, want)
    return tuple(
        x if t is None or not wanted else torch.empty_like(x, dtype=t.dtype)
        for x, t, wanted in zip(made, given, want)
    )


def _keep(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:8], *output)
    ctx.numbers = inputs[8:]
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, dout: MaybeTensor, dlse: MaybeTensor) -> Tuple[MaybeTensor, ...]:
    q, k, v, mask, alibi, sinks, key_lengths, seed, out, lse = ctx.saved_tensors
    nothing = (None,) * (8 + len(ctx.numbers))
    if dout is None:
        if dlse is None:
            return nothing
        dout = torch.zeros_like(out)
    want = list(ctx.needs_input_grad[:6])
    made = sdpa_backward(
        dout, dlse, q, k, v, out, lse, mask, alibi, sinks, key_lengths, seed, *ctx.numbers, want
    )
    return tuple(d if wanted else None for d, wanted in zip(made, want)) + nothing[6:]


torch.library.register_autograd("attn::sdpa", _differentiate, setup_context=_keep)


def refuse(ctx: Any, *_: Any) -> None:
    raise NotImplementedError(
        "attn computes no second derivatives; for these use PyTorch's own function, under "
        "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)"
    )


torch.library.register_autograd("attn::sdpa_backward", refuse)
