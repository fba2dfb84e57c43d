#!/usr/bin/env python3
# timeout: 900
"""The story, the page's first tab: its screens and their numbers, the questions, motion, and how
Explore opens at its place. The words are those of the scripts, kit/explain/lessons/*.lesson."""

import json
import os
import re
import shutil
import unittest
from pathlib import Path

import numpy as np

from browser import Keys, PageTest, TEXT, softmax, tensors
from models import Model
from test_engine import has_module

LESSONS = Path(os.environ["ATTN_SOURCE"]) / "kit" / "explain" / "lessons"
WORDS40 = " ".join(f"word{i}" for i in range(40))


def titles(name):
    """The titles of the screens of a script, from its text: those behind `step`."""
    found, beginning = [], None
    for line in (LESSONS / f"{name}.lesson").read_text().splitlines():
        word, _, rest = line.partition(" ")
        if word in ("step", "also"):
            beginning = word
        elif word == "title" and beginning == "step":
            found.append(rest)
            beginning = None
    return found


class StoryTest(PageTest):
    def explain(self, *args, text=TEXT):
        self.works("explain", *args, "-o", "page.html", "-o", "trace.json", "--", text)
        self.load(self.path("page.html"), tab="story")
        return json.loads(self.bytes("trace.json"))

    def lesson(self, name):
        self.works("lesson", name, "-o", "page.html")
        self.load(self.path("page.html"), tab="story")

    def title(self):
        """The title without its formula."""
        return self.js("return document.getElementById('story-title').firstChild.data")

    def screens(self):
        return self.js("return attn.storyScreens(attn.page.trace).map(s => s.name)")

    def choose(self, name):
        """Goes to a screen by its list, with the mouse."""
        self.select("#story-screen", str(self.screens().index(name)))

    def screen(self, name):
        """Goes to a screen by its list, by the event of a choice: a tenth of a second sooner."""
        self.set("#story-screen", str(self.screens().index(name)), "change")

    def ready(self):
        self.until("return attn.library.state === 'ready'")

    def type(self, text):
        self.one("#own-text").send_keys(Keys.CONTROL, "a")
        self.one("#own-text").send_keys(text)
        self.until("return !attn.own.waiting && attn.page.trace.text === arguments[0]", text)


class Screens(StoryTest):
    def test_the_story_opens_first(self):
        self.explain()
        self.assertTrue(self.one("#story").is_displayed())
        self.assertFalse(self.one("#explore").is_displayed())
        self.assertEqual(self.one("#tab-story").get_attribute("aria-selected"), "true")
        script = (LESSONS / "explain.lesson").read_text()
        self.assertEqual(self.texts(".aims li"), re.findall(r"^learn (.*)$", script, re.M))
        self.assertIn("random weights, not trained", self.text("#setting"))

    def test_next_and_back_by_buttons_and_keys(self):
        self.explain("--causal")
        first = self.title()
        want = [first, *titles("explain"), "Do you understand it?"]
        self.assertEqual(len(want), 13)
        self.assertFalse(self.one("#story-back").is_enabled())
        seen = [first]
        while self.one("#story-next").is_enabled():
            self.click("#story-next")
            seen.append(self.title())
            self.assertEqual(self.js("return document.activeElement.id"), "story-title")
            self.assertEqual(self.text("#status"), f"Screen {len(seen)} of 13")
        self.assertEqual(seen, want)
        for at in range(11, -1, -1):
            self.keys(Keys.ARROW_LEFT)
            self.assertEqual(self.title(), want[at])
        self.keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
        self.assertEqual(self.title(), want[2])
        self.click("#story-back")
        self.assertEqual(self.title(), want[1])
        self.keys("7")  # a key of Explore
        self.assertEqual(self.title(), want[1])
        self.one("#tab-story").send_keys(Keys.ARROW_RIGHT)
        self.assertTrue(self.one("#explore").is_displayed())
        self.assertEqual(self.js("return document.activeElement.id"), "tab-explore")

    def test_few_words_on_each_screen(self):
        for args, text in (((), TEXT), (("--causal", "--heads", "2"), "the cat saw the dog"),
                           (("--no-scale",), "alone")):
            self.explain(*args, text=text)
            for name in self.screens()[1:-1]:
                self.screen(name)
                words = self.text(".idea").split()
                self.assertGreater(len(words), 20, name)
                self.assertLessEqual(len(words), 60, f"{name}: {' '.join(words)}")
                self.assertLess(len(self.every(".task > .ask, .task > p")), 2, name)

    def test_numbers_are_those_of_the_trace(self):
        for args in (("--scale", "0.02"), ("--scale", "0.02", "--causal", "--query", "eat"),
                     ("--heads", "3", "--query", "last")):
            trace = self.explain(*args)
            t = {n: x if x.ndim < 3 else x[0] for n, x in tensors(trace).items()}
            q = trace["query"]
            scores, seen = t["scores"][q], np.isfinite(t["weights"][q])
            if "--causal" in args:
                seen[q + 1:] = False
            w = t["weights"][q]
            p, k = np.argmax(np.where(seen, scores, -np.inf)), np.argmax(w)
            words = trace["tokens"]
            self.screen("@pair")
            self.assertIn(f"key of “{words[p]}”", self.text(".shows"))
            total = float(self.text(".total strong"))
            self.assertAlmostEqual(total, t["queries"][q] @ t["keys"][p], delta=2e-4)
            self.screen("weights")
            listed = self.texts(".listing.shares .number")[1:]
            for j in range(6):
                if seen[j]:
                    self.assertAlmostEqual(float(listed[2 * j + 1]), w[j], delta=6e-5)
                else:
                    self.assertEqual(listed[2 * j], "hidden")
            self.assertIn(f"{w[k]:.4f}, to ", self.text(".meaning"))
            self.screen("context")
            mixed = float(self.texts(".listing.mix .number")[-1])
            self.assertAlmostEqual(mixed, w @ t["values"][:, 0], delta=2e-4)
            self.assertIn(f"begins with {t['context'][q, 0]:.4f}", self.text(".meaning"))
            self.screen("scaled_scores")
            shares = self.texts(".listing.scaled .number")[2::2]
            want = 100 * softmax(np.where(seen, t["scaled_scores"][q], -np.inf))[seen]
            np.testing.assert_allclose([float(x[:-2]) for x in shares], want, atol=0.06)
            # The slider multiplies the scores by another number.
            self.slide("#story input[type=range]", "-3")
            shares = self.texts(".listing.scaled .number")[2::2]
            want = 100 * softmax(np.where(seen, 0.001 * scores, -np.inf))[seen]
            np.testing.assert_allclose([float(x[:-2]) for x in shares], want, atol=0.06)

    def test_explore_opens_where_the_story_stands(self):
        trace = self.explain("--causal", "--query", "dessert", "--heads", "2", "--scale", "0.02",
                             text=f"{TEXT} and dessert")
        scores, w = tensors(trace)["scores"][0, 4], tensors(trace)["weights"][0, 4]
        p = int(np.argmax(np.where(np.arange(len(scores)) <= 4, scores, -np.inf)))
        want = {"token_ids": 1, "w_q": 3, "@pair": 4, "scores": 4, "scaled_scores": 5,
                "masked_scores": 6, "weights": 7, "context": 8, "@eyes": 9, "@trained": 7}
        for name, stage in want.items():
            self.choose(name)
            self.click("#story-explore")
            self.assertEqual(self.one("[aria-current=step]").get_attribute("id"),
                             f"stage-{stage}", name)
            state = self.js("const {row, key, head} = attn.page.state; return [row, key, head]")
            key = p if name in ("@pair", "scores") else int(np.argmax(w))
            self.assertEqual(state, [4, key, 0], name)
            if name not in ("@pair", "@eyes", "@trained"):
                self.assertEqual(self.js("return attn.page.context.view.step.name"), name)
            if name == "@trained":
                self.assertEqual(self.js("return attn.page.context.block.name"), "previous")
            self.click("#tab-story")
            self.assertEqual(self.js("return attn.page.state.screen"), name)
        # The reader's own place in Explore stays as it is, until the story moves on.
        self.screen("weights")
        self.click("#tab-explore")
        self.cell(2, 1)
        self.click("#tab-story")
        self.click("#tab-explore")
        self.assertEqual(self.js("return [attn.page.state.row, attn.page.state.key]"), [2, 1])

    def test_sizes_dark_and_zoom(self):
        """No screen exceeds the page's width; 640 × 400 is 1280 × 800 at a zoom of 200 %."""
        for text in (TEXT, WORDS40, "x" * 300 + " y"):
            self.explain("--causal", "--heads", "3", text=text)
            for width, height in ((1280, 800), (640, 400), (390, 844)):
                self.size(width, height)
                for name in self.screens():
                    self.screen(name)
                    inside = self.js("return document.documentElement.scrollWidth <= innerWidth")
                    self.assertTrue(inside, (width, name, text))
                self.assertTrue(self.js("const r = document.getElementById('story-next')"
                                        ".getBoundingClientRect(); return r.right <= innerWidth"))

    def test_hidden_cells_suit_the_theme(self):
        """In a matrix drawn as pixels, too, after a click on the theme."""
        self.explain("--causal", text=WORDS40)
        self.screen("masked_scores")
        corner = """
            const canvas = [...document.querySelectorAll("#story canvas")].at(-1);
            const {data} = canvas.getContext("2d").getImageData(canvas.width - 2, 1, 1, 1);
            return data[0] + data[1] + data[2];"""
        light = self.js(corner)
        self.assertGreater(light, 600)
        self.click("#theme")
        self.assertLess(self.js(corner), 250)
        self.click("#theme")
        self.assertEqual(self.js(corner), light)

    def test_names_ids_and_contrast(self):
        from test_page import CONTRAST
        self.explain("--heads", "2")
        for name in self.screens():
            self.screen(name)
            bad = self.js("""
                const named = e => e.getAttribute("aria-label") || e.textContent.trim()
                    || e.labels?.length || e.getAttribute("aria-labelledby");
                return [...document.querySelectorAll("button, select, input, [role=img], "
                    + "[role=group], [tabindex]")].filter(e => !named(e)).map(e => e.outerHTML);""")
            self.assertEqual(bad, [], name)
            ids = self.js("return [...document.querySelectorAll('[id]')].map(e => e.id)")
            self.assertEqual({i for i in ids if ids.count(i) > 1}, set(), name)
            levels = self.js("return [...document.querySelectorAll('h1, h2, h3')]"
                             ".filter(e => e.offsetParent).map(e => e.localName)")
            self.assertEqual(levels[0], "h1")
            for _ in range(2):
                self.assertEqual(self.js(CONTRAST), [], name)
                self.click("#theme")


class Asking(StoryTest):
    def answer(self, where, right):
        """Clicks an answer of a question: the one that begins with `right`, or another one."""
        for button in self.every(f"{where} .choice"):
            if button.text.startswith(right[0]) == right[1]:
                button.click()
                return
        self.fail((where, right, self.texts(f"{where} .choice")))

    def test_five_questions(self):
        trace = self.explain("--scale", "0.02")
        w = tensors(trace)["weights"][1]
        key = trace["tokens"][int(np.argmax(w))]
        self.screen("questions")
        self.assertEqual(self.text(".tally"), "5 questions. Each answer is checked at once.")
        rights = [f"“{key}”: its scaled score", "Query and key are multiplied", "Not at all",
                  "None: rows", "No: the tables"]
        sees = ["Softmax", "How well", "Softmax", "A number", "Training gives"]
        self.assertEqual(len(self.every(".questions > li")), 5)
        for i, (right, see) in enumerate(zip(rights, sees), 1):
            where = f".questions > li:nth-child({i})"
            self.answer(where, (right, False))
            reply = self.text(f"{where} .reply")
            self.assertIn("Not this one", reply)
            self.assertRegex(reply, f"screen \\d+, “{see}")
            self.assertEqual(self.one(f"{where} .reply").get_attribute("role"), "status")
            self.answer(where, (right, True))
            self.assertTrue(self.text(f"{where} .reply").startswith("Right."))
        self.assertIn(f"its share is {w.max():.4f}", self.text(".questions > li .reply"))
        self.assertIn("5 of 5 answered, 0 at the first try", self.text(".tally"))
        # The screen that a reply names.
        self.answer(".questions > li:nth-child(2)", (rights[1], False))
        self.click(".questions > li:nth-child(2) .link")
        self.assertIn("How well does a key fit", self.title())

    def test_questions_of_other_sentences(self):
        for args, text, right in (
                (("--causal",), "the cat saw the dog", "No: a later place sees more words"),
                ((), "the cat saw the dog", "Yes: equal words have equal queries"),
                (("--causal",), TEXT, "Those of words that now see other words"),
                ((), "alone", "None: rows and columns only move")):
            self.explain(*args, text=text)
            self.screen("questions")
            self.answer(".questions > li:nth-child(4)", (right, True))
            self.assertTrue(self.text(".questions > li:nth-child(4) .reply").startswith("Right."))

    def test_predictions(self):
        trace = self.explain()
        t = tensors(trace)
        p = int(np.argmax(t["scores"][1]))
        product = t["queries"][1, 0] * t["keys"][p, 0]
        self.screen("@pair")
        self.answer(".task", ("Positive" if product > 0 else "Not positive", False))
        self.assertIn("Not this one", self.text(".task .reply"))
        self.answer(".task", ("Positive" if product > 0 else "Not positive", True))
        self.assertIn(f"{product:.4f}"[:-1], self.text(".task .reply"))
        self.screen("scores")
        self.answer(".task", (trace["tokens"][p], True))
        self.assertIn(f"Right. “{trace['tokens'][p]}”: {t['scores'][1].max():.4f}",
                      self.text(".task .reply"))
        self.screen("@eyes")
        self.click(".task .quiet")  # no choices: the answer is shown
        self.assertIn("It sees only itself", self.text(".task .reply"))


@unittest.skipUnless(has_module(), "pages of this build have no module")
class Changing(StoryTest):
    def test_a_changed_sentence_changes_the_numbers(self):
        self.explain("--scale", "0.02")
        self.ready()
        self.screen("weights")
        text = "the cat saw the dog"
        self.type(text)
        want = json.loads(self.works("explain", "--scale", "0.02", "--json", text,
                                     env={"ATTN_ISA": "generic"}))
        w = tensors(want)["weights"][1]
        self.assertEqual(self.js("return attn.page.state.screen"), "weights")
        listed = self.texts(".listing.shares .number")[2::2]
        np.testing.assert_allclose([float(x) for x in listed], w, atol=6e-5)
        self.assertIn(f"“cat” gives the largest share, {w.max():.4f}, to ", self.text(".meaning"))
        self.screen("token_ids")
        self.assertIn("5 words, 4 distinct", self.text(".meaning"))
        self.assertEqual(self.texts(".id-box"), ["3", "0", "2", "3", "1"])
        strips = [e.get_attribute("outerHTML") for e in self.every(".strip")]
        self.assertEqual(strips[0], strips[3])  # equal words, equal vectors
        self.assertNotEqual(strips[0], strips[1])

    def test_another_word_is_followed(self):
        self.explain()
        self.ready()
        self.screen("w_q")
        self.click("#chip-4")
        self.until("return attn.page.trace.query === 4")
        self.assertEqual(self.js("return document.activeElement.id"), "chip-4")
        want = json.loads(self.works("explain", "--query", "5", "--json", TEXT,
                                     env={"ATTN_ISA": "generic"}))
        self.screen("weights")
        w = tensors(want)["weights"][4]
        self.assertIn(f"“dessert” gives the largest share, {w.max():.4f}", self.text(".meaning"))
        self.click("#story-explore")
        self.assertEqual(self.js("return attn.page.state.row"), 4)
        self.assertIn("--query 5", self.text("#own-said code"))
        # With fewer words than that, the usual one is followed again.
        self.click("#tab-story")
        self.type("two words")
        self.assertIn("“words”", self.text(".meaning"))

    def test_words_that_are_numbers(self):
        """A word is followed by its position, although the sentence has this number as a word."""
        text = "I have 2 cats and 3 dogs"
        self.explain("--query", "2", text=text)  # the word 2, at position 3
        self.ready()
        self.assertEqual(self.js("return attn.page.trace.query"), 2)
        self.screen("w_q")
        for at in (1, 3, 2):
            self.click(f"#chip-{at}")
            self.until(f"return attn.page.trace.query === {at}")
        self.click("#story-explore")
        self.assertIn("--query '#3'", self.text("#own-said code"))
        self.click("#own-causal")
        self.until("return attn.page.trace.options.causal")
        self.assertEqual(self.js("return attn.page.trace.query"), 2)

    def test_mask_and_heads(self):
        self.explain()
        self.ready()
        self.screen("@eyes")
        self.click("#eyes-mask")
        self.until("return attn.page.trace.find.has('masked_scores')")
        self.click("#eyes-3")
        self.until("return attn.page.trace.heads === 3")
        self.assertEqual(self.js("return attn.page.state.screen"), "@eyes")
        self.assertEqual(len(self.every(".maps figure")), 3)
        self.assertIn("masked_scores", self.screens())
        self.assertIn("There are 3 heads", self.text(".meaning"))
        self.screen("@trained")
        self.click("#repeat-words")
        self.until("return attn.page.trace.text.endsWith('last Life is')")
        self.assertEqual(self.every("#repeat-words"), [])
        self.click("#trained-same")
        self.assertIn("the same word", self.text(".maps"))


class Moving(StoryTest):
    def preference(self, value):
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-reduced-motion", "value": value}]})

    def tearDown(self):
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        super().tearDown()

    def moving(self):
        return self.js("return document.getElementById('story').getAnimations({subtree: true})"
                       ".filter(a => !(a instanceof CSSTransition)).length")

    def test_pictures_move_once_and_again(self):
        self.preference("no-preference")
        self.explain("--causal")
        for name in self.screens()[1:-1]:
            self.screen(name)
            self.assertGreater(self.moving(), 0, name)
            self.js("attn.motion.running.forEach(a => a.finish())")
            self.assertEqual(self.moving(), 0)
            self.click(".replay")
            self.assertGreater(self.moving(), 0, name)
        self.screen("weights")
        if has_module():
            self.ready()
            self.type("two words")  # while one types, nothing moves
            self.assertEqual(self.moving(), 0)

    def test_reduced_motion(self):
        self.preference("reduce")
        self.explain("--causal")
        for name in self.screens():
            self.screen(name)
            self.assertEqual(self.moving(), 0, name)
            self.assertEqual(self.every(".replay"), [])


class Others(StoryTest):
    def test_every_lesson_tells_its_script(self):
        for name in ("sky", "journey", "numpy", "dessert", "module"):
            self.lesson(name)
            script = (LESSONS / f"{name}.lesson").read_text()
            self.assertEqual(self.texts(".aims li"), re.findall(r"^learn (.*)$", script, re.M))
            seen = []
            while self.one("#story-next").is_enabled():
                self.click("#story-next")
                seen.append(self.title())
            optional = "Gradients" if name == "sky" else None
            want = titles(name)
            self.assertEqual(seen[:-1], want[:len(seen) - 1])
            self.assertTrue(len(seen) - 1 == len(want) or optional, (len(seen), len(want)))
            self.assertEqual(seen[-1], "Do you understand it?")
            questions = len(re.findall(r"^question", script, re.M))
            self.assertEqual(len(self.every(".questions > li")), questions)
            self.assertEqual(self.text(".tally"), f"{questions} questions. Answer each for "
                             "yourself, then look.")

    def test_a_lesson_shows_code_and_numbers(self):
        self.lesson("sky")
        self.screen("token_ids")
        self.assertIn("sequence = torch.tensor([[1,2,3]])", self.text(".says pre"))
        self.assertIn("The notebook, In [2]", self.text(".says"))
        self.click(".task .quiet")
        self.assertIn("one sentence with three tokens", self.text(".task .reply"))
        self.screen("embeddings")
        self.assertIn("(-1.0720, -0.5001)", self.text(".meaning"))
        self.click("#story-explore")
        self.assertEqual(self.js("return attn.page.context.view.step.name"), "embeddings")

    def test_on_paper_stands_the_whole_story(self):
        for open_it in (lambda: self.explain("--causal", "--heads", "2"),
                        lambda: self.lesson("sky")):
            open_it()
            heads = self.js("return attn.storyScreens(attn.page.trace).map(s => s.title)")
            self.js("dispatchEvent(new Event('beforeprint'))")
            printed = self.js("return [...document.querySelectorAll('#story-print h2')]"
                              ".map(e => e.firstChild.data)")
            self.assertEqual(printed, heads)
            self.assertEqual(self.every("#story-print button, #story-print input"
                                        ":not(:disabled)"), [])
            ids = self.js("return [...document.querySelectorAll('[id]')].map(e => e.id)")
            self.assertEqual({i for i in ids if ids.count(i) > 1}, set())
            self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
            self.assertTrue(self.one("#story-print").is_displayed())
            self.assertFalse(self.one("#story").is_displayed())
            self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
            self.js("dispatchEvent(new Event('afterprint'))")
            self.assertEqual(self.every("#story-print > *"), [])

    def test_hostile_sentence(self):
        text = "<img/src=x/onerror=document.title='hit'> <b>bold</b> *a* `b` {fact} </script>"
        self.explain("--scale", "0.01", text=text)
        for name in self.screens():
            self.screen(name)
            self.assertEqual(self.every("img, b"), [])
        self.assertNotIn("hit", self.browser.title.split(" · ")[0].replace(text, ""))

    def test_without_the_module(self):
        """The story is told without WebAssembly; what must compute is disabled."""
        self.works("explain", "-o", "page.html", TEXT)
        added = self.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument",
                                             {"source": "delete globalThis.WebAssembly"})
        try:
            self.load(self.path("page.html"), tab="story")
        finally:
            self.browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
        self.until("return attn.library.state !== 'starting'")
        for name in self.screens():
            self.screen(name)
            self.assertTrue(all(not e.is_enabled() for e in self.every(".chip, .computes")), name)
        self.assertTrue(self.one("#own-why").is_displayed())

    def test_a_training_has_no_story(self):
        self.works("train", "--steps", "2", "--length", "8", "--json", "-o", "page.html")
        self.load(self.path("page.html"), tab="story")
        self.assertFalse(self.one("#views").is_displayed())
        self.assertTrue(self.one("#explore").is_displayed())


class Models(StoryTest):
    def model(self, kind, text, **sizes):
        """The page of a random model, and what --find says of each kind."""
        shutil.rmtree(self.path("m"), ignore_errors=True)
        Model(kind, **sizes).save(self.path("m"))
        self.works("explain", "--model", "m", "-o", "page.html", "-o", "trace.json", text)
        self.load(self.path("page.html"), tab="story")
        found = {}
        for name in ("previous", "first", "same"):
            done = self.attn("explain", "--model", "m", "--find", name, "--json", text)
            if done.returncode == 0:
                found[name] = json.loads(done.stdout)
        return json.loads(self.bytes("trace.json")), found

    def test_heads_are_those_that_find_names(self):
        for kind, text in (("bert", "w1 w2 w3 w2 w5"), ("gpt2", "a b a c"), ("llama", "abc")):
            trace, found = self.model(kind, text, L=3, H=4)
            self.assertTrue(self.one("#story").is_displayed())
            self.assertEqual([n for n in self.screens() if n[1:] in found],
                             [f"@{n}" for n in ("previous", "same", "first") if n in found])
            self.screen("@tokens")
            self.assertEqual(self.texts(".token .told-word"), trace["tokens"])
            self.assertIn(f"has {len(trace['tokens'])} tokens", self.text(".meaning"))
            for name, answer in found.items():
                best = answer["heads"][0]
                self.screen(f"@{name}")
                self.assertIn(f"Layer {best['layer']}, head {best['head']} ",
                              self.text(".meaning"))
                self.assertIn("%.1f %%" % (100 * best["score"]), self.text(".meaning"))
                self.assertIn(f"layer {best['layer']}, head {best['head']}", self.text("figure"))
                self.click("#story-explore")
                self.assertEqual(self.js("const c = attn.page.context; return [c.block.layer, "
                                         "c.head + 1, c.state.stage]"),
                                 [best["layer"], best["head"], 7])
                # Its map gives the tokens of this kind the weight that --find says.
                if name == "previous":
                    w = np.array(self.js("return Array.from(attn.page.context.view.numbers)"))
                    w = w.reshape(len(trace["tokens"]), -1)
                    self.assertAlmostEqual(np.diag(w, -1).mean(), best["score"], delta=1e-4)
                self.click("#tab-story")
            self.expect_quiet()

    def test_a_click_on_a_head_opens_it(self):
        self.model("gpt2", "a b c d", L=3, H=2)
        self.screen("@heads")
        self.assertIn("3 layers of 2 heads: 6 maps", self.text(".meaning"))
        self.assertEqual(len(self.every("#story .thumb")), 6)
        self.every("#story .thumb")[5].click()
        self.assertEqual(self.js("const c = attn.page.context; return [c.block.layer, c.head]"),
                         [3, 1])

    ABAC = [0, 26, 1, 26, 0, 26, 2]  # the ids of "a b a c"

    def test_next_token(self):
        trace, _ = self.model("gpt2", "a b a c")
        p = tensors(trace)["next_tokens"][:, 0]
        self.screen("@next")
        self.assertIn(f"{p[0]:.4f}", self.text(".meaning"))
        shown = [float(x) for x in self.texts(".listing.shares .number")[2::2]]
        np.testing.assert_allclose(shown, p, atol=6e-5)
        self.assertIn("T = 1", self.text("#story output"))
        m = Model("gpt2", L=2, H=2, D=4)
        logits = m.logits(m.outputs(self.ABAC)[:, -1])
        top = np.argsort(-logits[-1])[:5]
        self.slide("#story input[type=range]", "14")  # T = 10^-0.3
        self.assertIn("T = 0.501", self.text("#story output"))
        shown = [float(x) for x in self.texts(".listing.shares .number")[2:12:2]]
        want = softmax(logits[-1] / 10**-0.3)
        np.testing.assert_allclose(shown, want[top], atol=1e-4)
        rest = self.texts(".listing.shares .number")[-1]
        self.assertAlmostEqual(float(rest.rstrip(" %")), 100 * (1 - want[top].sum()), delta=0.6)

    def test_logit_lens(self):
        trace, _ = self.model("gpt2", "a b a c")
        m = Model("gpt2", L=2, H=2, D=4)
        chances = softmax(m.logits(m.outputs(self.ABAC)[:, -1]))
        best = int(chances[-1].argmax())
        self.screen("@lens")
        shown = [float(x) for x in self.texts(".listing.lens .number")[1:]]
        np.testing.assert_allclose(shown, chances[:, best], atol=1e-4)

    def test_one_head_or_a_long_text_has_no_story(self):
        self.model("gpt2", "a b", places=128)
        for args in (("--head", "1", "a b"), ("ab" * 33,)):
            self.works("explain", "--model", "m", "-o", "page.html", *args)
            self.load(self.path("page.html"), tab="story")
            self.assertFalse(self.one("#views").is_displayed())
            self.assertTrue(self.one("#explore").is_displayed())


if __name__ == "__main__":
    unittest.main()
