#!/usr/bin/env python3
"""The steps after softmax: masks that are applied there, the removal of a sink, sinks compared with
evenly spread attention, and a model's probabilities. The written-out arithmetic gives the number
that is shown."""

import json
import re
import unittest

import numpy as np

from browser import PageTest, softmax, tensors
from models import Model

SOFT = ["--scale", "0.02"]


class AfterSoftmax(PageTest):
    def chain(self):
        """The lines of the cell's computation, {name: number}, and the result of its last
        equation."""
        lines = self.js("return [...document.querySelectorAll('.chain [data-chain]')].map(e =>"
                        " [e.dataset.chain, e.querySelector('.number').title])")
        equation = self.js("return [...document.querySelectorAll('.equation code')]"
                           ".at(-1).textContent")
        return {name: float(x.replace("−", "-").replace("∞", "inf")) for name, x in lines}, equation

    def follows(self, equation):
        """Each equation is true for the printed numbers, and begins with the result of the one
        before."""
        parts = equation.replace("−", "-").split("; ")
        result = re.search(r" = (\S+)$", parts[0]).group(1)
        for part in parts[1:]:
            x, sign, y, z = re.fullmatch(r"(\S+) ([×/]) (\S+) = (\S+)", part).groups()
            self.assertEqual(x, result, equation)
            got = float(x) * float(y) if sign == "×" else float(x) / float(y)
            self.assertAlmostEqual(got, float(z), delta=2e-3, msg=equation)
            result = z
        return float(result)

    def test_masks_after_softmax(self):
        t = tensors(self.explain(*SOFT))
        shares = softmax(t["scaled_scores"].astype(float))
        hidden = np.triu(np.ones_like(shares), 1) > 0
        self.select("#lab-mask", "causal")
        for masking in ("after", "renormalised"):
            self.select("#lab-masking", masking)
            for row, column in ((0, 0), (3, 1), (5, 2), (2, 4), (0, 5)):
                self.cell(row, column)
                chain, equation = self.chain()
                want = {"÷ sum": shares[row, column],
                        "mask": 0 if hidden[row, column] else shares[row, column]}
                last = want["mask"]
                if masking == "renormalised":
                    last = want["÷ rest"] = last / shares[row][~hidden[row]].sum()
                self.assertEqual(list(chain)[-len(want):], list(want))
                for name, x in want.items():
                    self.assertAlmostEqual(chain[name], x, delta=1e-6, msg=(masking, row, column))
                self.assertAlmostEqual(self.follows(equation), last, delta=1e-4)
                self.assertAlmostEqual(float(self.text("#exact")), last, delta=1e-6)

    def test_a_sink_that_is_taken_out(self):
        t = tensors(self.explain("--seed", 2))
        w = t["weights"].astype(float)
        best = int(w.mean(0).argmax())
        self.click("#lab-sink")
        for row, column in ((1, best), (1, (best + 1) % 6), (4, (best + 2) % 6)):
            self.cell(row, column)
            left = w[row].copy()
            left[best] = 0
            want = left[column] / left.sum()
            chain, equation = self.chain()
            self.assertEqual(list(chain)[-2:], ["sink", "÷ others"])
            self.assertAlmostEqual(chain["÷ others"], want, delta=1e-5)
            self.follows(equation)

    def test_rows_that_do_not_sum_to_1(self):
        t = tensors(self.explain())  # nearly one-hot: the key with all the weight may be masked
        shares = softmax(t["scaled_scores"].astype(float))
        shares[np.triu_indices(6, 1)] = 0
        self.select("#lab-mask", "causal")
        self.select("#lab-masking", "after")
        sums = shares.sum(1)
        verdicts = [row[4] for row in self.table("health")[1:]]
        for total, verdict in zip(sums, verdicts):
            want = ["sum is 0"] if total < 1e-6 else ["sum is not 1"] if abs(total - 1) > 1e-3 \
                else ["one key", "saturated", "fine", "flat"]
            self.assertIn(verdict, want)
        self.assertIn("sum is 0", verdicts)
        row = verdicts.index("sum is 0")
        self.cell(row, 0)
        said = self.text("#main")
        self.assertRegex(said, r"sum to [0-9.]+e-[0-9]+, not to 1")
        self.assertIn("Its context is 0", said)
        self.assertNotIn("– fine", said)


class Sinks(PageTest):
    def test_beside_an_even_attention(self):
        """With a causal mask the first word gets much weight without being a sink."""
        t = tensors(self.explain("--causal", "--scale", "0.0001"))
        first = t["weights"][1:, 0].mean()
        self.assertGreater(first, 0.28)
        self.assertEqual(self.every("#sink"), [])

    def test_models(self):
        """The terminal's note: the share, and that of evenly spread attention, computed from the
        weights."""
        found = unremarkable = 0
        for kind, window in (("gpt2", 0), ("bert", 0), ("mistral", 5)):
            m = Model(kind, H=1, window=window, seed=4)
            m.save(self.path(kind))
            for seed in range(12):
                text, _ = m.text_of(7, seed=seed)
                trace = self.trace(kind, text)
                w = tensors(trace)["weights"].reshape(-1, len(trace["tokens"]))
                T = w.shape[1]
                sees = np.ones((T, T)) if kind == "bert" else np.tril(np.ones((T, T)))
                if window:
                    sees *= 1 - np.tril(np.ones((T, T)), -window)
                even, best, share, usual = sees / sees.sum(1, keepdims=True), -1, 0, 0
                for j in range(T):
                    rows = [i for i in range(T) if sees[i, j] and (kind == "bert" or i > j)]
                    if 2 * len(rows) >= T and w[rows, j].mean() > share:
                        best, share, usual = j, w[rows, j].mean(), even[rows, j].mean()
                notes = [n["text"] for n in trace["notes"] if n["label"] == "sink"]
                self.assertEqual(len(notes), share > 0.3 and share > 1.5 * usual, (kind, text))
                found += len(notes)
                unremarkable += share > 0.3 and not notes
                for note in notes:
                    self.assertTrue(note.startswith(trace["tokens"][best] + " takes %.0f %%"
                                                    % (100 * share)), note)
                    self.assertIn("it would be %.0f %%" % (100 * usual), note)
                    self.assertNotIn("learnt", note)

        self.assertGreater(found, 0)
        self.assertGreater(unremarkable, 0)

    def trace(self, folder, text):
        return json.loads(self.works("explain", "--json", "--model", folder, text))


class Probabilities(PageTest):
    def test_next_tokens(self):
        m = Model("gpt2")
        m.save(self.path("m"))
        text, _ = m.text_of(9)
        trace = self.open("explain", "--model", "m", text)
        p = tensors(trace)["next_tokens"][:, 0]
        step = next(s for s in trace["steps"] if s["name"] == "next_tokens")
        self.assertEqual(step["kind"], "probabilities")
        # The terminal shows all of them, even without --full.
        shown = self.works("explain", "--model", "m", text).split("next_tokens")[1]
        for label, x in zip(step["rows"], p):
            self.assertRegex(shown, r"(?m)^ *%s +%.4f$" % (re.escape(label), x))
        # The page shows colours and a legend for shares, 0 to 1, and their meaning.
        self.js("const s = document.getElementById('every-step'); s.value = [...s.options].find("
                "o => o.textContent.endsWith('(next tokens)')).value;"
                "s.dispatchEvent(new Event('change'))")
        self.until("return document.getElementById('step-title').textContent"
                   " === 'Their probabilities'")
        marks = self.js("return [...document.querySelectorAll('.legend .marks span')]"
                        ".map(e => e.textContent)")
        self.assertEqual(marks, ["0", ".25", ".5", ".75", "1"])
        np.testing.assert_allclose(self.shown()[:, 0], p, atol=1e-6)
        self.assertIn("Computed by the model after its last layer", self.text("#main"))
        self.assertNotIn("Given: typed in", self.text("#main"))
        self.assertNotIn("Row asks", self.text("#main"))
        # Their ids are not tokens of the text, which are in the first stage.
        self.stage(1)
        self.assertEqual(self.text("#step-name"), "token ids")
        self.assertEqual(self.every(".tab.here"), [])


if __name__ == "__main__":
    unittest.main()
