#!/usr/bin/env python3
# labels: slow
# timeout: 1200
"""attn run --mpi --checkpoint --resume: a rank is killed at random moments, and the job goes on,
on other numbers of ranks, to the bytes of a run without ranks."""

import os
import random
import shutil
import signal
import sys
import time
import unittest

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mpi_job import BAD_FILE, LIMIT, OF_MPI, USAGE, Job  # noqa: E402

KILLS = 10
SAVE = ("--checkpoint", "ck", "--every", 0)


class Killed(Job):
    """A call of almost a second, with a checkpoint after each of 11 segments."""

    def setUp(self):
        super().setUp()
        self.save("q", 4, 2048, 48)
        self.save("k", 2, 24576, 48)
        self.save("v", 2, 24576, 48)

    def inode(self):
        try:
            return os.stat(self.path("ck/checkpoint")).st_ino
        except OSError:
            return None

    def rank_pid(self, rank):
        """The process of a rank, or None."""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/environ" % pid, "rb") as f:
                    words = f.read().split(b"\0")
                program = os.readlink("/proc/%s/exe" % pid)
            except OSError:  # it has ended
                continue
            names = (b"OMPI_COMM_WORLD_RANK=%d" % rank, b"PMI_RANK=%d" % rank)
            if self.is_ours(pid) and program == os.path.realpath(OF_MPI):
                if any(name in words for name in names):
                    return int(pid)
        return None

    def kill(self, moment, ranks, *args):
        """Kills a rank after so many saves and a random time. Returns whether it was in time."""
        saves, last, rank, pid = 0, self.inode(), self.random.randrange(ranks), None
        running = self.start(ranks, *args)
        while running.poll() is None and not pid:
            pid = self.rank_pid(rank)
        while running.poll() is None and saves < moment:
            now = self.inode()
            saves += now != last
            last = now
            time.sleep(0.001)
        time.sleep(self.random.uniform(0, 0.3 if moment == 0 else 0.05))
        if running.poll() is None and self.rank_pid(rank) == pid:
            os.kill(pid, signal.SIGKILL)
        running.communicate(timeout=150)  # else the job hangs
        if running.returncode == 0:
            return False
        self.nothing_left()  # no process, no output, whole or partial
        return True

    def test_ten_moments(self):
        self.random = random.Random(5)
        args = [*self.qkv, "--causal", "bottom-right"]
        self.works("run", *args, "--out", "want.npy", "--lse", "want_lse.npy")
        want = [self.bytes("want.npy"), self.bytes("want_lse.npy")]
        args += ["--out", "out.npy", "--lse", "lse.npy"]
        kills = resumed = 0
        for _ in range(5 * KILLS):
            if kills == KILLS:
                break
            if not self.kill(max(0, self.random.randrange(-1, 9)), 3, *args, *SAVE):
                self.results()  # it had ended before
                shutil.rmtree(self.path("ck"))
                continue
            P = (1, 2, 4)[kills % 3]
            kills += 1
            if self.inode():
                resumed += 1
                done = self.job(P, *args, "--resume", "ck", *(SAVE if kills % 2 else ()))
            else:
                self.refused(BAD_FILE, "ck/checkpoint: cannot open", "--resume", "ck")
                done = self.job(P, *args, *SAVE)
            self.assertEqual((done.returncode, self.lines(done)), (0, []), done.stderr)
            self.assertEqual(self.results(), want)
            self.nothing_left()
            if kills % 2:  # it has saved, and so replaced what was left unfinished
                self.assertEqual(os.listdir(self.path("ck")), ["checkpoint"])
            shutil.rmtree(self.path("ck"), ignore_errors=True)
        print("%d kills, %d of them after a save" % (kills, resumed), file=sys.stderr)
        self.assertEqual(kills, KILLS)
        self.assertGreaterEqual(resumed, KILLS // 2)


class Refused(Job):
    """A small call of two segments."""

    def setUp(self):
        super().setUp()
        self.save("q", 2, 401, 24)
        self.save("k", 2, 2500, 24)
        self.save("v", 2, 2500, 17)

    def saved(self, *more):
        """Makes a checkpoint; returns its bytes."""
        done = self.job(3, *self.qkv, *more, *SAVE, "--out", "o.npy")
        self.assertEqual((done.returncode, self.lines(done)), (0, []), done.stderr)
        os.remove(self.path("o.npy"))
        return self.bytes("ck/checkpoint")

    def test_resume(self):
        good = self.saved()
        resume = ("--resume", "ck")
        no = "ck/checkpoint: no checkpoint of this call: rank "
        for at in (40, len(good) // 2):
            self.write("ck/checkpoint", good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
            self.refused(BAD_FILE, no, *resume)
        self.write("ck/checkpoint", good[:-1])
        self.refused(BAD_FILE, no + "0: checkpoint is cut off", *resume)
        self.write("ck/checkpoint", self.bytes("q.npy"))
        self.refused(BAD_FILE, "does not start as one does", *resume)
        self.write("ck/checkpoint", good)
        self.refused(BAD_FILE, "the rules (causal", *resume, "--causal", "top-left")
        self.refused(BAD_FILE, "was saved with", *resume, "--isa", "generic")
        self.refused(BAD_FILE, "none/checkpoint: cannot open", "--resume", "none")
        os.makedirs(self.path("d/checkpoint"))
        self.refused(BAD_FILE, "d/checkpoint: is no regular file", "--resume", "d")
        for name in "qv":
            x = np.load(self.path(name + ".npy"))
            x[1, 400, 3] += 1
            np.save(self.path("other.npy"), x)
            files = [w.replace(name + ".npy", "other.npy") for w in map(str, self.qkv)]
            says = "q differs" if name == "q" else "k or v has other numbers"
            self.refused(BAD_FILE, says, *resume, qkv=files)
        self.assertEqual(self.bytes("ck/checkpoint"), good)
        self.works("run", *self.qkv, "--out", "want.npy")
        done = self.job(2, *self.qkv, *resume, "--out", "out.npy")
        self.assertEqual((done.returncode, self.lines(done)), (0, []), done.stderr)
        self.assertEqual(self.results()[0], self.bytes("want.npy"))

    def test_ranks_that_differ(self):
        self.saved()
        out = ("--out", "out.npy")
        self.refused(USAGE, "rank 1 has another --out, --lse, --checkpoint or --resume",
                     "--resume", "ck", last=(*self.qkv, *out))  # fmt: skip

    def test_places(self):
        """Where a checkpoint cannot be written, the job ends before it computes."""
        self.refused(LIMIT, "q.npy: is no directory", "--checkpoint", "q.npy")
        self.refused(LIMIT, "no/ck: cannot make the directory", "--checkpoint", "no/ck")
        os.makedirs(self.path("d/checkpoint"))
        self.refused(LIMIT, "d/checkpoint: is no regular file", "--checkpoint", "d")
        self.refused(USAGE, "--checkpoint -: must be", "--checkpoint", "-")
        self.refused(USAGE, "--every has no effect without --checkpoint DIR", "--every", 3)
        good = self.saved()
        self.refused(USAGE, "ck/checkpoint: is an input", "--resume", "ck",
                     out=("--out", "ck/checkpoint"))  # fmt: skip
        self.refused(USAGE, "ck/checkpoint: is named for two outputs", "--checkpoint", "ck",
                     out=("--out", "ck/checkpoint"))  # fmt: skip
        self.assertEqual(self.bytes("ck/checkpoint"), good)

    def test_faults(self):
        """One rank cannot write: the job ends, and the checkpoint before stays."""
        good = self.saved("--softcap", 20)
        full = "rank %d: ck/checkpoint: cannot write: No space left"
        for rank in (0, 2):
            self.refused(LIMIT, full % rank, *SAVE, ranks=3, fault="full-save", rank=rank)
        self.refused(LIMIT, "rank 0: ck/checkpoint: cannot replace it: Permission denied", *SAVE,
                     fault="rename-save")  # fmt: skip
        self.refused(LIMIT, "nothing within 2 s", *SAVE, "--deadline", 2, fault="stop-save",
                     rank=1)  # fmt: skip
        self.assertEqual(self.bytes("ck/checkpoint"), good)


if __name__ == "__main__":
    unittest.main()
