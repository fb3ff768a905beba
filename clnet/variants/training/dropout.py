"""dropout: a random mask on a layer's outputs, one work-item an output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from clnet.ir.training_ops import Dropout
from clnet.nn.storage.layout import round_up
from clnet.opencl.launch import Launch, Launches, Scalar
from clnet.variants.base import (
    GROUP,
    Config,
    Reach,
    Untuned,
    only_op,
    unsupported_dtype,
)
from clnet.variants.cost import Cost, item_size
from clnet.variants.macros import real

if TYPE_CHECKING:
    from clnet.ir.ops import Span
    from clnet.opencl.device import Device


@dataclass(frozen=True)
class Dropping(Untuned):
    """A mask of counter-based random numbers, never stored (``dropout.cl``)."""

    name: str = "dropout"
    reach: Reach = "op"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all ops but `Dropout`, and a dtype that the device lacks."""
        if not isinstance(span.ops[0], Dropout):
            return "it drops outputs, and this op does not"
        return unsupported_dtype(span, device)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count a read, a write and a hash of about ten operations a value."""
        values = span.batch * only_op(span, Dropout).x.width
        return Cost(10 * values, 2 * item_size(span) * values, 1, 0,
                    device.compute_units)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the one launch."""
        op = only_op(span, Dropout)
        group = min(GROUP, device.largest_group)
        across = round_up(op.x.width, group)
        return (
            Launch(
                "training/dropout.cl", "dropout", {"REAL": real(span)},
                (across * span.batch,), (group,),
                (
                    op.x, op.x.stride, op.y, op.y.stride, op.x.width, across,
                    op.threshold, op.factor, int(np.uint32(op.stream).astype(np.int32)),
                    Scalar("seed", "uint"), Scalar("count"),
                ),
            ),
        )
