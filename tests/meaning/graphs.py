"""ONNX graphs of the nodes that are taken, judged by ONNX Runtime and by float64.

A graph computes one function of each input, of nodes that are drawn, or of a form in
which exporters write an activation. It is read and right, or refused by its node's
name. It is judged at random inputs of all magnitudes, at each constant, where functions
bend and jump, beside these, at zeros, infinities and NaN.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import clnet
from clnet.errors import FormatError
from clnet.ir import reference
from clnet.ir.lowering import lower

CLOSE = 2.0**-18  # relative error of an output
MOVED = 2.0**-22  # relative change of a node's output: its own error
TINY = 1e-37  # about the smallest normal number: devices flush those below to zero
MANY_TURNS = 1e4  # of an argument: its rounding decides
LEAST = 1e-30  # of inputs: about zero, what is too small may be flushed to it
MOST_NODES = 8
BOOLEAN = ("And", "Or", "Xor")
COMPARISONS = ("Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal")
ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Pow", "HardSwish", "HardSigmoid")
STEPS = ("Shrink", "ThresholdedRelu", "Sign")
UNARY = (
    "Relu", "Abs", "Neg", "Sign", "Exp", "Sigmoid", "Tanh", "Erf", "Softplus",
    "Softsign", "Sqrt", "Log", "Reciprocal", "Sin", "Cos", "Sinh", "Cosh", "Elu",
    "Selu", "Celu", "LeakyRelu", "ThresholdedRelu", "HardSigmoid", "HardSwish",
    "Shrink", "Mish", "Clip", "Identity", "Floor", "Atan",
)
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow")
EXPORTED = {
    "gelu": "0.5 * x * (1 + erf(x / 1.4142135623730951))",
    "gelu_tanh": "0.5 * x * (1 + tanh(0.7978845608 * (x + 0.044715 * x * x * x)))",
    "silu": "x * sigmoid(x)", "silu by exp": "x / (1 + exp(-x))",
    "sigmoid by exp": "1 / (1 + exp(-x))",
    "sigmoid by tanh": "0.5 * tanh(0.5 * x) + 0.5",
    "mish": "x * tanh(softplus(x))", "mish by log": "x * tanh(log(1 + exp(x)))",
    "softplus": "log(1 + exp(x))",
    "softplus that does not overflow": "max(x, 0) + log(1 + exp(-abs(x)))",
    "elu": "where(x > 0, x, 0.7 * (exp(x) - 1))",
    "elu by parts": "max(x, 0) + min(0, 0.7 * (exp(x) - 1))",
    "selu": "1.0507 * (max(x, 0) + min(1.67326 * (exp(x) - 1), 0))",
    "hardswish": "x * min(max(x + 3, 0), 6) / 6", "relu6": "min(max(x, 0), 6)",
    "hardtanh": "max(min(x, 2.5), -3)", "leaky": "max(x, 0.2 * x)",
    "relu by a mask": "x * (x > 0)", "relu by parts": "0.5 * (x + abs(x))",
    "softsign": "x / (1 + abs(x))", "gaussian": "exp(-(x * x))",
    "tanhshrink": "x - tanh(x)", "logsigmoid": "-log(1 + exp(-x))",
    "softshrink": "where(x > 0.5, x - 0.5, where(x < -0.5, x + 0.5, 0))",
    "hardshrink": "where(abs(x) > 0.5, x, 0)", "missing code": "where(x == -999, 0, x)",
    "band": "where((x > -2) & (x < 3), x, 0)", "step": "where(x >= 0.25, 1, -1)",
    "clipped mask": "x * (x < 2000)", "large clip": "min(max(x, -5000), 5000)",
    "tanh by exp": "(exp(x) - exp(-x)) / (exp(x) + exp(-x))",
    "tanh by sigmoid": "2 * sigmoid(2 * x) - 1",
    "celu": "max(x, 0) + min(0, 0.5 * (exp(x / 0.5) - 1))",
    "threshold": "where(x > 0.1, x, 20)", "square": "x * x", "cube": "x * x * x",
    "NaN": "where(isnan(x), 0, x)",
}


class Drawn:
    """A graph in the making: its nodes and constants, in float32."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def constant(self, value: object) -> str:
        """Add a constant, and return its name."""
        array = np.asarray(value, np.float32)
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def add(self, kind: str, *inputs: str, **attributes: object) -> str:
        """Add a node, and return its output's name."""
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def scalars(self) -> list[float]:
        """Return the constants, and the numbers among attributes."""
        found = [float(one) for one in self.constants.values() if one.size == 1]
        return found + [one.f for node in self.nodes for one in node.attribute
                        if one.type == onnx.AttributeProto.FLOAT]

    def keep(self, y: str) -> None:
        """Remove the nodes that an output does not need."""
        needed, kept = {y}, []
        for node in reversed(self.nodes):
            if node.output[0] in needed:
                kept.append(node)
                needed |= set(node.input)
        self.nodes = kept[::-1]
        self.constants = {
            name: one for name, one in self.constants.items() if name in needed}

    def number(self) -> float:
        """Return a constant: small and round, or of any magnitude."""
        pick = self.rng.integers(4)
        if pick == 0:
            return float(self.rng.choice([0, 1, -1, 2, 0.5, 3, -3, 6, 0.1, -0.25]))
        if pick == 1:
            return float(self.rng.choice([2000, 5000, -999, 1e4, -1e6, 255, 1e9]))
        sign = self.rng.choice([-1, 1])
        return float(sign * 10 ** self.rng.uniform(-3, 1 if pick == 2 else 6))


class Term:
    """A value of a graph, with Python's arithmetic."""

    def __init__(self, graph: Drawn, name: str) -> None:
        self.graph, self.name = graph, name

    def _of(self, kind: str, *operands: object) -> Term:
        names = [one.name if isinstance(one, Term) else self.graph.constant(one)
                 for one in operands]
        return Term(self.graph, self.graph.add(kind, *names))

    def __add__(self, other: object) -> Term:
        return self._of("Add", self, other)

    def __radd__(self, other: object) -> Term:
        return self._of("Add", other, self)

    def __sub__(self, other: object) -> Term:
        return self._of("Sub", self, other)

    def __rsub__(self, other: object) -> Term:
        return self._of("Sub", other, self)

    def __mul__(self, other: object) -> Term:
        last = self.graph.nodes[-1:]
        if isinstance(other, Term) and last and last[0].op_type in COMPARISONS:
            cast = other.graph.add("Cast", other.name, to=TensorProto.FLOAT)
            other = Term(self.graph, cast)
        return self._of("Mul", self, other)

    def __rmul__(self, other: object) -> Term:
        return self._of("Mul", other, self)

    def __truediv__(self, other: object) -> Term:
        return self._of("Div", self, other)

    def __rtruediv__(self, other: object) -> Term:
        return self._of("Div", other, self)

    def __neg__(self) -> Term:
        return self._of("Neg", self)

    def __gt__(self, other: object) -> Term:
        return self._of("Greater", self, other)

    def __ge__(self, other: object) -> Term:
        return self._of("GreaterOrEqual", self, other)

    def __lt__(self, other: object) -> Term:
        return self._of("Less", self, other)

    def __eq__(self, other: object) -> Term:  # type: ignore[override]
        return self._of("Equal", self, other)

    def __and__(self, other: object) -> Term:
        return self._of("And", self, other)

    __hash__ = object.__hash__


def exported(graph: Drawn, x: str, text: str) -> str:
    """Add the nodes of a form of `EXPORTED`."""
    def function(kind: str):  # type: ignore[no-untyped-def]
        def apply(*operands: object) -> Term:
            term = next(one for one in operands if isinstance(one, Term))
            return term._of(kind, *operands)
        return apply

    kinds = {"max": "Max", "min": "Min", "where": "Where", "abs": "Abs", "exp": "Exp",
             "log": "Log", "erf": "Erf", "tanh": "Tanh", "sigmoid": "Sigmoid",
             "softplus": "Softplus", "isnan": "IsNaN"}
    names = {name: function(kind) for name, kind in kinds.items()}
    return eval(text, {"x": Term(graph, x), **names}).name


def drawn(graph: Drawn, x: str) -> str:
    """Add random nodes."""
    rng = graph.rng
    floats, conditions = [x], []
    for _ in range(rng.integers(1, MOST_NODES)):
        last = floats[-1] if rng.random() < 0.7 else str(rng.choice(floats))
        other = str(rng.choice(floats)) if rng.random() < 0.3 else (
            graph.constant(graph.number()))
        pair = (last, other) if rng.random() < 0.7 else (other, last)
        pick = rng.random()
        if pick < 0.35:
            floats.append(_unary(graph, str(rng.choice(UNARY)), last))
        elif pick < 0.7:
            kind = str(rng.choice(BINARY))
            if kind == "Pow":
                pair = last, graph.constant(rng.choice([1, 2, 3, -1, 0.5]))
            floats.append(graph.add(kind, *pair))
        elif pick < 0.85 or not conditions:
            kind = str(rng.choice([*COMPARISONS, "IsNaN"]))
            conditions.append(graph.add(kind, *(pair[:1] if kind == "IsNaN" else pair)))
            if rng.random() < 0.3 and len(conditions) > 1:
                conditions.append(
                    graph.add(str(rng.choice(BOOLEAN)), *conditions[-2:]))
            if rng.random() < 0.2:
                conditions.append(graph.add("Not", conditions[-1]))
            if rng.random() < 0.5:
                floats.append(
                    graph.add("Cast", conditions[-1], to=TensorProto.FLOAT))
        else:
            floats.append(graph.add("Where", conditions[-1], *pair))
    return floats[-1]


def _unary(graph: Drawn, kind: str, x: str) -> str:
    rng = graph.rng
    if kind == "Clip":
        low, high = sorted((graph.number(), graph.number()))
        names = [graph.constant(low), graph.constant(high)]
        missing = rng.integers(3)
        return graph.add("Clip", x, *(
            [names[0]] if missing == 1 else ["", names[1]] if missing == 2 else names))
    names = {"Elu": ("alpha",), "Celu": ("alpha",), "LeakyRelu": ("alpha",),
             "ThresholdedRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"),
             "Shrink": ("lambd", "bias"), "Selu": ("alpha", "gamma")}.get(kind, ())
    given = {name: float(rng.choice([0.2, 1.0, 0.5, -0.3, 2.5])) for name in names}
    if kind == "Celu":
        given["alpha"] = abs(given["alpha"])
    if rng.random() < 0.4:
        given = {}
    return graph.add(kind, x, **given)


def model(graph: Drawn, y: str, dtype: str) -> onnx.ModelProto:
    """Return the graph as a file's content, in a type."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x, out = (helper.make_tensor_value_info(name, kind, ["N", 2]) for name in "xy")
    nodes = []
    for node in [*graph.nodes, helper.make_node("Identity", [y], ["y"], "y")]:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for one in copy.attribute:
            if copy.op_type == "Cast" and one.name == "to":
                one.i = kind
        nodes.append(copy)
    constants = [numpy_helper.from_array(value.astype(dtype), name)
                 for name, value in graph.constants.items()]
    return helper.make_model(
        helper.make_graph(nodes, "graph", [x], [out], constants),
        opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def points(graph: Drawn) -> np.ndarray:
    """Return inputs [n, 2]: of all magnitudes, and about each constant."""
    rng = graph.rng
    sizes = 10 ** rng.uniform(-6, 6, 24) * rng.choice([-1, 1], 24)
    far = [sign * 10.0**k for k in (2, 3, 4, 6, 9, 12, 20, 30) for sign in (-1, 1)]
    scalars = graph.scalars()
    edges = {sign * one for one in scalars for sign in (1, -1)}
    edges |= {one / other for one in scalars[:4] for other in scalars[:4] if other}
    edges |= {one - other for one in scalars[:4] for other in scalars[:4]}
    at = np.array([*sorted(edges), 0, 0.5, -0.5, 1, -1, 3, -3], np.float32)
    at = at[np.isfinite(at)]
    with np.errstate(over="ignore"):
        beside = [np.nextafter(at, np.float32(end)) for end in (-np.inf, np.inf)]
    x = np.concatenate([rng.normal(0, 3, 40), sizes, far, at, *beside,
                        [0.0, -0.0, np.inf, -np.inf, np.nan]]).astype(np.float32)
    x = np.where((x != 0) & (np.abs(x) < LEAST), np.copysign(LEAST, x), x)
    x = x.astype(np.float32)
    return np.stack([x, rng.permutation(x)], axis=1)


@np.errstate(all="ignore")
def case(seed: int) -> Counter[str]:
    """Judge one graph; return its kind."""
    rng = np.random.default_rng(seed)
    graph = Drawn(rng)
    x = "x"
    kind = "drawn"
    if rng.random() < 0.3:
        x = graph.add("Mul", x, graph.constant(graph.number()))
        x = graph.add("Add", x, graph.constant(graph.number()))
        kind = "affine, "
    if rng.random() < 0.4:
        name = str(rng.choice(list(EXPORTED)))
        y = exported(graph, x, EXPORTED[name])
        kind = name
    else:
        y = drawn(graph, x)
    graph.keep(y)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.onnx"
        single = model(graph, y, "float32")
        path.write_bytes(single.SerializeToString())
        try:
            network = clnet.load(path)
        except FormatError as error:
            assert "node" in str(error) or "output" in str(error), error
            return Counter({f"refused: {kind}": 1})
    values = points(graph)
    found = reference.run(lower(network), values, network.parameters)
    judge(graph, y, single, values, found)
    return Counter({f"right: {kind}": 1})


def judge(
    graph: Drawn, y: str, single: onnx.ModelProto, x: np.ndarray, found: np.ndarray
) -> None:
    """Raise AssertionError unless outputs are those of either evaluation.

    What rounding of a node's output changes is no fault: each is moved by a last bit.
    """
    (a,) = _session(single).run(None, {"x": x})
    right, *moved = _moved(graph, y, x)
    slack = sum(np.nan_to_num(np.abs(one - right)) for one in moved)
    scalars = [abs(one) for one in graph.scalars()]
    steps = _values(graph, y, x)
    largest = np.nan_to_num(np.abs(steps)).max(axis=0)
    bounds = np.fmin(largest, max(scalars, default=0.0))
    pairs = [node for node in graph.nodes if node.op_type in ("Max", "Min")
             and not {*node.input} & {*graph.constants}]
    if pairs:  # of two values: as exact as the larger in size, but for infinity
        bounds = np.fmax(bounds, largest * max(1.0, *scalars, 0.0))
        infinite = np.isinf(x) | (largest > np.finfo(np.float32).max)
        right = np.where(infinite, np.nan, right)
    allowed = TINY + CLOSE * np.abs(right) + MOVED * bounds + 2 * slack
    good = np.zeros(x.shape, bool)
    for other in (a, right):
        good |= (found == other) | (np.abs(found - other) <= allowed)
        good |= np.isnan(found) & np.isnan(other)
        good |= np.isnan(other) & np.isinf(x)  # a limit
    kinds = {node.op_type for node in graph.nodes}
    if kinds & {*COMPARISONS, *STEPS}:
        good |= np.isnan(steps).any(axis=0)  # what NaN chooses is not kept
    if kinds & {"Sin", "Cos"}:
        good |= largest > MANY_TURNS
    good |= np.isinf(found) & (np.abs(right) > np.finfo(x.dtype).max)
    good |= np.isnan(a) & np.isfinite(x)  # overflow within the graph
    if not good.all():  # an overflow within the graph that a comparison hides
        good |= np.isnan(found) & np.isnan(_values(graph, y, x, "float32")).any(axis=0)
    if not good.all():
        k = tuple(np.argwhere(~good)[0])
        nodes = "; ".join(
            f"{node.output[0]} = {node.op_type}({', '.join(node.input)})"
            for node in graph.nodes)
        raise AssertionError(
            f"at {x[k]!r}: {found[k]!r}, expected {right[k]!r} or {a[k]!r}, of {nodes} "
            f"with {({name: one.tolist() for name, one in graph.constants.items()})}")


def _values(
    graph: Drawn, y: str, x: np.ndarray, dtype: str = "float64"
) -> np.ndarray:
    """Return x and the outputs of all float nodes."""
    content = model(graph, y, dtype)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for node in graph.nodes:
        if node.op_type not in (*COMPARISONS, *BOOLEAN, "Not"):
            content.graph.output.append(helper.make_tensor_value_info(
                node.output[0], kind, ["N", 2]))
    with np.errstate(all="ignore"):
        outputs = ReferenceEvaluator(content).run(None, {"x": x.astype(dtype)})
    return np.stack([np.broadcast_to(one, x.shape) for one in (x, *outputs)])


def _moved(graph: Drawn, y: str, x: np.ndarray) -> np.ndarray:
    """Return outputs in float64, and those with each float node's output moved."""
    moved = Drawn(graph.rng)
    moved.constants = dict(graph.constants)
    floats = [node.output[0] for node in graph.nodes
              if node.op_type not in (*COMPARISONS, *BOOLEAN, "IsNaN", "Not", "Cast")]
    if "x" in {name for node in graph.nodes for name in node.input}:
        floats.append("arithmetic's x")
    for node in graph.nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        name = node.output[0]
        moved.nodes.append(copy)
        if node.op_type in ARITHMETIC and "x" in node.input:
            exact = f"x of {name}"
            moved.nodes.insert(-1, helper.make_node(
                "Mul", ["x", "arithmetic's x moved"], [exact]))
            copy.input[:] = [exact if one == "x" else one for one in node.input]
        if node.op_type == "Shrink":
            moved.nodes[-1:] = _shrink_by_parts(moved, node, floats)
            copy = moved.nodes[-1]
        if name in floats:
            copy.output[0] = f"{name} as it is"
            moved.nodes.append(
                helper.make_node("Mul", [copy.output[0], f"{name} moved"], [name]))
    content = model(moved, y, "float64")
    rows = 1 + 2 * len(floats)
    feeds = {"x": np.tile(x.astype(np.float64), (rows, 1))}
    for k, name in enumerate(floats):
        factors = np.ones((rows, len(x), 1))
        factors[1 + 2 * k], factors[2 + 2 * k] = 1 + MOVED, 1 - MOVED
        feeds[f"{name} moved"] = factors.reshape(-1, 1)
        content.graph.input.append(helper.make_tensor_value_info(
            f"{name} moved", TensorProto.DOUBLE, ["N", 1]))
    with np.errstate(all="ignore"):
        (outputs,) = ReferenceEvaluator(content).run(None, feeds)
    return np.asarray(outputs).reshape(rows, *x.shape)


def _shrink_by_parts(
    graph: Drawn, node: onnx.NodeProto, floats: list[str]
) -> list[onnx.NodeProto]:
    """Return nodes of a Shrink: x is moved in its sums, and not in its steps."""
    (x,), (name,) = node.input, node.output
    given = {attribute.name: attribute.f for attribute in node.attribute}
    edge, bias = given.get("lambd", 0.5), given.get("bias", 0.0)
    low, high, offset, zero, near, below, above, plus, minus, upper = (
        f"{part} of {name}" for part in (
            "low", "high", "offset", "zero", "near", "below", "above", "plus", "minus",
            "upper"))
    for constant, value in ((low, -edge), (high, edge), (offset, bias), (zero, 0.0)):
        graph.constants[constant] = np.asarray(value, np.float32)
    moved = "arithmetic's x" if x == "x" else x
    return [helper.make_node(kind, inputs, [output]) for kind, inputs, output in (
        ("Mul", [x, f"{moved} moved"], near) if moved in floats else
        ("Identity", [x], near),
        ("Less", [x, low], below), ("Greater", [x, high], above),
        ("Add", [near, offset], plus), ("Sub", [near, offset], minus),
        ("Where", [above, minus, zero], upper), ("Where", [below, plus, upper], name))]


def _session(content: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = (
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)
    return onnxruntime.InferenceSession(content.SerializeToString(), options)
