"""The threads of attn.torch. If PyTorch uses OpenMP, attn uses the same threads.

An OpenMP thread that has finished spins for some milliseconds. During this time a second set of
threads finds no free CPU. In decoding, attention takes 40 microseconds between linear layers, so
waking other threads would cost more than they save.
"""

from __future__ import annotations

import os
from ctypes import CDLL, c_void_p, cast
from typing import Dict, Optional

import torch

from . import _context, _library


def _team() -> Optional[int]:
    """The address of the GOMP_parallel that PyTorch calls; None if its threads are not OpenMP's.
    The dynamic linker gave PyTorch the first global symbol of this name. torch makes its OpenMP
    runtime global when it is imported; otherwise the symbol is looked up from libtorch_cpu.so.
    """
    if "parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return None
    beside = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    for path in (None, beside):
        try:
            return cast(CDLL(path).GOMP_parallel, c_void_p).value
        except (AttributeError, OSError):
            continue
    return None


_gomp = _team()
_contexts: Dict[int, Optional[int]] = {}


def _leave_team() -> None:
    """Runs in the child of a fork(), where OpenMP would wait for threads that do not exist."""
    global _gomp
    _gomp = None
    _contexts.clear()


os.register_at_fork(after_in_child=_leave_team)


def create(threads: int) -> Optional[int]:
    """A new context with this number of threads, which is never destroyed."""
    if threads == 1 or _gomp is None:
        return _context.create(threads)
    return _context.create(
        threads,
        parallel_for=cast(_library.library.attn_openmp_for, c_void_p).value,
        parallel_user=_gomp,
    )


def context(threads: int) -> Optional[int]:
    """The context with this number of threads, which is torch.get_num_threads()."""
    try:
        return _contexts[threads]
    except KeyError:
        pass
    made = _context.context(threads) if threads == 1 or _gomp is None else create(threads)
    return _contexts.setdefault(threads, made)  # if two are created at the same time, one is unused
