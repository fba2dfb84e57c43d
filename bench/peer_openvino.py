"""OpenVINO's CPU plug-in: ScaledDotProductAttention, which the plug-in fuses or decomposes."""

import numpy as np
import openvino
import torch
from openvino import opset13 as op

from cannot import Cannot
from race import Player

TYPES = {
    torch.float64: openvino.Type.f64,
    torch.float32: openvino.Type.f32,
    torch.float16: openvino.Type.f16,
    torch.bfloat16: openvino.Type.bf16,
    torch.bool: openvino.Type.boolean,
}


def value_of(t):
    """A tensor as an OpenVINO tensor that shares its memory."""
    t = t.contiguous()
    if t.dtype == torch.bfloat16:
        return openvino.Tensor(t.view(torch.uint16).numpy(), list(t.shape), TYPES[t.dtype])
    return openvino.Tensor(t.numpy(), shared_memory=True)


def repeat_heads(x, times):
    """[B,Hk,S,D] with each head repeated `times` times, as models with grouped-query attention do
    it."""
    if times == 1:
        return x
    B, Hk, S, D = [d.get_length() for d in x.get_output_partial_shape(0)]
    x = op.unsqueeze(x, op.constant(np.int64([2])))
    x = op.broadcast(x, op.constant(np.int64([B, Hk, times, S, D])))
    return op.reshape(x, op.constant(np.int64([B, Hk * times, S, D])), False)


class OpenVino:
    who, name = "openvino", "OpenVINO"

    def __init__(self):
        self.core = openvino.Core()
        self.native = self.core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")

    def version(self):
        return openvino.__version__.split("-")[0]

    def players(self, p, threads):
        if p.cell.passes != "forward":
            raise Cannot("it computes no gradients")
        if p.cell.dropout:
            raise Cannot("its operator has no dropout")
        if p.cell.packed or p.cell.weights:
            raise Cannot("no model is written for this")
        # If the CPU cannot multiply bf16, the plug-in is much faster in f32 than in bf16: bf16 took
        # 49 times as long for 8 heads of 1024 by 1024, D=64, on AVX-512 without BF16.
        wide = p.cell.dtype == "bf16" and "BF16" not in self.native
        variant = "converted to f32 and back in the model" if wide else ""
        if p.cell.softcap:
            variant = "composed: MatMul, Tanh, Softmax, MatMul"
        try:
            request, keep = self.compile(p, threads, wide)
            request.infer(share_outputs=True)
        except Exception as e:  # its exceptions have no common class
            raise Cannot(str(e).strip().splitlines()[-1])
        return [Player(self.who, variant, self.call(request), self.result(request, keep))]

    def compile(self, p, threads, wide):
        tensors = [p.q, p.k, p.v]
        mask = None if p.plain_causal() else p.whole_mask()
        if mask is not None:
            tensors.append(mask)
        inputs = [op.parameter(list(t.shape), TYPES[t.dtype]) for t in tensors]
        q, k, v = (op.convert(x, "f32") if wide else x for x in inputs[:3])
        times = p.cell.H // p.cell.kv_heads
        k, v = repeat_heads(k, times), repeat_heads(v, times)
        if p.cell.softcap:
            out = self.composed(p, q, k, v)
        else:
            out = op.scaled_dot_product_attention(q, k, v, *inputs[3:], causal=p.plain_causal())
        if wide:
            out = op.convert(out, "bf16")
        model = openvino.Model([op.result(out)], inputs, "cell")
        hint = {"f16": "FP16", "bf16": "BF16"}.get(p.cell.dtype)
        options = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": p.cell.dtype if hint in self.native else "f32",
        }
        request = self.core.compile_model(model, "CPU", options).create_infer_request()
        keep = [value_of(t) for t in tensors]
        for i, value in enumerate(keep):
            request.set_input_tensor(i, value)
        return request, (keep, tensors)

    def composed(self, p, q, k, v):
        number = np.dtype({"f64": "f8", "f32": "f4", "f16": "f2"}[p.cell.dtype]).type
        cap = p.cell.softcap
        x = op.matmul(q, k, False, True)
        x = op.multiply(x, op.constant(number(p.cell.D**-0.5 / cap)))
        x = op.multiply(op.tanh(x), op.constant(number(cap)))
        if not p.hides_nothing():
            bias = torch.zeros(p.cell.T, p.cell.S).masked_fill(p.distance() > 0, float("-inf"))
            x = op.add(x, op.constant(bias.numpy().astype(number)))
        return op.matmul(op.softmax(x, 3), v, False, False)

    def call(self, request):
        def call():
            request.infer(share_outputs=True)

        return call

    def result(self, request, keep):
        def result():
            out = request.get_output_tensor(0)
            keep  # the inputs must live as long as the request
            if out.element_type == openvino.Type.bf16:
                bits = np.array(out.data).view(np.uint16)
                return torch.from_numpy(bits).view(torch.bfloat16).reshape(list(out.shape))
            return torch.from_numpy(np.array(out.data))

        return result
