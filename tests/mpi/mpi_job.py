"""Jobs of attn run --mpi, for the tests of this folder."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "cli"))
from cli import ATTN, CliTest  # noqa: E402

MPI, OF_MPI = os.environ["ATTN_TEST_MPI"], os.environ["ATTN_OF_MPI"]
USAGE, BAD_FILE, LIMIT, NOT_FINITE = 2, 3, 4, 5
# As in run.sh, which gives the reasons.
SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "UCX_TLS": "posix,sysv,self",
}
FLAGS = {
    "openmpi": "--oversubscribe --bind-to none --mca pml ob1 --mca btl vader,self "
    "--mca btl_vader_single_copy_mechanism none --mca mpi_yield_when_idle 1 "
    # Without this, mpiexec waits a second between the two signals that end the other ranks.
    "--mca odls_base_sigkill_timeout 0 "
    "--mca btl_tcp_if_include lo --mca oob_tcp_if_include lo".split(),
    "mpich": [],
}
B, H, HK, T, S, D, DV = 2, 4, 2, 201, 401, 24, 17


class Job(CliTest):
    command = "run"

    def setUp(self):
        super().setUp()
        # As in run.sh: a folder for the processes of Open MPI that is there and never empty.
        sessions = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(sessions.cleanup)
        host = socket.gethostname().split(".")[0]
        os.makedirs(os.path.join(sessions.name, "ompi.%s.%d" % (host, os.getuid()), "kept"))
        self.environment = dict(os.environ, TMPDIR=sessions.name, **SETTINGS)
        self.rng = np.random.default_rng(11)
        self.save("q", B, H, T, D)
        self.save("k", B, HK, S, D)
        self.save("v", B, HK, S, DV)
        self.qkv = ("--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--threads", 1)

    def save(self, name, *shape, dtype="f4"):
        x = self.rng.standard_normal(shape).astype(dtype)
        np.save(self.path(name + ".npy"), x)
        return x

    def line(self, ranks, *args, mpi=MPI, program=OF_MPI, fault=None, rank=0, last=None):
        """The command of a job; `fault`: of interpose.c, on this rank. `last`: the last rank has
        these arguments."""
        program = [program, self.command, "--mpi"]
        if fault:
            program = ["env", "LD_PRELOAD=" + self.interpose(), "FAULT=" + fault,
                       "FAULT_RANK=%d" % rank, *program]  # fmt: skip
        line = ["timeout", "-k", "5", "200", "mpiexec." + mpi, *FLAGS[mpi]]
        line += ["-n", ranks - (last is not None), *program, *args]
        if last is not None:
            line += [":", "-n", 1, *program, *last]
        return list(map(str, line))

    def start(self, ranks, *args, **more):
        return subprocess.Popen(
            self.line(ranks, *args, **more),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def job(self, ranks, *args, **more):
        running = self.start(ranks, *args, **more)
        out, err = running.communicate()
        return subprocess.CompletedProcess(running.args, running.returncode, out, err)

    def interpose(self):
        path = self.path("interpose.so")
        if not os.path.exists(path):
            subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", path,
                            os.path.join(HERE, "interpose.c"), "-ldl"], check=True)  # fmt: skip
        return path

    def results(self):
        """The bytes of out and lse, which are removed."""
        found = []
        for name in ("out.npy", "lse.npy"):
            found.append(self.bytes(name) if os.path.exists(self.path(name)) else None)
            if found[-1] is not None:
                os.remove(self.path(name))
        return found

    def same(self, ranks, *args, qkv=None, lse=True, code=0, share=()):
        """A run and jobs of these numbers of ranks write the same bytes. share: only for jobs."""
        args = [*(qkv or self.qkv), *args, "--out", "out.npy"]
        args += ["--lse", "lse.npy"] if lse else []
        plain = self.attn("run", *args)
        self.assertEqual(plain.returncode, code, plain.stderr)
        want = self.results()
        self.assertIsNotNone(want[0])
        for P in ranks:
            done = self.job(P, *args, *share)
            self.assertEqual(done.returncode, code, (P, args, done.stderr))
            self.assertEqual(done.stdout, b"")
            self.assertEqual(self.lines(done), plain.stderr.decode().splitlines())
            self.assertEqual(self.results(), want, (P, args))
        self.nothing_left()

    def lines(self, done):
        """What the program itself says; launchers add lines of their own."""
        return [x for x in done.stderr.decode().splitlines() if x.startswith("attn")]

    def nothing_left(self):
        """Neither files nor processes."""
        left = [x for x in os.listdir(self.folder) if x.startswith(".attn") or x == "out.npy"]
        self.assertEqual(left, [])
        for _ in range(100):
            running = [p for p in os.listdir("/proc") if p.isdigit() and self.is_ours(p)]
            if not running:
                return
            time.sleep(0.1)
        for pid in running:
            os.kill(int(pid), signal.SIGKILL)
        self.fail("processes %s did not end" % running)

    def is_ours(self, pid):
        try:
            if os.readlink("/proc/%s/cwd" % pid) != os.path.realpath(self.folder):
                return False
            with open("/proc/%s/cmdline" % pid, "rb") as f:
                return b"--mpi" in f.read()
        except OSError:  # it has ended
            return False

    def refused(self, code, says, *args, ranks=2, qkv=None, out=("--out", "out.npy"), **more):
        """One line of all ranks, this code, no file."""
        before = sorted(os.listdir(self.folder))
        done = self.job(ranks, *(qkv or self.qkv), *out, *args, **more)
        lines = self.lines(done)
        self.assertEqual((done.returncode, len(lines)), (code, 1), done.stderr)
        self.assertTrue(lines[0].startswith("attn run: "), lines)
        self.assertIn(says, lines[0])
        self.assertEqual(done.stdout, b"")
        after = [x for x in sorted(os.listdir(self.folder)) if x != "interpose.so"]
        self.assertEqual(after, [x for x in before if x != "interpose.so"])
        self.nothing_left()
        return done
