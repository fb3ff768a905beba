"""What a variant is: a frozen, stateless description of how to compute a span.

One `Launch` record serves the runtime, the tuner, the tests and the benchmarks, so that
launch geometry is written once, in the variant.
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
from clnet.opencl.launch import Argument, Launch, Parameters

OneOp = TypeVar("OneOp", bound=Op)

VECTOR_BYTES = 32  # of CPUs: without AVX-512 PoCL computes wrong sums in longer vectors

Config = Mapping[str, int]
"""One point of a variant's tuning space: named whole numbers."""

Reach = Literal["op", "pair", "triple", "layer", "run", "program"]
"""How long a span may be: one op, one or two, up to three, one layer (`Apply` +
`BiasAct`), several layers, or all ops of a program."""


@dataclass(frozen=True)
class Cost:
    """What a span costs in a variant; read by models and by the benchmarks' floors.

    Attributes
    ----------
    flops : int
        Floating-point operations, a multiply-add being two.
    bytes : int
        Bytes moved through global memory, each array once where the variant does so.
    launches : int
        Kernel launches a call.
    scratch : int
        Bytes of scratch and packed buffers.
    compute_units : int
        Compute units that the launches keep busy at most.
    efficiency : float
        Share of such a unit's rate that the kernel's shape can hope for; an estimate.
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
        """Stable name: tuning key, test id, benchmark row."""
        ...

    @property
    def reach(self) -> Reach:
        """How long its spans are."""
        ...

    def refuse(self, span: Span, device: Device) -> str | None:
        """Return None if it can compute the span on the device, else why not.

        One sentence, for the user. Reads structure and capabilities, never values.
        """
        ...

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return the finite tuning space; the first config is the default."""
        ...

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Return what the span costs."""
        ...

    def launches(
        self, span: Span, config: Config, device: Device
    ) -> tuple[Launch, ...]:
        """Return the launches, in order. The host variant returns none."""
        ...


def span_flops(span: Span) -> int:
    """Return the floating-point operations of a span, whatever computes it."""
    flops = 0
    for op in span.ops:
        if isinstance(op, (Apply, ApplyT, Outer)):
            flops += 2 * op.storage.size * span.batch
        else:
            flops += 4 * sum(v.width * v.height(span.batch) for v in op.writes)
    return flops


def gpu_shape(device: Device) -> float:
    """Return the efficiency that a kernel written for a GPU can hope for.

    Measured on PoCL: one work-item an output runs 15 to 50 times slower than kernels
    with explicit vectors and no barriers.
    """
    return 0.05 if device.type == "cpu" else 1.0


def item_size(span: Span) -> int:
    """Return the bytes of one number of a span."""
    return 8 if span.dtype == "float64" else 4


def span_bytes(span: Span) -> int:
    """Return the bytes that a span must move: parameters, inputs and outputs once."""
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


def real(span: Span) -> str:
    """Return OpenCL's name of the span's type."""
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
    """Return 1 where rows of a value can be read as whole vectors of 4, else 0."""
    return int(value.stride % VALUE_ALIGNMENT == 0)


def unsupported_dtype(span: Span, device: Device) -> str | None:
    """Return why the device cannot compute in the span's dtype, or None."""
    if span.dtype == "float64" and not device.fp64:
        return f"{device.name} has no float64"
    return None


def refuse_unless_cpu(span: Span, device: Device) -> str | None:
    """Return why the device is no CPU, or the span of a type that CPU kernels lack."""
    if device.type != "cpu":
        return f"it is shaped for CPU cores, and {device.name} is none"
    if span.dtype != "float32":
        return "it computes in float32 only"
    return None


def only_op(span: Span, kind: type[OneOp]) -> OneOp:
    """Return the one op of a span that was not refused."""
    (op,) = span.ops
    assert isinstance(op, kind)
    return op


def refuse_unless_dense_layers(
    span: Span, device: Device, *, keeps_sums: bool = False
) -> str | None:
    """Return why the span is no chain of dense layers with one activation each."""
    if span.chain is None:
        return "it computes whole layers, and these ops are none"
    if span.layers is None and not keeps_sums:
        return "it keeps a last layer's output alone, and more is read later"
    for layer in span.chain:
        if not isinstance(layer.apply.storage, RowStorage):
            return f"it reads dense layers, not {layer.apply.storage.name}"
        if not layer.act.nonlinearity.uniform:
            return "it applies one activation a layer, and here neurons differ"
    return unsupported_dtype(span, device)


def refuse_unless_forward_progress(device: Device) -> str | None:
    """Return why groups of a launch must not wait for each other, or None."""
    if device.forward_progress:
        return None
    return (
        "its groups wait for each other, and those of a launch on "
        f"{device.name} may run one after the other"
    )


def dense_layer(span: Span) -> LayerOps:
    """Return the one layer of a span that was not refused."""
    assert span.chain is not None
    (layer,) = span.chain
    return layer


def layer_defines(span: Span, layer: LayerOps) -> dict[str, int | str]:
    """Return the macros of a kernel that computes one layer (activations.h)."""
    return {
        **function_defines(span, layer.act.nonlinearity),
        "HAS_BIAS": int(layer.act.bias is not None),
    }


def function_defines(span: Span, function: Nonlinearity) -> dict[str, int | str]:
    """Return the macros of a kernel that applies one function (activations.h)."""
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
