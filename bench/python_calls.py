#!/usr/bin/env python3
"""The time of a small call from Python: the package's functions, the C call inside them, and
PyTorch's function of the same name, in one process, in alternating runs. The minimum counts.

Makes the environment of peers.py (build/peers) if it is not there yet.
"""

import argparse
import os
import sys
from pathlib import Path

import environment
import peers
import race

ROOT = Path(__file__).resolve().parent.parent


def calls(threads):
    """Pairs of a name and a function. Each C call comes before the function that contains it."""
    import numpy as np
    import torch
    import torch.nn.functional as F

    import attn
    from attn import _array, _context, _library, _sdpa

    torch.set_num_threads(threads)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, 6, 16)).astype("f4") for _ in range(3))
    mask, out = np.tri(6, dtype=bool), np.empty_like(q)
    theirs = [torch.from_numpy(x) for x in (q, k, v)]
    their_mask = torch.from_numpy(mask)
    numbers = sum((_array.view(x, "x") for x in (q, k, v, out)), ())
    packed, _ = _sdpa.arguments(numbers, 1)
    forward, context = _library.library.attn_sdpa_forward, _context.context(threads)
    ours, torchs = attn.scaled_dot_product_attention, F.scaled_dot_product_attention
    if np.abs(ours(q, k, v) - torchs(*theirs).numpy()).max() > 1e-5:
        sys.exit("python_calls.py: the results differ")

    def inference():
        with torch.inference_mode():
            for _ in range(100):
                torchs(*theirs)

    def times(function, n=100):
        def repeated():
            for _ in range(n):
                function()

        return repeated

    more = {"threads": threads}
    yield "attn_sdpa_forward, by ctypes", times(lambda: forward(context, packed, None))
    yield "nothing, by ctypes", times(lambda: _library.library.attn_context_threads(None))
    yield "attn", times(lambda: ours(q, k, v, **more))
    yield "torch", times(lambda: torchs(*theirs))
    yield "torch, inference_mode", inference
    yield "attn, is_causal", times(lambda: ours(q, k, v, is_causal=True, **more))
    yield "torch, is_causal", times(lambda: torchs(*theirs, is_causal=True))
    yield "attn, mask", times(lambda: ours(q, k, v, mask=mask, **more))
    yield "torch, mask", times(lambda: torchs(*theirs, attn_mask=their_mask))
    yield "attn, out", times(lambda: ours(q, k, v, out=out, **more))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=10, help="in all (10)")
    parser.add_argument("--threads", type=int, default=1, help="of each (1)")
    parser.add_argument("--library", default=ROOT / "build" / "libattn.so")
    options = parser.parse_args()
    environment.enter(peers.ENVIRONMENT, peers.PACKAGES)
    os.environ["ATTN_LIBRARY"] = str(options.library)
    sys.path.insert(0, str(ROOT / "python"))
    players = [race.Player(name, "", call) for name, call in calls(options.threads)]
    race.race(players, options.seconds)
    print("q, k, v (1, 1, 6, 16) float32; microseconds a call, the least of many")
    for p in players:
        print("%-32s %6.2f" % (p.who, p.best / 100 * 1e6))


if __name__ == "__main__":
    main()
