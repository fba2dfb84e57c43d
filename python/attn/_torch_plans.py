"""Calls without PyTorch's dispatcher, which takes longer over an operator in Python than a small
call takes in all; and calls of a kind that was seen before, of which all but addresses is known.
"""

from __future__ import annotations

import struct
from ctypes import addressof, create_string_buffer, sizeof
from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor

from . import _library
from . import _torch_engine as engine
from . import _torch_private as private
from ._library import check
from ._torch_engine import Options
from ._torch_threads import context

_autocasting, _forward_mode = private.autocasting, private.forward_mode
_functorch, _modes, _tracing = private.functorch, private.modes, private.tracing
_grad_enabled = torch.is_grad_enabled
_threads = torch.get_num_threads
_empty_like, _empty_strided = torch.empty_like, torch.empty_strided
_forward = _library.library.attn_sdpa_forward

# A call without vectors: all of its attn_sdpa_args but five addresses is known from before.
_plans: Dict[Any, Tuple[Any, ...]] = {}
_PLANS = 512  # that are kept; a decoder has a new one with each token
_kinds: Dict[Any, Tuple[Any, ...]] = {}  # one plan for any number of keys
_SIZE = sizeof(_library.SdpaArgs)
_ADDRESSES = [
    getattr(_library.SdpaArgs, name).offset + _library.Tensor.data.offset
    for name in ("q", "k", "v", "out")
] + [_library.SdpaArgs.mask.offset]
_CUTS = [0, *(x for at in _ADDRESSES for x in (at, at + 8)), _SIZE]
_PIECES = list(zip(_CUTS[::2], _CUTS[1::2]))
_patch = struct.Struct("=" + "Q".join("%ds" % (b - a) for a, b in _PIECES)).pack
_patch_tensor = struct.Struct("=Q%ds" % (sizeof(_library.Tensor) - 8)).pack


def direct(*tensors: Optional[Tensor]) -> bool:
    """May the engine be called without the dispatcher, because it would do nothing? Tensors are
    dense and on the CPU, their memory holds their numbers, and nobody differentiates, transforms,
    traces or looks on."""
    if _functorch() or _modes() or _tracing() or _forward_mode._current_level >= 0:
        return False
    differentiates = _grad_enabled()
    for t in tensors:
        if t is not None and not (
            private.ordinary(t) and not (differentiates and t.requires_grad)
        ):
            return False
    return True


def repeat(
    q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], numbers: Tuple[Any, ...]
) -> Optional[Tensor]:
    """The result of a call of a kind that remember() was told of, if it may be direct and nothing
    is cast; else None. All in one function, with the cheapest questions: this is what a small call
    spends its time on. What they let pass and direct() would not has no strides or no address."""
    if (
        not (type(q) is type(k) is type(v) is Tensor and q.is_cpu and k.is_cpu and v.is_cpu)
        or _functorch()
        or _modes()
        or _tracing()
        or _forward_mode._current_level >= 0
        or _autocasting()
        or (_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad))
        or q.is_neg()
        or k.is_neg()
        or v.is_neg()
    ):
        return None
    try:  # remember() has the same key; a function that makes it costs 0.09 of 4.6 microseconds
        key: Any = (
            q.shape, k.shape, v.shape, q.stride(), k.is_contiguous() or k.stride(),
            v.is_contiguous() or v.stride(), q.dtype, k.dtype, v.dtype, numbers,
        )  # fmt: skip
        if mask is not None:
            key = key, mask.shape, mask.stride(), mask.dtype
        plan = _plans.get(key) or _grown(key, q, k, v, mask, numbers)
    except (TypeError, RuntimeError):  # window is a list; there are no strides
        return None
    if plan is None:
        return None
    a, b, c, d, e, f, masked, dtype, shape, strides = plan
    q_at, k_at, v_at, mask_at = q.data_ptr(), k.data_ptr(), v.data_ptr(), 0
    if not (q_at and k_at and v_at):
        return None  # there are no elements, or no memory: the zeros that autograd makes
    if mask is not None:
        if not direct(mask) or not mask.data_ptr():
            return None
        memory = create_string_buffer(_patch_tensor(mask.data_ptr(), masked))
        mask_at = addressof(memory)
    if shape is None:
        out = _empty_like(q)
    else:
        out = _empty_strided(shape, strides, dtype=dtype)
    packed = _patch(a, q_at, b, k_at, c, v_at, d, out.data_ptr(), e, mask_at, f)
    # The message is asked for only when there is one: errors are found before anything is written.
    if _forward(context(_threads()), packed, None):
        check(_forward, context(_threads()), packed)
    return out


def _kind(k: Tensor, v: Tensor, mask: Optional[Tensor], *others: Any) -> Any:
    """What a plan depends on, but for the number of keys and how they lie; None: it cannot be told
    apart."""
    if k.dim() != 4 or v.dim() != 4 or (mask is not None and mask.shape[-1] != k.shape[2]):
        return None
    (B, Hk, S, D), (Bv, Hv, Sv, Dv) = k.shape, v.shape
    if S != Sv:
        return None
    masked = None if mask is None else (mask.shape[:-1], mask.dtype)
    return B, Hk, D, Bv, Hv, Dv, k.dtype, v.dtype, masked, others


def _grown(
    key: Any, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], numbers: Tuple[Any, ...]
) -> Optional[Tuple[Any, ...]]:
    """The plan of a call that differs from a known one in its keys alone: of a next token."""
    plan = _kinds.get(_kind(k, v, mask, q.shape, q.stride(), q.dtype, numbers))
    if plan is None:
        return None
    a, b, _, _, e, f, masked, *result = plan
    if mask is not None:
        masked = engine.tensor_bytes(mask[(None,) * (4 - mask.dim())])[8:]
    grown = (a, b, *(engine.tensor_bytes(t)[8:] for t in (k, v)), e, f, masked, *result)
    _keep(key, grown)
    return grown


def _keep(key: Any, plan: Tuple[Any, ...]) -> None:
    if len(_plans) >= _PLANS:
        _plans.clear()
    _plans[key] = plan


def remember(
    q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], out: Tensor, o: Options,
    numbers: Tuple[Any, ...],
) -> None:  # fmt: skip
    """Lets repeat() do what engine.forward() has just done. All but the mask have four dimensions;
    nothing broadcasts but the mask, and key/value heads. Contiguous tensors of one shape differ in
    strides that count for nothing; q's are also those of the result."""
    key: Any = (
        q.shape, k.shape, v.shape, q.stride(), k.is_contiguous() or k.stride(),
        v.is_contiguous() or v.stride(), q.dtype, k.dtype, v.dtype, numbers,
    )  # fmt: skip
    shaped = masked = None
    if mask is not None:
        key = key, mask.shape, mask.stride(), mask.dtype
        shaped = mask[(None,) * (4 - mask.dim())]
        masked = engine.tensor_bytes(shaped)[8:]
    packed, _ = engine.arguments(q, k, v, out, None, shaped, None, None, None, 0, o)
    pieces = [packed[a:b] for a, b in _PIECES]
    shape, strides = tuple(out.shape), out.stride()
    if out.shape == q.shape and out.dtype == q.dtype and strides == _empty_like(q).stride():
        shape = None  # torch.empty_like() takes less time
    plan = (*pieces, masked, out.dtype, shape, strides)
    _keep(key, plan)
    kind = _kind(k, v, mask, q.shape, q.stride(), q.dtype, numbers)
    if kind is not None:
        if len(_kinds) >= _PLANS:
            _kinds.clear()
        _kinds[kind] = plan
