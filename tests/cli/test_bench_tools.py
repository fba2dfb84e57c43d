#!/usr/bin/env python3
"""bench/peers.py and bench/weak.py without peers: counts, timing, comparison of results, output."""

import ctypes
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

SOURCE = Path(os.environ.get("ATTN_SOURCE", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("ATTN_BUILD", SOURCE / "build"))
SANITIZED = "ASAN_OPTIONS" in os.environ
sys.path.insert(0, str(SOURCE / "bench"))

from reference import attention  # noqa: E402
import cells  # noqa: E402
import library  # noqa: E402
import peers  # noqa: E402
import race  # noqa: E402
import report  # noqa: E402
import weak  # noqa: E402
from cells import Cell  # noqa: E402
from race import Player  # noqa: E402


def visible(cell):
    """Counts pairs one by one, by the definition in attn.h."""
    off = cell.S - cell.T if cell.causal == "bottom-right" else 0
    left = cell.window - 1 if cell.window else 10**9
    shown = np.zeros((cell.T, cell.S), bool)
    for i in range(cell.T):
        for j in range(cell.S):
            shown[i, j] = (
                (cell.causal == "none" or j <= i + off)
                and j >= i + off - left
                and (cell.mask != "padding" or j < cells.padded_keys(cell))
            )
    return shown


class Cells(unittest.TestCase):
    def test_flop_against_counting(self):
        for T, S, causal, window, mask in itertools.product(
            (1, 4, 7),
            (1, 5, 7, 12),
            ("none", "top-left", "bottom-right"),
            (0, 1, 3),
            ("", "padding"),
        ):
            c = Cell("x", 2, 6, T, S, 8, 3, 5, causal=causal, window=window, mask=mask)
            pairs = int(visible(c).sum())
            self.assertEqual(cells.visible_pairs(c), pairs, c)
            # For one head: a score has D products and D sums, a weighted sum Dv of each.
            self.assertEqual(cells.flop(c), 2 * 6 * pairs * (8 + 8 + 5 + 5), c)
            # Backward: the scores again, dout . v, and three sums of rows.
            back, both = (c._replace(passes=p) for p in ("backward", "both"))
            self.assertEqual(cells.flop(back), 2 * 6 * pairs * 2 * (8 + 5 + 5 + 8 + 8), c)
            self.assertEqual(cells.flop(both), cells.flop(c) + cells.flop(back), c)

    def test_padding_hides_three_keys_in_ten(self):
        self.assertEqual(cells.padded_keys(Cell("x", 1, 1, 1, 2048, 8, mask="padding")), 1434)
        self.assertEqual(cells.padded_keys(Cell("x", 1, 1, 1, 2048, 8)), 2048)

    def test_bytes_and_figures(self):
        c = Cell("x", 2, 8, 1, 100, 16, Hk=4, Dv=8, dtype="bf16", unit=cells.GBPS)
        size = sum(np.zeros((2, 4, 100, n), np.uint16).nbytes for n in (16, 8))
        self.assertEqual(cells.kv_bytes(c), size)
        self.assertAlmostEqual(cells.figure(c, 1e-6), size / 1e3)
        self.assertAlmostEqual(cells.figure(c._replace(unit=cells.MICROSECONDS), 2.5e-6), 2.5)
        flop = 2 * 2 * 8 * 100 * (16 + 8)
        self.assertAlmostEqual(cells.figure(c._replace(unit=cells.GFLOPS), 1e-3), flop / 1e6)

    def test_grid(self):
        grid = cells.grid()
        self.assertEqual(len({(c.name, c.dtype) for c in grid}), len(grid))
        for c in grid:
            self.assertEqual(c.H % c.kv_heads, 0, c)
            self.assertLessEqual(len(c.name), report.WIDTHS[0], c)
            self.assertLessEqual(cells.flop(c), 60e9, c)
            self.assertGreater(cells.visible_pairs(c), 0, c)
        self.assertEqual({c.dtype for c in grid}, set(cells.DTYPES))
        some = cells.grid(["bf16"], re.compile("decode.*bf16"))
        self.assertEqual({c.dtype for c in some}, {"bf16"})
        self.assertTrue(some and all(c.name.startswith("decode") for c in some))


    def test_packed_pairs_against_counting(self):
        lengths = (3, 1, 4)
        c = cells.packed("x", lengths)
        owner = np.repeat(range(3), lengths)
        self.assertEqual((c.T, c.S), (8, 8))
        self.assertEqual(cells.visible_pairs(c), (owner[:, None] == owner).sum())
        self.assertEqual(cells.flop(c), 2 * 8 * (9 + 1 + 16) * 128)

    def test_mixed_lengths(self):
        lengths = cells.from_to(1024, 1, 16)
        counts = np.bincount(lengths)
        self.assertEqual((counts[0], len(counts), set(counts[1:])), (0, 17, {64}))
        self.assertNotEqual(lengths, sorted(lengths))

    def test_bytes_of_modules(self):
        x = np.zeros((512, 768), np.float32).nbytes
        for kind, passes, times in (
            ("gelu", "forward", 2),
            ("layer norm", "backward", 3),
            ("cross-entropy", "forward", 1),
            ("adamw", "forward", 7),
        ):
            m = cells.module("x", kind, 512, 768, passes=passes)
            self.assertEqual(cells.module_bytes(m), times * x, kind)
        m = cells.module("x", "linear", 1, 512, 768)
        self.assertEqual(cells.module_bytes(m), x)
        self.assertAlmostEqual(cells.figure(m, 1e-3), x / 1e6)
        self.assertAlmostEqual(cells.figure(m._replace(unit=cells.MICROSECONDS), 1e-3), 1e3)

    def test_weak_cells(self):
        grid = cells.weak()
        self.assertEqual(len({(c.name, c.dtype) for c in grid}), len(grid))
        sizes = [c for _, _, of_series in cells.series() for c in of_series]
        for c in [c for c in grid if isinstance(c, Cell)] + sizes:
            self.assertEqual(c.H % c.kv_heads, 0, c)
            self.assertLessEqual(cells.flop(c), 60e9, c)
            self.assertGreater(cells.visible_pairs(c), 0, c)
        for m in (c for c in grid if isinstance(c, cells.Module) and c.unit == cells.GBPS):
            self.assertGreater(cells.module_bytes(m), 0, m)
        some = cells.weak(re.compile("GELU.*f32"))
        self.assertEqual([c.passes for c in some], ["forward", "backward"])
        self.assertEqual({s[1] for s in cells.series(re.compile("^D, .*bf16"))}, {"bf16"})


class Library(unittest.TestCase):
    @unittest.skipIf(SANITIZED, "a sanitizer's library cannot be loaded by this Python")
    def test_a_call(self):
        """Every field of a cell reaches the library, and its errors are raised."""
        lib = library.Library(BUILD / "libattn.so")
        rng = np.random.default_rng(1)
        q = rng.standard_normal((2, 4, 5, 8)).astype("f4")
        k, v = (rng.standard_normal((2, 2, 7, n)).astype("f4") for n in (8, 3))
        mask = rng.random((5, 7)) < 0.8
        slopes = np.float32([0.5, 0.25, 0.125, 0.0625])
        out = np.full((2, 4, 5, 3), np.nan, "f4")

        def view(a, dtype="f32"):
            a4 = a.reshape((1,) * (4 - a.ndim) + a.shape)
            strides = [s // a.itemsize for s in a4.strides]
            return library.tensor(a.ctypes.data, dtype, a4.shape, strides)

        args = library.new_args()
        args.q, args.k, args.v, args.out = view(q), view(k), view(v), view(out)
        args.causal, args.window_left = library.CAUSAL["bottom-right"], 3
        seen, bend = view(mask, "bool"), (ctypes.c_float * 4)(*slopes)
        args.mask, args.alibi_slopes = library.pointed(seen), library.pointed(bend)
        args.softcap, args.dropout, args.dropout_seed = 2.0, 0.25, 7
        for threads in (1, 2):
            out[:] = np.nan
            lib.forward(args, threads)()
            want = attention(
                *(x.astype("f8") for x in (q, k, v)),
                causal="bottom-right",
                window=(3, -1),
                mask=mask,
                alibi=slopes,
                softcap=2.0,
                dropout=0.25,
                seed=7,
            )["out"]
            np.testing.assert_allclose(out, want, atol=2e-6)
        args.softcap = -1.0
        with self.assertRaisesRegex(library.Failed, "^softcap"):
            lib.forward(args, 1)()
        self.assertGreater(lib.measure_flops("f32", 2, 1e-3), 0)
        self.assertGreater(lib.measure_read(1 << 16, 2, 1e-3), 0)

    def test_train_speed(self):
        options = dict(embed=8, layers=1, heads=1, length=8, batch=2, vocab=5, unseen=1, threads=1)
        speed = library.train_speed(BUILD / "attn", mlp=True, steps=2, every=2, **options)
        self.assertTrue(1 < speed < 1e9, speed)
        with self.assertRaisesRegex(library.Failed, "--heads"):
            library.train_speed(BUILD / "attn", heads=3, embed=8)


class Clock:
    """A clock that advances only when it is called."""

    def __init__(self):
        self.now, self.log = 0.0, []

    def __call__(self):
        return self.now

    def player(self, who, *seconds, variant=""):
        """Takes these times, one after the other; the last one repeats."""
        left = list(seconds)

        def call():
            self.log.append(who + variant)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return Player(who, variant, call)


class Race(unittest.TestCase):
    def test_minimum_in_turn(self):
        clock = Clock()
        a, b = clock.player("a", 0.5, 0.3, 0.4), clock.player("b", 0.2, 0.6)
        race.race([a, b], 3.0, clock=clock)
        self.assertAlmostEqual(a.best, 0.3)
        self.assertAlmostEqual(b.best, 0.2)
        self.assertEqual(clock.log[:6], ["a", "b", "b", "a", "a", "b"])
        self.assertGreaterEqual(clock.now, 3.0)

    def test_three_rounds_however_slow(self):
        clock = Clock()
        race.race([clock.player("a", 10.0)], 0.1, clock=clock)
        self.assertEqual(len(clock.log), race.LEAST_ROUNDS)

    def test_two_calls_a_turn_unless_long(self):
        clock = Clock()
        race.race([clock.player("a", 0.05), clock.player("b", 0.5)], 0.1, clock=clock)
        self.assertEqual("".join(clock.log), "aab" + "baa" + "aab")

    def test_short_calls_share_a_turn_and_a_timing(self):
        clock = Clock()
        short, slow = clock.player("a", 1e-6), clock.player("b", 0.01)
        race.warm_up([short, slow], clock)
        self.assertEqual((short.calls, slow.calls), (40, 1))
        clock.log.clear()
        race.race([short, slow], 0.05, clock=clock)
        self.assertAlmostEqual(short.best, 1e-6)
        self.assertGreaterEqual(clock.log.index("b"), 0.999 * race.TURN / 1e-6)

    def test_probe_takes_a_quarter_at_most(self):
        clock, rates = Clock(), iter(range(1, 1000))

        def probe():
            clock.now += 0.1
            return next(rates)

        best = race.race([clock.player("a", 0.1)], 10.0, probe, clock=clock)
        self.assertEqual(best, next(rates) - 1)
        self.assertTrue(20 <= best <= 30, best)

    def test_own_time_counts(self):
        p = Player("libattn", "", lambda: 1.5e-7)
        race.race(race.warm_up([p]), 0.01)
        self.assertEqual(p.best, 1.5e-7)

    def test_hopeless_variants_go(self):
        clock = Clock()
        kept = race.warm_up(
            [
                clock.player("ort", 1.0, variant="A"),
                clock.player("ort", 2.5, variant="B"),
                clock.player("ort", 1.5, variant="C"),
                clock.player("torch", 9.0),
            ],
            clock,
        )
        self.assertEqual([p.who + p.variant for p in kept], ["ortA", "ortC", "torch"])


def row(name="cell", limit=100.0, threads=1, one_thread=None, notes=None, **seconds):
    return {
        "name": name,
        "dtype": "f32",
        "threads": threads,
        "unit": cells.GFLOPS,
        "figure": {who: 1 / s for who, s in seconds.items()},
        "seconds": seconds,
        "notes": notes or {},
        "limit": limit,
        "one_thread": one_thread,
    }


WON = row("won", libattn=0.02, torch=0.03, ort=0.025, openvino=0.1)
LOST = row("lost", libattn=0.04, torch=0.08, ort=0.03, threads=2, one_thread=0.06)
LOST["notes"] = {"ort": "MultiHeadAttention", "openvino": "has no such thing"}
MACHINE = {
    "libattn": "1.2.3 (isa)",
    "peers": ["PyTorch 9"],
    "cpus": 2,
    "features": "fma",
    "caches": "1 MiB L2",
    "seconds": 4.0,
}
ALONE = row("alone", limit=0, libattn=0.5)
FAILED = row("failed", torch=0.1, notes={"libattn": "q: no"})


class Report(unittest.TestCase):
    def test_ratios(self):
        self.assertAlmostEqual(report.best_ratio(WON), 1.25)
        self.assertAlmostEqual(report.ratio(WON, "torch"), 1.5)
        self.assertAlmostEqual(report.share(WON), 0.5)
        self.assertAlmostEqual(report.best_ratio(LOST), 0.75)
        self.assertAlmostEqual(report.scaling(LOST), 1.5)
        self.assertEqual([report.losing(r) for r in (WON, LOST, ALONE, FAILED)], [0, 1, 0, 1])
        for function in (report.best_ratio, report.share, report.scaling):
            self.assertIsNone(function(ALONE))

    def test_summary(self):
        self.assertEqual(report.summary([WON]), "1 cells; 0 below 1.0")
        self.assertEqual(
            report.summary([WON, LOST, ALONE, FAILED]),
            "4 cells; 2 below 1.0; 2 without a peer: "
            "lost f32 2t (0.75); failed f32 1t (libattn failed)",
        )

    def test_a_loss_by_a_hair_is_one(self):
        close = row(libattn=0.0100001, torch=0.01)
        self.assertTrue(report.losing(close))
        self.assertIn("1.00 <", report.line(report.columns(close, report.Notes())))

    def test_table(self):
        notes = report.Notes()
        lines = [report.line(report.columns(r, notes)) for r in (WON, LOST, ALONE, FAILED)]
        wide = row("n" * report.WIDTHS[0], 3e3, 2, 2e-3, libattn=1e-3, torch=12.0, ort=9e-4)
        wide["notes"] = dict.fromkeys(("torch", "ort", "openvino"), "x")
        for text in (*lines, report.line(report.columns(wide, notes)), report.head(LOST)):
            self.assertLessEqual(max(map(len, text.split("\n"))), 100, text)
        self.assertEqual(lines[0].split(), "won GFLOP/s 50.0 33.3 40.0 10.0 1.25 1.50 50%".split())
        self.assertEqual(
            lines[1].split(), "lost GFLOP/s 25.0 12.5 33.3a -b 0.75 < 2.00 25% 1.50".split()
        )
        self.assertEqual(lines[2].split(), "alone GFLOP/s 2.00 - - - - - -".split())
        self.assertEqual(notes.lines()[:2], ["a: MultiHeadAttention", "b: has no such thing"])
        # The ratios are aligned, with or without a mark.
        self.assertEqual(lines[0].index("1.25"), lines[1].index("0.75"))

    def test_letters_do_not_repeat(self):
        notes = report.Notes()
        self.assertEqual(len({notes.letter(str(i)) for i in range(300)}), 300)
        self.assertEqual(notes.letter("0"), "a")
        self.assertEqual(notes.letter(""), "")


def growing(*seconds, work=None, name="queries"):
    labels = [str(n + 1) for n in range(len(seconds))]
    work = work or [n + 1 for n in range(len(seconds))]
    return dict(name=name, dtype="f32", labels=labels, seconds=list(seconds), work=work)


class Weak(unittest.TestCase):
    def test_padding(self):
        self.assertEqual(weak.padding([1.0, 4.0, 2.0, 3.0]), (2.0, 1))
        self.assertEqual(weak.padding([1.0, 2.0]), (0.5, 0))

    def test_step(self):
        self.assertEqual(weak.step([1.0, 2.0, 8.0], [1, 2, 4]), (2.0, 2))
        self.assertEqual(weak.step([1.0, 3.0], [2, 1]), (3.0, 1))  # less work excuses nothing
        self.assertEqual(weak.step([1.0, 0.5], [1, 1]), (0.5, 1))

    def test_cliffs(self):
        for is_one, series in (
            (False, growing(1.0, 2.0, 3.0)),
            (False, growing(1.0, 1.0, 1.0)),
            (True, growing(1.0, 1.2, 1.0)),  # padding pays
            (True, growing(1.0, 2.7, 3.0)),  # a step of 1.35
            (False, growing(1.0, 2.7, 3.0, work=[1, 3, 4])),
        ):
            self.assertEqual(weak.is_cliff(series), is_one, series)

    def test_times(self):
        for seconds, text in (
            (1.5, "1.50 s"),
            (0.0123, "12.3 ms"),
            (0.0072, "7.20 ms"),
            (603e-6, "603 us"),
            (2.5e-7, "0.25 us"),
            (None, "-"),
        ):
            self.assertEqual(weak.time_text(seconds), text)

    def test_order_and_peer(self):
        close = row("close", libattn=0.03, torch=0.02)
        worse = row("worse", libattn=0.03, torch=0.01, ort=0.02)
        worse["notes"] = {"torch": "bmm"}
        self.assertEqual(
            [r["name"] for r in weak.in_order([ALONE, WON, close, worse])],
            ["worse", "close", "won", "alone"],
        )
        self.assertEqual(weak.fastest_peer(worse), "PyTorch, bmm")
        self.assertEqual(weak.fastest_peer(ALONE), "")
        text = weak.printed([WON, close, worse], [growing(1.0, 1.0), growing(1.0, 9.0, name="up")])
        places = [text.index(word) for word in ("worse", "close", "up", "won", "queries")]
        self.assertEqual(places, sorted(places))
        self.assertIn("3 cells; 2 below 1.0", text)
        self.assertIn("series with a cliff: 1 of 2.", text)

    def test_failure_is_shown_as_a_loss(self):
        text = weak.printed([WON, FAILED], [])
        self.assertIn("q: no", text)
        self.assertIn("2 cells; 1 below 1.0", text)

    def test_markdown(self):
        machine = {**MACHINE, "date": "2026-01-02", "family": "CPU family 6"}
        series = [growing(1.0, 1.0), growing(1.0, 9.0, name="up")]
        text = weak.generated([WON, LOST], series, machine)
        for part in (
            "2026-01-02, CPU family 6, one thread. libattn 1.2.3 (isa) beside PyTorch 9;",
            "2 cells; 1 below 1.0; geometric mean of the ratios 0.97; series with a cliff: 1 of 2.",
            "| lost | f32 | 40.0 ms | 30.0 ms | **0.75 <** | 25% | ONNX RT, MultiHeadAttention |",
            "| won | f32 | 20.0 ms | 25.0 ms | 1.25 | 50% | ONNX RT |",
            "| up | f32 | 1: 1.00 s, 2: 9.00 s | 0.11 at 1 | **4.50 at 2 <** |",
        ):
            self.assertIn(part, text)
        self.assertLess(text.index("| lost"), text.index("| won"))
        self.assertLess(text.index("| up"), text.index("| queries"))

    def test_the_document_has_the_markers(self):
        with open(SOURCE / "docs/BENCHMARKS.md", encoding="utf-8") as f:
            text = f.read()
        new = report.replace_generated(text, "NEW", weak.BEGIN, weak.END)
        self.assertIn(f"{weak.BEGIN}\n\nNEW\n\n{weak.END}", new)


class Markdown(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "B.md")

    def write(self, text):
        with open(self.path, "w", encoding="utf-8") as f:
            f.write(text)

    def read(self):
        with open(self.path, encoding="utf-8") as f:
            return f.read()

    def test_hand_written_part_stays(self):
        before, after = "# Title\n\nBy hand, 1 × 2.\n\n", "\n\n## What was tried\n\n| a | b |\n"
        self.write(before + report.BEGIN + "\nold\n" + report.END + after)
        for rows in ([WON, LOST], [WON, LOST], [WON]):
            report.write_markdown(self.path, rows, MACHINE)
            text = self.read()
            self.assertTrue(text.startswith(before + report.BEGIN), text)
            self.assertTrue(text.endswith(report.END + after), text)
            self.assertNotIn("old", text)
            self.assertEqual(text.count("| won |"), 1)
            self.assertEqual(text.count("| lost |"), int(LOST in rows))
        self.assertNotIn("has no such thing", text)

    def test_content(self):
        report.write_markdown(self.path, [WON, LOST], MACHINE)
        text = self.read()
        for part in (
            "libattn 1.2.3 (isa) beside PyTorch 9; 2 CPUs with fma; 1 MiB L2; one thread did",
            " 100 GFLOP/s of f32\nmultiply-adds; 4 s for each cell.",
            "### f32, 1 thread\n",
            "### f32, 2 threads\n",
            "| won | GFLOP/s | 50.0 | 33.3 | 40.0 | 10.0 | 1.25 | 1.50 | 50% |\n",
            "| lost | GFLOP/s | 25.0 | 12.5 | 33.3a | -b | **0.75 <** | 2.00 | 25% | 1.50 |\n",
            "- b: has no such thing\n",
            "2 cells; 1 below 1.0: lost f32 2t (0.75)\n",
        ):
            self.assertIn(part, text)
        widths = {x.count("|") for x in text.splitlines() if x.startswith("|")}
        self.assertEqual(widths, {10, 11})

    def test_markers_must_be_there(self):
        for text in ("", report.BEGIN, report.END + report.BEGIN, 2 * (report.BEGIN + report.END)):
            self.write(text)
            with self.assertRaisesRegex(ValueError, "must have the line"):
                report.write_markdown(self.path, [WON], MACHINE)
            self.assertEqual(self.read(), text)

    def test_the_document_has_them(self):
        with open(SOURCE / "docs/BENCHMARKS.md", encoding="utf-8") as f:
            text = f.read()
        new = report.replace_generated(text, "NEW")
        self.assertIn(f"{report.BEGIN}\n\nNEW\n\n{report.END}", new)


class CommandLine(unittest.TestCase):
    def peers(self, *args, code=0, program="peers.py"):
        done = subprocess.run(
            [sys.executable, str(SOURCE / "bench" / program), *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=60,
        )
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout.decode(), done.stderr.decode()

    def test_help_and_list(self):
        self.assertIn("--markdown", self.peers("--help")[0])
        names = self.peers("--list", "--only", "^decode", "--dtype", "f32")[0].splitlines()
        self.assertTrue(len(names) > 2 and all(re.search("^decode.* f32$", n) for n in names))

    def test_usage(self):
        for args, says in (
            (("--only", "nothing like it"), "no cell fits"),
            (("--only", "("), "no regular expression"),
            (("--threads", "1,0"), "must be numbers from 1"),
            (("--dtype", "f32,f8"), "'f8' is none of f32"),
            (("--peers", "jax"), "'jax' is none of torch"),
            (("--seconds", "-1"), "must be more than 0"),
        ):
            self.assertIn(says, self.peers(*args, code=2)[1])
        self.assertIn("is not there", self.peers("--library", "none.so", code=1)[1])

    def test_weak(self):
        names = self.peers("--list", "--only", "AdamW|packed", program="weak.py")[0].splitlines()
        self.assertTrue(len(names) > 3 and all(re.search("AdamW|packed", n) for n in names))
        self.assertIn(
            "no cell fits", self.peers("--only", "no such", program="weak.py", code=2)[1]
        )
        self.assertIn(
            "is not there", self.peers("--library", "none.so", program="weak.py", code=1)[1]
        )

    def test_tables_of_an_earlier_weak_run(self):
        machine = {**MACHINE, "date": "2026-01-02", "family": "CPU family 6"}
        with tempfile.TemporaryDirectory() as folder:
            times, more, tables = (os.path.join(folder, n) for n in ("a.json", "b.json", "B.md"))
            weak.write_json(times, [WON, LOST], [growing(1.0, 9.0)], machine)
            with open(tables, "w") as f:
                f.write(f"before\n{weak.BEGIN}\nold\n{weak.END}\nafter\n")
            again = row("lost", limit=90.0, libattn=0.05, torch=0.02, ort=0.04)
            again["notes"] = {"torch": "bmm"}
            weak.write_json(more, [again], [growing(3.0, 8.0)], machine)
            text, _ = self.peers("--from", times, more, "--markdown", tables, program="weak.py")
            with open(tables) as f:
                written = f.read()
        self.assertLess(text.index("lost"), text.index("won"))
        self.assertIn("| 1: 1.00 s, 2: 8.00 s |", written)
        self.assertIn("| 40.0 ms | 20.0 ms | **0.50 <** | 25% | PyTorch, bmm |", written)
        self.assertTrue(written.startswith(f"before\n{weak.BEGIN}\n\n2026-01-02, CPU family 6"))
        self.assertTrue(written.endswith(f"{weak.END}\nafter\n") and "old" not in written)

    def test_earlier_runs_together(self):
        with tempfile.TemporaryDirectory() as folder:
            names = [os.path.join(folder, n) for n in ("a", "b", "c")]
            early, late = cells.GRID[3][0].name, cells.GRID[9][0].name
            peers.write_json(names[0], [LOST, {**WON, "name": late}], MACHINE)
            peers.write_json(names[1], [{**WON, "name": early}], {**MACHINE, "cpus": 9})
            text, _ = self.peers("--from", names[0], names[1], "--json", names[2])
            with open(names[2]) as f:
                got = [c["name"] for c in json.load(f)["cells"]]
            self.assertEqual(got, [early, late, "lost"])
        self.assertIn("; 2 CPUs", text)
        self.assertLess(text.index(early), text.index(late))
        self.assertEqual(text.splitlines()[-1], "3 cells; 1 below 1.0: lost f32 2t (0.75)")


if __name__ == "__main__":
    unittest.main()
