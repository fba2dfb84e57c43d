"""ONNX's operator FlexAttention (ai.onnx.preview, version 1). If its score_mod consists of
operations that the library has (a scale, a soft cap, a bias, a mask), it becomes one call of the
library.

The parts of score_mod that depend only on the shape of the scores are evaluated by onnx.reference,
once for each shape. The rest must be a chain from the scores to the result, of

    Identity, Cast    Mul, Div by a number    Tanh, then Mul by a number    Add, Sub of a bias
    Where(visible, scores, -inf), Where(hidden, -inf, scores)

in this order. Any other score_mod, and any prob_mod, is refused, because the library cannot compute
it.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from ._onnx_attention import _shaped, attend, check_precision, floats

ndarray = np.ndarray
WIDE = (TensorProto.FLOAT, TensorProto.DOUBLE)


class FlexOptions(NamedTuple):
    scale: Optional[float]
    softmax_precision: Optional[int]


class Scores(NamedTuple):
    """A score_mod in the library's terms: cap * tanh(factor * score / cap) + mask. A cap of 0 means
    factor * score + mask."""

    factor: float = 1.0
    cap: float = 0.0
    bias: Optional[ndarray] = None
    visible: Optional[ndarray] = None

    def mask(self) -> Optional[ndarray]:
        if self.bias is None or self.visible is None:
            return self.visible if self.bias is None else self.bias
        return np.where(self.visible, self.bias, self.bias.dtype.type(-np.inf))


def refuse(what: str) -> NotImplementedError:
    return NotImplementedError("FlexAttention: " + what)


class Step(NamedTuple):
    """A node of the chain: the index of the input that holds the scores, and the names of the
    others."""

    op: str
    at: int
    others: List[str]


class ScoreMod:
    """Analyses the graph of a score_mod. Raises NotImplementedError if the library cannot compute
    it."""

    def __init__(self, graph: GraphProto, opsets: Dict[str, int]) -> None:
        if len(graph.input) != 1 or len(graph.output) != 1:
            raise ValueError("score_mod must have one input and one output")
        self.scores = graph.input[0].name
        constants: List[NodeProto] = []  # nodes that do not depend on the scores' values
        moving: Dict[str, Tuple[NodeProto, int]] = {}  # by result: node, input
        for node in graph.node:
            if any(a.type in (a.GRAPH, a.GRAPHS) for a in node.attribute):
                raise refuse("score_mod has a %s, which attn cannot evaluate" % node.op_type)
            by = [i for i, name in enumerate(node.input) if name in moving or name == self.scores]
            asks = ("Shape", "Size").count(node.op_type) or (
                node.op_type == "CastLike" and by == [1]
            )
            if asks and by:  # needs only the shape or the type
                node = self._of_scores(node, by[0])
            if asks or not by:
                constants.append(node)
            elif len(by) > 1:
                raise refuse(
                    "score_mod has a %s with several inputs that depend on the scores; attn "
                    "supports one" % node.op_type
                )
            else:
                moving.update((name, (node, by[0])) for name in node.output)
        self.steps = self._chain(graph.output[0].name, moving)
        names = sorted({name for step in self.steps for name in step.others})
        self.constants = self._evaluator(graph, constants, names, opsets)
        self.known: Dict[Tuple[Any, ...], Scores] = {}

    def _of_scores(self, node: NodeProto, at: int) -> NodeProto:
        """The same node applied to the scores: everything in the chain has their shape and type."""
        same = NodeProto()
        same.CopyFrom(node)
        same.input[at] = self.scores
        return same

    def _chain(self, result: str, moving: Dict[str, Tuple[NodeProto, int]]) -> List[Step]:
        steps: List[Step] = []
        while result != self.scores:
            if result not in moving:
                raise refuse("the result of score_mod does not depend on the scores")
            node, at = moving[result]
            if node.op_type == "Cast" and all(
                a.name != "to" or a.i not in WIDE for a in node.attribute
            ):
                raise refuse("score_mod has a Cast to a type other than float and double")
            others = [name for i, name in enumerate(node.input) if i != at]
            steps.insert(0, Step(node.op_type, at, others))
            result = node.input[at]
        return steps

    def _evaluator(
        self, graph: GraphProto, nodes: List[NodeProto], names: List[str], opsets: Dict[str, int]
    ) -> ReferenceEvaluator:
        made: Set[str] = {self.scores} | {t.name for t in graph.initializer}
        made.update(name for node in nodes for name in node.output)
        outside = {n for node in nodes for n in node.input if n} | set(names)
        if outside - made:
            raise refuse(
                "score_mod uses %s from the graph around it; attn needs them inside"
                % ", ".join(sorted(outside - made))
            )
        outputs = [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in names]
        part = helper.make_graph(nodes, "constants", list(graph.input), outputs)
        part.initializer.extend(graph.initializer)
        return ReferenceEvaluator(part, opsets=opsets)

    def __call__(self, shape: Tuple[int, ...], dtype: np.dtype) -> Scores:
        """The effect of the score_mod on scores of this shape and type."""
        key = shape + (dtype,)
        found = self.known.get(key)  # another thread may replace self.known
        if found is None:
            like = np.broadcast_to(np.zeros((), dtype), shape)  # only its shape is used
            names = self.constants.output_names
            values = dict(zip(names, list(self.constants.run(names, {self.scores: like}))))
            found = self._read(values, shape)
            self.known = {key: found}
        return found

    def _read(self, values: Dict[str, ndarray], shape: Tuple[int, ...]) -> Scores:
        s = Scores()
        for op, at, names in self.steps:
            others = [np.asarray(values[name]) for name in names]
            for x in others:
                if x.ndim > 4 or any(m not in (1, n) for m, n in zip(x.shape[::-1], shape[::-1])):
                    raise ValueError(
                        "score_mod: %s has an operand of shape %s, which does not broadcast to the "
                        "scores' %s" % (op, x.shape, shape)
                    )
            s = self._step(s, op, at, others)
        return s

    def _step(self, s: Scores, op: str, at: int, others: List[ndarray]) -> Scores:
        plain = s.bias is None and s.visible is None
        if op in ("Identity", "Cast"):  # Cast is from the scores' type to itself
            return s
        if op in ("Mul", "Div") and plain and at == 0 or op == "Mul" and plain:
            if others[0].size != 1:
                raise refuse("score_mod has a %s by several numbers; attn supports one number" % op)
            c = float(others[0].reshape(()))
            c = c if op == "Mul" else 1 / c if c else np.inf
            if not np.isfinite(c):
                raise refuse("score_mod multiplies by %g; the factor must be finite" % c)
            if s.cap == 0:
                return s._replace(factor=s.factor * c)
            if c <= 0:
                raise refuse("score_mod has a soft cap of %g; it must be positive" % (s.cap * c))
            # c * cap * tanh(f x / cap) is a soft cap of c * cap, applied to c * f * x
            return s._replace(factor=s.factor * c, cap=s.cap * c)
        if op == "Tanh" and plain and s.cap == 0:
            return s._replace(cap=1.0)
        if op in ("Add", "Sub") and s.bias is None and (op == "Add" or at == 0):
            return s._replace(bias=others[0] if op == "Add" else -others[0])
        if op == "Where" and at > 0:
            visible, fill = others
            if not (fill == -np.inf).all():
                raise refuse("score_mod has a Where with a value other than -inf")
            visible = visible if at == 1 else ~visible
            if s.visible is not None:
                visible = s.visible & visible
            return s._replace(visible=visible)
        raise refuse("score_mod has a %s, which attn does not support at this position" % op)


def flex_attention(
    o: FlexOptions,
    score_mod: Optional[ScoreMod],
    inputs: Sequence[Any],
    threads: Optional[int] = None,
) -> ndarray:
    """Y [B,H,L,Dv] of Q [B,H,L,D], K [B,Hk,S,D], V [B,Hk,S,Dv], all of one float type, which is
    Y's. A query that sees no key gets 0. Raises TypeError and ValueError."""
    q = floats(inputs[0], "Q")
    k, v = (floats(x, name, q, "Q") for x, name in zip(inputs[1:], "KV"))
    _shaped(q, "Q", B=None, H=None, L=None, D=None)
    B, H, L, D = q.shape
    _shaped(k, "K", B=B, Hk=None, S=None, D=D)
    Hk, S = k.shape[1:3]
    _shaped(v, "V", B=B, Hk=Hk, S=S, Dv=None)
    if H != Hk and (Hk == 0 or H % Hk):
        raise ValueError(
            "Q has %d heads and K has %d; the first must be a multiple of the second" % (H, Hk)
        )
    precision = o.softmax_precision or (11 if q.dtype == np.float64 else 1)
    mod = Scores()
    if score_mod is not None:
        mod = score_mod((B, H, L, S), helper.tensor_dtype_to_np_dtype(precision))
    scale = o.scale if o.scale is not None else 1 / np.sqrt(D) if D else 1.0
    out = np.empty((B, H, L, v.shape[3]), q.dtype)
    attend(
        q, k, v, out, scale=float(scale) * mod.factor, softcap=mod.cap, mask=mod.mask(),
        precision=precision, threads=threads,
    )  # fmt: skip
    return out


def options(values: Dict[str, Any]) -> FlexOptions:
    check_precision(values.get("softmax_precision"))
    return FlexOptions(values.get("scale"), values.get("softmax_precision"))
