"""attn on PyTorch's tensors: the function, an operator for autograd and torch.compile, a patch that
replaces PyTorch's own function, an attention for Hugging Face's models, and one over processes.

    import attn.torch
    out = attn.torch.scaled_dot_product_attention(q, k, v, is_causal=True)
    with attn.torch.patch():                              # whatever calls PyTorch's function
        out = model(x)
    attn.torch.register()                                 # Hugging Face's transformers
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="attn")
    attention = attn.torch.context_parallel(group)        # a sequence on several processes

Tested with PyTorch 2.13, which `import attn` alone does not load. Calls use torch.get_num_threads()
threads.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Iterator, Optional, Tuple, Union

import torch
import torch.nn.functional
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from . import _torch_arguments as checks
from . import _torch_engine as engine
from . import _torch_operator as operator
from . import _torch_plans as plans
from . import _torch_private as private
from ._torch_arguments import Numbers as _Numbers
from ._torch_engine import Options

if TYPE_CHECKING:
    from ._torch_context_parallel import ContextParallel

__all__ = ["context_parallel", "patch", "register", "scaled_dot_product_attention"]

_compiling = torch.compiler.is_compiling
_autocasting, _functorch = private.autocasting, private.functorch
_forward_mode = private.forward_mode


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
    checks.check_flags(attn_mask, is_causal, enable_gqa, alibi, alibi_symmetric)
    o = engine.options(
        is_causal, causal_offset, scale, window, softcap, dropout_p, diagonal, alibi_symmetric
    )
    out, lse = attend(
        query, key, value, attn_mask, enable_gqa, o, alibi, sinks, key_lengths, seed, return_lse
    )
    if plain and _as_they_are(query, key, value, attn_mask):
        if isinstance(window, list):
            numbers = is_causal, scale, enable_gqa, softcap, tuple(window), diagonal
        if plans.constant(numbers):
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
    q, k, v, mask, vectors, shape = checks.four_dimensions(
        q, k, v, mask, enable_gqa, alibi, sinks, key_lengths
    )
    p = checks.check_dropout(o)
    if p == 1:
        o = o._replace(dropout=0.0)
    drawn = checks.draw_seed(seed, p)
    if not _compiling() and plans.direct(q, k, v, mask, *vectors):
        number = 0 if drawn is None else int(drawn) % (1 << 64)
        kind = engine.wide(q.dtype) if return_lse else None
        out, lse = engine.forward(q, k, v, mask, *vectors, number, o, kind)
    else:
        out, lse = operator.sdpa(q, k, v, mask, *vectors, drawn, *o)
        lse = lse.to(engine.wide(q.dtype)) if return_lse else None
    if p == 1:
        out = out.masked_fill(torch.ones((), dtype=torch.bool, device=out.device), 0.0)
    lse = None if lse is None else checks.restore(lse, *shape, fewer=1)
    return checks.restore(out, *shape), lse


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


def context_parallel(
    group: Any = None, *, deadline: float = 600.0, segment_keys: int = 0, heads: bool = False
) -> "ContextParallel":
    """Attention over the processes of a group of torch.distributed, each of which has a part of the
    sequence. All processes of the group must call it. See ContextParallel, which it returns.

    group         None: all processes. Its backend does not matter: messages use a group of gloo,
                  which this function creates
    deadline      seconds without any message, after which a call fails; it must be longer than the
                  slowest process needs between two calls, and for a segment of keys or, with
                  heads=True, for its heads
    segment_keys  how many keys travel at once; 0: the library chooses 2048 or more
    heads         True: each process computes some heads of key, with their heads of query, for all
                  tokens. So key needs a head for each process, and segment_keys must be 0. All
                  gradients then have the bits of one process

    Raises ImportError without libattn-mpi.so, RuntimeError if torch.distributed is not initialised
    or the processes cannot connect within the deadline, ValueError for a value and for a process
    outside of the group.
    """
    from ._torch_context_parallel import create

    return create(group, deadline, segment_keys, heads)
