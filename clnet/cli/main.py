"""The command line, ``clnet``.

Exit status: 0 success; 1 the doctor found a fault; 2 bad input, one sentence on stderr;
130 interrupted; 141 the reader of the output closed the pipe.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from clnet.errors import WIDTH, nearest, printable, unknown

TUNED_BATCHES = "1,32"
GROUPS: dict[str, tuple[str, ...]] = {
    "networks": ("train", "evaluate", "predict"),
    "files": ("info", "convert"),
    "speed": ("explain", "tune", "bench"),
    "the machine": ("devices", "doctor"),
}
"""The commands in the order of the help."""
FILES = ("NET", "DATA", "FILE", "FILE|P", "A", "B", "CSV")
"""Metavariables of arguments that are files."""
COMPLETE_FILES = {"bash": "_shtab_compgen_files", "zsh": "_files"}
"""How shells complete files, as `shtab.FILE`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    import warnings

    from clnet.errors import ClnetError, ClnetWarning, reason

    default = warnings.formatwarning
    arguments = argparse.Namespace(parser=None)

    def one_line(message: Any, category: type[Warning], *where: Any) -> str:
        if issubclass(category, ClnetWarning):
            return f"clnet: warning: {_in_options(str(message), arguments.parser)}\n"
        return default(message, category, *where)

    try:
        warnings.formatwarning = one_line  # type: ignore[assignment]  # fewer names
        arguments = _parsed(argv)
        status: int = arguments.run(arguments)
        if sys.stdout is not None:  # as of a process that was started without it
            sys.stdout.flush()
        return status
    except ClnetError as error:
        if error.rank:  # rank 0 prints it
            return 2
        return _failed(_in_options(str(error), arguments.parser))
    except MemoryError as error:
        why = str(error) or "the files' content does not fit"
        return _failed(f"not enough memory: {why}")
    except KeyboardInterrupt:
        return _failed("interrupted", 130)
    except BrokenPipeError:
        _discard_output()
        return 141
    except OSError as error:  # files raise FormatError
        _discard_output()
        return _failed(f"cannot write the output: {reason(error)}")
    finally:
        warnings.formatwarning = default


def _failed(sentence: str, status: int = 2) -> int:
    """Print a sentence on stderr, if that is possible; return the exit status."""
    with suppress(OSError):
        print(f"clnet: {sentence}", file=sys.stderr)
    return status


def _in_options(sentence: str, parser: argparse.ArgumentParser | None) -> str:
    """Return a sentence about arguments in Python as one about a command's options."""
    for action in () if parser is None else parser._actions:
        if not action.option_strings:
            continue
        option = action.option_strings[-1]
        sentence = re.sub(rf'\b{action.dest}="(\w+)"', rf"{option} \1", sentence)
        if "_" in action.dest:
            name = rf"(?<![\w./'\"-]){action.dest}(?![\w./'\"-])"
            sentence = re.sub(name, option, sentence)
    return sentence


def _discard_output() -> None:
    """Let Python's flush of stdout at exit succeed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help that fits `WIDTH`; the description lists the commands, by groups."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=24, width=WIDTH)

    def add_argument(self, action: argparse.Action) -> None:
        """Leave out argparse's own list of commands."""
        if not isinstance(action, argparse._SubParsersAction):
            super().add_argument(action)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_Formatter, **options)

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and one line."""
        self.exit(2, f"clnet: {printable(message)} (see {self.prog} --help)\n")

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Exit as `error` does, for arguments that the parser does not know."""
        option = next((word for word in words if word.startswith("-")), None)
        if option is None:
            self.error(f"unexpected argument {' '.join(words)}")
        name = option.partition("=")[0]
        near = nearest(name, self._option_string_actions)
        self.error(f"unknown option {name}" + (f": did you mean {near}?" * bool(near)))

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Raise the usual error for an unknown name."""
        if action.choices is not None and value not in action.choices:
            raise unknown(action.dest, value, action.choices)


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments, or exit with what is wrong with them."""
    arguments, more = parser().parse_known_args(argv)
    if more:
        arguments.parser.refuse(more)
    return arguments


def parser() -> _Parser:
    """Return the parser of all commands, also for shtab, which makes completions."""
    from clnet import __version__
    from clnet.checks import PRECISIONS
    from clnet.cli import bench as cli_bench
    from clnet.cli import commands as do
    from clnet.cli import json_output
    from clnet.cli import samples as cli_samples
    from clnet.cli import train as cli_train
    from clnet.cli.samples import whole
    from clnet.formats import DATA_SUFFIXES, NETWORK_SUFFIXES
    from clnet.formats.delimited import TEXT_SUFFIXES
    from clnet.formats.opening import SOURCE_SUFFIXES
    from clnet.formats.pictures import PICTURES
    from clnet.nn.description import DTYPES

    networks, data, sources = (
        f"\n{24 * ' '}".join(textwrap.wrap(", ".join(suffixes), 68))
        for suffixes in (
            NETWORK_SUFFIXES, (*DATA_SUFFIXES, *TEXT_SUFFIXES[1:]), SOURCE_SUFFIXES
        )
    )
    main = _Parser(
        prog="clnet",
        epilog=textwrap.dedent(f"""\
            The suffix of a file selects its format.
              networks  {networks}
              data      {data}
              larger    {sources}
                        for train, evaluate and predict, which read by parts what
                        does not fit in the --buffer

            --device takes "cpu", "gpu", a part of a device's or platform's name
            ("nvidia", "pocl"), or an index ("0:1"). The default is $CLNET_DEVICE, or
            else the best device.

            examples:
              clnet train digits
              clnet train iris.csv --target species --save iris.safetensors
              clnet evaluate iris.safetensors test.csv
              clnet predict iris.safetensors new.csv --out answers.csv
              clnet explain iris.safetensors --device gpu --batch 32

            clnet COMMAND --help tells more; clnet doctor helps if there is no device.
            """),
    )
    main.add_argument("--version", action="version", version=f"clnet {__version__}")
    commands = main.add_subparsers(dest="command", metavar="COMMAND")
    main.set_defaults(
        parser=main,
        run=lambda _: main.error(
            f"a command is required: {', '.join(commands.choices)}"
        ),
    )

    def command(name: str, run: Any, short: str, text: str, example: str) -> _Parser:
        sub: _Parser = commands.add_parser(
            name,
            help=short,
            description=textwrap.fill(text, WIDTH),
            epilog=f"example:\n  {example}",
        )
        sub.set_defaults(parser=sub, run=run)
        return sub

    def on_device(sub: _Parser, several: bool = False, fastest: bool = False) -> None:
        sub.add_argument(
            "--device",
            metavar="NAME",
            help='"cpu", "gpu", part of a name, or an index; default: the best device'
            + several * '; "all" or several, separated by commas, share the samples'
            + fastest * '; "fastest": the fastest one, measured',
        )

    def with_precision(sub: _Parser) -> None:
        sub.add_argument(
            "--precision", choices=PRECISIONS, default=PRECISIONS[0],
            help="precision of products in float32 networks: that of float32, TF32 or "
            "bfloat16; default: %(default)s",
        )

    def of_steps(sub: _Parser, verb: str) -> None:
        sub.add_argument(
            "--training", metavar="OPTIMISER",
            help=f"{verb} a training step of N samples with this optimiser instead",
        )
        sub.add_argument(
            "--population", type=_count, metavar="N",
            help=f"{verb} a step of N networks of this shape that train together, with "
            "--training; --batch samples a step",
        )

    def with_outputs(sub: _Parser) -> None:
        sub.add_argument(
            "--outputs",
            type=whole,
            metavar="N",
            help="for .csv: the last N columns are targets; default: the columns named "
            "t, t0, t1, … or target…",
        )

    def with_memory_limit(sub: _Parser) -> None:
        sub.add_argument(
            "--memory-limit",
            type=_count,
            metavar="BYTES",
            help="bytes that a file may unpack to; default: 64 MiB, and 16 times its "
            "size",
        )

    sub = command(
        "devices", do.devices, "list the OpenCL devices, best first",
        "List the OpenCL devices of this machine, best first, with notes on each. The "
        "first one is the default of other commands.",
        "clnet devices",
    )
    sub.add_argument(
        "--device", metavar="NAME",
        help="list one alone, named as for other commands, or several, separated by "
        "commas; default: all",
    )
    sub.add_argument(
        "--measure", action="store_true",
        help="measure the rates by which clnet plans, and store them",
    )
    sub.add_argument(
        "--plot", metavar="FILE",
        help=f"draw the measured rates as rooflines: {', '.join(PICTURES)}",
    )
    json_output.add_argument(sub)
    sub = command(
        "doctor", do.doctor, "examine the OpenCL set-up",
        "Examine the OpenCL set-up: the files that name drivers, the caches, and a "
        "kernel on every device. Report each fault and its cure.",
        "clnet doctor",
    )
    json_output.add_argument(sub)
    sub = command(
        "info", do.info, "show the content of a network or data file",
        "Show the content of a file. Of a network: the layers, and FANN's training "
        "parameters if it has any. Of data: the samples, columns and ranges.",
        "clnet info mushroom.net\n"
        "  clnet info iris.csv --target species",
    )
    sub.add_argument("file", metavar="FILE", help="a network or data file")
    cli_samples.add_arguments(sub)
    with_memory_limit(sub)
    json_output.add_argument(sub)

    def with_samples(sub: _Parser) -> None:
        sub.add_argument("network", metavar="NET", help=f"a network: {networks}")
        sub.add_argument("data", metavar="DATA", help="a data file")
        on_device(sub, several=True, fastest=True)
        with_precision(sub)
        sub.add_argument(
            "--batch", type=_count, metavar="N",
            help=f"samples a call; default: all, at most {do.LARGEST_BATCH}",
        )
        sub.add_argument(
            "--scale", action="store_true",
            help="scale inputs and descale outputs by the network's scaling "
            "parameters; a network that knows its columns always does",
        )
        cli_samples.add_buffer(sub)
        cli_samples.add_arguments(sub)
        with_memory_limit(sub)
        json_output.add_argument(sub)

    sub = command(
        "predict", do.predict, "run a network on data",
        "Run a network on the inputs of a data file, and write its outputs, or the "
        "names of the classes. A network that was trained on a table by --target finds "
        "the columns by their names. Where the data have targets, the outputs are "
        "compared with these, as by clnet evaluate.",
        "clnet predict mushroom.net mushroom.test.gz --out answers.csv\n"
        "  clnet predict iris.safetensors new.csv --out answers.csv",
    )
    with_samples(sub)
    sub.add_argument(
        "--out", metavar="FILE",
        help="write the inputs and outputs to a data file; outputs take the place of "
        "targets, in .csv by the names of columns and classes; .npy: outputs alone",
    )
    sub.add_argument(
        "--probabilities", action="store_true",
        help="with --out to .csv: also the probability of each class, in a column",
    )
    sub.add_argument(
        "--profile", action="store_true",
        help="show the times of one call: upload, launch, device, download",
    )
    sub.add_argument(
        "--trace", metavar="FILE",
        help="write a timeline of one call, which ui.perfetto.dev and chrome://tracing "
        "show: .json",
    )
    sub.set_defaults(evaluates=False)

    sub = command(
        "evaluate", do.predict, "compare a network's outputs with targets",
        "Run a network on the inputs of a data file and compare its outputs with the "
        "targets: the mean squared error, the number of errors of at least FANN's "
        "bit-fail limit; for classes the share of samples that are classified "
        "correctly, and a table of which are taken for which; for numbers MAE, RMSE "
        "and R².",
        "clnet evaluate mushroom.net mushroom.test.gz\n"
        "  clnet evaluate iris.safetensors test.csv --json",
    )
    with_samples(sub)
    sub.set_defaults(
        evaluates=True, out=None, profile=False, trace=None, probabilities=False
    )

    sub = command(
        "train", cli_train.run, "train a network on data",
        "Train a network on the samples of a data file, on the device, and compare its "
        "outputs with the targets. Ctrl-C stops the training and keeps the trained "
        "parameters.",
        "clnet train digits\n"
        "  clnet train iris.csv --target species --save iris.safetensors\n"
        "  clnet train mushroom.train.gz --layers 125-32-2 --epochs 300 --save a.net\n"
        "  clnet train prices.csv --target price --categories district --ignore id \\\n"
        "    --validation 0.2 --patience 20 --save prices.safetensors --plot curve.png"
        "\n  clnet train iris.csv --target species --population 100 --validation 0.2\n"
        "  clnet train iris.csv --target species --save best.safetensors \\\n"
        "    --folds 5 --grid learning_rate=0.001,0.01,0.1 --grid l2=0,1e-4",
    )
    cli_train.add_arguments(sub, _count)
    json_output.add_argument(sub)
    on_device(sub, several=True)
    with_precision(sub)
    cli_samples.add_buffer(sub)
    cli_samples.add_arguments(sub)
    with_memory_limit(sub)

    sub = command(
        "convert", do.convert, "write a network or data in another format",
        "Read a network or data file and write it in another format, which the suffix "
        "selects. The new file is written completely or not at all.",
        "clnet convert mushroom.net mushroom.safetensors",
    )
    sub.add_argument("source", metavar="A", help="the file to read")
    sub.add_argument("destination", metavar="B", help="the file to write")
    sub.add_argument(
        "--dtype", choices=DTYPES,
        help="type of the numbers, for files that do not hold it; default: float32 for "
        ".net, float64 for data",
    )
    with_outputs(sub)
    with_memory_limit(sub)
    json_output.add_argument(sub)

    sub = command(
        "explain", do.explain, "show how a network would be run, and why",
        "Show the kernels that would run a network on a device, and the times of the "
        "best of the others; with --all those of all, and why some cannot run there.",
        "clnet explain mushroom.net --device gpu --batch 32",
    )
    sub.add_argument("network", metavar="NET", help=f"a network: {networks}")
    on_device(sub, fastest=True)
    with_precision(sub)
    sub.add_argument(
        "--batch", type=_count, default=1, metavar="N",
        help="samples a call; default: %(default)s",
    )
    of_steps(sub, "explain")
    sub.add_argument("--tune", action="store_true", help="measure all candidates first")
    sub.add_argument(
        "--all", action="store_true",
        help="show all candidates and refusals, not a screen of them",
    )
    sub.add_argument(
        "--plot", metavar="FILE",
        help="draw the chosen kernels beside those that lost, by their times: "
        f"{', '.join(PICTURES)}",
    )
    json_output.add_argument(sub)
    with_memory_limit(sub)

    sub = command(
        "tune", do.tune, "measure all kernels for a network, and store the times",
        "Measure all kernels and configurations that can run a network on a device, "
        "for each batch size, and store the times. Later runs choose by them. With "
        "--training the kernels of training steps, of one network or of many.",
        "clnet tune mushroom.net --batch 1,32,1024",
    )
    sub.add_argument(
        "network", metavar="NET", nargs="?",
        help=f"a network: {networks}; none with --export or --import alone",
    )
    on_device(sub)
    with_precision(sub)
    sub.add_argument(
        "--export", metavar="FILE",
        help="write the stored times of the device to a file (JSON), as for others",
    )
    sub.add_argument(
        "--import", metavar="FILE", dest="given",
        help="plan by the times of such a file, where none of your own are stored",
    )
    sub.add_argument(
        "--batch", type=_counts, default=TUNED_BATCHES, metavar="N,N",
        help="samples a call; several, separated by commas; default: %(default)s",
    )
    of_steps(sub, "measure")
    with_memory_limit(sub)
    json_output.add_argument(sub)

    sub = command(
        "bench", cli_bench.run, "run a study: clnet's kernels against others",
        "Measure the cases of a study: clnet's kernels, the plan that clnet chooses, "
        "and other libraries. All results are checked before they are timed. Each row "
        "is appended to a CSV file. Without a study, list the studies.",
        "clnet bench feedforward --quick",
    )
    on_device(sub)
    cli_bench.add_arguments(sub, _counts, _names)
    main.description = _listing(commands)
    for sub in commands.choices.values():
        for action in sub._actions:
            if action.metavar in FILES:
                action.complete = COMPLETE_FILES  # type: ignore[attr-defined]
    return main


def _listing(commands: Any) -> str:
    """Return the commands by their groups, with a line about each."""
    shorts = {action.dest: action.help for action in commands._choices_actions}
    lines = [
        "Feed-forward neural networks, run and trained on any OpenCL device."
    ]
    for title, names in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {name:9}  {shorts[name]}" for name in names)]
    return "\n".join(lines)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected a whole number of at least 1"
        )
    return int(text)


def _counts(text: str) -> list[int]:
    return [_count(part) for part in text.split(",")]


def _names(text: str) -> list[str]:
    return text.split(",")
