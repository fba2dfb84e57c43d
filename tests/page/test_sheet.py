#!/usr/bin/env python3
"""The sheet of `attn quiz -o sheet.html` in a browser: its button saves what was typed, the file is
graded, and the sheet fits two pages of A4."""

import json
import re
import subprocess
import unittest

from browser import CHROMIUM, By, Keys, PageTest

LARGEST = 2**64 - 1


class Sheet(PageTest):
    def sheet(self, seed):
        self.works("quiz", "--seed", seed, "-o", "sheet.html")
        self.expect_quiet()
        self.browser.get("file://" + self.path("sheet.html"))

    def saved(self, press):
        """Saves by a press. Returns the saved file's bytes, which are in answers.json, too."""
        saved = self.download(press, "answers.json")
        self.write("answers.json", saved)
        return saved

    def key(self, seed):
        return re.findall(r"(?m)^ ?\d+\. (.*)$",
                          self.works("quiz", "--seed", seed, "--answers"))

    def type(self, number, answer):
        choice = re.match(r"([a-d])\)", answer)
        if choice:
            self.click('input[name="%d"][value="%s"]' % (number, choice[1]))
        else:
            self.one('input[name="%d"]' % number).send_keys(answer)

    def test_right_answers_are_graded_as_right(self):
        for seed in (7, LARGEST):
            self.sheet(seed)
            for number, answer in enumerate(self.key(seed), 1):
                self.type(number, answer)
            self.one('input[name="student"]').send_keys('Ada "A"</script>')
            file = json.loads(self.saved(lambda: self.click("#save")))
            self.assertEqual((file["seed"], file["name"]), (str(seed), 'Ada "A"</script>'))
            text = self.works("quiz", "--grade", "answers.json")
            self.assertIn("12 of 12 right.", text)
            self.assertEqual(self.text("#said"), "Saved: 12 of 12 answers.")

    def test_what_is_not_typed_is_missing(self):
        self.sheet(7)
        self.type(1, self.key(7)[0])
        self.type(2, "  ")
        field = self.one('input[name="2"]')
        file = json.loads(self.saved(lambda: field.send_keys(Keys.ENTER)))  # saves, too
        self.assertEqual(self.text("#said"), "Saved: 1 of 12 answers.")
        self.assertEqual(list(file["answers"]), ["1"])
        text = self.works("quiz", "--grade", "answers.json", code=1)
        self.assertEqual(text.count("missing  "), 11)

    def test_names(self):
        """Each field has the name of its question, for screen readers."""
        self.sheet(7)
        for number in range(1, 13):
            question = self.text("#question-%d" % number)
            fields = self.every('[name="%d"]' % number)
            group = fields[0]
            if fields[0].get_attribute("type") == "radio":
                group = fields[0].find_element(By.XPATH, "ancestor::*[@role='radiogroup']")
            self.assertEqual(group.accessible_name, question)

    def test_two_pages_of_paper(self):
        """A new browser prints each sheet: one that has just changed its page sometimes prints
        nothing."""
        for seed in range(1, 6):
            self.works("quiz", "--seed", seed, "-o", "sheet.html")
            subprocess.run(
                [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu",
                 "--disable-dev-shm-usage", "--user-data-dir=" + self.path("profile"),
                 "--print-to-pdf=" + self.path("sheet.pdf"), "file://" + self.path("sheet.html")],
                check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
            self.assertEqual(re.findall(rb"/Count (\d+)", self.bytes("sheet.pdf")), [b"2"], seed)

    def test_narrow(self):
        for width in (360, 768, 1280):
            self.size(width, 800)
            self.sheet(7)
            wide = self.js("return document.documentElement.scrollWidth")
            self.assertLessEqual(wide, width)


if __name__ == "__main__":
    unittest.main()
