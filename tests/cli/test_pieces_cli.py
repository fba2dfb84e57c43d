#!/usr/bin/env python3
# labels: slow
"""attn run --pieces: the bits of one call from files that are read in pieces, checkpoints after any
piece and kill -9, and what is refused."""

import json
import os
import signal
import subprocess
import time
import unittest

import numpy as np

from cli import ATTN, CliTest

USAGE, BAD_FILE, NOT_FINITE = 2, 3, 5
B, H, HK, T, S, D, DV = 2, 4, 2, 30, 1500, 24, 16
QKV = ("--q", "q.npy", "--k", "k.npy", "--v", "v.npy")


class Pieces(CliTest):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(7)
        self.q = rng.standard_normal((B, H, T, D)).astype("f4")
        self.k = rng.standard_normal((B, HK, S, D)).astype("f4")
        self.v = rng.standard_normal((B, HK, S, DV)).astype("f4")
        for name in "qkv":
            np.save(self.path(name), getattr(self, name))

    def results(self, *args):
        """The bytes of out and lse."""
        self.works("run", *QKV, *args, "--out", "out.npy", "--lse", "lse.npy")
        return self.bytes("out.npy"), self.bytes("lse.npy")

    def same(self, *args):
        whole = self.results(*args)
        for size in 256, 512, 65536:
            self.assertEqual(self.results(*args, "--pieces", size), whole, (args, size))
        return whole


class Bits(Pieces):
    def test_bits_of_one_call(self):
        whole = self.same()
        self.same("--causal", "bottom-right", "--threads", 3)
        self.same("--causal", 1000, "--window", "300,0", "--softcap", 20)
        self.same("--dropout", 0.2, "--seed", 5)
        self.same("--dtype", "bf16")
        self.same("--dtype", "f64")
        np.save(self.path("k.npy"), self.k.astype(">f4"))  # another byte order
        self.assertEqual(self.results("--pieces", 256), whole)

    def test_a_piece_that_is_read_in_parts(self):
        """13 MB: three parts of 4 MiB and a rest."""
        for name, width in ("k", D), ("v", DV):
            x = np.random.default_rng(width).standard_normal((B, HK, 20100, width)).astype("f4")
            np.save(self.path(name + ".npy"), x)
        whole = self.results("--causal", "bottom-right")
        for args in (65536,), (65536, "--threads", 2), (7168,):
            args = ("--causal", "bottom-right", "--pieces", *args)
            self.assertEqual(self.results(*args), whole, args)

    def test_numpy(self):
        self.results("--pieces", 512)
        k, v = (np.repeat(x.astype("f8"), H // HK, 1) for x in (self.k, self.v))
        scores = self.q.astype("f8") @ k.swapaxes(-1, -2) / np.sqrt(D)
        e = np.exp(scores - scores.max(-1, keepdims=True))
        want = e @ v / e.sum(-1, keepdims=True)
        self.assertLess(np.abs(np.load(self.path("out.npy")) - want).max(), 1e-5)

    def test_other_ranks(self):
        for name in "qkv":
            np.save(self.path(name), getattr(self, name)[0])
        self.same()
        for name in "qkv":
            np.save(self.path(name), getattr(self, name)[0, 0])
        self.same("--causal", "top-left")

    def test_swept_again(self):
        """A NaN that a causal rule hides from some rows: all of them are read again."""
        self.v[0, 0, 1490, 3] = np.nan
        np.save(self.path("v.npy"), self.v)
        self.same("--causal", "bottom-right")
        report = json.loads(
            self.works("run", *QKV, "--causal", "bottom-right", "--pieces", 256, "--json")
        )
        self.assertGreater(report["pieces"]["keys"], S)

    def test_only_what_is_seen_is_read(self):
        args = ("--causal", 1000, "--window", "200,0", "--pieces", 256, "--json")
        pieces = json.loads(self.works("run", *QKV, *args))["pieces"]
        self.assertEqual(pieces["keys"], 1280 - 768)  # rows see keys 800 to 1029
        self.assertEqual(pieces["count"], 2)
        self.assertEqual(pieces["bytes"], 512 * B * HK * (D + DV) * 4)
        self.assertEqual(pieces["size"], 256)

    def test_not_finite(self):
        """Code 5 means that the inputs are finite, as without --pieces."""
        self.q[:] = 3e38
        self.k[:] = 3e38
        np.save(self.path("q.npy"), self.q)
        np.save(self.path("k.npy"), self.k)
        for args in (), ("--pieces", 256):
            done = self.attn("run", *QKV, *args, "--out", "out.npy")
            self.assertEqual(done.returncode, NOT_FINITE, args)
            self.assertIn(b"though every input is finite", done.stderr)
        self.v[1, 1, 7, 0] = np.inf
        np.save(self.path("v.npy"), self.v)
        for args in (), ("--pieces", 256):
            self.works("run", *QKV, *args, "--out", "out.npy")

    def test_summary(self):
        text = self.works("run", *QKV, "--pieces", 512)
        self.assertRegex(text, r"(?m)^pieces +3 of 512 keys, [0-9.e+]+ bytes read, \d+ bytes of st")
        self.assertIn("k        [2, 2, 1500, 24] f32", text)
        self.assertNotIn("scratch", text)  # which is that of a call with all keys


class Checkpoints(Pieces):
    def start(self, *args, **options):
        return subprocess.Popen(
            [ATTN, "run", *QKV, "--causal", "bottom-right", "--pieces", "256", "--every", "0",
             *args, "--out", "killed.npy"],
            cwd=self.folder, **options,
        )  # fmt: skip

    def resumes(self):
        self.works(
            "run", *QKV, "--causal", "bottom-right", "--pieces", 1024, "--resume", "state",
            "--threads", 2, "--out", "again.npy",
        )  # fmt: skip
        self.assertEqual(self.bytes("again.npy"), self.bytes("out.npy"))

    def long(self):
        """A call of 157 pieces of 256 keys; one NaN makes rows be swept again. Returns the size of
        a checkpoint of the first sweep."""
        S = 40000
        rng = np.random.default_rng(8)
        v = rng.standard_normal((B, HK, S, DV)).astype("f4")
        np.save(self.path("k.npy"), rng.standard_normal((B, HK, S, D)).astype("f4"))
        np.save(self.path("v.npy"), v)
        self.assertEqual(self.start("--checkpoint", "state").wait(), 0)
        size = os.path.getsize(self.path("state"))
        v[0, 0, 39990, 3] = np.nan
        np.save(self.path("v.npy"), v)
        self.works("run", *QKV, "--causal", "bottom-right", "--out", "out.npy")
        os.remove(self.path("state"))
        return size

    def test_kill_and_resume(self):
        """Checkpoints go through a FIFO, so a run cannot get far beyond the one that was read."""
        size = self.long()
        os.mkfifo(self.path("fifo"))
        for n, threads in (1, 1), (2, 2), (30, 1), (100, 2):
            # open for writing too, so that no read ends between two checkpoints
            fd = os.open(self.path("fifo"), os.O_RDWR)
            run = self.start("--checkpoint", "fifo", "--threads", str(threads))
            with open(fd, "rb") as fifo:
                for _ in range(n):
                    state = fifo.read(size)
                run.send_signal(signal.SIGKILL)
                self.assertEqual(run.wait(), -signal.SIGKILL)
            self.write("state", state)
            self.resumes()

    def test_interrupted(self):
        """Ctrl-C saves a last checkpoint and says how to continue; no result is written. The FIFO
        holds the run back until the signal is sent."""
        size = self.long()
        os.remove(self.path("killed.npy"))
        os.mkfifo(self.path("fifo"))
        for number, code in (signal.SIGINT, 130), (signal.SIGTERM, 143):
            fd = os.open(self.path("fifo"), os.O_RDWR)
            run = self.start("--checkpoint", "fifo", stderr=subprocess.PIPE)
            with open(fd, "rb", buffering=0) as fifo:
                states = fifo.read(1000)
                run.send_signal(number)
                os.set_blocking(fd, False)
                while run.poll() is None:
                    states += fifo.read() or b""
                states += fifo.read() or b""
            said = run.stderr.read().decode()
            run.stderr.close()
            self.assertEqual(run.returncode, code)
            self.assertRegex(said, r"^attn run: stopped at key \d+ of 40000; saved in fifo; "
                             r"continue with the same options and --resume fifo\n$")  # fmt: skip
            self.assertEqual(len(states) % size, 0)
            self.assertFalse(os.path.exists(self.path("killed.npy")))
            self.write("state", states[-size:])
            self.resumes()

    def test_a_file_that_becomes_shorter(self):
        """The file is cut while the FIFO holds the run back: one line, code 3, and no result."""
        size = self.long()
        os.remove(self.path("killed.npy"))
        os.mkfifo(self.path("fifo"))
        fd = os.open(self.path("fifo"), os.O_RDWR)
        # the thread sanitizer takes the page that the signal handler maps for a race
        more = ("--threads", "1" if "TSAN_OPTIONS" in os.environ else "2")
        run = self.start("--checkpoint", "fifo", *more, stderr=subprocess.PIPE)
        with open(fd, "rb") as fifo:
            fifo.read(size)
            os.truncate(self.path("v.npy"), os.path.getsize(self.path("v.npy")) - 70000)
            os.set_blocking(fd, False)
            while run.poll() is None:
                fifo.read()
        said = run.stderr.read().decode()
        run.stderr.close()
        self.assertEqual(run.returncode, BAD_FILE)
        self.assertEqual(said, "attn run: v.npy: has become shorter while it was read\n")
        self.assertFalse(os.path.exists(self.path("killed.npy")))

    def test_interrupted_while_results_are_written(self):
        """All pieces are done: Ctrl-C ends the program, as it does everywhere else."""
        q = np.random.default_rng(9).standard_normal((B, H, 40 * T, D)).astype("f4")
        np.save(self.path("q.npy"), q)
        os.mkfifo(self.path("fifo"))
        fd = os.open(self.path("fifo"), os.O_RDWR)
        run = subprocess.Popen(
            [ATTN, "run", *QKV, "--pieces", "256", "--checkpoint", "state", "--out", "fifo"],
            cwd=self.folder,
        )
        with open(fd, "rb", buffering=0) as fifo:
            self.assertEqual(fifo.read(6), b"\x93NUMPY")  # more than a FIFO holds follows
            run.send_signal(signal.SIGINT)
            self.assertEqual(run.wait(timeout=20), 130)

    def test_kill_while_files_are_replaced(self):
        """At any time there is a whole checkpoint, once there is one."""
        self.long()
        for saves in 1, 3, 20:
            seen = set()
            run = self.start("--checkpoint", "state")
            while len(seen) < saves and run.poll() is None:
                if os.path.exists(self.path("state")):
                    seen.add(os.stat(self.path("state")).st_mtime_ns)
                time.sleep(0.0002)
            run.kill()
            run.wait()
            self.resumes()

    def test_resume_skips_what_was_fed(self):
        whole = self.results()
        self.works("run", *QKV, "--pieces", 512, "--checkpoint", "state", "--every", 0,
                   "--out", "o.npy")  # fmt: skip
        report = self.works("run", *QKV, "--pieces", 256, "--resume", "state", "--json")
        self.assertEqual(json.loads(report)["pieces"]["keys"], 0)  # all but finish was done
        self.assertEqual(self.results("--pieces", 256, "--resume", "state"), whole)
        again = ("--pieces", 256, "--resume", "state", "--checkpoint", "state")
        self.assertEqual(self.results(*again), whole)

    def test_another_call(self):
        self.works("run", *QKV, "--pieces", 512, "--checkpoint", "state", "--every", 0,
                   "--out", "o.npy")  # fmt: skip

        def refused(says, *args, qkv=QKV):
            self.fails(BAD_FILE, "run", *qkv, "--pieces", 512, "--resume", "state", *args,
                       "--out", "no.npy", says=says)  # fmt: skip

        refused("state: no checkpoint of this call: args: the rules", "--causal", "top-left")
        refused("q is f64; the saved call's q is f32", "--dtype", "f64")
        refused("generic", "--isa", "generic")
        for name, says in (("q", "q differs"), ("k", "k.npy or v.npy has other numbers"),
                           ("v", "k.npy or v.npy has other numbers")):  # fmt: skip
            other = getattr(self, name).copy()
            other[1, 1, -1, 2] += 1
            np.save(self.path("other.npy"), other)
            refused(says.replace(name + ".npy", "other.npy"),
                    qkv=[x.replace(name + ".npy", "other.npy") for x in QKV])  # fmt: skip
        good = self.bytes("state")
        other_rules = bytes([good[0] ^ 1]) + good[1:]
        for bad in b"", good[:5], good[:-1], good[:40] + b"x" + good[41:], other_rules, b"\0" * 300:
            self.write("state", bad)
            refused("state: no checkpoint of this call: ")
        os.remove(self.path("state"))
        refused("state: cannot open: No such file")

    def test_checkpoint_cannot_be_written(self):
        self.fails(4, "run", *QKV, "--pieces", 256, "--checkpoint", "none/state", "--every", 0,
                   "--out", "out.npy", says="none/state: cannot")  # fmt: skip


class Errors(Pieces):
    def test_options(self):
        def refused(says, *args):
            self.fails(USAGE, "run", *QKV, *args, says=says)

        for n in 100, 257, 1000:
            refused("--pieces %d: must be" % n, "--pieces", n)
        refused("--checkpoint needs --pieces N", "--checkpoint", "c")
        refused("--resume needs --pieces N", "--resume", "c")
        refused("--every needs --pieces N", "--every", 1)
        refused("--every has no effect without --checkpoint", "--pieces", 256, "--every", 1)
        refused("--weights does not go with --pieces", "--pieces", 256, "--weights", "w.npy")
        refused("--scores does not go with --pieces", "--pieces", 256, "--scores", "s.npy")
        refused("--plan does not go with --pieces", "--pieces", 256, "--plan")
        refused("--grad-out does not go with --pieces", "--pieces", 256, "--grad-out", "v.npy",
                "--grad-q", "g.npy")  # fmt: skip
        refused("--checkpoint -", "--pieces", 256, "--checkpoint", "-")
        refused("k.npy: is an input file", "--pieces", 256, "--checkpoint", "k.npy")
        refused("c: is named for two outputs", "--pieces", 256, "--checkpoint", "c", "--out", "c")
        self.write("r", b"x")
        refused("r: is an input file", "--pieces", 256, "--resume", "r", "--out", "r")

    def test_files(self):
        def refused(says, *k):
            self.fails(BAD_FILE, "run", "--q", "q.npy", "--k", *k, "--v", "v.npy", "--pieces", 256,
                       says=says)  # fmt: skip

        np.savez(self.path("k.npz"), k=self.k)
        refused("k.npz:k: only a .npy file can be read in pieces", "k.npz:k")
        refused("-: only a .npy file can be read in pieces", "-")
        np.save(self.path("f.npy"), np.asfortranarray(self.k))
        refused("f.npy: is in Fortran order", "f.npy")
        np.save(self.path("i.npy"), self.k.astype("i4"))
        refused("i.npy: is an array of", "i.npy")
        np.save(self.path("r.npy"), self.k[0, 0, 0])
        refused("r.npy: has rank 1", "r.npy")
        np.save(self.path("d.npy"), self.k.astype("f8"))
        refused("d.npy: is f64 but q.npy is f32; give --dtype", "d.npy")
        np.save(self.path("s.npy"), self.k[:, :, :-1])
        refused("S=1500 but s.npy has S=1499", "s.npy")
        self.write("t.npy", self.bytes("k.npy")[:-4])
        refused("t.npy: header says", "t.npy")
        os.mkfifo(self.path("p.npy"))
        refused("p.npy: is a pipe", "p.npy")


if __name__ == "__main__":
    unittest.main()
