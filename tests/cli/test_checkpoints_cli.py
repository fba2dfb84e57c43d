#!/usr/bin/env python3
"""Every key of a checkpoint is used, known to have no effect, or refused by its name. The tests use
a Llama, whose forward pass is here in NumPy, and the GPT-2 of test_models_cli.
tests/peers/test_checkpoints.py does the same with transformers, for every key and family."""

import json
import math
import os
import unittest

import numpy as np

from cli import CliTest
from reference import expect_near
from test_models_cli import CONFIG as GPT2, TOKENIZER, logits_of, softmax
from test_models_cli import weights as gpt2_weights
from test_safetensors_cli import safetensors

BAD_FILE = 3
V, E, H, HK, D, I, LAYERS = 13, 8, 2, 1, 4, 12, 2
LLAMA = {
    "model_type": "llama", "vocab_size": V, "hidden_size": E, "num_hidden_layers": LAYERS,
    "num_attention_heads": H, "num_key_value_heads": HK, "intermediate_size": I,
    "rope_theta": 50.0, "max_position_embeddings": 32,
}
TEXT, IDS = "abc bca1s", [5, 3, 7, 0, 10, 12]


def llama_weights():
    rng = np.random.default_rng(3)
    shapes = {"model.embed_tokens.weight": (V, E), "model.norm.weight": (E,),
              "lm_head.weight": (V, E)}
    for i in range(LAYERS):
        for name, shape in {
            "input_layernorm": (E,), "post_attention_layernorm": (E,),
            "self_attn.q_proj": (H * D, E), "self_attn.k_proj": (HK * D, E),
            "self_attn.v_proj": (HK * D, E), "self_attn.o_proj": (E, H * D),
            "mlp.gate_proj": (I, E), "mlp.up_proj": (I, E), "mlp.down_proj": (E, I),
        }.items():
            shapes["model.layers.%d.%s.weight" % (i, name)] = shape
    return {k: rng.standard_normal(s).astype("f4") for k, s in shapes.items()}


def biases(w, *parts):
    rng = np.random.default_rng(4)
    stems = ["model.layers.%d.%s" % (i, p) for i in range(LAYERS) for p in parts]
    return {s + ".bias": rng.standard_normal(len(w[s + ".weight"])).astype("f4") for s in stems}


ATTENTION = ["self_attn.%s_proj" % x for x in "qkvo"]
MLP = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]


def rms(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def rotated(x, frequency):
    """[heads, T, D], pairs (i, i + D / 2)."""
    angle = np.arange(x.shape[1])[:, None] * frequency
    low, high = x[..., : D // 2], x[..., D // 2 :]
    return np.concatenate([low * np.cos(angle) - high * np.sin(angle),
                           high * np.cos(angle) + low * np.sin(angle)], -1)


def plain(theta):
    return theta ** (-2 * np.arange(D // 2) / D)


def llama_forward(w, ids, frequency=plain(50.0), windows=(None, None), act=silu, head=None):
    """In double precision: each layer's attention, and the probabilities of the next token."""
    w = {k: v.astype("f8") for k, v in w.items()}
    T, maps = len(ids), []

    def linear(x, name):
        return x @ w[name + ".weight"].T + w.get(name + ".bias", 0)

    x = w["model.embed_tokens.weight"][ids]
    for i in range(LAYERS):
        n = "model.layers.%d." % i
        y = rms(x, w[n + "input_layernorm.weight"])
        q, k, v = (linear(y, n + "self_attn.%s_proj" % p).reshape(T, -1, D).swapaxes(0, 1)
                   for p in "qkv")
        q, k = rotated(q, frequency), np.repeat(rotated(k, frequency), H, 0)
        seen = np.tri(T, dtype=bool)
        if windows[i]:
            seen &= ~np.tri(T, k=-windows[i], dtype=bool)
        scores = np.where(seen, q @ k.swapaxes(1, 2) / math.sqrt(D), -np.inf)
        maps.append(softmax(scores))
        heads = (maps[-1] @ np.repeat(v, H, 0)).swapaxes(0, 1).reshape(T, H * D)
        x = x + linear(heads, n + "self_attn.o_proj")
        y = rms(x, w[n + "post_attention_layernorm.weight"])
        y = act(linear(y, n + "mlp.gate_proj")) * linear(y, n + "mlp.up_proj")
        x = x + linear(y, n + "mlp.down_proj")
    head = w[head or "lm_head.weight"]
    return maps, rms(x, w["model.norm.weight"])[-1] @ head.T


class Checkpoint(CliTest):
    def setUp(self):
        super().setUp()
        os.mkdir(self.path("m"))
        self.llama, self.gpt2 = llama_weights(), gpt2_weights()

    def put(self, config, tensors, generation=None):
        self.write("m/config.json", json.dumps(config).encode())
        self.write("m/tokenizer.json", json.dumps(TOKENIZER).encode())
        self.write("m/model.safetensors", safetensors(tensors))
        if os.path.exists(self.path("m/generation_config.json")):
            os.remove(self.path("m/generation_config.json"))
        if generation is not None:
            self.write("m/generation_config.json", json.dumps(generation).encode())

    def steps(self, *args):
        done = self.attn("explain", "--json", "--model", "m", "--layer", 2, *args)
        said = done.stderr.decode().splitlines()
        self.assertEqual(done.returncode, 0, said)
        self.assertEqual(bool(said), "--ignore-unknown" in args, said)
        out = json.loads(done.stdout)
        return {
            s["name"]: np.array(
                [float(x) for x in s["tensor"]["data"]]).reshape(s["tensor"]["shape"])
            for s in out["steps"]
        }

    def is_llama(self, config, tensors, ids=IDS, text=TEXT, flags=(), used=None, **how):
        """used: the tensors that the model uses; the file may have others."""
        self.put(config, tensors)
        maps, logits = llama_forward(used or tensors, ids, **how)
        step = self.steps(*flags, text)
        self.assertEqual(step["token_ids"].tolist(), ids)
        expect_near(step["weights"], maps[1], 1e-4, "weights")
        top = np.sort(softmax(logits))[::-1][:5]
        expect_near(step["next_tokens"][:, 0], top, 1e-4, "next_tokens")

    def refused(self, says, config, tensors=None, *flags):
        self.put(config, tensors or self.llama)
        line = self.fails(BAD_FILE, "explain", "--model", "m", *flags, TEXT, says=says)
        self.assertIn("m/config.json: ", line)

    def llama_with(self, **more):
        return dict(LLAMA, **more)

    # -------------------------------------------------------------------------------- The rule

    def test_usual(self):
        self.is_llama(LLAMA, self.llama)

    def test_a_key_that_is_not_known_is_refused_by_name(self):
        strange = self.llama_with(attn_logit_softcapping=30.0)
        says = "'attn_logit_softcapping' is not a known key of model_type llama and may change"
        self.refused(says, strange)
        self.is_llama(strange, self.llama, flags=("--ignore-unknown",))
        inside = self.llama_with(rope_parameters={"rope_theta": 50.0, "twist": 2})
        self.put(inside, self.llama)
        self.fails(BAD_FILE, "explain", "--model", "m", TEXT,
                   says="m/config.json: rope_parameters: 'twist' is not a known key")
        self.is_llama(inside, self.llama, flags=("--ignore-unknown",))

    def test_what_is_ignored_is_said(self):
        self.put(self.llama_with(twist=1, rope_parameters={"rope_theta": 50.0, "turn\x1b[2J": 2}),
                 self.llama, generation={"spin": 3})
        self.write("m/adapter_config.json", b"{}")
        self.fails(BAD_FILE, "explain", "--model", "m", TEXT, says="twist")
        want = ["m/config.json: 'twist'", "m/config.json: rope_parameters: 'turn?[2J'",
                "m/generation_config.json: 'spin'", "m: 'adapter_config.json'"]
        for command in ("explain", "generate"):
            done = self.attn(command, "--model", "m", "--ignore-unknown", TEXT)
            lines = done.stderr.decode().splitlines()
            self.assertEqual(done.returncode, 0, lines)
            self.assertEqual([line for line in lines if "is ignored" in line],
                             ["attn: %s is not known to attn and is ignored" % x for x in want])

    def test_an_adapter_is_refused(self):
        self.put(LLAMA, self.llama)
        self.write("m/adapter_config.json", b"{}")
        self.fails(BAD_FILE, "explain", "--model", "m", TEXT,
                   says="m/adapter_config.json: is an adapter, which attn cannot apply; merge")

    def test_a_known_key_with_a_value_that_is_not_done_stays_refused(self):
        for key, value, says in (
            ("is_causal", False, "is_causal is false; it is supported only as true"),
            ("quantization_config", {"bits": 4}, 'quantization_config is {"bits":4}'),
            ("partial_rotary_factor", 0.5, "partial_rotary_factor is 0.5; "),
            ("sliding_window", 4, "sliding_window is 4"),
            ("sliding_window", "null", 'sliding_window is "null"'),
            ("layer_types", "any", 'layer_types is "any"'),
            ("hidden_act", None, "hidden_act is null; it must be a string"),
        ):
            for flags in ((), ("--ignore-unknown",)):
                self.refused(says, self.llama_with(**{key: value}), None, *flags)

    def test_keys_that_change_nothing(self):
        self.is_llama(self.llama_with(
            architectures=["LlamaForCausalLM"], torch_dtype="float16", use_cache=False,
            transformers_version="4.40.0", initializer_range=0.5, attention_dropout=0.5,
            pretraining_tp=2, bos_token_id=1, temperature=0.3, num_beams=4), self.llama)

    def test_the_table_is_printed_and_documented(self):
        rows = json.loads(self.works("info", "--model-keys", "--json"))["model_keys"]
        text = self.works("info", "--model-keys")
        self.fails(2, "info", "--model-keys", "m/config.json", says="takes no file")
        found = {}
        for r in rows:
            self.assertIn(r["key"], text)
            found.setdefault(r["family"], {}).setdefault(r["use"], []).append(r["key"])
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        with open(os.path.join(root, "docs", "MODELS.md"), encoding="utf-8") as f:
            document = f.read()
        for family, uses in found.items():
            cells = [", ".join("`%s`" % k for k in uses.get(u, []) + (
                uses.get("fixed where drawn", []) if u == "fixed" else []))
                for u in ("used", "no effect", "fixed")]
            self.assertIn("| %s | %s |" % (family, " | ".join(cells)), document)

    # -------------------------------------------------------- Keys that once gave wrong numbers

    def test_is_causal(self):
        self.refused("is_causal", self.llama_with(is_causal=False))
        self.refused("is_causal", dict(GPT2, is_causal=False), self.gpt2)
        self.is_llama(self.llama_with(is_causal=True), self.llama)

    def test_a_head_of_its_own_counts_though_tied(self):
        for tied in (True, False):
            self.is_llama(self.llama_with(tie_word_embeddings=tied), self.llama)
        less = dict(self.llama)
        del less["lm_head.weight"]
        self.is_llama(self.llama_with(tie_word_embeddings=True), less,
                      head="model.embed_tokens.weight")

    def test_layer_types(self):
        types = {"s": "sliding_attention", "f": "full_attention"}
        for which in ("sf", "fs", "ss", "ff"):
            config = self.llama_with(model_type="mistral", sliding_window=3, head_dim=D,
                                     layer_types=[types[x] for x in which])
            self.is_llama(config, self.llama, windows=[3 if x == "s" else None for x in which])
            config = self.llama_with(model_type="qwen2", sliding_window=2, use_sliding_window=True,
                                     layer_types=[types[x] for x in which])
            b = dict(self.llama, **biases(self.llama, *ATTENTION[:3]))
            self.is_llama(config, b, windows=[2 if x == "s" else None for x in which])
        mistral = self.llama_with(model_type="mistral", sliding_window=3)
        for bad in (["full_attention"], ["full_attention", "x"], ["full_attention", 3]):
            self.refused("layer_types must have", dict(mistral, layer_types=bad))
        self.refused("no window is set", self.llama_with(
            model_type="qwen2", layer_types=["sliding_attention"] * 2))

    def test_a_window_where_nothing_is_said(self):
        """Without the key, Mistral's window is 4096."""
        config = self.llama_with(model_type="mistral")
        self.put(config, self.llama)
        text = self.works("explain", "--model", "m", "a bc")
        self.assertIn("itself and the 4095 before it", text)
        self.put(dict(config, sliding_window=None), self.llama)
        self.assertNotIn("4095", self.works("explain", "--model", "m", "a bc"))

    def test_rope_scaling_comes_before_rope_parameters(self):
        both = self.llama_with(rope_scaling={"type": "linear", "factor": 4.0},
                               rope_parameters={"rope_theta": 9.0})
        self.is_llama(both, self.llama, frequency=plain(50.0) / 4)
        self.is_llama(dict(both, rope_scaling={}), self.llama, frequency=plain(9.0))
        self.is_llama(dict(both, rope_scaling=None), self.llama, frequency=plain(9.0))

    def llama3(self, original):
        """Short wavelengths stay, long ones become 8 times as long, others are in between."""
        f = plain(50.0)
        long, smooth = 2 * np.pi / f > original, (original * f / (2 * np.pi) - 1) / 3
        between = (1 - smooth) * f / 8 + smooth * f
        short = 2 * np.pi / f < original / 4
        return np.where(short, f, np.where(long, f / 8, between))

    def test_original_length_of_llama3(self):
        rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0}
        config = self.llama_with(rope_parameters=rope)
        self.assertGreater(np.abs(self.llama3(32) - self.llama3(12)).max(), 0.01)
        self.is_llama(config, self.llama, frequency=self.llama3(32))  # max_position_embeddings
        rope["original_max_position_embeddings"] = 20
        self.is_llama(config, self.llama, frequency=self.llama3(20))
        self.is_llama(dict(config, original_max_position_embeddings=12), self.llama,
                      frequency=self.llama3(12))

    def test_biases_count_as_the_config_says(self):
        all_of_them = dict(self.llama, **biases(self.llama, *ATTENTION, *MLP),
                           **{"lm_head.bias": np.ones(V, "f4")})
        for kind, more, parts in (
            ("llama", {}, []),
            ("llama", {"attention_bias": False, "mlp_bias": False}, []),
            ("llama", {"attention_bias": True}, ATTENTION),
            ("llama", {"mlp_bias": True}, MLP),
            ("mistral", {"sliding_window": None}, []),
            ("qwen2", {}, ATTENTION[:3]),
        ):
            used = dict(self.llama, **biases(self.llama, *ATTENTION, *MLP))
            used = {k: v for k, v in used.items()
                    if not k.endswith("bias") or any(p in k for p in parts)}
            self.is_llama(self.llama_with(model_type=kind, **more), all_of_them, used=used)
        self.put(self.llama_with(attention_bias=True), self.llama)
        self.fails(BAD_FILE, "explain", "--model", "m", TEXT, says="q_proj.bias' is missing")

    def test_one_file_beside_an_index(self):
        self.put(GPT2, self.gpt2)
        self.write("m/model.safetensors.index.json", json.dumps(
            {"weight_map": {k: "gone.safetensors" for k in self.gpt2}}).encode())
        maps, _ = logits_of(self.gpt2, [5, 6])
        expect_near(self.steps("abc abc")["weights"], maps[1], 1e-5, "weights")

    def test_options_of_other_models(self):
        self.refused("'scale_attn_weights' is not a known key",
                     self.llama_with(scale_attn_weights=False))
        self.refused("'layer_norm_eps' is not a known key", self.llama_with(layer_norm_eps=0.1))
        distilbert = {"model_type": "distilbert", "vocab_size": V, "dim": E, "n_layers": 1,
                      "n_heads": H, "hidden_dim": I, "max_position_embeddings": 8}
        rng, tensors = np.random.default_rng(2), {}
        for name, shape in {
            "embeddings.word_embeddings": (V, E), "embeddings.position_embeddings": (8, E),
            "embeddings.LayerNorm": (E,), "transformer.layer.0.sa_layer_norm": (E,),
            "transformer.layer.0.output_layer_norm": (E,),
            "transformer.layer.0.ffn.lin1": (I, E), "transformer.layer.0.ffn.lin2": (E, I),
            **{"transformer.layer.0.attention.%s_lin" % x: (E, E) for x in ("q", "k", "v", "out")},
        }.items():
            tensors[name + ".weight"] = rng.standard_normal(shape).astype("f4")
            tensors[name + ".bias"] = rng.standard_normal(shape[0]).astype("f4")
        found = []
        for eps in (1e-12, 0.9):
            self.put(dict(distilbert, layer_norm_eps=eps), tensors)
            found.append(self.works("explain", "--json", "--model", "m", "abc abc"))
            x = tensors["embeddings.word_embeddings.weight"][[5, 6]].astype("f8")
            x += tensors["embeddings.position_embeddings.weight"][:2]
            x = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
            x = x * tensors["embeddings.LayerNorm.weight"] + tensors["embeddings.LayerNorm.bias"]
            got = [s for s in json.loads(found[-1])["steps"] if s["name"] == "embeddings"][0]
            expect_near(got["tensor"]["data"], x.ravel(), 1e-5)
        self.assertEqual(found[0], found[1])

    # ----------------------------------------------------------------- Values that are refused

    def test_activations_of_a_gated_mlp(self):
        erf = np.vectorize(math.erf)
        for name, act in (
            ("gelu", lambda x: x * 0.5 * (1 + erf(x / math.sqrt(2)))),
            ("gelu_python", lambda x: x * 0.5 * (1 + erf(x / math.sqrt(2)))),
            ("gelu_10", lambda x: np.clip(x * 0.5 * (1 + erf(x / math.sqrt(2))), -10, 10)),
            ("gelu_accurate", lambda x: 0.5 * x * (
                1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
            ("tanh", np.tanh), ("linear", lambda x: x), ("relu2", lambda x: np.maximum(x, 0) ** 2),
            ("relu6", lambda x: np.clip(x, 0, 6)), ("sigmoid", lambda x: 1 / (1 + np.exp(-x))),
            ("leaky_relu", lambda x: np.where(x < 0, 0.01 * x, x)),
            ("hardswish", lambda x: x * np.clip(x + 3, 0, 6) / 6),
            ("mish", lambda x: x * np.tanh(np.log1p(np.exp(x)))),
        ):
            self.is_llama(self.llama_with(hidden_act=name), self.llama, act=act)
            if name == "gelu_10":  # some beyond 10
                steep = {k: v * (30 if "gate_proj" in k else 1) for k, v in self.llama.items()}
                self.is_llama(self.llama_with(hidden_act=name), steep, act=act)

    def test_segments_of_a_bert(self):
        """With one segment a second text, whose tokens are of segment 1, is refused."""
        config = {"model_type": "bert", "vocab_size": V, "hidden_size": E, "num_hidden_layers": 1,
                  "num_attention_heads": H, "intermediate_size": I, "max_position_embeddings": 8}
        pieces = [{"Sequence": {"id": x, "type_id": i}} for i, x in enumerate("AB")]
        tokenizer = dict(TOKENIZER, post_processor={
            "type": "TemplateProcessing", "single": pieces[:1], "pair": pieces,
            "special_tokens": {}})
        layer = "encoder.layer.0."
        shapes = {
            "embeddings.word_embeddings": (V, E), "embeddings.position_embeddings": (8, E),
            "embeddings.LayerNorm": (E,), layer + "attention.output.dense": (E, E),
            layer + "attention.output.LayerNorm": (E,), layer + "intermediate.dense": (I, E),
            layer + "output.dense": (E, I), layer + "output.LayerNorm": (E,),
            **{layer + "attention.self." + x: (E, E) for x in ("query", "key", "value")},
        }
        rng, tensors = np.random.default_rng(3), {}
        for name, shape in shapes.items():
            tensors["bert.%s.weight" % name] = rng.standard_normal(shape).astype("f4")
            tensors["bert.%s.bias" % name] = rng.standard_normal(shape[0]).astype("f4")
        for segments in (1, 2):
            segment = rng.standard_normal((segments, E)).astype("f4")
            tensors["bert.embeddings.token_type_embeddings.weight"] = segment
            self.put(dict(config, type_vocab_size=segments), tensors)
            self.write("m/tokenizer.json", json.dumps(tokenizer).encode())
            args = ("explain", "--model", "m", "--text-pair", "bc", "abc")
            if segments == 1:
                self.fails(2, *args, says="token 2: the model has no id 7 or no segment 1")
            else:
                self.works(*args)

    def test_without_a_head_there_is_no_next_token(self):
        less = dict(self.llama)
        del less["lm_head.weight"]
        self.put(LLAMA, less)
        step = self.steps(TEXT)
        expect_near(step["weights"], llama_forward(self.llama, IDS)[0][1], 1e-4, "weights")
        self.assertNotIn("next_tokens", step)
        self.fails(BAD_FILE, "generate", "--model", "m", TEXT, says="'lm_head.weight' is missing")

    def test_longer_texts_than_the_model_was_made_for(self):
        self.is_llama(self.llama_with(max_position_embeddings=3), self.llama)
        dynamic = {"rope_type": "dynamic", "factor": 2.0}
        base = 50.0 * (2.0 * 6 / 4 - 1) ** (D / (D - 2))
        self.is_llama(self.llama_with(max_position_embeddings=4, rope_parameters=dynamic),
                      self.llama, frequency=plain(base))
        self.is_llama(self.llama_with(rope_parameters=dynamic), self.llama)

    def test_other_ways_of_gpt2(self):
        ids = [5, 6, 3, 8, 9, 7]
        names = {"hidden_size": E, "num_hidden_layers": LAYERS, "num_attention_heads": H,
                 "max_position_embeddings": 16}
        general = {k: v for k, v in GPT2.items() if not k.startswith("n_")}
        wrong = {"n_embd": 6, "n_layer": 1, "n_head": 4, "n_positions": 4}
        maps, _ = logits_of(self.gpt2, ids)
        for config in (dict(general, **names), dict(general, **names, **wrong)):
            self.put(config, self.gpt2)
            step = self.steps("abc abc \u00e9bc")
            expect_near(step["weights"], maps[1], 1e-5, "weights")
        self.put(GPT2, {k: v.astype("f8") for k, v in self.gpt2.items()})
        expect_near(self.steps("abc abc \u00e9bc")["weights"], maps[1], 1e-5, "weights")
        self.put(dict(GPT2, scale_attn_by_inverse_layer_idx=True), self.gpt2)
        step = self.steps("abc abc \u00e9bc")  # the second layer's scores are halved
        ratio = step["scaled_scores"] / step["scores"]
        expect_near(ratio, 0.5 / math.sqrt(E // H), 1e-5, "scale")

    # ------------------------------------------------------------------------- The next token

    def texts(self, config, generation, count=8, penalty=1.0, ngram=0, ends=()):
        """generate gives the same tokens as greedy search in NumPy, with these settings."""
        self.put(config, self.gpt2, generation)
        ids = [5, 6]
        while len(ids) < 2 + count and ids[-1] not in ends:
            x = logits_of(self.gpt2, ids)[1]
            for i in set(ids):
                x[i] = x[i] * penalty if x[i] < 0 else x[i] / penalty
            for i in range(len(ids) - ngram + 1 if ngram else 0):
                if ids[i : i + ngram - 1] == ids[len(ids) - ngram + 1 :]:
                    x[ids[i + ngram - 1]] = -np.inf
            ids.append(int(np.argmax(x)))
        got = json.loads(self.works("generate", "--json", "--model", "m", "--tokens", count,
                                    "abc abc"))
        self.assertEqual(got["prompt_ids"] + got["ids"], ids)
        return ids

    def test_generation_config_is_honoured(self):
        config = {k: v for k, v in GPT2.items() if k != "eos_token_id"}
        usual = self.texts(config, None)
        self.assertNotEqual(self.texts(config, {"repetition_penalty": 2.5}, penalty=2.5), usual)
        self.assertNotEqual(self.texts(config, {"no_repeat_ngram_size": 1}, ngram=1), usual)
        self.texts(config, {"no_repeat_ngram_size": 2}, ngram=2)
        self.texts(config, {"no_repeat_ngram_size": 3, "repetition_penalty": 0.5}, ngram=3,
                   penalty=0.5)
        self.texts(config, {"do_sample": True, "top_k": 1, "temperature": 0.3})
        self.texts(config, {"do_sample": True, "top_p": 0.0})
        self.texts(config, {"do_sample": False, "temperature": 0.0, "top_p": 0.3, "min_p": 0.5})
        # Older models have these keys in config.json, where they count only without
        # generation_config.json.
        self.texts(dict(config, repetition_penalty=2.5), None, penalty=2.5)
        self.texts(dict(config, repetition_penalty=2.5), {})
        # The same holds for the tokens that end a text.
        self.texts(dict(config, eos_token_id=usual[3]), None, ends=[usual[3]])
        self.texts(dict(config, eos_token_id=usual[3]), {"eos_token_id": None})

    def test_generation_config_draws(self):
        self.put(GPT2, self.gpt2, {"do_sample": True, "temperature": 3.0})
        args = ["generate", "--json", "--model", "m", "--tokens", 8, "abc"]
        texts = {self.works(*args, "--seed", n).split('"text"')[0] for n in range(6)}
        self.assertGreater(len(texts), 2)
        plain_text = {self.works(*args, "--seed", n, "--temperature", 0).split('"text"')[0]
                      for n in range(3)}
        self.assertEqual(len(plain_text), 1)
        first = {self.works(*args, "--seed", n, "--top-p", 1e-9).split('"text"')[0]
                 for n in range(3)}
        self.assertEqual(first, plain_text)

    def test_generation_config_is_refused_by_name(self):
        for asked, says in (
            ({"num_beams": 4}, "num_beams is 4; it is supported only as 1 or null"),
            ({"bad_words_ids": [[3]]}, "bad_words_ids is [[3]]"),
            ({"top_x": 3}, "'top_x' is not a known key"),
            ({"do_sample": True, "min_p": 0.1}, "min_p is 0.1"),
            ({"do_sample": True, "temperature": 0.0}, "temperature must be"),
            ({"repetition_penalty": 0.0}, "repetition_penalty must be"),
            ({"eos_token_id": "x"}, "eos_token_id"),
        ):
            self.put(GPT2, self.gpt2, asked)
            line = self.fails(BAD_FILE, "generate", "--model", "m", "abc", says=says)
            self.assertIn("m/generation_config.json: ", line)
        # Logits do not depend on it.
        self.put(GPT2, self.gpt2, {"num_beams": 4, "top_x": 3})
        self.steps("abc")
        self.put(GPT2, self.gpt2, {"min_p": 0.1, "top_x": 3})
        args = ["generate", "--json", "--model", "m", "--ignore-unknown", "abc"]
        self.assertEqual(self.attn(*args).returncode, 0)
        self.fails(BAD_FILE, *args, "--temperature", 1, says="min_p")
        self.put(dict(GPT2, num_beams=4), self.gpt2)
        self.fails(BAD_FILE, "generate", "--model", "m", "abc", says="m/config.json: num_beams")


if __name__ == "__main__":
    unittest.main()
