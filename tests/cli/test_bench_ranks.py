#!/usr/bin/env python3
# labels: slow
"""bench/ranks.py: the model of attention over ranks, where a closed form is known."""

import os
import sys
import unittest
from pathlib import Path

SOURCE = Path(os.environ.get("ATTN_SOURCE", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "bench"))

import ranks  # noqa: E402


class Ranks(unittest.TestCase):
    def test_pairs_against_counting(self):
        for tokens, P, window in ((1000, 3, -1), (1000, 4, 300), (256, 2, -1)):
            keys = ranks.segment_keys(P)
            table = ranks.work(tokens, P, keys, True, window)
            for r in range(P):
                seen = 0
                for i in range(tokens):
                    if i // 64 % P == r:
                        seen += i + 1 - (max(0, i - window) if window >= 0 else 0)
                self.assertAlmostEqual(sum(row[r] for row in table) / seen, 1, delta=0.02)

    def test_limits(self):
        call, tokens = (8, 2, 128, 2), 16384
        fast = {"flops": 1e12, "rate": 1e30, "latency": 0.0}
        self.assertAlmostEqual(ranks.efficiency(tokens, 1, call, fast, causal=True), 1)
        self.assertAlmostEqual(ranks.efficiency(tokens, 4, call, fast), 1)
        # The balance that unit/test_ranks: test_balance counts in C.
        balance = ranks.efficiency(65536, 8, call, fast, causal=True)
        self.assertAlmostEqual(balance, 0.993, delta=0.002)
        # Without arithmetic the time is that of the messages: each rank gets what it lacks.
        idle = {"flops": 1e30, "rate": 1e9, "latency": 1e-3}
        keys = ranks.segment_keys(4)
        table = ranks.work(tokens, 4, keys)
        found = ranks.time_of(table, tokens, 4, keys, call, idle)
        bytes_ = 2 * 2 * 128 * 2 * tokens * 3 / 4
        self.assertAlmostEqual(found, bytes_ / 1e9 + 3e-3 * len(table))

    def test_least_tokens(self):
        """100 GbE, f32, 8 TF a rank, causal: 2560 tokens a rank."""
        self.assertEqual(ranks.least_tokens(ranks.F32, ranks.ETHERNET, True), 2560)
        for P in (16, 64):
            e = ranks.efficiency(4 * 2560 * P, P, ranks.F32, ranks.ETHERNET, causal=True)
            self.assertGreater(e, 0.95)

    def test_predicted(self):
        """Measured figures that follow the model are predicted; other calls are refused."""
        case = {"shape": [1, 8, 2, 8192, 8192, 64, 64], "dtype": "bf16", "causal": "top-left",
                "pass": "forward", "ranks": 2, "one_rank_us_min": 1e6}  # fmt: skip
        balance = ranks.efficiency(8192, 2, (8, 2, 64, 2), {
            "flops": 1e9, "rate": 1e30, "latency": 0.0}, causal=True)  # fmt: skip
        self.assertAlmostEqual(ranks.predicted(case, 1e30, 0), 0.5 / balance)
        flop = 4 * 8 * 64 * 8192 * 8193 / 2
        self.assertAlmostEqual(
            ranks.predicted(case, 1e30, 0, flops=flop), 0.5 / balance, delta=0.001)
        received = 2 * 2 * 64 * 2 * 4096  # keys and values, of the other rank
        self.assertAlmostEqual(ranks.predicted(case, 1e3, 0, flops=1e30), received / 1e3)
        for name, value in (("pass", "backward"), ("causal", "bottom-right"),
                            ("shape", [2, 8, 2, 8192, 8192, 64, 64])):  # fmt: skip
            with self.assertRaisesRegex(ValueError, "the model knows forwards"):
                ranks.predicted({**case, name: value}, 1e9, 0)


if __name__ == "__main__":
    unittest.main()
