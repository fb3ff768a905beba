"""mma_backward: a dense layer's gradients on matrix units, of packed halves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clnet.ir.training_ops import ActGrad, ApplyT, BiasGrad, Outer
from clnet.nn.storage.dense import RowStorage
from clnet.opencl.launch import (
    Argument,
    Gradients,
    Launch,
    Launches,
    Parameters,
    Scratch,
)
from clnet.opencl.program import WARP_GROUP_MMA
from clnet.variants.base import MOST_TERMS
from clnet.variants.dense.mma import (
    Product,
    configs_of,
    cost_of,
    group_of,
    refuse_unless_tiles_fit,
)
from clnet.variants.macros import padded, real
from clnet.variants.packing import SPLITS, Packing
from clnet.variants.training.gemm_backward import GemmBackward, carried

if TYPE_CHECKING:
    from clnet.ir.ops import Op, Span
    from clnet.opencl.device import Device
    from clnet.variants.base import Config, Reach
    from clnet.variants.cost import Cost

SOURCE = "training/mma_backward.cl"
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
        kinds = tuple(map(type, span.ops))
        if len(kinds) > 2 and kinds != BOTH:
            return "it computes both gradients of a layer, and these ops are others"
        if kinds == BOTH and span.ops[0].reads[0] != span.ops[2].reads[0]:
            return "it computes gradients of one layer, and these ops are of two"
        for part in _parts(span):
            refusal = GemmBackward().refuse(part, device)
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
        kinds = tiles = 0
        for part in _parts(span):
            outer = isinstance(part.ops[0], Outer)
            add = _outer if outer else _apply_t
            packing, more, macros = add(part, config)
            packings += packing
            arguments += more
            defines.update(macros)
            kinds |= OUTER if outer else APPLY_T
            tiles += _product(part).tiles(config)
        storage = _matrix(span.ops[0]).storage
        return (
            *packings,
            Launch(
                SOURCE, "products",
                {
                    "REAL": real(span), **_product(_parts(span)[0]).defines(config),
                    **defines, "PRODUCTS": kinds,
                },
                (tiles * group,), (group,),
                (storage.n_in, storage.n_out, span.batch, *arguments),
            ),
        )


def _parts(span: Span) -> tuple[Span, ...]:
    """Return the span of each product, with the op that follows."""
    if len(span.ops) <= 2:
        return (span,)
    return replace(span, ops=span.ops[:2]), replace(span, ops=span.ops[2:])


def _matrix(op: Op) -> ApplyT | Outer:
    assert isinstance(op, (ApplyT, Outer))
    return op


def _products(span: Span) -> list[Product]:
    return [_product(part) for part in _parts(span)]


def _product(span: Span) -> Product:
    op, splits = _matrix(span.ops[0]), SPLITS[span.precision]
    storage = op.storage
    if isinstance(op, ApplyT):
        return Product(span.batch, storage.n_in, storage.n_out, splits)
    return Product(storage.n_out, storage.n_in, span.batch, splits)


def _scratch(name: str, packing: Packing) -> tuple[Scratch, Scratch]:
    """Return the buffers of a packed operand and of its scales."""
    return (Scratch(name, packing.size), Scratch(f"{name} scales", packing.scales_size))


_Added = tuple[tuple[Launch, Launch], tuple[Argument, ...], dict[str, int | str]]
"""A product's packings, and its arguments and macros of the kernel."""


def _apply_t(span: Span, config: Config) -> _Added:
    op, to, product = span.ops[0], carried(span), _product(span)
    assert isinstance(op, ApplyT)
    storage, first, second = op.storage, product.a(config), product.b(config)
    assert isinstance(storage, RowStorage)
    ds, a = _scratch("ds", first), _scratch("A", second)
    packings = (
        first.launch(
            op.dz, 0, op.dz.stride, *ds, second=False, source_padded=padded(op.dz)
        ),
        second.launch(
            Parameters(), op.weights.offset, storage.stride, *a, second=True,
            transposed=True,
        ),
    )
    arguments = (
        *ds, *a, first.blocks, to.out, to.out.stride, to.kept, to.kept.stride,
        Parameters(), 0 if to.bias is None else to.bias.offset,
    )
    return packings, arguments, to.defines


def _outer(span: Span, config: Config) -> _Added:
    op, *more = span.ops
    assert isinstance(op, Outer)
    storage, product = op.storage, _product(span)
    assert isinstance(storage, RowStorage)
    first, second = product.a(config), product.b(config)
    ds, x = _scratch("dsT", first), _scratch("xT", second)
    totals = None
    for other in more:
        assert isinstance(other, BiasGrad)
        totals = Gradients(), other.bias.offset
    packings = (
        first.launch(
            op.dz, 0, op.dz.stride, *ds, second=False, transposed=True, totals=totals
        ),
        second.launch(op.x, 0, op.x.stride, *x, second=True, transposed=True),
    )
    arguments = (
        *ds, *x, first.blocks, Gradients(), op.weights.offset, storage.stride,
    )
    return packings, arguments, {}
