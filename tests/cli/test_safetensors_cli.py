#!/usr/bin/env python3
"""Tensors of .safetensors files: in `attn info` and as arrays of `attn run`. The tests write the
files byte by byte; tests/peers compares with the package safetensors."""

import json
import struct
import unittest

import numpy as np

from cli import CliTest

DTYPES = {"f8": "F64", "f4": "F32", "f2": "F16", "i8": "I64", "u2": "BF16"}  # its bits


def safetensors(arrays, **metadata):
    """The bytes of a file."""
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, a in arrays.items():
        begin, data = len(data), data + a.tobytes()
        header[name] = {
            "dtype": DTYPES[a.dtype.str[1:]],
            "shape": list(a.shape),
            "data_offsets": [begin, len(data)],
        }
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


class Safetensors(CliTest):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(5)
        self.arrays = {n: rng.standard_normal((2, 5, 4)).astype("f4") for n in ("q", "k", "v.x")}
        self.write("a.safetensors", safetensors(self.arrays, format="pt"))

    def test_info(self):
        text = self.works("info", "a.safetensors")
        self.assertIn("v.x  f32  [2, 5, 4]", text)
        self.assertNotIn("__metadata__", text)
        self.write("renamed", self.bytes("a.safetensors"))  # recognised by its bytes
        found = json.loads(self.works("info", "--json", "renamed"))["arrays"]
        self.assertEqual([a["name"] for a in found], ["q", "k", "v.x"])

    def test_run(self):
        for name, a in self.arrays.items():
            np.save(self.path(name + ".npy"), a)
        out = []
        for spec in ("a.safetensors:%s", "%s.npy"):
            names = [spec % name for name in self.arrays]
            self.works(
                "run", "--q", names[0], "--k", names[1], "--v", names[2], "--out", "out.npy"
            )
            out.append(self.bytes("out.npy"))
        self.assertEqual(out[0], out[1])

    def test_one_tensor_needs_no_name(self):
        self.write("one.safetensors", safetensors({"x": self.arrays["q"]}))
        three = ["--q", "one.safetensors", "--k", "one.safetensors:x", "--v", "one.safetensors"]
        self.works("run", *three)

    def test_errors(self):
        more = ["--k", "a.safetensors:k", "--v", "a.safetensors:k"]
        self.fails(3, "run", "--q", "a.safetensors", *more, says="name one array")
        self.fails(3, "run", "--q", "a.safetensors:w", *more, says="has no array 'w'; it has q")
        self.fails(
            2, "run", "--q", "a.safetensors:q", *more, "--out", "a.safetensors", says="is an input"
        )
        whole = self.bytes("a.safetensors")
        for size in (0, 7, 8, 20, len(whole) - 1):
            self.write("cut.safetensors", whole[:size])
            self.fails(3, "info", "cut.safetensors", says="cut.safetensors: ")
        self.write("no.safetensors", b"\x93NUMPY and more")
        self.fails(3, "info", "no.safetensors", says="no.safetensors: announces a header of ")


if __name__ == "__main__":
    unittest.main()
