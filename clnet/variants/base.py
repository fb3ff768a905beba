"""The protocol of variants, and the refusals that several variants share.

A variant is a frozen, stateless description of one way to compute a span. Its `Launch`
records serve the runtime, the tuner, the tests and the benchmarks, so that launch
geometry is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

from clnet.ir.op import Op
from clnet.ir.product import Contraction
from clnet.nn.storage.dense import RowStorage
from clnet.nn.storage.local import LocalStorage
from clnet.nn.storage.sparse import SparseStorage
from clnet.opencl.launch import Constant

if TYPE_CHECKING:
    from clnet.ir.program import LayerOps, Span
    from clnet.opencl.device import Device
    from clnet.opencl.launch import Launches
    from clnet.variants.cost import Cost

OneOp = TypeVar("OneOp", bound=Op)
Stored = TypeVar("Stored")

# Refusals that several families share.
NO_WHOLE_LAYERS = "it computes whole layers, and these ops are not whole layers"
MORE_OUTPUTS = "it stores only the last layer's output, and more is read later"
MIXED_ACTIVATIONS = "it applies one activation per layer, and here neurons differ"
SHARED_WEIGHTS = "it overwrites gradients, and here layers share weights"

GROUP = 64  # work-items: two warps or a wavefront, and every device has such groups
SERIAL_GROUP = 64  # likewise, where they run one after another: more only cost time
MOST_TERMS = 1 << 24  # of a row: offsets within a tile of 128 rows have 31 bits
VECTOR_BYTES = 32  # on CPUs: without AVX-512 PoCL miscomputes sums in longer vectors

Config = Mapping[str, int]
"""One point of a variant's tuning space: named whole numbers."""

Reach = Literal[
    "op", "pair", "triple", "quad", "layer", "output", "run", "program"
]
"""Length of a span: one op, one or two, up to three or four, one layer (`Apply` and
`BiasAct`), the last layer of a training step with the loss, several layers, or all ops
of a program."""


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


class MemberVariant:
    """The base of variants that train many networks."""

    # Whether a program is of the data set's number of samples
    of_samples: ClassVar[bool] = False
    members: int  # Networks of a launch, at most
    subsets: bool = False  # Whether a network may train on some of the data set's rows
    # Whether the data set's inputs are factors of matrix units as they are, without a
    # rounding (`exact_factors`)
    exact: bool = False

    def of_data(self, exact: bool) -> MemberVariant:
        """Return it for a data set whose `exact_factors` are known."""
        return self


def members_of(variant: object) -> int:
    """Return the networks that a variant trains in a launch."""
    return variant.members if isinstance(variant, MemberVariant) else 1


class Untuned:
    """A variant with nothing to tune."""

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return the only config."""
        return ({},)


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


LAYERS: dict[type, str] = {
    RowStorage: "dense", SparseStorage: "sparse", LocalStorage: "local",
}


def refuse_op(
    span: Span, device: Device, ops: type[Op] | tuple[type[Op], ...], verb: str,
    storage: type | None = None,
) -> str | None:
    """Return why a span does not begin with one of some ops, on some storage, or None.

    The sentence says what the variant does by a verb and its object.
    """
    op = span.ops[0]
    if not isinstance(op, ops):
        return f"it {verb}, and this op does not"
    if storage is not None:
        assert isinstance(op, Contraction)
        if not isinstance(op.storage, storage):
            return f"it {verb} of {LAYERS[storage]} layers, not {op.storage.name}"
    if span.shares_weights:
        return SHARED_WEIGHTS
    return unsupported_dtype(span, device)


def only_op(span: Span, kind: type[OneOp]) -> OneOp:
    """Return the only op of a span, which was not refused."""
    (op,) = span.ops
    assert isinstance(op, kind)
    return op


def contraction(span: Span) -> Contraction:
    """Return the op, first of a span, that contracts a layer's matrix with values."""
    op = span.ops[0]
    assert isinstance(op, Contraction)
    return op


def stored(op: Contraction, storage: type[Stored]) -> Stored:
    """Return the storage of an op, which was not refused."""
    assert isinstance(op.storage, storage)
    return op.storage


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


def refuse_long_rows(span: Span) -> str | None:
    """Return why offsets within tiles of the span's values exceed 31 bits, or None."""
    longest = max(
        value.width for op in span.ops for value in (*op.reads, *op.writes)
        if value.rows is None
    )
    if longest <= MOST_TERMS:
        return None
    return f"it reads rows of at most {MOST_TERMS} values, not {longest}"


def refuse_unless_forward_progress(device: Device) -> str | None:
    """Return why work-groups of a launch must not wait for each other, or None."""
    if device.forward_progress:
        return None
    return (
        f"it needs forward progress between work-groups, which {device.name} does not "
        "guarantee"
    )


def tables(
    key: str, names: Iterable[str], make: Callable[[], Any]
) -> dict[str, Constant]:
    """Return tables that are made together, when the first of them is uploaded.

    `make` returns their arrays as attributes of these names.
    """
    made = cache(make)
    return {
        name: Constant(f"{key} {name}", partial(_attribute, made, name))
        for name in names
    }


def _attribute(made: Callable[[], Any], name: str) -> Any:
    return getattr(made(), name)


def dense_layer(span: Span) -> LayerOps:
    """Return the only layer of a span, which was not refused."""
    assert span.chain is not None
    (layer,) = span.chain
    return layer


def largest_group(most: int, device: Device) -> int:
    """Return the largest power of two within `most` and the device's limit."""
    return 1 << min(most, device.largest_group).bit_length() - 1


def team_group(most: int, device: Device) -> int:
    """Return it for teams, which are small where work-items run one by one."""
    return largest_group(
        min(most, SERIAL_GROUP) if device.simd_width == 1 else most, device
    )
