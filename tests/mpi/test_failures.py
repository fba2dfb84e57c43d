#!/usr/bin/env python3
# labels: slow
# timeout: 7200
"""attn run --mpi, the same failures of one rank many times: no job hangs, none leaves a process or
a file, and each ends with the code and the line of its failure.

ATTN_MPI_REPEATS=100 in the environment: so many of each, instead of 3."""

import os
import shutil
import sys
import unittest

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mpi_job import BAD_FILE, LIMIT, MPI, NOT_FINITE, USAGE, Job  # noqa: E402

REPEATS = int(os.environ.get("ATTN_MPI_REPEATS", 3))


class Repeated(Job):
    def setUp(self):
        super().setUp()
        self.passed = 0

    def each(self, once):
        """Runs once(n) for every n, also after a failure."""
        for n in range(REPEATS):
            with self.subTest(n=n):
                once(n)
                self.passed += 1
        print("%s: %d of %d" % (self.id().split("_")[-1], self.passed, REPEATS), file=sys.stderr)

    def test_stopped(self):
        def once(n):
            self.refused(LIMIT, "nothing within 1 s", "--deadline", 1, ranks=3, rank=n % 3,
                         fault=("stop-read", "stop-call", "stop-write")[n // 3 % 3])  # fmt: skip

        self.each(once)

    def test_short(self):
        self.write("short.npy", self.bytes("k.npy")[:-4])
        files = ("--q", "q.npy", "--k", "short.npy", "--v", "v.npy")
        self.each(lambda n: self.refused(
            BAD_FILE, "rank 2: short.npy: header says", ranks=3,
            last=(*files, "--out", "out.npy")))  # fmt: skip

    def test_nan(self):
        """It is no failure of the job: the results are those of a run without ranks."""
        v = np.load(self.path("v.npy"))
        v[0, 0, 390, 3] = 3e38
        np.save(self.path("v.npy"), v)
        rules = ("--dtype", "f16", "--causal", "bottom-right")
        self.each(lambda n: self.same([3], *rules, code=NOT_FINITE))

    def test_memory(self):
        self.each(lambda n: self.refused(
            LIMIT, "rank %d: no memory" % (n % 3), ranks=3, fault="memory",
            rank=n % 3))  # fmt: skip

    def test_launcher(self):
        other = {"openmpi": "mpich", "mpich": "openmpi"}[MPI]
        if not shutil.which("mpiexec." + other):
            self.skipTest("no mpiexec." + other)
        self.each(lambda n: self.refused(USAGE, "use the mpirun of the MPI", mpi=other))


if __name__ == "__main__":
    unittest.main()
