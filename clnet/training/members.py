"""The trainings of a population's networks: its arguments, checked, one by one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.checks import (
    as_array,
    as_items,
    as_numbers,
    as_whole,
    is_among,
    is_list,
)
from clnet.errors import InputError, counted, quoted
from clnet.formats.sources import check_buffer
from clnet.nn.optimisers import FANN
from clnet.nn.scaling import scaling_to_apply
from clnet.training.data_set import (
    DataSet,
    balanced_weights,
    checked_weights,
    warn_of_classes,
    warn_of_reach,
)
from clnet.training.fit_options import EACH
from clnet.training.history import SEEDS
from clnet.training.options import resolved, rule_of, with_rate
from clnet.training.setup import chosen_seed, validation_of, validation_set
from clnet.training.streaming import AnySet, StreamedSet, any_set

if TYPE_CHECKING:
    from collections.abc import Callable

    from clnet.nn.model import Model
    from clnet.training.fit_options import PopulationOptions
    from clnet.training.options import TrainingOptions

Array = NDArray[Any]

REST = "rest"  # a validation by the samples that are not among a network's rows


@dataclass(frozen=True)
class Members:
    """The trainings of many networks, as columns."""

    options: Sequence[TrainingOptions]  # Those that differ, each for its samples
    which: Array  # The options of each network, by their numbers
    seeds: Array  # Of the order of samples and of the optimiser
    dropout: Array  # Fractions of outputs that are dropped [networks, layers]
    # The samples that each trains on, and those of its validation; None: all
    rows: Sequence[Array] | None = None
    rests: Sequence[Array] | None = None
    weights: Array | None = None  # Of all samples [networks, samples]

    def __len__(self) -> int:
        return len(self.which)

    def part(self, numbers: Array) -> Members:
        """Return some of the members."""
        def of(lists: Sequence[Array] | None) -> list[Array] | None:
            return None if lists is None else [lists[i] for i in numbers.tolist()]

        chosen, which = np.unique(self.which[numbers], return_inverse=True)
        return Members(
            [self.options[i] for i in chosen.tolist()], which, self.seeds[numbers],
            self.dropout[numbers], of(self.rows), of(self.rests),
            None if self.weights is None else self.weights[numbers],
        )

    def sizes(self, samples: int) -> list[int]:
        """Return the samples of a training by each of the options."""
        if self.rows is None:
            return [samples] * len(self.options)
        counts = [0] * len(self.options)
        for number, rows in zip(self.which.tolist(), self.rows, strict=True):
            counts[number] = len(rows)
        return counts

    def balanced_weights(self) -> Array:
        """Return the weights [members, samples] as a kernel takes them.

        Those of steps of all samples, and of one, have a mean of 1. A kernel scales
        those of other steps.
        """
        assert self.weights is not None
        weights_of = np.zeros(self.weights.shape, np.float32)
        for i, (row, which) in enumerate(
            zip(self.weights, self.which.tolist(), strict=True)
        ):
            rows = slice(None) if self.rows is None else self.rows[i]
            weights = row[rows, np.newaxis] / row[rows].max()
            if self.options[which].batch in (1, len(weights)):
                weights = balanced_weights(weights, len(weights))
            weights_of[i, rows] = weights[:, 0]
        return weights_of

    def each(self, value: Callable[[TrainingOptions], Any]) -> Array:
        """Return a value of each member's options [members, ...]."""
        values: Array = np.array([value(one) for one in self.options])[self.which]
        return values


@dataclass(frozen=True)
class PopulationData:
    """The data of a population's training."""

    training: AnySet  # The samples of all members
    validation: AnySet | None
    # Epochs without a smaller loss of the validation before a member stops. It then has
    # the parameters of its best epoch.
    patience: int | None


def samples_of(network: Model, options: PopulationOptions) -> PopulationData:
    """Return the checked data of a training, whose labels set the network's classes."""
    scaling = scaling_to_apply(network.scaling, options.scale)
    room, patience = check_buffer(options.buffer), options.patience
    data, network.classes, network.columns = any_set(
        network, (options.x, options.t, None), network.classes, network.columns,
        scaling, room,
    )
    given, validation = options.validation, None
    if patience is not None:
        patience = as_whole("patience", patience)
        if given is None:
            raise InputError("patience takes a validation, and there is none")
    if isinstance(data, StreamedSet):
        for name in "rows", "sample_weight":
            if getattr(options, name) is not None:
                raise InputError(
                    f"{name} numbers the samples of arrays, and x is a source that is "
                    f"read by parts: leave it out{data.hint}"
                )
    if isinstance(given, str):
        if given != REST:
            raise InputError(
                f'validation must be (x, t) or "rest", not {quoted(given)}'
            )
        validation = data
    elif given is not None:
        validation, network.classes, _ = any_set(
            network, validation_of(given, f', or "{REST}"'), network.classes,
            network.columns, scaling, room, "validation ",
        )
        validation = validation_set(validation)
    return PopulationData(data, validation, patience)


def members_of(
    network: Model, samples: PopulationData, dropout: Array, options: PopulationOptions
) -> Members:
    """Return the training of each network, of which dropout [networks, layers] is."""
    n, count = len(samples.training), len(dropout)
    lists = _lists(options.rows, count, n)
    columns = {
        name: _each(name, value, count) for name in EACH
        if is_list(value := getattr(options, name))
    }
    seeds = _seeds(columns.pop("seed", None), options.seed, count)
    rests = _rests(lists, n, count) if isinstance(options.validation, str) else None
    shared = options.each()
    resolutions: list[TrainingOptions] = []
    numbers: dict[Any, int] = {}
    which = np.zeros(count, np.int64)
    sizes = [n] if lists is None else [len(rows) for rows in lists]
    for i in range(count if columns or len(set(sizes)) > 1 else 1):
        row = {name: values[i] for name, values in columns.items()}
        size = sizes[i if len(sizes) > 1 else 0]
        key = size, *((type(value), value) for value in row.values())
        try:
            number = numbers.setdefault(key, len(resolutions))
        except TypeError:  # of an argument that is no key
            number = len(resolutions)
        if number == len(resolutions):
            rate = row.pop("learning_rate", options.learning_rate)
            if rate is not None and is_among(
                row.get("optimiser", shared.optimiser), [FANN]
            ):  # the default loss follows from the name, which has no other rate
                row["optimiser"] = rule_of(network, FANN)
            # Networks that differ in the rate alone share what `resolved` keeps.
            resolution = resolved(
                network, replace(shared, **row) if row else shared, size
            )
            resolutions.append(
                resolution if rate is None
                else with_rate(network, resolution, rate, shared.stop)
            )
        which[i] = number
    for one in resolutions:
        warn_of_reach(network, one.reach, samples.training.t)
    if isinstance(samples.training, DataSet):
        warn_of_classes(network, options.t, resolutions[0].loss)
    weights = _weights(options.sample_weight, count, n, lists)
    return Members(resolutions, which, seeds, dropout, lists, rests, weights)


def _seeds(listed: list[Any] | None, shared: int | None, count: int) -> Array:
    """Return the seed of each network, of the operating system for None."""
    if listed is not None:
        return np.array([chosen_seed(one) for one in listed])
    if shared is not None:
        return np.full(count, chosen_seed(shared))
    return np.frombuffer(os.urandom(8 * count), np.uint64) % SEEDS


def _rests(lists: list[Array] | None, n: int, count: int) -> list[Array]:
    """Return the samples that are not among the rows of each network."""
    rests: list[Array] = []
    for i in range(count):
        kept = np.ones(n, bool)
        kept[... if lists is None else lists[i]] = False
        rest = np.flatnonzero(kept)
        rests.append(rest)
        if not rest.size:
            raise InputError(
                f'validation "{REST}" are the samples that are not among the rows, '
                f"and network {i} has none: give rows without some samples"
            )
    return rests


def _each(name: str, value: Any, count: int) -> list[Any]:
    """Return the value of each network."""
    if len(value) != count:
        raise InputError(
            f"{name} has {counted(len(value), 'value')}, expected one, or one for each "
            f"of the {counted(count, 'network')}"
        )
    return [one.item() if isinstance(one, np.generic) else one for one in value]


def _lists(
    rows: Sequence[ArrayLike] | None, count: int, samples: int
) -> list[Array] | None:
    """Return the rows of each network, None for all of all."""
    if rows is None:
        return None
    lists = as_items(rows)
    if len(lists) != count:
        raise InputError(
            f"rows has {counted(len(lists), 'list')}, expected one for each of the "
            f"{counted(count, 'network')}"
        )
    numbers: list[Array] = []
    for number, one in enumerate(lists):
        listed = as_array(f"rows of network {number}", one)
        if listed.ndim != 1 or not listed.size or listed.dtype.kind not in "iu":
            raise InputError(
                f"rows of network {number} must be numbers of samples, at least one"
            )
        if listed.min() < 0 or listed.max() >= samples:
            raise InputError(
                f"rows of network {number} name sample "
                f"{listed.min() if listed.min() < 0 else listed.max()}, expected 0 to "
                f"{samples - 1}"
            )
        numbers.append(listed.astype(np.int32))
    return numbers


def _weights(
    weights: ArrayLike | None, count: int, samples: int, lists: list[Array] | None
) -> Array | None:
    """Return the weights of each network's samples [members, samples], if any."""
    if weights is None:
        return None
    array = as_numbers("sample_weight", weights, "float64")
    if array.shape not in ((samples,), (count, samples)):
        raise InputError(
            f"sample_weight has shape {list(array.shape)}, expected [{samples}] or "
            f"[{count}, {samples}]"
        )
    checked_weights(array.reshape(-1), array.size, "", 0)
    rows = np.broadcast_to(array, (count, samples))
    for i, row in enumerate(rows):
        if not (row if lists is None else row[lists[i]]).any():
            raise InputError(
                f"sample_weight is 0 for all samples of network {i}, expected one "
                "above 0"
            )
    return rows
