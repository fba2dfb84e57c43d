#!/usr/bin/env python3
"""attn.scaled_dot_product_attention and attn.grad compared with the definition in float64 NumPy."""

import unittest

from common import attn, laid_out, reference
import numpy as np

from cases import Compared, draw, full


class Sdpa(Compared, unittest.TestCase):
    def test_random_calls(self):
        empty = 0
        for case in range(1000):
            rng = np.random.default_rng(case)
            q, k, v, ours, theirs = draw(rng)
            what = (case, q.dtype, q.shape, k.shape, v.shape, ours)
            threads = [None, 1, 2, 3][case % 4]
            out, weights, lse = attn.scaled_dot_product_attention(
                q, k, v, return_weights=True, return_lse=True, threads=threads, **ours
            )
            self.check_forward(q, k, v, (out, weights, lse), theirs, what)
            # with `out`, also in another layout: the same bits
            place = laid_out(rng, np.zeros(out.shape, out.dtype))
            if place.flags.writeable:
                ours["out"] = place
                got = attn.scaled_dot_product_attention(q, k, v, threads=1, **ours)
                self.assertIs(got, place)
                self.assertEqual(got.tobytes(), out.tobytes(), what)
            empty += out.size == 0
        self.assertGreater(empty, 10)

    def test_random_gradients(self):
        for case in range(300):
            rng = np.random.default_rng(1000 + case)
            q, k, v, ours, theirs = draw(rng)
            self.check_gradients(rng, q, k, v, ours, theirs, (case, q.shape, k.shape, ours))

    def test_gradients_of_slopes_and_sinks(self):
        """Central differences of the float64 forward."""
        rng = np.random.default_rng(7)
        q, k, v, dout = (rng.standard_normal((1, 3, n, 4)) for n in (5, 6, 6, 5))
        # numbers to which the step can be added exactly in float32
        point = {"alibi": np.float32([0.5, -0.25, 0.125]), "sinks": np.float32([1, 0, -1])}
        got = attn.grad(q, k, v, dout, want=["alibi", "sinks"], **point)
        self.assertIsNone(got.q)
        step = 2.0**-10
        for name in point:
            for h in range(3):
                loss = []
                for sign in (1, -1):
                    moved = {n: x.copy() for n, x in point.items()}
                    moved[name][h] += np.float32(sign * step)
                    loss.append((attn.scaled_dot_product_attention(q, k, v, **moved) * dout).sum())
                difference = (loss[0] - loss[1]) / (2 * step)
                self.assertAlmostEqual(getattr(got, name)[h], difference, delta=1e-4)

    def test_given_out_and_lse(self):
        rng = np.random.default_rng(8)
        q, k, v, dout = (rng.standard_normal((2, 9, 4)) for _ in range(4))
        out, lse = attn.scaled_dot_product_attention(q, k, v, return_lse=True, is_causal=True)
        first = attn.grad(q, k, v, dout, is_causal=True)
        second = attn.grad(q, k, v, dout, out=out, lse=lse, is_causal=True)
        for name in "qkv":
            self.assertEqual(getattr(first, name).tobytes(), getattr(second, name).tobytes())
        # the gradient of lse itself is softmax(scores) k * scale
        zero = np.zeros_like(dout)
        got = attn.grad(q, k, v, zero, dlse=np.ones_like(lse)).q
        weights = reference.attention(full(q), full(k), full(v))["weights"][0]
        np.testing.assert_allclose(got, weights @ k / 2, rtol=0, atol=1e-14)


if __name__ == "__main__":
    unittest.main()
