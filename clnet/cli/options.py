"""The commands and their options, as tables: an option, its metavariable, its help.

A metavariable tells the type: see `TYPES`. `main` makes the parser of them.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from clnet.checks import PRECISIONS, check_name
from clnet.cli import bench, commands, train
from clnet.cli.commands import LARGEST_BATCH
from clnet.cli.new_network import ACTIVATION, HIDDEN
from clnet.cli.population import FOLDS, SHOWN
from clnet.cli.train import ANY, DIGITS
from clnet.errors import InputError
from clnet.formats import (
    NETWORK_SUFFIXES,
    TABLE_SUFFIXES,
    TRAINING_SUFFIX,
)
from clnet.formats.delimited import DECIMALS
from clnet.formats.named_table import MISSING, UNKNOWN
from clnet.formats.opening import SOURCE_SUFFIXES
from clnet.formats.pictures import PICTURES
from clnet.formats.sources import BUFFER
from clnet.nn.activations import ACTIVATION_NAMES
from clnet.nn.defaults import BLOCKS, EPOCHS, MAX_NEURONS
from clnet.nn.description import DTYPES
from clnet.nn.fann_parameters import STOP_FUNCTIONS
from clnet.nn.initialisers import INITIALISER_NAMES
from clnet.nn.layers import Dense
from clnet.nn.losses import LOSSES
from clnet.nn.optimisers import CASCADE, FANN, MINI_BATCH, OPTIMISER_NAMES, Adam, Rprop
from clnet.nn.schedules import SCHEDULES

TUNED_BATCHES = "1,32"

Row = tuple[str, str] | tuple[str, str, Mapping[str, Any]]
"""An option and its metavariable, its help, and further arguments of `add_argument`."""


def whole(text: str) -> int:
    """Return the whole number of an option."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number")
    return int(text)


def count(text: str) -> int:
    """Return the whole number, of at least 1, of an option."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected a whole number of at least 1"
        )
    return int(text)


def counts(text: str) -> list[int]:
    """Return the whole numbers of an option."""
    return [count(item) for item in text.split(",")]


def number(text: str) -> float:
    """Return the number of an option."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected a number"
        ) from None


def names(text: str) -> Sequence[str]:
    """Return the names of an option."""
    listed = [name.strip() for name in text.split(",")]
    if not all(listed):
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected names separated by commas"
        )
    return listed


def _blocks(text: str) -> str | int:
    return text if text == ANY else count(text)


def _grid(text: str) -> tuple[str, list[Any]]:
    """Return the name and values of a text as ``l2=0,1e-4``."""
    from clnet.training.fit_options import EACH

    name, _, values = text.partition("=")
    listed = [value.strip() for value in values.split(",")]
    if not all(listed):
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected a name and values, as in learning_rate=0.01,0.1"
        )
    name = name.strip().replace("-", "_")
    try:
        check_name("argument of a grid", name, EACH)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return name, [_value(value) for value in listed]


def _value(text: str) -> Any:
    """Return the number of a text, or the text."""
    for type_ in (int, float):
        with suppress(ValueError):
            return type_(text)
    return text


TYPES: Mapping[str, Callable[[str], Any]] = {
    "N": count, "K": count, "BYTES": count, "N,N": counts, "R": number, "E": number,
    "P": number, "LOW HIGH": number, "A,B": names, "COLUMN": names,
    f"N|{ANY}": _blocks, "NAME=V,V": _grid,
}


def add_options(
    add: Callable[..., argparse.Action], rows: Sequence[Row]
) -> list[argparse.Action]:
    """Add options by ``add_argument``; one without a metavariable is a flag."""
    actions = []
    for spec, text, *more in rows:
        option, _, metavar = spec.partition(" ")
        arguments: dict[str, Any] = {"help": text}
        if metavar:
            arguments["metavar"] = metavar
            arguments["type"] = TYPES.get(metavar)
            if " " in metavar:
                arguments |= {"nargs": 2, "metavar": tuple(metavar.split())}
        arguments |= dict(*more)
        if option.startswith("-") and not arguments.keys() & {
            "metavar", "choices", "action"
        }:
            arguments["action"] = "store_true"
        actions.append(add(option, **arguments))
    return actions


def _suffixes(*suffixes: str) -> str:
    """Return suffixes in lines of the column of the help."""
    return f"\n{24 * ' '}".join(textwrap.wrap(", ".join(suffixes), 68))


NETWORKS, SOURCES = _suffixes(*NETWORK_SUFFIXES), _suffixes(*SOURCE_SUFFIXES)
PRECISION: Row = (
    "--precision", "precision of products in float32 networks: that of float32, TF32 "
    "or bfloat16; default: %(default)s",
    {"choices": PRECISIONS, "default": PRECISIONS[0]},
)
JSON: Row = ("--json", "print one JSON object for scripts, and nothing else, on stdout")
MEMORY: Row = (
    "--memory-limit BYTES",
    "bytes that a file may unpack to; default: 64 MiB, and 16 times its size",
)
BUFFERED: Row = (
    "--buffer BYTES", f"memory for samples: {', '.join(SOURCE_SUFFIXES)} files of more "
    f"numbers are read by parts; default: {BUFFER >> 20} MiB", {"type": whole},
)
NETWORK: Row = ("network NET", f"a network: {NETWORKS}")


def _device(several: bool = False, fastest: bool = False) -> Row:
    return (
        "--device NAME",
        '"cpu", "gpu", part of a name, or an index; default: the best device'
        + several * '; "all" or several, separated by commas, share the samples'
        + fastest * '; "fastest": the fastest one, measured',
    )


def _steps(verb: str) -> tuple[Row, Row]:
    return (
        ("--training OPTIMISER",
         f"{verb} a training step of N samples with this optimiser instead"),
        ("--population N",
         f"{verb} a step of N networks of this shape that train together, with "
         "--training; --batch samples a step"),
    )


TABLES: tuple[Row, ...] = (
    ("--target A,B",
     "columns to predict, by name, or by number: from 1, or -1 for the last; by number "
     "also of .npy and HDF5. A column of text is of classes"),
    ("--categories A,B",
     "columns of categories: each category becomes an input of its own, or the "
     "target's classes; by default those of text and booleans"),
    ("--ignore A,B", "columns to leave out"),
    ("--index COLUMN",
     "the column that numbers the samples, to leave out; default: those that pandas "
     "writes, without a name, Unnamed: 0 or __index_level_0__"),
    ("--no-index", "no column numbers the samples",
     {"dest": "index", "action": "store_const", "const": []}),
    ("--dates A,B", "columns of dates, as 2020-12-31, which become days since 1970"),
    ("--missing", "missing numbers, as NA, become the mean of the training, with an "
     f"input that is 1 there, or are refused; default: {MISSING[0]}",
     {"choices": MISSING}),
    ("--unknown", "categories that the training did not have make no input 1, or are "
     f"refused; default: {UNKNOWN[0]}", {"choices": UNKNOWN}),
    ("--header",
     "whether the first line of a text file holds names; default: it is found",
     {"action": argparse.BooleanOptionalAction, "default": None}),
    ("--separator C",
     "the character between cells, as ';' or tab; default: it is found"),
    ("--decimal", "the character before a fraction; default: it is found",
     {"choices": DECIMALS}),
    ("--outputs N",
     "without names: the last N columns are targets, all of numbers; default: the "
     "columns named t, t0, t1, … or target…", {"type": whole}),
)
SAMPLES: tuple[Row, ...] = (
    NETWORK, ("data DATA", "a data file"), _device(True, True), PRECISION,
    ("--batch N", f"samples a call; default: all, at most {LARGEST_BATCH}"),
    ("--scale", "scale inputs and descale outputs by the network's scaling parameters; "
     "a network that knows its columns always does"),
    BUFFERED,
)
NEW_NETWORK: tuple[Row, ...] = (
    ("--layers N-N-N", "inputs, then neurons of each layer, as in 125-32-2; default: a "
     f"hidden layer of {HIDDEN}"),
    ("--network NET",
     "train this network instead; a .net file also has training parameters"),
    ("--hidden NAME", f"activation of the hidden layers: {', '.join(ACTIVATION_NAMES)};"
     f" default: {ACTIVATION}"),
    ("--output NAME",
     "activation of the last layer, one of the same; default: that of the loss; "
     "softmax for columns of classes, sigmoid for targets 0 and 1, tanh for -1 and 1, "
     "identity for other numbers"),
    ("--initialiser NAME", f"draw the weights: {', '.join(INITIALISER_NAMES)}; "
     f"default: {Dense.initialiser}, or with --network those of its file"),
    ("--scale LOW HIGH",
     "scale each input: map one standard deviation around its mean to this range; "
     "saved with the network; default with columns by name: -1 1"),
    ("--scale-outputs LOW HIGH",
     "scale the targets likewise: for regression, not for classes; default with "
     "--target and an unbounded output: -1 1"),
    ("--no-scale", "scale nothing with --target either"),
)
TRAINING: tuple[Row, ...] = (
    ("--optimiser NAME", f"{', '.join(OPTIMISER_NAMES)}; {FANN}: by the parameters of "
     f"a .net file; {CASCADE}: add neurons to a network without hidden layers; "
     f"default: {FANN} with a .net file, else {Adam.name}, or {Rprop.name} where a "
     "step takes all samples"),
    ("--rate R", "learning rate"),
    ("--schedule NAME", f"decay of the learning rate: {', '.join(SCHEDULES)}"),
    ("--loss NAME", ", ".join(
        row.name + f" (for {row.activation})" * bool(row.activation)
        for row in LOSSES.values()
    ) + "; default: by the last layer's activation"),
    ("--class-weight",
     "weigh samples so that all classes weigh alike, as by scikit-learn",
     {"choices": ("balanced",)}),
    ("--epochs N", f"default: {EPOCHS}"),
    ("--max-neurons N",
     f"neurons that {CASCADE} adds at most; default: {MAX_NEURONS}"),
    ("--batch-size N", f"samples a step; default: {MINI_BATCH}; of FANN's rules one "
     "for incremental, all for the others"),
    ("--desired-error E", "stop at this error or below"),
    ("--stop NAME", f"the error of --desired-error: {' or '.join(STOP_FUNCTIONS)}; "
     f"default: that of a .net file, else {STOP_FUNCTIONS[0]}",
     {"choices": STOP_FUNCTIONS}),
    ("--seed N", "seed of weights, order of samples and dropout", {"type": whole}),
    ("--tune", "measure all candidates first, however short the training"),
)
REGULARISATION: tuple[Row, ...] = (
    ("--validation FILE|P", "validation data, measured after each epoch: a file, or a "
     "share of DATA, as in 0.2"),
    ("--patience N", "stop when the validation loss has not improved for N epochs, and "
     "restore the best parameters"),
    ("--l1 R", "penalty: add R times the sum of |w| to the loss", {"default": 0.0}),
    ("--l2 R", "penalty: add R times the sum of w^2 to the loss", {"default": 0.0}),
    ("--dropout P", "share of hidden outputs that each step drops", {"default": 0.0}),
    ("--clip-norm R", "clip the gradient to this Euclidean norm"),
    ("--clip-value R", "clip each element of the gradient to this absolute value"),
)
MANY: tuple[Row, ...] = (
    ("--population N",
     "train N networks of this shape together, from the weights of seeds 0 to N - 1 or "
     "--seed upwards; show their spread, and save the best: by the loss of "
     "--validation, else of the training"),
    ("--folds K",
     "cross-validation: K trainings, each without one of K parts, and their scores on "
     f"it; default with --grid: {FOLDS}"),
    ("--grid NAME=V,V",
     "cross-validate each value of an argument of fit, as in learning_rate=0.01,0.1; "
     f"with several --grid all combinations. Shows the best {SHOWN}; the best of all "
     "is trained on all samples, for --save", {"action": "append"}),
    ("--report FILE.html",
     "write a page with all learning curves as a band, and a table of the networks: "
     "with --population, --folds or --grid"),
)
LONG: tuple[Row, ...] = (
    ("--checkpoint FILE", f"save the training to a {TRAINING_SUFFIX} file as it goes: "
     "the network, the optimiser's state, the order of samples and the epochs so far"),
    ("--checkpoint-every N", "epochs between two saves; default: 1"),
    ("--resume", "go on from the --checkpoint FILE if it is there, to the same end as "
     "without the interruption: --epochs counts those before too"),
    ("--curve FILE",
     "write the learning curve to a .csv file: a row an epoch, all measures"),
    ("--tensorboard DIR", "write the learning curve to a folder for TensorBoard"),
)
PROCESSES: tuple[Row, ...] = (
    ("--mpi", "share each step among the ranks of MPI; default: if mpiexec has started "
     "several"),
    (f"--blocks N|{ANY}", "with MPI, blocks of a step, a power of two: results have "
     f"the same bits on any number of ranks; {ANY}: one a rank, in MPI's order of "
     f"sums; default: {BLOCKS}"),
)
WRITTEN: tuple[Row, ...] = (
    ("--save NET", f"write the network to a file: {', '.join(NETWORK_SUFFIXES)}"),
    ("--plot FILE", f"draw the learning curve: {', '.join(PICTURES)}"),
)
STUDIES: tuple[Row, ...] = (
    ("--table A,B", "only these tables of the study", {"dest": "tables"}),
    ("--case A,B", 'only these cases, as in "config-*"', {"dest": "cases"}),
    ("--variants A,B", 'only these variants of clnet, or "none"'),
    ("--baselines A,B", 'only these baselines, or "none"'),
    ("--basis A,B", "clocks: wall (host to host), stream (calls back to back), device "
     "(device events), busy (kernels only), arrays (of the device)",
     {"dest": "bases"}),
    ("--precision A,B", f"precision of products: {', '.join(PRECISIONS)}; default: "
     f"{PRECISIONS[0]}", {"dest": "precisions"}),
    ("--batch N,N", "samples a call; default: those of the study",
     {"dest": "batches"}),
    ("--data DIR", "folder of FANN's data sets"),
    ("--fann-library FILE", "FANN's library; default: the system's"),
    ("--tune", "measure all configurations of clnet's kernels first"),
    ("--resume", "keep the rows of this device and these versions in the file"),
    ("--model",
     "scaling: predict the times of 1 to 1024 ranks by the file's rows"),
    ("--rows CSV", "show the rows of a file; measure nothing"),
    ("--out DIR", "output folder; default: that of --rows, else benchmarks/results in "
     "the working directory"),
)
EFFORTS: tuple[Row, ...] = tuple(
    (f"--{effort}", text, {
        "dest": "effort", "action": "store_const", "const": effort, "default": "normal",
    })
    for effort, text in (
        ("quick", "fewer cases and rounds: about two minutes on two cores"),
        ("full", "include slow candidates, with more rounds"),
    )
)


class Subcommand(NamedTuple):
    """A command of the command line."""

    run: Callable[[argparse.Namespace], int]  # Returns the exit status
    summary: str  # A line of the list of commands
    text: str  # The description
    examples: Sequence[str]
    rows: Sequence[Row]  # Options, and those of each group by its title
    groups: Mapping[str, Sequence[Row]] = {}
    choice: Sequence[Row] = ()  # Options of which one at most is given
    defaults: Mapping[str, Any] = {}


_TABLES = {f"tables ({', '.join(TABLE_SUFFIXES)})": TABLES}

COMMANDS: Mapping[str, Subcommand] = {
    "devices": Subcommand(
        commands.devices, "list the OpenCL devices, best first",
        "List the OpenCL devices of this machine, best first, with notes on each. The "
        "first one is the default of other commands.",
        ["clnet devices"],
        (
            ("--device NAME", "list one alone, named as for other commands, or "
             "several, separated by commas; default: all"),
            ("--measure", "measure the rates by which clnet plans, and store them"),
            ("--plot FILE",
             f"draw the measured rates as rooflines: {', '.join(PICTURES)}"),
            JSON,
        ),
    ),
    "doctor": Subcommand(
        commands.doctor, "examine the OpenCL set-up",
        "Examine the OpenCL set-up: the files that name drivers, the caches, and a "
        "kernel on every device. Report each fault and its cure.",
        ["clnet doctor"], (JSON,),
    ),
    "info": Subcommand(
        commands.info, "show the content of a network or data file",
        "Show the content of a file. Of a network: the layers, and FANN's training "
        "parameters if it has any. Of data: the samples, columns and ranges.",
        ["clnet info mushroom.net", "clnet info iris.csv --target species"],
        (("file FILE", "a network or data file"), MEMORY, JSON), _TABLES,
    ),
    "predict": Subcommand(
        commands.predict, "run a network on data",
        "Run a network on the inputs of a data file, and write its outputs, or the "
        "names of the classes. A network that was trained on a table by --target finds "
        "the columns by their names. Where the data have targets, the outputs are "
        "compared with these, as by clnet evaluate.",
        ["clnet predict mushroom.net mushroom.test.gz --out answers.csv",
         "clnet predict iris.safetensors new.csv --out answers.csv"],
        (
            *SAMPLES, MEMORY, JSON,
            ("--out FILE", "write the inputs and outputs to a data file; outputs take "
             "the place of targets, in .csv by the names of columns and classes; "
             ".npy: outputs alone"),
            ("--probabilities",
             "with --out to .csv: also the probability of each class, in a column"),
            ("--profile",
             "show the times of one call: upload, launch, device, download"),
            ("--trace FILE", "write a timeline of one call, which ui.perfetto.dev and "
             "chrome://tracing show: .json"),
        ),
        _TABLES, defaults={"evaluates": False},
    ),
    "evaluate": Subcommand(
        commands.predict, "compare a network's outputs with targets",
        "Run a network on the inputs of a data file and compare its outputs with the "
        "targets: the mean squared error, the number of errors of at least FANN's "
        "bit-fail limit; for classes the share of samples that are classified "
        "correctly, and a table of which are taken for which; for numbers MAE, RMSE "
        "and R².",
        ["clnet evaluate mushroom.net mushroom.test.gz",
         "clnet evaluate iris.safetensors test.csv --json"],
        (*SAMPLES, MEMORY, JSON), _TABLES,
        defaults={
            "evaluates": True, "out": None, "profile": False, "trace": None,
            "probabilities": False,
        },
    ),
    "train": Subcommand(
        train.run, "train a network on data",
        "Train a network on the samples of a data file, on the device, and compare its "
        "outputs with the targets. Ctrl-C stops the training and keeps the trained "
        "parameters.",
        [
            "clnet train digits",
            "clnet train iris.csv --target species --save iris.safetensors",
            "clnet train mushroom.train.gz --layers 125-32-2 --epochs 300 --save a.net",
            "clnet train prices.csv --target price --categories district --ignore id "
            "\\\n    --validation 0.2 --patience 20 --save prices.safetensors --plot "
            "curve.png",
            "clnet train iris.csv --target species --population 100 --validation 0.2",
            "clnet train iris.csv --target species --save best.safetensors \\\n"
            "    --folds 5 --grid learning_rate=0.001,0.01,0.1 --grid l2=0,1e-4",
        ],
        (
            ("data DATA",
             f'a data file; "{DIGITS}": scikit-learn\'s handwritten digits'),
            JSON, _device(several=True), PRECISION, BUFFERED, MEMORY,
        ),
        {
            "the network": NEW_NETWORK, "training": TRAINING,
            "against overfitting": REGULARISATION, "many trainings at once": MANY,
            "long trainings": LONG, "several processes": PROCESSES, "output": WRITTEN,
            **_TABLES,
        },
    ),
    "convert": Subcommand(
        commands.convert, "write a network or data in another format",
        "Read a network or data file and write it in another format, which the suffix "
        "selects. The new file is written completely or not at all.",
        ["clnet convert mushroom.net mushroom.safetensors"],
        (
            ("source A", "the file to read"), ("destination B", "the file to write"),
            ("--dtype", "type of the numbers, for files that do not hold it; default: "
             "float32 for .net, float64 for data", {"choices": DTYPES}),
            ("--outputs N", "for .csv: the last N columns are targets; default: the "
             "columns named t, t0, t1, … or target…", {"type": whole}),
            MEMORY, JSON,
        ),
    ),
    "explain": Subcommand(
        commands.explain, "show how a network would be run, and why",
        "Show the kernels that would run a network on a device, and the times of the "
        "best of the others; with --all those of all, and why some cannot run there.",
        ["clnet explain mushroom.net --device gpu --batch 32"],
        (
            NETWORK, _device(fastest=True), PRECISION,
            ("--batch N", "samples a call; default: %(default)s", {"default": 1}),
            *_steps("explain"), ("--tune", "measure all candidates first"),
            ("--all", "show all candidates and refusals, not a screen of them"),
            ("--plot FILE", "draw the chosen kernels beside those that lost, by their "
             f"times: {', '.join(PICTURES)}"),
            JSON, MEMORY,
        ),
    ),
    "tune": Subcommand(
        commands.tune, "measure all kernels for a network, and store the times",
        "Measure all kernels and configurations that can run a network on a device, "
        "for each batch size, and store the times. Later runs choose by them. With "
        "--training the kernels of training steps, of one network or of many.",
        ["clnet tune mushroom.net --batch 1,32,1024"],
        (
            ("network NET",
             f"a network: {NETWORKS}; none with --export or --import alone",
             {"nargs": "?"}),
            _device(), PRECISION,
            ("--export FILE", "write the stored times of the device to a file (JSON), "
             "as for others"),
            ("--import FILE", "plan by the times of such a file, where none of your "
             "own are stored", {"dest": "given"}),
            ("--batch N,N", "samples a call; several, separated by commas; default: "
             "%(default)s", {"default": TUNED_BATCHES}),
            *_steps("measure"), MEMORY, JSON,
        ),
    ),
    "bench": Subcommand(
        bench.run, "run a study: clnet's kernels against others",
        "Measure the cases of a study: clnet's kernels, the plan that clnet chooses, "
        "and other libraries. All results are checked before they are timed. Each row "
        "is appended to a CSV file. Without a study, list the studies.",
        bench.EXAMPLES,
        (_device(), ("study STUDY", bench.STUDY, {"nargs": "?"}), *STUDIES),
        choice=EFFORTS,
    ),
}
"""The commands, in the order of errors that list them."""
