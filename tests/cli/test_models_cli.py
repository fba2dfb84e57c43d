#!/usr/bin/env python3
"""Models on the command line: a tiny GPT-2, whose forward pass is here in NumPy, checkpoints of
attn train, and invalid folders. tests/peers compares every architecture with transformers."""

import json
import os
import re
import socket
import unittest

import numpy as np

from cli import CliTest
from lesson_code import numbers
from reference import expect_near
from test_safetensors_cli import safetensors

USAGE, BAD_FILE = 2, 3
E, H, V, LAYERS, PLACES = 8, 2, 13, 2, 16
WORDS = ["a", "b", "c", "\u0120", "ab", "abc", "\u0120abc", "bc", "\u00c3", "\u00a9", "1", "'", "s"]
CONFIG = {
    "model_type": "gpt2", "vocab_size": V, "n_embd": E, "n_layer": LAYERS, "n_head": H,
    "n_positions": PLACES, "eos_token_id": V - 1,
}
TOKENIZER = {
    "added_tokens": [],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
    "model": {
        "type": "BPE", "vocab": {w: i for i, w in enumerate(WORDS)},
        "merges": ["a b", "ab c", "\u0120 abc", "b c"],
    },
}


def weights():
    rng = np.random.default_rng(7)
    shapes = {"wte.weight": (V, E), "wpe.weight": (PLACES, E), "ln_f.weight": (E,),
              "ln_f.bias": (E,)}
    for i in range(LAYERS):
        for name, shape in {
            "ln_1.weight": (E,), "ln_1.bias": (E,), "attn.c_attn.weight": (E, 3 * E),
            "attn.c_attn.bias": (3 * E,), "attn.c_proj.weight": (E, E), "attn.c_proj.bias": (E,),
            "ln_2.weight": (E,), "ln_2.bias": (E,), "mlp.c_fc.weight": (E, 4 * E),
            "mlp.c_fc.bias": (4 * E,), "mlp.c_proj.weight": (4 * E, E), "mlp.c_proj.bias": (E,),
        }.items():
            shapes["h.%d.%s" % (i, name)] = shape
    return {k: rng.standard_normal(s).astype("f4") for k, s in shapes.items()}


def norm(x, w, stem):
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return y * w[stem + ".weight"] + w[stem + ".bias"]


def softmax(x):
    y = np.exp(x - x.max(-1, keepdims=True))
    return y / y.sum(-1, keepdims=True)


def logits_of(w, ids):
    """GPT-2 in double precision: each layer's attention, and the next token's logits."""
    w = {k: v.astype("f8") for k, v in w.items()}
    T, D, maps = len(ids), E // H, []
    x = w["wte.weight"][ids] + w["wpe.weight"][:T]
    for i in range(LAYERS):
        n = "h.%d." % i
        qkv = norm(x, w, n + "ln_1") @ w[n + "attn.c_attn.weight"] + w[n + "attn.c_attn.bias"]
        q, k, v = (qkv[:, j * E : (j + 1) * E].reshape(T, H, D).swapaxes(0, 1) for j in range(3))
        scores = q @ k.swapaxes(1, 2) / np.sqrt(D)
        maps.append(softmax(np.where(np.tri(T, dtype=bool), scores, -np.inf)))
        heads = (maps[-1] @ v).swapaxes(0, 1).reshape(T, E)
        x = x + heads @ w[n + "attn.c_proj.weight"] + w[n + "attn.c_proj.bias"]
        y = norm(x, w, n + "ln_2") @ w[n + "mlp.c_fc.weight"] + w[n + "mlp.c_fc.bias"]
        y = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
        x = x + y @ w[n + "mlp.c_proj.weight"] + w[n + "mlp.c_proj.bias"]
    return maps, norm(x, w, "ln_f")[-1] @ w["wte.weight"].T


def forward(w, ids):
    """The same, with probabilities instead of logits."""
    maps, logits = logits_of(w, ids)
    return maps, softmax(logits)


class Models(CliTest):
    def setUp(self):
        super().setUp()
        os.mkdir(self.path("m"))
        self.weights = weights()
        self.put()

    def put(self, config=CONFIG, tokenizer=TOKENIZER, tensors=None):
        self.write("m/config.json", json.dumps(config).encode())
        self.write("m/tokenizer.json", json.dumps(tokenizer).encode())
        self.write("m/model.safetensors", safetensors(tensors or self.weights))

    def steps(self, *args):
        out = json.loads(self.works("explain", "--json", "--model", "m", *args))
        return out, {
            s["name"]: np.array(
                [float(x) for x in s["tensor"]["data"]]).reshape(s["tensor"]["shape"])
            for s in out["steps"]
        }

    def test_explain(self):
        ids = [5, 6, 3, 8, 9, 7]
        maps, next_tokens = forward(self.weights, ids)
        for layer in (1, 2):
            out, step = self.steps("--layer", layer, "abc abc \u00e9bc")
            self.assertEqual(
                out["tokens"], ["abc", "\u2423abc", "\u2423", "\u00e9 1/2", "\u00e9 2/2", "bc"])
            self.assertEqual(step["token_ids"].tolist(), ids)
            expect_near(step["weights"], maps[layer - 1], 1e-5, "weights")
            expect_near(step["context"], step["weights"] @ step["values"], 1e-5, "context")
        order = np.argsort(-next_tokens)[:5]
        self.assertEqual(step["next_token_ids"].tolist(), order.tolist())
        expect_near(step["next_tokens"][:, 0], next_tokens[order], 1e-5, "next_tokens")
        one = self.steps("--layer", "2", "--head", "2", "abc abc \u00e9bc")[1]["weights"]
        expect_near(one, maps[1][1], 1e-5, "weights")

    def test_weights_of_other_types(self):
        text, ids = "ac" * (PLACES // 2), [0, 2] * (PLACES // 2)  # in every place
        cut = {n: a.view("u4") & 0xFFFF0000 for n, a in self.weights.items()}
        bf16 = {n: (a >> 16).astype("u2") for n, a in cut.items()}
        f16, f64 = ({n: a.astype(t) for n, a in self.weights.items()} for t in ("f2", "f8"))
        same = {n: a.view("f4") for n, a in cut.items()}
        for stored, w in ((f16, f16), (f64, f64), (bf16, same)):
            self.put(tensors=stored)
            step = self.steps("--layer", 2, text)[1]
            self.assertLess(np.abs(step["weights"] - forward(w, ids)[0][1]).max(), 1e-5)

    def test_what_a_page_holds(self):
        """The other layers too: vectors, and weights and context as shapes to compute."""
        self.works("explain", "--model", "m", "-o", "p.html", "abc abc \u00e9bc")
        page = self.bytes("p.html").decode()
        steps = {s["name"]: s for s in json.loads(
            re.search(r'(?s)<script[^>]*"application/json"[^>]*>(\{.*?)</script>', page).group(1)
        )["trace"]["steps"]}
        self.assertEqual(
            list(dict.fromkeys(s["section"] for s in steps.values())),
            ["Text to vectors", "Three views of each token", "Scores", "Attention", "Onwards",
             "Layer 1", "Layer 2", "The answer"])
        for name, s in steps.items():
            self.assertEqual(s.get("minor", False), name.endswith(("_norms", "_products")), name)
        tensor = {n: numbers(s) for n, s in steps.items() if "f32" in s["tensor"]}
        for name, shape in (("weights", [H, 6, 6]), ("context", [H, 6, E // H])):
            absent = steps["layer_2_" + name]["tensor"]
            self.assertEqual(absent, {"shape": shape, "dtype": absent["dtype"]})
        q, k = tensor["layer_2_queries"], tensor["layer_2_keys"]
        scores = np.where(np.tri(6, dtype=bool), q @ k.swapaxes(1, 2) / np.sqrt(E // H), -np.inf)
        want = forward(self.weights, [5, 6, 3, 8, 9, 7])[0][1]
        self.assertLess(np.abs(softmax(scores) - want).max(), 1e-5)
        for layer, stem in ((0, ""), (1, "layer_2_")):
            w = self.weights["h.%d.attn.c_proj.weight" % layer].reshape(H, E // H, E)
            norms = np.linalg.norm(tensor[stem + "values"] @ w, axis=-1)
            self.assertLess(np.abs(tensor[stem + "value_norms"] / norms - 1).max(), 1e-5)
        parts = tensor["context"] @ self.weights["h.0.attn.c_proj.weight"].reshape(H, E // H, E)
        products = [(parts[i] * parts[j]).sum(-1) for i, j in ((0, 0), (1, 0), (1, 1))]
        self.assertLess(np.abs(tensor["head_products"][:, :3].T - products).max(), 1e-3)

    def test_every_output(self):
        text = self.works("explain", "--model", "m", "--query", "bc", "--full", "-o", "a.svg",
                          "abc bc bc")
        self.assertIn("gpt2, layer 1, all 2 heads", text)
        self.assertIn("gpt2", self.bytes("a.svg").decode())

    def test_generate(self):
        ids = [5, 6]
        for _ in range(PLACES - len(ids)):
            ids.append(int(np.argmax(forward(self.weights, ids)[1])))
            if ids[-1] == CONFIG["eos_token_id"]:
                break
        args = ["generate", "--model", "m", "--tokens", "100"]
        got = json.loads(self.works(*args, "--json", "abc abc"))
        self.assertEqual(got["schema"], "attn.generate/1")
        self.assertEqual(got["prompt_ids"] + got["ids"], ids)
        done = self.attn(*args, "abc abc")
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stderr.decode(), r"^%d tokens, [0-9.]+ tokens/s\n$" % (len(ids) - 2))
        self.assertTrue(done.stdout.startswith(b"abc abc"))
        self.assertEqual(
            done.stdout.decode().rstrip("\n").replace("\ufffd", ""),
            ("abc abc" + got["text"]).rstrip("\n").replace("\ufffd", ""))

    def test_each_token_is_printed_at_once(self):
        """A socket of this kind keeps apart what the program writes apart."""
        args = ["generate", "--model", "m", "abc", "--tokens"]
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.assertEqual(self.attn(*args, 6, stdout=its).returncode, 0)
        its.close()
        parts = list(iter(lambda: ours.recv(4096), b""))
        ours.close()
        self.assertEqual(b"".join(parts), self.attn(*args, 6).stdout)
        self.assertEqual(parts[0], self.attn(*args, 1).stdout.rstrip(b"\n"))
        self.assertGreater(len(parts), 3)

    def test_a_byte_that_is_no_character(self):
        """Byte 0, which ends a string in C, and bytes of no character are shown as U+FFFD."""
        self.weights["ln_f.weight"][:] = 0
        self.weights["ln_f.bias"][:] = 1
        self.weights["wte.weight"][0] = 100
        for letter in ("\u0100", "\u00c3"):  # the bytes 0 and 0xC3
            words = [letter] + [w for w in WORDS if w != letter]
            vocab = {w: i for i, w in enumerate(words[:V])}
            self.put(tokenizer=dict(TOKENIZER, model=dict(TOKENIZER["model"], vocab=vocab)))
            done = self.attn("generate", "--model", "m", "--tokens", "2", "abc")
            self.assertEqual(done.stdout.decode(), "abc\ufffd\ufffd\n")

    def test_one_token_has_no_speed(self):
        args = ["generate", "--model", "m", "--tokens", "1", "abc"]
        done = self.attn(*args)
        self.assertEqual((done.returncode, done.stderr.decode()), (0, "1 token\n"))
        self.assertIsNone(json.loads(self.works(*args, "--json"))["tokens_per_second"])

    def test_a_seed_gives_the_same_text(self):
        args = ["generate", "--json", "--model", "m", "--temperature", "3", "abc"]
        texts = {
            json.dumps(json.loads(self.works(*args, "--seed", seed))["ids"])
            for seed in (1, 1, 2, 3, 4, 5)
        }
        self.assertGreater(len(texts), 2)
        one, two = (json.loads(self.works(*args, "--seed", "1", "--threads", n)) for n in (1, 2))
        self.assertEqual(one["ids"], two["ids"])

    def test_what_attn_train_writes(self):
        self.write("book.txt", "the dog runs. the fox sleeps! ".encode() * 40)
        self.works("train", "--text", "book.txt", "--length", "16", "--steps", "30", "--mlp",
                   "--checkpoint", "book.safetensors")
        out = json.loads(self.works("explain", "--json", "--model", "book.safetensors", "--layer",
                                    "2", "the fox"))
        self.assertEqual(out["tokens"], ["t", "h", "e", "\u2423", "f", "o", "x"])
        got = json.loads(self.attn("generate", "--json", "--model", "book.safetensors", "--tokens",
                                   "4", "the ").stdout)
        self.assertEqual(len(got["ids"]), 4)
        self.fails(USAGE, "explain", "--model", "book.safetensors", "caf\u00e9", says="'c'")
        self.works("train", "--vocab", "8", "--length", "12", "--steps", "2", "--checkpoint",
                   "task.safetensors")
        out = json.loads(self.works("explain", "--json", "--model", "task.safetensors", "a c a"))
        self.assertEqual(out["tokens"], ["a", "c", "a"])

    # ---------------------------------------------------------------------------------- Errors

    def bad(self, says):
        self.fails(BAD_FILE, "explain", "--model", "m", "abc", says=says)

    def test_usage(self):
        m = ["explain", "--model", "m"]
        self.fails(USAGE, *m, "--layer", "3", "abc", says="layers 1 to 2")
        self.fails(USAGE, *m, "--head", "3", "abc", says="heads 1 to 2")
        self.fails(USAGE, *m, "--head", "x", "abc", says="must be all")
        self.fails(USAGE, *m, "--text-pair", "b", "abc", says="pair")
        self.fails(USAGE, *m, "--heads", "2", "abc", says="--heads does not go with --model")
        self.fails(USAGE, *m, "xyz", says="no token for the byte 0x78")
        self.fails(USAGE, *m, "a" * 17, says="positions for 16")
        self.fails(USAGE, *m, "--query", "zz", "abc bc", says="--query zz")
        self.fails(USAGE, "explain", "--layer", "2", "abc", says="--layer needs --model")
        self.fails(USAGE, "generate", "--model", "m", says="a prompt is missing")
        self.fails(USAGE, "generate", "abc", says="--model is missing: attn generate --model DIR")

    def test_missing_files(self):
        self.fails(BAD_FILE, "explain", "--model", "none", "abc", says="no such folder")
        for name in ("tokenizer.json", "model.safetensors", "config.json"):
            os.remove(self.path("m/" + name))
            self.bad("m")

    def test_tensors_that_do_not_fit_the_config(self):
        for key, value in (("n_layer", 3), ("vocab_size", 14), ("n_embd", 10), ("n_inner", 4)):
            self.put(config=dict(CONFIG, **{key: value}))
            self.bad("tensor '")
        self.put(config=dict(CONFIG, vocab_size=1 << 24, n_embd=1 << 20, n_positions=1 << 26))
        self.bad("tensor 'wte.weight'")  # shapes of 2^46 bytes take no memory
        lacking = dict(self.weights)
        del lacking["h.1.mlp.c_fc.bias"]
        self.put(tensors=lacking)
        self.bad("tensor 'h.1.mlp.c_fc.bias' is missing")
        self.put(tensors=dict(self.weights, **{"ln_f.bias": np.zeros(E, "i8")}))
        self.bad("must be f64, f32, f16 or bf16")

    def test_truncated_weights(self):
        whole = self.bytes("m/model.safetensors")
        for size in (0, 7, 8, 100, len(whole) - 1):
            self.write("m/model.safetensors", whole[:size])
            self.bad("model.safetensors")

    def test_index_leads_out_of_the_folder(self):
        os.remove(self.path("m/model.safetensors"))
        for name in ("../m/x.safetensors", "/etc/passwd", "", "..", 7, "none.safetensors"):
            self.write("m/model.safetensors.index.json",
                       json.dumps({"weight_map": {"wte.weight": name}}).encode())
            self.bad("m")

    # The weights in two files, and an index of them.

    def put_shards(self, index=None, first=None, second=None):
        names = sorted(self.weights)
        half = {n: self.weights[n] for n in names[::2]}, {n: self.weights[n] for n in names[1::2]}
        if os.path.exists(self.path("m/model.safetensors")):
            os.remove(self.path("m/model.safetensors"))
        self.write("m/1.safetensors", safetensors(half[0]) if first is None else first)
        self.write("m/2.safetensors", safetensors(half[1]) if second is None else second)
        self.index = {n: "%d.safetensors" % (1 + i % 2) for i, n in enumerate(names)}
        self.index = index(self.index) if callable(index) else self.index
        self.write("m/model.safetensors.index.json",
                   json.dumps({"weight_map": self.index}).encode())
        return half

    def test_shards(self):
        maps, _ = forward(self.weights, [5, 6])
        self.put_shards()
        _, step = self.steps("--layer", "1", "abc abc")
        expect_near(step["weights"], maps[0], 1e-5, "weights")

    def test_hostile_index(self):
        self.put_shards()
        for data, says in (
            (b"", "line"), (b"[]", "not a JSON object"), (b"{}", "no weight_map"),
            (b'{"weight_map": []}', "no weight_map"), (b'{"weight_map": {}}', "is missing"),
            (b'{"weight_map": {"a": null}}', "no file for tensor 'a'"),
            (b'{"weight_map": {"a": "1.safetensors", "a": "2.safetensors"}}', "duplicate"),
            (b'{"weight_map": ' + b'{"a": ' * 3000 + b"1" + b"}" * 3001, "depth"),
            (b'{"weight_map": {"a": "\\ud800"}}', "invalid Unicode"),
            (b'{"weight_map": {"a": "x\\u0000/../1.safetensors"}}', "u0000"),
        ):
            self.write("m/model.safetensors.index.json", data)
            self.bad(says)
        self.put_shards(lambda x: dict(x, **{"wte.weight": "x" * 300}))
        self.bad("File name too long")
        self.put_shards(lambda x: dict(x, **{"wte.weight": "x" * 5000}))
        self.bad("too long")
        self.put_shards(lambda x: {"t%d" % i: "%d.safetensors" % i for i in range(1, 4)})
        self.bad("3.safetensors: cannot open")

    def test_tensor_in_two_shards(self):
        half = self.put_shards()
        twice = sorted(half[1])[0]
        self.put_shards(first=safetensors(dict(half[0], **{twice: self.weights[twice]})))
        self.bad("tensor '%s' is in 1.safetensors, but the index has it in 2" % twice)

    def test_index_and_shards_disagree(self):
        half = self.put_shards()
        moved = sorted(half[1])[0]
        self.put_shards(lambda x: dict(x, **{moved: "1.safetensors"}))
        self.bad("tensor '%s' is in 2.safetensors, but the index has it in 1" % moved)
        less = dict(half[1])
        del less[moved]
        self.put_shards(second=safetensors(less))
        self.bad("tensor '%s' is missing" % moved)

    def test_hostile_shards(self):
        half = self.put_shards()
        whole = safetensors(half[1])
        size = int.from_bytes(whole[:8], "little")
        for length in (len(whole) - 7, 1 << 31, 1 << 63, (1 << 64) - 1):
            self.put_shards(second=length.to_bytes(8, "little") + whole[8:])
            self.bad("2.safetensors: announces a header of %d bytes" % length)
        names = sorted(half[1], key=list(half[1]).index)
        for change, says in (
            (lambda h: h[names[1]].update(data_offsets=h[names[0]]["data_offsets"]), "its shape"),
            (lambda h: h[names[1]].update(
                data_offsets=[x - 4 for x in h[names[1]]["data_offsets"]]), "shares bytes"),
            (lambda h: h.pop(names[0]), "unused bytes"),
            (lambda h: h[names[0]].update(shape=[1 << 62, 8]), "more than can be addressed"),
            (lambda h: h[names[-1]].update(
                data_offsets=[x + 4 for x in h[names[-1]]["data_offsets"]]), "are not within"),
        ):
            header = json.loads(whole[8 : 8 + size])
            change(header)
            text = json.dumps(header).encode()
            self.put_shards(second=len(text).to_bytes(8, "little") + text + whole[8 + size :])
            self.bad(says)

    def test_hostile_json(self):
        for name in ("config.json", "tokenizer.json"):
            good = self.bytes("m/" + name)
            for data in (b"", b"{", b"\xff", b"[" * 100000, good[:-1], good + b"x", b"null"):
                self.write("m/" + name, data)
                self.bad(name)
            self.write("m/" + name, good)

    def test_tokenizer_larger_than_the_model(self):
        model = TOKENIZER["model"]
        self.put(tokenizer=dict(TOKENIZER, model=dict(model, vocab=dict(model["vocab"], x=500))))
        self.bad("ids up to 500")

    def test_added_token_beyond_the_model(self):
        """A <pad> that only training used: the model is accepted, but a text with this token is
        refused."""
        added = [{"id": V, "content": "<pad>", "normalized": False}]
        self.put(tokenizer=dict(TOKENIZER, added_tokens=added))
        self.works("explain", "--model", "m", "abc")
        self.fails(USAGE, "explain", "--model", "m", "abc<pad>", says="added token '<pad>', id 13")

    def test_old_files(self):
        """vocab.json and merges.txt are read as the class in tokenizer_config.json requires."""
        vocab = json.dumps(TOKENIZER["model"]["vocab"]).encode()
        os.unlink(self.path("m/tokenizer.json"))
        self.write("m/vocab.json", vocab)
        self.write("m/merges.txt", "\n".join(TOKENIZER["model"]["merges"]).encode())
        self.write("m/tokenizer_config.json", b'{"add_prefix_space": true}')
        self.assertEqual(self.steps("abc")[1]["token_ids"].tolist(), [6])
        self.write("m/tokenizer_config.json", b'{"tokenizer_class": "FooTokenizer"}')
        self.bad("FooTokenizer")
        self.write("m/tokenizer_config.json", b'{"foo": 1}')
        self.bad("'foo' is not a known key of GPT2Tokenizer")

    def test_numbers_that_are_none(self):
        self.weights["h.0.ln_1.weight"][3] = np.nan
        self.put()
        self.fails(5, "generate", "--json", "--model", "m", "abc", says="logits is NaN")


if __name__ == "__main__":
    unittest.main()
