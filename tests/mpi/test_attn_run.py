#!/usr/bin/env python3
# labels: slow
# timeout: 1200
"""attn run --mpi, as jobs of 1 to 4 ranks: the bytes of a run without it, and one line, one exit
code and no file after any failure of one rank."""

import os
import re
import subprocess
import sys
import unittest

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mpi_job import (ATTN, B, BAD_FILE, D, DV, H, HK, LIMIT, MPI, NOT_FINITE, S, T,  # noqa: E402
                     USAGE, Job)  # fmt: skip


class Bits(Job):
    def test_any_number_of_ranks(self):
        self.same([1, 2, 3, 4])

    def test_types(self):
        self.same([3], "--dtype", "bf16")
        self.same([2], "--dtype", "f16", "--causal", "top-left")
        self.same([4], "--dtype", "f64", lse=False)
        self.same([2], "--precision", "accurate")
        for name in "qkv":  # as they are stored: f16, and another byte order
            np.save(self.path(name), np.load(self.path(name + ".npy")).astype(">f2"))
        self.same([3])

    def test_rules(self):
        np.save(self.path("lengths.npy"), np.array([300, 0]))
        for name in ("alibi", "sinks"):
            self.save(name, H)
        self.same([4], "--causal", "bottom-right", "--window", "70,0")
        self.same([2], "--key-lengths", "lengths.npy", "--causal", "bottom-right")
        self.same([3], "--alibi", "alibi.npy", "--sinks", "sinks.npy", "--softcap", 20,
                  "--scale", 0.3)  # fmt: skip
        self.same([3], "--dropout", 0.2, "--seed", 5)

    def test_masks(self):
        r = self.rng
        np.save(self.path("m.npy"), r.random((H, T, S)) < 0.7)
        self.same([3], "--mask", "m.npy")
        mask = np.where(r.random((B, 1, T, S)) < 0.3, -np.inf, r.random((B, 1, T, S)))
        np.save(self.path("m.npy"), mask.astype("f4"))
        self.same([4], "--mask", "m.npy")
        np.save(self.path("m.npy"), mask[0, 0, :, :1].astype("f2"))
        self.same([2], "--mask", "m.npy")
        np.save(self.path("m.npy"), mask[1, 0, 3])
        self.same([3], "--mask", "m.npy")
        np.savez(self.path("m.npz"), x=mask[1, 0, 3:4])
        self.same([2], "--mask", "m.npz:x")

    def test_shapes(self):
        for P, tokens, keys in ((4, 1, 1), (3, 0, 5), (2, 5, 0), (4, 65, 129), (2, 64, 64)):
            self.save("q", H, tokens, D)
            self.save("k", HK, keys, D)
            self.save("v", HK, keys, DV)
            self.same([P], "--causal", "bottom-right")
        self.save("q", 700, 1)
        self.save("k", 700, 1)
        self.save("v", 700, 3)
        self.same([3], "--causal", "top-left")
        self.save("v", 700, 0)
        self.same([2])

    def test_share_heads(self):
        share = ("--share", "heads")
        self.same([1, 2], "--causal", "bottom-right", share=share)
        self.save("alibi", H)
        np.save(self.path("m.npy"), self.rng.random((H, T, S)) < 0.7)
        self.same([2], "--alibi", "alibi.npy", "--mask", "m.npy", "--dropout", 0.2, "--seed", 5,
                  share=share)  # fmt: skip

    def test_one_result(self):
        done = self.job(2, *self.qkv, "--lse", "lse.npy")
        self.assertEqual((done.returncode, self.lines(done)), (0, []), done.stderr)
        got = self.results()
        self.works("run", *self.qkv, "--lse", "lse.npy")
        self.assertEqual(got, self.results())

    def test_not_finite(self):
        v = np.load(self.path("v.npy"))
        v[0, 0, 390, 3] = np.nan  # an input that is not finite: no error
        np.save(self.path("v.npy"), v)
        self.same([2], "--causal", "top-left")
        v[0, 0, 390, 3] = 3e38  # overflows in f16, in the last rows: those of one rank
        np.save(self.path("v.npy"), v)
        rules = ("--dtype", "f16", "--causal", "bottom-right")
        self.same([3], *rules, code=NOT_FINITE)

    def test_replaces_an_older_file(self):
        self.works("run", *self.qkv, "--out", "want.npy")
        self.write("out.npy", b"old")
        done = self.job(2, *self.qkv, "--out", "out.npy")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.bytes("out.npy"), self.bytes("want.npy"))
        os.remove(self.path("out.npy"))
        self.nothing_left()


class Refused(Job):
    def test_options(self):
        self.refused(USAGE, "--dtype f8: must be", "--dtype", "f8")
        self.refused(USAGE, "unknown option '--nonsense'", "--nonsense")
        self.refused(USAGE, "--weights does not go with --mpi", "--weights", "w.npy")
        self.refused(USAGE, "--pieces does not go with --mpi", "--pieces", 256)
        self.refused(USAGE, "--mpi needs --out FILE or --lse FILE", out=())
        self.refused(USAGE, "--deadline 0: must be", "--deadline", 0)
        self.refused(USAGE, "--share cores: must be rows or heads", "--share", "cores")
        self.refused(USAGE, "--checkpoint does not go with --share heads", "--share", "heads",
                     "--checkpoint", "saved")
        self.refused(USAGE, "k.npy: has 2 heads for 3 processes", "--share", "heads", ranks=3)
        self.refused(USAGE, "out.npy: is named for two outputs", "--lse", "out.npy")

    def test_inputs(self):
        self.refused(BAD_FILE, "none.npy: cannot open", "--mask", "none.npy")
        self.refused(USAGE, "-: is a standard stream; with --mpi", "--mask", "-")
        os.mkfifo(self.path("fifo"))
        self.refused(USAGE, "fifo: is a pipe or a device; with --mpi", "--alibi", "fifo")
        self.refused(USAGE, "fifo: is a pipe or a device; with --mpi", out=("--out", "fifo"))
        self.refused(USAGE, "-: is a standard stream", out=("--out", "-"))
        np.savez(self.path("k.npz"), k=np.load(self.path("k.npy")))
        other = lambda k: ("--q", "q.npy", "--k", k, "--v", "v.npy")
        self.refused(BAD_FILE, "k.npz:k: only a .npy file", qkv=other("k.npz:k"))
        self.refused(BAD_FILE, "q.npy: K has Hk=4", qkv=("--q", "k.npy", "--k", "q.npy",
                                                        "--v", "v.npy"))  # fmt: skip
        self.write("short.npy", self.bytes("k.npy")[:-4])
        self.refused(BAD_FILE, "short.npy: header says", qkv=other("short.npy"), ranks=3)
        mask = np.ones((T, S), "u1")
        np.save(self.path("m.npy"), mask.astype("?"))
        self.write("m.npy", self.bytes("m.npy")[:-1] + b"\x02")
        self.refused(BAD_FILE, "m.npy: has an element that is neither 0 nor 1", "--mask", "m.npy")

    def test_outputs(self):
        self.refused(LIMIT, "no/o.npy: cannot open its folder", out=("--out", "no/o.npy"))
        os.mkdir(self.path("d"))
        self.refused(LIMIT, "d: is a directory", out=("--out", "d"))
        self.refused(USAGE, "q.npy: is an input file", out=("--out", "q.npy"))

    def test_ranks_that_differ(self):
        """One line, which names the rank."""
        out = ("--out", "out.npy")
        self.refused(BAD_FILE, "rank 2: none.npy: cannot open", ranks=3,
                     last=("--q", "none.npy", *self.qkv[2:], *out))  # fmt: skip
        self.refused(USAGE, "rank 1: --dtype f8: must be", last=(*self.qkv, *out, "--dtype", "f8"))
        self.refused(USAGE, "rank 1 has another --out, --lse,", last=(*self.qkv, "--out", "o.npy"))
        self.refused(USAGE, "differ in rules", last=(*self.qkv, *out, "--causal", "top-left"))
        self.refused(USAGE, "differ in shapes or types", last=(*self.qkv, *out, "--dtype", "f64"))

    def test_disk_that_is_full(self):
        for rank in (0, 2):
            self.refused(LIMIT, "rank %d: out.npy: cannot write: No space left" % rank, ranks=3,
                         fault="full", rank=rank)  # fmt: skip

    def test_older_file_stays(self):
        self.write("out.npy", b"old")
        done = self.job(3, *self.qkv, "--out", "out.npy", fault="full", rank=1)
        self.assertEqual(done.returncode, LIMIT)
        self.assertEqual(self.bytes("out.npy"), b"old")
        os.remove(self.path("out.npy"))
        self.nothing_left()

    def test_rename_fails(self):
        self.refused(LIMIT, "rank 0: out.npy: cannot replace it: Permission denied",
                     fault="rename")  # fmt: skip

    def test_rank_that_stops(self):
        """It is named within the deadline, and the launcher ends it."""
        for rank in (0, 1):
            for fault in ("stop-read", "stop-call", "stop-write"):
                done = self.refused(LIMIT, "nothing within 2 s", "--deadline", 2, ranks=3,
                                    fault=fault, rank=rank)  # fmt: skip
                # One that waits for it may be named, too.
                found = re.search("--mpi: ranks? (.*) (sent|took) nothing", self.lines(done)[0])
                self.assertIn(str(rank), found.group(1).split(", "))

    def test_signal_while_a_file_is_there(self):
        for rank in (0, 1):
            done = self.job(2, *self.qkv, "--out", "out.npy", fault="signal", rank=rank)
            self.assertNotEqual(done.returncode, 0)
            self.assertLessEqual(len(self.lines(done)), 1, done.stderr)
            self.nothing_left()

    def test_other_launcher(self):
        other = {"openmpi": "mpich", "mpich": "openmpi"}[MPI]
        if subprocess.run(["which", "mpiexec." + other], stdout=subprocess.DEVNULL).returncode:
            self.skipTest("no mpiexec." + other)
        self.refused(USAGE, "use the mpirun of the MPI", mpi=other)

    def test_build_without_mpi(self):
        if b"built without MPI" not in self.attn("run", "--mpi").stderr:
            self.skipTest("the program has MPI")
        self.refused(USAGE, "--mpi: attn was built without MPI", program=ATTN)


if __name__ == "__main__":
    unittest.main()
