"""libattn through ctypes: the structs of include/attn.h, a context, and what the machine can do.

The structs follow the header field by field; tests/cli/test_bench_tools.py compares the offset of
each with what a C compiler says. A field that the header gains at its end may be missing here: the
library fills in what a shorter struct does not have.
"""

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from ctypes import POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int, c_int64
from ctypes import c_size_t, c_uint64, c_void_p
from pathlib import Path

DTYPES = {"f64": 1, "f32": 2, "f16": 3, "bf16": 4, "bool": 5}
CAUSAL = {"none": 0, "top-left": 1, "bottom-right": 2}


class Error(Structure):
    _fields_ = [("status", c_int), ("argument", c_char * 24), ("message", c_char * 232)]


class Tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_int),
        ("shape", c_int64 * 4),
        ("stride", c_int64 * 4),
    ]


class ContextOptions(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("threads", c_int),
        ("isa", c_char_p),
        ("allocate", c_void_p),
        ("release", c_void_p),
        ("memory_user", c_void_p),
        ("parallel_for", c_void_p),
        ("parallel_user", c_void_p),
    ]


class SdpaArgs(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("out", Tensor),
        ("scale", c_double),
        ("causal", c_int),
        ("causal_offset", c_int64),
        ("window_left", c_int64),
        ("window_right", c_int64),
        ("mask", POINTER(Tensor)),
        ("key_lengths", POINTER(c_int64)),
        ("cu_seqlens_q", POINTER(c_int64)),
        ("cu_seqlens_k", POINTER(c_int64)),
        ("sequences", c_int64),
        ("alibi_slopes", POINTER(c_float)),
        ("sink_logits", POINTER(c_float)),
        ("softcap", c_double),
        ("dropout", c_double),
        ("dropout_seed", c_uint64),
        ("precision", c_int),
        ("lse", POINTER(Tensor)),
        ("scores", POINTER(Tensor)),
        ("scores_stage", c_int),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
    ]


class SdpaGrads(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("dout", Tensor),
        ("dlse", POINTER(Tensor)),
        ("dq", Tensor),
        ("dk", Tensor),
        ("dv", Tensor),
        ("dmask", POINTER(Tensor)),
        ("dalibi_slopes", POINTER(c_double)),
        ("dsink_logits", POINTER(c_double)),
    ]


def new_args():
    """ATTN_SDPA_ARGS_INIT."""
    return SdpaArgs(struct_size=ctypes.sizeof(SdpaArgs), window_left=-1, window_right=-1)


def tensor(data, dtype, shape, stride):
    """A view of the memory at address `data`, of four dimensions."""
    four = c_int64 * 4
    return Tensor(data, DTYPES[dtype], four(*shape), four(*stride))


class Failed(Exception):
    """The library returned an error; the text is its message."""


class Library:
    def __init__(self, path):
        self.path = Path(path).resolve()
        self.c = ctypes.CDLL(str(self.path))
        self.c.attn_version.restype = c_char_p
        self.c.attn_measure_flops.restype = c_double
        self.c.attn_measure_flops.argtypes = [c_char_p, c_int, c_double]
        self.c.attn_measure_read.restype = c_double
        self.c.attn_measure_read.argtypes = [c_size_t, c_double]
        self.c.attn_context_isa.restype = c_char_p
        self.c.attn_context_isa.argtypes = [c_void_p]
        self.contexts = {}
        self.pool = ThreadPoolExecutor()

    def version(self):
        return self.c.attn_version().decode()

    def isa(self):
        return self.c.attn_context_isa(None).decode()

    def features(self):
        text = ctypes.create_string_buffer(1024)
        self.c.attn_cpu_features(text, c_size_t(len(text)))
        return text.value.decode()

    def context(self, threads):
        """The context of so many threads; all calls of that number share it."""
        if threads not in self.contexts:
            made, error = c_void_p(), Error()
            options = ContextOptions(struct_size=ctypes.sizeof(ContextOptions), threads=threads)
            if self.c.attn_context_create(
                ctypes.byref(options), ctypes.byref(made), ctypes.byref(error)
            ):
                raise Failed(error.message.decode())
            self.contexts[threads] = made
        return self.contexts[threads]

    def forward(self, args, threads):
        """A function of no arguments that calls attn_sdpa_forward on args, which it keeps."""
        function, context, error = self.c.attn_sdpa_forward, self.context(threads), Error()
        at_args, at_error = ctypes.byref(args), ctypes.byref(error)

        def call():
            if function(context, at_args, at_error):
                raise Failed(error.message.decode())

        return call

    def backward(self, args, grads, threads):
        """The same of attn_sdpa_backward, after a forward call with args."""
        function, context, error = self.c.attn_sdpa_backward, self.context(threads), Error()
        at_args, at_grads = ctypes.byref(args), ctypes.byref(grads)
        at_error = ctypes.byref(error)

        def call():
            if function(context, at_args, at_grads, at_error):
                raise Failed(error.message.decode())

        return call

    def together(self, threads, measure):
        """The sum of what `measure` gives on so many threads at once."""
        return sum(self.pool.map(lambda _: measure(), range(threads)))

    def measure_flops(self, dtype, threads, seconds):
        """Operations a second of multiply-adds in the type that `dtype` is computed in."""
        return self.together(
            threads, lambda: self.c.attn_measure_flops(None, DTYPES[dtype], seconds)
        )

    def measure_read(self, size, threads, seconds):
        """Bytes a second of reading `size` bytes, divided among the threads."""
        return self.together(threads, lambda: self.c.attn_measure_read(size // threads, seconds))


def caches():
    """The caches that the first CPU uses, as "32 KiB L1d, 1 MiB L2"; "" if nobody says."""
    found = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = (
                (index / name).read_text().strip() for name in ("level", "type", "size")
            )
        except OSError:
            continue
        if kind == "Instruction" or not size.endswith("K"):
            continue
        kib = int(size[:-1])
        text = f"{kib / 1024:.4g} MiB" if kib >= 1024 else f"{kib} KiB"
        found.append(f"{text} L{level}" + ("d" if kind == "Data" else ""))
    return ", ".join(found)


def cpus():
    """How many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
