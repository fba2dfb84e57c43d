"""The PyTorch code of the lessons computes their numbers."""

import json
import os
import subprocess
import unittest

import numpy as np
import torch
from lesson_code import LESSONS, numbers, printed_code, run


def expect_near(got, want, tolerance, where):
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance, err_msg=where)


class Lessons(unittest.TestCase):
    def setUp(self):
        """A lesson may switch gradients off for its whole program."""
        self.addCleanup(torch.set_grad_enabled, torch.is_grad_enabled())

    def test_torch_computes_the_steps(self):
        for name in LESSONS:
            with self.subTest(name):
                torch.set_grad_enabled(True)
                gradients = ["--gradients"] * (name == "sky")
                trace = subprocess.run([os.environ["ATTN"], "lesson", name, "--json", *gradients],
                                       check=True, capture_output=True, text=True).stdout
                self.assertGreater(run(name, "torch", trace, expect_near), 5)

    def test_torch_computes_any_sentence(self):
        """The code draws its own random numbers, from the seed."""
        for args in ([], ["--causal", "--heads", "2"], ["--scale", "-0.02", "--seed", "7"]):
            explain = [os.environ["ATTN"], "explain", *args, "the cat saw the dog"]
            trace, text = (subprocess.run([*explain, *more], check=True, capture_output=True,
                                          text=True, env={**os.environ, "COLUMNS": "200"}).stdout
                           for more in (["--json"], ["--steps", "--code", "torch"]))
            names = {}
            exec(compile(printed_code(text, "PyTorch"), "explain.lesson", "exec"), names)
            for step in json.loads(trace)["steps"]:
                want, got = numbers(step), names[step["name"]].numpy()
                finite = np.isfinite(want)
                self.assertTrue(np.array_equal(finite, np.isfinite(got)), step["name"])
                expect_near(got[finite], want[finite], 3e-5 * max(abs(want[finite]).max(), 1e-3),
                            step["name"])
