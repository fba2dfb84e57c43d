"""attn.torch with a PyTorch whose internals have changed: it uses only the public interface and
gives the same results."""

import os
import subprocess
import sys
import unittest
from pathlib import Path

import torch

import attn.torch
from attn import _torch_private as private
from torch_common import PYTORCH, AttnTorch, sdpa

# Names that another version may lack or change: owner, name, replacement.
CHANGES = {
    "no count of modes": ("torch._C", "_len_torch_dispatch_stack", None),
    "a count that is always 0": ("torch._C", "_len_torch_dispatch_stack", "lambda: 0"),
    "no dispatch keys": ("torch._C", "_dispatch_keys", None),
    "all keys alike": ("torch._C", "_dispatch_keys", "lambda t: SimpleNamespace(raw_repr=int)"),
    "transforms unseen": ("torch._C", "_are_functorch_transforms_active", "lambda: False"),
    "autocast unseen": ("torch._C", "_is_any_autocast_enabled", "lambda: False"),
    "no level": ("torch.autograd.forward_ad", "_current_level", None),
    "wrappers unseen": ("torch._C._functorch", "is_functorch_wrapped_tensor", "lambda t: False"),
}
START = """
import importlib, sys, unittest
from types import SimpleNamespace
import torch, torch.func, torch.utils._python_dispatch
owner = importlib.import_module({0!r})
before = getattr(owner, {1!r})
{2}
import attn.torch
setattr(owner, {1!r}, before)
"""


def start(owner, name, instead):
    """The beginning of a program in which attn.torch finds a changed PyTorch."""
    line = "del owner.%s" % name if instead is None else "owner.%s = %s" % (name, instead)
    return START.format(owner, name, line)


def run(code, *arguments):
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        env=environment, cwd=Path(__file__).parent, capture_output=True, text=True,
    )  # fmt: skip


class Transforms(AttnTorch):
    """Run by the test below, too."""

    def test_never_wrong(self):
        """torch.func's transforms and tangents give PyTorch's result, or an error."""
        x = torch.randn(3, 1, 2, 4, 8)
        for transform in (
            lambda f: torch.func.vmap(f)(x, x, x),
            lambda f: torch.func.grad(lambda y: f(y, y, y).sum())(x[0]),
            lambda f: torch.func.jvp(lambda y: f(y, y, y), (x[0],), (x[0],))[1],
        ):
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                want = transform(PYTORCH)
                try:
                    got = transform(sdpa)
                except (NotImplementedError, RuntimeError):
                    continue
            self.near(got, want)

    def test_patched(self):
        """PyTorch computes the calls that attn does not support."""
        x = torch.randn(3, 1, 2, 4, 8)
        with attn.torch.patch():
            got = torch.func.vmap(torch.nn.functional.scaled_dot_product_attention)(x, x, x)
        self.near(got, PYTORCH(x, x, x))


class Changes(unittest.TestCase):
    def test_known_here(self):
        self.assertTrue(private.known)

    def test_noticed(self):
        code = "sys.exit(attn._torch_private.known)"
        for what, change in CHANGES.items():
            with self.subTest(what):
                done = run(start(*change) + code)
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_public_way(self):
        """The tests of the function, of its gradients and of the patch, if no private function is
        known."""
        suites = [
            "test_torch.Forward", "test_torch.Dropout", "test_torch_patch.Patch",
            "test_torch_autograd.Gradients", "test_torch_autograd.Compilers.test_aot_eager",
            "test_torch_private.Transforms",
        ]  # fmt: skip
        code = start(*CHANGES["no count of modes"]) + (
            "from torch_common import AttnTorch\n"
            "import test_torch_autograd, test_torch_patch\n"
            "# these expect errors where the operator has an answer of its own\n"
            "del test_torch_autograd.Gradients.test_transforms\n"
            "del test_torch_patch.Patch.test_hands_back\n"
            "unittest.main(module=None, argv=sys.argv)\n"
        )
        done = run(code, *suites)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("Ran 0 tests", done.stderr)


if __name__ == "__main__":
    unittest.main()
