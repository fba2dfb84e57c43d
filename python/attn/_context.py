"""Contexts: the library's threads and scratch memory. There is one for each number of threads,
created at its first use and kept until the process ends."""

import ctypes
import operator
import os
import threading
from typing import Any, Dict, Optional

from ._library import ContextOptions, check, library

# A call with one thread runs on the caller's own thread without a context, so such calls may
# overlap. If ATTN_ISA is set, it needs a context, because only a context reads ATTN_ISA.
_contexts: Dict[Optional[int], Optional[int]] = {}
if not os.environ.get("ATTN_ISA"):
    _contexts[1] = None
_lock = threading.Lock()


def _unlock() -> None:
    """Runs in the child of a fork(), where the thread that held the lock may not exist."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)


def create(threads: int, **more: Any) -> Optional[int]:
    """Creates a context, with more fields of attn_context_options; it is never destroyed."""
    options = ContextOptions(struct_size=ctypes.sizeof(ContextOptions), threads=threads, **more)
    made = ctypes.c_void_p()
    check(library.attn_context_create, ctypes.byref(options), ctypes.byref(made))
    return made.value


def _create(threads: Any) -> Optional[int]:
    try:
        number = 0 if threads is None else operator.index(threads)
    except TypeError:
        kind = type(threads).__name__
        raise TypeError("threads is %s; it must be an integer or None" % kind) from None
    if not 0 <= number < 1 << 31:
        raise ValueError("threads is %d; use 0 to 1024" % number)
    with _lock:
        if number not in _contexts:
            _contexts[number] = create(number)
        if threads is None:  # the default, until set_num_threads changes it
            return _contexts.setdefault(None, _contexts[0])
        return _contexts[number]


def context(threads: Any) -> Optional[int]:
    """The context with this number of threads. 0: ATTN_NUM_THREADS, or else all CPUs of the
    process. None: the number given to set_num_threads, or else as with 0."""
    try:
        return _contexts[threads]
    except (KeyError, TypeError):
        return _create(threads)


def num_threads(threads: Optional[int] = None) -> int:
    """The number of threads that a call with this `threads` uses; None: a call without
    `threads`."""
    return int(library.attn_context_threads(context(threads)))


def set_num_threads(threads: Optional[int] = None) -> None:
    """Sets the number of threads for all later calls without `threads`, from any Python thread. 1:
    the caller's own thread, so that calls can overlap. None or 0: the default, which is
    ATTN_NUM_THREADS, or else all CPUs of the process."""
    _contexts[None] = context(0 if threads is None else threads)


def isa() -> str:
    """The instruction set that calls use on this machine: "avx512", "avx2", "neon", ..."""
    return str(library.attn_context_isa(context(None)).decode())
