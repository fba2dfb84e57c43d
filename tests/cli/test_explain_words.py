#!/usr/bin/env python3
# labels: slow
"""The words of attn explain (explain.lesson): for any sentence and options they are complete, and
what they say of the numbers is true. The numbers are those of --json, read with NumPy."""

import json
import random
import re

import unittest

import numpy as np

from cli import CliTest
from lesson_code import numbers, printed_code, script, terms
from reference import expect_near

PLAIN = "the cat saw a dog and it ran to us 0 1 short é 東京 don't"
COMMON = (PLAIN + " a{x}b c*d e@q f]g h}}i j[0]k").split()


def draw(rng):
    """A random sentence and options."""
    kind = rng.random()
    count = 1 if kind < 0.15 else rng.randint(2, 60) if kind > 0.9 else rng.randint(2, 9)
    kinds = rng.sample(COMMON, rng.randint(1, len(COMMON)))
    words = [rng.choice(kinds) for _ in range(count)]
    args = ["--seed", str(rng.randint(0, 2**63))]
    if rng.random() < 0.4:
        args.append("--causal")
    if rng.random() < 0.4:
        args += ["--heads", str(rng.randint(1, 3))]
    for name, most in (("--embed", 20), ("--qk", 30), ("--v", 30)):
        if rng.random() < 0.3:
            args += [name, str(rng.randint(1, most))]
    scale = rng.random()
    if scale < 0.2:
        args.append("--no-scale")
    elif scale < 0.6:
        args += ["--scale", rng.choice(["0.01", "-0.02", "1e-9", "3", "1e30", "-1e30"])]
    if rng.random() < 0.5:
        args += ["--query", str(rng.randint(1, count))]
    return " ".join(words), args


class Words(CliTest):
    def both(self, text, args):
        """The script's text in one line, the steps, and the whole trace."""
        said = self.works("explain", "--steps", *args, text, env={"COLUMNS": "200"})
        trace = json.loads(self.works("explain", "--json", *args, text))
        # The shortest decimals that read back as the same float: read them as one.
        steps = {s["name"]: numbers(s).astype(np.float32).astype(float) for s in trace["steps"]}
        return " ".join(said.split()), steps, trace

    def test_random_sentences(self):
        rng = random.Random(2026)
        for case in range(150):
            text, args = draw(rng)
            with self.subTest(case=case, text=text, args=args):
                self.judge(*self.both(text, args), args)

    def judge(self, said, steps, trace, args):
        # The words of the sentence may have braces; the script's own are filled in.
        for mark in ("{fact", "{if", "{else", "{end", "[@"):
            self.assertNotIn(mark, said)
        self.assertNotIn("{", self.own_words(said, trace))
        row, words = trace["query"], trace["tokens"]
        first = {n: a[0] if a.ndim == 3 else a for n, a in steps.items()}
        scores = first.get("masked_scores", first["scaled_scores"])[row]
        sees = row + 1 if "--causal" in args else len(words)
        if not np.isfinite(scores[:sees]).all():
            return  # scores that overflowed
        weights, raw = first["weights"][row], first["scores"][row][:sees]
        if sees == 1:
            self.assertIn("sees one word, itself, and gives it everything", said)
            self.assertNotIn("largest share", said)
        else:
            self.judge_weights(said, words, row, weights, first)
            found = re.search(r"“([^”]*)” answers best( \(others as well\))?( in head 1)?: the "
                              r"score is (\S+)\.", said)
            self.assertEqual(found[4], "%.4f" % raw.max())
            self.assertEqual(raw[:sees][words.index(found[1])], raw.max())
            self.assertEqual(found[2] is not None, (abs(raw - raw.max()) < 5e-5).sum() > 1)
        product = re.search(r"It is (above|not above) 0\S .*? The product is (-?[0-9.]+)\.", said)
        self.assertEqual(product[1] == "above", float(product[2]) > 0)
        repeats = len(set(words)) < len(words)
        self.assertEqual("stands there more than once" in said, repeats)
        self.assertIn("%d words, %d distinct" % (len(words), len(set(words)))
                      if len(words) > 1 else "One word gets the number 0", said)
        self.assertEqual("causal mask" in said.split("Softmax")[0], "--causal" in args)

    def own_words(self, said, trace):
        for word in sorted(trace["tokens"], key=len, reverse=True):
            said = said.replace(word, "") if "{" in word else said
        return said

    def judge_weights(self, said, words, row, weights, first):
        found = re.search(r"gives the largest share, ([0-9.]+), to (itself|“(.*?)”)(, and the same "
                          r"to others)?\.", said)
        self.assertEqual(found[1], "%.4f" % weights.max())
        named = row if found[2] == "itself" else words.index(found[3])
        self.assertEqual(weights[named], weights.max())
        seen = weights[: row + 1] if "masked_scores" in first else weights
        self.assertEqual(found[4] is not None, (abs(seen - weights.max()) < 5e-5).sum() > 1)
        self.assertEqual("nearly everything" in said, weights.max() > 0.99)
        begins = re.search(r"The new “.*?” begins with (\S+); the value of .*? begins with (\S+)\.",
                           said)
        self.assertEqual(begins[1], "%.4f" % first["context"][row, 0])
        self.assertEqual(begins[2], "%.4f" % first["values"][weights.argmax(), 0])

    def test_the_short_text_quotes_the_script(self):
        short = " ".join(self.works("explain", "a b a").split())
        for part in ("3 words, 2 distinct", "“a” stands there more than once",
                     "gives the largest share", "Queries and keys must have equally many numbers"):
            self.assertIn(part, short)
        self.assertNotIn("Predict:", short)
        self.assertNotIn("piece of text", short)
        self.assertIn("Predict:", self.works("explain", "--steps", "a b a"))

    def test_ideas_are_short(self):
        parts = re.split(r"(?m)^(?=step |also )", script("explain"))[1:]
        self.assertGreater(len(parts), 15)
        self.assertEqual(len([p for p in parts if re.match("step (?!masked)", p)]), 10)
        for part in parts:
            idea = re.search(r"(?m)^idea\n((?: .*\n)*)", part)
            self.assertLessEqual(len((idea[1] if idea else "").split()), 60, part.split("\n")[0])

    def test_terms_are_in_the_glossary(self):
        glossary = self.works("lesson", "--glossary")
        known = {line.partition(":")[0].lower() for line in re.findall(r"(?m)^\S.*", glossary)}
        self.assertEqual(sorted(terms("explain") - known), [])

    def test_numpy_computes_the_steps(self):
        for args in ([], ["--causal", "--heads", "2"], ["--scale", "-0.02"], ["--no-scale"]):
            text = "the cat saw the “東京” dog"
            trace = self.works("explain", "--json", *args, text)
            with open(self.path("trace.json"), "w") as f:
                f.write(trace)
            steps = self.works("explain", "--steps", "--code", "numpy", *args, text,
                               env={"COLUMNS": "200"})
            code = printed_code(steps, "NumPy").replace("trace.json", self.path("trace.json"))
            names = {}
            exec(compile(code, "explain.lesson", "exec"), names)
            for step in json.loads(trace)["steps"]:
                want = numbers(step)
                got = np.asarray(names[step["name"]], float)
                finite = np.isfinite(want)
                self.assertTrue(np.array_equal(finite, np.isfinite(got)))
                expect_near(got[finite], want[finite], 5e-6 * max(abs(want[finite]).max(), 1e-3),
                            step["name"])

    def test_options(self):
        self.fails(2, "explain", "--code", "c", "a", says="--code needs --steps")
        for other in (["--json"], ["--quiz"], ["-o", "x.txt"], ["--model", "m"]):
            self.fails(2, "explain", "--steps", *other, "a", says="--steps does not go with")

    def test_widths(self):
        for args in ([], ["--heads", "2", "--causal", "--code", "all"]):
            for width in (44, 60, 80):
                text = self.works("explain", "--steps", *args, "a considerably longer sentence",
                                  env={"COLUMNS": str(width)})
                for line in text.splitlines():
                    self.assertLessEqual(len(line), width, line)
            self.works("explain", "--steps", *args, "a b a", env={"LC_ALL": "C"}).encode("ascii")


if __name__ == "__main__":
    unittest.main()
