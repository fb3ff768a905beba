"""optimisers, gradient_norm, dropout: ops over all parameters, or a layer's outputs.

Their macros are also those of whole steps. Launches that belong to no op are here too:
sums of two devices' gradients, and samples from host memory placed by CPU cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from clnet.ir.batch import Dropout
from clnet.ir.update import GradientNorm, Update
from clnet.nn.optimisers import (
    FANN_CLAMP,
    QUICKPROP_LEAST_STEP,
    RPROP_LEAST_STEP,
    SARPROP_LEAST_STEP,
)
from clnet.nn.storage.layout import live_elements, round_up
from clnet.opencl.launch import (
    GRADIENTS,
    OPENCL_TYPES,
    PARAMETERS,
    STATE,
    Constant,
    Launch,
    Launches,
    Scalar,
    Scratch,
)
from clnet.opencl.program import RULE_HEADER
from clnet.variants.base import (
    GROUP,
    Config,
    Reach,
    Untuned,
    only_op,
    refuse_op,
    team_group,
)
from clnet.variants.cost import Cost
from clnet.variants.macros import number, real

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from clnet.ir.program import Span
    from clnet.nn.optimisers import Optimiser
    from clnet.opencl.device import Device
    from clnet.variants.macros import Typed

LEAST = {
    "rprop": RPROP_LEAST_STEP,
    "quickprop": QUICKPROP_LEAST_STEP,
    "sarprop": SARPROP_LEAST_STEP,
}
NO_REGULARISATION = {"HAS_PENALTIES": 0, "HAS_CLIP_VALUE": 0, "HAS_CLIP_NORM": 0}
VECTOR = 8  # elements of a vector on CPUs; divides the layout's size
PER_ITEM = 4  # elements of a work-item on other devices
CPU_GROUP, CPU_PER_ITEM = 1, 512  # work-items of a group, vectors of each


@dataclass(frozen=True)
class Optimisers(Untuned):
    """Every rule of `clnet.optimisers`, by vectors on CPUs (``optimisers.cl``)."""

    name: str = "optimisers"
    reach: Reach = "op"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all ops but `Update`, and a dtype that the device lacks."""
        return refuse_op(span, device, Update, "updates parameters")

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count parameters and state read and written, gradients read."""
        op = only_op(span, Update)
        arrays = 3 + 2 * op.optimiser.slots
        size = op.layout.size
        return Cost(20 * size, (span.item_size * arrays + 1) * size, 1, 0,
                    device.compute_units)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the one launch."""
        op = only_op(span, Update)
        width, per_item, group = 1, PER_ITEM, min(GROUP, device.largest_group)
        if device.type == "cpu":  # few items: each computes powers first
            per_item, group = CPU_PER_ITEM, CPU_GROUP
            width = VECTOR if span.dtype == "float32" else 1
        defines: dict[str, int | str] = {
            "REAL": real(span), "WIDTH": width, "GROUP": group, "PER_ITEM": per_item,
            **rule_defines(op, span),
        }
        size = op.layout.size
        groups = -(-size // (group * per_item * width))
        launch = Launch.of_groups(
            "training/optimisers.cl", "update", defines, groups, group,
            PARAMETERS, GRADIENTS, live_table(op), STATE, op.totals,
            op.norm or op.totals, size, op.outputs, Scalar("rate", "real"),
            Scalar("samples"), Scalar("seen"), Scalar("count"), Scalar("seed", "uint"),
        )
        return (launch,)


def rule_defines(op: Update, span: Typed) -> dict[str, int | str]:
    """Return the macros of ``optimisers.h``."""
    return {
        **optimiser_defines(op.optimiser, span), **regularisation_defines(op, span)
    }


def optimiser_defines(rule: Optimiser, span: Typed) -> dict[str, int | str]:
    """Return the macros of a rule without regularisation."""
    constants: dict[str, float] = {**rule.constants, "CLAMP": FANN_CLAMP}
    if rule.name in LEAST:
        constants["LEAST"] = LEAST[rule.name]
    header = {} if rule.header is None else {RULE_HEADER: f'"{rule.header}"'}
    return {
        **header,
        rule.name.upper(): 1, "SLOTS": rule.slots,
        **{
            name: int(value) if isinstance(value, bool) else number(value, span)
            for name, value in constants.items()
        },
    }


def regularisation_defines(
    op: Update | GradientNorm, span: Typed
) -> dict[str, int | str]:
    """Return the macros of ``regularisation.h``."""
    chosen, defines = op.regularisation, dict[str, int | str](NO_REGULARISATION)
    if chosen.penalises:
        defines |= {
            "HAS_PENALTIES": 1, "WEIGHTS": op.layout.biases_start,
            "L1": number(chosen.l1, span), "L2": number(chosen.l2, span),
        }
    for name in ("CLIP_VALUE", "CLIP_NORM"):
        value = getattr(chosen, name.lower())
        if value is not None:
            defines |= {f"HAS_{name}": 1, name: number(value, span)}
    return defines


def live_table(op: Update | GradientNorm) -> Constant:
    """Return the table of the flat buffer's elements: 1, or 0 for padding."""
    return Constant(
        f"live elements of {op.layout.size}",
        lambda: live_elements(op.layout, op.storages).astype(np.uint8),
    )


NORM_GROUP = 256  # work-items of a group of either launch
NORM_GROUPS = 64  # of the first launch, and so partial sums of the second


@dataclass(frozen=True)
class Norm(Untuned):
    """The norm of the flat gradient buffer (``gradient_norm.cl``)."""

    name: str = "gradient_norm"
    reach: Reach = "op"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all ops but `GradientNorm`, and a dtype that the device lacks."""
        return refuse_op(span, device, GradientNorm, "computes the gradient's norm")

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count one read of parameters and gradients."""
        size = only_op(span, GradientNorm).layout.size
        units = min(NORM_GROUPS, device.compute_units)
        return Cost(4 * size, (2 * span.item_size + 1) * size, 2, 0, units)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the launches of the groups' sums of squares and of their root."""
        op = only_op(span, GradientNorm)
        group = team_group(NORM_GROUP, device)
        groups = min(NORM_GROUPS, group)
        defines = {
            "REAL": real(span), "GROUP": group, "GROUPS": groups,
            **regularisation_defines(op, span),
        }
        squares = Scratch("squares", groups * span.item_size)
        return (
            Launch.of_groups(
                "training/gradient_norm.cl", "squares", defines, groups, group,
                PARAMETERS, GRADIENTS, live_table(op), squares, op.layout.size,
                Scalar("samples"),
            ),
            Launch.of_groups(
                "training/gradient_norm.cl", "root", defines, 1, group,
                squares, op.norm,
            ),
        )


@dataclass(frozen=True)
class Dropping(Untuned):
    """A mask of counter-based random numbers, never stored (``dropout.cl``)."""

    name: str = "dropout"
    reach: Reach = "op"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all ops but `Dropout`, and a dtype that the device lacks."""
        return refuse_op(span, device, Dropout, "drops outputs")

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count a read, a write and a hash of about ten operations a value."""
        values = span.batch * only_op(span, Dropout).x.width
        return Cost(10 * values, 2 * span.item_size * values, 1, 0,
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


def gradient_sum(size: int, dtype: str, device: Device) -> Launch:
    """Return the launch that adds another device's gradients to a device's own."""
    group = min(GROUP, device.largest_group)
    return Launch.of_groups(
        "training/gradient_sum.cl", "gradient_sum",
        {"REAL": OPENCL_TYPES[dtype]}, -(-size // group), group,
        GRADIENTS, Scratch("other", size * np.dtype(dtype).itemsize), size,
    )


CHUNK = 1 << 18  # bytes that a work-item reads: half of a core's cache
LINE = 64  # bytes of a cache line
TILE = 16  # rows, and columns, that the kernel reads at a time: two vectors
TYPES = {
    "f4": "float", "f8": "double", "i1": "char", "u1": "uchar", "i2": "short",
    "u2": "ushort", "i4": "int", "u4": "uint", "i8": "long", "u8": "ulong",
}
"""OpenCL's types of the host's numbers, by NumPy's codes."""


def place_rows(
    dtype: str, stride: int, types: tuple[DTypeLike, DTypeLike], samples: int,
    sample_bytes: int, columns: bool,
) -> tuple[Launch, int]:
    """Return the launch that places some samples, and the rows of a work-item.

    Its arguments are those of ``place_rows.cl``.
    """
    x, t = (TYPES[np.dtype(type_).str[1:]] for type_ in types)
    rows = max(1, CHUNK // sample_bytes)
    if columns:
        rows = max(TILE, rows // TILE * TILE)
    defines: dict[str, int | str] = {
        "REAL": TYPES[np.dtype(dtype).str[1:]], "FROM_X": x, "FROM_T": t,
        "LINES": int(stride * np.dtype(dtype).itemsize % LINE == 0),
        "COLUMNS": int(columns), "TILE": TILE,
    }
    return Launch.of_groups(
        "training/place_rows.cl", "place_rows", defines, -(-samples // rows), 1,
    ), rows
