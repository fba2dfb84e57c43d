"""Calls without PyTorch's dispatcher, which takes longer over an operator in Python than a small
call takes in all; and calls of a kind that was seen before, of which all but addresses is known.
"""

from __future__ import annotations

import struct
from ctypes import addressof, c_char, sizeof
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

# A call without vectors: of its attn_sdpa_args all is known from before but five addresses, and
# where keys and values lie: there is one plan for any number of them.
_plans: Dict[Any, Tuple[Any, ...]] = {}
_PLANS = 512  # that are kept
_SIZE = sizeof(_library.SdpaArgs)
_TENSOR = sizeof(_library.Tensor)
_LIES = _library.Tensor.shape.offset  # sizes and strides, to the end
_Q, _K, _V, _OUT = (getattr(_library.SdpaArgs, name).offset for name in ("q", "k", "v", "out"))
_MASK = _library.SdpaArgs.mask.offset
_KNOWN = [  # from, to
    (0, _Q), (_Q + 8, _K), (_K + 8, _K + _LIES), (_K + _TENSOR, _V), (_V + 8, _V + _LIES),
    (_V + _TENSOR, _OUT), (_OUT + 8, _MASK), (_MASK + 8, _SIZE),
]  # fmt: skip
_MaskBytes = c_char * _TENSOR
_patch_mask = struct.Struct("=Q%ds8q" % (_LIES - 8)).pack_into
_patch = struct.Struct("=%dsQ%dsQ%ds8q%dsQ%ds8q%dsQ%dsQ%ds" % tuple(b - a for a, b in _KNOWN)).pack


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
    if mask is not None and (
        not (type(mask) is Tensor and mask.is_cpu)
        or mask.is_neg()
        or (_grad_enabled() and mask.requires_grad)
    ):
        return None
    try:  # remember() has the same key
        (B, Hk, S, D), (Bv, Hv, Sv, Dv) = k.shape, v.shape
        key: Any = (
            q.shape, q.stride(), B, Hk, D, Bv, Hv, Dv, S == Sv, q.dtype, k.dtype, v.dtype, numbers,
        )  # fmt: skip
        if mask is not None:
            masked, mask_strides = mask.shape, mask.stride()
            key = key, masked[:-1], masked[-1] == S, mask.dtype
        plan = _plans.get(key)
    except (IndexError, TypeError, ValueError, RuntimeError):
        # a mask of no dimension; window is a list; three dimensions; no strides
        return None
    if plan is None:
        return None
    a, b, c, d, e, f, g, h, mask_is, dtype, shape, strides = plan
    q_at, k_at, v_at, mask_at = q.data_ptr(), k.data_ptr(), v.data_ptr(), 0
    if not (q_at and k_at and v_at):
        return None  # there are no elements, or no memory: the zeros that autograd makes
    if mask is not None:
        memory, ones, data = _MaskBytes(), _ONES[len(masked)], mask.data_ptr()
        if not data:
            return None
        _patch_mask(memory, 0, data, mask_is, *ones, *masked, *ones, *mask_strides)
        mask_at = addressof(memory)
    if shape is None:
        out = _empty_like(q)
    else:
        out = _empty_strided(shape, strides, dtype=dtype)
    packed = _patch(
        a, q_at, b, k_at, c, B, Hk, S, D, *k.stride(), d, v_at, e, Bv, Hv, Sv, Dv, *v.stride(), f,
        out.data_ptr(), g, mask_at, h,
    )  # fmt: skip
    # The message is asked for only when there is one: errors are found before anything is written.
    if _forward(context(_threads()), packed, None):
        check(_forward, context(_threads()), packed)
    return out


# Sizes of the dimensions that a mask of so many lacks; of a stride there anything is right.
_ONES = ((1, 1, 1, 1), (1, 1, 1), (1, 1), (1,), ())


def remember(
    q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], out: Tensor, o: Options,
    numbers: Tuple[Any, ...],
) -> None:  # fmt: skip
    """Lets repeat() do what engine.forward() has just done. All but the mask have four dimensions;
    nothing broadcasts but the mask, and key/value heads. q's strides are also those of the
    result."""
    (B, Hk, S, D), (Bv, Hv, Sv, Dv) = k.shape, v.shape
    key: Any = (
        q.shape, q.stride(), B, Hk, D, Bv, Hv, Dv, S == Sv, q.dtype, k.dtype, v.dtype, numbers,
    )  # fmt: skip
    shaped, mask_is = None, b""
    if mask is not None:
        key = key, mask.shape[:-1], mask.shape[-1] == S, mask.dtype
        shaped = mask[(None,) * (4 - mask.dim())]
        mask_is = engine.tensor_bytes(shaped)[8:_LIES]
    packed, _ = engine.arguments(q, k, v, out, None, shaped, None, None, None, 0, o)
    shape, strides = tuple(out.shape), out.stride()
    if out.shape == q.shape and out.dtype == q.dtype and strides == _empty_like(q).stride():
        shape = None  # torch.empty_like() takes less time
    if len(_plans) >= _PLANS:
        _plans.clear()
    _plans[key] = (*(packed[a:b] for a, b in _KNOWN), mask_is, out.dtype, shape, strides)
