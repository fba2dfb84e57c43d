"""The reference for `attn run`: attention in float64 NumPy, written from the definition."""

import numpy as np

UNIT = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-24, "bf16": 2.0**-24}
# The instruction sets that round the weights of bf16 calls, and the relative rounding error
# (docs/NUMERICS.md).
NARROW_ISAS = ("avx512bf16", "amx")
NARROW = 2.0**-8 + 1.1e-4
# For each type: half the distance between neighbouring numbers near 1, and the smallest distance.
STORE = {"f64": (0, 0), "f32": (0, 0), "f16": (2.0**-11, 2.0**-25), "bf16": (2.0**-8, 2.0**-134)}


def expect_near(got, want, tolerance, label=""):
    """|got - want| <= tolerance in every element; else fails and shows the worst of them."""
    got, want, tolerance = np.broadcast_arrays(np.asarray(got, float), want, tolerance)
    with np.errstate(invalid="ignore", divide="ignore"):
        off = abs(got - want)
        good = off <= tolerance
        share = np.where(good, -1, np.where(np.isnan(off), np.inf, off / tolerance))
    if not good.all():
        at = np.unravel_index(share.argmax(), share.shape)
        numbers = got[at], want[at], off[at], tolerance[at]
        raise AssertionError(
            "%s: element %s of %s is %.17g, want %.17g (off by %g, tolerance %g)"
            % (label, list(map(int, at)), list(got.shape), *numbers)
        )


def to_bf16(x):
    """float32 rounded to the nearest bfloat16, ties to even; still as float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32)


def rounded(x, dtype):
    """x rounded to dtype, as float64."""
    if dtype == "bf16":
        return to_bf16(np.asarray(x, np.float32)).astype(np.float64)
    kind = {"f64": np.float64, "f32": np.float32, "f16": np.float16}[dtype]
    return np.asarray(x).astype(kind).astype(np.float64)


def philox(counter, key):
    """Philox4x32-10 (Salmon et al. 2011) on arrays of four counters and two key words."""
    c = [np.asarray(x, np.uint64) for x in counter]
    k0, k1 = key
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        low, high = np.uint64(0xFFFFFFFF), np.uint64(32)
        c = [
            (b >> high) ^ c[1] ^ np.uint64(k0),
            b & low,
            (a >> high) ^ c[3] ^ np.uint64(k1),
            a & low,
        ]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def dropout_keep(shape, p, seed):
    """attn.h, attn_dropout_mask: eight 16-bit draws for each counter, one for each key."""
    B, H, T, S = shape
    bh, i, j = np.meshgrid(np.arange(B * H), np.arange(T), np.arange(S), indexing="ij")
    words = philox([j // 8, i, bh, np.zeros_like(j)], (seed & 0xFFFFFFFF, seed >> 32))
    word = np.choose(j % 8 // 2, words)
    draw = (word >> (j % 2 * 16).astype(np.uint64)) & np.uint64(0xFFFF)
    return (draw >= np.uint64(int(np.floor(p * 65536 + 0.5)))).reshape(shape)


def attention(
    q,
    k,
    v,
    *,
    scale=None,
    causal=None,
    window=(-1, -1),
    mask=None,
    lengths=None,
    softcap=0.0,
    alibi=None,
    alibi_symmetric=False,
    diagonal="top-left",
    sinks=None,
    dropout=0.0,
    seed=0
):
    """q [B,H,T,D], k [B,Hk,S,D], v [B,Hk,S,Dv], float64. Returns a dict with each exact result,
    `reach` (A_i, to which a row's rounding errors are proportional), `mass` (sum of w |v|) and
    `flushed` (the sum of |v| with all weights 1)."""
    B, H, T, D = q.shape
    S = k.shape[2]
    k, v = (np.repeat(x, H // max(x.shape[1], 1), axis=1) for x in (k, v))
    scale = 1 / np.sqrt(D) if scale is None else scale
    raw = scale * np.einsum("bhtd,bhsd->bhts", q, k)
    size = abs(scale) * np.einsum("bhtd,bhsd->bhts", abs(q), abs(k))
    capped = softcap * np.tanh(raw / softcap) if softcap > 0 else raw
    lengths = np.full(B, S) if lengths is None else np.broadcast_to(lengths, B)

    rule = diagonal if causal is None else causal
    off = (
        {"top-left": np.zeros(B, int), "bottom-right": lengths - T}
        .get(rule, np.full(B, rule if isinstance(rule, int) else 0))
        .reshape(B, 1, 1, 1)
    )
    i, j = np.arange(T).reshape(1, 1, T, 1), np.arange(S).reshape(1, 1, 1, S)
    visible = np.broadcast_to(j < lengths.reshape(B, 1, 1, 1), (B, H, T, S)).copy()
    if causal is not None:
        visible &= j <= i + off
    if window[0] >= 0:
        visible &= j >= i + off - window[0]
    if window[1] >= 0:
        visible &= j <= i + off + window[1]
    bias = np.zeros((B, H, T, S))
    if mask is not None and mask.dtype == bool:
        visible &= mask
    elif mask is not None:
        visible &= ~np.isneginf(np.broadcast_to(mask, visible.shape))
        bias = bias + np.where(np.isneginf(mask), 0, mask).astype(np.float64)
    if alibi is not None:
        ahead = j - i - off
        slopes = alibi.astype(np.float64).reshape(1, H, 1, 1)
        bias = bias + slopes * (-abs(ahead) if alibi_symmetric else ahead)

    biased = np.where(visible, capped + bias, -np.inf)
    sink = -np.inf if sinks is None else sinks.astype(np.float64).reshape(1, H, 1, 1)
    top = np.maximum(biased.max(axis=-1, initial=-np.inf, keepdims=True), sink)
    shift = np.where(np.isneginf(top), 0, top)
    power = np.exp(biased - shift)
    total = power.sum(axis=-1, keepdims=True) + np.exp(sink - shift)
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = np.where(total > 0, power / total, 0)
        lse = shift + np.log(total)
    kept = np.ones(weights.shape)
    if dropout > 0:
        kept = dropout_keep(weights.shape, dropout, seed) / (1 - dropout)
    used = weights * kept
    reach = np.where(visible, size + abs(bias), 0).max(axis=-1, initial=0, keepdims=True)
    if sinks is not None:
        reach = np.maximum(reach, np.where(np.isneginf(sink), 0, abs(sink)))
    return {
        "out": used @ v,
        "weights": weights,
        "kept": kept,
        "lse": lse,
        "raw": raw,
        "softcap": capped,
        "biased": biased,
        "reach": reach,
        "mass": used @ abs(v),
        "flushed": np.where(visible, kept, 0) @ np.where(np.isfinite(v), abs(v), 0),
        "size": size + abs(bias),
    }


def gradients(
    q, k, v, dout, dtype, weight_error=0, *, scale=None, softcap=0.0, mask=None, **options
):
    """The gradients of sum(out * dout) by name, each with the allowed error."""
    options.update(scale=scale, softcap=softcap, mask=mask)
    want = attention(q, k, v, **options)
    D, group = q.shape[3], q.shape[1] // max(k.shape[1], 1)
    scale = 1 / np.sqrt(D) if scale is None else scale
    keys, values = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    w, kept, used = want["weights"], want["kept"], want["weights"] * want["kept"]
    slope = 1 / np.cosh(want["raw"] / softcap) ** 2 if softcap > 0 else 1

    def all_of(w, dw, delta, dout, slope, scale, q, k):
        ds = w * (dw - delta)
        dr = ds * slope * scale
        return {
            "grad-q": dr @ k,
            "grad-k": shared(np.swapaxes(dr, 2, 3) @ q, group),
            "grad-v": shared(np.swapaxes(used, 2, 3) @ dout, group),
            "grad-mask": None if mask is None else unbroadcast(ds, mask.shape),
        }

    delta = (dout * want["out"]).sum(-1, keepdims=True)
    exact = all_of(w, kept * (dout @ np.swapaxes(values, 2, 3)), delta, dout, slope, scale, q, keys)
    # rounding errors are proportional to the same sums of absolute values
    sizes = [abs(x) for x in (dout, values, q, keys)]
    dw_size = kept * (sizes[0] @ np.swapaxes(sizes[1], 2, 3))
    delta_size = (sizes[0] * want["mass"]).sum(-1, keepdims=True)
    lse = np.where(np.isfinite(want["lse"]), abs(want["lse"]), 0)
    relative, least = STORE[dtype]
    error = 24 * UNIT[dtype] * (1 + want["reach"] + lse) + weight_error
    if softcap > 0:
        error = error * (1 + want["size"] / softcap)
    error = np.broadcast_to(error, w.shape)
    used = used * error
    # out is rounded when stored, and delta has this error
    stored = (relative + 2 * weight_error) * delta_size / np.maximum(error, 1e-300)
    bounds = all_of(
        w * error, dw_size, -delta_size - stored, sizes[0], slope, abs(scale), sizes[2], sizes[3]
    )
    tiny = 2.0**-100 if dtype != "f64" else 2.0**-900
    for name in exact:
        if exact[name] is not None:
            narrow = 0 if name == "grad-mask" else relative
            bounds[name] = bounds[name] + narrow * abs(exact[name]) * 1.01 + least + tiny
    return exact, bounds


def shared(x, group):
    """The sum over the query heads that share a key head."""
    B, H, S, D = x.shape
    return x.reshape(B, H // max(group, 1), max(group, 1), S, D).sum(2)


def unbroadcast(x, shape):
    """The sum over all dimensions along which `shape` was repeated to that of x."""
    full = (1,) * (x.ndim - len(shape)) + tuple(shape)
    for axis, n in enumerate(full):
        if n == 1:
            x = x.sum(axis, keepdims=True)
    return x.reshape(shape)


def bound(want, result, dtype, weight_error=0):
    """The allowed error of `result`."""
    u = UNIT[dtype]
    tiny = 2.0**-126 if dtype != "f64" else 2.0**-1022
    if result == "out":
        relative, least = STORE[dtype]
        return (
            (8 * u * (1 + want["reach"]) + 2 * weight_error) * want["mass"]
            + relative * abs(want["out"]) * 1.01
            + least
            + tiny * (1 + want["flushed"])  # weights below this may be 0
        )
    if result == "weights":
        return (8 * u * (1 + want["reach"]) + 2 * weight_error) * want["weights"] + tiny
    if result == "lse":
        finite = np.where(np.isfinite(want["lse"]), abs(want["lse"]), 0)
        return 8 * u * (1 + want["reach"] + finite) + weight_error + tiny
    return 8 * u * (1 + want["size"]) + tiny
