#!/usr/bin/env python3
"""attn explain: the JSON's format and numbers, files, colour, widths, the chosen word, the quiz."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
import unicodedata
import unittest
import xml.etree.ElementTree as xml

import numpy as np

from cli import ATTN, CliTest
from reference import expect_near

TEXT = "Life is short, eat dessert last"
STEPS = (
    "token_ids embedding_table embeddings w_q w_k w_v queries keys values scores scaled_scores "
    "weights "
    "context"
).split()


def tensors(trace):
    return {
        s["name"]: np.array([float(x) for x in s["tensor"]["data"]]).reshape(s["tensor"]["shape"])
        for s in trace["steps"]
    }


def columns(text):
    """Terminal columns of a line without its colours."""
    text = re.sub("\x1b\\[[0-9;]*[mK]", "", text)
    return sum(
        0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF")
        for c in text
    )


class Explain(CliTest):
    def trace(self, *args, text=TEXT):
        return json.loads(self.works("explain", "--json", *args, text))


class Json(Explain):
    def test_one_number_is_singular(self):
        text = self.works("explain", "alone")
        self.assertRegex(text, r"(?m)^ 1 token_ids .* 1 number$")
        self.assertNotIn(" 1 numbers", text)

    def test_keys(self):
        t = self.trace()
        self.assertEqual(t["schema"], "attn.explain/1")
        self.assertEqual(t["tokens"], ["Life", "is", "short", "eat", "dessert", "last"])
        self.assertEqual(
            t["vocabulary"], {"Life": 0, "dessert": 1, "eat": 2, "is": 3, "last": 4, "short": 5}
        )
        self.assertEqual([s["name"] for s in t["steps"]], STEPS)
        for s in t["steps"]:
            self.assertTrue(s["title"] and isinstance(s["formula"], str))
            self.assertEqual(list(s["tensor"]), ["shape", "dtype", "data"])
        shapes = {s["name"]: s["tensor"]["shape"] for s in t["steps"]}
        self.assertEqual(
            shapes,
            dict(
                zip(
                    STEPS,
                    [
                        [6],
                        [6, 16],
                        [6, 16],
                        [24, 16],
                        [24, 16],
                        [28, 16],
                        [6, 24],
                        [6, 24],
                        [6, 28],
                        [6, 6],
                        [6, 6],
                        [6, 6],
                        [6, 28],
                    ],
                )
            ),
        )

    def test_masked_scores_stand_before_weights(self):
        names = [s["name"] for s in self.trace("--causal")["steps"]]
        self.assertEqual(names, STEPS[:11] + ["masked_scores"] + STEPS[11:])

    def test_numbers_are_the_notebooks(self):
        """The sentence, seed and sizes of a notebook give the notebook's values, which another
        program computed."""
        with open(os.path.join(os.environ["ATTN_TEST_DATA"], "lessons", "dessert.json")) as f:
            golden = {
                k: np.array(v["data"], float).reshape(v["shape"])
                for k, v in json.load(f).items()
                if "data" in v
            }
        t = tensors(self.trace())
        for name in (
            "token_ids",
            "embedding_table",
            "embeddings",
            "w_q",
            "w_k",
            "w_v",
            "keys",
            "values",
        ):
            expect_near(t[name], golden[name], 5e-6 * abs(golden[name]).max(), name)
        for name, row in (
            ("queries", "query_2"),
            ("scores", "scores_2"),
            ("weights", "weights_2"),
            ("context", "context_2"),
        ):
            expect_near(t[name][1], golden[row], 5e-6 * abs(golden[row]).max(), name)

    def test_every_step_follows_from_the_one_before(self):
        for args, scale in (
            ([], 1 / np.sqrt(8)),
            (["--no-scale"], 1),
            (["--scale", "-0.02"], -0.02),
            (["--heads", "3", "--causal", "--scale", "0.05"], 0.05),
        ):
            trace = self.trace(
                "--seed", "7", "--embed", "5", "--qk", "8", "--v", "4", *args, text="b a c a"
            )
            t = tensors(trace)
            x = t["embedding_table"][t["token_ids"].astype(int)]
            steps = [("embeddings", x)]
            for out, weight in (("queries", "w_q"), ("keys", "w_k"), ("values", "w_v")):
                steps.append((out, x @ np.swapaxes(t[weight], -1, -2)))
            scores = steps[1][1] @ np.swapaxes(steps[2][1], -1, -2)
            steps += [("scores", scores), ("scaled_scores", scores * scale)]
            last = scores * scale
            if "--causal" in args:
                last = np.where(np.tril(np.ones((4, 4), bool)), last, -np.inf)
                steps.append(("masked_scores", last))
            weights = np.exp(last - last.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            steps += [("weights", weights), ("context", weights @ steps[3][1])]
            for name, want in steps:
                infinite = np.isinf(want)
                self.assertEqual(t[name].shape, want.shape, name)
                self.assertTrue(np.array_equal(t[name][infinite], want[infinite]), name)
                tolerance = 1e-5 * (1 + abs(want[~infinite]).max())
                expect_near(t[name][~infinite], want[~infinite], tolerance, name)
            rows = [r for r in trace["rows"] if r["step"] == "weights"]
            self.assertEqual(len(rows), weights[..., 0].size)
            for r, w in zip(rows, weights.reshape(-1, 4)):
                self.assertAlmostEqual(r["max_weight"], w.max(), places=4)
                self.assertAlmostEqual(
                    r["entropy_bits"], -sum(p * np.log2(p) for p in w if p > 0), places=3
                )

    def test_seed_and_sizes(self):
        a, b, c = self.trace("--seed", "1"), self.trace("--seed", "1"), self.trace("--seed", "2")
        self.assertEqual(a, b)
        self.assertNotEqual(a["steps"][1], c["steps"][1])
        t = self.trace("--heads", "2", "--v", "3")
        self.assertEqual(
            [s["tensor"]["shape"] for s in t["steps"]][3:],
            [
                [2, 24, 16],
                [2, 24, 16],
                [2, 3, 16],
                [2, 6, 24],
                [2, 6, 24],
                [2, 6, 3],
                [2, 6, 6],
                [2, 6, 6],
                [2, 6, 6],
                [2, 6, 3],
            ],
        )

    def test_words(self):
        cases = {
            "don't e-mail, me!": ["don't", "e-mail", "me"],
            "  a \t b\n": ["a", "b"],
            '«Été» — 東京 "x"': ["Été", "東京", "x"],
            "one": ["one"],
            "a a a": ["a"] * 3,
            'a"b\\c <tag>&': ['a"b\\c', "<tag>"],
        }
        for text, words in cases.items():
            self.assertEqual(self.trace(text=text)["tokens"], words)

    def test_standard_input_and_loose_words(self):
        want = self.trace()
        self.assertEqual(
            json.loads(self.works("explain", "--json", "-", stdin=TEXT.encode())), want
        )
        self.assertEqual(json.loads(self.works("explain", *TEXT.split(), "--json")), want)


class Files(Explain):
    def test_all_kinds_at_once(self):
        args = [x for name in ("m.svg", "m.png", "m.pdf", "t.json", "t.txt") for x in ("-o", name)]
        said = self.works("explain", *args, TEXT)
        sizes = [(name, os.path.getsize(self.path(name)))
                 for name in ("m.svg", "m.png", "m.pdf", "t.json", "t.txt")]
        self.assertEqual(said, "".join("%s: %.1f kB\n" % (name, n / 1e3) for name, n in sizes))
        self.assertEqual(self.bytes("t.json").decode(), self.works("explain", "--json", TEXT))
        root = xml.fromstring(self.bytes("m.svg"))
        self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
        words = " ".join(e.text or "" for e in root.iter("{http://www.w3.org/2000/svg}text"))
        for word in ("Life", "dessert"):
            self.assertIn(word, words)
        png = self.bytes("m.png")
        self.assertEqual(png[:8], b"\x89PNG\r\n\x1a\n")
        width, height = struct.unpack(">II", png[16:24])
        self.assertTrue(100 < width < 4000 and 100 < height < 4000, (width, height))
        self.assertEqual(self.bytes("m.pdf")[:5], b"%PDF-")
        self.assertIn(b"dessert", self.bytes("t.txt"))
        self.assertEqual(len(os.listdir(self.folder)), 5)

    def test_what_is_printed_beside_files(self):
        """Prints names and sizes; with --full, the steps before them; with --json, only the
        object."""
        plain = self.works("explain", "--full", TEXT)
        said = self.works("explain", "-o", "t.json", TEXT)
        self.assertRegex(said, r"^t\.json: [0-9.]+ kB\n$")
        self.assertEqual(self.works("explain", "--full", "-o", "t.json", TEXT), plain + "\n" + said)
        self.assertEqual(self.works("explain", "--json", "-o", "t.json", TEXT),
                         self.bytes("t.json").decode())
        self.assertRegex(self.works("lesson", "sky", "-o", "s.svg"), r"^s\.svg: [0-9.]+ kB\n$")
        self.assertRegex(self.works("train", "--steps", "2", "-o", "t.svg"),
                         r"(?s)^    step .*\n\nt\.svg: [0-9.]+ kB\n$")
        odd = "a\u202eb.svg"
        self.assertTrue(self.works("explain", "-o", odd, "a").startswith("a\ufffdb.svg: "))

    def test_mode_follows_umask(self):
        self.works("explain", "-o", "t.json", TEXT, umask=0o027)
        self.assertEqual(os.stat(self.path("t.json")).st_mode & 0o777, 0o640)

    def test_nothing_is_written_if_one_fails(self):
        self.fails(4, "explain", "-o", "m.svg", "-o", "none/m.png", TEXT, says="none/m.png")

    def test_noncharacters_are_drawn_as_replaced(self):
        """cairo refuses a text that has one. JSON keeps them."""
        words = ["a\ufdd0", "b\ufdef", "c\uffff", "d\U0001fffe", "e\U0010ffff"]
        self.works("explain", " ".join(words), "-o", "x.png", "-o", "x.pdf", "-o", "x.svg")
        trace = json.loads(self.works("explain", " ".join(words), "--json"))
        self.assertEqual(trace["tokens"], words)

    def test_full_device(self):
        with open("/dev/full", "wb") as full:
            for args in (["--json"], ["--full"], []):
                done = self.attn("explain", *args, TEXT, stdout=full)
                self.assertEqual(
                    (done.returncode, done.stderr),
                    (4, b"attn explain: standard output: No space left on device\n"),
                )


class Text(Explain):
    def test_width(self):
        long = "a considerably longer sentence with internationalisation inside 東京 of it"
        for width in (40, 64, 80, 132):
            for args in ([], ["--full"], ["--heads", "2", "--causal"]):
                for text in (TEXT, long):
                    out = self.works("explain", *args, text, env={"COLUMNS": str(width)})
                    for line in out.splitlines():
                        self.assertLessEqual(columns(line), width, line)

    def test_what_a_map_of_many_words_shows_is_said(self):
        lines = self.works("explain", " ".join("abcdefghijklmnopqrstuvwxyz")).splitlines()
        maps = [i for i, line in enumerate(lines) if "1       5         10" in line]
        self.assertGreater(len(maps), 1)
        for i in maps:
            self.assertIn("Columns stand in the order of the rows; at the right: entropy/max.",
                          lines[i - 1])

    def test_bad_width_is_80(self):
        want = self.works("explain", TEXT)
        for bad in ("", "x", "0", "-3", "99999999999999999999"):
            self.assertEqual(self.works("explain", TEXT, env={"COLUMNS": bad}), want)

    def test_full_prints_more(self):
        self.assertGreater(
            len(self.works("explain", "--full", TEXT)), 2 * len(self.works("explain", TEXT))
        )

    def test_ascii_outside_utf8(self):
        out = self.works("explain", "--causal", TEXT, env={"LC_ALL": "C"})
        self.assertTrue(out.isascii())
        self.assertIn("█", self.works("explain", TEXT))

    def test_locale_does_not_touch_numbers(self):
        self.assertEqual(
            self.works("explain", "--json", TEXT, env={"LC_ALL": "de_DE.UTF-8"}),
            self.works("explain", "--json", TEXT),
        )

    def test_color(self):
        plain, deep = self.works("explain", TEXT), {"COLORTERM": "truecolor"}
        for args, env in (
            ([], {}),
            ([], {"NO_COLOR": "1", "FORCE_COLOR": "1"}),
            (["--color=never"], {"FORCE_COLOR": "1"}),
            ([], {"FORCE_COLOR": "0"}),
            ([], deep),
        ):
            self.assertEqual(self.works("explain", *args, TEXT, env=env), plain)
        for args, env in (
            (["--color=always"], {}),
            ([], {"FORCE_COLOR": "1"}),
            ([], {"CLICOLOR_FORCE": "1"}),
            (["--color", "always"], {"NO_COLOR": "1"}),
        ):
            out = self.works("explain", *args, TEXT, env=env)
            self.assertRegex(out, "\x1b\\[[0-9;]*48;5;")
            self.assertNotIn("48;2;", out)
            out = self.works("explain", *args, TEXT, env={**env, **deep})
            self.assertRegex(out, "\x1b\\[[0-9;]*48;2;")
        self.assertNotIn("\x1b", self.works("explain", "--json", "--color=always", TEXT))

    def on_terminal(self, rows_columns, **env):
        """The output on a terminal of that size."""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *rows_columns, 0, 0))
        clean = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "TERM": "xterm", **env}
        process = subprocess.Popen(
            [ATTN, "explain", TEXT], stdout=slave, stderr=slave, stdin=slave, env=clean
        )
        os.close(slave)
        data = b""
        while True:
            try:
                more = os.read(master, 65536)
            except OSError:
                break  # Linux's error when the other end is closed
            if not more:
                break
            data += more
        os.close(master)
        self.assertEqual(process.wait(60), 0)
        return data.decode()

    def test_terminal(self):
        out = self.on_terminal((24, 60), COLUMNS="100")
        self.assertIn("\x1b[", out)
        self.assertLessEqual(max(map(columns, out.replace("\r", "").splitlines())), 60)
        for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            self.assertNotIn("\x1b[", self.on_terminal((24, 60), **env))

    def test_query(self):
        by_word = self.works("explain", "--query", "dessert", TEXT)
        self.assertEqual(self.works("explain", "--query", "5", TEXT), by_word)
        self.assertNotEqual(self.works("explain", "--query", "1", TEXT), by_word)
        for bad in ("0", "7", "-1", "Dessert", ""):
            line = self.fails(2, "explain", "--query", bad, TEXT)
            self.assertIn("--query", line)


class Quiz(Explain):
    def quiz(self, *answers, args=()):
        done = self.attn(
            "explain",
            "--quiz",
            "--scale",
            "0.02",
            *args,
            TEXT,
            stdin="".join(a + "\n" for a in answers).encode()
        )
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        text = done.stdout.decode()
        self.assertLessEqual(max(map(columns, text.splitlines())), 80)
        return text

    def test_wrong_then_right(self):
        text = self.quiz(*["9"] * 6)
        self.assertIn("0 of 3 right", text)
        self.assertIn("Hint", text)
        answers = re.findall(r"it is (\d\.\d{4})", text)
        self.assertEqual(len(answers), 3)
        t = tensors(self.trace("--scale", "0.02"))
        for a in answers:
            self.assertIn(a, {"%.4f" % w for w in t["weights"].ravel()})
        right = self.quiz(*answers)
        self.assertIn("3 of 3 right", right)
        near = self.quiz(*["%.4f" % (float(a) + 0.0095) for a in answers])
        self.assertIn("3 of 3 right", near)
        far = self.quiz(*[x for a in answers for x in ["%.4f" % (float(a) + 0.0111)] * 2])
        self.assertIn("0 of 3 right", far)

    def test_second_try(self):
        answers = re.findall(r"it is (\d\.\d{4})", self.quiz(*["9"] * 6))
        text = self.quiz("9", answers[0], "what", answers[1], answers[2])
        self.assertIn("3 of 3 right", text)
        self.assertIn("A number such as", text)

    def test_the_walk_follows_and_is_not_shown_before(self):
        text = self.quiz(*["9"] * 6)
        self.assertTrue(text.endswith(self.works("explain", "--scale", "0.02", TEXT)))

    def test_leaving_early(self):
        for answers in ((), ("9",), ("x" * 50,)):
            self.assertIn("0 of 0 right", self.quiz(*answers))
        self.assertIn("0 of 1 right", self.quiz("9", "9"))


if __name__ == "__main__":
    unittest.main()
