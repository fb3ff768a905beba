"""group_members, lane_members: trainings of many networks in a launch, for GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from clnet.ir.loss import RECORD
from clnet.nn.storage.layout import round_up
from clnet.opencl.launch import (
    PARAMETERS,
    STATE,
    Argument,
    Constant,
    Launch,
    Launches,
    Scalar,
    Scratch,
)
from clnet.opencl.program import WARP, inline_ptx, matrix_units
from clnet.variants.base import MemberVariant, team_group
from clnet.variants.cost import gpu_kernel_efficiency
from clnet.variants.members.members import (
    MEMBER_ARGUMENTS,
    member_cost,
    member_defines,
    weights_of,
)
from clnet.variants.training.group_step import PART, LocalLayout
from clnet.variants.training.whole_step import (
    Allocator,
    WholeStep,
    accepted_step,
    refuse_unless_float32_step,
    rows_text,
)

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device
    from clnet.variants.base import Config, Reach
    from clnet.variants.cost import Cost

TILES = (256, 128, 64, 32, 16, 8)  # samples of a tile
FULL = 1.25  # samples of whole tiles, to those of a step, at most
MANY_TILE = 64  # samples of the best tile where all compute units have networks
SHARED = {False: 2, True: 3}  # groups that share a unit then, at least; on matrix units
WIDE = 64  # neurons of a layer that occupy the largest group
GROUPS = (32, 64, 128, 256, 512)  # work-items of a group
FEW_NEURONS = 32  # whose products leave registers for more steps at once
SLICES = (16, 8, 32)  # samples of a warp on matrix units, the usually best first
MOST_FEW = 2  # neurons of a layer behind the first whose products are plain
OWN_STATE_BYTES = 1 << 13  # of a member's state in local memory, at most
GROUP_BYTES = 1 << 10  # of local memory that a group takes for itself
EFFICIENCY = {False: 0.2, True: 0.35}  # of products; on matrix units
SPLIT_WORK = 6  # three products of TF32, each at half the rate of halves
UNIT_ROWS = 16  # of a product of matrix units
BLOCK = 4  # rows and columns of a work-item's products without them
BUSY_WARPS = 16  # of a compute unit, that hide each other's latency
PHASES = 6  # of a tile and layer, that wait for the one before
MOST_REGISTERS = 255  # of a work-item
MOST_KEPT = 64  # gradients of a work-item that stay in registers
BLOCKS = np.dtype([(name, "i4") for name in ("rows", "columns", "parts", "kept")])
ROWS = 8  # rows of a tile are padded to a multiple: the inner step of matrix units
EXACT_STEP = 16  # the inner step of products of exact inputs, and their padding
VECTOR = 8  # values of two bytes in a vector, by which such rows are apart
PACK_GROUP = 128  # work-items of a group that packs inputs
PIECES = 3  # of a weight or a derivative in those products

GradientBlock = tuple[int, int, int]
"""Fragments that a warp computes at once: rows, columns, and parts of a tile."""


@dataclass(frozen=True)
class GroupMembers(MemberVariant):
    """A work-group trains a network (``group_members.cl``).

    Config: ``tile``, samples of a tile; ``group``, work-items of a group. On matrix
    units each warp has its own samples of the tile, 8 or a multiple.
    """

    members: int  # As `MemberVariant`
    subsets: bool = False
    exact: bool = False
    name: str = "group_members"
    reach: Reach = "program"

    def of_data(self, exact: bool) -> MemberVariant:
        """Return it for a data set whose `exact_factors` are known."""
        return replace(self, exact=exact)

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse other dtypes, and networks too large for local memory."""
        refusal = refuse_unless_float32_step(span, drops=True)
        if refusal is not None:
            return refusal
        step, matrix = accepted_step(span), bool(matrix_units(device))
        least = Arrangement(step, TILES[-1], WARP, TILES[-1], matrix).local_bytes
        most = device.unit_local_memory
        if least > most:
            return (
                f"it needs {least} bytes of local memory for a network, and "
                f"{device.name} has {most}"
            )
        return None

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return tiles and groups, the usually best first.

        A network alone on a compute unit is fastest in large tiles that it nearly
        fills. Networks that share a unit take smaller tiles, so that the unit's local
        memory holds several of them; if it cannot, they take large ones too.
        """
        step, matrix = accepted_step(span), bool(matrix_units(device))
        whole = max(TILES[-1], 1 << (span.batch - 1).bit_length())
        largest, local = team_group(GROUPS[-1], device), device.unit_local_memory

        def bytes_of(tile: int) -> int:
            group = WARP * -(-tile // SLICES[0])
            return self._arrangement(span, tile, group, device).local_bytes

        tiles = [
            tile for tile in TILES
            if tile <= min(whole, largest) and bytes_of(tile) <= local
        ]
        few = self.members <= device.compute_units
        shared = not few and SHARED[matrix] * bytes_of(MANY_TILE) <= local
        tiles.sort(key=lambda tile: (
            shared and tile != MANY_TILE,
            round_up(span.batch, tile) > FULL * max(span.batch, TILES[-1]),
        ))
        if matrix:
            return tuple(
                {"tile": tile, "group": WARP * tile // rows}
                for tile in tiles for rows in SLICES
                if tile % rows == 0 and WARP * tile // rows <= largest
            )
        widest = max(max(layer.n_in, layer.n_out) for layer in step.layers)
        if few:
            neurons = max(layer.n_out for layer in step.layers)
            widest = WIDE * 2 if neurons >= WIDE else WIDE
        return tuple(
            {"tile": tile, "group": group} for tile in tiles
            for group in _groups(tile, widest, largest)
        )

    def _arrangement(
        self, span: Span, tile: int, group: int, device: Device
    ) -> Arrangement:
        return Arrangement(
            accepted_step(span), tile, group, span.batch, bool(matrix_units(device)),
            self.exact,
        )

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count padded products, idle warps, and the waits between a tile's phases.

        Configurations cost alike: the order of the space ranks them.
        """
        step, matrix = accepted_step(span), bool(matrix_units(device))
        tile, group = next(iter(self.space(span, device))).values()
        rows, columns = (UNIT_ROWS, ROWS) if matrix else (BLOCK, BLOCK)
        padded = sum(
            round_up(layer.n_out, rows) * round_up(layer.n_in, columns)
            for layer in step.layers
        ) / sum(layer.n_out * layer.n_in for layer in step.layers)
        units = min(device.compute_units, self.members)
        warps = -(-self.members // units) * group / WARP
        efficiency = EFFICIENCY[matrix] * gpu_kernel_efficiency(device) / padded
        waits = PHASES * len(step.layers) * -(-span.batch // tile)
        return member_cost(
            span, self.members, units, efficiency * min(1.0, warps / BUSY_WARPS),
            unit="matrix" if matrix else "flops", work=SPLIT_WORK if matrix else 1.0,
            loads=waits,
        )

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the launch of the members, a group each."""
        step, matrix = accepted_step(span), bool(matrix_units(device))
        tile, group = config["tile"], config["group"]
        local = self._arrangement(span, tile, group, device)
        layout = local.layout
        x, t, *_ = step.data
        defines: dict[str, int | str] = {
            **member_defines(step), "SUBSETS": int(self.subsets),
            **step.layer_defines(local.layers), **layout.defines,
            "DROPS": int(any(step.drops)), "TILE": tile, "GROUP": group,
            "LOCAL_VALUES": local.size, "PARTS": _parts(tile), "VALUES": local.values,
            "OWN_STATE": int(_keeps_state(step)), "MATRIX": int(matrix),
            "KEPT": local.kept, "DELTAS": local.deltas, "SPLIT": local.split,
            "EXACT": int(local.columns > 0), "RATIONAL_TANH": 1,
        }
        inputs: Argument = x
        packs: Launches = ()
        if local.columns:
            inputs, packs = _packed(step, step.samples, local.columns)
        registers = None
        if matrix:
            widest = max(layer.n_out for layer in step.layers)
            groups = 1
            if self.members > device.compute_units:
                groups = max(1, device.unit_local_memory // local.local_bytes)
            defines |= {
                "STEPS": 4 if widest <= FEW_NEURONS else 2,
                "BLOCK_TABLE": rows_text(local.blocks),
                "MOST_PARTS": int(local.blocks["parts"].max()),
                "COLUMNS": local.columns, "PIECES_OFFSET": local.pieces,
                "PIECES": PIECES, "MOST_FEW": MOST_FEW,
            }
            registers = min(
                MOST_REGISTERS, device.registers // (group * groups) // 8 * 8
            )
        return (
            *packs,
            Launch.of_groups(
                "members/group_members.cl", "group_members", defines, self.members,
                group,
                Constant.of(step.neurons), PARAMETERS, inputs, t,
                weights_of(step), step.samples, step.bit_fail_limit, STATE,
                Constant.of(_places(step, layout.layers, local.layers)), t.width,
                span.batch, *MEMBER_ARGUMENTS, registers=registers,
            ),
        )


class Arrangement:
    """Contents of a group's local memory and registers."""

    def __init__(
        self, step: WholeStep, tile: int, group: int, batch: int, matrix: bool,
        exact: bool = False,
    ) -> None:
        exact = exact and matrix and len(step.layers) > 1 and tile >= EXACT_STEP
        first = step.layers[0]
        self.columns: int = 0
        if exact:
            inputs = first.n_in + (first.act.bias is not None)
            self.columns = round_up(inputs, EXACT_STEP)
        pitch = self.columns + VECTOR
        self.layout: LocalLayout = LocalLayout.of(
            step, tile, ROWS, tile * pitch // 2 if exact else None
        )
        self.layers: NDArray[Any]
        self.values: int
        self.layers, self.values = _spread(self.layout.layers, exact * pitch)
        self.split: int = exact * first.n_out * pitch
        self.blocks: NDArray[Any] = np.zeros(0, BLOCKS)
        self.kept: int = 0
        self.deltas: int = 0
        self.size: int = self.layout.size
        self.pieces: int = exact * self.size
        self.size += exact * PIECES * first.n_out * (tile + VECTOR) // 2
        places = self.values + self.split
        if matrix:
            start, last = self.layers["values"][[int(exact), -1]].tolist()
            self.deltas = self.size - start if last > start else 0
            self.size += last - start
            step_size = EXACT_STEP if exact else ROWS
            parts = (1, 2) if tile > step_size and batch > tile else (1,)
            self.blocks, self.kept = self._blocks(tile, group // WARP, parts)
            if batch <= tile or self.kept > MOST_KEPT:
                self.blocks, self.kept = self._blocks(tile, group // WARP, (1,))[0], 0
        if self.kept:  # they are stored where the tiles were
            self.size = max(self.size, places)
        arrays = step.clips_norm + (step.loss.weight is not None)
        flat = self.values + len(RECORD) * (_parts(tile) + 2)
        flat += PIECES * self.split // 2 + (0 if self.kept else places)
        self.local_bytes: int = GROUP_BYTES + 4 * (
            self.size + flat + arrays * group + 1
        ) + (_state_bytes(step) if _keeps_state(step) else 0)

    def _blocks(
        self, tile: int, warps: int, parts: Sequence[int]
    ) -> tuple[NDArray[Any], int]:
        """Return the table of gradients' blocks, and how many a lane keeps of all.

        Blocks take the fewest instructions, about; `parts` may share a tile's samples.
        """
        table, kept = np.zeros(len(self.layers), BLOCKS), 0
        for number, (row, layer) in enumerate(zip(table, self.layers, strict=True)):
            few = number > 0 and layer["n_out"] <= MOST_FEW
            exact = self.columns > 0 and number == 0
            rounds = {
                block: _rounds(block, layer["n_out"], layer["n_in"], few, warps)
                for block in product((1, 2), (1, 2, 3, 4), parts)
            }
            costs = {
                block: count * _instructions(block, tile, exact)
                for block, count in rounds.items()
            }
            best = min(costs, key=costs.__getitem__)
            rows, columns, _ = best
            row["rows"], row["columns"], row["parts"], row["kept"] = *best, kept
            kept += rounds[best] * (2 if few else rows * (4 * columns + 2))
        return table, kept


def _rounds(block: GradientBlock, n_out: int, n_in: int, few: bool, warps: int) -> int:
    """Return how many blocks of a layer's gradient each warp computes."""
    rows, columns, parts = block
    count = -(-n_out // (1 if few else 16 * rows))
    count *= -(-n_in // (WARP if few else 8 * columns))
    return -(-int(count) * parts // warps)


def _instructions(block: GradientBlock, tile: int, exact: bool) -> int:
    """Return about how many instructions a block takes of a warp."""
    rows, columns, parts = block
    loads, steps = 6 * (4 * rows + 2 * columns), tile // (8 * parts)
    if exact:  # four blocks a load, and twice as many samples a product
        loads, steps = 3 * rows + -(-columns // 2), steps // 2
    return (loads + 3 * rows * columns) * steps


def _spread(layers: NDArray[Any], pitch: int) -> tuple[NDArray[Any], int]:
    """Return the table of layers with local offsets of parameters, and their number.

    A row's stride is 8 more than a multiple of 16, so that the four rows that a half
    warp reads are in different banks. If `pitch` is not 0, it is the stride of the
    first layer, whose parameters are behind the others and not counted. A bias there is
    the weight of one more input.
    """
    spread, allocate = layers.copy(), Allocator(4)
    for row in spread[int(pitch > 0):]:
        row["stride"] = round_up(int(row["n_in"]) - 8, 16) + 8
        row["weights"] = allocate(int(row["n_out"]) * int(row["stride"]))
        if row["bias"] >= 0:
            row["bias"] = allocate(int(row["n_out"]))
    if pitch:
        first = spread[0]
        first["n_in"] += first["bias"] >= 0
        first["stride"], first["weights"], first["bias"] = pitch, allocate.end, -1
    return spread, allocate.end


def _packed(step: WholeStep, rows: int, columns: int) -> tuple[Argument, Launches]:
    """Return the inputs of exact products, and the launch that packs them."""
    (x, *_), first = step.data, step.layers[0]
    packed = Scratch("packed inputs", 2 * rows * columns)
    bias = int(first.act.bias is not None)
    return packed, (
        Launch.of_groups(
            "members/pack_inputs.cl", "pack_inputs", {"COLUMNS": columns},
            -(-rows * columns // PACK_GROUP), PACK_GROUP,
            x, packed, rows, first.n_in, bias, when="inputs",
        ),
    )


def _places(
    step: WholeStep, flat: NDArray[Any], local: NDArray[Any]
) -> NDArray[Any]:
    """Return where each element of the flat buffer is in local memory; -1: padding."""
    places = np.full(step.size, -1, np.int32)
    for row, to in zip(flat, local, strict=True):
        o, i = np.ogrid[: row["n_out"], : row["n_in"]]
        places[row["weights"] + o * row["stride"] + i] = (
            to["weights"] + o * to["stride"] + i
        )
        if row["bias"] >= 0:
            ends = np.arange(row["n_out"])
            split = to["weights"] + ends * to["stride"] + row["n_in"]
            places[row["bias"] + ends] = to["bias"] + ends if to["bias"] >= 0 else split
    return places


def _parts(tile: int) -> int:
    """Return the work-items that sum one column of a tile's records."""
    return max(1, tile // PART)


def _state_bytes(step: WholeStep) -> int:
    return 4 * step.slots * step.size


def _keeps_state(step: WholeStep) -> bool:
    return _state_bytes(step) <= OWN_STATE_BYTES


def _groups(tile: int, widest: int, largest: int) -> tuple[int, ...]:
    """Return numbers of work-items for a tile, the usually best first.

    The best has one to two blocks of 16 values of the widest layer for each.
    """
    blocks = tile // 4 * -(-widest // 4)
    fitting = [group for group in GROUPS if tile <= group <= largest]
    return tuple(sorted(fitting, key=lambda group: abs(np.log2(1.5 * group / blocks))))


MOST_EACH = 2  # neurons of a lane
MOST_VALUES = 160  # of a lane: parameters, gradients and state, in registers
MOST_OUT = 16  # outputs, whose values a lane has at once
DATA_BYTES = 1 << 15  # of the data set, in local memory
LANE_TILES = (16, 8, 4, 2, 1)  # samples of a team at a time: more spill registers
SHARED_TILE = 8  # the usually best where networks share a warp
LANE_TEAMS = (1, 2, 4, 8)  # of a network
LANE_WARPS = 32  # of a compute unit, that hide each other's latency
LANE_EFFICIENCY = 0.5  # of busy warps
LANE_BUSY_WARPS = 8  # of a compute unit, that issue as often as more
LANE_PHASES = 3  # of a tile, and of an update, that wait for the one before
LEAST_SAMPLES = 72  # of a team: each team updates the parameters
LEAST_SHARED = 16  # lanes of a network that may do with half of them
FEW_SAMPLES = 32  # the same where units are nearly idle
MATRIX_ROWS = 16  # neurons of a product of matrix units
MATRIX_COLUMNS = 8  # its inputs, or samples
MATRIX_TILES = (32, 16, 8)  # samples of a team at a time, on matrix units


@dataclass(frozen=True)
class LaneMembers(MemberVariant):
    """A team of lanes trains a network, a neuron each (``lane_members.cl``).

    Config: ``matrix``, 1 where products are on matrix units; ``lanes``, of a team;
    ``teams``, of a network; ``tile``, samples that a team takes at a time.
    """

    of_samples: ClassVar[bool] = True
    members: int  # As `MemberVariant`
    samples: int  # Of the data set
    subsets: bool = False
    exact: bool = False
    name: str = "lane_members"
    reach: Reach = "program"

    def of_data(self, exact: bool) -> MemberVariant:
        """Return it for a data set whose `exact_factors` are known."""
        return replace(self, exact=exact)

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all but a hidden layer of few neurons, and large sets of data."""
        refusal = refuse_unless_float32_step(span)
        if refusal is not None:
            return refusal
        step = accepted_step(span)
        if len(step.layers) != 2:
            return f"it takes one hidden layer, and here are {len(step.layers) - 1}"
        if (step.layer_neurons["function"] < 0).any():
            return "it applies one activation per layer, and here neurons differ"
        hidden, out = step.layers[0].n_out, step.layers[1].n_out
        if hidden > MOST_EACH * WARP or out > MOST_OUT:
            return (
                f"it takes at most {MOST_EACH * WARP} hidden neurons and {MOST_OUT} "
                f"outputs, and here are {hidden} and {out}"
            )
        values = _lane_values(step, _most_lanes(step), 0)
        if values > MOST_VALUES:
            return (
                f"it needs {values} registers of a work-item for weights, gradients "
                f"and state, expected at most {MOST_VALUES}"
            )
        if self._data_bytes(step, 0) > DATA_BYTES:
            return (
                f"it needs {self._data_bytes(step, 0)} bytes of local memory for the "
                f"samples, expected at most {DATA_BYTES}"
            )
        return None

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return lanes, numbers of teams and tiles, the usually best first.

        With half as many lanes, each has two neurons. Two networks then share a warp,
        which reads each sample once for both.
        """
        step = accepted_step(span)
        most = _most_lanes(step)
        half, lanes = most // 2, [most]
        if (
            most >= LEAST_SHARED and step.layers[0].n_out <= MOST_EACH * half
            and _lane_values(step, half, 0) <= MOST_VALUES
        ):
            crowded = self.members * most > 2 * WARP * device.compute_units
            lanes.insert(0 if crowded else 1, half)
        matrix = bool(matrix_units(device)) and (
            step.layers[0].n_out >= 2 * MATRIX_ROWS
            and _lane_values(step, WARP, 1) <= MOST_VALUES
            and self._data_bytes(step, 1) <= DATA_BYTES
        )
        return tuple(
            {"matrix": 1, "lanes": WARP, "teams": teams, "tile": tile}
            for tile in MATRIX_TILES if matrix
            for teams in self._teams(span, WARP, device, 1)
        ) + tuple(
            {"matrix": 0, "lanes": count, "teams": teams, "tile": tile}
            for count in lanes
            for tile in self._tiles(span, count, device, count < most)
            for teams in self._teams(span, count, device, 0)
        )

    def _tiles(
        self, span: Span, lanes: int, device: Device, shared: bool
    ) -> Sequence[int]:
        tiles = [tile for tile in LANE_TILES if tile <= lanes and tile < 2 * span.batch]
        if shared:
            tiles.sort(key=lambda tile: abs(tile - SHARED_TILE))
        # Without PTX exchanges are barriers: programs grow.
        return tiles if inline_ptx(device) >= 70 else tiles[-3:]

    def _teams(
        self, span: Span, lanes: int, device: Device, matrix: int
    ) -> Sequence[int]:
        least = min(self._tiles(span, lanes, device, shared=False))
        unit = WARP * device.compute_units
        each = FEW_SAMPLES if self.members * lanes <= 2 * unit else LEAST_SAMPLES
        best = max(
            n for n in LANE_TEAMS if n == LANE_TEAMS[0]
            or (n * each <= span.batch
                and self.members * lanes * n < 2 * LANE_WARPS * unit)
        )
        step, shared = accepted_step(span), lanes * _networks(lanes, device)
        sums = 4 * shared * (_lane_parameters(step, lanes, matrix) + len(RECORD) + 1)
        room = device.unit_local_memory - self._data_bytes(step, matrix)
        most = min(team_group(LANE_TEAMS[-1] * WARP, device) // shared, room // sums)
        return sorted(
            (n for n in LANE_TEAMS if n == LANE_TEAMS[0]
             or (n <= most and n * least <= span.batch)),
            key=lambda n: abs(n - best),
        )

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count lanes without a neuron, idle warps, and the waits of each tile.

        Configurations cost alike: the order of the space ranks them.
        """
        _, lanes, teams, tile = next(iter(self.space(span, device))).values()
        groups = -(-self.members // _networks(lanes, device))
        units = min(device.compute_units, groups)
        warps = self.members * lanes * teams / (WARP * units)
        hidden = accepted_step(span).layers[0].n_out
        full = hidden / round_up(hidden, lanes) * gpu_kernel_efficiency(device)
        return member_cost(
            span, self.members, units,
            LANE_EFFICIENCY * full * min(1.0, warps / LANE_BUSY_WARPS),
            loads=LANE_PHASES * (1 + -(-span.batch // (teams * tile))),
        )

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the launch of the members."""
        step = accepted_step(span)
        layers = step.layer_table(lambda size: 0, 1, 1)
        hidden, out = (rows_text(step.layer_neurons[i : i + 1])[1:-1] for i in (0, 1))
        lanes, teams, matrix = config["lanes"], config["teams"], config["matrix"]
        nets = _networks(lanes, device)
        defines: dict[str, int | str] = {
            **member_defines(step), "SUBSETS": int(self.subsets),
            "IN": step.layers[0].n_in, "HIDDEN": step.layers[0].n_out,
            "OUT": step.layers[1].n_out,
            "IN_PITCH": _lane_pitch(step, matrix), "LANES": lanes,
            "EACH": _lane_each(step, lanes, matrix), "TEAMS": teams, "NETS": nets,
            "MATRIX": matrix, "EXACT": int(self.exact), "RATIONAL_TANH": 1,
            "TILE": config["tile"], "DATA": self.samples, "SIZE": step.size,
            "HIDDEN_NEURON": hidden, "OUT_NEURON": out,
            **{
                f"{name}{number}": int(row[column])
                for number, row in enumerate(layers, 1) for name, column in (
                    ("WEIGHTS", "weights"), ("STRIDE", "stride"), ("BIAS", "bias"),
                )
            },
        }
        group = nets * teams * lanes
        x, t, *_ = step.data
        launch = Launch.of_groups(
            "members/lane_members.cl", "lane_members", defines,
            -(-self.members // nets), group,
            PARAMETERS, x, t, weights_of(step), step.bit_fail_limit, STATE,
            span.batch, Scalar("most"), *MEMBER_ARGUMENTS,
        )
        return (launch,)

    def _data_bytes(self, step: WholeStep, matrix: int) -> int:
        """Return the bytes of the samples in local memory."""
        width = _lane_pitch(step, matrix) + step.layers[1].n_out
        return 4 * (self.samples + WARP) * width


def _most_lanes(step: WholeStep) -> int:
    """Return the lanes of a team of which as many as possible have one neuron."""
    return int(min(WARP, 1 << (step.layers[0].n_out - 1).bit_length()))


def _networks(lanes: int, device: Device) -> int:
    """Return the networks that share a warp."""
    return max(1, team_group(WARP, device) // lanes)


def _lane_pitch(step: WholeStep, matrix: int) -> int:
    """Return the values of a sample's row, its padding included."""
    return round_up(step.layers[0].n_in, MATRIX_COLUMNS if matrix else 4)


def _lane_each(step: WholeStep, lanes: int, matrix: int) -> int:
    """Return the neurons of which a lane has weights."""
    hidden = step.layers[0].n_out
    return 2 * -(-hidden // MATRIX_ROWS) if matrix else -(-hidden // lanes)


def _lane_parameters(step: WholeStep, lanes: int, matrix: int) -> int:
    """Return the parameters of a lane."""
    hidden, out = step.layers
    inputs = _lane_pitch(step, matrix) // 4 if matrix else hidden.n_in
    return _lane_each(step, lanes, matrix) * (inputs + 1 + out.n_out) + out.n_out


def _lane_values(step: WholeStep, lanes: int, matrix: int) -> int:
    """Return the parameters, gradients and state of a lane."""
    return (2 + step.slots) * _lane_parameters(step, lanes, matrix)
