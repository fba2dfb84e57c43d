#!/usr/bin/env python3
"""Draws the chart of the README from the tables in docs/BENCHMARKS.md: make pictures.

    bench/chart.py docs/BENCHMARKS.md docs/speed.svg

Each group of bars is one call. A bar is the speed of a library relative to libattn's, so libattn's
bars all have the same length.
"""

import re
import sys
from html import escape

import report

# The rows of the README's table: heading and first column in BENCHMARKS.md, and a label.
ROWS = [
    ("f32, 1 thread", "8h 2048, D=64", "forward, f32"),
    ("f32, 1 thread", "8h 2048, D=64, causal", "forward, f32, causal"),
    ("f32, 1 thread", "8h 2048, D=64, window 256", "forward, f32, window 256"),
    ("bf16, 1 thread", "8h 2048, D=64", "forward, bf16"),
    ("f32, 1 thread", "both 8h 1024, D=64", "forward and backward, f32"),
    ("bf16, 1 thread", "decode 32h 4096, own cache", "decode one token, bf16"),
]
LIBRARIES = {
    "libattn": "#0b5394",
    "PyTorch": "#e07b39",
    "ONNX RT": "#6aa84f",
    "OpenVINO": "#999999",
}
LEFT, WIDTH, BAR, GAP, TOP = 250, 430, 13, 16, 44  # pixels


def tables(text):
    """{heading: {first column: {column: text}}} of every table below a heading of three #."""
    found, columns, heading = {}, None, None
    for line in text.splitlines():
        if line.startswith("#"):
            heading, columns = line.lstrip("# "), None
        elif line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if columns is None:
                columns = cells
            elif not set(line) <= set("|-: "):
                found.setdefault(heading, {})[cells[0]] = dict(zip(columns, cells))
        else:
            columns = None
    return found


def figure(text):
    """The number of a cell such as 176.4d, whose letter names a note; None for "-" and "-b"."""
    match = re.match(r"[0-9.]+", text)
    return float(match[0]) if match else None


def chart_rows(text):
    """[(label, unit, {library: figure or None})] in the order of ROWS."""
    found = tables(text)
    rows = []
    for heading, name, label in ROWS:
        row = found[heading][name]
        rows.append((label, row["unit"], {x: figure(row[x]) for x in LIBRARIES}))
    return rows


def svg(rows):
    """The picture as text. Rows as from chart_rows()."""
    parts = []

    def write(x, y, words, more=""):
        parts.append(f'<text x="{x}" y="{y}" {more}>{escape(words)}</text>')

    x = LEFT
    for who, colour in LIBRARIES.items():
        parts.append(f'<rect x="{x}" y="14" width="12" height="12" fill="{colour}"/>')
        write(x + 17, 24, who)
        x += 105
    y = TOP
    for label, unit, figures in rows:
        shown = [(who, f) for who, f in figures.items() if f is not None]
        middle = y + len(shown) * BAR / 2
        write(LEFT - 10, middle, label, 'text-anchor="end" font-weight="bold"')
        write(LEFT - 10, middle + 14, unit, 'text-anchor="end" fill="#555555"')
        for who, f in shown:
            length = max(1.5, WIDTH * f / figures["libattn"])
            parts.append(
                f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR - 2}" '
                f'fill="{LIBRARIES[who]}"/>'
            )
            write(round(LEFT + length + 5, 1), y + BAR - 3, report.number(f), 'font-size="11"')
            y += BAR
        y += GAP
    width = LEFT + WIDTH + 60
    title = "Speed of libattn, PyTorch, ONNX Runtime and OpenVINO on one thread; longer is faster"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" '
            f'viewBox="0 0 {width} {y}" font-family="sans-serif" font-size="13" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{y}" fill="#ffffff"/>',
            *parts,
            "</svg>\n",
        ]
    )


def main():
    source, target = sys.argv[1:]
    with open(source, encoding="utf-8") as f:
        rows = chart_rows(f.read())
    with open(target, "w", encoding="utf-8") as f:
        f.write(svg(rows))


if __name__ == "__main__":
    main()
