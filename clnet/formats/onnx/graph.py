"""The file: its nodes, constants and inputs, and single nodes by onnx's evaluator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import (
    defs,
    external_data_helper,
    helper,
    inliner,
    numpy_helper,
    shape_inference,
)
from onnx.reference import ReferenceEvaluator

from clnet.errors import FormatError, quoted
from clnet.formats.files import read, reading
from clnet.formats.graphs.trace import Input, Node, Room
from clnet.formats.graphs.values import RefusalError
from clnet.formats.onnx.functions import gelu

Array = NDArray[Any]

FLOATS = {onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.DOUBLE: "float64"}
MOST_SIZES = 100  # numbers of a constant that may say how large an output is
WHOLES = (
    onnx.TensorProto.INT8, onnx.TensorProto.INT16, onnx.TensorProto.INT32,
    onnx.TensorProto.INT64, onnx.TensorProto.UINT8, onnx.TensorProto.UINT16,
    onnx.TensorProto.UINT32, onnx.TensorProto.UINT64,
)


@dataclass
class Graph:
    """A graph of a file, with its constants as arrays."""

    path: Path
    nodes: Sequence[Any]
    versions: dict[str, int]
    constants: dict[str, Array]
    inputs: list[Input]
    outputs: list[Any]
    room: Room
    metadata: dict[str, str]

    @property
    def batch(self) -> int | None:
        """Samples that the graph is made for; None: any number."""
        sizes = (graph_input.batch for graph_input in self.inputs)
        return next((size for size in sizes if size is not None), None)


def read_graph(path: Path, memory_limit: int | None) -> Graph:
    """Return the graph of a file; see `clnet.formats.onnx.load`."""
    content = read(path)
    room = Room(path, len(content), memory_limit)
    with reading(f"{path} is not an ONNX file"):
        model = onnx.load_model_from_string(content)
        if model.functions:
            known = [(function.domain, function.name) for function in model.functions
                     if function == gelu(function.opset_import[0].version)]
            model = inliner.inline_selected_functions(model, known, exclude=True)
    del content
    graph = model.graph
    if not graph.node or not graph.output:
        raise FormatError(f"{path} is not an ONNX file: it holds no graph")
    constants = {tensor.name: _array(path, tensor, room)
                 for tensor in graph.initializer}
    for sparse in graph.sparse_initializer:
        constants[sparse.values.name] = _sparse_array(path, sparse, room)
    inputs = [_input(path, info) for info in graph.input if info.name not in constants]
    if not inputs:
        raise FormatError(f"{path}: the graph has no input")
    sizes = (graph_input.batch for graph_input in inputs)
    batches = {size for size in sizes if size is not None}
    if len(batches) > 1:
        raise FormatError(
            f"{path}: the inputs have first dimensions of {quoted(sorted(batches))}, "
            "expected the number of samples in each"
        )
    versions = {opset.domain or "": opset.version for opset in model.opset_import}
    versions.setdefault("", 1)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    return Graph(path, graph.node, versions, constants, inputs, list(graph.output),
                 room, metadata)


def _array(path: Path, tensor: Any, room: Room) -> Array:
    """Return a tensor of the file as an array."""
    with reading(f"{path}: tensor {quoted(tensor.name)} cannot be read"):
        if external_data_helper.uses_external_data(tensor):
            external_data_helper.load_external_data_for_tensor(tensor, str(path.parent))
            room.file_size += len(tensor.raw_data)
        size = int(np.prod(list(tensor.dims), dtype=object))
        room.take(0 if size < 0 else size * 8)
        return np.asarray(numpy_helper.to_array(tensor, str(path.parent)))


def _sparse_array(path: Path, sparse: Any, room: Room) -> Array:
    """Return a sparse tensor of the file as a dense array."""
    values, indices = (_array(path, tensor, room) for tensor in (sparse.values,
                                                           sparse.indices))
    with reading(f"{path}: tensor {quoted(sparse.values.name)} cannot be read"):
        size = int(np.prod(list(sparse.dims), dtype=object))
        room.take(size * 8)
        dense = np.zeros(size, values.dtype)
        if indices.ndim == 2:
            indices = np.ravel_multi_index(tuple(indices.T), tuple(sparse.dims))
        dense[indices] = values
        return dense.reshape(tuple(sparse.dims))


def _input(path: Path, info: Any) -> Input:
    """Return an input, whose shape must be known but for the number of samples."""
    tensor = info.type.tensor_type
    start = f"{path}: input {quoted(info.name)}"
    if tensor.elem_type in FLOATS:
        dtype = FLOATS[tensor.elem_type]
    elif tensor.elem_type in WHOLES:
        dtype = "int64"
    else:
        raise FormatError(f"{start} is no tensor of numbers in float32 or float64")
    dims = [dim.dim_value if dim.HasField("dim_value") else 0
            for dim in tensor.shape.dim]
    if not dims or min(dims[1:], default=1) < 1:
        raise FormatError(
            f"{start} has the shape {_shape_text(tensor)}, expected samples of a known "
            "shape, as [N, 4]"
        )
    return Input(info.name, dims[0] if dims[0] > 0 else None, tuple(dims[1:]), dtype)


def _shape_text(tensor: Any) -> str:
    dims = [str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?"
            for dim in tensor.shape.dim]
    return quoted(f"[{', '.join(dims)}]")


def named(node: Any) -> str:
    """Return the text that names a node in an error."""
    name = node.name or next((output for output in node.output if output), "")
    return f"node {quoted(name)} ({quoted(node.op_type)[1:-1]})"


def as_node(node: Any, versions: Mapping[str, int]) -> Node:
    """Return a node of the file as one of `clnet.formats.graphs`; text becomes str."""
    values = {attribute.name: helper.get_attribute_value(attribute)
              for attribute in node.attribute}
    options = {
        name: value.decode(errors="replace") if isinstance(value, bytes) else value
        for name, value in values.items()
    }
    op = f"{node.domain}:{node.op_type}" if node.domain else node.op_type
    return Node(named(node), op, options, partial(_evaluate, node, versions),
                partial(_elements, node, options, versions))


def _renamed(
    node: Any, inputs: Sequence[Any], without: Sequence[str] = ()
) -> tuple[Any, dict[str, Any]]:
    """Return a copy of a node, without some attributes, and its inputs by name."""
    names = ["" if tensor is None else f"i{at}" for at, tensor in enumerate(inputs)]
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.input[:], copy.attribute[:]
    copy.input.extend(names)
    copy.attribute.extend(
        attribute for attribute in node.attribute if attribute.name not in without)
    return copy, {name: tensor for name, tensor in zip(names, inputs, strict=True)
                  if name}


def _elements(
    node: Any, options: dict[str, Any], versions: Mapping[str, int],
    inputs: Sequence[Any],
) -> int:
    """Return how many elements a node's outputs have, by onnx's inference of shapes.

    Those of windows are counted with what lies in each, which the evaluator gathers.
    """
    copy, tensors = _renamed(node, inputs)
    types, constants = {}, {}
    for name, tensor in tensors.items():
        element_type = onnx.TensorProto.FLOAT  # values have none of their own
        if isinstance(tensor, np.ndarray):
            if tensor.dtype.kind != "f":
                element_type = helper.np_dtype_to_tensor_dtype(tensor.dtype)
            if tensor.size <= MOST_SIZES:
                constants[name] = numpy_helper.from_array(
                    tensor.astype(np.float32) if tensor.dtype.kind == "f" else tensor,
                    name,
                )
        types[name] = helper.make_tensor_type_proto(element_type, tensor.shape)
    version = versions.get(node.domain, 1)
    outputs = shape_inference.infer_node_outputs(
        defs.get_schema(node.op_type, version, node.domain), copy, types, constants,
        opset_imports=[helper.make_opsetid(*pair) for pair in versions.items()],
    )
    total = 0
    for output in outputs.values():
        shape = output.tensor_type.shape
        if not output.tensor_type.HasField("shape") or not all(
            dim.HasField("dim_value") for dim in shape.dim
        ):
            raise RefusalError("has outputs of an unknown size")
        total += math.prod(dim.dim_value for dim in shape.dim)
    window: Sequence[int] = options.get("kernel_shape", ())
    if not window and node.op_type in ("Conv", "ConvTranspose"):
        window = inputs[1].shape[2:]
    return max(1, total) * math.prod(window) if window else total


def _evaluate(
    node: Any, versions: Mapping[str, int], arrays: Sequence[Array | None],
    without: Sequence[str],
) -> list[Array]:
    """Return a node's outputs for its inputs, by onnx's reference evaluator."""
    copy, feeds = _renamed(node, arrays, without)
    outputs = [name for name in node.output if name]
    untyped = onnx.TypeProto()
    model = helper.make_model(
        helper.make_graph(
            [copy], "node", [helper.make_value_info(name, untyped) for name in feeds],
            [helper.make_value_info(name, untyped) for name in outputs],
        ),
        opset_imports=[helper.make_opsetid(*pair) for pair in versions.items()],
    )
    results = ReferenceEvaluator(model).run(None, feeds)
    results_by_name = dict(zip(outputs, results, strict=True))
    return [np.asarray(results_by_name.get(name, 0)) for name in node.output]
