"""ONNX files: graphs of all kinds of nodes, damaged in their structure or bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from clnet import Dense, Local, Network, Scaling, Sparse
from clnet.formats.graphs.operators import FOLDABLE, OPERATORS

from . import mutations

NEAR = 1e-3  # of float32, through some layers: the oracle is for wrong graphs
WHOLES = (0, 1, 2, 3, 4, -1, -2, 7, 13, 2**31, 2**40, 2**62, -(2**62))
FLOATS = (0.0, 1.0, -1.0, 0.5, 3.0, 1e-8, 1e30, float("inf"), float("nan"))
BATCH = 3


def seeds() -> list[bytes]:
    """Return files as clnet writes them, and as exporters do."""
    scaled = Network(2, [Dense(3, "tanh"), Dense(1)], seed=0, scaling=Scaling(
        *[[1.0, 2.0]] * 4, *[[0.5]] * 4))
    networks = [
        scaled, Network(3, [Dense(4, "gelu"), Dense(3, "softmax")], seed=1),
        Network(4, [Sparse(4, "mish", density=0.5), Local(2, "relu")], seed=2),
        Network(3, [Dense(2, ("tanh", "sin")), Dense(2, sources=(0, 1))], seed=3,
                dtype="float64", fann_compatible=True),
    ]
    found = []
    with TemporaryDirectory() as folder:
        for network in networks:
            network.save(Path(folder) / "x.onnx")
            found.append((Path(folder) / "x.onnx").read_bytes())
    return [*found, *map(_graph, _GRAPHS)]


def _graph(nodes: Sequence[tuple[Any, ...]]) -> bytes:
    rng = np.random.default_rng(0)
    constants = {
        "W": rng.normal(size=(4, 4)), "V": rng.normal(size=(2, 4)),
        "b": rng.normal(size=4), "two": np.array(2.0), "half": np.array(0.5),
        "K": rng.normal(size=(2, 1, 2)),
    }
    constants = {name: value.astype(np.float32) for name, value in constants.items()}
    wholes = {"i0": [0], "i1": [1], "i2": [2], "s22": [0, 2, 2], "s14": [0, 1, 4],
              "pads": [0, 1, 0, 1], "sizes": [2, 2], "twice": [1, 2]}
    constants |= {name: np.array(value) for name, value in wholes.items()}
    made = [helper.make_node(one[0], one[1].split(), one[2].split(), one[2],
                             **(one[3] if len(one) > 3 else {})) for one in nodes]
    used = {name for node in made for name in node.input}
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", 4])
            for name in "xy")
    return bytes(helper.make_model(
        helper.make_graph(
            made, "g", [x], [y],
            [numpy_helper.from_array(value, name)
             for name, value in constants.items() if name in used],
        ),
        opset_imports=[helper.make_opsetid("", 17),
                       helper.make_opsetid("ai.onnx.ml", 3)], ir_version=8,
    ).SerializeToString())


_GRAPHS: list[list[tuple[Any, ...]]] = [
    [("MatMul", "x W", "u"), ("Add", "u b", "v"), ("Sigmoid", "v", "s"),
     ("Mul", "v s", "y")],
    [("Reshape", "x s22", "r"), ("Transpose", "r", "t", {"perm": [0, 2, 1]}),
     ("Softmax", "t", "p", {"axis": -1}), ("Flatten", "p", "y")],
    [("Split", "x sizes", "l r", {"axis": 1}), ("Gemm", "l V b", "g"),
     ("Relu", "g", "h"), ("Concat", "h r", "c", {"axis": 1}),
     ("Slice", "c i1 i2 i1", "d"), ("Pad", "d pads", "e"),
     ("LeakyRelu", "e", "y", {"alpha": 0.2})],
    [("Reshape", "x s14", "r"), ("Conv", "r K", "c"), ("Clip", "c half two", "d"),
     ("ReduceMean", "d", "m", {"axes": [2], "keepdims": 0}), ("Tanh", "m", "y")],
    [("Shape", "x", "n"), ("ConstantOfShape", "n", "z"), ("Sub", "x z", "d"),
     ("Div", "d two", "q"), ("Softsign", "q", "e"), ("Max", "e half", "y")],
    [("BatchNormalization", "x b b b b", "n"), ("Gather", "n i2", "g", {"axis": 1}),
     ("Unsqueeze", "g i1", "w"), ("Squeeze", "w i1", "k"), ("Expand", "k i1", "l"),
     ("Tile", "l twice", "o"), ("LogSoftmax", "o", "y")],
]


def mutate(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Change a part of the graph, mostly; or bytes."""
    if rng.random() < 0.25:
        return mutations.binary(rng, content, others)
    try:
        model = onnx.load_model_from_string(content)
        changed(rng, model.graph, others)
        return bytes(model.SerializeToString())
    except Exception:  # it was damaged before
        return mutations.binary(rng, content, others)


def changed(rng: Random, graph: Any, others: Sequence[bytes]) -> None:
    """Change one thing in a graph."""
    node = rng.choice(graph.node)
    kind = rng.randrange(10)
    if kind == 0:
        names = rng.choice((sorted(OPERATORS), sorted(FOLDABLE)))
        *domain, node.op_type = rng.choice(names).split(":")
        node.domain = domain[0] if domain else ""
    elif kind == 1:
        names = [*(one.name for one in graph.initializer), "x", "", "none",
                 *(name for one in graph.node for name in one.output)]
        at = rng.randrange(len(node.input) + 1)
        inputs = [*node.input[:at], rng.choice(names), *node.input[at + 1 :]]
        del node.input[:]
        node.input.extend(inputs)
    elif kind == 2:
        name = rng.choice((
            "axis", "axes", "perm", "alpha", "beta", "transA", "transB", "to", "group",
            "keepdims", "mode", "kernel_shape", "pads", "strides", "value", "epsilon",
        ))
        value = rng.choice((
            rng.choice(WHOLES), rng.choice(FLOATS), "reflect", np.inf,
            [rng.choice(WHOLES) for _ in range(rng.randrange(1, 4))],
        ))
        kept = [one for one in node.attribute if one.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(name, value)])
    elif kind == 3:
        del graph.node[rng.randrange(len(graph.node))]
    elif kind == 4:
        graph.node.insert(rng.randrange(len(graph.node) + 1), node)
    elif kind == 5:
        other = onnx.load_model_from_string(rng.choice(others)).graph
        graph.node.extend(other.node)
        graph.initializer.extend(other.initializer)
    elif kind == 6:
        info = rng.choice([*graph.input, *graph.output]).type.tensor_type
        dims = [rng.choice(WHOLES) for _ in range(rng.randrange(4))]
        info.CopyFrom(helper.make_tensor_value_info(
            "", rng.choice((1, 1, 1, 11, 7, 9, 10)), dims).type.tensor_type)
    elif graph.initializer:
        tensor = rng.choice(graph.initializer)
        if kind == 7:
            del tensor.dims[:]
            tensor.dims.extend(rng.choice(WHOLES) for _ in range(rng.randrange(4)))
        elif kind == 8:
            tensor.data_type = rng.randrange(20)
        else:
            array = numpy_helper.to_array(tensor).copy()
            array.flat[rng.randrange(array.size)] = rng.choice(
                WHOLES if array.dtype.kind == "i" else FLOATS)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def check(content: bytes, network: Network) -> None:
    """By onnx's own evaluator, where it runs the graph and numbers are moderate."""
    model = onnx.load_model_from_string(content)
    names = {one.name for one in model.graph.initializer}
    inputs = [one for one in model.graph.input if one.name not in names]
    rng = np.random.default_rng(0)
    feeds, flat = {}, []
    for one in inputs:
        tensor = one.type.tensor_type
        dims = [dim.dim_value for dim in tensor.shape.dim]
        batch = next((d.type.tensor_type.shape.dim[0].dim_value for d in inputs
                      if d.type.tensor_type.shape.dim[0].dim_value > 0), BATCH)
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        x = rng.normal(size=(batch, *dims[1:])).astype(dtype)
        feeds[one.name] = x
        flat.append(x.reshape(batch, -1))
    if np.abs(np.nan_to_num(network.parameters, nan=np.inf)).max() > 1e3:
        return
    try:
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(model).run(None, feeds)
        wanted = [one.reshape(len(flat[0]), -1)
                  for one in found if one.dtype.kind == "f"]
        expected = np.concatenate(wanted, axis=1).astype(np.float64)
    except Exception:  # it lacks something, as an operator of that version
        return
    x = np.concatenate(flat, axis=1).astype(network.dtype)
    plan = network.compile(batch=len(x), tune=False, variants=["host"])
    y = plan(x)
    assert y.shape == expected.shape, f"{y.shape} is not {expected.shape}"
    known = np.isfinite(expected) & np.isfinite(y)
    error = np.abs(y - expected)[known] / (1 + np.abs(expected)[known])
    # A jump of a threshold may be met by chance.
    assert (error <= NEAR).all(), f"{y} is not {expected}"
