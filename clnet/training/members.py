"""The trainings of a population's networks: its arguments, checked, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.checks import as_array, as_items, as_whole
from clnet.errors import InputError, counted
from clnet.formats.sources import check_buffer
from clnet.nn.defaults import default_optimiser
from clnet.training.callbacks import EarlyStopping
from clnet.training.data_set import DataSet, warn_of_reach
from clnet.training.options import rule_of
from clnet.training.setup import chosen_seed
from clnet.training.streaming import any_set

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clnet.nn.model import Model
    from clnet.nn.optimisers import Optimiser
    from clnet.nn.scaling import Scaling
    from clnet.training.options import TrainingOptions

Array = NDArray[Any]

REST = "rest"  # a validation by the samples that are not among a network's rows
MAX_KEPT = 1024  # options of a training
LISTS = (list, tuple, np.ndarray)  # of one value a network


@dataclass(frozen=True)
class Member:
    """The training of one network of a population.

    Attributes
    ----------
    options : TrainingOptions
        Its arguments, resolved for its samples.
    seed : int
        Of the order of samples and of the optimiser.
    rows, rest : ndarray of int, or None
        The samples that it trains on, and those of its validation; None: all.
    weight : ndarray, shape [samples], or None
        The weights of all samples.
    """

    options: TrainingOptions
    seed: int
    rows: Array | None
    rest: Array | None
    weight: Array | None


@dataclass(frozen=True)
class Samples:
    """The data of a population's training.

    Attributes
    ----------
    training, validation : DataSet, and DataSet or None
        The samples of all members.
    patience : int or None
        Epochs without a smaller loss of the validation before a member stops. It then
        has the parameters of its best epoch.
    """

    training: DataSet
    validation: DataSet | None
    patience: int | None

    def arguments(self, member: Member) -> dict[str, Any]:
        """Return the arguments of `Network.fit` for one member alone."""
        def part(data: DataSet, rows: Array | None) -> DataSet:
            return data if rows is None else data.subset(rows)

        options, data = member.options, part(self.training, member.rows)
        weight, validation = member.weight, None
        if weight is not None and member.rows is not None:
            weight = weight[member.rows]
        if self.validation is not None:
            other = part(self.validation, member.rest)
            validation = other.x, other.t, *(
                () if other.weight is None else (other.weight[:, 0],)
            )
        rules, desired = options.regularisation, options.desired
        return {
            "x": data.x, "t": data.t, "optimiser": options.rule,
            "loss": options.loss.name, "epochs": options.epochs,
            "batch_size": options.batch, "shuffle": options.shuffled,
            "validation": validation, "sample_weight": weight, "seed": member.seed,
            "callbacks": [] if self.patience is None else [
                EarlyStopping(patience=self.patience)
            ],
            "desired_error": None if desired is None else desired.most,
            "stop": None if desired is None else desired.measure,
            "schedule": options.schedule, "l1": rules.l1, "l2": rules.l2,
            "clip_norm": rules.clip_norm, "clip_value": rules.clip_value,
            "precision": options.precision, "scale": False,
        }


def samples_of(
    network: Model, x: ArrayLike, t: ArrayLike, validation: Any,
    patience: int | None, scaling: Scaling | None,
) -> Samples:
    """Return the checked data of a training, whose labels set the network's classes.

    Raises
    ------
    InputError
        If an array is wrong, or is a source that is read by parts.
    """
    def checked(samples: tuple[Any, ...], what: str = "") -> DataSet:
        data, network.classes, network.columns = any_set(
            network, (*samples, None)[:3], network.classes, network.columns, scaling,
            check_buffer(None), what,
        )
        if not isinstance(data, DataSet):
            raise InputError(
                f"{what}x is a source that is read by parts, and a population takes "
                "arrays"
            )
        return data

    data = checked((x, t))
    if patience is not None:
        patience = as_whole("patience", patience)
    if validation is None:
        if patience is not None:
            raise InputError("patience takes a validation, and there is none")
        return Samples(data, None, patience)
    if isinstance(validation, str):
        if validation != REST:
            raise InputError(f'validation must be (x, t) or "rest", not {validation!r}')
        return Samples(data, data, patience)
    if not isinstance(validation, (tuple, list)) or len(validation) not in (2, 3):
        raise InputError('validation must be (x, t), (x, t, sample_weight) or "rest"')
    other = checked(tuple(validation), "validation ")
    return Samples(data, other.balanced(len(other)), patience)


def members_of(
    network: Model, samples: Samples, count: int, rest: bool,
    rows: Sequence[ArrayLike] | None, sample_weight: ArrayLike | None,
    arguments: Mapping[str, Any], options_of: Callable[..., TrainingOptions],
) -> list[Member]:
    """Return the training of each network.

    Parameters
    ----------
    network : Model
        The shape of all.
    samples : Samples
        Their data.
    count : int
        Number of networks.
    rest : bool
        Whether each measures the samples that are not among its rows.
    rows, sample_weight
        As for `Population.fit`.
    arguments : mapping of str
        Those that may be one value or a list of one for each network.
    options_of : callable
        Returns the options of one network by its number of samples and arguments.

    Raises
    ------
    InputError
        If an argument is wrong.
    """
    n = len(samples.training)
    lists = _lists(rows, count, n)
    columns = {name: _each(name, value, count) for name, value in arguments.items()}
    kept = lru_cache(MAX_KEPT, typed=True)(options_of)
    found = []
    for i, (own, weight) in enumerate(
        zip(lists, _weights(sample_weight, count, n), strict=True)
    ):
        given = {name: values[i] for name, values in columns.items()}
        seed = chosen_seed(given.pop("seed"))
        others = None
        if rest:
            others = np.setdiff1d(np.arange(n), np.arange(n) if own is None else own)
            if not others.size:
                raise InputError(
                    f'validation "rest" are the samples that are not among the rows, '
                    f"and network {i} has none: give rows without some samples"
                )
        samples_of_one = n if own is None else len(own)
        try:
            options = kept(samples_of_one, **given)
        except TypeError:  # of an argument that is no key
            options = options_of(samples_of_one, **given)
        found.append(Member(options, seed, own, others, weight))
    for options in {id(one.options): one.options for one in found}.values():
        warn_of_reach(network, options.reach, samples.training.t)
    return found


def rule_with_rate(
    network: Model, optimiser: str | Optimiser | None, rate: float | None,
    samples: int, batch_size: int | None,
) -> Optimiser:
    """Return the optimiser of one network, with a learning rate if one is given."""
    if optimiser is None:
        optimiser = default_optimiser(network, samples, batch_size)
    rule = rule_of(network, optimiser)
    if rate is None:
        return rule
    if not hasattr(rule, "learning_rate"):
        raise InputError(f"{rule.name} has no learning rate: leave out learning_rate")
    return replace(rule, learning_rate=rate)  # type: ignore[call-arg]


def _each(name: str, value: Any, count: int) -> list[Any]:
    """Return the value of each network."""
    if not isinstance(value, LISTS):
        return [value] * count
    if len(value) != count:
        raise InputError(
            f"{name} has {counted(len(value), 'value')}, expected one, or one for each "
            f"of the {counted(count, 'network')}"
        )
    return [one.item() if isinstance(one, np.generic) else one for one in value]


def _lists(
    rows: Sequence[ArrayLike] | None, count: int, samples: int
) -> list[Array | None]:
    """Return the rows of each network, None for all."""
    if rows is None:
        return [None] * count
    lists = as_items(rows)
    if len(lists) != count:
        raise InputError(
            f"rows has {counted(len(lists), 'list')}, expected one for each of the "
            f"{counted(count, 'network')}"
        )
    found: list[Array | None] = []
    for number, one in enumerate(lists):
        own = as_array(f"rows of network {number}", one)
        if own.ndim != 1 or not own.size or own.dtype.kind not in "iu":
            raise InputError(
                f"rows of network {number} must be numbers of samples, at least one"
            )
        if own.min() < 0 or own.max() >= samples:
            raise InputError(
                f"rows of network {number} name sample "
                f"{own.min() if own.min() < 0 else own.max()}, expected 0 to "
                f"{samples - 1}"
            )
        found.append(own.astype(np.int32))
    return found


def _weights(
    weights: ArrayLike | None, count: int, samples: int
) -> list[Array | None]:
    """Return the weights of each network's samples."""
    if weights is None:
        return [None] * count
    array = as_array("sample_weight", weights)
    if array.shape not in ((samples,), (count, samples)):
        raise InputError(
            f"sample_weight has shape {list(array.shape)}, expected [{samples}] or "
            f"[{count}, {samples}]"
        )
    return list(np.broadcast_to(array, (count, samples)))
