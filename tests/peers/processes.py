"""Runs a function in P processes that are the ranks of a torch.distributed group of gloo."""

import contextlib
import multiprocessing
import os
import shutil
import tempfile
import time
import traceback

import torch
import torch.distributed as dist

# A child begins with the modules that this process has loaded. It would wait for ever for threads
# of PyTorch's that this process has and the child has not; so there are none.
torch.set_num_threads(1)
_context = multiprocessing.get_context("fork")


def _run(function, rank, size, folder, pipe, arguments):
    try:
        dist.init_process_group("gloo", init_method="file://" + os.path.join(folder, "store"),
                                rank=rank, world_size=size)
        # Gloo fails to connect a rank to one that has ended, so `function`, which may send
        # nothing, begins when all ranks are connected.
        dist.barrier()
        said = True, function(rank, size, *arguments)
    except BaseException as error:
        said = False, "%s: %s" % (type(error).__name__, error)
        if isinstance(error, AssertionError):
            traceback.print_exc()
    pipe.send(said)
    pipe.close()


def start(size, function, *arguments):
    """The processes, the pipes with their results, and the folder in which they meet."""
    folder = os.path.abspath(tempfile.mkdtemp(dir="."))
    started, pipes = [], []
    for rank in range(size):
        here, there = _context.Pipe(duplex=False)
        process = _context.Process(target=_run, args=(function, rank, size, folder, there,
                                                      arguments))
        process.start()
        there.close()
        started.append(process)
        pipes.append(here)
    return started, pipes, folder


def finish(started, pipes, folder, seconds):
    """(True, the result) or (False, the exception's words) of each process, or None for one that
    ended without a result; an AssertionError if one has not ended in time."""
    until = time.monotonic() + seconds
    results = []
    for pipe in pipes:
        ready = pipe.poll(max(0.0, until - time.monotonic()))
        with contextlib.suppress(EOFError):
            results.append(pipe.recv() if ready else None)
            continue
        results.append(None)
    late = []
    for rank, process in enumerate(started):
        process.join(max(0.1, until - time.monotonic()))
        if process.exitcode is None:
            late.append(rank)
            process.kill()
            process.join()
    shutil.rmtree(folder)
    assert not late, "ranks %s had not ended after %g s; results %s" % (late, seconds, results)
    return results


def run(size, function, *arguments, seconds=60):
    return finish(*start(size, function, *arguments), seconds)
