"""Fast calls. They bypass PyTorch's dispatcher, which takes longer for a Python operator than a
small call takes in total. If a call like an earlier one is repeated, only the addresses of its
arguments are new, and the rest is reused.
"""

from __future__ import annotations

import struct
from ctypes import addressof, c_char, sizeof
from typing import Any, Dict, Optional, Tuple

import numpy as np
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

# Plans of calls without vectors. A plan holds all of attn_sdpa_args except five addresses and the
# sizes and strides of keys and values, so one plan serves any number of keys.
_plans: Dict[Any, Tuple[Any, ...]] = {}
_PLANS = 512  # most plans that are kept
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
    """Whether the dispatcher would do nothing, so that the library can be called directly: tensors
    are dense, on the CPU and hold their numbers in memory, and no autograd, transform, trace or
    mode is active."""
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
    """The result of a call whose plan remember() has stored, if it may be direct and nothing is
    cast; otherwise None. It is one function with cheap tests, because small calls spend most of
    their time here. Tensors that pass these tests but not direct() have no strides or no
    address."""
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
    try:  # the same key as in remember()
        (B, Hk, S, D), (Bv, Hv, Sv, Dv) = k.shape, v.shape
        key: Any = (
            q.shape, q.stride(), B, Hk, D, Bv, Hv, Dv, S == Sv, q.dtype, k.dtype, v.dtype, numbers,
        )  # fmt: skip
        if mask is not None:
            masked, mask_strides = mask.shape, mask.stride()
            key = key, masked[:-1], masked[-1] == S, mask.dtype
        plan = _plans.get(key)
    except (IndexError, TypeError, ValueError, RuntimeError):
        # a mask without dimensions; window is a list; three dimensions; no strides
        return None
    if plan is None:
        return None
    a, b, c, d, e, f, g, h, mask_is, dtype, shape, strides = plan
    q_at, k_at, v_at, mask_at = q.data_ptr(), k.data_ptr(), v.data_ptr(), 0
    if not (q_at and k_at and v_at):
        return None  # no elements, or no memory (zeros created by autograd)
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


# By the number of a mask's dimensions: the sizes of the missing ones. They also serve as strides,
# where any value is right.
_ONES = ((1, 1, 1, 1), (1, 1, 1), (1, 1), (1,), ())


def constant(numbers: Tuple[Any, ...]) -> bool:
    """Whether the numbers of a call can be a part of a key. A tensor cannot: its hash is its
    identity, which stays when its number changes. np.number's are scalars, which do not change."""
    return all(
        x is None or type(x) in _CONSTANT or isinstance(x, np.number)
        or (type(x) is tuple and constant(x))
        for x in numbers
    )  # fmt: skip


_CONSTANT = frozenset((bool, int, float, str))


def remember(
    q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], out: Tensor, o: Options,
    numbers: Tuple[Any, ...],
) -> None:  # fmt: skip
    """Stores the plan of the call that engine.forward() has just made, for repeat(). All tensors
    except the mask have four dimensions. Only the mask and the key/value heads broadcast. The
    result has q's strides."""
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
        shape = None  # torch.empty_like() is faster
    if len(_plans) >= _PLANS:
        _plans.clear()
    _plans[key] = (*(packed[a:b] for a, b in _KNOWN), mask_is, out.dtype, shape, strides)
