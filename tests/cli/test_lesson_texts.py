#!/usr/bin/env python3
"""The texts of the lessons: their code computes their numbers, their terms are in the glossary,
and what a reader sees is what was reviewed (tests/data/lessons/*.txt). NAME-steps.txt has the
formula of each step, the names of its rows and columns, and the steps that it was made from.

    ATTN_WRITE_TEXTS=1 tests/support/run_unittest.py tests/cli/test_lesson_texts.py

writes the reviewed texts anew, after a change of a script: read the difference."""

import codeop
import json
import os
import re
import textwrap
import unittest

from cli import CliTest
from lesson_code import LESSONS, blocks, c_blocks, run, terms
from reference import expect_near

NUMBER = r"\d+(?:\.\d+)?(?:e[-+]\d+)?"
TEXTS = os.path.join(os.environ["ATTN_TEST_DATA"], "lessons")

SEVERAL = ("--causal", "--heads", "2", "--query", "dessert")
EXPLAINED = ((), SEVERAL, ("--no-scale",))
TAUGHT = (("--steps", "--code", "all"), ("--steps", *SEVERAL))


class Texts(CliTest):
    def whole(self, name, *more, **env):
        gradients = ["--gradients"] * (name == "sky")
        return self.works("lesson", name, *gradients, *more, env=env)

    def compare(self, name, text):
        path = os.path.join(TEXTS, name + ".txt")
        self.assertLessEqual(max(map(len, text.splitlines())), 80, name)
        if os.environ.get("ATTN_WRITE_TEXTS"):
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
        with open(path, encoding="utf-8") as f:
            self.expect_same(text, f.read(), name)

    def expect_same(self, text, reviewed, what):
        """Equal texts, but a number may differ by one in its last digit: instruction sets round
        differently."""
        if text == reviewed:
            return
        words, wanted = (re.split(NUMBER, " ".join(t.split())) for t in (text, reviewed))
        self.assertEqual(words, wanted, what)
        for x, y in zip(re.findall(NUMBER, text), re.findall(NUMBER, reviewed)):
            digits = len(y.partition("e")[0].partition(".")[2])
            unit = 10.0 ** (int(y.partition("e")[2] or 0) - digits)
            self.assertLessEqual(abs(float(x) - float(y)), 1.01 * unit * ("." in y), (what, x, y))

    def test_comparison_of_texts_sees_differences(self):
        for text in ("a 1.3 b", "a 1.2 c", "a 1.2", "a 2 b", "a 1.2e-03 b"):
            with self.assertRaises(AssertionError, msg=text):
                self.expect_same(text, "a 1.1 b", "")
        self.expect_same("a  1.2 b", "a 1.1 b", "")

    def test_reviewed_texts(self):
        for name in LESSONS:
            self.compare(name, self.whole(name))

    def test_reviewed_texts_of_explain(self):
        for name, cases in (("explain", EXPLAINED), ("explain-steps", TAUGHT)):
            text = ""
            for options in cases:
                text += "$ attn explain %s\n" % " ".join(options)
                text += self.works("explain", *options, "Life is short, eat dessert last") + "\n"
            self.compare(name, text)

    def steps(self, title, *args):
        """What --json says of each step beside its numbers and the sentences of the text."""
        lines = [title]
        for step in json.loads(self.works(*args, "--json"))["steps"]:
            parts = [step["name"], step["kind"], step["formula"],
                     " ".join(map(str, step["made"].values()))]
            parts += ["%s: %s" % (k, " ".join(step[k])) for k in ("rows", "columns") if k in step]
            parts += ["beyond the notebook"] * step["beyond"]
            lines.append(textwrap.fill(" | ".join(parts), 80, subsequent_indent="    ",
                                       break_on_hyphens=False))
        return "\n".join(lines) + "\n\n"

    def test_reviewed_steps(self):
        for name in LESSONS:
            self.compare(name + "-steps", self.steps("$ attn lesson " + name, "lesson", name))
        text = self.steps("$ attn lesson sky --gradients", "lesson", "sky", "--gradients")
        for options in EXPLAINED:
            text += self.steps("$ attn explain " + " ".join(options), "explain", *options,
                               "Life is short, eat dessert last")
        self.compare("other-steps", text)

    def test_numpy_computes_the_steps(self):
        for name in LESSONS:
            with self.subTest(name):
                self.assertGreater(run(name, "numpy", self.whole(name, "--json"), expect_near), 4)

    def test_80_columns_wrap_no_line_of_code(self):
        """A reader pastes code from the terminal, and Python refuses half a line."""
        for name in LESSONS:
            printed = {line.strip() for line in self.whole(name, "--code", "all").splitlines()}
            code = [text for _, text in c_blocks(name)]
            for language in ("notebook", "numpy", "torch"):
                code += [text for _, _, text in blocks(name, language)]
            lines = [line.strip() for text in code for line in text.splitlines()]
            self.assertGreater(len(lines), 100 if list(blocks(name, "notebook")) else 20, name)
            self.assertEqual([line for line in lines if line not in printed], [], name)

    def test_quoted_notebook_lines_are_python(self):
        for name in LESSONS:
            for step, _, code in blocks(name, "notebook"):
                # Some quotations are the body of a function, or end before their block does.
                body = "def quoted():\n" + re.sub(r"(?m)^(?=.)", "    ", code)
                with self.subTest("%s, step %s" % (name, step)):
                    codeop.compile_command(body)

    def test_glossary_has_every_term(self):
        glossary = self.works("lesson", "--glossary")
        known = {line.partition(":")[0].lower() for line in re.findall(r"(?m)^\S.*", glossary)}
        for name in LESSONS:
            self.assertEqual(sorted(terms(name) - known), [], name)

    def test_narrow_and_ascii(self):
        for name in LESSONS:
            narrow = self.whole(name, "--code", "all", COLUMNS="60")
            self.assertLessEqual(max(map(len, narrow.splitlines())), 60, name)
            plain = self.whole(name, "--code", "all", LC_ALL="C")
            plain.encode("ascii")
            # A character without a replacement becomes a question mark.
            self.assertEqual(plain.count("?"), self.whole(name, "--code", "all").count("?"), name)

    def test_languages(self):
        for language, part in (("c", "for (int i"), ("numpy", "np."), ("torch", "torch.")):
            self.assertIn(part, self.works("lesson", "sky", "--code", language))
        bare = self.works("lesson", "sky", "--code", "none")
        self.assertNotIn("In C:", bare)
        self.assertNotIn("The notebook, In [", bare)
        whole = self.works("lesson", "sky", "--all-steps")
        self.assertIn("In C:", whole)
        self.assertIn("The notebook, In [", whole)


if __name__ == "__main__":
    unittest.main()
