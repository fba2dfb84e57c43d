"""Files of attn and of the safetensors package: each reads what the other writes, and attn refuses
what the package refuses."""

import json
import os
import random
import struct
import unittest

import numpy as np
import torch
from safetensors import safe_open, SafetensorError
from safetensors.torch import save

from cli import CliTest


class Files(CliTest):
    def test_theirs(self):
        kinds = {
            torch.float64: "f64", torch.float32: "f32", torch.float16: "f16",
            torch.bfloat16: "bf16", torch.bool: "bool", torch.int8: "i64", torch.uint8: "i64",
            torch.int16: "i64", torch.int32: "i64", torch.int64: "i64",
        }
        tensors = {str(k): torch.arange(24).reshape(2, 3, 4).to(k) for k in kinds}
        tensors["empty"], tensors["scalar"] = torch.zeros(0, 3), torch.tensor(2.5)
        self.write("theirs.safetensors", save(tensors, {"format": "pt"}))
        found = json.loads(self.works("info", "--json", "theirs.safetensors"))["arrays"]
        self.assertEqual(
            {a["name"]: (a["dtype"], a["shape"]) for a in found},
            {
                name: (kinds[t.dtype], list(t.shape)) for name, t in tensors.items()
            },
        )

    def test_values(self):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            v = torch.randn(4, 1, 8).to(dtype)
            zeros = torch.zeros(4, 1, 8, dtype=dtype)
            self.write("a.safetensors", save({"v": v, "q": zeros}))
            spec = "a.safetensors:"
            self.works(
                "run", "--q", spec + "q", "--k", spec + "q", "--v", spec + "v", "--out", "o.npy"
            )
            self.assertTrue(np.array_equal(np.load(self.path("o.npy")), v.float().numpy()))

    def test_ours(self):
        self.works("train", "--steps", "2", "--checkpoint", "ours.safetensors")
        arrays = json.loads(self.works("info", "--json", "ours.safetensors"))["arrays"]
        with safe_open(self.path("ours.safetensors"), "pt") as f:
            self.assertEqual(sorted(f.keys()), sorted(a["name"] for a in arrays))
            self.assertEqual(f.metadata()["task"], "induction")
            for a in arrays:
                t = f.get_tensor(a["name"])
                self.assertEqual(list(t.shape), a["shape"])
            self.assertEqual(f.get_tensor("history.loss").dtype, torch.float64)

    def refused_by_them(self):
        try:
            with safe_open(self.path("x.safetensors"), "pt") as f:
                f.keys()
        except (SafetensorError, ValueError, OverflowError, UnicodeDecodeError):
            return True
        return False

    def test_what_they_refuse_we_refuse(self):
        random.seed(3)
        good = save({"a": torch.ones(2, 3), "b": torch.zeros(5, dtype=torch.int64)}, {"k": "v"})
        refused = 0
        for n in range(1500):
            data = bytearray(good)
            for _ in range(1 + n % 3):
                data[random.randrange(len(data) - 60)] = random.randrange(256)
            self.write("x.safetensors", bytes(data))
            if self.refused_by_them():
                refused += 1
                self.assertEqual(self.attn("info", "x.safetensors").returncode, 3, bytes(data))
        self.assertGreater(refused, 500)


if __name__ == "__main__":
    unittest.main()
