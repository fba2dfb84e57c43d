#!/usr/bin/env python3
"""Runs a file of PyTorch's own tests with and without attn.torch.patch() and compares the two, test
by test: tests/peers/pytorch_suite.py PATH/TO/pytorch/test/test_transformers.py

The file must be in PyTorch's sources, because it may import its neighbours. It may be older than
the PyTorch that it tests: tests that fail without the patch are ignored. Tests that fail only with
the patch are run again with dropout calls left to PyTorch, because attn drops other weights than
PyTorch, and such a test would compare two random choices. Many tests compare two of PyTorch's
kernels, which are both libattn under the patch. So tests that reach libattn are run once more, and
this time calls that allow only PyTorch's kernel MATH, and calls with dropout, are left to PyTorch.
The exit status is 1 if a test passes without the patch and not with it, for another reason than
dropout. `make test-peers`, which has no sources of PyTorch, does not run this.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import traceback
import unittest
from pathlib import Path

from run import PACKAGES, ROOT, environment

MODES = {
    "plain": "PyTorch's",
    "patched": "patched",
    "undropped": "these, but for dropout",
    "beside": "... and for MATH",
}
GOOD = "passed", "expected failure"
CRASHED = "crashed"


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("file", type=Path, help="a test file in a tree of PyTorch's sources")
    parser.add_argument("-k", dest="words", action="append", default=[], metavar="WORD",
                        help="only tests with one of these words in Class.test_name, in any case")
    parser.add_argument("-x", dest="without", action="append", default=[], metavar="WORD",
                        help="none with one of these words")
    parser.add_argument("--every", type=int, default=1, metavar="N",
                        help="each N-th of the tests: a number that divides no count of parameters")
    parser.add_argument("--log", type=Path, metavar="FOLDER",
                        help="keeps each test's result there: plain.jsonl, patched.jsonl, ...")
    parser.add_argument("--child", choices=MODES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not given.file.is_file():
        parser.error(f"{given.file} is no file; it must be a test file of PyTorch's sources")
    return given


# ------------------------------------------------------------------------- in a separate process


class Count:
    """Wraps one of the library's functions and counts its calls."""

    calls = 0

    def __init__(self, function):
        self.function = function

    def __call__(self, *arguments):
        status = self.function(*arguments)
        Count.calls += status == 0
        return status


class Log(unittest.TestResult):
    """Writes a line when a test starts and one when it ends, so that a crash loses nothing."""

    def __init__(self, path):
        super().__init__()
        self.file = path.open("a", encoding="utf-8")

    def write(self, **line):
        print(json.dumps(line), file=self.file, flush=True)

    def startTest(self, test):
        super().startTest(test)
        self.outcome, self.said, self.before = "passed", "", Count.calls
        self.write(test=name(test))

    def stopTest(self, test):
        super().stopTest(test)
        calls = Count.calls - self.before
        self.write(test=name(test), outcome=self.outcome, said=self.said, calls=calls)

    def put(self, outcome, said="", error=None):
        self.outcome = outcome
        self.said += said or "".join(traceback.format_exception(*error))

    def addError(self, test, error):
        if isinstance(test, unittest.TestCase):
            self.put("failed", error=error)
        else:  # an error of a class or the module, which has neither start nor end
            said = "".join(traceback.format_exception(*error))
            self.write(test=test.id(), outcome="failed", said=said, calls=0)

    def addFailure(self, test, error):
        self.put("failed", error=error)

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.put("failed", error=error)

    def addSkip(self, test, reason):
        if self.outcome == "passed":
            self.put("skipped", reason or "no reason is given")

    def addExpectedFailure(self, test, error):
        self.put("expected failure", error=error)

    def addUnexpectedSuccess(self, test):
        self.put("failed", "unexpected success")


def name(test):
    return test.id().split(".", 1)[1]


def tests_of(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_of(test)
        else:
            yield test


def old_names():
    """Adds the names that PyTorch 2.6's files import from its test tools and that 2.13 has
    renamed."""
    from torch.testing._internal import common_cuda, common_device_type, common_mkldnn, common_nn
    from torch.testing._internal import common_methods_invocations as samples

    if hasattr(common_nn, "get_new_module_tests"):
        common_nn.new_module_tests = common_nn.get_new_module_tests()
    if hasattr(common_mkldnn, "reduced_f32_on_and_off"):
        common_mkldnn.bf32_on_and_off = common_mkldnn.reduced_f32_on_and_off
    if not hasattr(common_cuda, "tf32_is_not_fp32"):
        common_cuda.tf32_is_not_fp32 = lambda: False  # the files ask it about GPUs
    if not hasattr(samples, "skipOps"):
        samples.skip, samples.xfail = common_device_type.skip, common_device_type.xfail
        samples.skipOps = lambda case, test, some: common_device_type.skipOps(some)


def load(path):
    """Imports the test file as a module with its own name, and sets up PyTorch's test tools as its
    main() does."""
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path)]
    from torch.testing._internal import common_utils

    common_utils.parse_cmd_line_args()
    old_names()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def patch(mode):
    """attn.torch.patch(), with calls of the library counted."""
    if mode == "plain":
        return contextlib.nullcontext()
    from attn import _library

    for function in ("attn_sdpa_forward", "attn_sdpa_backward"):
        setattr(_library.library, function, Count(getattr(_library.library, function)))
    import torch

    import attn.torch

    possible, whole = attn.torch._possible, attn.torch.scaled_dot_product_attention

    def not_math(*tensors):
        cuda = torch.backends.cuda  # its flags are also those for CPUs
        plain = cuda.math_sdp_enabled() and not cuda.flash_sdp_enabled()
        return not plain and possible(*tensors)

    def undropped(q, k, v, mask, dropout_p, *more, **options):
        if dropout_p > 0:
            raise ValueError("PyTorch chooses what is dropped")  # left to PyTorch
        return whole(q, k, v, mask, dropout_p, *more, **options)

    if mode == "beside":
        attn.torch._possible = not_math
    if mode != "patched":
        attn.torch.scaled_dot_product_attention = undropped
    return attn.torch.patch()


def chosen(given, test):
    def has(words):
        return any(word.lower() in name(test).lower() for word in words)

    return (not given.words or has(given.words)) and not has(given.without)


def wanted(mode, folder):
    """The tests that a mode runs, from the logs of those before; None: all of them."""
    if mode in ("plain", "patched"):
        return None
    plain, patched = (outcomes(folder / (x + ".jsonl")) for x in ("plain", "patched"))
    if mode == "undropped":
        return set(lost(plain, patched))
    return {test for test, line in patched.items() if line["calls"]}


def child(given, folder):
    """Runs the tests that are not in the log yet."""
    log = folder / (given.child + ".jsonl")
    known = {line["test"] for line in lines(log)}
    with patch(given.child):  # before the file imports the function
        module = load(given.file)
        everything = tests_of(unittest.defaultTestLoader.loadTestsFromModule(module))
        tests = [test for test in everything if chosen(given, test)][:: given.every]
        names = wanted(given.child, folder)
        tests = [test for test in tests if name(test) not in known
                 and (names is None or name(test) in names)]  # fmt: skip
        unittest.TestSuite(tests).run(Log(log))


# --------------------------------------------------------------------------------- the comparison


def lines(log):
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def outcomes(log):
    found = {}
    for line in lines(log):
        found[line["test"]] = {"outcome": CRASHED, "said": "the process died", "calls": 0, **line}
    return found


def run(given, mode, folder):
    """Each test's line in the log. If a test crashes the process, a new process continues after
    it."""
    log = folder / (mode + ".jsonl")
    log.write_text("", encoding="utf-8")
    command = [sys.executable, __file__, given.file, "--child", mode, "--log", folder]
    command += ["--every", given.every, *(x for word in given.words for x in ("-k", word))]
    command += [x for word in given.without for x in ("-x", word)]
    while True:
        before = len(lines(log))
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)  # fmt: skip
        if done.returncode == 0:
            return outcomes(log)
        if len(lines(log)) == before:
            said = done.stdout.decode("utf-8", "replace")[-3000:]
            sys.exit(f"{said}\n{given.file.name} could not be run ({mode})")


def count(found, *kinds):
    return sum(line["outcome"] in kinds for line in found.values())


def lost(plain, patched):
    """The tests that pass without the patch and fail with it."""
    return [x for x in patched if patched[x]["outcome"] not in GOOD
            and (x not in plain or plain[x]["outcome"] in GOOD)]  # fmt: skip


def report(found):
    """Prints the comparison. Returns whether a test is worse with the patch, for another reason
    than dropout."""
    print("%-24s %7s %7s %8s %7s %9s %6s"
          % ("", "tests", "passed", "skipped", "failed", "by attn", "calls"))  # fmt: skip
    for mode, title in MODES.items():
        x = found[mode]
        calls = [line["calls"] for line in x.values()]
        numbers = len(x), count(x, *GOOD), count(x, "skipped"), count(x, "failed", CRASHED)
        reached = sum(n > 0 for n in calls), sum(calls)
        print("%-24s %7d %7d %8d %7d %9d %6d" % (title, *numbers, *reached))
    plain, patched = found["plain"], found["patched"]
    bad = {mode: {x for x, line in found[mode].items() if line["outcome"] in ("failed", CRASHED)}
           for mode in MODES}  # fmt: skip
    dropped = [x for x in lost(plain, patched) if found["undropped"][x]["outcome"] in GOOD]
    worse = {x: patched[x] for x in lost(plain, patched) if x not in dropped}
    worse.update((x, found["beside"][x]) for x in lost(plain, found["beside"]))
    worse.update((x, {"said": "is not there under the patch"}) for x in plain if x not in patched)
    print("failed in both: %d; failed without the patch only: %d; failed with it only: %d for what "
          "dropout drops, %d otherwise"
          % (len(bad["plain"] & bad["patched"]), len(bad["plain"] - bad["patched"]), len(dropped),
             len(worse)))  # fmt: skip
    for test in dropped:
        print("dropout:", test)
    for test, line in worse.items():
        print("\n%s\n%s" % (test, line["said"][-900:]))
    return bool(worse)


def main():
    given = parse()
    environment.enter(ROOT / "build" / "test-peers", PACKAGES)
    library = ROOT / "build" / "libattn.so"
    os.environ.setdefault("ATTN_LIBRARY", str(library))
    if not Path(os.environ["ATTN_LIBRARY"]).exists():
        sys.exit(f"{os.environ['ATTN_LIBRARY']} is not there; `make build` makes build/libattn.so")
    given.file = given.file.resolve()
    if given.child:
        child(given, given.log)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        folder = (given.log or Path(folder)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        found = {mode: run(given, mode, folder) for mode in MODES}
    if not found["plain"]:
        sys.exit(f"{given.file.name} has no test that -k and -x leave")
    return report(found)


if __name__ == "__main__":
    sys.exit(main())
