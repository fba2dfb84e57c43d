"""attn on PyTorch's tensors: the function, an operator for autograd and torch.compile, a patch that
replaces PyTorch's own function, and an attention for Hugging Face's models.

    import attn.torch
    out = attn.torch.scaled_dot_product_attention(q, k, v, is_causal=True)
    with attn.torch.patch():                              # whatever calls PyTorch's function
        out = model(x)
    attn.torch.register()                                 # Hugging Face's transformers
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="attn")

Tested with PyTorch 2.13, which `import attn` alone does not load. Calls use torch.get_num_threads()
threads.
"""

from __future__ import annotations

import contextlib
import math
import threading
from typing import Any, Iterator, List, Optional, Sequence, Tuple, Union

import torch
import torch.nn.functional
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from . import _torch_engine as engine
from . import _torch_operator as operator
from . import _torch_plans as plans
from . import _torch_private as private
from ._torch_engine import CODES, Options

__all__ = ["patch", "register", "scaled_dot_product_attention"]

_Numbers = Union[Tensor, Sequence[float], float]
_compiling = torch.compiler.is_compiling
_autocasting, _functorch = private.autocasting, private.functorch
_forward_mode = private.forward_mode
_FLOATS = tuple(t for t in CODES if t.is_floating_point)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
    *,
    window: Optional[Tuple[int, int]] = None,
    softcap: float = 0.0,
    alibi: Optional[_Numbers] = None,
    sinks: Optional[_Numbers] = None,
    key_lengths: Optional[_Numbers] = None,
    causal_offset: Union[int, str, None] = None,
    diagonal: Union[int, str] = "top-left",
    alibi_symmetric: bool = False,
    seed: Optional[int] = None,
    return_lse: bool = False,
) -> Any:
    """softmax(scale * query key^T + bias, over visible keys) value: PyTorch's function with more
    options.

    Shapes, with T queries, S keys, H heads: query [..,H,T,D], key [..,Hk,S,D], value [..,Hk,S,Dv],
    result [..,H,T,Dv], with two or more dimensions. Those before the last two broadcast. Hk is H or
    1, or with enable_gqa a divisor of H: query head h reads key/value head h // (H // Hk). The type
    is float64, float32, float16 or bfloat16, on the CPU. Any strides are read without a copy. A
    result of four dimensions has the memory order of query, for example [B,T,H,Dv], as PyTorch's
    result does; others are contiguous.

    attn_mask      bool (True: attend) or float (added), of a shape that broadcasts to [..,H,T,S]
    dropout_p      0 <= p <= 1: weights are kept with probability 1-p, times 1/(1-p), by
    seed           0..2^64-1; None: drawn from PyTorch's generator of the CPU, which
                   torch.manual_seed() sets. The decisions are not those of PyTorch's function
    is_causal      query i sees keys j <= i + off, off = 0: not together with attn_mask
    scale          of the scores; None: 1/sqrt(D)

    Options that PyTorch's function does not have:

    window         (left, right): i + off - left <= j <= i + off + right; -1: open
    softcap        c > 0: scores become c * tanh(score / c), before mask and alibi
    alibi          [H] slopes: adds slope * (j - i - off), or with
    alibi_symmetric  -slope * |j - i - off|, as FlashAttention does: the same where is_causal is set
    diagonal       off without is_causal, for window and alibi: "top-left", 0; "bottom-right",
                   S - T, as FlashAttention counts; or an integer
    sinks          [H] logits: adds exp(logit) to the denominator of each row's softmax
    key_lengths    [B] integers: only keys j < key_lengths[b] are seen
    causal_offset  off: an integer, or "bottom-right": S - T, with key_lengths[b] for S
    return_lse     gives (result, lse), lse [..,H,T] the logarithm of the softmax's denominator,
                   float32, or float64 for float64

    The result and lse can be differentiated once, with respect to query, key, value, a float
    attn_mask, alibi and sinks. Forward and backward need memory linear in T and S. A query that
    sees no key gives 0. Works under torch.compile, autocast and with fake tensors. As in PyTorch's
    functions, a tensor subclass or a TorchFunctionMode may override the call. A
    torch.nn.attention.bias.CausalBias is used as its rule.

    Raises TypeError for a type, ValueError for a shape or a value, NotImplementedError for a tensor
    that is not on a CPU, for second derivatives, for torch.func's transforms and forward mode.
    Results are bit-identical for any number of threads and any strides. The GIL is released.

    Source: Vaswani et al. 2017; include/attn.h names the others.
    """
    if has_torch_function_variadic(query, key, value, attn_mask):
        return _overridden(
            query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, window=window,
            softcap=softcap, alibi=alibi, sinks=sinks, key_lengths=key_lengths,
            causal_offset=causal_offset, diagonal=diagonal, alibi_symmetric=alibi_symmetric,
            seed=seed, return_lse=return_lse,
        )  # fmt: skip
    plain = (
        alibi is None
        and sinks is None
        and key_lengths is None
        and causal_offset is None
        and not dropout_p
        and not return_lse
        and not alibi_symmetric
        and (attn_mask is None or not is_causal)
        and type(is_causal) is type(enable_gqa) is bool
        and not _compiling()
    )
    if plain:
        numbers = is_causal, scale, enable_gqa, softcap, window, diagonal
        out = plans.repeat(query, key, value, attn_mask, numbers)
        if out is not None:
            return out
    for name, flag in (("is_causal", is_causal), ("enable_gqa", enable_gqa)):
        if not isinstance(flag, bool):
            raise TypeError("%s is %s; it must be bool" % (name, type(flag).__name__))
    if attn_mask is not None and is_causal:
        raise ValueError("attn_mask and is_causal exclude each other; make one mask of both")
    if alibi_symmetric and alibi is None:
        raise ValueError("alibi_symmetric is given without alibi")
    o = engine.options(
        is_causal, causal_offset, scale, window, softcap, dropout_p, diagonal, alibi_symmetric
    )
    out, lse = attend(
        query, key, value, attn_mask, enable_gqa, o, alibi, sinks, key_lengths, seed, return_lse
    )
    if plain and _as_they_are(query, key, value, attn_mask):
        if window is not None:
            numbers = is_causal, scale, enable_gqa, softcap, tuple(window), diagonal
        plans.remember(query, key, value, attn_mask, out, o, numbers)
    return (out, lse) if return_lse else out


def _is_causal_bias(mask: Any) -> bool:
    """Whether it is a torch.nn.attention.bias.CausalBias. Compares the name, because its module
    takes seconds to load."""
    kind = type(mask)
    return kind.__name__ == "CausalBias" and kind.__module__ == "torch.nn.attention.bias"


def _overridden(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor], dropout_p: float,
    is_causal: bool, scale: Optional[float], enable_gqa: bool, **options: Any,
) -> Any:  # fmt: skip
    """The call if an argument's type, or a mode, overrides functions."""
    arguments = query, key, value, attn_mask
    if _is_causal_bias(attn_mask):
        if is_causal or options["causal_offset"] is not None:
            raise ValueError(
                "attn_mask is a CausalBias, which excludes is_causal and causal_offset; leave "
                "them out"
            )
        sizes = query.shape[-2], key.shape[-2]
        if (attn_mask.seq_len_q, attn_mask.seq_len_kv) != sizes:
            raise ValueError(
                "attn_mask is a CausalBias for T=%d and S=%d; the call has T=%d and S=%d"
                % (attn_mask.seq_len_q, attn_mask.seq_len_kv, *sizes)
            )
        lower_right = attn_mask.variant.name == "LOWER_RIGHT"
        options["causal_offset"] = "bottom-right" if lower_right else 0
        arguments, is_causal = (query, key, value, None), True
        if not has_torch_function_variadic(*arguments):
            return scaled_dot_product_attention(
                query, key, value, None, dropout_p, True, scale, enable_gqa, **options
            )
    return handle_torch_function(
        scaled_dot_product_attention, arguments, *arguments, dropout_p, is_causal, scale,
        enable_gqa, **options,
    )  # fmt: skip


def _as_they_are(q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor]) -> bool:
    """Whether the library got these four directly: nothing was cast, and only the mask
    broadcast."""
    return (
        q.dim() == k.dim() == v.dim() == 4
        and q.shape[0] == k.shape[0] == v.shape[0]
        and k.shape[1] == v.shape[1] <= q.shape[1]
        and plans.direct(q, k, v, mask)
        and not _autocasting()
    )


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], enable_gqa: bool, o: Options,
    alibi: Optional[_Numbers], sinks: Optional[_Numbers], key_lengths: Optional[_Numbers],
    seed: Optional[int], return_lse: bool,
) -> Tuple[Tensor, Optional[Tensor]]:  # fmt: skip
    """scaled_dot_product_attention() when its options are numbers; lse if it is wanted. Unlike
    there, mask and causal may be given together."""
    if _autocasting() and torch.is_autocast_enabled("cpu"):
        q, k, v, mask = (_autocast(t) for t in (q, k, v, mask))
    _check_types(q, k, v, mask)
    rank = max(q.dim(), k.dim(), v.dim())
    q, k, v, mask, lead = _four_dimensions(q, k, v, mask, enable_gqa)
    vectors = [
        _vector(alibi, "alibi", q.shape[1], torch.float32),
        _vector(sinks, "sinks", q.shape[1], torch.float32),
        _vector(key_lengths, "key_lengths", q.shape[0], torch.int64),
    ]
    if not _compiling():
        _check_transforms(q, k, v, mask, *vectors)
    p = o.dropout
    if not 0 <= p <= 1:
        raise ValueError("dropout_p is %g; it must be 0 <= p <= 1" % p)
    if p == 1:
        o = o._replace(dropout=0.0)
    drawn = _seed(seed) if 0 < p < 1 else None
    if not _compiling() and plans.direct(q, k, v, mask, *vectors):
        number = 0 if drawn is None else int(drawn) % (1 << 64)
        kind = engine.wide(q.dtype) if return_lse else None
        out, lse = engine.forward(q, k, v, mask, *vectors, number, o, kind)
    else:
        out, lse = operator.sdpa(q, k, v, mask, *vectors, drawn, *o)
        lse = lse.to(engine.wide(q.dtype)) if return_lse else None
    if p == 1:
        out = out.masked_fill(torch.ones((), dtype=torch.bool, device=out.device), 0.0)
    if rank == 4:
        return out, lse
    heads = out.shape[1:] if rank > 2 else out.shape[2:]
    out = out.reshape(lead + heads).contiguous()  # like PyTorch's result for other ranks
    return out, None if lse is None else lse.reshape(lead + heads[:-1])


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


def _four_dimensions(
    q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], enable_gqa: bool
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
        _check_broadcast(mask, (*sizes, *_common_tail(q, k, v)))
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


def _vector(x: Optional[_Numbers], name: str, n: int, dtype: torch.dtype) -> Optional[Tensor]:
    """A tensor [n]; one number stands for n equal ones."""
    if x is None:
        return None
    t = x if isinstance(x, Tensor) else torch.as_tensor(x)
    if t.is_floating_point() and not dtype.is_floating_point and t.numel():
        raise TypeError("%s is %s; it must be of integers" % (name, t.dtype))
    if not isinstance(x, Tensor):
        t = t.to(dtype)
    if t.dim() == 0:
        t = t.expand(n)
    if t.dim() != 1 or t.shape[0] != n:
        raise ValueError("%s has shape %s; it must be (%d,)" % (name, tuple(t.shape), n))
    return t


def _seed(seed: Optional[int]) -> Tensor:
    """The seed's 64 bits as a tensor, so that a compiled graph can draw a new one for each call."""
    if seed is None:
        return torch.randint(-(1 << 63), (1 << 63) - 1, (), dtype=torch.int64, device="cpu")
    if not 0 <= seed < 1 << 64:
        raise ValueError("seed is %d; it must be within 0..2^64-1" % seed)
    return torch.tensor(seed if seed < 1 << 63 else seed - (1 << 64), dtype=torch.int64)


# --------------------------------------------------------------------------------- PyTorch's place

_pytorch = torch.nn.functional.scaled_dot_product_attention
_lock = threading.Lock()
_patches = 0
_aside = 0  # calls during which PyTorch's function is restored
# The exceptions for calls that attn does not accept. The dispatcher raises the last two.
_REFUSALS = (TypeError, ValueError) + (() if private.known else (NotImplementedError, RuntimeError))


def _patched(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Replaces PyTorch's scaled_dot_product_attention, and uses attn for the calls that it
    accepts."""
    rule = _is_causal_bias(attn_mask)  # attn handles it itself
    overridden = has_torch_function_variadic(query, key, value, None if rule else attn_mask)
    if _patches and not overridden and _possible(query, key, value, attn_mask):
        try:
            return scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
            )
        except _REFUSALS:
            if _compiling() and rule:
                raise  # a graph of PyTorch's function would read its memory, which has no numbers
            # Otherwise nothing was computed, and PyTorch's function is called: it returns its own
            # result or error.
    with _stepped_aside() if overridden or rule else contextlib.nullcontext():
        return _pytorch(
            query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal,
            scale=scale, enable_gqa=enable_gqa,
        )  # fmt: skip


def _possible(q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor]) -> bool:
    if _compiling():
        return all(t is None or t.device.type == "cpu" for t in (q, k, v, mask))
    if _forward_mode._current_level >= 0 or torch.jit.is_tracing():
        return False
    if mask is None and type(q) is type(k) is type(v) is Tensor and not _functorch():
        return q.is_cpu and k.is_cpu and v.is_cpu  # attn checks everything else
    return all(t is None or private.ordinary(t) for t in (q, k, v, mask))


@contextlib.contextmanager
def _stepped_aside() -> Iterator[None]:
    """A context in which PyTorch's function is restored. A subclass or mode that overrides
    functions compares the called function with the one that it saved before the patch, or with the
    one in torch.nn.functional. Here both are PyTorch's.
    """
    global _aside
    if _compiling():  # a graph is compiled from the code below, without this module's state
        yield
        return
    with _lock:
        _aside += 1
        if torch.nn.functional.scaled_dot_product_attention is _patched:
            torch.nn.functional.scaled_dot_product_attention = _pytorch
    try:
        yield
    finally:
        with _lock:
            _aside -= 1
            here = torch.nn.functional.scaled_dot_product_attention is _pytorch
            if _aside == 0 and _patches > 0 and here:
                torch.nn.functional.scaled_dot_product_attention = _patched


@contextlib.contextmanager
def patch() -> Iterator[None]:
    """A context in which torch.nn.functional.scaled_dot_product_attention is attn's, in all
    threads.

    PyTorch's own function still computes calls with tensors that are not on the CPU or not dense
    tensors of the four float types (subclasses, fake and nested tensors, those of torch.func's
    transforms), calls that a tensor subclass or a TorchFunctionMode overrides, forward-mode
    derivatives, torch.jit's trace and script, and calls that attn refuses.
    torch.nn.attention.sdpa_kernel chooses only among PyTorch's kernels and does not affect attn.
    Second derivatives are not supported. Code that imported the function before (`from
    torch.nn.functional import ...`) keeps PyTorch's. Contexts may be nested and may overlap between
    threads; the last one to end restores PyTorch's function. If other code has replaced the
    function in between, its replacement stays, and the attn function that it may call then calls
    PyTorch's.
    """
    global _patches
    with _lock:
        if _patches == 0 and torch.nn.functional.scaled_dot_product_attention is not _patched:
            _take_place()
        _patches += 1
    try:
        yield
    finally:
        with _lock:
            _patches -= 1
            if _patches == 0 and torch.nn.functional.scaled_dot_product_attention is _patched:
                torch.nn.functional.scaled_dot_product_attention = _pytorch


def _take_place() -> None:
    global _pytorch
    _pytorch = torch.nn.functional.scaled_dot_product_attention
    private.scripted_as(_patched, _pytorch)
    torch.nn.functional.scaled_dot_product_attention = _patched


def register(name: str = "attn") -> None:
    """Makes attn_implementation="attn" (or another name) known to Hugging Face's transformers.

    Tested with transformers 5.23, which is loaded; ImportError without it. See
    docs/PYTHON.md, "Hugging Face".
    """
    from . import _transformers

    _transformers.register(name)
