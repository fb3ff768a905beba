"""Many trainings at once: ``clnet train`` by seeds, folds and grids of settings."""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from clnet.cli import json_output
from clnet.cli.summary import (
    FIGURES,
    device_rows,
    devices_of,
    file_rows,
    pairs,
    set_fields,
    set_rows,
    table_rows,
)
from clnet.cli.summary import figures as figures_of
from clnet.errors import WIDTH, InputError, counted
from clnet.training.fit_options import PopulationOptions

if TYPE_CHECKING:
    from clnet.cli.samples import FileSamples
    from clnet.network import Network
    from clnet.nn.folds import CrossValidation
    from clnet.nn.metrics import Evaluation
    from clnet.opencl.device import Device
    from clnet.training.histories import Histories

FOLDS = 5
LONG = 1 << 40  # epochs of a training that is explained
SHOWN = 10  # settings of the table
_ONE = (  # options of one training alone
    "checkpoint", "checkpoint_every", "resume", "curve", "tensorboard", "mpi", "blocks",
)


def explanation(
    network: Network, count: int, optimiser: str, device: str | None, batch: int,
    tune: bool | None, precision: str, progress: bool,
) -> str:
    """Return how `count` networks would be trained by steps of `batch` samples.

    The samples are random, and all of a step; the training is long enough to measure.
    """
    from clnet.population import Population

    many = Population.of([network])
    many.parameters = np.tile(many.parameters, (count, 1))
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (batch, network.n_in))
    return many.explain(
        x, np.zeros((batch, network.n_out)), optimiser=optimiser, device=device,
        batch_size=batch, epochs=LONG, tune=tune, precision=precision,
        progress=progress, scale=False,
    )


def asked(arguments: argparse.Namespace) -> bool:
    """Return whether the command trains many networks; check its options."""
    from clnet.training.histories import report_file

    names = [
        name for name in ("population", "folds", "grid")
        if getattr(arguments, name) is not None
    ]
    if arguments.report is not None:
        if not names:
            raise InputError(
                "--report is of many networks: give --population, --folds or --grid, "
                "or --plot for one"
            )
        report_file(arguments.report)
    if not names:
        return False
    if len(names) > 1 and "population" in names:
        raise InputError(
            f"--population compares seeds, --{names[1]} compares settings: give one of "
            "them"
        )
    option = f"--{names[0]}"
    for name in _ONE:
        if getattr(arguments, name) and (name, option) != ("mpi", "--population"):
            raise InputError(
                f"--{name.replace('_', '-')} is for one training: leave out it or "
                f"{option}"
            )
    if arguments.population is not None:
        if arguments.network is not None:
            raise InputError(
                "--population draws initial weights, and --network has some: give "
                "--layers"
            )
        return True
    if arguments.folds == 1:
        raise InputError("--folds is 1, expected at least 2")
    for name in ("validation", "patience"):
        if getattr(arguments, name) is not None:
            raise InputError(
                f"{option} measures on the samples that each fold leaves out: leave "
                f"out --{name}"
            )
    grid = arguments.grid or []
    for number, (name, _) in enumerate(grid):
        if name in dict(grid[:number]):
            raise InputError(
                f"--grid has {name} twice: give all its values in one, as in "
                "learning_rate=0.01,0.1"
            )
        dest = "rate" if name == "learning_rate" else name
        if getattr(arguments, dest):
            raise InputError(
                f"--grid has values of {name}: leave out --{dest.replace('_', '-')}"
            )
    return True


def run(
    arguments: argparse.Namespace, devices: tuple[Device, ...], network: Network,
    sets: dict[str, FileSamples], options: dict[str, Any], comm: Any = None,
) -> int:
    """Train all networks; rank 0 prints the results."""
    by_seeds = arguments.population is not None
    if not by_seeds and any(samples.source is not None for samples in sets.values()):
        raise InputError(
            "folds are of data that fit in the buffer, which "
            f"{arguments.data} do not: give a larger --buffer"
        )
    known = {field.name for field in fields(PopulationOptions)} - {"seed", "validation"}
    chosen = {name: value for name, value in options.items() if name in known}
    if comm is None:
        chosen["devices"] = devices
    else:
        chosen |= {"device": devices_of(arguments.device), "comm": comm}
    train = _seeds if by_seeds else _settings
    train(arguments, network, sets, chosen, devices)
    return 0


def _shown(arguments: argparse.Namespace) -> bool:
    """Return whether learning curves are drawn."""
    return arguments.plot is not None or arguments.report is not None


def _seeds(
    arguments: argparse.Namespace, network: Network, sets: dict[str, FileSamples],
    options: dict[str, Any], devices: tuple[Device, ...],
) -> None:
    """Train a population of seeds."""
    from clnet.population import Population

    first = arguments.seed or 0
    seeds = range(first, first + arguments.population)
    training, scale = sets["training"], options["scale"]
    x = training.x if network.scaling is None else (
        network.scaling.scale_input(training.x)
    )
    networks = []
    for seed in seeds:
        network.initialise(
            arguments.initialiser, x if arguments.initialiser else None, seed=seed
        )
        networks.append(Population.of([network])[0])
    population = Population.of(networks)
    begin = time.perf_counter()
    watched = {name: rows for name, rows in sets.items() if name != "training"}
    validation = next(iter(watched.values()), None)
    if not _shown(arguments) and "test" in watched and arguments.patience is None:
        validation = None  # measured at the end
    histories = population.fit(
        *training.arguments, seed=list(seeds), patience=arguments.patience,
        validation=None if validation is None else validation.validation, **options,
    )
    if "comm" in options and options["comm"].Get_rank() > 0:
        return
    seconds = time.perf_counter() - begin
    by = "validation" if "validation" in sets else "training"
    losses = [
        history.final_loss(validation=by == "validation") for history in histories
    ]
    best = int(np.argmin(losses))
    results = {
        name: population.evaluate(*samples.arguments, devices, scale=scale)
        for name, samples in sets.items()
    }
    network = population[best]
    _write(arguments, network, histories)
    epochs = sorted({len(history) for history in histories})
    ranks = options["comm"].Get_size() if "comm" in options else 1
    if arguments.json:
        json_output.show({
            **_head_fields(devices, options, network), "ranks": ranks,
            "seconds": seconds, "seeds": list(seeds),
            "epochs": [len(history) for history in histories], "loss": losses,
            "best": seeds[best], "best_by": by,
            **{
                name: {"samples": len(sets[name]), "networks": [
                    figures_of(each) for each in evaluations
                ]}
                for name, evaluations in results.items()
            },
            "written": arguments.save, "drawn": arguments.plot,
            "report": arguments.report,
        })
        return
    rows = [
        *_head(devices, network),
        *([("ranks", ranks)] if "comm" in options else []),
        *table_rows(sets["training"].notes),
        ("seeds", f"{first} to {seeds[-1]}"),
        ("epochs", " to ".join(map(str, sorted({epochs[0], epochs[-1]})))),
        ("time", f"{seconds:.3g} s, {seconds / len(seeds) * 1e3:.3g} ms a network"),
        ("best", f"seed {seeds[best]}, by the {by}'s loss"),
        *file_rows(arguments),
    ]
    print(pairs(rows))
    print(f"\n{_spread(results, sets, best)}")


def _spread(
    results: dict[str, list[Evaluation]], sets: dict[str, FileSamples], best: int
) -> str:
    """Return the table of the networks' figures."""
    lines = [f"{'':14}" + "".join(
        f"{name:>12}" for name in ("best", "mean", "deviation", "least", "largest")
    )]
    for name, each in results.items():
        lines.append(f"{name:14}{counted(len(sets[name]), 'sample'):>12}")
        for field, (label, _) in FIGURES.items():
            column = [getattr(evaluation, field) for evaluation in each]
            if column[0] is None:
                continue
            values = np.array(column, float)
            lines.append(f"  {label:12}" + "".join(f"{value:>12.4g}" for value in (
                values[best], values.mean(), values.std(), values.min(), values.max()
            )))
    return "\n".join(lines)


def _settings(
    arguments: argparse.Namespace, network: Network, sets: dict[str, FileSamples],
    options: dict[str, Any], devices: tuple[Device, ...],
) -> None:
    """Score settings over folds; train the best on all samples."""
    from clnet.population import Population

    training = sets["training"]
    grid = None if arguments.grid is None else dict(arguments.grid)
    folds, seed = arguments.folds or FOLDS, arguments.seed or 0
    begin = time.perf_counter()
    result = Population.cross_validate(
        network, *training.arguments, grid, folds=folds, seed=seed,
        validation="rest" if _shown(arguments) else None, **options,
    )
    seconds = time.perf_counter() - begin
    results = {}
    if grid is not None or arguments.save is not None:
        best = Population.of([network])
        best.fit(
            *training.arguments,
            **{**options, "seed": seed, "progress": None, **result.best},
        )
        network = best[0]
        results = {
            name: network.evaluate(
                *samples.arguments, devices, scale=options["scale"]
            )
            for name, samples in sets.items()
        }
    _write(arguments, network, result.histories)
    if arguments.json:
        json_output.show({
            **_head_fields(devices, options, network), "seconds": seconds,
            "folds": folds, "score": result.measure, "params": result.params,
            "scores": result.scores, "best": result.best,
            **set_fields(results, sets),
            "written": arguments.save, "drawn": arguments.plot,
            "report": arguments.report,
        })
        return
    rows = _head(devices, network)
    trainings = result.scores.size
    rows += [
        ("trainings", f"{counted(len(result.params), 'setting')} over {folds} folds"),
        ("time", f"{seconds:.3g} s, {seconds / trainings * 1e3:.3g} ms a training"),
    ]
    if grid is None:
        scores = result.scores[0]
        label, _ = FIGURES[result.measure]
        rows += [
            (label, f"{scores.mean():.4f}, deviation {scores.std():.4f}"),
            ("each fold", " ".join(f"{score:.4f}" for score in scores)),
        ]
    if results:
        setting = _setting(result.best)
        rows.append(
            ("best", f"{setting}, trained on all samples") if setting else
            ("trained", "on all samples")
        )
    rows += [*set_rows(results, sets, network.n_out), *file_rows(arguments)]
    if grid is not None:
        print(_table(result) + "\n")
    print(pairs(rows))


def _table(result: CrossValidation) -> str:
    """Return the best settings, one a line, wrapped."""
    columns = result.results
    order = np.argsort(columns["rank_test_score"], kind="stable")[:SHOWN].tolist()
    head = f"{'rank':6}{FIGURES[result.measure][0]:10}{'deviation':11}"
    lines = [f"{head}setting"]
    for i in order:
        setting = _setting(result.params[i])
        start = (
            f"{columns['rank_test_score'][i]:<6}{columns['mean_test_score'][i]:<10.4f}"
            f"{columns['std_test_score'][i]:<11.4f}"
        )
        lines.append(textwrap.fill(
            start + setting, WIDTH, subsequent_indent=" " * len(head)
        ))
    more = len(result.params) - len(order)
    return "\n".join(lines + [f"… {more} more"] * bool(more))


def _setting(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _head(
    devices: tuple[Device, ...], network: Network
) -> list[tuple[str, object]]:
    sizes = "-".join(str(n) for n in network.sizes)
    return [*device_rows(devices), ("network", sizes)]


def _head_fields(
    devices: tuple[Device, ...], options: dict[str, Any], network: Network
) -> dict[str, object]:
    return {
        "device": ", ".join(str(name) for _, name in device_rows(devices)),
        "network": network.sizes,
        "classes": network.classes, "scaled": options["scale"],
    }


def _write(
    arguments: argparse.Namespace, network: Network, histories: Histories
) -> None:
    """Write the best network, the picture and the report, if asked."""
    if arguments.save is not None:
        network.save(arguments.save)
    if arguments.plot is not None:
        histories.plot(arguments.plot)
    if arguments.report is not None:
        histories.report(arguments.report)
