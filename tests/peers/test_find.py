"""attn explain --find compared with the attention weights of transformers' models: for each kind of
token, a matrix of the pairs that count is made here, and multiplied with the weights."""

import json
import os
import tempfile
import unittest

import numpy as np
import torch
from transformers import (
    BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM,
    RobertaConfig, RobertaModel,
)

from cli import CliTest
from test_models import SIZES, made
from test_tokenizers import LLAMA3, bert, gpt2, roberta, split

KINDS = "previous next same induction separator first self".split()
SENTENCES = [
    "Life is short. Life is good, is it not?", "eat dessert last, eat it first, eat", "naïve 😀 123",
    "the cat saw the dog, the dog saw the cat.",
]


def pairs(kind, ids, ends):
    """[T,T]: whether the key (column) counts for the query (row), masks aside."""
    T = len(ids)
    ids = torch.tensor(ids)
    other = ~torch.eye(T, dtype=torch.bool)
    same = (ids[:, None] == ids[None]) & other
    first = torch.zeros(T, T, dtype=torch.bool)
    first[1:, 0] = True
    behind = torch.zeros(T, T, dtype=torch.bool)
    behind[:, 1:] = same[:, :-1]
    return {
        "previous": torch.diag(torch.ones(T - 1), -1).bool(),
        "next": torch.diag(torch.ones(T - 1), 1).bool(),
        "same": same,
        "induction": behind & other,
        "separator": torch.isin(ids, torch.tensor(list(ends)))[None].expand(T, T),
        "first": first,
        "self": ~other,
    }[kind]


class Find(CliTest):
    def save(self, model, tokenizer):
        folder = tempfile.mkdtemp(dir=self.folder)
        model.save_pretrained(folder)
        tokenizer.save(os.path.join(folder, "tokenizer.json"))
        return folder

    def compare(self, model, tokenizer, ends, causal=False, window=0):
        folder = self.save(model, tokenizer)
        self.write("s.txt", "\n".join(SENTENCES).encode())
        texts = [tokenizer.encode(s).ids for s in SENTENCES]
        with torch.no_grad():
            maps = [torch.stack(model(torch.tensor([ids]), output_attentions=True).attentions)[:, 0]
                    for ids in texts]
        for kind in KINDS:
            if causal and kind == "next":
                continue
            with self.subTest(kind=kind):
                self.compare_kind(kind, folder, texts, maps, ends, causal, window)

    def compare_kind(self, kind, folder, texts, maps, ends, causal, window):
        total, even, queries = 0, 0, 0
        for ids, weights in zip(texts, maps):
            seen = torch.ones(len(ids), len(ids), dtype=torch.bool)
            seen = seen.tril() if causal else seen
            hits = pairs(kind, ids, ends) & seen
            near = seen.triu(1 - window) if window else seen
            queries += int(hits.any(1).sum())
            total = total + (weights.double() * hits).sum((2, 3))
            even += float(((hits & near).sum(1) / near.sum(1)).double().sum())
        self.assertGreater(queries, 0)
        out = json.loads(self.works("explain", "--json", "--model", folder, "--find", kind,
                                    "--sentences", "s.txt"))
        self.assertEqual((out["queries"], out["tokens"]), (queries, sum(map(len, texts))))
        got = torch.full(total.shape, torch.nan, dtype=torch.double)
        for h in out["heads"]:
            got[h["layer"] - 1, h["head"] - 1] = h["score"]
        worst = float((got - total / queries).abs().max())
        self.assertLessEqual(worst, 2e-5)
        np.testing.assert_allclose(out["equal_attention"], even / queries, rtol=1e-6)
        self.assertGreater(float(total.max() / total.min().clamp(min=1e-9)), 1.1)

    def test_bert(self):
        t = bert(True)
        config = BertConfig(vocab_size=t.get_vocab_size(), max_position_embeddings=80, **SIZES)
        self.compare(made(BertModel, config), t, {t.token_to_id("[SEP]")})

    def test_roberta(self):
        t = roberta()
        config = RobertaConfig(vocab_size=t.get_vocab_size(), max_position_embeddings=80,
                               type_vocab_size=1, pad_token_id=1, layer_norm_eps=1e-5, **SIZES)
        self.compare(made(RobertaModel, config), t, {2})

    def test_gpt2(self):
        t = gpt2()
        comma = t.encode(",").ids[0]
        config = GPT2Config(vocab_size=t.get_vocab_size(), n_embd=48, n_layer=3, n_head=4,
                            n_positions=128, bos_token_id=0, eos_token_id=comma)
        self.compare(made(GPT2LMHeadModel, config), t, {comma}, causal=True)

    def test_mistral_with_a_window(self):
        t = split(LLAMA3)
        comma = t.encode("a,").ids[-1]
        config = MistralConfig(
            vocab_size=t.get_vocab_size(), max_position_embeddings=128, num_key_value_heads=2,
            bos_token_id=0, eos_token_id=comma, sliding_window=5, **SIZES)
        self.compare(made(MistralForCausalLM, config), t, {comma}, causal=True, window=5)


if __name__ == "__main__":
    unittest.main()
