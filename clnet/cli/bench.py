"""``clnet bench``: measure the cases of a study."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import clnet
from clnet.errors import InputError
from clnet.ir.ops import PRECISIONS

_PACKAGE = Path(clnet.__file__).parent
if not (_PACKAGE / "benchmarks").is_dir():
    # A wheel has the benchmarks in the package; a checkout has them beside it.
    clnet.__path__.append(str(_PACKAGE.parent))

STUDY = (
    "feedforward (fully connected networks), sparse (partially connected ones), "
    "training, dispatch (serial or parallel by size) or local (locally connected "
    "layers); without one, they are listed"
)

EXAMPLES = """\
examples:
  clnet bench                                 # the studies
  clnet bench feedforward --quick             # two minutes on two cores
  clnet bench feedforward --device gpu --table configurations --batch 1,32 \\
      --variants "persistent*,planned" --baselines torch-graph --basis device
  clnet bench training --data DIR             # DIR holds FANN's data sets
  clnet bench --rows FILE.csv --out DIR       # tables and pictures of earlier rows

Rows are kept as they are measured: --resume goes on with an interrupted run. The
README of the folder benchmarks explains the studies, their tables and the columns."""


def add_arguments(
    sub: argparse.ArgumentParser,
    counts: Callable[[str], list[int]],
    names: Callable[[str], list[str]],
) -> None:
    """Add the command's arguments; each is named as its field of `Options`.

    Parameters
    ----------
    sub : ArgumentParser
        Of the command.
    counts, names : callable
        Parse comma-separated whole numbers of at least 1, and names.
    """
    sub.epilog = EXAMPLES
    sub.add_argument("study", metavar="STUDY", nargs="?", help=STUDY)
    effort = sub.add_mutually_exclusive_group()
    for name, text in (
        ("quick", "fewer cases and rounds: about two minutes on two cores"),
        ("full", "slow candidates too, and more rounds"),
    ):
        effort.add_argument(
            f"--{name}", dest="effort", action="store_const", const=name,
            default="normal", help=text,
        )
    for option, field, text in (
        ("table", "tables", "only these tables of the study"),
        ("case", "cases", 'only these cases, as in "config-*"'),
        ("variants", "variants", 'only these candidates of clnet\'s, or "none"'),
        ("baselines", "baselines", 'only these other candidates, or "none"'),
        ("basis", "bases", "the clocks: wall (host to host), stream (back to back), "
         "device (its events), busy (kernels alone)"),
        ("precision", "precisions", f"of products: {', '.join(PRECISIONS)}; default: "
         "the first"),
    ):
        sub.add_argument(
            f"--{option}", dest=field, type=names, metavar="A,B", help=text
        )
    sub.add_argument(
        "--batch", dest="batches", type=counts, metavar="N,N",
        help="samples a call; default: the study's",
    )
    sub.add_argument("--data", metavar="DIR", help="the folder of FANN's data sets")
    sub.add_argument(
        "--fann-library", metavar="FILE", help="FANN's library; default: the system's"
    )
    sub.add_argument(
        "--tune", action="store_true",
        help="measure all configurations of clnet's kernels first",
    )
    sub.add_argument(
        "--resume", action="store_true",
        help="keep the file's rows of this device and these versions",
    )
    sub.add_argument(
        "--rows", metavar="CSV", help="show the rows of a file instead of measuring",
    )
    sub.add_argument(
        "--out", metavar="DIR", help="the folder of the files; default: that of "
        "--rows, else benchmarks/results in the working directory",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    try:
        command = import_module("clnet.benchmarks.command")
    except ModuleNotFoundError as error:
        cure = "install clnet again" if "benchmarks" in str(error.name) else (
            "pip install 'clnet[bench]'"
        )
        raise InputError(f"clnet bench needs {error.name}: {cure}") from error
    names = [field.name for field in fields(command.Options)]
    options = command.Options(**{name: getattr(arguments, name) for name in names})
    command.run(
        arguments.study, arguments.device, arguments.out, arguments.rows, options
    )
    return 0
