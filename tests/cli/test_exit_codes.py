#!/usr/bin/env python3
"""The exit codes: the lists in README.md and the manual agree, and each code is produced, except a
failed comparison (1) and Ctrl-C (130), which is tested in test_errors.py."""

import os
import re
import signal
import subprocess
import unittest

import numpy as np

from cli import ATTN, CliTest


class ExitCodes(CliTest):
    def setUp(self):
        super().setUp()
        x = np.ones((1, 1, 4, 8), np.float32)
        np.save(self.path("x.npy"), x)
        np.save(self.path("huge.npy"), x * np.float32(3e38))
        self.write("bad.npy", b"no array")
        self.run_x = ["run", "--q", "x.npy", "--k", "x.npy", "--v"]

    def test_ok_usage_bad_file(self):
        self.works(*self.run_x, "x.npy", code=0)
        self.fails(2, *self.run_x, "x.npy", "--threads", "none")
        self.fails(3, *self.run_x, "bad.npy")
        self.fails(3, *self.run_x, "none.npy")

    def test_an_output_that_cannot_be_written(self):
        self.fails(4, *self.run_x, "x.npy", "--out", "no/o.npy", says="no/o.npy")
        self.fails(4, "explain", "a b", "-o", "no/m.svg", says="no/m.svg")
        os.mkdir(self.path("d.svg"))
        self.fails(4, "explain", "a b", "-o", "d.svg", says="d.svg")

    def test_a_limit_and_a_full_device(self):
        self.fails(4, *self.run_x, "x.npy", "--out", "no/o.npy")
        with open("/dev/full", "wb") as full:
            done = self.attn(*self.run_x, "x.npy", "--json", stdout=full)
        self.assertEqual((done.returncode, done.stderr.count(b"\n")), (4, 1))

    def test_infinity_from_finite_input(self):
        done = self.attn(*self.run_x, "huge.npy", "--dtype", "f16", "--out", "o.npy")
        self.assertEqual((done.returncode, done.stderr.count(b"\n")), (5, 1), done.stderr)
        self.assertEqual(np.load(self.path("o.npy")).shape, (1, 1, 4, 8))

    def test_scores_that_overflow_are_not_explained(self):
        """A score of -inf would be called hidden by a mask."""
        for mask in [], ["--causal"]:
            for scale in "1e300", "-1e38":
                self.fails(5, "explain", "a b", "--scale", scale, *mask, says="--scale")
        self.works("explain", "a b", "--scale", "1e30", "--causal")

    def test_closed_pipe(self):
        # as a shell reports it: 128 and the signal's number
        done = subprocess.run(
            ["bash", "-c", '"$0" lesson --all | true; exit "${PIPESTATUS[0]}"', ATTN],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=100,
            preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_DFL),
        )
        self.assertEqual((done.returncode, done.stdout, done.stderr), (141, b"", b""))

    def test_readme_and_manual_have_the_list(self):
        with open(os.path.join(os.environ["ATTN_SOURCE"], "README.md"), encoding="utf-8") as f:
            said = f.read().split("Exit codes:")[1].split("\n## ")[0]
        rows = re.findall(r"(?m)^\| (\d+) \| (.*) \|$", said)
        codes = [int(code) for code, _ in rows]
        self.assertEqual(codes, [0, 1, 2, 3, 4, 5, 130, 141])
        self.assertIn("an output could not be written", dict(rows)["4"])
        said = self.works("help").split("Exit codes\n")[1]
        self.assertEqual([int(n) for n in re.findall(r"(?m)^ +(\d+)  \w", said)], codes)
        self.assertIn("an output could not be written", " ".join(said.split()))
        manual = self.works("help", "--man")
        self.assertIn("an output that could not be written", manual)
        status = manual[manual.index(".SH EXIT STATUS") : manual.index(".SH ENVIRONMENT")]
        self.assertEqual([int(n) for n in re.findall(r"\.TP\n(\d+)\n", status)], codes)


if __name__ == "__main__":
    unittest.main()
