#!/usr/bin/env python3
# timeout: 300
"""attn bench --mpi: the figures that do not depend on the machine, and errors."""

import json
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from mpi_job import USAGE, Job  # noqa: E402

SHORT = ("--threads", 1, "--seconds", 0.01)
# The last block of 64 tokens is not full.
B, H, HK, T, S, D, DV = SHAPE = (2, 4, 2, 300, 420, 24, 16)
CASE = ("--shape", ",".join(map(str, SHAPE)), *SHORT)


def rows(tokens, rank, ranks):
    """How many tokens lie on a rank, counted one by one."""
    return sum(1 for token in range(tokens) if token // 64 % ranks == rank)


class Bench(Job):
    command = "bench"

    def cases(self, ranks, *args):
        done = self.job(ranks, *args, "--json")
        self.assertEqual((done.returncode, self.lines(done)), (0, []), done.stderr)
        return json.loads(done.stdout)["cases"]

    def test_figures(self):
        """Rank 0 receives the keys and values of the others once, and in the backward also what the
        others add to the gradients of its own keys."""
        for ranks in (1, 2, 3):
            own = rows(S, 0, ranks)
            for dtype, size in (("f32", 4), ("bf16", 2)):
                keys = B * HK * (S - own) * (D + DV) * size
                gradients = B * HK * own * (ranks - 1) * (D + DV) * 4
                want = {"forward": keys, "backward": keys + gradients}
                for name in want:
                    args = (*CASE, "--dtype", dtype, "--pass", name)
                    (case,) = self.cases(ranks, *args)
                    self.assertEqual(case["shape"], list(SHAPE))
                    self.assertEqual((case["ranks"], case["threads"]), (ranks, 1))
                    self.assertEqual((case["dtype"], case["pass"]), (dtype, name))
                    self.assertEqual(case["received_bytes"], want[name], (ranks, args))
                    pair = 2 * (D + DV) if name == "forward" else 2 * (3 * D + 2 * DV)
                    flop = case["gflops"] * 1e3 * case["time_us_min"]
                    self.assertAlmostEqual(flop / (B * H * T * S * pair), 1, places=3)
                    self.assertGreater(case["peak_gflops"], 0)
                    ratio = case["one_rank_us_min"] / case["time_us_min"]
                    self.assertAlmostEqual(case["speedup"] / ratio, 1, places=3)
        self.nothing_left()

    def test_table(self):
        done = self.job(2, *CASE, "--causal", "bottom-right", "--pass", "both")
        self.assertEqual(done.returncode, 0, done.stderr)
        head, _, messages, _, names, case = done.stdout.decode().splitlines()
        self.assertRegex(head, "^forward and backward, f32, .*, 2 ranks of 1 thread$")
        self.assertRegex(messages, r": 8 bytes in [0-9.]+ us, 1 MiB at [0-9.]+ GB/s$")
        self.assertEqual(names.split()[:2], ["B,H,Hk,T,S,D,Dv", "causal"])
        self.assertEqual(case.split()[:2], [",".join(map(str, SHAPE)), "bottom-right"])
        self.assertTrue(all(len(line) <= 80 for line in (head, messages, names, case)), done.stdout)

    def test_errors(self):
        """One line, on one rank."""
        for args, said in (
            (("--shape", "1,3,2,4,4,8"), "--shape 1,3,2,4,4,8: Hk=2 must divide H=3"),
            (("--dtype", "f8"), "--dtype"),
            (("--deadline", "-1"), "--deadline"),
            (("one",), "unexpected argument 'one'"),
        ):
            done = self.job(2, *args)
            self.assertEqual((done.returncode, done.stdout), (USAGE, b""), done.stderr)
            self.assertEqual(len(self.lines(done)), 1, done.stderr)
            self.assertIn("attn bench: " + said, self.lines(done)[0])
        self.nothing_left()

    def test_another_rank_has_another_case(self):
        done = self.job(2, *CASE, last=("--shape", "2,4,2,300,421,24,16", *SHORT))
        self.assertNotEqual(done.returncode, 0)
        (line,) = self.lines(done)
        self.assertRegex(line, "^attn bench: .*rank")
        self.nothing_left()

    def test_without_ranks(self):
        done = self.attn("bench", *CASE, "--deadline", 3)
        self.assertEqual(done.returncode, USAGE)
        self.assertEqual(done.stderr, b"attn bench: --deadline has no effect without --mpi\n")
        done = self.attn("bench", "--mpi", *CASE)
        self.assertEqual(done.returncode, USAGE)
        self.assertIn(b"attn bench: --mpi: attn was built without MPI", done.stderr)


if __name__ == "__main__":
    unittest.main()
