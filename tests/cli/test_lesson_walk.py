#!/usr/bin/env python3
"""attn lesson NAME on a terminal: every key, resizing, interruption, and the place it remembers."""

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unittest

from cli import ATTN, CliTest


class Walk(CliTest):
    def begin(self, *args, columns=80, rows=500, command="lesson", **env):
        main, side = pty.openpty()
        self.size(main, columns, rows)
        self.terminal, self.side = main, side
        self.before = termios.tcgetattr(side)
        clean = {k: v for k, v in os.environ.items()
                 if not k.startswith(("COLUMNS", "LC_", "LANG"))}
        clean.update({"LC_ALL": "C.UTF-8", "TERM": "xterm", "NO_COLOR": "1",
                      "XDG_STATE_HOME": self.path("state")}, **env)
        self.run = subprocess.Popen([ATTN, command, *args], cwd=self.folder, env=clean,
                                    stdin=side, stdout=side, stderr=side, start_new_session=True,
                                    preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.addCleanup(self.end, self.run, main, side)

    def end(self, run, *terminals):
        run.kill()
        run.wait()
        for terminal in terminals:
            os.close(terminal)

    def size(self, terminal, columns, rows=500):
        """The kernel sends SIGWINCH, once, to the program that has the terminal."""
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, pattern):
        """The output up to the pattern; everything that was written is looked at once."""
        text, end = "", time.monotonic() + 60
        decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end inside a character
        while not re.search(pattern, text):
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.terminal], [], [], left)[0]:
                self.fail("no %r in %r" % (pattern, text[-2000:]))
            text += decoder.decode(os.read(self.terminal, 65536))
        return text.replace("\r\n", "\n")

    def press(self, keys, pattern=None):
        """The output after the keys. A number's digits are echoed one by one, so a jump waits for
        the status line of its step."""
        if pattern is None and re.fullmatch(r"\d+\n", keys):
            pattern = r"\[%s/\d+\] Enter.* q quit $" % keys[:-1]
        os.write(self.terminal, keys.encode())
        return self.until(pattern or r"q quit (> \d+)?$")

    def place(self):
        with open(self.path("state/attn/lessons")) as f:
            return f.read()

    def ends(self, code=0):
        self.assertEqual(self.run.wait(60), code)
        self.assertEqual(termios.tcgetattr(self.side), self.before)

    def test_from_beginning_to_end(self):
        self.begin("sky")
        text = self.until(r"q quit $")
        screens = int(re.search(r"\[0/(\d+)\]", text).group(1))
        self.press("p")  # no predictions: Enter shows whole steps
        for _ in range(200):
            if "[%d/%d] Enter end" % (screens, screens) in self.press("\n", r"q quit $"):
                break
        os.write(self.terminal, b"\n")
        self.ends()
        self.assertEqual(self.place(), "")

    def test_a_sentence_is_explained_step_by_step(self):
        self.begin("--steps", "a b a", command="explain")
        self.assertIn("You will learn", self.until(r"\[0/11\] Enter next .* q quit $"))
        text = self.press("2\n", r"Enter see .* q quit $")
        self.assertNotIn("Answer:", text)
        self.assertIn("“a” stands there more than once", self.press("\n", "go on $"))
        self.press("n")
        self.assertIn("In C:", self.press("c"))
        self.assertIn("With NumPy:", self.press("c"))
        self.assertIn("Layer 2: what followed this word", self.press("10\n"))
        os.write(self.terminal, b"q")
        self.ends()
        self.assertFalse(os.path.exists(self.path("state")))  # only lessons have a place

    def test_prediction_answer_and_score(self):
        self.begin("sky")
        self.until(r"q quit $")
        text = self.press("2\n")
        text = text if "Predict:" in text else text + self.until(r"q quit $")
        self.assertIn("Predict:", text)
        self.assertNotIn("Answer:", text)
        self.assertIn("Answer:", self.press("\n", "go on $"))
        self.assertIn("Well seen", self.press("y"))
        self.press("q", "1 of 1 predictions right")
        self.ends()
        self.assertEqual(self.place(), "sky 2\n")

    def test_place_is_remembered(self):
        for keys, step in (("7", 7), ("\n", 8), ("b", 7)):
            self.begin("sky")
            text = self.until(r"q quit $")
            self.assertEqual("You stopped at step" in text, keys != "7")
            if keys == "7":
                self.press("7", r"> 7$")
            self.press("b" if keys == "b" else "\n", r"\[%d/" % step)
            self.press("q", "Stopped at step %d" % step)
            self.ends()
            self.assertIn("sky %d\n" % step, self.place())
            self.assertIn("you stopped at step %d" % step,
                          self.works("lesson", env={"XDG_STATE_HOME": self.path("state")}))

    def test_places_of_other_lessons_stay(self):
        os.makedirs(self.path("state/attn"))
        self.write("state/attn/lessons", b"journey 3\nsky 5\n")
        self.begin("sky")
        self.until(r"q quit $")
        self.press("q", "Stopped at step 5")
        self.ends()
        self.assertEqual(self.place(), "journey 3\nsky 5\n")

    def test_code_steps_and_unknown_keys(self):
        self.begin("sky")
        self.until(r"q quit $")
        self.press("9\n")
        for language in ("With NumPy:", "With PyTorch:"):
            self.assertIn(language, self.press("c", r"code: \w+  q quit $"))
        self.assertNotIn("With", self.press("c", r"code: none  q quit $"))
        self.assertIn("Type a number", self.press("s"))
        self.press("12", r"> 12$")
        self.press("\x7f", r"> 1$")
        self.press("x")  # nothing happens, and the number is forgotten
        self.press("q", "Stopped at step 9")
        self.ends()

    def test_escape_sequences_are_no_keys(self):
        """Page Down, Shift-Down as some terminals send it, and 1 of the keypad."""
        self.begin("sky")
        self.until(r"q quit $")
        self.press("p")
        self.press("1\n", r"\[1/\d+\] .*q quit $")
        text = self.press("\x1b[6~\x1b[b\x1bOq\n", r"\[2/\d+\] .*q quit $")
        self.assertNotIn("> 6", text)
        self.assertNotIn("[0/", text)
        self.press("q", "Stopped at step 2")
        self.ends()

    def test_resize_and_narrow(self):
        self.begin("sky", columns=60)
        self.until(r"q quit $")
        text = self.press("9\n", r"\[9/\d+\] .*q quit $")
        self.assertLessEqual(max(map(len, text.splitlines())), 60)
        self.size(self.terminal, 40)
        text = self.until(r"\[9/\d+\] .*q quit $")
        self.assertLessEqual(max(map(len, text.splitlines())), 40)
        # Between two pages, too: the step begins again.
        self.size(self.terminal, 60, rows=12)
        first = self.until(r"\[more\] Enter go on  q quit $")
        self.size(self.terminal, 40, rows=12)
        text = self.until(r"\[more\] Enter go on  q quit $")
        self.assertEqual(text.split()[:6], first.split()[:6])
        self.assertLessEqual(max(map(len, text.splitlines())), 40)
        self.press("q", "Stopped")
        self.ends()

    def test_long_steps_come_in_pages(self):
        """No page is higher than the terminal, and no line is lost between two pages."""
        self.begin("sky")
        self.until(r"q quit $")
        whole = self.press("1\n").split("> 1\n")[-1].split("\n[1/")[0]
        self.press("q", "Stopped")
        self.ends()
        more, step = "[more] Enter go on  q quit ", r"\[1/\d+\] Enter.* q quit $"
        self.begin("sky", rows=12)
        pages = [self.until(re.escape(more) + "$")]
        while not re.search(step, pages[-1]):
            pages.append(self.press("\n", re.escape(more) + "$|" + step))
        self.assertLessEqual(max(page.count("\n") for page in pages[1:]), 12)
        self.assertGreater(len(pages), 2)
        self.assertIn(whole, "".join(pages).replace(more + "\n", ""))
        self.press("5\n", re.escape(more) + "$")
        self.press("q", "Stopped at step 5")  # a key of a page ends the lesson, too
        self.ends()

    def test_interruption_keeps_the_place(self):
        for how in ("key", signal.SIGTERM, "end of input"):
            self.begin("sky")
            self.until(r"q quit $")
            self.press("3\n", r"\[3/")
            if how == "key":
                os.write(self.terminal, b"\x03")
            elif how == "end of input":
                os.write(self.terminal, b"\x04")
            else:
                self.run.send_signal(how)
            self.until("Stopped at step 3")
            self.ends({"key": 130, "end of input": 0}.get(how, 128 + signal.SIGTERM))
            self.assertEqual(self.place(), "sky 3\n")

    def test_place_that_cannot_be_stored(self):
        self.write("state", b"a file")
        self.begin("sky")
        self.until(r"q quit $")
        self.press("3\n", r"\[3/")
        self.press("q", "Your place could not be stored: ")
        self.ends()

    def test_pipes_and_options_print_everything(self):
        whole = self.works("lesson", "sky")
        self.begin("sky", "--all-steps")
        text = self.until(r"next +--check.*\n")
        self.ends()
        self.assertEqual(text, whole)


if __name__ == "__main__":
    unittest.main()
