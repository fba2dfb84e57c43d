#!/usr/bin/env python3
"""make trained-heads: trains the heads that `attn explain` ends with, counts how often they are
right on unseen random sentences, and writes kit/explain/trained/heads.safetensors.

ATTN is the program, build/attn without it. Needs NumPy. The same instruction set gives the same
file; another one may round differently.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FILE = os.path.join(ROOT, "kit", "explain", "trained", "heads.safetensors")
LENGTH, EMBED = 36, 48
# Shorter than the training sequences: nothing ever asks for the last places of a sequence, so the
# first head does not learn them well.
LONGEST, SENTENCES = 32, 1000
COMMAND = ("attn train --task any-words --length %d --vocab %d --embed %d --heads 1 --layers 2 "
           "--batch 64 --steps 3000" % (LENGTH, LENGTH, EMBED))


def train(folder):
    """The parameters after COMMAND, as float16."""
    path = os.path.join(folder, "run.safetensors")
    attn = os.path.abspath(os.environ.get("ATTN", os.path.join(ROOT, "build", "attn")))
    subprocess.run([attn, *shlex.split(COMMAND)[1:], "--checkpoint", path, "--json"], check=True,
                   stdout=subprocess.DEVNULL)
    with open(path, "rb") as f:
        data = f.read()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    return {
        name: np.frombuffer(data[8 + size :][slice(*e["data_offsets"])], "<f4")
        .reshape(e["shape"]).astype("<f2")
        for name, e in header.items()
        if not name.startswith(("__", "optimizer.", "random.", "history."))
    }


def norm(x, p, name):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    return x * p[name + ".weight"] + p[name + ".bias"]


def weights(p, x):
    """The attention weights of both layers for embeddings x [T,E]."""
    x, maps = x + p["places.weight"][: len(x)], []
    for layer in ("blocks.0.", "blocks.1."):
        at = layer + "attention."
        qkv = norm(x, p, layer + "norm1") @ p[at + "in_proj_weight"].T + p[at + "in_proj_bias"]
        q, k, v = np.split(qkv, 3, axis=-1)
        scores = np.where(np.tri(len(x), dtype=bool), q @ k.T / np.sqrt(q.shape[-1]), -np.inf)
        a = np.exp(scores - scores.max(-1, keepdims=True))
        a /= a.sum(-1, keepdims=True)
        maps.append(a)
        x = x + a @ v @ p[at + "out.weight"].T + p[at + "out.bias"]
    return maps


def count(p):
    """How often the largest weight is on the word before, and on what followed the last
    appearance of the word."""
    rng, right, places = np.random.default_rng(2026), np.zeros(2), np.zeros(2)
    for _ in range(SENTENCES):
        kinds, words = rng.integers(LONGEST // 4, LONGEST), []
        while len(words) < LONGEST:
            word = int(rng.integers(kinds))
            if not words or words[-1] != word:
                words.append(word)
        first, second = weights(p, rng.standard_normal((LONGEST, EMBED))[words])
        for i in range(1, LONGEST):
            right[0] += first[i].argmax() == i - 1
            places[0] += 1
            if words[i] in words[:i]:
                last = max(j for j in range(i) if words[j] == words[i])
                right[1] += second[i].argmax() == last + 1
                places[1] += 1
    return right / places


def write(p, scores):
    metadata = {"format": "attn.heads/1", "command": COMMAND, "length": str(LENGTH),
                "embed": str(EMBED), "longest": str(LONGEST), "sentences": str(SENTENCES),
                "score.previous": "%.4f" % scores[0], "score.followed": "%.4f" % scores[1]}
    header, at = {"__metadata__": metadata}, 0
    for name, value in p.items():
        header[name] = {"dtype": "F16", "shape": list(value.shape),
                        "data_offsets": [at, at + value.nbytes]}
        at += value.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    with open(FILE, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for value in p.values():
            f.write(value.tobytes())


def main():
    with tempfile.TemporaryDirectory() as folder:
        p = train(folder)
    scores = count({name: value.astype("f8") for name, value in p.items()})
    print("the word before: %.2f %%; what followed: %.2f %%" % tuple(100 * scores))
    if scores.min() < 0.95:
        sys.exit("heads.safetensors stays as it is: both heads must be right in 95 %")
    write(p, scores)
    print("%s: %d bytes" % (os.path.relpath(FILE, ROOT), os.path.getsize(FILE)))


if __name__ == "__main__":
    main()
