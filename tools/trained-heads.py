#!/usr/bin/env python3
"""make trained-heads: trains the heads that `attn explain` ends with, counts how often they are
right on unseen random sentences, and writes kit/explain/trained/{followed,same}.safetensors.

ATTN is the program, build/attn without it; an argument names one of the two files. Needs NumPy.
The same instruction set gives the same files; another one may round differently.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDER = os.path.join(ROOT, "kit", "explain", "trained")
LENGTH, EMBED = 36, 48
# Shorter than the training sequences: nothing ever asks for the last places of a sequence, so the
# first head does not learn them well.
LONGEST, SENTENCES = 32, 1000
COMMAND = "attn train --task %%s --length %d --vocab %d --embed %d --heads 1 --layers %%d %%s" % (
    LENGTH, LENGTH, EMBED)
# Of each file: the task, how long, what the head of each layer has learned, and the last place that
# a word sees, counted from its own.
FILES = {"followed": ("any-words", "--batch 64 --steps 3000", ["previous", "followed"], 0),
         "same": ("same-word", "--batch 16 --steps 1300 --lr 0.005", ["same"], -1)}


def train(command, folder):
    """The parameters after the command, as float16."""
    path = os.path.join(folder, "run.safetensors")
    attn = os.path.abspath(os.environ.get("ATTN", os.path.join(ROOT, "build", "attn")))
    subprocess.run([attn, *shlex.split(command)[1:], "--checkpoint", path, "--json"], check=True,
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


def weights(p, x, sees):
    """The attention weights of each layer for embeddings x [T,E]."""
    x, maps = x + p["places.weight"][: len(x)], []
    for layer in sorted({name[: len("blocks.0.")] for name in p if name.startswith("blocks.")}):
        at = layer + "attention."
        qkv = norm(x, p, layer + "norm1") @ p[at + "in_proj_weight"].T + p[at + "in_proj_bias"]
        q, k, v = np.split(qkv, 3, axis=-1)
        seen = np.tri(len(x), k=sees, dtype=bool)
        scores = np.where(seen, q @ k.T / np.sqrt(q.shape[-1]), -np.inf)
        a = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e300))
        a /= np.maximum(a.sum(-1, keepdims=True), 1e-300)  # a word that sees nothing: zeros
        maps.append(a)
        x = x + a @ v @ p[at + "out.weight"].T + p[at + "out.bias"]
    return maps


def right_place(rule, words, i):
    """Where the largest weight of word i should be; None: nowhere."""
    if rule == "previous":
        return i - 1
    if words[i] not in words[:i]:
        return None
    return max(j for j in range(i) if words[j] == words[i]) + (rule == "followed")


def count(p, rules, sees):
    """How often the largest weight of each layer is where its rule says."""
    rng = np.random.default_rng(2026)
    right, places = np.zeros(len(rules)), np.zeros(len(rules))
    for _ in range(SENTENCES):
        kinds, words = rng.integers(LONGEST // 4, LONGEST), []
        while len(words) < LONGEST:
            word = int(rng.integers(kinds))
            if not words or words[-1] != word:
                words.append(word)
        maps = weights(p, rng.standard_normal((LONGEST, EMBED))[words], sees)
        for k, rule in enumerate(rules):
            for i in range(1, LONGEST):
                place = right_place(rule, words, i)
                places[k] += place is not None
                right[k] += place is not None and maps[k][i].argmax() == place
    return right / places


def write(path, command, p, scores):
    metadata = {"format": "attn.heads/1", "command": command, "length": str(LENGTH),
                "embed": str(EMBED), "longest": str(LONGEST), "sentences": str(SENTENCES),
                **{"score." + rule: "%.4f" % score for rule, score in scores.items()}}
    header, at = {"__metadata__": metadata}, 0
    for name, value in p.items():
        header[name] = {"dtype": "F16", "shape": list(value.shape),
                        "data_offsets": [at, at + value.nbytes]}
        at += value.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for value in p.values():
            f.write(value.tobytes())


def make(name):
    task, how_long, rules, sees = FILES[name]
    command = COMMAND % (task, len(rules), how_long)
    path = os.path.join(FOLDER, name + ".safetensors")
    with tempfile.TemporaryDirectory() as folder:
        p = train(command, folder)
    p64 = {n: value.astype("f8") for n, value in p.items()}
    scores = dict(zip(rules, count(p64, rules, sees)))
    print("; ".join("%s: %.2f %%" % (rule, 100 * score) for rule, score in scores.items()))
    if min(scores.values()) < 0.95:
        sys.exit(name + ".safetensors stays as it is: each head must be right in 95 %")
    write(path, command, p, scores)
    print("%s: %d bytes" % (os.path.relpath(path, ROOT), os.path.getsize(path)))


def main():
    for name in sys.argv[1:] or FILES:
        make(name)


if __name__ == "__main__":
    main()
