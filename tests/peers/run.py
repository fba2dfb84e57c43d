#!/usr/bin/env python3
"""Runs the tests of this folder with the packages that they need: `make test-peers`.

They are not part of `make test`, because they need PyPI and a gigabyte. Arguments are passed to
unittest: tests/peers/run.py test_train -v
With --install, it only installs the packages.
"""

import os
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / x) for x in ("tests/peers", "tests/cli", "bench", "python")]

import environment

PACKAGES = ["torch==2.13.0", "numpy==2.4.6", "safetensors==0.8.0", "threadpoolctl==3.6.0",
            "ml_dtypes==0.6.0", "hypothesis==6.155.2", "mypy==2.4.1", "nbclient==0.11.0",
            "ipykernel==7.4.0", "onnx==1.23.2", "transformers==5.23.0",
            "tokenizers==0.23.3", "cmake==3.21.4", "expecttest==0.3.0"]


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
    names = sys.argv[1:] or sorted(f.stem for f in Path(__file__).parent.glob("test_*.py"))
    unittest.main(module=None, argv=[sys.argv[0], *names])


if __name__ == "__main__":
    main()
