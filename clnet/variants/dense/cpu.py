"""cpu: a chain of dense layers in one launch, for CPU cores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import INT_MAX
from clnet.nn.activations import ACTIVATIONS
from clnet.nn.storage.layout import round_up
from clnet.opencl.launch import (
    HELPER_TIMEOUT,
    PARAMETERS,
    Constant,
    Launch,
    Launches,
    Packed,
    Scratch,
)
from clnet.variants.base import (
    Config,
    Reach,
    refuse_unless_cpu,
    refuse_unless_dense_layers,
)
from clnet.variants.cost import Cost
from clnet.variants.dense.chain import chain
from clnet.variants.macros import kernel_function, rows_macro

if TYPE_CHECKING:
    from clnet.ir.program import LayerOps, Span
    from clnet.opencl.device import Device

PANEL = 16  # outputs per panel
BLOCK = 96  # samples of a task, at most
# Wake-ups of workers: in longer calls the calling thread's early start gains nothing.
LONG = 20
GROUPS = (4, 2, 1, 8)  # panels of a task, the usually best first
MAX_POLLS = 1 << 16  # of another worker's task: some hundred microseconds
SPIN_POLLS = 1 << 18  # for another call: likewise
LAYER = np.dtype(  # a row of cpu.cl's table of layers
    [
        (name, np.int32) for name in (
            "n_in", "n_out", "packed", "out", "ldo", "function", "weights", "stride",
            "bias",
        )
    ] + [(name, np.float32) for name in ("steepness", "limit")]
)
STATE = 8  # words of the state before its counters


@dataclass(frozen=True)
class Cpu:
    """Workers stay resident from the first layer to the last (``cpu.cl``).

    Config: ``workers``, threads; ``group``, panels of 16 neurons of a task; ``caller``,
    1 if the calling thread is one of the workers, through the device's serial
    companion: it starts at once, the others join when they are awake, and then poll
    for the next call.
    """

    name: str = "cpu"
    reach: Reach = "run"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse other devices and dtypes, and all but chains of dense layers."""
        refusal = (
            refuse_unless_cpu(span, device) or refuse_unless_dense_layers(span, device)
        )
        if refusal is not None:
            return refusal
        packed = sum(map(_packed_size, chain(span)))
        most = max(packed, _hidden_size(span))
        if most > INT_MAX:
            return (
                f"its packed weights, and values between its layers, are {INT_MAX} "
                f"numbers at most, not {most}"
            )
        return None

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return group sizes, first the largest with two tasks per worker.

        The tasks are those of the widest layer.
        """
        workers = 1 if device.serial else device.compute_units
        caller = int(workers > 1 and serial_companion(device) is not None)
        panels = -(-max(layer.n_out for layer in chain(span)) // PANEL)
        blocks = -(-span.batch // BLOCK)

        def too_few(group: int) -> bool:
            return workers > 1 and -(-panels // group) * blocks < 2 * workers

        short = span.flops < LONG * device.rates.sync * device.rates.flops
        return tuple(
            {"workers": workers, "group": group, "caller": leads}
            for leads in sorted({caller, 0}, reverse=short)
            for group in sorted(GROUPS, key=too_few)
        )

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count the weights once per block of samples; values stay in cache."""
        layers = chain(span)
        again = -(-span.batch // BLOCK) - 1
        weights = sum(4 * _packed_size(layer) for layer in layers)
        moved = span.bytes + again * weights
        scratch = weights + 4 * _hidden_size(span)
        return Cost(span.flops, moved, 1, scratch, config["workers"])

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the packing of all layers, and the launches of a call."""
        layers = chain(span)
        workers, group = config["workers"], config["group"]
        block = min(BLOCK, span.batch)
        defines: dict[str, int | str] = {
            "FUNCTIONS(X)": rows_macro(
                (kernel_function(name),) for name in _functions(layers)
            ),
            "PANEL": PANEL,
            "LANES": lanes(device),
            "STATE": STATE,
            "MANY": int(span.batch > 1),
            "MAX_POLLS": MAX_POLLS,
            "SPIN_POLLS": SPIN_POLLS,
        }
        starts = np.cumsum([0, *(_packed_size(layer) for layer in layers)])
        key = f"cpu panels of {[layer.apply.weights.offset for layer in layers]}"
        packed = Packed(key, 4 * int(starts[-1]))
        tasks = max(-(-layer.n_out // (PANEL * group)) for layer in layers)
        tasks *= -(-span.batch // block)
        x, y = layers[0].apply.x, layers[-1].act.y
        table = Constant.of(_table(span, layers, starts))
        shared = (
            table, len(layers), packed, x, x.stride,
            Scratch("inner", 4 * _hidden_size(span)), y, tasks, span.batch, block,
            group, int(workers > 1),
            Scratch("state", 4 * (STATE + len(layers) * (1 + tasks))),
        )
        launch = Launch("dense/cpu.cl", "workers", defines, (workers,), (1,), shared)
        runs: Launches = (launch,)
        if config["caller"]:
            helpers = replace(
                launch, kernel="helpers", global_size=(workers - 1,), standby=True
            )
            lead = replace(
                launch, kernel="lead", global_size=(1,),
                arguments=(*shared, HELPER_TIMEOUT),
                device=serial_companion(device),
            )
            runs = (helpers, lead)
        repack = Launch.of_groups(
            "dense/cpu.cl", "pack", defines, workers, 1,
            PARAMETERS, table, len(layers), packed, when="parameters",
        )
        return (repack, *runs)


def lanes(device: Device) -> int:
    """Return the floats of the kernel's vectors: a panel where a register holds one."""
    return PANEL if device.vector_width >= PANEL else PANEL // 2


def serial_companion(device: Device) -> Device | None:
    """Return the companion that runs kernels in the calling thread, or None."""
    return next((other for other in device.companions if other.serial), None)


def _functions(layers: Iterable[LayerOps]) -> list[str]:
    """Return the kernel's functions by code: all rows, and those with parameters."""
    names = {layer.act.nonlinearity.names[0] for layer in layers}
    return [*ACTIVATIONS, *sorted(names - ACTIVATIONS.keys())]


def _packed_size(layer: LayerOps) -> int:
    """Return the floats of a layer's panels."""
    return round_up(layer.n_out, PANEL) * (layer.n_in + 1)


def _hidden_size(span: Span) -> int:
    """Return the floats of all values between layers, rows padded to whole panels."""
    return span.batch * sum(round_up(layer.n_out, PANEL) for layer in chain(span)[:-1])


def _table(
    span: Span, layers: tuple[LayerOps, ...], starts: NDArray[np.int64]
) -> NDArray[Any]:
    """Return the kernel's table of layers."""
    rows = np.zeros(len(layers), LAYER)
    names = _functions(layers)
    out = 0
    for row, layer, start in zip(rows, layers, starts, strict=False):
        stride = round_up(layer.n_out, PANEL)
        last = layer is layers[-1]
        function = layer.act.nonlinearity
        row["n_in"], row["n_out"], row["packed"] = layer.n_in, layer.n_out, start
        row["out"] = 0 if last else out
        row["ldo"] = layer.act.y.stride if last else stride
        row["weights"] = layer.apply.weights.offset
        row["stride"] = layer.apply.storage.stride  # type: ignore[attr-defined]
        row["bias"] = -1 if layer.act.bias is None else layer.act.bias.offset
        row["function"] = names.index(function.names[0])
        row["steepness"] = function.steepness[0]
        row["limit"] = (function.limits or (np.inf,))[0]
        out += span.batch * stride
    return rows
