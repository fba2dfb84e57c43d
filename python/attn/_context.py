"""Contexts: the engine's threads and scratch, one for each number of threads, made when first used
and kept until the process ends."""

import ctypes
import operator
import os
import threading
from typing import Any, Dict, Optional

from ._library import ContextOptions, check, library

# One thread is the caller's own and needs no context, so that such calls may overlap. But only a
# context looks at ATTN_ISA.
_contexts: Dict[Optional[int], Optional[int]] = {}
if not os.environ.get("ATTN_ISA"):
    _contexts[1] = None
_lock = threading.Lock()


def _unlock() -> None:
    """In the child of a fork(), where whoever held the lock may not be."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)


def create(threads: int, **more: Any) -> Optional[int]:
    """A context of its own, with more fields of an attn_context_options; it is never destroyed."""
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
        if threads is None:  # what it is, until set_num_threads says something else
            return _contexts.setdefault(None, _contexts[0])
        return _contexts[number]


def context(threads: Any) -> Optional[int]:
    """The context of so many threads; 0: ATTN_NUM_THREADS, else all CPUs of the process; None: what
    set_num_threads said, or as 0."""
    try:
        return _contexts[threads]
    except (KeyError, TypeError):
        return _create(threads)


def num_threads(threads: Optional[int] = None) -> int:
    """How many threads a call with this `threads` works with; None: a call that does not say."""
    return int(library.attn_context_threads(context(threads)))


def set_num_threads(threads: Optional[int] = None) -> None:
    """How many threads calls work with, of all Python threads and from now on, that do not say
    `threads` themselves. 1: the caller's own, so that calls overlap. None or 0: as at the start,
    ATTN_NUM_THREADS, else all CPUs of the process."""
    _contexts[None] = context(0 if threads is None else threads)


def isa() -> str:
    """The instruction set that calls use here: "avx512", "avx2", "neon", ..."""
    return str(library.attn_context_isa(context(None)).decode())
