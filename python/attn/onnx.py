"""Runs ONNX models and computes their attention with libattn: a backend as onnx.backend.base
describes it.

    import attn.onnx
    model = attn.onnx.prepare(onnx.load("model.onnx"))
    y, *_ = model.run([q, k, v])            # or {"Q": q, "K": k, "V": v}

Attention of opset 23, 24 and 25, with all inputs, outputs and attributes; FlexAttention of
ai.onnx.preview, if the library can compute its score_mod. Every such node is one call of the
library. Other nodes of the model are evaluated by onnx.reference, which is exact and slow. A model
without attention is refused.

`python3 -m attn.onnx` runs ONNX's own backend tests of both operators and prints how many pass.

Needs the package onnx; tested with 1.23.2, whose operator definitions it follows. Source:
onnx.ai/onnx.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Type, Union

try:
    import onnx
    from onnx import checker, defs, helper, inliner
    from onnx.backend.base import Backend as _Base
    from onnx.backend.base import BackendRep, namedtupledict
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "attn.onnx needs the package onnx, which cannot be imported (%s): pip install onnx" % error
    ) from None

from . import _onnx_attention as _attention
from . import _onnx_flex as _flex

__all__ = ["Backend", "Model", "is_compatible", "prepare", "run_model", "run_node"]
__all__ += ["supports_device"]

PREVIEW = "ai.onnx.preview"
VERSIONS = {("", "Attention"): (23, 24, 25), (PREVIEW, "FlexAttention"): (1,)}
Inputs = Union[Sequence[Any], Dict[str, Any]]


def _key(node: onnx.NodeProto) -> Tuple[str, str]:
    return "" if node.domain == "ai.onnx" else node.domain, node.op_type


def _schema(node: onnx.NodeProto, opsets: Dict[str, int]) -> defs.OpSchema:
    """The definition of such a node in the opset. Raises an error that names the supported ones if
    there is none."""
    domain, name = _key(node)
    known = VERSIONS[domain, name]
    opset = opsets.get(domain)
    if opset is None:
        raise ValueError("%s needs domain %s, which the model does not import" % (name, domain))
    if opset < known[0]:
        raise ValueError(
            "%s needs opset %d or newer; the model imports opset %d" % (name, known[0], opset)
        )
    if opset > defs.onnx_opset_version() and not domain:
        raise NotImplementedError(
            "the model imports opset %d; the installed onnx %s supports opsets up to %d"
            % (opset, onnx.__version__, defs.onnx_opset_version())
        )
    schema = defs.get_schema(name, opset, domain)
    if schema.since_version not in known:
        raise NotImplementedError(
            "opset %d has version %d of %s; attn supports versions %s"
            % (opset, schema.since_version, name, ", ".join(map(str, known)))
        )
    return schema


def _attributes(node: onnx.NodeProto, schema: defs.OpSchema) -> Dict[str, Any]:
    """The node's attributes by name. Raises ValueError for one that the operator does not have."""
    values = {}
    for a in node.attribute:
        want = schema.attributes.get(a.name)
        if want is None:
            raise ValueError(
                "%s-%d has no attribute %s; it has %s"
                % (node.op_type, schema.since_version, a.name, ", ".join(sorted(schema.attributes)))
            )
        kind: Any = want.type
        if a.type != int(kind.value):
            raise TypeError("attribute %s must be of type %s" % (a.name, kind.name))
        values[a.name] = helper.get_attribute_value(a)
    return values


def _checked(check: Callable[..., None], *args: Any) -> None:
    """Calls a function of onnx.checker, and raises its error as a ValueError of one line."""
    try:
        check(*args)
    except checker.ValidationError as error:
        line = " ".join(str(error).split("==>")[0].split())
        raise ValueError("not valid ONNX: " + line) from None


class _Attention:
    """A node Attention: a function from its inputs to its outputs, with None for an output without
    a name."""

    def __init__(self, node: onnx.NodeProto, opsets: Dict[str, int], threads: Optional[int]):
        schema = _schema(node, opsets)
        values = _attributes(node, schema)
        self.options = _attention.Options(schema.since_version, **values).checked()
        self.wanted = [i < len(node.output) and node.output[i] != "" for i in range(4)]
        self.threads = threads
        inputs = [i < len(node.input) and node.input[i] != "" for i in range(7)]
        _attention.check_together(inputs, self.wanted)

    def __call__(self, *inputs: Any) -> List[Any]:
        return _attention.attention(self.options, inputs, self.wanted, self.threads)


class _FlexAttention:
    """A node FlexAttention."""

    def __init__(self, node: onnx.NodeProto, opsets: Dict[str, int], threads: Optional[int]):
        values = _attributes(node, _schema(node, opsets))
        self.options = _flex.options(values)
        if "prob_mod" in values:
            raise _flex.refuse("prob_mod is given, but attn cannot change weights after softmax")
        graph = values.get("score_mod")
        self.score_mod = None if graph is None else _flex.ScoreMod(graph, opsets)
        self.threads = threads

    def __call__(self, *inputs: Any) -> List[Any]:
        return [_flex.flex_attention(self.options, self.score_mod, inputs, self.threads)]


_OPERATORS: Dict[Tuple[str, str], Callable[..., Callable[..., List[Any]]]]
_OPERATORS = {("", "Attention"): _Attention, (PREVIEW, "FlexAttention"): _FlexAttention}


def _for_reference(key: Tuple[str, str], threads: Optional[int]) -> Type[OpRun]:
    """The operator as a class for onnx.reference, which finds it by the class's name."""

    class Node(OpRun):
        op_domain = key[0]

        def __init__(self, node: onnx.NodeProto, run_params: Dict[str, Any]) -> None:
            super().__init__(node, run_params)
            self._compute = _OPERATORS[key](node, run_params["opsets"], threads)

        def run(self, *inputs: Any, **_: Any) -> List[Any]:  # _run's errors are reworded
            return self._compute(*inputs)

        def _run(self, *inputs: Any, **_: Any) -> Any:
            return tuple(self.run(*inputs))

    Node.__name__ = key[1]
    return Node


def _nodes(graph: onnx.GraphProto) -> List[onnx.NodeProto]:
    """All nodes, also those in branches and loops, but not those inside FlexAttention."""
    found = []
    for node in graph.node:
        found.append(node)
        if _key(node) not in _OPERATORS:
            for a in node.attribute:
                for inner in [a.g] if a.type == a.GRAPH else a.graphs:
                    found += _nodes(inner)
    return found


def _check_device(device: str) -> None:
    if not supports_device(device):
        raise ValueError("device is %r; attn computes on the CPU" % device)


class Model(BackendRep):
    """A prepared model: the result of prepare(). May run in several threads at once."""

    def __init__(self, model: onnx.ModelProto, threads: Optional[int]) -> None:
        if model.functions:  # a function may contain attention
            model = inliner.inline_local_functions(model)
        opsets = {o.domain: o.version for o in model.opset_import}
        attention = [node for node in _nodes(model.graph) if _key(node) in _OPERATORS]
        if not attention:
            raise NotImplementedError("the model has no node that attn computes (Attention)")
        for node in attention:  # before the checker, whose messages are hard to understand
            _OPERATORS[_key(node)](node, opsets, threads)
        _checked(checker.check_model, model)
        made = [_for_reference(key, threads) for key in _OPERATORS]
        try:
            self._evaluator = ReferenceEvaluator(model, new_ops=made)
        except (RuntimeError, NotImplementedError) as error:  # for a node that it does not know
            line = " ".join(str(error).split())
            raise NotImplementedError("onnx.reference cannot run this model: " + line) from None
        given = {t.name for t in model.graph.initializer}
        given |= {t.values.name for t in model.graph.sparse_initializer}
        self.inputs = [i.name for i in model.graph.input if i.name not in given]
        self.optional = [i.name for i in model.graph.input if i.name in given]
        self.outputs = [o.name for o in model.graph.output]
        self._result = namedtupledict("Outputs", self.outputs)

    def run(self, inputs: Inputs, **_: Any) -> Tuple[Any, ...]:
        """The model's outputs, in order and by name (result["Y"]), as arrays. inputs: arrays in the
        order of the model's inputs, or by their names. Inputs with initializers may be left out."""
        if not isinstance(inputs, dict):
            names = self.inputs
            if len(inputs) != len(names):
                raise ValueError(
                    "%d inputs are given; the model has %d: %s"
                    % (len(inputs), len(names), ", ".join(names))
                )
            inputs = dict(zip(names, inputs))
        missing = [name for name in self.inputs if name not in inputs]
        unknown = [name for name in inputs if name not in self.inputs + self.optional]
        if missing or unknown:
            raise ValueError(
                "the model's inputs are %s; %s"
                % (
                    ", ".join(self.inputs + self.optional),
                    "%s is missing" % missing[0]
                    if missing
                    else "%r is not one of them" % unknown[0],
                )
            )
        return self._result(*self._evaluator.run(None, inputs))


class Backend(_Base):
    """onnx.backend's interface. `device` is "CPU"; threads: None, ATTN_NUM_THREADS or all CPUs."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """True for "CPU" and "CPU:0"."""
        return device in ("CPU", "CPU:0")

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether prepare() accepts the model."""
        try:
            cls.prepare(model, device, **kwargs)
        except (NotImplementedError, ValueError, TypeError):
            return False
        return True

    @classmethod
    def prepare(
        cls,
        model: onnx.ModelProto,
        device: str = "CPU",
        *,
        threads: Optional[int] = None,
        **_: Any,
    ) -> Model:
        """Checks the model, loads its initializers, and returns a Model that can run any number of
        times. Raises ValueError or TypeError for an invalid model, and NotImplementedError for a
        valid one that cannot be run: a node that is neither attention nor known to onnx.reference,
        a score_mod that the library cannot compute, or no attention at all."""
        _check_device(device)
        return Model(model, threads)

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Inputs, device: str = "CPU", **kwargs: Any
    ) -> Tuple[Any, ...]:
        """prepare(model).run(inputs)."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(  # type: ignore[override]
        cls,
        node: onnx.NodeProto,
        inputs: Inputs,
        device: str = "CPU",
        outputs_info: Any = None,
        *,
        opset_version: Optional[int] = None,
        threads: Optional[int] = None,
        **_: Any,
    ) -> Tuple[Any, ...]:
        """The outputs of one node Attention or FlexAttention that have a name, in order and by
        name. inputs: arrays by name, or in the order of the node's inputs without those whose name
        is empty. opset_version is that of the node's domain; the default is the newest."""
        _check_device(device)
        key = _key(node)
        if key not in _OPERATORS:
            raise NotImplementedError("the node is %s; attn computes attention nodes only" % key[1])
        opsets = {"": defs.onnx_opset_version(), PREVIEW: 1}
        if opset_version is not None:
            opsets[key[0]] = opset_version
        run = _OPERATORS[key](node, opsets, threads)
        settings = checker.C.CheckerContext()
        settings.ir_version, settings.opset_imports = onnx.IR_VERSION, opsets
        _checked(checker.check_node, node, settings)
        names = [name for name in node.input if name]
        if not isinstance(inputs, dict):
            if len(inputs) != len(names):
                raise ValueError(
                    "%d inputs are given; the node has %d: %s"
                    % (len(inputs), len(names), ", ".join(names))
                )
            inputs = dict(zip(names, inputs))
        outputs = run(*(inputs[name] if name else None for name in node.input))
        named = {n: x for n, x in zip(node.output, outputs) if n}
        return namedtupledict("Outputs", list(named))(*named.values())


is_compatible = Backend.is_compatible
prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device


if __name__ == "__main__":
    from attn import _onnx_tests

    sys.exit(_onnx_tests.main())
