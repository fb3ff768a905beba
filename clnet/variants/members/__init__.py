"""Variants that train many networks of one shape in a launch, side by side.

Populations alone import them. Start with `members`, whose networks take turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clnet.variants.members.group_members import GroupMembers, LaneMembers
from clnet.variants.members.members import TrainMembers, VectorMembers
from clnet.variants.training.whole_step import LANES

if TYPE_CHECKING:
    from clnet.opencl.device import Device

MembersVariant = VectorMembers | TrainMembers | LaneMembers | GroupMembers


def members_variants(
    device: Device, members: int, samples: int, subsets: bool, alike: bool
) -> tuple[MembersVariant, ...]:
    """Return the variants to search: on CPUs those for CPUs, on others all."""
    rows = TrainMembers(members, subsets)
    vectors = VectorMembers(members, alike and not subsets)
    if device.type != "cpu":
        lanes = LaneMembers(members, samples, subsets)
        return lanes, GroupMembers(members, subsets), vectors, rows
    if members < LANES * device.compute_units:
        return (rows,)  # whose bits are those of `Network.fit`
    return vectors, rows
