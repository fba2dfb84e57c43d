#!/usr/bin/env python3
"""The page printed: a handout, without controls, of which nothing is cut off."""

import unittest

from test_engine import EngineTest


class Printed(EngineTest):
    def tearDown(self):
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        super().tearDown()

    def print(self, width=718):
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        self.size(width, 1000)

    def test_a_handout(self):
        self.explain("--heads", "2", text="The cat saw the dog and the cat ran off")
        self.click("#theme")
        self.assertEqual(self.js("return document.documentElement.dataset.theme"), "dark")
        self.stage(8)
        self.print()
        # Light, without controls.
        shown = ("e => e.checkVisibility() && e.getBoundingClientRect().width > 1")
        self.assertEqual(self.js("return getComputedStyle(document.body).backgroundColor"),
                         "rgb(255, 255, 255)")
        self.assertEqual(self.js("return getComputedStyle(document.body).color"),
                         "rgb(29, 32, 37)")
        self.assertEqual(self.js("return [...document.querySelectorAll('input, select, textarea,"
                                 f" summary, button:not(.thumb, .word)')].filter({shown})"
                                 ".map(e => e.id)"), [])
        # Every panel, whole.
        for panel in ("lines-body", "matrix-body", "cell-body", "health-body", "heads-body",
                      "code-body"):
            self.assertTrue(self.one(f"#{panel}").is_displayed(), panel)
        self.assertEqual(self.js(
            f"return [...document.querySelectorAll('main *')].filter({shown}).filter(e =>"
            "  ['auto', 'scroll', 'hidden'].some(o => [getComputedStyle(e).overflowX,"
            "  getComputedStyle(e).overflowY].includes(o)) && (e.scrollHeight > e.clientHeight + 1"
            "  || e.scrollWidth > e.clientWidth + 1)).map(e => e.id || e.className)"), [])
        code = self.one("#code-text")
        self.assertGreater(code.size["height"], 1000)
        self.assertLessEqual(self.js("return document.documentElement.scrollWidth"), 718)

    def test_all_heads_leave_no_gap(self):
        """The sentence stands below the heads and beside the cell."""
        self.explain("--heads", "6")
        self.stage(9)
        self.js("for (const d of document.querySelectorAll('#plane-panel, #compare-panel'))"
                "  d.open = true")
        self.until("return document.querySelector('#compare-body select') !== null")
        self.print()
        heads, sentence, cell = self.js("""
            return [".matrix-panel", ".lines-panel", ".cell-panel"].map(s => {
                const box = document.querySelector(s).getBoundingClientRect();
                return box.toJSON(); });""")
        self.assertLess(sentence["top"] - heads["bottom"], 30)
        self.assertAlmostEqual(sentence["left"], heads["left"], delta=1)
        self.assertLessEqual(sentence["right"], cell["left"])
        self.assertLess(sentence["top"], cell["bottom"])
        self.assertLessEqual(self.js("return document.documentElement.scrollWidth"), 718)
        self.assertEqual([e for e in self.every("select") if e.is_displayed()], [])

    def test_wide_matrices_fit(self):
        self.explain(text=" ".join(f"w{i}" for i in range(60)))
        self.print()
        self.assertLessEqual(self.js("return document.documentElement.scrollWidth"), 718)

    def test_pdf(self):
        self.explain()
        pdf = self.browser.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27,
                                                               "paperHeight": 11.69})
        self.assertGreater(len(pdf["data"]), 10000)


if __name__ == "__main__":
    unittest.main()
