"""``clnet bench``: measure the cases of a study."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import clnet
from clnet.checks import PRECISIONS
from clnet.errors import InputError

_PACKAGE = Path(clnet.__file__).parent
if not (_PACKAGE / "benchmarks").is_dir():
    # A wheel has the benchmarks in the package; a checkout has them beside it.
    clnet.__path__.append(str(_PACKAGE.parent))

STUDY = (
    "feedforward (fully connected networks), sparse (partially connected networks), "
    "training, dispatch (serial or parallel, by size), local (locally connected "
    "layers), small (fixed costs of small networks), scaling (ranks of MPI) or "
    "population (many networks side by side); default: list the studies"
)

EXAMPLES = """\
examples:
  clnet bench                                 # list the studies
  clnet bench feedforward --quick             # two minutes on two cores
  clnet bench feedforward --device gpu --table configurations --batch 1,32 \\
      --variants "persistent*,planned" --baselines torch-graph --basis device
  clnet bench training --data DIR             # DIR holds FANN's data sets
  clnet bench --rows FILE.csv --out DIR       # tables and plots of earlier rows

Each row is written as soon as it is measured: --resume continues an interrupted
run. benchmarks/README.md explains the studies, their tables and their columns."""


def add_arguments(
    sub: argparse.ArgumentParser,
    counts: Callable[[str], list[int]],
    names: Callable[[str], list[str]],
) -> None:
    """Add the command's arguments, named like the fields of `Options`."""
    sub.epilog = EXAMPLES
    sub.add_argument("study", metavar="STUDY", nargs="?", help=STUDY)
    effort = sub.add_mutually_exclusive_group()
    for name, text in (
        ("quick", "fewer cases and rounds: about two minutes on two cores"),
        ("full", "include slow candidates, with more rounds"),
    ):
        effort.add_argument(
            f"--{name}", dest="effort", action="store_const", const=name,
            default="normal", help=text,
        )
    for option, field, text in (
        ("table", "tables", "only these tables of the study"),
        ("case", "cases", 'only these cases, as in "config-*"'),
        ("variants", "variants", 'only these variants of clnet, or "none"'),
        ("baselines", "baselines", 'only these baselines, or "none"'),
        ("basis", "bases", "clocks: wall (host to host), stream (calls back to back), "
         "device (device events), busy (kernels only), arrays (of the device)"),
        ("precision", "precisions", f"precision of products: {', '.join(PRECISIONS)}; "
         f"default: {PRECISIONS[0]}"),
    ):
        sub.add_argument(
            f"--{option}", dest=field, type=names, metavar="A,B", help=text
        )
    sub.add_argument(
        "--batch", dest="batches", type=counts, metavar="N,N",
        help="samples a call; default: those of the study",
    )
    sub.add_argument("--data", metavar="DIR", help="folder of FANN's data sets")
    sub.add_argument(
        "--fann-library", metavar="FILE", help="FANN's library; default: the system's"
    )
    sub.add_argument(
        "--tune", action="store_true",
        help="measure all configurations of clnet's kernels first",
    )
    sub.add_argument(
        "--resume", action="store_true",
        help="keep the rows of this device and these versions in the file",
    )
    sub.add_argument(
        "--model", action="store_true",
        help="scaling: predict the times of 1 to 1024 ranks by the file's rows",
    )
    sub.add_argument(
        "--rows", metavar="CSV", help="show the rows of a file; measure nothing",
    )
    sub.add_argument(
        "--out", metavar="DIR", help="output folder; default: that of --rows, else "
        "benchmarks/results in the working directory",
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
