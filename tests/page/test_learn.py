#!/usr/bin/env python3
# timeout: 1200
"""Watch it learn: attn train's tasks in the page, with the program's numbers; by keyboard; for
screen readers and for readers who asked for less motion; and where nothing can be trained."""

import json
import shlex
import unittest

import numpy as np

from browser import TEXT, Keys
from test_engine import EngineTest, assembled, has_module


class LearnTest(EngineTest):
    def learning(self, task="previous-token", steps=None):
        """The page, with this task chosen."""
        self.explain()
        self.until("return document.getElementById('learn-start') !== null")
        if steps:
            self.js("attn.learnTasks[arguments[0]].steps = arguments[1]", task, steps)
        self.select("#learn-task", task)
        self.select("#learn-pace", "fast")

    def state(self, expected):
        self.until("return attn.learn.state === arguments[0] && attn.learn.step > 0", expected)

    def train(self):
        self.click("#learn-start")
        self.until("return attn.learn.state !== 'running'")
        self.assertEqual(self.js("return [attn.learn.state, attn.learn.why]"), ["done", ""])


@unittest.skipUnless(has_module(), "pages of this build have no module")
class Learn(LearnTest):
    # -------------------------------------------------------------------------------- numbers

    def expect(self):
        """What was trained is what the program trains: every loss and weight, to the last bit."""
        command = shlex.split(self.text("#learn-body code"))
        self.assertEqual(command[:2], ["ATTN_ISA=generic", "attn"])
        want = json.loads(self.works(*command[2:], "--json", "--threads", "1",
                                     env={"ATTN_ISA": "generic"}))
        data = {s["name"]: s["tensor"]["data"] for s in want["steps"]}
        got = self.js("return { losses: attn.learn.losses, checks: attn.learn.checks, maps: "
                      "attn.learn.maps.map(m => Array.from(m)), labels: attn.learn.labels };")
        self.assertEqual(got["losses"], data["loss"][1::2])
        self.assertEqual(got["checks"][-1][1:], [data["unseen_accuracy"][0],
                                                 data["unseen_loss"][0]])
        for layer, map_ in enumerate(got["maps"]):
            np.testing.assert_array_equal(np.array(map_, np.float32),
                                          np.array(data[f"layer_{layer + 1}"], np.float32))
        rows = next(s for s in want["steps"] if s["name"] == "layer_1")["rows"]
        self.assertEqual(got["labels"], rows)
        return got["checks"][-1][1]

    def test_equals_the_program_bit_for_bit(self):
        for task, steps in (("previous-token", 90), ("induction", 60), ("same-word", 40),
                            ("any-words", 6)):
            self.learning(task, steps)
            self.train()
            self.expect()

    def test_learns(self):
        """The word before, and what came next last time. The time is printed but not tested,
        because this machine may be busy."""
        for task in ("previous-token", "induction"):
            self.learning(task)
            before = self.js("return performance.now()")
            self.train()
            spent = self.js("return performance.now()") - before
            right = self.expect()
            print(f"\n{task}: {right:.3f} right after {spent / 1000:.1f} s")
            self.assertGreaterEqual(right, 0.95)
        # Layer 1 looks at the word before, layer 2 at what followed this word.
        period = self.js("const l = attn.learn.labels; return l.indexOf(l[0], 1)")
        self.assertEqual(self.every("#learn-figures p")[1].text, f"{16 - period} of 16 words look "
                         f"most at the word {period - 1} places before.")

    def test_in_pieces_it_is_the_same_training(self):
        self.learning("previous-token", 12)
        self.click("#learn-step")
        self.until("return attn.learn.step === 1")
        self.click("#learn-step")
        self.until("return attn.learn.step === 2")
        self.select("#learn-pace", "slow")
        self.click("#learn-start")
        self.until("return attn.learn.step > 2")
        self.click("#learn-start")
        self.state("paused")
        self.select("#learn-pace", "fast")
        self.train()
        self.expect()
        # Again is a new run with the same numbers.
        losses = self.js("return attn.learn.losses")
        self.train()
        self.assertEqual(self.js("return attn.learn.losses"), losses)

    # ------------------------------------------------------------------------- how it is used

    def test_by_keyboard(self):
        self.learning("previous-token", 30)
        self.js("document.getElementById('learn-start').focus()")
        self.assertEqual(self.text("#learn-said"), "Not begun.")
        self.keys(Keys.TAB, Keys.ENTER)  # one step
        self.until("return attn.learn.step === 1")
        self.assertEqual(self.js("return document.activeElement.id"), "learn-step")
        self.assertTrue(self.text("#learn-said").startswith("Step 1 of 30 · loss "))
        self.assertEqual(self.text("#learn-start"), "Go on")
        self.js("document.getElementById('learn-start').focus()")
        self.keys(Keys.SPACE)
        self.state("done")
        self.assertEqual(self.js("return document.activeElement.id"), "learn-start")
        self.assertEqual(self.text("#learn-start"), "Again")
        self.assertIn("Training has ended: step 30, ", self.text("#status"))

    def test_for_screen_readers(self):
        self.learning()
        self.js("""
            window.said = [];
            new MutationObserver(() => said.push(document.getElementById("status").textContent))
                .observe(document.getElementById("status"), { childList: true });""")
        self.train()
        said = self.js("return said")
        self.assertEqual(said[0], "Training has begun: the word before.")
        self.assertTrue(said[-1].startswith("Training has ended: step 150, 100 % right"), said)
        self.assertLessEqual(len(said), 6)  # and not one for each step
        labels = self.js("return [...document.querySelectorAll('#learn-figures [role=img]')]"
                         ".map(e => e.getAttribute('aria-label'))")
        self.assertEqual(labels[-1], "15 of 16 words look most at the word before")
        self.assertTrue(labels[0].startswith("Loss of each step: from 2."), labels)
        axis = self.js("return [...document.querySelectorAll('#learn-figures .curve')].map("
                       "c => [...c.querySelectorAll('text')].map(t => t.textContent))")
        self.assertEqual(axis[1], ["0", "0.5", "1", "0", "step 150"])
        rows = self.table("learn-map-0")
        self.assertEqual(len(rows), 17)
        self.assertGreater(float(rows[5][4]), 0.9)
        self.assertEqual(self.table("curve-learn-loss")[1][0], "1")

    def test_less_motion(self):
        """This browser asks for it: while a training runs the pictures change only now and then,
        and its end is always drawn."""
        self.learning("previous-token", 150)
        self.assertTrue(self.js("return matchMedia('(prefers-reduced-motion: reduce)').matches"))
        self.js("""
            window.drawings = [];
            new MutationObserver(() => drawings.push([performance.now(), attn.learn.state]))
                .observe(document.getElementById("learn-body"), { childList: true, subtree: true });
        """)
        self.train()
        times = [t for t, state in self.js("return drawings") if state == "running"]
        moments = [t for i, t in enumerate(times) if i == 0 or t - times[i - 1] > 50]
        self.assertTrue(all(b - a >= 1900 for a, b in zip(moments[1:], moments[2:])), moments)
        self.assertIn("Step 150 of 150", self.text("#learn-said"))

    def test_the_controls_stay_while_it_runs(self):
        self.learning("any-words")
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-reduced-motion", "value": "no-preference"}]})
        try:
            self.js("document.getElementById('learn-task').marked = true")
            self.click("#learn-start")
            self.js("document.getElementById('learn-pace').marked = true")
            self.until("return attn.learn.checks.length > 3")
            self.assertTrue(self.js("return document.getElementById('learn-pace').marked"))
            self.select("#learn-task", "induction")  # gives the run up
            self.assertEqual(self.js("return [attn.learn.state, attn.learn.step]"), ["idle", 0])
            self.assertEqual(self.text("#learn-said"), "Not begun.")
        finally:
            self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    def test_another_sentence_does_not_disturb_it(self):
        self.learning("previous-token", 40)
        self.train()
        before = self.text("#learn-figures")
        self.js("const e = document.getElementById('own-text'); e.value = 'one two';"
                "e.dispatchEvent(new Event('input'))")
        self.until("return attn.page.trace.tokens.length === 2")
        self.assertEqual(self.text("#learn-figures"), before)

    # ---------------------------------------------------------------------------- where it is

    def test_pages(self):
        self.open("train", "--steps", "2", "--task", "previous-token", "--length", "8")
        self.until("return attn.library.state === 'ready'")
        self.assertTrue(self.one("#learn-panel").is_displayed())
        self.open("lesson", "sky")
        self.until("return attn.library.state === 'ready'")
        self.assertFalse(self.one("#learn-panel").is_displayed())

    def test_a_browser_that_refuses(self):
        self.explain()
        for script, why in (("delete globalThis.Worker", "This page cannot train: this browser has "
                             "no Worker. The program can: ATTN_ISA=generic attn train --task"),
                            ("delete globalThis.WebAssembly", "This page cannot train: this "
                             "browser has no WebAssembly.")):
            self.open_with(script, self.path("page.html"))
            self.until("return document.getElementById('learn-why') !== null")
            self.assertIn(why, self.text("#learn-why"))
            self.assertEqual(self.every("#learn-body button"), [])
        self.open_with("Worker = class { constructor() { throw new Error(); } }",
                       self.path("page.html"))
        self.until("return document.getElementById('learn-start') !== null")
        self.click("#learn-start")
        self.assertEqual(self.text("#learn-said"),
                         "Not trained: this browser refused a Worker.")

    def test_what_fails_is_said(self):
        self.learning("previous-token")
        self.js("attn.learnTasks['previous-token'].lr = 1e30")
        self.click("#learn-start")
        self.until("return attn.learn.state === 'failed'")
        self.assertIn("Not trained: the loss is ", self.text("#learn-said"))
        self.js("attn.learnTasks['previous-token'].lr = 0.003;"
                "attn.learnTasks['previous-token'].steps = 5")
        self.train()


class Without(EngineTest):
    def test_a_build_without_clang(self):
        """The page of a build without WebAssembly says so, and has no Worker in its policy."""
        self.explain()
        before, after = assembled(self.folder, "")
        page = self.bytes("page.html").decode()
        data = page.split('id="data">', 1)[1].split("</script>", 1)[0]
        self.write("page.html", before + data.encode() + after)
        self.assertNotIn(b"worker-src", before)
        self.load(self.path("page.html"))
        self.assertIn("This page cannot train: this build has no WebAssembly",
                      self.text("#learn-why"))
        self.assertEqual(self.text("h1"), f"“{TEXT}”")


if __name__ == "__main__":
    unittest.main()
