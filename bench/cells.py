"""The cells that are measured, and the work of each: GRID for bench/peers.py; WEAK and SERIES, in
which libattn 0.1 was slow, for bench/weak.py.

To add a cell, add a line to its list. If it needs an option that `Cell` lacks, add the field here,
its effect to `visible_pairs` if it masks keys, its field of attn_sdpa_args to problem.py, and to
each peer the same option, or the exception that it has none.
"""

import re
from typing import NamedTuple, Optional

BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i8": 1}

# For each unit of a cell's figure: the machine's own limit that is shown beside it.
GFLOPS, GBPS, MICROSECONDS = "GFLOP/s", "GB/s", "us"


class Cell(NamedTuple):
    """One attention call. Letters as in attn.h; Hk and Dv of 0 mean H and D."""

    name: str
    B: int
    H: int
    T: int
    S: int
    D: int
    Hk: int = 0
    Dv: int = 0
    causal: str = "none"  # none, top-left, bottom-right
    window: int = 0  # 256: a query sees itself and the 255 keys before it; 0: all
    mask: str = ""  # padding: [T,S] bool, the last 30 % of keys are masked; bias: [T,S] float
    alibi: bool = False  # peers get it as a float bias [H,T,S]
    softcap: float = 0.0
    dropout: float = 0.0
    unit: str = GFLOPS
    from_c: bool = False  # libattn is called by tiny.c, without Python
    cached: bool = False  # libattn reads its cache; the peers read tensors with the same contents
    dtype: str = "f32"
    passes: str = "forward"  # forward, backward (gradients with respect to q, k and v), both
    packed: tuple = ()  # the lengths of packed sequences; T and S are their sum
    weights: bool = False  # the weights are returned, too
    store: str = ""  # the type of libattn's cache, if it is not dtype
    page_keys: int = 0  # keys in a page of libattn's cache; 0: contiguous

    @property
    def kv_heads(self):
        return self.Hk or self.H

    @property
    def value_size(self):
        return self.Dv or self.D


def padded_keys(cell):
    """The number of keys that a padding mask leaves visible."""
    return cell.S - 3 * cell.S // 10 if cell.mask == "padding" else cell.S


def visible_pairs(cell):
    """The number of (query, key) pairs that one head computes."""
    if cell.packed:
        return sum(n * n for n in cell.packed)
    offset = cell.S - cell.T if cell.causal == "bottom-right" else 0
    keys = padded_keys(cell)
    pairs = 0
    for i in range(cell.T):
        last = keys if cell.causal == "none" else min(keys, max(0, i + offset + 1))
        first = max(0, i + offset - cell.window + 1) if cell.window else 0
        pairs += max(0, last - first)
    return pairs


def flop(cell):
    """Operations of a call: two products and their sums for each visible pair; in the backward
    there are five products, of which three are over D and two over Dv."""
    D, Dv = cell.D, cell.value_size
    width = {"forward": D + Dv, "backward": 3 * D + 2 * Dv, "both": 4 * D + 3 * Dv}[cell.passes]
    return 2 * cell.B * cell.H * visible_pairs(cell) * width


def kv_bytes(cell):
    """Bytes of K and V, which a decoding call must read once."""
    size = BYTES[cell.store or cell.dtype]
    return size * cell.B * cell.kv_heads * cell.S * (cell.D + cell.value_size)


class Module(NamedTuple):
    """A call of a module, or a step of training."""

    name: str
    kind: str  # gelu, layer norm, cross-entropy, linear, adamw, train, append
    # rows and columns; linear: rows, In, Out; adamw: numbers; train: embed, layers, heads, length,
    # batch; append (to a cache of type i8): heads, rows, columns
    sizes: tuple
    passes: str = "forward"  # forward, backward
    unit: str = GBPS
    dtype: str = "f32"


# Tensors that a call reads or writes once, as (kind, passes).
MODULE_TENSORS = {
    ("gelu", "forward"): 2,
    ("gelu", "backward"): 3,
    ("layer norm", "forward"): 2,
    ("layer norm", "backward"): 3,
    ("cross-entropy", "forward"): 1,
    ("cross-entropy", "backward"): 2,
    ("adamw", "forward"): 7,  # param, grad, m, v; param, m and v again
    ("append", "forward"): 2.5,  # keys and values of f32, and their bytes in the cache
}


def module_bytes(module):
    """Bytes that must be read and written; of a linear layer of one row those of its weight."""
    if module.kind == "linear":
        return BYTES[module.dtype] * module.sizes[1] * module.sizes[2]
    size = MODULE_TENSORS[module.kind, module.passes] * BYTES[module.dtype]
    for n in module.sizes:
        size *= n
    return size


def figure(cell, seconds):
    """The figure for a call of `seconds`, in the cell's unit."""
    if cell.unit == MICROSECONDS:
        return 1e6 * seconds
    if isinstance(cell, Module):
        return 1e-9 * module_bytes(cell) / seconds
    return 1e-9 * (kv_bytes(cell) if cell.unit == GBPS else flop(cell)) / seconds


# Each entry is a cell and the storage types with which it is measured.
F32 = ("f32",)
HALF = ("f32", "bf16")
SHORT = ("f32", "bf16", "f16")
DECODE = dict(causal="bottom-right", unit=GBPS)
CACHED = dict(cached=True, **DECODE)
BACKWARD = dict(passes="backward")
BOTH = dict(passes="both")
GRID = [
    (Cell("6 x 6, D=16, from Python", 1, 1, 6, 6, 16, unit=MICROSECONDS), F32),
    (Cell("6 x 6, D=16, from C", 1, 1, 6, 6, 16, unit=MICROSECONDS, from_c=True), F32),
    (Cell("12h 32, D=64", 1, 12, 32, 32, 64), SHORT),
    (Cell("12h 128, D=64", 1, 12, 128, 128, 64), SHORT),
    (Cell("12h 512, D=64", 1, 12, 512, 512, 64), SHORT + ("f64",)),
    (Cell("12h 512, D=128", 1, 12, 512, 512, 128), HALF),
    (Cell("8h 2048, D=64", 1, 8, 2048, 2048, 64), SHORT),
    (Cell("8h 2048, D=128", 1, 8, 2048, 2048, 128), SHORT),
    (Cell("8h 2048, D=64, causal", 1, 8, 2048, 2048, 64, causal="top-left"), SHORT),
    (Cell("8h 2048, D=128, causal", 1, 8, 2048, 2048, 128, causal="top-left"), SHORT),
    (Cell("2h 8192, D=128, causal", 1, 2, 8192, 8192, 128, causal="top-left"), HALF),
    (Cell("8h 1000, D=80", 1, 8, 1000, 1000, 80), SHORT),
    (
        Cell("32:8h 512, D=128, causal", 1, 32, 512, 512, 128, Hk=8, causal="top-left"),
        HALF,
    ),
    (
        Cell("8h 2048, D=64, window 256", 1, 8, 2048, 2048, 64, causal="top-left", window=256),
        HALF,
    ),
    (Cell("8h 2048, D=64, padding mask", 1, 8, 2048, 2048, 64, mask="padding"), HALF),
    (Cell("8h 2048, D=64, float mask", 1, 8, 2048, 2048, 64, mask="bias"), F32),
    (Cell("8h 2048, D=64, causal ALiBi", 1, 8, 2048, 2048, 64, causal="top-left", alibi=True), F32),
    (
        Cell(
            "8h 2048, D=64, causal softcap", 1, 8, 2048, 2048, 64, causal="top-left", softcap=30.0
        ),
        F32,
    ),
    (Cell("8h 2048, D=64, dropout 0.1", 1, 8, 2048, 2048, 64, dropout=0.1), F32),
    (Cell("8h 1024, D=128, Dv=64", 1, 8, 1024, 1024, 128, Dv=64), HALF),
    (
        Cell("8h 1024, D=192, Dv=128, causal", 1, 8, 1024, 1024, 192, Dv=128, causal="top-left"),
        HALF,
    ),
    (Cell("decode 32h of 4096", 1, 32, 1, 4096, 128, **DECODE), SHORT),
    (Cell("decode 32h of 4096, 4 queries", 1, 32, 4, 4096, 128, **DECODE), SHORT),
    (Cell("decode batch 8, 8h of 2048", 8, 8, 1, 2048, 128, **DECODE), F32),
    (Cell("decode 32:4h of 8192", 1, 32, 1, 8192, 128, Hk=4, **DECODE), SHORT),
    (Cell("decode 32h 4096, own cache", 1, 32, 1, 4096, 128, **CACHED), HALF),
    (Cell("decode 8x8h 2048, own cache", 8, 8, 1, 2048, 128, **CACHED), F32),
    (Cell("decode 32:4h 8192, own cache", 1, 32, 1, 8192, 128, Hk=4, **CACHED), ("bf16",)),
    (Cell("backward 12h 128, D=64", 1, 12, 128, 128, 64, **BACKWARD), HALF),
    (Cell("backward 12h 512, D=64", 1, 12, 512, 512, 64, **BACKWARD), HALF + ("f64",)),
    (Cell("backward 1h 2048, D=64", 1, 1, 2048, 2048, 64, **BACKWARD), HALF),
    (Cell("backward 8h 2048, D=64", 1, 8, 2048, 2048, 64, **BACKWARD), HALF),
    (Cell("backward 8h 2048, D=128", 1, 8, 2048, 2048, 128, **BACKWARD), HALF),
    (
        Cell("backward 8h 2048, D=64, causal", 1, 8, 2048, 2048, 64, causal="top-left", **BACKWARD),
        HALF,
    ),
    (
        Cell("backward 32:8h 512, D=128", 1, 32, 512, 512, 128, Hk=8, **BACKWARD),
        HALF,
    ),
    (Cell("backward 8h 1024, dropout", 1, 8, 1024, 1024, 64, dropout=0.1, **BACKWARD), F32),
    (Cell("both 8h 1024, D=64", 1, 8, 1024, 1024, 64, **BOTH), HALF),
    (Cell("both 8h 1024, causal", 1, 8, 1024, 1024, 64, causal="top-left", **BOTH), F32),
    (Cell("both 8h 1024, dropout", 1, 8, 1024, 1024, 64, dropout=0.1, **BOTH), F32),
    (Cell("both 8h 1024, float mask", 1, 8, 1024, 1024, 64, mask="bias", **BOTH), F32),
]

DTYPES = ("f32", "bf16", "f16", "f64")


def packed(name, lengths, **options):
    """A cell of packed sequences, 8 heads, D = 64."""
    total = sum(lengths)
    return Cell(name, 1, 8, total, total, 64, packed=tuple(lengths), **options)


def from_to(count, shortest, longest):
    """So many lengths between two, all about as often, in a mixed order."""
    return [shortest + 7 * n % (longest - shortest + 1) for n in range(count)]


def module(name, kind, *sizes, **options):
    return Module(name, kind, sizes, **options)


def both_passes(name, kind, *sizes):
    return [
        (module(f"{name}, {passes}", kind, *sizes, passes=passes), F32)
        for passes in ("forward", "backward")
    ]


# Cells in which libattn 0.1 was slower than another library, or far from the machine's limit: on a
# Zen 5 first, and on a Zen 4. Cells whose names begin with "decode" have the queries at the end.
BF16 = ("bf16",)
WEAK = [
    *both_passes("GELU 4096 x 128", "gelu", 4096, 128),
    *both_passes("layer norm 512 x 768", "layer norm", 512, 768),
    *both_passes("cross-entropy 512 x 256", "cross-entropy", 512, 256),
    *both_passes("cross-entropy 512 x 50257", "cross-entropy", 512, 50257),
    (module("AdamW, 4M numbers", "adamw", 1 << 22), F32),
    (module("train E64 L2 T64 B32", "train", 64, 2, 2, 64, 32, unit=MICROSECONDS), F32),
    (module("train E256 L4 T128 B16", "train", 256, 4, 4, 128, 16, unit=MICROSECONDS), F32),
    (module("linear 1 x 768 to 768", "linear", 1, 768, 768), F32),
    (module("linear 1 x 768 to 3072", "linear", 1, 768, 3072), F32),
    (packed("packed 1024 of 1 to 16", from_to(1024, 1, 16)), HALF),
    (packed("packed 1024 of 8", [8] * 1024), HALF),
    (packed("backward packed 1024 of 8", [8] * 1024, **BACKWARD), HALF),
    (packed("backward packed 1024 of 1 to 16", from_to(1024, 1, 16), **BACKWARD), HALF),
    (Cell("decode 32h of 1024, D=24", 1, 32, 1, 1024, 24, **DECODE), F32),
    (Cell("decode 32h of 1024, D=40", 1, 32, 1, 1024, 40, **DECODE), F32),
    (Cell("decode 32h of 1024, D=56", 1, 32, 1, 1024, 56, **DECODE), F32),
    (Cell("decode 32h 1024 D=40, own cache", 1, 32, 1, 1024, 40, **CACHED), F32),
    (Cell("decode 71:1h of 4096, D=64", 1, 71, 1, 4096, 64, Hk=1, **DECODE), HALF),
    (Cell("decode 53:1h of 4096, D=64", 1, 53, 1, 4096, 64, Hk=1, **DECODE), BF16),
    (Cell("decode 37:1h of 2048, D=64", 1, 37, 1, 2048, 64, Hk=1, **DECODE), BF16),
    (Cell("28:4h, 9 queries of 4096", 1, 28, 9, 4096, 128, Hk=4, causal="bottom-right"), BF16),
    (Cell("40:8h, 12 queries of 2048", 1, 40, 12, 2048, 128, Hk=8, causal="bottom-right"), BF16),
    (Cell("8h, 9 queries of 8192", 1, 8, 9, 8192, 128, causal="bottom-right"), BF16),
    (Cell("8h, 16 queries of 8192", 1, 8, 16, 8192, 128, causal="bottom-right"), BF16),
    (Cell("32h, 16 queries of 2048", 1, 32, 16, 2048, 128, causal="bottom-right"), BF16),
    (Cell("32 x 12h 48, D=64", 32, 12, 48, 48, 64), F32),
    (Cell("64 x 12h 24, D=64", 64, 12, 24, 24, 64), F32),
    (Cell("64 x 12h 32, D=64", 64, 12, 32, 32, 64), F32),
    (Cell("64 x 12h 48, D=64", 64, 12, 48, 48, 64), F32),
    (Cell("8h 33, D=256", 1, 8, 33, 33, 256), F32),
    (Cell("both 32 x 8h 64, D=64", 32, 8, 64, 64, 64, **BOTH), BF16),
    (Cell("both 4h 512, D=256", 1, 4, 512, 512, 256, **BOTH), BF16),
    (Cell("backward 8h, 1 query of 1024", 1, 8, 1, 1024, 64, **BACKWARD), HALF),
    (Cell("backward 8h, 1 query of 2048", 1, 8, 1, 2048, 64, **BACKWARD), HALF),
    (Cell("8h 1024, D=64, with weights", 1, 8, 1024, 1024, 64, weights=True), BF16),
    (Cell("backward 64 x 8h 16, D=32", 64, 8, 16, 16, 32, **BACKWARD), F32),
    (Cell("decode 64 x 8h of 16, D=64", 64, 8, 1, 16, 64, **DECODE), F32),
    (Cell("decode 16:1h D=576, own cache", 1, 16, 1, 4096, 576, Hk=1, Dv=512, **CACHED), BF16),
    (Cell("8h 512, D=320", 1, 8, 512, 512, 320), BF16),
    (Cell("8h 512, D=512", 1, 8, 512, 512, 512), BF16),
    (Cell("decode 32h of 4096, D=128", 1, 32, 1, 4096, 128, **DECODE), HALF),
    (Cell("decode 32h of 4096, D=64", 1, 32, 1, 4096, 64, **DECODE), HALF),
    (Cell("decode 32:4h of 8192, D=128", 1, 32, 1, 8192, 128, Hk=4, **DECODE), HALF),
    (Cell("decode 32h 4096, i8 cache", 1, 32, 1, 4096, 128, store="i8", **CACHED), BF16),
    (module("append 4096 rows to an i8 cache", "append", 8, 4096, 128), F32),
]

# Calls in which one size grows, measured with libattn alone: the time must not fall when the size
# grows, because then padding by hand would pay. Each entry: what grows, cells with the sizes as
# their names, storage types. A name that ends with "each" has the time of one packed sequence.
LAST = dict(causal="bottom-right")
SERIES = [
    (
        "packed sequences of 1, each",
        [packed(str(n), [1] * n) for n in (16, 256, 1024, 4096, 16384)],
        F32,
    ),
    (
        "backward of packed sequences of 1, each",
        [packed(str(n), [1] * n, **BACKWARD) for n in (16, 256, 1024, 4096, 16384)],
        F32,
    ),
    (
        "queries, 32h of 2048, D=128",
        [Cell(str(n), 1, 32, n, 2048, 128, **LAST) for n in (1, 2, 4, 8, 9, 12, 16)],
        HALF,
    ),
    (
        "queries, 32:8h of 4096, D=128",
        [Cell(str(n), 1, 32, n, 4096, 128, Hk=8, **LAST) for n in (1, 2, 3, 4, 8)],
        HALF,
    ),
    (
        "queries, 28:4h of 4096, D=128",
        [Cell(str(n), 1, 28, n, 4096, 128, Hk=4, **LAST) for n in (8, 9, 10, 16)],
        HALF,
    ),
    ("T = S, 12h, D=64", [Cell(str(n), 1, 12, n, n, 64) for n in (16, 17, 32, 33, 64, 65)], HALF),
    (
        "D, decode 32h of 1024",
        [Cell(str(n), 1, 32, 1, 1024, n, **LAST) for n in (16, 24, 32, 40, 48, 56, 64)],
        HALF,
    ),
    (
        "query heads of 1 key head, 4096, D=64",
        [Cell(str(n), 1, n, 1, 4096, 64, Hk=1, **LAST) for n in (32, 37, 53, 64, 71, 80)],
        HALF,
    ),
    (
        "window, 8h 2048, D=64",
        [
            Cell(str(n), 1, 8, 2048, 2048, 64, causal="top-left", window=n)
            for n in (8, 16, 32, 64, 128)
        ],
        F32,
    ),
    (
        "keys in a page, decode 32h of 4096",
        [Cell(str(n), 1, 32, 1, 4096, 128, page_keys=n, **CACHED) for n in (64, 256, 4096)],
        HALF,
    ),
]


def grid(dtypes=DTYPES, only: Optional[re.Pattern] = None):
    """The cells of these types, in this order. With a pattern, only those whose "name dtype" it
    matches."""
    cells = [cell._replace(dtype=d) for d in dtypes for cell, its_dtypes in GRID if d in its_dtypes]
    return [c for c in cells if only is None or only.search(f"{c.name} {c.dtype}")]


def weak(only: Optional[re.Pattern] = None):
    """The cells of WEAK, in its order, each once for each of its types."""
    cells = [cell._replace(dtype=d) for cell, dtypes in WEAK for d in dtypes]
    return [c for c in cells if only is None or only.search(f"{c.name} {c.dtype}")]


def series(only: Optional[re.Pattern] = None):
    """The series, each once for each of its types: (name, dtype, cells)."""
    found = [
        (name, d, [cell._replace(dtype=d) for cell in sizes])
        for name, sizes, dtypes in SERIES
        for d in dtypes
    ]
    return [s for s in found if only is None or only.search(f"{s[0]} {s[1]}")]
