#!/usr/bin/env python3
# labels: slow
# timeout: 1800
"""1,000 random sentences with random options, computed in the page: byte for byte what the program
prints with --json and the generic instruction set. test_sentence.py has a part of it."""

import unittest

from browser import PageTest
from sentences import Compares, cases
from test_engine import has_module


@unittest.skipUnless(has_module(), "pages of this build have no module")
class Many(Compares, PageTest):
    def test_a_thousand_sentences(self):
        self.explain()
        self.until("return attn.library.state === 'ready'")
        self.assertGreater(self.compare(cases(2, 1000)), 950)


if __name__ == "__main__":
    unittest.main()
