#!/usr/bin/env python3
# timeout: 1200
"""The page's engine: attention of the C library in WebAssembly, or JavaScript without it; and the
check of the trace's numbers. Times are printed but not tested."""

import json
import os
import re
import subprocess
import sys
import types
import unittest
from pathlib import Path

import numpy as np

from browser import Keys, PageTest, softmax, tensors
import lesson_code  # browser has set the path

SOURCE, BUILD = Path(os.environ["ATTN_SOURCE"]), Path(os.environ["ATTN_BUILD"])
PAGE = SOURCE / "kit" / "explain" / "page"
OWN = "the engine’s own code (WebAssembly), double precision"
SCRIPT = "JavaScript, double precision"

# Calls of every kind with their results by `engine` and by the page's own attend().
BOTH = """
    return arguments[0].map(c => {
        const call = {...c};
        for (const name of ["q", "k", "v", "scores"])
            if (c[name]) call[name] = Float64Array.from(c[name], x => x === null ? -Infinity : x);
        call.hidden = c.hidden && Uint8Array.from(c.hidden);
        const text = r => Object.fromEntries(["raw", "scaled", "masked", "weights", "sums",
            "context"].map(n => [n, r[n] && Array.from(r[n], String)]));
        return [text(attn.engine.attend(call)), text(attn.attend(call))];
    });"""


def numbers(texts):
    return np.array([float(x.replace("Infinity", "inf").replace("NaN", "nan")) for x in texts])


def relative(got, want):
    """The largest difference relative to the largest value."""
    return abs(got - want).max() / abs(want).max()


def assembled(folder, module):
    """The parts of the page before and after the trace, as cmake/EmbedPage.cmake writes them."""
    to = os.path.join(folder, "assembled.c")
    subprocess.run(["cmake", f"-DPAGE={PAGE}", f"-DMODULE={module}", f"-DOUT={to}", "-P",
                    SOURCE / "cmake" / "EmbedPage.cmake"], check=True)
    return arrays(to)


def arrays(path):
    """The two arrays of bytes of a page.c."""
    with open(path) as f:
        parts = re.findall(r"const char page_\w+\[\] = \{(.*?)0\};", f.read(), re.S)
    return [bytes(int(x, 16) for x in re.findall(r"x([0-9a-f]{2})", p)) for p in parts]


class EngineTest(PageTest):
    def engine(self):
        self.until("return attn.library.state !== 'starting'")
        return self.text("#engine")

    def open_with(self, script, path):
        """Opens a page in which this JavaScript runs before the page's scripts."""
        added = self.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument",
                                             {"source": script})
        try:
            self.load(path)
        finally:
            self.browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)

    def check(self):
        """Runs the check with the keyboard. Returns its message."""
        self.js("document.getElementById('matrix-more').open = true;"
                "document.getElementById('save-csv').focus()")
        self.keys(Keys.TAB)
        self.assertEqual(self.js("return document.activeElement.id"), "run-check")
        self.keys(Keys.ENTER)
        return self.text("#check-said")

    def change(self, name, alter):
        """The open page, with other numbers in the step of this name."""
        before, rest = self.bytes("page.html").decode().split('id="data">', 1)
        data, after = rest.split("</script>", 1)
        page = json.loads(data)
        step = next(s for s in page["trace"]["steps"] if s["name"] == name)
        tensor = step["tensor"]
        tensor["data"] = alter(lesson_code.numbers(step).ravel().tolist())
        del tensor["f32"]
        self.write("page.html", f'{before}id="data">{json.dumps(page)}</script>{after}'.encode())
        self.load(self.path("page.html"))


def has_module():
    """Whether pages of this build must have a module."""
    if os.environ["ATTN_PAGE_WASM"] == "OFF":
        return False
    return subprocess.run(["sh", PAGE / "wasm" / "build.sh"],
                          stdout=subprocess.DEVNULL).returncode == 0


@unittest.skipUnless(has_module(), "no clang for wasm32: pages of this build have no module")
class Module(EngineTest):
    def calls(self):
        """Shapes, masks, factors, and the use of only the first numbers of a vector: every setting
        of the labs."""
        rng = np.random.default_rng(3)
        for T, S, D, Dv in ((1, 1, 1, 1), (6, 6, 24, 28), (5, 9, 3, 2), (1, 70, 8, 1),
                            (33, 33, 65, 5), (70, 70, 16, 130), (130, 300, 64, 64)):
            q, k, v = (rng.standard_normal((n, d)).astype(np.float32).astype(float)
                       for n, d in ((T, D), (S, D), (S, Dv)))
            causal = np.arange(S) > np.arange(T)[:, None]
            some = rng.random((T, S)) < 0.4
            some[0] = True  # sees no key
            for hidden in (None, causal, some):
                for masking in ("before", "after", "renormalised"):
                    yield q, k, v, hidden, masking, max(1, D // 3), 1 / np.sqrt(D), 2.5
            yield q, k, v, None, "before", D, 300.0, 1.0  # one-hot
            yield q, k, v, causal, "before", D, 0.0, 1.0  # an average

    def test_equals_javascript_and_numpy(self):
        self.explain()
        self.assertEqual(self.engine(), OWN)
        given, want = [], []
        for q, k, v, hidden, masking, D, scale, temperature in self.calls():
            (T, width), (S, Dv) = q.shape, v.shape
            call = {"T": T, "S": S, "D": D, "width": width, "Dv": Dv, "scale": scale,
                    "temperature": temperature, "masking": masking, "v": v.ravel().tolist(),
                    "hidden": None if hidden is None else hidden.ravel().astype(int).tolist()}
            hides = np.zeros((T, S), bool) if hidden is None else hidden
            raw = q[:, :D] @ k[:, :D].T
            scaled = raw * scale / temperature
            masked = np.where(hides, -np.inf, scaled)
            with np.errstate(invalid="ignore"):
                weights = np.nan_to_num(softmax(masked if masking == "before" else scaled))
            weights = np.where(hides, 0, weights)
            if masking == "renormalised":
                weights = weights / np.maximum(weights.sum(1, keepdims=True), 1e-300)
            numpy = {"raw": raw, "scaled": scaled, "masked": masked, "weights": weights,
                     "sums": weights.sum(1), "context": weights @ v}
            vectors = {"q": q.ravel().tolist(), "k": k.ravel().tolist()}
            given += [{**call, **vectors},
                      # and from given scores
                      {**call, "scores": [None if s == -np.inf else s for s in (raw * scale).flat]}]
            want += [numpy, {**numpy, "raw": None}]
        count = 0
        for at in range(0, len(given), 20):
            for (own, script), numpy in zip(self.js(BOTH, given[at:at + 20]), want[at:at + 20]):
                for name, expected in numpy.items():
                    if expected is None:
                        self.assertIsNone(own[name])
                        continue
                    x, y, z = numbers(own[name]), numbers(script[name]), expected.ravel()
                    same = np.isinf(z)
                    np.testing.assert_array_equal(x[same], z[same])
                    np.testing.assert_allclose(x[~same], z[~same], rtol=0,
                                               atol=1e-12 * max(1, abs(z[~same]).max(initial=0)))
                    np.testing.assert_allclose(x[~same], y[~same], rtol=0,
                                               atol=1e-12 * max(1, abs(y[~same]).max(initial=0)))
                    count += 1
        self.assertGreater(count, 600)
        self.assertEqual(self.js("return attn.library.state"), "ready")

    def test_equals_the_trace(self):
        """With default settings the labs compute the library's floats to 1e-6."""
        for args in ((), ("--causal",), ("--heads", "3", "--causal", "--qk", "7", "--v", "5")):
            t = tensors(self.explain("--scale", "0.02", *args))
            q, k, v = (t[n].reshape(-1, *t[n].shape[-2:]) for n in ("queries", "keys", "values"))
            heads = len(q)
            weights, context = (t[n].reshape(heads, 6, -1) for n in ("weights", "context"))
            hidden = (np.arange(6) > np.arange(6)[:, None]).ravel().astype(int).tolist()
            for h in range(heads):
                own, _ = self.js(BOTH, [{
                    "T": 6, "S": 6, "D": q.shape[2], "Dv": v.shape[2], "scale": 0.02,
                    "q": q[h].ravel().tolist(), "k": k[h].ravel().tolist(),
                    "v": v[h].ravel().tolist(), "hidden": hidden if "--causal" in args else None,
                }])[0]
                self.assertLess(relative(numbers(own["weights"]), weights[h].ravel()), 1e-6)
                self.assertLess(relative(numbers(own["context"]), context[h].ravel()), 1e-6)

    def test_what_the_library_refuses_javascript_computes(self):
        self.explain()
        call = {"T": 2, "S": 2, "D": 1, "Dv": 1, "q": [1, 2], "k": [1, 0],
                "v": [1, 2]}
        got = self.js("arguments[0][0].scale = Infinity;" + BOTH, [call])
        self.assertEqual(got[0][0], got[0][1])
        self.assertEqual(self.engine(), OWN)

    def test_labs_go_through_it(self):
        t = tensors(self.explain("--scale", "0.02"))
        self.assertEqual(self.engine(), OWN)  # the module is ready
        self.js("const own = attn.library.exports.attend; attn.calls = 0;"
                "attn.library.exports = {...attn.library.exports, attend(...x) {"
                "  attn.calls++; return own(...x); }}")

        def calls():
            return self.js("const n = attn.calls; attn.calls = 0; return n")

        self.assertEqual(calls(), 0)
        for change in (lambda: self.slide("#lab-t", 0.5), lambda: self.slide("#lab-d", 9),
                       lambda: self.click("#lab-scale"), lambda: self.select("#lab-mask", "causal"),
                       lambda: self.click("#lab-shuffle")):
            change()
            self.assertGreater(calls(), 0)
        # With the same vectors and another temperature the scores are not computed again.
        self.click("#lab-reset")
        self.slide("#lab-t", 1)
        calls()
        self.slide("#lab-t", 0.7)
        self.assertEqual(calls(), 1)
        scores = t["queries"] @ t["keys"].T * 0.02 / self.js(
            "return attn.page.state.settings.temperature")
        np.testing.assert_allclose(self.shown(), softmax(scores), atol=1e-8)

    def test_until_the_module_is_ready(self):
        """JavaScript computes, and the sentence cannot be changed yet."""
        self.explain()
        self.open_with("const make = WebAssembly.instantiate; WebAssembly.instantiate = (...all) =>"
                       "new Promise(go => { globalThis.letGo = go; }).then(() => make(...all));",
                       self.path("page.html"))
        self.until("return globalThis.letGo !== undefined")
        self.assertEqual(self.text("#engine"), SCRIPT)
        self.assertFalse(self.one("#own-text").is_enabled())
        self.assertIn(SCRIPT, self.check())
        self.js("letGo()")
        self.assertEqual(self.engine(), OWN)
        self.assertTrue(self.one("#own-text").is_enabled())
        self.assertIn(OWN, self.check())

    def test_times(self):
        """One head of 512 words, 64 numbers each, in this browser: medians."""
        self.explain()
        found = self.js("""
            const T = 512, D = 64, x = n => Float64Array.from({length: n}, () =>
                Math.fround(2 * Math.random() - 1));
            const call = {q: x(T * D), k: x(T * D), v: x(T * D), T, S: T, D, Dv: D, scale: 0.125};
            const time = (f, each) => {
                const all = [];
                for (let i = 0; i < 15; i++) {
                    each(i);
                    const before = performance.now();
                    f(call);
                    all.push(performance.now() - before);
                }
                return all.sort((a, b) => a - b)[7];
            };
            return {library: time(attn.engine.attend, () => { call.q = x(T * D); }),
                    "library, temperature": time(attn.engine.attend,
                                                 i => { call.temperature = 1 + i; }),
                    javascript: time(attn.attend, () => { call.q = x(T * D); })};""")
        print("\n512 words, D = 64, ms:", {k: round(v, 1) for k, v in found.items()})

    def test_the_module_is_small(self):
        self.assertLess((BUILD / "page.wasm").stat().st_size, 490000)
        self.assertLess((BUILD / "page.wasm.base64").stat().st_size, 311000)

    def test_a_module_that_fails_is_given_up(self):
        """JavaScript continues, and the page says so."""
        t = tensors(self.explain("--scale", "0.02"))
        self.assertEqual(self.engine(), OWN)
        self.js("attn.library.exports = {...attn.library.exports, room() {"
                "throw new WebAssembly.RuntimeError('out of memory'); }}")
        self.slide("#lab-t", 1)
        np.testing.assert_allclose(self.shown(), softmax(t["queries"] @ t["keys"].T * 0.002),
                                   atol=1e-8)
        self.assertTrue(self.engine().startswith(SCRIPT))


class Without(EngineTest):
    def falls_back(self, name):
        """JavaScript computes, the page says so, and everything works."""
        self.assertEqual(self.engine(), name)
        self.slide("#lab-t", 1)
        self.assertIn("Passed", self.check())
        self.assertIn(name, self.text("#check-said"))
        t = tensors(json.loads(self.bytes("trace.json")))
        self.until("return attn.page.state.settings.temperature === 10")
        np.testing.assert_allclose(self.shown(), softmax(t["queries"] @ t["keys"].T * 0.002),
                                   atol=1e-8)

    @unittest.skipUnless(has_module(), "pages of this build have no module to refuse")
    def test_without_webassembly(self):
        self.explain("--scale", "0.02")
        refused = "this browser refused the engine’s WebAssembly"
        for script, why in (
            ("delete globalThis.WebAssembly", "this browser has no WebAssembly"),
            ("delete globalThis.DecompressionStream", "this browser has no DecompressionStream"),
            ("WebAssembly.compile = undefined", refused),
            ("WebAssembly.compile = () => Promise.reject(new WebAssembly.CompileError('no SIMD'))",
             refused),
        ):
            self.open_with(script, self.path("page.html"))
            self.until("return attn.library.state === 'refused'")
            self.falls_back(f"{SCRIPT}: {why}")
            self.assertIn(why, self.text("#own-why"))

    def test_a_build_without_clang(self):
        """The page of a build without a clang for wasm32."""
        self.explain("--scale", "0.02")
        before, after = assembled(self.folder, "")
        page = self.bytes("page.html").decode()
        data = page.split('id="data">', 1)[1].split("</script>", 1)[0]
        self.write("page.html", before + data.encode() + after)
        self.assertNotIn(b"wasm-unsafe-eval", before)
        self.load(self.path("page.html"))
        self.falls_back(SCRIPT + ": this build has no WebAssembly")
        self.assertIn("cannot be changed in this page: this build has no WebAssembly",
                      self.text("#own-why"))
        self.assertEqual(self.every("#own-body textarea, #own-body input"), [])

    def test_pages_of_cmake_and_of_the_package_are_the_same(self):
        """Byte for byte, with the module and without."""
        sys.path.insert(0, str(SOURCE / "python"))
        import backend

        for found in (True, False):
            module = BUILD / "page.wasm.base64" if found and has_module() else ""
            backend.page_module = lambda c, build: Path(module).read_text() if module else ""
            where = types.SimpleNamespace(root=str(SOURCE), folder=self.folder)
            self.assertEqual(arrays(backend.page_source(where)), assembled(self.folder, module))

    def test_the_package_finds_no_clang(self):
        code = ("import sys, types, backend; c = types.SimpleNamespace(folder=sys.argv[1]);"
                "assert backend.page_module(c, sys.argv[2]) == ''")
        os.mkdir(self.path("bin"))
        for name in ("sh", "mktemp", "rm"):
            os.symlink(subprocess.check_output(["sh", "-c", "command -v " + name]).decode().strip(),
                       self.path("bin/" + name))
        done = subprocess.run([sys.executable, "-c", code, self.folder, PAGE / "wasm" / "build.sh"],
                              check=True, stderr=subprocess.PIPE,
                              env={"PATH": self.path("bin"), "PYTHONPATH": str(SOURCE / "python")})
        self.assertIn(b"compute by JavaScript", done.stderr)

    def test_cmake_finds_no_clang(self):
        """Then pages have no module. It is an error only with ATTN_PAGE_WASM=ON."""
        os.mkdir(self.path("bin"))
        for name in ["clang", *(f"clang-{n}" for n in range(14, 30))]:
            self.write("bin/" + name, b"#!/bin/sh\nexit 1\n")
            os.chmod(self.path("bin/" + name), 0o755)
        for asked, code, says in (("AUTO", 0, "Pages will compute by JavaScript"), ("OFF", 0, ""),
                                  ("ON", 1, "ATTN_PAGE_WASM is ON, but no clang here compiles")):
            done = subprocess.run(
                ["cmake", "-S", SOURCE, "-B", self.path("b"), "-DATTN_BUILD_TESTS=OFF",
                 f"-DATTN_PAGE_WASM={asked}", f"-DCMAKE_C_COMPILER={os.environ['CC']}"],
                env={**os.environ, "PATH": self.path("bin") + ":" + os.environ["PATH"]},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            said = " ".join(done.stdout.decode().split())
            self.assertEqual(done.returncode, code, said)
            self.assertIn(says, said)
            self.assertNotIn("WebAssembly", said)


# The maps of the trained heads, which a sentence of up to 32 words has, too.
TRAINED = ["previous", "followed", "same"]


class Check(EngineTest):
    def test_by_keyboard_and_aloud(self):
        self.explain("--scale", "0.02", "--causal")
        self.assertEqual(self.text("#check-said"), "")
        self.assertEqual(self.one("#check-said").get_attribute("role"), "status")
        said = self.check()
        passed = f"Passed: {3 + len(TRAINED)} matrices, recomputed by "
        self.assertTrue(said.startswith(passed), said)
        self.assertIn("equal to 1e-6", said)
        self.assertEqual(self.js("return document.activeElement.id"), "run-check")
        self.keys(Keys.TAB, Keys.ENTER)  # the table
        rows = self.js("return [...document.querySelectorAll('#check-each tbody tr')]"
                       ".map(r => [...r.children].map(c => c.textContent))")
        self.assertEqual([r[0] for r in rows], ["scores", "weights", "context", *TRAINED])
        for row in rows:
            self.assertLess(float(row[1]), 1e-6)
            self.assertEqual(row[2:], ["1e-06", "equal"])
        # Labs do not change the check, because it is about the trace.
        self.slide("#lab-t", 1)
        self.assertEqual(self.check(), said)

    def test_every_lesson_passes(self):
        for name in ("dessert", "sky", "module", "numpy", "journey"):
            self.lesson(name)
            self.assertTrue(self.check().startswith("Passed: "), name)
        said = self.check()
        self.assertNotIn("Of ", said)
        self.lesson("module")
        self.assertNotIn("Of ", self.check())
        self.open("train", "--steps", "30", "--task", "previous-token")
        self.assertTrue(self.check().startswith("Passed: "))

    def test_large_scores(self):
        """Scores of several hundred: their last bit as a float changes a weight by more than
        1e-6."""
        words = " ".join("abcdefghijklmnopqrstuvwxyz")
        self.explain("--scale", "1", "--qk", "64", "--heads", "4", "--seed", "3", text=words)
        t = tensors(json.loads(self.bytes("trace.json")))
        q, k = t["queries"].reshape(4, 26, -1), t["keys"].reshape(4, 26, -1)
        self.assertGreater(abs(q @ k.swapaxes(1, 2)).max((1, 2)).min(), 100)
        said = self.check()
        self.assertTrue(said.startswith(f"Passed: {12 + len(TRAINED)} matrices"), said)
        self.assertIn("equal to 1e-6", said)
        for found in self.js("return attn.checkTrace(attn.page.trace).checks"):
            self.assertEqual(found["limit"], 1e-6)

    def test_it_can_fail(self):
        """One number of one matrix is changed in its fifth digit, or by more."""
        for step, by in (("weights", 2e-6), ("weights", -0.3), ("context", 1e-3),
                         ("scores", 0.5)):
            trace = tensors(self.explain("--scale", "0.02", "--heads", "2"))[step]
            at = abs(trace).argmax()
            self.change(step, lambda x: x[:at] + [x[at] + by * abs(trace).max()] + x[at + 1:])
            said = self.check()
            self.assertTrue(said.startswith(f"Failed: 1 of {6 + len(TRAINED)} matrices"), said)
            head = at // (trace.size // 2) + 1
            self.assertIn(f"in {step}, head {head}, is", said)
            self.assertIn("failed", self.one("#check-said").get_attribute("class"))
            self.assertIn("not equal", self.text("#check-each"))

    def test_a_hidden_key_that_is_seen_fails(self):
        self.explain("--scale", "0.02", "--causal")
        self.change("weights", lambda x: x[:1] + [x[1] + 1e-4] + x[2:])
        self.assertTrue(self.check().startswith(f"Failed: 1 of {3 + len(TRAINED)} matrices"))

    def large(self, *sizes):
        program = os.path.join(os.environ["ATTN_BUILD"], "tests", "large_page")
        subprocess.run([program, *map(str, sizes)], cwd=self.folder, check=True,
                       stdout=subprocess.DEVNULL)
        self.load(self.path("page.html"))

    def test_vectors_of_11_bits(self):
        """A page with so many numbers that its vectors are 16-bit floats, but with so few words
        that its weights are the library's. The check names the limits of the comparison."""
        self.large(16, 24, 16, 64, 16, 0)
        self.assertTrue(self.js("return attn.page.trace.blocks[0].q.rounded"))
        said = self.check()
        self.assertTrue(said.startswith("Passed, but not to 1e-6: 384 matrices"), said)
        self.assertIn("this page has queries, keys and values with 11 bits", said)
        found = self.js("return attn.checkTrace(attn.page.trace).checks")
        for one in found:
            self.assertGreater(one["error"], 1e-5)  # the difference is not 0
            self.assertLess(one["limit"], 0.1)  # but the limit is tight
        name = self.js("return attn.page.trace.blocks[3].name")
        self.change(name, lambda x: [x[0] + 0.2] + x[1:])
        self.assertTrue(self.check().startswith("Failed: 1 of 384 matrices"))

    def test_nothing_to_compare(self):
        """For large steps the page does not have the library's numbers."""
        self.large(100, 1, 2, 32, 2, 0)
        self.assertEqual(self.check(), "Nothing was checked. Of layer_1_weights the trace has "
                         "either no operands or no numbers of its own: nothing to compare.")


if __name__ == "__main__":
    unittest.main()
