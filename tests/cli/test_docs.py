#!/usr/bin/env python3
# labels: slow
# timeout: 1800
"""Runs every command of README.md and docs/*.md as it is written there.

docs/ADDING.md says what counts as a command:

  indented lines     commands of a shell: all of them run, in the order of the file, in one folder
  `attn ... `        in a line of text, a command too, if it begins as one; unless it has a word in
                     capitals, which stands for something else (`attn help COMMAND`), or is
                     only the name of one (`attn train`)
  ``` of any kind    no commands; ```pattern is for a command that cannot be typed as it stands

The folder contains what the reader has: the source tree, an installed library, and two models,
which are tiny here. ELSEWHERE lists the commands that are not run, with the reasons."""

import collections
import os
import re
import shlex
import subprocess
import sys
import unittest

import numpy as np

from cli import ATTN, CliTest

SOURCE, BUILD = os.environ["ATTN_SOURCE"], os.environ["ATTN_BUILD"]
sys.path.insert(0, os.path.join(SOURCE, "tests", "page"))
import models  # noqa: E402

ELSEWHERE = {
    "apt-get update && apt-get install -y make git": "changes the system",
    "pip install ./python": "python/test_package does",
    "pip install huggingface_hub": "needs a network",
    "hf download": "needs a network",
    "make demo": "installs packages and builds all",
    "make demo-model": "needs PyPI",
    "build/attn explain --model build/minilm": "make demo-model runs them",
    "make test": "is what runs this",
    "make quick": "is what runs this",
    "make asan": "builds all again",
    "make tsan": "builds all again",
    "make install": "changes the system; tools/check-install.sh installs below a folder",
    "make test-peers": "needs PyPI",
    "make bench-peers": "needs PyPI and hours",
    "bench/peers.py": "make bench-peers runs it",
    "make bench-weak": "needs PyPI and minutes",
    "bench/weak.py": "make bench-weak runs it",
    "make bench-growth": "needs PyPI and minutes",
    "bench/growth.py": "make bench-growth runs it",
    "make bench-scaling": "takes minutes",
    "make trained-heads": "changes files of the source",
    "attn train --task any-words --length 36 --vocab 36 --embed 48 --heads 1 --layers 2 "
    "--batch 64 --steps 3000": "cli/test_trained_heads does",
    "attn train --task same-word --length 36 --vocab 36 --embed 48 --heads 1 --layers 1 "
    "--batch 16 --steps 1300 --lr 0.005": "cli/test_trained_heads does",
    "make recipes": "tests/recipes.sh follows two of the recipes",
    "ctest": "is what runs this",
    "ATTN_PROPERTY_CASES=10000 ctest": "takes an hour",
    "python3 -m attn.onnx": "needs the package onnx: peers/test_onnx",
}
# A code span is a command if it begins with one of these and has further words.
PROGRAMS = r"(attn|make|cc|pip3?|python3?|cmake|ctest|hf|git|apt-get|tools/\S+|bench/\S+|build/\S+)"
BEGINS = re.compile(r"([A-Z_]+=\S+ )*" + PROGRAMS + r" \S")

Command = collections.namedtuple("Command", "line text")


def indented(lines):
    """Lines of code: those of a paragraph that begins with four blanks."""
    before = begun = ""  # begun: the lines before this one of a command that goes on
    inside = False
    for number, line in enumerate(lines, 1):
        inside = line.startswith("    ") and (inside or not before.strip())
        if inside and line.endswith("\\"):
            begun += line[:-1].strip() + " "
        elif inside:
            yield Command(number, begun + line.strip())
            begun = ""
        before = line


def spans(text):
    for found in re.finditer(r"(?<!`)`([^`]+)`(?!`)", text):
        span = " ".join(found.group(1).split())
        placeholder = any(re.fullmatch(r"[A-Z]{3,}|…", word) for word in span.split())
        named = re.fullmatch(r"attn [a-z]+(: \w+)?", span)  # only a command's name, or a test's
        if BEGINS.match(span) and not placeholder and not named:
            yield Command(text[: found.start()].count("\n") + 1, span)


def commands(path):
    with open(path, encoding="utf-8") as f:
        text = f.read()
    # Fences become empty lines, so that line numbers stay the same.
    text = re.sub(r"(?ms)^```.*?^```$", lambda m: "\n" * m.group().count("\n"), text)
    if os.path.basename(path) == "PROMISES.md":  # whose tables name tests, not commands
        text = re.sub(r"(?m)^\|.*$", "", text)
    found = [*indented(text.split("\n")), *spans(text)]
    return sorted(found)


def documents():
    folder = os.path.join(SOURCE, "docs")
    return [os.path.join(SOURCE, "README.md")] + sorted(
        os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".md")
    )


def listed(text):
    """The entry of ELSEWHERE for this command, or None."""
    bare = text.split(" #")[0].strip()
    for entry in ELSEWHERE:
        if bare == entry or (bare + " ").startswith(entry + " ") and entry.split()[-1] in (
            "download", "ctest", "bench/peers.py", "bench/weak.py", "bench/growth.py",
            "attn.onnx", "build/minilm"):
            return entry
    return None


class Docs(CliTest):
    def reader(self):
        """The reader's folder and environment: programs, models, the source tree."""
        for name in ("README.md", "src", "include", "python", "tests", "docs"):
            os.symlink(os.path.join(SOURCE, name), self.path(name))
        os.symlink(BUILD, self.path("build"))
        for name in ("one_call.c", "your.c"):
            os.symlink(os.path.join(SOURCE, "examples", "one_call.c"), self.path(name))
        letters = [chr(c) for c in range(33, 127)]
        models.Model("gpt2", L=6, words=[*letters, "\u0120"]).save(self.path("gpt2"))
        models.Model("bert", words=letters + ["life", "is", "it", "ends", "short"]).save(
            self.path("bert"))
        os.mkdir(self.path("bin"))
        os.symlink(os.path.abspath(ATTN), self.path("bin/attn"))
        self.write("bin/python3", b'#!/bin/sh\nexec %s "$@"\n' % shlex.quote(
            sys.executable).encode())
        os.chmod(self.path("bin/python3"), 0o755)
        subprocess.run(["cmake", "--install", BUILD, "--prefix", self.path("usr")],
                       stdout=subprocess.DEVNULL, check=True)
        library = os.path.dirname(next(
            os.path.join(at, "libattn.so") for at, _, files in os.walk(self.path("usr"))
            if "libattn.so" in files))
        return {
            **{k: v for k, v in os.environ.items() if not k.startswith("ATTN_")},
            "PATH": self.path("bin") + os.pathsep + os.environ["PATH"],
            "PKG_CONFIG_PATH": os.path.join(library, "pkgconfig"),
            "LD_LIBRARY_PATH": library,
        }

    def type(self, command, environment, path):
        # A drawn seed makes every run another test. Random search is for `make fuzz`.
        text = re.sub(r"\battn check\b(?!.* --(seed|bits))", "attn check --seed 24301",
                      command.text)
        done = subprocess.run(["bash", "-c", text], cwd=self.folder, env=environment,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=1500)
        said = done.stdout.decode(errors="replace")[-2000:]
        self.assertEqual(done.returncode, 0, "%s:%d: %s\n%s" % (path, command.line, command.text,
                                                                said))
        if command.text.startswith("cc "):
            out = subprocess.check_output([self.path("a.out")], env=environment)
            self.assertEqual(len(np.fromstring(out.decode(), sep=" ")), 8, out)
            os.remove(self.path("a.out"))

    def test_every_command_runs(self):
        environment, ran, left_out = self.reader(), [], set()
        for path in documents():
            name = os.path.relpath(path, SOURCE)
            for command in commands(path):
                entry = listed(command.text)
                if entry:
                    left_out.add(entry)
                elif command.text not in ran:
                    self.type(command, environment, name)
                    ran.append(command.text)
        print("\n%d commands ran; not here:" % len(ran))
        for entry in sorted(left_out):
            print("    %-28s %s" % (entry, ELSEWHERE[entry]))
        self.assertGreater(len(ran), 30)
        self.assertEqual(set(ELSEWHERE) - left_out, set(), "are in no document any more")

    def test_targets_of_make_exist(self):
        with open(os.path.join(SOURCE, "Makefile"), encoding="utf-8") as f:
            targets = {t for line in re.findall(r"(?m)^([a-z -]+):", f.read())
                       for t in line.split()}
        asked = {c.text.split()[1] for path in documents() for c in commands(path)
                 if c.text.startswith("make ")}
        self.assertIn("demo", asked)
        self.assertEqual(asked - targets, set())

    def test_what_is_found(self):
        """Tests the parser of documents: an indented line and a span count, a fence does not."""
        self.write("a.md", b"`attn  info\n--json`, `attn help COMMAND`, `attn info`, `x = 1`:\n\n"
                   b"    attn info   # this\n    hf get x\n\n```pattern\nattn run ...\n```\n"
                   b"- item\n    goes on `cc a.c`\n")
        self.assertEqual([tuple(c) for c in commands(self.path("a.md"))],
                         [(1, "attn info --json"), (4, "attn info   # this"), (5, "hf get x"),
                          (11, "cc a.c")])

    def test_commands_that_are_named_exist(self):
        named = set()
        for path in documents():
            with open(path, encoding="utf-8") as f:
                named |= set(re.findall(r"`attn ([a-z]+)[` ]", f.read()))
        self.assertIn("train", named)
        for name in sorted(named):
            self.works("help", name)

    def test_no_dots_to_fill_in(self):
        for path in documents():
            for command in commands(path):
                self.assertNotRegex(command.text.split(" #")[0], r"\.\.\.|…|(^| )DIR\b", path)


class Optimisation(CliTest):
    def version(self, *flags):
        self.write("v.c", b'#include <attn.h>\n#include <stdio.h>\n'
                   b'int main(void) { return puts(attn_version()) < 0; }\n')
        subprocess.run([os.environ.get("CC", "cc"), *flags, "v.c", "-I" + SOURCE + "/include",
                        "-I" + SOURCE + "/src", SOURCE + "/src/core/error.c", "-o", "v"],
                       cwd=self.folder, check=True)
        return subprocess.check_output([self.path("v")]).decode().strip()

    def test_version_says_when_it_is_off(self):
        plain = self.version("-O2")
        self.assertRegex(plain, r"^\d+\.\d+\.\d+$")
        self.assertEqual(self.version("-O1"), plain)
        self.assertEqual(self.version("-O0"), plain + " (compiled without optimisation)")


if __name__ == "__main__":
    if os.environ.get("ATTN_SANITIZED") == "1":  # its programs would need the sanitizer
        print("not run: each command of the program has its own test under sanitizers")
        sys.exit(0)
    unittest.main()
