"""Reports the times: ratios, the table for a terminal, docs/BENCHMARKS.md, the summary.

A row is the result of one cell on one number of threads, as --json writes it:
    name dtype threads unit   the cell
    figure   {who: number in `unit`}
    seconds  {who: minimum of a call}   libattn, torch, ort, openvino; absent: could not run
    notes    {who: text}                which variant ran, or why none
    limit    what the machine could do at best in the same seconds, in `unit`; 0: none stands beside
    one_thread   libattn's seconds on one thread in the same rounds, or None
"""

from cells import GBPS, GFLOPS

PEERS = {"torch": "PyTorch", "ort": "ONNX RT", "openvino": "OpenVINO"}
BEGIN = "<!-- written by bench/peers.py: begin -->"
END = "<!-- written by bench/peers.py: end -->"
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def ratio(row, who):
    """The time of `who` divided by libattn's; None if one of them has no time."""
    ours, theirs = row["seconds"].get("libattn"), row["seconds"].get(who)
    return theirs / ours if ours and theirs else None


def best_ratio(row):
    """The ratio to the fastest peer; None if no peer ran."""
    ratios = [ratio(row, who) for who in PEERS]
    return min((r for r in ratios if r is not None), default=None)


def losing(row):
    """Whether a peer is faster, even slightly, or libattn has no time."""
    best = best_ratio(row)
    if "libattn" not in row["seconds"]:
        return True
    return best is not None and best < 1


def share(row):
    """libattn's figure as a share of the machine's limit; None if there is no limit."""
    figure = row["figure"].get("libattn")
    return figure / row["limit"] if row["limit"] and figure else None


def scaling(row):
    """Speed on the row's threads over speed on one."""
    ours = row["seconds"].get("libattn")
    return row["one_thread"] / ours if row["one_thread"] and ours else None


def summary(rows):
    """The last line: the number of cells, and those in which libattn is slower."""
    lost = [
        f"{r['name']} {r['dtype']} {r['threads']}t "
        + (f"({best_ratio(r):.2f})" if best_ratio(r) is not None else "(libattn failed)")
        for r in rows
        if losing(r)
    ]
    alone = sum(1 for r in rows if best_ratio(r) is None)
    text = f"{len(rows)} cells; {len(lost)} below 1.0"
    if alone:
        text += f"; {alone} without a peer"
    return text + ("" if not lost else ": " + "; ".join(lost))


def machine_text(machine, rows):
    """The description of machine and versions. `machine` comes from peers.py; the rates are the
    best of the rows."""

    def limits(unit, dtype=None):
        return [
            r["limit"]
            for r in rows
            if (r["unit"], r["threads"]) == (unit, 1) and dtype in (None, r["dtype"]) and r["limit"]
        ]

    text = f"libattn {machine['libattn']} beside {', '.join(machine['peers'])}"
    text += f"; {machine['cpus']} CPUs with {machine['features']}; {machine['caches']}"
    rates = [
        f"{max(limits(GFLOPS, dtype)):.0f} GFLOP/s of {dtype} multiply-adds"
        for dtype in ("f32", "f64")
        if limits(GFLOPS, dtype)
    ]
    reads = limits(GBPS)
    if reads:
        rates.append(f"{max(reads):.1f} GB/s of streaming reads")
    if rates:
        text += f"; one thread did at best {', '.join(rates)}"
    return f"{text}; {machine['seconds']:g} s for each cell."


class Notes:
    """Notes with letters; equal texts have the same letter."""

    def __init__(self):
        self.texts = []

    def letter(self, text):
        if not text:
            return ""
        if text not in self.texts:
            self.texts.append(text)
        n = self.texts.index(text)
        return LETTERS[n] if n < len(LETTERS) else LETTERS[n // 26 - 1] + LETTERS[n % 26]

    def lines(self):
        return [f"{self.letter(t)}: {t}" for t in self.texts]


def number(x):
    """A number with about three digits: 1234, 116.5, 17.2, 0.91."""
    return "-" if x is None else f"{x:.2f}" if x < 10 else f"{x:.1f}" if x < 1000 else f"{x:.0f}"


def ratio_text(x):
    return "-" if x is None else f"{x:.2f}" if x < 100 else f"{x:.0f}"


def columns(row, notes):
    """A row's texts: figures with the letter of their note, then the ratios."""
    texts = [row["name"], row["unit"]]
    for who in ("libattn", *PEERS):
        texts.append(number(row["figure"].get(who)) + notes.letter(row["notes"].get(who)))
    texts.append(ratio_text(best_ratio(row)) + (" <" if losing(row) else ""))
    texts.append(ratio_text(ratio(row, "torch")))
    texts.append("-" if share(row) is None else f"{share(row):.0%}")
    texts.append(ratio_text(scaling(row)) if row["threads"] > 1 else "")
    return texts


def heading(row):
    return f"{row['dtype']}, {row['threads']} thread" + ("s" if row["threads"] > 1 else "")


# --------------------------------------------------------------------------------- terminal

WIDTHS = (30, 7, 7, 8, 8, 8, 7, 6, 4, 5)


def line(texts):
    cells = [t.ljust(w) if i < 2 else t.rjust(w) for i, (t, w) in enumerate(zip(texts, WIDTHS))]
    # The mark of a lost cell must not move its number.
    if not texts[6].endswith("<"):
        cells[6] = texts[6].rjust(WIDTHS[6] - 2) + "  "
    return "".join(c if i == 0 else " " + c for i, c in enumerate(cells)).rstrip()


def names(row):
    scale = f"{row['threads']}t/1t" if row["threads"] > 1 else ""
    return ["", "", "libattn", *PEERS.values(), "best", "torch", "peak", scale]


def head(row):
    """The lines above the first row of a group."""
    texts = names(row)
    texts[0] = heading(row)
    return "\n" + line(texts)


# --------------------------------------------------------------------------------- markdown

EXPLAINED = """\
Each figure is that of the fastest call: GFLOP/s, counting only visible pairs of query and key;
GB/s, counting each byte of K and V once; or microseconds per call. *best* is the fastest peer's
time divided by libattn's time, *torch* is PyTorch's; values below 1, where libattn is slower,
are marked **<**. *peak* is libattn's figure as a share of the machine's limit, measured in the
same seconds on the same number of threads. For GFLOP/s the limit is that of multiply-adds in
registers, in the type that libattn computes in (for bf16, the bf16 products of the instruction
set if it has them; for f16, f32); for GB/s it is that of streaming reads of as many bytes. The
best such read, named above, was measured for a cell whose keys and values fit into the CPU caches.
*2t/1t* is libattn's speed on two threads divided by its speed on one, in the same rounds. *-*
means not run; letters refer to the notes below the tables. *8h* means 8 heads, *32:8h* 32 query
heads that share 8 heads of keys and values. T = S, except in decoding, where the queries are
the last of the S positions: one query, unless the label says 4. Where a label has no D, D is
128 in decoding and 64 otherwise."""


def wrapped(text, width=118):
    lines, line_now = [], ""
    for word in text.split():
        if line_now and len(line_now) + 1 + len(word) > width:
            lines.append(line_now)
            line_now = word
        else:
            line_now = f"{line_now} {word}".strip()
    return "\n".join(lines + [line_now])


def generated(rows, machine):
    """The part of BENCHMARKS.md that this program writes."""
    notes, parts, group = Notes(), [wrapped(machine_text(machine, rows)), wrapped(EXPLAINED)], None
    for row in rows:
        if heading(row) != group:
            group, table = heading(row), []
            parts.append(f"### {group}")
            parts.append(table)
            texts = names(row)
            texts[0], texts[1] = "case", "unit"
            wide = slice(None) if row["threads"] > 1 else slice(-1)
            table.append("| " + " | ".join(texts[wide]) + " |")
            table.append("| --- | --- |" + " ---: |" * (len(texts[wide]) - 2))
        texts = columns(row, notes)
        if texts[6].endswith("<"):
            texts[6] = f"**{texts[6]}**"
        table.append("| " + " | ".join(texts[wide]) + " |")
    parts.append("\n".join(f"- {text}" for text in notes.lines()))
    parts.append(wrapped(summary(rows)))
    return "\n\n".join("\n".join(p) if isinstance(p, list) else p for p in parts if p)


def replace_generated(text, new, begin=BEGIN, end=END):
    """`text` with the part between the markers replaced."""
    first, last = text.find(begin), text.find(end)
    if first < 0 or last < first or text.count(begin) > 1 or text.count(end) > 1:
        raise ValueError(f"must have the line {begin} once, and after it {end} once")
    return text[: first + len(begin)] + "\n\n" + new + "\n\n" + text[last:]


def write_part(path, new, begin, end):
    """Writes the part between two markers of a file, which is made if there is none."""
    try:
        with open(path, encoding="utf-8") as f:
            text = f.read()
    except FileNotFoundError:
        text = f"# Benchmarks\n\n{begin}\n{end}\n"
    text = replace_generated(text, new, begin, end)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def write_markdown(path, rows, machine):
    write_part(path, generated(rows, machine), BEGIN, END)
