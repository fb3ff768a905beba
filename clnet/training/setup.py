"""The checked arguments of `Network.fit`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from clnet.checks import INT_MAX, as_whole, check_kind, is_many
from clnet.errors import InputError, counted, quoted
from clnet.formats.sources import Source, check_buffer, is_batches, lists_batches
from clnet.nn.description import Description, Relayout
from clnet.nn.layers import Sparse
from clnet.nn.schedules import schedule as find_schedule
from clnet.opencl.discovery import Devices, device_list
from clnet.training.callbacks import Checkpoint
from clnet.training.data_set import (
    VALIDATION_BATCH,
    DataSet,
    warn_of_classes,
    warn_of_reach,
)
from clnet.training.history import SEEDS, TrainingState
from clnet.training.saved import SavedTraining, settings_of
from clnet.training.streaming import AnySet, StreamedSet, any_set

if TYPE_CHECKING:
    from os import PathLike

    from clnet.nn.columns import Columns
    from clnet.nn.labels import Classes
    from clnet.nn.model import Model
    from clnet.nn.optimisers import Optimiser
    from clnet.nn.scaling import Scaling
    from clnet.nn.schedules import Schedule
    from clnet.opencl.device import Device
    from clnet.runtime.ranks import Ranks
    from clnet.training.callbacks import Callback
    from clnet.training.options import TrainingOptions


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """All settings of one training."""

    options: TrainingOptions  # The arguments that hold for other samples too
    data: AnySet  # The training set
    validation: AnySet | None  # The validation set, measured after each epoch
    rates: Schedule  # Factor of the learning rate for an epoch, counted from 0
    epochs: int  # Epochs at most, from the state on
    callbacks: list[Callback]  # In the order of their calls
    checkpoints: list[Checkpoint]  # Called after all others, whose state they hold
    state: TrainingState  # The state to start from
    saved: SavedTraining | None  # The training of the checkpoint that the state is from
    settings: Callable[..., dict[str, Any]]  # Returns the `settings_of` the training
    devices: tuple[Device, ...]  # One, or several that share each batch
    # What the outputs stand for, which the network gets before the training
    classes: Classes | None
    columns: Columns | None  # The names of the inputs, likewise
    # The ranks that share each step; None: this process takes all
    ranks: Ranks | None = None
    # Blocks of a step that ranks share; None: one each, summed in MPI's order
    blocks: int | None = None


def training_setup(
    network: Model,
    x: ArrayLike | Source,
    t: ArrayLike | None,
    options_of: Callable[[int], TrainingOptions],
    *,
    validation: tuple[ArrayLike, ...] | Iterable[Any] | None,
    sample_weight: ArrayLike | None,
    callbacks: Iterable[Callback],
    seed: int | None,
    devices: Devices,
    state: TrainingState | None,
    scaling: Scaling | None,
    buffer: int | None,
    device: Devices,
    resume: str | PathLike[str] | None,
    load: Callable[[Any], SavedTraining] = SavedTraining.load,
    blocks: int | str | None = None,
) -> TrainingSetup:
    """Return the checked arguments of `Network.fit`.

    `options_of` returns the options for a number of samples, `load` reads the file
    `resume`, and `blocks` is that of `settings_of`.
    """
    room = check_buffer(buffer)
    if device is not None and devices is not None:
        raise InputError("give device or devices, not both")
    chosen = device_list(device if devices is None else devices)
    alone = len(chosen) == 1 and blocks is None  # no device or rank to share samples
    data, classes, columns = any_set(
        network, (x, t, sample_weight), network.classes, network.columns, scaling, room,
        sparse=alone,
    )
    options = options_of(len(data))
    epochs = options.epochs
    other: AnySet | None = None
    if validation is not None:
        if is_batches(validation) or lists_batches(validation):
            samples: tuple[Any, ...] = (validation, None, None)
        elif isinstance(validation, (tuple, list)) and len(validation) in (2, 3):
            samples = (*validation, None)[:3]
        else:
            raise InputError(
                "validation must be (x, t) or (x, t, sample_weight), or a source of "
                "such batches"
            )
        other, classes, _ = any_set(
            network, samples, classes, columns, scaling, room, "validation ", alone
        )
        other = (
            other.balanced(min(VALIDATION_BATCH, other.rows), whole=True)
            if isinstance(other, StreamedSet) else other.balanced(len(other))
        )
    checked = checked_callbacks(callbacks)
    if isinstance(data, StreamedSet):
        data = data.balanced(options.batch)
        data.check_batch()
    settings = partial(settings_of, network, data, other, options, blocks)
    saved = None
    if resume is not None:
        if state is not None:
            raise InputError("give state or resume, not both")
        saved = load(resume)
        saved.check_settings(resume, settings())
        state = saved.state
        if state.epoch > epochs:
            raise InputError(
                f"{resume} is of a training after {counted(state.epoch, 'epoch')}, "
                f"expected epochs of at least as many, not {epochs}"
            )
        epochs -= state.epoch
    for one in (data, other):
        if isinstance(one, StreamedSet):
            one.check(epochs, len(chosen))
    start = _initial_state(network, options, seed) if state is None else (
        _resumed_state(network, options.rule, seed, state)
    )
    if not options.shuffled and not isinstance(data, StreamedSet):
        data = data.balanced(options.batch)
    steps = -(-len(data) // options.batch)
    if state is not None and start.count + epochs * steps > INT_MAX:
        raise InputError(
            f"{epochs} epochs of {counted(steps, 'step')}, after the {start.count} "
            f"steps of the state, are more than {INT_MAX} steps"
        )
    if isinstance(data, DataSet):
        warn_of_classes(network, t, options.loss)
    warn_of_reach(network, options.reach, data.t)
    return TrainingSetup(
        options=options, data=data, validation=other,
        rates=find_schedule(options.schedule, start.epoch + epochs), epochs=epochs,
        callbacks=[one for one in checked if not isinstance(one, Checkpoint)],
        checkpoints=[one for one in checked if isinstance(one, Checkpoint)],
        state=start, saved=saved, settings=settings, devices=chosen,
        classes=classes, columns=columns,
    )


def checked_callbacks(callbacks: Iterable[Callback]) -> list[Callback]:
    """Return the callbacks of a training as a list; raise InputError for all else."""
    if not is_many(callbacks):
        raise InputError(
            f"callbacks must be a list of callables, not {type(callbacks).__name__}"
        )
    calls = list(callbacks)
    for callback in calls:
        if not callable(callback):
            raise InputError(f"a callback must be callable, not {quoted(callback)}")
    return calls


def chosen_seed(seed: int | None) -> int:
    """Return a training's seed, of the operating system for None."""
    if seed is None:
        return int.from_bytes(os.urandom(8), "little") % SEEDS
    return as_whole("a seed", seed, 0, SEEDS - 1)


def _initial_state(
    network: Model, options: TrainingOptions, seed: int | None
) -> TrainingState:
    seed = chosen_seed(seed)
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
