"""Multi-head attention as a module whose weights are packed once."""

from __future__ import annotations

import ctypes
import math
import struct
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from . import _library, _mha_apart
from ._array import ABSENT, address, array, integer, output, tensor, tensor_bytes, view
from ._context import context
from ._library import MhaArgs, MhaGrads, SdpaArgs, check, library
from ._sdpa import arguments, wide

_SIZE = struct.Struct("@N")
_TAIL = struct.Struct("@PdQ")
_ABSENT = bytes(ctypes.sizeof(_library.Tensor))
_pack_grads = _library.packer(MhaGrads)
_WEIGHTS = ("w_q", "w_k", "w_v", "b_q", "b_k", "b_v", "w_o", "b_o")
_GIVEN = ("in_proj_weight", "in_proj_bias") + _WEIGHTS

Array = Optional[np.ndarray]


class MultiHeadGradients(NamedTuple):
    """The result of MultiHeadAttention.grad(). Each gradient has the shape of its array, and is
    None if it was not wanted. With packed weights, w_q ... b_v are parts of in_proj_*."""

    query: Array
    key: Array  # includes the part through the values, unless these come from another array
    value: Array
    in_proj_weight: Array
    in_proj_bias: Array
    w_q: Array
    w_k: Array
    w_v: Array
    b_q: Array
    b_k: Array
    b_v: Array
    w_o: Array
    b_o: Array
    mask: Array
    alibi: Array  # [H] float64
    sinks: Array  # [H] float64


def _call(function: Any, *arguments: Any) -> None:
    """Like check, but renames attn_nn.h's x and source to query and key in the message."""
    try:
        check(function, *arguments)
    except (ValueError, TypeError) as error:
        name, _, rest = str(error).partition(" ")
        raise type(error)({"x": "query", "source": "key"}.get(name, name) + " " + rest) from None


def _dropout(given: Any) -> Tuple[float, int]:
    """output_dropout, checked before anything is written."""
    try:
        p, seed = given
    except (TypeError, ValueError):
        raise ValueError("output_dropout is %r; it must be (p, seed)" % (given,)) from None
    try:
        p = math.fsum((p,))  # float() would take strings, too
    except TypeError:
        message = "output_dropout has the probability %r; it must be a real number" % (p,)
        raise TypeError(message) from None
    if not 0 <= p < 1:
        raise ValueError("output_dropout is %g; it must be at least 0 and less than 1" % p)
    seed = integer(seed, "the seed of output_dropout")
    if not 0 <= seed < 1 << 64:
        raise ValueError("the seed of output_dropout is %d; it must be within 0..2^64-1" % seed)
    return p, seed


def _rows(x: Any) -> Any:
    """[B,rows,E] as [B,1,rows,E], [rows,E] as [1,1,rows,E]; the same memory."""
    return x[:, None] if x.ndim == 3 else x[None, None]


def _heads_of(x: Any, name: str, heads: int, columns: bool) -> Any:
    """x has shape [heads*D] or [heads, D] and, with `columns`, one dimension more. Returns it with
    an attn_tensor's four dimensions: [1, heads, D, columns] or [1, heads, 1, D]."""
    least = 1 + columns
    if x.ndim not in (least, least + 1):
        raise ValueError(
            "%s has %d dimensions; it must have %d, or %d with the heads as a dimension"
            % (name, x.ndim, least, least + 1)
        )
    if x.ndim == least:
        if heads == 0 or x.shape[0] % heads:
            raise ValueError(
                "%s has %d rows; they must be a multiple of its %d heads"
                % (name, x.shape[0], heads)
            )
        x = x.reshape((heads, x.shape[0] // heads) + x.shape[1:])
    return x[None] if columns else x[None, :, None]


class MultiHeadAttention:
    """Project, attend with every head, join the heads, project: torch.nn.MultiheadAttention's
    computation, on arrays [B,T,E].

    Letters: E size of a query's row, Es of a key's, H query heads, Hk key/value heads, D and Dv
    sizes of a head's key and value, Out of a result. The weights are PyTorch's, rows of outputs:

    in_proj_weight  [(H + 2 Hk) D, E]: w_q, w_k and w_v one below the other (so Es = E, Dv = D)
    in_proj_bias    [(H + 2 Hk) D]: b_q, b_k and b_v; or None. Or each by itself, instead of these:
    w_q, w_k, w_v   [H D, E], [Hk D, Es], [Hk Dv, Es], or with separate heads: [H, D, E] and so on
    b_q, b_k, b_v   [H D], [Hk D], [Hk Dv], or with separate heads; each may be None
    w_o, b_o        [Out, H Dv] and [Out]: out_proj's; without w_o the joined heads are the result
    kv_heads        Hk; None: H. Query head h reads key/value head h // (H // Hk)

    All float32 or all float64. They are copied: once as they are, for gradients, and once packed
    for the instruction set. Changing the arrays later changes nothing.

        m = torch.nn.MultiheadAttention(E, H)
        attn.MultiHeadAttention(H, in_proj_weight=m.in_proj_weight.detach(), in_proj_bias=...,
                                w_o=m.out_proj.weight.detach(), b_o=m.out_proj.bias.detach())

    A module does not change, so any threads may call it at once. It can be pickled.
    Raises ValueError and TypeError, with the engine's message. Source: Vaswani et al. 2017.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        in_proj_weight: Any = None,
        in_proj_bias: Any = None,
        w_q: Any = None,
        w_k: Any = None,
        w_v: Any = None,
        b_q: Any = None,
        b_k: Any = None,
        b_v: Any = None,
        w_o: Any = None,
        b_o: Any = None,
        kv_heads: Optional[int] = None,
    ) -> None:
        self._module: Any = None  # until it is created
        H = self.num_heads = integer(num_heads, "num_heads")
        Hk = self.kv_heads = H if kv_heads is None else integer(kv_heads, "kv_heads")
        if not 1 <= Hk <= H < 1 << 31:
            raise ValueError("num_heads is %d and kv_heads is %d; 1 <= kv_heads <= num_heads"
                             % (H, Hk))  # fmt: skip
        values = in_proj_weight, in_proj_bias, w_q, w_k, w_v, b_q, b_k, b_v, w_o, b_o
        self._given: Dict[str, np.ndarray] = {
            name: np.array(array(x, name), order="C")
            for name, x in zip(_GIVEN, values)
            if x is not None
        }
        parts = dict(self._given)
        self._split(parts, H, Hk)
        for name in ("w_q", "w_k", "w_v"):
            if name not in parts:
                raise ValueError("%s is not given; give it, or in_proj_weight" % name)
        heads = {"q": H, "k": Hk, "v": Hk}
        four = {}
        for name in _WEIGHTS:
            if name not in parts:
                continue
            if name[2] != "o":
                four[name] = _heads_of(parts[name], name, heads[name[2]], name[0] == "w")
            elif parts[name].ndim != 1 + (name[0] == "w"):
                raise ValueError("%s has %d dimensions; it must have %d"
                                 % (name, parts[name].ndim, 1 + (name[0] == "w")))  # fmt: skip
            else:
                four[name] = parts[name]
        self._weights = b"".join(
            tensor_bytes(four[name], name) if name in four else _ABSENT for name in _WEIGHTS
        )
        self._four = four
        self.dtype = four["w_q"].dtype
        self.embed_dim = four["w_q"].shape[-1]
        self._out = (
            four["w_o"].shape[0] if "w_o" in four else H * four["w_v"].shape[2]
        )
        made = ctypes.c_void_p()
        args, _ = self._args(None, None, None, None, (0.0, 0))
        check(library.attn_mha_create, context(None), args, ctypes.byref(made))
        self._module = made.value

    @staticmethod
    def _split(parts: Dict[str, Any], H: int, Hk: int) -> None:
        """Adds w_q ... b_v to the parts, as views of in_proj_*."""
        for name, rank, held in (
            ("in_proj_weight", 2, ("w_q", "w_k", "w_v")),
            ("in_proj_bias", 1, ("b_q", "b_k", "b_v")),
        ):
            if name not in parts:
                continue
            x = parts[name]
            for part in held:
                if part in parts:
                    raise ValueError(
                        "%s is given together with %s, which contains it; leave one out"
                        % (part, name)
                    )
            if x.ndim != rank or x.shape[0] % (H + 2 * Hk):
                raise ValueError(
                    "%s has shape %s; it must be %s with a multiple of num_heads + 2 kv_heads = %d "
                    "rows" % (name, x.shape, ("[rows]", "[rows, E]")[rank - 1], H + 2 * Hk)
                )
            D = x.shape[0] // (H + 2 * Hk)
            parts.update(zip(held, np.split(x, [H * D, (H + Hk) * D])))

    def __del__(self, destroy: Any = library.attn_mha_destroy) -> None:
        if getattr(self, "_module", None) is not None:
            destroy(self._module)
            self._module = None

    def __reduce__(self) -> Any:
        return _again, (self.num_heads, self.kv_heads, self._given)

    def __repr__(self) -> str:
        heads = "%d" % self.num_heads
        if self.kv_heads != self.num_heads:
            heads += ", kv_heads=%d" % self.kv_heads
        return "MultiHeadAttention(%s: %d -> %d, %s)" % (
            heads, self.embed_dim, self._out, self.dtype
        )  # fmt: skip

    def _args(
        self,
        query: Any,
        key: Any,
        out: Any,
        attention: Optional[bytes],
        dropout: Tuple[float, int],
    ) -> Tuple[bytes, Any]:
        """The bytes of an attn_mha_args, and the objects that must live while these are used."""
        kept = None if attention is None else SdpaArgs.from_buffer_copy(attention)
        attention_at = 0 if kept is None else ctypes.addressof(kept)
        tensors = [
            _ABSENT if x is None else tensor_bytes(_rows(x), name)
            for x, name in ((query, "query"), (key, "key"), (out, "out"))
        ]
        packed = b"".join(
            (
                _SIZE.pack(ctypes.sizeof(MhaArgs)), tensors[0], tensors[1], self._weights,
                tensors[2], _TAIL.pack(attention_at, *dropout),
            )
        )  # fmt: skip
        assert len(packed) == ctypes.sizeof(MhaArgs)
        return packed, kept

    def _inputs(self, query: Any, key: Any, value: Any) -> Tuple[Any, Any, Any]:
        """Query, key and value as arrays; None for a key that is the query, or a value that is the
        key."""
        if value is not None and key is None:
            raise ValueError("value is given without key")
        value = None if value is key else value
        key = None if key is query and value is None else key
        made: List[Any] = []
        inputs = (query, "query", "w_q"), (key, "key", "w_k"), (value, "value", "w_v")
        for x, name, weight in inputs:
            if x is not None or name == "query":
                x = array(x, name)
                self._check_input(x, name, self._four[weight].shape[-1])
                if x.ndim != (made or [x])[0].ndim:
                    raise ValueError("%s has %d dimensions and query has %d; they must be equal"
                                     % (name, x.ndim, made[0].ndim))  # fmt: skip
            made.append(x)
        query, key, value = made
        if value is not None and value.shape[:-1] != key.shape[:-1]:
            raise ValueError("value has shape %s and key has %s; all but the last must be equal"
                             % (value.shape, key.shape))  # fmt: skip
        return query, key, value

    def _check_input(self, x: Any, name: str, size: int) -> None:
        if x.ndim not in (2, 3):
            raise ValueError(
                "%s has %d dimensions; it must have 3: [B,rows,E], or 2: [rows,E]" % (name, x.ndim)
            )
        if x.dtype != self.dtype:
            raise TypeError("%s is %s; the module is %s" % (name, x.dtype, self.dtype))
        if x.shape[-1] != size:
            letter = "E" if name == "query" else "Es"
            raise ValueError("%s has %s=%d; the module has %d" % (name, letter, x.shape[-1], size))

    def _check_result(self, x: Any, name: str, query: Any) -> None:
        shape = query.shape[:-1] + (self._out,)
        if x.shape != shape:
            raise ValueError("%s has shape %s; it must be %s" % (name, x.shape, shape))

    def _attention(
        self, query: Any, options: Dict[str, Any], lse: Any = None, weights: Any = None
    ) -> Tuple[bytes, List[Any]]:
        """The bytes of the attn_sdpa_args that attn_mha_args points to, and the objects that must
        live while these are used."""
        options = dict(options)
        if options.get("mask") is not None:
            options["mask"] = array(options["mask"], "mask")
        batch = query.shape[0] if query.ndim == 3 else 1
        tensors = (0, 0, batch) + (0,) * 37
        return arguments(tensors, self.num_heads, lse=lse, weights=weights, **options)

    def __call__(
        self,
        query: Any,
        key: Any = None,
        value: Any = None,
        *,
        return_weights: bool = False,
        return_lse: bool = False,
        out: Optional[np.ndarray] = None,
        output_dropout: Tuple[float, int] = (0.0, 0),
        threads: Optional[int] = None,
        **options: Any,
    ) -> Any:
        """The result [B,T,Out] for query [B,T,E]. Keys and values are projected from key [B,S,Es],
        or from query if key is None; values from value [B,S,Es] if it is given. B is missing in all
        of them or in none. The type is the module's. If values come from another array than keys,
        the same steps are called one by one. The bits are the same, but weights are packed in every
        call.

        options         mask, is_causal, causal_offset, scale, window, diagonal, softcap, alibi,
                        alibi_symmetric, sinks, key_lengths, dropout_p and seed, as
                        scaled_dot_product_attention has them
        output_dropout  (p, seed), of the result
        out             where to write

        Returns the result, or a tuple of it and, in this order, the other outputs wanted: with
        return_weights, each head's weights [B,H,T,S]; with return_lse [B,H,T].
        """
        query, key, value = self._inputs(query, key, value)
        output_dropout = _dropout(output_dropout)
        if out is None:
            out = np.empty(query.shape[:-1] + (self._out,), query.dtype)
        else:
            mask = options.get("mask")
            if mask is not None:
                mask = options["mask"] = array(mask, "mask")
            output(out, "out", *(x for x in (query, key, value, mask) if x is not None))
            self._check_result(out, "out", query)
            view(out, "out")  # checks the rest
            if out.dtype != self.dtype:
                raise TypeError("out is %s; the module is %s" % (out.dtype, self.dtype))
        if value is not None:
            sources = tuple(_rows(x) for x in (query, key, value))
            asked = {"return_weights": return_weights, "return_lse": return_lse}
            more = _mha_apart.forward(
                self._four, sources, _rows(out), output_dropout, threads, options, asked
            )
            more = more if query.ndim == 3 else tuple(x[0] for x in more)
        else:
            more = self._run(query, key, out, output_dropout, threads, options,
                             return_weights, return_lse)  # fmt: skip
        return (out, *more) if more else out

    def _run(
        self,
        query: Any,
        key: Any,
        out: Any,
        output_dropout: Tuple[float, int],
        threads: Any,
        options: Dict[str, Any],
        return_weights: bool,
        return_lse: bool,
    ) -> Tuple[Any, ...]:
        """Calls the library's module, which writes to `out`. Returns the other outputs wanted."""
        heads = query.shape[:-2] + (self.num_heads, query.shape[-2])
        S = (query if key is None else key).shape[-2]
        weights = np.empty(heads + (S,), query.dtype) if return_weights else None
        lse = np.empty(heads, wide(query.dtype)) if return_lse else None
        attention, keep = self._attention(query, options, lse, weights)
        args, kept = self._args(query, key, out, attention, output_dropout)
        _call(library.attn_mha_run, context(threads), self._module, args)
        del keep, kept
        return tuple(x for x in (weights, lse) if x is not None)

    def grad(
        self,
        dout: Any,
        query: Any,
        key: Any = None,
        value: Any = None,
        *,
        want: Optional[Sequence[str]] = None,
        output_dropout: Tuple[float, int] = (0.0, 0),
        threads: Optional[int] = None,
        **options: Any,
    ) -> MultiHeadGradients:
        """The gradients of a loss. dout [B,T,Out] is its gradient with respect to the result of a
        call with the same arguments and options.

        want names what is computed: "query", "key", "value", the names of the weights that the
        module has, "mask" (a float mask), "alibi", "sinks". None: those of the first three that
        were given, and all weights.
        """
        query, key, value = self._inputs(query, key, value)
        output_dropout = _dropout(output_dropout)
        dout = array(dout, "dout")
        self._check_result(dout, "dout", query)
        possible = {"query": query, "key": key, "value": value, **self._given}
        possible.update((name, options.get(name)) for name in ("mask", "alibi", "sinks"))
        possible = {name: x for name, x in possible.items() if x is not None}
        if want is None:
            want = [name for name in possible if name not in ("mask", "alibi", "sinks")]
        for name in want:
            if name not in possible:
                names = ", ".join(possible)
                raise ValueError("want has %r; it may name %s" % (name, names))
        made = {
            name: np.empty(self.num_heads, np.float64)
            if name in ("alibi", "sinks")
            else np.empty(array(possible[name], name).shape, self.dtype)
            for name in want
        }
        self._split(made, self.num_heads, self.kv_heads)
        if value is not None:
            self._grad_apart(dout, (query, key, value), made, output_dropout, threads, options)
        else:
            args, grads, keep = self._grad_structures(
                dout, query, key, made, options, output_dropout
            )
            _call(library.attn_mha_backward, context(threads), args, grads)
            del keep
        return MultiHeadGradients(*(made.get(name) for name in MultiHeadGradients._fields))

    def _shaped(self, made: Dict[str, Any]) -> Dict[str, Any]:
        """Arrays for the gradients of weights and inputs, in the form that attn_mha_grads and
        _mha_apart need."""
        shaped = dict(made)
        for name in ("query", "key", "value"):
            if name in made:
                shaped[name] = _rows(made[name])
        for name in _WEIGHTS[:6]:
            if name in made:
                heads = self.num_heads if name[2] == "q" else self.kv_heads
                shaped[name] = _heads_of(made[name], name, heads, name[0] == "w")
        return shaped

    def _grad_apart(
        self,
        dout: Any,
        sources: Tuple[Any, ...],
        made: Dict[str, Any],
        output_dropout: Tuple[float, int],
        threads: Any,
        options: Dict[str, Any],
    ) -> None:
        four = tuple(_rows(x) for x in sources)
        _mha_apart.backward(
            self._four, four, _rows(dout), self._shaped(made), output_dropout, threads, options
        )

    def _grad_structures(
        self,
        dout: Any,
        query: Any,
        key: Any,
        made: Dict[str, Any],
        options: Dict[str, Any],
        output_dropout: Tuple[float, int],
    ) -> Tuple[bytes, bytes, Any]:
        """The bytes of attn_mha_args and attn_mha_grads, and the objects that must live while these
        are used."""
        attention, keep = self._attention(query, options)
        args, kept = self._args(query, key, None, attention, output_dropout)
        shaped = self._shaped(made)
        numbers = list(view(_rows(dout), "dout"))
        for name in ("query", "key") + _WEIGHTS:
            numbers += view(shaped[name], "d" + name) if name in shaped else ABSENT
        kept_mask, dmask_at = tensor(made["mask"], "dmask") if "mask" in made else (None, 0)
        sums = [address(made[name]) if name in made else 0 for name in ("alibi", "sinks")]
        grads = _pack_grads(ctypes.sizeof(MhaGrads), *numbers, dmask_at, *sums)
        return args, grads, (keep, kept, kept_mask)


def _again(num_heads: int, kv_heads: int, given: Dict[str, Any]) -> MultiHeadAttention:
    return MultiHeadAttention(num_heads, kv_heads=kv_heads, **given)
