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
MADE = Path(os.environ["ATTN_BUILD"])  # has the generated files
LINE = "attn: pages will compute by JavaScript: "

# Compiles only the build's test program of one line, not the library.
NO_LIBRARY = """#!/bin/sh
case "$*" in *explain.c*) echo 'explain.c:1: error: planted' >&2; exit 1 ;; esac
exec {} "$@"
"""


COMPARE = """
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>
#include "unicode.c"

static void compare(const uint8_t *text, ptrdiff_t bytes)
{
    int32_t c = 7, want = 7;
    ptrdiff_t n = unicode_read(text, bytes, &c), m = utf8proc_iterate(text, bytes, &want);
    if ((n < 0 ? -1 : n) != (m < 0 ? -1 : m) || (m > 0 && c != want))
        printf("%02x %02x %02x %02x: %d of %d bytes\\n", text[0], text[1], text[2], text[3],
               (int)n, (int)m);
}

int main(void)
{
    for (int32_t c = -1; c <= 0x110000; c++) {
        const int k = utf8proc_category(c), punctuation = k >= UTF8PROC_CATEGORY_PC &&
                  k <= UTF8PROC_CATEGORY_PO;
        const int space = k >= UTF8PROC_CATEGORY_ZS && k <= UTF8PROC_CATEGORY_ZP;
        if (unicode_category(c) != (punctuation || space ? k : 0))
            printf("U+%04X is %d, not %d\\n", (unsigned)c, unicode_category(c), k);
        uint8_t text[4] = {0}, want[4] = {0};
        const ptrdiff_t n = unicode_write(c, text), m = utf8proc_encode_char(c, want);
        if (n != m || memcmp(text, want, sizeof text) != 0)
            printf("U+%04X has %d bytes, not %d\\n", (unsigned)c, (int)n, (int)m);
    }
    for (uint32_t i = 0; i < 1u << 24; i++)
        compare((uint8_t[]){(uint8_t)(i >> 16), (uint8_t)(i >> 8), (uint8_t)i, 0x80, 0}, -1);
    for (uint32_t i = 0; i < 1u << 22; i++)
        for (int bytes = 0; bytes <= 4; bytes++)
            compare((uint8_t[]){(uint8_t)(0xec + (i >> 18)), (uint8_t)(0x7a + (i >> 11 & 127)),
                             (uint8_t)(0x7e + (i >> 4 & 127)), (uint8_t)(0x78 + (i & 15) * 5), 0},
                 bytes);
}
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
        done = self.run_build(has_clang(), MADE, self.folder / "with", env=self.environment)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        module, without = (self.folder / "with").read_bytes(), MADE / "page.wasm"
        if not without.exists():  # this build has no module
            without = self.folder / "without"
            done = self.run_build(has_clang(), MADE, without)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(module, without.read_bytes())
        self.assertEqual(module[:4], b"\0asm")

    def test_a_failure_is_one_line(self):
        self.plant_clang()
        to = self.folder / "page.wasm"
        self.assertEqual(self.run_build(env=self.environment).stdout, "clang\n")  # the test
        done = self.run_build("clang", MADE, to, "AUTO", env=self.environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, LINE + "clang did not compile the program to WebAssembly: "
                         "explain.c:1: error: planted\n")
        self.assertEqual((self.folder / "page.wasm.base64").read_text(), "")
        # With ATTN_PAGE_WASM=ON this is an error.
        done = self.run_build("clang", MADE, to, "ON", env=self.environment)
        self.assertEqual((done.returncode, done.stderr), (1, "explain.c:1: error: planted\n"))

    def test_a_clang_that_dies_is_one_line_too(self):
        for how in ("exit 1", "kill -SEGV $$"):
            self.plant("silent", f"#!/bin/sh\n{how}\n")
            done = self.run_build("silent", MADE, self.folder / "page.wasm", "AUTO",
                                  env=self.environment)
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
            subprocess.run(["make", "unicode_table"], cwd=b, stdout=subprocess.DEVNULL, check=True)
            for made in ("page.wasm.base64", "page.c"):
                (b / made).unlink(missing_ok=True)
            done = subprocess.run(["make", "-f", "CMakeFiles/attn_kit.dir/build.make", "page.c"],
                                  cwd=b, env=self.environment, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, universal_newlines=True)
            self.assertEqual(done.returncode, code, done.stdout)
            self.assertEqual(done.stdout.count(LINE), 1 - code // 2, done.stdout)
            self.assertIn("explain.c:1: error: planted", done.stdout)
            if code == 0:
                codes = re.findall(r"\\x([0-9a-f]{2})", (b / "page.c").read_text())
                text = bytes.fromhex("".join(codes)).decode()
                self.assertNotIn("wasm-unsafe-eval", text)
                self.assertNotIn("@WASM@", text)

    def test_pip_goes_on_without(self):
        self.plant_clang()
        code = ("import sys, backend; c = backend.Compiler(sys.argv[1]);"
                "assert backend.page_module(c, sys.argv[2]) == ''")
        environment = {**self.environment, "PYTHONPATH": str(SOURCE / "python")}
        environment.pop("ATTN_PAGE_WASM", None)
        done = subprocess.run([sys.executable, "-c", code, self.folder, BUILD_SH],
                              env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              universal_newlines=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stderr.startswith(LINE), done.stderr)


    def test_characters_are_utf8procs(self):
        """The category of every character, and the reading of UTF-8: of all texts of three bytes,
        and of many of four."""
        program = self.folder / "compare"
        (self.folder / "compare.c").write_text(COMPARE)
        wasm = SOURCE / "kit" / "explain" / "page" / "wasm"
        subprocess.run([os.environ["CC"], "-O2", f"-I{wasm}", f"-I{MADE}", "-o", program,
                        self.folder / "compare.c", "-lutf8proc"], check=True)
        self.assertEqual(subprocess.check_output([program]), b"")


if __name__ == "__main__":
    unittest.main()
