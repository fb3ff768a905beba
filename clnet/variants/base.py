"""The protocol of variants, and helpers that several variants share.

A variant is a frozen, stateless description of one way to compute a span. Its `Launch`
records serve the runtime, the tuner, the tests and the benchmarks, so that launch
geometry is written once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from clnet.ir.ops import (
    VALUE_ALIGNMENT,
    Apply,
    BiasAct,
    LayerOps,
    Nonlinearity,
    Op,
    Span,
    Value,
)
from clnet.ir.training_ops import ApplyT, Outer
from clnet.nn.storage.dense import RowStorage
from clnet.opencl.device import Device
from clnet.opencl.launch import Argument, Launches, Parameters

OneOp = TypeVar("OneOp", bound=Op)

# Refusals that several families share.
NO_WHOLE_LAYERS = "it computes whole layers, and these ops are not whole layers"
MORE_OUTPUTS = "it stores only the last layer's output, and more is read later"
MIXED_ACTIVATIONS = "it applies one activation per layer, and here neurons differ"

VECTOR_BYTES = 32  # on CPUs: without AVX-512 PoCL miscomputes sums in longer vectors

Config = Mapping[str, int]
"""One point of a variant's tuning space: named whole numbers."""

Reach = Literal["op", "pair", "triple", "layer", "run", "program"]
"""Length of a span: one op, one or two, up to three, one layer (`Apply` + `BiasAct`),
several layers, or all ops of a program."""


@dataclass(frozen=True)
class Cost:
    """Cost of a span in a variant; read by models and by the benchmarks' rooflines.

    Attributes
    ----------
    flops : int
        Floating-point operations, a multiply-add being two.
    bytes : int
        Bytes of global-memory traffic; an array that is read again counts again.
    launches : int
        Kernel launches per call.
    scratch : int
        Bytes of scratch and packed buffers.
    compute_units : int
        Compute units kept busy, at most.
    efficiency : float
        Attainable share of a compute unit's peak rate; an estimate.
    """

    flops: int
    bytes: int
    launches: int
    scratch: int
    compute_units: int
    efficiency: float = 1.0


class Variant(Protocol):
    """A way to compute a span. Implementations are frozen and hold no state."""

    @property
    def name(self) -> str:
        """Stable name: tuning key, test id and benchmark row."""
        ...

    @property
    def reach(self) -> Reach:
        """Length of its spans."""
        ...

    def refuse(self, span: Span, device: Device) -> str | None:
        """Return why it cannot compute the span on the device, or None.

        One sentence for the user, from structure and capabilities, never from values.
        """
        ...

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return the finite tuning space; the first config is the default."""
        ...

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Return the cost of the span."""
        ...

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the launches in order; none for the host variant."""
        ...


class Untuned:
    """A variant with nothing to tune."""

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return the only config."""
        return ({},)


def span_flops(span: Span) -> int:
    """Return the floating-point operations of a span, in any variant."""
    flops = 0
    for op in span.ops:
        if isinstance(op, (Apply, ApplyT, Outer)):
            flops += 2 * op.storage.size * span.batch
        else:
            flops += 4 * sum(v.width * v.height(span.batch) for v in op.writes)
    return flops


def gpu_kernel_efficiency(device: Device) -> float:
    """Return the attainable efficiency of a kernel written for GPUs.

    Measured on PoCL: one work-item per output is 15 to 50 times slower than explicit
    vectors without barriers.
    """
    return 0.05 if device.type == "cpu" else 1.0


def item_size(span: Span) -> int:
    """Return the bytes of one number of a span."""
    return 8 if span.dtype == "float64" else 4


def span_bytes(span: Span) -> int:
    """Return the least traffic of a span: parameters, inputs and outputs once."""
    numbers = 0
    for op in span.ops:
        if isinstance(op, Apply):
            numbers += op.weights.size
        elif isinstance(op, BiasAct) and op.bias is not None:
            numbers += op.bias.size
    values = sum(
        value.width * value.height(span.batch)
        for value in (*span.inputs, *span.outputs)
    )
    return item_size(span) * (numbers + values)


def span_cost(
    span: Span, device: Device, again: int, groups: int, launches: int = 1,
    scratch: int = 0, efficiency: float | None = None,
) -> Cost:
    """Return the cost of a span by work-groups, each on a compute unit.

    Parameters
    ----------
    span, device
        As in `Variant.cost`.
    again : int
        Bytes of traffic besides `span_bytes`.
    groups : int
        Work-groups of a launch.
    launches, scratch : int
        As in `Cost`.
    efficiency : float or None
        As in `Cost`; None: `gpu_kernel_efficiency`.
    """
    if efficiency is None:
        efficiency = gpu_kernel_efficiency(device)
    return Cost(
        span_flops(span), span_bytes(span) + again, launches, scratch,
        min(device.compute_units, groups), efficiency,
    )


def real(span: Span) -> str:
    """Return the OpenCL type of the span's dtype."""
    return "double" if span.dtype == "float64" else "float"


def kernel_function(name: str) -> str:
    """Return the OpenCL function of an activation (activations.h)."""
    return f"act_{name}"


def number(value: float, span: Span) -> str:
    """Return a constant of the span's type as OpenCL text."""
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return repr(float(value)) + ("" if span.dtype == "float64" else "f")


def padded(value: Value) -> int:
    """Return 1 if rows of a value can be read as whole vectors of 4, else 0."""
    return int(value.stride % VALUE_ALIGNMENT == 0)


def unsupported_dtype(span: Span, device: Device) -> str | None:
    """Return why the device cannot compute in the span's dtype, or None."""
    if span.dtype == "float64" and not device.fp64:
        return f"{device.name} has no float64"
    return None


def refuse_unless_cpu(span: Span, device: Device) -> str | None:
    """Return why a CPU kernel in float32 cannot compute the span, or None."""
    if device.type != "cpu":
        return f"it is a CPU-only kernel, and {device.name} is a {device.type}"
    if span.dtype != "float32":
        return "it computes in float32 only"
    return None


def only_op(span: Span, kind: type[OneOp]) -> OneOp:
    """Return the only op of a span, which was not refused."""
    (op,) = span.ops
    assert isinstance(op, kind)
    return op


def refuse_unless_dense_layers(
    span: Span, device: Device, *, stores_z: bool = False
) -> str | None:
    """Return why the span is not a chain of dense layers with uniform activations.

    With `stores_z`, the pre-activations of its layers may be read later.
    """
    if span.chain is None:
        return NO_WHOLE_LAYERS
    if span.layers is None and not stores_z:
        return MORE_OUTPUTS
    for layer in span.chain:
        if not isinstance(layer.apply.storage, RowStorage):
            return f"it computes dense layers only, not {layer.apply.storage.name}"
        if not layer.act.nonlinearity.uniform:
            return MIXED_ACTIVATIONS
    return unsupported_dtype(span, device)


class DenseLayers:
    """A variant of dense layers that needs nothing else."""

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all but dense layers with one activation each."""
        return refuse_unless_dense_layers(span, device)


def refuse_unless_forward_progress(device: Device) -> str | None:
    """Return why work-groups of a launch must not wait for each other, or None."""
    if device.forward_progress:
        return None
    return (
        f"it needs forward progress between work-groups, which {device.name} does not "
        "guarantee"
    )


def dense_layer(span: Span) -> LayerOps:
    """Return the only layer of a span, which was not refused."""
    assert span.chain is not None
    (layer,) = span.chain
    return layer


def layer_defines(span: Span, layer: LayerOps) -> dict[str, int | str]:
    """Return the macros of one layer (activations.h)."""
    return {
        **function_defines(span, layer.act.nonlinearity),
        "HAS_BIAS": int(layer.act.bias is not None),
    }


def function_defines(span: Span, function: Nonlinearity) -> dict[str, int | str]:
    """Return the macros of one activation (activations.h)."""
    defines: dict[str, int | str] = {
        "REAL": real(span),
        "ACTIVATION": kernel_function(function.names[0]),
        "STEEPNESS": number(function.steepness[0], span),
    }
    if function.limits is not None and function.limits[0] < float("inf"):
        defines["LIMIT"] = number(function.limits[0], span)
    return defines


def weights_and_bias(layer: LayerOps) -> tuple[Argument, ...]:
    """Return the arguments: parameters, offset of A, row stride, offset of the bias."""
    storage, bias = layer.apply.storage, layer.act.bias
    assert isinstance(storage, RowStorage)
    return (
        Parameters(),
        layer.apply.weights.offset,
        storage.stride,
        0 if bias is None else bias.offset,
    )
