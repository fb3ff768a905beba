"""``clnet bench``: measure the cases of a study."""

from __future__ import annotations

import argparse
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import clnet
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

EXAMPLES = (
    "clnet bench                                 # list the studies",
    "clnet bench feedforward --quick             # two minutes on two cores",
    "clnet bench feedforward --device gpu --table configurations --batch 1,32 \\\n"
    '      --variants "persistent*,planned" --baselines torch-graph --basis device',
    "clnet bench training --data DIR             # DIR holds FANN's data sets",
    """clnet bench --rows FILE.csv --out DIR       # tables and plots of earlier rows

Each row is written as soon as it is measured: --resume continues an interrupted
run. benchmarks/README.md explains the studies, their tables and their columns.""",
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
