"""The arguments of attn.torch's functions: checks, and the four-dimensional tensors that the
library takes."""

from __future__ import annotations

import math
import operator
from typing import Any, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from . import _torch_private as private
from ._torch_engine import CODES, Options

Numbers = Union[Tensor, Sequence[float], float]
_compiling = torch.compiler.is_compiling
_autocasting, _functorch = private.autocasting, private.functorch
_forward_mode = private.forward_mode
_FLOATS = tuple(t for t in CODES if t.is_floating_point)


def check_flags(
    mask: Optional[Tensor], is_causal: Any, enable_gqa: Any, alibi: Optional[Numbers],
    alibi_symmetric: bool,
) -> None:  # fmt: skip
    """Checks the arguments that are True or False."""
    for name, flag in (("is_causal", is_causal), ("enable_gqa", enable_gqa)):
        if not isinstance(flag, bool):
            raise TypeError("%s is %s; it must be bool" % (name, type(flag).__name__))
    if mask is not None and is_causal:
        raise ValueError("attn_mask and is_causal exclude each other; make one mask of both")
    if alibi_symmetric and alibi is None:
        raise ValueError("alibi_symmetric is given without alibi")


def restore(x: Tensor, lead: Tuple[int, ...], rank: int, fewer: int = 0) -> Tensor:
    """A result [B,H,T,Dv] in the caller's dimensions; fewer=1: lse [B,H,T]."""
    if rank == 4:
        return x
    x = x.reshape(lead + (x.shape[1:] if rank > 2 else x.shape[2:]))
    return x if fewer else x.contiguous()  # like PyTorch's result for other ranks


def four_dimensions(
    q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], enable_gqa: bool,
    alibi: Optional[Numbers], sinks: Optional[Numbers], key_lengths: Optional[Numbers],
    all_keys: bool = True,
) -> Tuple[Tensor, Tensor, Tensor, Optional[Tensor], List[Optional[Tensor]], Any]:  # fmt: skip
    """q, k, v, the mask, the vectors alibi, sinks and key_lengths; and what restore() needs: the
    sizes before the last three, and the number of dimensions. all_keys is False if k has only some
    of the mask's keys."""
    if _autocasting() and torch.is_autocast_enabled("cpu"):
        q, k, v, mask = (_autocast(t) for t in (q, k, v, mask))
    _check_types(q, k, v, mask)
    rank = max(q.dim(), k.dim(), v.dim())
    q, k, v, mask, lead = _expand(q, k, v, mask, enable_gqa, all_keys)
    vectors = [
        _vector(alibi, "alibi", q.shape[1], torch.float32),
        _vector(sinks, "sinks", q.shape[1], torch.float32),
        _vector(key_lengths, "key_lengths", q.shape[0], torch.int64),
    ]
    _check_devices(q, k, v, mask, vectors)
    if not _compiling():
        _check_transforms(q, k, v, mask, *vectors)
    return q, k, v, mask, vectors, (lead, rank)


def check_dropout(o: Options) -> float:
    if not 0 <= o.dropout <= 1:
        raise ValueError("dropout_p is %g; it must be 0 <= p <= 1" % o.dropout)
    return o.dropout


def _autocast(t: Optional[Tensor]) -> Optional[Tensor]:
    """Casts the arguments like autocast does for PyTorch's function."""
    if t is None or t.device.type != "cpu" or t.dtype not in _FLOATS or t.dtype == torch.float64:
        return t
    return t.to(torch.get_autocast_dtype("cpu"))


def _check_types(q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor]) -> None:
    for name, t in (("query", q), ("key", k), ("value", v), ("attn_mask", mask)):
        if t is None and name == "attn_mask":
            continue
        if not isinstance(t, Tensor):
            raise TypeError("%s is %s; it must be a tensor" % (name, type(t).__name__))
        if t.device.type not in ("cpu", "meta"):
            raise NotImplementedError(
                "%s is on %s; attn computes on the CPU only. Under attn.torch.patch() PyTorch's "
                "own function computes such calls" % (name, t.device)
            )
        if t.layout != torch.strided or t.is_nested:
            raise TypeError("%s is not dense; use a dense tensor, and a mask or key_lengths" % name)
    if q.dtype not in _FLOATS:
        raise TypeError("query is %s; it must be float64, float32, float16 or bfloat16" % q.dtype)
    if k.dtype != q.dtype or v.dtype != q.dtype:
        raise TypeError(
            "query is %s, key is %s and value is %s; they must share one dtype"
            % (q.dtype, k.dtype, v.dtype)
        )
    if mask is not None and mask.dtype not in (torch.bool, torch.float32, q.dtype):
        raise TypeError(
            "attn_mask is %s; it must be bool, float32 or query's dtype, %s" % (mask.dtype, q.dtype)
        )


def _check_devices(
    q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], vectors: Sequence[Optional[Tensor]]
) -> None:
    """Raises if query has numbers and another tensor has none, or if query has none and key or
    value has. The operator would then compute nothing and return memory as it is."""
    others = [("key", k), ("value", v)]
    if q.device.type == "cpu":
        others += [("attn_mask", mask), *zip(("alibi", "sinks", "key_lengths"), vectors)]
    for name, t in others:
        if t is not None and t.device.type != q.device.type:
            raise ValueError(
                "%s is on %s and query on %s; they must be on one device"
                % (name, t.device, q.device)
            )


def _check_transforms(*tensors: Optional[Tensor]) -> None:
    """Raises if a tensor has a transform or a tangent, which the operator would ignore."""
    if _forward_mode._current_level >= 0 or _functorch():
        for t in tensors:
            if t is not None and private.transformed(t):
                raise NotImplementedError(
                    "attn supports neither torch.func's transforms (vmap, grad, jvp, ...) nor "
                    "forward-mode derivatives; under attn.torch.patch() PyTorch's own function "
                    "computes such calls"
                )


def _common(name: str, q: int, k: int, v: int) -> int:
    """The size to which three sizes broadcast."""
    size = q if q != 1 else k if k != 1 else v
    if (q != 1 and q != size) or (k != 1 and k != size) or (v != 1 and v != size):
        raise ValueError(
            "query, key and value have %d, %d and %d %s; they must be equal or 1" % (q, k, v, name)
        )
    return size


def _expand(
    q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], enable_gqa: bool, all_keys: bool
) -> Tuple[Tensor, Tensor, Tensor, Optional[Tensor], Tuple[int, ...]]:
    """[B,H,T,D], [B,Hk,S,D], [B,Hk,S,Dv], the mask [B|1,H|1,T|1,S|1], as views where that is
    possible; and the result's sizes before the last three."""
    ranks = q.dim(), k.dim(), v.dim()
    rank = max(ranks)
    if min(ranks) < 2:
        raise ValueError(
            "query, key and value have %d, %d and %d dimensions; they must have 2 or more" % ranks
        )
    if mask is not None and not 2 <= mask.dim() <= max(rank, 2):
        raise ValueError(
            "attn_mask has %d dimensions; it must have 2 to query's %d" % (mask.dim(), rank)
        )
    wide = max(rank, 4)
    q, k, v = (t if t.dim() == wide else t[(None,) * (wide - t.dim())] for t in (q, k, v))
    if mask is not None and mask.dim() < wide:
        mask = mask[(None,) * (wide - mask.dim())]
    sizes = [_common("in a dimension", *s) for s in zip(q.shape[:-3], k.shape[:-3], v.shape[:-3])]
    lead = () if rank < 4 else tuple(sizes)
    q, k, v = (_batch(t, sizes) for t in (q, k, v))
    if mask is not None:
        heads, T, S = _common_tail(q, k, v)
        _check_broadcast(mask, (*sizes, heads, T, S if all_keys else mask.shape[-1]))
        repeats = all(n == 1 for n in mask.shape[:-3])
        mask = _batch(mask, [1] * len(sizes) if repeats else sizes)
    q, k, v = _heads(q, k, v, enable_gqa)
    if q.shape[3] != k.shape[3]:
        raise ValueError(
            "key has D=%d (dimension -1) and query has %d; they must be equal"
            % (k.shape[3], q.shape[3])
        )
    if k.shape[2] != v.shape[2]:
        raise ValueError(
            "value has S=%d (dimension -2) and key has %d; they must be equal"
            % (v.shape[2], k.shape[2])
        )
    return q, k, v, mask, lead


def _common_tail(q: Tensor, k: Tensor, v: Tensor) -> Tuple[int, int, int]:
    """H, T and S."""
    heads = max(q.shape[-3], k.shape[-3], v.shape[-3]) if q.shape[-3] == 1 else q.shape[-3]
    return heads, q.shape[-2], k.shape[-2]


def _check_broadcast(mask: Tensor, sizes: Tuple[int, ...]) -> None:
    for n, m in zip(sizes, mask.shape):
        if m != n and m != 1:
            raise ValueError(
                "attn_mask has shape %s; it must broadcast to [..,H,T,S] = %s"
                % (tuple(mask.shape), sizes)
            )


def _batch(t: Tensor, sizes: List[int]) -> Tensor:
    """t [..,H,T,D], expanded to these sizes, which are then joined into one dimension."""
    if len(sizes) == 1:
        return t if t.shape[0] == sizes[0] else t.expand(sizes[0], -1, -1, -1)
    rest = t.shape[-3:]
    return t.expand(*sizes, *rest).reshape(math.prod(sizes), *rest)


def _heads(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> Tuple[Tensor, Tensor, Tensor]:
    """Expands or shares the heads."""
    H, Hk, Hv = q.shape[1], k.shape[1], v.shape[1]
    if H == Hk == Hv:
        return q, k, v
    if enable_gqa:
        if (Hk == 0 or Hv == 0) or H % Hk or H % Hv:
            raise ValueError(
                "key and value have %d and %d heads (dimension -3); they must divide query's %d"
                % (Hk, Hv, H)
            )
        if Hk != Hv:
            k, v = k.repeat_interleave(H // Hk, 1), v.repeat_interleave(H // Hv, 1)
        return q, k, v
    try:
        heads = _common("heads (dimension -3)", H, Hk, Hv)
    except ValueError as error:
        raise ValueError("%s; or pass enable_gqa=True" % error) from None
    if heads == H and Hk == Hv == 1:
        return q, k, v  # one head that all heads of query share
    return (
        q.expand(-1, heads, -1, -1), k.expand(-1, heads, -1, -1), v.expand(-1, heads, -1, -1)
    )  # fmt: skip


def _vector(x: Optional[Numbers], name: str, n: int, dtype: torch.dtype) -> Optional[Tensor]:
    """A tensor [n]; one number stands for n equal ones."""
    if x is None:
        return None
    t = x if isinstance(x, Tensor) else torch.as_tensor(x)
    real = t.is_floating_point() or t.dtype == torch.bool
    if real and not dtype.is_floating_point and t.numel():
        raise TypeError("%s is %s; it must be of integers" % (name, t.dtype))
    if t.is_complex():
        raise TypeError("%s is %s; it must be of real numbers" % (name, t.dtype))
    if not isinstance(x, Tensor):
        t = t.to(dtype, copy=True)  # autograd keeps it and cannot see that NumPy changes x
    if t.dim() == 0:
        t = t.expand(n)
    if t.dim() != 1 or t.shape[0] != n:
        raise ValueError("%s has shape %s; it must be (%d,)" % (name, tuple(t.shape), n))
    return t


def _check_seed(seed: Any) -> int:
    if not isinstance(seed, torch.SymInt):
        try:
            seed = operator.index(seed)
        except TypeError:
            raise TypeError("seed is %r; it must be an integer" % (seed,)) from None
    if not 0 <= seed < 1 << 64:
        raise ValueError("seed is %d; it must be within 0..2^64-1" % seed)
    return seed  # type: ignore[no-any-return]


def draw_seed(seed: Optional[int], p: float) -> Optional[Tensor]:
    """The seed's 64 bits as a tensor, so that a compiled graph can draw a new one for each call.
    None if dropout of probability p needs no random numbers; a seed is checked all the same."""
    if seed is not None:
        seed = _check_seed(seed)
    if not 0 < p < 1:
        return None
    if seed is None:
        return torch.randint(-(1 << 63), (1 << 63) - 1, (), dtype=torch.int64, device="cpu")
    return torch.tensor(seed if seed < 1 << 63 else seed - (1 << 64), dtype=torch.int64)
