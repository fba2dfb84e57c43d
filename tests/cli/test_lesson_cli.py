#!/usr/bin/env python3
"""attn lesson: the list, the checks, and every tensor compared with PyTorch's, which is stored with
the tests."""

import json
import os
import re
import unittest

import numpy as np

from cli import CliTest
from lesson_code import LESSONS
from reference import expect_near

GRADIENTS = "grad_"  # with --gradients


def flat(x):
    return [z for y in x for z in flat(y)] if isinstance(x, list) else [float(x)]


class Lesson(CliTest):
    def golden(self, name):
        with open(os.path.join(os.environ["ATTN_TEST_DATA"], "lessons", name + ".json")) as f:
            return json.load(f)

    def test_list(self):
        text = self.works("lesson")
        self.assertEqual(re.findall(r"(?m)^  (\w+) +\S", text), LESSONS + ["train"])
        self.assertLessEqual(max(map(len, text.splitlines())), 80)

    def test_all_check(self):
        text = self.works("lesson", "--all", "--check")
        summaries = re.findall(r"(?m)^(\w+): (\d+) numbers", text)
        self.assertEqual([name for name, _ in summaries], LESSONS)
        for name, numbers in summaries:
            # the notebook of `module` failed, and printed only shapes
            self.assertGreater(int(numbers), 10 if name != "module" else -1, name)
        self.assertNotRegex(text, r"(?im)^(fail|differ)")

    def test_check_of_some(self):
        text = self.works("lesson", "sky", "numpy", "--check")
        self.assertIn("sky:", text)
        self.assertNotIn("journey:", text)

    def test_steps_are_the_notebooks(self):
        for name in LESSONS:
            golden = self.golden(name)
            gradients = ["--gradients"] * any(key.startswith(GRADIENTS) for key in golden)
            self.assertEqual(bool(gradients), name == "sky")
            trace = json.loads(self.works("lesson", name, "--json", *gradients))
            self.assertEqual((trace["schema"], trace["lesson"]), ("attn.lesson/1", name))
            steps = {s["name"]: s["tensor"] for s in trace["steps"]}
            for key, want in golden.items():
                if "data" not in want:
                    continue
                self.assertEqual(steps[key]["shape"], want["shape"], (name, key))
                got, exact = np.array(flat(steps[key]["data"])), np.array(flat(want["data"]))
                infinite = np.isinf(exact)
                self.assertTrue(np.array_equal(got[infinite], exact[infinite]), (name, key))
                tolerance = 5e-6 * abs(exact[~infinite]).max(initial=0)
                expect_near(got[~infinite], exact[~infinite], tolerance, (name, key))

    def test_gradients(self):
        plain, text = self.works("lesson", "sky"), self.works("lesson", "sky", "--gradients")
        self.assertNotIn("grad_w_q", plain)
        for part in ("dW_Q = X", "-0.0069", "beyond the notebook"):
            self.assertIn(part, text)
        self.assertLessEqual(max(map(len, text.splitlines())), 80)
        check = self.works("lesson", "sky", "--gradients", "--check")
        for name in "qkv":
            self.assertRegex(check, "ok +grad_w_%s_of_sum +4 of 4 numbers as PyTorch" % name)
        self.assertIn("and 12 of PyTorch beyond it: all reproduced", check)
        self.fails(2, "lesson", "numpy", "--gradients", says="has no gradients; only sky has them")
        self.fails(2, "lesson", "--all", "--gradients", says="does not go with --all")
        self.fails(2, "lesson", "--gradients", says="a lesson's name")

    def test_names_of_columns_are_whole(self):
        text = self.works("lesson", "numpy")
        self.assertRegex(text, r"(?m)^ +q +k +scores +scaled_scores$")
        self.assertNotIn("scaled_sc\u2026", self.works("lesson", "--all", env={"COLUMNS": "80"}))

    def test_only_inputs_are_given(self):
        """All other steps say from what they were computed."""
        given = {
            "sky": "token_ids embeddings w_q w_k w_v grad_context",
            "journey": "inputs w_q w_k w_v v1_w_q v1_w_k v1_w_v v2_w_q v2_w_k v2_w_v",
            "dessert": "token_ids embedding_table w_q w_k w_v heads_w_q heads_w_k heads_w_v",
            "numpy": "queries keys values tril",
            "module": "keys values one_queries three_queries mha_inputs mha_w_q mha_b_q mha_w_k "
            "mha_b_k mha_w_v mha_b_v mha_out_weight mha_out_bias",
        }
        for name, steps in given.items():
            gradients = ["--gradients"] * (name == "sky")
            trace = json.loads(self.works("lesson", name, *gradients, "--json"))
            names = [s["name"] for s in trace["steps"]]
            self.assertEqual(" ".join(s["name"] for s in trace["steps"]
                                      if s["made"]["op"] == "given"), steps)
            for s in trace["steps"]:
                for operand in (s["made"].get("a"), s["made"].get("b")):
                    if operand:
                        self.assertIn(operand, names[: names.index(s["name"])])

    def test_quiz(self):
        """Only the questions: they are for those who have read the lesson."""
        for name in ("sky", "numpy"):
            done = self.attn("lesson", name, "--quiz", stdin=b"9\n" * 6)
            text = done.stdout.decode()
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            self.assertRegex(text, r"asks. How much of its attention\s+goes to")
            self.assertTrue(text.endswith("0 of 3 right.\n\n"), text[-200:])
            self.assertLessEqual(max(map(len, text.splitlines())), 80)
            scores = re.findall(r"Scores:[^:]*your answer", text)
            questions = re.findall(r'(?m)^"\w+" asks[^?]*', text)
            self.assertEqual(len(set(zip(questions, scores))), 3, text)
            self.assertNotRegex(text, r"beyond_|unmasked_|_weights")
        whole = self.attn("lesson", "numpy", "--quiz", "--full", stdin=b"").stdout.decode()
        self.assertIn("0 of 0 right.", whole)
        self.assertIn("You will learn", whole)

    def test_text(self):
        for name in LESSONS:
            text = self.works("lesson", name)
            self.assertGreater(len(text.splitlines()), 20)
        self.assertIn("W_v", self.works("lesson", "journey"))  # the notebook's mistake is named
        self.assertEqual(
            self.works("lesson", "sky", "numpy"),
            self.works("lesson", "sky") + "\n" + self.works("lesson", "numpy"),
        )
        self.assertIn("journey", self.works("lesson", "--all"))

    def test_outputs(self):
        for name in LESSONS:
            self.works(
                "lesson", name, "-o", name + ".svg", "-o", name + ".png", "-o", name + ".json"
            )
            self.assertEqual(
                self.bytes(name + ".json").decode(), self.works("lesson", name, "--json")
            )
            self.assertIn(b"<svg", self.bytes(name + ".svg"))

    def test_query(self):
        self.assertEqual(
            self.works("lesson", "journey", "--query", "starts"),
            self.works("lesson", "journey", "--query", "3"),
        )
        self.fails(2, "lesson", "journey", "--query", "sunset", says="--query sunset: not a word")


if __name__ == "__main__":
    unittest.main()
