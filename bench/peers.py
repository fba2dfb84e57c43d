#!/usr/bin/env python3
"""libattn beside PyTorch, in one process, turn and turn about.

    bench/peers.py [--library build/libattn.so] [--seconds 4] [--threads 1]

Makes its own virtual environment (build/peers) with PyTorch from PyPI. Each cell is the minimum of
many calls, the two libraries taking turns, so that whatever else the machine does meets both. The
peak is the library's own loop of multiply-adds, measured between the turns. Losing cells are shown.
"""

import argparse
import ctypes
import os
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / "build" / "peers"
PACKAGES = ["torch==2.13.0", "numpy"]

# B, H, T, S, D, causal
CELLS = [
    (1, 12, 32, 32, 64, False),
    (1, 12, 128, 128, 64, False),
    (1, 12, 512, 512, 64, False),
    (1, 8, 1000, 1000, 80, False),
    (1, 8, 2048, 2048, 64, False),
    (1, 8, 2048, 2048, 64, True),
    (1, 8, 2048, 2048, 128, False),
    (1, 8, 2048, 2048, 128, True),
]


def enter_environment():
    """Runs this script again with the environment's Python, which has the peers."""
    python = ENVIRONMENT / "bin" / "python"
    if Path(sys.prefix) == ENVIRONMENT:
        return
    if not (ENVIRONMENT / "ready").exists():
        print("installing", *PACKAGES, "into", ENVIRONMENT.relative_to(ROOT), file=sys.stderr)
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        (ENVIRONMENT / "ready").touch()
    os.execv(python, [str(python), *sys.argv])


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("shape", ctypes.c_int64 * 4),
        ("stride", ctypes.c_int64 * 4),
    ]


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("threads", ctypes.c_int),
        ("isa", ctypes.c_char_p),
        ("hooks", ctypes.c_void_p * 5),
    ]


class Args(ctypes.Structure):
    """The head of attn_sdpa_args; the library takes a shorter struct and fills in the rest."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("out", Tensor),
        ("scale", ctypes.c_double),
        ("causal", ctypes.c_int),
        ("causal_offset", ctypes.c_int64),
        ("window_left", ctypes.c_int64),
        ("window_right", ctypes.c_int64),
    ]


def tensor(t):
    four = ctypes.c_int64 * 4
    return Tensor(t.data_ptr(), 2, four(*t.shape), four(*t.stride()))


def load(path, threads):
    library = ctypes.CDLL(str(path))
    library.attn_measure_flops.restype = ctypes.c_double
    library.attn_measure_flops.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_double]
    context = ctypes.c_void_p()
    options = Options(struct_size=ctypes.sizeof(Options), threads=threads)
    if library.attn_context_create(ctypes.byref(options), ctypes.byref(context), None):
        sys.exit("attn_context_create failed")
    return library, context


def clock(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(library, context, torch, cell, seconds):
    B, H, T, S, D, causal = cell
    q, out = torch.randn(B, H, T, D), torch.empty(B, H, T, D)
    k, v = torch.randn(B, H, S, D), torch.randn(B, H, S, D)
    args = Args(
        struct_size=ctypes.sizeof(Args),
        q=tensor(q),
        k=tensor(k),
        v=tensor(v),
        out=tensor(out),
        causal=int(causal),
        window_left=-1,
        window_right=-1,
    )

    def ours():
        assert library.attn_sdpa_forward(context, ctypes.byref(args), None) == 0

    def theirs():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    ours()
    difference = (out - theirs()).abs().max().item()
    assert difference < 1e-4, f"{cell}: results differ by {difference}"
    best, peak, end = [1e9, 1e9], 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        best[0] = min(best[0], clock(ours))
        best[1] = min(best[1], clock(theirs))
        peak = max(peak, library.attn_measure_flops(None, 2, 0.003))
    pairs = T * (T + 1) / 2 if causal else T * S
    return [4 * B * H * D * pairs / t / 1e9 for t in best] + [peak / 1e9]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", default=ROOT / "build" / "libattn.so")
    parser.add_argument("--seconds", type=float, default=4, help="for each cell")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    enter_environment()
    import torch

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    library, context = load(options.library, options.threads)
    print(
        f"f32 forward, {options.threads} thread(s), PyTorch {torch.__version__}; "
        "GFLOP/s of visible pairs"
    )
    print("  B  H     T     S    D causal   libattn   PyTorch   ratio   of peak")
    for cell in CELLS:
        ours, theirs, peak = measure(library, context, torch, cell, options.seconds)
        B, H, T, S, D, causal = cell
        share = ours / peak / options.threads
        print(
            f"{B:3} {H:2} {T:5} {S:5} {D:4} {'yes' if causal else 'no':>6} {ours:9.1f}"
            f" {theirs:9.1f} {ours / theirs:7.2f} {share:8.0%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
