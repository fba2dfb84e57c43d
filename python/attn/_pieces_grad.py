"""The gradients of attention to keys and values that arrive in pieces."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Dict, Iterator, List, NoReturn, Optional, Sequence, Tuple, Union

import numpy as np

from . import _library
from ._array import ABSENT, address, array, output, tensor, tensor_bytes, view
from ._context import context
from ._library import check, library, refuse_copy
from ._pieces import part_options, same_keys, size, whole_pieces
from ._sdpa import arguments, check_want, wide

_pack = _library.packer(_library.SdpaGrads)
_SIZE = ctypes.sizeof(_library.SdpaGrads)


class PiecesGrad:
    """The gradients of attn.Pieces, or of a call of scaled_dot_product_attention with all keys, for
    keys that feed() gets in pieces. The result has the bits of one call of attn.grad with all keys,
    for any sizes of pieces.

        g = attn.PiecesGrad(q, dout, p.out, p.lse, k.shape[-2], is_causal=True)
        for first, past in g.needed(65536):
            dk[:, :, first:past], dv[:, :, first:past] = g.feed(
                first, k[:, :, first:past], v[:, :, first:past])
        g.q                                         # dq [B,H,T,D]

    or g.run(k, v, dk, dv). q, dout, out, lse and dq stay in memory. The options are those of
    attn.Pieces and of attn.grad; out [B,H,T,Dv] and lse [B,H,T] are the results of the forward.

    want           names of what is computed: "q", "k", "v", "mask", "alibi", "sinks". The last
                   three and "q" are attributes of the object, final after finish()
    q_positions    must rise: each is larger than the one before

    sums_in        queries in pieces, the last rows first: feed() adds to the sums that dk and dv
                   hold. They must be float64 if q is, otherwise float32, and zeros at first
    sums_out       leaves dk and dv as sums, for a part with rows before this one's

    Keys that no row sees are not asked for, and their dk and dv are not written. Calls on one
    object from several threads wait for each other.

    Source: include/attn_pieces.h.
    """

    q: Optional[np.ndarray]
    mask: Optional[np.ndarray]
    alibi: Optional[np.ndarray]
    sinks: Optional[np.ndarray]

    def __init__(
        self,
        q: Any,
        dout: Any,
        out: Any,
        lse: Any,
        total_keys: int,
        *,
        Hk: Optional[int] = None,
        dlse: Any = None,
        want: Sequence[str] = ("q", "k", "v"),
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
        sums_in: bool = False,
        sums_out: bool = False,
        threads: Optional[int] = None,
    ) -> None:
        self._state: Any = None  # until it is created
        q, dout, out, lse = (array(x, n) for x, n in ((q, "q"), (dout, "dout"), (out, "out"),
                                                      (lse, "lse")))  # fmt: skip
        if q.ndim not in (2, 3, 4):
            raise ValueError("q has %d dimensions; it must have 2, 3 or 4" % q.ndim)
        for x, name in ((dout, "dout"), (out, "out")):
            if x.ndim != q.ndim:
                raise ValueError("%s has %d dimensions; it must have q's %d"
                                 % (name, x.ndim, q.ndim))  # fmt: skip
        mask = None if mask is None else array(mask, "mask")
        given = {"q": q, "k": q, "v": q, "mask": mask, "alibi": alibi, "sinks": sinks}
        check_want(want, given)
        self._S = size(total_keys, "total_keys")
        self._sums = bool(sums_in)
        self._dtype = q.dtype if not (sums_in or sums_out) else np.dtype(wide(q.dtype))
        of_q = view(q, "q")
        B, H, T, D = of_q[2:6]
        Hk = H if Hk is None else size(Hk, "Hk")
        Dv = out.shape[-1]
        keys = (0, of_q[1], B, Hk, self._S, D, 0, 0, 0, 0)
        values = (0, of_q[1], B, Hk, self._S, Dv, 0, 0, 0, 0)
        packed, keep = arguments(
            of_q + keys + values + view(out, "out"), H, scale, is_causal, causal_offset, window,
            softcap, alibi, sinks, key_lengths, dropout_p, seed, mask, lse, None, 0, diagonal,
            alibi_symmetric,
        )  # fmt: skip
        made: Dict[str, Any] = {"q": np.empty(q.shape, q.dtype)} if "q" in want else {}
        if mask is not None and "mask" in want:
            made["mask"] = np.empty(mask.shape, wide(q.dtype))
        made.update((x, np.empty(H, np.float64)) for x in ("alibi", "sinks") if x in want)
        if dlse is not None:
            dlse = array(dlse, "dlse")  # a list becomes a new array, which the state reads
        kept = [None if x is None else tensor(x, name) for x, name in (
            (None if dlse is None else dlse[..., None], "dlse"), (made.get("mask"), "dmask"),
        )]  # fmt: skip
        dlse_at, dmask_at = (0 if x is None else x[1] for x in kept)
        grads = _pack(
            _SIZE, *view(dout, "dout"), dlse_at,
            *(view(made["q"], "dq") if "q" in made else ABSENT),
            *(keys if "k" in want else ABSENT), *(values if "v" in want else ABSENT), dmask_at,
            *(address(made[x]) if x in made else 0 for x in ("alibi", "sinks")),
        )  # fmt: skip
        options, positions = part_options(
            T, q_positions, whole_T, head_offset, whole_H, sums_in, sums_out
        )
        self._want = ["k" in want, "v" in want]
        self.q, self.mask, self.alibi, self.sinks = (
            made.get(x) for x in ("q", "mask", "alibi", "sinks")
        )
        self._keep = keep, q, dout, out, lse, dlse, mask, made, kept, positions
        self._apart = q, dout, out, lse, dlse, mask, *made.values()
        self._lock = threading.RLock()
        state = ctypes.c_void_p()
        check(library.attn_sdpa_backward_begin, context(threads), packed, grads, options,
              ctypes.byref(state))  # fmt: skip
        self._state = state

    def __del__(self, end: Any = library.attn_sdpa_backward_end) -> None:
        if getattr(self, "_state", None) is not None:
            end(self._state)
            self._state = None

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "create a new one")

    @property
    def nbytes(self) -> int:
        """Bytes of memory of the state."""
        return int(library.attn_sdpa_backward_state_bytes(self._state))

    def next(self, piece: int = 65536) -> Tuple[int, int]:
        """The keys first .. past-1 of the next piece, at most `piece` keys; (total_keys,
        total_keys) if none is needed."""
        past = ctypes.c_int64()
        with self._lock:
            first = library.attn_sdpa_backward_next(self._state, piece, ctypes.byref(past))
        return int(first), int(past.value)

    def feed(self, first_key: int, k: Any, v: Any, dk: Any = None, dv: Any = None) -> Any:
        """Takes keys first_key .. first_key+n-1: k [B,Hk,n,D], v [B,Hk,n,Dv]. Returns their
        gradients (dk, dv), None for what is not wanted: in the arrays dk and dv if these are given
        (float32, float64 or q's type), otherwise in new arrays of q's type."""
        k, v = array(k, "k"), array(v, "v")
        made: List[Any] = []
        for x, like, name, wanted in zip((dk, dv), (k, v), ("dk", "dv"), self._want):
            if not wanted and x is not None:
                raise ValueError("%s is given, but want does not name %r" % (name, name[1]))
            if wanted and x is None:
                if self._sums:
                    raise ValueError("%s is not given; with sums_in it must hold the sums" % name)
                x = np.zeros(like.shape, self._dtype)
            if x is not None:
                self._check_apart(x, name, k, v, *made)
            made.append(x)
        rows = tensor_bytes(k, "k"), tensor_bytes(v, "v")
        to = [None if x is None else tensor_bytes(x, n) for x, n in zip(made, ("dk", "dv"))]
        first = size(first_key, "first_key")
        with self._lock:
            check(library.attn_sdpa_backward_feed, self._state, first, *rows, *to)
        return tuple(made)

    def _check_apart(self, x: Any, name: str, *others: Any) -> None:
        """Checks that dk or dv shares no memory with the other arrays of the call."""
        output(x, name, *(y for y in (*others, *self._apart) if isinstance(y, np.ndarray)))

    def finish(self) -> None:
        """Writes the remaining gradients when no more keys are needed."""
        with self._lock:
            check(library.attn_sdpa_backward_finish, self._state)

    def needed(self, piece: int = 65536) -> Iterator[Tuple[int, int]]:
        """Yields first, past of each piece that is to be fed, at most `piece` keys (a multiple of
        256), and calls finish()."""
        piece = whole_pieces(piece)
        while True:
            first, past = self.next(piece)
            if first >= self._S:
                break
            yield first, past
            if self.next(piece)[0] == first:
                raise ValueError("keys %d to %d have not been fed" % (first, past - 1))
        self.finish()

    def run(self, k: Any, v: Any, dk: Any = None, dv: Any = None, piece: int = 65536) -> Any:
        """Feeds all keys that are needed from k [B,Hk,total_keys,D] and v, which may be larger than
        memory (numpy.memmap). Returns (dq, dk, dv), None for what is not wanted. dk and dv are the
        arrays given, in which the gradients of keys that no row sees do not change, or new ones."""
        same_keys(self._S, k, v)
        made: List[Any] = []
        for x, like, name, wanted in zip((dk, dv), (k, v), ("dk", "dv"), self._want):
            if x is None and wanted:
                x = np.zeros(like.shape, self._dtype)
            if x is not None and x.shape != like.shape:
                raise ValueError("%s has the shape %s; it must be %s" % (name, x.shape, like.shape))
            if x is not None:
                self._check_apart(x, name, k, v, *made)  # also from keys of later pieces
            made.append(x)
        for first, past in self.needed(piece):
            rows = (..., slice(first, past), slice(None))
            self.feed(first, k[rows], v[rows], *(None if x is None else x[rows] for x in made))
        return (self.q, *made)
