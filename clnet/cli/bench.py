"""``clnet bench``: measure the networks of a study, our kernels and others."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from clnet.ir.ops import PRECISIONS


def add_arguments(
    sub: argparse.ArgumentParser,
    counts: Callable[[str], list[int]],
    names: Callable[[str], list[str]],
) -> None:
    """Add the command's arguments.

    Parameters
    ----------
    sub : ArgumentParser
        Of the command.
    counts, names : callable
        Read whole numbers of at least 1, and names, with commas.
    """
    sub.add_argument("study", metavar="STUDY", nargs="?", help="which; default: list")
    effort = sub.add_mutually_exclusive_group()
    for name, text in (
        ("quick", "fewer cases and rounds: two minutes on two cores"),
        ("full", "also what takes long, and more rounds"),
    ):
        effort.add_argument(
            f"--{name}", dest="effort", action="store_const", const=name,
            default="normal", help=text,
        )
    sub.add_argument(
        "--out", metavar="DIR", help="folder of the CSV file, the pictures and the "
        "page; default: benchmarks/results in the working directory",
    )
    sub.add_argument(
        "--batch", type=counts, metavar="N,N", help="samples a call, instead of the "
        "study's",
    )
    sub.add_argument(
        "--precision", type=names, metavar="A,B",
        help=f"how exact products are, of {', '.join(PRECISIONS)}; default: the first",
    )
    for name, text in (
        ("table", "only these tables"),
        ("case", 'only these cases, as in "config-*"'),
        ("variants", 'only these of ours, or "none"'),
        ("peers", 'only these of others, or "none"'),
        ("basis", "what to time: wall, stream, device, busy"),
    ):
        sub.add_argument(f"--{name}", type=names, metavar="A,B", help=text)
    sub.add_argument(
        "--data", metavar="DIR", help="folder of the data sets that training reads",
    )
    sub.add_argument(
        "--fann-library", metavar="FILE",
        help="FANN's; default: where the system's libraries are",
    )
    sub.add_argument(
        "--tune", action="store_true",
        help="measure all configurations of our kernels first",
    )
    sub.add_argument(
        "--resume", action="store_true",
        help="keep what the CSV file has of this device and these versions",
    )
    sub.add_argument(
        "--rows", metavar="CSV",
        help="measure nothing, whatever else is asked for: show all of a file's rows, "
        "with pictures and page beside it",
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure a study, or show what there is, and return the exit status."""
    from clnet.cli.benchmarks import benchmarks

    command = benchmarks("command")
    if arguments.rows is not None:
        command.show_file(arguments.study, arguments.rows)
        return 0
    if arguments.study is None:
        print(command.list_studies())
        return 0
    options = command.Options(
        effort=arguments.effort, batches=arguments.batch,
        precisions=arguments.precision, tables=arguments.table,
        cases=arguments.case, variants=arguments.variants, peers=arguments.peers,
        bases=arguments.basis, tune=arguments.tune, data=arguments.data,
        fann_library=arguments.fann_library, resume=arguments.resume,
    )
    status: int = command.run(
        arguments.study, arguments.device, arguments.out, options
    )
    return status
