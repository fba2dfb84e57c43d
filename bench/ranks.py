#!/usr/bin/env python3
"""Predicts the time of attention over ranks (libattn-mpi) from a few figures of the machines.

    bench/ranks.py                              the tables of docs/SCALE.md
    bench/ranks.py --svg docs/scale.svg         its plot
    bench/ranks.py --ranks 16 --tokens 1048576 --heads 32,8 --dim 128 --bytes 2 --causal \\
                   --flops 8e12 --rate 12.5e9 --latency 5e-6
    bench/ranks.py --measured FILE              beside what attn bench --mpi --json has measured

The model. A rank computes visible pairs of a query and a key at a constant speed (--flops: in the
forward a pair takes 2 (D + Dv) operations for each head). Messages to a rank arrive one after the
other at a constant rate (--rate: bytes per second and rank), and each costs a fixed time
(--latency). Keys arrive in segments, as mpi/segments.c asks for them: segment n may be sent once
every rank has begun segment n - 2, and is computed when it has arrived and segment n - 1 is done.
What the model leaves out: the cost of each call of a kernel, shared caches and memory, and
differences between machines.
"""

import argparse
import json
import sys

BLOCK, CHUNK, LEAST = 64, 256, 2048  # tokens; as in attn_mpi.h, and mpi/call.c

# An example, not fitted to any measurement.
ETHERNET = {"flops": 8e12, "rate": 12.5e9, "latency": 5e-6}  # 100 GbE, 8 TF a rank


def least_common(a, b):
    n = a
    while n % b:
        n += a
    return n


def segment_keys(ranks):
    """The library's choice: equally many keys of each rank, at least 2048."""
    unit = least_common(BLOCK * ranks, CHUNK)
    return -(-LEAST // unit) * unit


def pairs_of(first, rows, start, past, causal, window):
    """Visible pairs of queries first .. first+rows-1 and keys start .. past-1."""
    if not causal:
        return rows * (past - start)
    total = 0
    for i in (first + rows // 4, first + 3 * rows // 4):  # two rows stand for the block
        low = max(start, i - window) if window >= 0 else start
        total += max(0, min(past, i + 1) - low) * rows / 2
    return total


def work(tokens, ranks, keys, causal=False, window=-1):
    """work[segment][rank]: visible pairs. Blocks of 64 queries are dealt to the ranks in turn."""
    blocks = range(0, tokens, BLOCK)
    table = []
    for start in range(0, tokens, keys):
        past, row = min(start + keys, tokens), [0] * ranks
        for b, first in enumerate(blocks):
            row[b % ranks] += pairs_of(
                first, min(BLOCK, tokens - first), start, past, causal, window
            )
        table.append(row)
    return table


def time_of(table, tokens, ranks, keys, call, machine):
    """Seconds until the last rank is done."""
    H, Hk, D, size = call
    each = 4 * H * D / machine["flops"]  # of one pair of all heads
    begun = []  # begun[segment]: when the last rank begins it
    done, arrived = [0.0] * ranks, [0.0] * ranks
    for n, row in enumerate(table):
        count = min(keys, tokens - n * keys)
        move = 2 * Hk * D * size * count * (ranks - 1) / ranks / machine["rate"]
        move += machine["latency"] * (ranks - 1)
        asked = begun[n - 2] if n >= 2 else 0.0
        starts = []
        for r in range(ranks):
            if row[r]:  # a rank receives only what some row of it sees
                arrived[r] = max(arrived[r], asked) + (move if ranks > 1 else 0)
            starts.append(max(done[r], arrived[r]))
            done[r] = starts[r] + row[r] * each
        begun.append(max(starts))
    return max(done)


def efficiency(tokens, ranks, call, machine, causal=False, window=-1, keys=None):
    """Time of one rank, divided by `ranks` times that of all."""
    keys = keys or segment_keys(ranks)
    table = work(tokens, ranks, keys, causal, window)
    alone = sum(map(sum, table)) * 4 * call[0] * call[2] / machine["flops"]
    return alone / (ranks * time_of(table, tokens, ranks, keys, call, machine))


def least_tokens(call, machine, causal):
    """n_min: tokens of a rank at which computing takes as long as receiving, for many ranks."""
    H, Hk, _, size = call
    return (2 if causal else 1) * machine["flops"] * Hk * size / (2 * H * machine["rate"])


def predicted(case, rate, latency, flops=None):
    """Seconds of a measured forward (see --measured). Without flops: the speed of one rank."""
    B, H, Hk, T, S, D, Dv = case["shape"]
    rules = {"none": False, "top-left": True}
    if case["pass"] != "forward" or (B, T, D) != (1, S, Dv) or case["causal"] not in rules:
        raise ValueError(
            "%s: the model knows forwards with B = 1, T = S, D = Dv, and causal none or top-left"
            % case["shape"]
        )
    ranks, size = case["ranks"], {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}[case["dtype"]]
    keys = segment_keys(ranks)
    table = work(S, ranks, keys, rules[case["causal"]])
    flop = sum(map(sum, table)) * 4 * H * D
    machine = {
        "flops": flops or 1e6 * flop / case["one_rank_us_min"],
        "rate": rate,
        "latency": latency,
    }
    return time_of(table, S, ranks, keys, (H, Hk, D, size), machine)


# -------------------------------------------------------------------------------------- output

F32 = (8, 8, 128, 4)  # H, Hk, D, bytes of an element
RANKS = (2, 4, 8, 16, 32, 64)
PER_RANK = (640, 1280, 2560, 5120, 10240)


def tables():
    n = least_tokens(F32, ETHERNET, True)
    print("n_min: %.0f tokens a rank (causal, f32, H = Hk)\n" % n)
    for name, rules in (("causal", {"causal": True}), ("full", {})):
        print("| tokens a rank, %s | %s |" % (name, " | ".join("P = %d" % p for p in RANKS)))
        print("| ---: |" + " ---: |" * len(RANKS))
        for per in PER_RANK:
            found = [efficiency(per * p, p, F32, ETHERNET, **rules) for p in RANKS]
            print("| %d | %s |" % (per, " | ".join("%.2f" % e for e in found)))
        print()


def compare(path, flops):
    """A line for each case of attn bench --mpi --json."""
    with open(path) as f:
        found = json.load(f)
    if found.get("schema") != "attn.bench-ranks/1":
        raise ValueError("%s: not the output of attn bench --mpi --json" % path)
    print("| shape | dtype | causal | P | model, ms | measured, ms | model/measured |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    for case in found["cases"]:
        model = predicted(case, 1e9 * found["exchange_gbps"], 1e-6 * found["latency_us"], flops)
        seconds = 1e-6 * case["time_us_min"]
        name = ",".join(map(str, case["shape"]))
        print("| %s | %s | %s | %d | %.1f | %.1f | %.3f |"
              % (name, case["dtype"], case["causal"], case["ranks"], 1e3 * model, 1e3 * seconds,
                 model / seconds))  # fmt: skip


def svg(path):
    """Efficiency over tokens a rank, one line for each number of ranks."""
    left, top, width, height = 60, 20, 420, 240
    colours = ("#0b5394", "#e07b39", "#6aa84f", "#7f3fbf", "#999999", "#b03060")
    across = lambda i: left + width * i / (len(PER_RANK) - 1)
    up = lambda e: top + height * (1 - e)
    out = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 580 320" font-family="sans-serif" '
        'font-size="12"><title>Predicted efficiency of a causal forward over ranks</title>'
        '<rect width="580" height="320" fill="#ffffff"/>'
    ]
    for e in (0, 0.25, 0.5, 0.75, 1):
        out.append('<path d="M%d %.1fH%d" stroke="#dddddd"/>' % (left, up(e), left + width))
        out.append('<text x="%d" y="%.1f" text-anchor="end">%.2f</text>' % (left - 6, up(e) + 4, e))
    for i, per in enumerate(PER_RANK):
        place = (across(i), top + height + 18, per)
        out.append('<text x="%.1f" y="%d" text-anchor="middle">%d</text>' % place)
    out.append('<text x="%d" y="%d" text-anchor="middle">tokens of a rank (causal, f32, 100 GbE)'
               "</text>" % (left + width // 2, top + height + 40))  # fmt: skip
    for ranks, colour in zip(RANKS, colours):
        found = [efficiency(per * ranks, ranks, F32, ETHERNET, causal=True) for per in PER_RANK]
        points = " ".join("%.1f,%.1f" % (across(i), up(e)) for i, e in enumerate(found))
        out.append('<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>'
                   % (points, colour))  # fmt: skip
        y = top + 40 + 18 * RANKS.index(ranks)
        out.append('<text x="%d" y="%d" fill="%s">P = %d</text>'
                   % (left + width + 14, y, colour, ranks))  # fmt: skip
    with open(path, "w") as f:
        f.write("\n".join(out) + "\n</svg>\n")


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--svg", metavar="FILE", help="write the plot")
    p.add_argument("--measured", metavar="FILE", help="compare with attn bench --mpi --json")
    p.add_argument("--ranks", type=int, help="print the prediction of one call")
    p.add_argument("--tokens", type=int, default=65536)
    p.add_argument("--heads", default="8,8", help="H,Hk")
    p.add_argument("--dim", type=int, default=128, help="D = Dv")
    p.add_argument("--bytes", type=int, default=4, help="of an element")
    p.add_argument("--causal", action="store_true")
    p.add_argument("--window", type=int, default=-1, help="keys to the left, with --causal")
    p.add_argument("--flops", type=float, help="of a rank, in a second")
    p.add_argument("--rate", type=float, default=ETHERNET["rate"])
    p.add_argument("--latency", type=float, default=ETHERNET["latency"])
    a = p.parse_args()
    if a.svg:
        svg(a.svg)
    elif a.measured:
        try:
            compare(a.measured, a.flops)
        except (OSError, ValueError, KeyError) as error:
            p.error(error)
    elif a.ranks:
        H, Hk = map(int, a.heads.split(","))
        machine = {"flops": a.flops or ETHERNET["flops"], "rate": a.rate, "latency": a.latency}
        call, keys = (H, Hk, a.dim, a.bytes), segment_keys(a.ranks)
        table = work(a.tokens, a.ranks, keys, a.causal, a.window)
        seconds = time_of(table, a.tokens, a.ranks, keys, call, machine)
        found = efficiency(a.tokens, a.ranks, call, machine, a.causal, a.window)
        print("%.6g s on %d ranks, efficiency %.3f" % (seconds, a.ranks, found))
    else:
        tables()


if __name__ == "__main__":
    sys.exit(main())
