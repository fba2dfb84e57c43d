#!/usr/bin/env python3
"""Help, man page and bash completion: they have every option, and no line is too wide."""

import os
import re
import shutil
import subprocess
import unittest

from cli import CliTest

# The options, written by hand and not taken from the program's table.
OPTIONS = {
    "explain": "seed embed qk v heads causal no-scale scale query steps code full quiz json output "
    "model layer head find sentences text-pair ignore-unknown color help",
    "lesson": "all-steps code glossary check all gradients query full quiz json output color help",
    "quiz": "seed output answers grade color help",
    "run": "q k v out weights scores scores-stage lse causal window diagonal mask key-lengths "
    "softcap alibi alibi-symmetric sinks plan grad-out grad-q grad-k grad-v grad-mask "
    "pieces checkpoint every resume mpi share deadline scale dropout seed precision dtype threads "
    "isa json color help",
    "bench": "shape dtype causal pass threads isa seconds mpi deadline json color help",
    "train": "task text length vocab embed heads layers mlp steps batch lr warmup weight-decay "
    "seed unseen every checkpoint save-every resume output json full threads isa color help",
    "generate": "model ignore-unknown tokens temperature top-k top-p seed json threads isa color "
    "help",
    "check": "seconds cases isa op seed bits record color help",
    "info": "model-keys json color help",
    "help": "color help",
}


class Help(CliTest):
    def test_overview(self):
        text = self.works()
        self.assertTrue(text.startswith("Examples\n  attn explain "), text[:40])
        for same in (["--help"], ["-h"], ["help"]):
            self.assertEqual(self.works(*same), text)
        for command in OPTIONS:
            self.assertRegex(text, r"(?m)^  %s +\w" % command)

    def test_each_command(self):
        for command, options in OPTIONS.items():
            text = self.works("help", command)
            self.assertTrue(text.startswith("Examples\n  attn " + command), command)
            for same in (["-h"], ["--help"], ["--color", "never", "-h"], ["-h", "--nonsense"]):
                self.assertEqual(self.works(command, *same), text, same)
            found = re.findall(r"(?m)^  (?:-\w *, )?--([\w-]+)", text)
            self.assertEqual(sorted(found), sorted(options.split()), command)

    def test_eighty_columns(self):
        for args in [[]] + [["help", command] for command in OPTIONS]:
            for line in self.works(*args, env={"COLUMNS": "200"}).splitlines():
                self.assertLessEqual(len(line), 80, line)
                self.assertEqual(line, line.rstrip())

    def test_words_are_those_of_the_man_page(self):
        """Both come from one table, but the help breaks its lines by itself."""
        page = re.sub(r"\\f[BIR]", "", self.works("help", "--man")).replace("\\-", "-")
        for command in OPTIONS:
            words = " ".join(self.works("help", command).split())
            part = re.search(r"(?ms)^\.SS attn %s .*?^\.nf" % command, page).group()
            summary, *texts = re.findall(r"(?m)^[^.].*\.$", part)
            self.assertIn("- " + summary[0].lower() + summary[1:], words)
            for text in texts:
                self.assertIn(re.split(r" (?:Range:|Default:|One of) ", text)[0], words)

    def test_examples_in_the_help_parse(self):
        """The examples use only options and commands that exist."""
        for command in OPTIONS:
            head = self.works("help", command).split("\n\n")[0]
            for line in head.splitlines()[1:]:
                for option in re.findall(r"--([a-z-]+)", line):
                    self.assertIn(option, OPTIONS[command].split(), line)

    def test_version(self):
        header = os.path.join(os.environ["ATTN_SOURCE"], "include", "attn.h")
        with open(header, encoding="utf-8") as f:
            version = re.search(r'ATTN_VERSION_STRING "(.*)"', f.read()).group(1)
        slow = r"( \(compiled without optimisation\))?"
        self.assertRegex(self.works("--version"), r"^attn %s%s\n$" % (re.escape(version), slow))


class Man(CliTest):
    def setUp(self):
        super().setUp()
        self.page = self.works("help", "--man")

    def test_every_option(self):
        flat = (
            self.page.replace("\\-", "-")
            .replace("\\fB", "")
            .replace("\\fR", "")
            .replace("\\fI", "")
        )
        parts = re.split(r"(?m)^\.SS ", flat)
        for command, options in OPTIONS.items():
            part = next(p for p in parts if p.startswith("attn " + command)) + parts[-1]
            for option in options.split():
                self.assertRegex(part, r"(?m)^(-., )?--%s( |$)" % option, command)
        for code in ("0", "1", "2", "3", "4", "5"):
            self.assertIn("\n.TP\n%s\n" % code, flat)

    def test_only_known_macros(self):
        for line in self.page.splitlines():
            if line.startswith((".", "'")):
                self.assertIn(
                    line.split()[0], (".TH", ".SH", ".SS", ".TP", ".PP", ".B", ".I", ".nf", ".fi")
                )
            self.assertEqual(re.sub(r"\\(-|&|e|f[BIR])", "", line).count("\\"), 0, line)

    def test_groff_has_no_complaint(self):
        if not shutil.which("groff"):
            self.skipTest("groff is not installed; the two tests above read the page themselves")
        done = subprocess.run(
            ["groff", "-man", "-ww", "-Tascii"],
            input=self.page.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertIn(b"EXIT STATUS", re.sub(rb".\x08", b"", done.stdout))  # bold is struck twice


class Completion(CliTest):
    def complete(self, *words):
        """The completions that bash offers after these words."""
        script = self.path("completion")
        self.write("completion", self.works("help", "--bash-completion").encode())
        code = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _attn; '
        code += 'printf "%s\\n" "${COMPREPLY[@]}"'
        out = subprocess.check_output(
            ["bash", "-c", code, "bash", script, "attn", *words], cwd=self.folder
        )
        return out.decode().split("\n")[:-1]

    def test_commands(self):
        self.assertEqual(self.complete(""), list(OPTIONS) + ["--help", "--version"])
        self.assertEqual(self.complete("ex"), ["explain"])
        self.assertEqual(self.complete("help", "r"), ["run"])
        self.assertEqual(self.complete("lesson", "s"), ["sky"])

    def test_every_option(self):
        for command, options in OPTIONS.items():
            offered = self.complete(command, "--")
            for option in options.split():
                self.assertIn("--" + option, offered, command)

    def test_values(self):
        self.write("some file.npy", b"")
        self.assertEqual(self.complete("run", "--q", "some"), ["some file.npy"])
        self.assertEqual(self.complete("info", "some"), ["some file.npy"])
        self.assertEqual(self.complete("run", "--dtype", "f"), ["f64", "f32", "f16"])
        self.assertEqual(
            self.complete("bench", "--causal", ""), ["none", "top-left", "bottom-right"]
        )
        self.assertEqual(self.complete("check", "--color", "a"), ["auto", "always"])
        self.assertIn("generic", self.complete("run", "--isa", ""))


if __name__ == "__main__":
    unittest.main()
