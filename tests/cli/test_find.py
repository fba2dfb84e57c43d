#!/usr/bin/env python3
"""attn explain --find: the scores of all heads equal a count in NumPy over the weights of a forward
pass in NumPy (tests/page/models.py). tests/peers/test_find.py compares with transformers."""

import json
import os
import re
import sys
import unittest

import numpy as np

from cli import CliTest

sys.path.insert(0, os.path.join(os.environ["ATTN_SOURCE"], "tests", "page"))
import models  # noqa: E402

USAGE, BAD_FILE, LIMIT, NOT_FINITE = 2, 3, 4, 5
KINDS = "previous next same induction separator first self".split()
TOPS = [[2, 4, 5, 2, 4, 6, 7, 2, 3], [2, 9, 3], [2, 8, 8, 8, 8, 3, 8, 10, 3]]  # [CLS] .. [SEP]
LETTERS = ["abcabcab", "xyz", "hello hello", "q"]  # the space is the end token


def targets(kind, ids, ends, i, seen):
    """The keys that count for query i, among those that it sees."""
    if kind == "previous":
        return [j for j in seen if j + 1 == i]
    if kind == "next":
        return [j for j in seen if j == i + 1]
    if kind == "same":
        return [j for j in seen if ids[j] == ids[i] and j != i]
    if kind == "induction":
        return [j for j in seen if j != i and j - 1 in set(range(len(ids))) - {i}
                and ids[j - 1] == ids[i]]
    if kind == "separator":
        return [j for j in seen if ids[j] in ends]
    if kind == "first":
        return [j for j in seen if j == 0 < i]
    return [i]


def count(kind, texts, maps, ends, causal, window=0):
    """texts: ids; maps: for each text the weights [L,H,T,T]. Gives scores [L,H], the score of equal
    attention, and the number of queries."""
    total, even, queries = 0, 0, 0
    for ids, weights in zip(texts, maps):
        for i in range(len(ids)):
            seen = range(i + 1) if causal else range(len(ids))
            hits = targets(kind, ids, ends, i, seen)
            if not hits:
                continue
            queries += 1
            total = total + weights[:, :, i, hits].sum(-1)
            near = [j for j in seen if not window or j > i - window]
            even += len(set(hits) & set(near)) / len(near)
    return (total / queries, even / queries, queries) if queries else (None, None, 0)


class Find(CliTest):
    def made(self, kind, **how):
        model = models.Model(kind, **how)
        model.save(self.path("m"))
        return model

    def find(self, kind, *args, **more):
        out = json.loads(self.works("explain", "--model", "m", "--find", kind, "--json", *args,
                                    **more))
        self.assertEqual((out["schema"], out["kind"]), ("attn.find/1", kind))
        return out

    def compare(self, out, want, equal, queries, texts):
        self.assertEqual((out["sentences"], out["tokens"], out["queries"]),
                         (len(texts), sum(map(len, texts)), queries))
        got = np.full(want.shape, np.nan)
        for h in out["heads"]:
            got[h["layer"] - 1, h["head"] - 1] = h["score"]
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-6)
        self.assertEqual(len(out["heads"]), want.size)
        np.testing.assert_allclose(out["equal_attention"], np.full(len(want), equal), atol=1e-12)
        scores = [h["score"] for h in out["heads"]]
        self.assertEqual(scores, sorted(scores, reverse=True))

    def check_kinds(self, model, texts, lines, ends, refused=()):
        self.write("lines.txt", "\n".join(lines).encode() + b"\n")
        maps = [np.stack([step["weights"] for step in model.forward(ids)]) for ids in texts]
        for kind in KINDS:
            with self.subTest(kind=kind):
                want, equal, queries = count(kind, texts, maps, ends, model.decoder, model.window)
                if kind in refused:
                    self.assertEqual(queries, 0)
                    continue
                self.assertGreater(np.ptp(want), 0)
                out = self.find(kind, "--sentences", "lines.txt")
                self.assertEqual(out["model"], model.kind)
                self.compare(out, want, equal, queries, texts)

    def test_bert(self):
        model = self.made("bert", L=3, H=4, D=8)
        words = [" ".join(model.vocabulary[i] for i in ids[1:-1]) for ids in TOPS]
        lines = ["", words[0] + "\r", "  \t", words[1], words[2]]
        self.assertIn("[SEP]", model.vocabulary[3])
        texts = [list(ids) for ids in TOPS]
        self.check_kinds(model, texts, lines, {3})

    def test_decoders(self):
        for kind, how in (("gpt2", {}), ("llama", {"H": 4, "Hk": 2}), ("mistral", {"window": 3})):
            with self.subTest(model=kind):
                model = models.Model(kind, L=3, **how)
                model.save(self.path(kind))
                os.rename(self.path(kind), self.path("m"))
                ids = {w: i for i, w in enumerate(model.vocabulary)}
                texts = [[ids["\u0120" if c == " " else c] for c in t] for t in LETTERS]
                self.check_kinds(model, texts, LETTERS, {ids["\u0120"]}, refused=["next"])
                line = self.fails(USAGE, "explain", "--model", "m", "--find", "next", "abc")
                self.assertIn("no token of a decoder (%s)" % kind, line)
                os.rename(self.path("m"), self.path(kind))

    def test_a_text_a_file_and_standard_input(self):
        self.made("bert")
        self.write("one.txt", b"w1 w2 w1 w3")
        same = [self.find("same", *args, stdin=b"w1 w2 w1 w3") for args in (
            ["w1 w2 w1 w3"], ["w1", "w2", "w1", "w3"], ["-"], ["--sentences", "one.txt"],
            ["--sentences", "-"])]
        for other in same:
            self.assertEqual(other, same[0])
        two = self.find("same", "--sentences", "-", stdin=b"w1 w2 w1 w3\nw1 w2 w1 w3\n")
        self.assertEqual((two["sentences"], two["queries"]), (2, 4))
        self.assertEqual([h["layer"] for h in two["heads"]], [h["layer"] for h in same[0]["heads"]])

    def test_a_text_does_not_depend_on_those_before(self):
        """RoBERTa counts its positions from behind the padding token's id, for each text anew."""
        model = models.Model("bert")
        model.save(self.path("m"))
        self.write("m/config.json", json.dumps({
            **model.config(), "model_type": "roberta", "pad_token_id": 0}).encode())
        self.write("m/tokenizer_config.json", b'{"tokenizer_class": "BertTokenizer"}')
        one = self.find("previous", "w1 w2 w1 w3")
        three = self.find("previous", "--sentences", "-", stdin=b"w1 w2 w1 w3\n" * 3)
        self.assertEqual(three["queries"], 3 * one["queries"])
        for a, b in zip(one["heads"], three["heads"]):
            self.assertEqual((a["layer"], a["head"]), (b["layer"], b["head"]))
            self.assertAlmostEqual(a["score"], b["score"], delta=1e-12)

    def test_a_pair_of_texts(self):
        """The weights are those that the program itself prints for each layer."""
        self.made("bert", L=2, H=3)
        pair, maps = ["--text-pair", "w5 w1 w7", "w1 w2 w1 w3"], []
        for layer in (1, 2):
            out = json.loads(self.works("explain", "--model", "m", "--json", "--layer", layer,
                                        *pair))
            step = {s["name"]: s["tensor"] for s in out["steps"]}
            maps.append(np.reshape(np.array(step["weights"]["data"], float),
                                   step["weights"]["shape"]))
        ids = step["token_ids"]["data"]
        self.assertEqual((ids[0], ids.count(3)), (2, 2))
        for kind in KINDS:
            want, equal, queries = count(kind, [ids], [np.stack(maps)], {3}, False)
            self.compare(self.find(kind, *pair), want, equal, queries, [ids])

    def test_table(self):
        self.made("bert", L=3, H=4)
        args = ["--sentences", "s.txt"]
        self.write("s.txt", b"w1 w2 w1 w3\nw4 w5\n")
        out = self.find("previous", *args)
        for more, rows in (([], 10), (["--full"], 12)):
            text = self.works("explain", "--model", "m", "--find", "previous", *args, *more)
            row = re.findall(r"(?m)^ +(\d+) +(\d+) +([\d.]+)( +[█▏▎▍▌▋▊▉]+)?$", text)
            self.assertEqual(
                [(int(r[0]), int(r[1]), r[2]) for r in row],
                [(h["layer"], h["head"], "%.4f" % h["score"]) for h in out["heads"][:rows]])
            for r in row:
                self.assertAlmostEqual(len(r[3].strip()), 40 * float(r[2]), delta=1)
            self.assertEqual("2 more heads; --full shows all." in text, rows == 10)
            words = " ".join(text.split())
            self.assertIn("2 sentences, 10 tokens; 8 of them have a token before them.", words)
            self.assertIn("score of a head is the weight that a token gives to the token before it",
                          words)
            self.assertIn("would have the score %.4f." % out["equal_attention"][0], words)
            self.assertRegex(text, r"(?m)^equal \(1/n\) +%.4f" % out["equal_attention"][0])
            self.assertAlmostEqual(out["equal_attention"][0], (5 / 6 + 3 / 4) / 8)
            self.assertLessEqual(max(map(len, text.splitlines())), 80)
        plain = self.works("explain", "--model", "m", "--find", "first", *args,
                           env={"LC_ALL": "C"})
        self.assertRegex(plain, r"(?m)^ +\d+ +\d+ +[\d.]+  #+$")
        self.assertTrue(plain.isascii())
        for kind in KINDS:
            text = self.works("explain", "--model", "m", "--find", kind, "w1 w2 w1 w3")
            self.assertLessEqual(max(map(len, text.splitlines())), 80)

    def test_options_that_do_not_fit(self):
        self.made("bert")
        m = ["explain", "--model", "m", "--find", "previous"]
        self.fails(USAGE, "explain", "--find", "same", "a", says="--find needs --model DIR")
        for option, value in (("--layer", "1"), ("--head", "1"), ("--query", "1"),
                              ("--output", "a.svg")):
            self.fails(USAGE, *m, option, value, "w1", says=option + " does not go with --find")
        self.fails(USAGE, *m, "--quiz", "w1", says="--quiz does not go with --find")
        self.fails(USAGE, *m, "--json", "--full", "w1", says="--full does not go with --json")
        self.fails(USAGE, *m, "--seed", "1", "w1", says="--seed does not go with --model")
        self.fails(USAGE, *m, "--sentences", "-", "w1", says="exclude each other")
        self.fails(USAGE, *m, "--sentences", "-", "--text-pair", "w1", says="--text-pair does not")
        self.fails(USAGE, "explain", "--model", "m", "--sentences", "-", says="needs --find KIND")
        self.fails(USAGE, *m, says="a sentence is missing")
        kinds = "--find %s: must be previous, next, same, induction, separator, first or self"
        for kind, hint in (("previus", "; did you mean 'previous'?\n"), ("sep",
                           "; did you mean 'separator'?\n"), ("verb", "\n")):
            line = self.fails(USAGE, "explain", "--model", "m", "--find", kind, "w1")
            self.assertTrue(line.endswith(kinds % kind + hint), line)

    def test_texts_that_do_not_fit(self):
        self.made("bert")
        m = ["explain", "--model", "m", "--find"]
        self.fails(USAGE, *m, "same", "w1 w2", says="no tokens of the text see another copy")
        self.fails(USAGE, *m, "induction", "w1 w2", says="no tokens of the text see a token behind")
        for empty in (b"", b"\n\n", b" \t\r\n"):
            self.write("e.txt", empty)
            self.fails(BAD_FILE, *m, "self", "--sentences", "e.txt", says="e.txt: has no sentence")
        self.fails(BAD_FILE, *m, "self", "--sentences", "-", says="standard input: has no sentence")
        self.fails(BAD_FILE, *m, "self", "--sentences", "none", says="none: cannot open: No such")
        self.fails(BAD_FILE, *m, "self", "--sentences", ".", says=".: cannot read: Is a directory")
        self.fails(BAD_FILE, *m, "self", "--sentences", "-", stdin=b"w1\0", says="a zero byte")
        self.fails(USAGE, *m, "self", "--sentences", "-", stdin=b"w1\n\nw2 \xff\n",
                   says="standard input, line 3: the text is not UTF-8: byte 0xff")
        self.write("long.txt", b"w1\n" + b"w1 " * 63 + b"\n")
        self.fails(USAGE, *m, "self", "--sentences", "long.txt",
                   says="long.txt, line 2: the text has 65 tokens; the model has positions for 64")
        self.write("huge.txt", b"w1 " * (1 << 23))
        self.fails(LIMIT, *m, "self", "--sentences", "huge.txt", says="longer than 16777216 bytes")

    def test_decoder_without_a_target(self):
        self.made("gpt2")
        m = ["explain", "--model", "m", "--find"]
        self.fails(USAGE, *m, "separator", "abc", says="no tokens of the text see a separator")
        self.fails(USAGE, *m, "previous", "a", says="no tokens of the text have a token before")
        self.fails(USAGE, *m, "first", "a", says="no tokens of the text follow the first")
        self.fails(USAGE, *m, "self", "", says="the text has no token")
        self.fails(USAGE, *m, "self", "--text-pair", "b", "a", says="reads two texts")

    def test_weights_that_are_not_finite(self):
        model = models.Model("gpt2")
        model.w["h.0.attn.c_attn.bias"][:] = 0x7F00  # 1.7e38 as bf16
        model.save(self.path("m"))
        self.fails(NOT_FINITE, "explain", "--model", "m", "--find", "previous", "abc",
                   says="the weights are not finite")


if __name__ == "__main__":
    unittest.main()
