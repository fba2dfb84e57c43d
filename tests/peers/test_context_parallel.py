"""attn.torch.context_parallel: attention over processes, beside attn.torch in one process."""

import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

import attn.torch
import processes

ROOT = Path(__file__).resolve().parents[2]
N, B, H, HK, D, DV = 600, 2, 4, 2, 16, 24
GENERATOR = torch.Generator().manual_seed(3)
# Every option; those with "T" have another number of queries. What names a function is made by it
# from the generator.
CASES = {
    "nothing": {},
    "causal": {"is_causal": True},
    "window": {"is_causal": True, "window": (100, 0)},
    "symmetric": {"window": (70, 30), "diagonal": 5},
    "fewer queries": {"T": 200, "is_causal": True, "causal_offset": "bottom-right"},
    "more queries": {"T": 700, "is_causal": True, "causal_offset": 3},
    "cap": {"softcap": 3.0, "scale": 0.5},
    "lengths": {"key_lengths": torch.tensor([77, 600])},
    "dropout": {"dropout_p": 0.3, "seed": 5, "is_causal": True},
    "dropout, drawn": {"dropout_p": 0.3},
    "nothing is kept": {"dropout_p": 1.0},
    "alibi and sinks": {"alibi": torch.rand(H, generator=GENERATOR),
                        "sinks": torch.randn(H, generator=GENERATOR), "is_causal": True},
    "bool mask": {"attn_mask": torch.rand(B, 1, N, N, generator=GENERATOR) < 0.7},
    "float mask": {"attn_mask": torch.randn(1, H, N, N, generator=GENERATOR)},
    "mask of keys": {"attn_mask": torch.rand(1, 1, 1, N, generator=GENERATOR) < 0.7},
    "one block": {"T": 40, "S": 50},
    "no tokens": {"T": 0, "S": 0},
}


def parallel(**options):
    return attn.torch.context_parallel(**{"deadline": 20, "segment_keys": 256, **options})


def tensors(T, S, dtype=torch.float32):
    """q, k, v and the gradient of the result."""
    g = torch.Generator().manual_seed(7)
    shapes = (B, H, T, D), (B, HK, S, D), (B, HK, S, DV), (B, H, T, DV)
    return [torch.randn(shape, generator=g).to(dtype) for shape in shapes]


def same(a, b):
    """Whether two tensors have the same bits."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(
        a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def differentiate(call, q, k, v, dout, part=lambda x: x, **options):
    """out, lse and the gradients of q, k, v and of the vectors that are given."""
    leaves = {n: x.clone().requires_grad_() for n, x in options.items()
              if n in ("alibi", "sinks")}
    inputs = [part(x).detach().requires_grad_() for x in (q, k, v)]
    out, lse = call(*inputs, enable_gqa=True, return_lse=True, **{**options, **leaves})
    ((out * part(dout)).sum() + lse.nan_to_num(0, 0, 0).sum() / 8).backward()
    return [out.detach(), lse.detach(), *(x.grad for x in (*inputs, *leaves.values()))]


def gradient_bound(dtype):
    """The largest difference of dk and dv, relative to the largest gradient: a few roundings."""
    return {torch.float64: 1e-14, torch.float32: 4e-6, torch.bfloat16: 8e-3,
            torch.float16: 1e-3}[dtype]


def compare(rank, size, names, dtype, heads=False):
    """Runs the cases; returns what differs. heads: no gradient may."""
    attention, wrong = parallel(heads=heads, segment_keys=0 if heads else 256), []
    for name in names:
        options = dict(CASES[name])
        T, S = options.pop("T", N), options.pop("S", N)
        given = tensors(T, S, dtype)
        torch.manual_seed(11)
        want = differentiate(attn.torch.scaled_dot_product_attention, *given, **options)
        if "attn_mask" in options and options["attn_mask"].shape[2] == T:
            options["attn_mask"] = attention.shard(options["attn_mask"], 2)
        torch.manual_seed(11)
        got = differentiate(attention, *given, part=lambda x: attention.shard(x, 2), **options)
        for i, (a, b) in enumerate(zip(want, got)):
            what = ("out", "lse", "dq", "dk", "dv", "dalibi", "dsinks")[i]
            if i < 5:
                a = attention.shard(a, 2)
            elif rank > 0:
                a = torch.zeros_like(a)  # rank 0 has the whole sum
            if i < 3 or size == 1 or heads:
                right = same(a, b)
            else:
                most = max(1.0, want[i].double().abs().max().item() if want[i].numel() else 0)
                error = (a.double() - b.double()).abs().max().item() if a.numel() else 0
                right = a.shape == b.shape and error <= gradient_bound(dtype) * most
            if not right:
                wrong.append("%s of %s" % (what, name))
    return wrong


class Bits(unittest.TestCase):
    def right(self, size, names, *more):
        self.assertEqual(processes.run(size, compare, names, *more), [(True, [])] * size)

    def test_one_process(self):
        """All bits are those of attn.torch, of gradients of 16 bits, too."""
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            self.right(1, ["causal", "alibi and sinks", "bool mask", "dropout"], dtype)

    def test_two_processes(self):
        self.right(2, list(CASES), torch.float32)

    def test_three_processes(self):
        self.right(3, ["causal", "window", "fewer queries", "dropout, drawn", "float mask",
                       "one block"], torch.float64)

    def test_four_processes(self):
        self.right(4, ["causal", "lengths", "alibi and sinks", "symmetric", "no tokens"],
                   torch.bfloat16)

    def test_two_processes_f16(self):
        self.right(2, ["causal", "window", "alibi and sinks", "bool mask"], torch.float16)

    def test_heads(self):
        """With heads=True all gradients have the bits of one process."""
        self.right(2, list(CASES), torch.float32, True)
        self.right(2, ["causal", "bool mask", "alibi and sinks"], torch.bfloat16, True)
        self.right(2, ["causal", "cap"], torch.float16, True)

    def test_comparison_notices(self):
        """The comparison above fails for a result that differs in one bit, and in a gradient."""
        x = torch.ones(3)
        self.assertFalse(same(x, x.nextafter(x + 1)))
        self.assertFalse(same(torch.zeros(1), -torch.zeros(1)))
        self.assertEqual(processes.run(2, wrong_result),
                         [(True, ["out of causal", "dq of causal"])] * 2)

    def test_dimensions_and_types(self):
        self.assertEqual(processes.run(2, few_dimensions), [(True, True)] * 2)


def wrong_result(rank, size):
    """compare(), where the one process gets a scale that is one bit larger."""
    own = attn.torch.scaled_dot_product_attention
    attn.torch.scaled_dot_product_attention = lambda *a, **o: own(
        *a, scale=math.nextafter(0.25, 1) * (1 + 1e-6), **o)
    return [x for x in compare(rank, size, ["causal"], torch.float32) if x[:3] in ("out", "dq ")]


def few_dimensions(rank, size):
    """Two, three and five dimensions, heads that broadcast, autocast, threads, no gradient."""
    attention = parallel()
    g = torch.Generator().manual_seed(2)
    for shape in ((N, 8), (3, N, 8), (2, 1, 3, N, 8)):
        q = torch.randn(shape, generator=g)
        k = q[..., :1, :, :] + 1 if len(shape) == 5 else q + 1
        want = attn.torch.scaled_dot_product_attention(q, k, k, is_causal=True)
        q, k = attention.shard(q, -2), attention.shard(k, -2)
        out, lse = attention(q, k, k, is_causal=True, return_lse=True)
        assert same(attention.shard(want, -2), out) and lse.shape == out.shape[:-1]
        torch.set_num_threads(2)
        assert same(attention(q, k, k, is_causal=True), out)
        torch.set_num_threads(1)
    with torch.autocast("cpu", torch.bfloat16):
        assert attention(q, k, k).dtype == torch.bfloat16
    return True


# ------------------------------------------------------------------------------------- the layout


def layout(rank, size):
    attention = parallel()
    assert (attention.rank, attention.size) == (rank, size)
    for tokens in (0, 1, 64, 65, 401, 1000):
        want = [i for i in range(tokens) if i // 64 % size == rank]
        assert attention.positions(tokens).tolist() == want
        for dtype in (torch.float32, torch.bool, torch.int64, torch.bfloat16, torch.complex64):
            for dim in (0, 1, -1):
                shape = [3, 2, 4]
                shape[dim] = tokens
                x = torch.arange(math.prod(shape)).reshape(shape).to(dtype)
                part = attention.shard(x, dim)
                assert torch.equal(part, x.index_select(dim, torch.tensor(want, dtype=int)))
                assert torch.equal(attention.gather(part, dim), x)
    x = torch.ones(130, 2, requires_grad=True)
    attention.shard(x, 0).sum().backward()
    assert x.grad.sum() == 2 * attention.positions(130).numel()
    return True


class Layout(unittest.TestCase):
    def test_blocks_of_64(self):
        for size in (1, 3):
            self.assertEqual(processes.run(size, layout), [(True, True)] * size)


# ------------------------------------------------------------------------------------- errors


def call_with(rank, size, change, at=1):
    """A call to which rank `at` passes other arguments; after its error, a right one."""
    attention = parallel(segment_keys=512 if change == "segment_keys" and rank == at else 256)
    given = {n: attention.shard(x, 2) for n, x in zip(("query", "key", "value"), tensors(N, N))}
    given["enable_gqa"] = True
    right = dict(given)
    if rank == at:
        if callable(change):
            given.update(change(given))
        elif change == "raises":
            raise ArithmeticError("an error of the program")
    out_of_memory = change == "no memory" and rank == at
    raises = mock.patch("torch.empty_strided", side_effect=RuntimeError("no memory"))
    try:
        with raises if out_of_memory else nullcontext():
            attention(**given)
    except Exception as error:
        said = "%s: %s" % (type(error).__name__, error)
    else:
        said = "no error"
    if change == "segment_keys":
        return said
    try:
        attention(**right)
    except RuntimeError as error:
        said += " / %s" % error
    return said


MISTAKES = (
    (lambda x: {"key": x["key"].double()},
     "TypeError: rank 1: query is torch.float32, key is torch.float64 and value is torch.float32; "
     "they must share one dtype"),
    (lambda x: {"query": x["query"][..., :8]},
     "ValueError: rank 1: key has D=16 (dimension -1) and query has 8; they must be equal"),
    (lambda x: {"is_causal": 1}, "TypeError: rank 1: is_causal is int; it must be bool"),
    (lambda x: {"query": "q"}, "TypeError: rank 1: query is str; it must be a tensor"),
    (lambda x: {"query": x["query"].to("meta")},
     "ValueError: rank 1: key is on cpu and query on meta; they must be on one device"),
    (lambda x: {"softcap": "x"}, "TypeError: rank 1: softcap is 'x'; it must be a number"),
    (lambda x: {"dropout_p": 1.0},
     "ValueError: rank 1 passes dropout_p=1 and rank 0 does not; all ranks must"),
    (lambda x: {"return_lse": True},
     "ValueError: rank 1 passes return_lse=True and rank 0 does not; all ranks must"),
    ("no memory", "RuntimeError: rank 1: no memory"),
    (lambda x: {"softcap": -1.0}, "ValueError: rank 1: softcap is -1; it must be 0 "),
    (lambda x: {"is_causal": True},
     "ValueError: args: rank 1 has another call than rank 0; they differ in rules"),
    (lambda x: {"dropout_p": 0.5},
     "ValueError: args: rank 1 has another call than rank 0; they differ in rules"),
    (lambda x: {"key": x["key"][..., :-65, :], "value": x["value"][..., :-65, :]},
     "ValueError: rank 0: k has 320 rows; rank 0 of 2 has 279 of S = 535"),
    (lambda x: {"attn_mask": torch.ones(1, 1, 280, 280, dtype=torch.bool)},
     "ValueError: rank 1: mask "),
    (lambda x: {"attn_mask": torch.ones(1, 1, 280, N, requires_grad=True)},
     "NotImplementedError: rank 1: attn_mask needs a gradient, which does not exist over ranks; "
     "pass attn_mask.detach()"),
    (lambda x: {"query": x["query"].clone().requires_grad_()},
     "ValueError: rank 1: a gradient is needed of query, and on rank 0 of nothing; all ranks must "
     "need the same gradients"),
    ("segment_keys", "ValueError: args: rank 1 has another call than rank 0; they differ in "
     "shapes or types"),
)


def mistakes(rank, size):
    return [call_with(rank, size, change) for change, _ in MISTAKES]


def later_mistakes(rank, size):
    """Errors of the backward, of gather and of close."""
    attention, said = parallel(deadline=5), []

    def note(function):
        try:
            function()
        except Exception as error:
            said.append("%s: %s" % (type(error).__name__, error))
        else:
            said.append("no error")

    q, k, v, dout = (attention.shard(x, 2).requires_grad_() for x in tensors(N, N))
    out = attention(q, k, v, enable_gqa=True)
    note(lambda: attention(q, k, v, enable_gqa=True) if rank else torch.autograd.grad(
        out, q, dout, retain_graph=True))
    (g,) = torch.autograd.grad(out, q, dout, create_graph=True)
    note(lambda: g.sum().backward())
    note(lambda: attention.gather(out, 2))
    note(lambda: attention.gather(out.detach()[..., :1 + rank], 2))
    note(lambda: attention.gather(out.detach()[:, :, 1 - rank:], 2))
    note(lambda: attention.positions(-1))
    attention.gather(out.detach(), 2)
    attention.close()
    note(lambda: attention.gather(out.detach(), 2))
    again = parallel()
    again.gather(out.detach(), 2)
    return said


def late(rank, size, way):
    """Rank 1 does not make the second call; what the others say, and after how many seconds."""
    interrupted = dist.new_group([0, 1])
    attention = parallel(deadline=2 if way in ("absent", "fails") else 20)
    q, k, v, _ = (attention.shard(x, 2) for x in tensors(N, N))
    attention(q, k, v, enable_gqa=True)
    if rank == 1:
        if way == "absent":
            time.sleep(6)
        elif way == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif way == "interrupted":
            threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
        elif way == "raises":
            raise ArithmeticError("an error of the program")
        elif way == "fails":  # after the ranks agreed to the call
            with mock.patch("attn._torch_engine.arguments", side_effect=MemoryError("no memory")):
                try:
                    attention(q, k, v, enable_gqa=True)
                except MemoryError as error:
                    first = str(error)
    if rank == 0 and way == "interrupted":
        dist.barrier(interrupted)  # until then rank 1 waits for this rank
    began = time.monotonic()
    for _ in range(2):
        try:
            attention(q, k, v, enable_gqa=True)
            said = "no error"
        except RuntimeError as error:
            said = str(error)
            if "no further call" in said:
                return first, said, time.monotonic() - began
            first = said
        except KeyboardInterrupt:
            first = said = "interrupted"
            dist.barrier(interrupted)
            time.sleep(1)  # if this process ended now, rank 0 might lose the barrier's last message
    return said, "", 0.0


class Example(unittest.TestCase):
    def test_trains_alike(self):
        """examples/context_parallel.py: both ways of training have one curve, which falls."""
        done = subprocess.run([sys.executable, ROOT / "examples" / "context_parallel.py"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout)
        rows = [line.split() for line in done.stdout.splitlines() if line[:4].strip().isdigit()]
        self.assertEqual(len(rows), 10, done.stdout)
        for _, one, two in rows:
            self.assertLess(abs(float(one) - float(two)), 2e-4)
        self.assertLess(float(rows[-1][1]), 0.8 * float(rows[0][1]))
        self.assertIn("The curves agree.", done.stdout)


class Errors(unittest.TestCase):
    def test_mistakes_of_one_rank(self):
        """All ranks raise one error, and the next call works."""
        for rank, (right, said) in enumerate(processes.run(2, mistakes)):
            self.assertTrue(right, said)
            for (_, want), got in zip(MISTAKES, said):
                self.assertTrue(got.startswith(want), "rank %d: %s" % (rank, got))
                self.assertNotIn(" / ", got)

    def test_later_mistakes(self):
        for rank, (right, said) in enumerate(processes.run(2, later_mistakes)):
            self.assertTrue(right, said)
            for want in (
                r"^ValueError: rank 1 calls attention where rank 0 calls a backward pass; all",
                r"^NotImplementedError: attn computes no second derivatives",
                r"^NotImplementedError: rank 0: gather has no gradient; call it on tensor.detach",
                r"^ValueError: rank 1: tensor or dim differs from rank 0's",
                r"^ValueError: rank 0: tensor has 319 tokens in dim; it must have 320 of all 599",
                r"^ValueError: tokens is -1; it must be within 0..2\^56",
                r"^RuntimeError: context_parallel: no further call is possible here, because close",
            ):
                self.assertRegex(said.pop(0), want, "rank %d" % rank)
            self.assertEqual(said, [])

    def missing(self, way, words, most):
        results = processes.run(3, late, way, seconds=30)
        for rank in (0, 2):
            right, (first, second, seconds) = results[rank]
            self.assertTrue(right)
            self.assertRegex(first, words)
            self.assertNotIn("\n", first)
            self.assertIn("call attn.torch.context_parallel again, on all ranks", second)
            self.assertLess(seconds, most)
        return results[1]

    def test_rank_that_does_not_call(self):
        self.missing("absent", "^comm: rank 1 sent nothing within 2 s", 6)

    def test_rank_that_is_killed(self):
        """The others need not wait for the deadline of 20 s."""
        self.assertIsNone(self.missing("killed", "^comm failed .* rank 1", 15))

    def test_rank_that_fails(self):
        """It makes no further call, whose messages would meet the call in which the others wait."""
        said = self.missing("fails", "^comm: rank 1 sent nothing within 2 s|^comm failed", 10)
        self.assertRegex(said[1][1], "no further call is possible here, because .* .no memory.")

    def test_rank_that_raises(self):
        said = self.missing("raises", "^comm failed .* rank 1", 15)
        self.assertEqual(said, (False, "ArithmeticError: an error of the program"))

    def test_interrupted(self):
        """Ctrl-C reaches a rank that waits, and ends the calls of the others."""
        said = self.missing("interrupted", "^comm failed ", 15)
        self.assertEqual(said[1][0], "interrupted")

    def test_members_of_other_groups(self):
        """Ranks that are members of different numbers of groups connect, again and again."""
        self.assertEqual(processes.run(3, other_groups), [(True, 256), (True, 256), (True, None)])

    def test_outside(self):
        with self.assertRaisesRegex(RuntimeError, "^context_parallel needs torch.distributed"):
            attn.torch.context_parallel()
        self.assertEqual(processes.run(2, outside), [(True, True)] * 2)

    def test_no_library(self):
        code = "import attn.torch\ntry: attn.torch.context_parallel()\n"
        code += "except ImportError as error: print(error)"
        for path in ("no-such.so", os.environ["ATTN_LIBRARY"]):
            done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                                  env=dict(os.environ, ATTN_MPI_LIBRARY=path))
            self.assertEqual(done.returncode, 0)
            self.assertEqual(done.stdout.count("\n"), 1)
            self.assertRegex(done.stdout, "libattn-mpi.so cannot be loaded .*`make build`"
                             if "no-such" in path else "has no function attn_mpi_rows")

    def tearDown(self):
        """No process is left."""
        self.assertEqual(multiprocessing.active_children(), [])
        children = Path("/proc/self/task/%d/children" % os.getpid())
        if children.exists():
            self.assertEqual(children.read_text(), "")


def other_groups(rank, size):
    dist.new_group([0])
    pair = dist.new_group([0, 1])
    dist.new_group([0, 2])
    dist.barrier()  # Gloo fails to connect a rank to one that has ended
    if rank == 2:
        return None
    total = 0
    for n in range(2):
        attention = attn.torch.context_parallel(pair)
        rows = torch.full((1, 1, 64, 1), rank + n)
        total += attention.gather(rows, 2).sum().item()  # 64 and 3 * 64
        attention.close()
    return total


def outside(rank, size):
    group = dist.new_group([0])
    attn_of = attn.torch.context_parallel
    for options, want in (({"deadline": 0}, "deadline is 0; it must be a number of seconds above"),
                          ({"deadline": float("nan")}, "deadline is nan"),
                          ({"segment_keys": -1}, "segment_keys is -1; it must be an integer"),
                          ({"heads": 1}, "heads is 1; it must be True or False"),
                          ({"heads": True, "segment_keys": 256},
                           "segment_keys is 256; with heads=True it must be 0")):
        try:
            attn_of(**options)
        except ValueError as error:
            assert want in str(error), error
    if rank == 1:
        try:
            attn_of(group)
        except ValueError as error:
            assert "group does not contain this process" in str(error), error
            return True
        return False
    own = attn_of(group)
    child = os.fork()
    if child == 0:
        try:
            own.gather(torch.zeros(3), 0)
        except RuntimeError as error:
            os._exit(0 if "is a child of the rank's process" in str(error) else 1)
        os._exit(2)
    return own.size == 1 and os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    unittest.main()
