#!/usr/bin/env python3
"""attn run: random combinations of all options, compared with float64 NumPy, on every instruction
set."""

import json
import os
import subprocess
import sys
import unittest

import numpy as np

from cli import ATTN, CliTest
from reference import NARROW, NARROW_ISAS, attention, bound, expect_near, gradients, rounded

CASES = int(os.environ.get("ATTN_TEST_CASES", "160"))
SEED = 20260


def choose(r, *options):
    return options[r.integers(len(options))]


class Case:
    """One random call: arrays in files, the command line, and the reference's arguments."""

    def __init__(self, test, seed, isas):
        self.r = r = np.random.default_rng(seed)
        self.test, self.seed, self.args, self.want = test, seed, [], {}
        self.rank = choose(r, 2, 3, 4)
        self.B = int(r.integers(1, 4)) if self.rank == 4 else 1
        self.Hk = int(r.integers(1, 4)) if self.rank > 2 else 1
        self.H = self.Hk * int(r.integers(1, 4)) if self.rank > 2 else 1
        self.T, self.S = (int(choose(r, 0, 1, 2, 7, 16, 17, 31, 33, 70)) for _ in range(2))
        self.D, self.Dv = (int(choose(r, 1, 3, 8, 16, 33, 64)) for _ in range(2))
        self.stored = choose(r, "f64", "f32", "f32", "f16")
        self.dtype = choose(r, None, None, "f64", "f32", "f16", "bf16")
        self.kind = self.dtype or self.stored
        self.isa = choose(r, *isas)
        self.operands()
        self.masks()
        self.numbers()

    def give(self, option, array=None):
        """Adds an option with an array, as .npy or inside an .npz."""
        name = option.strip("-") + self.r.choice([".npy", ".npz"])
        if name.endswith(".npy"):
            np.save(self.test.path(name), array)
        else:
            np.savez(self.test.path(name), other=np.zeros(3), x=array)
            name += ":x"
        self.args += [option, name]

    def operands(self):
        numpy_type = {"f64": np.float64, "f32": np.float32, "f16": np.float16}[self.stored]
        spread = choose(self.r, 0.1, 1, 1, 3)
        shapes = {
            "q": (self.B, self.H, self.T, self.D),
            "k": (self.B, self.Hk, self.S, self.D),
            "v": (self.B, self.Hk, self.S, self.Dv),
        }
        self.exact = {}
        for name, shape in shapes.items():
            x = (spread * self.r.standard_normal(shape)).astype(numpy_type)
            self.exact[name] = rounded(x, self.kind)
            if self.r.random() < 0.1:
                x = np.asfortranarray(x)
            self.give(
                "--" + name,
                (
                    x.reshape(shape[4 - self.rank :], order="A")
                    if self.rank == 4
                    else np.ascontiguousarray(x).reshape(shape[4 - self.rank :])
                ),
            )

    def maybe(self, p=0.3):
        return self.r.random() < p

    def masks(self):
        r, full = self.r, (self.B, self.H, self.T, self.S)
        if self.maybe(0.4):
            where = choose(r, "top-left", "bottom-right", int(r.integers(-5, 40)))
            self.args += ["--causal", where]
            self.want["causal"] = where
        diagonal = "--causal" not in self.args and self.maybe(0.5)
        if self.maybe():
            window = tuple(int(choose(r, -1, 0, 1, 5, 30)) for _ in range(2))
            self.args += ["--window", "%d,%d" % window]
            self.want["window"] = window
        if diagonal and "--window" in self.args:
            where = choose(r, "bottom-right", int(r.integers(-5, 40)))
            self.args += ["--diagonal", where]
            self.want["diagonal"] = where
        if self.maybe(0.4):
            rank = int(r.integers(0, 5))
            shape = tuple(choose(r, 1, n) for n in full)[4 - rank :]
            if self.maybe(0.5):
                mask = r.random(shape) < 0.7
            else:
                mask = (2 * r.standard_normal(shape)).astype(
                    choose(r, np.float32, np.float16, np.float64)
                )
                mask = np.where(r.random(shape) < 0.2, -np.inf, mask).astype(mask.dtype)
            # a float64 mask is added to scores of the computing type
            self.want["mask"] = (
                mask if mask.dtype == bool or self.kind == "f64" else mask.astype(np.float32)
            )
            self.give("--mask", mask)
        if self.maybe():
            one = self.maybe(0.5)
            lengths = r.integers(0, self.S + 1, size=() if one else self.B)
            self.give("--key-lengths", np.asarray(lengths, choose(r, np.int64, np.int32, np.uint8)))
            self.want["lengths"] = lengths

    def numbers(self):
        r = self.r
        for option, name in (("--alibi", "alibi"), ("--sinks", "sinks")):
            if self.maybe(0.25):
                x = r.standard_normal(self.H).astype(np.float32)
                self.give(option, x)
                self.want[name] = x
        if "--alibi" in self.args and self.maybe(0.5):
            self.args += ["--alibi-symmetric"]
            self.want["alibi_symmetric"] = True
        for option, value in (("softcap", 0.5 + 20 * r.random()), ("scale", r.standard_normal())):
            if self.maybe(0.25):
                self.args += ["--" + option, repr(float(value))]
                self.want[option] = float(value)
        if self.maybe(0.25):
            p, seed = float(choose(r, 0.1, 0.5, 0.9)), int(r.integers(0, 2**64, dtype=np.uint64))
            self.args += ["--dropout", p, "--seed", seed]
            self.want.update(dropout=p, seed=seed)
        if self.dtype:
            self.args += ["--dtype", self.dtype]
        narrow = self.kind == "bf16" and self.isa in NARROW_ISAS
        if self.maybe(0.2):
            self.args += ["--precision", "accurate"]
            narrow = False
        self.weight_error = NARROW if narrow else 0
        self.args += ["--isa", self.isa, "--threads", int(r.integers(1, 4))]
        self.stage = choose(r, "raw", "softcap", "biased", "weights")
        self.results = ["out"] + [x for x in ("weights", "lse", "scores") if self.maybe(0.4)]
        for result in self.results:
            self.args += ["--" + result, result + ".npy"]
        self.gradients = []
        if self.maybe(0.5):
            self.grad_out()
        if "scores" in self.results and (self.stage != "raw" or self.maybe(0.5)):
            self.args += ["--scores-stage", self.stage]

    def grad_out(self):
        r = self.r
        stored = choose(r, "f64", "f32", "f16", self.stored)
        numpy_type = {"f64": np.float64, "f32": np.float32, "f16": np.float16}[stored]
        shape = (self.B, self.H, self.T, self.Dv)
        x = r.standard_normal(shape).astype(numpy_type)
        # the program converts it to --dtype, and to float unless the queries are double
        self.dout = rounded(x, self.dtype or stored)
        if self.kind != "f64":
            self.dout = rounded(self.dout, "f32")
        self.give("--grad-out", x.reshape(shape[4 - self.rank :]))
        self.gradients = ["grad-q", "grad-k", "grad-v"]
        mask = self.want.get("mask")
        if mask is not None and mask.dtype != bool:
            self.gradients.append("grad-mask")
        self.gradients = [x for x in self.gradients if self.maybe(0.8)] or ["grad-q"]
        for name in self.gradients:
            self.args += ["--" + name, name + ".npy"]

    def compare_gradients(self):
        exact, bounds = gradients(
            self.exact["q"],
            self.exact["k"],
            self.exact["v"],
            self.dout,
            self.kind,
            self.weight_error,
            **self.want
        )
        for name in self.gradients:
            label = "seed %d: %s\nattn run %s" % (self.seed, name, " ".join(map(str, self.args)))
            got, want = np.load(self.test.path(name + ".npy")), exact[name]
            stored = {"f64": np.float64, "f16": np.float16}.get(self.kind, np.float32)
            if name == "grad-mask":
                stored = np.float64 if self.kind == "f64" else np.float32
            else:
                self.test.assertEqual(got.ndim, self.rank, label)
            self.test.assertEqual(got.dtype, stored, label)
            self.test.assertEqual(got.size, want.size, label)
            expect_near(got.astype(np.float64).reshape(want.shape), want, bounds[name], label)

    def compare(self):
        want = attention(self.exact["q"], self.exact["k"], self.exact["v"], **self.want)
        stored = {"f64": np.float64, "f16": np.float16}.get(self.kind, np.float32)
        for result in self.results:
            key = self.stage if result == "scores" else result
            got = np.load(self.test.path(result + ".npy"))
            exact = want[key]
            label = "seed %d: %s\nattn run %s" % (self.seed, result, " ".join(map(str, self.args)))
            wide = np.float64 if self.kind == "f64" else np.float32
            self.test.assertEqual(got.dtype, stored if result == "out" else wide, label)
            self.test.assertEqual(got.shape, exact.shape[4 - self.rank :], label)
            got = got.astype(np.float64).reshape(exact.shape)
            infinite = np.isneginf(exact)
            self.test.assertTrue(np.array_equal(np.isneginf(got), infinite), label)
            with np.errstate(invalid="ignore"):
                limit = bound(want, key, self.kind, self.weight_error)
            got, exact = (np.where(infinite, 0, x) for x in (got, exact))
            expect_near(got, exact, limit, label)


class Random(CliTest):
    def test_against_float64(self):
        isas = [x["name"] for x in json.loads(self.works("info", "--json"))["isas"] if x["usable"]]
        self.assertIn("generic", isas)
        for n in range(CASES):
            case = Case(self, SEED + n, [isas[n % len(isas)]])
            self.works("run", *case.args)
            case.compare()
            if case.gradients:
                case.compare_gradients()


class Contract(CliTest):
    def setUp(self):
        super().setUp()
        r = np.random.default_rng(1)
        self.q, self.k, self.v = (
            r.standard_normal((2, 3, n, 8)).astype(np.float32) for n in (5, 7, 7)
        )
        for name in "qkv":
            np.save(self.path(name + ".npy"), getattr(self, name))
        self.qkv = ["run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy"]

    def load(self, name):
        return np.load(self.path(name))

    def test_summary_when_no_result_is_named(self):
        text = self.works(*self.qkv)
        for part in (
            "q        [2, 3, 5, 8] f32",
            "out      [2, 3, 5, 8] f32",
            "min",
            "kernel",
            "time",
        ):
            self.assertIn(part, text)
        self.assertLessEqual(max(map(len, text.splitlines())), 80)

    def test_silent_when_results_are_named(self):
        self.assertEqual(self.works(*self.qkv, "--out", "o.npy"), "")

    def test_json(self):
        got = json.loads(self.works(*self.qkv, "--json", "--weights", "w.npy", "--threads", 1))
        self.assertEqual(got["schema"], "attn.run/1")
        self.assertEqual(
            list(got)[:8],
            ["schema", "shapes", "dtype", "kernel", "isa", "threads", "scratch_bytes", "flop"],
        )
        self.assertEqual(
            got["shapes"],
            {
                "q": [2, 3, 5, 8],
                "k": [2, 3, 7, 8],
                "v": [2, 3, 7, 8],
                "out": [2, 3, 5, 8],
                "weights": [2, 3, 5, 7],
            },
        )
        self.assertEqual((got["dtype"], got["threads"]), ("f32", 1))
        self.assertEqual(got["flop"], 2 * 6 * 5 * 7 * 16)
        self.assertGreater(got["time_us"], 0)
        self.assertEqual(self.load("w.npy").shape, (2, 3, 5, 7))

    def test_json_with_gradients(self):
        np.save(self.path("do.npy"), self.q)
        gradient = ["--grad-out", "do.npy", "--grad-v", "dv.npy"]
        got = json.loads(self.works(*self.qkv, *gradient, "--json"))
        self.assertEqual(got["shapes"]["grad-v"], [2, 3, 7, 8])
        self.assertNotIn("lse", got["shapes"])
        backward = got["backward"]
        self.assertEqual(backward["flop"], 2 * 6 * 5 * 7 * 16)  # scores again, and dv
        self.assertGreater(backward["scratch_bytes"], 0)
        self.assertGreater(backward["time_us"], 0)
        self.assertNotIn("backward", json.loads(self.works(*self.qkv, "--json")))

    def test_plan_computes_nothing(self):
        np.save(self.path("do.npy"), self.q)
        outputs = ["--out", "o.npy", "--grad-out", "do.npy", "--grad-q", "dq.npy"]
        text = self.works(*self.qkv, *outputs, "--plan", "--isa", "generic", "--threads", 1)
        for line in ("forward", "  route     one block", "  route     gradients", "backward"):
            self.assertIn(line + "\n", text)
        self.assertLessEqual(max(map(len, text.splitlines())), 80)
        for name in ("o.npy", "dq.npy"):
            self.assertFalse(os.path.exists(self.path(name)), name)
        got = json.loads(self.works(*self.qkv, "--plan", "--json", "--softcap", 2))["plan"]
        self.assertEqual(list(got), ["forward"])
        want = json.loads(self.works(*self.qkv, "--json", "--softcap", 2))
        for key in ("kernel", "threads", "scratch_bytes", "flop"):
            self.assertEqual(got["forward"][key], want[key], key)
        self.assertEqual(got["forward"]["route"], "tiles")

    def test_lse_changes_no_gradient(self):
        """Backward gets an lse of f64 with and without --lse, and the file has the bytes of a run
        without gradients. With scores of 10^5 a float would lose nearly all digits of a weight."""
        r = np.random.default_rng(SEED)
        q, k, v, dout = (r.standard_normal((12, 16)).astype(np.float32) for _ in range(4))
        q[:, 0], k[:, 0] = 4, 1e5  # moves all scores of a row by the same amount
        args = ["run"]
        for name, x in ("q", q), ("k", k), ("v", v), ("dout", dout):
            np.save(self.path(name + ".npy"), x)
            args += ["--" + name, name + ".npy"] if name != "dout" else []
        grads = ["--grad-out", "dout.npy"]
        for name in "grad-q", "grad-k", "grad-v":
            grads += ["--" + name, name + ".npy"]
        self.works(*args, *grads)
        alone = [self.bytes(name + ".npy") for name in ("grad-q", "grad-k", "grad-v")]
        self.works(*args, *grads, "--lse", "lse.npy")
        beside = [self.bytes(name + ".npy") for name in ("grad-q", "grad-k", "grad-v")]
        self.works(*args, "--lse", "only.npy")
        self.assertEqual(alone, beside)
        self.assertEqual(self.bytes("lse.npy"), self.bytes("only.npy"))

    def test_gradient_of_a_mask_has_its_shape(self):
        np.save(self.path("do.npy"), self.q)
        for shape in ((), (7,), (5, 1), (3, 5, 7), (2, 1, 1, 7)):
            np.save(self.path("m.npy"), np.zeros(shape, np.float32))
            options = ["--mask", "m.npy", "--grad-out", "do.npy", "--grad-mask", "dm.npy"]
            self.works(*self.qkv, *options)
            self.assertEqual(self.load("dm.npy").shape, shape)

    def test_same_bits_for_any_thread_count(self):
        results = []
        for threads in (1, 2, 3, 7):
            self.works(*self.qkv, "--threads", threads, "--out", "o.npy", "--lse", "l.npy")
            results.append(self.load("o.npy").tobytes() + self.load("l.npy").tobytes())
        self.assertEqual(len(set(results)), 1)

    def test_same_gradients_for_any_thread_count(self):
        # unequal lengths, heads that share keys, several tiles and chunks
        r = np.random.default_rng(8)
        B, H, Hk, T, S, D = 3, 2, 2, 520, 520, 16
        for name, shape in (
            ("q", (B, H, T, D)),
            ("k", (B, Hk, S, D)),
            ("v", (B, Hk, S, D)),
            ("dout", (B, H, T, D)),
        ):
            np.save(self.path(name + ".npy"), r.standard_normal(shape).astype(np.float32))
        np.save(self.path("lengths.npy"), np.array([520, 20, 520]))
        names = ["grad-q", "grad-k", "grad-v"]
        options = ["--q", "q.npy", "--k", "k.npy", "--v", "v.npy"]
        options += ["--key-lengths", "lengths.npy", "--grad-out", "dout.npy"]
        for name in names:
            options += ["--" + name, name + ".npy"]
        first = None
        for threads in (1, 2, 3) + 10 * (8, 16):
            self.works("run", *options, "--threads", threads)
            got = [self.bytes(name + ".npy") for name in names]
            first = first or got
            for name, one, other in zip(names, first, got):
                self.assertEqual(one, other, (name, threads))

    def test_standard_input_and_output(self):
        data = self.bytes("q.npy")
        done = self.attn("run", "--q", "-", *self.qkv[3:], "--out", "-", stdin=data)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.works(*self.qkv, "--out", "o.npy")
        self.assertEqual(done.stdout, self.bytes("o.npy"))

    def test_weights_and_scores_together(self):
        self.works(
            *self.qkv,
            "--weights",
            "w.npy",
            "--scores",
            "s.npy",
            "--scores-stage",
            "biased",
            "--causal",
            "top-left"
        )
        w, s = self.load("w.npy"), self.load("s.npy")
        self.assertTrue(np.array_equal(w == 0, np.isneginf(s)))
        again = np.exp(s - s.max(-1, keepdims=True))
        expect_near(again / again.sum(-1, keepdims=True), w, 1e-6)

    def test_row_that_sees_nothing_is_zero(self):
        np.save(self.path("n.npy"), np.array([0, 7]))
        self.works(*self.qkv, "--key-lengths", "n.npy", "--out", "o.npy", "--lse", "l.npy")
        self.assertTrue(np.all(self.load("o.npy")[0] == 0))
        self.assertTrue(np.all(np.isneginf(self.load("l.npy")[0])))

    def test_masked_nan_changes_no_bit(self):
        np.save(self.path("n.npy"), np.array(4))
        options = ["--key-lengths", "n.npy", "--out", "o.npy"]
        self.works(*self.qkv, *options)
        clean = self.load("o.npy").tobytes()
        for value in (np.nan, np.inf, 1e38):
            for name in "kv":
                x = getattr(self, name).copy()
                x[:, :, 4:] = value
                np.save(self.path(name + ".npy"), x)
            self.works(*self.qkv, *options)
            self.assertEqual(self.load("o.npy").tobytes(), clean)

    def test_nan_that_is_attended_is_no_failure(self):
        self.q[1, 2, 3, 0] = np.nan
        np.save(self.path("q.npy"), self.q)
        self.works(*self.qkv, "--out", "o.npy")
        rows = np.isnan(self.load("o.npy")).any(-1)
        self.assertEqual(np.argwhere(rows).tolist(), [[1, 2, 3]])

    def test_exit_5_on_infinity_from_finite_input(self):
        np.save(self.path("v.npy"), np.full((2, 3, 7, 8), 60000, np.float32))
        np.save(self.path("big.npy"), np.full((2, 3, 7, 8), 70000, np.float32))
        done = self.attn(
            "run", *self.qkv[1:5], "--v", "big.npy", "--dtype", "f16", "--out", "o.npy"
        )
        self.assertEqual(done.returncode, 5)
        self.assertEqual(done.stderr.decode().count("\n"), 1)
        self.assertIn(b"240 values of the result are NaN or infinite", done.stderr)
        self.assertTrue(np.all(np.isinf(self.load("o.npy"))))
        self.works(*self.qkv, "--dtype", "f16", "--out", "o.npy")

    def test_bf16_results_are_written_as_f32(self):
        self.works(*self.qkv, "--dtype", "bf16", "--out", "o.npy")
        got = self.load("o.npy")
        self.assertEqual(got.dtype, np.float32)
        self.assertTrue(np.array_equal(rounded(got, "bf16"), got))

    def test_outputs_are_npy_files(self):
        """A file of another suffix could not be read again."""
        for name in ("o.npz", "o.npz:q", "o.safetensors:q"):
            for option in ("--out", "--lse"):
                self.fails(2, *self.qkv, option, name,
                           says="%s %s: a result is a .npy file" % (option, name))

    def test_outputs_replace_older_files(self):
        self.write("o.npy", b"old")
        self.works(*self.qkv, "--out", "o.npy")
        self.assertEqual(self.load("o.npy").shape, (2, 3, 5, 8))
        self.assertEqual(sorted(os.listdir(self.folder)), ["k.npy", "o.npy", "q.npy", "v.npy"])


class Memory(CliTest):
    """The process uses less than 20 MiB at T = S = 4096: arrays of 4 MiB, and no quadratic
    memory."""

    LIMIT = 20 << 20

    # The peak of a child includes the resident memory of its parent at the start, so a small
    # process starts it.
    LAUNCH = (
        "import os, sys; pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ); "
        "_, status, usage = os.wait4(pid, 0); print(status, usage.ru_maxrss)"
    )

    def peak(self, *args):
        """Peak resident bytes of one run."""
        text = subprocess.check_output([sys.executable, "-S", "-E", "-c", self.LAUNCH, ATTN, *args])
        status, kilobytes = map(int, text.split())
        self.assertEqual(status, 0, args)
        return kilobytes * 1024

    def test_linear_memory(self):
        if os.environ.get("ASAN_OPTIONS") or os.environ.get("TSAN_OPTIONS"):
            self.skipTest("a sanitizer's own memory is many times the limit")
        r = np.random.default_rng(2)
        n, d = 4096, 64
        where = [
            self.path(x)
            for x in (
                "q.npy",
                "k.npy",
                "v.npy",
                "w.npy",
                "m.npy",
                "f.npy",
                "n.npy",
                "h.npy",
                "o.npy",
            )
        ]
        q, k, v, wide, mask, added, lengths, head, out = where
        for path in (q, k, v):
            np.save(path, r.standard_normal((n, d)).astype(np.float32))
        np.save(wide, r.standard_normal((n, 2 * d)).astype(np.float32))
        np.save(mask, np.arange(n) < 3000)
        np.save(added, r.standard_normal(n).astype(np.float32))
        np.save(lengths, np.array(3000))
        np.save(head, np.ones(1, np.float32))
        dq, dk = self.path("dq.npy"), self.path("dk.npy")
        cases = [
            [],
            ["--causal", "top-left"],
            ["--causal", "bottom-right", "--window", "100,0"],
            ["--mask", mask],
            ["--mask", added],
            ["--key-lengths", lengths],
            ["--dropout", "0.1"],
            ["--softcap", "5"],
            ["--alibi", head],
            ["--sinks", head],
            ["--lse", self.path("l.npy")],
            ["--dtype", "bf16"],
            ["--dtype", "f16"],
            ["--precision", "accurate"],
            ["--v", wide],
            ["--grad-out", v, "--grad-q", dq, "--grad-k", dk],
            ["--grad-out", v, "--grad-v", dq, "--mask", added, "--grad-mask", dk],
        ]
        for case in cases:
            limit = self.LIMIT + (8 << 20 if "--grad-out" in case else 0)
            base = ["run", "--q", q, "--k", k, "--out", out] + ([] if "--v" in case else ["--v", v])
            peak = self.peak(*base, *case)
            self.assertLess(peak, limit, "%s: %.1f MiB" % (case, peak / 2**20))


if __name__ == "__main__":
    unittest.main()
