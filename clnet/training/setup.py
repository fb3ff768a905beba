"""The checked arguments of `Network.fit`."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import INT_MAX, as_whole, check_kind, is_many
from clnet.errors import InputError, counted, quoted
from clnet.formats.sources import check_buffer, is_batches, lists_batches
from clnet.nn.description import Description, Relayout
from clnet.nn.layers import Sparse
from clnet.nn.scaling import scaling_to_apply
from clnet.nn.schedules import schedule as find_schedule
from clnet.opencl.discovery import device_list
from clnet.training.callbacks import Checkpoint
from clnet.training.data_set import (
    VALIDATION_BATCH,
    DataSet,
    warn_of_classes,
    warn_of_reach,
)
from clnet.training.history import SEEDS, TrainingState
from clnet.training.options import resolved
from clnet.training.saved import SavedTraining
from clnet.training.streaming import AnySet, StreamedSet, any_set

if TYPE_CHECKING:
    from clnet.nn.columns import Columns
    from clnet.nn.labels import Classes
    from clnet.nn.model import Model
    from clnet.nn.optimisers import Optimiser
    from clnet.nn.schedules import Schedule
    from clnet.opencl.device import Device
    from clnet.runtime.ranks import Ranks
    from clnet.training.callbacks import Callback
    from clnet.training.fit_options import FitOptions
    from clnet.training.options import TrainingOptions


Array = NDArray[Any]

# Fields of layers that do not matter to a training that goes on.
_FREE = ("initialiser", "pattern", "density", "placement", "seed", "format",
         "memory_limit")


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """All settings of one training."""

    network: Model  # The network, which trains in place
    options: TrainingOptions  # The arguments that hold for other samples too
    data: AnySet  # The training set
    validation: AnySet | None = None  # The validation set, measured after each epoch
    rates: Schedule  # Factor of the learning rate for an epoch, counted from 0
    epochs: int  # Epochs at most, from the state on
    callbacks: list[Callback]  # In the order of their calls
    checkpoints: list[Checkpoint] = field(default_factory=list)  # Called last
    state: TrainingState  # The state to start from
    # The training of the checkpoint that the state is from
    saved: SavedTraining | None = None
    devices: tuple[Device, ...]  # One, or several that share each batch
    # What the outputs stand for, which the network gets before the training
    classes: Classes | None
    columns: Columns | None  # The names of the inputs, likewise
    tune: bool | None = None  # As for `Network.fit`
    progress: bool | None = None
    # The ranks that share each step; None: this process takes all
    ranks: Ranks | None = None
    # Blocks of a step that ranks share; None: one each, summed in MPI's order
    blocks: int | None = None

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return -(-len(self.data) // self.options.batch)

    def settings(self, *, checksums: bool = True) -> dict[str, Any]:
        """Return the `settings_of` the training."""
        blocks = None if self.ranks is None else self.blocks or "any"
        return settings_of(
            self.network, self.data, self.validation, self.options, blocks, checksums
        )


def training_setup(
    network: Model, options: FitOptions, ranks: Ranks | None = None,
    blocks: int | None = None, saved: SavedTraining | None = None,
) -> TrainingSetup:
    """Return the checked arguments of `Network.fit`.

    Ranks have the training of their checkpoint, `saved`, from rank 0.
    """
    scaling = scaling_to_apply(network.scaling, options.scale)
    room = check_buffer(options.buffer)
    devices = device_list(
        options.device if options.devices is None else options.devices
    )
    alone = len(devices) == 1 and ranks is None  # no device or rank to share samples
    data, classes, columns = any_set(
        network, (options.x, options.t, options.sample_weight), network.classes,
        network.columns, scaling, room, sparse=alone,
    )
    chosen = resolved(network, options, len(data))
    epochs, validation = chosen.epochs, None
    if options.validation is not None:
        validation, classes, _ = any_set(
            network, validation_of(options.validation), classes, columns, scaling, room,
            "validation ", alone,
        )
        validation = validation_set(validation)
    callbacks, checkpoints = checked_callbacks(options.callbacks)
    data = training_set(data, chosen)
    state, resume = options.state, options.resume
    if resume is not None:
        saved = SavedTraining.load(resume) if saved is None else saved
        saved.check_settings(resume, settings_of(
            network, data, validation, chosen,
            None if ranks is None else blocks or "any",
        ))
        state = saved.state
        if state.epoch > epochs:
            raise InputError(
                f"{resume} is of a training after {counted(state.epoch, 'epoch')}, "
                f"expected epochs of at least as many, not {epochs}"
            )
        epochs -= state.epoch
    for samples in (data, validation):
        if isinstance(samples, StreamedSet):
            samples.check(epochs)
    start = (
        initial_state(network, chosen, chosen_seed(options.seed)) if state is None
        else _resumed_state(network, chosen.rule, options.seed, state)
    )
    steps = -(-len(data) // chosen.batch)
    if state is not None and start.count + epochs * steps > INT_MAX:
        raise InputError(
            f"{epochs} epochs of {counted(steps, 'step')}, after the {start.count} "
            f"steps of the state, are more than {INT_MAX} steps"
        )
    if isinstance(data, DataSet):
        warn_of_classes(network, options.t, chosen.loss)
    warn_of_reach(network, chosen.reach, data.t)
    return TrainingSetup(
        network=network, options=chosen, data=data, validation=validation,
        rates=find_schedule(chosen.schedule, start.epoch + epochs), epochs=epochs,
        callbacks=callbacks, checkpoints=checkpoints, state=start, saved=saved,
        devices=devices, classes=classes, columns=columns, tune=options.tune,
        progress=options.progress, ranks=ranks, blocks=blocks,
    )


def training_set(data: AnySet, options: TrainingOptions) -> AnySet:
    """Return the samples of a training, with weights as its steps take them.

    Those that devices hold in a random order are balanced in each epoch.
    """
    if isinstance(data, StreamedSet):
        data = data.balanced(options.batch)
        data.check_batch()
        return data
    return data if options.shuffled else data.balanced(options.batch)


def validation_set(data: AnySet) -> AnySet:
    """Return the samples of a validation, with weights of mean 1 in all of them."""
    if isinstance(data, StreamedSet):
        return data.balanced(min(VALIDATION_BATCH, data.rows), whole=True)
    return data.balanced(len(data))


def validation_of(samples: Any, also: str = "") -> tuple[Any, Any, Any]:
    """Return the inputs, targets and weights of the argument `validation`.

    Errors name what it may be, and what else: ``also``.
    """
    if is_batches(samples) or lists_batches(samples):
        return samples, None, None
    if not isinstance(samples, (tuple, list)) or len(samples) not in (2, 3):
        raise InputError(
            "validation must be (x, t) or (x, t, sample_weight), or a source of such "
            f"batches{also}"
        )
    x, t, weight = (*samples, None)[:3]
    return x, t, weight


def checked_callbacks(
    callbacks: Iterable[Callback]
) -> tuple[list[Callback], list[Checkpoint]]:
    """Return the callbacks of a training, and those that are checkpoints.

    All else than callables raises InputError.
    """
    if not is_many(callbacks):
        raise InputError(
            f"callbacks must be a list of callables, not {type(callbacks).__name__}"
        )
    calls = list(callbacks)
    for callback in calls:
        if not callable(callback):
            raise InputError(f"a callback must be callable, not {quoted(callback)}")
    checkpoints = [one for one in calls if isinstance(one, Checkpoint)]
    return [one for one in calls if not isinstance(one, Checkpoint)], checkpoints


def chosen_seed(seed: int | None) -> int:
    """Return a training's seed, of the operating system for None."""
    if seed is None:
        return int.from_bytes(os.urandom(8), "little") % SEEDS
    return as_whole("a seed", seed, 0, SEEDS - 1)


def initial_state(
    network: Model, options: TrainingOptions, seed: int
) -> TrainingState:
    """Return the state before the first epoch."""
    parameters = network.parameters.copy()
    values = options.rule.initial_state(parameters.size, network.dtype)
    return TrainingState(
        options.rule_text, 0, 0, seed, parameters, values, network.formats
    )


def _described(network: Model, formats: Sequence[str]) -> Description:
    """Return the description of a network, or one of other formats."""
    if not formats or formats == network.formats:
        return network
    if len(formats) != len(network.formats):
        raise InputError(
            f"the state is for {counted(len(formats), 'sparse layer')}, but this "
            f"network has {len(network.formats)}"
        )
    names = iter(formats)
    return Description(
        network.n_in,
        [
            replace(layer, format=next(names)) if isinstance(layer, Sparse) else layer
            for layer in network.layers
        ],
        network.dtype, network.fann_compatible,
    )


def _resumed_state(
    network: Model, rule: Optimiser, seed: int | None, state: TrainingState
) -> TrainingState:
    """Return the state to resume from, if it matches the network and optimiser."""
    check_kind("state", state, TrainingState)
    state.check()
    if state.optimiser != repr(rule):
        raise InputError(
            f"the state was saved with optimiser {quoted(state.optimiser)[1:-1]}, but "
            f"fit was called with {rule!r}"
        )
    source = _described(network, state.formats)
    size = source.layout.size
    shapes = (state.parameters.shape, state.values.shape)
    if shapes != ((size,), (rule.slots, size)):
        formats = f" as {', '.join(state.formats)}" if state.formats else ""
        raise InputError(
            f"the state is for a network of {state.parameters.size} parameters, but "
            f"this one has {size}{formats}"
        )
    if source is not network:
        relayout = Relayout.between(source, network)
        state = replace(
            state, parameters=relayout.forward(state.parameters),
            values=relayout.forward(state.values),
        )
    if seed is not None and as_whole("a seed", seed, 0, SEEDS - 1) != state.seed:
        raise InputError(f"the state's seed is {state.seed}, not {seed}")
    with np.errstate(over="ignore", invalid="ignore"):
        state = replace(
            state,
            parameters=np.asarray(state.parameters, network.dtype),
            values=np.asarray(state.values, network.dtype),
            formats=network.formats,
        )
    state.check()  # of float64 in a network of float32 too
    for slot in rule.squares:
        if (state.values[slot] < 0).any():
            raise InputError(
                f"the state's values {slot} hold negative numbers, expected the mean "
                f"squares of {rule.name}"
            )
    return state


def settings_of(
    network: Model, data: AnySet, validation: AnySet | None,
    options: TrainingOptions, blocks: int | str | None = None, checksums: bool = True,
) -> dict[str, Any]:
    """Return what must be the same where a training goes on, as plain values."""
    sets = {"data": data, "validation": validation} if checksums else {}
    schedule = options.schedule
    return {
        "network": f"{'-'.join(map(str, network.sizes))} {network.dtype}",
        "layers": _checksum(_layers(network)),
        "formats": ", ".join(network.formats),
        "optimiser": options.rule_text,
        "loss": options.loss.name,
        "batch_size": options.batch,
        "shuffle": options.shuffled,
        "regularisation": repr(options.regularisation),
        "schedule": schedule if schedule is None or isinstance(schedule, str)
        else repr(schedule) if is_dataclass(schedule) else "a function",
        "precision": options.precision,
        **data.counts,
        "blocks": blocks,
        **{
            name: None if one is None else _checksum(one.arrays)
            for name, one in sets.items()
        },
    }


def _layers(network: Model) -> Iterable[Array | str]:
    """Yield what the computation of a network depends on, but for its parameters."""
    yield repr(network.fann_compatible)
    layers: Iterable[Any] = network.layers
    for layer, matrix in zip(layers, network.matrices, strict=True):
        described = {
            field.name: getattr(layer, field.name)
            for field in fields(layer) if field.name not in _FREE
        }
        yield f"{type(layer).__name__} {described}"
        if isinstance(layer, Sparse):
            rows, columns, _ = matrix.entries()
            yield from (rows, columns)


def _checksum(parts: Iterable[Array | str]) -> int:
    """Return the CRC-32 of texts, and of arrays with their types and shapes."""
    checksum = 0
    for part in parts:
        if not isinstance(part, str):
            head = f"{part.dtype.name} {part.shape}"
            checksum = zlib.crc32(np.ascontiguousarray(part).data, zlib.crc32(
                head.encode(), checksum
            ))
        else:
            checksum = zlib.crc32(part.encode(), checksum)
    return checksum
