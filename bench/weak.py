#!/usr/bin/env python3
"""Measures the cells in which libattn was slower than another library, and its cliffs.

The cells are WEAK and SERIES of bench/cells.py: modules and steps of training, packed sequences,
odd head sizes and groups, few queries, short heads. Peers are PyTorch (attention: the faster of
scaled_dot_product_attention and bmm, softmax, bmm), ONNX Runtime and OpenVINO, in alternating runs
on one thread; the minimum of many calls counts. A series is measured with libattn alone, while one
size grows. It has a cliff if padding would pay (some size takes 1.1 times as long as a larger one)
or if a step costs 1.3 times as much as its work. Losing cells and cliffs are printed first.

Uses the virtual environment of bench/peers.py.

examples:
  bench/weak.py                             all: less than ten minutes
  bench/weak.py --only "packed|GELU"        cells and series by name and type
  bench/weak.py --markdown docs/BENCHMARKS.md --json weak.json
"""

import datetime
import json
import math
import sys
from pathlib import Path

import cells
import command_line
import library
import peers
import race
import report

BEGIN = "<!-- written by bench/weak.py: begin -->"
END = "<!-- written by bench/weak.py: end -->"
PADDING = 1.1  # a size may take so many times as long as a larger one
STEP = 1.3  # a step may cost so many times as much as its work
SERIES_SECONDS = 0.1  # for each size, and at least three calls


# -------------------------------------------------------------------------------- cliffs


def padding(seconds):
    """By how much padding would pay: the largest ratio of a size's time to the time of a larger
    size, and the index of that size."""
    worst, at = 0.0, 0
    for n in range(len(seconds) - 1):
        ratio = seconds[n] / min(seconds[n + 1 :])
        if ratio > worst:
            worst, at = ratio, n
    return worst, at


def growth(seconds, work, n):
    """The growth of the time from size n - 1 to size n beyond the growth of the work."""
    return seconds[n] / seconds[n - 1] / max(1.0, work[n] / work[n - 1])


def step(seconds, work):
    """The largest growth from one size to the next, and the index of the larger size."""
    grown = ((growth(seconds, work, n), n) for n in range(1, len(seconds)))
    return max(grown, default=(0.0, 0))


def is_cliff(series):
    seconds = series["seconds"]
    return padding(seconds)[0] > PADDING or step(seconds, series["work"])[0] > STEP


# ------------------------------------------------------------------------------- reporting


def time_text(seconds):
    """A time with three digits: 7.23 ms."""
    if seconds is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size or unit == "us":
            x = seconds / size
            return f"{x:.{2 if x < 10 else 1 if x < 100 else 0}f} {unit}"


def fastest_peer(row):
    """The name of the fastest peer, with its variant; "" if there is none."""
    times = {who: row["seconds"][who] for who in report.PEERS if who in row["seconds"]}
    if not times:
        return ""
    who = min(times, key=times.get)
    variant = row["notes"].get(who, "")
    return report.PEERS[who] + (f", {variant}" if variant else "")


def in_order(rows):
    """Losing cells first, the worst of them first; cells without a ratio last."""
    return sorted(rows, key=lambda r: report.best_ratio(r) or math.inf)


def columns(row):
    ours, best = row["seconds"].get("libattn"), report.best_ratio(row)
    share = report.share(row)
    return [
        row["name"],
        row["dtype"],
        time_text(ours),
        time_text(ours * best if ours and best else None),
        report.ratio_text(best) + (" <" if report.losing(row) else ""),
        "-" if share is None else f"{share:.0%}" if share >= 0.095 else f"{share:.1%}",
        fastest_peer(row) if ours else row["notes"].get("libattn", "libattn failed"),
    ]


HEAD = ["cell", "type", "libattn", "best peer", "ratio", "of limit", "fastest peer"]


def series_columns(s):
    labels = s["labels"]
    (pads, at), (grows, to) = padding(s["seconds"]), step(s["seconds"], s["work"])
    return [
        s["name"],
        s["dtype"],
        ", ".join(f"{n}: {time_text(t)}" for n, t in zip(labels, s["seconds"])),
        f"{pads:.2f} at {labels[at]}" + (" <" if pads > PADDING else ""),
        f"{grows:.2f} at {labels[to]}" + (" <" if grows > STEP else ""),
    ]


SERIES_HEAD = ["what grows", "type", "times", "padding", "step"]


def summary(rows, series):
    ratios = [r for r in map(report.best_ratio, rows) if r]
    text = report.summary(rows).split(":")[0]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        text += f"; geometric mean of the ratios {mean:.2f}"
    return f"{text}; series with a cliff: {sum(map(is_cliff, series))} of {len(series)}."


def by_cliff(series):
    """Series with a cliff first."""
    return sorted(series, key=lambda s: not is_cliff(s))


def table(head, lines, left):
    """A table in Markdown; the first `left` columns and the last are flush left."""
    marks = ["---" if n < left or n == len(head) - 1 else "---:" for n in range(len(head))]
    bold = [[f"**{text}**" if text.endswith("<") else text for text in line] for line in lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, marks, *bold])


EXPLAINED = """\
*libattn* and *best peer* are times of a call, *ratio* is the second divided by the first; values
below 1, where libattn is slower, are marked **<** and come first. *of limit* says how near
libattn comes to the speed that the machine's arithmetic or, in decoding, its memory allows (as
*peak* in the tables above). For modules (linear, layer norm, GELU, cross-entropy, AdamW, append
to a cache), the limit is the time that it takes to stream the bytes that must be read or written;
for a linear layer these are the bytes of its weights. AdamW reads four arrays and writes three of
them. It reaches more than 100 %: the limit counts a written byte as if it took as long as a read
one, but the core does not wait for writes. The speed of streaming reads is measured for each cell
with as many bytes as the cell uses. The speed named above is the highest of these. It belongs to
a cell whose data fit in a cache. *own cache* means that keys and values are in a cache of
libattn; *both* is forward and backward."""
EXPLAINED_SERIES = """\
*padding* is the largest ratio of a size's time to the time of a larger size; above 1, padding the
call to the larger size would make it faster. *step* is the largest growth from one size to the
next: the time divided by the time of the size before and, if the work grew, divided by the growth
of the work. Values of *padding* above 1.1 and of *step* above 1.3 are marked **<**. *each* is the
time for each packed sequence."""


def generated(rows, series, machine):
    text = report.machine_text(machine, rows)
    parts = [report.wrapped(f"{machine['date']}, {machine['family']}, one thread. {text}")]
    parts += [report.wrapped(summary(rows, series)), report.wrapped(EXPLAINED)]
    parts.append(table(HEAD, map(columns, in_order(rows)), 2))
    if series:
        parts.append(report.wrapped(EXPLAINED_SERIES))
        parts.append(table(SERIES_HEAD, map(series_columns, by_cliff(series)), 3))
    return "\n\n".join(parts)


def lines(head, body):
    """A table for a terminal."""
    body = [head, *body]
    widths = [max(len(line[n]) for line in body) for n in range(len(head) - 1)]
    return "\n".join(
        "  ".join([*(text.ljust(w) for text, w in zip(line, widths)), line[-1]]) for line in body
    )


def printed(rows, series):
    lost = [columns(r) for r in in_order(rows) if report.losing(r)]
    won = [columns(r) for r in in_order(rows) if not report.losing(r)]
    cliffs = [series_columns(s) for s in series if is_cliff(s)]
    smooth = [series_columns(s) for s in series if not is_cliff(s)]
    parts = [lines(HEAD, lost)] if lost else []
    parts += [lines(SERIES_HEAD, cliffs)] if cliffs else []
    parts += [lines(HEAD, won)] if won else []
    parts += [lines(SERIES_HEAD, smooth)] if smooth else []
    return "\n\n".join([*parts, summary(rows, series)])


# -------------------------------------------------------------------------------- measuring


def measure_module(module, options, lib):
    """The row of a module, as peers.measure returns it for a cell of attention."""
    from modules import players

    notes, found, limit = {}, [], 0.0
    try:
        found = race.warm_up(players(module, lib, options.threads))
        probe = None
        if module.unit == cells.GBPS:
            probe = lambda: 1e-9 * lib.measure_read(
                int(cells.module_bytes(module)), options.threads, 5e-3
            )
        limit = race.race(found, options.seconds, probe)
    except library.Failed as e:
        notes["libattn"], found = str(e), []
    notes.update({p.who: p.variant for p in found if p.variant})
    seconds = {p.who: p.best for p in found}
    return {
        "name": module.name,
        "dtype": module.dtype,
        "threads": options.threads,
        "unit": module.unit,
        "figure": {who: cells.figure(module, s) for who, s in seconds.items()},
        "seconds": seconds,
        "notes": notes,
        "limit": limit,
        "one_thread": None,
    }


def measure_series(name, dtype, sizes, options, lib):
    from problem import Problem

    players = [
        race.Player("libattn", "", peers.own_calls(Problem(c), options.threads, lib)[0])
        for c in sizes
    ]
    for p in players:
        p.who = p.variant = str(id(p))  # none is a slow variant of another
    race.race(race.warm_up(players), SERIES_SECONDS * len(sizes))
    each = [len(c.packed) if name.endswith("each") else 1 for c in sizes]
    return {
        "name": name,
        "dtype": dtype,
        "labels": [c.name for c in sizes],
        "seconds": [p.best / n for p, n in zip(players, each)],
        "work": [cells.flop(c) / n for c, n in zip(sizes, each)],
    }


def cpu_family():
    """The CPU's family, as Linux numbers it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "CPU family unknown"
    families = [line.split(":")[1] for line in text.splitlines() if line.startswith("cpu family")]
    return f"CPU family{families[0]}" if families else "CPU family unknown"


def run(options):
    import torch
    from peers_base import all_peers

    lib, others = library.Library(options.library), all_peers(options.peers)
    machine = peers.describe(lib, others, options.seconds)
    machine["date"], machine["family"] = datetime.date.today().isoformat(), cpu_family()
    rows, series = [], []
    grid, sizes = cells.weak(options.only), cells.series(options.only)
    with torch.inference_mode():
        for n, cell in enumerate(grid):
            peers.say(f"[{n + 1} of {len(grid)}] {cell.name}, {cell.dtype}")
            if isinstance(cell, cells.Module):
                rows.append(measure_module(cell, options, lib))
            else:
                rows.append(peers.measure(cell, options.threads, options, lib, others, None))
            write_json(options.json, rows, series, machine)
        for n, (name, dtype, of_series) in enumerate(sizes):
            peers.say(f"[series {n + 1} of {len(sizes)}] {name}, {dtype}")
            series.append(measure_series(name, dtype, of_series, options, lib))
            write_json(options.json, rows, series, machine)
    return rows, series, machine


def write_json(path, rows, series, machine):
    """Called after every cell, because a run may be interrupted."""
    if path:
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"machine": machine, "cells": rows, "series": series}, f, indent=1)


def better(row, other):
    """A cell's row with the shorter time of each player in two runs, and the larger limit."""
    best = {**row, "limit": max(row["limit"], other["limit"])}
    for key in ("seconds", "figure", "notes"):
        best[key] = dict(row[key])
    for who, seconds in other["seconds"].items():
        if seconds < row["seconds"].get(who, math.inf):
            best["seconds"][who], best["figure"][who] = seconds, other["figure"][who]
            best["notes"][who] = other["notes"].get(who, "")
    return best


def shorter(series, other):
    return {**series, "seconds": list(map(min, series["seconds"], other["seconds"]))}


def read_json(paths):
    """The best of several runs; the machine of the first one."""
    runs = []
    for path in paths:
        with open(path, encoding="utf-8") as f:
            runs.append(json.load(f))
    found = []
    for key, best_of in (("cells", better), ("series", shorter)):
        by_name = {}
        for x in (x for run in runs for x in run[key]):
            name = x["name"], x["dtype"]
            by_name[name] = best_of(by_name[name], x) if name in by_name else x
        found.append(list(by_name.values()))
    return found[0], found[1], runs[0]["machine"]


def parse(argv):
    parser, _ = command_line.parser(__doc__, seconds=1.0, merged="the best of them")
    options = parser.parse_args(argv)
    options.threads = 1
    if not cells.weak(options.only) and not cells.series(options.only):
        parser.error("no cell fits --only; --list shows them")
    return options


def main():
    options = parse(sys.argv[1:])
    if options.list:
        names = [(c.name, c.dtype) for c in cells.weak(options.only)]
        names += [(name, dtype) for name, dtype, _ in cells.series(options.only)]
        print("\n".join("  ".join(words) for words in names))
        return
    if options.files:
        rows, series, machine = read_json(options.files)
    else:
        peers.enter(options)
        rows, series, machine = run(options)
    print(printed(rows, series))
    print(report.wrapped(report.machine_text(machine, rows), 100))
    write_json(options.json, rows, series, machine)
    if options.markdown:
        report.write_part(options.markdown, generated(rows, series, machine), BEGIN, END)


if __name__ == "__main__":
    main()
