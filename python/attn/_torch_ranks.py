"""Calls libattn-mpi with messages of torch.distributed, for attn.torch.context_parallel.

Each message is a send or receive of gloo. gloo tells only a thread that waits for it that a message
is complete, and a wait that is too short closes all connections. So messages have threads that wait
for them: one for each other rank, direction and tag.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import threading
from contextlib import contextmanager
from ctypes import byref, c_char, c_void_p, cast, memmove, sizeof
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

from . import _library
from ._library import Comm, Error
from ._library_mpi import ASK, START, library

_FOREVER = timedelta(days=3650)  # the deadline is libattn-mpi's
_AT_ONCE = timedelta(milliseconds=1)
# In each call the library starts and cancels a short receive from each rank: of an error that most
# calls do not have. A receive of gloo cannot be cancelled. So short ones have memory of their own,
# and one that was cancelled becomes the next one from that rank.
_SHORT = 4096  # bytes
_COMM = 11  # attn_status
# How many times each set of ranks has connected, which is part of the name under which its ranks
# find each other. All of them call Ranks(), so they agree.
_connected: Dict[Tuple[int, ...], int] = {}


class Message:
    """A message that has started. state: 0, 1 if it is complete, -1 if it failed."""

    def __init__(self, n: int, at: int, own: bool) -> None:
        self.n, self.at, self.own, self.state = n, at, own, 0
        if own:
            self.memory = torch.empty(n, dtype=torch.uint8)
        else:
            self.memory = torch.frombuffer((c_char * n).from_address(at), dtype=torch.uint8)
        self.place = 0, 0  # of a receive: rank and tag
        self.work: Any = None
        self.error: Optional[BaseException] = None


def _wait_for_messages(queue: "SimpleQueue[Optional[Message]]") -> None:
    """What a thread does until it gets None."""
    for message in iter(queue.get, None):
        try:
            message.work.wait(_FOREVER)
            message.state = 1
        except BaseException as error:
            message.error = error
            message.state = -1


def _words(error: BaseException) -> str:
    """The first sentence of an exception, without the place in gloo's sources."""
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[[^]]*\] ", "", said).split(". ")[0]


class _Signals:
    """A context in which Python's signal handlers run only in deliver(), and at its end. Otherwise
    an exception of a handler, such as KeyboardInterrupt, could be raised where a callback begins,
    and be lost."""

    def __init__(self) -> None:
        self._handlers: Dict[int, Any] = {}
        self._noted: List[Tuple[int, Any]] = []

    def _note(self, number: int, frame: Any) -> None:
        self._noted.append((number, frame))

    def __enter__(self) -> "_Signals":
        if threading.current_thread() is threading.main_thread():
            for number in signal.valid_signals():
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        return self

    def deliver(self) -> None:
        while self._noted:
            number, frame = self._noted.pop(0)
            self._handlers[number](number, frame)

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == self._note:
                signal.signal(number, handler)
        self.deliver()


class Ranks:
    """The ranks of a group, and their messages. Only one call at a time: use it under `lock`."""

    def __init__(self, group: Any, deadline: float, segment_keys: int, heads: bool) -> None:
        members = tuple(dist.get_process_group_ranks(group))
        self.rank, self.size = dist.get_rank(group), len(members)
        count = _connected.get(members, 0)
        name = "attn/%s/%d" % ("_".join(map(str, members)), count)
        try:
            # Its messages meet none of the caller's, and an error closes only its own connections.
            # Not new_group(): it needs all ranks of the job, or (use_local_synchronization) ranks
            # that are members of equally many groups.
            self.gloo = dist.ProcessGroupGloo(
                dist.PrefixStore(name, dist.distributed_c10d._get_default_store()),
                self.rank,
                self.size,
                timedelta(seconds=deadline),
            )
        except Exception as error:
            raise RuntimeError(
                "context_parallel: the %d ranks of the group did not connect within %g s (%s)"
                % (len(members), deadline, _words(error))
            ) from error
        _connected[members] = count + 1
        self.deadline, self.segment_keys, self.heads = deadline, segment_keys, heads
        self.lock = threading.RLock()
        self.failed = ""  # why no further call is possible
        self._signals = _Signals()
        self._raised: Optional[BaseException] = None  # in a callback
        self._error: Optional[BaseException] = None  # of a message
        self._pid = os.getpid()
        self._requests: Dict[int, Message] = {}
        self._last = 0
        self._left: Dict[Tuple[int, int], Message] = {}  # short receives, by rank and tag
        self._lost: List[Message] = []  # their memory may still be used
        self._queues: Dict[Tuple[bool, int, int], Any] = {}
        self._threads: List[threading.Thread] = []
        self._functions = [  # they live as long as the table
            START(self._guard(self._send, 1)), START(self._guard(self._receive, 1)),
            ASK(self._guard(self._test, -1)), ASK(self._guard(self._cancel, 0)),
        ]  # fmt: skip
        addresses = [cast(f, c_void_p).value for f in self._functions]
        self._comm = Comm(sizeof(Comm), None, self.rank, self.size, *addresses)
        atexit.register(self.close)

    # ------------------------------------------------------------------------------ the table

    def _guard(self, function: Callable[..., int], failure: int) -> Callable[..., int]:
        """The function for C, which gets no exception: it gets `failure`, and call() raises the
        exception."""

        def guarded(_: Any, *arguments: Any) -> int:
            try:
                self._signals.deliver()
                return function(*arguments)
            except BaseException as error:  # KeyboardInterrupt, too
                self._raised = self._raised or error
                return failure

        return guarded

    def _send(self, to: int, tag: int, at: int, n: int, request: Any) -> int:
        message = Message(n, at, own=False)
        message.work = self.gloo.send([message.memory], to, tag)
        return self._started(message, (True, to, tag), request)

    def _receive(self, source: int, tag: int, at: int, n: int, request: Any) -> int:
        message = self._left.pop((source, tag), None)
        if message is not None and message.n == n and message.state >= 0:
            message.at = at
            return self._keep(message, request)
        message = Message(n, at, own=n <= _SHORT)
        message.work = self.gloo.recv([message.memory], source, tag)
        message.place = source, tag
        return self._started(message, (False, source, tag), request)

    def _started(self, message: Message, way: Tuple[bool, int, int], request: Any) -> int:
        queue = self._queues.get(way)
        if queue is None:
            queue = self._queues[way] = SimpleQueue()
            thread = threading.Thread(target=_wait_for_messages, args=(queue,), daemon=True)
            thread.start()
            self._threads.append(thread)
        queue.put(message)
        return self._keep(message, request)

    def _keep(self, message: Message, request: Any) -> int:
        self._last += 1
        self._requests[self._last] = message
        request[0] = self._last
        return 0

    def _test(self, request: Any) -> int:
        message = self._requests[request[0]]
        if message.state == 0:
            return 0
        del self._requests[request[0]]
        request[0] = None
        if message.state < 0:
            self._error = self._error or message.error
        elif message.own:
            memmove(message.at, message.memory.data_ptr(), message.n)
        return message.state

    def _cancel(self, request: Any) -> int:
        message = self._requests.pop(request[0])
        request[0] = None
        if message.own:
            if message.state >= 0:
                self._left[message.place] = message
            return 1
        if message.state == 0:
            self._lost.append(message)
        return 1 if message.state else 0

    # ------------------------------------------------------------------------------ calls

    def call(self, function: Any, *arguments: Any) -> None:
        """Calls a function of libattn-mpi that takes the table first and an attn_error last, and
        raises its error."""
        self._check()
        error = Error()
        self._signals = _Signals()
        with self._signals:
            status = function(byref(self._comm), *arguments, byref(error))
        raised, self._raised = self._raised, None
        cause = raised or self._error
        self._error = None
        if status == 0 and raised is None:
            return
        said = error.message.decode("utf-8", "replace")
        if cause is not None:
            said = "%s (%s)" % (said or "comm failed", _words(cause))
        if status == _COMM or raised is not None or self._lost:
            self.failed = "an earlier one failed (%s)" % said
        if raised is not None and not isinstance(raised, Exception):
            raise raised
        if cause is not None or status == _COMM:
            raise RuntimeError(said) from cause
        _library.fail(error)

    @contextmanager
    def committed(self) -> Iterator[None]:
        """For what a rank does after it agreed to a call and before the call. If it raises, the
        other ranks are in the call, and their messages would meet the next call of this rank."""
        try:
            yield
        except BaseException as error:
            self.failed = "an earlier one failed (%s)" % _words(error)
            raise

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise RuntimeError(
                "context_parallel: this process is a child of the rank's process; a rank must "
                "call attn.torch.context_parallel itself"
            )
        if self.failed:
            raise RuntimeError(
                "context_parallel: no further call is possible here, because %s; call "
                "attn.torch.context_parallel again, on all ranks" % self.failed
            )

    def all_gather(self, mine: Tensor) -> Tensor:
        """[size, *mine.shape]: the tensors of all ranks. Each is dense and has the same shape."""
        gathered = mine.new_empty((self.size, *mine.shape))
        self.call(
            library.attn_mpi_all_gather, mine.data_ptr(), mine.numel() * mine.element_size(),
            gathered.data_ptr(), self.deadline,
        )  # fmt: skip
        return gathered

    def close(self) -> None:
        """Closes the connections, which ends the threads. Needs no message."""
        atexit.unregister(self.close)
        if self._pid != os.getpid():
            return
        self.failed = self.failed or "close() was called"
        pending = [*self._requests.values(), *self._left.values(), *self._lost]
        for message in pending:
            if message.state == 0:
                try:
                    message.work.wait(_AT_ONCE)  # closes all connections of the group
                except Exception:
                    pass
                break
        for queue in self._queues.values():
            queue.put(None)
        for thread in self._threads:
            thread.join(1)
