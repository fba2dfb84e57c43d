#!/usr/bin/env python3
# labels: slow
"""attn bench, info and check: their output, and the promised keys of their JSON."""

import json
import os
import re
import unittest

import numpy as np

from cli import CliTest

CASE_KEYS = (
    "shape dtype causal pass threads isa kernel time_us_min time_us_median gflops gbps peak_gflops "
    "peak_fraction stream_gbps stream_fraction"
).split()


class Bench(CliTest):
    def cases(self, *args):
        got = json.loads(self.works("bench", "--json", "--seconds", "0.01", *args))
        self.assertEqual(list(got), ["schema", "cases"])
        self.assertEqual(got["schema"], "attn.bench/1")
        return got["cases"]

    def test_json(self):
        cases = self.cases(
            "--shape",
            "1,4,2,16,24,8",
            "--shape",
            "2,2,2,5,7,16,3",
            "--causal",
            "bottom-right",
            "--dtype",
            "f64",
            "--threads",
            "2",
            "--isa",
            "generic",
        )
        self.assertEqual(
            [c["shape"] for c in cases], [[1, 4, 2, 16, 24, 8, 8], [2, 2, 2, 5, 7, 16, 3]]
        )
        for c in cases:
            self.assertEqual(list(c), CASE_KEYS)
            self.assertEqual(
                (c["dtype"], c["causal"], c["pass"], c["threads"], c["isa"]),
                ("f64", "bottom-right", "forward", 2, "generic"),
            )
            self.assertIn("generic f64", c["kernel"])
            self.assertLessEqual(0, c["time_us_min"])
            self.assertLessEqual(c["time_us_min"], c["time_us_median"])
            for key in CASE_KEYS[9:]:
                self.assertGreater(c[key], 0, key)

    def test_flop_counts_visible_pairs(self):
        for causal, pairs in (
            ("none", 6 * 8),
            ("top-left", 21),
            ("bottom-right", 33),
            ("-4", 1 + 2),
        ):
            c = self.cases("--shape", "1,1,1,6,8,16,4", "--causal", causal)[0]
            flop = c["gflops"] * c["time_us_min"] * 1e3
            self.assertAlmostEqual(flop, 2 * pairs * (16 + 4), delta=1e-6 * flop)
            read = c["gbps"] * c["time_us_min"] * 1e3
            self.assertAlmostEqual(read, 4 * (6 * 16 + 8 * 16 + 8 * 4 + 6 * 4), delta=1e-6 * read)
            self.assertAlmostEqual(c["peak_fraction"], c["gflops"] / c["peak_gflops"], delta=1e-9)
            self.assertAlmostEqual(c["stream_fraction"], c["gbps"] / c["stream_gbps"], delta=1e-9)

    def test_passes(self):
        """The backward has five matrix products, the forward two."""
        products = {"forward": 2 * 16 + 2 * 4, "backward": 2 * (3 * 16 + 2 * 4)}
        products["both"] = sum(products.values())
        for name, work in products.items():
            c = self.cases("--shape", "1,2,1,6,8,16,4", "--pass", name)[0]
            self.assertEqual(c["pass"], name)
            self.assertEqual("backward" in c["kernel"], name != "forward")
            flop = c["gflops"] * c["time_us_min"] * 1e3
            self.assertAlmostEqual(flop, 2 * 6 * 8 * work, delta=1e-6 * flop)

    def test_decoding_reads_shared_keys_once(self):
        """2-byte elements, two key heads for eight query heads, a batch of 3."""
        c = self.cases("--shape", "3,8,2,4,50,16", "--causal", "bottom-right", "--dtype", "bf16")[0]
        size = 2 * 3 * (2 * 2 * 50 * 16 + 2 * 8 * 4 * 16)  # K and V, q and out
        self.assertAlmostEqual(c["gbps"] * c["time_us_min"] * 1e3, size, delta=1e-6 * size)
        flop = 3 * 8 * (47 + 48 + 49 + 50) * 4 * 16
        self.assertAlmostEqual(c["gflops"] * c["time_us_min"] * 1e3, flop, delta=1e-6 * flop)

    def test_every_dtype(self):
        for dtype in ("f64", "f32", "f16", "bf16"):
            self.assertEqual(
                self.cases("--shape", "1,1,1,4,4,4", "--dtype", dtype)[0]["dtype"], dtype
            )

    @unittest.skipIf("ASAN_OPTIONS" in os.environ, "minutes under a sanitizer")
    def test_standard_list(self):
        """Without --shape: a tiny call, full and causal prefill, and each kind of decoding."""
        cases = self.cases()
        shapes = {tuple(c["shape"][:5]): c for c in cases}
        for shape in ((1, 1, 1, 6, 6), (1, 8, 8, 2048, 2048), (1, 32, 32, 1, 4096)):
            self.assertIn(shape, shapes)
        self.assertEqual(shapes[1, 32, 32, 4, 4096]["causal"], "bottom-right")
        self.assertIn((8, 8, 8, 1, 2048), shapes)
        self.assertIn((1, 32, 4, 1, 8192), shapes)
        self.assertIn("top-left", [c["causal"] for c in cases])
        for c in cases:
            self.assertGreater(c["stream_fraction"], 0)
            self.assertGreater(c["peak_fraction"], 0)

    def test_table(self):
        text = self.works(
            "bench",
            "--seconds",
            "0.01",
            "--shape",
            "1,1,1,4,4,4",
            "--shape",
            "1,1,1,8,8,4",
            "--threads",
            "1",
            "--causal",
            "bottom-right",
        )
        lines = text.splitlines()
        self.assertLessEqual(max(map(len, lines)), 80)
        self.assertIn("1 thread;", lines[0])
        self.assertTrue(lines[-1].startswith("1,1,1,8,8,4,4 "), lines[-1])
        self.assertIn(" bottom-right ", lines[-1])
        self.assertEqual(len(lines), 5)


class Info(CliTest):
    def test_machine(self):
        got = json.loads(self.works("info", "--json"))
        self.assertEqual(
            list(got),
            [
                "schema",
                "version",
                "build",
                "features",
                "isas",
                "isa",
                "isa_reason",
                "threads",
                "threads_reason",
            ],
        )
        self.assertEqual(got["schema"], "attn.info/1")
        usable = [x["name"] for x in got["isas"] if x["usable"]]
        # On Intel processors avx512bf16 can run, but is slower than avx512.
        best = usable[-2:] if usable[-1] == "avx512bf16" else usable[-1:]
        self.assertEqual(usable[0], "generic")
        self.assertIn(got["isa"], best)
        self.assertEqual(got["threads"], len(os.sched_getaffinity(0)))
        text = self.works("info")
        for line in (
            "version +%s " % re.escape(got["version"]),
            "chosen +%s: %s$" % (got["isa"], got["isa_reason"]),
            "threads +%d: %s$" % (got["threads"], got["threads_reason"]),
        ):
            self.assertRegex(text, "(?m)^" + line)
        features = re.search(r"(?m)^features +(.*)$", text).group(1)
        self.assertEqual(" ".join(got["features"]) or "none that matter here", features)
        self.assertEqual("avx2" in got["features"], "avx2" in usable)

    def test_environment(self):
        got = json.loads(
            self.works("info", "--json", env={"ATTN_ISA": "generic", "ATTN_NUM_THREADS": "3"})
        )
        self.assertEqual((got["isa"], got["isa_reason"]), ("generic", "ATTN_ISA names it"))
        self.assertEqual((got["threads"], got["threads_reason"]), (3, "ATTN_NUM_THREADS"))

    def test_amx_can_be_refused(self):
        for value, allowed in ((None, True), ("", True), ("1", True), ("0", False)):
            env = {} if value is None else {"ATTN_AMX": value}
            got = json.loads(self.works("info", "--json", env=env))
            usable = [x["name"] for x in got["isas"] if x["usable"]]
            needs = {"amx_tile", "amx_bf16", "avx512_bf16"}
            if not needs <= set(got["features"]):
                self.assertNotIn("amx", usable)
            elif allowed:  # as the system decides; if it permits tiles, they are the default
                self.assertEqual("amx" in usable, got["isa"] == "amx", value)
            else:
                self.assertNotIn("amx", usable)
                self.assertNotEqual(got["isa"], "amx")

    def test_files(self):
        np.save(self.path("x.npy"), np.zeros((2, 0, 3), np.float16))
        np.savez(
            self.path("x.npz"), q=np.zeros((2, 3)), n=np.zeros((), np.int32), m=np.zeros(4, bool)
        )
        self.assertEqual(self.works("info", "x.npy"), "f16  [2, 0, 3]\n")
        self.assertEqual(
            json.loads(self.works("info", "x.npy", "--json")),
            {
                "schema": "attn.info/1",
                "file": "x.npy",
                "arrays": [{"name": "", "dtype": "f16", "shape": [2, 0, 3]}],
            },
        )
        got = json.loads(self.works("info", "--json", "x.npz"))
        self.assertEqual(
            [(a["name"], a["dtype"], a["shape"]) for a in got["arrays"]],
            [("m", "bool", [4]), ("n", "i64", []), ("q", "f64", [2, 3])],
        )
        self.assertEqual(self.works("info", "x.npz"), "m  bool [4]\nn  i64  []\nq  f64  [2, 3]\n")

    def test_names_are_escaped(self):
        np.save(self.path('a"b\\.npy'), np.zeros(1))
        self.assertEqual(json.loads(self.works("info", "--json", 'a"b\\.npy'))["file"], 'a"b\\.npy')
        odd = os.fsencode(self.folder) + b"/\xff\n.npy"
        os.rename(self.path('a"b\\.npy'), odd)
        done = self.attn("info", "--json", b"\xff\n.npy".decode("utf-8", "surrogateescape"))
        self.assertEqual(json.loads(done.stdout)["file"], "\ufffd\n.npy")


class Check(CliTest):
    def test_one_operation(self):
        text = self.works(
            "check", "--op", "scores", "--isa", "generic", "--seed", "7", "--seconds", "0.1"
        )
        self.assertRegex(text.splitlines()[-1], r"^[1-9]\d* passed, 0 failed$")
        self.assertIn("seed", text)

    def test_cases_and_their_hash(self):
        """The same cases give the same hash again; another seed, and more cases, another one."""

        def line(seed, cases):
            text = self.works("check", "--op", "pieces", "--isa", "generic", "--seed", str(seed),
                              "--cases", str(cases))  # fmt: skip
            return re.fullmatch(
                r"seed 0x[0-9a-f]+\nok   pieces    generic  (\d+)  hash of the results of one call "
                r"([0-9a-f]{16})\n\1 passed, 0 failed\n", text,
            ).groups()  # fmt: skip

        first = line(24, 3)
        self.assertEqual(first[0], "3")
        self.assertEqual(line(24, 3), first)
        self.assertEqual(len({first[1], line(25, 3)[1], line(24, 4)[1]}), 3)

    def test_seed_is_drawn_and_printed(self):
        first, second = (
            self.works("check", "--op", "rescale", "--isa", "generic", "--seconds", "0.01")
            for _ in range(2)
        )
        seed = next(x for x in first.split() if x.startswith("0x") or x.isdigit())
        self.assertNotIn(seed, second.split()[:4])
        again = self.works(
            "check", "--op", "rescale", "--isa", "generic", "--seconds", "0.01", "--seed", seed
        )
        self.assertIn(seed, again)


if __name__ == "__main__":
    unittest.main()
