"""`python3 -m attn.onnx`: ONNX's own backend tests of the operators that attn.onnx computes.

The test runner of the package onnx (onnx.backend.test) creates the cases, runs them through
attn.onnx.Backend and compares the results, with its own tolerances. This module chooses the cases
and counts them. It leaves out the cases named _expanded, in which other nodes replace the Attention
node.
"""

from __future__ import annotations

import argparse
import re
import sys
import unittest
import warnings
from typing import Any, Dict, List, Optional

import onnx

import attn
import attn.onnx

FAMILIES = ("test_attention", "test_flexattention")


class _Result(unittest.TestResult):
    """The outcome of each case by its name: "" if it passed, otherwise the reason."""

    def __init__(self) -> None:
        super().__init__()
        self.said: Dict[str, str] = {}

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.said[test.id().split(".")[-1]] = ""

    def _not(self, test: unittest.TestCase, what: str, error: Any) -> None:
        line = " ".join(str(error[1]).split())
        self.said[test.id().split(".")[-1]] = "%s: %s: %s" % (what, error[0].__name__, line)

    def addError(self, test: unittest.TestCase, error: Any) -> None:
        refused = issubclass(error[0], NotImplementedError)
        self._not(test, "refused" if refused else "error", error)

    def addFailure(self, test: unittest.TestCase, error: Any) -> None:
        self._not(test, "failed", error)


def run() -> Dict[str, str]:
    """The name of each case with "" if it passed, otherwise the reason. Skipped cases are left
    out."""
    from onnx.backend.test import BackendTest

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warnings from the runner's creation of cases
        tests = BackendTest(attn.onnx.Backend, __name__)
    for family in FAMILIES:
        tests.include(r"^%s(?!\w*_expanded)\w*_cpu$" % family)
    result = _Result()
    tests.test_suite.run(result)
    return result.said


def main(arguments: Optional[List[str]] = None) -> int:
    """Prints how many cases of each family passed, and lists the others. Returns 0 unless a case
    failed or a case of Attention was refused."""
    parser = argparse.ArgumentParser(prog="python3 -m attn.onnx", description=__doc__)
    parser.add_argument("-v", "--verbose", action="store_true", help="name the cases that pass")
    verbose = parser.parse_args(arguments).verbose
    said = run()
    print("onnx %s, attn %s (%s)" % (onnx.__version__, attn.__version__, attn.isa()))
    bad = False
    for family in FAMILIES:
        mine = {n: why for n, why in said.items() if re.match(family + r"(_|$)", n)}
        passed = sum(not why for why in mine.values())
        print("%s*: %d of %d" % (family, passed, len(mine)))
        for name, why in mine.items():
            if why or verbose:
                print("    %s  %s" % (name, why or "ok"))
        refused = sum(why.startswith("refused") for why in mine.values())
        bad |= not mine or passed + refused < len(mine) or (refused > 0 and family == FAMILIES[0])
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
