#!/usr/bin/env python3
"""The chart and the table of the README show the figures of docs/BENCHMARKS.md."""

import os
import re
import sys
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

SOURCE = Path(os.environ.get("ATTN_SOURCE", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "bench"))

import chart  # noqa: E402

TEXT = (SOURCE / "docs/BENCHMARKS.md").read_text(encoding="utf-8")
README = (SOURCE / "README.md").read_text(encoding="utf-8")
SVG = "{http://www.w3.org/2000/svg}"


class Chart(unittest.TestCase):
    def test_figures(self):
        text = "\n".join(
            [
                "### f32, 1 thread",
                "| case | unit | libattn | PyTorch |",
                "| --- | --- | ---: | ---: |",
                "| 6 x 6 | us | 1.5 | 12.0a |",
                "| other | us | 2 | -b |",
                "",
                "| case | unit |",
                "| --- | --- |",
                "| below | other |",
            ]
        )
        rows = chart.tables(text)["f32, 1 thread"]
        self.assertEqual(rows["6 x 6"]["PyTorch"], "12.0a")
        self.assertEqual(rows["below"], {"case": "below", "unit": "other"})
        self.assertEqual([chart.figure(x) for x in ("12.0a", "-b", "-", "7")], [12, None, None, 7])

    def test_bars_have_the_lengths_of_the_figures(self):
        root = ElementTree.fromstring(chart.svg(chart.chart_rows(TEXT)))
        bars = [x for x in root.iter(SVG + "rect") if float(x.get("y", 0)) >= chart.TOP]
        lengths = [float(x.get("width")) for x in bars]
        wanted = []
        for _, _, figures in chart.chart_rows(TEXT):
            shown = [f for f in figures.values() if f is not None]
            wanted += [chart.WIDTH * f / figures["libattn"] for f in shown]
        self.assertEqual(len(lengths), len(wanted))
        self.assertGreater(len(wanted), 20)
        for got, want in zip(lengths, wanted):
            self.assertAlmostEqual(got, want, delta=0.06)

    def test_the_picture_is_up_to_date(self):
        saved = (SOURCE / "docs/speed.svg").read_text(encoding="utf-8")
        self.assertEqual(saved, chart.svg(chart.chart_rows(TEXT)), "repeat `make pictures`")

    def test_the_table_of_the_readme(self):
        section = README.split("\n## Figures\n")[1].split("\n## ")[0]
        lines = [x for x in section.splitlines() if re.match(r"\| [a-z].*\|$", x)][1:]
        table = [[c.strip() for c in x.strip("|").split("|")][1:] for x in lines]
        rows = chart.chart_rows(TEXT)
        self.assertEqual(len(table), len(rows))
        for cells, (_, unit, figures) in zip(table, rows):
            self.assertEqual(cells[0], unit)
            self.assertEqual([chart.figure(x) for x in cells[1:]], list(figures.values()))


if __name__ == "__main__":
    unittest.main()
