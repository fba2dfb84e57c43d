#!/usr/bin/env python3
"""Vectors in the plane, and two maps with their difference: what is drawn is compared with the
numbers of the trace, by NumPy."""

import json
import unittest

import numpy as np

from browser import Keys, PageTest, TEXT, softmax, tensors
from test_engine import has_module

SIZE = 330  # of the plane's drawing


class Pictures(PageTest):
    def unfold(self, panel):
        self.click(f"#{panel}-panel summary")
        self.until("return document.getElementById(arguments[0]).childElementCount > 1",
                   f"{panel}-body")

    # ------------------------------------------------------------------------------ the plane

    def drawn_plane(self):
        """The tips of the arrows (the query last), the circles, in the plane's own coordinates."""
        reach, ends, circles = self.js("""
            const number = (e, names) => names.map(n => Number(e.getAttribute(n)));
            const all = s => [...document.querySelectorAll('.plane ' + s)];
            const reach = Number(document.querySelector('.plane').dataset.reach);
            return [reach, all('.arrow').map(e => number(e, ['x2', 'y2'])),
                    all('.share').map(e => number(e, ['cx', 'cy', 'r']))];""")
        ends, circles = np.array(ends), np.array(circles)

        def place(xy):
            return (xy - SIZE / 2) * [1, -1] * reach / (SIZE / 2)

        np.testing.assert_allclose(ends[:-1], circles[:, :2])
        return place(ends), (circles[:, 2] - 3) / 17

    def rows(self):
        return self.table("plane")[1:]

    def test_drawn_places_are_the_first_two_numbers(self):
        t = tensors(self.explain("--heads", "2", "--scale", "0.02", "--causal", "--query", "eat"))
        self.unfold("plane")
        self.select("#plane-axes", "first")
        ends, roots = self.drawn_plane()
        np.testing.assert_allclose(ends[:-1], t["keys"][0][:, :2], atol=1e-4)
        np.testing.assert_allclose(ends[-1], t["queries"][0][3, :2], atol=1e-4)
        np.testing.assert_allclose(roots**2, t["weights"][0][3], atol=1e-5)
        table = self.rows()
        self.assertEqual(table[0][0], "query of “eat”")
        xy = np.array([[float(x) for x in row[1:3]] for row in table])
        np.testing.assert_allclose(xy[0], t["queries"][0][3, :2], atol=1e-5)
        np.testing.assert_allclose(xy[1:], t["keys"][0][:, :2], atol=1e-5)
        self.assertEqual([row[3] for row in table[5:]], ["hidden", "hidden"])
        self.assertEqual(len(self.every(".plane .gone")), 2)

    def test_main_directions(self):
        """They keep as much of the squared lengths as the two largest singular values do."""
        t = tensors(self.explain())
        self.unfold("plane")
        vectors = np.vstack([t["keys"], t["queries"][1]])
        best = (np.linalg.svd(vectors, compute_uv=False)[:2] ** 2).sum()
        ends, _ = self.drawn_plane()
        self.assertAlmostEqual((ends**2).sum() / best, 1, delta=1e-3)
        part = round(100 * best / (vectors**2).sum())
        self.assertIn(f"which hold {part} % of the squared lengths", self.text("#plane-body"))

    def test_keyboard_moves_a_key_and_weights_follow(self):
        t = tensors(self.explain("--scale", "0.02"))
        self.unfold("plane")
        self.select("#plane-axes", "first")
        before, _ = self.drawn_plane()
        step = self.js("return Number(document.querySelector('.plane').dataset.reach)") / 20
        self.js("document.getElementById('plane-key-4').focus()")
        self.keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_UP)
        self.assertEqual(self.js("return document.activeElement.id"), "plane-key-4")
        self.assertEqual(self.js("return attn.page.state.stage"), 7)  # the page did not move on
        keys = t["keys"].copy()
        keys[4, :2] += [2 * step, step]
        ends, roots = self.drawn_plane()
        np.testing.assert_allclose(ends[:-1], keys[:, :2], atol=1e-4)
        want = softmax(0.02 * keys @ t["queries"][1])
        np.testing.assert_allclose(roots**2, want, atol=1e-5)
        self.assertIn("After the move “is” gives its largest share", self.text("#status"))
        self.click("#plane-reset")
        np.testing.assert_allclose(self.drawn_plane()[0], before, atol=1e-9)

    def test_pointer_drags_the_query(self):
        from selenium import webdriver
        t = tensors(self.explain("--scale", "0.02"))
        self.unfold("plane")
        self.select("#plane-axes", "first")
        (before, _), tip = self.drawn_plane(), self.one("#plane-query")
        self.js("arguments[0].scrollIntoView({block: 'center'})", tip)
        webdriver.ActionChains(self.browser, duration=0).click_and_hold(tip).move_by_offset(
            33, 0).release().perform()
        ends, roots = self.drawn_plane()
        np.testing.assert_allclose(ends[:-1], before[:-1], atol=1e-4)
        self.assertGreater(ends[-1, 0], before[-1, 0])
        q = t["queries"][1].copy()
        q[:2] = ends[-1]
        np.testing.assert_allclose(roots**2, softmax(0.02 * t["keys"] @ q), atol=1e-5)

    # ------------------------------------------------------------------------------- two maps

    def maps(self):
        """The numbers of the maps, from their tables."""
        rows = self.table("compare")
        n = sum(1 for row in rows if row[0] == "asks ↓ answers →")
        each, out = len(rows) // n, []
        for at in range(n):
            body = [row[1:] for row in rows[at * each + 1 : (at + 1) * each]]
            out.append(np.array([[np.nan if x == "hidden" else float(x) for x in r] for r in body]))
        return out

    def check(self, first, second):
        """Maps, their difference, its colours, and the sentence about the largest difference."""
        got = self.maps()
        for have, want in zip(got, (first, second, second - first)):
            np.testing.assert_allclose(np.nan_to_num(have), want, atol=2e-6)
        gap, top = (second - first).ravel(), abs(second - first).max()
        fills = self.js("return [...document.querySelectorAll('[data-map=difference] g rect')]"
                        ".map(e => e.getAttribute('fill'))")
        for fill, x in zip(fills, gap):
            if fill.startswith("#") and abs(x) > top / 10:
                red, blue = int(fill[1:3], 16), int(fill[5:7], 16)
                self.assertEqual(red > blue, x > 0, (fill, x))
        said = self.text("#compare-said")
        largest = gap[np.argmax(abs(gap))]
        self.assertAlmostEqual(float(said.split("difference is ")[1].split(":")[0]), largest,
                               delta=1e-4)

    def test_heads_and_mask(self):
        t = tensors(self.explain("--heads", "2", "--scale", "0.02"))
        self.unfold("compare")
        w, s = t["weights"], t["scaled_scores"]
        self.check(w[0], softmax(np.where(np.tri(6, dtype=bool), s[0], -np.inf)))
        self.select("#compare-with", "weights 1")
        self.check(w[0], w[1])
        self.keys("]")
        self.select("#compare-with", "weights 0")
        self.check(w[1], w[0])

    @unittest.skipUnless(has_module(), "pages of this build have no module")
    def test_another_sentence(self):
        t = tensors(self.explain("--scale", "0.02"))
        self.until("return attn.library.state === 'ready'")
        self.unfold("compare")
        self.select("#compare-with", "text")
        text = "Life is long, eat dessert first"
        field = self.one("#compare-text")
        self.assertEqual(field.get_attribute("value"), TEXT)
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(text, Keys.ENTER)
        other = json.loads(self.works("explain", "--scale", "0.02", "--json", text,
                                      env={"ATTN_ISA": "generic"}))
        self.check(t["weights"], tensors(other)["weights"])
        field = self.one("#compare-text")
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys("two words", Keys.ENTER)
        self.assertIn("6 and 2 words", self.text("#compare-said"))
        self.assertEqual(len(self.every("[data-map]")), 2)

    # ------------------------------------------------------------------------- many words

    def test_more_than_24_words_are_pixels(self):
        """Where cells have no room for digits. A larger weight is a lighter pixel. With a blank
        cell, to be predicted, the matrix is shapes."""
        words = " ".join(f"w{i}" for i in range(30))
        w = tensors(self.explain("--scale", "0.02", text=words))["weights"].ravel()
        light = self.js("""
            const canvas = document.querySelector("#matrix-body canvas"), step = canvas.width / 30;
            const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            return Array.from({length: 900}, (_, i) => {
                const x = Math.floor((i % 30 + 0.5) * step);
                const at = 4 * (Math.floor((Math.floor(i / 30) + 0.5) * step) * canvas.width + x);
                return 0.2126 * data[at] + 0.7152 * data[at + 1] + 0.0722 * data[at + 2];
            });""")
        order = np.argsort(w)
        self.assertGreaterEqual(np.diff(np.array(light)[order]).min(), -1.5)  # 8 bits a colour
        self.assertGreater(max(light) - min(light), 100)
        self.assertEqual(self.every("#matrix-body g rect"), [])
        self.click("#quiz-body button")
        self.assertEqual(len(self.every("#matrix-body .blank")), 1)

    # ------------------------------------------------------------------------------ both

    def test_embedded_and_sizes(self):
        self.works("explain", "-o", "page.html", TEXT)
        for panel in ("plane", "compare"):
            for width in (1280, 390):
                self.size(width, 800)
                self.load(self.path("page.html") + f"#embed={panel}")
                self.until("return document.getElementById(arguments[0]).childElementCount > 1",
                           f"{panel}-body")
                self.assertTrue(self.one(f"#{panel}-body").is_displayed())
                self.assertFalse(self.one("#matrix").is_displayed())
                self.assertLessEqual(self.js("return document.documentElement.scrollWidth"), width)
                self.browser.get("about:blank")

    def test_names_ids_and_contrast(self):
        from test_page import CONTRAST
        self.explain("--scale", "0.02")
        self.unfold("plane")
        self.unfold("compare")
        for _ in range(2):
            self.assertEqual(self.js(CONTRAST), [])
            self.click("#theme")
        ids = self.js("return [...document.querySelectorAll('[id]')].map(e => e.id)")
        self.assertEqual({i for i in ids if ids.count(i) > 1}, set())


if __name__ == "__main__":
    unittest.main()
