#!/usr/bin/env python3
"""Files of NumPy and attn: each reads what the other writes, bit for bit, and attn accepts no
damaged file that NumPy refuses."""

import io
import json
import random
import unittest
import warnings

import numpy as np

from cli import CliTest

KINDS = {"f8": "f64", "f4": "f32", "f2": "f16", "b1": "bool"}  # all else: i64
INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]


def npy(array, version=(1, 0)):
    f = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that 2.0 and 3.0 are not readable everywhere
        np.lib.format.write_array(f, array, version=version)
    return f.getvalue()


class Files(CliTest):
    def info(self, name):
        return json.loads(self.works("info", "--json", name))["arrays"]

    def copy(self, v, *more):
        """Passes v [.., 1, Dv] through attn run; with one key the output is v itself."""
        zeros = np.zeros(v.shape[:-1] + (1,), v.dtype.newbyteorder("="))
        np.save(self.path("zero.npy"), zeros)
        self.works(
            "run", "--q", "zero.npy", "--k", "zero.npy", "--v", "v.npy", "--out", "out.npy", *more
        )
        return np.load(self.path("out.npy"), allow_pickle=False)

    def test_every_dtype_order_and_version(self):
        for kind in list(KINDS) + INTEGERS:
            for order in "<>":
                for layout in "CF":
                    for version in ((1, 0), (2, 0), (3, 0)):
                        a = np.asarray(np.arange(24).reshape(2, 3, 4) % 2, order=layout).astype(
                            order + kind, order="K"
                        )
                        self.write("a.npy", npy(a, version))
                        self.assertEqual(
                            self.info("a.npy"),
                            [{"name": "", "dtype": KINDS.get(kind, "i64"), "shape": [2, 3, 4]}],
                        )

    def test_values_of_floats(self):
        rng = np.random.default_rng(1)
        for kind in ("f8", "f4", "f2"):
            for order in "<>":
                values = rng.standard_normal((3, 1, 50)).astype(order + kind)
                for layout in (values, np.asfortranarray(values)):
                    self.write("v.npy", npy(layout))
                    got = self.copy(layout)
                    self.assertEqual(got.dtype, np.dtype(kind))
                    self.assertEqual(got.tobytes(), values.astype(kind).tobytes())

    def test_values_of_bf16_arrive_as_float32(self):
        v = (np.arange(-32, 32, dtype="f4") / 8)[None]
        np.save(self.path("v.npy"), v)
        got = self.copy(v, "--dtype", "bf16")
        self.assertEqual((got.dtype, got.tolist()), (np.dtype("f4"), v.tolist()))

    def test_values_of_integers_and_masks(self):
        rng = np.random.default_rng(2)
        lengths = np.array([3, 0, 5])
        mask = rng.random((3, 1, 4, 5)) < 0.5
        for name, shape in (("q", (3, 2, 4, 8)), ("k", (3, 2, 5, 8)), ("v", (3, 2, 5, 8))):
            np.save(self.path(name + ".npy"), rng.standard_normal(shape).astype("f4"))

        def out(*options):
            self.works(
                "run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", "out.npy", *options
            )
            return self.bytes("out.npy")

        plain = out()
        np.save(self.path("n.npy"), lengths.astype("i8"))
        wanted = out("--key-lengths", "n.npy")
        self.assertNotEqual(wanted, plain)
        for kind in INTEGERS:
            for order in "<>":
                self.write("n.npy", npy(lengths.astype(order + kind)))
                self.assertEqual(out("--key-lengths", "n.npy"), wanted, order + kind)
        np.save(self.path("m.npy"), np.where(mask, 0, -np.inf).astype("f4"))
        out("--mask", "m.npy")
        wanted = np.load(self.path("out.npy"))
        got = set()
        for layout in "CF":
            np.save(self.path("m.npy"), np.asarray(mask, order=layout))
            got.add(out("--mask", "m.npy"))
            np.testing.assert_allclose(np.load(self.path("out.npy")), wanted, rtol=1e-5, atol=1e-6)
        self.assertEqual(len(got), 1)
        self.assertNotIn(plain, got)

    def test_archives(self):
        rng = np.random.default_rng(3)
        arrays = {
            "q": rng.standard_normal((4, 8)),
            "k": np.asfortranarray(rng.standard_normal((6, 8))),
            "v": rng.standard_normal((6, 3)).astype(">f8"),
        }
        for name, array in arrays.items():
            np.save(self.path(name + ".npy"), array)
        self.works("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", "single.npy")
        for save in (np.savez, np.savez_compressed):
            save(self.path("all.npz"), **arrays)
            self.assertEqual(sorted(e["name"] for e in self.info("all.npz")), ["k", "q", "v"])
            self.works(
                "run",
                "--q",
                "all.npz:q",
                "--k",
                "all.npz:k.npy",
                "--v",
                "all.npz:v",
                "--out",
                "both.npy",
            )
            self.assertEqual(self.bytes("both.npy"), self.bytes("single.npy"))
        np.savez_compressed(
            self.path("zeros.npz"), np.zeros((3000, 1000))
        )  # near the limit of deflate
        self.assertEqual(
            self.info("zeros.npz"), [{"name": "arr_0", "dtype": "f64", "shape": [3000, 1000]}]
        )
        self.fails(3, "info", "all.npz:w", says="has no array 'w'; it has k, q, v")

    def test_pipes(self):
        v = np.arange(6.0).reshape(1, 6)
        self.write("v.npy", npy(v))
        np.save(self.path("one.npy"), np.zeros((1, 1)))
        done = self.attn(
            "run", "--q", "one.npy", "--k", "one.npy", "--v", "-", "--out", "-", stdin=npy(v)
        )
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertEqual(np.load(io.BytesIO(done.stdout)).tolist(), v.tolist())
        self.assertEqual(done.stdout, npy(v))  # byte for byte as NumPy writes it

    def test_what_numpy_writes_and_attn_refuses(self):
        refused = [
            np.array([None]),
            np.zeros(2, "c16"),
            np.zeros(2, "S3"),
            np.zeros(2, "U3"),
            np.zeros(2, "M8[s]"),
            np.zeros(2, "m8[s]"),
            np.zeros(2, [("a", "f4")]),
            np.zeros(2, "V4"),
            np.zeros(2, "g"),
        ]
        for array in refused:
            self.write("a.npy", npy(array))
            self.fails(3, "info", "a.npy", says="a.npy: unsupported dtype")
        self.write("a.npy", npy(np.array([2**63], "u8")))
        np.save(self.path("q.npy"), np.zeros((1, 1, 1, 1)))
        self.fails(
            3,
            "run",
            "--q",
            "q.npy",
            "--k",
            "q.npy",
            "--v",
            "q.npy",
            "--key-lengths",
            "a.npy",
            "--out",
            "o.npy",
            says="a.npy: element 0",
        )

    def test_attn_accepts_no_more_than_numpy(self):
        draw = random.Random(4)
        words = [
            b"-",
            b"0",
            b"1",
            b" ",
            b",",
            b"(",
            b")",
            b"'",
            b"True",
            b"False",
            b"f2",
            b">",
            b"|",
            b"L",
            b"\n",
        ]
        accepted = 0
        for i in range(200):
            a = np.zeros(
                draw.choice([(3, 4), (7,), (), (0, 2)]), draw.choice(["<f4", ">f8", "|b1", "<i2"])
            )
            data = bytearray(npy(a))
            for _ in range(draw.randint(1, 2)):
                at = draw.randrange(10, 75)
                if draw.random() < 0.5:  # mostly harmless
                    data[at:at] = b" "
                else:
                    data[at : at + draw.randint(0, 2)] = draw.choice(words)
            if draw.random() < 0.9:  # the length of the header is right again
                data[8:10] = (data.index(b"\n", 70) - 9).to_bytes(2, "little")
            self.write("a.npy", bytes(data))
            done = self.attn("info", "--json", "a.npy")
            self.assertIn(done.returncode, (0, 3), done.stderr)
            if done.returncode == 0:
                got = json.loads(done.stdout)["arrays"][0]
                want = np.load(self.path("a.npy"), allow_pickle=False)
                self.assertEqual(got["shape"], list(want.shape))
                self.assertEqual(got["dtype"], KINDS.get(want.dtype.str[1:], "i64"))
                accepted += 1
        self.assertGreater(accepted, 10)


if __name__ == "__main__":
    unittest.main()
