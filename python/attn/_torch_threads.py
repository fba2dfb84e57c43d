"""The threads of attn.torch: PyTorch's own where they are an OpenMP runtime's.

An OpenMP thread that has done its part spins for some milliseconds. A second set of threads then
finds no CPU that is free: for decoding, where attention takes 40 microseconds and stands between
linear layers, waking them costs more than they save.
"""

from __future__ import annotations

import os
from ctypes import CDLL, c_void_p, cast
from typing import Dict, Optional

import torch

from . import _context, _library


def _team() -> Optional[int]:
    """The address of the GOMP_parallel that PyTorch calls; None if its threads are others.

    The dynamic linker gave PyTorch the first one among what is global; torch makes its
    runtime so when it is imported. libtorch_cpu.so knows one in any case.
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
    """In the child of a fork(), where OpenMP waits for threads that are not there."""
    global _gomp
    _gomp = None
    _contexts.clear()


os.register_at_fork(after_in_child=_leave_team)


def context(threads: int) -> Optional[int]:
    """The context of so many threads, which torch.get_num_threads() gave."""
    try:
        return _contexts[threads]
    except KeyError:
        pass
    if threads == 1 or _gomp is None:
        made = _context.context(threads)
    else:
        made = _context.create(
            threads,
            parallel_for=cast(_library.library.attn_openmp_for, c_void_p).value,
            parallel_user=_gomp,
        )
    return _contexts.setdefault(threads, made)  # of two that are made at once, one is forgotten
