#!/usr/bin/env python3
"""The build of the page's WebAssembly with tools that fail, and the messages of a build without it:
a new user's first commands never fail because of it. No browser is needed."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(os.environ["ATTN_SOURCE"])
BUILD_SH = SOURCE / "kit" / "explain" / "page" / "wasm" / "build.sh"
LINE = "attn: pages will compute by JavaScript: "

# Compiles only the build's test program of one line, not the library.
NO_LIBRARY = """#!/bin/sh
case "$*" in *attend.c*) echo 'attend.c:1: error: planted' >&2; exit 1 ;; esac
exec {} "$@"
"""


def has_clang():
    found = subprocess.run(["sh", BUILD_SH], stdout=subprocess.PIPE)
    return found.stdout.decode().strip()


@unittest.skipUnless(has_clang(), "no clang here compiles for wasm32")
class Build(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=".")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()
        (self.folder / "bin").mkdir()
        self.clang = subprocess.check_output(["sh", "-c", "command -v " + has_clang()]).decode()
        self.environment = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}

    def plant(self, name, text):
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def plant_clang(self):
        for name in ("clang", *(f"clang-{n}" for n in range(14, 30))):
            self.plant(name, NO_LIBRARY.format(self.clang.strip()))

    def run_build(self, *arguments, **more):
        return subprocess.run(["sh", BUILD_SH, *arguments], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, universal_newlines=True, **more)

    def test_wasm_opt_takes_no_part(self):
        """clang 14 runs wasm-opt by itself when it links with -O; Debian's refused the module."""
        self.plant("wasm-opt", "#!/bin/sh\necho 'Fatal: error validating input' >&2\nexit 1\n")
        modules = []
        for name, environment in (("with", self.environment), ("without", os.environ)):
            done = self.run_build(has_clang(), self.folder / name, env=environment)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            modules.append((self.folder / name).read_bytes())
        self.assertEqual(modules[0], modules[1])
        self.assertEqual(modules[0][:4], b"\0asm")

    def test_a_failure_is_one_line(self):
        self.plant_clang()
        to = self.folder / "page.wasm"
        self.assertEqual(self.run_build(env=self.environment).stdout, "clang\n")  # the test
        done = self.run_build("clang", to, "AUTO", env=self.environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, LINE + "clang did not compile attention to WebAssembly: "
                         "attend.c:1: error: planted\n")
        self.assertEqual((self.folder / "page.wasm.base64").read_text(), "")
        # With ATTN_PAGE_WASM=ON this is an error.
        done = self.run_build("clang", to, "ON", env=self.environment)
        self.assertEqual((done.returncode, done.stderr), (1, "attend.c:1: error: planted\n"))

    def test_a_clang_that_dies_is_one_line_too(self):
        for how in ("exit 1", "kill -SEGV $$"):
            self.plant("silent", f"#!/bin/sh\n{how}\n")
            done = self.run_build("silent", self.folder / "page.wasm", "AUTO", env=self.environment)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(done.stderr.startswith(LINE), done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_make_goes_on_without(self):
        """As `make demo` builds it; with ATTN_PAGE_WASM=ON it stops."""
        self.plant_clang()
        b = self.folder / "b"
        for asked, code in (("AUTO", 0), ("ON", 2)):
            subprocess.run(["cmake", "-S", SOURCE, "-B", b, "-G", "Unix Makefiles",
                            "-DATTN_BUILD_TESTS=OFF", f"-DATTN_PAGE_WASM={asked}",
                            f"-DCMAKE_C_COMPILER={os.environ['CC']}"],
                           env=self.environment, stdout=subprocess.DEVNULL, check=True)
            for made in ("page.wasm.base64", "page.c"):
                (b / made).unlink(missing_ok=True)
            done = subprocess.run(["make", "-f", "CMakeFiles/attn_kit.dir/build.make", "page.c"],
                                  cwd=b, env=self.environment, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, universal_newlines=True)
            self.assertEqual(done.returncode, code, done.stdout)
            self.assertEqual(done.stdout.count(LINE), 1 - code // 2, done.stdout)
            self.assertIn("attend.c:1: error: planted", done.stdout)
            if code == 0:
                codes = re.findall(r"\\x([0-9a-f]{2})", (b / "page.c").read_text())
                text = bytes.fromhex("".join(codes)).decode()
                self.assertNotIn("wasm-unsafe-eval", text)
                self.assertNotIn("@WASM@", text)

    def test_pip_goes_on_without(self):
        self.plant_clang()
        code = ("import sys, types, backend; c = types.SimpleNamespace(folder=sys.argv[1]);"
                "assert backend.page_module(c, sys.argv[2]) == ''")
        environment = {**self.environment, "PYTHONPATH": str(SOURCE / "python")}
        environment.pop("ATTN_PAGE_WASM", None)
        done = subprocess.run([sys.executable, "-c", code, self.folder, BUILD_SH],
                              env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              universal_newlines=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stderr.startswith(LINE), done.stderr)


if __name__ == "__main__":
    unittest.main()
