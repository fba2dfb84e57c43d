"""Shared by the tests of the program: running it, and the checks of every failure."""

import os
import subprocess
import tempfile
import unittest

ATTN = os.environ.get("ATTN", "attn")
LEAKS = "print_suppressions=0:suppressions=" + os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "lsan.supp"
)


class CliTest(unittest.TestCase):
    """Each test has its own folder, which is the program's working directory."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=".")
        self.addCleanup(folder.cleanup)
        self.folder = os.path.abspath(folder.name)

    def path(self, name):
        return os.path.join(self.folder, name)

    def bytes(self, name):
        with open(self.path(name), "rb") as f:
            return f.read()

    def write(self, name, data):
        with open(self.path(name), "wb") as f:
            f.write(data)

    def attn(self, *args, env=None, stdin=b"", stdout=subprocess.PIPE, **more):
        """Runs the program without the caller's settings. Input and output are bytes."""
        clean = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(
                (
                    "ATTN_N",
                    "ATTN_I",
                    "ATTN_AMX",
                    "COLUMNS",
                    "LC_",
                    "LANG",
                    "NO_COLOR",
                    "FORCE_COLOR",
                    "CLICOLOR",
                    "COLORTERM",
                    "POSIXLY",
                )
            )
        }
        clean.update({"LC_ALL": "C.UTF-8", "TERM": "xterm", "LSAN_OPTIONS": LEAKS}, **(env or {}))
        return subprocess.run(
            [ATTN, *map(str, args)],
            cwd=self.folder,
            env=clean,
            input=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            timeout=300,  # the machine may be busy
            **more
        )

    def works(self, *args, code=0, **more):
        """Runs the program, expects success and an empty stderr. Returns stdout as text."""
        done = self.attn(*args, **more)
        self.assertEqual((done.returncode, done.stderr.decode()), (code, ""), args)
        return done.stdout.decode()

    def fails(self, code, *args, says="", **more):
        """Runs the program, expects this exit code, one line on stderr, nothing on stdout and no
        new file. Returns the line."""
        before = sorted(os.listdir(self.folder))
        done = self.attn(*args, **more)
        line = done.stderr.decode()
        self.assertEqual(done.returncode, code, (args, line))
        self.assertEqual(done.stdout, b"", args)
        self.assertEqual(line.count("\n"), 1, line)
        self.assertTrue(line.startswith("attn") and line.endswith("\n"), line)
        self.assertIn(says, line)
        self.assertEqual(sorted(os.listdir(self.folder)), before, args)
        return line
