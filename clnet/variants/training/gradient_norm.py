"""gradient_norm: the norm of the mean gradient, a reduction in two launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clnet.ir.training_ops import GradientNorm
from clnet.opencl.launch import Gradients, Launch, Launches, Parameters, Scalar, Scratch
from clnet.variants.base import Config, Reach, Untuned, only_op, unsupported_dtype
from clnet.variants.cost import Cost, item_size
from clnet.variants.macros import real
from clnet.variants.team import team_group
from clnet.variants.training.optimisers import live_table, regularisation_defines

if TYPE_CHECKING:
    from clnet.ir.ops import Span
    from clnet.opencl.device import Device

SOURCE = "training/gradient_norm.cl"
LARGEST_GROUP = 256  # work-items
GROUPS = 64  # of the first launch, and so partial sums of the second


@dataclass(frozen=True)
class Norm(Untuned):
    """The norm of the flat gradient buffer (``gradient_norm.cl``)."""

    name: str = "gradient_norm"
    reach: Reach = "op"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all ops but `GradientNorm`, and a dtype that the device lacks."""
        if not isinstance(span.ops[0], GradientNorm):
            return "it computes the gradient's norm, and this op does not"
        return unsupported_dtype(span, device)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count one read of parameters and gradients."""
        size = only_op(span, GradientNorm).layout.size
        units = min(GROUPS, device.compute_units)
        return Cost(4 * size, (2 * item_size(span) + 1) * size, 2, 0, units)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the launches of the groups' sums of squares and of their root."""
        op = only_op(span, GradientNorm)
        group = team_group(LARGEST_GROUP, device)
        groups = min(GROUPS, group)
        defines = {
            "REAL": real(span), "GROUP": group, "GROUPS": groups,
            **regularisation_defines(op, span),
        }
        squares = Scratch("squares", groups * item_size(span))
        return (
            Launch(
                SOURCE, "squares", defines, (groups * group,), (group,),
                (Parameters(), Gradients(), live_table(op), squares, op.layout.size,
                 Scalar("samples")),
            ),
            Launch(SOURCE, "root", defines, (group,), (group,), (squares, op.norm)),
        )
