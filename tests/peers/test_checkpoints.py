"""Compares checkpoints with transformers, key by key. The program prints the keys of config.json
and generation_config.json that it knows (attn info --model-keys). For each key, folders are written
in which it has usual and unusual values, is absent and is null, and both programs read them. The
program must compute the same as transformers, or refuse the key by its name."""

import json
import multiprocessing
import os
import shutil
import tempfile
import unittest
from collections import Counter

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from cli import CliTest

transformers.logging.set_verbosity(transformers.logging.CRITICAL)
transformers.logging.disable_progress_bar()
torch.set_num_threads(1)
# transformers would read the tensors on threads of its own, and in the forked processes of
# compare_all() the first calls of two threads into PyTorch can fail ("Invalid thread pool").
os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"

VOCABULARY, LAYERS = 13, 3
WORDS = ["a", "b", "c", "\u0120", "ab", "abc", "\u0120abc", "bc", "\u00c3", "\u00a9", "1", "'", "s"]
TOKENIZER = {
    "added_tokens": [],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                      "use_regex": True},
    "model": {
        "type": "BPE", "vocab": {w: i for i, w in enumerate(WORDS)},
        "merges": ["a b", "ab c", "\u0120 abc", "b c"],
    },
}
TEXT = "abc bca1s' abc cab"
SIZES = dict(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=LAYERS,
             num_attention_heads=2, intermediate_size=24, max_position_embeddings=24)
ROTATED = dict(SIZES, num_key_value_heads=1, rope_theta=100.0, eos_token_id=None)
BASE = {
    "bert": dict(SIZES, type_vocab_size=2),
    "roberta": dict(SIZES, type_vocab_size=2, pad_token_id=1),
    "distilbert": dict(vocab_size=VOCABULARY, dim=16, n_layers=LAYERS, n_heads=2, hidden_dim=24,
                       max_position_embeddings=24),
    "gpt2": dict(vocab_size=VOCABULARY, n_embd=16, n_layer=LAYERS, n_head=2, n_positions=24),
    "llama": ROTATED,
    "mistral": dict(ROTATED, sliding_window=7, head_dim=8),
    "qwen2": ROTATED,
}
ENCODERS = ("bert", "roberta", "distilbert")
ACTIVATIONS = sorted(transformers.activations.ACT2CLS) + ["gelu_11"]
SLIDING, FULL = "sliding_attention", "full_attention"
# Values for used keys that need particular values.
UNUSUAL = {
    "hidden_act": ACTIVATIONS, "activation": ACTIVATIONS, "activation_function": ACTIVATIONS,
    "vocab_size": [13, 20, 0, -1], "hidden_size": [8, 20, 24, 15], "dim": [8, 20, 15],
    "n_embd": [8, 20, 15], "num_hidden_layers": [1, 2, 4], "n_layers": [1, 2], "n_layer": [1, 2],
    "num_attention_heads": [1, 4, 8, 3], "n_heads": [1, 4, 3], "n_head": [1, 4, 3],
    "intermediate_size": [1, 40], "hidden_dim": [1, 40], "n_inner": [1, 40],
    "max_position_embeddings": [16, 100], "n_positions": [16, 100],
    "layer_norm_eps": [1e-5, 0.1, 0.0], "layer_norm_epsilon": [1e-5, 0.1, 0.0],
    "rms_norm_eps": [1e-5, 0.1, 0.0], "type_vocab_size": [1, 5],
    "num_key_value_heads": [1, 2, 3], "head_dim": [4, 6, 20, 7], "rope_theta": [1.0, 7.5, 1e6, 50],
    "pad_token_id": [0, 3, 12], "sliding_window": [1, 2, 5, 100, 0],
    "max_window_layers": [0, 1, 2, 28], "eos_token_id": [3, [3, 5], [], 500, "x"],
    "layer_types": [[SLIDING, FULL, SLIDING], [FULL] * 3, [SLIDING] * 3, [FULL] * 2, ["x"] * 3],
    "tie_word_embeddings": [True, False, "x"],
    "original_max_position_embeddings": [8, 16],
    "partial_rotary_factor": [1, 1.0, 0.5, 0.0],
    "rope_parameters": [{}, {"rope_theta": 7.0}, {"rope_type": "linear", "factor": 3.0}],
    "rope_scaling": [{}, {"type": "linear", "factor": 3.0}, {"rope_type": "dynamic", "factor": 2.0},
                     {"type": "su", "factor": 2.0}, {"rope_type": None}],
    "model_type": ["t5", "x"],
    # generation
    "temperature": [0.5, 2.0, 0.0, -1.0], "top_k": [0, 1, 3, -1], "top_p": [1.0, 0.5, 0.001, 2.0],
    "repetition_penalty": [1.0, 1.3, 3.0, 0.5, 0.0], "no_repeat_ngram_size": [0, 1, 2, 3],
}
OF_KIND = {
    "int": [0, 1, 3], "real": [0.0, 0.5, 2.0], "bool": [True, False], "text": ["x"],
    "list": [[], [3]], "object": [{}, {"x": 1}], "null": [None], "any": [None, True, "x"],
}
OTHER = [True, False, 1, 0.5, "x", [3]]  # for fixed keys


def literal(word):
    try:
        return json.loads(word)
    except ValueError:
        return word


def values_of(row):
    """The values with which a key is tried: those that the program knows, and others."""
    words = row["values"].split("|")
    values = [v for w in words for v in OF_KIND.get(w, [literal(w)])]
    if row["use"] == "used":
        values = UNUSUAL.get(row["key"], values) + ["x", None]
    elif row["use"] != "no effect":
        values += OTHER
    unique = {json.dumps(v, sort_keys=True): v for v in values}
    return list(unique.values())


def weights_of(raw):
    """A model's tensors for its config, larger than freshly initialised ones, so that attention is
    not uniform."""
    config = AutoConfig.for_model(**raw)
    kind = AutoModel if raw["model_type"] in ENCODERS else AutoModelForCausalLM
    model = kind.from_config(config)
    random = torch.Generator().manual_seed(5)
    tensors = {}
    for name, p in model.state_dict().items():
        scale = 0.2 if name.endswith("bias") else 0.5
        tensors[name] = torch.randn(p.shape, generator=random) * scale + (p.dim() == 1)
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    return tensors


class Case:
    """A folder's files, and the task. `key`: the name that a refusal must contain; "": the folder
    must be accepted."""

    def __init__(self, what, raw, key, tensors=None, generation=None, tokens=0, text=TEXT,
                 flags=(), files=None):
        self.what, self.raw, self.key, self.tensors = what, raw, key, tensors
        self.generation, self.tokens, self.text = generation, tokens, text
        self.flags, self.files = flags, files or {}


def run_case(number):
    return Checkpoints.running.run(Checkpoints.cases[number])


class Checkpoints(CliTest):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.base = {f: weights_of(dict(raw, model_type=f)) for f, raw in BASE.items()}
        cls.tokenizer = Tokenizer.from_str(json.dumps(dict(TOKENIZER, version="1.0")))

    def setUp(self):
        super().setUp()
        Checkpoints.cases = []

    def raw(self, family, **more):
        return dict(BASE[family], model_type=family, **more)

    def add(self, *args, **more):
        Checkpoints.cases.append(Case(*args, **more))

    # ------------------------------------------------------------------------------- A folder

    def put(self, case):
        folder = tempfile.mkdtemp(dir=self.folder)
        tensors = case.tensors
        if tensors is None:
            try:
                tensors = weights_of(case.raw)
            except Exception:  # no model has this config; the usual tensors are written
                tensors = self.base.get(case.raw.get("model_type"), self.base["bert"])
        save_file({k: v.contiguous() for k, v in tensors.items()},
                  os.path.join(folder, "model.safetensors"))
        files = {"config.json": case.raw, "tokenizer.json": TOKENIZER, **case.files}
        if case.generation is not None:
            files["generation_config.json"] = case.generation
        for name, data in files.items():
            with open(os.path.join(folder, name), "w") as f:
                json.dump(data, f)
        return folder

    def theirs(self, folder, case):
        """The result of transformers; None if it has none, or one from weights that it drew
        itself. self.reason says why there is none."""
        family = case.raw["model_type"]
        kind = AutoModel if family in ENCODERS else AutoModelForCausalLM
        ids = torch.tensor([self.tokenizer.encode(case.text).ids])
        try:
            model, info = kind.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
            missing = {k for k in info["missing_keys"] if not k.startswith("pooler")}
            if missing - {"lm_head.weight"} or info["mismatched_keys"]:
                self.reason = "tensors are missing"
                return None
            with torch.no_grad():
                if case.tokens:
                    return model.generate(
                        ids, attention_mask=torch.ones_like(ids), max_new_tokens=case.tokens,
                        return_dict_in_generate=False,
                    )[0, ids.shape[1]:].tolist()
                out = model(ids, output_attentions=True, output_hidden_states=True,
                            return_dict=True)
        except Exception as error:
            self.reason = repr(error)
            return None
        found = {"embeddings": out.hidden_states[-2][0]}
        if out.attentions:  # attn_implementation in config.json may give none
            found["weights"] = out.attentions[-1][0]
        if family in ENCODERS:
            found["output"] = out.hidden_states[-1][0]
        elif "lm_head.weight" not in missing:
            found["next_tokens"] = torch.softmax(out.logits[0, -1].double(), 0).sort(
                descending=True).values[:5, None]
        return found

    def ours(self, folder, case):
        """The program's numbers, its error line, or None if no token is left to draw."""
        if case.tokens:
            what = ["generate", "--tokens", case.tokens]
        else:
            names = ("num_hidden_layers", "n_layers", "n_layer")
            layers = [case.raw[k] for k in names if isinstance(case.raw.get(k), int)]
            what = ["explain", "--layer", (layers + [LAYERS])[0]]
        done = self.attn(*what, "--json", "--model", folder, *case.flags, case.text)
        if done.returncode == 5:
            return None
        if done.returncode:
            self.assertEqual(done.returncode, 3, done.stderr)
            return done.stderr.decode()
        out = json.loads(done.stdout)
        if case.tokens:
            return out["ids"]
        return {
            s["name"]: torch.tensor([float(x) for x in s["tensor"]["data"]]).reshape(
                s["tensor"]["shape"])
            for s in out["steps"]
        }

    def same(self, got, want):
        if isinstance(want, list):
            return got == want
        for name, w in want.items():
            w, g = w.double(), got.get(name, torch.zeros(0)).double()
            if g.numel() != w.numel():
                return False
            far = (g.reshape(w.shape) - w).abs().max()
            if not far <= 1e-4 * w.abs().max() + 1e-6:  # NaN counts as different
                return False
        return True

    def run(self, case):
        if isinstance(case, unittest.TestResult):
            return super().run(case)
        folder = self.put(case)
        got = self.ours(folder, case)
        if isinstance(got, str):
            # If the key is absent, the default size may differ from the tensors'.
            named = case.key and (
                case.key in got or case.what[2:] == ("absent",) and "tensor" in got)
            found = "refused" if named and got.count("\n") == 1 else "wrongly refused: " + got
        else:
            want = self.theirs(folder, case)
            if want is None:
                whose = "theirs" if got is not None else "either"
                found = f"no answer of {whose}: {self.reason}"
            else:
                equal = got is not None and self.same(got, want)
                found = "equal" if equal else "different"
        shutil.rmtree(folder)
        return found

    def compare_all(self, at_least, alone=()):
        """alone: the program may accept this although transformers does not."""
        Checkpoints.running = self
        with multiprocessing.get_context("fork").Pool(2) as pool:
            found = pool.map(run_case, range(len(self.cases)), chunksize=8)
        print("\n%s: %d folders, %s" % (self.id().split(".")[-1], len(found), dict(Counter(
            f.split(":")[0] for f in found))))
        wrong = [(c.what, f) for c, f in zip(self.cases, found)
                 if f == "different" or f.startswith("wrongly")
                 or f.startswith("no answer of theirs") and c.key not in alone]
        self.assertEqual(wrong, [])
        self.assertGreaterEqual(len(found), at_least)

    def keys(self, *families):
        rows = json.loads(self.works("info", "--model-keys", "--json"))["model_keys"]
        return [r for r in rows if r["family"] in families]

    # -------------------------------------------------------------------------------- The keys

    def test_every_key_of_config(self):
        for family, usual in BASE.items():
            for row in self.keys(family, "every model"):
                values = values_of(row)
                if row["family"] == "every model" and family not in ("bert", "llama"):
                    values = values[:3]
                for value in values:
                    self.add((family, row["key"], value), dict(self.raw(family), **{
                        row["key"]: value}), row["key"])
            for key in usual:
                raw = self.raw(family)
                del raw[key]
                self.add((family, key, "absent"), raw, key, tensors=self.base[family])
        self.compare_all(1500)

    def test_every_key_of_generation(self):
        for family in ("gpt2", "llama"):
            for row in self.keys("generation"):
                if family == "llama" and row["use"] != "used":
                    continue
                for value in values_of(row):
                    for drawn in ({}, {"do_sample": True, "top_k": 1}):
                        asked = dict(drawn, **{row["key"]: value})
                        if asked.get("do_sample") is True and asked.get("top_k") != 1:
                            continue  # sampling: see test_what_is_drawn
                        what, raw = (family, row["key"], value, bool(drawn)), self.raw(family)
                        more = dict(tokens=8, tensors=self.base[family])
                        self.add(what, raw, row["key"], generation=asked, **more)
                        # Older models have it in config.json, where it counts only without
                        # generation_config.json.
                        if not drawn or row["use"] == "used":
                            self.add(what + ("config",), dict(raw, **asked), row["key"], **more)
                        if row["use"] == "used":
                            self.add(what + ("both",), dict(raw, **asked), row["key"],
                                     generation={}, **more)
        self.compare_all(1000, alone=(
            "eos_token_id",  # an empty list: nothing ends the text
            "cache_implementation",  # transformers needs another device for it
            "max_new_tokens",  # transformers refuses 0, although the caller gives another value
            "use_cache", "output_attentions", "output_hidden_states",  # null, or only in calls
            "output_scores", "output_logits", "return_dict_in_generate"))

    def test_what_is_drawn(self):
        """The first tokens of 300 seeds follow the probabilities from which transformers draws."""
        ids = self.tokenizer.encode(TEXT).ids
        for asked in (dict(temperature=0.7), dict(temperature=2.0, top_k=4),
                      dict(temperature=1.5, top_p=0.8, top_k=0),
                      dict(repetition_penalty=1.5, top_p=0.9)):
            case = Case((), self.raw("gpt2"), "", self.base["gpt2"], dict(asked, do_sample=True), 1)
            folder = self.put(case)
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            out = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)),
                                 max_new_tokens=1, output_scores=True, return_dict_in_generate=True)
            p = torch.softmax(out.scores[0][0].double(), 0)
            counts = Counter()
            for seed in range(300):
                case.flags = ("--seed", seed)
                counts[self.ours(folder, case)[0]] += 1
            self.assertTrue(all(p[i] > 0 for i in counts), (asked, counts, p))
            chi = sum((counts[i] - 300 * w) ** 2 / (300 * w) for i, w in enumerate(p.tolist()) if w)
            self.assertLess(chi, 32.9, (asked, counts, p))  # 0.1 %, 12 degrees of freedom

    def test_unknown_keys(self):
        for family in BASE:
            raw = self.raw(family, attn_logit_softcapping=3.0)
            self.add((family, "unknown"), raw, "attn_logit_softcapping")
            self.add((family, "--ignore-unknown"), raw, "", flags=("--ignore-unknown",))
            self.add((family, "known"), dict(raw, is_decoder=True), "is_decoder",
                     flags=("--ignore-unknown",))
        for flags, key in (((), "top_x"), (("--ignore-unknown",), "")):
            self.add(("top_x", flags), self.raw("gpt2"), key, generation={"top_x": 3}, tokens=8,
                     flags=flags)
        self.add(("top_x", "explain"), self.raw("gpt2"), "", generation={"top_x": 3})
        self.compare_all(20)

    # ------------------------------------------------------------------------------- Rotations

    def test_rotations(self):
        yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=6)
        near, far = [1.0, 1.5, 2.0, 3.0], [2.0, 3.0, 5.0, 9.0]
        long = dict(rope_type="longrope", short_factor=near, long_factor=far,
                    original_max_position_embeddings=8)
        llama3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
        ropes = [
            dict(rope_type="default", factor=3.0), dict(rope_type="linear", factor=3.0),
            dict(rope_type="linear", type="dynamic", factor=3.0), dict(type="linear", factor=1),
            dict(rope_type="linear"), dict(rope_type="dynamic", factor=3.0), dict(rope_theta=7),
            dict(rope_type="dynamic"), dict(rope_type="proportional", factor=2.0),
            llama3, dict(llama3, original_max_position_embeddings=6), dict(llama3, factor=None),
            dict(llama3, low_freq_factor=4.0, high_freq_factor=1.0),
            yarn, dict(yarn, factor=None), dict(yarn, attention_factor=0.5),
            dict(yarn, attention_factor=0), dict(yarn, beta_fast=3.0, beta_slow=0.5),
            dict(yarn, beta_fast=0), dict(yarn, truncate=False), dict(yarn, truncate=None),
            dict(yarn, mscale=2.0), dict(yarn, mscale=2.0, mscale_all_dim=0.5),
            dict(yarn, mscale=0.0, mscale_all_dim=0.5), dict(yarn, rope_theta=1.0),
            dict(yarn, original_max_position_embeddings=100), dict(rope_type="yarn", factor=2.0),
            dict(rope_type="yarn", original_max_position_embeddings=6),
            long, dict(long, factor=4.0), dict(long, attention_factor=0.7),
            dict(long, original_max_position_embeddings=16), dict(long, short_factor=near[:3]),
            dict(long, long_factor=None), dict(long, original_max_position_embeddings=1),
            dict(rope_type="longrope", short_factor=near, long_factor=far, factor=2.0),
            {"full_attention": dict(rope_type="linear", factor=2.0)}, dict(rope_type="x"),
            dict(rope_type="linear", factor=2.0, mrope_section=[1, 1]),
        ]
        for row in self.keys("rope_parameters"):
            ropes += [{row["key"]: v} for v in values_of(row)]
        for i, family in enumerate(("llama", "mistral", "qwen2")):
            for n, rope in enumerate(ropes):
                long, short = (TEXT * 2, 12), (TEXT, 24)
                for text, length in [long, short] if n % 3 == i else [long]:
                    raw = self.raw(family, max_position_embeddings=length)
                    what = (family, rope, length)
                    self.add(what, dict(raw, rope_parameters=rope), "rope_", text=text)
                if n % 3 == i:
                    self.add(what + ("old",), dict(raw, rope_scaling=rope), "rope_")
                    self.add(what + ("both",), dict(
                        raw, rope_scaling=rope, rope_parameters=dict(rope_theta=5.0)), "rope_")
                    self.add(what + ("above",), dict(
                        raw, original_max_position_embeddings=9, rope_parameters=rope), "rope_")
                    self.add(what + ("text",), dict(
                        raw, max_position_embeddings=12, rope_parameters=rope), "rope_", tokens=20)
        self.compare_all(500)

    # --------------------------------------------------------------------------------- Tensors

    def test_biases_that_config_disowns(self):
        for family in ("llama", "mistral", "qwen2"):
            for n in range(12):
                random = torch.Generator().manual_seed(n)
                raw = self.raw(family)
                if family == "llama":
                    raw.update([(), (("attention_bias", True),), (("mlp_bias", True),)][n % 3])
                tensors = weights_of(raw)
                for name in list(tensors):
                    part = name.replace(".weight", ".bias")
                    if "proj" in name and part not in tensors and (n < 2 or torch.rand(
                            1, generator=random) < 0.5):
                        tensors[part] = torch.randn(len(tensors[name]), generator=random)
                tensors["lm_head.bias"] = torch.randn(VOCABULARY, generator=random)
                self.add((family, n), raw, "", tensors=tensors)
        tensors = dict(self.base["gpt2"], **{"lm_head.bias": torch.randn(VOCABULARY)})
        self.add(("gpt2",), self.raw("gpt2"), "", tensors=tensors)
        self.compare_all(37)

    def test_heads(self):
        for family in ("gpt2", "llama", "mistral", "qwen2"):
            stem = "transformer.wte" if family == "gpt2" else "model.embed_tokens"
            for tied in (True, False, None):
                for head in ("none", "other", "same"):
                    raw = self.raw(family)
                    if tied is not None:
                        raw["tie_word_embeddings"] = tied
                    tensors = dict(self.base[family])
                    tensors.pop("lm_head.weight", None)
                    if head != "none":
                        table = tensors[stem + ".weight"]
                        tensors["lm_head.weight"] = (
                            table.clone() if head == "same" else table.flip(0) * 1.5)
                    for tokens in (0, 8):
                        lacks = head == "none" and not (tied or tied is None and family == "gpt2")
                        self.add((family, tied, head, tokens), raw,
                                 "lm_head.weight" if lacks and tokens else "", tensors=tensors,
                                 tokens=tokens)
        self.compare_all(72)

    def test_types_of_weights(self):
        for family in BASE:
            for dtype in (torch.float64, torch.float16, torch.bfloat16):
                tensors = {k: v.to(dtype) for k, v in self.base[family].items()}
                self.add((family, dtype), self.raw(family), "", tensors=tensors)
        self.compare_all(21)

    def test_one_file_beside_a_stale_index(self):
        for family in BASE:
            names = {k: "gone.safetensors" for k in self.base[family]}
            index = {"metadata": {}, "weight_map": names}
            self.add((family,), self.raw(family), "", tensors=self.base[family],
                     files={"model.safetensors.index.json": index})
        self.compare_all(7)

    def test_longer_than_it_was_made_for(self):
        for family in ("llama", "mistral", "qwen2"):
            self.add((family,), self.raw(family, max_position_embeddings=4), "", text=TEXT * 3)
            self.add((family, "text"), self.raw(family, max_position_embeddings=4), "", tokens=30)
        self.compare_all(6)

    def test_windows(self):
        kinds = [FULL, SLIDING]
        for n in range(8):
            types = [kinds[n >> i & 1] for i in range(LAYERS)]
            for tokens in (0, 12):
                self.add(("mistral", n), self.raw("mistral", layer_types=types), "layer_types",
                         tokens=tokens)
                for wanted in (True, False):
                    raw = self.raw("qwen2", layer_types=types, sliding_window=4,
                                   use_sliding_window=wanted)
                    self.add(("qwen2", n, wanted), raw, "layer_types", tokens=tokens)
        for first in range(4):
            for tokens in (0, 12):
                raw = self.raw("qwen2", use_sliding_window=True, sliding_window=4,
                               max_window_layers=first)
                self.add(("qwen2", first), raw, "", tokens=tokens)
        self.compare_all(56)


if __name__ == "__main__":
    unittest.main()
