"""Attention to keys and values that arrive in pieces: for more of them than memory holds."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import tempfile
import threading
from typing import Any, Callable, Iterator, List, NoReturn, Optional, Tuple, Union

import numpy as np

from . import _library
from ._array import array, integer, output, tensor_bytes, vector, view
from ._context import context
from ._library import AGAIN, check, library, refuse_copy
from ._sdpa import arguments, wide

_pack = _library.packer(_library.PiecesOptions)
_SIZE = ctypes.sizeof(_library.PiecesOptions)


def size(x: Any, name: str) -> int:
    number = integer(x, name)
    if not 0 <= number < 1 << 62:
        raise ValueError("%s is %d; it must be 0 or more, and below 2^62" % (name, number))
    return number


def part_options(
    T: int,
    q_positions: Any,
    whole_T: int,
    head_offset: int,
    whole_H: int,
    sums_in: bool = False,
    sums_out: bool = False,
) -> Tuple[bytes, Any]:
    """The bytes of an attn_pieces_options, and the positions, which must live while they are
    used."""
    positions, at = None, 0
    if q_positions is not None:
        positions, at = vector(q_positions, "q_positions", T, np.int64, "T")
    numbers = ((whole_T, "whole_T"), (head_offset, "head_offset"), (whole_H, "whole_H"))
    sums = int(bool(sums_in)), int(bool(sums_out))
    return _pack(_SIZE, at, *(size(x, name) for x, name in numbers), *sums), positions


def whole_pieces(piece: Any) -> int:
    """The largest number of keys of a piece."""
    keys = size(piece, "piece")
    if keys == 0 or keys % 256:
        raise ValueError("piece is %d; it must be a multiple of 256" % keys)
    return keys


def same_keys(S: int, k: Any, v: Any) -> None:
    if k.shape[-2] != S or v.shape[-2] != S:
        raise ValueError(
            "k has %d keys and v has %d; they must have total_keys = %d"
            % (k.shape[-2], v.shape[-2], S)
        )


@contextlib.contextmanager
def _caught(function: Any, failure: List[BaseException]) -> Iterator[None]:
    """Adds exceptions that ctypes swallows to `failure`: a signal's handler may raise one at the
    first instruction of the callback `function`, before its `try`. Handlers run in the main thread
    only, so no other thread needs to change Python's hook."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = sys.unraisablehook

    def hook(lost: Any) -> Any:
        if lost.object is function and lost.exc_value is not None:
            failure.append(lost.exc_value)
            return None
        return before(lost)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        if sys.unraisablehook is hook:
            sys.unraisablehook = before


class Pieces:
    """Attention of q [B,H,T,D] to total_keys keys [B,Hk,total_keys,D] and values, which feed() gets
    in pieces. The result has the bits of one call of scaled_dot_product_attention with all keys,
    for any sizes of pieces.

        p = attn.Pieces(q, k.shape[-2], is_causal=True)
        for first, past in p.needed(65536):         # k, v: a numpy.memmap, for example
            p.feed(first, k[:, :, first:past], v[:, :, first:past])
        p.out                                       # [B,H,T,Dv]; p.lse: [B,H,T]

    or p.run(k, v). B, or B and H, may be missing in all arrays. Hk and Dv are H and D if they are
    not given. The options are those of scaled_dot_product_attention; mask has all keys, [B,H,T,S].

    q_positions    [T] integers: the positions of q's rows in a whole with more rows, in any order;
                   all rules count them instead of rows. None: 0 .. T-1
    whole_T        rows of the whole, for bottom-right; 0: T
    head_offset    head h of q is head head_offset + h of the whole, of
    whole_H        heads, for dropout; 0: H

    saved          bytes that save() returned, or the path of its file: goes on where they left off.
                   q and all options must be those of the saved call, but threads; k and v are not
                   compared

    The arrays q, mask and out must stay as they are until the end. Keys that no row sees are not
    asked for. Calls on one object from several threads wait for each other.

    Source: include/attn_pieces.h.
    """

    out: np.ndarray
    lse: np.ndarray

    def __init__(
        self,
        q: Any,
        total_keys: int,
        *,
        Hk: Optional[int] = None,
        Dv: Optional[int] = None,
        mask: Any = None,
        is_causal: bool = False,
        causal_offset: Any = None,
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
        q_positions: Any = None,
        whole_T: int = 0,
        head_offset: int = 0,
        whole_H: int = 0,
        out: Optional[np.ndarray] = None,
        threads: Optional[int] = None,
        saved: Union[None, bytes, str, "os.PathLike[str]"] = None,
    ) -> None:
        self._state: Any = None  # until it is created
        q = array(q, "q")
        if q.ndim not in (2, 3, 4):
            raise ValueError("q has %d dimensions; it must have 2, 3 or 4" % q.ndim)
        if mask is not None:
            mask = array(mask, "mask")
        self._S = size(total_keys, "total_keys")
        of_q = view(q, "q")
        B, H, T, D = of_q[2:6]
        Hk = H if Hk is None else size(Hk, "Hk")
        Dv = D if Dv is None else size(Dv, "Dv")
        if out is None:
            out = np.empty(q.shape[:-1] + (Dv,), q.dtype)
        else:
            output(out, "out", *((q,) if mask is None else (q, mask)))
            if out.ndim != q.ndim:
                raise ValueError("out has %d dimensions; it must have q's %d" % (out.ndim, q.ndim))
        self.out, self.lse = out, np.empty(q.shape[:-1], wide(q.dtype))
        keys = (0, of_q[1], B, Hk, self._S, D, 0, 0, 0, 0)
        values = (0, of_q[1], B, Hk, self._S, Dv, 0, 0, 0, 0)
        packed, keep = arguments(
            of_q + keys + values + view(out, "out"), H, scale, is_causal, causal_offset, window,
            softcap, alibi, sinks, key_lengths, dropout_p, seed, mask, self.lse, None, 0, diagonal,
            alibi_symmetric,
        )  # fmt: skip
        options, positions = part_options(T, q_positions, whole_T, head_offset, whole_H)
        self._keep = keep, q, mask, positions, self.out, self.lse  # the state writes to these
        self._lock = threading.RLock()
        made = ctypes.c_void_p()
        if saved is None:
            check(library.attn_sdpa_begin, context(threads), packed, options, ctypes.byref(made))
        else:
            state = bytes(saved) if isinstance(saved, (bytes, bytearray, memoryview)) else None
            if state is None:
                with open(saved, "rb") as file:
                    state = file.read()
            check(library.attn_sdpa_load, context(threads), packed, options, state, len(state),
                  ctypes.byref(made))  # fmt: skip
        self._state = made

    def __del__(self, end: Any = library.attn_sdpa_end) -> None:
        if getattr(self, "_state", None) is not None:
            end(self._state)
            self._state = None

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "use save() and Pieces(..., saved=...)")

    @property
    def nbytes(self) -> int:
        """Bytes of memory of the state, which do not depend on total_keys."""
        return int(library.attn_sdpa_state_bytes(self._state))

    def next(self) -> Tuple[int, int]:
        """The keys that are needed next, first .. past-1; (total_keys, total_keys) if none is."""
        past = ctypes.c_int64()
        with self._lock:
            first = library.attn_sdpa_next(self._state, ctypes.byref(past))
        return int(first), int(past.value)

    def feed(self, first_key: int, k: Any, v: Any) -> None:
        """Attends to keys first_key .. first_key+n-1: k [B,Hk,n,D], v [B,Hk,n,Dv]. Pieces come in
        order; first_key is a multiple of 256, and so is n, or the piece ends with the last key."""
        k, v = array(k, "k"), array(v, "v")
        output(self.out, "out", k, v)
        rows = tensor_bytes(k, "k"), tensor_bytes(v, "v")
        with self._lock:
            check(library.attn_sdpa_feed, self._state, size(first_key, "first_key"), *rows)

    def finish(self) -> bool:
        """Writes out and lse. False: some rows, whose result was not finite, need their keys once
        more (next() says which); call finish() again after them."""
        error = _library.Error()
        with self._lock:
            status = library.attn_sdpa_finish(self._state, ctypes.byref(error))
        if status == AGAIN:
            return False
        if status:
            _library.fail(error)
        return True

    def needed(self, piece: int = 65536) -> Iterator[Tuple[int, int]]:
        """Yields first, past of each piece that is to be fed, at most `piece` keys (a multiple of
        256), and calls finish(). After the loop, out and lse are final."""
        piece = whole_pieces(piece)
        while True:
            first, past = self.next()
            if first < self._S:
                yield first, min(past, first + piece)
                if self.next()[0] == first:
                    raise ValueError("keys %d to %d have not been fed" % (first, past - 1))
            elif self.finish():
                return

    def steps(self, k: Any, v: Any, piece: int = 65536) -> Iterator[int]:
        """Feeds all keys that are needed from k [B,Hk,total_keys,D] and v, which may be larger than
        memory (numpy.memmap). Yields the number of the key after each piece; the body of the loop
        may call save()."""
        same_keys(self._S, k, v)
        for first, past in self.needed(piece):
            self.feed(first, k[..., first:past, :], v[..., first:past, :])
            yield past

    def run(self, k: Any, v: Any, piece: int = 65536) -> np.ndarray:
        """Does all steps(). Returns out."""
        for _ in self.steps(k, v, piece):
            pass
        return self.out

    def save(self, path: Union[None, str, "os.PathLike[str]"] = None) -> Optional[bytes]:
        """Saves how far the call is, between two pieces, for Pieces(..., saved=...). Returns bytes
        or, with a path, writes a file. The file is replaced when the new one is complete, so a
        crash leaves the old one or the new one."""
        if path is None:
            parts: List[bytes] = []
            self._save(parts.append)
            return b"".join(parts)
        path = os.path.abspath(path)
        handle, temporary = tempfile.mkstemp(prefix=".attn-", dir=os.path.dirname(path))
        try:
            with os.fdopen(handle, "wb") as file:
                self._save(file.write)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):  # the file may have its new name already
                os.unlink(temporary)
            raise
        return None

    def _save(self, put: Callable[[bytes], Any]) -> None:
        """Gives put() all bytes of the state. They are counted first, so that none is missing if
        an exception of a signal's handler is lost after all."""
        with self._lock:
            least = self._saved_bytes(lambda _: None)
            if self._saved_bytes(put) != least:
                raise RuntimeError("save() was interrupted; nothing was saved")

    def _saved_bytes(self, put: Callable[[bytes], Any]) -> int:
        """How many bytes put() got."""
        failure: List[BaseException] = []
        total = 0

        def write(user: Any, at: Any, n: int) -> int:
            nonlocal total
            try:
                if failure:
                    return 1
                put(ctypes.string_at(at, n))
                total += n
                return 0
            except BaseException as error:  # also KeyboardInterrupt, which ctypes would swallow
                failure.append(error)
            return 1

        error = _library.Error()
        callback = _library.WRITE(write)
        with _caught(write, failure):
            status = library.attn_sdpa_save(self._state, callback, None, ctypes.byref(error))
        if failure:
            raise failure[0]
        if status:
            _library.fail(error)
        return total
