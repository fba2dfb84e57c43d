#!/usr/bin/env python3
"""Sharing: the state in the URL's hash, Back and Forward, one panel in a frame, and the page saved
as a page."""

import json
import unittest
from urllib.parse import parse_qs, urlencode

from browser import TEXT, Keys
from test_engine import EngineTest, has_module

OTHER = "The cat saw the dog, and the cat ran."

STATE = """
    const { state, trace } = attn.page, { block, step, settings, ...rest } = state;
    return [trace.text, trace.setting, block.name, step && step.name, rest.stage, rest.head,
            rest.row, rest.key, rest.component, rest.language, rest.tab, settings];"""


class LinkTest(EngineTest):
    def follow(self, hash_, name="page.html"):
        """Opens the page with this hash, as a link to it does."""
        self.browser.get("about:blank")
        self.load(self.path(name) + (f"#{hash_}" if hash_ else ""), tab="")
        self.until("return attn.library.state !== 'starting'")

    def hash(self):
        return self.js("return location.hash")

    def pairs(self):
        return {k: v[0] for k, v in parse_qs(self.hash()[1:], keep_blank_values=True).items()}

    def state(self):
        return self.js(STATE)

    def back(self, expected):
        """Goes back, to the state with these pairs."""
        self.js("history.back()")
        self.until("return location.hash === arguments[0]", expected)

    def written(self):
        """Waits until the URL is that of the state."""
        self.until("return location.hash === '#' + attn.link.text")


class Link(LinkTest):
    def again(self):
        """What a reader of this page's link sees is what this page shows."""
        state, drawn, link = self.state(), self.drawn(), self.js("return attn.link.text")
        self.follow(link)
        self.assertEqual(self.state(), state, link)
        self.assertEqual(self.drawn(), drawn, link)
        self.assertEqual(self.js("return attn.link.text"), link)

    def test_a_link_opens_what_its_sender_saw(self):
        self.explain("--heads", "2")
        self.follow("")
        self.assertEqual(self.hash(), "")  # nothing has changed
        self.click("#tab-explore")
        self.stage(4)
        self.cell(2, 3)
        self.keys("]")
        self.assertEqual(self.pairs(), {"stage": "4", "head": "2", "row": "3", "key": "4"})
        self.again()
        self.stage(3)
        self.click("#tabs .tab:nth-child(2)")
        self.cell(1, 5)
        self.click("#tab-PyTorch")
        self.written()
        self.assertEqual(self.pairs(), {"step": "keys", "head": "2", "row": "2", "key": "4",
                                        "component": "6", "code": "PyTorch"})
        self.again()
        self.stage(9)
        self.again()
        self.select("#block", "2")
        self.written()
        self.assertEqual(self.pairs()["attention"], "followed")
        self.again()

    def test_labs(self):
        self.explain("--scale", "0.02")
        self.slide("#lab-t", 0.5)
        self.slide("#lab-d", 7)
        self.click("#lab-scale")
        self.select("#lab-mask", "causal")
        self.select("#lab-masking", "renormalised")
        self.select("#lab-view", "contribution")
        self.click("#lab-shuffle")
        self.click("#lab-sink")
        self.written()
        self.assertEqual(self.pairs(), {
            "stage": "7", "row": "2", "key": self.pairs()["key"], "lab-scale": "off",
            "lab-d_k": "7", "lab-T": "3.16", "lab-mask": "causal", "lab-masking": "renormalised",
            "lab-view": "contribution", "lab-order": "1", "lab-sink": "out"})
        self.again()

    def test_pages_of_every_kind(self):
        for args in (("lesson", "journey"), ("lesson", "sky"),
                     ("train", "--steps", "8", "--task", "previous-token", "--length", "8")):
            self.open(*args)
            for name in self.js("return attn.page.trace.shown.filter(s => s.kind !== 'curve')"
                                ".map(s => s.name)")[::7]:
                self.follow(urlencode({"step": name, "row": 1}))
                self.again()
            # Nothing computes another sentence here, so a link cannot ask for one.
            self.follow(urlencode({"text": OTHER, "stage": 7}))
            self.assertFalse(self.one("#own-panel").is_displayed())
            self.assertNotIn("text", self.js("return attn.link.text"))

    def test_back_and_forward(self):
        self.explain("--heads", "2")
        for key in "348":
            self.stage(int(key))
        self.keys("]")
        self.keys(Keys.ARROW_LEFT)
        steps = self.js("return history.length")
        said = self.text("#step-title")
        self.back("#stage=8&head=2&row=2&key=4")
        self.assertNotEqual(self.text("#step-title"), said)
        self.back("#stage=8&row=2&key=4")
        self.back("#stage=4&row=2&key=4")
        self.assertEqual(self.one("[aria-current=step]").get_attribute("id"), "stage-4")
        self.back("#stage=3&row=2&key=4")
        self.back("#stage=7&row=2&key=4")
        self.assertEqual(self.one("[aria-current=step]").get_attribute("id"), "stage-7")
        self.back("")
        self.assertTrue(self.one("#story").is_displayed())
        self.js("history.go(3)")
        self.until("return location.hash === '#stage=4&row=2&key=4'")
        self.assertEqual(self.one("[aria-current=step]").get_attribute("id"), "stage-4")
        self.assertEqual(self.js("return history.length"), steps)

    def test_the_story(self):
        """Its screens are steps, and Explore opens where the link says, not where the story is."""
        self.explain()
        self.follow("")
        for _ in range(3):
            self.click("#story-next")
        third = self.js("return attn.page.state.screen")
        self.assertEqual(self.pairs(), {"tab": "story", "screen": third})
        title, link = self.text("#story-title"), self.hash()
        self.click("#story-next")
        self.back(link)
        self.assertEqual(self.text("#story-title"), title)
        self.click("#story-explore")
        self.stage(3)
        explore = self.hash()
        self.stage(8)
        self.back(explore)
        self.js("history.go(-2)")
        self.until("return location.hash === arguments[0]", link)
        self.assertEqual(self.text("#story-title"), title)
        self.js("history.go(2)")
        self.until("return location.hash === arguments[0]", explore)
        self.assertEqual(self.js("return attn.page.state.stage"), 3)
        self.follow(link[1:])
        self.assertEqual(self.text("#story-title"), title)
        self.follow("tab=story&screen=" + "x" * 100)
        self.assertEqual(self.js("return attn.page.state.screen"), "aims")
        self.follow("tab=explore")
        self.assertTrue(self.one("#explore").is_displayed())

    def test_a_drag_is_one_entry(self):
        self.explain("--scale", "0.02")
        self.stage(4)
        before = self.js("return history.length")
        self.cell(4, 2)
        for at in range(1, 20):
            self.slide("#lab-t", at / 20)
        self.written()
        self.assertEqual(self.pairs(), {"stage": "4", "row": "5", "key": "3", "lab-T": "8.91"})
        self.assertEqual(self.js("return history.length"), before)
        # An entry that is left has the last state of its drag.
        self.cell(0, 1)
        self.slide("#lab-t", 1)
        self.stage(8)
        self.assertEqual(self.js("return history.length"), before + 1)
        self.back("#stage=4&row=1&key=2&lab-T=10")

    def test_a_key_that_is_held_down_asks_little_of_the_browser(self):
        """Browsers refuse too many changes of the URL, and say so on the console."""
        self.explain()
        self.js("for (let i = 0; i < 400; i++) attn.change({ stage: 3 + i % 2 })")
        self.js("attn.change({ stage: 8 })")
        self.written()
        self.assertEqual(self.pairs()["stage"], "8")

    def test_what_is_not_a_state(self):
        """Unknown keys and impossible values are ignored; a name is a place in the page."""
        self.explain()
        self.follow("tab=explore")
        first = self.state()
        for text in ("matrix", "nothing", "=", "&&&", "a=b", "stage", "stage=", "stage=10",
                     "stage=-1", "stage=1e0", "stage=6", "stage=%", "row=0", "row=1.5", "row=x",
                     "head=0", "key=99999999999999999999", "attention=none", "step=none",
                     "lab-T=NaN", "lab-T=0", "lab-T=Infinity", "lab-d_k=25", "lab-d_k=0",
                     "lab-mask=all", "lab-masking=toString", "lab-view=none", "lab-order=-1",
                     "code=Rust", "embed=none", "embed=__proto__", "embed=learning",
                     "__proto__=1", "constructor=1", "screen=none"):
            self.follow("tab=explore&" * ("=" in text) + text)
            if "=" not in text:
                self.click("#tab-explore")
            self.assertEqual(self.state(), first, text)
            self.assertTrue(self.one("#labs-body").is_displayed(), text)
        # Of a row alone, its largest weight.
        self.follow("row=4")
        self.assertEqual(self.js("return attn.page.context.names.column"), "dessert")
        # Too large numbers are the largest.
        self.follow("row=999&key=999&component=999&head=999&stage=3")
        self.assertEqual(self.state()[5:8], [0, 5, 5])

    def test_a_hostile_hash_is_text(self):
        self.explain()
        attacks = ["<img src=x onerror=\"document.title='hit'\">", "</script><script>1</script>",
                   "javascript:alert(1)", "\"><b>bold</b>", "'; rm -rf ~; '", "a\0b", "\ud800",
                   "x" * 100000, "%", "&amp;", "${1}", "\u202e\u2028"]
        keys = ["text", "attention", "step", "stage", "head", "row", "key", "component", "code",
                "heads", "seed", "d", "d_k", "d_v", "causal", "scale", "lab-T", "lab-order",
                "embed", "tab", "screen", "query", "lab-view"]
        for attack in attacks:
            for chosen in [[k] for k in keys if k == "text" or len(attack) < 50] + [keys]:
                said = urlencode({k: attack for k in chosen}, errors="surrogatepass")
                self.js("history.replaceState(null, '', '#' + arguments[0]);"
                        "dispatchEvent(new PopStateEvent('popstate'))", said)
                self.until("return !attn.own.waiting")
                self.assertEqual(self.every("img, b, script:not(#data) ~ script"), [])
                self.assertEqual(len(self.every("script")), 2)
                self.assertNotIn("hit", self.browser.title.split(" · ")[0].replace(attack, ""))
            self.follow("stage=7&" + urlencode({k: attack[:5000] for k in keys},
                                               errors="surrogatepass"))
            self.assertEqual(len(self.every("script")), 2)
            self.assertTrue(self.one("#matrix-body").is_displayed())

    def test_skip_link_keeps_the_state(self):
        self.explain()
        self.stage(8)
        self.js("document.querySelector('.skip').focus()")
        self.keys(Keys.ENTER)
        self.assertEqual(self.js("return document.activeElement.id"), "matrix")
        self.assertEqual(self.pairs()["stage"], "8")

    def test_copy_link(self):
        self.explain()
        self.js("navigator.clipboard.writeText = async (text) => { globalThis.copied = text; }")
        self.stage(8)
        self.cell(4, 4)
        self.click("#copy-link")
        self.until("return globalThis.copied !== undefined")
        self.assertEqual(self.js("return copied"), f"file://{self.path('page.html')}"
                         "#stage=8&row=5&key=3&component=5")


@unittest.skipUnless(has_module(), "pages of this build have no module")
class Sentence(LinkTest):
    def put(self, field, text):
        self.js("const e = document.getElementById(arguments[0]); e.value = arguments[1];"
                "e.dispatchEvent(new Event('input', {bubbles: true}))", f"own-{field}", text)
        self.until("return !attn.own.waiting")

    def test_another_sentence(self):
        self.explain()
        self.put("text", OTHER)
        self.put("heads", "3")
        self.put("seed", "18446744073709551615")
        self.put("qk", "7")
        self.one("#own-causal").send_keys(Keys.SPACE)
        self.until("return !attn.own.waiting")
        self.select("#own-scale", "none")
        self.until("return !attn.own.waiting")
        self.stage(4)
        self.cell(6, 2)
        self.written()
        self.assertEqual(self.pairs(), {
            "text": OTHER, "heads": "3", "seed": "18446744073709551615", "d_k": "7",
            "causal": "yes", "scale": "none", "stage": "4", "row": "7", "key": "3"})
        self.assertTrue(self.hash().startswith("#text=The+cat+saw+the+dog%2C+and+the+cat+ran"))
        link, state, drawn = self.hash()[1:], self.state(), self.drawn()
        self.follow(link)
        self.until("return attn.own.asked !== null")
        self.assertEqual([self.state(), self.drawn()], [state, drawn])
        want = self.works("explain", "--json", "--heads", "3", "--seed", "18446744073709551615",
                          "--qk", "7", "--causal", "--no-scale", OTHER,
                          env={"ATTN_ISA": "generic"})
        self.assertEqual(self.js("return attn.explainByLibrary(attn.own.asked, false).said"), want)

    def test_the_last_full_stop_is_part_of_the_link(self):
        self.explain()
        self.js("history.replaceState(null, '', '#text=One+two.&scale=0.5.');"
                "dispatchEvent(new PopStateEvent('popstate'))")
        self.assertIn("the factor must be a number", self.text("#own-wrong"))
        self.follow("stage=7&text=One+two%2E")
        self.assertEqual(self.text("h1"), "“One two.”")

    def test_the_word_that_is_followed(self):
        self.explain()
        self.follow("tab=story&screen=%40alone")
        self.until("return document.querySelectorAll('#story .chip:not([disabled])').length > 4")
        self.js("document.querySelectorAll('#story .chip')[4].click()")
        self.until("return attn.page.trace.query === 4")
        self.written()
        self.assertEqual(self.pairs(), {"query": "5", "tab": "story", "screen": "@alone"})
        said = self.text("#story-body")
        self.follow(self.hash()[1:])
        self.until("return attn.page.trace.query === 4")
        self.assertEqual(self.text("#story-body"), said)
        self.follow("query=99&tab=explore")  # there are fewer words
        self.assertEqual(self.js("return attn.page.trace.query"), 1)

    def test_back_undoes_the_sentence(self):
        self.explain()
        self.stage(8)
        before = self.js("return history.length")
        for text in ("T", "Th", "The", "The dog"):
            self.put("text", text)
        self.written()
        self.assertEqual(self.js("return history.length"), before + 1)
        self.back("#stage=8&row=2&key=3")
        self.assertEqual(self.text("h1"), f"“{TEXT}”")
        self.assertEqual(self.one("#own-text").get_attribute("value"), TEXT)
        self.js("history.forward()")
        self.until("return document.querySelector('h1').textContent === '“The dog”'")
        self.click("#own-reset")
        self.written()
        self.assertNotIn("text", self.pairs())

    def test_a_wrong_option_is_one_line(self):
        self.explain()
        for said, line in (
            ("heads=0", "Heads must be a whole number from 1 to 64"),
            ("text=", "the text has no word; give at least one"),
            ("seed=x", "Seed must be a whole number"),
            ("scale=x", "the factor must be a number other than 0"),
            ("text=" + "a+" * 1100, "a matrix of 1210000 numbers: this page computes"),
        ):
            self.follow("tab=explore&" + said)
            self.assertIn(f"Not computed: {line}", self.text("#own-wrong"))
            self.assertEqual(self.text("h1"), f"“{TEXT}”")

    def test_without_webassembly(self):
        """The page says what it cannot show, and shows its own sentence."""
        self.explain()
        link = urlencode({"text": OTHER, "heads": 2, "stage": 4})
        for said, line in (
            (link, "The link is of the sentence “The cat saw the dog, and the cat ran.”, which "
             "this page cannot show: this browser has no WebAssembly. The program writes a page "
             f"of it: attn explain --heads 2 '{OTHER}' -o page.html"),
            ("text=<img+src=x>'&heads=2;reboot", "Nor could the program: Heads must be a whole "
             "number from 1 to 64."),
        ):
            self.browser.get("about:blank")
            self.open_with("delete globalThis.WebAssembly", self.path("page.html") + "#" + said)
            self.until("return attn.library.state === 'refused'")
            self.assertIn(line, self.text("#link-why"))
            self.assertEqual(self.one("#link-why").get_attribute("role"), "alert")
            self.assertEqual(self.text("h1"), f"“{TEXT}”")
            self.assertEqual(self.every("main img"), [])
        self.assertEqual(self.js("return attn.page.state.stage"), 7)
        self.stage(3)
        self.written()
        self.assertNotIn("text", self.pairs())


class Embedded(LinkTest):
    def embed(self, said, size=(700, 460)):
        frame = f'<iframe src="page.html#{said}" width="{size[0]}" height="{size[1]}"></iframe>'
        script = "addEventListener('message', (e) => { window.told = e.data; })"
        self.write("around.html", f"<!doctype html><title>a page around</title><script>{script}"
                                  f"</script><p>Text.</p>{frame}".encode())
        self.expect_quiet()
        self.browser.get("file://" + self.path("around.html"))
        self.browser.switch_to.frame(self.one("iframe"))
        self.until("return globalThis.attn !== undefined && attn.library.state !== 'starting'")

    def visible(self):
        return self.js("return [...document.querySelectorAll('header, nav, section, footer > *,"
                       " details:not(.more), #explore > div')].filter(e => e.checkVisibility() && "
                       "e.getBoundingClientRect().width > 1).map(e => e.id || e.className)")

    def tearDown(self):
        self.browser.switch_to.default_content()
        super().tearDown()

    def test_one_panel(self):
        trace = self.explain()
        self.embed("embed=matrix&stage=7&row=3&key=4")
        self.assertEqual(self.visible(), ["panels", "matrix"])
        self.assertEqual(self.js("return attn.page.state.row"), 2)
        self.assertEqual(len(self.drawn()), 36)
        self.assertIn(trace["setting"], self.text("#embedded"))
        # The panel says how tall it is; there is nothing to scroll.
        height = self.js("return document.body.getBoundingClientRect().height")
        self.assertGreater(height, 300)
        self.assertLess(height, 660)
        self.assertEqual(self.js("return document.documentElement.scrollWidth"), 700)
        self.browser.switch_to.default_content()
        self.until("return window.told && window.told.attn.height === arguments[0]",
                   -(-height // 1))
        self.assertEqual(self.js("return window.told.attn.embed"), "matrix")

    def test_its_steps_are_not_those_of_the_page_around(self):
        self.explain()
        self.embed("embed=matrix")
        before = self.js("return history.length")
        self.js("document.body.focus()")
        self.js("attn.change({ stage: 4 })")
        self.written()
        self.assertEqual(self.pairs(), {"embed": "matrix", "stage": "4", "row": "2", "key": "3"})
        self.assertEqual(self.js("return history.length"), before)
        self.click("#embedded a")
        self.assertIn("#stage=4&row=2&key=3", self.one("#embedded a").get_attribute("href"))
        around, whole = self.browser.window_handles
        self.browser.switch_to.window(whole)
        self.until("return globalThis.attn !== undefined")
        self.assertEqual(self.js("return attn.page.state.stage"), 4)
        self.assertTrue(self.one("header.top").is_displayed())
        self.browser.close()
        self.browser.switch_to.window(around)

    def test_every_panel(self):
        self.explain("--heads", "2")
        for name, panel in (("sentence", "lines-body"), ("cell", "cell-body"),
                            ("labs", "labs-body"), ("health", "health-body"),
                            ("quiz", "quiz-body"), ("heads", "heads-body"),
                            ("code", "code-body"), ("train", "learn-body")):
            self.embed(f"embed={name}&stage=9")
            self.assertTrue(self.one(f"#{panel}").is_displayed(), name)
            self.until("return document.getElementById(arguments[0]).offsetHeight > 40", panel)
            self.assertEqual(len([v for v in self.visible() if v != "panels"
                                  and not v.startswith("panels ")]), 1, self.visible())
        self.open("train", "--steps", "4", "--task", "previous-token", "--length", "8")
        self.embed("embed=learning")
        self.assertTrue(self.one("#learning-body").is_displayed())
        self.assertFalse(self.one("#matrix").is_displayed())

    def test_the_story(self):
        self.explain()
        self.embed("embed=story&screen=scores")
        self.assertTrue(self.one("#story-body").is_displayed())
        self.assertFalse(self.one("#views").is_displayed())
        self.assertFalse(self.one("#story-explore").is_displayed())
        title = self.text("#story-title")
        self.click("#story-next")
        self.assertNotEqual(self.text("#story-title"), title)
        self.assertIn("embed=story", self.js("return attn.link.text"))

    @unittest.skipUnless(has_module(), "pages of this build have no module")
    def test_another_sentence(self):
        self.explain()
        self.embed(urlencode({"embed": "matrix", "text": OTHER, "causal": "yes"}))
        self.until("return attn.page.trace.tokens.length === 9")
        self.assertEqual(len(self.every("#matrix-body .hidden-cell")), 36)
        self.assertIn(OTHER, self.text("#embedded"))

    def test_narrow(self):
        self.explain()
        self.embed("embed=matrix", (320, 400))
        self.assertEqual(self.js("return document.documentElement.scrollWidth"), 320)


class Saved(LinkTest):
    def save(self):
        page = self.download(lambda: self.click("#save-page"), "attn-page.html")
        self.write("saved.html", page)
        return page.decode()

    def parts(self, page):
        """The page's policy, style, trace and script."""
        policy = page.split('http-equiv="Content-Security-Policy" content="', 1)[1].split('">')[0]
        style = page.split("<style>", 1)[1].split("</style>", 1)[0]
        data, script = (part.split("</script>", 1)[0] for part in (
            page.split('id="data">', 1)[1], page.rsplit("<script>", 1)[1]))
        return policy, style, json.loads(data), script

    def test_keeps_the_state(self):
        self.explain("--heads", "2")
        self.stage(5)
        self.cell(3, 4)
        self.keys("]")
        self.click("#theme")
        self.written()
        state, drawn = self.state(), self.drawn()
        saved = self.save()
        self.assertEqual(self.parts(saved), self.parts(self.bytes("page.html").decode()))
        self.follow("", "saved.html")
        self.assertEqual([self.state(), self.drawn()], [state, drawn])
        # It is a page like any other: it has links, and can be saved again.
        self.stage(8)
        self.written()
        self.back("")
        self.assertEqual(self.state(), state)
        self.follow("stage=3", "saved.html")
        self.assertEqual(self.state()[4], 3)
        again = self.save()
        self.assertEqual(self.parts(again), self.parts(saved))

    @unittest.skipUnless(has_module(), "pages of this build have no module")
    def test_keeps_the_sentence(self):
        """Even where nothing can compute it again."""
        self.explain()
        text = "</script><img src=x> it's <!-- 3 < 4 &amp; \u2028 so"
        self.js("const e = document.getElementById('own-text'); e.value = arguments[0];"
                "e.dispatchEvent(new Event('input'))", text)
        self.until("return attn.own.asked !== null && attn.page.trace.text === arguments[0]", text)
        self.stage(4)
        state, drawn = self.state(), self.drawn()
        trace = self.parts(self.save())[2]["trace"]
        self.browser.get("about:blank")
        self.open_with("delete globalThis.WebAssembly", self.path("saved.html"))
        self.until("return attn.library.state === 'refused'")
        self.assertEqual([self.state(), self.drawn()], [state, drawn])
        self.assertEqual(self.every("img"), [])
        self.works("explain", "-o", "want.html", text, env={"ATTN_ISA": "generic"})
        self.assertEqual(trace, self.parts(self.bytes("want.html").decode())[2]["trace"])
        self.follow("", "saved.html")
        self.assertEqual(self.one("#own-text").get_attribute("value"), text)
        self.assertEqual(self.pairs(), {})

    def test_pages_of_every_kind(self):
        for args in (("lesson", "numpy"), ("train", "--steps", "4", "--task", "previous-token")):
            self.open(*args)
            self.keys(Keys.ARROW_LEFT)
            state = self.state()
            saved = self.save()
            self.assertEqual(self.parts(saved), self.parts(self.bytes("page.html").decode()))
            self.follow("", "saved.html")
            self.assertEqual(self.state(), state)


if __name__ == "__main__":
    unittest.main()
