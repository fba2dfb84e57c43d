#!/usr/bin/env python3
"""Promise 11, the panel with code: the programs for NumPy, PyTorch and C run unchanged and print
the numbers of the step."""

import json
import os
import re
import subprocess
import sys
import unittest

import numpy as np

from browser import PageTest, TEXT, tensors

NUMBER = r"-?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf|nan)"


def numbers_of(text):
    return np.array([float(x) for x in re.findall(NUMBER, text.replace("tensor", ""))])


def find_torch():
    """A Python with PyTorch: this one, or the one that `make bench-peers` installs; otherwise
    None."""
    for python in (sys.executable, os.path.join(os.environ["ATTN_BUILD"], "peers/bin/python")):
        try:
            subprocess.run([python, "-c", "import torch"], stderr=subprocess.DEVNULL, check=True)
            return python
        except (OSError, subprocess.CalledProcessError):
            pass
    return None


TORCH = find_torch()


class CodeBridge(PageTest):
    """Runs the program of the panel."""

    def program(self, language):
        self.click(f"#tab-{language}")
        return self.text("#code-text")

    def numpy(self, program, python=sys.executable):
        done = subprocess.run([python, "-c", program], stdout=subprocess.PIPE, check=True)
        return numbers_of(done.stdout.decode())

    def torch(self, program):
        return self.numpy(program, TORCH)

    def c(self, program):
        self.write("step.c", program.encode())
        flags = ["-Werror", "-Wall", "-I", os.path.join(os.environ["ATTN_SOURCE"], "include")]
        library = os.path.dirname(os.environ["ATTN_LIBRARY"])
        subprocess.run([os.environ["CC"], "step.c", *flags, "-L", library, "-lattn",
                        f"-Wl,-rpath,{library}", "-lm", "-o", "step"],
                       cwd=self.folder, check=True)
        done = subprocess.run(["./step"], cwd=self.folder, stdout=subprocess.PIPE, check=True)
        return numbers_of(done.stdout.decode())

    def expect(self, want, stage):
        for language, run in (("NumPy", self.numpy), ("C", self.c), ("PyTorch", self.torch)):
            program = self.program(language)
            if language == "PyTorch":
                compile(program, "step.py", "exec")
            if language == "C" and os.environ.get("ATTN_SANITIZED") == "1":
                continue  # the library needs the sanitizer's library
            if language == "PyTorch" and TORCH is None:
                continue
            got = run(program)
            self.assertEqual(got.size, want.size, (language, stage))
            hidden = np.isinf(want.ravel())
            self.assertTrue((np.isinf(got) == hidden).all())
            error = abs(got[~hidden] - want.ravel()[~hidden]).max()
            self.assertLess(error, 2e-6 * max(1, abs(want[~np.isinf(want)]).max()),
                            (language, stage))

    def test_11_every_step_runs_in_numpy_and_c(self):
        t = tensors(self.explain("--scale", "0.02", "--causal", "--embed", "3", "--qk", "4",
                                 "--v", "2"))
        for stage, name in ((2, "embeddings"), (3, "queries"), (4, "scores"),
                            (5, "scaled_scores"), (6, "masked_scores"), (7, "weights"),
                            (8, "context")):
            self.stage(stage)
            self.assertGreater(len(self.every("#code-text mark")), 0, stage)
            self.expect(t[name], stage)

    def test_matrices_that_stand_the_other_way(self):
        """The lesson journey keeps W as [in, out]; nn.Linear as [out, in]."""
        t = tensors(self.lesson("journey"))
        for name in ("keys", "v2_keys"):
            self.js("attn.change({step: attn.page.trace.find.get(arguments[0]), stage: 3})", name)
            self.expect(t[name], name)

    def test_changed_settings_are_in_the_program(self):
        self.explain("--scale", "0.02")
        self.slide("#lab-t", 0.3)
        self.slide("#lab-d", 7)
        self.select("#lab-mask", "causal")
        want = np.nan_to_num(self.shown())
        for run, language in ((self.numpy, "NumPy"), (self.c, "C")):
            if language == "C" and os.environ.get("ATTN_SANITIZED") == "1":
                continue
            got = run(self.program(language)).reshape(6, 6)
            np.testing.assert_allclose(got, want, atol=2e-6)
        for masking in ("after", "renormalised"):
            self.select("#lab-masking", masking)
            want = np.nan_to_num(self.shown())
            got = self.numpy(self.program("NumPy")).reshape(6, 6)
            np.testing.assert_allclose(got, want, atol=2e-6)

    def test_a_shuffle_is_in_the_program(self):
        self.explain("--scale", "0.02")
        self.click("#lab-shuffle")
        want = self.shown()
        np.testing.assert_allclose(self.numpy(self.program("NumPy")).reshape(6, 6), want, atol=2e-6)

    def test_what_is_too_large_to_be_written_is_drawn(self):
        words = " ".join(f"w{i}" for i in range(70))
        self.explain("--causal", "--heads", "2", text=words)
        for language, run in (("NumPy", self.numpy), ("C", self.c)):
            program = self.program(language)
            self.assertLess(len(program), 3000)
            if language == "C" and os.environ.get("ATTN_SANITIZED") != "1":
                got = run(program).reshape(70, 70)
                np.testing.assert_allclose(got.sum(1), 1, atol=1e-4)
                self.assertEqual(abs(np.triu(got, 1)).max(), 0)


if __name__ == "__main__":
    unittest.main()
