"""outer, gemm_backward, mma_backward: the gradients of a dense layer.

By tiles in registers, in local memory too, and on matrix units.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clnet.ir.activation import ActGrad, BiasGrad
from clnet.ir.op import VALUE_ALIGNMENT, Value
from clnet.ir.product import ApplyT, Outer
from clnet.nn.storage.dense import RowStorage
from clnet.nn.storage.layout import Slot, round_up
from clnet.opencl.launch import (
    GRADIENTS,
    PARAMETERS,
    Argument,
    Launch,
    Launches,
    Scratch,
)
from clnet.opencl.program import WARP_GROUP_MMA
from clnet.variants.base import (
    GROUP,
    MOST_TERMS,
    VECTOR_BYTES,
    Config,
    Reach,
    contraction,
    only_op,
    refuse_long_rows,
    refuse_op,
    stored,
)
from clnet.variants.cost import Cost, span_cost
from clnet.variants.dense.gemm import items, product_of, tile_defines
from clnet.variants.dense.mma import (
    MmaProduct,
    configs_of,
    cost_of,
    group_of,
    packed_scratch,
    refuse_unless_tiles_fit,
)
from clnet.variants.macros import (
    argument_defines,
    gradient_defines,
    gradient_function,
    padded,
    real,
)

if TYPE_CHECKING:
    from clnet.ir.op import Op
    from clnet.ir.program import Span
    from clnet.opencl.device import Device

BLOCK = 64  # samples of a partial sum
MIN_PART = 64  # samples of a part
# Columns of a work-item, the best first.
VECTORS: dict[str, tuple[int, ...]] = {"cpu": (8, 4), "gpu": (1, 4, 2)}
ROWS = (8, 4, 2, 1)
ITEMS = {"cpu": 8, "gpu": 2048}  # work-items that fill a compute unit


@dataclass(frozen=True)
class TiledOuter:
    """One work-item per tile of the matrix and part of the batch (``outer.cl``).

    Config: ``vec`` and ``rows``, the tile; ``parts``, of the batch (split-k).
    """

    name: str = "outer"
    reach: Reach = "op"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all but the weight gradient of a dense layer."""
        verb = "computes weight gradients"
        return refuse_op(span, device, Outer, verb, RowStorage)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Tiles that fit the layer, and enough parts to fill the device."""
        op = only_op(span, Outer)
        type_ = "cpu" if device.type == "cpu" else "gpu"
        most = min(op.storage.n_in, VECTOR_BYTES // span.item_size)
        vectors = [v for v in VECTORS[type_] if v <= most] or [1]
        configs = []
        for vec in vectors:
            for rows in sorted(ROWS, key=lambda rows: rows > op.storage.n_out):
                tiles = -(-op.storage.n_in // vec) * -(-op.storage.n_out // rows)
                filling = -(-ITEMS[type_] * device.compute_units // tiles)
                parts = max(1, min(filling, span.batch // MIN_PART))
                configs.append({"vec": vec, "rows": rows, "parts": parts})
        return tuple(configs)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count x again for every tile of rows."""
        op = only_op(span, Outer)
        rows = -(-op.storage.n_out // config["rows"])
        columns = -(-op.storage.n_in // config["vec"])
        parts = config["parts"]
        # On a CPU the next tile of rows reads x from cache.
        again = 0 if device.type == "cpu" else span.batch * op.storage.n_in * (rows - 1)
        return split_k_cost(span, device, again, parts, rows * columns * parts)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the product, and for several parts their sum."""
        op = only_op(span, Outer)
        storage = stored(op, RowStorage)
        vec, rows, parts = config["vec"], config["rows"], config["parts"]
        defines: dict[str, int | str] = {
            "REAL": real(span), "VEC": vec, "ROWS": rows, "BLOCK": BLOCK,
        }
        partial = Scratch("partial", span.item_size * storage.size * parts)
        columns = -(-storage.n_in // vec)
        # On a CPU a work-item is a task; on a GPU neighbours coalesce their loads.
        group = 1 if device.type == "cpu" else min(GROUP, device.largest_group)
        across = round_up(columns, group)
        target = (GRADIENTS, op.weights.offset) if parts == 1 else (partial, 0)
        sums = Launch(
            "training/outer.cl", "outer", defines,
            (across * -(-storage.n_out // rows) * parts,), (group,),
            (
                *target, storage.stride, storage.size, op.dz, op.dz.stride, op.x,
                op.x.stride, storage.n_in, storage.n_out, span.batch,
                -(-span.batch // parts), across,
            ),
        )
        if parts == 1:
            return (sums,)
        return (sums, add_parts(span, op, partial, parts, device, vec, rows))


def split_k_cost(
    span: Span, device: Device, again: int, parts: int, items: int
) -> Cost:
    """Return the cost of `items` work-items that read `again` numbers once more."""
    storage = contraction(span).storage
    scratch = span.item_size * storage.size * parts if parts > 1 else 0
    moved = span.item_size * again + 2 * scratch
    return span_cost(span, device, moved, items, 1 + (parts > 1), scratch, 0.5)


def add_parts(
    span: Span, op: Outer, partial: Scratch, parts: int, device: Device,
    vec: int = 1, rows: int = 1,
) -> Launch:
    """Return the launch that adds partial sums [parts, size] into the gradient."""
    group = min(GROUP, device.largest_group)
    size = op.storage.size
    return Launch.of_groups(
        "training/outer.cl", "add_parts",
        {"REAL": real(span), "VEC": vec, "ROWS": rows, "BLOCK": BLOCK},
        -(-size // group), group,
        GRADIENTS, op.weights.offset, partial, size, parts,
    )


GEMM_SOURCE = "training/gemm_backward.cl"
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
            scratch = span.item_size * parts * _partial_pitch(span)
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
        GEMM_SOURCE, "apply_t",
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
    partial = Scratch("partial", span.item_size * pitch * parts)
    several = parts > 1
    defines: dict[str, int | str] = {
        "REAL": real(span), "OUTER": 1, "HAS_BIAS": len(fused),
        "X_PADDED": padded(op.x), **tile_defines(config, device),
    }
    product = Launch(
        GEMM_SOURCE, "outer", defines, (*product_of(span).grid(config), parts),
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
        Launch.of_groups(
            GEMM_SOURCE, "add_splits", defines, -(-(reduced // 4) // group), group,
            GRADIENTS, weights, bias, partial, storage.size, pitch, parts,
            storage.n_out if fused else 0,
        ),
    )


MMA_SOURCE = "training/mma_backward.cl"
OUTER, APPLY_T = 1, 2  # of the macro PRODUCTS
BOTH = (Outer, BiasGrad, ApplyT, ActGrad)  # ops of the longest span


@dataclass(frozen=True)
class MmaBackward:
    """The products of a dense layer's backward pass (``mma_backward.cl``).

    Each alone, or with the op that follows, as `GemmBackward`; or both with these ops,
    in one launch.

    Config: as `Mma`'s; ``parts`` is 1.
    """

    name: str = "mma_backward"
    reach: Reach = "quad"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse what `GemmBackward` refuses, and devices without matrix units."""
        types = tuple(map(type, span.ops))
        if len(types) > 2 and types != BOTH:
            return "it computes both gradients of a layer, and these ops are others"
        if types == BOTH and span.ops[0].reads[0] != span.ops[2].reads[0]:
            return "it computes gradients of one layer, and these ops are of two"
        for half in _halves(span):
            refusal = GemmBackward().refuse(half, device)
            if refusal is not None:
                return refusal
        if span.batch > MOST_TERMS:
            return f"it sums over {MOST_TERMS} samples at most, not {span.batch}"
        return refuse_unless_tiles_fit(span, device)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Tiles, the best by the model first."""
        return configs_of(_products(span), device)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count operands once packed, and again for every tile that reads them."""
        products = _products(span)
        merged = config["units"] == WARP_GROUP_MMA  # by `merge_packings`
        packings = 1 if merged else 2 * len(products)
        return cost_of(products, span, config, device, launches=1 + packings)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the packing of the operands, and the launch of the products."""
        group, packings = group_of(config), list[Launch]()
        arguments: list[Argument] = []
        defines: dict[str, int | str] = {"HAS_BIAS": 0}
        computed = tiles = 0
        for half in _halves(span):
            outer = isinstance(half.ops[0], Outer)
            add = _mma_outer if outer else _mma_apply_t
            packing, operands, macros = add(half, config)
            packings += packing
            arguments += operands
            defines.update(macros)
            computed |= OUTER if outer else APPLY_T
            tiles += _product(half).tiles(config)
        storage = contraction(span).storage
        return (
            *packings,
            Launch.of_groups(
                MMA_SOURCE, "products",
                {
                    "REAL": real(span), **_product(span).defines(config), **defines,
                    "PRODUCTS": computed,
                },
                tiles, group,
                storage.n_in, storage.n_out, span.batch, *arguments,
            ),
        )


def _halves(span: Span) -> tuple[Span, ...]:
    """Return the span of each product, with the op that follows."""
    if len(span.ops) <= 2:
        return (span,)
    return replace(span, ops=span.ops[:2]), replace(span, ops=span.ops[2:])


def _products(span: Span) -> list[MmaProduct]:
    return [_product(half) for half in _halves(span)]


def _product(span: Span) -> MmaProduct:
    return MmaProduct.of(contraction(span), span)


_Added = tuple[tuple[Launch, Launch], tuple[Argument, ...], dict[str, int | str]]
"""A product's packings, and its arguments and macros of the kernel."""


def _mma_apply_t(span: Span, config: Config) -> _Added:
    op, to, product = span.ops[0], carried(span), _product(span)
    assert isinstance(op, ApplyT)
    first, second = product.a(config), product.b(config)
    ds, a = packed_scratch("ds", first), packed_scratch("A", second)
    packings = (
        first.launch(
            op.dz, 0, op.dz.stride, *ds, second=False, source_padded=padded(op.dz)
        ),
        second.launch(
            PARAMETERS, op.weights.offset, stored(op, RowStorage).stride, *a,
            second=True, transposed=True,
        ),
    )
    arguments = (
        *ds, *a, first.blocks, to.out, to.out.stride, to.kept, to.kept.stride,
        PARAMETERS, 0 if to.bias is None else to.bias.offset,
    )
    return packings, arguments, to.defines


def _mma_outer(span: Span, config: Config) -> _Added:
    op, *fused = span.ops
    assert isinstance(op, Outer)
    storage, product = stored(op, RowStorage), _product(span)
    first, second = product.a(config), product.b(config)
    ds, x = packed_scratch("dsT", first), packed_scratch("xT", second)
    totals = None
    for other in fused:
        assert isinstance(other, BiasGrad)
        totals = GRADIENTS, other.bias.offset
    packings = (
        first.launch(
            op.dz, 0, op.dz.stride, *ds, second=False, transposed=True, totals=totals
        ),
        second.launch(op.x, 0, op.x.stride, *x, second=True, transposed=True),
    )
    arguments = (
        *ds, *x, first.blocks, GRADIENTS, op.weights.offset, storage.stride,
    )
    return packings, arguments, {}
