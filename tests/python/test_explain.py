#!/usr/bin/env python3
"""attn.explain and attn.lesson: numbers, pictures and errors."""

import base64
import copy
import html
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

from common import attn, reference
import numpy as np

SENTENCE = "Life is short, eat dessert last"
GOLDENS = os.path.join(os.environ["ATTN_TEST_DATA"], "lessons")


class Explain(unittest.TestCase):
    def test_numbers(self):
        """NumPy computes each step from the one before; a call of the library gives the last."""
        for options in (
            {},
            {"causal": True, "seed": 5},
            {"heads": 3, "qk": 5, "v": 4, "embed": 7, "scale": 0.1},
            {"scale": False},
        ):
            e = attn.explain(SENTENCE, **options)
            x, table = e["embeddings"], e["embedding_table"]
            np.testing.assert_array_equal(x, table[e["token_ids"]])
            q, k, v = e["queries"], e["keys"], e["values"]
            self.assertEqual(q.dtype, np.float32)
            w_q = e["w_q"]
            np.testing.assert_allclose(q, x @ np.swapaxes(w_q, -1, -2), atol=1e-4)
            scale = options.get("scale")
            scale = 1.0 if scale is False else scale
            causal = options.get("causal", False)
            four = [a.astype("f8").reshape((1, -1) + a.shape[-2:]) for a in (q, k, v)]
            want = reference.attention(*four, scale=scale, causal="top-left" if causal else None)
            np.testing.assert_allclose(e["weights"], want["weights"].reshape(e["weights"].shape),
                                       rtol=1e-4, atol=1e-7)
            q, k, v = (x.astype("f8") for x in (q, k, v))  # explain computes in double
            out, weights = attn.scaled_dot_product_attention(
                q, k, v, scale=scale, is_causal=causal, return_weights=True
            )
            self.assertEqual(weights.astype("f4").tobytes(), e["weights"].tobytes())
            self.assertEqual(out.astype("f4").tobytes(), e["context"].tobytes())

    def test_shown(self):
        e = attn.explain(SENTENCE, query="dessert")
        self.assertTrue("“dessert” asks" in e.text)
        self.assertEqual(str(e), e.text)
        self.assertNotIn("\n", repr(e))
        picture = xml.fromstring(e.svg())
        self.assertTrue(picture.tag.endswith("svg"))
        for word in ("Life", "dessert"):
            self.assertTrue(word in e.svg(), word)
        data = re.fullmatch(r'<img alt="[^"]*" src="data:image/svg\+xml;base64,([^"]*)">',
                            e._repr_html_())
        self.assertEqual(base64.b64decode(data[1]).decode(), e.svg())
        quoted = attn.explain('a "b" <i>')._repr_html_()
        self.assertEqual(quoted.count("<"), 1, quoted[:200])
        trace = e.json()
        self.assertEqual(trace["schema"], "attn.explain/1")
        self.assertEqual([s["name"] for s in trace["steps"]], e.steps)
        trace.clear()
        self.assertEqual(e.json()["text"], SENTENCE)
        row = "-0.1690  0.9178"  # of the table
        self.assertEqual((row in e.text, row in attn.explain(SENTENCE, full=True).text), (0, 1))
        self.assertLessEqual(max(map(len, e.text.splitlines())), 80)
        self.assertEqual(copy.deepcopy(e).text, e.text)

    def test_query_as_int(self):
        """An int is a position, also in a sentence with this number as a word."""
        sentence = "I have 2 cats and 3 dogs"
        for query, row in ((2, 1), (np.int64(3), 2), ("2", 2), ("#2", 1)):
            self.assertEqual(attn.explain(sentence, query=query).json()["query"], row)

    def test_saved(self):
        e = attn.explain("naïve – 早い")
        with tempfile.TemporaryDirectory(dir=".") as folder:
            here = pathlib.Path(folder)
            for name, want in (("a.svg", e.svg()), ("a.txt", e.text)):
                e.save(here / name)
                self.assertEqual((here / name).read_text(encoding="utf-8"), want)
            e.save(os.path.join(folder, "a.json"))
            self.assertEqual(json.loads((here / "a.json").read_text(encoding="utf-8")), e.json())
            e.save(here / "a.png")  # this build has cairo
            self.assertEqual((here / "a.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
            e.save(here / "a.html")
            page = (here / "a.html").read_text(encoding="utf-8")
            data = page.split('<script type="application/json"', 1)[1].split(">", 1)[1]
            trace = json.loads(data.split("</script>", 1)[0])["trace"]
            self.assertEqual([step["name"] for step in trace["steps"]], e.steps)
            with self.assertRaisesRegex(ValueError, "suffix must be"):
                e.save(here / "a.gif")
            with self.assertRaises(OSError):
                e.save(here / "none" / "a.svg")
            written = ["a." + end for end in ("html", "json", "png", "svg", "txt")]
            self.assertEqual(sorted(os.listdir(folder)), written)

    def test_lessons(self):
        """Every number of the five notebooks."""
        found = 0
        for name in ("dessert", "sky", "module", "numpy", "journey"):
            lesson = attn.lesson(name, gradients=name == "sky")
            with open(os.path.join(GOLDENS, name + ".json"), encoding="utf-8") as f:
                goldens = json.load(f)
            for step in set(lesson.steps) & set(goldens):
                if not isinstance(goldens[step], dict) or "data" not in goldens[step]:
                    continue
                want = np.array(goldens[step]["data"], float).reshape(goldens[step]["shape"])
                # masked scores are strings in JSON
                want = np.where(np.isnan(want), -np.inf, want)
                got = lesson[step].astype("f8").reshape(want.shape)
                got = np.where(np.isnan(got), -np.inf, got)
                # the error of PyTorch's floats: dessert's context differs by 1e-5 from that of its
                # q, k, v
                largest = abs(want[np.isfinite(want)]).max(initial=0)
                np.testing.assert_allclose(got, want, rtol=0, atol=5e-6 * largest, err_msg=step)
                found += 1
        self.assertGreater(found, 80)

    def test_lesson_shows_its_page(self):
        """A notebook gets the page that the program writes, in a frame that cannot reach it."""
        lesson = attn.lesson("sky")
        self.assertIsInstance(lesson, attn.Explanation)
        frame = re.fullmatch(r'<iframe title="([^"]*)" sandbox="([^"]*)" width="100%" '
                             r'height="\d+" style="[^"]*" srcdoc="([^"]*)"></iframe>',
                             lesson._repr_html_(), re.S)
        self.assertTrue(frame)
        self.assertIn(lesson.json()["title"], html.unescape(frame[1]))
        self.assertEqual(set(frame[2].split()), {"allow-scripts", "allow-downloads"})
        with tempfile.TemporaryDirectory(dir=".") as folder:
            path = os.path.join(folder, "sky.html")
            lesson.save(path)
            with open(path, encoding="utf-8") as f:
                self.assertEqual(html.unescape(frame[3]), f.read())
            lesson = attn.lesson("sky", gradients=True)
            lesson.save(path)
            with open(path, encoding="utf-8") as f:  # with the options of the call
                self.assertIn(html.escape(f.read()), lesson._repr_html_())
        self.assertEqual(str(lesson), lesson.text)
        self.assertNotIn("<", repr(lesson)[1:])

    def test_refused(self):
        for call, kind, says in (
            (lambda: attn.explain(""), ValueError, "no word"),
            (lambda: attn.explain(3), TypeError, "sentence is int"),
            (lambda: attn.explain("a b", embed=0), ValueError, "^embed 0: must be an integer"),
            (lambda: attn.explain("a b", query="c"), ValueError, "^query c: not a word"),
            (lambda: attn.explain("a b", seed=-1), ValueError, "^seed -1"),
            (lambda: attn.explain("a b", scale=float("nan")), ValueError, "^scale nan"),
            (lambda: attn.explain("a\udc80b"), ValueError, ""),
            (lambda: attn.lesson("nope"), ValueError, "no lesson 'nope'"),
            (lambda: attn.lesson("--all"), ValueError, "must be a lesson's name"),
            (lambda: attn.explain("a b")["weight"], KeyError, "steps: token_ids"),
        ):
            with self.assertRaisesRegex(kind, says):
                call()
        # a sentence may look like an option
        self.assertEqual(attn.explain("--help me").json()["text"], "--help me")

    def test_no_program(self):
        """Without the program, the error says what to do, and the rest of the package works."""
        code = "import attn, attn._explain as e; e._program.__globals__['_BESIDE'] = 'none'\n"
        code += "try: attn.explain('a b')\nexcept RuntimeError as x: print(x)\n"
        code += "e.main()"
        with tempfile.TemporaryDirectory(dir=".") as folder:
            library = os.path.join(folder, "libattn.so")  # without the program next to it
            os.symlink(os.environ["ATTN_LIBRARY"], library)
            env = dict(os.environ, ATTN_LIBRARY=library,
                       PYTHONPATH=os.path.dirname(os.path.dirname(attn.__file__)))
            env.pop("ATTN_PROGRAM", None)
            done = subprocess.run([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE)
        self.assertIn(b"ATTN_PROGRAM", done.stdout)
        self.assertEqual((done.returncode, done.stderr[:6]), (1, b"attn: "))


if __name__ == "__main__":
    unittest.main()
