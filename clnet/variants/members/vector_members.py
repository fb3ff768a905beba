"""vector_members: trainings of many tiny networks in a launch, in vectors' lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clnet.ir.loss import RECORD
from clnet.opencl.launch import (
    PARAMETERS,
    STATE,
    Constant,
    Launch,
    Launches,
    Scratch,
)
from clnet.variants.base import Config, MemberVariant, Reach, Untuned, refuse_unless_cpu
from clnet.variants.dense.cpu import lanes
from clnet.variants.members.members import (
    MEMBER_ARGUMENTS,
    core_share,
    member_cost,
    member_rule,
    weights_of,
)
from clnet.variants.training.epoch import SYNC_WORDS
from clnet.variants.training.whole_step import (
    Allocator,
    accepted_step,
    layer_defines,
    layer_table,
    neuron_table,
    refuse_unless_whole_step,
    step_defines,
)

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device
    from clnet.variants.cost import Cost

SAMPLES = 4  # at a time
EFFICIENCY = 0.45  # of lanes that have networks
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
        return member_cost(span, self.members, cores, EFFICIENCY * work)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the launch of the members."""
        step = accepted_step(span)
        rule, live = member_rule(step, span)
        allocate, width = Allocator(), lanes(device)
        layers = layer_table(step, allocate, SAMPLES, 1)
        defines: dict[str, int | str] = {
            **step_defines(step, span), **rule, **layer_defines(step, layers),
            "ROWS": allocate.end // SAMPLES, "WIDTH": width,
        }
        vectors = (2 + step.slots) * step.size + allocate.end + 2 * len(RECORD)
        workers, _ = core_share(-(-self.members // width), device)
        x, t, *_ = step.data
        return (
            Launch(
                "members/vector_members.cl", "vector_members", defines,
                (workers,), (1,),
                (
                    Constant.of(neuron_table(step)), PARAMETERS, x, t, weights_of(step),
                    Scratch("memory", 4 * width * workers * vectors),
                    Scratch("sync", 4 * SYNC_WORDS),
                    float(step.loss.bit_fail_limit), STATE, live, t.width,
                    span.batch, *MEMBER_ARGUMENTS,
                ),
            ),
        )
