"""The command line, ``clnet``.

Exit status: 0 done, 1 the doctor found something, 2 bad input with one sentence on
stderr, 130 interrupted, 141 the reader of the output went away.
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from clnet.errors import WIDTH, nearest, unknown

TUNED_BATCHES = "1,32"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    Parameters
    ----------
    argv : sequence of str or None
        The arguments; None: those of the process.
    """
    import warnings

    from clnet.errors import ClnetError, ClnetWarning

    usual = warnings.formatwarning

    def one_line(message: Any, category: type[Warning], *where: Any) -> str:
        if issubclass(category, ClnetWarning):
            return f"clnet: warning: {message}\n"
        return usual(message, category, *where)

    try:
        warnings.formatwarning = one_line  # type: ignore[assignment]  # fewer names
        arguments = _parsed(argv)
        status: int = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except ClnetError as error:
        print(f"clnet: {error}", file=sys.stderr)
        return 2
    except MemoryError as error:
        why = str(error) or "the files' content does not fit"
        print(f"clnet: not enough memory: {why}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("clnet: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Python flushes stdout once more at exit; let it succeed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    finally:
        warnings.formatwarning = usual


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line and whose help fits `WIDTH`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
                prog, max_help_position=24, width=WIDTH
            ),
            **options,
        )

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and one line."""
        self.exit(2, f"clnet: {message} (see {self.prog} --help)\n")

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Exit as `error` does, with what of the command line has no meaning."""
        option = next((word for word in words if word.startswith("-")), None)
        if option is None:
            self.error(f"found {' '.join(words)} beyond what is expected")
        name = option.partition("=")[0]
        near = nearest(name, self._option_string_actions)
        self.error(f"unknown option {name}" + (f": did you mean {near}?" * bool(near)))

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse a name that is no choice as every other unknown name is refused."""
        if action.choices is not None and value not in action.choices:
            raise unknown(action.dest, value, action.choices)


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments, or exit with what is wrong with them."""
    arguments, more = _parser().parse_known_args(argv)
    if more:
        arguments.parser.refuse(more)
    return arguments


def _parser() -> _Parser:
    from clnet import __version__
    from clnet.cli import bench as cli_bench
    from clnet.cli import commands as do
    from clnet.cli import train as cli_train
    from clnet.formats import DATA_SUFFIXES, NETWORK_SUFFIXES
    from clnet.ir.ops import PRECISIONS
    from clnet.nn.description import DTYPES

    networks, data = ", ".join(NETWORK_SUFFIXES), ", ".join(DATA_SUFFIXES)
    parser = _Parser(
        prog="clnet",
        description="Feed-forward neural networks, run and trained on any OpenCL "
        "device.",
        epilog=textwrap.dedent(f"""\
            Files are known by their suffix.
              networks  {networks}
              data      {data}

            Where a command takes --device, give "cpu", "gpu", part of a name or a
            platform ("nvidia", "pocl"), an index as in "0:1"; without it,
            $CLNET_DEVICE, else the best there is. "clnet devices" lists them.

            A first run:
              clnet devices
              clnet train digits
            """),
    )
    parser.add_argument("--version", action="version", version=f"clnet {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    parser.set_defaults(
        parser=parser,
        run=lambda _: parser.error(
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

    def on_device(
        sub: _Parser, several: bool = False, fastest: bool = False
    ) -> None:
        sub.add_argument(
            "--device",
            metavar="NAME",
            help='"cpu", "gpu", part of a name, an index; default: the best'
            + several * '; "all", or several with commas: they share the samples'
            + fastest * '; "fastest": as measured',
        )

    def with_precision(sub: _Parser) -> None:
        sub.add_argument(
            "--precision", choices=PRECISIONS, default=PRECISIONS[0],
            help="how exact float32 products are: as float32's, TF32's or bfloat16's; "
            "default: %(default)s",
        )

    def with_outputs(sub: _Parser) -> None:
        sub.add_argument(
            "--outputs",
            type=_whole,
            metavar="N",
            help="for .csv: its last N columns are targets; default: those that its "
            "first line names t, t0, t1, … or target…",
        )

    command(
        "devices", do.devices, "list the OpenCL devices, best first",
        "List the OpenCL devices of this machine, best first, with what is to be known "
        "of each. The first is what other commands take when --device is not given.",
        "clnet devices",
    )
    command(
        "doctor", do.doctor, "examine the OpenCL set-up",
        "Examine the OpenCL set-up: the files that name drivers, caches, and a kernel "
        "on every device. Names what is wrong, and the cure.",
        "clnet doctor",
    )
    sub = command(
        "info", do.info, "show what a network or data file holds",
        "Show what a file holds: of a network its layers and FANN's training "
        "parameters where it has them; of data its samples, columns and ranges.",
        "clnet info mushroom.net",
    )
    sub.add_argument("file", metavar="FILE", help="a network or data file")
    with_outputs(sub)

    sub = command(
        "predict", do.predict, "run a network on data",
        "Run a network on the inputs of a data file and say how far its outputs are "
        "from the targets, where there are any: the mean squared error, how many "
        "outputs miss by FANN's bit-fail limit or more, and the share of samples whose "
        "largest output is the right one.",
        "clnet predict mushroom.net mushroom.test.gz --out answers.csv",
    )
    sub.add_argument("network", metavar="NET", help=f"a network: {networks}")
    sub.add_argument("data", metavar="DATA", help="a data file")
    sub.add_argument(
        "--out", metavar="FILE",
        help="write the inputs and, in place of targets, the outputs to a data file",
    )
    on_device(sub, several=True, fastest=True)
    with_precision(sub)
    sub.add_argument(
        "--batch", type=_count, metavar="N",
        help=f"samples a call; default: all, at most {do.LARGEST_BATCH}",
    )
    sub.add_argument(
        "--scale", action="store_true",
        help="scale inputs and descale outputs with what the network carries",
    )
    sub.add_argument(
        "--profile", action="store_true",
        help="say where the time of one call goes: upload, launch, device, download",
    )
    with_outputs(sub)

    sub = command(
        "train", cli_train.run, "train a network on data",
        "Train a network on the samples of a data file, all on the device, and say how "
        "far its outputs are from the targets afterwards. Ctrl-C ends the training and "
        "keeps what was learnt.",
        "clnet train digits\n"
        "  clnet train mushroom.train.gz --layers 125-32-2 --epochs 300 --save a.net\n"
        "  clnet train prices.csv --outputs 1 --layers 8-16-1 --output identity \\\n"
        "    --scale -1 1 --scale-outputs -1 1 --validation 0.2 --patience 20 \\\n"
        "    --save prices.net --plot curve.png\n"
        "  clnet predict prices.net new.csv --outputs 0 --scale --out answers.csv",
    )
    cli_train.add_arguments(sub, _count)
    on_device(sub, several=True)
    with_precision(sub)
    with_outputs(sub)

    sub = command(
        "convert", do.convert, "write a network or data in another format",
        "Read a network or data file and write it in the format of another suffix. The "
        "new file is written whole or not at all.",
        "clnet convert mushroom.net mushroom.safetensors",
    )
    sub.add_argument("source", metavar="A", help="the file to read")
    sub.add_argument("target", metavar="B", help="the file to write")
    sub.add_argument(
        "--dtype", choices=DTYPES,
        help="type of the numbers, for files that do not say it; default: float32 for "
        ".net, float64 for data",
    )
    with_outputs(sub)

    sub = command(
        "explain", do.explain, "show how a network would be run, and why",
        "Show which kernels would run a network on a device, what the others would "
        "have taken, and why some cannot run there.",
        "clnet explain mushroom.net --device gpu --batch 32",
    )
    sub.add_argument("network", metavar="NET", help=f"a network: {networks}")
    on_device(sub, fastest=True)
    with_precision(sub)
    sub.add_argument(
        "--batch", type=_count, default=1, metavar="N",
        help="samples a call; default: %(default)s",
    )
    sub.add_argument(
        "--training", metavar="OPTIMISER",
        help="instead, a step of training by an optimiser over all samples at once",
    )
    sub.add_argument(
        "--tune", action="store_true", help="measure every candidate first"
    )

    sub = command(
        "tune", do.tune, "measure all ways to run a network, and remember",
        "Measure all ways to run a network on a device, for each batch size, and "
        "remember the times: later runs choose by them.",
        "clnet tune mushroom.net --batch 1,32,1024",
    )
    sub.add_argument("network", metavar="NET", help=f"a network: {networks}")
    on_device(sub)
    with_precision(sub)
    sub.add_argument(
        "--batch", type=_counts, default=TUNED_BATCHES, metavar="N,N",
        help="samples a call, several with commas; default: %(default)s",
    )

    sub = command(
        "bench", cli_bench.run, "measure a study's networks, our kernels and others",
        "Measure the cases of a study: our kernels, what clnet would choose, and what "
        "one would use instead, each checked before it is timed. Rows are appended to "
        "a CSV file as they are measured. Without a study: list them.",
        "clnet bench feedforward --quick",
    )
    on_device(sub)
    cli_bench.add_arguments(sub, _counts, _names)
    return parser


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number")
    return int(text)


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
