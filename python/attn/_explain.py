"""attn.explain and attn.lesson: the output of the program attn as text, numbers and pictures."""

from __future__ import annotations

import base64
import html
import json
import numbers
import os
import subprocess
import sys
import tempfile
from typing import Any, Dict, List, Optional, Union

import numpy as np

from . import _library

_BESIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "attn-program")
_FRAME_HEIGHT = 900  # pixels
_DTYPES = {"f64": np.float64, "f32": np.float32, "i64": np.int64, "bool": np.bool_}


def _program() -> str:
    """The path of the program: ATTN_PROGRAM, the package's own, or the one next to the library."""
    built = os.path.join(os.path.dirname(_library.path), "attn")
    for path in (os.environ.get("ATTN_PROGRAM"), _BESIDE, built):
        if not path or not os.path.isfile(path):
            continue
        if not os.access(path, os.X_OK):  # some installers lose the permission
            os.chmod(path, os.stat(path).st_mode | 0o111)
        return path
    raise RuntimeError(
        "this package was built without the program attn, which explanations need; install "
        "libjansson-dev and libutf8proc-dev and then the package again, or set "
        "ATTN_PROGRAM to the path of the program"
    )


def main() -> None:
    """The command `attn`."""
    try:
        path = _program()
    except RuntimeError as error:
        sys.exit("attn: %s" % error)
    os.execv(path, ["attn", *sys.argv[1:]])


_ERRORS = {2: ValueError, 3: ValueError, 4: MemoryError}


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as f:
        return f.read()


class Explanation:
    """Self-attention step by step. Displays itself as a heat-map in a notebook, prints as text.

        e = attn.explain("Life is short, eat dessert last")
        e.text                  every step, with its numbers
        e["weights"]            an array, of any step: [T,T], or [heads,T,T]
        e.steps                 their names
        e.svg(), e.json()       the picture; all of it as a dict (schema attn.explain/1)
        e.save("page.html")     a page to explore; .svg, .json or .txt; .png and .pdf if the program
                                was built with cairo, as `make install` does

    Every number is computed by the library.
    """

    def __init__(self, command: List[str], text: Optional[str] = None) -> None:
        self._command, self._input = command, text
        with tempfile.TemporaryDirectory() as folder:
            files = [os.path.join(folder, "e" + end) for end in (".json", ".svg")]
            self._text = self._run([])  # if it writes files, it prints only their names
            self._run(files)
            self._json, self._svg = (_read(file) for file in files)
        self._trace: Dict[str, Any] = json.loads(self._json)
        self._steps = {step["name"]: step for step in self._trace["steps"]}

    def _run(self, files: List[str]) -> str:
        """Runs the program. Returns its output; with files, it writes these and prints their
        names."""
        outputs = [word for file in files for word in ("-o", file)]
        done = subprocess.run(
            [_program(), *self._command, "--color=never", *outputs],
            input=(self._input or "").encode("utf-8"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(os.environ, COLUMNS="80"),
        )
        if done.returncode:
            message = done.stderr.decode("utf-8", "replace").strip()
            message = message.split(": ", 1)[-1]
            if message.startswith("--"):  # an option has the name of an argument of this module
                message = message[2:]
            message = message or "the program attn ended with %d" % done.returncode
            raise _ERRORS.get(done.returncode, RuntimeError)(message)
        return done.stdout.decode("utf-8")

    @property
    def text(self) -> str:
        """Every step with its numbers, 80 columns wide."""
        return self._text

    @property
    def steps(self) -> List[str]:
        """The names of the steps, in order."""
        return list(self._steps)

    def __getitem__(self, step: str) -> np.ndarray:
        """A copy of the step's numbers."""
        if step not in self._steps:
            raise KeyError("no step %r; steps: %s" % (step, " ".join(self._steps)))
        tensor = self._steps[step]["tensor"]
        data = [np.nan if x is None else x for x in tensor["data"]]
        return np.array(data, _DTYPES[tensor["dtype"]]).reshape(tensor["shape"])

    def svg(self) -> str:
        """The heat-map of the weights; rows are queries, columns are keys."""
        return self._svg

    def json(self) -> Dict[str, Any]:
        """The whole trace as a dict, which is new at each call."""
        return dict(json.loads(self._json))

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes a file in the format of its suffix. Raises ValueError for an unknown suffix."""
        name = os.path.abspath(os.fspath(path))
        suffix = os.path.splitext(name)[1]
        written = {".svg": self._svg, ".json": self._json, ".txt": self._text}
        if suffix in written:
            with open(name, "w", encoding="utf-8") as f:
                f.write(written[suffix])
        elif suffix in (".html", ".png", ".pdf"):
            self._run([name])
        else:
            raise ValueError(
                "%s: the suffix must be .html, .svg, .json, .txt, .png or .pdf" % (os.fspath(path),)
            )

    def _repr_html_(self) -> str:
        # As an image, so that its styles and ids do not interfere with those of the notebook.
        data = base64.b64encode(self._svg.encode("utf-8")).decode("ascii")
        title = html.escape(self._trace["title"], quote=True)
        source = "data:image/svg+xml;base64," + data
        return '<img alt="attention weights: %s" src="%s">' % (title, source)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "<attn: %s; %s>" % (self._trace["title"], self._trace["setting"])


class Lesson(Explanation):
    """A lesson: an Explanation that a notebook shows as its interactive page."""

    def _repr_html_(self) -> str:
        # In a frame, so that its styles and ids do not interfere with those of the notebook. The
        # page may run its script and save pictures; the notebook's own data is out of its reach.
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "lesson.html")
            self._run([path])
            page = _read(path)
        title = html.escape(self._trace["title"], quote=True)
        return (
            '<iframe title="attn: %s" sandbox="allow-scripts allow-downloads" width="100%%" '
            'height="%d" style="border: 1px solid #ccc" srcdoc="%s"></iframe>'
            % (title, _FRAME_HEIGHT, html.escape(page, quote=True))
        )


def _options(**values: Any) -> List[str]:
    words = []
    for name, value in values.items():
        if value is True:
            words.append("--" + name.replace("_", "-"))
        elif name == "query" and isinstance(value, numbers.Integral):
            words.append("--query=#%d" % value)  # not the word that is this number
        elif value is not None and value is not False:
            words.append("--%s=%s" % (name.replace("_", "-"), value))
    return words


def explain(
    sentence: str,
    *,
    seed: int = 123,
    embed: int = 16,
    qk: int = 24,
    v: int = 28,
    heads: int = 1,
    causal: bool = False,
    scale: Union[float, bool, None] = None,
    query: Union[str, int, None] = None,
    full: bool = False,
) -> Explanation:
    """Self-attention on a sentence with random weights, the same as after torch.manual_seed(seed).

    embed, qk and v are the sizes of an embedding, of a query and key, and of a value. scale
    multiplies the scores; None: 1/sqrt(qk), False: no scaling. query is the word (or, as an
    int, its number from 1) whose row is computed in detail. full: the text has every matrix. The
    sentence is split at white space.

    Raises ValueError with the program's message, RuntimeError if the package has no program.
    """
    if not isinstance(sentence, str):
        raise TypeError("sentence is %s; it must be str" % type(sentence).__name__)
    words = _options(seed=seed, embed=embed, qk=qk, v=v, heads=heads, causal=causal, full=full)
    words += _options(query=query, no_scale=scale is False)
    if scale is not None and not isinstance(scale, bool):
        words += _options(scale=repr(float(scale)))
    return Explanation(["explain", *words, "-"], sentence)


def lesson(
    name: str, *, query: Union[str, int, None] = None, full: bool = False, gradients: bool = False
) -> Lesson:
    """One of the five lessons, which repeat notebooks with their own numbers: "dessert", "sky",
    "module", "numpy", "journey". gradients: continue "sky" with the gradients of its matrices.

    A notebook shows the lesson's interactive page; print(...) of it writes every step."""
    if not isinstance(name, str) or name.startswith("-"):
        raise ValueError("name is %r; it must be a lesson's name" % (name,))
    words = _options(query=query, full=full, gradients=gradients)
    return Lesson(["lesson", name, *words])
