#!/usr/bin/env python3
"""Hugging Face's models with attn beside PyTorch's own attention ("sdpa"), prefill and decoding:

    make build && bench/transformers_models.py

Random weights, float32 and bfloat16, greedy, a cache that grows; the two take turns, and the best
prefill and the best token count.
"""

import argparse
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("ATTN_LIBRARY", str(ROOT / "build" / "libattn.so"))
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "peers")]

import environment  # noqa: E402
from run import PACKAGES  # noqa: E402

LAYERS = 2


def models():
    import transformers

    common = {"num_hidden_layers": LAYERS, "vocab_size": 2000, "max_position_embeddings": 8192}
    llama = {
        **common, "hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16,
        "num_key_value_heads": 4,
    }  # fmt: skip
    gemma = {
        **llama, "head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 512,
        "attn_logit_softcapping": 50.0,
    }  # fmt: skip
    gpt2 = {"n_embd": 768, "n_layer": LAYERS, "n_head": 12, "vocab_size": 2000, "n_positions": 8192}
    return {
        "Llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig(**llama), "sdpa"),
        "GPT-2": (transformers.GPT2LMHeadModel, transformers.GPT2Config(**gpt2), "sdpa"),
        # softcap: transformers has no "sdpa" for it
        "Gemma-2": (transformers.Gemma2ForCausalLM, transformers.Gemma2Config(**gemma), "eager"),
    }


def measure(model, ids, tokens):
    """Seconds of the prefill, and of the fastest token after it."""
    import torch

    with torch.inference_mode():
        start = time.perf_counter()
        out = model(ids, use_cache=True, logits_to_keep=1)
        prefill = time.perf_counter() - start
        token = 1e9
        for _ in range(tokens):
            start = time.perf_counter()
            chosen = out.logits[:, -1:].argmax(-1)
            out = model(chosen, past_key_values=out.past_key_values, use_cache=True)
            token = min(token, time.perf_counter() - start)
        return prefill, token


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--models", nargs="*", help="of Llama, GPT-2, Gemma-2")
    parser.add_argument("--lengths", type=int, nargs="*", default=[512, 2048])
    options = parser.parse_args()
    environment.enter(ROOT / "build" / "test-peers", PACKAGES)
    import torch
    import transformers

    import attn.torch

    transformers.logging.set_verbosity_error()
    attn.torch.register()
    torch.set_num_threads(options.threads)
    print("| model | type | prompt | prefill: %s | attn | ratio | token: %s | attn | ratio |"
          % ("PyTorch", "PyTorch"))
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, (cls, config, peer) in models().items():
        if options.models and name not in options.models:
            continue
        for dtype in (torch.float32, torch.bfloat16):
            torch.manual_seed(1)
            model = cls._from_config(config, attn_implementation=peer).to(dtype).eval()
            for length in options.lengths:
                ids = torch.randint(2000, (1, length))
                best = {peer: [1e9, 1e9], "attn": [1e9, 1e9]}
                for turn in range(options.rounds + 1):
                    for implementation, times in best.items():
                        model.set_attn_implementation(implementation)
                        got = measure(model, ids, options.tokens)
                        if turn:  # the first is to warm up
                            times[:] = map(min, times, got)
                (a, c), (b, d) = best.values()
                print("| %s | %s | %d | %.1f ms | %.1f ms | %.2f | %.2f ms | %.2f ms | %.2f |" % (
                    name + (" (eager)" if peer == "eager" else ""), str(dtype)[6:], length,
                    1e3 * a, 1e3 * b, a / b, 1e3 * c, 1e3 * d, c / d,
                ), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
