#!/usr/bin/env python3
"""attn run --mpi in a build without MPI, and its options alone. mpi/test_attn_run has the jobs."""

import os
import unittest

from cli import CliTest

QKV = ("--q", "q.npy", "--k", "k.npy", "--v", "v.npy")


class WithoutMpi(CliTest):
    def test_mpi_is_refused(self):
        with open(os.path.join(os.environ["ATTN_BUILD"], "CMakeCache.txt"), encoding="utf-8") as f:
            if "ATTN_MPI:BOOL=ON" in f.read():
                self.skipTest("this build has MPI")
        says = "--mpi: attn was built without MPI; build it with -DATTN_MPI=ON (docs/SCALE.md)"
        self.fails(2, "run", "--mpi", *QKV, "--out", "o.npy", says=says)
        self.fails(2, "run", *QKV, "--mp", says=says)
        # Of several processes that mpirun starts, one says it.
        for variable in ("OMPI_COMM_WORLD_RANK", "PMI_RANK"):
            self.fails(2, "run", "--mpi", *QKV, says=says, env={variable: "0"})
            done = self.attn("run", "--mpi", *QKV, env={variable: "1"})
            self.assertEqual((done.returncode, done.stdout, done.stderr), (2, b"", b""))

    def test_help_of_mpi(self):
        self.assertIn("--mpi", self.works("run", "--mpi", "--help"))

    def test_options_alone(self):
        self.fails(2, "run", *QKV, "--deadline", 5, says="--deadline has no effect without --mpi")
        self.fails(2, "run", *QKV, "--share", "heads", says="--share has no effect without --mpi")


if __name__ == "__main__":
    unittest.main()
