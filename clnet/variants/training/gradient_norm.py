"""gradient_norm: the norm of the mean gradient, by groups whose sums are then added."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clnet.ir.ops import Span
from clnet.ir.training_ops import GradientNorm
from clnet.opencl.device import Device
from clnet.opencl.launch import Gradients, Launch, Parameters, Scalar, Scratch
from clnet.variants.base import (
    Config,
    Cost,
    Reach,
    item_size,
    only_op,
    real,
    unsupported_dtype,
)
from clnet.variants.team import team_group
from clnet.variants.training.optimisers import live_table, regularisation_defines

SOURCE = "training/gradient_norm.cl"
LARGEST_GROUP = 256  # work-items
PARTS = 64  # sums that are added in the end


@dataclass(frozen=True)
class Norm:
    """The norm of the flat gradient buffer (``gradient_norm.cl``)."""

    name: str = "gradient_norm"
    reach: Reach = "op"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse what is no norm, and a type that the device lacks."""
        if not isinstance(span.ops[0], GradientNorm):
            return "it measures the gradient, and this op does not"
        return unsupported_dtype(span, device)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """There is nothing to tune."""
        return ({},)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Parameters and gradients are read."""
        size = only_op(span, GradientNorm).layout.size
        units = min(PARTS, device.compute_units)
        return Cost(4 * size, (2 * item_size(span) + 1) * size, 2, 0, units)

    def launches(
        self, span: Span, config: Config, device: Device
    ) -> tuple[Launch, ...]:
        """Return two: the groups' sums of squares, and the root of their sum."""
        op = only_op(span, GradientNorm)
        group = team_group(LARGEST_GROUP, device)
        parts = min(PARTS, group)
        defines = {
            "REAL": real(span), "GROUP": group, "PARTS": parts,
            **regularisation_defines(op, span),
        }
        squares = Scratch("squares", parts * item_size(span))
        return (
            Launch(
                SOURCE, "squares", defines, (parts * group,), (group,),
                (Parameters(), Gradients(), live_table(op), squares, op.layout.size,
                 Scalar("samples")),
            ),
            Launch(SOURCE, "root", defines, (group,), (group,), (squares, op.norm)),
        )
