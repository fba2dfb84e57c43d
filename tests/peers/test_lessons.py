"""The PyTorch code of the lessons computes their numbers."""

import os
import subprocess
import unittest

import numpy as np
import torch
from lesson_code import LESSONS, run


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
