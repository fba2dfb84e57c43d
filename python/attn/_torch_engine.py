"""Calls the library on PyTorch's tensors without copying them, for attn.torch and its operators.

Tensors here must be dense, on the CPU, and four-dimensional where attn.h requires it. This module
does not check it: attn.torch does, and PyTorch's dispatcher for the operators.
"""

from __future__ import annotations

import operator
from ctypes import addressof, create_string_buffer, sizeof
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import _library
from ._library import BF16, BOOL, BOTTOM_RIGHT, F16, F32, F64, OFFSET, TOP_LEFT
from ._library import check, diagonal_numbers
from ._torch_threads import context

CODES = {
    torch.float64: F64,
    torch.float32: F32,
    torch.float16: F16,
    torch.bfloat16: BF16,
    torch.bool: BOOL,
}
_ABSENT = (0,) * 10
_pack = _library.packer(_library.SdpaArgs, "alibi_form")
_pack_grads = _library.packer(_library.SdpaGrads)
_pack_tensor = _library.packer(_library.Tensor)
_SIZE = sizeof(_library.SdpaArgs)
_GRADS_SIZE = sizeof(_library.SdpaGrads)
_forward = _library.library.attn_sdpa_forward
_backward = _library.library.attn_sdpa_backward
_threads = torch.get_num_threads
_empty_strided = torch.empty_strided


class Options(NamedTuple):
    """The numbers of a call, in the order in which the operators take them."""

    scale: float = 0.0  # 0: 1/sqrt(D)
    causal: int = 0  # attn_causal
    offset: int = 0
    left: int = -1
    right: int = -1
    softcap: float = 0.0
    dropout: float = 0.0
    diagonal: int = 0  # attn_diagonal
    symmetric: int = 0  # attn_alibi_form


def options(
    is_causal: bool,
    causal_offset: Any,
    scale: Optional[float],
    window: Optional[Tuple[int, int]],
    softcap: float,
    dropout_p: float,
    diagonal: Any = "top-left",
    alibi_symmetric: bool = False,
) -> Options:
    """The numbers of a call, from the arguments of this package's functions."""
    causal = offset = 0
    if is_causal:
        causal = TOP_LEFT
        if isinstance(causal_offset, str):
            if causal_offset != "bottom-right":
                raise ValueError(
                    "causal_offset is %r; it must be an integer or 'bottom-right'" % causal_offset
                )
            causal = BOTTOM_RIGHT
        elif causal_offset is not None:
            causal, offset = OFFSET, causal_offset
    elif causal_offset is not None:
        raise ValueError("causal_offset is given without is_causal=True")
    place, offset = diagonal_numbers(diagonal, causal, offset)
    left = right = -1
    if window is not None:
        try:
            left, right = window
        except (TypeError, ValueError):
            message = "window is %r; it must be (left, right), -1: open" % (window,)
            raise ValueError(message) from None
    softcap, dropout_p = number(softcap, "softcap"), number(dropout_p, "dropout_p")
    if scale is None:
        scale = 0.0
    elif number(scale, "scale") == 0:
        scale = 5e-324  # every score becomes 0; the library's 0 means 1/sqrt(D)
    return Options(
        scale, causal, integer(offset, "diagonal" if place else "causal_offset"),
        integer(left, "window"), integer(right, "window"), softcap, dropout_p, place,
        1 if alibi_symmetric else 0,
    )  # fmt: skip


def number(x: Any, name: str) -> float:
    """x, if it can be read as a float and no gradient is lost; torch.compile checks it itself."""
    if torch.compiler.is_compiling():
        return x  # type: ignore[no-any-return]
    if isinstance(x, (str, bytes, complex)) or not hasattr(x, "__float__"):
        raise TypeError("%s is %r; it must be a number" % (name, x))
    if isinstance(x, Tensor) and x.requires_grad:
        raise TypeError("%s needs a gradient, which does not exist; pass a number" % name)
    return x  # type: ignore[no-any-return]


def integer(x: Any, name: str) -> int:
    if isinstance(x, torch.SymInt):
        return x  # type: ignore[return-value]
    try:
        x = operator.index(x)
    except TypeError:
        message = "%s is %r; it must be an integer" % (name, x)
        raise TypeError(message) from None
    if not -(1 << 63) <= x < 1 << 63:
        raise ValueError("%s is %d; it must fit a 64-bit integer" % (name, x))
    return x


def view(t: Tensor) -> Tuple[int, ...]:
    """The ten numbers of an attn_tensor."""
    return (t.data_ptr(), CODES.get(t.dtype, 0), *t.shape, *t.stride())


def check_ranks(*tensors: Optional[Tensor]) -> None:
    for t in tensors:
        if t is not None and t.dim() != 4:
            raise ValueError(
                "a tensor of the operator has %d dimensions; all but vectors must have 4" % t.dim()
            )


def tensor_bytes(t: Tensor) -> bytes:
    """The bytes of an attn_tensor."""
    return _pack_tensor(*view(t))


def at(t: Tensor) -> Tuple[Any, int]:
    """An attn_tensor in memory, and its address."""
    memory = create_string_buffer(tensor_bytes(t))
    return memory, addressof(memory)


def _vector(t: Tensor, name: str, n: int, dtype: torch.dtype, letter: str) -> Tensor:
    """A dense copy [n]: the library checks the numbers and then uses them as indices, and another
    thread may change the original in between."""
    if t.dim() != 1 or t.shape[0] != n:
        shape = tuple(t.shape)
        raise ValueError("%s has shape %s; it must be (%s,) = (%d,)" % (name, shape, letter, n))
    return t.detach().to(dtype, copy=True).contiguous()


def out_strides(q: Tensor, Dv: int) -> Tuple[int, int, int, int]:
    """The strides of the result [B,H,T,Dv]: dense, with B, H and T in the order of q's memory, as
    in PyTorch's CPU kernel. So if a view split q's heads, a view can join the result's. A dimension
    with stride 0 keeps its place."""
    B, H, T, _ = q.shape
    b, h, t, _ = q.stride()
    if b >= h >= t > 0:
        return H * T * Dv, T * Dv, Dv, 1
    if b >= t >= h > 0:
        return T * H * Dv, Dv, H * Dv, 1
    strides = b, h, t
    laid = [i for i in range(3) if strides[i] != 0]
    ranked = iter(sorted(laid, key=lambda i: strides[i], reverse=True))
    out, step = [1, 1, 1], Dv
    for i in reversed([next(ranked) if strides[i] != 0 else i for i in range(3)]):
        out[i], step = step, step * q.shape[i]
    return out[0], out[1], out[2], 1


def lse_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type of the lse that is kept for the backward. Its rounding error is an error of every
    weight."""
    return torch.float64 if dtype in (torch.float64, torch.float32) else torch.float32


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type of the returned lse, and of gradients that are sums over rows."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def arguments(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Optional[Tensor], mask: Optional[Tensor],
    alibi: Optional[Tensor], sinks: Optional[Tensor], key_lengths: Optional[Tensor], seed: int,
    o: Options,
) -> Tuple[bytes, List[Any]]:  # fmt: skip
    """The bytes of an attn_sdpa_args, and the objects that must live while these are used."""
    keep: List[Any] = []
    mask_at = lengths_at = alibi_at = sinks_at = lse_at = 0
    heads = q.shape[1]
    if mask is not None:
        memory, mask_at = at(mask)
        keep.append(memory)
    if key_lengths is not None:
        lengths = _vector(key_lengths, "key_lengths", q.shape[0], torch.int64, "B")
        lengths_at = lengths.data_ptr()
        keep.append(lengths)
    if alibi is not None:
        slopes = _vector(alibi, "alibi", heads, torch.float32, "H")
        alibi_at = slopes.data_ptr()
        keep.append(slopes)
    if sinks is not None:
        logits = _vector(sinks, "sinks", heads, torch.float32, "H")
        sinks_at = logits.data_ptr()
        keep.append(logits)
    if lse is not None:
        memory, lse_at = at(lse.unsqueeze(-1))
        keep.append(memory)
    packed = _pack(
        _SIZE, *view(q), *view(k), *view(v), *view(out), o.scale, o.causal, o.offset, o.left,
        o.right, mask_at, lengths_at, 0, 0, 0, alibi_at, sinks_at, o.softcap, o.dropout, seed,
        0, lse_at, 0, 0, 0, 0, 0, o.diagonal, o.symmetric,
    )  # fmt: skip
    return packed, keep


def forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], alibi: Optional[Tensor],
    sinks: Optional[Tensor], key_lengths: Optional[Tensor], seed: int, o: Options,
    want_lse: Optional[torch.dtype],
) -> Tuple[Tensor, Optional[Tensor]]:  # fmt: skip
    """The result [B,H,T,Dv] and, if a type is given, the lse [B,H,T] of this type."""
    B, H, T, _ = q.shape
    Dv = v.shape[3]
    out = _empty_strided((B, H, T, Dv), out_strides(q, Dv), dtype=q.dtype)
    lse = None if want_lse is None else torch.empty((B, H, T), dtype=want_lse)
    packed, keep = arguments(q, k, v, out, lse, mask, alibi, sinks, key_lengths, seed, o)
    # The first call has no attn_error, which saves time. If it fails, nothing was written, and a
    # second call returns the message.
    if _forward(context(_threads()), packed, None):
        check(_forward, context(_threads()), packed)
    del keep
    return out, lse


def backward(
    dout: Tensor, dlse: Optional[Tensor], q: Tensor, k: Tensor, v: Tensor, out: Tensor,
    lse: Tensor, mask: Optional[Tensor], alibi: Optional[Tensor], sinks: Optional[Tensor],
    key_lengths: Optional[Tensor], seed: int, o: Options, want: Sequence[bool],
) -> Tuple[Tensor, ...]:  # fmt: skip
    """The gradients of q, k, v, mask, alibi and sinks, with their shapes and types; an empty tensor
    for each that is not wanted."""
    packed, keep = arguments(q, k, v, out, lse, mask, alibi, sinks, key_lengths, seed, o)
    made = gradients(q, k, v, mask, alibi, sinks, want)
    three = [view(x) if wanted else _ABSENT for x, wanted in zip(made[:3], want)]
    dmask_at = dlse_at = 0
    if want[3]:
        memory, dmask_at = at(made[3])
        keep.append(memory)
    if dlse is not None:
        memory, dlse_at = at(dlse.unsqueeze(-1))
        keep.append(memory)
    vectors = [x.data_ptr() if wanted else 0 for x, wanted in zip(made[4:], want[4:])]
    grads = _pack_grads(
        _GRADS_SIZE, *view(dout), dlse_at, *three[0], *three[1], *three[2], dmask_at, *vectors
    )
    check(_backward, context(_threads()), packed, grads)
    return tuple(
        x.to(given.dtype) if wanted and given is not None else x
        for x, given, wanted in zip(made, (q, k, v, mask, alibi, sinks), want)
    )


def gradients(
    q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], alibi: Optional[Tensor],
    sinks: Optional[Tensor], want: Sequence[bool],
) -> List[Tensor]:  # fmt: skip
    """Allocates the gradients in the library's types, with the layout of their tensors."""
    made = []
    for x, wanted, dtype in (
        (q, want[0], q.dtype),
        (k, want[1], k.dtype),
        (v, want[2], v.dtype),
        (mask, want[3], wide(q.dtype)),
        (alibi, want[4], torch.float64),
        (sinks, want[5], torch.float64),
    ):
        if wanted and x is not None:
            made.append(torch.empty_like(x, dtype=dtype))
        else:
            made.append(q.new_empty(0))
    return made
