"""The peers. Each computes a cell in the way that is fastest for it.

A peer's `players(problem, threads)` returns one player for each way to compute the cell. All of
them run; the fastest counts and is named. If there is none it raises Cannot with the reason, which
the table shows. Layouts are the peer's own, masks are created beforehand, and the peer chooses
where outputs are written. Only the call itself is timed.
"""

import torch
import torch.nn.functional as F

from cannot import Cannot
from race import Player


class Torch:
    """torch.nn.functional.scaled_dot_product_attention; and bmm, softmax and bmm, which is what a
    user writes first and which has every option. The heads that share keys are folded into rows
    for it, so that keys are read once."""

    who, name = "torch", "PyTorch"

    def version(self):
        return torch.__version__.split("+")[0]

    def players(self, p, threads):
        torch.set_num_threads(threads)
        return [self.player(p, variant, attend) for variant, attend in self.ways(p)]

    def ways(self, p):
        """Pairs of a variant and a function of q, k and v."""
        if p.cell.packed:
            return [("SDPA in a loop", self.loop(p))]
        ways = []
        if p.cell.softcap and p.cell.passes == "forward" and p.cell.kv_heads == p.cell.H:
            ways.append(("composed: matmul, tanh, softmax, matmul", self.composed(p)))
        elif not p.cell.softcap and not p.cell.weights:
            ways.append(("", self.fused(p)))
        return [*ways, ("bmm, softmax, bmm", self.bmm(p))]

    def player(self, p, variant, attend):
        keep = {}

        def result():
            got = keep["out"]  # or for gradients: the heads one after the other
            forward = p.cell.passes == "forward"
            return got if forward else torch.cat([x.flatten() for x in got])

        if p.cell.passes != "forward":
            return Player(self.who, variant, self.gradients(p, attend, keep), result)
        q, k, v = p.q, p.k, p.v

        def call():
            keep["out"] = attend(q, k, v)

        return Player(self.who, variant, call, result)

    def gradients(self, p, attend, keep):
        """Gradients by autograd. If only the backward is timed, it runs on a retained graph."""
        both = p.cell.passes == "both"
        with torch.inference_mode(False):  # tensors created in that mode cannot have a gradient
            inputs = [t.clone().requires_grad_() for t in (p.q, p.k, p.v)]
            dout, out = p.dout.clone(), attend(*inputs)

        def call():
            with torch.inference_mode(False):
                y = attend(*inputs) if both else out
                got = torch.autograd.grad(y, inputs, dout, retain_graph=not both)
            keep["out"] = got

        return call

    def fused(self, p):
        options = {}
        if p.cell.kv_heads != p.cell.H:
            options["enable_gqa"] = True
        if p.plain_causal():
            options["is_causal"] = True
        else:
            mask = p.whole_mask()
            if mask is not None:
                with torch.inference_mode(False):
                    options["attn_mask"] = mask.clone()
        if p.cell.dropout:
            options["dropout_p"] = p.cell.dropout
        function = F.scaled_dot_product_attention
        return lambda q, k, v: function(q, k, v, **options)

    def loop(self, p):
        lengths = list(p.cell.packed)

        def attend(q, k, v):
            # The gradient of split is one concatenation; that of a slice is as large as the whole.
            parts = zip(*(t.split(lengths, 2) for t in (q, k, v)))
            return torch.cat([F.scaled_dot_product_attention(*x) for x in parts], 2)

        return attend

    def bmm(self, p):
        cell, scale = p.cell, p.cell.D**-0.5
        pairs, rows = cell.B * cell.kv_heads, cell.H // cell.kv_heads * cell.T
        with torch.inference_mode(False):
            bias, factor = self.folded_mask(p), 1
            if bias is None:
                bias, factor = torch.empty((1, 1, 1), dtype=p.dtype), 0
            bias = bias.clone()  # not an inference tensor, which no gradient may pass

        def attend(q, k, v):
            q, v = q.reshape(pairs, rows, cell.D), v.reshape(pairs, cell.S, cell.value_size)
            k = k.reshape(pairs, cell.S, cell.D).transpose(1, 2)
            if cell.softcap:
                x = torch.tanh(torch.bmm(q, k) * (scale / cell.softcap)) * cell.softcap
                x = x + bias if factor else x
            else:
                x = torch.baddbmm(bias, q, k, beta=factor, alpha=scale)
            x = torch.softmax(x, -1)
            if cell.dropout:
                x = F.dropout(x, cell.dropout)
            return torch.bmm(x, v).view(cell.B, cell.H, cell.T, cell.value_size)

        return attend

    def folded_mask(self, p):
        """All masks and biases as one sum for the folded rows; None if there are none."""
        cell, mask = p.cell, p.whole_mask()
        if mask is None:
            return None
        if mask.dtype == torch.bool:
            mask = torch.zeros(mask.shape, dtype=p.dtype).masked_fill(~mask, float("-inf"))
        if mask.shape[1] == 1:
            group = cell.H // cell.kv_heads
            return mask.expand(1, group, cell.T, cell.S).reshape(1, -1, cell.S)
        return mask.reshape(cell.kv_heads, -1, cell.S).repeat(cell.B, 1, 1)

    def composed(self, p):
        cap, mask, scale = p.cell.softcap, p.whole_mask(), p.cell.D**-0.5
        if mask is not None and mask.dtype != torch.bool:
            raise Cannot("no composition is written for this")
        hidden = None if mask is None else ~mask

        def attend(q, k, v):
            x = torch.matmul(q, k.transpose(2, 3)).mul_(scale / cap).tanh_().mul_(cap)
            if hidden is not None:
                x.masked_fill_(hidden, float("-inf"))
            return torch.matmul(torch.softmax(x, -1), v)

        return attend


def all_peers(names):
    """The peers of these names. The modules are loaded only if asked for."""
    made = []
    for name in names:
        if name == "torch":
            made.append(Torch())
        elif name == "ort":
            from peer_ort import OnnxRuntime

            made.append(OnnxRuntime())
        else:
            from peer_openvino import OpenVino

            made.append(OpenVino())
    return made
