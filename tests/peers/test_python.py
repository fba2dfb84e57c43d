"""The Python package with packages beyond NumPy: its tests again with bfloat16, the tour in
Jupyter, and its annotations in a type checker."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def environment():
    build = Path(os.environ["ATTN_BUILD"])
    return dict(
        os.environ,
        ATTN_LIBRARY=os.environ.get("ATTN_LIBRARY", str(build / "libattn.so")),
        ATTN_PROGRAM=os.environ["ATTN"],
        ATTN_SOURCE=str(ROOT),
        ATTN_TEST_DATA=str(ROOT / "tests" / "data"),
        PYTHONPATH=str(ROOT / "python"),
    )


class Package(unittest.TestCase):
    def run_python(self, *words):
        done = subprocess.run(
            [sys.executable, *map(str, words)], env=environment(), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout.decode()[-3000:])
        return done.stdout.decode()

    def test_with_bfloat16(self):
        for name in ("test_sdpa", "test_arguments", "test_properties"):
            said = self.run_python(ROOT / "tests" / "python" / (name + ".py"))
            self.assertNotIn("not run", said)

    def test_types(self):
        """All modules except those for packages without types."""
        said = self.run_python("-m", "mypy", "--strict", "--cache-dir", os.devnull,
                               "--exclude", r"/_?(onnx|torch)\w*\.py$", ROOT / "python" / "attn")
        self.assertIn("no issues found", said)

    def test_tour(self):
        """Jupyter runs docs/tour.ipynb and gets pictures to show."""
        code = """
import json, sys
import nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
nbformat.validate(notebook)
NotebookClient(notebook, timeout=300, resources={"metadata": {"path": sys.argv[2]}}).execute()
nbformat.write(notebook, sys.argv[3])
"""
        with tempfile.TemporaryDirectory(dir=".") as folder:
            path = Path(folder) / "run.ipynb"
            self.run_python("-c", code, ROOT / "docs" / "tour.ipynb", ROOT / "docs", path)
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        outputs = [o for cell in cells if cell["cell_type"] == "code" for o in cell["outputs"]]
        pages = ["".join(o["data"].get("text/html", "")) for o in outputs if "data" in o]
        self.assertGreaterEqual(sum("image/svg+xml" in page for page in pages), 6)
        printed = "".join("".join(o["text"]) for o in outputs if o["output_type"] == "stream")
        self.assertIn("numbers are those of the notebooks", printed)


if __name__ == "__main__":
    unittest.main()
