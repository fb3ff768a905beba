"""Scaling: a training by 1 to 16 ranks of MPI, each on one core of a host; by GPUs.

Strong scaling shares a step's samples among the ranks; weak scaling gives each rank as
many. `model` predicts both from measurements of one rank and of messages.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from clnet.errors import InputError
from clnet.nn.optimisers import Adam
from clnet.opencl.device import Device

from ..candidates import Candidate, Prepared, RefusedError, Timer
from ..cases.training import TrainingCase, compare
from ..harness import Options, Trial
from ..report.plots import Plot
from ..report.tables import basis_title, fill, tables, text
from . import rank_processes, scaling_devices
from .feedforward import CONFIGURATIONS
from .rank_model import BLOCKS, MAX_RANKS, Interconnect, Line, Training

TAKES = frozenset({"model"})
ABOUT = "scaling: a training by 1 to 16 ranks of MPI, by GPUs, a model to 1024"
BASES = {
    "epoch": "one epoch, set-up and a first epoch not counted; all samples of a file",
    "step": "one step, set-up and a first epoch not counted",
    "message": "one message one way, one sum over ranks, or one addition",
}
RANKS = (1, 2, 4, 8, 16)  # as many as there are cores
Sizes = tuple[int, ...]
WIDE: Sizes = (784, 512, 512, 10)
SMALL: Sizes = (64, 128, 10)
MUSHROOM: Sizes = (125, 32, 2)
STEPS = 2  # an epoch
STRONG: dict[Sizes, int] = {WIDE: 1024, SMALL: 1024}  # samples a step of all ranks
LARGE: dict[Sizes, int] = {  # the same of networks whose steps take seconds
    CONFIGURATIONS[name]: 128 for name in ("config-5", "config-6")
}
WEAK: dict[Sizes, int] = {WIDE: 512, SMALL: 512}  # samples a step of each rank
DRAWN: dict[str, Sizes] = {**CONFIGURATIONS, "mushroom": MUSHROOM}
STEP_COSTS: dict[str, Sizes] = {  # networks whose steps' costs are measured
    "-".join(map(str, WIDE)): WIDE, "-".join(map(str, SMALL)): SMALL, **DRAWN,
}
BATCHES = (16, 64)  # samples a step, of which a step's costs are calculated
DRAWN_BATCH = 4096  # samples a step of the predictions
SLOW = ("config-4", "config-5", "config-6")  # networks that are not quick to measure
MESSAGES = (64, 4096, 1 << 18, 1 << 22)  # bytes
ORDERS: Mapping[str, int | None] = {"fixed-order": BLOCKS, "any-order": None}
BASELINES = frozenset({"torch-ddp", "sklearn"})
SHOWN = (1, 8, 64, 256, 1024)  # ranks of the printed predictions
ASSUMED = Interconnect(5e-6, 1 / 12.5e9, 1 / 10e9)
"""Ranks in several machines: 5 us and 100 Gbit/s; additions at a core's bandwidth."""


@dataclass(frozen=True)
class RankCase(TrainingCase):
    """A training by ranks."""

    ranks: int = 1


@dataclass(frozen=True)
class MessageCase(RankCase):
    """Messages of so many bytes, which are its size."""

    @property
    def activation(self) -> str:
        """None."""
        return ""


# Candidates -------------------------------------------------------------------------


@dataclass(frozen=True)
class Ranked(Candidate):
    """A training by ranks."""

    name: str  # Of `ORDERS`, or ``"torch-ddp"`` or ``"sklearn"``
    timeout: ClassVar[float] = 180.0

    def missing(self) -> str | None:
        """Return None if there are a launcher of MPI and the libraries."""
        if rank_processes.mpiexec() is None:
            return "there is no mpiexec: pip install 'clnet[mpi]'"
        more = {"torch-ddp": ("torch",), "sklearn": ("sklearn",)}.get(self.name, ())
        return _Requires(("mpi4py", *more)).missing()

    def prepare(self, case: RankCase, device: Device) -> Prepared:
        """Return the ranks, which stay until the last round."""
        if device.type != "cpu":
            raise RefusedError(
                f"each rank has a core of a CPU, and {device.name} is none"
            )
        if self.name == "sklearn" and case.ranks > 1:
            raise RefusedError(
                "MLPClassifier trains in one process: joblib shares whole trainings "
                "among processes, not the samples of one"
            )
        make, *values = self._call(case, device)
        ranks = rank_processes.start_ranks(case.ranks, make, *values)

        def check() -> float:
            if isinstance(case, MessageCase):
                ranks(1)
                return 0.0
            alone = replace(case, name="", ranks=1)
            return compare(case, ranks(1)[0][: case.checked], _errors(alone))

        def timer() -> Timer:
            return lambda repeats: float(ranks(repeats)[1]) / repeats

        basis = "message" if isinstance(case, MessageCase) else "epoch"
        return Prepared(check, {basis: timer}, threads=case.ranks)

    def _call(self, case: RankCase, device: Device) -> tuple[Any, ...]:
        """Return a function of `rank_processes`, and its arguments."""
        if isinstance(case, MessageCase):
            return rank_processes.messages, self.name, case.sizes[0]
        if self.name == "torch-ddp":
            return rank_processes.torch_training, case
        if self.name == "sklearn":
            return rank_processes.sklearn_training, case
        blocks = ORDERS[self.name] and max(BLOCKS, case.ranks)
        return rank_processes.clnet_training, case, device.index, blocks


@lru_cache(1)
def _errors(case: RankCase) -> list[float]:
    """Return the oracle's errors, once for all numbers of ranks."""
    return case.errors


@dataclass(frozen=True)
class _Requires(Candidate):
    requires: tuple[str, ...]  # type: ignore[misc]  # of an instance


def trials(device: Device, options: Options) -> tuple[Trial, ...]:
    """Return the trials: messages, one rank's steps, strong and weak scaling.

    Of a GPU those of `scaling_devices`.
    """
    if device.type != "cpu":
        return scaling_devices.trials(device)
    cores = os.cpu_count() or 1
    ranks = [n for n in RANKS if n <= cores]
    trials = [
        Trial("network", _messages(size, n), (Ranked(message),), roofline=False)
        for size in MESSAGES
        for message, n in (
            ("addition", 1), ("message", 2), ("exchange", 2),
            *(("all-reduce", n) for n in ranks[1:]),
        )
        if n <= cores
    ]
    ours = tuple(Ranked(name) for name in ORDERS)
    peers = (Ranked("torch-ddp"), Ranked("sklearn"))
    quick = options.effort == "quick"
    strong = STRONG if quick else {**STRONG, **LARGE}
    for table, networks in (("strong", strong), ("weak", WEAK)):
        for sizes, batch in networks.items():
            for n in ranks:
                samples = batch * (n if table == "weak" else 1)
                name = f"{'-'.join(map(str, sizes))} x{n}"
                case = _case(name, sizes, samples, n)
                trials.append(Trial(
                    table, case, (*ours, *peers), against=("any-order", "torch-ddp"),
                    roofline=False,
                ))
    for name, sizes in STEP_COSTS.items():
        if not (quick and name in SLOW):
            trials += [
                Trial(
                    "steps", _case(name, sizes, batch, 1), ours,
                    against=("any-order",), roofline=False,
                )
                for batch in BATCHES
            ]
    return tuple(trials)


def _case(name: str, sizes: tuple[int, ...], batch: int, ranks: int) -> RankCase:
    return RankCase(
        name, sizes, Adam(), "categorical_cross_entropy", STEPS * batch, batch, 1,
        "epoch", hidden="relu", output="softmax", ranks=ranks,
    )


def _messages(size: int, ranks: int) -> MessageCase:
    name = f"{size} bytes x{ranks}"
    return MessageCase(name, (size,), Adam(), "", 0, ranks, 1, "epoch", ranks=ranks)


# The model --------------------------------------------------------------------------


def model(rows: pd.DataFrame) -> pd.DataFrame:
    """Return predicted times beside measured ones, and predictions to 1024 ranks.

    There is a row a training, order, interconnect and number of ranks: `median` is the
    predicted time, of an epoch or (``table`` is ``"drawn"``) of a step, and `measured`
    the measured one, or NaN. InputError: measurements are missing.
    """
    rows = rows[rows["status"] == "measured"]
    within = interconnect(rows)
    predictions = []
    measured = rows[rows["table"].isin(["strong", "weak"])]
    for sizes, group in measured.groupby("sizes", sort=False):
        alone = rows[(rows["sizes"] == sizes) & (rows["threads"] == 1)]
        training = _training(str(sizes), alone)
        for row in group.itertuples():
            if row.candidate not in ORDERS or training is None:
                continue
            step = training.seconds(
                within, int(row.threads), int(row.batch), row.candidate == "fixed-order"
            )
            predictions.append((
                row.table, row.case, row.candidate, "host", int(row.threads),
                int(row.batch), STEPS * step, row.median,
            ))
    steps = rows[rows["table"] == "steps"]
    for case, group in steps.groupby("case", sort=False):
        training = _training(str(group["sizes"].iloc[0]), group)
        if training is None or group["batch"].nunique() < len(BATCHES):
            continue
        for where, costs in (("host", within), ("assumed", ASSUMED)):
            for order in ORDERS:
                for level in range(MAX_RANKS.bit_length()):
                    n = 1 << level
                    seconds = training.seconds(
                        costs, n, DRAWN_BATCH, order == "fixed-order"
                    )
                    predictions.append((
                        "drawn", case, order, where, n, DRAWN_BATCH, seconds, np.nan
                    ))
    return pd.DataFrame(predictions, columns=[
        "table", "case", "order", "interconnect", "ranks", "batch", "median",
        "measured",
    ])


def interconnect(rows: pd.DataFrame) -> Interconnect:
    """Return the costs of messages by their measurements.

    The latency is that of exchanges, for which ranks wait as in a training. InputError:
    messages of two sizes, or additions, were not measured.
    """
    network = rows[rows["table"] == "network"]
    times = {
        message: dict(zip(group["sizes"].astype(int), group["median"], strict=True))
        for message, group in network.groupby("candidate")
    }
    for message in ("message", "addition", "exchange"):
        if len(times.get(message, {})) < 2:
            raise InputError(
                f"the model needs rows of two sizes of {message}: measure the table "
                "network first"
            )
    return Interconnect(
        Line.through(times["exchange"]).fixed, Line.through(times["message"]).each,
        Line.through(times["addition"]).each,
    )


def _training(sizes: str, alone: pd.DataFrame) -> Training | None:
    """Return a training by rows of one rank; None unless its costs were measured.

    The step's costs are those of two batches, or, of one batch, of its samples alone.
    """
    times = {
        order: dict(zip(group["batch"], group["median"] / STEPS, strict=True))
        for order, group in alone.groupby("candidate") if order in ORDERS
    }
    if len(times) < len(ORDERS):
        return None
    fixed, free = times["fixed-order"], times["any-order"]
    step = (
        Line.through(free) if len(free) > 1
        else Line(0.0, *(seconds / batch for batch, seconds in free.items()))
    )
    further = np.mean([fixed[batch] - free[batch] for batch in fixed if batch in free])
    widths = [int(n) for n in sizes.split("-")]
    case = _case("", tuple(widths), 1, 1)
    itemsize = np.dtype(case.dtype).itemsize
    return Training(
        case.parameters * itemsize, step, max(0.0, float(further)) / (BLOCKS - 1)
    )


def model_report(rows: pd.DataFrame, predicted: pd.DataFrame) -> str:
    """Return the model's costs and predictions as printed tables."""
    costs = interconnect(rows[rows["status"] == "measured"])
    parts = [fill(
        f"an exchange takes {1e6 * costs.latency:.3g} us and "
        f"{1e12 * costs.per_byte:.3g} us a megabyte; an addition, "
        f"{1e12 * costs.per_add:.3g} us a megabyte"
    )]
    checked = predicted[predicted["measured"].notna()]
    if not checked.empty:
        shown = checked.assign(
            line=checked["table"] + " " + checked["case"],
            error=checked["median"] / checked["measured"],
        )
        parts += [
            fill("predicted time of an epoch over the measured one"),
            text(shown.pivot_table("error", "line", "order", sort=False)),
        ]
    drawn = predicted[predicted["table"] == "drawn"]
    for (where, order), group in drawn.groupby(["interconnect", "order"], sort=False):
        shown = 1e6 * group[group["ranks"].isin(SHOWN)].pivot_table(
            "median", "case", "ranks", sort=False
        )
        shortest = group.loc[group.groupby("case", sort=False)["median"].idxmin()]
        shown["shortest at"] = shortest.set_index("case")["ranks"]
        parts += [
            fill(f"predicted microseconds of a step over ranks, {order}, {where}"),
            text(shown),
        ]
    return "\n\n".join(parts)


# The report -------------------------------------------------------------------------


def bases(device: Device) -> Sequence[str]:
    """Return all bases: that of trainings, and that of messages."""
    return tuple(BASES)


def report(rows: pd.DataFrame) -> str:
    """Return the times, and the price of the fixed order: its ratio to any order."""
    return tables(rows, title=basis_title, meanings=BASES)


PLOTS = (
    Plot(
        "time", "Scaling over ranks", ("strong", "weak"),
        x=lambda rows: rows["threads"], x_label="ranks, a core each",
        y_label="time of an epoch (µs)",
        page=lambda rows: rows["table"] + ", " + rows["sizes"],
    ),
)
