"""Compares models with transformers: the input and output of each layer, attention, the next
token's probabilities, and generated tokens. The models are small and random, created here and saved
in the usual way, so nothing is downloaded."""

import json
import os
import re
import tempfile
import unittest

import numpy as np
import torch
import transformers
from tokenizers import normalizers, processors
from transformers import (
    BertConfig, BertForMaskedLM, BertModel, DistilBertConfig, DistilBertModel, GPT2Config,
    GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config,
    Qwen2ForCausalLM, RobertaConfig, RobertaModel,
)

from cli import CliTest
from test_tokenizers import LLAMA3, QWEN2, bert, gpt2, roberta, sentence_piece, split

TEXT = "Life is short, eat dessert last. 😀 naïve 12345"
SIZES = dict(hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=80)
LLAMA3_ROPE = dict(
    rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=16,
)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def made(kind, config):
    """A model whose weights, biases and norms are larger than freshly initialised ones, so that
    attention is not uniform and nothing is 0 or 1 by default."""
    torch.manual_seed(5)
    config._attn_implementation = "eager"
    model = kind(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                p.copy_(torch.randn_like(p) * 0.2)
            else:
                p.copy_(torch.randn_like(p) * 0.3 + (p.dim() == 1))
    return model


class Models(CliTest):
    def save(self, model, tokenizer, **how):
        folder = tempfile.mkdtemp(dir=self.folder)
        model.save_pretrained(folder, **how)
        tokenizer.save(os.path.join(folder, "tokenizer.json"))
        return folder

    def near(self, got, want, what):
        want = want.detach().double().numpy()
        got = np.array(got["data"], float).reshape(got["shape"])
        self.assertEqual(got.shape, want.shape, what)
        worst = np.abs(got - want).max()
        self.assertLessEqual(worst, 1e-4 * np.abs(want).max(), what)

    def layer(self, folder, layer, *more):
        flags = ["--json", "--model", folder, "--layer", layer]
        out = json.loads(self.works("explain", *flags, *more))
        return out, {s["name"]: s["tensor"] for s in out["steps"]}

    def compare(self, model, tokenizer, pair=None, folder=None, text=TEXT):
        encoding = tokenizer.encode(text) if pair is None else tokenizer.encode(text, pair)
        ids, types = torch.tensor([encoding.ids]), torch.tensor([encoding.type_ids])
        more = {"token_type_ids": types} if pair else {}
        with torch.no_grad():
            want = model(ids, output_hidden_states=True, output_attentions=True, **more)
        folder = folder or self.save(model, tokenizer)
        layers = len(want.attentions)
        flags = ["--text-pair", pair] if pair else []
        for n in range(layers):
            out, step = self.layer(folder, n + 1, *flags, text)
            self.assertEqual(step["token_ids"]["data"], encoding.ids)
            self.near(step["embeddings"], want.hidden_states[n][0], ("input", n))
            self.near(step["weights"], want.attentions[n][0], ("attention", n))
            if n + 1 < layers or not hasattr(want, "logits"):
                self.near(step["output"], want.hidden_states[n + 1][0], ("output", n))
            weights = np.array(step["weights"]["data"]).reshape(step["weights"]["shape"])
            self.assertGreater(weights.max(), 2.0 / len(encoding.ids), "attention is not flat")
        one = self.layer(folder, 2, "--head", 3, *flags, text)[1]["weights"]
        self.near(one, want.attentions[1][0, 2], "one head")
        return folder, want, step

    # ------------------------------------------------------------------------------- Encoders

    def bert_config(self, kind, t, **more):
        return kind(vocab_size=t.get_vocab_size(), max_position_embeddings=80, **SIZES, **more)

    def test_bert(self):
        t = bert(True)
        model = made(BertModel, self.bert_config(BertConfig, t))
        self.compare(model, t)
        self.compare(model, t, pair="It's Größe, [MASK]!")

    def test_bert_cased_with_a_head_and_other_activations(self):
        t = bert(False)
        for act in ("gelu_new", "relu", "silu", "quick_gelu"):
            config = self.bert_config(BertConfig, t, hidden_act=act)
            model = made(BertForMaskedLM, config)
            folder = self.save(model, t)
            self.compare(model.bert, t, folder=folder)

    def test_bert_of_old_files(self):
        t = bert(True)
        model = made(BertModel, self.bert_config(BertConfig, t))
        folder = self.save(model, t)
        names = {
            "bert." + k.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            ): v.contiguous()
            for k, v in model.state_dict().items()
        }
        from safetensors.torch import save_file

        save_file(names, os.path.join(folder, "model.safetensors"))
        os.remove(os.path.join(folder, "tokenizer.json"))
        t.model.save(folder)
        self.compare(model, t, folder=folder)

    def test_roberta(self):
        t = roberta()
        model = made(RobertaModel, self.bert_config(
            RobertaConfig, t, type_vocab_size=1, pad_token_id=1, layer_norm_eps=1e-5))
        self.compare(model, t)
        self.compare(model, t, text="a <pad> b <mask> c d")

    def test_distilbert(self):
        t = bert(True)
        model = made(DistilBertModel, DistilBertConfig(
            vocab_size=t.get_vocab_size(), dim=48, n_layers=3, n_heads=4, hidden_dim=80,
            max_position_embeddings=80))
        self.compare(model, t)

    # ------------------------------------------------------------------------------- Decoders

    def decode(self, model, t, **how):
        folder, want, step = self.compare(model, t)
        probability = torch.softmax(want.logits[0, -1].double(), 0)
        top = torch.topk(probability, 5)
        self.assertEqual(step["next_token_ids"]["data"], top.indices.tolist())
        self.near(step["next_tokens"], top.values[:, None], "next token")
        self.generate(folder, model, t, 40)
        return folder

    def text_of(self, t, ids):
        """tokenizers drops the first space, and next to an invalid byte all other byte tokens; the
        program does neither."""
        text = t.decode(ids, skip_special_tokens=False)
        if not json.loads(t.to_str())["model"]["byte_fallback"]:
            return text
        pieces = [t.id_to_token(i) for i in ids]
        whole = b"".join(
            bytes([int(p[3:5], 16)]) if re.fullmatch("<0x[0-9A-F]{2}>", p)
            else p.replace("\u2581", " ").encode() for p in pieces
        ).decode(errors="replace")
        if "\ufffd" not in text:
            self.assertEqual(whole.removeprefix(" "), text)
        return whole

    def generate(self, folder, model, t, tokens, prompt="Life is"):
        ids = torch.tensor([t.encode(prompt).ids])
        want = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False,
        )[0].tolist()
        out = self.attn("generate", "--json", "--model", folder, "--tokens", tokens, prompt)
        self.assertEqual((out.returncode, out.stderr), (0, b""))
        got = json.loads(out.stdout)
        self.assertEqual(got["prompt_ids"], ids[0].tolist())
        self.assertEqual(got["ids"], want[ids.shape[1]:])
        ends = model.generation_config.eos_token_id
        shown = [i for i in got["ids"] if i != ends]
        # There is no standard for the number of U+FFFD in place of invalid bytes.
        text = self.text_of(t, shown)
        self.assertEqual(re.sub("\ufffd+", "?", got["text"]), re.sub("\ufffd+", "?", text))

    def gpt2_config(self, t, **more):
        return GPT2Config(
            vocab_size=t.get_vocab_size(), n_embd=48, n_layer=3, n_head=4, n_positions=128,
            bos_token_id=0, eos_token_id=0, **more)

    def test_gpt2(self):
        t = gpt2()
        self.decode(made(GPT2LMHeadModel, self.gpt2_config(t)), t)

    def test_gpt2_other_options(self):
        t = gpt2()
        self.decode(made(GPT2LMHeadModel, self.gpt2_config(
            t, n_inner=100, activation_function="gelu", scale_attn_weights=False,
            tie_word_embeddings=False)), t)

    def llama_config(self, kind, t, **more):
        return kind(
            vocab_size=t.get_vocab_size(), max_position_embeddings=128, num_key_value_heads=2,
            bos_token_id=0, eos_token_id=1, **SIZES, **more)

    def test_llama(self):
        t = split(LLAMA3)
        self.decode(made(LlamaForCausalLM, self.llama_config(LlamaConfig, t)), t)

    def test_llama_other_options(self):
        t = split(LLAMA3)
        config = self.llama_config(
            LlamaConfig, t, tie_word_embeddings=True, attention_bias=True, mlp_bias=True,
            head_dim=20, rope_parameters=LLAMA3_ROPE)
        self.decode(made(LlamaForCausalLM, config), t)

    def test_llama_with_sentence_piece(self):
        t = sentence_piece()
        self.decode(made(LlamaForCausalLM, self.llama_config(LlamaConfig, t)), t)

    def test_linear_rotation(self):
        t = split(LLAMA3)
        config = self.llama_config(LlamaConfig, t, rope_parameters=dict(
            rope_type="linear", rope_theta=100.0, factor=3.0))
        self.decode(made(LlamaForCausalLM, config), t)

    def test_mistral_with_a_window(self):
        t = split(LLAMA3)
        config = self.llama_config(MistralConfig, t, sliding_window=5)
        self.decode(made(MistralForCausalLM, config), t)

    def test_qwen2(self):
        t = split(QWEN2, normalizers.NFC())
        self.decode(made(Qwen2ForCausalLM, self.llama_config(Qwen2Config, t)), t)

    # ------------------------------------------------------------------------- Types and shards

    def test_half_precision(self):
        t = split(LLAMA3)
        for dtype in (torch.bfloat16, torch.float16):
            model = made(LlamaForCausalLM, self.llama_config(LlamaConfig, t)).to(dtype)
            folder = self.save(model, t)
            self.compare(
                LlamaForCausalLM.from_pretrained(
                    folder, dtype=torch.float32, attn_implementation="eager"
                ), t, folder=folder)

    def test_shards(self):
        t = gpt2()
        model = made(GPT2LMHeadModel, self.gpt2_config(t))
        folder = self.save(model, t, max_shard_size="200KB")
        self.assertTrue(os.path.exists(os.path.join(folder, "model.safetensors.index.json")))
        self.compare(model, t, folder=folder)

    # -------------------------------------------------------------------------------- Sampling

    def test_sampling(self):
        """The drawn tokens follow the model's probabilities among the top tokens: chi-square test
        of 300 tokens."""
        t = gpt2()
        model = made(GPT2LMHeadModel, self.gpt2_config(t))
        folder = self.save(model, t)
        ids = torch.tensor([t.encode("Life").ids])
        p = torch.softmax(model(ids).logits[0, -1].double() / 1.5, 0)
        top = torch.topk(p, 4)
        wanted = (top.values / top.values.sum()).tolist()
        counts = dict.fromkeys(top.indices.tolist(), 0)
        for seed in range(300):
            out = json.loads(self.attn(
                "generate", "--json", "--model", folder, "--tokens", 1, "--temperature", "1.5",
                "--top-k", 4, "--seed", seed, "Life").stdout)
            counts[out["ids"][0]] += 1  # KeyError: not among the four
        chi = sum((counts[i] - 300 * w) ** 2 / (300 * w) for i, w in zip(counts, wanted))
        self.assertLess(chi, 16.3)  # probability 0.1 %, 3 degrees of freedom


if __name__ == "__main__":
    unittest.main()
