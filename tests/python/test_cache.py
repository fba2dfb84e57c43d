#!/usr/bin/env python3
"""attn.KVCache: decoding is bit-identical to calls with ordinary arrays, and arguments that do not
fit are refused."""

import unittest

from common import attn
import numpy as np

sdpa = attn.scaled_dot_product_attention


class Cache(unittest.TestCase):
    def test_token_by_token(self):
        rng = np.random.default_rng(1)
        for dtype in ("float64", "float32", "float16"):
            for pages in (0, 64):
                q, k, v = (
                    rng.standard_normal((2, h, 70, d)).astype(dtype)
                    for h, d in ((4, 8), (2, 8), (2, 5))
                )
                want, lse = sdpa(q, k, v, is_causal=True, enable_gqa=True, return_lse=True)
                cache = attn.KVCache(2, 2, 8, 5, max_keys=70, dtype=dtype, page_keys=pages)
                for t in range(70):
                    rows = slice(t, t + 1)
                    cache.append(k[:, :, rows], v[:, :, rows])
                    out, one = cache.attend(q[:, :, rows], return_lse=True)
                    self.assertEqual(out.tobytes(), want[:, :, rows].tobytes())
                    self.assertEqual(one.tobytes(), lse[:, :, rows].tobytes())
                self.assertEqual(cache.lengths.tolist(), [70, 70])
                keys, values = cache.read(1)
                self.assertEqual(keys.tobytes(), k[1].tobytes())
                self.assertEqual(values.tobytes(), v[1].tobytes())
                self.assertGreater(cache.nbytes, keys.nbytes + values.nbytes)

    def test_lengths_of_their_own(self):
        rng = np.random.default_rng(2)
        k, v, q = (rng.standard_normal((1, 9, 4)).astype("f4") for _ in range(3))
        cache = attn.KVCache(2, 1, 4, max_keys=9)
        cache.append(k, v, b=0)
        cache.append(k[:, :4], v[:, :4], b=1)
        out = cache.attend(np.stack([q[:, -2:], q[:, 2:4]]))
        want = sdpa(q, k, v, is_causal=True)
        self.assertEqual(out[0].tobytes(), want[:, -2:].tobytes())
        self.assertEqual(out[1].tobytes(), want[:, 2:4].tobytes())
        cache.truncate(6)
        self.assertEqual(cache.lengths.tolist(), [6, 4])
        cache.truncate(1, b=1)
        self.assertEqual(cache.lengths.tolist(), [6, 1])

    def test_int8(self):
        rng = np.random.default_rng(3)
        k, v, q = (rng.standard_normal((1, 2, 20, 16)).astype("f4") for _ in range(3))
        cache = attn.KVCache(1, 2, 16, max_keys=20, dtype="int8")
        cache.append(k, v)
        keys, values = cache.read(0)
        # attn.h: the error is at most m / 254 and a rounding of float, with m a row's largest value
        self.assertTrue((abs(keys - k[0]) <= abs(k[0]).max(-1, keepdims=True) / 253.9).all())
        self.assertEqual(cache.attend(q[:, :, :3], is_causal=False).tobytes(),
                         sdpa(q[:, :, :3], keys[None], values[None]).tobytes())

    def test_refused(self):
        cache = attn.KVCache(2, 1, 4, max_keys=3)
        rows = np.ones((2, 1, 2, 4), "f4")
        cache.append(rows, rows)
        cache.append(rows[0, :, :1], rows[0, :, :1], b=0)
        with self.assertRaisesRegex(ValueError, "max_keys"):  # of sequence 0
            cache.append(rows[:, :, :1], rows[:, :, :1])
        self.assertEqual(cache.lengths.tolist(), [3, 2])
        for call, kind, says in (
            (lambda: cache.append(rows, rows, b=0), ValueError, "must have 3"),
            (lambda: cache.append(rows[:1], rows[:1]), ValueError, "B=1"),
            (lambda: cache.append(rows[0], rows[0], b=2), ValueError, "b is 2"),
            (lambda: cache.append(rows.astype("i4"), rows), TypeError, "k is int32"),
            (lambda: cache.truncate(4, b=0), ValueError, "length"),
            (lambda: cache.truncate(-1), ValueError, "length"),
            (lambda: cache.attend(rows[0]), ValueError, "q has 3 dimensions"),
            (lambda: cache.attend(rows[:1]), ValueError, "q has B=1"),
            (lambda: cache.attend(rows.astype("f8")), TypeError, "q is f64"),
            (lambda: attn.KVCache(1, 1, 4, max_keys=3, dtype="int16"), TypeError, "dtype"),
            (lambda: attn.KVCache(1, 1, -4, max_keys=3), ValueError, ""),
            (lambda: attn.KVCache(1, 1, 4, max_keys=2**61), Exception, ""),
        ):
            with self.assertRaisesRegex(kind, says):
                call()
        self.assertEqual(cache.lengths.tolist(), [3, 2])

    def test_second_sequence_full(self):
        cache = attn.KVCache(2, 1, 4, max_keys=3)
        rows = np.ones((2, 1, 2, 4), "f4")
        cache.append(rows[1], rows[1], b=1)
        with self.assertRaises(ValueError):
            cache.append(rows, rows)  # sequence 0 has room but 1 has not, so nothing is added
        self.assertEqual(cache.lengths.tolist(), [0, 2])


if __name__ == "__main__":
    unittest.main()
