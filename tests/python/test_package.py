#!/usr/bin/env python3
# timeout: 900
"""The wheel and the source distribution: their contents, and that each works by itself."""

import glob
import os
import stat
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

from common import SOURCE
import numpy as np

BUILD = "import backend, sys; print(getattr(backend, sys.argv[1])(sys.argv[2]))"
USE = """
import os, sys
assert "ATTN_LIBRARY" not in os.environ
import attn, numpy as np
assert os.path.abspath(attn.__file__).startswith(os.getcwd()), attn.__file__
q = np.arange(12, dtype=np.float64).reshape(3, 4) / 10
w = np.exp(q @ q.T / 2)
want = w / w.sum(-1, keepdims=True) @ q
assert abs(attn.scaled_dot_product_attention(q, q, q) - want).max() < 1e-14
from attn import _library_mpi
assert [_library_mpi.library.attn_mpi_rows(400, r, 3) for r in range(3)] == [144, 128, 128]
maps = open("/proc/self/maps").read()
assert len({line.split()[-1] for line in maps.splitlines() if "libattn.so" in line}) == 1, maps
assert "ATTN_PROGRAM" not in os.environ
e = attn.explain("sky is blue")
w = np.exp(e["scaled_scores"].astype(float))
assert abs(e["weights"] - w / w.sum(1, keepdims=True)).max() < 1e-6
assert attn.lesson("sky")["context"].shape == (3, 2)
try:
    e.save("a.png")
except ValueError as error:
    assert "make install" in str(error), error
else:
    raise AssertionError("the wheel's program drew a .png")
print(attn.__version__)
"""


def python(code, *args, path, **more):
    env = {k: v for k, v in os.environ.items()
           if not k.startswith("ATTN") or k == "ATTN_PAGE_WASM"}
    env["PYTHONPATH"] = path
    done = subprocess.run(
        [sys.executable, "-c", code, *args], env=env, stdout=subprocess.PIPE, check=True, **more
    )
    return done.stdout.decode().split()[-1]


class Package(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=".")
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)
        if not sys.platform.startswith("linux"):
            self.skipTest("the package is built on Linux")

    def works(self, wheel, version):
        self.assertRegex(wheel, r"^attn-%s-py3-none-linux_\w+\.whl$" % version)
        # The library has up to 1.25 MiB, the page's module up to 0.5; they compress to less.
        self.assertLess(os.path.getsize(wheel), 5 << 19)
        with zipfile.ZipFile(wheel) as z:
            names = z.namelist()
            mode = z.getinfo("attn/attn-program").external_attr >> 16
            self.assertEqual(stat.S_IMODE(mode), 0o755)
            self.assertTrue(stat.S_ISREG(mode))  # otherwise pip would not make it executable
            z.extractall("installed")
            entries = z.read("attn-%s.dist-info/entry_points.txt" % version).decode()
            record = z.read("attn-%s.dist-info/RECORD" % version).decode().splitlines()
        self.assertIn("attn = attn._explain:main", entries)
        self.assertEqual(sorted(line.split(",")[0] for line in record), sorted(names))
        tree = glob.glob(os.path.join(SOURCE, "python", "attn", "*.py"))
        want = {"attn/" + os.path.basename(f) for f in tree}
        want |= {"attn/py.typed", "attn/libattn.so", "attn/libattn-mpi.so", "attn/attn-program"}
        self.assertEqual({n for n in names if n.startswith("attn/")}, want)
        self.assertEqual(python(USE, path=os.path.abspath("installed")), version)

    def program(self):
        """The wheel's program needs only libraries that every machine has, and is installed as the
        command."""
        path = os.path.abspath("installed/attn/attn-program")
        needs = subprocess.check_output(["ldd", path]).decode()
        names = {line.split()[0].split("/")[-1].split(".so")[0] for line in needs.splitlines()}
        self.assertLessEqual(names, {"linux-vdso", "linux-gate", "libc", "libm", "libpthread",
                                     "ld-linux-x86-64", "ld-linux-aarch64"})
        code = "import sys; sys.argv[1:] = ['lesson', 'sky', '--check']; "
        code += "from attn._explain import main; main()"
        python(code, path=os.path.abspath("installed"))
        # the backend assembles the page in Python, CMake does it for the other program
        for program, page in (path, "a.html"), (os.environ["ATTN"], "b.html"):
            subprocess.run([program, "explain", "sky is blue", "-o", page], check=True,
                           stdout=subprocess.DEVNULL)
        with open("a.html", "rb") as a, open("b.html", "rb") as b:
            self.assertEqual(a.read(), b.read())
        np.savez("a.npz", q=np.zeros((2, 2), "f4"))
        done = subprocess.run([path, "info", "a.npz"], stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 3)
        self.assertIn(b"reads no .npz", done.stderr)

    def test_sdist_then_wheel(self):
        """Builds a wheel from the source distribution, outside of the tree."""
        with open(os.path.join(SOURCE, "include", "attn.h")) as f:
            version = f.read().split('#define ATTN_VERSION_STRING "')[1].split('"')[0]
        name = python(BUILD, "build_sdist", ".", path=os.path.join(SOURCE, "python"))
        self.assertEqual(name, "attn-%s.tar.gz" % version)
        with tarfile.open(name) as tar:
            self.assertTrue(all(n.startswith("attn-%s/" % version) for n in tar.getnames()))
            tar.extractall(".")
        folder = os.path.abspath("attn-" + version)
        wheel = python(BUILD, "build_wheel", ".", path=folder)
        self.works(wheel, version)
        self.program()

    def refused(self, hook, **environment):
        """The last line of the backend if it fails."""
        done = subprocess.run(
            [sys.executable, "-c", BUILD, hook, "."], stderr=subprocess.PIPE,
            env={**os.environ, **environment, "PYTHONPATH": os.path.join(SOURCE, "python")})
        self.assertEqual(done.returncode, 1)
        return done.stderr.decode()

    def test_no_compiler_is_one_line(self):
        for compiler, why in (("no-such-cc -m64", r"no-such-cc: No such file or directory"),
                              ("false", r"false fails: it does not say why"),
                              ("cc -nostdinc", r"cc -nostdinc fails: .*stdlib\.h.*")):
            said = self.refused("build_wheel", CC=compiler, CFLAGS="")
            self.assertRegex(said, r"^attn: no C compiler that works \(%s\); on Debian: apt-get "
                                   r"install gcc libc6-dev, or name one in CC\n$" % why)

    def test_metadata_compiles_nothing(self):
        """pip asks for the metadata before it fetches NumPy; the wheel has the same."""
        env = {**os.environ, "PYTHONPATH": os.path.join(SOURCE, "python"), "CC": "no-such-cc"}
        done = subprocess.run(
            [sys.executable, "-c", BUILD, "prepare_metadata_for_build_wheel", "."],
            env=env, stdout=subprocess.PIPE, check=True)
        folder = done.stdout.decode().strip()
        self.assertRegex(folder, r"^attn-[0-9.]+\.dist-info$")
        with open(os.path.join(folder, "METADATA"), encoding="utf-8") as f:
            self.assertIn("\nName: attn\nVersion: %s\n" % folder.split("-")[1][:-5], f.read())


if __name__ == "__main__":
    unittest.main()
