"""The ranks that ``mpiexec`` has started, as the command line knows them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from clnet.errors import InputError
from clnet.nn.defaults import BLOCKS

SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
"""Variables by which launchers tell the number of ranks: those of MPICH and its kin,
and Open MPI's."""
ANY = "any"


def add_arguments(add: Callable[..., Any], count: Callable[[str], int]) -> None:
    """Add the options to a group; `count` parses a whole number of at least 1."""
    add(
        "--mpi", action="store_true",
        help="share each step among the ranks of MPI; default: if mpiexec has started "
        "several",
    )
    add(
        "--blocks", metavar=f"N|{ANY}", type=lambda text: text if text == ANY else (
            count(text)
        ),
        help="with MPI, blocks of a step, a power of two: results have the same bits "
        f"on any number of ranks; {ANY}: one a rank, in MPI's order of sums; "
        f"default: {BLOCKS}",
    )


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
