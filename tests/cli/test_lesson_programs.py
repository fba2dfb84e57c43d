#!/usr/bin/env python3
"""examples/lessons/*.c: each compiles without a warning, computes what libattn computes, and prints
the numbers that its notebook printed."""

import json
import os
import re
import subprocess
import unittest
from pathlib import Path

from cli import CliTest

SOURCE = Path(os.environ["ATTN_SOURCE"])
LIBRARY = Path(os.environ["ATTN_LIBRARY"])
NUMBER = r"-?\d+(?:\.\d*)?(?:e[-+]?\d+)?"


def numbers(text):
    return [float(x) for x in re.findall(NUMBER, text)]


@unittest.skipIf("ATTN_SANITIZED" in os.environ, "the sanitizers' library cannot be linked")
class Programs(CliTest):
    def run_program(self, name, *args):
        program = self.path(name)
        subprocess.run(
            [os.environ.get("CC", "cc"), "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror",
             "-I%s/include" % SOURCE, "%s/examples/lessons/%s.c" % (SOURCE, name), str(LIBRARY),
             "-lm", "-o", program], check=True)
        environment = dict(os.environ, LD_LIBRARY_PATH=str(LIBRARY.parent))
        done = subprocess.run([program, *args], env=environment, stdout=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 0, done.stdout[-500:])
        return done.stdout

    def test_programs(self):
        names = sorted(path.stem for path in SOURCE.glob("examples/lessons/*.c"))
        names.remove("explain")
        self.assertGreater(len(names), 0)
        for name in names:
            with self.subTest(name):
                self.check(name)

    def test_program_of_any_sentence(self):
        for args in ([], "the cat saw the dog and the cat ran".split(), ["--causal", "a", "b", "a"],
                     ["alone"]):
            words = [w for w in args if w != "--causal"]
            options = ["--causal"] * (len(words) < len(args))
            trace = json.loads(self.works("explain", "--json", *options, " ".join(words)
                                          or "Life is short, eat dessert last"))
            wanted = [x for step in trace["steps"] if step["name"] in ("weights", "context")
                      for x in step["tensor"]["data"]]
            printed = numbers(self.run_program("explain", *args))
            self.assertGreaterEqual(len(printed), len(wanted))
            for x, y in zip(wanted, printed):
                self.assertLessEqual(abs(x - y), 1.01e-4 + 1e-5 * abs(x), args)

    def check(self, name):
        printed = numbers(self.run_program(name))
        trace = json.loads(self.works("lesson", name, "--json"))
        wanted = 0
        for step in trace["steps"]:
            if step.get("printed") and not step.get("beyond"):
                for x in set(numbers(step["printed"])):
                    wanted += 1
                    # The last digit may differ: plain loops add in another order.
                    self.assertTrue(
                        any(abs(x - y) <= 1.01e-4 + 1e-6 * abs(x) for y in printed),
                        "%s, step %s: the notebook printed %r" % (name, step["name"], x))
        self.assertGreater(wanted, 5, name)


if __name__ == "__main__":
    unittest.main()
