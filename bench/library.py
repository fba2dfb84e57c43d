"""libattn through ctypes: contexts, prepared calls, and measurements of the machine. The structures
of include/attn.h come from the Python package."""

import ctypes
import importlib.util
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_char_p, c_double, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

DTYPES = {"f64": 1, "f32": 2, "f16": 3, "bf16": 4, "bool": 5, "i8": 7}
CAUSAL = {"none": 0, "top-left": 1, "bottom-right": 2}




def _package_structures():
    """Imports python/attn/_structures.py without the package, which would load a library."""
    path = Path(__file__).resolve().parent.parent / "python" / "attn" / "_structures.py"
    spec = importlib.util.spec_from_file_location("attn_structures", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


structures = _package_structures()
ContextOptions, Error, Tensor = structures.ContextOptions, structures.Error, structures.Tensor
SdpaArgs, SdpaGrads = structures.SdpaArgs, structures.SdpaGrads
CacheOptions = structures.CacheOptions


def new_args():
    """ATTN_SDPA_ARGS_INIT."""
    return SdpaArgs(struct_size=ctypes.sizeof(SdpaArgs), window_left=-1, window_right=-1)


def pointed(thing):
    """The address of a structure or a ctypes array, for a field that points at it. The caller must
    keep the object alive."""
    return ctypes.addressof(thing)


def tensor(data, dtype, shape, stride):
    """A view of the memory at address `data`, of four dimensions."""
    four = c_int64 * 4
    return Tensor(data, DTYPES[dtype], four(*shape), four(*stride))


class Failed(Exception):
    """The library returned an error; str() gives its message."""


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
        """The context with this number of threads. All calls with this number share it."""
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
        """A function without arguments that calls attn_sdpa_forward on args. It keeps args
        alive."""
        function, context, error = self.c.attn_sdpa_forward, self.context(threads), Error()
        at_args, at_error = ctypes.byref(args), ctypes.byref(error)

        def call():
            if function(context, at_args, at_error):
                raise Failed(error.message.decode())

        return call

    def store(self, args, dtype="", page_keys=0):
        """Copies the keys and values of args into a cache (of their type, unless another is given)
        and lets args read them from there. Returns a function that frees the cache."""
        (B, Hk, S, D), error, cache = args.k.shape, Error(), c_void_p()
        options = CacheOptions(
            struct_size=ctypes.sizeof(CacheOptions),
            B=B, Hk=Hk, D=D, Dv=args.v.shape[3], dtype=DTYPES.get(dtype, args.k.dtype), max_keys=S,
            page_keys=page_keys,
        )  # fmt: skip
        failed = self.c.attn_cache_create(
            ctypes.byref(options), ctypes.byref(cache), ctypes.byref(error)
        )
        for b in range(B if not failed else 0):
            of_b = []
            for t in (args.k, args.v):
                size = self.c.attn_dtype_size(t.dtype)
                shape = (c_int64 * 4)(1, *t.shape[1:])
                of_b.append(Tensor(t.data + b * t.stride[0] * size, t.dtype, shape, t.stride))
            failed = failed or self.c.attn_cache_append(
                cache, c_int64(b), ctypes.byref(of_b[0]), ctypes.byref(of_b[1]), ctypes.byref(error)
            )
        if failed:
            self.c.attn_cache_destroy(cache)
            raise Failed(error.message.decode())
        args.k = args.v = Tensor()
        args.cache = cache
        return lambda: self.c.attn_cache_destroy(cache)

    def backward(self, args, grads, threads):
        """The same for attn_sdpa_backward, after a forward call with args."""
        function, context, error = self.c.attn_sdpa_backward, self.context(threads), Error()
        at_args, at_grads = ctypes.byref(args), ctypes.byref(grads)
        at_error = ctypes.byref(error)

        def call():
            if function(context, at_args, at_grads, at_error):
                raise Failed(error.message.decode())

        return call

    def together(self, threads, measure):
        """The sum of the results of `measure` on this number of threads at once."""
        return sum(self.pool.map(lambda _: measure(), range(threads)))

    def measure_flops(self, dtype, threads, seconds):
        """Operations per second of multiply-adds in the type in which `dtype` is computed."""
        return self.together(
            threads, lambda: self.c.attn_measure_flops(None, DTYPES[dtype], seconds)
        )

    def measure_read(self, size, threads, seconds):
        """Bytes per second when reading `size` bytes, divided among the threads."""
        return self.together(threads, lambda: self.c.attn_measure_read(size // threads, seconds))


def train_speed(program, **options):
    """Tokens per second of the last steps of `attn train`. Options are those of its command line,
    with their values, or True."""
    command = [str(program), "train", "--color", "never"]
    for name, value in options.items():
        command += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as e:
        raise Failed(str(e))
    if done.returncode:
        raise Failed(done.stderr.strip())
    row = r"^ *\d+ +[\d.]+ +[\d.]+ +[\d.]+ % +(\d+)$"
    speeds = re.findall(row, done.stdout, re.MULTILINE)
    if not speeds:
        raise Failed("attn train printed no speed")
    return float(speeds[-1])


def caches():
    """The caches that the first CPU uses, as "32 KiB L1d, 1 MiB L2"; "" if the system does not
    tell."""
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
    """The number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
