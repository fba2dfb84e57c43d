"""axe-core's rules of accessibility on every kind of page: tests/page/axe.py, by Debian's Python,
which has selenium."""

import os
import subprocess
import unittest
from pathlib import Path

import axe_core_python

from cli import CliTest

ROOT = Path(__file__).resolve().parents[2]


class Axe(CliTest):
    def test_no_rule_is_violated(self):
        rules = Path(axe_core_python.__file__).with_name("axe.min.js")
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        env.update(ATTN_SOURCE=str(ROOT), ATTN_PAGE_WASM="ON",
                   ATTN_TEST_DATA=str(ROOT / "tests" / "data"))
        done = subprocess.run(["/usr/bin/python3", ROOT / "tests" / "page" / "axe.py", rules],
                              cwd=self.folder, env=env, capture_output=True, text=True)
        if "not run: " in done.stdout:
            self.skipTest(done.stdout.strip())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("\nOK\n", done.stderr)


if __name__ == "__main__":
    unittest.main()
