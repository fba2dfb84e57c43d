"""The model of `make demo-model`, a trained BERT, compared with transformers: the attention weights
and the output of each layer, the vector of a sentence, and the scores of --find."""

import json
import os
import subprocess
import unittest
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from transformers import BertModel

from cli import CliTest

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "build" / "minilm"
TEXTS = [
    ("The animal didn't cross the street because it was too tired",),
    ("Life is short, eat dessert last. Größe, naïve 12345 😀",),
    ("Is the street wide?", "The animal was too tired to cross it."),
    ("word, " * 60,),
]
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


class DemoModel(CliTest):
    @classmethod
    def setUpClass(cls):
        done = subprocess.run([ROOT / "tools" / "demo-model.sh", "install"], capture_output=True,
                              text=True)
        if done.returncode:
            raise unittest.SkipTest("not run: " + done.stderr.strip())
        cls.model = BertModel.from_pretrained(MODEL, attn_implementation="eager").eval()
        cls.tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
        cls.tokenizer.no_padding()
        cls.tokenizer.no_truncation()

    def run_model(self, *texts):
        encoding = self.tokenizer.encode(*texts)
        with torch.no_grad():
            return encoding.ids, self.model(
                torch.tensor([encoding.ids]), token_type_ids=torch.tensor([encoding.type_ids]),
                output_attentions=True, output_hidden_states=True)

    def explain(self, layer, text, pair=None):
        more = ["--text-pair", pair] if pair else []
        out = json.loads(self.works("explain", "--json", "--model", MODEL, "--layer", layer, *more,
                                    text))
        return {s["name"]: np.array([float(x) for x in s["tensor"]["data"]]).reshape(
            s["tensor"]["shape"]) for s in out["steps"]}

    def near(self, got, want, what, bound):
        want = want.double().numpy()
        self.assertEqual(got.shape, want.shape, what)
        self.assertLessEqual(np.abs(got - want).max(), bound * np.abs(want).max(), what)

    def test_every_layer(self):
        for texts in TEXTS:
            ids, want = self.run_model(*texts)
            for layer in range(6):
                step = self.explain(layer + 1, *texts)
                self.assertEqual(step["token_ids"].tolist(), ids)
                self.near(step["weights"], want.attentions[layer][0], ("weights", layer), 2e-5)
                self.near(step["output"], want.hidden_states[layer + 1][0], ("output", layer), 1e-4)
                rows = step["weights"].sum(-1)
                self.assertLess(np.abs(rows - 1).max(), 1e-5)

    def test_sentence_vectors(self):
        """The model's own pooling: the mean of the last layer's rows, as a vector of length 1. A
        sentence is nearer to its paraphrase than to another sentence."""
        vectors = []
        for text in ("A man is eating food.", "Someone has a meal.", "The sky is cloudy today."):
            _, want = self.run_model(text)
            mean = want.last_hidden_state[0].mean(0)
            got = self.explain(6, text)["output"].mean(0)
            vectors.append(got / np.linalg.norm(got))
            self.near(vectors[-1], mean / mean.norm(), text, 1e-5)
        self.assertGreater(vectors[0] @ vectors[1], 0.3 + vectors[0] @ vectors[2])

    def test_a_head_for_the_previous_token(self):
        lines = [t[0] for t in TEXTS[:3]]
        self.write("s.txt", "\n".join(lines).encode())
        out = json.loads(self.works("explain", "--json", "--model", MODEL, "--find", "previous",
                                    "--sentences", "s.txt"))
        total, count = torch.zeros(6, 12, dtype=torch.double), 0
        for line in lines:
            ids, want = self.run_model(line)
            weights = torch.stack(want.attentions)[:, 0].double()
            total += weights.diagonal(-1, 2, 3).sum(-1)
            count += len(ids) - 1
        self.assertEqual(out["queries"], count)
        for h in out["heads"]:
            self.assertAlmostEqual(h["score"], float(total[h["layer"] - 1, h["head"] - 1]) / count,
                                   delta=1e-5)
        self.assertEqual((out["heads"][0]["layer"], out["heads"][0]["head"]), (1, 3))
        self.assertGreater(out["heads"][0]["score"], 0.99)


if __name__ == "__main__":
    unittest.main()
