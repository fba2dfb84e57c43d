"""CMake 3.21, the oldest supported version: presets, a configuration with tests, and one of only
the library, which is compiled."""

import importlib.metadata
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CMAKE = Path(sys.prefix) / "bin" / "cmake"


class OldestCMake(unittest.TestCase):
    def cmake(self, *arguments):
        done = subprocess.run([CMAKE, *arguments], cwd=ROOT, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_is_the_oldest(self):
        wanted = (ROOT / "CMakeLists.txt").read_text()
        self.assertIn("cmake_minimum_required(VERSION 3.21)", wanted)
        self.assertRegex(importlib.metadata.version("cmake"), r"^3\.21\.")
        self.assertIn("3.21.", self.cmake("--version"))

    def test_presets(self):
        for kind in ("--list-presets=configure", "--list-presets=build", "--list-presets=test"):
            self.assertIn('"release"', self.cmake("-S", ".", kind))

    def test_configures_with_tests(self):
        with tempfile.TemporaryDirectory() as folder:
            out = self.cmake("--preset", "release", "-B", folder, "-DATTN_BUILD_TESTS=ON")
            self.assertIn("Generating done", out)
            self.assertNotIn("Warning", out)

    def test_builds_the_library(self):
        with tempfile.TemporaryDirectory() as folder:
            self.cmake("-S", ".", "-B", folder, "-DATTN_BUILD_PROGRAM=OFF",
                       "-DCMAKE_C_FLAGS_RELEASE=-O0")  # fmt: skip
            self.cmake("--build", folder, "-j", "2")
            self.assertTrue((Path(folder) / "libattn.so").exists())


if __name__ == "__main__":
    unittest.main()
