"""epoch, sequential: whole training steps in one launch, for CPU cores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from clnet.checks import INT_MAX
from clnet.nn.random import half_bits
from clnet.nn.storage.layout import round_up
from clnet.opencl.launch import (
    GRADIENTS,
    HELPER_TIMEOUT,
    KEY,
    PARAMETERS,
    STATE,
    Argument,
    Constant,
    Launch,
    Launches,
    Scalar,
    Scratch,
)
from clnet.variants.base import Config, Reach, Untuned, refuse_unless_cpu
from clnet.variants.cost import Cost
from clnet.variants.dense.cpu import MAX_POLLS, SPIN_POLLS, lanes, serial_companion
from clnet.variants.training.whole_step import (
    APART,
    LANES,
    RULE,
    RUN,
    Allocator,
    WholeStep,
    accepted_step,
    refuse_unless_whole_step,
)

if TYPE_CHECKING:
    from clnet.ir.op import Value
    from clnet.ir.program import Span
    from clnet.opencl.device import Device

TILES = (384, 256, 192, 96, 48)  # samples of a tile, the usually best first
TASKS_PER_WORKER = 2  # at least, for load balance
MAX_TASKS_PER_WORKER = 8  # more would only add gradients to reduce
SYNC_WORDS = 16  # of the protocol, before the tasks' completion flags
EFFICIENCY = 0.8  # of the products of a large tile
REDUCTION_SAMPLES = 40  # samples whose products take as long as the lane sums
TASK_POLLS = 4  # polls of another worker's task for each flop: many times its duration
UPDATE_POLLS = 40  # polls for the next step for each updated element: likewise


@dataclass(frozen=True)
class TiledEpoch:
    """Workers that compute the gradients of tiles of samples (``epoch.cl``).

    Config: ``workers``, threads of a step; ``tile``, samples of a tile; ``caller``, 1
    where the calling thread is one of the workers, as of `Cpu`.
    """

    name: str = "epoch"
    reach: Reach = "program"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse other devices and dtypes, and all but chains of dense layers."""
        return refuse_unless_cpu(span, device) or refuse_unless_whole_step(span)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Equal tiles; first those with enough tasks for every worker."""
        workers = 1 if device.serial else device.compute_units
        companion = workers > 1 and serial_companion(device) is not None
        callers = (1, 0) if companion else (0,)
        tiles = dict.fromkeys(
            balanced_tile(span.batch, workers, tile, lanes(device)) for tile in TILES
        )

        def too_few(tile: int) -> bool:
            return workers > 1 and -(-span.batch // tile) < TASKS_PER_WORKER * workers

        return tuple(
            {"workers": workers, "tile": tile, "caller": caller}
            for caller in callers
            for tile in sorted(tiles, key=too_few)
        )

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count samples once, and gradients once a task; values stay in cache."""
        step = accepted_step(span)
        shape = Shape.of(step, span, config, lanes(device))
        samples = span.batch * sum(value.width for value in step.data)
        moved = samples + 3 * shape.tasks * shape.size
        workers = config["workers"]
        scratch = workers * shape.memory_size + 2 * shape.tasks * shape.gradient_pitch
        idle = -(-shape.tasks // workers) * workers / shape.tasks
        sums = 1 + REDUCTION_SAMPLES / config["tile"]
        return Cost(
            span.flops, 4 * moved, 1, 4 * scratch, workers,
            EFFICIENCY / (idle * sums),
        )

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the launches that transpose the data set, and those of the steps."""
        step = accepted_step(span)
        width = lanes(device)
        shape = Shape.of(step, span, config, width)
        workers, tile = config["workers"], config["tile"]
        gather = step.gather
        defines = {
            **step.defines, "SYNC_WORDS": SYNC_WORDS,
            "SHARED": int(workers > 1), "LANES": width, **step.rule,
        }
        x, t, *_ = step.data
        data: list[Argument] = [x, t, step.weight]
        transposes: Launches = ()
        if gather is None:
            data, transposes = transposed_data(step, span, tile, defines, width)
        n = span.batch if gather is None else gather.samples
        shared: tuple[Argument, ...] = (
            Constant.of(shape.layers),
            Constant.of(step.neurons),
            PARAMETERS, *data,
            Scratch("memory", 4 * workers * shape.memory_size),
            Scratch("task gradients", 4 * 2 * shape.tasks * shape.gradient_pitch),
            Scratch("sync", 4 * (SYNC_WORDS + shape.tasks)),
            len(step.layers), shape.size, n, span.batch, half_bits(n), tile,
            tile_pitch(tile, width), shape.tiles, shape.tasks, *shape.offsets,
            step.bit_fail_limit,
        )
        flops = span.flops // shape.tasks
        changing: tuple[Argument, ...] = (
            GRADIENTS, STATE, step.tally.totals, step.live, t.width,
            min(MAX_POLLS + TASK_POLLS * flops, INT_MAX), Scalar("steps"),
            Scalar("first"), Scalar("samples"), *RUN, *RULE, *KEY,
        )
        if workers == 1:
            runs: Launches = (
                Launch(
                    "training/epoch.cl", "single_worker", defines, (1,), (1,),
                    (*shared, *changing),
                ),
            )
        elif config["caller"]:
            runs = (
                Launch("training/epoch.cl", "helpers", defines, (workers - 1,), (1,),
                       (*shared,
                        min(SPIN_POLLS + UPDATE_POLLS * shape.size, INT_MAX)),
                       standby=True),
                Launch("training/epoch.cl", "lead", defines, (1,), (1,),
                       (*shared, *changing, HELPER_TIMEOUT),
                       device=serial_companion(device)),
            )
        else:
            changing = tuple(1 if a == Scalar("steps") else a for a in changing)
            runs = (
                Launch("training/epoch.cl", "workers", defines, (workers,), (1,),
                       (*shared, *changing)),
            )
        return (*transposes, *runs)


@dataclass(frozen=True)
class Shape:
    """The tasks of a step, and the layout of a worker's memory in floats."""

    tasks: int
    tiles: int  # of a task
    layers: NDArray[Any]  # the kernel's table
    offsets: tuple[int, ...]  # x, t, weight, dx, gradient; then the memory's size
    size: int  # of the flat buffer

    @property
    def memory_size(self) -> int:
        """Floats of a worker's memory."""
        return self.offsets[-1]

    @property
    def gradient_pitch(self) -> int:
        """Floats from one task's gradients to the next's, its record between them."""
        return self.size + APART

    @classmethod
    def of(
        cls, step: WholeStep, span: Span, config: Config, width: int = LANES
    ) -> Shape:
        """Return those of a point of the tuning space; width: floats of a vector."""
        tile = config["tile"]
        count = -(-span.batch // tile)
        most = 1 if config["workers"] == 1 else MAX_TASKS_PER_WORKER * config["workers"]
        tiles = -(-count // min(count, most))
        allocate = Allocator(width)
        pitch = tile_pitch(tile, width)
        rows = step.layer_table(allocate, pitch, 4)
        x, t, *weight = step.data
        if step.gather is None:  # rows of transposed data
            offsets = [_rows(x), _rows(t), _rows(weight[0]) if weight else 0]
        else:
            offsets = [allocate(_rows(value) * pitch) for value in (x, t)]
            offsets.append(allocate(pitch))
        widest = max((layer.n_in for layer in step.layers[1:]), default=0)
        offsets += [allocate(widest * pitch), allocate(step.size)]
        offsets.append(round_up(allocate.end, 16))
        return cls(-(-count // tiles), tiles, rows, tuple(offsets), step.size)


def _rows(value: Value) -> int:
    """Return the rows of a transposed value: whole blocks of 4."""
    return round_up(value.width, 4)


def balanced_tile(batch: int, workers: int, tile: int, width: int = LANES) -> int:
    """Return about `tile` samples, with equally many tiles for all workers.

    They are whole vectors of `width` floats.
    """
    tiles = max(1, round(batch / (workers * tile)))
    return round_up(-(-batch // (workers * tiles)), width)


def tile_pitch(tile: int, width: int = LANES) -> int:
    """Return the distance of a sample's values: an odd number of vectors."""
    return (tile // width | 1) * width


def transposed_data(
    step: WholeStep, span: Span, tile: int, defines: Mapping[str, int | str],
    width: int = LANES,
) -> tuple[list[Argument], Launches]:
    """Return x, t and weight as tiles of samples, and the launches that make them."""
    pitch, tiles = tile_pitch(tile, width), -(-span.batch // tile)
    data: list[Argument] = [
        Scratch(f"transposed {value.name}", 4 * _rows(value) * tiles * pitch)
        for value in step.data
    ]
    launches = tuple(
        Launch(
            "training/epoch.cl", "transpose", defines, (tiles * tile // LANES,), (1,),
            (value, value.width, span.batch, transposed, _rows(value), tile, pitch),
            when="inputs",
        )
        for value, transposed in zip(step.data, data, strict=True)
    )
    return [*data, data[1]][:3], launches


SEQUENTIAL_BLOCK = 32  # values of a block of the backward pass


@dataclass(frozen=True)
class Sequential(Untuned):
    """One work-item, with vector lanes along the rows of A (``sequential.cl``)."""

    name: str = "sequential"
    reach: Reach = "program"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse other devices and dtypes, batches, and uses of the whole gradient."""
        refusal = refuse_unless_cpu(span, device)
        refusal = refusal or refuse_unless_whole_step(span, clips_norm=False)
        if refusal is not None:
            return refusal
        if span.batch > 1:
            return f"it takes steps of one sample, not of {span.batch}"
        step = accepted_step(span)
        if step.backward and step.update is None:
            return "it never stores a whole gradient, which this program returns"
        if any(not layer.act.nonlinearity.uniform for layer in step.layers):
            return "it applies one activation a layer, and here neurons differ"
        return None

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count parameters and state, read and written."""
        step = accepted_step(span)
        moved = 4 * step.size * (3 + 2 * step.slots)
        return Cost(span.flops, moved, 1, 0, 1, 0.5)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the one launch of the steps."""
        step = accepted_step(span)
        defines = {**step.defines, **step.rule}
        allocate = Allocator(SEQUENTIAL_BLOCK)
        layers = step.layer_table(allocate, 1, LANES)
        defines |= step.constant_tables(layers)
        widest = max(layer.n_in for layer in step.layers)
        x, t, *_ = step.data
        offsets = (allocate(step.layers[0].n_in), allocate(max(widest, t.width)))
        return (
            Launch(
                "training/sequential.cl", "sequential", defines, (1,), (1,),
                (
                    Constant.of(layers),
                    Constant.of(step.neurons),
                    PARAMETERS, x, t, step.weight,
                    Scratch("memory", 4 * allocate.end), STATE, step.tally.totals,
                    len(step.layers), step.size, step.samples, half_bits(step.samples),
                    *offsets, step.bit_fail_limit,
                    t.width, Scalar("steps"), Scalar("first"), Scalar("samples"), *RUN,
                    *RULE, *KEY,
                ),
            ),
        )
