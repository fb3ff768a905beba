"""lane_members: trainings of many tiny networks in a launch, for GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from clnet.ir.loss import RECORD
from clnet.nn.storage.layout import round_up
from clnet.opencl.launch import PARAMETERS, STATE, Launch, Launches, Scalar
from clnet.opencl.program import inline_ptx, matrix_units
from clnet.variants.base import MemberVariant, team_group
from clnet.variants.cost import gpu_kernel_efficiency
from clnet.variants.members.members import (
    MEMBER_ARGUMENTS,
    member_cost,
    member_rule,
    weights_of,
)
from clnet.variants.packing import WARP
from clnet.variants.training.whole_step import (
    accepted_step,
    layer_neurons,
    layer_table,
    refuse_unless_float32_step,
    rows_text,
    step_defines,
)

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device
    from clnet.variants.base import Config, Reach
    from clnet.variants.cost import Cost
    from clnet.variants.training.whole_step import WholeStep

MOST_EACH = 2  # neurons of a lane
MOST_VALUES = 160  # of a lane: parameters, gradients and state, in registers
MOST_OUT = 16  # outputs, whose values a lane has at once
DATA_BYTES = 1 << 15  # of the data set, in local memory
TILES = (16, 8, 4, 2, 1)  # samples of a team at a time: more spill registers
SHARED_TILE = 8  # the usually best where networks share a warp
TEAMS = (1, 2, 4, 8)  # of a network
WARPS = 32  # of a compute unit, that hide each other's latency
EFFICIENCY = 0.5  # of busy warps
BUSY_WARPS = 8  # of a compute unit, that issue as often as more
PHASES = 3  # of a tile, and of an update, that wait for the one before
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
        if (layer_neurons(step)["function"] < 0).any():
            return "it applies one activation per layer, and here neurons differ"
        hidden, out = step.layers[0].n_out, step.layers[1].n_out
        if hidden > MOST_EACH * WARP or out > MOST_OUT:
            return (
                f"it takes at most {MOST_EACH * WARP} hidden neurons and {MOST_OUT} "
                f"outputs, and here are {hidden} and {out}"
            )
        values = _values(step, _most_lanes(step), 0)
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
            and _values(step, half, 0) <= MOST_VALUES
        ):
            crowded = self.members * most > 2 * WARP * device.compute_units
            lanes.insert(0 if crowded else 1, half)
        matrix = bool(matrix_units(device)) and (
            step.layers[0].n_out >= 2 * MATRIX_ROWS
            and _values(step, WARP, 1) <= MOST_VALUES
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
        tiles = [tile for tile in TILES if tile <= lanes and tile < 2 * span.batch]
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
            n for n in TEAMS if n == TEAMS[0]
            or (n * each <= span.batch
                and self.members * lanes * n < 2 * WARPS * unit)
        )
        step, shared = accepted_step(span), lanes * _networks(lanes, device)
        sums = 4 * shared * (_parameters(step, lanes, matrix) + len(RECORD) + 1)
        room = device.unit_local_memory - self._data_bytes(step, matrix)
        most = min(team_group(TEAMS[-1] * WARP, device) // shared, room // sums)
        return sorted(
            (n for n in TEAMS if n == TEAMS[0]
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
            EFFICIENCY * full * min(1.0, warps / BUSY_WARPS),
            loads=PHASES * (1 + -(-span.batch // (teams * tile))),
        )

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the launch of the members."""
        step = accepted_step(span)
        rule, _ = member_rule(step, span)
        layers = layer_table(step, lambda size: 0, 1, 1)
        hidden, out = (rows_text(layer_neurons(step)[i : i + 1])[1:-1] for i in (0, 1))
        lanes, teams, matrix = config["lanes"], config["teams"], config["matrix"]
        nets = _networks(lanes, device)
        defines: dict[str, int | str] = {
            **step_defines(step, span), **rule, "SUBSETS": int(self.subsets),
            "IN": step.layers[0].n_in, "HIDDEN": step.layers[0].n_out,
            "OUT": step.layers[1].n_out,
            "IN_PITCH": _pitch(step, matrix), "LANES": lanes,
            "EACH": _each(step, lanes, matrix), "TEAMS": teams, "NETS": nets,
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
            PARAMETERS, x, t, weights_of(step), float(step.loss.bit_fail_limit), STATE,
            span.batch, Scalar("most"), *MEMBER_ARGUMENTS,
        )
        return (launch,)

    def _data_bytes(self, step: WholeStep, matrix: int) -> int:
        """Return the bytes of the samples in local memory."""
        width = _pitch(step, matrix) + step.layers[1].n_out
        return 4 * (self.samples + WARP) * width


def _most_lanes(step: WholeStep) -> int:
    """Return the lanes of a team of which as many as possible have one neuron."""
    return int(min(WARP, 1 << (step.layers[0].n_out - 1).bit_length()))


def _networks(lanes: int, device: Device) -> int:
    """Return the networks that share a warp."""
    return max(1, team_group(WARP, device) // lanes)


def _pitch(step: WholeStep, matrix: int) -> int:
    """Return the values of a sample's row, its padding included."""
    return round_up(step.layers[0].n_in, MATRIX_COLUMNS if matrix else 4)


def _each(step: WholeStep, lanes: int, matrix: int) -> int:
    """Return the neurons of which a lane has weights."""
    hidden = step.layers[0].n_out
    return 2 * -(-hidden // MATRIX_ROWS) if matrix else -(-hidden // lanes)


def _parameters(step: WholeStep, lanes: int, matrix: int) -> int:
    """Return the parameters of a lane."""
    hidden, out = step.layers
    inputs = _pitch(step, matrix) // 4 if matrix else hidden.n_in
    return _each(step, lanes, matrix) * (inputs + 1 + out.n_out) + out.n_out


def _values(step: WholeStep, lanes: int, matrix: int) -> int:
    """Return the parameters, gradients and state of a lane."""
    return (2 + step.slots) * _parameters(step, lanes, matrix)
