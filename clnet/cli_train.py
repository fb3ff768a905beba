"""``clnet train``: train a network on a data file, or on handwritten digits."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.summary import pairs

if TYPE_CHECKING:
    from clnet.history import Epoch, History
    from clnet.network import Network
    from clnet.training import DataSet, Training

DIGITS = "digits"
DIGITS_LAYERS = "64-128-10"
DIGITS_TEST = 360  # samples of scikit-learn's digits that are kept for the test
DIGITS_RATE = 3e-3
DIGITS_EPOCHS = 40
DIGITS_BATCH = 32
EPOCHS = 100


def add_arguments(sub: argparse.ArgumentParser, count: Callable[[str], int]) -> None:
    """Add the command's arguments.

    Parameters
    ----------
    sub : ArgumentParser
        Of the command.
    count : callable
        Reads a whole number of at least 1.
    """
    sub.add_argument(
        "data", metavar="DATA",
        help=f'a data file; "{DIGITS}": scikit-learn\'s handwritten digits',
    )
    sub.add_argument(
        "--layers", metavar="N-N-N",
        help="inputs, neurons of each layer, as in 125-32-2",
    )
    sub.add_argument(
        "--network", metavar="NET",
        help="start from this network instead; a .net file also brings its training",
    )
    sub.add_argument(
        "--hidden", metavar="NAME", default="tanh",
        help="activation of the layers between; default: %(default)s",
    )
    sub.add_argument(
        "--output", metavar="NAME", default="sigmoid",
        help="activation of the last layer; default: %(default)s",
    )
    sub.add_argument(
        "--optimiser", metavar="NAME",
        help="rprop, batch, quickprop, sarprop, incremental, sgd, adam, adamw, rmsprop "
        "or fann, by what a .net file says; default: fann where there is one, else "
        "rprop",
    )
    sub.add_argument("--rate", type=float, metavar="R", help="learning rate")
    sub.add_argument("--loss", metavar="NAME", help="default: by the last layer")
    sub.add_argument(
        "--epochs", type=count, metavar="N", help=f"default: {EPOCHS}",
    )
    sub.add_argument(
        "--batch-size", type=count, metavar="N", help="samples a step; default: all",
    )
    sub.add_argument(
        "--desired-error", type=float, metavar="E", help="stop at this MSE"
    )
    sub.add_argument(
        "--validation", metavar="FILE", help="data that is measured after each epoch"
    )
    sub.add_argument("--seed", type=int, metavar="N", help="of weights and order")
    sub.add_argument("--save", metavar="NET", help="write the network to a file")
    sub.add_argument("--plot", metavar="FILE", help="draw the learning curve: .png …")


def run(arguments: argparse.Namespace) -> int:
    """Train, and say how it went."""
    from clnet.device import device as find_device
    from clnet.formats import NETWORK_SUFFIXES, suffix_of

    if arguments.save is not None:  # before the work, not after
        suffix_of(arguments.save, NETWORK_SUFFIXES, "networks")
    digits = arguments.data == DIGITS
    training, test = _digits(arguments) if digits else _files(arguments)
    network = _network(arguments, training)
    where = find_device(arguments.device)
    history = network.fit(
        training.x, training.t, optimiser=_optimiser(arguments, network),
        loss=arguments.loss, epochs=arguments.epochs or EPOCHS,
        batch_size=arguments.batch_size, seed=arguments.seed, device=where,
        desired_error=arguments.desired_error,
        validation=None if test is None else (test.x, test.t),
        callbacks=[_Report()], progress=sys.stderr.isatty(),
    )
    if arguments.save is not None:
        network.save(arguments.save)
    if arguments.plot is not None:
        _plot(history, arguments.plot)
    seconds = sum(epoch.seconds for epoch in history)
    rows: list[tuple[str, object]] = [
        ("device", f"{where.index} {where.name}"),
        ("network", "-".join(str(n) for n in network.sizes)),
        ("ended", history.stopped),
        ("time", f"{seconds:.3g} s, {seconds / len(history) * 1e3:.3g} ms an epoch"),
    ]
    rows += _result("training", network, training, where)
    if test is not None:
        rows += _result("test" if digits else "validation", network, test, where)
    for label, path in (("written", arguments.save), ("drawn", arguments.plot)):
        if path is not None:
            rows.append((label, path))
    print(pairs(rows))
    return 0


class _Report:
    """Prints epochs 1, 2, 5, 10, 20, 50 and so on where no progress bar is shown."""

    def __call__(self, training: Training, epoch: Epoch) -> None:
        digits = str(epoch.number)
        if not sys.stderr.isatty() and re.fullmatch("[125]0*", digits):
            print(
                f"epoch {epoch.number}: loss {epoch.loss:.4g}, MSE {epoch.mse:.4g}, "
                f"bit fail {epoch.bit_fail}", flush=True,
            )


def _files(arguments: argparse.Namespace) -> tuple[DataSet, DataSet | None]:
    from clnet.errors import InputError
    from clnet.formats import load_data
    from clnet.training import DataSet

    found: list[DataSet] = []
    for path in (arguments.data, arguments.validation):
        if path is not None:
            x, t = load_data(path, dtype="float32", outputs=arguments.outputs)
            if t.shape[1] == 0:
                raise InputError(f"{path} has no targets to train on: see --outputs")
            found.append(DataSet(x, t))
    return found[0], found[1] if len(found) > 1 else None


def _digits(arguments: argparse.Namespace) -> tuple[DataSet, DataSet]:
    """Return the digits in an order of their own, and set what is not given."""
    from clnet.errors import ClnetError, InputError
    from clnet.training import DataSet

    if arguments.validation is not None or arguments.outputs is not None:
        raise InputError(f"{DIGITS} brings its own test set: leave out --validation")
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ClnetError(
            f"{DIGITS} are scikit-learn's: pip install scikit-learn"
        ) from None
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x = (images[order] / images.max()).astype(np.float32)
    t: NDArray[Any] = np.eye(10, dtype=np.float32)[labels[order]]
    if arguments.network is None and arguments.layers is None:
        arguments.layers, arguments.hidden = DIGITS_LAYERS, "relu"
        arguments.output = "softmax"
    if arguments.optimiser is None:
        arguments.optimiser = "adam"
        arguments.rate = arguments.rate or DIGITS_RATE
        arguments.epochs = arguments.epochs or DIGITS_EPOCHS
        arguments.batch_size = arguments.batch_size or DIGITS_BATCH
        arguments.seed = 0 if arguments.seed is None else arguments.seed
    n = DIGITS_TEST
    return DataSet(x[n:], t[n:]), DataSet(x[:n], t[:n])


def _network(arguments: argparse.Namespace, data: DataSet) -> Network:
    from clnet.errors import InputError
    from clnet.formats import load
    from clnet.network import Network

    if (arguments.network is None) == (arguments.layers is None):
        raise InputError("give either --layers, as in 125-32-2, or --network")
    if arguments.network is not None:
        network = load(arguments.network)
    else:
        parts = arguments.layers.split("-")
        if len(parts) < 2 or not all(part.isdecimal() for part in parts):
            raise InputError(
                f"--layers is {arguments.layers!r}, expected sizes as in 125-32-2"
            )
        sizes = [int(part) for part in parts]
        names = [arguments.hidden] * (len(sizes) - 2) + [arguments.output]
        network = Network.mlp(sizes, names, seed=arguments.seed)
    columns = (data.x.shape[1], data.t.shape[1])
    if columns != (network.n_in, network.n_out):
        raise InputError(
            f"{arguments.data} has {columns[0]} inputs and {columns[1]} outputs, the "
            f"network {network.n_in} and {network.n_out}"
        )
    return network


def _optimiser(arguments: argparse.Namespace, network: Network) -> Any:
    """Return the optimiser, its learning rate set if one is given."""
    from dataclasses import fields, replace

    from clnet.errors import InputError
    from clnet.optimisers import optimiser
    from clnet.training import rule_of

    name = arguments.optimiser or ("rprop" if network.fann is None else "fann")
    if arguments.rate is None:
        return name
    rule = rule_of(network, name) if name == "fann" else optimiser(name)
    if "learning_rate" not in {field.name for field in fields(rule)}:
        raise InputError(f"{rule.name} has no learning rate: leave out --rate")
    return replace(rule, learning_rate=arguments.rate)  # type: ignore[call-arg]


def _result(
    what: str, network: Network, data: DataSet, where: Any
) -> list[tuple[str, object]]:
    found = network.evaluate(data.x, data.t, where)
    return [
        (what, f"{len(data)} samples"),
        ("  MSE", f"{found.mse:.4g}"),
        ("  bit fail", f"{found.bit_fail} of {data.t.size}"),
        ("  accuracy", f"{found.accuracy:.6f}"),
    ]


def _plot(history: History, path: str) -> None:
    """Draw the learning curve to a file, whole or not at all."""
    import io

    from clnet.errors import InputError
    from clnet.formats.files import as_path, write

    file = as_path(path)
    figure = history.plot().figure
    kind = file.suffix.removeprefix(".")
    if kind not in figure.canvas.get_supported_filetypes():
        raise InputError(f"{path}: pictures are .png, .svg or .pdf, not {kind!r}")
    picture = io.BytesIO()
    figure.savefig(picture, format=kind)
    write(file, [picture.getvalue()])
