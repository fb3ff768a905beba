"""gemm_backward: a dense layer's gradients, by tiles in local memory and registers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clnet.ir.activation import ActGrad, BiasGrad
from clnet.ir.op import VALUE_ALIGNMENT, Value
from clnet.ir.product import ApplyT, Outer
from clnet.nn.storage.dense import RowStorage
from clnet.nn.storage.layout import Slot, round_up
from clnet.opencl.launch import GRADIENTS, PARAMETERS, Launch, Launches, Scratch
from clnet.variants.base import (
    GROUP,
    Config,
    Reach,
    contraction,
    refuse_long_rows,
    refuse_op,
    stored,
)
from clnet.variants.cost import Cost, item_size
from clnet.variants.dense.gemm import items, product_of, tile_defines
from clnet.variants.macros import argument_defines, padded, real
from clnet.variants.training.backward import gradient_defines, gradient_function

if TYPE_CHECKING:
    from clnet.ir.op import Op
    from clnet.ir.program import Span
    from clnet.opencl.device import Device

SOURCE = "training/gemm_backward.cl"
LEAST_PART = 64  # samples of a split at least
GROUPS_PER_UNIT = 2  # for occupancy


@dataclass(frozen=True)
class GemmBackward:
    """The products of a dense layer's backward pass (``gemm_backward.cl``).

    Alone, or fused with the next op: `ApplyT` with the `ActGrad` of the layer below,
    `Outer` with `BiasGrad`.

    Config: as `Gemm`'s; for `Outer` also ``parts``, the splits of the mini-batch
    (split-k), which a second launch reduces.
    """

    name: str = "gemm_backward"
    reach: Reach = "pair"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all but the two dense products and the ops fused with them."""
        op, *fused = span.ops
        refusal = refuse_op(
            span, device, (ApplyT, Outer), "computes gradients' products", RowStorage
        )
        if refusal is not None:
            return refusal
        if isinstance(op, ApplyT) and op.accumulate:
            return "it does not add to the gradients of a layer's other readers"
        for other in fused:
            refusal = refusal or _refuse_fusion(op, other, span)
        return refusal or refuse_long_rows(span) or product_of(span).refuse(device)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Tiles that fit the device, the best by a model first; splits for `Outer`."""
        product = product_of(span)
        if isinstance(span.ops[0], ApplyT):
            return product.space(device)
        most = max(1, span.batch // LEAST_PART)
        preferred = GROUPS_PER_UNIT * device.compute_units
        return product.space(
            device,
            tuple(sorted({min(most, parts) for parts in (1, 2, 4, 8, preferred)})),
        )

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count operands read by several tiles, and partial sums of split-k."""
        parts = config.get("parts", 1)
        scratch = 0
        if parts > 1:
            scratch = item_size(span) * parts * _partial_pitch(span)
        return product_of(span).cost(
            span, config, device, launches=1 + (parts > 1), scratch=scratch
        )

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the product's launch, and with split-k that of the reduction."""
        if isinstance(span.ops[0], ApplyT):
            return (_apply_t(span, config, device),)
        return _outer(span, config, device)


def _refuse_fusion(op: Op, other: Op, span: Span) -> str | None:
    """Return why an op cannot be fused with the product before it, or None."""
    if isinstance(op, Outer):
        if not (isinstance(other, BiasGrad) and other.dz == op.dz):
            return "it fuses gradients of one layer's weights and biases, not these"
        return None
    assert isinstance(op, ApplyT)
    if not (isinstance(other, ActGrad) and other.dy == op.dx):
        return "it fuses the derivative of the layer below, and this op is another's"
    if op.dx in span.outputs:
        return "it does not store the gradients of the layer's output"
    if not other.nonlinearity.uniform:
        return "it applies one derivative a layer, and here neurons differ"
    if other.z is not None and other.shared:
        return "it needs a bias for each neuron, and here all share one"
    return None


@dataclass(frozen=True)
class Carried:
    """The epilogue of `ApplyT`: none, or the derivative of the layer below."""

    # Gradients with respect to the layer's input, or to the pre-activations below
    out: Value
    kept: Value  # Input of the derivative of the layer below; `out` without one
    bias: Slot | None  # The biases that are added to it
    defines: dict[str, int | str]  # The macros of activation_gradient.h, and `HAS_BIAS`


def carried(span: Span) -> Carried:
    """Return the epilogue of a span that starts with `ApplyT`."""
    op, *fused = span.ops
    assert isinstance(op, ApplyT)
    if not fused:
        return Carried(op.dx, op.dx, None, {"HAS_BIAS": 0})
    (act,) = fused
    assert isinstance(act, ActGrad)
    function = act.nonlinearity
    name, by_v = gradient_function(function.names[0], function.fann_compatible)
    read = act.z if by_v else act.y
    assert read is not None
    bias = act.bias if by_v else None
    defines = {
        "GRADIENT": name, "READS_Z": int(by_v),
        "HAS_BIAS": int(bias is not None),
        **argument_defines(span, function), **gradient_defines(span),
    }
    return Carried(act.dz, read, bias, defines)


def _apply_t(span: Span, config: Config, device: Device) -> Launch:
    op, to = span.ops[0], carried(span)
    assert isinstance(op, ApplyT)
    storage = stored(op, RowStorage)
    return Launch(
        SOURCE, "apply_t",
        {
            "REAL": real(span), "OUTER": 0, "X_PADDED": 1,
            **tile_defines(config, device), **to.defines,
        },
        product_of(span).grid(config), (items(config), 1),
        (
            PARAMETERS, op.weights.offset, storage.stride, op.dz, op.dz.stride,
            to.out, to.out.stride, to.kept, to.kept.stride,
            0 if to.bias is None else to.bias.offset, storage.n_in, storage.n_out,
            span.batch,
        ),
    )


def _partial_pitch(span: Span) -> int:
    """Return the values of a split: the gradients of the weights and biases."""
    storage = contraction(span).storage
    return storage.size + round_up(storage.n_out, VALUE_ALIGNMENT)


def _outer(span: Span, config: Config, device: Device) -> Launches:
    op, *fused = span.ops
    assert isinstance(op, Outer)
    storage, weights, bias = stored(op, RowStorage), op.weights.offset, 0
    for other in fused:
        assert isinstance(other, BiasGrad)
        bias = other.bias.offset
    parts, pitch = config["parts"], _partial_pitch(span)
    partial = Scratch("partial", item_size(span) * pitch * parts)
    several = parts > 1
    defines: dict[str, int | str] = {
        "REAL": real(span), "OUTER": 1, "HAS_BIAS": len(fused),
        "X_PADDED": padded(op.x), **tile_defines(config, device),
    }
    product = Launch(
        SOURCE, "outer", defines, (*product_of(span).grid(config), parts),
        (items(config), 1, 1),
        (
            partial if several else GRADIENTS, pitch if several else 0,
            0 if several else weights, storage.stride,
            storage.size if several else bias,
            op.dz, op.dz.stride, op.x, op.x.stride, storage.n_in, storage.n_out,
            span.batch, round_up(-(-span.batch // parts), config["tile_k"]),
        ),
    )
    if not several:
        return (product,)
    reduced = pitch if fused else storage.size
    group = min(GROUP, device.largest_group)
    return (
        product,
        Launch(
            SOURCE, "add_splits", defines, (round_up(reduced // 4, group),), (group,),
            (GRADIENTS, weights, bias, partial, storage.size, pitch, parts,
             storage.n_out if fused else 0),
        ),
    )
