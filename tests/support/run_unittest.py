"""run_unittest.py FILE: runs the tests of a file. After failures, it prints the commands that
repeat each of them. ATTN_TEST_ONLY=Class.test in the environment: that test alone."""

import os
import runpy
import sys
import unittest


def selection(test):
    """How the environment selects a test; empty for a class or module that cannot be set up."""
    if not isinstance(test, unittest.TestCase):
        return ""
    return "ATTN_TEST_ONLY=%s " % test.id().replace("__main__.", "", 1)


class Result(unittest.TextTestResult):
    def printErrors(self):
        super().printErrors()
        failed = [getattr(test, "test_case", test) for test, _ in self.failures + self.errors]
        for only in dict.fromkeys(map(selection, failed)):
            self.stream.writeln(
                "repeat: %sctest --test-dir '%s' -R '^%s$' --output-on-failure"
                % (only, os.environ["ATTN_BUILD"], os.environ["ATTN_TEST"])
            )


unittest.TextTestRunner.resultclass = Result
only = os.environ.get("ATTN_TEST_ONLY")
sys.argv = [sys.argv[1]] + ([only] if only else [])
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
