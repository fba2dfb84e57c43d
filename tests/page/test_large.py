#!/usr/bin/env python3
"""Pages as large as a model's: they contain queries, keys and values as floats or f16, compute the
weights, and draw more than 64 words on a canvas. Times are printed but not tested."""

import json
import os
import statistics
import subprocess
import unittest

import numpy as np

from browser import By, Keys, PageTest, softmax, tensors


class Large(PageTest):
    def write_model(self, *sizes):
        program = os.path.join(os.environ["ATTN_BUILD"], "tests", "large_page")
        done = subprocess.run([program, *map(str, sizes)], cwd=self.folder, check=True,
                              stdout=subprocess.PIPE)
        seconds = float(done.stdout)
        return seconds, [np.load(self.path(f"{n}.npy")) for n in ("q", "k", "v", "weights")]

    def shown_numbers(self):
        return np.array(self.js("return Array.from(attn.page.context.view.numbers)"))

    def compare(self, sizes, vectors, weights, rounded):
        """The last layer's heads, compared with NumPy on the same vectors and with the library."""
        T, L, H, D, Hk, causal = sizes
        q, k, v = (x.astype(np.float16).astype(float) if rounded else x.astype(float)
                   for x in vectors)
        for head in (0, H - 1):
            self.js("const p = attn.page, b = p.trace.blocks.at(-1);"
                    "attn.change({block: b, head: arguments[0], stage: 7, step: null})", head)
            group = head // (H // Hk)
            scores = q[head] @ k[group].T / np.sqrt(D)
            if causal:
                scores = np.where(np.tril(np.ones((T, T), bool)), scores, -np.inf)
            want = softmax(scores)
            got = self.shown_numbers().reshape(T, T)
            self.assertLess(abs(got - want).max(), 1e-9)
            self.assertLess(abs(got - weights[head]).max(), 5e-3 if rounded else 1e-6)
            self.js("attn.change({stage: 8})")
            got = self.shown_numbers().reshape(T, D)
            error = abs(got - want @ v[group]).max()  # small contexts are the library's floats
            self.assertLess(error, 1e-9 if rounded else 2e-6)

    def test_model_of_512_words_12_layers_12_heads(self):
        sizes = (512, 12, 12, 64, 12, 1)
        seconds, (*vectors, weights) = self.write_model(*sizes)
        size = os.path.getsize(self.path("page.html"))
        self.assertLessEqual(size, 45_000_000)
        self.load(self.path("page.html"))
        self.compare(sizes, vectors, weights, rounded=True)
        self.assertIn("11 bits", self.text("#rounded"))
        self.assertEqual(len(self.every(".thumb")), 144)
        paint = self.js("return performance.getEntriesByName('first-contentful-paint')[0]"
                        ".startTime")
        self.js("attn.change({stage: 7})")
        frames = self.js("""
            const plot = document.querySelector("#matrix-body .plot");
            const box = plot.getBoundingClientRect(), l = attn.page.matrix.layout, times = [];
            return new Promise(done => {
                let n = 0, last = performance.now();
                const step = () => {
                    const now = performance.now();
                    if (n > 5) times.push(now - last);
                    last = now;
                    if (++n > 120) return done(times);
                    plot.dispatchEvent(new PointerEvent("pointermove", {bubbles: true,
                        clientX: box.x + l.left + (n * 37) % 500,
                        clientY: box.y + l.top + (n * 53) % 500}));
                    requestAnimationFrame(step);
                };
                requestAnimationFrame(step);
            });""")
        print(f"\n512 x 12 x 12: {size / 1e6:.1f} MB in {seconds:.2f} s; first paint "
              f"{paint / 1000:.2f} s; a frame while the cross-hair moves: median "
              f"{statistics.median(frames):.1f} ms, longest {max(frames):.1f} ms")

    def test_canvas_keyboard_and_tables(self):
        sizes = (70, 2, 4, 8, 2, 0)  # two heads share keys
        _, (*vectors, weights) = self.write_model(*sizes)
        self.load(self.path("page.html"))
        self.compare(sizes, vectors, weights, rounded=False)
        self.js("attn.change({stage: 7})")
        self.assertEqual(len(self.every("#matrix-body canvas.cells")), 1)
        self.assertEqual(len(self.every("#matrix-body rect.hidden-cell")), 0)
        self.cell(3, 2)
        self.keys(Keys.PAGE_DOWN)
        head = self.js("return attn.page.context.head")
        q, k, v = vectors
        want = weights[head][13]
        self.assertIn("“word13” asks, “word2” answers: %.4f" % want[2], self.text("#status"))
        rows = self.table("matrix")[1:]
        self.assertEqual(len(rows), 70)
        np.testing.assert_allclose([float(r[1]) for r in rows], want, atol=1e-6)
        # Colours of the canvas: cividis, with 1024 levels.
        got = self.js("""
            const c = document.querySelector("canvas.cells"), l = attn.page.matrix.layout;
            const p = c.getContext("2d").getImageData(2.5 * l.cell, 13.5 * l.tall, 1, 1).data;
            return [...p];""")
        palette = np.array(json.loads(self.text("#data"))["palette"])
        at = want[2] * 32
        low = min(int(at), 31)
        colour = palette[low] + (palette[low + 1] - palette[low]) * (at - low)
        self.assertLessEqual(abs(np.array(got[:3]) - colour).max(), 2)
        # Contributions by the norms in the trace; rollout through both layers.
        self.select("#lab-view", "contribution")
        norms = 1 + (np.arange(4 * 70) % 7).reshape(4, 70)[head]
        share = weights[head] * norms
        np.testing.assert_allclose(self.shown_numbers().reshape(70, 70),
                                   share / share.sum(1, keepdims=True), atol=1e-6)
        self.assertIn("‖v W_O‖", self.text("#lab-said"))
        self.select("#lab-view", "rollout")
        self.until("return attn.page.context.rolled !== null")
        first = np.array(self.js("""
            const {page} = attn, b = page.trace.blocks[0];
            return Array.from({length: 4}, (_, h) => Array.from(attn.numbersOf(page.trace,
                b.weights, h)));""")).reshape(4, 70, 70).mean(0)
        mixed = [0.5 * w + 0.5 * np.eye(70) for w in (first, weights.mean(0))]
        np.testing.assert_allclose(self.shown_numbers().reshape(70, 70), mixed[1] @ mixed[0],
                                   atol=1e-6)

    def test_long_sentence_equals_the_trace(self):
        """100 words: the page computes scores and weights from the floats of the trace."""
        words = " ".join(f"w{i % 41}" for i in range(100))
        for args in ((), ("--causal",), ("--heads", "2", "--causal")):
            t = tensors(self.explain("--scale", "0.02", *args, text=words))
            for stage, name in ((4, "scores"), (5, "scaled_scores"), (7, "weights"),
                                (8, "context")):
                self.stage(stage)
                want = t[name] if t[name].ndim == 2 else t[name][0]
                got = self.shown_numbers().reshape(want.shape)
                error = abs(got - want).max() / abs(want).max()
                self.assertLess(error, 2e-6, name)


class Announced(PageTest):
    def test_size_of_a_large_page_is_stated(self):
        words = " ".join(f"w{i}" for i in range(1500))
        done = self.attn("explain", "--embed", "256", "--qk", "256", "--v", "256", "-o", "p.html",
                         words)
        self.assertEqual(done.returncode, 0)
        said = done.stdout.decode()
        size = os.path.getsize(self.path("p.html"))
        self.assertGreater(size, 5_000_000)
        self.assertEqual(said, "p.html: %.1f MB\n" % (size / 1e6))
        self.assertEqual(done.stderr, b"")


if __name__ == "__main__":
    unittest.main()
