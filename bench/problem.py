"""A cell's tensors, created once and shared by all players, and libattn's calls for the cell."""

import ctypes

import torch

import cells
import library

TYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}
SEED = 123


def view(t, dtype):
    return library.tensor(t.data_ptr(), dtype, t.shape, t.stride())


class Problem:
    """q, k, v, and masks for peers that lack an option of libattn."""

    def __init__(self, cell):
        self.cell, self.dtype = cell, TYPES[cell.dtype]
        torch.manual_seed(SEED)
        self.q = self.normals(cell.H, cell.T, cell.D)
        self.k = self.normals(cell.kv_heads, cell.S, cell.D)
        self.v = self.normals(cell.kv_heads, cell.S, cell.value_size)
        self.slopes = torch.pow(2.0, -8.0 * torch.arange(1, cell.H + 1) / cell.H)
        if cell.passes != "forward":
            self.dout = self.normals(cell.H, cell.T, cell.value_size)
        self.mask = None  # in the form that libattn gets
        if cell.mask == "bias":
            self.mask = torch.randn(1, 1, cell.T, cell.S).to(self.dtype)
        elif cell.mask == "padding":
            self.mask = torch.zeros(1, 1, cell.T, cell.S, dtype=torch.bool)
            self.mask[..., : cells.padded_keys(cell)] = True

    def normals(self, heads, rows, columns):
        return torch.randn(self.cell.B, heads, rows, columns).to(self.dtype)

    def offset(self):
        return self.cell.S - self.cell.T if self.cell.causal == "bottom-right" else 0

    def distance(self):
        """j - i - off, [T,S]."""
        i = torch.arange(self.cell.T)[:, None] + self.offset()
        return torch.arange(self.cell.S)[None, :] - i

    def plain_causal(self):
        """Whether the cell is only causal and T = S: every peer has a flag for this."""
        c = self.cell
        return c.causal != "none" and c.T == c.S and not (c.window or c.mask or c.alibi)

    def hides_nothing(self):
        """Whether the cell has one query, at the end of the cache, which sees all keys even if it
        is causal."""
        return self.cell.causal == "none" or (self.cell.T == 1 and not self.cell.window)

    def whole_mask(self):
        """All masks and biases as one tensor [1,1|H,T,S], bool or of the cell's type; None if there
        are none."""
        mask = self.mask
        if not self.hides_nothing():
            seen = self.distance() <= 0
            if self.cell.window:
                seen &= self.distance() > -self.cell.window
            mask = seen[None, None] if mask is None else mask & seen
        if self.cell.alibi:
            bias = self.slopes[:, None, None] * self.distance()
            if mask is not None:
                bias = bias.masked_fill(~mask[0], float("-inf"))
            mask = bias[None].to(self.dtype)
        return mask

    def attn_args(self, dropout=True):
        """attn_sdpa_args and its output tensor."""
        cell, args = self.cell, library.new_args()
        out = torch.full((cell.B, cell.H, cell.T, cell.value_size), float("nan"), dtype=self.dtype)
        for name, t in (("q", self.q), ("k", self.k), ("v", self.v), ("out", out)):
            setattr(args, name, view(t, cell.dtype))
        args.owners = [self, out]  # args points to these, so they must live as long
        args.causal = library.CAUSAL[cell.causal]
        if cell.window:
            args.window_left = cell.window - 1
        if self.mask is not None:
            kind = "bool" if self.mask.dtype == torch.bool else cell.dtype
            args.owners.append(view(self.mask, kind))
            args.mask = library.pointed(args.owners[-1])
        if cell.alibi:
            args.owners.append((ctypes.c_float * cell.H)(*self.slopes.tolist()))
            args.alibi_slopes = library.pointed(args.owners[-1])
        if cell.packed:
            starts = [0]
            for n in cell.packed:
                starts.append(starts[-1] + n)
            args.owners.append((ctypes.c_int64 * len(starts))(*starts))
            args.cu_seqlens_q = args.cu_seqlens_k = library.pointed(args.owners[-1])
            args.sequences = len(cell.packed)
        if cell.weights:
            weights = torch.empty((cell.B, cell.H, cell.T, cell.S))
            args.owners += [weights, view(weights, "f32")]
            args.scores = library.pointed(args.owners[-1])
            args.scores_stage = library.structures.STAGE_WEIGHTS
        args.softcap = cell.softcap
        if dropout:
            args.dropout, args.dropout_seed = cell.dropout, SEED
        return args, out

    def attn_grads(self, args):
        """attn_sdpa_grads for args, which get an lse, and its tensors: dq, dk, dv."""
        cell, kind = self.cell, "f64" if self.cell.dtype == "f64" else "f32"
        grads = library.SdpaGrads(struct_size=ctypes.sizeof(library.SdpaGrads))
        lse = torch.empty((cell.B, cell.H, cell.T, 1), dtype=TYPES[kind])
        args.owners.append(view(lse, kind))
        args.lse = library.pointed(args.owners[-1])
        outs = tuple(torch.full_like(t, float("nan")) for t in (self.q, self.k, self.v))
        grads.owners = (self, lse, outs)
        grads.dout = view(self.dout, cell.dtype)
        for name, t in zip(("dq", "dk", "dv"), outs):
            setattr(grads, name, view(t, cell.dtype))
        return grads, outs
