"""attn.torch on PyTorch's own threads: the same bits, whatever thread calls."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import unittest
from unittest import mock

import torch

from attn import _torch_threads as threads
from torch_common import AttnTorch, sdpa

SHAPE = 1, 4, 300, 64  # enough for two threads
LINUX = sys.platform.startswith("linux")


def results(dtype=torch.float32):
    """A call's result and gradients, as bytes."""
    g = torch.Generator().manual_seed(5)
    inputs = [torch.randn(SHAPE, generator=g).to(dtype).requires_grad_() for _ in "qkv"]
    out = sdpa(*inputs, is_causal=True)
    grads = torch.autograd.grad(out, inputs, torch.ones_like(out))
    return [x.detach().view(torch.uint8).numpy().tobytes() for x in (out, *grads)]


class Threads(AttnTorch):
    def setUp(self):
        super().setUp()
        self.want = results()

    def without_team(self):
        """As if PyTorch's threads were not OpenMP's."""
        self.enterContext(mock.patch.object(threads, "_gomp", None))
        self.enterContext(mock.patch.object(threads, "_contexts", {}))

    def enterContext(self, manager):  # noqa: N802, of unittest since Python 3.11
        self.addCleanup(manager.__exit__, None, None, None)
        return manager.__enter__()

    @unittest.skipUnless(LINUX, "PyTorch's own packages use OpenMP by that name on Linux")
    def test_no_threads_of_its_own(self):
        """If PyTorch has its threads, calls start no others."""
        code = (
            "import os, torch, attn.torch\n"
            "torch.set_num_threads(2)\n"
            "x = torch.randn(300, 1000) @ torch.randn(1000, 1024)\n"
            "q = x.view(300, 4, 4, 64).permute(1, 2, 0, 3)\n"
            "n = len(os.listdir('/proc/self/task'))\n"
            "attn.torch.scaled_dot_product_attention(q, q, q)\n"
            "assert n > 1 and len(os.listdir('/proc/self/task')) == n, n\n"
        )
        self.assertEqual(subprocess.run([sys.executable, "-c", code]).returncode, 0)
        self.assertIsNotNone(threads._gomp)

    def test_same_bits(self):
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            want = results(dtype)
            for n in (1, 3, 2):
                torch.set_num_threads(n)
                self.assertEqual(results(dtype), want)
        self.assertLessEqual({1, 2, 3}, set(threads._contexts))
        self.without_team()
        self.assertEqual(results(dtype), want)

    def test_other_backends(self):
        said = "ATen parallel backend: native thread pool"
        with mock.patch.object(torch.__config__, "parallel_info", lambda: said):
            self.assertIsNone(threads._team())

    @unittest.skipUnless(hasattr(os, "fork"), "there is no fork")
    def test_fork(self):
        """In the child of a process that has used the team, PyTorch's parallel operations hang.
        Attention works, with its own threads."""
        q = torch.randn(SHAPE)
        want = sdpa(q, q, q).numpy().tobytes()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            right = sdpa(q, q, q).numpy().tobytes() == want
            os._exit(0 if right and threads._gomp is None else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(results(), self.want)

    @unittest.skipUnless(LINUX, "see above")
    def test_inside_a_region(self):
        """Calls by the threads of a team get no further team."""
        got = []

        @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        def body(_):
            got.append(results())

        gomp = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint
        )(threads._gomp)
        gomp(body, None, 2, 0)
        self.assertEqual(got, [self.want] * 2)

    def test_python_threads(self):
        """Each thread has its own team, as in PyTorch; calls wait for each other."""
        got = []

        def some():
            for _ in range(5):
                got.append(results())

        running = [threading.Thread(target=some) for _ in range(3)]
        for t in running:
            t.start()
        for t in running:
            t.join()
        self.assertEqual(got, [self.want] * 15)

    def test_error(self):
        """The team works after an error."""
        q = torch.randn(SHAPE)
        for _ in range(2):
            with self.assertRaisesRegex(ValueError, "softcap is -1"):
                sdpa(q, q, q, softcap=-1.0)
            self.assertEqual(results(), self.want)


if __name__ == "__main__":
    unittest.main()
