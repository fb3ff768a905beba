"""mma_backward: a dense layer's gradients on matrix units, of packed halves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clnet.ir.activation import ActGrad, BiasGrad
from clnet.ir.product import ApplyT, Outer
from clnet.nn.storage.dense import RowStorage
from clnet.opencl.launch import (
    GRADIENTS,
    PARAMETERS,
    Argument,
    Launch,
    Launches,
)
from clnet.opencl.program import WARP_GROUP_MMA
from clnet.variants.base import MOST_TERMS, contraction, stored
from clnet.variants.dense.mma import (
    MmaProduct,
    configs_of,
    cost_of,
    group_of,
    packed_scratch,
    refuse_unless_tiles_fit,
)
from clnet.variants.macros import padded, real
from clnet.variants.training.gemm_backward import GemmBackward, carried

if TYPE_CHECKING:
    from clnet.ir.program import Span
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
            add = _outer if outer else _apply_t
            packing, operands, macros = add(half, config)
            packings += packing
            arguments += operands
            defines.update(macros)
            computed |= OUTER if outer else APPLY_T
            tiles += _product(half).tiles(config)
        storage = contraction(span).storage
        return (
            *packings,
            Launch(
                SOURCE, "products",
                {
                    "REAL": real(span), **_product(span).defines(config), **defines,
                    "PRODUCTS": computed,
                },
                (tiles * group,), (group,),
                (storage.n_in, storage.n_out, span.batch, *arguments),
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


def _apply_t(span: Span, config: Config) -> _Added:
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


def _outer(span: Span, config: Config) -> _Added:
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
