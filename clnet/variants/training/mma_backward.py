"""mma_backward: a dense layer's gradients on matrix units, of packed halves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clnet.ir.training_ops import ApplyT, BiasGrad, Outer
from clnet.nn.storage.dense import RowStorage
from clnet.opencl.launch import (
    Argument,
    Gradients,
    Launch,
    Launches,
    Parameters,
    Scratch,
)
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
    from clnet.ir.ops import Span
    from clnet.opencl.device import Device
    from clnet.variants.base import Config, Reach
    from clnet.variants.cost import Cost

SOURCE = "training/mma_backward.cl"


@dataclass(frozen=True)
class MmaBackward:
    """The products of a dense layer's backward pass (``mma_backward.cl``).

    Alone, or with the op that follows, as `GemmBackward`.

    Config: as `Mma`'s; ``parts`` is 1.
    """

    name: str = "mma_backward"
    reach: Reach = "pair"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse what `GemmBackward` refuses, and devices without matrix units."""
        refusal = GemmBackward().refuse(span, device)
        return refusal or refuse_unless_tiles_fit(span, device)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Tiles, the best by the model first."""
        return configs_of([_product(span)], device)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count both operands once packed, and again for every tile that reads them."""
        return cost_of([_product(span)], span, config, device, launches=3)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the packing of both operands, and the product."""
        if isinstance(span.ops[0], ApplyT):
            return _apply_t(span, config)
        return _outer(span, config)


def _product(span: Span) -> Product:
    op, splits = span.ops[0], SPLITS[span.precision]
    assert isinstance(op, (ApplyT, Outer))
    storage = op.storage
    if isinstance(op, ApplyT):
        return Product(span.batch, storage.n_in, storage.n_out, splits)
    return Product(storage.n_out, storage.n_in, span.batch, splits)


def _scratch(name: str, packing: Packing) -> tuple[Scratch, Scratch]:
    """Return the buffers of a packed operand and of its scales."""
    return (Scratch(name, packing.size), Scratch(f"{name} scales", packing.scales_size))


def _product_launch(
    kernel: str, span: Span, config: Config, operands: tuple[Argument, ...],
    defines: dict[str, int | str], rest: tuple[Argument, ...],
) -> Launch:
    product, group = _product(span), group_of(config)
    return Launch(
        SOURCE, kernel,
        {"REAL": real(span), **product.defines(config), **defines},
        (product.tiles(config) * group,), (group,),
        (*operands, product.a(config).blocks, *rest),
    )


def _apply_t(span: Span, config: Config) -> Launches:
    op, to, product = span.ops[0], carried(span), _product(span)
    assert isinstance(op, ApplyT)
    storage, first, second = op.storage, product.a(config), product.b(config)
    assert isinstance(storage, RowStorage)
    ds, a = _scratch("ds", first), _scratch("A", second)
    return (
        first.launch(
            op.dz, 0, op.dz.stride, *ds, second=False, source_padded=padded(op.dz)
        ),
        second.launch(
            Parameters(), op.weights.offset, storage.stride, *a, second=True,
            transposed=True,
        ),
        _product_launch(
            "apply_t", span, config, (*ds, *a), {"OUTER": 0, **to.defines},
            (
                to.out, to.out.stride, to.kept, to.kept.stride, Parameters(),
                0 if to.bias is None else to.bias.offset, storage.n_in, span.batch,
            ),
        ),
    )


def _outer(span: Span, config: Config) -> Launches:
    op, *more = span.ops
    assert isinstance(op, Outer)
    storage, product = op.storage, _product(span)
    assert isinstance(storage, RowStorage)
    first, second = product.a(config), product.b(config)
    ds, x = _scratch("ds", first), _scratch("x", second)
    totals = None
    for other in more:
        assert isinstance(other, BiasGrad)
        totals = Gradients(), other.bias.offset
    return (
        first.launch(
            op.dz, 0, op.dz.stride, *ds, second=False, transposed=True, totals=totals
        ),
        second.launch(op.x, 0, op.x.stride, *x, second=True, transposed=True),
        _product_launch(
            "outer", span, config, (*ds, *x), {"OUTER": 1, "HAS_BIAS": 0},
            (
                Gradients(), op.weights.offset, storage.stride, storage.n_in,
                storage.n_out,
            ),
        ),
    )
