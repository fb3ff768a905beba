"""epoch: whole steps of training in one launch, in the shape that CPU cores like."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from clnet.ir.ops import Span, Value
from clnet.nn.random import half_bits
from clnet.nn.storage.layout import round_up
from clnet.opencl.device import Device
from clnet.opencl.launch import (
    Argument,
    Gradients,
    HelperTimeout,
    Launch,
    Parameters,
    Scalar,
    Scratch,
    State,
    Table,
)
from clnet.variants.base import Config, Cost, Reach, refuse_unless_cpu, span_flops
from clnet.variants.dense.cpu import MAX_POLLS, SPIN_POLLS, serial_companion
from clnet.variants.training.optimisers import live_table, rule_defines
from clnet.variants.training.whole_step import (
    APART,
    KEY,
    LANES,
    WholeStep,
    layer_table,
    neuron_table,
    refuse_unless_whole_step,
    step_defines,
    whole_step,
)

TILES = (384, 256, 192, 96, 48)  # samples of a tile, the usually best first
TASKS = 2  # of each worker, at least, so that none waits long for the last one
MOST_TASKS = 8  # of each worker; more only make more gradients to be added
SYNC = 16  # words of the synchronisation before those of the tasks
EFFICIENCY = 0.8  # of the products of a large tile
LANE_SUMS = 40  # samples whose products take as long as the sums over lanes do
TASK_POLLS = 4  # looks at another's task a flop of it: many times what it takes
MOST_POLLS = (1 << 31) - 1  # at most
UPDATE_POLLS = 40  # looks for another step an element that is updated: likewise


@dataclass(frozen=True)
class Epoch:
    """Workers that take tiles of samples forward and back (``epoch.cl``).

    Config: ``workers``, the threads that share a step; ``tile``, samples that are
    taken through the network together; ``caller``, 1 where one of the workers is the
    calling thread itself, as in `variants.cpu`.
    """

    name: str = "epoch"
    reach: Reach = "program"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse other devices and types, and what is no chain of dense layers."""
        return refuse_unless_cpu(span, device) or refuse_unless_whole_step(span, device)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Equal tiles; those that leave every worker some tasks first."""
        workers = 1 if device.serial else device.compute_units
        companion = workers > 1 and serial_companion(device) is not None
        callers = (1, 0) if companion else (0,)
        tiles = dict.fromkeys(_share(span.batch, workers, tile) for tile in TILES)

        def too_few(tile: int) -> bool:
            return workers > 1 and -(-span.batch // tile) < TASKS * workers

        return tuple(
            {"workers": workers, "tile": tile, "caller": caller}
            for caller in callers
            for tile in sorted(tiles, key=too_few)
        )

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count samples once, gradients once a task; values stay in cache."""
        step = _step(span)
        shape = _Shape.of(step, span, config)
        samples = span.batch * sum(value.width for value in step.data)
        moved = samples + 3 * shape.tasks * shape.size
        workers = config["workers"]
        scratch = workers * shape.worker_size + 2 * shape.tasks * shape.apart
        idle = -(-shape.tasks // workers) * workers / shape.tasks
        sums = 1 + LANE_SUMS / config["tile"]
        return Cost(
            span_flops(span), 4 * moved, 1, 4 * scratch, workers,
            EFFICIENCY / (idle * sums),
        )

    def launches(
        self, span: Span, config: Config, device: Device
    ) -> tuple[Launch, ...]:
        """Return the turning of the data set, and the one launch of the steps."""
        step = _step(span)
        shape = _Shape.of(step, span, config)
        workers, tile = config["workers"], config["tile"]
        gather = step.gather
        defines = {**step_defines(step, span), "SYNC": SYNC}
        live: Argument = Gradients()
        if step.update is not None:
            defines |= rule_defines(step.update, span)
            live = live_table(step.update)
        x, t, *weight = step.data
        data: list[Argument] = [x, t, weight[0] if weight else t]
        turns: list[Launch] = []
        if gather is None:
            data = [_turned(value, span, tile) for value in (x, t)]
            data.append(_turned(weight[0], span, tile) if weight else data[1])
            turns = [
                Launch(
                    "training/epoch.cl", "transpose", defines,
                    (round_up(span.batch, tile) // LANES,), (1,),
                    (value, value.width, span.batch, transposed, _rows(value), tile,
                     _pitch(tile)),
                    when="inputs",
                )
                for value, transposed in zip(step.data, data, strict=False)
            ]
        n = span.batch if gather is None else gather.samples
        shared: tuple[Argument, ...] = (
            Table.of(shape.layers),
            Table.of(neuron_table(step)),
            Parameters(), *data,
            Scratch("memory", 4 * workers * shape.worker_size),
            Scratch("task gradients", 4 * 2 * shape.tasks * shape.apart),
            Scratch("sync", 4 * (SYNC + shape.tasks)),
            len(step.layers), shape.size, n, span.batch, half_bits(n), tile,
            _pitch(tile), shape.tiles, shape.tasks, *shape.places,
            float(step.loss.bit_fail_limit),
        )
        flops = span_flops(span) // shape.tasks
        changing: tuple[Argument, ...] = (
            Gradients(), State(), step.tally.totals, live, t.width,
            min(MAX_POLLS + TASK_POLLS * flops, MOST_POLLS), Scalar("steps"),
            Scalar("first"),
            Scalar("samples"), Scalar("seen"), Scalar("fresh"), Scalar("rate", "real"),
            Scalar("count"), Scalar("seed", "uint"), *KEY,
        )
        if workers == 1:
            runs: tuple[Launch, ...] = (
                Launch(
                    "training/epoch.cl", "alone", defines, (1,), (1,),
                    (*shared, *changing),
                ),
            )
        elif config["caller"]:
            runs = (
                Launch("training/epoch.cl", "helpers", defines, (workers - 1,), (1,),
                       (*shared,
                        min(SPIN_POLLS + UPDATE_POLLS * shape.size, MOST_POLLS)),
                       standby=True),
                Launch("training/epoch.cl", "lead", defines, (1,), (1,),
                       (*shared, *changing, HelperTimeout()),
                       device=serial_companion(device)),
            )
        else:
            changing = tuple(1 if a == Scalar("steps") else a for a in changing)
            runs = (
                Launch("training/epoch.cl", "workers", defines, (workers,), (1,),
                       (*shared, *changing)),
            )
        return (*turns, *runs)


@dataclass(frozen=True)
class _Shape:
    """How a step is cut, and where things are in a worker's memory, in floats."""

    tasks: int
    tiles: int  # a task
    layers: NDArray[Any]  # the kernel's table
    places: tuple[int, ...]  # of x, t, weight, dx and gradient; the memory's size
    size: int  # of the flat buffer

    @property
    def worker_size(self) -> int:
        """Floats of a worker's memory."""
        return self.places[-1]

    @property
    def apart(self) -> int:
        """Floats from one task's gradients to the next's: its record lies between."""
        return self.size + APART

    @classmethod
    def of(cls, step: WholeStep, span: Span, config: Config) -> _Shape:
        tile = config["tile"]
        count = -(-span.batch // tile)
        most = 1 if config["workers"] == 1 else MOST_TASKS * config["workers"]
        tiles = -(-count // min(count, most))
        end = 0

        def place(size: int) -> int:
            nonlocal end
            here, end = end, end + round_up(size, LANES)
            return here

        pitch = _pitch(tile)
        rows = layer_table(step, place, pitch, 4)
        x, t, *weight = step.data
        if step.gather is None:  # the turned data's own rows
            places = [_rows(x), _rows(t), _rows(weight[0]) if weight else 0]
        else:
            places = [place(_rows(value) * pitch) for value in (x, t)]
            places.append(place(pitch))
        widest = max((layer.n_in for layer in step.layers[1:]), default=0)
        places += [place(widest * pitch), place(step.size), round_up(end, 16)]
        return cls(-(-count // tiles), tiles, rows, tuple(places), step.size)


def _step(span: Span) -> WholeStep:
    step = whole_step(span)
    assert step is not None
    return step


def _rows(value: Value) -> int:
    """Return the rows of a turned array: whole blocks of 4."""
    return round_up(value.width, 4)


def _share(batch: int, workers: int, tile: int) -> int:
    """Return about `tile` samples, such that all workers get as many tiles."""
    each = max(1, round(batch / (workers * tile)))
    return round_up(-(-batch // (workers * each)), LANES)


def _pitch(tile: int) -> int:
    """Return what lies between two values of a sample: an odd multiple of the lanes."""
    return (tile // LANES | 1) * LANES


def _turned(value: Value, span: Span, tile: int) -> Scratch:
    size = 4 * _rows(value) * -(-span.batch // tile) * _pitch(tile)
    return Scratch(f"turned {value.name}", size)
