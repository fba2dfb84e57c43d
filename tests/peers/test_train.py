"""attn train compared with the same model in PyTorch: the same initial weights, the same data, the
same loss in each step. The data are drawn here again, from NumPy's MT19937."""

import json
import unittest

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors import safe_open

from cli import CliTest

STEPS, SEED = 50, 1
# The program's defaults.
V, T, E, H, L, BATCH, LR, WARMUP, DECAY = 32, 32, 64, 2, 2, 32, 0.003, 50, 0.01


class Attention(nn.Module):
    def __init__(self, strict):
        """strict: a place does not see itself."""
        super().__init__()
        self.strict = strict
        projection = nn.Linear(E, 3 * E)
        self.in_proj_weight, self.in_proj_bias = projection.weight, projection.bias
        self.out = nn.Linear(E, E)

    def forward(self, x):
        qkv = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        q, k, v = (
            t.view(*x.shape[:2], H, E // H).transpose(1, 2) for t in qkv.split(E, dim=-1)
        )
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if self.strict:  # zeros where nothing is seen; PyTorch's call would give nan
            seen = torch.ones(T, T).tril(-1)
            scores = q @ k.mT / (E // H) ** 0.5 - 1e30 * (1 - seen)
            heads = scores.softmax(-1) * seen @ v
        return self.out(heads.transpose(1, 2).reshape(x.shape))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(E, 4 * E), nn.Linear(4 * E, E)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, mlp, strict):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(E), Attention(strict)
        if mlp:
            self.norm2, self.mlp = nn.LayerNorm(E), Mlp()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x)) if hasattr(self, "mlp") else x


class Model(nn.Module):
    """tokens: 0 for a task that draws words. answers: of the head; 0: a vector, compared with the
    words."""

    def __init__(self, tokens, mlp, answers):
        super().__init__()
        self.compares = answers == 0
        if tokens:
            self.tokens = nn.Embedding(tokens, E)
        self.places = nn.Embedding(T, E)
        self.blocks = nn.ModuleList(Block(mlp, tokens == 0 < answers) for _ in range(L))
        self.norm, self.head = nn.LayerNorm(E), nn.Linear(E, answers or E)

    def forward(self, ids, words=None):
        """words: [batch, V, E], each sequence's own embeddings, if the model has none."""
        own = words is not None
        rows = words.gather(1, ids[..., None].expand(-1, -1, E)) if own else self.tokens(ids)
        x = rows + self.places.weight
        for block in self.blocks:
            x = block(x)
        x = self.head(self.norm(x))
        return x @ words.mT * 4 / E**0.5 if self.compares else x


class Words:
    """PyTorch's generator, from NumPy."""

    def __init__(self, seed):
        self.bits = np.random.RandomState(seed)._bit_generator

    def below(self, n):
        return int(self.bits.random_raw()) * n >> 32

    def normal(self, n):
        """torch.randn of n numbers, a multiple of 16: Box and Muller's, in blocks of 16."""
        uniform = (self.bits.random_raw(n) & 0xFFFFFF) / 2.0**24
        first, second = uniform.reshape(-1, 2, 8).swapaxes(0, 1)
        radius, angle = np.sqrt(-2 * np.log(1 - first)), 2 * np.pi * second
        return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(n)


def induction(words):
    period = 6 + words.below(16 - 6 + 1)
    block = []
    while len(block) < period:
        token = words.below(V)
        if token not in block:
            block.append(token)
    tokens = [block[i % period] for i in range(T + 1)]
    return tokens[:T], [-100] * period + tokens[period + 1 :]


def copy(words):
    half = [words.below(V) for _ in range(T // 2)]
    return half + [V] + half[:-1], [-100] * len(half) + half


def any_words(words):
    kinds = 7 + words.below(31 - 7 + 1)
    tokens, targets = [], []
    while len(tokens) < T:
        token = words.below(kinds)
        if tokens and tokens[-1] == token:
            continue
        seen = [i for i, other in enumerate(tokens) if other == token]
        tokens.append(token)
        targets.append(tokens[seen[-1] + 1] if seen else -100)
    return tokens, targets, words.normal(V * E).reshape(V, E).astype("f4")


def same_word(words):
    kinds = 7 + words.below(31 - 7 + 1)
    tokens, targets = [], []
    for _ in range(T):
        token = words.below(kinds)
        seen = [i for i, other in enumerate(tokens) if other == token]
        tokens.append(token)
        targets.append(seen[-1] if seen else -100)
    return tokens, targets, words.normal(V * E).reshape(V, E).astype("f4")


# How to draw a sequence, the rows of the model's table, and its answers; 0: none.
TASKS = {"induction": (induction, V, V), "copy": (copy, V + 1, V + 1),
         "any-words": (any_words, 0, 0), "same-word": (same_word, 0, T)}


class Train(CliTest):
    def model(self, tokens, mlp, answers, path):
        model = Model(tokens, mlp, answers)
        with safe_open(self.path(path), "pt") as f:
            model.load_state_dict({name: f.get_tensor(name) for name in model.state_dict()})
        return model

    def losses(self, model, draw):
        words, losses = Words(SEED + 1), []
        optimiser = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=DECAY)
        for step in range(STEPS):
            batch = [draw(words) for _ in range(BATCH)]
            ids, targets, *own = (torch.tensor(np.array(part)) for part in zip(*batch))
            for group in optimiser.param_groups:
                group["lr"] = LR * min(1, (step + 1) / WARMUP)
            loss = F.cross_entropy(model(ids, *own).flatten(0, 1), targets.flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        return losses

    def test_same_losses(self):
        for task, (draw, tokens, answers) in TASKS.items():
            for mlp in (False, True):
                options = ["--task", task, "--seed", SEED, *(["--mlp"] * mlp)]
                self.works("train", *options, "--steps", "0", "--checkpoint", "init.st")
                report = json.loads(self.works("train", *options, "--steps", STEPS, "--json"))
                curve = next(s["tensor"] for s in report["steps"] if s["name"] == "loss")
                ours = curve["data"][1::2]
                theirs = self.losses(self.model(tokens, mlp, answers, "init.st"), draw)
                worst = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
                print(f"{task}, {'MLP' if mlp else 'attention only'}: losses differ by {worst:.1e}")
                self.assertLess(worst, 1e-3)
                self.assertLess(theirs[-1], theirs[0])  # otherwise the model learned nothing

    def test_initial_weights_are_torchs(self):
        self.works("train", "--mlp", "--seed", "7", "--steps", "0", "--checkpoint", "init.st")
        torch.manual_seed(7)
        want, got = Model(V, True, V).state_dict(), self.model(V, True, V, "init.st").state_dict()
        for name in want:
            self.assertLess((got[name] - want[name]).abs().max().item(), 1e-6, name)


if __name__ == "__main__":
    unittest.main()
