#!/usr/bin/env python3
"""The texts of the lessons: their code computes their numbers, their terms are in the glossary,
and what a reader sees is what was reviewed (tests/data/lessons/*.txt).

    ATTN_WRITE_TEXTS=1 tests/support/run_unittest.py tests/cli/test_lesson_texts.py

writes the reviewed texts anew, after a change of a script: read the difference."""

import os
import re
import unittest

from cli import CliTest
from lesson_code import LESSONS, run, terms
from reference import expect_near

TEXTS = os.path.join(os.environ["ATTN_TEST_DATA"], "lessons")


class Texts(CliTest):
    def whole(self, name, *more, **env):
        gradients = ["--gradients"] * (name == "sky")
        return self.works("lesson", name, *gradients, *more, env=env)

    def test_reviewed_texts(self):
        for name in LESSONS:
            text, path = self.whole(name), os.path.join(TEXTS, name + ".txt")
            self.assertLessEqual(max(map(len, text.splitlines())), 80, name)
            if os.environ.get("ATTN_WRITE_TEXTS"):
                with open(path, "w", encoding="utf-8") as f:
                    f.write(text)
            with open(path, encoding="utf-8") as f:
                self.assertEqual(text, f.read(), name)

    def test_numpy_computes_the_steps(self):
        for name in LESSONS:
            with self.subTest(name):
                self.assertGreater(run(name, "numpy", self.whole(name, "--json"), expect_near), 4)

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
        self.assertNotIn("The notebook, cell", bare)
        self.assertIn("In C:", self.works("lesson", "sky", "--all-steps"))


if __name__ == "__main__":
    unittest.main()
