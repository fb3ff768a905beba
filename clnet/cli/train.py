"""``clnet train``: train a network on a data file, or on handwritten digits."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clnet.cli import digits, json_output, long_training, mpi, new_network, population
from clnet.cli.digits import DIGITS
from clnet.cli.new_network import counts, network_of, scales
from clnet.cli.samples import Samples, check_labels, number, read, whole
from clnet.cli.summary import class_texts, evaluation_rows, pairs, table_rows
from clnet.errors import InputError, nearest, quoted
from clnet.formats import NETWORK_SUFFIXES, check_save
from clnet.formats.pictures import PICTURES, figure, picture_file
from clnet.network import Network, load
from clnet.nn.defaults import EPOCHS, MAX_NEURONS, default_optimiser
from clnet.nn.fann_parameters import STOP_FUNCTIONS
from clnet.nn.labels import output_middles
from clnet.nn.optimisers import CASCADE, FANN, MINI_BATCH, OPTIMISER_NAMES, Adam, Rprop

if TYPE_CHECKING:
    from clnet.nn.columns import Columns
    from clnet.nn.optimisers import Optimiser
    from clnet.opencl.device import Device
    from clnet.training.callbacks import Training
    from clnet.training.history import Epoch


def add_arguments(sub: argparse.ArgumentParser, count: Callable[[str], int]) -> None:
    """Add the command's arguments."""
    from clnet.nn.losses import LOSSES
    from clnet.nn.schedules import SCHEDULES

    sub.add_argument(
        "data", metavar="DATA",
        help=f'a data file; "{DIGITS}": scikit-learn\'s handwritten digits',
    )
    new_network.add_arguments(sub.add_argument_group("the network").add_argument)
    add = sub.add_argument_group("training").add_argument
    add(
        "--optimiser", metavar="NAME",
        help=f"{', '.join(OPTIMISER_NAMES)}; {FANN}: by the parameters of a .net file; "
        f"{CASCADE}: add neurons to a network without hidden layers; "
        f"default: {FANN} with a .net file, else {Adam.name}, or {Rprop.name} where a "
        "step takes all samples",
    )
    add("--rate", type=number, metavar="R", help="learning rate")
    add(
        "--schedule", metavar="NAME",
        help=f"decay of the learning rate: {', '.join(SCHEDULES)}",
    )
    add(
        "--loss", metavar="NAME",
        help=", ".join(
            row.name + f" (for {row.activation})" * bool(row.activation)
            for row in LOSSES.values()
        ) + "; default: by the last layer's activation",
    )
    add(
        "--class-weight", choices=("balanced",),
        help="weigh samples so that all classes weigh alike, as by scikit-learn",
    )
    add("--epochs", type=count, metavar="N", help=f"default: {EPOCHS}")
    add(
        "--max-neurons", type=count, metavar="N",
        help=f"neurons that {CASCADE} adds at most; default: {MAX_NEURONS}",
    )
    add(
        "--batch-size", type=count, metavar="N",
        help=f"samples a step; default: {MINI_BATCH}; of FANN's rules one for "
        "incremental, all for the others",
    )
    add("--desired-error", type=number, metavar="E", help="stop at this error or below")
    add(
        "--stop", metavar="NAME", choices=STOP_FUNCTIONS,
        help=f"the error of --desired-error: {' or '.join(STOP_FUNCTIONS)}; default: "
        f"that of a .net file, else {STOP_FUNCTIONS[0]}",
    )
    add(
        "--seed", type=whole, metavar="N",
        help="seed of weights, order of samples and dropout",
    )
    add(
        "--tune", action="store_true",
        help="measure all candidates first, however short the training",
    )
    add = sub.add_argument_group("against overfitting").add_argument
    add(
        "--validation", metavar="FILE|P",
        help="validation data, measured after each epoch: a file, or a share of DATA, "
        "as in 0.2",
    )
    add(
        "--patience", type=count, metavar="N",
        help="stop when the validation loss has not improved for N epochs, and restore "
        "the best parameters",
    )
    for name, term in (("--l1", "|w|"), ("--l2", "w^2")):
        add(
            name, type=number, default=0.0, metavar="R",
            help=f"penalty: add R times the sum of {term} to the loss",
        )
    add(
        "--dropout", type=number, default=0.0, metavar="P",
        help="share of hidden outputs that each step drops",
    )
    add(
        "--clip-norm", type=number, metavar="R",
        help="clip the gradient to this Euclidean norm",
    )
    add(
        "--clip-value", type=number, metavar="R",
        help="clip each element of the gradient to this absolute value",
    )
    population.add_arguments(
        sub.add_argument_group("many trainings at once").add_argument, count
    )
    long_training.add_arguments(
        sub.add_argument_group("long trainings").add_argument, count
    )
    mpi.add_arguments(sub.add_argument_group("several processes").add_argument, count)
    add = sub.add_argument_group("output").add_argument
    add(
        "--save", metavar="NET",
        help=f"write the network to a file: {', '.join(NETWORK_SUFFIXES)}",
    )
    add(
        "--plot", metavar="FILE",
        help=f"draw the learning curve: {', '.join(PICTURES)}",
    )


def run(arguments: argparse.Namespace) -> int:
    """Train a network, and print the results."""
    from clnet.runtime.ranks import joined

    many = population.asked(arguments)
    comm = mpi.communicator(arguments)
    if many:
        if comm is not None:
            raise InputError(
                "many networks train in one process, and mpiexec has started several"
            )
        return population.run(arguments, *_prepared(arguments))
    with joined(comm, "clnet train") as ranks:
        draws = arguments.data != DIGITS
        if ranks is None:
            resume = long_training.prepare(arguments, draws)
            return _trained(arguments, resume, *_prepared(arguments))

        def started() -> tuple[Path | None, int | None]:
            resume = long_training.prepare(arguments, draws)
            return resume, long_training.seed(arguments) if draws else arguments.seed

        resume, arguments.seed = ranks.from_first(started)
        prepared = ranks.together(lambda: _prepared(arguments))
        return _trained(arguments, resume, *prepared, comm)


def _prepared(
    arguments: argparse.Namespace
) -> tuple[tuple[Device, ...], Network, dict[str, Samples], dict[str, Any]]:
    """Return the devices, the network, the data, and arguments of `Network.fit`."""
    from clnet.cli.commands import devices_of
    from clnet.opencl.discovery import device_list
    from clnet.training.callbacks import Callback, EarlyStopping

    demo = arguments.data == DIGITS
    if not demo and "." not in arguments.data and nearest(arguments.data, [DIGITS]):
        raise InputError(f"there is no file {arguments.data}: did you mean {DIGITS}?")
    network = None
    if arguments.network is not None:
        if arguments.layers is not None:
            raise InputError("give either --layers or --network, not both")
        network = load(arguments.network, memory_limit=arguments.memory_limit)
    columns = None if network is None else network.columns
    training, test = digits.shuffled(arguments) if demo else _files(arguments, columns)
    network, scale = network_of(arguments, training, network)
    for path, samples in ((arguments.data, training), (arguments.validation, test)):
        if samples is not None:
            check_labels(path, samples, network.classes)
    _check_targets(arguments, network)
    devices = device_list(devices_of(arguments.device))
    if arguments.patience is not None and test is None:
        raise InputError("--patience needs a validation set: give --validation")
    callbacks: list[Callback] = [] if arguments.json else [_Report()]
    if arguments.patience is not None:
        callbacks.append(EarlyStopping(patience=arguments.patience))
    callbacks += long_training.callbacks(arguments)
    # After each epoch a test set is measured for a plot or for early stopping alone.
    watched = not demo or arguments.plot is not None or arguments.patience is not None
    sets = {"training": training}
    if test is not None:
        sets["test" if demo else "validation"] = test
    return devices, network, sets, {
        "optimiser": _optimiser(arguments, network, len(training)),
        "loss": arguments.loss, "epochs": arguments.epochs or EPOCHS,
        "max_neurons": arguments.max_neurons,
        "batch_size": arguments.batch_size, "seed": arguments.seed,
        "desired_error": arguments.desired_error, "stop": arguments.stop,
        "validation": _validation(test) if watched else None,
        "buffer": arguments.buffer,
        "schedule": arguments.schedule, "l1": arguments.l1, "l2": arguments.l2,
        "clip_norm": arguments.clip_norm, "clip_value": arguments.clip_value,
        "callbacks": callbacks, "progress": sys.stderr.isatty(), "scale": scale,
        "precision": arguments.precision, "tune": True if arguments.tune else None,
        "sample_weight": (
            None if arguments.class_weight is None else training.balanced_weights()
        ),
    }


def _validation(data: Samples | None) -> Any:
    """Return the argument `validation` of `Network.fit`."""
    if data is None:
        return None
    return data.arguments if data.source is None else data.source


def _trained(
    arguments: argparse.Namespace, resume: Path | None, devices: tuple[Device, ...],
    network: Network, sets: dict[str, Samples], options: dict[str, Any],
    comm: Any = None,
) -> int:
    """Train the network; rank 0 prints the results."""
    from clnet.cli.commands import devices_of, unused_scaling
    from clnet.planning.predictions import Prediction, evaluate

    training, scale = sets["training"], options["scale"]
    alone = comm is None and len(devices) == 1
    history = network.fit(
        *training.arguments, resume=resume, comm=comm,
        blocks=mpi.blocks_of(arguments),
        device=(
            devices[0] if alone else
            None if comm is None else devices_of(arguments.device)
        ),
        devices=devices if comm is None and not alone else None, **options,
    )
    if comm is not None and comm.Get_rank() > 0:
        return 0
    if arguments.save is not None:
        network.save(arguments.save)
    if arguments.plot is not None:
        history.plot(arguments.plot)
    rows: list[tuple[str, object]] = [
        *(("device", f"{device.index} {device.name}") for device in devices),
        *([] if comm is None else [("ranks", comm.Get_size())]),
        ("network", "-".join(str(n) for n in network.sizes)),
        *([] if resume is None else [("resumed", resume)]),
        ("stopped", history.stopped),
    ]
    seconds = sum(epoch.seconds for epoch in history)
    if len(history):
        mean = seconds / len(history) * 1e3
        rows.append(("time", f"{seconds:.3g} s, {mean:.3g} ms an epoch"))
    scaling = network.scaling if scale else None
    how = Prediction(network._plans, devices[0], scaling, buffer=arguments.buffer)
    results = {
        name: evaluate(how, *samples.arguments, auc=True)
        for name, samples in sets.items()
    }
    if arguments.json:
        json_output.show({
            "devices": [f"{device.index} {device.name}" for device in devices],
            "ranks": 1 if comm is None else comm.Get_size(),
            "network": network.sizes, "classes": network.classes, "scaled": scale,
            "stopped": history.stopped, "epochs": len(history), "seconds": seconds,
            "loss": [epoch.loss for epoch in history],
            **{
                name: {
                    "samples": len(sets[name]), "table": sets[name].notes,
                    **json_output.figures(found),
                }
                for name, found in results.items()
            },
            "written": arguments.save, "drawn": arguments.plot,
        })
        return 0
    for name, samples in sets.items():
        found = results[name]
        figures = evaluation_rows(found, len(samples) * network.n_out)
        rows += [(name, f"{len(samples)} samples"), *table_rows(samples.notes)]
        rows += [(f"  {figure}", value) for figure, value in figures]
    for label, path in (("written", arguments.save), ("drawn", arguments.plot)):
        if path is not None:
            rows.append((label, path))
    if network.scaling is not None and not scale:
        rows.append(("note", unused_scaling(arguments.network)))
    columns = training.columns
    free = output_middles(network) == (None,) and not counts(arguments)
    if columns and free and training.might_be_classes:
        rows.append(("note", (
            f"{quoted(columns.targets[0])} holds few whole numbers and was trained as "
            "a number: for classes name it by --categories too"
        )))
    print(pairs(rows))
    for text in class_texts(found, network):
        print(f"\n{text}")
    return 0


def _check_targets(arguments: argparse.Namespace, network: Network) -> None:
    """Raise before the training if its results could not be written after it."""
    if arguments.save is not None:
        check_save(network, arguments.save)
    if arguments.plot is not None:
        picture_file(arguments.plot)
        figure()  # raises if matplotlib is missing


class _Report:
    """Prints epochs 1, 2, 5, 10, 20, 50 and so on, if there is no progress bar."""

    def __call__(self, training: Training, epoch: Epoch) -> None:
        digits = str(epoch.number)
        if not sys.stderr.isatty() and re.fullmatch("[125]0*", digits):
            print(
                f"epoch {epoch.number}: loss {epoch.loss:.4g}, MSE {epoch.mse:.4g}, "
                f"bit fail {epoch.bit_fail}", flush=True,
            )


def _files(
    arguments: argparse.Namespace, columns: Columns | None
) -> tuple[Samples, Samples | None]:
    """Return the training set, and the validation set if there is one."""
    share = _share(arguments.validation)
    data = _file(arguments, arguments.data, columns)
    if share is None:
        other = arguments.validation
        return data, None if other is None else _file(arguments, other, data.columns)
    if data.source is not None:
        raise InputError(
            f"--validation {arguments.validation} is of data that fit in the buffer, "
            f"which {arguments.data} do not: give a file, or a larger --buffer"
        )
    size = round(share * len(data))
    if not 0 < size < len(data):
        raise InputError(
            f"--validation {arguments.validation} of the {len(data)} samples of "
            f"{arguments.data} leaves an empty training or validation set"
        )
    order = np.random.default_rng(arguments.seed).permutation(len(data))
    return data.subset(order[size:], data.notes), data.subset(order[:size])


def _share(text: str | None) -> float | None:
    """Return the number between 0 and 1 of a text; None: the text names a file."""
    try:
        share = float(text or "")
    except ValueError:
        return None
    if 0 < share < 1:
        return share

    raise InputError(f"--validation is {text}, expected a file or a share, as in 0.2")


def _file(
    arguments: argparse.Namespace, path: str, columns: Columns | None
) -> Samples:
    scaled = arguments.target is not None or columns is not None or scales(arguments)
    samples = read(arguments, path, "float64" if scaled else "float32", columns)
    if not samples.t.size:
        raise InputError(
            f"{path} has no targets to train on: see --target and --outputs"
        )
    return samples


def _optimiser(
    arguments: argparse.Namespace, network: Network, samples: int
) -> str | Optimiser:
    """Return the optimiser, with the learning rate if one is given."""
    from dataclasses import fields, replace

    from clnet.training.options import rule_of

    name = arguments.optimiser or default_optimiser(
        network, samples, arguments.batch_size
    )
    if name == CASCADE:
        for option, instead in (
            ("rate", "leave it out"), ("epochs", "give --max-neurons")
        ):
            if getattr(arguments, option) is not None:
                raise InputError(f"{CASCADE} has no --{option}: {instead}")
    if arguments.rate is None:
        return str(name)
    rule = rule_of(network, name)
    if "learning_rate" not in {field.name for field in fields(rule)}:
        raise InputError(f"{rule.name} has no learning rate: leave out --rate")
    return replace(rule, learning_rate=arguments.rate)  # type: ignore[call-arg]
