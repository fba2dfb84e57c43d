#!/usr/bin/env python3
"""Times Hugging Face's models with attn and with PyTorch's own attention ("sdpa"), prefill and
decoding:

    make build && bench/transformers_models.py

Random weights, float32 and bfloat16, greedy, a growing cache. The two run alternately. They also
alternate within one generation, two tokens each, of which the second counts. The table has the
shortest prefill, the first decile of the times of a token, and the median ratio of neighbouring
tokens, because a shared machine's speed changes by more than attention's share of a token.
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


def measure(model, ids, tokens, order, prefills, times):
    """Appends the seconds of a prefill of each implementation, and of `tokens` tokens of each."""
    import torch

    def timed(implementation, seconds, **inputs):
        model.set_attn_implementation(implementation)
        start = time.perf_counter()
        out = model(use_cache=True, logits_to_keep=1, **inputs)
        chosen = out.logits[:, -1:].argmax(-1)
        seconds.append(time.perf_counter() - start)
        return {"input_ids": chosen, "past_key_values": out.past_key_values}

    with torch.inference_mode():
        for implementation in order:
            state = timed(implementation, prefills[implementation], input_ids=ids)
        for _ in range(tokens):
            for implementation in order:
                state = timed(implementation, [], **state)
                state = timed(implementation, times[implementation], **state)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
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
                ways = [peer, "attn"]
                for turn in range(options.rounds + 1):
                    if turn < 2:  # the first is to warm up
                        prefills, times = ({w: [] for w in ways} for _ in range(2))
                    measure(model, ids, options.tokens, ways[:: (-1) ** turn], prefills, times)
                a, b = (min(prefills[w]) for w in ways)
                c, d = (sorted(times[w])[len(times[w]) // 10] for w in ways)
                ratios = sorted(x / y for x, y in zip(*(times[w] for w in ways)))
                print("| %s | %s | %d | %.1f ms | %.1f ms | %.2f | %.2f ms | %.2f ms | %.2f |" % (
                    name + (" (eager)" if peer == "eager" else ""), str(dtype)[6:], length,
                    1e3 * a, 1e3 * b, a / b, 1e3 * c, 1e3 * d, ratios[len(ratios) // 2],
                ), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
