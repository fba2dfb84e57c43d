#!/usr/bin/env python3
"""The programs in C of bench/: they compile without a warning and print what they say."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(os.environ.get("ATTN_SOURCE", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("ATTN_BUILD", SOURCE / "build"))
SANITIZED = "ASAN_OPTIONS" in os.environ
sys.path.insert(0, str(SOURCE / "bench"))

import peers  # noqa: E402


class Programs(unittest.TestCase):
    def compile(self, folder, source, *more):
        program = os.path.join(folder, "a.out")
        flags = ["-Wall", "-Wextra", "-Wconversion", "-Werror", f"-I{SOURCE / 'include'}"]
        command = [os.environ.get("CC", "cc"), *flags, SOURCE / "bench" / source, *more]
        subprocess.run([*map(str, command), "-o", program], check=True)
        return program

    @unittest.skipIf(SANITIZED, "the time would mean nothing")
    def test_tiny(self):
        """tiny.c compiles without a warning and prints a time."""
        with tempfile.TemporaryDirectory() as folder:
            shared = BUILD / "libattn.so"
            program = self.compile(folder, "tiny.c", shared, f"-Wl,-rpath,{BUILD}")
            self.assertTrue(1e-9 < peers.run_tiny(program) < 1e-3)

    @unittest.skipIf(SANITIZED, "a sanitizer's library cannot be loaded by this program")
    def test_versions(self):
        """versions.c compiles without a warning, and compares two files of one library."""
        with tempfile.TemporaryDirectory() as folder:
            program = self.compile(folder, "versions.c", "-ldl", "-lm")
            libs = [os.path.join(folder, name) for name in ("a.so", "b.so")]
            for lib in libs:
                shutil.copy(BUILD / "libattn.so", lib)

            def run(*args):
                return subprocess.run([program, *args], capture_output=True, text=True)

            cells = ["1,4,2,3,9,8 none f32 forward", "1,2,2,7,9,5 top-left bf16 backward"]
            done = run("-s", "0.01", "-c", cells[0], "-c", cells[1], *libs)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            lines = done.stdout.splitlines()
            self.assertEqual(lines[:2], [f"library {n + 1}: {libs[n]}" for n in (0, 1)])
            for line, cell in zip(lines[3:5], cells, strict=True):
                self.assertTrue(line.startswith(cell), line)
                us, median, least = map(float, line[len(cell) :].split())
                self.assertTrue(0 < us < 1e6 and 0.01 < median < 100 and 0.01 < least < 100, line)
            self.assertEqual(len(lines), 6)

            for args, text in (
                (["-c", "1,4,2,3,9,8 none f16 forward", *libs], "f32|bf16"),
                (["-c", "1,4,0,3,9,8 none f32 forward", *libs], "at least 1"),
                (["-c", "1,4,3,3,9,8 none f32 forward", *libs], "heads"),
                ([libs[0]], "usage"),
                (["-x", *libs], "usage"),
                ([*["-c", cells[0]] * 65, *libs], "usage"),
                ([libs[0], "missing.so"], "missing.so"),
            ):
                done = run(*args)
                self.assertEqual(done.returncode, 2, args)
                self.assertIn(text, done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
