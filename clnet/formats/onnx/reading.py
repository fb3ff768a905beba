"""Networks of a file's graph: its nodes are followed one by one, in their order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from onnx import TensorProto

from clnet.errors import FormatError, InputError, quoted, reason
from clnet.formats.graphs.affine import Affine
from clnet.formats.graphs.layers import GraphLayers, network_of
from clnet.formats.graphs.operators import outputs_of
from clnet.formats.graphs.trace import GraphTrace, Refused, Tensor
from clnet.formats.graphs.values import RefusalError, Tracer
from clnet.formats.onnx.graph import FLOATS, Graph, as_node, named, read_graph
from clnet.formats.onnx.writer import NAMES
from clnet.nn.columns import Columns

if TYPE_CHECKING:
    from clnet.nn.model import Model

M = TypeVar("M", bound="Model")


@np.errstate(all="ignore")  # infinity and NaN go through as in the graph
def read_network(path: Path, network_type: type[M], memory_limit: int | None) -> M:
    """Return the network of a file; see `clnet.formats.onnx.load`."""
    graph = read_graph(path, memory_limit)
    try:
        network = network_of(lambda batch: _layers(graph, batch), graph.batch,
                             network_type)
    except RefusalError as error:
        raise FormatError(f"{path}: {error}") from None
    _set_names(network, graph)
    return network


def _set_names(network: Model, graph: Graph) -> None:
    """Give a network the classes and columns that `writer` has put beside the graph."""
    for name, read in (("classes", lambda names: names),
                       ("columns", lambda names: Columns(**names))):
        text = graph.metadata.get(NAMES + name)
        if text is None:
            continue
        try:
            setattr(network, name, read(json.loads(text)))
        except (
            InputError, ValueError, TypeError, LookupError, RecursionError
        ) as error:
            raise FormatError(
                f"{graph.path} holds {name} not of its network: {reason(error)}"
            ) from None


def _layers(graph: Graph, batch: int) -> GraphLayers:
    """Return the layers of a graph for so many samples."""
    trace = GraphTrace(graph.inputs, batch, graph.room, graph.versions)
    trace.tensors.update(graph.constants)
    for node in graph.nodes:
        trace.text = named(node)
        outputs: Sequence[Tensor]
        try:
            outputs = _outputs_of(trace, node)
        except (FormatError, MemoryError):
            raise
        except RefusalError as error:
            outputs = [Refused(f"{trace.text} {error}")] * len(node.output)
        except Exception as error:  # onnx raises nearly anything for a damaged file
            outputs = [
                Refused(f"{trace.text} cannot be computed: {reason(error)}")
            ] * len(node.output)
        trace.tensors.update(zip(node.output, outputs, strict=False))
    return GraphLayers(trace, *_outputs(graph, trace))


def _outputs_of(trace: GraphTrace, node: Any) -> Sequence[Tensor]:
    """Return the outputs of a node of the file."""
    inputs: list[Any] = []
    for name in node.input:
        if name and name not in trace.tensors:
            raise RefusalError(f"reads {quoted(name)}, which no node before it makes")
        inputs.append(trace.tensors[name] if name else None)
    refused = [tensor for tensor in inputs if isinstance(tensor, Refused)]
    if refused:
        return refused[:1] * len(node.output)
    return outputs_of(trace, as_node(node, trace.versions), inputs)


def _outputs(graph: Graph, trace: GraphTrace) -> tuple[Affine, str]:
    """Return the rows of all outputs of floats, side by side, and their type."""
    outputs: list[Affine] = []
    skipped: Refused | None = None
    types = []
    for output in graph.outputs:
        tensor = trace.tensors.get(output.name)
        element_type = output.type.tensor_type.elem_type if output.type.HasField(
            "tensor_type") else TensorProto.FLOAT
        if isinstance(tensor, Refused) and element_type not in FLOATS:
            skipped = skipped or tensor
            continue
        if isinstance(tensor, Refused):
            raise RefusalError(tensor.reason)
        if not isinstance(tensor, Tracer):
            raise RefusalError(
                f"output {quoted(output.name)} does not depend on the input")
        if tensor.whole or element_type not in FLOATS:
            skipped = skipped or Refused(
                f"output {quoted(output.name)} is of whole numbers, expected "
                "floats")
            continue
        types.append(FLOATS[element_type])
        try:
            outputs.append(trace.records.samples(tensor))
        except RefusalError as error:
            raise RefusalError(f"output {quoted(output.name)} {error}") from None
    if skipped is not None and not outputs:
        raise RefusalError(skipped.reason)
    return Affine.joined(outputs), max(types)
