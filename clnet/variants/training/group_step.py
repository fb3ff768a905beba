"""group_step: training steps by tiles of samples in local memory, for GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from clnet.ir.loss import RECORD
from clnet.nn.random import half_bits
from clnet.nn.storage.layout import round_up
from clnet.opencl.launch import (
    GRADIENTS,
    KEY,
    PARAMETERS,
    STATE,
    TIMEOUT_FLAG,
    Argument,
    Constant,
    Launch,
    Launches,
    Scalar,
    Scratch,
)
from clnet.opencl.program import inline_ptx
from clnet.variants.base import team_group
from clnet.variants.cost import Cost, gpu_kernel_efficiency, span_flops
from clnet.variants.training.whole_step import (
    APART,
    RULE,
    RUN,
    Allocator,
    WholeStep,
    accepted_step,
    layer_defines,
    layer_table,
    neuron_table,
    refuse_unless_float32_step,
    rule_of,
    step_defines,
)

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device
    from clnet.variants.base import Config, Reach

TILES = (32, 16, 8)  # samples of a tile, the usually best first
LARGE_TILES = (256, 128, 64)  # of one group alone, whose steps are its latency
GROUPS = (512, 256)  # work-items of a group, the usually best first
SMALL_GROUPS = (128, 64, 32)  # of one group alone, where layers are small
PART = 32  # samples of a tile that one work-item sums to its record
REDUCERS = 8  # work-items that reduce an element
PADDING = 4  # values behind a row of a tile, against bank conflicts
FEW_TILES = 2  # one group computes so many tiles as fast as several groups do
MAX_POLLS = 1 << 20  # of a grid barrier: about a second


@dataclass(frozen=True)
class GroupStep:
    """A tile of samples a work-group (``group_step.cl``).

    Config: ``tile``, samples of a tile; ``group``, work-items of a group; ``alone``, 1:
    one group computes any number of steps in a launch; ``together``, 1: many groups do,
    with grid barriers.
    """

    name: str = "group_step"
    reach: Reach = "program"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse other dtypes and programs, and tiles too large for local memory."""
        refusal = refuse_unless_float32_step(span, clips_norm=False)
        if refusal is not None:
            return refusal
        step = accepted_step(span)
        # A tile, and the partial sums of a reduction.
        needed = 4 * (LocalLayout.of(step, TILES[-1]).size + GROUPS[0])
        if needed > device.local_memory:
            return (
                f"it needs {needed} bytes of local memory for a tile, and "
                f"{device.name} has {device.local_memory}"
            )
        if _largest_group(device) < TILES[-1]:
            return (
                f"it needs groups of {TILES[-1]} work-items, more than those of "
                f"{device.name}"
            )
        return None

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Tiles that fit local memory and are not mostly idle."""
        step = accepted_step(span)
        most = _largest_group(device)
        groups = [group for group in GROUPS if group <= most] or [most]
        tiles = [
            tile for tile in TILES
            if 4 * (LocalLayout.of(step, tile).size + GROUPS[0]) <= device.local_memory
            and tile <= groups[-1] and tile < 2 * round_up(span.batch, TILES[-1])
        ]
        # Only a single group has the epoch's error before its update.
        alone = step.update is not None and step.update.optimiser.reads_error
        choices = []
        if not alone and step.update is not None and _has_grid_barrier(device):
            # The smallest tiles with one for each unit: latency counts most.
            units = device.compute_units
            fitting = [tile for tile in tiles if -(-span.batch // tile) <= units]
            tile = min(fitting, default=tiles[0])
            if span.batch > tile:
                choices = [(tile, group, 0, 1) for group in groups]
            groups = groups[-1:]  # for the slower kinds
        few = span.batch <= FEW_TILES * tiles[0]
        resident = [
            (tile, group, 1, 0) for tile, group in _resident(step, span.batch, device)
        ] or [(tile, group, 1, 0) for tile in tiles for group in groups]
        several = [] if alone else [
            (tile, group, 0, 0) for tile in tiles for group in groups
            if span.batch > tile
        ]
        choices += [*resident, *several] if few else [*several, *resident]
        return tuple(
            {"tile": tile, "group": group, "alone": by_one, "together": by_many}
            for tile, group, by_one, by_many in choices
        ) or ({"tile": tiles[-1], "group": groups[0], "alone": 1, "together": 0},)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count the gradients of every group, written and read."""
        step = accepted_step(span)
        groups = _groups(span, config, device)
        samples = span.batch * sum(value.width for value in step.data)
        return Cost(
            span_flops(span), 4 * (samples + 3 * groups * step.size),
            2 - config["alone"] - config["together"], 4 * groups * (step.size + APART),
            min(groups, device.compute_units), 0.2 * gpu_kernel_efficiency(device),
        )

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return one launch of whole steps, or two: gradients, then combine."""
        step = accepted_step(span)
        group, tile = config["group"], config["tile"]
        layout = LocalLayout.of(step, tile)
        defines: dict[str, int | str] = {
            **step_defines(step, span), **layer_defines(step, layout.layers),
            **layout.defines, "TILE": tile, "GROUP": group, "REDUCERS": REDUCERS,
            "LOCAL_VALUES": layout.size, "GRID": 0,
            "STAGED": int(
                4 * (layout.size + group + step.size) <= device.local_memory
            ),
        }
        rule, live = rule_of(step, span)
        defines |= rule
        resident = config["alone"] and _is_resident(step, tile, device)
        defines |= {
            "RESIDENT": int(resident), "PARTS": max(1, tile // PART) if resident else 1,
        }
        if resident:
            defines["STAGED"] = 1
        x, t, *_ = step.data
        n = step.samples
        groups = _groups(span, config, device)
        sums = Scratch("group gradients", 4 * groups * (step.size + APART))
        shared: tuple[Argument, ...] = (
            Constant.of(neuron_table(step)),
            PARAMETERS, x, t, step.weight, sums, n, half_bits(n),
            float(step.loss.bit_fail_limit), Scalar("first"), Scalar("samples"), *KEY,
        )
        totals = step.tally.totals
        elements = (step.size if step.backward else 0) + len(RECORD)
        blocks = -(-elements // (group // REDUCERS))
        if config["alone"] or config["together"]:
            count = 1
            barrier: tuple[Argument, ...] = ()
            if config["together"]:
                count = min(device.compute_units, max(groups, blocks))
                defines |= {"GRID": 1 << count.bit_length(), "MAX_POLLS": MAX_POLLS}
                barrier = (Scratch("arrivals", 4), TIMEOUT_FLAG)
            launch = Launch.of_groups(
                "training/group_step.cl", "steps", defines, count, group,
                *shared, STATE, GRADIENTS, totals, live, span.batch, t.width,
                Scalar("steps"), *RUN, *RULE, *barrier,
            )
            return (launch,)
        return (
            Launch(
                "training/group_step.cl", "gradients", defines, (groups * group,),
                (group,), shared,
            ),
            Launch.of_groups(
                "training/group_step.cl", "combine", defines, blocks, group,
                sums, groups, PARAMETERS, STATE, GRADIENTS, totals, live, t.width,
                Scalar("samples"), *RULE,
            ),
        )


@dataclass(frozen=True)
class LocalLayout:
    """Offsets in local memory of a tile's values, in values."""

    layers: NDArray[Any]  # The kernel's table
    pitch: int  # Distance of a sample's values
    x: int  # Of the inputs, targets, weights and records
    t: int
    weight: int
    record: int
    size: int  # Of all

    @property
    def defines(self) -> dict[str, int | str]:
        """The macros of the distance and the offsets."""
        return {
            "PITCH": self.pitch, "X_OFFSET": self.x, "T_OFFSET": self.t,
            "WEIGHT_OFFSET": self.weight, "RECORD_OFFSET": self.record,
        }

    @classmethod
    def of(
        cls, step: WholeStep, tile: int, rows: int = 4, inputs: int | None = None
    ) -> LocalLayout:
        """Return the layout for tiles of samples, with padded numbers of rows.

        `inputs` are the values that the tile's inputs take, if they are no such rows.
        """
        pitch = tile + PADDING
        allocate = Allocator()
        layers = layer_table(step, allocate, pitch, rows)
        whole = round_up(step.layers[0].n_in, rows) * pitch
        x = allocate(whole if inputs is None else inputs)
        t = allocate(round_up(step.layers[-1].n_out, 4) * pitch)
        weight = allocate(tile)
        record = allocate(round_up(len(RECORD) * tile, 4))
        return cls(layers, pitch, x, t, weight, record, allocate.end)


def _is_resident(step: WholeStep, tile: int, device: Device) -> bool:
    """Return whether all that steps read and change fits local memory beside a tile."""
    flat = (3 + step.slots) * step.size  # parameters, gradients, live elements, state
    sums = len(RECORD) * (2 + max(1, tile // PART)) + 2
    return 4 * (LocalLayout.of(step, tile).size + flat + sums) <= device.local_memory


def _resident(
    step: WholeStep, batch: int, device: Device
) -> Iterator[tuple[int, int]]:
    """Yield the tiles and groups of one group that keeps all in local memory.

    The tile with the whole mini-batch comes first, and of the groups the smallest with
    a work-item for every four outputs of the widest layer.
    """
    widest = max(max(layer.n_in, layer.n_out) for layer in step.layers)
    sizes = sorted((*GROUPS, *SMALL_GROUPS))
    least = min(LARGE_TILES[0], max(TILES[-1], 1 << (batch - 1).bit_length()))
    for tile in (*LARGE_TILES, *TILES):
        if tile > least or not _is_resident(step, tile, device):
            continue
        groups = [size for size in sizes if tile <= size <= _largest_group(device)]
        enough = [size for size in groups if size >= tile // 4 * widest]
        first = groups.index(enough[0]) if enough else len(groups) - 1
        for group in (*groups[first : first + 2], *groups[:first][-1:]):
            yield tile, group


def _largest_group(device: Device) -> int:
    """Return the largest work-group that device and kernel allow."""
    return team_group(GROUPS[0], device)


def _groups(span: Span, config: Config, device: Device) -> int:
    if config["alone"]:
        return 1
    tiles = -(-span.batch // config["tile"])
    return min(tiles, (1 if config["together"] else 2) * device.compute_units)


def _has_grid_barrier(device: Device) -> bool:
    """Return whether the groups of a launch can synchronise and exchange values.

    On a GPU this needs device-wide fences, which only PTX has here.
    """
    coherent = device.type == "cpu" or bool(inline_ptx(device))
    return bool(device.forward_progress) and coherent
