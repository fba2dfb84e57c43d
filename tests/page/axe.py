#!/usr/bin/env python3
"""axe-core's rules on every kind of page, light and dark. tests/peers/test_axe.py runs it, because
axe-core comes from PyPI: axe.py FILE, the path of axe.min.js."""

import os
import shutil
import sys
import unittest
from urllib.parse import urlencode

from browser import TEXT
from models import Model
from test_learn import LearnTest
from test_story import StoryTest

RUN = """
const done = arguments[arguments.length - 1];
const rules = Object.fromEntries(arguments[0].map(name => [name, {enabled: false}]));
axe.run({rules}).then(found => done(found.violations.map(
    v => `${v.id}: ${v.nodes.map(n => n.target).join(" ")}`)), e => done([String(e)]));"""


class Axe:
    rules = ""  # the text of axe.min.js

    def expect_accessible(self, where, *without):
        """No rule is violated, in both themes."""
        if not self.js("return globalThis.axe !== undefined"):
            self.js(self.rules)
        for _ in range(2):
            self.assertEqual(self.browser.execute_async_script(RUN, without), [], where)
            self.js("document.getElementById('theme')?.click()")


class Pages(Axe, StoryTest):
    def explore(self):
        self.js("attn.change({tab: 'explore', row: attn.page.state.row})")

    def test_story_and_explore(self):
        self.explain("--causal", "--heads", "2")
        for name in self.screens():
            self.screen(name)
            self.expect_accessible(name)
        self.explore()
        self.js("for (const fold of document.querySelectorAll('details')) fold.open = true")
        for stage in range(1, 10):
            self.stage(stage)
            self.expect_accessible(stage)

    def test_phone_and_print(self):
        self.size(390, 844)
        self.explain()
        self.expect_accessible("story")
        self.explore()
        self.expect_accessible("explore")
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        self.expect_accessible("print")
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})

    def test_lessons(self):
        for name in ("sky", "journey", "numpy", "dessert", "module"):
            self.lesson(name)
            self.expect_accessible(name)
            self.explore()
            self.expect_accessible(name)

    def test_models(self):
        for kind, text in (("bert", "w1 w2 w3 w2 w5"), ("gpt2", "a b a c")):
            shutil.rmtree(self.path("m"), ignore_errors=True)
            Model(kind, L=2, H=2).save(self.path("m"))
            self.works("explain", "--model", "m", "-o", "page.html", text)
            self.load(self.path("page.html"), tab="story")
            for name in self.screens():
                self.screen(name)
                self.expect_accessible((kind, name))
            self.explore()
            self.expect_accessible(kind)

    def test_embedded(self):
        self.explain()
        self.load(self.path("page.html") + "#" + urlencode({"embed": "matrix", "text": TEXT}), "")
        self.until("return attn.page.trace !== undefined")
        # The heading is that of the page around the frame.
        self.expect_accessible("embedded", "page-has-heading-one")


class Training(Axe, LearnTest):
    def test_training(self):
        self.learning(steps=30)
        self.expect_accessible("before")
        self.train()
        self.expect_accessible("after")


if __name__ == "__main__":
    with open(sys.argv.pop(1)) as f:
        Axe.rules = f.read()
    unittest.main()
