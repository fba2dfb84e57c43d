#!/usr/bin/env python3
# labels: slow
# timeout: 1800
"""The end of attn explain: what it shows of the trained heads is what their file gives, computed
here in NumPy, and the command that it names makes such heads."""

import json
import os
import re
import shlex
import unittest

import numpy as np

from cli import CliTest
from lesson_code import numbers

FOLDER = os.path.join(os.environ["ATTN_SOURCE"], "kit", "explain", "trained")
FOLLOWED, SAME = (os.path.join(FOLDER, name + ".safetensors") for name in ("followed", "same"))
TITLE = "The same sentence through trained heads"
CAT = "the cat saw the dog and the cat ran"


def read(path):
    """The texts and arrays of a .safetensors file."""
    with open(path, "rb") as f:
        data = f.read()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    texts = header.pop("__metadata__")
    kinds = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "I64": "<i8"}
    return texts, {
        name: np.frombuffer(
            data[8 + size :][slice(*e["data_offsets"])], kinds[e["dtype"]]
        ).reshape(e["shape"])
        for name, e in header.items()
    }


def torch_normal(seed, n):
    """torch.manual_seed(seed); torch.randn(n), for a multiple of 16: Box and Muller's, from
    MT19937, in blocks of 16."""
    raw = np.random.RandomState(seed)._bit_generator.random_raw(n)
    first, second = ((raw & 0xFFFFFF) / 2.0**24).reshape(-1, 2, 8).swapaxes(0, 1)
    radius, angle = np.sqrt(-2 * np.log(1 - first)), 2 * np.pi * second
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(n)


def layer_norm(x, p, name):
    centred = x - x.mean(1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    return centred / deviation * p[name + ".weight"] + p[name + ".bias"]


def expected_maps(words, seed):
    """The weights of the three heads, by the definition."""
    return maps_of(FOLLOWED, words, seed, 0) + maps_of(SAME, words, seed, -1)


def maps_of(file, words, seed, sees):
    """sees: the last place that a word sees, counted from its own."""
    texts, p = read(file)
    p = {name: value.astype(float) for name, value in p.items()}
    E = int(texts["embed"])
    table = torch_normal(seed, int(texts["longest"]) * E).reshape(-1, E)
    vocabulary = sorted(set(words))
    x = table[[vocabulary.index(w) for w in words]] + p["places.weight"][: len(words)]
    maps = []
    for b in sorted({name[: len("blocks.0.")] for name in p if name.startswith("blocks.")}):
        joint = layer_norm(x, p, b + "norm1") @ p[b + "attention.in_proj_weight"].T
        q, k, v = np.split(joint + p[b + "attention.in_proj_bias"], 3, 1)
        weights = np.tril(np.exp(q @ k.T / np.sqrt(E)), sees)
        maps.append(weights / np.maximum(weights.sum(1, keepdims=True), 1e-300))
        out = maps[-1] @ v @ p[b + "attention.out.weight"].T + p[b + "attention.out.bias"]
        x = x + out
    return maps


class TrainedHeads(CliTest):
    def end(self, *args, width=200, **more):
        text = self.works("explain", *args, env={"COLUMNS": str(width)}, **more)
        self.assertEqual(text.count(TITLE), 1)
        return text[text.index(TITLE) :]

    def shown(self, text, words):
        """The digits of the three maps: [3,T,T], 0 where a key is hidden."""
        rows = []
        for line in text.splitlines():
            word, *cells = line.replace("·", " 0.000 ").split() or [""]
            digits = re.findall(r"\d\.\d{3}", " ".join(cells))
            if word in words and len(digits) >= len(words):
                rows.append([float(x) for x in digits[: len(words)]])
        return np.array(rows).reshape(3, len(words), len(words))

    def test_the_maps_are_those_of_the_file(self):
        for seed in (123, 7):
            words = CAT.split()
            text = self.end("--seed", seed, CAT)
            got, want = self.shown(text, words), expected_maps(words, seed)
            self.assertLess(abs(got - want).max(), 0.0006)
            for i in range(1, 9):
                self.assertEqual(want[0][i].argmax(), i - 1)
            for i, j in ((3, 1), (6, 4), (7, 2)):  # the word after the last appearance
                self.assertEqual(want[1][i].argmax(), j)
                self.assertEqual(want[2][i].argmax(), j - 1)
            line = " ".join(text.split())
            for word, at, last, after in (("the", 4, 1, "cat"), ("the", 7, 4, "dog"),
                                          ("cat", 8, 2, "saw")):
                self.assertIn(
                    "“%s” (word %d) appeared before as word %d; “%s” followed it and gets the "
                    "weight %.2f." % (word, at, last, after, want[1][at - 1, last]), line)

    def test_it_says_what_the_heads_are(self):
        (texts, _), (same, _) = read(FOLLOWED), read(SAME)
        for width in (60, 80, 200):
            whole = self.works("explain", CAT, env={"COLUMNS": str(width)})
            self.assertIn("random weights, not trained", " ".join(whole[:400].split()))
            line = " ".join(self.end(CAT, width=width).split())
            for part in (texts["command"], same["command"], "know no English",
                         "%.1f %% of the words that" % (100 * float(same["score.same"])),
                         "drawn from seed 123",
                         "%.1f %% of the words" % (100 * float(texts["score.previous"])),
                         "%.1f %% of the words" % (100 * float(texts["score.followed"]))):
                self.assertIn(part, line)

    def test_the_document_says_the_same(self):
        (texts, heads), (same, one) = read(FOLLOWED), read(SAME)
        with open(os.path.join(os.environ["ATTN_SOURCE"], "docs", "explain.md")) as f:
            document = " ".join(f.read().split())
        for part in (texts["command"], same["command"],
                     "%s numbers" % format(sum(value.size for value in heads.values()), ","),
                     "%s numbers" % format(sum(value.size for value in one.values()), ","),
                     "%.1f %% of the words |" % (100 * float(texts["score.previous"])),
                     "%.1f %% of the words that had" % (100 * float(texts["score.followed"])),
                     "%.1f %% of the words that had" % (100 * float(same["score.same"]))):
            self.assertIn(part, document)
        self.assertLess(os.path.getsize(FOLLOWED) + os.path.getsize(SAME), 80_000)

    def test_without_a_repeated_word(self):
        text = " ".join(self.end("Life is short, eat dessert last").split())
        self.assertNotIn("appeared before as word", text)
        self.assertIn('attn explain "Life is short eat dessert last Life is"', text)
        again = self.end("Life is short eat dessert last Life is")
        self.assertIn("“is” followed it", " ".join(again.split()))
        odd = " ".join(self.end("a$b `c` d\\").split())  # a shell would read these
        self.assertIn('attn explain "the cat saw the dog', odd)

    def test_lengths(self):
        longest = int(read(FOLLOWED)[0]["longest"])
        words = ["w%d" % (i % 9) for i in range(longest + 1)]
        self.assertIn("followed it", " ".join(self.end(" ".join(words[:-1])).split()))
        text = self.end(" ".join(words))
        self.assertIn("%d places, and this sentence has %d words" % (longest, longest + 1),
                      " ".join(text.split()))
        self.assertLessEqual(len(text.splitlines()), 3)
        self.assertNotIn("Layer 1", text)
        self.end("alone")
        for width in (44, 60, 79):
            for text in (CAT, " ".join(words[:-1])):
                for line in self.end(text, width=width).splitlines():
                    self.assertLessEqual(len(line), width)

    def test_files(self):
        """JSON and pages have the maps, too; pictures do not."""
        self.works("explain", CAT, "-o", "page.html", "-o", "map.svg", "-o", "trace.txt")
        self.assertNotIn(TITLE, self.bytes("map.svg").decode())
        self.assertIn(TITLE, self.bytes("trace.txt").decode())
        page = self.bytes("page.html").decode()
        data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
        for trained in (json.loads(self.works("explain", "--json", CAT))["trained"],
                        json.loads(data[1])["trace"]["trained"]):
            self.assertEqual(trained["title"], TITLE)
            self.assertIn("know no English", trained["setting"])
            steps = {s["name"]: numbers(s) for s in trained["steps"]}
            maps = expected_maps(CAT.split(), 123)
            for name, want in zip(("previous", "followed", "same"), maps):
                self.assertLess(abs(steps[name] - want).max(), 1e-5)
        self.assertEqual(len(json.loads(self.works("explain", "--json", CAT))["steps"]), 13)
        long = json.loads(self.works("explain", "--json", " ".join("a" * 40)))["trained"]
        self.assertEqual(long["steps"], [])
        self.assertIn("places, and this sentence has 40 words", long["setting"])

    @unittest.skipIf(os.environ.get("ATTN_SANITIZED") == "1", "minutes of training, ten times")
    def test_the_commands_make_such_heads(self):
        for file in (FOLLOWED, SAME):
            texts, heads = read(file)
            command = shlex.split(texts["command"])
            self.assertEqual(command[:2], ["attn", "train"])
            report = json.loads(
                self.works(*command[1:], "--unseen", "1000", "--checkpoint", "run.st", "--json"))
            steps = {s["name"]: s["tensor"]["data"] for s in report["steps"]}
            (accuracy,) = steps["unseen_accuracy"]
            self.assertGreaterEqual(accuracy, 0.95)
            _, made = read(self.path("run.st"))
            same = all(np.array_equal(made[name].astype("<f2"), heads[name]) for name in heads)
            print("the same bits" if same else "other bits, as other instruction sets give",
                  "- right in %.2f %%" % (100 * accuracy))
            self.assertEqual({n: v.shape for n, v in heads.items()},
                             {n: v.shape for n, v in made.items() if "." in n and
                              not n.startswith(("optimizer.", "random.", "history."))})


if __name__ == "__main__":
    unittest.main()
