"""The build backend of the package (PEP 517): compiles libattn's sources with the C compiler, CC or
cc, and puts libattn.so beside the Python files. It needs Python and the compiler; Linux only.

The sources are those of the tree that this folder is in, or, in a source distribution, those in
libattn/ beside this file.
"""

import base64
import concurrent.futures
import glob
import hashlib
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "attn"
# As cmake/AttnCompile.cmake has them; a product and a sum are never fused, so that bits are the
# same from every compiler.
COMPILE = ["-std=gnu11", "-O3", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"]
COMPILE += ["-ffunction-sections", "-fdata-sections"]
LINK = ["-shared", "-s", "-Wl,-soname,libattn.so", "-Wl,--gc-sections", "-Wl,-z,relro,-z,now"]
METADATA = """\
Metadata-Version: 2.1
Name: attn
Version: {version}
Summary: Self-attention on the CPU: exact, fast, in linear memory; forward and backward
License: Apache-2.0
Requires-Python: >=3.9
Requires-Dist: numpy>=1.21
Classifier: Operating System :: POSIX :: Linux
Classifier: Typing :: Typed

The binding of libattn. See README.md, "From Python", of the source tree.
"""


def sources():
    """The folder that has src/ and include/."""
    for root in (os.path.join(HERE, "libattn"), os.path.dirname(HERE)):
        if os.path.exists(os.path.join(root, "include", "attn.h")):
            return root
    raise SystemExit(
        "libattn's sources are not beside python/; build from a whole tree, with pip 21.3 or newer"
    )


def version():
    with open(os.path.join(sources(), "include", "attn.h"), encoding="utf-8") as f:
        return re.search(r'ATTN_VERSION_STRING "([^"]+)"', f.read()).group(1)


def accepted(compiler, flag, folder):
    """[flag] if the compiler knows it, else []."""
    source = os.path.join(folder, "accepted.c")
    with open(source, "w") as f:
        f.write("int accepted;\n")
    command = compiler + [flag, "-c", source, "-o", source + ".o"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return [flag] if done.returncode == 0 else []


def compile_library(path):
    """Writes libattn.so to path."""
    root = sources()
    compiler = shlex.split(os.environ.get("CC") or "cc")
    flags = shlex.split(os.environ.get("CFLAGS", ""))
    files = sorted(glob.glob(root + "/src/*.c") + glob.glob(root + "/src/*/*.c"))
    with tempfile.TemporaryDirectory() as folder:
        command = compiler + COMPILE + ["-I" + root + "/include", "-I" + root + "/src"]
        command += accepted(compiler, "-Wa,-mbranches-within-32B-boundaries", folder) + flags

        def compile_one(numbered):
            number, source = numbered
            to = os.path.join(folder, "%d.o" % number)
            subprocess.run(command + ["-c", source, "-o", to], check=True)
            return to

        with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            objects = list(pool.map(compile_one, enumerate(files)))
        exports = "-Wl,--version-script=" + os.path.join(root, "cmake", "attn.map")
        link = compiler + flags + LINK + [exports, "-o", path] + objects + ["-lm", "-lpthread"]
        subprocess.run(link, check=True)


def python_files():
    return sorted(glob.glob(HERE + "/attn/*.py")) + [HERE + "/attn/py.typed"]


def info(tag):
    """The files of the .dist-info folder but RECORD."""
    wheel = "Wheel-Version: 1.0\nGenerator: attn\nRoot-Is-Purelib: false\nTag: %s\n" % tag
    folder = "%s-%s.dist-info/" % (NAME, version())
    with open(os.path.join(sources(), "LICENSE"), "rb") as f:
        license_text = f.read()
    return folder, {
        "METADATA": METADATA.format(version=version()).encode(),
        "WHEEL": wheel.encode(),
        "LICENSE": license_text,
    }


def write_wheel(directory, files, tag):
    """files: name in the wheel -> bytes."""
    folder, more = info(tag)
    files = dict(files, **{folder + name: data for name, data in more.items()})
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += "%s,sha256=%s,%d\n" % (name, digest, len(data))
    files[folder + "RECORD"] = (record + folder + "RECORD,,\n").encode()
    wheel = "%s-%s-%s.whl" % (NAME, version(), tag)
    with zipfile.ZipFile(os.path.join(directory, wheel), "w", zipfile.ZIP_DEFLATED) as z:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            z.writestr(entry, data)
    return wheel


def read(path):
    with open(path, "rb") as f:
        return f.read()


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    if not sys.platform.startswith("linux"):
        raise SystemExit("the package builds on Linux only; elsewhere build libattn by hand and "
                         "set ATTN_LIBRARY")
    tag = "py3-none-" + re.sub(r"[-.]", "_", sysconfig.get_platform())
    files = {"attn/" + os.path.basename(f): read(f) for f in python_files()}
    with tempfile.TemporaryDirectory() as folder:
        compile_library(os.path.join(folder, "libattn.so"))
        files["attn/libattn.so"] = read(os.path.join(folder, "libattn.so"))
    return write_wheel(wheel_directory, files, tag)


def build_sdist(sdist_directory, config_settings=None):
    root, base = sources(), "%s-%s" % (NAME, version())
    with tarfile.open(os.path.join(sdist_directory, base + ".tar.gz"), "w:gz") as tar:
        for name in ["pyproject.toml", "backend.py"]:
            tar.add(os.path.join(HERE, name), "%s/%s" % (base, name))
        for path in python_files():
            tar.add(path, "%s/attn/%s" % (base, os.path.basename(path)))
        for name in ("include", "src", "cmake", "LICENSE"):
            tar.add(os.path.join(root, name), "%s/libattn/%s" % (base, name))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "PKG-INFO")
            with open(path, "w", encoding="utf-8") as f:
                f.write(METADATA.format(version=version()))
            tar.add(path, base + "/PKG-INFO")
    return base + ".tar.gz"
