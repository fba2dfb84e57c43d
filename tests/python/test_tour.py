#!/usr/bin/env python3
"""docs/tour.ipynb: its cells run unchanged, all of their checks pass, and it shows pictures."""

import ast
import contextlib
import io
import json
import os
import unittest

from common import SOURCE, attn


class Tour(unittest.TestCase):
    def test_cells(self):
        docs = os.path.join(SOURCE, "docs")
        with open(os.path.join(docs, "tour.ipynb"), encoding="utf-8") as f:
            notebook = json.load(f)
        self.assertEqual((notebook["nbformat"], notebook["nbformat_minor"]), (4, 5))
        names = [cell["id"] for cell in notebook["cells"]]
        self.assertEqual(len(set(names)), len(names))
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        self.assertEqual(len(cells), 10)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(docs)
        space, pictures, printed = {}, 0, io.StringIO()
        for cell in cells:
            self.assertEqual((cell["outputs"], cell["execution_count"]), ([], None))
            tree = ast.parse("".join(cell["source"]), cell["id"])
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            with contextlib.redirect_stdout(printed):
                exec(compile(tree, cell["id"], "exec"), space)
                if last is not None:  # the objects that a notebook would show
                    shown = eval(compile(ast.Expression(last.value), cell["id"], "eval"), space)
                    if isinstance(shown, attn.Explanation):
                        kind = "<iframe" if isinstance(shown, attn.Lesson) else "image/svg+xml"
                        self.assertIn(kind, shown._repr_html_()[:200])
                        pictures += 1
        self.assertGreaterEqual(pictures, 6)
        self.assertGreater(space["checked"], 7500)
        self.assertIn("%d numbers are those" % space["checked"], printed.getvalue())


if __name__ == "__main__":
    unittest.main()
