"""members, vector_members: trainings of many networks in a launch, for CPU cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.ir.loss import RECORD
from clnet.nn.storage.layout import round_up
from clnet.opencl.launch import (
    EPOCH_TABLE,
    MEMBER_DROPS,
    MEMBER_ENDS,
    MEMBER_SUBSETS,
    MEMBER_TABLE,
    MEMBER_TOTALS,
    MEMBER_WEIGHTS,
    PARAMETERS,
    STATE,
    Argument,
    Constant,
    Launch,
    Launches,
    Scalar,
    Scratch,
)
from clnet.opencl.program import matrix_units
from clnet.variants.base import Config, MemberVariant, Reach, Untuned, refuse_unless_cpu
from clnet.variants.cost import Cost
from clnet.variants.dense.cpu import lanes
from clnet.variants.training.epoch import (
    SYNC_WORDS,
    TILES,
    Shape,
    balanced_tile,
    tile_pitch,
    transposed_data,
)
from clnet.variants.training.whole_step import (
    Allocator,
    accepted_step,
    refuse_unless_whole_step,
)

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device
    from clnet.variants.training.whole_step import WholeStep

EFFICIENCY = 0.4  # of lanes that have samples
SUM_SAMPLES = 15  # of a tile whose products take as long as the sums over lanes
DROPPED_BITS = 16  # of a float32: a bfloat16 has the others
MEMBER_ARGUMENTS: tuple[Argument, ...] = (  # of all kernels of members (member.h)
    MEMBER_TOTALS, MEMBER_ENDS, MEMBER_TABLE, Scalar("members"), MEMBER_SUBSETS,
    MEMBER_DROPS, EPOCH_TABLE, Scalar("epochs"),
)


def weights_of(step: WholeStep) -> Argument:
    """Return the argument of the members' weights; the targets, if there are none."""
    return step.data[1] if step.loss.weight is None else MEMBER_WEIGHTS


def member_defines(step: WholeStep) -> dict[str, int | str]:
    """Return the macros of a step, with zeros for the factors that `MEMBER` has."""
    rule = step.rule
    zeros = {name: 0 for name in ("L1", "L2") if name in rule}
    return step.defines | rule | zeros


def member_cost(
    span: Span, members: int, units: int, efficiency: float, **more: Any
) -> Cost:
    """Return the cost of a step of all networks: their operations, and the samples.

    Parameters and state stay where they are for all epochs of a launch.
    """
    samples = span.batch * sum(value.width for value in accepted_step(span).data)
    return Cost(
        members * span.flops, 4 * samples, 0, 0, units, efficiency, **more
    )


def core_share(members: int, device: Device) -> tuple[int, float]:
    """Return how many cores train networks, and the share of the time that all do.

    A core trains one network after the other. The last ones leave some cores idle.
    """
    cores = min(device.compute_units, members)
    return cores, members / (-(-members // cores) * cores)


def exact_factors(x: NDArray[Any], device: Device) -> bool:
    """Return whether a device's matrix units take float32 values without rounding them.

    Codes of categories and small integers have no more than the 8 bits of bfloat16.
    """
    if x.dtype != np.float32 or not matrix_units(device):
        return False
    bits = np.ascontiguousarray(x).view(np.uint32)
    return not (bits & ((1 << DROPPED_BITS) - 1)).any()


@dataclass(frozen=True)
class TrainMembers(Untuned, MemberVariant):
    """A core's worker trains one network after the other (``members.cl``)."""

    members: int  # As `MemberVariant`
    subsets: bool = False
    name: str = "members"
    reach: Reach = "program"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse other devices and dtypes, and all but dense chains."""
        refusal = (
            refuse_unless_cpu(span, device)
            or refuse_unless_whole_step(span, drops=True)
        )
        if refusal is not None:
            return refusal
        step = accepted_step(span)
        if step.loss.weight is not None and step.gather is None:
            return "it gathers samples with weights, and here the data set is the batch"
        return None

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count lanes without a sample, and the sums over lanes of each tile."""
        width = lanes(device)
        tile = balanced_tile(span.batch, 1, TILES[0], width)
        used = span.batch / round_up(span.batch, width)
        cores, share = core_share(self.members, device)
        work = used * share / (1 + SUM_SAMPLES / tile)
        return member_cost(span, self.members, cores, EFFICIENCY * work)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the launches that transpose the data set, and that of the members."""
        step = accepted_step(span)
        width = lanes(device)  # as epoch's, whose bits these are
        tile = balanced_tile(span.batch, 1, TILES[0], width)
        shape = Shape.of(step, span, {"workers": 1, "tile": tile}, width)
        shared = {**member_defines(step), "LANES": width}
        defines = {
            **shared, "SUBSETS": int(self.subsets), "DROPS": int(any(step.drops)),
        }
        x, t, *_ = step.data
        n = step.samples
        workers, _ = core_share(self.members, device)
        data: list[Argument] = [x, t, weights_of(step)]
        transposes: Launches = ()
        if step.gather is None:
            plain = {**shared, "SYNC_WORDS": SYNC_WORDS, "SHARED": 0}
            data, transposes = transposed_data(step, span, tile, plain, width)
        return (
            *transposes,
            Launch.of_groups(
                "members/members.cl", "members", defines, workers, 1,
                Constant.of(shape.layers), Constant.of(step.neurons), PARAMETERS,
                *data, n, Scratch("memory", 4 * workers * shape.memory_size),
                Scratch("gradients", 8 * workers * shape.gradient_pitch),
                Scratch("orders", 4 * workers * round_up(n, width)),
                Scratch("sync", 4 * SYNC_WORDS), len(step.layers), shape.size,
                span.batch, tile, tile_pitch(tile, width), shape.tiles, *shape.offsets,
                step.bit_fail_limit, STATE, step.live, t.width,
                *MEMBER_ARGUMENTS,
            ),
        )


SAMPLES = 4  # at a time
VECTOR_EFFICIENCY = 0.45  # of lanes that have networks
MAX_SIZE = 256  # elements of a network: a vector of them stays in a core's cache


@dataclass(frozen=True)
class VectorMembers(Untuned, MemberVariant):
    """A core's worker trains a network a lane of a vector (``vector_members.cl``)."""

    members: int  # As `MemberVariant`
    alike: bool = True  # Whether all networks take the same samples in the same order
    name: str = "vector_members"
    reach: Reach = "program"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse other devices and dtypes, orders that differ, and larger networks."""
        refusal = (
            refuse_unless_cpu(span, device) or refuse_unless_whole_step(span)
        )
        if refusal is not None:
            return refusal
        step = accepted_step(span)
        if not self.alike:
            return "its networks share the order of samples, and here orders differ"
        rule = None if step.update is None else step.update.optimiser
        if rule is not None and (rule.uses_offset or rule.reads_error):
            return f"it has no random numbers and no error, which {rule.name} needs"
        if step.size > MAX_SIZE:
            return (
                f"it is for networks of at most {MAX_SIZE} parameters, and here are "
                f"{step.size}"
            )
        return None

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count lanes without a network."""
        width = lanes(device)
        vectors = -(-self.members // width)
        cores, share = core_share(vectors, device)
        work = share * self.members / (vectors * width)
        return member_cost(span, self.members, cores, VECTOR_EFFICIENCY * work)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the launch of the members."""
        step = accepted_step(span)
        allocate, width = Allocator(), lanes(device)
        layers = step.layer_table(allocate, SAMPLES, 1)
        defines: dict[str, int | str] = {
            **member_defines(step), **step.layer_defines(layers),
            "ROWS": allocate.end // SAMPLES, "SAMPLES": SAMPLES, "WIDTH": width,
        }
        vectors = (2 + step.slots) * step.size + allocate.end + 2 * len(RECORD)
        workers, _ = core_share(-(-self.members // width), device)
        x, t, *_ = step.data
        launch = Launch.of_groups(
            "members/vector_members.cl", "vector_members", defines, workers, 1,
            Constant.of(step.neurons), PARAMETERS, x, t, weights_of(step),
            Scratch("memory", 4 * width * workers * vectors),
            Scratch("sync", 4 * SYNC_WORDS), step.bit_fail_limit, STATE,
            step.live, t.width, span.batch, *MEMBER_ARGUMENTS,
        )
        return (launch,)
