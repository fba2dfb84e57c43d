"""Attention and its gradients on NumPy arrays."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, NamedTuple, NoReturn, Optional, Sequence, Tuple, Union

import numpy as np

from . import _library
from ._array import ABSENT, MOST_KEPT, address, array, bad_number, output, tensor, vector, view
from ._context import context
from ._library import BOTTOM_RIGHT, OFFSET, STAGE_WEIGHTS, TOP_LEFT, check, diagonal_numbers

ndarray = np.ndarray
_pack = _library.packer(_library.SdpaArgs, "alibi_form")
_pack_grads = _library.packer(_library.SdpaGrads)
_SIZE = ctypes.sizeof(_library.SdpaArgs)
_GRADS_SIZE = ctypes.sizeof(_library.SdpaGrads)
_forward = _library.library.attn_sdpa_forward
_backward = _library.library.attn_sdpa_backward
_INT64 = 1 << 63
_empty = np.empty
_ADDRESS = ctypes.sizeof(ctypes.c_void_p)
_TAIL = _library.SdpaArgs.scale.offset
# Defaults; `is` with these objects shows whether an option was given.
_ZERO, _NO_SEED, _TOP_LEFT = 0.0, 0, "top-left"

CausalOffset = Optional[Union[int, str]]


def _same_rank(q: Any, k: Any, v: Any, enable_gqa: bool) -> None:
    n = q.ndim
    if n not in (2, 3, 4):
        raise ValueError("q has %d dimensions; it must have 2, 3 or 4, so reshape it" % n)
    if k.ndim != n or v.ndim != n:
        raise ValueError(
            "q has %d dimensions, k has %d and v has %d; they must be equal" % (n, k.ndim, v.ndim)
        )
    if n > 2 and not enable_gqa and q.shape[-3] != k.shape[-3]:
        raise ValueError(
            "q has %d heads (dimension -3) and k has %d; they must be equal, or pass "
            "enable_gqa=True" % (q.shape[-3], k.shape[-3])
        )


def _checked(causal_offset: Any, diagonal: Any, window: Any, seed: Any) -> NoReturn:
    """Raises the error for numbers that did not fit into the library's arguments."""
    for name, x in (
        ("causal_offset", causal_offset), ("diagonal", diagonal), ("window", window), ("seed", seed)
    ):  # fmt: skip
        for number in x if isinstance(x, (tuple, list)) else (x,):
            if x is None and name in ("causal_offset", "window"):
                continue  # the default
            if isinstance(x, str) and name in ("causal_offset", "diagonal"):
                continue  # "bottom-right" and the like, which are checked
            if not isinstance(number, (int, np.integer)):
                raise TypeError("%s is %r; it must be an integer" % (name, number))
            if name == "seed":
                if not 0 <= number < 2 * _INT64:
                    raise ValueError("seed is %d; it must be within 0..2^64-1" % number)
            elif not -_INT64 <= number < _INT64:
                raise ValueError("%s is %d; it must fit a 64-bit integer" % (name, number))
    raise TypeError("scale, softcap and dropout_p must be real numbers")


def arguments(
    tensors: Tuple[int, ...],
    heads: int,
    scale: Any = None,
    is_causal: Any = False,
    causal_offset: Any = None,
    window: Any = None,
    softcap: Any = 0.0,
    alibi: Any = None,
    sinks: Any = None,
    key_lengths: Any = None,
    dropout_p: Any = 0.0,
    seed: Any = 0,
    mask: Any = None,
    lse: Any = None,
    weights: Any = None,
    cache: int = 0,
    diagonal: Union[int, str] = "top-left",
    alibi_symmetric: bool = False,
) -> Tuple[bytes, List[Any]]:
    """The bytes of an attn_sdpa_args, and the objects that must live while these are used.
    `tensors` are the forty numbers of q, k, v and out."""
    keep: List[Any] = []
    causal = offset = mask_at = lengths_at = alibi_at = sinks_at = lse_at = weights_at = 0
    left = right = -1
    if scale is None:
        scale = 0.0
    elif scale == 0:
        raise ValueError("scale is 0; it must be another number, or None for 1/sqrt(D)")
    if is_causal:
        causal = TOP_LEFT
        if causal_offset is not None:
            if causal_offset == "bottom-right":
                causal = BOTTOM_RIGHT
            elif isinstance(causal_offset, str):
                raise ValueError(
                    "causal_offset is %r; it must be an integer or 'bottom-right'" % causal_offset
                )
            else:
                causal, offset = OFFSET, causal_offset
    elif causal_offset is not None:
        raise ValueError("causal_offset is given without is_causal=True")
    place, offset = diagonal_numbers(diagonal, causal, offset)
    if window is not None:
        try:
            left, right = window
        except (TypeError, ValueError):
            message = "window is %r; it must be (left, right), -1: open" % (window,)
            raise ValueError(message) from None
    if mask is not None:
        kept, mask_at = tensor(mask, "mask")
        keep += mask, kept
    if key_lengths is not None:
        kept, lengths_at = vector(key_lengths, "key_lengths", tensors[2], np.int64, "B")
        keep.append(kept)
    if alibi_symmetric and alibi is None:
        raise ValueError("alibi_symmetric is given without alibi")
    if alibi is not None:
        kept, alibi_at = vector(alibi, "alibi", heads, np.float32, "H")
        keep.append(kept)
    if sinks is not None:
        kept, sinks_at = vector(sinks, "sinks", heads, np.float32, "H")
        keep.append(kept)
    if lse is not None:
        kept, lse_at = tensor(lse[..., None], "lse")
        keep.append(kept)
    if weights is not None:
        kept, weights_at = tensor(weights, "weights")
        keep.append(kept)
    try:
        packed = _pack(
            _SIZE, *tensors, scale, causal, offset, left, right, mask_at, lengths_at, 0, 0, 0,
            alibi_at, sinks_at, softcap, dropout_p, seed, 0, lse_at, weights_at,
            STAGE_WEIGHTS, 0, 0, cache, place, 1 if alibi_symmetric else 0,
        )  # fmt: skip
    except (bad_number, OverflowError):
        _checked(causal_offset, diagonal, window, seed)
    return packed, keep


def wide(dtype: Any) -> Any:
    """The type of lse, and of gradients that are sums over rows: float64 for float64, otherwise
    float32."""
    return np.float64 if dtype == np.float64 else np.float32


def scaled_dot_product_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any = None,
    is_causal: bool = False,
    causal_offset: CausalOffset = None,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
    window: Optional[Tuple[int, int]] = None,
    softcap: float = _ZERO,
    alibi: Any = None,
    sinks: Any = None,
    key_lengths: Any = None,
    dropout_p: float = _ZERO,
    seed: int = _NO_SEED,
    diagonal: Union[int, str] = _TOP_LEFT,
    alibi_symmetric: bool = False,
    return_weights: bool = False,
    return_lse: bool = False,
    out: Optional[np.ndarray] = None,
    threads: Optional[int] = None,
) -> Any:
    """softmax(scale * q k^T + bias, over visible keys) v, as PyTorch's function of this name.

    Shapes, with T queries, S keys, H heads: q [B,H,T,D], k [B,Hk,S,D], v [B,Hk,S,Dv], result
    [B,H,T,Dv]. B, or B and H, may be missing in all of them. Any size may be 0. Hk is H, or with
    enable_gqa a divisor of it: query head h reads key/value head h // (H // Hk).

    Types: float64, float32, float16, or ml_dtypes' bfloat16, the same for q, k, v and the result.
    Any strides, negative and 0 included, and read-only arrays, are read without a copy. Anything
    that numpy.asarray accepts is accepted.

    mask           bool (True: attend) or float (added), of a shape that broadcasts to [B,H,T,S]
    is_causal      query i sees keys j <= i + off; off is 0 (top-left, as in PyTorch), or
    causal_offset  this integer, or "bottom-right": S - T, with the batch's own key length for S
    scale          of the scores; None: 1/sqrt(D)
    window         (left, right): i + off - left <= j <= i + off + right; -1: open
    softcap        c > 0: scores become c * tanh(score / c), before mask and alibi
    alibi          [H] slopes: adds slope * (j - i - off), or with
    alibi_symmetric  -slope * |j - i - off|, as FlashAttention does: the same where is_causal is set
    diagonal       off without is_causal, for window and alibi: "top-left", 0; "bottom-right",
                   S - T, as FlashAttention counts; or an integer
    sinks          [H] logits: adds exp(logit) to the denominator of each row's softmax
    key_lengths    [B] integers, or one: only keys j < key_lengths[b] are seen
    dropout_p      0 <= p < 1: weights are kept with probability 1-p, times 1/(1-p), by
    seed           0..2^64-1; the number of threads does not change the decisions
    out            where to write: [B,H,T,Dv], of q's type, float32 or float64
    threads        None: ATTN_NUM_THREADS, else all CPUs; 1: the caller's own thread

    A key is visible if all of these allow it. Masked keys never influence the result, even if they
    hold NaN. A query that sees no key gives 0 (and its lse is -inf, or the sink's logit).

    Returns the result, or a tuple of it and, in this order, the other outputs wanted: with
    return_weights, the weights after softmax and before dropout [B,H,T,S] (the only thing here that
    takes T x S memory), of q's type; with return_lse, the logarithm of the softmax's denominator
    [B,H,T], float32, or float64 for float64.

    Raises TypeError for a wrong type, ValueError for a wrong shape, byte order or value, and
    MemoryError; then nothing was written. The GIL is released. Calls with threads=1 overlap; other
    calls with the same number of threads wait for each other. Results are bit-identical for any
    number of threads and any strides.

    Source: Vaswani et al. 2017; include/attn.h names the others.
    """
    if (
        mask is alibi is sinks is key_lengths is out is None
        and window is causal_offset is scale is None  # type: ignore[comparison-overlap]
        and softcap is dropout_p is _ZERO
        and seed is _NO_SEED
        and diagonal is _TOP_LEFT
        and not alibi_symmetric
        and not (return_weights or return_lse)
        and type(q) is type(k) is type(v) is ndarray
    ):
        return _plain(q, k, v, is_causal, enable_gqa, threads)
    q, k, v = array(q, "q"), array(k, "k"), array(v, "v")
    _same_rank(q, k, v, enable_gqa)
    if mask is not None:
        mask = array(mask, "mask")
    rows = q.shape[:-1]
    numbers = view(q, "q") + view(k, "k") + view(v, "v")
    if out is None:
        out = _empty(rows + v.shape[-1:], q.dtype)
    else:
        output(out, "out", *((q, k, v) if mask is None else (q, k, v, mask)))
        if out.ndim != q.ndim:
            raise ValueError("out has %d dimensions; it must have q's %d" % (out.ndim, q.ndim))
    weights = _empty(rows + (k.shape[-2],), q.dtype) if return_weights else None
    lse = _empty(rows, wide(q.dtype)) if return_lse else None
    packed, keep = arguments(
        numbers + view(out, "out"), numbers[3], scale, is_causal, causal_offset, window, softcap,
        alibi, sinks, key_lengths, dropout_p, seed, mask, lse, weights, 0, diagonal,
        alibi_symmetric,
    )  # fmt: skip
    # The first call has no attn_error, which saves time. If it fails, nothing was written, and a
    # second call returns the message.
    if _forward(context(threads), packed, None):
        check(_forward, context(threads), packed)
    if return_weights or return_lse:
        return (out,) + ((weights,) if return_weights else ()) + ((lse,) if return_lse else ())
    return out


# For a call of arrays without options, types, shapes and strides determine all of its
# attn_sdpa_args except four addresses. These bytes are kept in a table, so the next such call needs
# only one look-up.
_framed = _library.framed(_library.SdpaArgs, 4)
_plans: Dict[Any, Any] = {}


def _plan(q: Any, k: Any, v: Any, is_causal: bool, enable_gqa: bool) -> Tuple[Any, ...]:
    """An entry of _plain: the result's shape and type, and the bytes around the addresses."""
    _same_rank(q, k, v, enable_gqa)
    shape = q.shape[:-1] + v.shape[-1:]
    numbers = view(q, "q") + view(k, "k") + view(v, "v") + view(_empty(shape, q.dtype), "out")
    packed, _ = arguments(numbers, numbers[3], is_causal=is_causal)
    tensors = [getattr(_library.SdpaArgs, name) for name in ("q", "k", "v", "out")]
    plan = (shape, q.dtype) + tuple(
        packed[t.offset + _ADDRESS : t.offset + t.size] for t in tensors
    ) + (packed[_TAIL:],)  # fmt: skip
    if len(_plans) >= MOST_KEPT:
        _plans.clear()
    return plan


def _plain(q: Any, k: Any, v: Any, is_causal: Any, enable_gqa: Any, threads: Any) -> Any:
    causal, shared = bool(is_causal), bool(enable_gqa)
    key = (
        q.dtype, q.shape, q.strides, k.dtype, k.shape, k.strides, v.dtype, v.shape, v.strides,
        causal, shared,
    )  # fmt: skip
    try:
        plan = _plans[key]
    except KeyError:
        plan = _plans[key] = _plan(q, k, v, causal, shared)
    shape, dtype, of_q, of_k, of_v, of_out, tail = plan
    out = _empty(shape, dtype)
    packed = _framed(
        _SIZE, address(q), of_q, address(k), of_k, address(v), of_v, address(out), of_out, tail
    )
    if _forward(context(threads), packed, None):
        check(_forward, context(threads), packed)
    return out


class Gradients(NamedTuple):
    """The result of grad(); None for gradients that were not wanted."""

    q: Optional[np.ndarray]  # of q's shape and type
    k: Optional[np.ndarray]  # of k's
    v: Optional[np.ndarray]  # of v's
    mask: Optional[np.ndarray]  # of the mask's shape, float32 or float64
    alibi: Optional[np.ndarray]  # [H] float64
    sinks: Optional[np.ndarray]  # [H] float64


def check_want(want: Sequence[str], given: Dict[str, Any]) -> None:
    """Checks that the gradients named in `want` belong to inputs that are given."""
    for name in want:
        if name not in given:
            raise ValueError("want has %r; it may name %s" % (name, ", ".join(given)))
        if given[name] is None:
            raise ValueError("want has %r, but %s is not given" % (name, name))


def grad(
    q: Any,
    k: Any,
    v: Any,
    dout: Any,
    *,
    dlse: Any = None,
    out: Any = None,
    lse: Any = None,
    want: Sequence[str] = ("q", "k", "v"),
    mask: Any = None,
    is_causal: bool = False,
    causal_offset: CausalOffset = None,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
    window: Optional[Tuple[int, int]] = None,
    softcap: float = 0.0,
    alibi: Any = None,
    sinks: Any = None,
    key_lengths: Any = None,
    dropout_p: float = 0.0,
    seed: int = 0,
    diagonal: Union[int, str] = "top-left",
    alibi_symmetric: bool = False,
    threads: Optional[int] = None,
) -> Gradients:
    """The gradients of a loss with respect to the inputs of scaled_dot_product_attention.

    dout [B,H,T,Dv] is the loss's gradient with respect to its result, of q's type, float32 or
    float64; dlse [B,H,T], float32 or float64, is the gradient with respect to lse, or None. out and
    lse are the results of the forward call; if one of them is None, both are computed again. All
    options must be those of the forward call. `want` names what is computed: "q", "k", "v", "mask"
    (a float mask), "alibi", "sinks".

    Memory is linear in T and S. Results are bit-identical for any number of threads. Queries that
    see no key, and keys that no query sees, get gradients of exactly 0. Raises the same exceptions
    as the forward call.

    Source: Dao et al. 2022.
    """
    q, k, v, dout = array(q, "q"), array(k, "k"), array(v, "v"), array(dout, "dout")
    _same_rank(q, k, v, enable_gqa)
    given = {"q": q, "k": k, "v": v, "mask": mask, "alibi": alibi, "sinks": sinks}
    check_want(want, given)
    if dout.ndim != q.ndim:
        raise ValueError("dout has %d dimensions; it must have q's %d" % (dout.ndim, q.ndim))
    mask = None if mask is None else array(mask, "mask")
    options: Dict[str, Any] = dict(
        scale=scale, is_causal=is_causal, causal_offset=causal_offset, window=window,
        softcap=softcap, alibi=alibi, sinks=sinks, key_lengths=key_lengths, dropout_p=dropout_p,
        seed=seed, mask=mask, diagonal=diagonal, alibi_symmetric=alibi_symmetric,
    )  # fmt: skip
    if out is None or lse is None:
        out = np.empty(q.shape[:-1] + v.shape[-1:], wide(q.dtype))
        lse = np.empty(q.shape[:-1], np.float64)
        numbers = view(q, "q") + view(k, "k") + view(v, "v") + view(out, "out")
        packed, keep = arguments(numbers, numbers[3], lse=lse, weights=None, **options)
        check(_forward, context(threads), packed)
    else:
        out, lse = array(out, "out"), array(lse, "lse")
        numbers = view(q, "q") + view(k, "k") + view(v, "v") + view(out, "out")
        packed, keep = arguments(numbers, numbers[3], lse=lse, weights=None, **options)
    heads = numbers[3]
    made = {
        name: np.empty(heads, np.float64)
        if name in ("alibi", "sinks")
        else np.empty(array(x, name).shape, wide(q.dtype) if name == "mask" else q.dtype)
        for name, x in given.items()
        if name in want
    }
    dq, dk, dv = (view(made[x], "d" + x) if x in made else ABSENT for x in "qkv")
    kept_mask, dmask_at = tensor(made["mask"], "dmask") if "mask" in made else (None, 0)
    if dlse is not None:
        dlse = array(dlse, "dlse")
        kept_dlse, dlse_at = tensor(dlse[..., None], "dlse")
    dalibi_at, dsinks_at = (
        address(made[name]) if name in made else 0
        for name in ("alibi", "sinks")
    )
    grads = _pack_grads(
        _GRADS_SIZE, *view(dout, "dout"), dlse_at if dlse is not None else 0, *dq, *dk, *dv,
        dmask_at, dalibi_at, dsinks_at,
    )  # fmt: skip
    check(_backward, context(threads), packed, grads)
    return Gradients(*(made.get(name) for name in Gradients._fields))
