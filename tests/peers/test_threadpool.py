"""threadpoolctl finds libattn, limits its threads and restores them."""

import os
import sys
import unittest
from pathlib import Path

os.environ.setdefault("ATTN_LIBRARY", os.path.join(os.environ["ATTN_BUILD"], "libattn.so"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

from threadpoolctl import threadpool_info, threadpool_limits  # noqa: E402

import attn  # noqa: E402


class Threadpool(unittest.TestCase):
    def test_control(self):
        self.assertEqual([x for x in threadpool_info() if x["user_api"] == "attn"], [])
        attn.register_threadpoolctl()
        attn.register_threadpoolctl()
        self.addCleanup(attn.set_num_threads, None)
        for before in (5, 2):
            attn.set_num_threads(before)
            (info,) = [x for x in threadpool_info() if x["user_api"] == "attn"]
            self.assertEqual(info["num_threads"], before)
            self.assertEqual((info["version"], info["isa"]), (attn.__version__, attn.isa()))
            for limits in (1, {"attn": 3}):
                with threadpool_limits(limits):
                    self.assertEqual(attn.num_threads(), 1 if limits == 1 else 3)
                self.assertEqual(attn.num_threads(), before)
            with threadpool_limits(1, user_api="blas"):
                self.assertEqual(attn.num_threads(), before)


if __name__ == "__main__":
    unittest.main()
