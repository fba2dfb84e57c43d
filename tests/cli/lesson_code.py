"""The code blocks of the lessons' scripts: read from kit/explain/lessons, run, and compared."""

import base64
import json
import re
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
LESSONS = ["sky", "journey", "numpy", "dessert", "module"]


def script(name):
    return (ROOT / "kit/explain/lessons" / (name + ".lesson")).read_text(encoding="utf-8")


def blocks(name, language):
    """Yields (step, variable, code) of each block; all blocks of a lesson make one program."""
    step = None
    lines = script(name).splitlines() + ["end"]
    for i, line in enumerate(lines):
        keyword, _, rest = line.partition(" ")
        if keyword in ("step", "also"):
            step = rest.strip()
        elif keyword == language:
            code = []
            for text in lines[i + 1 :]:
                if text and not text.startswith(" "):
                    break
                code.append(text)
            indent = min(len(t) - len(t.lstrip()) for t in code if t.strip())
            yield step, rest.strip(), "\n".join(t[indent:] for t in code)


def c_blocks(name):
    """Yields (step, code) of each block of the lesson's C program."""
    program = (ROOT / "examples/lessons" / (name + ".c")).read_text(encoding="utf-8")
    parts = re.split(r"(?m)^ */\* \[(.*)\] \*/\n", program)
    yield from ((step, code) for step, code in zip(parts[1::2], parts[2::2]) if step)


def numbers(step):
    """The values of a step in the JSON of a trace, which writes infinities as strings. A page has
    floats as base64."""
    shape = step["tensor"]["shape"]
    if "f32" in step["tensor"]:
        floats = np.frombuffer(base64.b64decode(step["tensor"]["f32"]), "<f4")
        return floats.astype(float).reshape(shape)

    def flat(x):
        return [z for y in x for z in flat(y)] if isinstance(x, list) else [float(x)]

    return np.array(flat(step["tensor"]["data"]), dtype=float).reshape(shape)


def run(name, language, trace_json, expect_near):
    """Runs the blocks one after the other; each variable must equal its step. Returns how many."""
    steps = {s["name"]: numbers(s) for s in json.loads(trace_json)["steps"]}
    names, compared = {}, 0
    for step, variable, code in blocks(name, language):
        exec(compile(code, "%s.lesson, %s of step %s" % (name, language, step), "exec"), names)
        if step.startswith("@") or not variable:
            continue
        got = names[variable]
        got = got.detach().numpy() if hasattr(got, "detach") else got
        got, want = np.asarray(got, dtype=float), steps[step]
        where = "%s, step %s: %s in %s" % (name, step, variable, language)
        if got.size != want.size:
            raise AssertionError("%s has shape %s, not %s" % (where, got.shape, want.shape))
        infinite = np.isinf(want)
        got = got.reshape(want.shape)
        if not np.array_equal(got[infinite], want[infinite]):
            raise AssertionError(where + ": other infinities")
        size = abs(want[~infinite]).max(initial=0)
        expect_near(got[~infinite], want[~infinite], 5e-6 * max(size, 1e-3), where)
        compared += 1
    return compared


def printed_code(text, language):
    """The code that `attn explain --steps --code LANGUAGE` prints, as one program."""
    code = "\n".join(re.findall(r"(?m)^   With %s:\n((?:     .*\n)+)" % language, text))
    return re.sub(r"(?m)^     ", "", code)


def terms(name):
    """The terms that a script explains: *softmax*."""
    prose = re.sub(r"(?m)^(notebook|numpy|torch)\b.*\n((?: .*)?\n)*", "", script(name))
    return {re.sub(r"\s+", " ", t).lower() for t in re.findall(r"\*([A-Za-z][^*]*?)\*", prose)}
