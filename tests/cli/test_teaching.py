#!/usr/bin/env python3
"""docs/TEACHING.md: the steps and lessons that it names exist. test_docs.py runs its commands."""

import os
import re
import unittest

from cli import CliTest


class Teaching(CliTest):
    def setUp(self):
        super().setUp()
        path = os.path.join(os.environ["ATTN_SOURCE"], "docs", "TEACHING.md")
        with open(path, encoding="utf-8") as f:
            self.text = f.read()

    def test_steps_exist(self):
        named = re.findall(r"(?m)^\| \".*\| `(\w+)`: \*\*(.*)\*\* \|$", self.text)
        rows = re.findall(r'(?m)^\| ".*$', self.text)
        self.assertEqual(len(named), len(rows))
        self.assertGreaterEqual(len(named), 6)
        shown = {}
        for lesson, title in [*named, ("sky", "How does a row of scores become shares?")]:
            if lesson not in shown:
                shown[lesson] = " ".join(self.works("lesson", lesson, "--code", "none").split())
            self.assertIn(title, shown[lesson], lesson)
            self.assertIn(title, self.text)

    def test_minutes(self):
        """A plan takes as long as its heading says, a lesson as long as it says itself."""
        for heading, body in re.findall(r"(?ms)^## (\d+) minutes$(.*?)(?=^## )", self.text):
            minutes = re.findall(r"(?m)^\| (\d+) \|", body)
            self.assertEqual(sum(map(int, minutes)), int(heading))
        times = dict(re.findall(r"(?m)^\| `(\w+)` \| (\d+) \|", self.text))
        listed = re.findall(r"(?m)^  (\w+) .*\n(?:^ {11}(?! ).*\n)*?^ {11}(\d+) minutes",
                            self.works("lesson"))
        self.assertEqual(len(listed), 5)
        for lesson, minutes in listed:
            self.assertEqual(times[lesson], minutes, lesson)
        self.assertEqual(list(times), [lesson for lesson, _ in listed] + ["train"])

    def test_sheet_has_the_questions_that_are_promised(self):
        text = self.works("quiz")
        self.assertEqual(len(re.findall(r"(?m)^ ?\d+\. ", text)), 12)
        self.assertEqual(len(re.findall(r"(?m)^    a\) ", text)), 6)
        self.assertIn("six ask for a number", self.text)


if __name__ == "__main__":
    unittest.main()
