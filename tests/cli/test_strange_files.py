#!/usr/bin/env python3
# labels: slow
"""Special files, file names with control characters, and a small stack: the program gives the right
answer, or one line immediately."""

import json
import os
import re
import socket
import subprocess
import sys
import unicodedata
import unittest

import numpy as np

from cli import ATTN, CliTest
from test_models_cli import CONFIG, TOKENIZER, weights
from test_safetensors_cli import safetensors

sys.path.insert(0, os.path.join(os.environ["ATTN_SOURCE"], "tests", "page"))
import models  # noqa: E402

BAD_FILE, LIMIT = 3, 4
# Control characters of ASCII and above it, marks that turn the direction, line separators.
DISTURBING = (
    [chr(c) for c in (*range(1, 0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F))]
    + [chr(c) for c in (*range(0x2066, 0x206A), 0x2028, 0x2029)]
)


class NoFiles(CliTest):
    """A special file never blocks the program (the test would end it after 100 seconds)."""

    def setUp(self):
        super().setUp()
        os.mkdir(self.path("m"))
        self.write("m/config.json", json.dumps(CONFIG).encode())
        self.write("m/tokenizer.json", json.dumps(TOKENIZER).encode())

    def strange(self, name):
        """Creates a pipe, a socket and a device with this name, one after the other."""
        path = self.path(name)
        os.mkfifo(path)
        yield "pipe"
        os.remove(path)
        here = os.getcwd()
        with socket.socket(socket.AF_UNIX) as s:
            os.chdir(os.path.dirname(path))  # socket names must be short
            s.bind(os.path.basename(path))
            os.chdir(here)
            yield "socket"
        os.remove(path)
        os.symlink("/dev/zero", path)
        yield "device"
        os.remove(path)

    def test_a_model(self):
        for _ in self.strange("m/model.safetensors"):
            self.fails(BAD_FILE, "explain", "--model", "m", "abc",
                       says="model.safetensors: is a pipe, a device or a socket")
            self.fails(BAD_FILE, "generate", "--model", "m", "abc", says="is a pipe, a device")

    def test_named_by_an_index(self):
        names = dict.fromkeys(weights(), "part.bin")
        self.write("m/model.safetensors.index.json", json.dumps({"weight_map": names}).encode())
        for _ in self.strange("m/part.bin"):
            self.fails(BAD_FILE, "explain", "--model", "m", "abc",
                       says="part.bin: is a pipe, a device or a socket")

    def test_other_files_of_a_model(self):
        self.write("m/model.safetensors", safetensors(weights()))
        for name in ("config.json", "tokenizer.json", "generation_config.json"):
            if os.path.exists(self.path("m/" + name)):
                os.rename(self.path("m/" + name), self.path("kept"))
            for kind in self.strange("m/" + name):
                self.fails(BAD_FILE, "explain", "--model", "m", "abc",
                           says="m/%s: " % name)
            if os.path.exists(self.path("kept")):
                os.rename(self.path("kept"), self.path("m/" + name))
        self.works("explain", "--model", "m", "abc")

    def test_a_checkpoint_and_arrays_by_name(self):
        for kind in self.strange("x.safetensors"):
            for arguments in (["info", "x.safetensors"],
                              ["explain", "--model", "x.safetensors", "a"],
                              ["train", "--resume", "x.safetensors"],
                              ["run", "--q", "x.safetensors:q", "--k", "x.safetensors:k", "--v",
                               "x.safetensors:v"]):
                self.fails(BAD_FILE, *arguments, says="x.safetensors: ")
        for kind in self.strange("x.npz"):
            self.fails(BAD_FILE, "info", "x.npz", says="x.npz: is a pipe, a device or a socket")

    def test_an_array_may_come_by_a_pipe(self):
        np.save(self.path("x.npy"), np.ones((2, 3), "f4"))
        os.mkfifo(self.path("p"))
        writer = os.fork()
        if writer == 0:
            with open(self.path("p"), "wb") as f:
                f.write(self.bytes("x.npy"))
            os._exit(0)
        self.assertEqual(self.works("info", "p"), "f32  [2, 3]\n")
        os.waitpid(writer, 0)


def disturbs(text):
    """Whether it is, by Python's Unicode tables, a control character, a line or paragraph
    separator, or a character that embeds, overrides or isolates a direction."""
    return [c for c in text if unicodedata.category(c) in ("Cc", "Zl", "Zp")
            or unicodedata.bidirectional(c) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI",
                                                "FSI", "PDI")]


class Names(CliTest):
    def harmless(self, text):
        self.assertEqual(disturbs(text.replace("\n", "")), [], text)

    def test_the_list_is_unicode_s(self):
        every = [chr(c) for c in range(1, 0x110000) if disturbs(chr(c))]
        self.assertEqual(every, sorted(DISTURBING))

    def test_tensors_in_info(self):
        names = ["a%sb" % c for c in DISTURBING] + ["plain", "\u00e9", "\u05d0"]
        self.write("n.safetensors", safetensors({n: np.ones(1, "f4") for n in names}))
        text = self.works("info", "n.safetensors")
        self.harmless(text)
        self.assertEqual(text.count("\ufffd") + text.count("a b"), len(DISTURBING))
        self.assertEqual({len(line.split("f32")[0]) for line in text.splitlines()}, {7})
        raw = self.works("info", "--json", "n.safetensors")
        self.harmless(raw)
        self.assertEqual([a["name"] for a in json.loads(raw)["arrays"]], names)

    def test_errors(self):
        x = np.ones((1, 2), "f4")
        for c in DISTURBING:
            self.write("n.safetensors", safetensors({"a%sb" % c: x, "c": x}))
            line = self.fails(BAD_FILE, "run", "--q", "n.safetensors:%sq" % c, "--k",
                              "n.safetensors:c", "--v", "n.safetensors:c")
            self.harmless(line)
            self.assertIn("a?b", line)
        for wrong in (b"\x9b31m", b"\xc2", b"\xed\xa0\x80"):  # a bare CSI, a piece, a surrogate
            done = self.attn("info", os.fsdecode(b"no" + wrong + b".npy"))
            self.assertEqual(done.returncode, BAD_FILE)
            self.assertRegex(done.stderr.decode(), r"^attn info: no\?+(31m)?\.npy: cannot open")

    def test_tokens_of_a_model(self):
        words = ["a", "x\u202ey", "x\u009by", "x\u2066y"]
        gpt2 = models.Model("gpt2", words=["a", "b"])
        gpt2.save(self.path("g"))
        with open(self.path("g/tokenizer.json")) as f:
            tokenizer = json.load(f)
        tokenizer["model"]["vocab"] = {"a": 0}
        for i, word in enumerate(words[1:2]):
            tokenizer["added_tokens"].append({
                "id": 1 + i, "content": word, "special": False, "normalized": False,
                "single_word": False, "lstrip": False, "rstrip": False})
        with open(self.path("g/tokenizer.json"), "w") as f:
            json.dump(tokenizer, f)
        text = "a%sa" % words[1]
        shown = self.works("explain", "--full", "--model", "g", text, "-o", "m.svg")
        self.harmless(shown)
        self.assertIn("x\ufffdy", self.works("explain", "--full", "--model", "g", text))
        self.harmless(self.bytes("m.svg").decode())
        raw = self.works("explain", "--json", "--model", "g", text)
        self.harmless(raw)
        self.assertEqual(json.loads(raw)["tokens"], ["a", words[1], "a"])
        done = self.attn("generate", "--model", "g", "--tokens", "20", text)
        self.assertEqual(done.returncode, 0)
        self.harmless(done.stdout.decode())
        self.assertIn("x\ufffdy", done.stdout.decode())

    def test_words_of_a_sentence(self):
        text = " ".join("w%dx%sy" % (i, c) for i, c in enumerate(DISTURBING)
                        if not c.isspace() and c not in "\x1c\x1d\x1e\x1f")
        for arguments in ([], ["--full"], ["--query", "3"]):
            self.harmless(self.works("explain", *arguments, text))
        raw = self.works("explain", "--json", text)
        self.harmless(raw)
        self.assertEqual(json.loads(raw)["tokens"], text.split())


@unittest.skipIf(os.environ.get("ATTN_SANITIZED") == "1", "sanitizers take more stack")
class Stack(CliTest):
    def limited(self, kib, *arguments):
        return subprocess.run(
            ["bash", "-c", 'ulimit -s %d && exec "$0" "$@"' % kib, ATTN, *arguments],
            cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=100)

    def test_enough_for_every_command(self):
        for name in "qkv":
            np.save(self.path(name + ".npy"), np.ones((2, 9, 8), order="F"))
        np.save(self.path("g.npy"), np.ones((2, 9, 8), "f4"))
        models.Model("gpt2", words=["a", "b", "c", "\u0120"]).save(self.path("m"))
        arrays = ["run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy"]
        for arguments in (
            ["info"], ["info", "q.npy"], ["help", "run"], [*arrays, "--out", "o.npy"],
            [*arrays, "--dtype", "bf16", "--out", "o.npy", "--weights", "w.npy"],
            [*arrays, "--grad-out", "g.npy", "--grad-q", "dq.npy"],
            ["explain", "a b c"], ["explain", "-o", "p.html", "-o", "p.svg", "a b c"],
            ["explain", "-o", "p.png", "-o", "p.pdf", "-o", "t.json", "a b c"],
            ["explain", "--model", "m", "--layer", "all", "-o", "p.html", "abc"],
            ["generate", "--model", "m", "abc"], ["lesson", "--all", "--check"],
            ["train", "--steps", "2", "-o", "t.png", "--checkpoint", "t.safetensors"],
            ["check", "--op", "sdpa"], ["check", "--op", "backward"],
            ["bench", "--seconds", "0.01", "--shape", "1,1,1,8,8,8"],
        ):
            done = self.limited(128, *arguments)
            self.assertEqual(done.returncode, 0, (arguments, done.stderr))

    def test_too_little_is_said(self):
        for kib in (64, 127):
            done = self.limited(kib, "explain", "a b")
            self.assertEqual((done.returncode, done.stdout), (LIMIT, b""))
            self.assertEqual(done.stderr.decode(), "attn: the stack is limited to %d KiB; attn "
                             "needs 128 KiB: run `ulimit -s 128` first\n" % kib)

    def test_the_documents_say_it(self):
        with open(os.path.join(os.environ["ATTN_SOURCE"], "README.md"), encoding="utf-8") as f:
            self.assertRegex(" ".join(f.read().split()), r"128 KiB of stack")
        self.assertRegex(re.sub(r"\s+", " ", self.works("help", "--man")), "128 KiB of stack")


if __name__ == "__main__":
    unittest.main()
