#!/usr/bin/env python3
"""The promises of the explainer, one test each, on pages in a real browser. Numbers are compared
with the trace's JSON, or recomputed with NumPy."""

import json
import re
import unittest

import numpy as np

from browser import Keys, PageTest, TEXT, softmax, tensors

SOFT = ("--scale", "0.02")  # weights that are neither one-hot nor flat


def numbers_in(text):
    return [float(x) for x in re.findall(r"-?\d+\.?\d*(?:e[-+]\d+)?", text.replace("−", "-"))]


class Promises(PageTest):
    def test_01_every_number_opens_its_equation_with_operands(self):
        """Every cell of the scores and the weights: operands and result equal the trace's."""
        trace = tensors(self.explain(*SOFT, "--qk", "4", "--causal"))
        q, k = trace["queries"], trace["keys"]
        for row in range(6):
            for column in range(6):
                self.cell(row, column)
                products, soft = self.texts("#cell-body .equation code")
                terms, total = products.rsplit(" = ", 1)
                pairs = [[float(x) for x in p.split("×")] for p in terms.split(" + ")]
                np.testing.assert_allclose(pairs, np.stack([q[row], k[column]], 1), atol=6e-5)
                self.assertAlmostEqual(float(total), q[row] @ k[column], delta=2e-4)
                exact = float(self.text("#exact").replace("−", "-"))
                self.assertAlmostEqual(exact, trace["weights"][row, column], delta=1e-8)
                if column <= row:
                    self.assertEqual(soft.count("e^"), row + 2)
                chain = self.text("#cell-body .chain")
                self.assertIn("visible" if column <= row else "hidden", chain)
        for stage, name in ((3, "queries"), (8, "context")):
            self.stage(stage)
            self.cell(4, 2)
            equation = self.text("#cell-body .equation code")
            self.assertAlmostEqual(float(equation.rsplit(" = ")[1]), trace[name][4, 2], delta=6e-5)
            terms = [p.split("×") for p in equation.rsplit(" = ")[0].split(" + ")]
            total = sum(float(a) * float(b) for a, b in terms)
            self.assertAlmostEqual(total, trace[name][4, 2], delta=2e-3)

    def test_02_direction_is_always_stated(self):
        trace = self.explain(*SOFT)
        words, weights = trace["tokens"], tensors(trace)["weights"]
        for stage in (4, 5, 7):
            self.stage(stage)
            self.cell(1, 4)
            self.assertTrue(self.text("#cell-sentence").startswith("“is” asks, “dessert” answers:"))
            self.assertEqual(self.text(".direction"), "Row asks, column answers.")
            self.assertIn("“is” asks", self.one("#cell").get_attribute("aria-label"))
        self.assertEqual(self.texts("#matrix-body [data-row]"), words)
        self.assertEqual(self.texts("#matrix-body [data-column]"), words)
        self.assertEqual(self.texts(".lines [data-word]"), words)
        # The colour bar is 0…1 for any weights.
        marks = self.texts("#matrix-body .marks span")
        self.assertEqual(marks, ["0", ".25", ".5", ".75", "1"])
        # Lines start at the query's word: their strengths are the row's, not the column's.
        wide = {
            int(e.get_attribute("data-column")): float(e.get_attribute("stroke-width"))
            for e in self.every(".line.chosen")
        }
        for j, width in wide.items():
            self.assertAlmostEqual(width, 1 + 6 * weights[1, j], places=4)

    def test_03_health_of_every_row_with_cause_and_repair(self):
        trace = self.explain()
        w = tensors(trace)["weights"]
        rows = self.table("health")[1:]
        for row, a in zip(rows, w):
            bits = -sum(p * np.log2(p) for p in a if p > 0)
            self.assertAlmostEqual(float(row[1]), bits, delta=1e-4)
            self.assertAlmostEqual(float(row[2]), np.log2(6), delta=1e-4)
            self.assertEqual(row[4], "saturated" if a.max() > 0.99 else "fine")
        advice = self.text(".advice")
        spread = tensors(trace)["scaled_scores"][1].std()
        self.assertIn("standard deviation %.4f" % spread, advice)
        self.click("#repair")
        self.assertAlmostEqual(self.js("return attn.page.state.settings.temperature"), spread,
                               delta=0.01 * spread)
        self.assertNotIn("saturated", self.text("#health-body li.chosen"))
        flat = self.explain("--scale", "0.00001")
        self.assertTrue(all(r[4] == "flat" for r in self.table("health")[1:]))
        self.assertIn("nearly equal", self.text(".advice"))
        del flat

    def test_04_size_lab_shows_why_scores_are_divided(self):
        """Compared with the same experiment in NumPy, with other random numbers."""
        self.explain()
        self.click("#size-lab summary")
        rows = {int(r[0]): [float(x) for x in r[1:]] for r in self.table("size")[1:]}
        rng, draws = np.random.default_rng(7), 2000
        for d in (8, 64, 512):
            want = np.zeros(4)
            for _ in range(draws):
                s = rng.standard_normal((8, d)) @ rng.standard_normal(d)
                for i, scores in enumerate((s, s / np.sqrt(d))):
                    a = softmax(scores)
                    want[2 * i] -= (a[a > 0] * np.log2(a[a > 0])).sum() / draws
                    want[2 * i + 1] += np.linalg.norm(np.diag(a) - np.outer(a, a)) / draws
            np.testing.assert_allclose(rows[d], want, atol=0.12, err_msg=str(d))
        self.assertGreater(rows[8][0], rows[64][0])
        self.assertGreater(rows[64][0], rows[512][0])
        # The same for this sentence: without the division, and with fewer numbers.
        t = tensors(self.explain("--scale", "0.02"))
        self.click("#lab-scale")
        np.testing.assert_allclose(self.shown(), softmax(t["queries"] @ t["keys"].T), atol=1e-6)
        self.click("#lab-scale")
        self.slide("#lab-d", 6)
        part = t["queries"][:, :6] @ t["keys"][:, :6].T * 0.02 * np.sqrt(24 / 6)
        np.testing.assert_allclose(self.shown(), softmax(part), atol=1e-6)

    def test_05_mask_before_after_renormalised(self):
        t = tensors(self.explain(*SOFT))
        scores = t["scaled_scores"]
        seen = np.tril(np.ones((6, 6), bool))
        before = softmax(np.where(seen, scores, -np.inf))
        after = softmax(scores) * seen
        self.select("#lab-mask", "causal")
        np.testing.assert_allclose(np.nan_to_num(self.shown()), before, atol=1e-6)
        self.select("#lab-masking", "after")
        np.testing.assert_allclose(np.nan_to_num(self.shown()), after, atol=1e-6)
        self.select("#lab-masking", "renormalised")
        np.testing.assert_allclose(np.nan_to_num(self.shown()), before, atol=1e-6)
        self.click("#mask-lab summary")
        for row, a, b in zip(self.table("mask")[1:], before, after):
            sums = [float(x) for x in row[1:]]
            np.testing.assert_allclose(sums, [a.sum(), b.sum(), 1], atol=1e-6)
        self.assertIn("do not sum to 1", self.text("#mask-said"))

    def test_06_shuffled_words_take_their_numbers_along(self):
        t = tensors(self.explain(*SOFT))
        self.click("#lab-shuffle")
        order = self.js("return attn.page.state.settings.order")
        self.assertEqual(sorted(order), list(range(6)))
        self.assertNotEqual(order, list(range(6)))
        np.testing.assert_allclose(self.shown(), t["weights"][np.ix_(order, order)], atol=1e-6)
        self.assertIn("no number changed", self.text("#lab-said"))
        words = TEXT.replace(",", "").split()
        labels = self.texts("#matrix-body [data-row]")
        self.assertEqual(labels, [words[i] for i in order])
        # With a causal mask the position matters.
        self.explain(*SOFT, "--causal")
        self.click("#lab-shuffle")
        self.assertIn("order matters here through the mask alone", self.text("#lab-said"))

    def test_07_weight_is_not_contribution(self):
        """The lesson journey, in which ‖v‖ alone raises the share of "journey" from .226 to
        .278."""
        t = tensors(self.lesson("journey"))
        i = self.js("return attn.page.trace.blocks.findIndex(b => b.name === 'v1_weights')")
        self.select("#block", str(i))
        np.testing.assert_allclose(self.shown(), t["v1_weights"], atol=1e-6)
        self.assertAlmostEqual(self.shown()[1, 1], 0.226, delta=5e-4)
        self.select("#lab-view", "contribution")
        share = t["v1_weights"] * np.linalg.norm(t["values"], axis=1)
        share /= share.sum(1, keepdims=True)
        np.testing.assert_allclose(self.shown(), share, atol=1e-6)
        self.assertAlmostEqual(self.shown()[1, 1], 0.278, delta=5e-4)
        self.select("#lab-view", "rollout")
        self.until("return attn.page.context.rolled !== null")
        np.testing.assert_allclose(self.shown(), 0.5 * t["v1_weights"] + 0.5 * np.eye(6), atol=1e-6)

    def test_08_sinks_are_named_and_never_hidden_silently(self):
        for seed, first in ((9, False), (2, True)):  # on "dessert", and on the first word
            t = tensors(self.explain("--seed", seed))
            shares = t["weights"].mean(0)
            best = int(shares.argmax())
            word = TEXT.replace(",", "").split()[best]
            said = self.text("#sink")
            self.assertIn("“%s” takes %d %%" % (word, round(100 * shares[best])), said)
            self.assertIn("spread evenly over the keys that each row sees, it would be 17 %", said)
            self.assertEqual("marking token" in said, first)
            self.assertEqual(best == 0, first)
        self.click("#lab-sink")
        w = np.delete(t["weights"], best, 1)
        shown = self.shown()
        np.testing.assert_allclose(np.delete(shown, best, 1), w / w.sum(1, keepdims=True),
                                   atol=1e-5)
        self.assertEqual(abs(shown[:, best]).max(), 0)
        self.assertIn("is taken out", self.text("#lab-said"))
        self.assertTrue(self.one("#changed").is_displayed())
        self.click("#changed-reset")
        np.testing.assert_allclose(self.shown(), t["weights"], atol=1e-7)

    def test_09_predict_then_see(self):
        t = tensors(self.explain(*SOFT))
        self.click("#quiz-start")
        at = self.js("return attn.page.state.quiz.at")
        truth = t["weights"].ravel()[at]
        self.assertIn("?", self.drawn())
        self.assertNotIn("%.4f" % truth, self.text("#main"))
        self.assertNotIn("%.9g" % truth, self.text("#main"))
        for stage in (4, 5, 8, 9, 7):
            self.stage(stage)
            self.assertNotIn("%.4f" % truth, self.text("#main"), stage)
        for text in ("csvText", "svgText"):
            saved = self.js(f"return attn.{text}(attn.page.context.view)")
            self.assertNotIn("%.3f" % truth, saved)
            self.assertIn("?", saved)
        answer = lambda x: self.one("#quiz-answer").send_keys(  # noqa: E731
            Keys.CONTROL + "a" + Keys.NULL, x, Keys.ENTER)
        answer("no number")
        self.assertIn("A number such as", self.text("#quiz-said"))
        answer("%.4f" % (truth + 0.0111))
        hint = self.text("#quiz-body .equation code")
        scores = t["scaled_scores"][at // 6]
        for s in scores:
            self.assertIn(self.js("return attn.numberText(arguments[0])", s - scores.max()), hint)
        answer("%.4f" % (truth - 0.0111))
        self.assertEqual(self.text("#quiz-said"), "No: it is %.4f." % truth)
        self.assertNotIn("?", self.drawn())
        self.click("#quiz-start")
        truth = t["weights"].ravel()[self.js("return attn.page.state.quiz.at")]
        answer("%.4f" % (truth + 0.0095))
        self.assertEqual(self.text("#quiz-said"), "Right: %.4f." % truth)
        self.assertIn("1 of 2 right", self.text("#quiz-body"))
        asked = [at, self.js("return attn.page.state.quiz.at")]
        for _ in range(14):
            self.click("#quiz-start")
            asked.append(self.js("return attn.page.state.quiz.at"))
            answer("9")
            answer("9")
        self.assertEqual(len(set(asked)), 16, asked)  # of 36 cells, none twice

    def test_quiz_of_many_words(self):
        """The question lists the scores of all keys: the weight cannot be computed without one.
        Words that are written from right to left are isolated, so that each score stands behind
        its own word."""
        words = ["\u05d0\u05d1"] + ["w%d" % i for i in range(2, 41)]
        self.explain(text=" ".join(words))
        self.click("#quiz-start")
        said = self.text("#quiz-body .fine")
        self.assertEqual(said.count(", "), 39)
        for word in words:
            self.assertIn("\u2068%s\u2069 " % word, said)

    def test_direction_marks_in_sentences(self):
        self.explain("--query", "1", text="ab\u202ecd now then")
        self.assertNotIn("\u202e", self.js("return document.body.innerText"))

    def test_choices_of_equal_scores(self):
        """If all scores are alike, no choice names the smallest: it is the largest, too."""
        for text, alike in (("a a", True), ("a b", False)):
            self.explain(text=text)
            page = self.js("return document.documentElement.textContent")
            self.assertEqual("the order of the alphabet decides" in page, alike, text)
            self.assertEqual("is the smallest of the row" in page, not alike, text)

    def test_10_three_sizes_one_layout(self):
        """Every panel stays in its place: 3 words, 6 words, a trained model."""
        where = {}
        for args in (("lesson", "sky"), ("explain", TEXT),
                     ("train", "--steps", "2", "--task", "previous-token", "--length", "12")):
            self.js("")
            if args[0] == "train":
                self.works(*args, "--json", "-o", "page.html")
                self.load(self.path("page.html"))
            else:
                self.open(*args)
            where[args[0]] = self.js(
                "return [...document.querySelectorAll('.stage, .panels > .panel')].map(e => "
                "[e.id, Math.round(e.getBoundingClientRect().x)])")
        self.assertEqual(where["lesson"], where["explain"])
        self.assertEqual(where["train"], where["explain"])

    def test_12_learning_is_visible(self):
        self.works("train", "--steps", "200", "--task", "previous-token", "--length", "16",
                   "-o", "page.html", "-o", "trace.json")
        trace = json.loads(self.bytes("trace.json"))
        t = tensors(trace)
        self.load(self.path("page.html"))
        moments = sorted({s["moment"] for s in trace["steps"] if "moment" in s})
        self.assertEqual(moments[-1], 200)
        last = int(self.one("#moment").get_attribute("max"))
        self.assertEqual(last, len(moments) - 1)
        looks = []
        for i, moment in enumerate(moments):
            self.slide("#moment", i)
            head = self.js("return attn.page.context.head")
            name = self.js("return attn.page.context.block.name")
            self.assertEqual(name, "layer_2" if moment == 200 else f"layer_2_step_{moment}")
            shown = np.nan_to_num(self.shown())
            np.testing.assert_allclose(shown, t[name][head], atol=1e-7)
            looks.append(max(np.trace(w, -1) for w in t[name]))
            # The gradient of the scores beside it: each row sums to 0, because softmax ignores
            # shifts.
            slope = self.table("slope")[1:]
            slope = np.array([[float(x) for x in row[1:]] for row in slope])
            np.testing.assert_allclose(slope, t[name + "_slope"][head], atol=1e-9)
            self.assertLess(abs(slope.sum(1)).max(), 1e-6 * max(1, abs(slope).max()) + 1e-9)
            self.assertEqual(abs(np.triu(slope, 1)).max(), 0)
        self.assertGreater(abs(slope).max(), 0)


if __name__ == "__main__":
    unittest.main()
