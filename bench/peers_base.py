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
    """torch.nn.functional.scaled_dot_product_attention, or its steps one by one if it lacks an
    option."""

    who, name = "torch", "PyTorch"

    def version(self):
        return torch.__version__.split("+")[0]

    def players(self, p, threads):
        torch.set_num_threads(threads)
        cell = p.cell
        keep = {}

        def result():
            got = keep["out"]  # or for gradients: the heads one after the other
            return got if cell.passes == "forward" else torch.cat([x.flatten() for x in got])

        if cell.passes != "forward":
            call, variant = self.gradients(p, keep), ""
        elif cell.softcap:
            call, variant = self.composed(p, keep), "composed: matmul, tanh, softmax, matmul"
        else:
            call, variant = self.fused(p, keep), ""
        return [Player(self.who, variant, call, result)]

    def gradients(self, p, keep):
        """Gradients by autograd. If only the backward is timed, it runs on a retained graph."""
        if p.cell.softcap:
            raise Cannot("no composition is written for this")
        with torch.inference_mode(False):  # tensors created in that mode cannot have a gradient
            inputs = [t.clone().requires_grad_() for t in (p.q, p.k, p.v)]
            dout, options = p.dout.clone(), self.options(p)
            options = {k: v.clone() if k == "attn_mask" else v for k, v in options.items()}
            function, both = F.scaled_dot_product_attention, p.cell.passes == "both"
            out = function(*inputs, **options)

        def call():
            with torch.inference_mode(False):
                y = function(*inputs, **options) if both else out
                got = torch.autograd.grad(y, inputs, dout, retain_graph=not both)
            keep["out"] = got

        return call

    def options(self, p):
        options = {}
        if p.cell.kv_heads != p.cell.H:
            options["enable_gqa"] = True
        if p.plain_causal():
            options["is_causal"] = True
        else:
            mask = p.whole_mask()
            if mask is not None:
                options["attn_mask"] = mask
        if p.cell.dropout:
            options["dropout_p"] = p.cell.dropout
        return options

    def fused(self, p, keep):
        options = self.options(p)
        q, k, v, function = p.q, p.k, p.v, F.scaled_dot_product_attention

        def call():
            keep["out"] = function(q, k, v, **options)

        return call

    def composed(self, p, keep):
        q, k, v, cap = p.q, p.k, p.v, p.cell.softcap
        mask, scale = p.whole_mask(), p.cell.D**-0.5
        if p.cell.kv_heads != p.cell.H or (mask is not None and mask.dtype != torch.bool):
            raise Cannot("no composition is written for this")
        hidden = None if mask is None else ~mask
        k = k.transpose(2, 3)

        def call():
            x = torch.matmul(q, k).mul_(scale / cap).tanh_().mul_(cap)
            if hidden is not None:
                x.masked_fill_(hidden, float("-inf"))
            keep["out"] = torch.matmul(torch.softmax(x, -1), v)

        return call


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
