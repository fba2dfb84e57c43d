#!/usr/bin/env python3
"""Terminal, page, SVG and PNG of one trace show the same numbers: each is read back from its output
and compared with the others and with the JSON."""

import base64
import json
import re
import unittest
import xml.etree.ElementTree as xml

import numpy as np

from browser import PageTest, tensors

SVG = "{http://www.w3.org/2000/svg}"
TEXT = "one two three four five"


class SameNumbers(PageTest):
    def outputs(self, *args):
        """Returns (terminal, svg's root, json), and opens the page."""
        command = ["explain", "--scale", "0.03", *args]
        text = self.works(*command, TEXT)
        self.works(*command, "-o", "m.svg", "-o", "m.png", "-o", "trace.json", "-o", "page.html",
                   TEXT)
        self.load(self.path("page.html"))
        return text, xml.fromstring(self.bytes("m.svg")), json.loads(self.bytes("trace.json"))

    def png_colours(self, width, points):
        """Colours of the PNG at these points, for a drawing of this width; the browser decodes
        it."""
        return self.js("""
            const [data, width, points] = arguments, image = new Image();
            image.src = "data:image/png;base64," + data;
            return image.decode().then(() => {
                const canvas = document.createElement("canvas");
                canvas.width = image.width;
                canvas.height = image.height;
                const c = canvas.getContext("2d", {willReadFrequently: true});
                const scale = image.width / width;
                c.drawImage(image, 0, 0);
                return points.map(([x, y]) => "#" + [...c.getImageData(x * scale, y * scale, 1, 1)
                    .data.slice(0, 3)].map(v => v.toString(16).padStart(2, "0")).join(""));
            });""", base64.b64encode(self.bytes("m.png")).decode(), width, points)

    def terminal_rows(self, text, words):
        """The rows of the heat-map: a word, then a number or "·" for each key."""
        rows = []
        for word in words:
            for line in text.splitlines():
                cells = re.findall(r"[░▒▓█ ](\d\.\d{3}|·)(?= |$)", line)
                if re.match(rf"    {word}[ ›]", line) and len(cells) >= len(words):
                    rows.append(cells[:len(words)])
                    break
        return rows

    def svg_cells(self, root):
        """Colours, tooltips and numbers of the cells, in order."""
        rects = [e for e in root.iter(SVG + "rect") if e.find(SVG + "title") is not None]
        numbers = [e.text for e in root.iter(SVG + "text") if e.get("class") == "m"
                   and e.get("text-anchor") == "middle" and "." in e.text]
        return rects, numbers

    def test_same_numbers(self):
        for args in ((), ("--causal",)):
            text, root, trace = self.outputs(*args)
            words, want = trace["tokens"], tensors(trace)["weights"]
            seen = np.tril(np.ones((5, 5), bool)) if args else np.ones((5, 5), bool)
            shown = ["%.3f" % w for w, s in zip(want.ravel(), seen.ravel()) if s]
            # The terminal.
            rows = self.terminal_rows(text, words)
            self.assertEqual(len(rows), 5, text)
            self.assertEqual([x for row in rows for x in row if x != "·"], shown)
            # The page: the cells, the texts for screen readers, the table.
            self.assertEqual(self.drawn(), shown)
            np.testing.assert_array_equal(np.isnan(self.shown()), ~seen)
            np.testing.assert_allclose(self.shown()[seen], want[seen], rtol=1e-8)
            # The SVG: the cells and their tooltips.
            rects, numbers = self.svg_cells(root)
            self.assertEqual(numbers, shown)
            self.assertEqual(len(rects), 25)
            for i, rect in enumerate(rects):
                tip = rect.find(SVG + "title").text
                said = tip.split("answers: ")[1].split(" ")[0]
                if not seen.ravel()[i]:
                    self.assertEqual(said, "hidden")
                else:
                    self.assertEqual(np.float32(said), np.float32(want.ravel()[i]))
            # The PNG has the SVG's colours at the places of the SVG's cells.
            points = [[float(r.get("x")) + 6, float(r.get("y")) + 6] for r in rects]
            colours = self.png_colours(float(root.get("width")), points)
            self.assertEqual([c for c, s in zip(colours, seen.ravel()) if s],
                             [r.get("fill") for r, s in zip(rects, seen.ravel()) if s])
            # So do the page's cells.
            fills = [e.get_attribute("fill") for e in self.every("#matrix-body .drawing g > rect")]
            self.assertEqual([f for f, s in zip(fills, seen.ravel()) if s],
                             [r.get("fill") for r, s in zip(rects, seen.ravel()) if s])

    def test_sentences_have_the_terminals_numbers(self):
        """The terminal's written-out row appears in the page's cell panel, digit by digit."""
        text, _, trace = self.outputs("--query", "3", "--qk", "2")
        squashed = " ".join(text.split())
        for j in range(5):
            self.cell(2, j)
            products, soft = self.texts("#cell-body .equation code")
            score = products.rsplit(" = ")[1]
            scaled = self.every("#cell-body [data-chain=scale] .number")[0].text
            for number in (score, scaled):
                self.assertIn(number, squashed)
        q, k = tensors(trace)["queries"][2], tensors(trace)["keys"]
        most = (k @ q).argmax()
        self.cell(2, most)
        self.assertIn(self.every("#cell-body .equation code")[0].text.split(" = ")[0], squashed)

    def test_number_texts_are_those_of_c(self):
        """numberText and general give printf's texts, for numbers of all sizes."""
        rng = np.random.default_rng(1)
        numbers = [0, 1, -1, 0.5, 5e-4, 4.9999e-4, 99999.5, 1e5, 123456789, 1e-300, 0.1 + 0.2]
        numbers += list(rng.standard_normal(300) * 10.0 ** rng.integers(-12, 12, 300))
        # Halfway between two texts, where printf keeps the even digit.
        numbers += [k / 2.0**n for n in (5, 10, 14, 20) for k in range(-64, 64)]
        got = self.open("explain", TEXT) and self.js(
            "return arguments[0].map(x => [attn.numberText(x), attn.general(x, 3), "
            "attn.general(x, 9)])", [float(x) for x in numbers])
        for x, (text, three, nine) in zip(numbers, got):
            size = abs(x)
            want = "0" if x == 0 else "%.3g" % x if size < 5e-4 or size >= 1e5 else "%.4f" % x
            self.assertEqual((text, three, nine), (want, "%.3g" % x, "%.9g" % x))

    def test_halves_are_ieee(self):
        self.open("explain", TEXT)
        bits = list(range(0, 65536, 7)) + [0x7bff, 0x0001, 0x03ff, 0x0400, 0x7c00, 0xfc00, 0x8000]
        got = self.js("return arguments[0].map(b => String(attn.readHalf(b)))", bits)
        want = np.array(bits, np.uint16).view(np.float16).astype(float)
        for text, x in zip(got, want):
            value = float(text.replace("Infinity", "inf").replace("NaN", "nan"))
            self.assertTrue(value == x or (np.isnan(value) and np.isnan(x)), (text, x))


if __name__ == "__main__":
    unittest.main()
