"""ONNX's operator Attention on NumPy arrays: translates its inputs and attributes to one call of
the library. The library computes scores, softmax and sums. This module only checks, reshapes,
concatenates and converts arrays. It does not need the package onnx.

Source: the text of Attention-23, -24 and -25, https://onnx.ai/onnx/operators/onnx__Attention.html
"""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ._array import array, tensor_bytes
from ._context import context
from ._library import BOTTOM_RIGHT, OFFSET, SdpaArgs, Tensor, check, library

ndarray = np.ndarray
FLOATS = ("float64", "float32", "float16", "bfloat16")
PRECISIONS = {1: 32, 10: 16, 11: 64, 16: 16}  # softmax_precision's values: bits of the type
_ACCURATE = 1  # attn_precision


class Rule(NamedTuple):
    """The keys that a query may see by its position: j <= i + offset + right and j >= i + offset -
    left. None instead of a number: no such bound."""

    left: Optional[int]
    right: Optional[int]


class Options(NamedTuple):
    """The attributes of a node, with the operator's defaults; attn.onnx checks their types."""

    opset: int
    scale: Optional[float] = None
    is_causal: int = 0
    q_num_heads: Optional[int] = None
    kv_num_heads: Optional[int] = None
    softmax_precision: Optional[int] = None
    softcap: float = 0.0
    qk_matmul_output_mode: int = 0
    left_window_size: int = -1
    right_window_size: int = -1

    def checked(self) -> "Options":
        """Returns these options. Raises ValueError if one is not valid."""
        for name in ("is_causal", "qk_matmul_output_mode"):
            most = 1 if name == "is_causal" else 3
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(
                    "%s is %d; it must be within 0..%d" % (name, getattr(self, name), most)
                )
        for name in ("q_num_heads", "kv_num_heads"):
            n = getattr(self, name)
            if n is not None and n < 1:
                raise ValueError("%s is %d; it must be positive" % (name, n))
        for name in ("left_window_size", "right_window_size"):
            if getattr(self, name) < -1:
                raise ValueError(
                    "%s is %d; it must be -1 (open) or more" % (name, getattr(self, name))
                )
        check_precision(self.softmax_precision)
        if not self.softcap >= 0:
            raise ValueError("softcap is %g; it must be 0 (none) or positive" % self.softcap)
        return self

    def rule(self) -> Optional[Rule]:
        left = None if self.left_window_size < 0 else self.left_window_size
        right = None if self.right_window_size < 0 else self.right_window_size
        if self.is_causal:
            right = 0
        return None if left is None and right is None else Rule(left, right)


def check_precision(number: Optional[int]) -> None:
    if number is not None and number not in PRECISIONS:
        raise ValueError(
            "softmax_precision is %d; it must be 1 (float), 10 (float16), 11 (double) or "
            "16 (bfloat16)" % number
        )


def run(
    q: ndarray,
    k: ndarray,
    v: ndarray,
    out: ndarray,
    *,
    scale: Optional[float] = None,
    softcap: float = 0.0,
    mask: Optional[ndarray] = None,
    causal: int = 0,
    causal_offset: int = 0,
    window_left: int = -1,
    key_lengths: Optional[ndarray] = None,
    accurate: bool = False,
    scores: Optional[ndarray] = None,
    stage: int = 0,
    threads: Optional[int] = None,
) -> None:
    """attn_sdpa_forward of 4-D arrays: q [B,H,T,D], k [B,Hk,S,D], v [B,Hk,S,Dv] of one type into
    out [B,H,T,Dv] and, if given, scores [B,H,T,S] of that stage (ONNX's four modes are attn_stage's
    four values). key_lengths: int64 [B], dense. Raises the library's errors."""
    args = SdpaArgs(
        struct_size=ctypes.sizeof(SdpaArgs), causal=causal, causal_offset=causal_offset,
        window_left=window_left, window_right=-1, softcap=softcap, scores_stage=stage,
        precision=_ACCURATE if accurate else 0,
    )  # fmt: skip
    if scale == 0:  # the library's 0 means 1/sqrt(D); q times 0 keeps NaN and infinity
        with np.errstate(invalid="ignore"):
            q, scale = q * q.dtype.type(0), 1.0
    args.scale = 0.0 if scale is None else scale
    tensors = {}
    for name, x in (("q", q), ("k", k), ("v", v), ("out", out), ("mask", mask), ("scores", scores)):
        if x is not None:
            tensors[name] = Tensor.from_buffer_copy(tensor_bytes(x, name))
    args.q, args.k, args.v, args.out = (tensors[name] for name in ("q", "k", "v", "out"))
    if mask is not None:
        args.mask = ctypes.addressof(tensors["mask"])
    if scores is not None:
        args.scores = ctypes.addressof(tensors["scores"])
    if key_lengths is not None:
        args.key_lengths = key_lengths.ctypes.data
    check(library.attn_sdpa_forward, context(threads), bytes(args))


def attend(
    q: ndarray,
    k: ndarray,
    v: ndarray,
    out: ndarray,
    *,
    precision: Optional[int],
    **options: Any,
) -> None:
    """Like run(), but v may have another type than q and k, out has q's type, and softmax and sums
    are at least as precise as softmax_precision. (On instruction sets that multiply bf16, the
    weights of bf16 calls are rounded to bf16. The operator does this too, unless a precision is
    given.)"""
    bits = 0 if precision is None else PRECISIONS[precision]
    common = q.dtype
    if v.dtype != common or (bits == 64 and common.itemsize == 2):
        double = "float64" in (q.dtype.name, v.dtype.name)
        common = np.dtype(np.float64 if double else np.float32)
    accurate = bits == 64 or (bits == 32 and common.itemsize == 2)
    # The inputs are converted to a wider type, which is exact. The result is rounded once, from the
    # type in which it is computed.
    q, k, v = (x.astype(common, copy=False) for x in (q, k, v))
    wide = out
    if out.dtype != common:
        wide = np.empty(out.shape, np.float64 if accurate else common)
    run(q, k, v, wide, accurate=accurate, **options)
    if wide is not out:
        with np.errstate(over="ignore"):
            out[...] = _through_float(wide) if out.dtype.name == "bfloat16" else wide


def _through_float(x: Any) -> Any:
    """x as float32, rounded to odd if x is float64: bfloat16, which ml_dtypes rounds from float32,
    is then the number that one rounding of x gives."""
    if x.dtype != np.float64:
        return x
    rounded = x.astype(np.float32)
    bits = rounded.view(np.int32)
    down = bits - (np.abs(rounded) > np.abs(x))  # towards 0: a smaller magnitude is a smaller int
    return np.where(rounded == x, bits, down | 1).astype(np.int32).view(np.float32)


def _place(rule: Optional[Rule], T: int, S: int, offset: int) -> Dict[str, int]:
    """Converts a rule to the library's arguments. The library has one offset for causal and window:
    its off is offset + right here if the rule has an upper bound. A missing bound becomes one that
    excludes no key."""
    if rule is None:
        return {}
    far = T + S + abs(offset)
    right = far if rule.right is None else min(rule.right, far)
    left = -1 if rule.left is None else min(rule.left, far) + right
    return dict(causal=OFFSET, causal_offset=offset + right, window_left=left)


def place_and_attend(
    rule: Optional[Rule],
    q: ndarray,
    k: ndarray,
    v: ndarray,
    out: ndarray,
    *,
    offset: int,
    key_lengths: Optional[ndarray],
    mask: Optional[ndarray],
    scores: Optional[ndarray],
    **options: Any,
) -> None:
    """Calls attend() with the rule. With key_lengths the last query is at the position of the last
    valid key, so each batch element has its own offset, key_lengths[b] - T."""
    T, S = q.shape[2], k.shape[2]
    options.update(mask=mask, scores=scores)
    if key_lengths is None:
        attend(q, k, v, out, **options, **_place(rule, T, S, offset))
    elif rule is None:
        attend(q, k, v, out, key_lengths=key_lengths, **options)
    elif rule.right == 0:
        left = -1 if rule.left is None else min(rule.left, T + S)
        options.update(causal=BOTTOM_RIGHT, window_left=left, key_lengths=key_lengths)
        attend(q, k, v, out, **options)
    else:  # one call cannot have both an offset per batch element and a window open to the right
        for b in range(q.shape[0]):
            one = slice(b, b + 1)
            options["mask"] = mask[one] if mask is not None and mask.shape[0] > 1 else mask
            options["scores"] = None if scores is None else scores[one]
            options["key_lengths"] = key_lengths[one]
            placed = _place(rule, T, S, int(key_lengths[b]) - T)
            attend(q[one], k[one], v[one], out[one], **options, **placed)


def _shaped(x: ndarray, name: str, **want: Optional[int]) -> None:
    if len(want) != x.ndim or any(m not in (None, n) for n, m in zip(x.shape, want.values())):
        sizes = [letter if n is None else "%s=%d" % (letter, n) for letter, n in want.items()]
        raise ValueError(
            "%s has shape %s; it must be (%s)" % (name, tuple(x.shape), ", ".join(sizes))
        )


def floats(x: Any, name: str, like: Optional[ndarray] = None, what: str = "") -> ndarray:
    """x as an array of a float type; of the type of `like`, if that is given."""
    a = array(x, name)
    if a.dtype.name not in FLOATS:
        raise TypeError(
            "%s is %s; it must be float64, float32, float16 or bfloat16" % (name, a.dtype)
        )
    if like is not None and a.dtype != like.dtype:
        raise TypeError("%s is %s; it must be %s's %s" % (name, a.dtype, what, like.dtype))
    return a


def _split(x: ndarray, name: str, heads: Optional[int], attribute: str, opset: int) -> ndarray:
    """[B, heads, rows, size] from an input of this shape or of [B, rows, heads * size]. A dense
    array is not copied."""
    if x.ndim == 4:
        if heads is not None and opset >= 25:
            raise ValueError(
                "%s is given, but %s has 4 dimensions; since opset 25 it is only for inputs of 3 "
                "dimensions"
                % (attribute, name)
            )
        if heads is not None and heads != x.shape[1]:
            raise ValueError(
                "%s is %d, but %s has %d heads (dimension 1); leave the attribute out"
                % (attribute, heads, name, x.shape[1])
            )
        return x
    if heads is None:
        raise ValueError("%s has 3 dimensions, so the node must have %s" % (name, attribute))
    B, rows, hidden = x.shape
    if hidden % heads:
        raise ValueError(
            "%s has hidden size %d (dimension 2), which is not a multiple of %s = %d"
            % (name, hidden, attribute, heads)
        )
    return x.reshape(B, rows, heads, hidden // heads).transpose(0, 2, 1, 3)


def _inputs(o: Options, Q: Any, K: Any, V: Any) -> Tuple[ndarray, ndarray, ndarray, int]:
    q, v = floats(Q, "Q"), floats(V, "V")
    k = floats(K, "K", q, "Q")
    rank = q.ndim
    if rank not in (3, 4) or k.ndim != rank or v.ndim != rank:
        raise ValueError(
            "Q, K and V have %d, %d and %d dimensions; they must all have 3, or all 4"
            % (rank, k.ndim, v.ndim)
        )
    q = _split(q, "Q", o.q_num_heads, "q_num_heads", o.opset)
    k = _split(k, "K", o.kv_num_heads, "kv_num_heads", o.opset)
    v = _split(v, "V", o.kv_num_heads, "kv_num_heads", o.opset)
    _shaped(k, "K", B=q.shape[0], Hk=None, S=None, D=q.shape[3])
    _shaped(v, "V", B=q.shape[0], Hk=k.shape[1], S=k.shape[2], Dv=None)
    H, Hk = q.shape[1], k.shape[1]
    if H != Hk and (Hk == 0 or H % Hk):
        raise ValueError(
            "Q has %d heads and K has %d; the first must be a multiple of the second" % (H, Hk)
        )
    return q, k, v, rank


def _joined(past: Any, new: ndarray, name: str, of: str) -> ndarray:
    """present_*: past [B,Hk,P,size], then the new rows."""
    past = floats(past, name, new, of)
    B, Hk, _, size = new.shape
    _shaped(past, name, B=B, Hk=Hk, P=None, size=size)
    return np.concatenate((past, new), axis=2)


def _mask(x: Any, opset: int, shape: Tuple[int, ...], valid: Optional[ndarray]) -> ndarray:
    """The mask in the library's form: 4 dimensions, each that of [B,H,T,S] or 1. Since opset 24 the
    last dimension may be shorter than S (also 1), and the missing keys are masked. Up to opset 23 a
    last dimension of 1 broadcasts, like any other."""
    m = array(x, "attn_mask")
    if m.dtype != np.bool_ and m.dtype.name not in FLOATS:
        raise TypeError(
            "attn_mask is %s; it must be bool (True: attend) or a float type (added)" % m.dtype
        )
    if not 1 <= m.ndim <= 4:
        raise ValueError("attn_mask has %d dimensions; it must have 1 to 4" % m.ndim)
    m = m.reshape((1,) * (4 - m.ndim) + m.shape)
    S, last = shape[3], m.shape[3]
    short = opset >= 24 and last < S
    if any(n not in (1, want) for n, want in zip(m.shape[:3], shape)) or (
        last != S and not short and last != 1
    ):
        raise ValueError(
            "attn_mask has shape %s; it must broadcast to (B, H, T, S) = %s%s"
            % (np.shape(x), shape, ", or have fewer keys" if opset >= 24 else "")
        )
    if not short:
        return m
    if valid is not None and valid.size and last < valid.max():
        raise ValueError(
            "attn_mask has %d keys (its last dimension), fewer than nonpad_kv_seqlen's largest, %d"
            % (last, valid.max())
        )
    hidden = False if m.dtype == np.bool_ else -np.inf
    more = np.full(m.shape[:3] + (S - last,), hidden, m.dtype)
    return np.concatenate((m, more), axis=3)


def _lengths(x: Any, B: int, S: int) -> ndarray:
    n = array(x, "nonpad_kv_seqlen")
    if n.dtype != np.int64:
        raise TypeError("nonpad_kv_seqlen is %s; it must be int64" % n.dtype)
    _shaped(n, "nonpad_kv_seqlen", B=B)
    if ((n < 0) | (n > S)).any():
        raise ValueError("nonpad_kv_seqlen is %s; each must be within 0..S = %d" % (n.tolist(), S))
    return np.array(n, order="C")  # a copy, so that the checked values are those that are used


def check_together(given: Sequence[bool], wanted: Sequence[bool]) -> None:
    """Checks which of the seven inputs and four outputs need or exclude each other."""
    for name, there in zip("QKV", given):
        if not there:
            raise ValueError("%s is not given; Attention needs Q, K and V" % name)
    past, nonpad = given[4], given[6]
    if past != given[5]:
        raise ValueError("past_key and past_value must be given together")
    if nonpad and past:
        raise ValueError("nonpad_kv_seqlen and past_key exclude each other")
    if nonpad and (wanted[1] or wanted[2]):
        raise ValueError("nonpad_kv_seqlen and present_key or present_value exclude each other")
    if (wanted[1] or wanted[2]) and not past:
        raise ValueError("present_key and present_value need past_key and past_value")


def attention(
    o: Options,
    inputs: Sequence[Any],
    wanted: Sequence[bool] = (True, False, False, False),
    threads: Optional[int] = None,
) -> List[Optional[ndarray]]:
    """Returns Y, present_key, present_value and qk_matmul_output; None for those not wanted.

    inputs are in the operator's order; None or a shorter list for those not given: Q [B,H,T,D], K
    [B,Hk,S,D], V [B,Hk,S,Dv], or [B,T,H*D] and so on with q_num_heads and kv_num_heads; attn_mask,
    bool (True: attend) or float (added), that broadcasts to [B,H,T,P+S]; past_key [B,Hk,P,D],
    past_value [B,Hk,P,Dv]; nonpad_kv_seqlen [B], int64. Q and K share a float type.

    Y has Q's type and rank; present_* are the past and the new rows, [B,Hk,P+S,...];
    qk_matmul_output is [B,H,T,P+S] of Q's type, at the stage of qk_matmul_output_mode. A query that
    sees no key gets 0. float16 and bfloat16 are computed in float and rounded at the end.

    Raises TypeError and ValueError, with the operator's names."""
    given = list(inputs) + [None] * (7 - len(inputs))
    check_together([x is not None for x in given], wanted)
    Q, K, V, attn_mask, past_key, past_value, nonpad = given
    q, k, v, rank = _inputs(o, Q, K, V)
    B, H, T, _ = q.shape
    P = 0
    if past_key is not None:
        k = _joined(past_key, k, "past_key", "K")
        v = _joined(past_value, v, "past_value", "V")
        P = np.shape(past_key)[2]
        _shaped(v, "present_value", B=B, Hk=k.shape[1], S=k.shape[2], Dv=None)
    S, Dv = k.shape[2], v.shape[3]
    lengths = None if nonpad is None else _lengths(nonpad, B, S)
    mask = None if attn_mask is None else _mask(attn_mask, o.opset, (B, H, T, S), lengths)
    y = np.empty((B, H, T, Dv) if rank == 4 else (B, T, H, Dv), q.dtype)
    scores = np.empty((B, H, T, S), q.dtype) if wanted[3] else None
    place_and_attend(
        o.rule(), q, k, v, y if rank == 4 else y.transpose(0, 2, 1, 3), offset=P,
        key_lengths=lengths, mask=mask, scale=o.scale, softcap=o.softcap, scores=scores,
        stage=o.qk_matmul_output_mode, precision=o.softmax_precision, threads=threads,
    )  # fmt: skip
    if rank == 3:
        y = y.reshape(B, T, H * Dv)
    return [y, k if wanted[1] else None, v if wanted[2] else None, scores]
