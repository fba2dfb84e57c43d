"""The key/value cache: the keys and values that a decoder keeps between tokens."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, NoReturn, Optional, Tuple, Union

import numpy as np

from . import _library
from ._array import array, integer, output, tensor_bytes, view
from ._context import context
from ._library import BF16, F16, F32, F64, I8, check, library, refuse_copy
from ._sdpa import arguments, wide

_pack = _library.packer(_library.CacheOptions)
_SIZE = ctypes.sizeof(_library.CacheOptions)
_DTYPES = {"float64": F64, "float32": F32, "float16": F16, "bfloat16": BF16, "int8": I8}


class KVCache:
    """Keys [B,Hk,length,D] and values [B,Hk,length,Dv] of B sequences, each of its own length.

    dtype is the type in which they are stored: "float64", "float32", "float16", "bfloat16" or
    "int8" (with a scale for each row), or NumPy's dtype of that name. All memory, for max_keys keys
    in each sequence, is allocated at once and freed with the object. With page_keys (a multiple of
    64) sequences take pages from a pool of `pages` (0: enough for all).

    Attention from a cache is bit-identical to attention from ordinary arrays with the same stored
    rows. Calls on one cache from several threads wait for each other. After fork() the parent and
    the child each have a copy of the cache, if no call on it was running.

    Source: include/attn_cache.h.
    """

    def __init__(
        self,
        B: int,
        Hk: int,
        D: int,
        Dv: Optional[int] = None,
        *,
        max_keys: int,
        dtype: Any = "float32",
        page_keys: int = 0,
        pages: int = 0,
    ) -> None:
        self._cache: Any = None  # until it is created
        name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
        if name not in _DTYPES:
            raise TypeError("dtype is %s; it must be one of %s" % (name, ", ".join(_DTYPES)))
        names = ("B", "Hk", "D", "Dv", "max_keys", "page_keys", "pages")
        given = (B, Hk, D, D if Dv is None else Dv, max_keys, page_keys, pages)
        numbers = [integer(x, size) for x, size in zip(given, names)]
        for x, size in zip(numbers, names):
            if abs(x) >= 1 << 62:
                raise ValueError("%s is %d; it must be 0 or more, and below 2^62" % (size, x))
        sizes, more = numbers[:4], numbers[4:]
        self._sizes, self._dtype = tuple(sizes), name
        self._lock = threading.RLock()
        made = ctypes.c_void_p()
        options = _pack(_SIZE, *sizes, _DTYPES[name], *more, 0, 0, 0)
        check(library.attn_cache_create, options, ctypes.byref(made))
        self._cache = made

    def __del__(self, destroy: Any = library.attn_cache_destroy) -> None:
        if getattr(self, "_cache", None) is not None:
            destroy(self._cache)
            self._cache = None

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "append the keys and values of read() to a new one")

    @property
    def lengths(self) -> np.ndarray:
        """How many keys each sequence has: [B] int64."""
        with self._lock:
            length = library.attn_cache_length
            return np.array([length(self._cache, b) for b in range(self._sizes[0])], np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of memory of the cache."""
        return int(library.attn_cache_bytes(self._cache))

    def _sequence(self, b: Any) -> int:
        index = integer(b, "b")
        if not 0 <= index < self._sizes[0]:
            last = self._sizes[0] - 1
            raise ValueError("b is %d; the cache has sequences 0..%d" % (index, last))
        return index

    def append(self, k: Any, v: Any, b: Optional[int] = None) -> None:
        """Adds n keys and values: k [Hk,n,D] and v [Hk,n,Dv] to sequence b, or, without b, k
        [B,Hk,n,D] and v [B,Hk,n,Dv]: n keys to each sequence. float64, float32, float16 or
        bfloat16, rounded once to the cache's type. Raises ValueError if there is no room; then
        nothing is added."""
        k, v = array(k, "k"), array(v, "v")
        rank = 4 if b is None else 3
        if k.ndim != rank or v.ndim != rank:
            raise ValueError(
                "k has %d dimensions and v has %d; they must have %d" % (k.ndim, v.ndim, rank)
            )
        if b is not None:
            pairs = [(self._sequence(b), k, v)]
        else:
            if k.shape[0] != self._sizes[0] or v.shape[0] != self._sizes[0]:
                raise ValueError(
                    "k has B=%d and v has B=%d; the cache has B=%d"
                    % (k.shape[0], v.shape[0], self._sizes[0])
                )
            pairs = [(i, k[i], v[i]) for i in range(self._sizes[0])]
        with self._lock:
            before = [library.attn_cache_length(self._cache, i) for i, _, _ in pairs]
            try:
                for i, keys, values in pairs:
                    rows = tensor_bytes(keys, "k"), tensor_bytes(values, "v")
                    check(library.attn_cache_append, self._cache, i, *rows)
            except BaseException:
                for (i, _, _), length in zip(pairs, before):
                    check(library.attn_cache_truncate, self._cache, i, length)
                raise

    def truncate(self, length: int, b: Optional[int] = None) -> None:
        """Shortens sequence b to `length` keys. Without b, shortens every sequence that is
        longer."""
        length = integer(length, "length")
        if not 0 <= length < 1 << 62:
            raise ValueError("length is %d; it must be 0 or more" % length)
        with self._lock:
            for i in range(self._sizes[0]) if b is None else [self._sequence(b)]:
                if b is None and library.attn_cache_length(self._cache, i) < length:
                    continue
                check(library.attn_cache_truncate, self._cache, i, length)

    def read(self, b: int, dtype: Any = None) -> Tuple[np.ndarray, np.ndarray]:
        """Copies of sequence b's keys [Hk,length,D] and values [Hk,length,Dv], in the type in which
        they are stored, but float32 for bfloat16 and int8; or in dtype (float64, float32 or
        float16)."""
        _, Hk, D, Dv = self._sizes
        if dtype is None:
            dtype = self._dtype if self._dtype in ("float64", "float16") else "float32"
        with self._lock:
            n = library.attn_cache_length(self._cache, self._sequence(b))
            k, v = np.empty((Hk, n, D), dtype), np.empty((Hk, n, Dv), dtype)
            rows = tensor_bytes(k, "k"), tensor_bytes(v, "v")
            check(library.attn_cache_read, self._cache, b, 0, *rows)
        return k, v

    def attend(
        self,
        q: Any,
        *,
        mask: Any = None,
        is_causal: bool = True,
        causal_offset: Any = "bottom-right",
        scale: Optional[float] = None,
        window: Optional[Tuple[int, int]] = None,
        softcap: float = 0.0,
        alibi: Any = None,
        sinks: Any = None,
        key_lengths: Any = None,
        dropout_p: float = 0.0,
        seed: int = 0,
        diagonal: Union[int, str] = "top-left",
        alibi_symmetric: bool = False,
        return_lse: bool = False,
        out: Optional[np.ndarray] = None,
        threads: Optional[int] = None,
    ) -> Any:
        """Attention of q [B,H,T,D], the last T tokens of each sequence, to all keys of the cache. H
        is a multiple of Hk. q has the cache's type, or float32, float16 or bfloat16 if that is
        int8.

        Options, exceptions and results are those of scaled_dot_product_attention; S is the longest
        length. By default is_causal is True and causal_offset is bottom-right: the last query
        sees every key.
        """
        q = array(q, "q")
        if q.ndim != 4:
            raise ValueError("q has %d dimensions; it must have 4: [B,H,T,D]" % q.ndim)
        B, _, _, Dv = self._sizes
        if mask is not None:
            mask = array(mask, "mask")
        if out is None:
            out = np.empty(q.shape[:-1] + (Dv,), q.dtype)
        else:
            output(out, "out", *((q,) if mask is None else (q, mask)))
            if out.ndim != 4:
                raise ValueError("out has %d dimensions; it must have 4" % out.ndim)
        lse = np.empty(q.shape[:-1], wide(q.dtype)) if return_lse else None
        nothing = (0,) * 10
        numbers = view(q, "q") + nothing + nothing + view(out, "out")
        packed, keep = arguments(
            numbers, q.shape[1], scale, is_causal, causal_offset if is_causal else None, window,
            softcap, alibi, sinks, key_lengths, dropout_p, seed, mask, lse, None,
            self._cache.value, diagonal, alibi_symmetric,
        )  # fmt: skip
        with self._lock:
            check(library.attn_sdpa_forward, context(threads), packed)
        del keep
        return (out, lse) if return_lse else out
