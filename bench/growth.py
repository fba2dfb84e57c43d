#!/usr/bin/env python3
"""Measures how the time of a call grows with one size, in steps of 1, and draws it.

    bench/growth.py                                 all series, f32 and bf16: about five minutes
    bench/growth.py --only "D, decode" --dtype bf16
    bench/growth.py --svg docs/growth.svg           also draws them

Only libattn runs, on one thread. All sizes of a series take turns, and the minimum of each counts.
Two figures say whether a user should avoid a size: *padding*, the largest ratio of a size's time to
the time of a larger size (more than 1.1: padding the call would make it faster), and *step*, the
largest ratio of a size's time to the time of the size before, beyond the growth of the work, from
128 on (more than 1.3: a cliff). Sizes where a limit is passed are red in the plot.

Uses the virtual environment of bench/peers.py.
"""

import argparse
import sys
from html import escape

import cells
import command_line
import library
import peers
import race
import weak
from cells import LAST, Cell, packed

COUNTS = [n * 10**e for e in range(5) for n in (1, 2, 5)] + [100_000]

# Title, the size that grows, and its cells.
SERIES = [
    ("packed sequences of 1, time of each", "sequences",
     [packed(str(n), [1] * n) for n in COUNTS]),
    ("T = S, 12 heads, D = 64", "T = S", [Cell(str(n), 1, 12, n, n, 64) for n in range(1, 201)]),
    ("T, 8 heads of 1024 keys, D = 64", "T",
     [Cell(str(n), 1, 8, n, 1024, 64, **LAST) for n in range(1, 201)]),
    ("S, decode of 32 heads, D = 128", "S",
     [Cell(str(n), 1, 32, 1, n, 128, **LAST) for n in range(1, 201)]),
    ("D, decode of 32 heads of 1024 keys", "D",
     [Cell(str(n), 1, 32, 1, 1024, n, **LAST) for n in range(1, 161)]),
    ("D, 8 heads, T = S = 256", "D", [Cell(str(n), 1, 8, 256, 256, n) for n in range(1, 161)]),
    ("query heads of 1 key head of 4096, D = 64", "H",
     [Cell(str(n), 1, n, 1, 4096, 64, Hk=1, **LAST) for n in range(1, 81)]),
    ("batch, 4 heads, T = S = 32, D = 64", "B",
     [Cell(str(n), n, 4, 32, 32, 64) for n in range(1, 257)]),
]  # fmt: skip

FROM = 128  # steps count from this size on, and between neighbours only


def measure(sizes, lib, seconds):
    """The least time of a call of each size."""
    from problem import Problem

    players = [race.Player(c.name, "", peers.own_calls(Problem(c), 1, lib)[0]) for c in sizes]
    race.race(race.warm_up(players), seconds)
    return [p.best / max(1, len(c.packed)) for p, c in zip(players, sizes)]


def judge(sizes, seconds):
    """(padding, its size), (step, its size), and the sizes that pass a limit. The sequences of a
    packed batch cannot be padded, and their time is that of one."""
    n = [int(c.name) for c in sizes]
    is_packed = bool(sizes[0].packed)
    work = [cells.flop(c) / max(1, len(c.packed)) for c in sizes]
    bad, steps, pads, at = set(), [(1.0, n[0])], 1.0, 0
    if not is_packed:
        pads, at = weak.padding(seconds)
        bad = {x for i, x in enumerate(n[:-1]) if seconds[i] > weak.PADDING * min(seconds[i + 1 :])}
    for i in range(1, len(n)):
        grown = weak.growth(seconds, work, i)
        if is_packed or n[i] > FROM:
            steps.append((grown, n[i]))
            bad |= {n[i]} if grown > weak.STEP else set()
    return (pads, n[at]), max(steps), bad


# ------------------------------------------------------------------------------------- drawing

WIDTH, HEIGHT, COLUMNS = 340, 170, 2
MARGIN = 14  # to the left of the first column, for long labels


def panel(left, top, series):
    """One plot: time over size, from 0; packed sequences over the logarithm of their number."""
    title, dtype, axis, n, seconds, bad, said = series
    log = axis == "sequences"
    place = [i / (len(n) - 1) if log else x / n[-1] for i, x in enumerate(n)]
    most = max(seconds)
    x = [left + 40 + (WIDTH - 60) * p for p in place]
    y = [top + 40 + (HEIGHT - 75) * (1 - s / most) for s in seconds]
    out = ['<text x="%d" y="%d" font-weight="bold">%s, %s</text>'
           % (left + 40, top + 14, escape(title), dtype),
           '<text x="%d" y="%d" fill="#555555">%s</text>' % (left + 40, top + 29, escape(said)),
           '<path d="M%d %dV%dH%d" stroke="#999999" fill="none"/>'
           % (left + 40, top + 36, top + HEIGHT - 35, left + WIDTH - 16),
           '<text x="%d" y="%.1f" text-anchor="end">%s</text>'
           % (left + 36, top + 46, weak.time_text(most))]  # fmt: skip
    for i in (0, len(n) // 2, len(n) - 1):
        out.append('<text x="%.1f" y="%d" text-anchor="middle">%d</text>'
                   % (x[i], top + HEIGHT - 20, n[i]))  # fmt: skip
    out.append('<polyline points="%s" fill="none" stroke="#0b5394"/>'
               % " ".join("%.1f,%.1f" % p for p in zip(x, y)))  # fmt: skip
    out += ['<circle cx="%.1f" cy="%.1f" r="2.2" fill="#cc0000"/>' % (x[i], y[i])
            for i, size in enumerate(n) if size in bad]  # fmt: skip
    return out


def svg(path, found):
    rows = -(-len(found) // COLUMNS)
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="%d 0 %d %d" font-family="sans-serif" '
           'font-size="10"><title>Time of a call over one size</title>'
           '<rect x="%d" width="100%%" height="100%%" fill="#ffffff"/>'
           % (-MARGIN, MARGIN + COLUMNS * WIDTH, rows * HEIGHT + 10, -MARGIN)]  # fmt: skip
    for i, series in enumerate(found):
        out += panel(i % COLUMNS * WIDTH, i // COLUMNS * HEIGHT + 6, series)
    with open(path, "w") as f:
        f.write("\n".join(out) + "\n</svg>\n")


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--library", metavar="FILE", default=command_line.LIBRARY)
    p.add_argument("--dtype", default="f32,bf16", help="types, separated by commas (f32,bf16)")
    p.add_argument("--only", metavar="REGEX", type=command_line.pattern)
    p.add_argument("--seconds", type=command_line.seconds_of, default=15.0, help="a series (15)")
    p.add_argument("--svg", metavar="FILE", help="write the plots")
    options = p.parse_args()
    peers.enter(options)
    lib, found = library.Library(options.library), []
    for title, axis, sizes in SERIES:
        for dtype in options.dtype.split(","):
            if options.only and not options.only.search("%s %s" % (title, dtype)):
                continue
            typed = [c._replace(dtype=dtype) for c in sizes]
            seconds = measure(typed, lib, options.seconds)
            (pads, at), (step, to), bad = judge(typed, seconds)
            said = "padding %.2f at %d, step %.2f at %d" % (pads, at, step, to)
            print("%-48s %-5s %s%s" % (title, dtype, said, "  <" if bad else ""), flush=True)
            found.append((title, dtype, axis, [int(c.name) for c in typed], seconds, bad, said))
    if options.svg:
        svg(options.svg, found)


if __name__ == "__main__":
    sys.exit(main())
