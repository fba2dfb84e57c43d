"""attn.torch.context_parallel: attention over the processes of a group, by libattn-mpi."""

from __future__ import annotations

import struct
import zlib
from ctypes import sizeof
from typing import Any, List, NamedTuple, Optional, Tuple, Union

import torch
import torch.distributed as dist
from torch import Tensor
from torch.overrides import has_torch_function_variadic

from . import _library, _torch_threads
from . import _torch_arguments as checks
from . import _torch_engine as engine
from . import _torch_operator as operator
from . import _torch_private as private
from ._library_mpi import library
from ._torch_arguments import Numbers
from ._torch_engine import Options
from ._torch_ranks import Ranks

_pack_options = _library.packer(_library.MpiOptions)
_pack_grads = _library.packer(_library.SdpaGrads)
_OPTIONS_SIZE = sizeof(_library.MpiOptions)
_GRADS_SIZE = sizeof(_library.SdpaGrads)
_ABSENT = (0,) * 10
_NAMES = "query", "key", "value", "attn_mask", "alibi", "sinks"
_MOST_BYTES = 1 << 28  # of a message of gather()
# What a rank tells the others before a call: its error, and numbers.
_RECORD = struct.Struct("=BB3qQ226s")
_FUNCTIONS = "attention", "gather", "a backward pass"
_ATTENTION, _GATHER, _BACKWARD = range(3)
_KINDS = RuntimeError, ValueError, TypeError, NotImplementedError


class _Call(NamedTuple):
    """The arguments of this rank."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Optional[Tensor]
    vectors: List[Optional[Tensor]]  # alibi, sinks, key_lengths
    shape: Tuple[Any, ...]  # for checks.restore()
    o: Options
    seed: int
    drawn: bool  # the seed
    want: int  # a bit for each of _NAMES


class _Results(NamedTuple):
    """Memory for the results of this rank."""

    out: Tensor
    lse: Optional[Tensor]


class _Whole(NamedTuple):
    """The numbers of a call that all ranks share."""

    T: int
    S: int
    seed: int
    o: Options
    return_lse: bool


def create(group: Any, deadline: float, segment_keys: int, heads: bool) -> "ContextParallel":
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError(
            "context_parallel needs torch.distributed; call torch.distributed.init_process_group"
        )
    if group is None:
        group = dist.group.WORLD
    if dist.get_rank(group) < 0:
        raise ValueError("group does not contain this process; only its processes may call this")
    if not isinstance(deadline, (int, float)) or not 0 < deadline <= 1e8:
        raise ValueError(
            "deadline is %r; it must be a number of seconds above 0, and at most 1e8" % (deadline,)
        )
    if not isinstance(segment_keys, int) or not 0 <= segment_keys <= 1 << 56:
        raise ValueError(
            "segment_keys is %r; it must be an integer within 0..2^56" % (segment_keys,)
        )
    if not isinstance(heads, bool):
        raise ValueError("heads is %r; it must be True or False" % (heads,))
    if heads and segment_keys:
        raise ValueError("segment_keys is %d; with heads=True it must be 0" % segment_keys)
    return ContextParallel(Ranks(group, float(deadline), segment_keys, heads))


class ContextParallel:
    """Attention over P processes, the ranks 0 .. P-1 of a group. Made by context_parallel().

        attention = attn.torch.context_parallel(group)
        x = attention.shard(x, 1)                         # [B,N,E]: this rank's tokens of all N
        q, k, v = ...                                     # [B,H,n,D], of these tokens
        out = attention(q, k, v, is_causal=True)          # [B,H,n,D]
        out = attention.gather(out, 2)                    # [B,H,N,D], on all ranks

    Tokens are dealt to the ranks in blocks of 64, in turn: block b is on rank b % P. Queries and
    keys are dealt in the same way; any number of each is fine. positions() has the tokens' numbers,
    which rotary embeddings, for example, need.

    All ranks must make the same calls in the same order, backward passes included. If a rank raises
    an error for its arguments, or if their arguments differ, all ranks raise one error, which names
    the rank. If a rank does not call within the deadline, or ends, the others raise a RuntimeError.
    After that no further call is possible; all ranks can call context_parallel() again.

    Threads: calls of one object wait for each other. They use torch.get_num_threads() threads, and
    2 or 3 more for each other rank, which only wait for messages. The GIL is released while the
    library computes or waits. After a fork() the child cannot use the object.

    rank, size    this process's rank, and P
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._contexts: dict = {}
        self.rank, self.size = ranks.rank, ranks.size

    def __repr__(self) -> str:
        return "<attn.torch.ContextParallel: rank %d of %d>" % (self.rank, self.size)

    def close(self) -> None:
        """Closes the connections of this rank, without a message. Otherwise they live until the
        process ends."""
        self._ranks.close()

    # ------------------------------------------------------------------------------- the layout

    def positions(self, tokens: int) -> Tensor:
        """[n] int64: the numbers of this rank's tokens among `tokens`, rising. Sends nothing."""
        return self._positions(tokens, self.rank)

    def _positions(self, tokens: int, rank: int) -> Tensor:
        tokens = engine.integer(tokens, "tokens")
        if not 0 <= tokens <= 1 << 56:
            raise ValueError("tokens is %d; it must be within 0..2^56" % tokens)
        n = library.attn_mpi_rows(tokens, rank, self.size)
        made = torch.empty(n, dtype=torch.int64)
        library.attn_mpi_positions(tokens, rank, self.size, made.data_ptr())
        return made

    def shard(self, tensor: Tensor, dim: int) -> Tensor:
        """This rank's tokens of a tensor that has all tokens in dimension `dim`. Every rank must
        have the whole tensor; sends nothing. Can be differentiated."""
        if not isinstance(tensor, Tensor):
            raise TypeError("tensor is %s; it must be a tensor" % type(tensor).__name__)
        return tensor.index_select(dim, self.positions(tensor.shape[dim]))

    def gather(self, tensor: Tensor, dim: int) -> Tensor:
        """The tensor with all tokens in dimension `dim`, on every rank, from each rank's tokens.
        All ranks must call it. It has no gradient: call it under torch.no_grad() or on
        tensor.detach(). Memory: 2 to 3 times the result."""
        error: Optional[Exception] = None
        rows = kind = 0
        try:
            own = self._gatherable(tensor, dim)
            rows = own.shape[0]
            kind = zlib.crc32(repr((own.dtype, own.shape[1:], dim % tensor.dim())).encode())
        except Exception as raised:
            error = raised
        with self._ranks.lock:
            told = self._tell(_GATHER, error, rows, kind)
            counts = [x[0] for x in told]
            tokens = sum(counts)
            for r, (n, other, *_) in enumerate(told):
                if other != told[0][1]:
                    raise ValueError(
                        "rank %d: tensor or dim differs from rank 0's; all ranks must have one "
                        "dtype, one dim, and equal sizes in the other dimensions" % r
                    )
                want = library.attn_mpi_rows(tokens, r, self.size)
                if n != want:
                    raise ValueError(
                        "rank %d: tensor has %d tokens in dim; it must have %d of all %d"
                        % (r, n, want, tokens)
                    )
            return self._gather(own, counts).movedim(0, dim).contiguous()

    def _gatherable(self, tensor: Tensor, dim: int) -> Tensor:
        if not isinstance(tensor, Tensor):
            raise TypeError("tensor is %s; it must be a tensor" % type(tensor).__name__)
        if not private.ordinary(tensor):
            raise TypeError("tensor is not a dense tensor on the CPU")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise NotImplementedError(
                "gather has no gradient; call it on tensor.detach() or under torch.no_grad()"
            )
        return tensor.detach().movedim(dim, 0).contiguous()

    def _gather(self, own: Tensor, counts: List[int]) -> Tensor:
        """[tokens, ..] of all ranks, in pieces, each with as many rows of every rank."""
        tokens, rest = sum(counts), own.shape[1:]
        whole = own.new_empty((tokens, *rest))
        at = [self._positions(tokens, r) for r in range(self.size)]
        step = max(1, _MOST_BYTES // max(1, rest.numel() * own.element_size()))
        for first in range(0, max(counts), step):
            n = min(step, max(counts) - first)
            piece = own.new_zeros((n, *rest))
            mine = own[first : first + n]
            piece[: mine.shape[0]] = mine
            for r, rows in enumerate(self._ranks.all_gather(piece)):
                places = at[r][first : first + n]
                whole[places] = rows[: places.shape[0]]
        return whole

    # -------------------------------------------------------------------------------- attention

    def __call__(
        self,
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
        alibi: Optional[Numbers] = None,
        sinks: Optional[Numbers] = None,
        key_lengths: Optional[Numbers] = None,
        causal_offset: Union[int, str, None] = None,
        diagonal: Union[int, str] = "top-left",
        alibi_symmetric: bool = False,
        seed: Optional[int] = None,
        return_lse: bool = False,
    ) -> Any:
        """attn.torch.scaled_dot_product_attention with all tokens; each rank passes its own.

        Arguments and results are those of that function, with these differences. query, key, value,
        the result and lse have this rank's tokens only. attn_mask has a row for each query of this
        rank (or 1), and a column for each of all S keys (or 1). alibi, sinks, key_lengths and all
        numbers are those of the whole call, and equal on all ranks. Without a seed, rank 0 draws
        it. The ranks must agree about which tensors need a gradient.

        The result, lse and the gradient of query have the bits of one process with all tokens, for
        any number of ranks, if all have the same instruction set. Gradients of key and value have
        bits that depend on P alone; they are within the bounds of one call, and for P = 1 have its
        bits. The whole gradient of alibi and of sinks is added on rank 0; the other ranks add 0.
        So a sum over ranks is right, as for a weight that all ranks have.

        Raises the errors of that function; NotImplementedError for a gradient of attn_mask and
        under torch.compile; RuntimeError if a rank is missing.

        Source: include/attn_mpi.h.
        """
        if torch.compiler.is_compiling():
            raise NotImplementedError(
                "context_parallel is not compiled; call it in a torch.compiler.disable'd function"
            )
        call, made, error = None, None, None
        try:
            if has_torch_function_variadic(query, key, value, attn_mask):
                raise TypeError("context_parallel takes no subclasses of Tensor, and no modes")
            checks.check_flags(attn_mask, is_causal, enable_gqa, alibi, alibi_symmetric)
            o = engine.options(
                is_causal, causal_offset, scale, window, softcap, dropout_p, diagonal,
                alibi_symmetric,
            )  # fmt: skip
            call = _read(
                query, key, value, attn_mask, enable_gqa, o, alibi, sinks, key_lengths, seed
            )
            # Before the other ranks begin: if memory is short here, they must not wait.
            made = _results(call, return_lse)
        except Exception as raised:
            error = raised  # which the other ranks are told, too
        with self._ranks.lock:
            return self._attend(call, made, error, return_lse)

    def _attend(
        self, call: Optional[_Call], made: Optional[_Results], error: Optional[Exception],
        return_lse: bool,
    ) -> Any:  # fmt: skip
        if call is None or made is None:
            self._tell(_ATTENTION, error)
            raise AssertionError("_tell raises the error")
        q, k, v, p = call.q, call.k, call.v, call.o.dropout
        flags = call.want | (p == 1) << 6 | return_lse << 7
        told = self._tell(_ATTENTION, None, q.shape[2], k.shape[2], flags, call.seed)
        for r, (_, _, other, _) in enumerate(told):
            _compare(r, other, told[0][2])
        o = call.o._replace(dropout=0.0) if p == 1 else call.o
        seed = told[0][3] if call.drawn else call.seed
        whole = _Whole(sum(x[0] for x in told), sum(x[1] for x in told), seed, o, return_lse)
        if call.want:
            out, lse = _Attention.apply(self, whole, made, q, k, v, call.mask, *call.vectors)
            lse = lse.to(engine.wide(q.dtype))
        else:
            self._forward(whole, made, q, k, v, call.mask, call.vectors)
            out, lse = made
        if p == 1:
            out = out.masked_fill(torch.ones((), dtype=torch.bool), 0.0)
        out = checks.restore(out, *call.shape)
        return (out, checks.restore(lse, *call.shape, fewer=1)) if return_lse else out

    def _tell(
        self, function: int, error: Optional[Exception], *numbers: int
    ) -> List[Tuple[int, ...]]:
        """The numbers of all ranks. If a rank has an error, all ranks raise it."""
        kind, said = 0, b""
        if error is not None:
            kinds = [i for i, x in enumerate(_KINDS) if i and isinstance(error, x)]
            kind, said = 1 + max(kinds, default=0), str(error).encode()[:226]
        packed = _RECORD.pack(function, kind, *numbers, *(0,) * (4 - len(numbers)), said)
        mine = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
        told = [_RECORD.unpack(x.numpy().tobytes()) for x in self._ranks.all_gather(mine)]
        for r, (other, *_) in enumerate(told):
            if other != told[0][0]:
                raise ValueError(
                    "rank %d calls %s where rank 0 calls %s; all ranks must make the same calls"
                    % (r, _FUNCTIONS[other], _FUNCTIONS[told[0][0]])
                )
        for r, (_, kind, *_, said) in enumerate(told):
            if kind:
                text = said.rstrip(b"\0").decode("utf-8", "replace")
                cause = error if r == self.rank else None
                raise _KINDS[kind - 1]("rank %d: %s" % (r, text)) from cause
        return [x[2:6] for x in told]

    def _context(self) -> Optional[int]:
        """A context that no other call uses."""
        n = torch.get_num_threads()
        if n not in self._contexts:
            self._contexts[n] = _torch_threads.create(n)
        return self._contexts[n]

    def _options(self, whole: _Whole) -> bytes:
        r = self._ranks
        return _pack_options(
            _OPTIONS_SIZE, whole.T, whole.S, r.segment_keys, r.deadline, 0, 0, int(r.heads)
        )

    def _forward(
        self, whole: _Whole, made: _Results, q: Tensor, k: Tensor, v: Tensor,
        mask: Optional[Tensor], vectors: List[Optional[Tensor]],
    ) -> None:  # fmt: skip
        with self._ranks.committed():
            packed, keep = engine.arguments(
                q, k, v, *made, mask, *vectors, whole.seed, whole.o
            )  # fmt: skip
            context, options = self._context(), self._options(whole)
        self._ranks.call(library.attn_mpi_sdpa_forward, context, packed, options)
        del keep

    def _backward(
        self, whole: _Whole, dout: Tensor, dlse: Optional[Tensor], q: Tensor, k: Tensor, v: Tensor,
        mask: Optional[Tensor], vectors: List[Optional[Tensor]], out: Tensor, lse: Tensor,
        want: Tuple[bool, ...],
    ) -> List[Optional[Tensor]]:  # fmt: skip
        """The gradients of q, k, v, alibi and sinks that are wanted."""
        packed, keep = engine.arguments(
            q, k, v, out, lse, mask, *vectors, whole.seed, whole.o
        )  # fmt: skip
        # The library adds contributions of ranks to dk and dv, and rounds neither to 16 bits. With
        # `heads` it adds nothing.
        of_keys = q.dtype if self._ranks.heads else engine.wide(q.dtype)
        types = q.dtype, of_keys, of_keys, torch.float64, torch.float64
        given = q, k, v, vectors[0], vectors[1]
        made = [
            torch.empty_like(x, dtype=t) if wanted and x is not None else None
            for x, t, wanted in zip(given, types, want)
        ]
        three = [_ABSENT if x is None else engine.view(x) for x in made[:3]]
        dlse_at = 0
        if dlse is not None:
            memory, dlse_at = engine.at(dlse.unsqueeze(-1))
            keep.append(memory)
        two = [0 if x is None else x.data_ptr() for x in made[3:]]
        grads = _pack_grads(
            _GRADS_SIZE, *engine.view(dout), dlse_at, *three[0], *three[1], *three[2], 0, *two
        )
        context, options = self._context(), self._options(whole)
        with self._ranks.lock:
            self._tell(_BACKWARD, None)
            self._ranks.call(
                library.attn_mpi_sdpa_backward, context, packed, grads, options
            )  # fmt: skip
        del keep
        for i in (3, 4):
            if made[i] is not None and self.rank > 0:
                made[i].zero_()
        return [None if d is None else d.to(x.dtype) for d, x in zip(made, given)]


def _results(call: _Call, return_lse: bool) -> _Results:
    q, Dv = call.q, call.v.shape[3]
    B, H, T, _ = q.shape
    out = torch.empty_strided((B, H, T, Dv), engine.out_strides(q, Dv), dtype=q.dtype)
    kind = engine.lse_dtype(q.dtype) if call.want else engine.wide(q.dtype)
    wanted = call.want or return_lse
    return _Results(out, torch.empty((B, H, T), dtype=kind) if wanted else None)


def _compare(rank: int, flags: int, first: int) -> None:
    """Raises if a rank's flags are not those of rank 0."""
    wanted, wanted_first = _wanted(flags), _wanted(first)
    if wanted != wanted_first:
        raise ValueError(
            "rank %d: a gradient is needed of %s, and on rank 0 of %s; all ranks must need the "
            "same gradients" % (rank, wanted, wanted_first)
        )
    for bit, name in ((6, "dropout_p=1"), (7, "return_lse=True")):
        if (flags ^ first) >> bit & 1:
            with_it, without = (rank, 0) if flags >> bit & 1 else (0, rank)
            raise ValueError(
                "rank %d passes %s and rank %d does not; all ranks must" % (with_it, name, without)
            )


def _wanted(want: int) -> str:
    return ", ".join(name for i, name in enumerate(_NAMES) if want >> i & 1) or "nothing"


def _read(
    q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], enable_gqa: bool, o: Options,
    alibi: Optional[Numbers], sinks: Optional[Numbers], key_lengths: Optional[Numbers],
    seed: Optional[int],
) -> _Call:  # fmt: skip
    q, k, v, mask, vectors, shape = checks.four_dimensions(
        q, k, v, mask, enable_gqa, alibi, sinks, key_lengths, all_keys=False
    )
    for name, t in zip(_NAMES, (q, k, v, mask, *vectors)):
        if t is not None and not private.ordinary(t):
            raise TypeError("%s is not a dense tensor on the CPU" % name)
    p = checks.check_dropout(o)
    bits = checks.draw_seed(seed, p)
    drawn = 0 if bits is None else int(bits) % (1 << 64)
    want = 0
    if torch.is_grad_enabled():
        for i, t in enumerate((q, k, v, mask, vectors[0], vectors[1])):
            want |= (t is not None and t.requires_grad) << i
    if want >> 3 & 1:
        raise NotImplementedError(
            "attn_mask needs a gradient, which does not exist over ranks; pass attn_mask.detach()"
        )
    return _Call(q, k, v, mask, vectors, shape, o, drawn, seed is None, want)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, parallel: ContextParallel, whole: _Whole, made: _Results, *inputs: Any
    ) -> Any:
        q, k, v, mask, *vectors = inputs
        parallel._forward(whole, made, q, k, v, mask, vectors)
        out, lse = made
        ctx.save_for_backward(*inputs, out, lse)
        ctx.parallel, ctx.whole = parallel, whole
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor]) -> Any:
        *inputs, out, lse = ctx.saved_tensors
        # The ranks compare which gradients are given, so all give the same.
        if dout is None:
            dout = torch.zeros_like(out)
        if not ctx.whole.return_lse:
            dlse = None
        elif dlse is None:
            dlse = torch.zeros_like(lse)
        want = ctx.needs_input_grad[3:9]
        return (None, None, None) + _Gradient.apply(
            ctx.parallel, ctx.whole, want, dout, dlse, *inputs, out, lse
        )


class _Gradient(torch.autograd.Function):
    """A function of its own, so that a second derivative is refused."""

    @staticmethod
    def forward(
        ctx: Any, parallel: ContextParallel, whole: _Whole, want: Tuple[bool, ...], dout: Tensor,
        dlse: Optional[Tensor], *rest: Any,
    ) -> Any:  # fmt: skip
        q, k, v, mask, *vectors, out, lse = rest
        wanted = (*want[:3], *want[4:])
        dq, dk, dv, dalibi, dsinks = parallel._backward(
            whole, dout, dlse, q, k, v, mask, vectors, out, lse, wanted
        )
        return dq, dk, dv, None, dalibi, dsinks, None

    backward = staticmethod(operator.refuse)
