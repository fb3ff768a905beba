"""``clnet train``: train a network on a data file, or on handwritten digits."""

from __future__ import annotations

import argparse
import os
import re
import sys
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.cli import json_output, population
from clnet.cli.new_network import counts, network_of, scales
from clnet.cli.samples import (
    TABLE_OPTIONS,
    FileSamples,
    check_labels,
    read,
    unused_scaling,
)
from clnet.cli.summary import (
    class_texts,
    device_rows,
    devices_of,
    file_rows,
    pairs,
    set_fields,
    set_rows,
)
from clnet.errors import ClnetError, InputError, nearest, quoted
from clnet.formats import TRAINING_SUFFIX, check_save
from clnet.formats.pictures import figure, picture_file
from clnet.network import Network, load
from clnet.nn.activations import SOFTMAX
from clnet.nn.defaults import BLOCKS, EPOCHS, default_optimiser
from clnet.nn.labels import output_middles
from clnet.nn.optimisers import CASCADE, Adam

if TYPE_CHECKING:
    from clnet.nn.columns import Columns
    from clnet.nn.optimisers import Optimiser
    from clnet.opencl.device import Device
    from clnet.training.callbacks import Callback, Training
    from clnet.training.history import Epoch

DIGITS = "digits"  # a data set, with defaults of its own
DIGITS_LAYERS, DIGITS_RATE, DIGITS_EPOCHS = "64-128-10", 3e-3, 40
DIGITS_TEST = 360  # samples of the test set
SEEDS = 1 << 32  # of which one is drawn
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
"""Variables by which launchers tell the number of ranks: those of MPICH and its kin,
and Open MPI's."""
ANY = "any"
FIT = (  # options that are arguments of `Network.fit` as they are
    "loss", "max_neurons", "batch_size", "seed", "desired_error", "stop", "buffer",
    "schedule", "l1", "l2", "clip_norm", "clip_value", "precision",
)


def run(arguments: argparse.Namespace) -> int:
    """Train a network, and print the results."""
    from clnet.runtime.ranks import joined

    many = population.asked(arguments)
    comm = communicator(arguments)
    if many and comm is not None and arguments.population is None:
        error = InputError(
            "folds train in one process, and mpiexec has started several"
        )
        error.rank = comm.Get_rank()  # rank 0 prints it
        raise error
    with joined(comm, "clnet train") as ranks:
        draws = arguments.data != DIGITS

        def started() -> tuple[Path | None, int | None]:
            resume = checkpoint(arguments, draws)
            if many:  # the networks' seeds begin there
                return resume, arguments.seed or 0
            return resume, _seed(arguments) if draws else arguments.seed

        if ranks is None:
            resume, prepared = checkpoint(arguments, draws), _prepared(arguments)
        else:
            resume, arguments.seed = ranks.from_first(started)
            prepared = ranks.together(lambda: _prepared(arguments))
        if many:
            return population.run(arguments, *prepared, comm)
        return _trained(arguments, resume, *prepared, comm)


def _prepared(
    arguments: argparse.Namespace
) -> tuple[tuple[Device, ...], Network, dict[str, FileSamples], dict[str, Any]]:
    """Return the devices, the network, the data, and arguments of `Network.fit`."""
    from clnet.opencl.discovery import device_list

    demo = arguments.data == DIGITS
    if not demo and "." not in arguments.data and nearest(arguments.data, [DIGITS]):
        raise InputError(f"there is no file {arguments.data}: did you mean {DIGITS}?")
    network = None
    if arguments.network is not None:
        if arguments.layers is not None:
            raise InputError("give either --layers or --network, not both")
        network = load(arguments.network, memory_limit=arguments.memory_limit)
    columns = None if network is None else network.columns
    training, test = shuffled_digits(arguments) if demo else _files(arguments, columns)
    network, scale = network_of(arguments, training, network)
    for path, samples in ((arguments.data, training), (arguments.validation, test)):
        if samples is not None:
            check_labels(path, samples, network.classes)
    _check_targets(arguments, network)
    devices = device_list(devices_of(arguments.device))
    if arguments.patience is not None and test is None:
        raise InputError("--patience needs a validation set: give --validation")
    # After each epoch a test set is measured for a plot or for early stopping alone.
    watched = not demo or arguments.plot is not None or arguments.patience is not None
    sets = {"training": training}
    if test is not None:
        sets["test" if demo else "validation"] = test
    return devices, network, sets, {
        **{name: getattr(arguments, name) for name in FIT},
        "optimiser": _optimiser(arguments, network, len(training)),
        "epochs": arguments.epochs or EPOCHS,
        "validation": test.validation if test is not None and watched else None,
        "callbacks": callbacks(arguments), "progress": sys.stderr.isatty(),
        "scale": scale, "tune": True if arguments.tune else None,
        "sample_weight": (
            None if arguments.class_weight is None else training.balanced_weights()
        ),
    }


def _trained(
    arguments: argparse.Namespace, resume: Path | None, devices: tuple[Device, ...],
    network: Network, sets: dict[str, FileSamples], options: dict[str, Any],
    comm: Any = None,
) -> int:
    """Train the network; rank 0 prints the results."""
    from clnet.planning.predictions import Prediction, evaluate

    training, scale = sets["training"], options["scale"]
    alone = comm is None and len(devices) == 1
    history = network.fit(
        *training.arguments, resume=resume, comm=comm,
        blocks=blocks_of(arguments),
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
        *device_rows(devices),
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
    how = Prediction(
        network, network._plans, devices[0], scaling, buffer=arguments.buffer
    )
    results = {
        name: evaluate(how, *samples.arguments, auc=True)[0]
        for name, samples in sets.items()
    }
    if arguments.json:
        json_output.show({
            "devices": [name for _, name in device_rows(devices)],
            "ranks": 1 if comm is None else comm.Get_size(),
            "network": network.sizes, "classes": network.classes, "scaled": scale,
            "stopped": history.stopped, "epochs": len(history), "seconds": seconds,
            "loss": [epoch.loss for epoch in history],
            **set_fields(results, sets),
            "written": arguments.save, "drawn": arguments.plot,
        })
        return 0
    rows += [*set_rows(results, sets, network.n_out), *file_rows(arguments)]
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
    for text in class_texts(list(results.values())[-1], network):
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
) -> tuple[FileSamples, FileSamples | None]:
    """Return the training set, and the validation set if there is one."""
    share = _share(arguments.validation)
    data = _file(arguments, arguments.data, columns)
    if share is None:
        path = arguments.validation
        return data, None if path is None else _file(arguments, path, data.columns)
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
) -> FileSamples:
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


def shuffled_digits(arguments: argparse.Namespace) -> tuple[FileSamples, FileSamples]:
    """Return the shuffled digits for training and test; set default arguments."""
    for option in ("validation", "outputs", *TABLE_OPTIONS):
        if getattr(arguments, option) is not None:
            raise InputError(f"{DIGITS} has its own test set: leave out --{option}")
    images, labels = images_and_labels()
    order = np.random.default_rng(0).permutation(len(labels))
    x = (images[order] / images.max()).astype(np.float32)
    t: NDArray[Any] = np.eye(10, dtype=np.float32)[labels[order]]
    if arguments.network is None and arguments.optimiser != CASCADE:
        arguments.layers = arguments.layers or DIGITS_LAYERS
        arguments.output = arguments.output or SOFTMAX
        if arguments.hidden is None and arguments.layers.count("-") > 1:
            arguments.hidden = "relu"
    if arguments.optimiser is None:
        arguments.optimiser = Adam.name
        arguments.rate = arguments.rate or DIGITS_RATE
        arguments.epochs = arguments.epochs or DIGITS_EPOCHS
        arguments.seed = 0 if arguments.seed is None else arguments.seed
    n = DIGITS_TEST
    return FileSamples(x[n:], t[n:]), FileSamples(x[:n], t[:n])


def images_and_labels() -> tuple[NDArray[Any], NDArray[Any]]:
    """Return scikit-learn's images [1797, 64] of digits, and their labels.

    Its file is read: to import scikit-learn takes longer than the training.
    """
    package = find_spec("sklearn")
    if package is None:
        raise ClnetError(
            f"{DIGITS} needs scikit-learn, which is not installed: pip install "
            "scikit-learn, or with clnet: pip install 'clnet[demo]'"
        )
    for folder in package.submodule_search_locations or ():
        path = Path(folder, "datasets", "data", "digits.csv.gz")
        if path.is_file():
            rows = np.loadtxt(path, delimiter=",")
            return rows[:, :-1], rows[:, -1].astype(int)
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return images, labels


def checkpoint(arguments: argparse.Namespace, draws: bool) -> Path | None:
    """Return the checkpoint to resume from, or None; set the seed.

    A validation set may be drawn by the seed: the training that resumes has the one of
    the checkpoint.
    """
    for option in ("resume", "checkpoint_every"):
        if getattr(arguments, option) and arguments.checkpoint is None:
            name = option.replace("_", "-")
            raise InputError(f"--{name} needs a file: give --checkpoint FILE")
    if arguments.checkpoint is None:
        return None
    path = Path(arguments.checkpoint)
    if path.suffix.lower() != TRAINING_SUFFIX:
        raise InputError(
            f"--checkpoint is {path}, expected a {TRAINING_SUFFIX} file: others hold "
            "no training"
        )
    if arguments.resume and path.exists():
        from clnet.training.saved import SavedTraining

        if arguments.seed is None:
            arguments.seed = SavedTraining.load(path).state.seed
        return path
    if draws:
        arguments.seed = _seed(arguments)
    return None


def _seed(arguments: argparse.Namespace) -> int:
    """Return the seed, drawn if none is given."""
    if arguments.seed is None:
        return int(np.random.default_rng().integers(SEEDS))
    return int(arguments.seed)


def callbacks(arguments: argparse.Namespace) -> list[Callback]:
    """Return the callbacks that report, stop, and write files."""
    from clnet.training.callbacks import (
        Checkpoint,
        CSVLogger,
        EarlyStopping,
        TensorBoard,
    )

    listed: list[Callback] = [] if arguments.json else [_Report()]
    if arguments.patience is not None:
        listed.append(EarlyStopping(patience=arguments.patience))
    if arguments.curve is not None:
        listed.append(CSVLogger(arguments.curve))
    if arguments.tensorboard is not None:
        listed.append(TensorBoard(arguments.tensorboard))
    if arguments.checkpoint is not None:
        listed.append(Checkpoint(arguments.checkpoint, arguments.checkpoint_every or 1))
    return listed


def communicator(arguments: argparse.Namespace) -> Any:
    """Return the communicator of all ranks; None: this process is alone."""
    sizes = [os.environ.get(name, "") for name in SIZES]
    if not arguments.mpi and not any(
        size.isdecimal() and int(size) > 1 for size in sizes
    ):
        if arguments.blocks is not None:
            raise InputError("--blocks needs ranks of MPI: give --mpi")
        return None
    if find_spec("mpi4py") is None:
        raise InputError(
            "ranks of MPI need mpi4py, which is not installed: pip install 'clnet[mpi]'"
        )
    from mpi4py import MPI

    return MPI.COMM_WORLD


def blocks_of(arguments: argparse.Namespace) -> int | None:
    """Return the argument `blocks` of `Network.fit`."""
    if arguments.blocks == ANY:
        return None
    return BLOCKS if arguments.blocks is None else int(arguments.blocks)
