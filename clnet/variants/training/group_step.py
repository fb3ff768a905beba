"""group_step: steps of training by tiles of samples in local memory, for GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from numpy.typing import NDArray

from clnet.ir.ops import Span
from clnet.ir.training_ops import RECORD
from clnet.nn.optimisers import Sarprop
from clnet.nn.random import half_bits
from clnet.nn.storage.layout import round_up
from clnet.opencl.device import Device
from clnet.opencl.launch import (
    Argument,
    Gradients,
    Launch,
    Parameters,
    Scalar,
    Scratch,
    State,
    Table,
    TimeoutFlag,
)
from clnet.opencl.program import inline_ptx
from clnet.variants.base import Config, Cost, Reach, gpu_shape, span_flops
from clnet.variants.team import team_group
from clnet.variants.training.optimisers import live_table, rule_defines
from clnet.variants.training.whole_step import (
    APART,
    KEY,
    WholeStep,
    layer_table,
    neuron_table,
    refuse_unless_whole_step,
    rows_text,
    step_defines,
    whole_step,
)

TILES = (32, 16, 8)  # samples of a tile, the usually best first
GROUPS = (512, 256)  # work-items of a group, the usually best first
PARTS = 8  # work-items that share an element when gradients are added
PADDING = 4  # samples behind a tile's, which spread its rows over the banks
FEW = 2  # tiles that one group does as fast as several
MAX_POLLS = 1 << 20  # looks at who has come: about a second


@dataclass(frozen=True)
class GroupStep:
    """A tile of samples a work-group (``group_step.cl``).

    Config: ``tile``, samples of a tile; ``group``, work-items of a group; ``alone``, 1
    where one group does all, and any number of steps in a launch; ``together``, 1 where
    many groups do, which wait for each other.
    """

    name: str = "group_step"
    reach: Reach = "program"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse other types, other programs, and what local memory does not hold."""
        if span.dtype != "float32":
            return "it computes in float32 only"
        refusal = refuse_unless_whole_step(span, device)
        if refusal is not None:
            return refusal
        step = _step(span)
        if step.update is not None and step.update.norm is not None:
            return "it never has a whole gradient, and here one is clipped by its norm"
        least = 4 * (_Places.of(step, TILES[-1]).size + GROUPS[0])  # and sums
        if least > device.local_memory:
            return (
                f"it keeps a tile's values in local memory: {least} bytes, and "
                f"{device.name} has {device.local_memory}"
            )
        if _group(device) < TILES[-1]:
            return f"it needs groups of {TILES[-1]}, and {device.name} has none"
        return None

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Tiles that fit, and leave no more work-items idle than they must."""
        step = _step(span)
        most = _group(device)
        groups = [group for group in GROUPS if group <= most] or [most]
        tiles = [
            tile for tile in TILES
            if 4 * (_Places.of(step, tile).size + GROUPS[0]) <= device.local_memory
            and tile <= groups[-1] and tile < 2 * round_up(span.batch, TILES[-1])
        ]
        # Only one group knows the epoch's error before it updates.
        alone = step.update is not None and isinstance(step.update.optimiser, Sarprop)
        found = []
        if not alone and step.update is not None and _hand_over(device):
            # The smallest tiles that leave each unit one: what counts is their latency.
            units = device.compute_units
            fitting = [tile for tile in tiles if -(-span.batch // tile) <= units]
            tile = min(fitting, default=tiles[0])
            if span.batch > tile:
                found = [(tile, group, 0, 1) for group in groups]
            groups = groups[-1:]  # the others are second best
        few = span.batch <= FEW * tiles[0]
        kinds = [1] if alone else [1, 0] if few else [0, 1]
        found += [
            (tile, group, one, 0) for one in kinds for tile in tiles for group in groups
            if one or span.batch > tile
        ]
        return tuple(
            {"tile": tile, "group": group, "alone": one, "together": several}
            for tile, group, one, several in found
        ) or ({"tile": tiles[-1], "group": groups[0], "alone": 1, "together": 0},)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count every group's gradients, written and read."""
        step = _step(span)
        groups = _groups(span, config, device)
        samples = span.batch * sum(value.width for value in step.data)
        return Cost(
            span_flops(span), 4 * (samples + 3 * groups * step.size),
            2 - config["alone"] - config["together"], 4 * groups * (step.size + APART),
            min(groups, device.compute_units), 0.2 * gpu_shape(device),
        )

    def launches(
        self, span: Span, config: Config, device: Device
    ) -> tuple[Launch, ...]:
        """Return the launch of one group, or the two of many."""
        step = _step(span)
        group, tile = config["group"], config["tile"]
        places = _Places.of(step, tile)
        defines: dict[str, int | str] = {
            **step_defines(step, span), "TILE": tile,
            "PITCH": tile + PADDING, "GROUP": group,
            "PARTS": PARTS, "LOCAL": places.size, "LAYERS": len(step.layers),
            "CHAIN": rows_text(places.layers), "SAME": rows_text(_same(step)),
            "X_PLACE": places.x, "T_PLACE": places.t, "WEIGHT_PLACE": places.weight,
            "RECORD_PLACE": places.record, "MEET": 0, "SIZE": step.size,
            "STAGED": int(
                4 * (places.size + group + step.size) <= device.local_memory
            ),
        }
        live: Argument = Gradients()
        if step.update is not None:
            defines |= rule_defines(step.update, span)
            live = live_table(step.update)
        x, t, *weight = step.data
        n = span.batch if step.gather is None else step.gather.samples
        groups = _groups(span, config, device)
        sums = Scratch("group gradients", 4 * groups * (step.size + APART))
        shared: tuple[Argument, ...] = (
            Table.of(neuron_table(step)),
            Parameters(), x, t, weight[0] if weight else t, sums, n, half_bits(n),
            float(step.loss.bit_fail_limit), Scalar("first"), Scalar("samples"), *KEY,
        )
        rule: tuple[Argument, ...] = (
            Scalar("seen"), Scalar("fresh"), Scalar("rate", "real"), Scalar("count"),
            Scalar("seed", "uint"),
        )
        totals = step.tally.totals
        elements = (step.size if step.backward else 0) + len(RECORD)
        blocks = -(-elements // (group // PARTS))
        if config["alone"] or config["together"]:
            count = 1
            meeting: tuple[Argument, ...] = ()
            if config["together"]:
                count = min(device.compute_units, max(groups, blocks))
                defines |= {"MEET": 1 << count.bit_length(), "MAX_POLLS": MAX_POLLS}
                meeting = (Scratch("came", 4), TimeoutFlag())
            return (
                Launch(
                    "training/group_step.cl", "steps", defines, (count * group,),
                    (group,),
                    (*shared, State(), Gradients(), totals, live, span.batch, t.width,
                     Scalar("steps"), Scalar("record_offset"),
                     Scalar("record_stride"), *rule, *meeting),
                ),
            )
        return (
            Launch(
                "training/group_step.cl", "gradients", defines, (groups * group,),
                (group,), shared,
            ),
            Launch(
                "training/group_step.cl", "combine", defines, (blocks * group,),
                (group,),
                (sums, groups, Parameters(), State(), Gradients(), totals,
                 live, t.width, Scalar("samples"), *rule),
            ),
        )


@dataclass(frozen=True)
class _Places:
    """Where things are in local memory, in values."""

    layers: NDArray[Any]  # the kernel's table
    x: int
    t: int
    weight: int
    record: int
    size: int

    @classmethod
    def of(cls, step: WholeStep, tile: int) -> _Places:
        pitch = tile + PADDING
        end = 0

        def place(size: int) -> int:
            nonlocal end
            here, end = end, end + size
            return here

        layers = layer_table(step, place, pitch, 4)
        x = place(round_up(step.layers[0].n_in, 4) * pitch)
        t = place(round_up(step.layers[-1].n_out, 4) * pitch)
        weight = place(tile)
        record = place(round_up(len(RECORD) * tile, 4))
        return cls(layers, x, t, weight, record, end)


def _step(span: Span) -> WholeStep:
    step = whole_step(span)
    assert step is not None
    return step


def _same(step: WholeStep) -> NDArray[Any]:
    """Return each layer's neurons, where they are all the same, else function -1."""
    neurons = neuron_table(step)
    ends = list(accumulate(layer.n_out for layer in step.layers))
    found = neurons[[end - 1 for end in ends]]
    for row, start, end in zip(found, [0, *ends], ends, strict=False):
        if (neurons[start:end] != neurons[start]).any():
            row["function"] = -1
    return found


def _group(device: Device) -> int:
    """Return the largest group that the device and the kernel take."""
    return team_group(GROUPS[0], device)


def _groups(span: Span, config: Config, device: Device) -> int:
    if config["alone"]:
        return 1
    tiles = -(-span.batch // config["tile"])
    return min(tiles, (1 if config["together"] else 2) * device.compute_units)


def _hand_over(device: Device) -> bool:
    """Return whether groups of a launch can meet, and see what others wrote before.

    Among a GPU's groups that takes fences that only PTX has here.
    """
    coherent = device.type == "cpu" or bool(inline_ptx(device))
    return bool(device.forward_progress) and coherent
