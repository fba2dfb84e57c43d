"""ONNX Runtime. Three of its operators compute attention; which of them is fastest depends on the
cell.

Attention-23 (ONNX's own) takes [B,H,T,D]; com.microsoft's MultiHeadAttention takes [B,T,H*D], or
keys and values as [B,H,S,D]; GroupQueryAttention is always causal and, when decoding, works on a
cache that is bound both as past and as present, so that nothing is copied.
"""

from ctypes import string_at

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper

from cannot import Cannot
from race import Player

OPSET, IR = 23, 10  # the first opset with Attention; both packages know it
TYPES = {
    torch.float64: TensorProto.DOUBLE,
    torch.float32: TensorProto.FLOAT,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.int32: TensorProto.INT32,
    torch.bool: TensorProto.BOOL,
}


def value_of(t):
    """A copy of a tensor as an ONNX Runtime tensor."""
    t = t.contiguous()
    if t.dtype == torch.bfloat16:
        bits = t.view(torch.uint16).numpy()
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TYPES[t.dtype])
    return onnxruntime.OrtValue.ortvalue_from_numpy(t.numpy())


def tensor_of(value):
    """A copy of an ONNX Runtime tensor as a PyTorch tensor. bf16 has no NumPy type, so its memory
    is read by address."""
    if value.data_type() != "tensor(bfloat16)":
        return torch.from_numpy(value.numpy())
    size = 2 * int(np.prod(value.shape()))
    out = torch.frombuffer(bytearray(string_at(value.data_ptr(), size)), dtype=torch.bfloat16)
    return out.reshape(value.shape())


def rows(t):
    """[B,H,T,D] as [B,T,H*D]."""
    return t.transpose(1, 2).flatten(2)


def with_casts(node, kinds):
    """The node between casts to f32 and back, for types that no operator supports. kinds: the
    element type of each input by its name; outputs have the type of the first."""
    wide, before, after = dict(kinds), [], []
    for name, kind in kinds.items():
        if kind == TensorProto.BFLOAT16:
            before.append(helper.make_node("Cast", [name], [name + "_f32"], to=TensorProto.FLOAT))
            wide[name] = name + "_f32"
    for i, name in enumerate(node.input):
        if name and isinstance(wide[name], str):
            node.input[i] = wide[name]
    for i, name in enumerate(node.output if before else ()):
        node.output[i] = name + "_f32"
        after.append(helper.make_node("Cast", [name + "_f32"], [name], to=TensorProto.BFLOAT16))
    return [*before, node, *after]


class Model:
    """One operator on fixed inputs. inputs: tensors by name, None if omitted; shared: outputs that
    are written into the memory of an input, by name."""

    def __init__(self, operator, inputs, outputs, threads, shared=None, domain="", **attributes):
        shared = shared or {}
        given = {name: t for name, t in inputs.items() if t is not None}
        kinds = {name: TYPES[t.dtype] for name, t in given.items()}
        node = helper.make_node(
            operator,
            [name if t is not None else "" for name, t in inputs.items()],
            outputs,
            domain=domain,
            **attributes,
        )
        graph = helper.make_graph(
            with_casts(node, kinds),
            "cell",
            [helper.make_tensor_value_info(n, kinds[n], t.shape) for n, t in given.items()],
            [helper.make_tensor_value_info(n, next(iter(kinds.values())), None) for n in outputs],
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 4
        self.session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self.bound = self.session.io_binding()
        self.values = {name: value_of(t) for name, t in given.items()}
        for name, value in self.values.items():
            self.bound.bind_ortvalue_input(name, value)
        for name in outputs:
            if name in shared:
                self.bound.bind_ortvalue_output(name, self.values[shared[name]])
            else:
                self.bound.bind_output(name)

    def call(self):
        self.session.run_with_iobinding(self.bound)


class OnnxRuntime:
    who, name = "ort", "ONNX Runtime"

    def version(self):
        return onnxruntime.__version__

    def players(self, p, threads):
        cell = p.cell
        if cell.passes != "forward":
            raise Cannot("it computes no gradients of attention")
        if cell.dropout:
            raise Cannot("none of its attention operators has dropout")
        if cell.packed or cell.weights:
            raise Cannot("no model is written for this")
        found, why = [], []
        for variant, make in (
            ("Attention", self.attention),
            ("MultiHeadAttention", self.multi_head),
            ("GroupQueryAttention", self.group_query),
        ):
            try:
                model = make(p, threads)
                if model is None:
                    continue
                model.call()
            except Exception as e:  # its exceptions have no common class
                why.append(f"{variant}: {str(e).splitlines()[0].split(' : ')[-1]}")
                continue
            if cell.dtype == "bf16":
                variant += ", cast to f32 and back in the model"
            found.append(Player(self.who, variant, model.call, self.result(model, cell)))
        if not found:
            raise Cannot("; ".join(dict.fromkeys(why)) or "no operator fits")
        return found

    def result(self, model, cell):
        def result():
            out = tensor_of(model.bound.get_outputs()[0])
            return out if out.dim() == 4 else out.unflatten(2, (cell.H, -1)).transpose(1, 2)

        return result

    def attention(self, p, threads):
        inputs, options = {"q": p.q, "k": p.k, "v": p.v}, {}
        if p.plain_causal():
            options["is_causal"] = 1
        elif p.whole_mask() is not None:
            inputs["mask"] = p.whole_mask()
        if p.cell.softcap:
            options["softcap"] = p.cell.softcap
        return Model("Attention", inputs, ["out"], threads, **options)

    def multi_head(self, p, threads):
        cell = p.cell
        if cell.softcap or cell.kv_heads != cell.H:
            return None
        inputs, options = {"q": rows(p.q), "k": rows(p.k), "v": rows(p.v)}, {"num_heads": cell.H}
        # With few queries, the time would be mostly its transposition of the whole cache.
        if cell.T < cell.S and cell.D == cell.value_size:
            inputs.update(k=p.k, v=p.v)
        if p.plain_causal():
            options["unidirectional"] = 1
        else:
            mask = p.whole_mask()
            if mask is not None and mask.dtype == torch.bool:
                mask = torch.zeros(mask.shape, dtype=p.dtype).masked_fill(~mask, float("-inf"))
            if mask is not None:
                inputs.update(bias=None, key_padding=None, mask=mask)
        return Model(
            "MultiHeadAttention", inputs, ["out"], threads, domain="com.microsoft", **options
        )

    def group_query(self, p, threads):
        cell = p.cell
        if cell.mask or cell.alibi or (cell.causal == "none" and cell.T > 1):
            return None
        if cell.T < cell.S and cell.dtype == "bf16":  # a cache cannot be shared through casts
            return None
        new = slice(cell.S - cell.T, None)  # the tokens whose keys and values this call appends
        inputs = {"q": rows(p.q), "k": rows(p.k[:, :, new]), "v": rows(p.v[:, :, new])}
        shared = {}
        if cell.T < cell.S:
            inputs.update(past_k=p.k, past_v=p.v)
            shared = {"present_k": "past_k", "present_v": "past_v"}
        else:
            inputs.update(past_k=None, past_v=None)
        inputs["last_key"] = torch.full((cell.B,), cell.S - 1, dtype=torch.int32)
        inputs["total"] = torch.tensor(cell.S, dtype=torch.int32)
        options = dict(num_heads=cell.H, kv_num_heads=cell.kv_heads)
        if cell.window:
            options["local_window_size"] = cell.window
        if cell.softcap:
            options["softcap"] = cell.softcap
        return Model(
            "GroupQueryAttention",
            inputs,
            ["out", "present_k", "present_v"],
            threads,
            shared,
            "com.microsoft",
            **options,
        )
