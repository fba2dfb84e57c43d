#!/usr/bin/env python3
"""Compares libattn with PyTorch, ONNX Runtime and OpenVINO, in one process, in alternating runs.

Creates its own virtual environment (build/peers, about 1 GB) with the peers from PyPI. To get
PyTorch without CUDA, set PIP_EXTRA_INDEX_URL to the address of PyTorch's own packages for CPUs.
Each figure is the minimum of many calls. The players take turns, so that other load on the machine
affects all of them alike, and the machine's own limit is measured between the turns. First, each
peer's result is compared with libattn's. Cells in which libattn is slower are marked "<".

examples:
  bench/peers.py                                  everything: a quarter of an hour
  bench/peers.py --only "decode|GQA" --threads 1  cells by name and type
  bench/peers.py --list                           their names
  bench/peers.py --json a.json --markdown docs/BENCHMARKS.md
  bench/peers.py --from a.json b.json --markdown docs/BENCHMARKS.md
                                                  the tables again, without measuring
"""

import json
import os
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path

import cells
import command_line
import environment
import library
import race
import report
from cannot import Cannot

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / "build" / "peers"
PACKAGES = [
    "torch==2.13.0",
    "numpy==2.4.6",
    "onnx==1.23.2",
    "onnxruntime==1.31.1",
    "openvino==2026.4.1",
]
# The largest difference that a peer's result may have, relative to the largest element: a few
# roundings of the output and of the weights, which peers round to the storage type.
TOLERANCE = {"f64": 1e-12, "f32": 2e-5, "f16": 5e-3, "bf16": 4e-2}


def enter(options):
    """Restarts the script in the virtual environment that has the peers, if need be."""
    if not Path(options.library).exists():
        script = Path(sys.argv[0]).name
        sys.exit(f"{script}: {options.library} is not there; `make build` makes it")
    environment.enter(ENVIRONMENT, PACKAGES)


def say(*words):
    """Prints progress and problems to stderr. Only the tables go to stdout."""
    print(*words, file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------- a cell


def build_tiny(lib, folder):
    """Compiles tiny.c with the library and returns its path. Raises OSError or
    CalledProcessError."""
    program = Path(folder) / "tiny"
    command = [os.environ.get("CC", "cc"), "-O2", f"-I{ROOT / 'include'}", ROOT / "bench/tiny.c"]
    command += [lib.path, f"-Wl,-rpath,{lib.path.parent}", "-o", program]
    subprocess.run(command, check=True, capture_output=True)
    return program


def run_tiny(program):
    done = subprocess.run([program], check=True, stdout=subprocess.PIPE)
    return 1e-9 * float(done.stdout)


def difference(got, want):
    """The largest difference relative to the largest element wanted; infinite if there is a NaN."""
    got, want = got.double(), want.double()
    if got.shape != want.shape:
        return float("inf")
    error = (got - want).abs().max().item() / max(want.abs().max().item(), 1e-30)
    return error if error == error else float("inf")


def checked(players, want, cell, notes):
    """The players whose last result agrees with libattn's, and a note for each of the others."""
    right = []
    for p in players:
        error = difference(p.result(), want)
        if error <= TOLERANCE[cell.dtype]:
            right.append(p)
        else:
            say(f"  {p.who} {p.variant}: result differs by {error:.1e}")
            what = f"its {p.variant} result" if p.variant else "its result"
            notes[p.who] = f"{what} differs from libattn's by {error:.0e}, so it is left out"
    return right


def own_calls(problem, threads, lib):
    """libattn's calls on this number of threads and on one, after a first call of each, and a
    function that returns its result."""
    args, out = problem.attn_args()
    passes = problem.cell.passes
    if problem.cell.cached:
        weakref.finalize(args, lib.store(args, problem.cell.store, problem.cell.page_keys))
    if passes == "forward":
        call = lib.forward(args, threads)
        call()
        return call, lib.forward(args, 1), lambda: out
    grads, outs = problem.attn_grads(args)

    def on(threads):
        forward, backward = lib.forward(args, threads), lib.backward(args, grads, threads)

        def both():
            forward()
            backward()

        return both if passes == "both" else backward

    lib.forward(args, threads)()
    call = on(threads)
    call()
    import torch

    return call, on(1), lambda: torch.cat([x.flatten() for x in outs])


def find_players(cell, problem, threads, lib, peers, tiny, notes):
    """All players that compute the cell correctly."""
    ours, single, want = own_calls(problem, threads, lib)
    players = [race.Player("libattn", "", ours)]
    if cell.from_c:
        players = [race.Player("libattn", "", lambda: run_tiny(tiny))]
    if threads > 1 and not cell.from_c:
        players.append(race.Player("libattn, 1 thread", "", single))
    # Each library draws dropout in its own way, so results are compared without it.
    plain = problem
    if cell.dropout:
        from problem import Problem

        plain = Problem(cell._replace(dropout=0.0))
        _, _, want = own_calls(plain, threads, lib)
    want = want()
    for peer in peers:
        try:
            found = peer.players(problem, threads)
            if cell.dropout:
                for p in peer.players(plain, threads):
                    p.call()
                    found = found if checked([p], want, cell, notes) else []
            else:
                for p in found:
                    p.call()
                found = checked(found, want, cell, notes)
            players += found
        except (Cannot, RuntimeError) as e:
            notes[peer.who] = str(e).strip().splitlines()[0][:160]
    return players


def limit_of(cell, threads, lib):
    """A function that measures the machine's limit for this cell, in the cell's unit; None for
    microseconds."""
    if cell.unit == cells.GFLOPS:
        return lambda: 1e-9 * lib.measure_flops(cell.dtype, threads, 3e-3)
    if cell.unit == cells.GBPS:
        return lambda: 1e-9 * lib.measure_read(cells.kv_bytes(cell), threads, 5e-3)
    return None


def measure(cell, threads, options, lib, peers, tiny):
    """The cell's row, for report.py."""
    from problem import Problem

    notes = {who: "left out by --peers" for who in report.PEERS if who not in options.peers}
    problem, players, limit = Problem(cell), [], 0.0
    try:
        if cell.from_c and not isinstance(tiny, Path):
            raise library.Failed(f"tiny.c was not built: {tiny}")
        players = find_players(cell, problem, threads, lib, peers, tiny, notes)
    except library.Failed as e:
        notes["libattn"] = str(e)
    if players:
        quiet = race.settle if threads > 1 else None
        players = race.warm_up(players)
        limit = race.race(players, options.seconds, limit_of(cell, threads, lib), quiet)
    best = {}
    for p in players:
        if p.who not in best or p.best < best[p.who].best:
            best[p.who] = p
    single = best.pop("libattn, 1 thread", None)
    for who, p in best.items():
        python = (
            "a call from Python; from C++ not measured" if cell.from_c and who != "libattn" else ""
        )
        notes[who] = ", ".join(text for text in (p.variant, python) if text)
    seconds_of = {who: p.best for who, p in best.items()}
    return {
        "name": cell.name,
        "dtype": cell.dtype,
        "threads": threads,
        "unit": cell.unit,
        "figure": {who: cells.figure(cell, s) for who, s in seconds_of.items()},
        "seconds": seconds_of,
        "notes": {who: text for who, text in notes.items() if text},
        "limit": limit,
        "one_thread": single.best if single else None,
    }


# -------------------------------------------------------------------------------------- a run


def describe(lib, peers, seconds):
    """The machine and the versions for report.machine_text, without host names or paths."""
    return {
        "libattn": f"{lib.version()} ({lib.isa()})",
        "peers": [f"{r.name} {r.version()}" for r in peers],
        "cpus": library.cpus(),
        "features": lib.features(),
        "caches": library.caches(),
        "seconds": seconds,
    }


def run(options, grid):
    """Measures and prints. Returns the rows and the description of the machine."""
    import torch
    from peers_base import all_peers

    lib, peers = library.Library(options.library), all_peers(options.peers)
    rows, notes, group = [], report.Notes(), None
    machine = describe(lib, peers, options.seconds)
    # Calls of a few microseconds run on the caller's thread only.
    order = [
        (cell, threads)
        for dtype in dict.fromkeys(c.dtype for c in grid)
        for threads in options.threads
        for cell in grid
        if cell.dtype == dtype and not (cell.unit == cells.MICROSECONDS and threads > 1)
    ]
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        try:
            tiny = build_tiny(lib, folder)
        except (OSError, subprocess.CalledProcessError) as e:
            tiny = str(e)
        for i, (cell, threads) in enumerate(order):
            say(f"[{i + 1} of {len(order)}] {cell.name}, {cell.dtype}, {threads} thread(s)")
            row = measure(cell, threads, options, lib, peers, tiny)
            rows.append(row)
            if report.heading(row) != group:
                group = report.heading(row)
                print(report.head(row))
            print(report.line(report.columns(row, notes)), flush=True)
            if options.json:  # after every cell, because a long run may be interrupted
                write_json(options.json, rows, machine)
    return rows, machine, notes


def write_json(path, rows, machine):
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"schema": "attn.peers/1", "machine": machine, "cells": rows}, f, indent=1)


def replay(files):
    """The rows of earlier runs, in the order of a single run, and the machine of the first run."""
    rows, machines, notes, group = [], [], report.Notes(), None
    for name in files:
        with open(name, encoding="utf-8") as f:
            got = json.load(f)
        rows += got["cells"]
        machines.append(got["machine"])
    place = {
        c.name: i for i, (c, _) in enumerate(cells.GRID)
    }  # names that are no longer in the grid come last
    rows.sort(
        key=lambda r: (
            cells.DTYPES.index(r["dtype"]),
            r["threads"],
            place.get(r["name"], len(place)),
        )
    )
    for row in rows:
        if report.heading(row) != group:
            group = report.heading(row)
            print(report.head(row))
        print(report.line(report.columns(row, notes)))
    return rows, machines[0], notes


# ---------------------------------------------------------------------------- command line


def parse(argv):
    parser, add = command_line.parser(__doc__, seconds=4.0, merged="together")
    add("--threads", metavar="N,N", type=command_line.counts, default=[1, 2],
        help="thread counts (1,2)")
    add("--dtype", metavar="D,D", type=command_line.words(cells.DTYPES), default=cells.DTYPES,
        help="storage types (all: %s)" % ",".join(cells.DTYPES))
    options = parser.parse_args(argv)
    grid = cells.grid(options.dtype, options.only)
    if not grid:
        parser.error("no cell fits --only and --dtype; --list shows them")
    return options, grid


def main():
    options, grid = parse(sys.argv[1:])
    if options.list:
        print("\n".join(f"{c.name}  {c.dtype}" for c in grid))
        return
    if options.files:
        rows, machine, notes = replay(options.files)
    else:
        enter(options)
        try:
            rows, machine, notes = run(options, grid)
        except KeyboardInterrupt:
            sys.exit(f"peers.py: broken off; cells so far: {options.json or 'only printed'}")
    tail = [*notes.lines(), report.machine_text(machine, rows), report.summary(rows)]
    print("", *(report.wrapped(text, 100) for text in tail), sep="\n")
    if options.json:
        write_json(options.json, rows, machine)
    if options.markdown:
        report.write_markdown(options.markdown, rows, machine)


if __name__ == "__main__":
    main()
