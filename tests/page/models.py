"""Models for the tests of the page: random weights, in files like those of the Hugging Face
libraries, and the same forward pass in NumPy, in double precision, up to each layer's attention."""

import json
import os
import struct

import numpy as np

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def softmax(x):
    y = np.exp(x - x.max(-1, keepdims=True))
    return y / y.sum(-1, keepdims=True)


def gelu(x):  # "gelu_new"
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


class Model:
    """kind: bert (reads words w0, w1, …), gpt2 or llama or mistral (read letters). Weights are kept
    and stored as bf16."""

    def __init__(self, kind, L=2, H=2, D=4, Hk=None, inner=None, places=64, window=0, seed=1,
                 words=None):
        self.kind, self.L, self.H, self.D, self.Hk = kind, L, H, D, Hk or H
        self.E, self.places, self.window = H * D, places, window
        self.inner = inner or 4 * self.E
        self.rng = np.random.default_rng(seed)
        self.decoder = kind != "bert"
        self.turned = kind == "gpt2"  # weights are [in, out]
        self.words = words or (
            [f"w{i}" for i in range(200)] if kind == "bert" else [*LETTERS, "\u0120"])
        self.special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] if kind == "bert" else []
        self.vocabulary = self.special + self.words
        self.w = {}
        getattr(self, "make_" + ("llama" if kind == "mistral" else kind))()

    # ------------------------------------------------------------------------------- weights

    def draw(self, name, *shape, scale, mean=0.0):
        x = mean + scale * self.rng.standard_normal(shape, dtype=np.float32)
        bits = x.astype(np.float32).view(np.uint32)
        self.w[name] = ((bits + 0x8000) >> 16).astype(np.uint16)

    def linear(self, name, out, into, bias=True):
        shape = (into, out) if self.turned else (out, into)
        self.draw(name + ".weight", *shape, scale=into**-0.5)
        if bias:
            self.draw(name + ".bias", out, scale=0.3)

    def norms(self, name, bias=True):
        self.draw(name + ".weight", self.E, scale=0.1, mean=1.0)
        if bias:
            self.draw(name + ".bias", self.E, scale=0.1)

    def make_bert(self):
        for name, rows in (("word", len(self.vocabulary)), ("position", self.places),
                           ("token_type", 2)):
            self.draw(f"embeddings.{name}_embeddings.weight", rows, self.E, scale=1.0)
        self.norms("embeddings.LayerNorm")
        for i in range(self.L):
            b = f"encoder.layer.{i}."
            for name in ("query", "key", "value"):
                self.linear(b + "attention.self." + name, self.E, self.E)
            self.linear(b + "attention.output.dense", self.E, self.E)
            self.norms(b + "attention.output.LayerNorm")
            self.linear(b + "intermediate.dense", self.inner, self.E)
            self.linear(b + "output.dense", self.E, self.inner)
            self.norms(b + "output.LayerNorm")

    def make_gpt2(self):
        self.draw("wte.weight", len(self.vocabulary), self.E, scale=1.0)
        self.draw("wpe.weight", self.places, self.E, scale=1.0)
        self.norms("ln_f")
        for i in range(self.L):
            b = f"h.{i}."
            self.norms(b + "ln_1")
            self.linear(b + "attn.c_attn", 3 * self.E, self.E)
            self.linear(b + "attn.c_proj", self.E, self.E)
            self.norms(b + "ln_2")
            self.linear(b + "mlp.c_fc", self.inner, self.E)
            self.linear(b + "mlp.c_proj", self.E, self.inner)

    def make_llama(self):
        self.draw("model.embed_tokens.weight", len(self.vocabulary), self.E, scale=1.0)
        self.draw("lm_head.weight", len(self.vocabulary), self.E, scale=0.1)
        self.norms("model.norm", False)
        for i in range(self.L):
            b = f"model.layers.{i}."
            self.norms(b + "input_layernorm", False)
            self.norms(b + "post_attention_layernorm", False)
            for name, heads in (("q", self.H), ("k", self.Hk), ("v", self.Hk)):
                self.linear(f"{b}self_attn.{name}_proj", heads * self.D, self.E, False)
            self.linear(b + "self_attn.o_proj", self.E, self.H * self.D, False)
            self.linear(b + "mlp.gate_proj", self.inner, self.E, False)
            self.linear(b + "mlp.up_proj", self.inner, self.E, False)
            self.linear(b + "mlp.down_proj", self.E, self.inner, False)

    # --------------------------------------------------------------------------------- files

    def config(self):
        V, E, L, H = len(self.vocabulary), self.E, self.L, self.H
        if self.kind == "gpt2":
            return {"vocab_size": V, "n_embd": E, "n_layer": L, "n_head": H, "n_inner": self.inner,
                    "n_positions": self.places, "eos_token_id": V - 1}
        config = {"vocab_size": V, "hidden_size": E, "num_hidden_layers": L,
                  "num_attention_heads": H, "intermediate_size": self.inner,
                  "max_position_embeddings": self.places}
        if self.kind == "bert":
            return {**config, "hidden_act": "gelu_new", "type_vocab_size": 2}
        more = {"sliding_window": self.window} if self.window else {}
        return {**config, "num_key_value_heads": self.Hk, "hidden_act": "silu",
                "rms_norm_eps": 1e-6, "eos_token_id": V - 1, **more}

    def save(self, folder):
        os.mkdir(folder)
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump({"model_type": self.kind, **self.config()}, f)
        header, at = {}, 0
        for name, a in self.w.items():
            header[name] = {"dtype": "BF16", "shape": list(a.shape),
                            "data_offsets": [at, at + a.nbytes]}
            at += a.nbytes
        text = json.dumps(header).encode()
        with open(os.path.join(folder, "model.safetensors"), "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for a in self.w.values():
                f.write(a.tobytes())
        if self.kind == "bert":
            with open(os.path.join(folder, "vocab.txt"), "w") as f:
                f.write("\n".join(self.vocabulary) + "\n")
            return
        with open(os.path.join(folder, "tokenizer.json"), "w") as f:
            json.dump({"added_tokens": [],
                       "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
                       "model": {"type": "BPE", "merges": [],
                                 "vocab": {w: i for i, w in enumerate(self.vocabulary)}}}, f)

    def text_of(self, count, seed=3):
        """A text with this number of tokens, and their ids."""
        rng = np.random.default_rng(seed)
        if self.kind == "bert":
            picks = rng.integers(len(self.words), size=count - 2)
            ids = [2, *(len(self.special) + picks), 3]
            return " ".join(self.words[i] for i in picks), np.array(ids)
        picks = rng.integers(len(LETTERS), size=count)
        return "".join(LETTERS[i] for i in picks), picks

    # ------------------------------------------------------------------------------- forward

    def of(self, name):
        return (self.w[name].astype(np.uint32) << 16).view(np.float32).astype(np.float64)

    def through(self, name, x):
        w = self.of(name + ".weight")
        y = x @ (w if self.turned else w.T)
        return y + self.of(name + ".bias") if name + ".bias" in self.w else y

    def normed(self, name, x):
        if name + ".bias" not in self.w:
            y = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
            return y * self.of(name + ".weight")
        eps = 1e-12 if self.kind == "bert" else 1e-5
        y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
        return y * self.of(name + ".weight") + self.of(name + ".bias")

    def rotated(self, x):
        half = self.D // 2
        turn = np.arange(x.shape[1])[:, None] * 10000.0 ** (-np.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return np.concatenate((a * np.cos(turn) - b * np.sin(turn),
                               b * np.cos(turn) + a * np.sin(turn)), -1)

    def split(self, x, heads):
        return x.reshape(len(x), heads, self.D).swapaxes(0, 1)

    def projected(self, b, x):
        if self.kind == "gpt2":
            parts = np.split(self.through(b + "attn.c_attn", x), 3, axis=1)
            return [self.split(p, self.H) for p in parts], b + "attn.c_proj"
        if self.kind == "bert":
            return [self.split(self.through(b + "attention.self." + n, x), self.H)
                    for n in ("query", "key", "value")], b + "attention.output.dense"
        q, k, v = (self.split(self.through(f"{b}self_attn.{n}_proj", x), heads)
                   for n, heads in (("q", self.H), ("k", self.Hk), ("v", self.Hk)))
        q, k = self.rotated(q), self.rotated(k)
        return [q, *(np.repeat(y, self.H // self.Hk, 0) for y in (k, v))], b + "self_attn.o_proj"

    def attention(self, q, k, v):
        T = q.shape[1]
        scores = q @ k.swapaxes(1, 2) / np.sqrt(self.D)
        if self.decoder:
            seen = np.tri(T, dtype=bool)
            if self.window:
                seen &= ~np.tri(T, k=-self.window, dtype=bool)
            scores = np.where(seen, scores, -np.inf)
        weights = softmax(scores)
        return weights, weights @ v

    def forward(self, ids, layers=None):
        """For each layer: q, k, v, weights, context [H,T,.], and added [H+1,T,E]: the contribution
        of each head to the layer's attention output, and last the bias."""
        x, out = self.begin(np.asarray(ids)), []
        for i in range(layers or self.L):
            b = {"bert": f"encoder.layer.{i}.", "gpt2": f"h.{i}."}.get(self.kind,
                                                                      f"model.layers.{i}.")
            (q, k, v), joined = self.projected(b, self.normed(self.first_norm(b), x)
                                               if self.decoder else x)
            weights, z = self.attention(q, k, v)
            w = self.of(joined + ".weight")
            w = w if self.turned else w.T
            bias = self.of(joined + ".bias") if joined + ".bias" in self.w else np.zeros(self.E)
            added = [z[h] @ w[h * self.D : (h + 1) * self.D] for h in range(self.H)]
            added = np.stack([*added, np.broadcast_to(bias, x.shape)])
            out.append({"x": x, "q": q, "k": k, "v": v, "weights": weights, "context": z,
                        "added": added, "w_o": w})
            if i + 1 < (layers or self.L):
                x = self.rest(b, x, added.sum(0))
        return out

    def outputs(self, ids, off=None):
        """The output of each layer, [L,T,E]; off: (layer, head) from 0, whose output is 0."""
        x, out = self.begin(np.asarray(ids)), []
        for i in range(self.L):
            b = {"bert": f"encoder.layer.{i}.", "gpt2": f"h.{i}."}.get(self.kind,
                                                                      f"model.layers.{i}.")
            (q, k, v), joined = self.projected(b, self.normed(self.first_norm(b), x)
                                               if self.decoder else x)
            _, z = self.attention(q, k, v)
            if off and off[0] == i:
                z[off[1]] = 0
            x = self.rest(b, x, self.through(joined, np.concatenate(list(z), 1)))
            out.append(x)
        return np.array(out)

    def logits(self, x):
        """Of the next token, from vectors [.., E] of any layer."""
        if self.kind == "gpt2":
            return self.normed("ln_f", x) @ self.of("wte.weight").T
        return self.normed("model.norm", x) @ self.of("lm_head.weight").T

    def begin(self, ids):
        T = len(ids)
        if self.kind == "bert":
            x = (self.of("embeddings.word_embeddings.weight")[ids]
                 + self.of("embeddings.position_embeddings.weight")[:T]
                 + self.of("embeddings.token_type_embeddings.weight")[0])
            return self.normed("embeddings.LayerNorm", x)
        if self.kind == "gpt2":
            return self.of("wte.weight")[ids] + self.of("wpe.weight")[:T]
        return self.of("model.embed_tokens.weight")[ids]

    def first_norm(self, b):
        return b + ("ln_1" if self.kind == "gpt2" else "input_layernorm")

    def rest(self, b, x, attended):
        """The block after its attention."""
        if self.kind == "bert":
            x = self.normed(b + "attention.output.LayerNorm", x + attended)
            y = self.through(b + "output.dense", gelu(self.through(b + "intermediate.dense", x)))
            return self.normed(b + "output.LayerNorm", x + y)
        x = x + attended
        if self.kind == "gpt2":
            y = gelu(self.through(b + "mlp.c_fc", self.normed(b + "ln_2", x)))
            return x + self.through(b + "mlp.c_proj", y)
        y = self.normed(b + "post_attention_layernorm", x)
        gate = self.through(b + "mlp.gate_proj", y)
        return x + self.through(b + "mlp.down_proj",
                                gate / (1 + np.exp(-gate)) * self.through(b + "mlp.up_proj", y))
