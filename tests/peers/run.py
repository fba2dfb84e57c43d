#!/usr/bin/env python3
"""Runs the tests of this folder with the packages that they need: `make test-peers`.

They are not part of `make test`, because they need PyPI and a gigabyte. Each file is run in a
process of its own, as many at a time as there are CPUs. The last line is the sum: "N passed, N
failed, N skipped"; the exit status is 1 if a test fails or none has run.

    run.py                    every file
    run.py FILE [ARGUMENT]    these tests, in this process: `run.py test_train -v`
    run.py --install          nothing; it only installs the packages
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / x) for x in ("tests/peers", "tests/cli", "bench", "python")]

import environment

PACKAGES = ["torch==2.13.0", "numpy==2.4.6", "safetensors==0.8.0", "threadpoolctl==3.6.0",
            "ml_dtypes==0.6.0", "hypothesis==6.155.2", "mypy==2.4.1", "nbclient==0.11.0",
            "ipykernel==7.4.0", "onnx==1.23.2", "transformers==5.23.0",
            "tokenizers==0.23.3", "cmake==3.21.4", "expecttest==0.3.0",
            "axe-core-python==0.1.0"]

# The files that take longest start first, so that no long one runs alone at the end.
LONG = ["test_checkpoints", "test_old_tokenizers", "test_axe", "test_transformers"]


def counts_of(result):
    """How many tests of a unittest result passed, failed and were skipped."""
    # A test may fail in several subtests. A class or module whose set-up fails is not a test.
    failed = {getattr(test, "test_case", test) for test, _ in result.failures + result.errors}
    failed.update(result.unexpectedSuccesses)
    tests = sum(isinstance(test, unittest.TestCase) for test in failed)
    return [max(result.testsRun - len(result.skipped) - tests, 0), len(failed), len(result.skipped)]


def run_counted(name, counts):
    """Runs a file's tests and writes their counts, as JSON, into the file `counts`."""
    program = unittest.main(module=None, argv=[sys.argv[0], name], exit=False)
    Path(counts).write_text(json.dumps(counts_of(program.result)))


def run_file(name, folder):
    """Runs a file's tests in a process of its own. Returns the output and the counts."""
    began, counts = time.monotonic(), Path(folder, name)
    # Threads of PyTorch that wait must not take a CPU from the other processes.
    done = subprocess.run([sys.executable, "-X", "faulthandler", __file__, "--counts", name,
                           counts],
                          env=dict(os.environ, OMP_WAIT_POLICY="passive"),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace")
    head = f"== {name} ({time.monotonic() - began:.0f} s)\n"
    if done.returncode == 0:
        return head + done.stdout, json.loads(counts.read_text())
    return f"{head}{done.stdout}{name}: the process ended with {done.returncode}\n", [0, 1, 0]


def run_files(names):
    """Runs files, as many at a time as there are CPUs. Returns the exit status."""
    total = [0, 0, 0]
    with tempfile.TemporaryDirectory() as folder, \
            ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for done in as_completed([pool.submit(run_file, name, folder) for name in names]):
            output, counts = done.result()
            print(output, flush=True)
            total = [a + b for a, b in zip(total, counts)]
    print("%d passed, %d failed, %d skipped" % tuple(total))
    return 0 if total[0] and not total[1] else 1


def main():
    environment.enter(ROOT / "build" / "test-peers", PACKAGES)
    if sys.argv[1:] == ["--install"]:
        return
    build = Path(os.environ.setdefault("ATTN_BUILD", str(ROOT / "build")))
    os.environ.setdefault("ATTN", str(build / "attn"))
    os.environ.setdefault("ATTN_LIBRARY", str(build / "libattn.so"))
    if not (build / "libattn.so").exists():
        sys.exit(f"run.py: {build}/libattn.so is not there; `make build` makes it")
    os.chdir(build)  # the tests create their own folders below it
    os.environ["PYTHONPATH"] = str(ROOT / "python")  # for programs that a test starts
    if sys.argv[1:2] == ["--counts"]:
        run_counted(*sys.argv[2:])
    elif sys.argv[1:]:
        unittest.main(module=None, argv=sys.argv)
    else:
        names = sorted(f.stem for f in Path(__file__).parent.glob("test_*.py"))
        sys.exit(run_files(sorted(names, key=lambda name: name not in LONG)))


if __name__ == "__main__":
    main()
