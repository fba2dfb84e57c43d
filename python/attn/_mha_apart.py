"""Multi-head attention whose values come from another array than its keys. It calls one by one the
steps that the library's module does in one call; the results are bit-identical."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import numpy as np

from ._array import tensor_bytes
from ._context import context
from ._library import check, library
from ._sdpa import grad, scaled_dot_product_attention

# `four`: the module's weights by name, with separate heads: [1,heads,D,E], [1,heads,1,D], and w_o
# and b_o as they are. Inputs are [B,1,rows,E]; arrays with heads are [B,heads,rows,D].
Four = Dict[str, np.ndarray]


def _bytes(a: Optional[np.ndarray], name: str) -> Optional[bytes]:
    return None if a is None else tensor_bytes(a, name)


def _linear(x: Any, w: Any, b: Any, out: Any, threads: Any) -> Any:
    words = _bytes(x, "x"), _bytes(w, "weight"), _bytes(b, "bias"), _bytes(out, "out")
    check(library.attn_linear_forward, context(threads), *words)
    return out


def _linear_grad(
    dout: Any, x: Any, w: Any, dx: Any, dw: Any, db: Any, threads: Any
) -> None:  # fmt: skip
    words = [_bytes(a, "a") for a in (dout, x, w, dx, dw, db)]
    check(library.attn_linear_backward, context(threads), *words)


def _project(four: Four, sources: Tuple[Any, ...], threads: Any) -> Any:
    """Projects q, k and v."""
    made = []
    for letter, x in zip("qkv", sources):
        w = four["w_" + letter]
        out = np.empty((x.shape[0], w.shape[1], x.shape[2], w.shape[2]), x.dtype)
        made.append(_linear(x, w, four.get("b_" + letter), out, threads))
    return made


def _drop(x: Any, dropout: Tuple[float, int]) -> None:
    """Applies dropout to a result [B,1,T,Out], or to its gradient, in place. Dropped elements
    become 0, not -0."""
    p, seed = dropout
    B, _, T, Out = x.shape
    mask = np.empty((1, 1, B * T, Out), np.bool_)
    check(library.attn_dropout_mask, seed, p, tensor_bytes(mask, "mask"))
    x *= x.dtype.type(1 / (1 - p))
    x[~mask.reshape(x.shape)] = 0


def forward(
    four: Four,
    sources: Tuple[Any, ...],
    out: Any,
    dropout: Tuple[float, int],
    threads: Any,
    options: Dict[str, Any],
    asked: Dict[str, Any],
) -> Tuple[Any, ...]:
    """Writes out [B,1,T,Out]. Returns a tuple of the weights and lse, if they are wanted."""
    q, k, v = _project(four, sources, threads)
    B, H, T, _ = q.shape
    # Without w_o, out is the joined heads: the library writes them there, and checks out.
    joined = np.empty((B, 1, T, H * v.shape[3]), q.dtype) if "w_o" in four else out
    heads = joined.reshape(B, T, H, v.shape[3]).swapaxes(1, 2)
    results = scaled_dot_product_attention(
        q, k, v, out=heads, enable_gqa=True, threads=threads, **asked, **options
    )
    if "w_o" in four:
        _linear(joined, four["w_o"], four.get("b_o"), out, threads)
    if dropout[0]:
        _drop(out, dropout)
    return results[1:] if isinstance(results, tuple) else ()


def backward(
    four: Four,
    sources: Tuple[Any, ...],
    dout: Any,
    made: Dict[str, Any],
    dropout: Tuple[float, int],
    threads: Any,
    options: Dict[str, Any],
) -> None:
    """Writes the gradients that are in `made`: dquery, dkey and dvalue [B,1,rows,E] as "query",
    "key", "value", gradients of weights by their names, shaped as in `four`, and "mask", "alibi",
    "sinks"."""
    q, k, v = _project(four, sources, threads)
    B, H, T, _ = q.shape
    Dv = v.shape[3]
    if dropout[0]:
        dout = np.array(dout)
        _drop(dout, dropout)
    if "w_o" in four:
        joined = np.empty((B, T, H, Dv), q.dtype)
        scaled_dot_product_attention(
            q, k, v, out=joined.swapaxes(1, 2), enable_gqa=True, threads=threads, **options
        )
        djoined = np.empty((B, 1, T, H * Dv), q.dtype)
        joined = joined.reshape(djoined.shape)
        dw, db = made.get("w_o"), made.get("b_o")
        _linear_grad(dout, joined, four["w_o"], djoined, dw, db, threads)
        dout = djoined
    dheads = dout.reshape(B, T, H, Dv).swapaxes(1, 2)
    more = [name for name in ("mask", "alibi", "sinks") if name in made]
    want = ["q", "k", "v", *more]
    got = grad(q, k, v, dheads, want=want, enable_gqa=True, threads=threads, **options)
    for wanted in more:
        made[wanted][...] = getattr(got, wanted)
    for letter, x, name in zip("qkv", sources, ("query", "key", "value")):
        dx, dw, db = (made.get(n) for n in (name, "w_" + letter, "b_" + letter))
        if dx is not None or dw is not None or db is not None:
            dout = getattr(got, letter)
            _linear_grad(dout, x, four["w_" + letter], dx, dw, db, threads)
