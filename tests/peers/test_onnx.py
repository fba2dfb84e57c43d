"""attn.onnx: ONNX's own backend tests; random nodes compared with onnx.reference; models and
errors."""

import contextlib
import io
import unittest
from unittest import mock

import numpy as np
import onnx
from ml_dtypes import bfloat16
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import function_testcase_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops import op_attention

import attn
import attn.onnx
from attn import _onnx_attention, _onnx_tests

KINDS = [np.dtype(x) for x in (np.float64, np.float32, np.float16, bfloat16)]
NAMES = ["Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"]
OUTPUTS = ["Y", "present_key", "present_value", "qk_matmul_output"]
# The allowed error of a result, from computing and storing; bfloat16's weights may be rounded, too.
# It is relative, and twice as much absolutely, because scores and values are about 1.
ERROR = {"float64": 1e-13, "float32": 2e-6, "float16": 6e-4, "bfloat16": 2**-7}


def info(name, x):
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(x.dtype), [None] * x.ndim
    )


def model_of(nodes, inputs, outputs, opset, **more):
    """inputs: name -> array; outputs: names."""
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.preview", 1)]
    imports += [helper.make_opsetid("our", 1)] if "functions" in more else []
    first = next(iter(inputs.values()))
    results = [info(n, first if n == "Y" else np.empty((0,) * 4, first.dtype)) for n in outputs]
    graph = helper.make_graph(
        nodes, "g", [info(n, x) for n, x in inputs.items()], results, more.pop("initializer", [])
    )
    return helper.make_model(graph, opset_imports=imports, ir_version=10, **more)


def attention_model(inputs, outputs, opset, attributes):
    """A model of one node. inputs and outputs: None and False where one is absent."""
    names = [n if x is not None else "" for n, x in zip(NAMES, inputs)]
    wanted = [n if w else "" for n, w in zip(OUTPUTS, outputs)]
    while names[-1] == "":
        names.pop()
    while wanted[-1] == "":
        wanted.pop()
    node = helper.make_node("Attention", names, wanted, **attributes)
    feeds = {n: x for n, x in zip(names, inputs) if n}
    return model_of([node], feeds, [n for n in wanted if n], opset), feeds


def function_body(model):
    """The same model with the node replaced by the function body of ONNX's schema."""
    node, types = onnx.NodeProto(), {i.name: i.type for i in model.graph.input}
    node.CopyFrom(model.graph.node[0])  # the helper writes to it
    given = [types.get(name, onnx.TypeProto()) for name in node.input]
    ((nodes, _),), _ = function_testcase_helper(node, given, "body", model.opset_import)
    body = onnx.ModelProto()
    body.CopyFrom(model)
    del body.graph.node[:]
    body.graph.node.extend(nodes)
    return body


def widened(inputs):
    """Floating-point numbers as float64."""
    return [x if x is None or x.dtype.kind in "bi" else x.astype("f8") for x in inputs]


def draw(rng):
    """Draws inputs, wanted outputs, opset and attributes, independently of attn's code, and the
    mask in the form for the reference."""
    opset = int(rng.choice([23, 24, 25]))
    dtype = KINDS[rng.integers(4)]
    B, Hk, group, T, S, D, Dv = (int(rng.integers(1, n)) for n in (4, 4, 4, 8, 12, 20, 20))
    H, rank, how = Hk * group, int(rng.choice([3, 4])), rng.choice(["", "past", "nonpad"])
    q, k, v = (
        rng.standard_normal(s).astype(dtype) for s in ((B, H, T, D), (B, Hk, S, D), (B, Hk, S, Dv))
    )
    attributes = {}
    if rank == 3:
        q, k, v = (x.transpose(0, 2, 1, 3).reshape(B, x.shape[2], -1) for x in (q, k, v))
        attributes.update(q_num_heads=H, kv_num_heads=Hk)
    for name, chance, value in (
        ("is_causal", 0.5, 1),
        ("scale", 0.3, (int(rng.integers(1, 24)) / 16) ** 2),  # the reference: its root as a float
        ("softcap", 0.3, float(rng.uniform(0.5, 20))),
        ("softmax_precision", 0.3, int(rng.choice([1, 11]))),
        ("qk_matmul_output_mode", 0.8, int(rng.integers(4))),
        ("left_window_size", 0.5, int(rng.integers(-1, 9))),
        ("right_window_size", 0.5, int(rng.integers(-1, 9))),
    ):
        if rng.random() < chance and (opset == 25 or "window" not in name):
            attributes[name] = value
    inputs, P = [q, k, v, None, None, None, None], 0
    if how == "past":
        P = int(rng.integers(0, 9))
        for n, size in ((4, D), (5, Dv)):
            inputs[n] = rng.standard_normal((B, Hk, P, size)).astype(dtype)
    elif how == "nonpad" and opset > 23:
        inputs[6] = rng.integers(0, S + 1, B)
    whole = None
    if rng.random() < 0.7:
        keys = S + P
        if opset > 23 and rng.random() < 0.4:
            keys = int(rng.integers(max(1, 0 if inputs[6] is None else inputs[6].max()), keys + 1))
        shape = [n if rng.random() < 0.6 else 1 for n in (B, H, T)][rng.integers(4) :] + [keys]
        mask = rng.random(shape) < 0.7
        if rng.random() < 0.5:
            mask = np.where(mask, rng.standard_normal(shape), -np.inf).astype(dtype)
        inputs[3] = mask
        whole = np.broadcast_to(mask, (B, H, T, keys)).copy()
    outputs = [True, how == "past", how == "past", rng.random() < 0.7]
    return inputs, outputs, opset, attributes, whole


class Conformance(unittest.TestCase):
    def test_backend_tests_of_onnx(self):
        """93 of 93 cases pass, counted by ONNX's runner; of FlexAttention's 11, all except the one
        with prob_mod."""
        self.assertEqual(onnx.__version__, "1.23.2")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            self.assertEqual(_onnx_tests.main([]), 0)
        said = printed.getvalue()
        print("\n" + said)
        self.assertIn("test_attention*: 93 of 93\n", said)
        self.assertIn("test_flexattention*: 10 of 11\n", said)
        self.assertEqual(said.count("refused"), 1)
        self.assertIn("test_flexattention_prob_mod_cpu  refused: NotImplementedError", said)

    def test_the_runner_notices(self):
        """A slightly wrong backend does not pass, so the count can fall."""
        run = _onnx_attention.run

        def a_little_wrong(q, k, v, out, **options):
            run(q, k, v, out, **options)
            out *= out.dtype.type(1.01)

        printed = io.StringIO()
        with mock.patch.object(_onnx_attention, "run", a_little_wrong):
            with contextlib.redirect_stdout(printed):
                self.assertEqual(_onnx_tests.main([]), 1)
        self.assertRegex(printed.getvalue(), r"test_attention\*: \d of 93\n")

    def near(self, got, exact, error, what):
        self.assertEqual(got.shape, exact.shape, what)
        close = np.testing.assert_allclose
        close(got.astype("f8"), exact, rtol=error, atol=2 * error, err_msg=str(what))

    def test_random_nodes(self):
        """Compared with onnx.reference, and with the operator's function body from ONNX, both on
        the same inputs in float64. All attention is computed by the library."""
        bad = mock.Mock(side_effect=AssertionError("the reference's attention was used"))
        counts = {23: 0, 24: 0, 25: 0}
        for case in range(600):
            rng = np.random.default_rng(case)
            inputs, outputs, opset, attributes, whole = draw(rng)
            counts[opset] += 1
            dtype = inputs[0].dtype
            shapes = [None if x is None else x.shape for x in inputs]
            what = (case, opset, dtype, attributes, shapes)
            exact, feeds = attention_model(widened(inputs), outputs, opset, attributes)
            with np.errstate(all="ignore"):
                body = ReferenceEvaluator(function_body(exact)).run(None, feeds)
                if whole is not None:  # causal: the reference does not broadcast it
                    feeds["attn_mask"] = widened([whole])[0]
                want = ReferenceEvaluator(exact).run(None, feeds)
            ours, feeds = attention_model(inputs, outputs, opset, attributes)
            with (
                mock.patch.object(op_attention, "_compute_attention", bad),
                mock.patch.object(_onnx_attention, "run", wraps=_onnx_attention.run) as engine,
            ):
                got = attn.onnx.prepare(ours).run(list(feeds.values()))
            self.assertGreater(engine.call_count, 0)
            self.assertEqual(len(got), len(want))
            error = ERROR[dtype.name]
            if attributes.get("softmax_precision") == 1:
                error = max(error, ERROR["float32"])  # the reference's
            for n, output in enumerate(ours.graph.output):
                self.assertEqual(got[n].dtype, dtype, what)
                if output.name.startswith("present"):
                    self.assertTrue(np.array_equal(got[n].astype("f8"), want[n]), what)
                    continue
                self.near(got[n], body[n], max(error, 1e-6), what)  # its scale is a float
                capped = "softcap" in attributes and output.name == "qk_matmul_output"
                if not (capped and attributes.get("qk_matmul_output_mode", 0) == 0):
                    self.near(got[n], want[n], error, what)
        self.assertGreater(min(counts.values()), 150)

    def test_scores_before_the_soft_cap(self):
        """Mode 0 gives the scores before the soft cap by the text and the function body; the
        reference gives those after it."""
        rng = np.random.default_rng(4)
        inputs = [rng.standard_normal((1, 2, n, 4)) for n in (3, 5, 5)] + [None] * 4
        raw = inputs[0] @ inputs[1].swapaxes(2, 3) / 2
        for opset in (23, 24, 25):
            for mode, want in ((0, raw), (1, np.tanh(raw / 0.5) * 0.5)):
                attributes = {"softcap": 0.5, "qk_matmul_output_mode": mode}
                wanted = [True, False, False, True]
                model, feeds = attention_model(inputs, wanted, opset, attributes)
                got = attn.onnx.run_model(model, feeds)["qk_matmul_output"]
                np.testing.assert_allclose(got, want, rtol=1e-12)
                body = ReferenceEvaluator(function_body(model)).run(None, feeds)[1]
                np.testing.assert_allclose(got, body, rtol=1e-6)

    def test_mask_of_one_key(self):
        """Opset 23 broadcasts it, like the operator's text and function body; later ones treat it
        as a short mask."""
        rng = np.random.default_rng(3)
        inputs = [rng.standard_normal((1, 2, n, 4)) for n in (3, 5, 5)]
        inputs += [rng.standard_normal((3, 1)), None, None, None]
        for opset in (23, 24, 25):
            model, feeds = attention_model(inputs, [True], opset, {})
            got = attn.onnx.run_model(model, feeds)[0]
            if opset == 23:
                want = attn.scaled_dot_product_attention(*inputs[:3])
            else:
                want = np.broadcast_to(inputs[2][:, :, :1], got.shape)
            np.testing.assert_allclose(got, want, rtol=1e-12)
            body = ReferenceEvaluator(function_body(model)).run(None, feeds)[0]
            np.testing.assert_allclose(got, body, rtol=1e-6)


class Flex(unittest.TestCase):
    """scale is 1/4, whose root is exact, because the reference computes the root in float for every
    type."""

    def setUp(self):
        rng = np.random.default_rng(0)
        self.q, self.k, self.v = (
            rng.standard_normal((2, h, n, 8)) for h, n in ((4, 5), (2, 7), (2, 7))
        )

    def model(self, nodes, constants=(), dtype=np.float64, **attributes):
        """score_mod: nodes from s to t."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        value = helper.make_tensor_value_info
        body = helper.make_graph(
            nodes, "mod", [value("s", kind, [None] * 4)], [value("t", kind, [None] * 4)],
            [numpy_helper.from_array(np.asarray(x), n) for n, x in dict(constants).items()],
        )  # fmt: skip
        node = helper.make_node(
            "FlexAttention",
            NAMES[:3],
            ["Y"],
            domain="ai.onnx.preview",
            score_mod=body,
            scale=0.25,
            **attributes,
        )
        return model_of([node], self.feeds(dtype), ["Y"], 26)

    def feeds(self, dtype):
        return {n: x.astype(dtype) for n, x in zip(NAMES, (self.q, self.k, self.v))}

    def test_score_mods(self):
        """Every kind of step, in chains, compared with the reference."""
        node, rng = helper.make_node, np.random.default_rng(1)
        shape = [
            node("Shape", ["s"], ["shape"]), node("Gather", ["shape", "two"], ["L"]),
            node("Gather", ["shape", "three"], ["S"]), node("Range", ["zero", "L", "one"], ["i1"]),
            node("Range", ["zero", "S", "one"], ["j"]), node("Unsqueeze", ["i1", "one1"], ["i"]),
            node("GreaterOrEqual", ["i", "j"], ["sees"]), node("Less", ["i", "j"], ["hides"]),
        ]  # fmt: skip
        constants = dict(
            two=2,
            three=3,
            zero=0,
            one=1,
            one1=[1],
            c=3.0,
            d=0.5,
            e=[[1.25]],
            inf=-np.inf,
            bias=rng.standard_normal((4, 1, 7)),
        )
        chains = {
            "Mul": [node("Mul", ["s", "c"], ["t"])],
            "Mul turned": [node("Mul", ["c", "s"], ["t"])],
            "Identity": [node("Identity", ["s"], ["t"])],
            "Cast": [node("Cast", ["s"], ["t"], to=TensorProto.DOUBLE)],
            "cap": [node("Div", ["s", "c"], ["a"]), node("Tanh", ["a"], ["b"]),
                    node("Mul", ["b", "c"], ["t"])],
            "Tanh": [node("Tanh", ["s"], ["t"])],
            "cap of other factors": [
                node("Mul", ["s", "c"], ["a"]), node("Tanh", ["a"], ["b"]),
                node("Mul", ["e", "b"], ["t1"]), node("Div", ["t1", "d"], ["t"])],
            "bias": [node("Add", ["bias", "s"], ["t"])],
            "Sub": [node("Sub", ["s", "bias"], ["t"])],
            "causal": shape + [node("Where", ["sees", "s", "inf"], ["t"])],
            "causal turned": shape + [node("Where", ["hides", "inf", "s"], ["t"])],
            "relative": shape + [
                node("Sub", ["i", "j"], ["r"]), node("CastLike", ["r", "s"], ["f"]),
                node("Add", ["s", "f"], ["t"])],
            "all": shape + [
                node("Div", ["s", "d"], ["a"]), node("Tanh", ["a"], ["b"]),
                node("Mul", ["b", "c"], ["g"]), node("Where", ["sees", "g", "inf"], ["h"]),
                node("Add", ["h", "bias"], ["x"]), node("Identity", ["x"], ["t"])],
        }  # fmt: skip
        for name, nodes in chains.items():
            model = self.model(nodes, {n: np.array(x) for n, x in constants.items()})
            want = ReferenceEvaluator(model).run(None, self.feeds("f8"))[0]
            got = attn.onnx.run_model(model, self.feeds("f8"))["Y"]
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14, err_msg=name)

    def test_types(self):
        for dtype in KINDS:
            for precision in (None, 1, 11):
                attributes = {} if precision is None else {"softmax_precision": precision}
                node = helper.make_node(
                    "FlexAttention",
                    NAMES[:3],
                    ["Y"],
                    scale=0.25,
                    domain="ai.onnx.preview",
                    **attributes,
                )
                feeds = self.feeds(dtype)
                got = attn.onnx.run_model(model_of([node], feeds, ["Y"], 26), feeds)["Y"]
                feeds = {n: x.astype("f8") for n, x in feeds.items()}
                wide = model_of([node], feeds, ["Y"], 26)
                want = ReferenceEvaluator(wide).run(None, feeds)[0]
                self.assertEqual(got.dtype, dtype)
                error = ERROR["float32" if (dtype, precision) == ("f8", 1) else dtype.name]
                np.testing.assert_allclose(got.astype("f8"), want, rtol=error, atol=error)

    def test_refused(self):
        node = helper.make_node
        constants = {
            "c": np.array(2.0),
            "row": np.arange(7.0),
            "low": np.array(-1e9),
            "yes": np.array(True),
        }
        for says, *nodes in (
            ("a Exp, which", node("Exp", ["s"], ["t"])),
            ("several inputs", node("Mul", ["s", "s"], ["t"])),
            ("several numbers", node("Mul", ["s", "row"], ["t"])),
            ("value other than -inf", node("Where", ["yes", "s", "low"], ["t"])),
            ("a Mul, which", node("Add", ["s", "c"], ["a"]), node("Mul", ["a", "c"], ["t"])),
            ("a Sub, which", node("Sub", ["c", "s"], ["t"])),
            ("a Cast to a type", node("Cast", ["s"], ["t"], to=TensorProto.FLOAT16)),
            ("does not depend", node("Identity", ["c"], ["t"])),
        ):
            with self.assertRaisesRegex(NotImplementedError, "FlexAttention: .*" + says):
                attn.onnx.run_model(self.model(nodes, constants), self.feeds("f8"))
        wrong = {"c": np.zeros((3, 7))}
        with self.assertRaisesRegex(ValueError, r"shape \(3, 7\), which does not broadcast"):
            model = self.model([node("Add", ["s", "c"], ["t"])], wrong)
            attn.onnx.run_model(model, self.feeds("f8"))
        model = self.model([node("Identity", ["s"], ["t"])])
        feeds = self.feeds("f8")
        for name, x, says in (
            ("K", self.k[:, :1], "V has shape"),
            ("Q", self.q[:, :3], "3 heads"),
            ("V", self.v[:, :, 1:], "V has"),
            ("Q", self.q[0], "Q has shape"),
        ):
            with self.assertRaisesRegex(ValueError, says):
                attn.onnx.run_model(model, dict(feeds, **{name: x}))


class Models(unittest.TestCase):
    def setUp(self):
        rng = np.random.default_rng(0)
        self.feeds = {
            n: rng.standard_normal((1, 2, s, 4)).astype("f4") for n, s in zip("QKV", (3, 5, 5))
        }
        self.want = attn.scaled_dot_product_attention(*self.feeds.values())

    def prepared(self, nodes, opset=25, outputs=("Y",), **more):
        return attn.onnx.prepare(model_of(nodes, self.feeds, outputs, opset, **more))

    def equal(self, got, want):
        self.assertEqual(got.tobytes(), want.tobytes())

    def test_inputs_by_order_and_by_name(self):
        model = self.prepared([helper.make_node("Attention", list("QKV"), ["Y"])])
        self.equal(model.run(list(self.feeds.values()))[0], self.want)
        result = model.run(self.feeds)
        self.equal(result["Y"], self.want)
        self.equal(result.Y, self.want)
        for wrong, says in (
            ([self.feeds["Q"]], "1 inputs are given; the model has 3: Q, K, V"),
            ({"Q": self.feeds["Q"]}, "K is missing"),
            (dict(self.feeds, X=self.want), "'X' is not one of them"),
        ):
            with self.assertRaisesRegex(ValueError, says):
                model.run(wrong)

    def test_other_nodes(self):
        """onnx.reference computes them, but not attention, whether it is in the graph, in a branch
        or in a function of the model."""
        node = helper.make_node
        bad = mock.Mock(side_effect=AssertionError("the reference's attention was used"))
        value = helper.make_tensor_value_info("Y", TensorProto.FLOAT, [None] * 4)
        branches = [
            helper.make_graph([node("Attention", list("QKV"), ["Y"], scale=s)], "b", [], [value])
            for s in (0.5, 2.0)
        ]
        function = helper.make_function(
            "our", "Mine", list("QKV"), ["Y"], [node("Attention", list("QKV"), ["Y"])],
            [helper.make_opsetid("", 25)],
        )  # fmt: skip
        half = numpy_helper.from_array(np.float32(0.5), "half")
        flag = numpy_helper.from_array(np.array(True), "flag")
        with mock.patch.object(op_attention, "_compute_attention", bad):
            model = self.prepared(
                [
                    node("Mul", ["Q", "half"], ["q"]),
                    node("Attention", ["q", "K", "V"], ["y"]),
                    node("Neg", ["y"], ["Y"]),
                ],
                initializer=[half],
            )
            want = attn.scaled_dot_product_attention(
                self.feeds["Q"] / 2, self.feeds["K"], self.feeds["V"]
            )
            self.equal(model.run(self.feeds)["Y"], -want)
            branch = node("If", ["flag"], ["Y"], then_branch=branches[0], else_branch=branches[1])
            self.equal(
                self.prepared([branch], initializer=[flag]).run(self.feeds)["Y"],
                attn.scaled_dot_product_attention(*self.feeds.values(), scale=0.5),
            )
            mine = node("Mine", list("QKV"), ["Y"], domain="our")
            self.equal(self.prepared([mine], functions=[function]).run(self.feeds)["Y"], self.want)

    def test_inputs_with_initializers(self):
        model = model_of(
            [helper.make_node("Attention", list("QKV"), ["Y"])],
            self.feeds,
            ["Y"],
            23,
            initializer=[numpy_helper.from_array(self.feeds["V"], "V")],
        )
        ready = attn.onnx.prepare(model)
        q, k, v = self.feeds.values()
        self.equal(ready.run([q, k])["Y"], self.want)
        self.equal(ready.run({"Q": q, "K": k, "V": -v})["Y"], -self.want)

    def test_run_node(self):
        node = helper.make_node(
            "Attention", ["Q", "K", "V", "", "P", "R"], ["Y", "a", "b"], is_causal=1
        )
        q, k, v = self.feeds.values()
        got = attn.onnx.run_node(node, [q, k[:, :, 2:], v[:, :, 2:], k[:, :, :2], v[:, :, :2]])
        want = attn.scaled_dot_product_attention(q, k, v, is_causal=True, causal_offset=2)
        self.equal(got["Y"], want)
        self.equal(got["a"], k)
        self.equal(got.b, v)
        names = dict(Q=q, K=k[:, :, 2:], V=v[:, :, 2:], P=k[:, :, :2], R=v[:, :, :2])
        self.equal(attn.onnx.run_node(node, names, opset_version=23, threads=1)[0], want)
        with self.assertRaisesRegex(ValueError, "4 inputs are given; the node has 5"):
            attn.onnx.run_node(node, [q, k, v, k])
        with self.assertRaisesRegex(ValueError, "needs opset 23"):
            attn.onnx.run_node(node, names, opset_version=22)
        with self.assertRaisesRegex(NotImplementedError, "the node is Add"):
            attn.onnx.run_node(helper.make_node("Add", ["Q", "K"], ["Y"]), [q, k])

    def refused(self, kind, says, nodes, opset=25, outputs=("Y",), **more):
        model = model_of(nodes, dict(self.feeds, **more.pop("feeds", {})), outputs, opset, **more)
        self.assertFalse(attn.onnx.is_compatible(model))
        with self.assertRaises(kind) as caught:
            attn.onnx.prepare(model)
        self.assertIn(says, str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))

    def test_refused_models(self):
        node, qkv = helper.make_node, list("QKV")
        refused = self.refused
        refused(
            ValueError,
            "needs opset 23 or newer; the model imports opset 22",
            [node("Attention", qkv, ["Y"])],
            22,
        )
        refused(NotImplementedError, "imports opset 99", [node("Attention", qkv, ["Y"])], 99)
        refused(
            ValueError,
            "Attention-25 has no attribute causal; it has is_causal",
            [node("Attention", qkv, ["Y"], causal=1)],
        )
        refused(
            ValueError,
            "Attention-24 has no attribute left_window_size",
            [node("Attention", qkv, ["Y"], left_window_size=1)],
            24,
        )
        refused(
            TypeError,
            "attribute scale must be of type FLOAT",
            [node("Attention", qkv, ["Y"], scale=1)],
        )
        refused(
            ValueError,
            "softmax_precision is 2",
            [node("Attention", qkv, ["Y"], softmax_precision=2)],
        )

    def test_refused_inputs_and_nodes(self):
        node, qkv, refused = helper.make_node, list("QKV"), self.refused
        past = {"P": self.feeds["K"], "n": np.array([1])}
        refused(ValueError, "V is not given", [node("Attention", ["Q", "K"], ["Y"])])
        refused(
            ValueError,
            "need past_key",
            [node("Attention", qkv, ["Y", "a", "b"])],
            outputs=("Y", "a"),
        )
        refused(
            ValueError, "given together", [node("Attention", qkv + ["", "P"], ["Y"])], feeds=past
        )
        refused(
            ValueError,
            "exclude each other",
            [node("Attention", qkv + ["", "P", "P", "n"], ["Y"])],
            feeds=past,
        )
        refused(
            ValueError,
            "not valid ONNX: ",
            [node("Attention", qkv + ["", "", "", "n"], ["Y"])],
            23,
            feeds=past,
        )
        refused(ValueError, "not valid ONNX: ", [node("Attention", ["X", "K", "V"], ["Y"])])
        refused(NotImplementedError, "no node that attn computes", [node("Add", ["Q", "Q"], ["Y"])])
        refused(
            NotImplementedError,
            "onnx.reference cannot run this model",
            [node("Attention", qkv, ["y"]), node("Mine", ["y"], ["Y"], domain="our")],
            functions=[],
        )

    def test_device(self):
        model = model_of([helper.make_node("Attention", list("QKV"), ["Y"])], self.feeds, ["Y"], 23)
        self.assertTrue(attn.onnx.is_compatible(model))
        self.assertTrue(attn.onnx.supports_device("CPU"))
        self.assertFalse(attn.onnx.supports_device("CUDA"))
        self.assertFalse(attn.onnx.is_compatible(model, "CUDA"))
        with self.assertRaisesRegex(ValueError, "device is 'CUDA:1'"):
            attn.onnx.prepare(model, "CUDA:1")


if __name__ == "__main__":
    unittest.main()
