"""Class labels as targets, the classes that outputs stand for, and their ranges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.checks import as_array, as_list, is_sparse, is_whole
from clnet.errors import InputError, counted, quoted
from clnet.nn.activations import (
    LOG_SOFTMAX,
    SOFTMAX,
    SOFTMAXES,
    activation,
    each_activation,
)

if TYPE_CHECKING:
    from clnet.nn.description import Description
    from clnet.nn.scaling import Scaling

FEW_CLASSES = 10  # different whole numbers of a target that may be labels, at most
READ = 10_000  # targets that are looked at first

Label = bool | int | str
Classes = tuple[Label, ...]


def as_classes(labels: object, n_out: int) -> Classes:
    """Return the classes of a network's outputs, checked."""
    classes = tuple(_label(label) for label in as_list("classes", labels))
    if len(classes) != max(n_out, 2):
        raise InputError(
            f"classes are {len(classes)}, expected {max(n_out, 2)} for "
            f"{counted(n_out, 'output')}"
        )
    if None in classes or len({type(label) for label in classes}) > 1:
        raise InputError(
            f"classes are {quoted(labels)}, expected all strings, all whole numbers or "
            "both booleans"
        )
    if len(set(classes)) < len(classes):
        raise InputError(f"classes are {quoted(labels)}, expected different ones")
    return classes  # type: ignore[return-value]  # None is excluded


def encoded(
    network: Description,
    t: ArrayLike,
    classes: Classes | None = None,
    name: str = "t",
) -> tuple[ArrayLike, Classes | None]:
    """Return targets [samples, n_out], and their classes, of targets of any kind.

    Labels [samples] or [samples, 1] are strings, booleans, and for several outputs
    whole numbers. They become one-hot: the class's output is 1, the others are 0, or -1
    where the outputs' functions reach from -1 to 1. One output stands for two classes.
    Numbers [samples] for one output become a column. All else is returned as it is.
    """
    if is_sparse(t):
        return t, classes
    try:
        array = as_array(name, t)
    except InputError:  # whoever takes the numbers says so
        return t, classes
    n_out = network.n_out
    if not are_labels(network, array):
        narrow = array.ndim == 1 and _are_numbers(network, array)
        return array[:, np.newaxis] if narrow else array, classes
    column = array.reshape(-1)
    labels, codes = _codes(column, name)
    if classes is None:
        classes = _classes_of(labels, n_out, name)
    index = {label: number for number, label in enumerate(classes)}
    texts: list[Label] = [str(label) for label in labels]
    if index.keys() >= {*texts}:  # text that looks like numbers throughout
        labels = texts
    other = next((label for label in labels if label not in index), None)
    if other is not None:
        raise InputError(
            f"{name} holds the label {quoted(other)}, expected one of the network's "
            f"classes {quoted(list(classes))}"
        )
    if n_out == 1 and not _classifies(network):
        raise InputError(
            f"{name} holds labels, but the network's one output has no bounds between "
            "which two classes lie: expected numbers, or a last layer of sigmoid"
        )
    numbers = np.array([index[label] for label in labels], np.intp)[codes]
    low = -1.0 if all(symmetric_outputs(network)) else 0.0
    if n_out == 1:
        return np.where(numbers, 1.0, low)[:, np.newaxis], classes
    targets = np.full((len(numbers), n_out), low, network.dtype)
    targets[np.arange(len(numbers)), numbers] = 1.0
    return targets, classes


def classes_of(
    network: Description, parts: Iterable[ArrayLike], name: str = "t"
) -> Classes:
    """Return the classes of labels that come in parts; errors are `encoded`'s."""
    labels: set[Label] = set()
    for part in parts:
        labels.update(_codes(as_array(name, part).reshape(-1), name)[0])
    try:
        return _classes_of(sorted(labels), network.n_out, name)
    except TypeError:
        raise InputError(
            f"{name} holds strings and numbers, expected one of them"
        ) from None


def count_missing(t: NDArray[Any]) -> int:
    """Return how many targets are NaN, or None among labels."""
    if t.dtype.kind == "O":
        return sum(value is None or value != value for value in t.flat)
    return int(np.isnan(t).sum()) if t.dtype.kind == "f" else 0


def _are_numbers(network: Description, t: NDArray[Any]) -> bool:
    """Return whether targets are numbers for the one output of a network."""
    numeric = "iufc" if _classifies(network) else "biufc"
    return network.n_out == 1 and t.dtype.kind in numeric


def might_be_classes(t: NDArray[Any]) -> bool:
    """Return whether targets are few repeated whole numbers, not 0 and ±1 alone."""
    if t.dtype.kind not in "iuf" or not t.size:
        return False
    values = np.unique(t.reshape(-1)[:READ])
    if len(values) > FEW_CLASSES:
        return False
    if t.size > READ:
        values = np.unique(t)
    return (
        len(values) <= min(FEW_CLASSES, t.size // 2)
        and bool((values == np.floor(values)).all())
        and float(np.abs(values.astype(float)).max()) > 1
    )


def are_labels(network: Description, t: ArrayLike) -> bool:
    """Return whether targets are the labels of classes, each sample's."""
    t = as_array("t", t)
    narrow = t.ndim == 1 or (t.ndim == 2 and t.shape[1] == 1)
    return (
        narrow and t.size > 0 and t.dtype.kind in "biufOUT"
        and not _are_numbers(network, t)
    )


def decided(
    outputs: NDArray[Any], middle: float | None, classes: Classes | None
) -> NDArray[Any]:
    """Return the labels of outputs [batch, n_out] or [n_out], or of each network."""
    unknown = np.isnan(outputs).any(axis=-1)
    if unknown.any():
        # Of several networks, outputs are [networks, batch, n_out].
        sample = np.argwhere(unknown)[0][-1:]
        at = "".join(f" of sample {number}" for number in sample)
        raise InputError(
            f"the outputs{at} hold NaN, which is of no class: expected inputs without "
            "NaN, for which `predict` gives the outputs"
        )
    if outputs.shape[-1] > 1:
        numbers = outputs.argmax(axis=-1)
    elif middle is None:
        raise InputError(
            "the network's one output has no bounds between which two classes lie: "
            "expected several outputs, or a last layer of sigmoid"
        )
    else:
        numbers = (outputs[..., 0] > middle).astype(np.intp)
    return np.asarray(numbers if classes is None else np.array(classes)[numbers])


def _label(value: object) -> Label | None:
    """Return a label as Python's own type; None: it is none."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if is_whole(value):
        return int(value)
    return str(value) if isinstance(value, str) else None


def _codes(column: NDArray[Any], name: str) -> tuple[list[Label], NDArray[np.intp]]:
    """Return the labels that occur, sorted, and the position of each sample's."""
    if column.dtype.kind == "f":
        if np.isnan(column).any():
            at = int(np.isnan(column).argmax())
            raise InputError(f"{name} holds nan at [{at}], expected a label")
        whole = column == np.floor(column)
        if not whole.all() or (np.abs(column) >= 2.0**53).any():
            raise InputError(
                f"{name} has shape {list(column.shape)} and holds fractions, expected "
                "labels, or numbers [samples, outputs]"
            )
        column = column.astype(np.int64)
    if column.dtype.kind in "biu":
        values, codes = np.unique(column, return_inverse=True)
        return values.tolist(), codes.reshape(-1)
    labels = [_label(value) for value in column.tolist()]
    order: dict[Any, int] = {}
    codes = np.array([order.setdefault(label, len(order)) for label in labels], np.intp)
    if None in order or "" in order:
        at = labels.index(None if None in order else "")
        raise InputError(
            f"{name} holds {quoted(column.tolist()[at])} at [{at}], expected a label: "
            "a string, a whole number or a boolean"
        )
    types = sorted({type(label).__name__ for label in labels})
    if len(types) > 1:
        raise InputError(f"{name} holds {' and '.join(types)}, expected one of them")
    different = sorted(order)
    rank = {label: number for number, label in enumerate(different)}
    return different, np.array([rank[label] for label in order], np.intp)[codes]


def _classes_of(labels: Sequence[Label], n_out: int, name: str) -> Classes:
    """Return the classes of a network's outputs for the labels that occur."""
    expected = max(n_out, 2)
    if len(labels) == expected:
        return tuple(labels)
    if isinstance(labels[0], bool) and expected == 2:
        return (False, True)
    numbers = tuple(range(n_out))
    if n_out > 1 and set(labels) <= set(numbers):
        return numbers
    if len(labels) == 1:
        raise InputError(
            f"{name} holds the label {quoted(labels[0])} alone, expected {expected} "
            "different ones: set the network's classes first, to name those that are "
            "missing"
        )
    fewer = len(labels) < expected
    raise InputError(
        f"{name} holds {len(labels)} different labels, expected {expected} for "
        f"{counted(n_out, 'output')}"
        + ": set the network's classes first, to name those that are missing" * fewer
    )


def symmetric_outputs(network: Description) -> tuple[bool, ...]:
    """Return whether outputs reach from -1 to 1: one answer for all, or one each."""
    return tuple(
        name not in SOFTMAXES and activation(name).symmetric
        for name in output_activations(network)
    )


def output_middles(
    network: Description, scaling: Scaling | None = None
) -> tuple[float | None, ...]:
    """Return the middle of the outputs' range, or None: one for all, or one each.

    With a scaling, in the units of the data.
    """
    whole = {SOFTMAX: 0.5, LOG_SOFTMAX: None}
    middles = tuple(
        whole[name] if name in whole else activation(name).middle
        for name in output_activations(network)
    )
    if scaling is None or None in middles:
        return middles
    descaled = scaling.descale_output(np.resize(np.array(middles), network.n_out))
    return tuple(descaled.tolist())


def _classifies(network: Description) -> bool:
    """Return whether all outputs are bounded, so that one may stand for two classes."""
    return all(
        name in SOFTMAXES or activation(name).bounded
        for name in output_activations(network)
    )


def output_activations(network: Description) -> tuple[str, ...]:
    """Return the activations of the outputs: one for all, or one each."""
    return each_activation(network.layers[-1].activation)
