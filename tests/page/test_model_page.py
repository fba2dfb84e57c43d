#!/usr/bin/env python3
"""Pages of real models: every layer's heads, compared with the same forward pass in NumPy. Times
are not tested; docs/explain.md has measurements."""

import json
import os
import subprocess
import sys
import unittest

import numpy as np

from browser import Keys, PageTest, tensors
from models import Model, softmax

USAGE, LIMIT = 2, 4


def rounding(layer, head):
    """The allowed errors of weights and context if queries, keys and values have 11 bits, that is
    relative errors of up to 2**-11, after being computed in f32."""
    q, k, v, w = (layer[n][head] for n in ("q", "k", "v", "weights"))
    scores = abs(q) @ abs(k).T / np.sqrt(q.shape[1]) * 2.0**-10 + 1e-4
    weights = w * np.expm1(2 * scores.max(1, keepdims=True)) + 1e-7
    return weights, weights @ abs(v) + w @ abs(v) * 2.0**-11 + 1e-4


class ModelPage(PageTest):
    def model(self, kind, **sizes):
        m = Model(kind, **sizes)
        m.save(self.path("m"))
        return m

    def page(self, text, *args, said=""):
        done = self.attn("explain", "--model", "m", *args, "-o", "page.html", text)
        self.assertEqual((done.returncode, done.stderr.decode()), (0, said))
        self.load(self.path("page.html"))
        return done.stdout.decode()

    def open_head(self, layer, head):
        """Chooses a head by a click on its thumbnail."""
        name = self.js("return attn.page.trace.blocks.find(b => b.layer === arguments[0]).name",
                       layer)
        self.click(f"#thumb-{name}-{head}")
        self.assertEqual(self.js("const c = attn.page.context; return [c.block.layer, c.head, "
                                 "c.state.stage]"), [layer, head, 7])

    def numbers(self, *shape):
        return np.array(self.js("return Array.from(attn.page.context.view.numbers)")).reshape(shape)

    def compare(self, layers, layer, head, exact=True, as_head=None):
        want = layers[layer - 1]
        self.open_head(layer, head if as_head is None else as_head)
        w, z = want["weights"][head], want["context"][head]
        far = (1e-5, 1e-4) if exact else rounding(want, head)
        got = self.numbers(*w.shape)
        self.assertTrue((abs(got - w) <= far[0]).all(), abs(got - w).max())
        hidden = self.js("const h = attn.page.context.view.hidden; return h && Array.from(h)")
        if hidden is not None:
            np.testing.assert_array_equal(np.reshape(hidden, w.shape) == 1, w == 0)
        self.stage(8)
        got = self.numbers(*z.shape)
        self.assertTrue((abs(got - z) <= far[1]).all(), abs(got - z).max())

    def lengths(self, added, off):
        """Checks the table of the layer's output with heads off. added [H+1,T,E] is the
        contribution of each."""
        on = [h for h in range(len(added)) if h not in off]
        whole, left, gone = (np.linalg.norm(added[list(h)].sum(0), axis=1)
                             for h in (range(len(added)), on, off))
        rows = self.table("off")
        self.assertEqual(rows[0], ["token", "whole", "without", "change", "what is gone"])
        got = np.array([[float(x) for x in (r[1], r[2], r[4])] for r in rows[1:]]).T
        np.testing.assert_allclose(got, [whole, left, gone], rtol=2e-4, atol=1e-4)
        changes = [float(r[3].replace("−", "-").rstrip(" %")) for r in rows[1:]]
        np.testing.assert_allclose(changes, 100 * (left / whole - 1), atol=0.07)
        said = self.text("#heads-panel, #matrix-body .head-off")
        for text in ("this layer's output only", "needs a new run",
                     "%d %% as long" % round(100 * (gone / whole).mean())):
            self.assertIn(text, said)

    # ------------------------------------------------------------------------------- large

    def test_bert_base_of_512_tokens(self):
        m = self.model("bert", L=12, H=12, D=64, places=512)
        text, ids = m.text_of(512)
        done = self.attn("explain", "--model", "m", "--layer", "all", "--head", "all", "-o",
                         "page.html", text)
        os.remove(self.path("m/model.safetensors"))
        size = os.path.getsize(self.path("page.html"))
        self.assertLessEqual(size, 45_000_000)
        self.assertEqual(done.stdout.decode(), "page.html: %.1f MB\n" % (size / 1e6))
        self.assertEqual(done.returncode, 0)
        self.load(self.path("page.html"))
        self.assertEqual(len(self.every(".thumb")), 144)
        layers = m.forward(ids, 3)
        for layer, head in ((1, 0), (3, 7)):
            self.compare(layers, layer, head, exact=False)
            self.assertIn("11 bits", self.text("#rounded"))
        self.click("#head-switch-5")
        self.lengths(layers[2]["added"], [5])
        self.open_head(12, 11)
        sums = self.numbers(512, 512).sum(1)
        np.testing.assert_allclose(sums, 1, atol=1e-9)

    def test_weights_of_all_heads_are_never_in_memory(self):
        m = self.model("gpt2", L=24, H=16, D=4, inner=64, places=512)
        text, _ = m.text_of(512)
        run = ("import os, resource, subprocess, sys\n"
               "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
               "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
        done = subprocess.run(
            [sys.executable, "-c", run, os.environ["ATTN"], "explain", "--model", "m", "--layer",
             "all", "-o", "page.html", text],
            cwd=self.folder, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        all_weights = 24 * 16 * 512**2 * 4
        self.assertLess(int(done.stdout) * 1024, all_weights / 2)

    # ------------------------------------------------------------------------------- small

    def test_short_texts_have_every_layer(self):
        for kind, sizes in (("bert", {}), ("gpt2", {}), ("llama", {"H": 4, "Hk": 2}),
                            ("mistral", {"H": 4, "Hk": 1, "window": 5})):
            m = Model(kind, **{"L": 3, "H": 2, "D": 4, **sizes})
            m.save(self.path(kind))
            os.rename(self.path(kind), self.path("m"))
            text, ids = m.text_of(12)
            self.page(text, "--layer", "2")
            self.assertEqual(self.js("return attn.page.context.block.title"), "layer 2")
            self.assertEqual(len(self.every(".thumb")), 3 * m.H)
            layers = m.forward(ids)
            for layer in (1, 2, 3):
                for head in (0, m.H - 1):
                    self.compare(layers, layer, head)
            titles = self.js("return [...document.querySelectorAll('#block option')]"
                             ".map(e => e.textContent)")
            self.assertEqual(titles, ["layer 1", "layer 2", "layer 3"])
            os.rename(self.path("m"), self.path(kind))

    def test_long_texts_have_one_layer_unless_all_are_asked_for(self):
        m = self.model("mistral", L=3, H=4, Hk=2, D=4, window=20, places=128)
        for count, args, shown in ((64, (), 12), (65, (), 4), (65, ("--layer", "all"), 12),
                                   (64, ("--head", "2"), 1),
                                   (65, ("--layer", "all", "--head", "2"), 3)):
            text, ids = m.text_of(count)
            self.page(text, *args)
            self.assertEqual(len(self.every(".thumb")), shown, (count, args))
            layers = m.forward(ids)
            one = "--head" in args
            for layer in (1, 3) if shown in (3, 12) else (1,):
                self.compare(layers, layer, 1, as_head=0 if one else 1)
        self.assertIn("mistral, all 3 layers, head 2", self.browser.title)

    def test_table_of_heads(self):
        """Entropy as a share of its maximum, for all rows, or for 48 of them if there are more than
        64."""
        for kind, count, sizes in (("gpt2", 30, {}), ("bert", 100, {}), ("gpt2", 100, {}),
                                   ("mistral", 100, {"window": 9})):
            m = Model(kind, L=2, H=2, D=4, places=128, **sizes)
            m.save(self.path("m"))
            text, ids = m.text_of(count)
            self.page(text, "--layer", "all")
            some = [int((i + 0.5) * count / 48) for i in range(48)]
            picked = some if count > 64 else list(range(count))
            want = []
            for layer in m.forward(ids):
                for w in layer["weights"][:, picked]:
                    bits = -(w * np.log2(np.where(w > 0, w, 1))).sum(1)
                    possible = np.log2((w > 0).sum(1))
                    want.append((bits[possible > 0] / possible[possible > 0]).mean())
            got = [float(row[1]) for row in self.table("heads")[1:]]
            np.testing.assert_allclose(got, want, atol=6e-4)
            os.rename(self.path("m"), self.path(f"{kind}{count}"))

    def test_json_has_the_layer_that_is_told(self):
        m = self.model("gpt2", L=3)
        text, ids = m.text_of(9)
        args = ["explain", "--model", "m", "--layer", "2"]
        self.works(*args, "-o", "page.html", "-o", "t.json", text)
        both = json.loads(self.bytes("t.json"))["steps"]
        alone = json.loads(self.works(*args, "--json", text))
        self.assertEqual(both, alone["steps"])
        self.assertEqual([s["name"] for s in both if s["kind"] == "weights"], ["weights"])

    def test_queries_and_lengths_behind_the_output(self):
        """α·‖v·W_O‖ in the first and in another layer."""
        m = self.model("llama", L=2, H=4, Hk=2, D=4)
        text, ids = m.text_of(10)
        self.page(text)
        for layer, want in enumerate(m.forward(ids), 1):
            self.open_head(layer, 2)
            self.select("#lab-view", "contribution")
            norms = np.linalg.norm(want["v"][2] @ want["w_o"][8:12], axis=1)
            share = want["weights"][2] * norms
            np.testing.assert_allclose(self.numbers(10, 10), share / share.sum(1, keepdims=True),
                                       atol=1e-5)
            self.assertIn("‖v W_O‖", self.text("#lab-said"))
            self.select("#lab-view", "weights")

    def test_heads_off(self):
        for kind, sizes in (("bert", {}), ("gpt2", {}), ("llama", {"Hk": 2})):
            m = Model(kind, **{"L": 2, "H": 4, "D": 4, **sizes})
            m.save(self.path("m"))
            text, ids = m.text_of(11)
            layers = m.forward(ids)
            self.page(text)
            self.assertEqual(self.every("#off-figure"), [])
            self.js("document.getElementById('head-switch-1').focus()")
            self.keys(Keys.SPACE)
            self.lengths(layers[0]["added"], [1])
            self.assertIn("off", self.one("#thumb-weights-1").get_attribute("class"))
            self.js("document.getElementById('head-switch-1').focus()")
            self.keys(Keys.TAB, Keys.TAB, Keys.ENTER)
            self.assertEqual(self.js("return document.activeElement.id"), "head-switch-3")
            self.assertEqual([e.get_attribute("aria-checked") for e in self.every(".head-switch")],
                             ["true", "false", "true", "false"])
            self.assertIn("Without heads 2, 4 ", self.text("#status"))
            self.lengths(layers[0]["added"], [1, 3])
            # Each layer has its own switches. With all heads off only the bias remains.
            self.open_head(2, 0)
            self.assertEqual(self.every("#off-figure"), [])
            for head in range(4):
                self.click(f"#head-switch-{head}")
            self.lengths(layers[1]["added"], [0, 1, 2, 3])
            for head in range(4):
                self.click(f"#head-switch-{head}")
            self.assertEqual(self.every("#off-figure"), [])
            self.page(text, "--layer", "2", "--head", "3")
            self.stage(9)
            self.click("#head-switch-0")
            one, rest = layers[1]["added"][2], np.delete(layers[1]["added"], 2, 0).sum(0)
            self.lengths(np.stack([one, rest]), [0])
            label = self.js("return attn.page.context.view.label")
            self.assertIn("layer 2: weights, head 3", label)
            self.assertIn("Without head 3 ", self.text("#off-said"))
            self.assertEqual(self.one(".thumb").get_attribute("aria-label"), "layer 2, head 3")
            os.rename(self.path("m"), self.path(kind))

    def step(self, name):
        shape, numbers = self.js("""
            const s = attn.page.trace.find.get(arguments[0]);
            return [[s.height, s.width], Array.from(attn.numbersOf(attn.page.trace, s, 0))];""",
                                 name)
        return np.array(numbers).reshape(shape)

    def test_answers_without_a_head(self):
        """Runs of the model with a head's output set to 0, each repeated in NumPy."""
        for kind, sizes in (("bert", {}), ("gpt2", {}), ("llama", {"Hk": 2})):
            m = Model(kind, **{"L": 3, "H": 4, "D": 4, **sizes})
            m.save(self.path("m"))
            text, ids = m.text_of(11)
            self.page(text)
            whole = m.outputs(ids)[-1]
            if m.decoder:
                p = softmax(m.logits(whole[-1]))
                top = np.argsort(-p)[:5]
            for layer in range(3):
                got = self.step(f"without_heads_{layer + 1}")
                for head in range(4):
                    x = m.outputs(ids, (layer, head))[-1]
                    if m.decoder:
                        want = softmax(m.logits(x[-1]))[top]
                    else:
                        want = np.linalg.norm(x - whole, axis=1) / np.linalg.norm(whole, axis=1)
                    np.testing.assert_allclose(got[head], want, atol=2e-5)
                self.assertGreater(abs(got - (p[top] if m.decoder else 0)).max(), 1e-4)
            self.open_head(2, 0)
            self.click("#head-switch-2")
            row, said = self.step("without_heads_2")[2], self.text("#answer-said")
            self.assertIn("without head 3 of layer 2", said)
            table = self.table("answer")[1:]
            if m.decoder:
                self.assertIn(f"{row[0]:.4f} instead of {p[top[0]]:.4f}", said)
                self.assertEqual(table[0][0], m.vocabulary[top[0]].replace("\u0120", "␣"))
                want = np.stack((p[top], row), 1)
            else:
                self.assertIn(f"moves by {100 * row.mean():.0f} % of its length", said)
                self.assertIn(f"by {100 * row.max():.0f} %.", said)
                want = row[:, None]
            got = np.array([[float(x) for x in line[1:]] for line in table])
            np.testing.assert_allclose(got, want, atol=2e-5)
            self.click("#head-switch-0")
            self.assertIn("one head at a time", self.text("#answer-said"))
            os.rename(self.path("m"), self.path(kind))

    def test_layers_without_runs(self):
        """A model that is too large for runs of every layer has those of the layer explained."""
        m = self.model("gpt2", L=10, H=16, D=16, inner=32)
        self.page(m.text_of(64)[0], "--layer", "2")
        names = self.js("return [...attn.page.trace.find.keys()].filter(n => /^without/.test(n))")
        self.assertEqual(names, ["without_heads_2"])
        self.open_head(1, 0)
        self.click("#head-switch-0")
        self.assertIn("no run of the model without heads of this layer", self.text("#answer-said"))
        self.assertIn("--layer 1 ", self.text("#answer-said"))

    def test_lens_and_temperatures(self):
        for kind, sizes in (("gpt2", {}), ("llama", {"Hk": 2})):
            m = Model(kind, **{"L": 3, "H": 4, "D": 4, **sizes})
            m.save(self.path("m"))
            text, ids = m.text_of(11)
            self.page(text)
            logits = m.logits(m.outputs(ids)[:, -1])
            chances, top = softmax(logits), np.argsort(-logits[-1])[:5]
            np.testing.assert_allclose(self.step("logit_lens"), chances[:, top], atol=2e-5)
            first = self.step("logit_lens_first")[:, 0]
            np.testing.assert_allclose(first, chances.max(1), atol=2e-5)
            labels = self.js("return attn.page.trace.find.get('logit_lens_first').rows")
            self.assertEqual(labels, [m.vocabulary[i].replace("\u0120", "␣")
                                      for i in chances.argmax(1)])
            temperatures = 10 ** (np.arange(41) / 20 - 1)
            want = softmax(logits[-1] / temperatures[:, None])[:, top]
            np.testing.assert_allclose(self.step("next_tokens_at"), want, atol=5e-5)
            os.rename(self.path("m"), self.path(kind))

    def test_heads_off_without_a_projection(self):
        z = tensors(self.explain("--heads", "3", "--scale", "0.02"))["context"]
        self.click("#head-switch-2")
        side = np.zeros((4, 6, z.size // 6))
        for h in range(3):
            side[h, :, h * z.shape[2] : (h + 1) * z.shape[2]] = z[h]
        self.lengths(side, [2])
        self.assertIn("no W_O", self.text("#heads-body"))

    def test_rows_of_the_matrices_that_made_a_head(self):
        """For one chosen head, in a model without rotation."""
        for kind, made_of in (("bert", "embeddings"), ("gpt2", "normed")):
            m = Model(kind, L=2, H=2, D=4)
            m.save(self.path("m"))
            text, ids = m.text_of(7)
            self.page(text, "--layer", "2", "--head", "2")
            want = m.forward(ids)[1]
            x = m.normed("h.1.ln_1", want["x"]) if kind == "gpt2" else want["x"]
            self.stage(3)
            for step, maker, name in (("queries", "w_q", "q"), ("keys", "w_k", "k"),
                                      ("values", "w_v", "v")):
                w = np.array(self.js("return Array.from(attn.numbersOf(attn.page.trace, attn.page"
                                     ".trace.find.get(arguments[0]), 0))", maker)).reshape(4, 9)
                np.testing.assert_allclose(x @ w[:, :8].T + w[:, 8], want[name][1], atol=1e-5)
                tab = "//div[@id='tabs']/button[text()='%s']"
                self.browser.find_element("xpath", tab % step).click()
                self.cell(5, 2)
                self.assertIn(f"Row 6 of {made_of}, times row 3 of {maker}",
                              self.text("#cell-body"))
                terms, value = self.text("#cell-body .equation code").split(" = ")
                *products, bias = terms.split(" + ")
                pairs = np.array([[float(f) for f in p.split("×")] for p in products])
                np.testing.assert_allclose(pairs, np.stack((x[5], w[2, :8]), 1), rtol=1e-3,
                                           atol=6e-5)
                self.assertAlmostEqual(float(bias), w[2, 8], delta=6e-5)
                self.assertAlmostEqual(float(value), want[name][1][5, 2], delta=2e-4)
                self.browser.find_element("xpath", tab % maker.capitalize()).click()
            os.rename(self.path("m"), self.path(kind))
        for kind, count, args in (("llama", 7, ("--head", "1")), ("gpt2", 65, ("--head", "1")),
                                  ("gpt2", 7, ())):
            m = Model(kind, L=1, H=2, D=4, places=80)
            m.save(self.path("m"))
            self.page(m.text_of(count)[0], *args)
            self.assertFalse(self.js("return attn.page.trace.find.has('w_q')"), (kind, count))
            os.rename(self.path("m"), self.path(f"{kind}-{count}-{len(args)}"))

    # ------------------------------------------------------------------------------ errors

    def test_errors(self):
        self.model("gpt2", L=2)
        m = ["explain", "--model", "m"]
        self.fails(USAGE, *m, "--layer", "all", "abc", says="-o FILE.html")
        self.fails(USAGE, *m, "--layer", "all", "-o", "a.svg", "abc", says="-o FILE.html")
        self.fails(USAGE, *m, "--layer", "0", "abc", says="must be all, or a number from 1")
        self.fails(USAGE, *m, "--layer", "x", "abc", says="must be all, or a number from 1")
        self.fails(USAGE, *m, "--layer", "3", "-o", "a.html", "abc", says="layers 1 to 2")
        os.rename(self.path("m"), self.path("small"))
        self.model("gpt2", L=88, H=16, D=8, inner=8, places=4096)
        self.fails(LIMIT, *m, "--layer", "all", "-o", "a.html", "a" * 4096, says="--layer N")


if __name__ == "__main__":
    unittest.main()
