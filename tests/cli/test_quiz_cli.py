#!/usr/bin/env python3
# labels: slow
"""attn quiz: sheets of 200 seeds, whose answers are computed from the printed numbers alone with
NumPy; the grading of right, wrong, missing and hostile answers."""

import base64
import hashlib
import html.parser
import json
import os
import re
import unittest

import numpy as np

from cli import CliTest

SEEDS = range(1, 201)
QUESTIONS = 12
LARGEST = 2**64 - 1


class Page(html.parser.HTMLParser):
    """What a reader of the page sees: the tables, and for each question its text, table, choices
    and inputs. Tags that do not match fail."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tables, self.questions, self.inputs = [], {}, [], []
        self.raw = {"style": "", "script": ""}
        self.words = ""  # all of the text that is neither style nor script
        self.table = self.policy = self.form = None
        self.feed(text)
        self.close()
        assert self.open == [], self.open

    def handle_starttag(self, tag, attributes):
        a = dict(attributes)
        if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy":
            self.policy = a["content"]
        if tag == "form":
            self.form = a
        if tag == "li":
            self.questions.append({"text": "", "choices": [], "table": None, "inputs": []})
        if tag == "table":
            self.table = {"name": "", "head": [], "side": [], "rows": []}
        if tag == "tr" and "tbody" in self.open:
            self.table["rows"].append([])
        if tag == "label" and a.get("class") == "choice":
            self.questions[-1]["choices"].append("")
        if tag == "input":
            self.inputs.append(a)
            if "li" in self.open:
                self.questions[-1]["inputs"].append(a)
        if tag not in ("meta", "link", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag
        if tag == "table":
            if "li" in self.open:
                self.questions[-1]["table"] = self.table
            else:
                self.tables[self.table["name"]] = self.table

    def handle_data(self, data):
        at = self.open[-1] if self.open else ""
        if at in self.raw:
            self.raw[at] += data
            return
        self.words += data + " "
        if at == "caption":
            self.table["name"] += data
        elif at == "th":
            self.table["head" if "thead" in self.open else "side"].append(data)
        elif at == "td":
            self.table["rows"][-1].append(float(data))
        elif "li" in self.open and at in ("p", "legend"):
            self.questions[-1]["text"] += data
        elif "li" in self.open and at == "span":
            self.questions[-1]["choices"][-1] += data


def softmax(x):
    e = np.exp(np.asarray(x, float))
    return e / e.sum()


class Solver:
    """Answers a sheet as a student does: from the text and the numbers of the page."""

    def __init__(self, page):
        self.page = page
        self.words = page.tables["Q"]["side"]
        self.q, self.k, self.v = (np.array(page.tables[n]["rows"]) for n in "QKV")
        assert all(page.tables[n]["side"] == self.words for n in "QKV")
        self.scores = self.q @ self.k.T

    def rows(self, text):
        return [self.words.index(word) for word in re.findall(r'"(\w+)"', text)]

    def letter(self, q, right):
        """The letter of the only choice for which right(text) holds."""
        found = [c for c in q["choices"] if right(c[3:])]
        assert len(found) == 1, (q, found)
        return found[0][0]

    def answer(self, number):
        q = self.page.questions[number - 1]
        text, given = q["text"], q["table"] and np.array(q["table"]["rows"][0])
        if given is not None:
            assert q["table"]["head"] == self.words
        return getattr(self, "answer_%d" % number)(q, text, given)

    def answer_1(self, q, text, given):
        assert "How large is d_k" in text
        return self.k.shape[1]

    def answer_2(self, q, text, given):
        assert "dot product" in text
        return self.scores[tuple(self.rows(text))]

    def answer_3(self, q, text, given):
        x = round(self.scores[tuple(self.rows(text))], 9)
        want = "positive" if x > 0 else "negative" if x < 0 else "neither: it is 0"
        return self.letter(q, lambda c: c == want)

    def answer_4(self, q, text, given):
        i, a, b = self.rows(text)
        better = self.words[a if self.scores[i, a] > self.scores[i, b] else b]
        return self.letter(q, lambda c: c == 'the key of "%s"' % better)

    def answer_5(self, q, text, given):
        assert "divided by √d_k" in text
        return self.scores[tuple(self.rows(text))] / np.sqrt(self.k.shape[1])

    def answer_6(self, q, text, given):
        assert abs(given).argmax() != given.argmax()  # size and sign are told apart
        return self.letter(q, lambda c: c == self.words[softmax(given).argmax()])

    def answer_7(self, q, text, given):
        return softmax(given)[self.rows(text)[0]]

    def answer_8(self, q, text, given):
        by = float(re.match(r"(\d+) is added", text).group(1))
        assert np.allclose(softmax(given), softmax(given + by), atol=1e-12)
        return self.letter(q, lambda c: c == "They stay the same.")

    def answer_9(self, q, text, given):
        hidden = self.rows(text)[0]
        masked = softmax(np.where(np.arange(3) == hidden, -np.inf, given))
        others = np.arange(3) != hidden
        assert masked[hidden] == 0 and (masked > softmax(given))[others].all()
        return self.letter(q, lambda c: c.endswith("grow, so that the sum is 1 again."))

    def answer_10(self, q, text, given):
        count, score = re.search(r"has (\d+) words.* are (-?\d\.\d)\.", text).groups()
        return softmax([float(score)] * int(count))[0]

    def answer_11(self, q, text, given):
        assert abs(given.sum() - 1) < 1e-12 and (given > 0).all(), given
        return given @ self.v[:, int(re.search(r"component (\d)", text).group(1)) - 1]

    def answer_12(self, q, text, given):
        weights = softmax(self.scores.ravel()).reshape(3, 3)  # of this shape, that is
        assert ("output" in text) != ("have the weights" in text)
        shape = (weights @ self.v if "output" in text else weights).shape
        return self.letter(q, lambda c: c == "%d×%d" % shape)

    def all(self):
        return [self.answer(n) for n in range(1, QUESTIONS + 1)]


class Quiz(CliTest):
    def sheet(self, seed):
        out = self.works("quiz", "--seed", seed, "-o", "s.html")
        data = self.bytes("s.html")
        self.assertEqual(out, "s.html: %.1f kB\n" % (len(data) / 1e3))
        return data.decode()

    def key(self, seed):
        """The key's answers, each a text; and the text of the key."""
        text = self.works("quiz", "--seed", seed, "--answers")
        answers = re.findall(r"(?m)^ ?(\d+)\. (.*)$", text)
        self.assertEqual([int(n) for n, _ in answers], list(range(1, QUESTIONS + 1)))
        return [answer for _, answer in answers], text

    def grade(self, code, answers, seed=7, **more):
        """Grades these answers. Returns the verdicts and the text."""
        file = {"schema": "attn.quiz/1", "seed": str(seed), "answers": answers, **more}
        self.write("answers.json", json.dumps(file).encode())
        text = self.works("quiz", "--grade", "answers.json", code=code)
        found = re.findall(r"(?m)^ ?(\d+)  (right|wrong|missing) ", text)
        self.assertEqual([int(n) for n, _ in found], list(range(1, QUESTIONS + 1)))
        verdicts = [verdict for _, verdict in found]
        self.assertEqual(text.splitlines()[-1], "%d of 12 right." % verdicts.count("right"))
        return verdicts, text

    def right_answers(self, seed=7):
        solved = Solver(Page(self.sheet(seed))).all()
        return {str(n): x if isinstance(x, str) else "%.2f" % x for n, x in enumerate(solved, 1)}


class Sheets(Quiz):
    def test_answers_of_200_seeds(self):
        """The key is what NumPy computes from the numbers on the page."""
        seen, letters = set(), {}
        for seed in SEEDS:
            page = Page(self.sheet(seed))
            seen.add(repr((page.tables, page.questions)))
            self.assertEqual(len(page.questions), QUESTIONS)
            key, _ = self.key(seed)
            for n, want in enumerate(Solver(page).all(), 1):
                said, choices = key[n - 1], page.questions[n - 1]["choices"]
                if isinstance(want, str):
                    self.assertEqual(said[:2], want + ")", (seed, n))
                    self.assertIn(said, choices, (seed, n))
                    letters.setdefault(n, set()).add(want)
                else:
                    self.assertEqual(choices, [], (seed, n))
                    self.assertLessEqual(abs(float(said) - want), 0.005 + 1e-9, (seed, n))
        self.assertEqual(len(seen), len(SEEDS), "two seeds have the same sheet")
        for n, found in letters.items():  # no letter is always right
            self.assertGreaterEqual(len(found), 2, n)

    def test_no_answer_in_the_page(self):
        for seed in SEEDS[:50]:
            text = self.sheet(seed)
            page = Page(text)
            for n, want in enumerate(Solver(page).all(), 1):
                q = page.questions[n - 1]
                if not isinstance(want, str) and n != 1:
                    shown = "%.2f" % want
                    self.assertNotIn(shown, page.words.replace("within 0.01", ""), (seed, n))
                # A right choice looks like any other.
                for i, a in enumerate(q["inputs"]):
                    if q["choices"]:
                        same = {"type": "radio", "name": str(n), "value": "abcd"[i]}
                        self.assertEqual(a, same, (seed, n))
                    else:
                        self.assertNotIn("value", a)
                self.assertEqual(len(q["inputs"]), max(1, len(q["choices"])))
            _, key = self.key(seed)
            for reason in re.findall(r"(?m)^    (\S.{20,})$", key):
                self.assertNotIn(reason, page.words)

    def test_same_seed_same_bytes(self):
        for seed in (0, 7, LARGEST):
            self.assertEqual(self.sheet(seed), self.sheet(seed))
            for more in ([], ["--answers"]):
                first = self.works("quiz", "--seed", seed, *more)
                self.assertEqual(first, self.works("quiz", "--seed", seed, *more))
                self.assertIn("sheet %d\n" % seed, first)
        self.assertEqual(self.works("quiz"), self.works("quiz", "--seed", "1"))

    def test_instruction_sets_give_the_same_key(self):
        for seed in SEEDS[:10]:
            self.assertEqual(self.key(seed)[1], self.works(
                "quiz", "--seed", seed, "--answers", env={"ATTN_ISA": "generic"}))

    def test_page(self):
        """It loads nothing, and its policy names its style and its script."""
        for seed in (7, LARGEST):
            text = self.sheet(seed)
            page = Page(text)
            for kind, name in (("script", "script-src"), ("style", "style-src")):
                digest = base64.b64encode(hashlib.sha256(page.raw[kind].encode()).digest())
                self.assertIn("%s 'sha256-%s'" % (name, digest.decode()), page.policy)
            self.assertTrue(page.policy.startswith("default-src 'none'; "))
            self.assertNotIn("unsafe", page.policy)
            self.assertNotRegex(text, r"https?://|\bsrc=| style=| on\w+=")
            self.assertEqual(page.form["data-seed"], str(seed))
            self.assertEqual(text.count("Sheet %d<" % seed), 1)
            names = [a["name"] for a in page.inputs]
            self.assertEqual(set(names), {"student", *map(str, range(1, QUESTIONS + 1))})
            skeleton = json.loads(re.search(r"<pre>(.*)</pre>", text).group(1))
            self.assertEqual(skeleton["seed"], str(seed))
            self.write("skeleton.json", json.dumps(skeleton).encode())
            graded = self.works("quiz", "--grade", "skeleton.json", code=1)
            self.assertEqual(graded.count("missing"), QUESTIONS)

    def test_text(self):
        """The text asks the same questions as the page, within the width of the terminal."""
        page = Page(self.sheet(7))
        text = self.works("quiz", "--seed", "7")
        flat = " ".join(text.split())
        for q in page.questions:
            self.assertIn(q["text"], flat)
            for choice in q["choices"]:
                self.assertIn(choice, flat)
        for name in "QKV":
            for row in page.tables[name]["rows"]:
                self.assertIn(" ".join("%.1f" % x for x in row), flat)
        for columns in ("50", "80", "300"):
            for more in ([], ["--answers"]):
                text = self.works("quiz", *more, env={"COLUMNS": columns})
                self.assertLessEqual(max(map(len, text.splitlines())), min(int(columns), 100))
        for more in ([], ["--answers"]):
            plain = self.works("quiz", "--seed", "7", *more, env={"LC_ALL": "C"})
            self.assertTrue(plain.isascii())
            self.assertNotIn("?(", plain)


class Grades(Quiz):
    def test_right(self):
        for seed in (*SEEDS[:20], 0, LARGEST):
            verdicts, text = self.grade(0, self.right_answers(seed), seed)
            self.assertEqual(verdicts, ["right"] * QUESTIONS, text)
            self.assertIn("Sheet %d" % seed, text)

    def test_wrong(self):
        """Each question in turn is answered wrongly; the line has the right answer and the
        reason."""
        right = self.right_answers()
        key, _ = self.key(7)
        for n, answer in right.items():
            for wrong in (["a", "b", "c", "d"] if answer.isalpha() else ["99", "-99", "x", "1e9"]):
                if wrong == answer:
                    continue
                verdicts, text = self.grade(1, {**right, n: wrong})
                want = ["right"] * QUESTIONS
                want[int(n) - 1] = "wrong"
                self.assertEqual(verdicts, want, (n, wrong))
                block = " ".join(re.search(r"(?ms)^ ?%s  wrong(.*?)^(?: ?\d+  |$)" % n, text)
                                 .group(1).split())
                self.assertTrue(block.startswith(key[int(n) - 1].rstrip(".")), block)
                self.assertIn(', not "%s". ' % wrong, block)
                self.assertRegex(block, r'". .{10,}\.$')

    def test_missing(self):
        right = self.right_answers()
        verdicts, _ = self.grade(1, {})
        self.assertEqual(verdicts, ["missing"] * QUESTIONS)
        for absent in ("", "  \t", None):
            verdicts, _ = self.grade(1, {**right, "4": absent})
            self.assertEqual(verdicts, ["right"] * 3 + ["missing"] + ["right"] * 8)
        verdicts, _ = self.grade(1, {n: x for n, x in right.items() if n != "12"})
        self.assertEqual(verdicts, ["right"] * 11 + ["missing"])

    def test_tolerance(self):
        right, exact = self.right_answers(), Solver(Page(self.sheet(7))).answer(2)
        for off, verdict in ((0.01, "right"), (-0.01, "right"), (0.0099, "right"),
                             (0.0101, "wrong"), (-0.0101, "wrong"), (0.1, "wrong")):
            answer = "%.4f" % (exact + off)
            code = 0 if verdict == "right" else 1
            self.assertEqual(self.grade(code, {**right, "2": answer})[0][1], verdict, answer)

    def test_ways_to_write_an_answer(self):
        right = self.right_answers()
        x = right["2"]
        self.assertTrue(x.startswith("-"), "choose a seed with a negative answer")
        for same in (x, " %s\n" % x, x.replace(".", ","), x.replace("-", "\u2212"), float(x),
                     x + "00"):
            self.grade(0, {**right, "2": same})
        for other in (x[1:], x + "e0", "0x1p-1", "nan", "inf", "--1", "1.5.9", "1,5.9", "-", ".",
                      "\u22121\u22122", x + "x", "a"):
            self.assertEqual(self.grade(1, {**right, "2": other})[0][1], "wrong", other)
        letter = right["8"]
        for same in (letter.upper(), letter + ")", " %s " % letter):
            self.grade(0, {**right, "8": same})
        for other in (letter * 2, letter + ")x", ord(letter) - 96, "e", "`", "A" * 1000):
            self.assertEqual(self.grade(1, {**right, "8": other})[0][7], "wrong", other)

    def test_names_and_answers_are_shown_safely(self):
        nasty = "\x1b[31m\x07\u202e\u0000"[:-1]
        _, text = self.grade(1, {"1": nasty + "z" * 500, "2": "\u65e9" * 500},
                             name=nasty + "Ada\n12 of 12 right.")
        self.assertNotRegex(text.replace("\n", ""), r"[\x00-\x1f\u202e]")
        self.assertNotIn("12 of 12 right.", text.splitlines())
        self.assertLessEqual(max(map(len, text.splitlines())), 80)
        self.assertIn("Ada", text.splitlines()[0])

    def test_seed_as_a_number(self):
        file = {"schema": "attn.quiz/1", "seed": 7, "answers": self.right_answers()}
        self.write("answers.json", json.dumps(file).encode())
        self.assertIn("12 of 12 right.", self.works("quiz", "--grade", "answers.json"))

    def test_hostile_files(self):
        good = {"schema": "attn.quiz/1", "seed": "7", "answers": {"1": "4"}}

        def refused(data, says):
            if not isinstance(data, bytes):
                data = json.dumps(data).encode()
            self.write("answers.json", data)
            self.fails(3, "quiz", "--grade", "answers.json", says=says)

        refused(b"", "line")
        refused(b"\x00\xff" * 1000, "line")
        refused(b"[]", "not a JSON object")
        refused(b"[" * 60000, "answers.json")
        refused(b'{"seed": 1e999}', "answers.json")
        refused(b'{"a": 1, "a": 1}', "uplicate")
        refused(b" " * (1 << 16) + json.dumps(good).encode(), "bytes; at most 65536 are read")
        refused(json.dumps(good).encode()[:-1], "line")
        refused({}, "schema must be")
        for schema in (None, 1, "attn.quiz/2", []):
            refused({**good, "schema": schema}, "schema must be")
        refused({**good, "seed": "7\u0000"}, "answers.json: line")
        for seed in (None, "", "x", "-1", -1, 1.5, " 7", "7 ", "0x7", [], True,
                     str(LARGEST + 1), "9" * 400):
            refused({**good, "seed": seed}, "seed must be")
        refused(b'{"schema": "attn.quiz/1", "seed": 18446744073709551616}', "answers.json")
        for answers in (None, [], "4", 4, True):
            refused({**good, "answers": answers}, "answers must be an object")
        for number in ("0", "13", "01", "1 ", "-1", "", "x", "1.0", "99999999999999999999",
                       "\x1b[31m"):
            refused({**good, "answers": {number: "4"}}, "the questions are 1 to 12")
        for value in ([], {}, True, ["4"]):
            refused({**good, "answers": {"1": value}}, "answer 1 must be a text or a number")
        refused({**good, "name": 5}, "name must be a string")
        self.fails(3, "quiz", "--grade", "absent.json", says="absent.json: cannot open")
        self.fails(3, "quiz", "--grade", ".", says="not a regular file")
        os.mkfifo(self.path("pipe"))
        self.fails(3, "quiz", "--grade", "pipe", says="not a regular file")

    def test_every_prefix_and_flipped_byte(self):
        """A damaged file is graded or refused, nothing else."""
        data = json.dumps({"schema": "attn.quiz/1", "seed": "7",
                           "answers": {"1": "4", "3": "b"}}).encode()
        damaged = [data[:n] for n in range(0, len(data), 7)]
        damaged += [data[:n] + bytes([data[n] ^ 1 << n % 8]) + data[n + 1:]
                    for n in range(0, len(data), 3)]
        for bytes_ in damaged:
            self.write("answers.json", bytes_)
            done = self.attn("quiz", "--grade", "answers.json")
            self.assertIn(done.returncode, (1, 3), bytes_)
            self.assertEqual(bool(done.stderr), done.returncode == 3, bytes_)


class Usage(Quiz):
    def test_usage(self):
        self.fails(2, "quiz", "7", says="quiz takes no '7'")
        self.fails(2, "quiz", "--seed", "-1", says="--seed -1")
        self.fails(2, "quiz", "--seed", "18446744073709551616")
        for name in ("s.pdf", "s", "s.HTM", "-", "s.html.gz"):
            self.fails(2, "quiz", "-o", name, says="the suffix must be .html")
        self.fails(2, "quiz", "--answers", "-o", "s.html", says="a sheet has no answers")
        for more in (["--seed", "1"], ["--answers"], ["-o", "s.html"]):
            line = self.fails(2, "quiz", "--grade", "a.json", *more)
            self.assertIn("does not go with --grade", line)

    def test_output_that_cannot_be_written(self):
        self.fails(4, "quiz", "-o", "none/s.html", says="none")
        with open("/dev/full", "w") as full:
            done = self.attn("quiz", stdout=full)
        self.assertEqual(done.returncode, 4)
        self.assertIn(b"standard output", done.stderr)


if __name__ == "__main__":
    unittest.main()
