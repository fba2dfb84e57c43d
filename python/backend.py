"""The build backend of the package (PEP 517): compiles libattn's sources with the C compiler, CC or
cc, and puts libattn.so and libattn-mpi.so beside the Python files. It needs Python and the
compiler; Linux only.

If Debian's libjansson-dev and libutf8proc-dev (or equivalent packages) are installed, it also
builds the program attn, which attn.explain and the command `attn` run. The program is linked
statically with these two libraries if they exist as archives, and built without cairo and libzip
(without.c), so that it runs on machines that have none of them. Otherwise the wheel has no program,
and attn.explain raises an error that says so.

The sources are in the folder above this one or, in a source distribution, in libattn/ beside this
file.
"""

import base64
import concurrent.futures
import glob
import hashlib
import os
import re
import shlex
import stat
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "attn"
PROGRAM = "attn-program"  # the name that _explain.py looks for
# The same flags as in cmake/AttnCompile.cmake. A product and a sum are never fused, so that every
# compiler gives the same bits.
COMPILE = ["-std=gnu11", "-O3", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"]
COMPILE += ["-ffunction-sections", "-fdata-sections"]
LINK = ["-s", "-Wl,--gc-sections", "-Wl,-z,relro,-z,now"]
LIBRARIES = ["jansson", "utf8proc"]  # of the program
REPLACED = ["kit/explain/render/render_cairo.c", "kit/io/npz.c"]  # replaced by without.c
METADATA = """\
Metadata-Version: 2.1
Name: attn
Version: {version}
Summary: Self-attention on the CPU: exact, fast, in linear memory; forward and backward
License: Apache-2.0
Requires-Python: >=3.9
Requires-Dist: numpy>=1.23
Classifier: Operating System :: POSIX :: Linux
Classifier: Typing :: Typed

The binding of libattn. See README.md, "From Python", of the source tree.
"""


def sources():
    """The folder that contains src/ and include/."""
    for root in (os.path.join(HERE, "libattn"), os.path.dirname(HERE)):
        if os.path.exists(os.path.join(root, "include", "attn.h")):
            return root
    raise SystemExit(
        "libattn's sources are not in the folder above python/; build from the complete source "
        "tree, with pip 21.3 or newer"
    )


def version():
    with open(os.path.join(sources(), "include", "attn.h"), encoding="utf-8") as f:
        return re.search(r'ATTN_VERSION_STRING "([^"]+)"', f.read()).group(1)


def cpus():
    """The number of CPUs that this process may use, if the system tells it; otherwise of all
    CPUs."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def accepted(compiler, flag, folder):
    """[flag] if the compiler accepts it, otherwise []."""
    source = os.path.join(folder, "accepted.c")
    with open(source, "w") as f:
        f.write("int accepted;\n")
    command = compiler + [flag, "-c", source, "-o", source + ".o"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return [flag] if done.returncode == 0 else []


class Compiler:
    """The C compiler, and the flags for all files."""

    def __init__(self, folder):
        self.root, self.folder = sources(), folder
        self.command = shlex.split(os.environ.get("CC") or "cc")
        self.flags = shlex.split(os.environ.get("CFLAGS", ""))
        self.check()
        self.compile = self.command + COMPILE + ["-I" + self.root + "/include"]
        self.compile += accepted(self.command, "-Wa,-mbranches-within-32B-boundaries", folder)

    def check(self):
        """Ends the build with a one-line message if the compiler or the headers of libc are
        missing."""
        source = os.path.join(self.folder, "check.c")
        with open(source, "w") as f:
            f.write("#include <stdlib.h>\n")
        command = self.command + self.flags + ["-c", source, "-o", source + ".o"]
        try:
            done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        except OSError as error:
            why = "%s: %s" % (self.command[0], error.strerror)
        else:
            if done.returncode == 0:
                return
            said = done.stderr.decode(errors="replace").splitlines()
            said = [line for line in said if "error" in line] or said or ["it does not say why"]
            why = "%s fails: %s" % (" ".join(self.command), said[0])
        raise SystemExit("attn: no C compiler that works (%s); on Debian: apt-get install gcc "
                         "libc6-dev, or name one in CC" % why)

    def objects(self, files, includes, *flags):
        """Compiles files of the tree. Returns the paths of the object files."""
        command = self.compile + ["-I" + os.path.join(self.root, i) for i in includes]
        command += [*flags, *self.flags]

        def compile_one(source):
            to = os.path.join(self.folder, re.sub(r"\W", "_", os.path.relpath(source, self.root)))
            subprocess.run(command + ["-c", source, "-o", to + ".o"], check=True)
            return to + ".o"

        with concurrent.futures.ThreadPoolExecutor(cpus()) as pool:
            return list(pool.map(compile_one, files))

    def link(self, objects, path, *more):
        command = self.command + self.flags + LINK + objects + ["-o", path, *more]
        subprocess.run(command + ["-lm", "-lpthread"], check=True)

    def found(self, patterns):
        return sorted(f for p in patterns for f in glob.glob(os.path.join(self.root, p)))


def compile_library(c, path):
    """Writes libattn.so to path; returns its objects."""
    objects = c.objects(c.found(["src/*/*.c"]), ["src"])
    exports = "-Wl,--version-script=" + os.path.join(c.root, "cmake", "attn.map")
    c.link(objects, path, "-shared", "-Wl,-soname,libattn.so", exports)
    return objects


def compile_ranks(c, library, path):
    """Writes libattn-mpi.so, for attn.torch.context_parallel, to path. It needs no MPI, and finds
    libattn.so, at `library`, beside itself."""
    objects = c.objects(c.found(["mpi/*.c"]), [])
    c.link(objects, path, "-shared", "-Wl,-soname,libattn-mpi.so", library, "-Wl,-rpath,$ORIGIN")


def program_libraries(c):
    """The program's libraries: archives if they exist, otherwise shared libraries. None if a
    library is missing."""
    linked = []
    for name in LIBRARIES:
        source = os.path.join(c.folder, name + ".c")
        with open(source, "w") as f:
            f.write("#include <%s.h>\nint main(void) { return 0; }\n" % name)
        for library in ("-l:lib%s.a" % name, "-l" + name):
            command = c.command + c.flags + [source, library, "-o", source + ".out"]
            done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if done.returncode == 0:
                linked.append(library)
                break
        else:
            print("attn: no lib%s to compile with, so the package has no attn.explain and no "
                  "program (on Debian: apt-get install libjansson-dev libutf8proc-dev)" % name,
                  file=sys.stderr)
            return None
    return linked


def page_module(c, build):
    """What attn explain computes, in WebAssembly, compressed, as base64. "" if no clang can compile
    it or ATTN_PAGE_WASM=OFF is set; the page then computes in JavaScript."""
    if os.environ.get("ATTN_PAGE_WASM") == "OFF":
        return ""
    found = subprocess.run(["sh", build], stdout=subprocess.PIPE)
    if found.returncode != 0:
        print("attn: no clang for wasm32, so the pages of attn.explain compute by JavaScript (on "
              "Debian: apt-get install clang lld wasi-libc libclang-rt-dev-wasm32)",
              file=sys.stderr)
        return ""
    lesson = ["kit/explain/lessons/explain.lesson", "examples/lessons/explain.c"]
    lesson_source(c, lesson, "page_lesson.c")
    lesson_table(c)
    heads_source(c)
    try:
        unicode_table(c, os.path.join(os.path.dirname(build), "unicode_table.c"))
    except (OSError, subprocess.CalledProcessError) as error:
        print("attn: the pages of attn.explain compute by JavaScript: %s" % error, file=sys.stderr)
        return ""
    module = os.path.join(c.folder, "page.wasm")
    clang = found.stdout.decode().strip()
    subprocess.run(["sh", build, clang, c.folder, module, "AUTO"], check=True)
    with open(module + ".base64") as f:
        return f.read()


def unicode_table(c, source):
    """Writes unicode_table.h. The program that prints it may be for another machine, and then does
    not run."""
    program = os.path.join(c.folder, "unicode_table")
    libraries = program_libraries(c) or []
    subprocess.run(c.command + c.flags + [source, "-o", program, *libraries], check=True)
    with open(program + ".h", "wb") as f:
        subprocess.run([program], stdout=f, check=True)


def digest(content):
    """How a page's content security policy names a script or a style sheet."""
    hashed = hashlib.sha256(content.encode()).digest()
    return "'sha256-%s'" % base64.b64encode(hashed).decode()


def array(text):
    """Text or bytes as the initialiser of an array in C, with a 0 at the end."""
    data = text.encode() if isinstance(text, str) else text
    return "{%s0}" % "".join("'\\x%02x'," % b for b in data)


def page_source(c):
    """The C file of the page of `-o page.html`, as cmake/EmbedPage.cmake writes it. Returns its
    path."""
    folder = os.path.join(c.root, "kit", "explain", "page")
    module = page_module(c, os.path.join(folder, "wasm", "build.sh"))

    def text(name):
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            return f.read()

    scripts = [line for line in text("scripts.txt").splitlines() if line and line[0] != "#"]
    js = "".join("\n/* %s */\n%s" % (name, text(name)) for name in scripts)
    js = js.replace("@WASM@", module)
    js = '"use strict";\n(() => {%s})();\n' % js
    css = "".join(map(text, sorted(n for n in os.listdir(folder) if n.endswith(".css"))))
    page = text("page.html")
    modules = " 'wasm-unsafe-eval'; worker-src blob:" if module else ""
    for mark, content in (("JS_HASH", digest(js)), ("MODULES", modules), ("CSS_HASH", digest(css)),
                          ("CSS", css), ("JS", js)):
        page = page.replace("@%s@" % mark, content)
    path = os.path.join(c.folder, "page.c")
    with open(path, "w", encoding="utf-8") as f:
        f.write('#include "explain/page/page.h"\n')
        for name, part in zip(("page_before", "page_after"), page.split("@TRACE@", 1)):
            f.write("const char %s[] = %s;\n" % (name, array(part)))
            f.write("const size_t %s_size = %d;\n" % (name, len(part.encode())))
    return path


LESSONS = ["kit/explain/lessons/*.lesson", "kit/explain/lessons/sheet.css",
           "kit/explain/lessons/sheet.js", "examples/lessons/*.c"]


def lesson_source(c, patterns, name):
    """The C file of lessons' texts, as cmake/EmbedLessons.cmake writes it. Returns its path."""
    to, files = os.path.join(c.folder, name), c.found(patterns)
    arrays, rows = [], []
    for i, file in enumerate(files):
        with open(file, encoding="utf-8") as f:
            name, text = os.path.basename(file), f.read()
        arrays.append("static const char text%d[] = %s;\n" % (i, array(text)))
        rows.append('{"%s", text%d},\n' % (name, i))
        if name.endswith((".css", ".js")):
            rows.append('{"%s.hash", "%s"},\n' % (name, digest(text)))
    with open(to, "w", encoding="utf-8") as f:
        f.write('#include <string.h>\n#include "explain/lessons/script_read.h"\n')
        f.write("".join(arrays))
        f.write("static const struct { const char *name, *text; } files[] = {\n%s};\n"
                % "".join(rows))
        f.write("const char *script_file(const char *name)\n{\n"
                "    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {\n"
                "        if (strcmp(files[i].name, name) == 0) {\n"
                "            return files[i].text;\n        }\n    }\n    return NULL;\n}\n")
    return to


def lesson_table(c):
    """Writes lessons.def, as cmake/LessonTable.cmake does."""
    rows = []
    for file in c.found(["kit/explain/lessons/*.lesson"]):
        with open(file, encoding="utf-8") as f:
            head = re.search(r"^lesson (\d+)( with gradients)?: (.+)$", f.read(), re.M)
        if head:
            macro = "LESSON_GRADIENTS" if head[2] else "LESSON"
            name = os.path.basename(file)[: -len(".lesson")]
            rows.append((int(head[1]), '%s(%s, "%s")\n' % (macro, name, head[3])))
    with open(os.path.join(c.folder, "lessons.def"), "w", encoding="utf-8") as f:
        f.write("".join(row for _, row in sorted(rows)))
        f.write("#undef LESSON\n#undef LESSON_GRADIENTS\n")


def heads_source(c):
    """The C file of the trained heads, as cmake/EmbedHeads.cmake writes it. Returns its path."""
    path = os.path.join(c.folder, "heads_file.c")
    with open(path, "w", encoding="utf-8") as f:
        f.write('#include "train/heads.h"\n')
        for name in ("followed", "same"):
            trained = os.path.join(c.root, "kit", "explain", "trained", name + ".safetensors")
            with open(trained, "rb") as weights:
                data = weights.read()
            f.write("const char trained_%s[] = %s;\n" % (name, array(data)))
            f.write("const size_t trained_%s_size = %d;\n" % (name, len(data)))
    return path


def compile_program(c, engine, path):
    """Writes the program attn to path, from the library's objects and its own. Returns False if
    that is not possible."""
    libraries = program_libraries(c)
    if libraries is None:
        return False
    left_out = {os.path.join(c.root, name) for name in REPLACED}
    files = c.found(["kit/*.c", "kit/*/*.c", "kit/*/*/*.c", "cli/*.c", "check/*.c", "ref/*.c"])
    files = [f for f in files if f not in left_out]
    files += [os.path.join(HERE, "without.c"), page_source(c), heads_source(c)]
    files.append(lesson_source(c, LESSONS, "lesson_files.c"))
    lesson_table(c)
    objects = c.objects(files, [".", "kit", "check", "ref", "src", c.folder], "-Os")
    c.link(engine + objects, path, *libraries)
    return True


def python_files():
    return sorted(glob.glob(HERE + "/attn/*.py")) + [HERE + "/attn/py.typed"]


def info(tag):
    """The files of the .dist-info folder except RECORD."""
    wheel = "Wheel-Version: 1.0\nGenerator: attn\nRoot-Is-Purelib: false\nTag: %s\n" % tag
    folder = "%s-%s.dist-info/" % (NAME, version())
    with open(os.path.join(sources(), "LICENSE"), "rb") as f:
        license_text = f.read()
    return folder, {
        "METADATA": METADATA.format(version=version()).encode(),
        "WHEEL": wheel.encode(),
        "LICENSE": license_text,
        "entry_points.txt": b"[console_scripts]\nattn = attn._explain:main\n",
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
            runs = name.endswith((".so", "/" + PROGRAM))
            # a regular file; otherwise pip ignores the permission to execute it
            entry.external_attr = (stat.S_IFREG | (0o755 if runs else 0o644)) << 16
            z.writestr(entry, data)
    return wheel


def read(path):
    with open(path, "rb") as f:
        return f.read()


def platform_tag(config_settings):
    """py3-none- and the platform: this machine's, or the value of --config-settings=platform= for
    the compiler in CC: manylinux_2_28_x86_64, musllinux_1_2_x86_64."""
    given = (config_settings or {}).get("platform")
    if given and not re.fullmatch(r"(manylinux_2|musllinux_1)_\d+_\w+", given):
        raise SystemExit("platform is %s; it must be like manylinux_2_28_x86_64 or "
                         "musllinux_1_2_x86_64" % given)
    return "py3-none-" + (given or re.sub(r"[-.]", "_", sysconfig.get_platform()))


def check_platform(tag, name, library):
    """Checks that a library runs on the platform of the wheel's tag: it must need no newer symbol
    of glibc, and with musl none."""
    found = {int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", library)}
    allowed = re.search("manylinux_2_(\\d+)_", tag)
    if allowed and max(found, default=0) > int(allowed.group(1)):
        raise SystemExit("%s needs glibc 2.%d, which %s does not allow; set CC to a "
                         "compiler for an older glibc" % (name, max(found), tag))
    if "-musllinux_" in tag and found:
        raise SystemExit("%s needs glibc, so it cannot be tagged %s; set CC to a "
                         "compiler for musl" % (name, tag))


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """pip calls this first; without this function it would compile everything only to get the
    name."""
    folder, files = info(platform_tag(config_settings))
    os.mkdir(os.path.join(metadata_directory, folder))
    for name, data in files.items():
        with open(os.path.join(metadata_directory, folder, name), "wb") as f:
            f.write(data)
    return folder.rstrip("/")


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    if not sys.platform.startswith("linux"):
        raise SystemExit("the package builds on Linux only; elsewhere build libattn by hand and "
                         "set ATTN_LIBRARY")
    tag = platform_tag(config_settings)
    files = {"attn/" + os.path.basename(f): read(f) for f in python_files()}
    with tempfile.TemporaryDirectory() as folder:
        compiler = Compiler(folder)
        names = "libattn.so", "libattn-mpi.so", "attn"
        library, ranks, program = (os.path.join(folder, name) for name in names)
        engine = compile_library(compiler, library)
        compile_ranks(compiler, library, ranks)
        for path in (library, ranks):
            name = os.path.basename(path)
            files["attn/" + name] = read(path)
            check_platform(tag, name, files["attn/" + name])
        if compile_program(compiler, engine, program):
            files["attn/" + PROGRAM] = read(program)
    return write_wheel(wheel_directory, files, tag)


def build_sdist(sdist_directory, config_settings=None):
    root, base = sources(), "%s-%s" % (NAME, version())
    with tarfile.open(os.path.join(sdist_directory, base + ".tar.gz"), "w:gz") as tar:
        for name in ["pyproject.toml", "backend.py", "without.c"]:
            tar.add(os.path.join(HERE, name), "%s/%s" % (base, name))
        for path in python_files():
            tar.add(path, "%s/attn/%s" % (base, os.path.basename(path)))
        for name in ("include", "src", "mpi", "cmake", "kit", "cli", "check", "ref", "LICENSE"):
            tar.add(os.path.join(root, name), "%s/libattn/%s" % (base, name))
        tar.add(os.path.join(root, "examples", "lessons"), base + "/libattn/examples/lessons")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "PKG-INFO")
            with open(path, "w", encoding="utf-8") as f:
                f.write(METADATA.format(version=version()))
            tar.add(path, base + "/PKG-INFO")
    return base + ".tar.gz"
