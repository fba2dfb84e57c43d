"""Shared by the tests of the Python package: imports the package of this tree, and creates arrays
of every kind."""

import os
import sys

if os.environ.get("ATTN_SANITIZED", "0") != "0":
    print("not run: Python itself is not built with the sanitizer")
    sys.exit(0)

SOURCE = os.environ["ATTN_SOURCE"]
sys.path[:0] = [os.path.join(SOURCE, "python"), os.path.join(SOURCE, "tests", "cli")]

import numpy as np  # noqa: E402

import attn  # noqa: E402, F401
import reference  # noqa: E402, F401

NAMES = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
try:
    from ml_dtypes import bfloat16

    DTYPES = [np.dtype(x) for x in ("float64", "float32", "float16", bfloat16)]
except ImportError:
    DTYPES = [np.dtype(x) for x in ("float64", "float32", "float16")]


def weight_error(dtype):
    """The additional error on instruction sets that round weights to bfloat16."""
    narrow = dtype == "bf16" and attn.isa() in reference.NARROW_ISAS
    return reference.NARROW if narrow else 0


def laid_out(rng, x):
    """The same numbers with another memory layout: strided, reversed, read-only, ..."""
    way = rng.integers(6)
    if way == 0 or x.ndim == 0:
        return x
    if way == 1:  # every second element of every dimension, backwards
        big = np.zeros([2 * n for n in x.shape], x.dtype)
        view = big[tuple(slice(None, None, -2) for _ in x.shape)]
    elif way == 2:  # [B,T,H,D] in memory, or Fortran's order
        order = rng.permutation(x.ndim)
        view = np.zeros([x.shape[d] for d in order], x.dtype).transpose(np.argsort(order))
    elif way == 3:  # an odd address: one byte past the start
        size = x.dtype.itemsize
        raw = np.zeros(x.size * size + 1, np.uint8)
        view = raw[1:].view(x.dtype).reshape(x.shape)
    elif way == 4:  # a part of a wider array
        view = np.zeros(x.shape[:-1] + (x.shape[-1] + 5,), x.dtype)[..., 2:-3]
    else:
        view = np.zeros(x.shape, x.dtype)
    view[...] = x
    view.flags.writeable = bool(rng.integers(2))
    return view
