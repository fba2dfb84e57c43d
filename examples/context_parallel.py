#!/usr/bin/env python3
"""Trains a two-layer model twice: on one process, and on two that share each sequence.

    python3 examples/context_parallel.py     (with attn installed, and PyTorch)

The task: each token must name the first letter of its sequence. So tokens must attend to one that
another process may have. Every 10 steps one line has the step and the loss of both ways. They
differ only by rounding, because the gradients of key and value are added in another order.

The parts that a sequence split between processes needs are marked with (1) to (4). Each process has
the whole model, and the queries, keys and values of half of the tokens.
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F

import attn.torch

LETTERS, TOKENS, BATCH, WIDTH, HEADS, STEPS = 8, 256, 8, 32, 2, 100


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, attention):
        B, T, _ = x.shape  # T: tokens of this process
        qkv = self.qkv(self.before(x)).view(B, T, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        y = attention(*qkv, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, WIDTH))
        return x + self.narrow(F.gelu(self.wide(self.after(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.last = nn.Linear(WIDTH, LETTERS)

    def forward(self, letters, places, attention):
        x = self.letters(letters) + self.places(places)
        for layer in self.layers:
            x = layer(x, attention)
        return self.last(x)


def batch(generator):
    """Letters, and for each token the answer: the first letter of its sequence."""
    letters = torch.randint(LETTERS, (BATCH, TOKENS), generator=generator)
    return letters, letters[:, :1].expand(BATCH, TOKENS)


def train(attention, positions, add_up):
    """The losses. positions: the tokens of this process. add_up(x): x becomes the sum over all
    processes."""
    torch.manual_seed(1)  # all processes have the same weights and the same letters
    model, generator = Model(), torch.Generator().manual_seed(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(STEPS):
        letters, answers = batch(generator)
        # (1) Everything but attention needs only the tokens of this process.
        guess = model(letters[:, positions], positions, attention)
        own = answers[:, positions].flatten()
        loss = F.cross_entropy(guess.flatten(0, 1), own, reduction="sum")
        loss = loss / answers.numel()  # so that the sum over all processes is a mean
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            add_up(p.grad)  # (2) Each process has what its own tokens add to the gradients.
        optimizer.step()
        losses.append(add_up(loss.detach()).item())
    return losses


def process(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + folder + "/meet", rank=rank,
                            world_size=2)  # fmt: skip
    attention = attn.torch.context_parallel(deadline=60)  # (3) instead of attn.torch's function

    def add_up(x):
        dist.all_reduce(x)
        return x

    losses = train(attention, attention.positions(TOKENS), add_up)  # (4)
    if rank == 0:
        torch.save(losses, folder + "/losses")
    attention.close()
    dist.destroy_process_group()


def main():
    torch.set_num_threads(1)
    one = train(attn.torch.scaled_dot_product_attention, torch.arange(TOKENS), lambda x: x)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(process, (os.path.abspath(folder),), nprocs=2)
        two = torch.load(folder + "/losses")
    print("step  one process  two processes")
    for step in range(0, STEPS, STEPS // 10):
        print("%4d  %11.6f  %13.6f" % (step, one[step], two[step]))
    most = max(abs(a - b) for a, b in zip(one, two))
    print("The largest difference is %.1e." % most)
    print("The curves agree." if most < 1e-3 else "The curves differ.")


if __name__ == "__main__":
    main()
