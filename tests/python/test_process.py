#!/usr/bin/env python3
"""Threads, fork, spawn, and memory over many calls."""

import gc
import multiprocessing
import os
import threading
import unittest
import warnings

from common import attn
import numpy as np

sdpa = attn.scaled_dot_product_attention
RNG = np.random.default_rng(5)
Q, K, V = (RNG.standard_normal((2, 4, 130, 16)).astype("f4") for _ in range(3))


def bits(threads=None):
    return sdpa(Q, K, V, is_causal=True, threads=threads).tobytes()


def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def answer(pipe, want):
    pipe.send([bits(n) == want for n in (None, 1, 2, 5)])


class Process(unittest.TestCase):
    def test_many_threads_at_once(self):
        """All threads create, share and use contexts at the same time."""
        want, wrong = bits(1), []
        start = threading.Barrier(6)

        def work(i):
            start.wait()
            for n in range(40):
                if bits([None, 1, 2, 3, 7][(i + n) % 5]) != want:
                    wrong.append((i, n))

        workers = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        self.assertEqual(wrong, [])

    def test_one_cache_from_many_threads(self):
        cache = attn.KVCache(1, 4, 16, max_keys=400)
        rows = K[:1, :, :1]

        def work():
            for _ in range(50):
                cache.append(rows, rows)
                cache.attend(Q[:1, :, :1])

        workers = [threading.Thread(target=work) for _ in range(4)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        self.assertEqual(cache.lengths.tolist(), [200])

    def test_fork(self):
        """A child that is forked while other threads are inside calls works, and so do its
        threads."""
        want, stop = bits(2), threading.Event()

        def busy():
            while not stop.is_set():
                bits(2)

        workers = [threading.Thread(target=busy) for _ in range(2)]
        for w in workers:
            w.start()
        try:
            for _ in range(10):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # warns that this process has threads
                    child = os.fork()
                if child == 0:
                    good = False
                    try:
                        good = bits(2) == want and bits(3) == want
                    finally:
                        os._exit(0 if good else 1)
                self.assertEqual(os.waitpid(child, 0)[1], 0)
        finally:
            stop.set()
            for w in workers:
                w.join()

    def test_multiprocessing(self):
        want = bits()
        for method in ("fork", "spawn"):
            here = multiprocessing.get_context(method)
            mine, theirs = here.Pipe()
            child = here.Process(target=answer, args=(theirs, want))
            child.start()
            self.assertTrue(mine.poll(100))
            self.assertEqual(mine.recv(), [True] * 4)
            child.join()
            self.assertEqual(child.exitcode, 0)

    def test_number_of_threads(self):
        want, start = bits(1), attn.num_threads()
        self.addCleanup(attn.set_num_threads, None)
        for n in (3, 1, 2):
            attn.set_num_threads(n)
            self.assertEqual(attn.num_threads(), n)
            self.assertEqual(attn.num_threads(5), 5)
            self.assertEqual(bits(), want)
        attn.set_num_threads(None)
        self.assertEqual(attn.num_threads(), start)
        attn.set_num_threads(3)
        attn.set_num_threads(0)
        self.assertEqual((attn.num_threads(), attn.num_threads(0)), (start, start))
        for wrong, kind in ((-1, ValueError), ("two", TypeError), (5000, ValueError)):
            with self.assertRaisesRegex(kind, "threads is"):
                attn.set_num_threads(wrong)
        self.assertEqual(attn.num_threads(), start)

    def test_no_leak(self):
        """A million calls: a leak of one byte per call would be a megabyte."""
        q, k, v = Q[:1, :1, :2], K[:1, :1, :3], V[:1, :1, :3]
        mask, out = np.zeros((2, 3), np.float32), np.empty_like(q)
        module = attn.MultiHeadAttention(2, in_proj_weight=np.ones((48, 16), "f4"))
        cache = attn.KVCache(1, 1, 16, max_keys=64)

        def calls(n):
            for _ in range(n // 100):
                for _ in range(76):
                    sdpa(q, k, v, is_causal=True)
                for _ in range(6):
                    sdpa(q, k, v, mask=mask, alibi=[1], return_weights=True, return_lse=True)
                    sdpa(q[:, :, ::-1], k, v, out=out, key_lengths=2, sinks=[0.5], threads=1)
                for _ in range(2):
                    attn.grad(q, k, v, q, mask=mask, want=["q", "k", "v", "mask"])
                    module(q[0], mask=mask[:, :2])
                module.grad(q[0], q[0])
                attn.MultiHeadAttention(2, in_proj_weight=np.ones((48, 16), "f4"))
                attn.KVCache(1, 1, 16, max_keys=64).append(k, v)
                cache.append(k, v)
                cache.attend(q)
                cache.truncate(0)
                for refused in (lambda: sdpa(q, k[..., :3], v), lambda: module(k[0, :, :, :3])):
                    with self.assertRaises(ValueError):
                        refused()

        calls(100000)
        gc.collect()
        before = resident()
        calls(1000000)
        gc.collect()
        self.assertLess(resident() - before, 1 << 20)


if __name__ == "__main__":
    unittest.main()
