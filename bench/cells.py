"""The grid of bench/peers.py: the attention calls that are measured, and the work of each.

To add a cell, add a line to GRID. If it needs an option that `Cell` lacks, add the field here, its
effect to `visible_pairs` if it masks keys, its field of attn_sdpa_args to problem.py, and to each
peer the same option, or the exception that it has none.
"""

import re
from typing import NamedTuple, Optional

BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2}

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
    return BYTES[cell.dtype] * cell.B * cell.kv_heads * cell.S * (cell.D + cell.value_size)


def figure(cell, seconds):
    """The figure for a call of `seconds`, in the cell's unit."""
    if cell.unit == MICROSECONDS:
        return 1e6 * seconds
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


def grid(dtypes=DTYPES, only: Optional[re.Pattern] = None):
    """The cells of these types, in this order. With a pattern, only those whose "name dtype" it
    matches."""
    cells = [cell._replace(dtype=d) for d in dtypes for cell, its_dtypes in GRID if d in its_dtypes]
    return [c for c in cells if only is None or only.search(f"{c.name} {c.dtype}")]
