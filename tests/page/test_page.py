#!/usr/bin/env python3
"""The page as a document: its contents, that no text of a trace is executed, keyboard and screen
readers, the files that it saves, screen sizes, and every lesson."""

import csv
import io
import json
import re
import unittest
import xml.etree.ElementTree as xml

import numpy as np

from browser import By, Keys, PageTest, TEXT, tensors

SVG = "{http://www.w3.org/2000/svg}"

# The texts whose contrast with the ground behind them is too low.
CONTRAST = """
    const parse = c => c.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map(x => x / 255).map(x => x <= .04045
        ? x / 12.92 : ((x + .055) / 1.055) ** 2.4)
        .reduce((s, x, i) => s + x * [.2126, .7152, .0722][i], 0);
    const ground = e => { for (; e; e = e.parentElement) {
        const c = parse(getComputedStyle(e).backgroundColor);
        if (c.length < 4 || c[3] === 1) return c; } return [255, 255, 255]; };
    const texts = "p, h1, h2, h3, td, th, button, span, code, dt, dd";
    return [...document.querySelectorAll(texts)]
        .filter(e => e.offsetParent && !e.closest("[disabled], .off, svg")
            && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
        .map(e => { const a = light(parse(getComputedStyle(e).color)), b = light(ground(e));
            return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), e.textContent,
                    e.className]; })
        .filter(([ratio]) => ratio < 4.5);"""


class Security(PageTest):
    def test_a_sentence_that_looks_like_html_stays_text(self):
        words = ["</script><img/src=x/onerror=document.title='hit'>", "<b>bold</b>", "&amp;",
                 "<!--", "]]>", "'\"", "</style>", "${1}", "javascript:alert(1)", "=1+1"]
        text = " ".join(words) + " \u202eturned\u2028x"
        trace = self.explain("--scale", "0.01", text=text)
        self.assertNotIn("hit", self.browser.title.split(" · ")[0].replace(text, ""))
        self.assertEqual(self.every("img, b"), [])
        labels = self.js("return [...document.querySelectorAll('#matrix-body [data-row]')]"
                         ".map(e => e.textContent)")
        self.assertEqual(len(labels), len(trace["tokens"]))
        full = self.js("return Array.from({length: attn.page.context.block.T}, "
                       "(_, i) => attn.page.context.rows(i))")
        for label, token in zip(full, trace["tokens"]):
            self.assertEqual(label.replace("\ufffd", ""),
                             token.replace("\u202e", "").replace("\u2028", ""))
        for stage in (1, 2, 3, 4, 5, 7, 8, 9):
            self.stage(stage)
        self.assertEqual(self.every("img, b"), [])
        # None of the text is markup in the file, and the page has only its own scripts.
        source = self.bytes("page.html").decode()
        self.assertEqual(source.count("</script>"), 2)
        self.assertNotIn("<img", source)

    def test_policy_is_in_force(self):
        self.explain()
        policy = self.one("meta[http-equiv]").get_attribute("content")
        self.assertTrue(policy.startswith("default-src 'none'; script-src 'sha256-"), policy)
        # Besides its script the page may only create its module of WebAssembly, if it has one, and
        # a Worker for it.
        policy = policy.replace(" 'wasm-unsafe-eval'; worker-src blob:; style-src", "; style-src")
        for word in ("unsafe-inline", "unsafe-eval", "blob:", "http:", "https:", "*"):
            self.assertNotIn(word, policy)
        refused = self.js("""
            const seen = [];
            addEventListener("securitypolicyviolation", e => seen.push(e.effectiveDirective));
            const s = document.createElement("script");
            s.textContent = "globalThis.broken = true";
            document.body.append(s);
            const style = document.createElement("style");
            style.textContent = "body { display: none }";
            document.body.append(style);
            const image = new Image();
            image.src = "https://example.invalid/x.png";
            return (async () => {
                try { await fetch("https://example.invalid/"); } catch { seen.push("fetch"); }
                setTimeout(() => {  // the driver's own scripts may eval
                    try { eval("1"); } catch { seen.push("eval"); }
                });
                for (let i = 0; i < 200 && seen.length < 7; i++)
                    await new Promise(later => setTimeout(later, 50));
                return [seen, globalThis.broken === undefined,
                        getComputedStyle(document.body).display];
            })();""")
        self.browser.get_log("browser")  # what must be refused
        self.browser.get_log("performance")
        self.assertEqual(refused[1:], [True, "block"])
        for what in ("script-src-elem", "style-src-elem", "img-src", "connect-src", "fetch",
                     "eval"):
            self.assertIn(what, refused[0])
        self.load(self.path("page.html"))

    def test_nothing_outside_is_named(self):
        self.explain()
        source = self.bytes("page.html").decode()
        self.assertLess(len(source), 1_000_000)
        for line in source.splitlines():
            for scheme in ("http://", "https://", "//cdn"):
                if scheme in line and not line.lstrip().startswith(("/*", "*", "//")):
                    self.assertIn("www.w3.org", line)


class Keyboard(PageTest):
    def test_stages_by_digit_and_steps_by_arrows(self):
        trace = self.explain()
        for stage in (1, 2, 3, 4, 5, 7, 8, 9):
            self.stage(stage)
            here = self.one("[aria-current=step]")
            self.assertEqual(here.get_attribute("id"), f"stage-{stage}")
        self.stage(6)  # there is no mask
        self.assertEqual(self.one("[aria-current=step]").get_attribute("id"), "stage-9")
        self.assertIn("mask lab", self.text("#status"))
        self.stage(1)
        seen = [self.js("return attn.page.context.view.step.name")]
        for _ in trace["steps"][1:]:
            self.keys(Keys.ARROW_RIGHT)
            seen.append(self.js("return attn.page.context.view.step.name"))
        self.assertEqual(seen, [s["name"] for s in trace["steps"]])
        self.keys(Keys.ARROW_LEFT)
        self.assertEqual(self.js("return attn.page.context.view.step.name"), seen[-2])

    def test_everything_can_be_reached_with_tab(self):
        self.explain()
        self.js("document.activeElement.blur();"
                "document.querySelectorAll('.more').forEach(d => d.open = true)")
        seen = set()
        for _ in range(120):
            self.keys(Keys.TAB)
            active = self.js("const e = document.activeElement; const r = "
                             "e.getBoundingClientRect(); return [e.id || e.className, r.width]")
            seen.add(active[0])
        for name in ("stage-1", "stage-9", "every-step", "previous", "next", "cell", "save-svg",
                     "lab-scale", "lab-d", "lab-t", "lab-mask", "lab-masking", "lab-view",
                     "lab-sink", "lab-shuffle", "quiz-start", "theme", "text-size", "tab-NumPy",
                     "matrix-table", "lines-table", "health-table", "heads-table", "neuron-table",
                     "run-check"):
            self.assertIn(name, seen)

    def test_cell_is_a_grid_cell_that_says_where_it_is(self):
        trace = self.explain("--scale", "0.02")
        w = tensors(trace)["weights"]
        self.cell(2, 3)
        cell = self.one("#cell")
        said = "“short” asks, “eat” answers: %.4f" % w[2, 3]
        self.assertEqual(cell.get_attribute("aria-label"), said)
        self.assertEqual(cell.get_attribute("role"), "gridcell")
        self.assertEqual((cell.get_attribute("aria-rowindex"),
                          cell.get_attribute("aria-colindex")), ("3", "4"))
        self.assertEqual(self.text("#status"), said)
        self.assertEqual(self.js("return document.activeElement.id"), "cell")
        self.keys(Keys.END)
        self.assertIn("“last” answers", self.text("#status"))
        self.keys(Keys.HOME, Keys.ARROW_UP, Keys.ARROW_UP, Keys.ARROW_UP, Keys.ARROW_UP)
        self.assertTrue(self.text("#status").startswith("“Life” asks, “Life” answers"))

    def test_the_pointer_moves_the_cross_hair(self):
        trace = self.explain("--scale", "0.02")
        w = tensors(trace)["weights"]
        layout = self.js("return attn.page.matrix.layout")
        plot = self.one("#matrix-body .plot")
        # The offset counts from the middle of the part that is in sight: all of it must be.
        self.js("arguments[0].scrollIntoView({block: 'center'})", plot)
        from selenium.webdriver import ActionChains

        size = plot.size
        x = layout["left"] + 4.5 * layout["cell"] - size["width"] / 2
        y = layout["top"] + 3.5 * layout["tall"] - size["height"] / 2
        ActionChains(self.browser).move_to_element_with_offset(plot, int(x), int(y)).perform()
        self.until("return document.getElementById('cell-sentence').textContent === arguments[0]",
                   "“eat” asks, “dessert” answers: %.4f" % w[3, 4])

    def test_names_and_roles(self):
        """Every control has a name, every picture a text; there is one h1, and ids are unique."""
        for args in (("explain", "--heads", "2", TEXT), ("lesson", "journey")):
            self.open(*args)
            self.js("document.querySelectorAll('details').forEach(d => d.open = true)")
            bad = self.js("""
                const named = e => e.getAttribute("aria-label") || e.textContent.trim()
                    || e.labels?.length || e.title || e.getAttribute("aria-labelledby");
                const all = "button, select, input, [role=img], [role=region], [tabindex]";
                return [...document.querySelectorAll(all)].filter(e => !named(e))
                    .map(e => e.outerHTML);""")
            self.assertEqual(bad, [])
            ids = self.js("return [...document.querySelectorAll('[id]')].map(e => e.id)")
            twice = {i for i in ids if ids.count(i) > 1} - {"hatch", "map-w", "map-s"}
            self.assertEqual(twice, set())
            self.assertEqual(len(self.every("h1")), 1)
            self.assertEqual(self.one("html").get_attribute("lang"), "en")


class Tables(PageTest):
    def test_every_figure_has_a_table_with_its_numbers(self):
        t = tensors(self.explain("--scale", "0.02", "--heads", "2"))
        self.cell(1, 3)
        w, q, k = t["weights"], t["queries"], t["keys"]
        np.testing.assert_allclose(self.shown(), w[0], atol=1e-9)
        neuron = np.array([[float(x) for x in row[1:]] for row in self.table("neuron")[1:]])
        np.testing.assert_allclose(neuron, np.stack([q[0, 1], k[0, 3], q[0, 1] * k[0, 3]], 1),
                                   rtol=1e-7)
        lines = {row[0]: float(row[1]) for row in self.table("lines")[1:]}
        words = TEXT.replace(",", "").split()
        for j, word in enumerate(words):
            self.assertAlmostEqual(lines[f"{word} ({j + 1})"], w[0, 1, j], delta=1e-8)
        bits = -(w * np.log2(w)).sum(-1) / np.log2(6)
        heads = [float(row[1]) for row in self.table("heads")[1:]]
        np.testing.assert_allclose(heads, bits.mean(-1), atol=6e-4)
        figures = self.every(".figure")
        self.assertGreaterEqual(len(figures), 5)
        self.assertEqual(len(figures), len(self.every("#explore .twin-button")))
        for stage, name in ((2, "embeddings"), (3, "queries"), (4, "scores"), (8, "context")):
            self.stage(stage)
            want = t[name] if t[name].ndim == 2 else t[name][0]
            np.testing.assert_allclose(self.shown(), want, rtol=1e-7, err_msg=name)


class Labels(PageTest):
    def test_long_words_of_columns_are_whole(self):
        """The last label is slanted and reaches beyond its cell."""
        for words in (6, 12, 20):
            self.explain("--causal", text=" ".join(["a"] * (words - 1) + ["transformers"]))
            for width in (1280, 390):
                self.size(width, 844)
                self.until("return attn.page.trace !== undefined")
                # The page draws once more after it has a new width.
                self.until("""
                    const panel = document.getElementById("matrix-body").getBoundingClientRect();
                    return [...document.querySelectorAll("#matrix-body [data-column]")].every(
                        e => e.getBoundingClientRect().right <= panel.right + 0.5);""")


class Saving(PageTest):
    def saved(self, button, name):
        return self.download(lambda: self.click(button), name)

    def test_csv(self):
        t = tensors(self.explain("--causal", "--scale", "0.02", text='a =b, "c,d" e'))
        rows = list(csv.reader(io.StringIO(self.saved("#save-csv", "attn-weights.csv").decode())))
        self.assertEqual(rows[0], ["", "a", "'=b", "c,d", "e"])
        got = [[float(x) if x else 0 for x in row[1:]] for row in rows[1:]]
        np.testing.assert_allclose(got, t["weights"], atol=1e-9)
        self.assertEqual(rows[1][2], "")  # hidden

    def test_svg(self):
        t = tensors(self.explain("--scale", "0.02"))
        root = xml.fromstring(self.saved("#save-svg", "attn-weights.svg"))
        texts = [e.text for e in root.iter(SVG + "text")]
        for w in t["weights"].ravel():
            self.assertIn("%.3f" % w, texts)
        for word in TEXT.replace(",", "").split():
            self.assertIn(word, texts)
        self.assertEqual([e.tag for e in root.iter() if e.tag.endswith(("script", "style"))], [])

    def test_png(self):
        self.explain("--scale", "0.02")
        png = self.saved("#save-png", "attn-weights.png")
        self.assertEqual(png[:8], b"\x89PNG\r\n\x1a\n")
        width, height = (int.from_bytes(png[i:i + 4], "big") for i in (16, 20))
        self.assertGreater(min(width, height), 300)


class Screens(PageTest):
    def test_narrow_wide_dark_and_large_text(self):
        """At each of these sizes nothing exceeds the page's width, and every panel exists."""
        self.explain("--heads", "2")
        for width, height in ((390, 844), (768, 1024), (1280, 800), (1920, 1080)):
            self.size(width, height)
            for large in range(3):
                for stage in (2, 3, 7, 9):
                    self.stage(stage)
                    inside = self.js("return document.documentElement.scrollWidth <= innerWidth")
                    self.assertTrue(inside, (width, large, stage))
                self.click("#text-size")
        ground = "return getComputedStyle(document.body).backgroundColor"
        self.size(1280, 800)
        light = self.js(ground)
        self.click("#theme")
        self.assertNotEqual(self.js(ground), light)
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": "dark"}]})
        self.load(self.opened)
        self.assertNotEqual(self.js(ground), light)
        self.assertEqual(self.text("#theme"), "Light")
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    def test_text_stands_out(self):
        """The page's texts have WCAG's contrast of 4.5 : 1, light and dark."""
        self.explain()
        for _ in range(2):
            self.assertEqual(self.js(CONTRAST), [])
            self.click("#theme")


class Shaken(PageTest):
    def shake(self, seed, count):
        """Uses controls at random; afterwards the page still works."""
        self.js("""
            const [seed, count] = arguments;
            let state = seed;
            const pick = n => (state = (state * 1103515245 + 12345) % 2147483648) % n;
            const fire = (e, name) => e.dispatchEvent(new Event(name, {bubbles: true}));
            for (let i = 0; i < count; i++) {
                const all = [...document.querySelectorAll("button, select, input, summary, #cell")]
                    .filter(e => !e.disabled && !/^save|^theme|^play/.test(e.id)
                                 && e.textContent !== "Copy");
                const e = all[pick(all.length)];
                if (e.localName === "select") {
                    const open = [...e.options].filter(o => !o.disabled);
                    open[pick(open.length)].selected = true;
                    fire(e, "change");
                } else if (e.type === "range") {
                    e.value = Number(e.min) + (e.max - e.min) * pick(11) / 10;
                    fire(e, "input");
                } else if (e.id === "cell" || pick(4) === 0) {
                    const keys = ["ArrowDown", "ArrowRight", "ArrowUp", "End", "Home", "7", "4",
                                  "]", "8", "1", "9"];
                    e.dispatchEvent(new KeyboardEvent("keydown", {key: keys[pick(keys.length)],
                                                                  bubbles: true}));
                } else e.click();
            }""", seed, count)
        self.assertEqual(len(self.every(".stage")), 9)
        self.expect_quiet()

    def test_any_order_of_actions(self):
        cases = [("explain", "--heads", "2", TEXT), ("explain", "--causal", "--scale", ".02", TEXT),
                 ("explain", "alone"), ("lesson", "journey"), ("lesson", "module"),
                 ("lesson", "dessert"), ("train", "--steps", "3", "--length", "8", "--json")]
        for seed, args in enumerate(cases):
            self.works(*args, "-o", "page.html")
            for again in range(2):
                self.load(self.path("page.html"))
                self.shake(7 * seed + again + 1, 120)

    def test_numbers_that_are_none(self):
        """Infinite scores, weights that are NaN, a training run without steps, unusual words."""
        for args in (("explain", "--scale", "1e36", TEXT), ("explain", "--scale", "-3e37", TEXT),
                     ("explain", "--heads", "16", "--qk", "1", "--v", "1", "--embed", "1", "a b"),
                     ("train", "--steps", "0", "--length", "6", "--json"),
                     ("explain", "x" * 400 + " 👩‍👩‍👧 שלום مرحبا e\u0301" + " tab\tnew")):
            self.attn(*args, "-o", "page.html")
            self.load(self.path("page.html"))
            for stage in range(1, 10):
                self.stage(stage)
            self.assertTrue(self.js("return document.documentElement.scrollWidth <= innerWidth"))


class Traces(PageTest):
    def test_every_lesson_every_step(self):
        for name in ("dessert", "sky", "module", "numpy", "journey"):
            trace = self.lesson(name)
            t = tensors(trace)
            for step in trace["steps"]:
                self.js("const s = attn.page.trace.find.get(arguments[0]);"
                        "[...document.querySelectorAll('#every-step option')].find(o => "
                        "attn.page.trace.shown[o.value] === s).selected = true;"
                        "document.getElementById('every-step').dispatchEvent(new Event('change'))",
                        step["name"])
                got = self.js("const v = attn.page.context.view; return [v.step.name, "
                              "Array.from(v.numbers, x => Number.isFinite(x) ? x : String(x))]")
                self.assertEqual(got[0], step["name"])
                if step["tensor"]["shape"][:-2] in ([], [1]):
                    want = t[step["name"]].ravel()
                    value = [float(str(x).replace("Infinity", "inf")) for x in got[1]]
                    same = np.float64 if step["tensor"]["dtype"] != "f32" else np.float32
                    np.testing.assert_array_equal(np.array(value, same), want.astype(same),
                                                  err_msg=step["name"])
                self.assertEqual(self.text("#step-title"), step["title"])
            self.expect_quiet()

    def test_heads_of_dessert(self):
        """Three heads are three rows of one step; the panel on heads says so and opens them."""
        trace = self.lesson("dessert")
        self.stage(7)
        for part in ("head 1: is looks at eat and dessert", "head 2: is looks at Life",
                     "head 3: is looks at Life"):
            self.assertIn(part, self.text("#heads-panel"))
        self.stage(9)
        self.assertEqual(self.js("return [...document.querySelectorAll('#head-steps .tab')].map("
                                 "(b) => b.textContent)"),
                         [re.sub("w_(.)$", r"W=\1", s["name"]).replace("_", " ").replace("=", "_")
                          for s in trace["steps"] if s["section"] == "Three heads"])
        weights = tensors(trace)["heads_weights_2"]
        shown = self.js("return [...document.querySelectorAll('#head-steps td')].map("
                        "(c) => Number(c.textContent))")
        np.testing.assert_allclose(np.reshape(shown, weights.shape), weights, atol=6e-5)
        self.js("document.querySelectorAll('#head-steps .tab')[8].click()")
        self.assertIn("Computed from heads_weights_2 and heads_values: z_2 =", self.text("#main"))
        self.stage(9)
        self.js("document.querySelectorAll('#head-steps .tab')[7].click()")
        self.assertEqual(self.js("return attn.page.context.block.name"), "heads_weights_2")
        self.assertIn("Each row is a head", self.text("#heads-panel"))
        self.expect_quiet()

    def test_trained_heads(self):
        """The maps of the trained heads stand beside the random ones, and the page says which."""
        trace = self.explain(text="the cat saw the dog")
        self.assertEqual(self.js("return attn.page.context.block.name"), "weights")
        self.assertIn("random weights, not trained", self.text("#setting"))
        for at, step in enumerate(trace["trained"]["steps"], 1):
            self.js("const s = document.getElementById('block'); s.value = %d;"
                    "s.dispatchEvent(new Event('change'))" % at)
            want = np.reshape(step["tensor"]["data"], step["tensor"]["shape"])
            np.testing.assert_allclose(np.nan_to_num(self.shown()), want, atol=1e-6)
            self.assertEqual(self.text("#step-title"), step["title"])
            self.assertIn("Trained, not random", self.text("#setting"))
            self.assertNotIn("random weights", self.text("#setting"))
            for stage in (2, 3):  # the embeddings of the random weights are not theirs
                self.assertFalse(self.one("#stage-%d" % stage).is_enabled())
            self.cell(0, 0)  # of the last head: a row that sees nothing
            self.assertNotIn("NaN", self.text("#main"))
            self.stage(9)
            self.assertIn("A trained head", self.text("#main"))
            self.assertFalse(self.js("return attn.page.context.live.hidden === null"))
        self.assertGreater(at, 1)
        self.js("document.getElementById('block').value = 0;"
                "document.getElementById('block').dispatchEvent(new Event('change'))")
        self.assertIn("random weights, not trained", self.text("#setting"))
        self.expect_quiet()

    def test_gradients_and_one_word(self):
        self.lesson("sky", "--gradients")
        self.explain(text="alone")
        self.assertEqual(self.shown().tolist(), [[1.0]])
        self.explain("--heads", "3", text="a a")

    def test_links_of_the_lessons(self):
        """All weights in the lessons are linked to their queries and keys."""
        for name, blocks in (("sky", ["weights"]), ("numpy", ["weights", "unmasked_weights"]),
                             ("journey", ["simple_weights", "v1_weights", "v2_weights",
                                          "causal_weights"])):
            self.lesson(name)
            for block in blocks:
                error = self.js("""
                    const {page} = attn, b = page.trace.blocks.find(x => x.name === arguments[0]);
                    if (!b.q || !b.k || !b.v) return "not linked";
                    const want = attn.numbersOf(page.trace, b.weights, 0);
                    const got = attn.liveNumbers(page.trace, b, 0, {...page.state.settings,
                        temperature: 1 + 1e-12}).weights;
                    return Math.max(...got.map((x, i) => Math.abs(x - want[i])));""", block)
                self.assertIsInstance(error, (int, float), f"{name} {block}: {error}")
                self.assertLess(error, 1e-6, f"{name} {block}")


if __name__ == "__main__":
    unittest.main()
