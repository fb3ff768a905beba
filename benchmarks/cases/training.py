"""Cases of training: a network, data, an optimiser, and the expected errors.

A candidate trains from the same initial weights each time: one epoch that is not timed,
and then the timed ones. Its errors of the first epochs are compared with those of a
training in float64 by the oracle (`clnet.ir.reference`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet import Dense, Network
from clnet.formats import load_data
from clnet.ir import reference
from clnet.ir.lowering import lower_training
from clnet.ir.program import Program
from clnet.nn.fann_parameters import FannParameters
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import Adam, Optimiser, Rprop
from clnet.training.history import History

from ..candidates import Prepared, Timer
from .dense import Array, Case, WrongError

# The length of one run.
BASES = {
    "100 epochs": "a hundred epochs, set-up and a first epoch not counted",
    "epoch": "one epoch, set-up and a first epoch not counted",
    "step": "one step, set-up and a first epoch not counted",
}
EPOCHS = 100  # of the first basis
# The largest relative error of an epoch's error: rounding errors accumulate.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Trained:
    """The outcome of a training."""

    # Of each epoch, the first included, as far as they are checked: see
    # `TrainingCase.errors`
    errors: list[float]
    seconds: float  # From the end of the first epoch to the end of the last


Train = Callable[[int], Trained]
"""A function that trains from the initial weights: one epoch, and a number more."""


@dataclass(frozen=True)
class TrainingCase:
    """A fully connected network, data, and an optimiser."""

    name: str  # For people, files and ``--case``
    sizes: tuple[int, ...]  # Inputs, then neurons of each layer
    optimiser: Optimiser
    loss: str  # Of `clnet.nn.losses`
    # Of the data set, and of a step
    samples: int
    batch: int
    epochs: int  # Timed at once
    basis: str  # Of `BASES`: the length of one run
    hidden: str = "tanh"
    output: str = "sigmoid"
    initialiser: str = "glorot"
    file: str = ""  # The data set; empty: random data, one class of n_out a sample
    folder: Path = field(default=Path())
    checked: int = 1  # Epochs whose errors are checked
    # Trained side by side from the same weights; the errors are the first one's
    networks: int = 1
    dtype: str = "float32"
    precision: str = "highest"
    seed: int = 0
    tolerance: float = TOLERANCE

    @property
    def activation(self) -> str:
        """The activations of the hidden layers and of the output layer."""
        return f"{self.hidden} {self.output}"

    @property
    def steps(self) -> int:
        """Steps an epoch."""
        return -(-self.samples // self.batch)

    @property
    def runs(self) -> float:
        """The number of runs, of the basis's length, in the timed epochs."""
        return self.epochs * {
            "100 epochs": 1 / EPOCHS, "epoch": 1.0, "step": float(self.steps)
        }[self.basis]

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return sum((a + 1) * b for a, b in pairwise(self.sizes))

    @property
    def footprint(self) -> int:
        """Bytes of the data set, the parameters and the optimiser's state."""
        numbers = self.parameters * (1 + self.optimiser.slots)
        return self._data_bytes + np.dtype(self.dtype).itemsize * numbers

    @property
    def bytes(self) -> float:
        """Bytes of a run: data once an epoch, parameters and state both ways a step."""
        updated = 2 * (self.footprint - self._data_bytes)
        return (self._data_bytes + self.steps * updated) * self.epochs / self.runs

    @property
    def flops(self) -> float:
        """Operations of a run: forward, backward, gradients, update."""
        layers = [a * b for a, b in pairwise(self.sizes)]
        neurons = sum(self.sizes[1:])
        sample = 2 * (3 * sum(layers) - layers[0]) + 2 * 4 * neurons
        epoch = self.samples * sample + 4 * self.steps * self.parameters
        return epoch * self.epochs / self.runs

    @property
    def _data_bytes(self) -> int:
        width = self.sizes[0] + self.sizes[-1]
        return np.dtype(self.dtype).itemsize * self.samples * width

    def missing(self) -> str | None:
        """Return None if the data set exists, else a sentence."""
        if not self.file or (self.folder / self.file).is_file():
            return None
        return f"there is no {self.file} in the folder of the data sets: see --data"

    @cached_property
    def data(self) -> tuple[Array, Array]:
        """Inputs [samples, n_in] and targets [samples, n_out]."""
        if self.file:
            x, t = load_data(self.folder / self.file, dtype=self.dtype)
        else:
            rng = np.random.default_rng(self.seed)
            x = rng.uniform(0, 1, (self.samples, self.sizes[0])).astype(self.dtype)
            t = np.eye(self.sizes[-1], dtype=self.dtype)[self.labels]
        expected = ((self.samples, self.sizes[0]), (self.samples, self.sizes[-1]))
        if (x.shape, t.shape) != expected:
            raise WrongError(f"{self.file} has shapes {x.shape} and {t.shape}")
        return x, t

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """The classes [samples] of random data."""
        rng = np.random.default_rng(self.seed + 1)
        return rng.integers(0, self.sizes[-1], self.samples)

    def network(self, fann: bool = False) -> Network:
        """Return a new network with the initial weights.

        With `fann` it has the optimiser among FANN's training parameters, and FANN's
        compatible mode.
        """
        *hidden, last = self.sizes[1:]
        names = [self.hidden] * len(hidden) + [self.output]
        layers = [
            Dense(n, name, initialiser=self.initialiser)
            for n, name in zip((*hidden, last), names, strict=True)
        ]
        parameters = None
        if fann:
            rule = self.optimiser
            parameters = FannParameters(
                training_algorithm=rule.name, train_error_function="linear"
            )
            if rule.rate:
                parameters = replace(parameters, learning_rate=rule.rate)
        return Network(
            self.sizes[0], layers, seed=self.seed, dtype=self.dtype,
            fann=parameters, fann_compatible=fann,
        )

    def program(self, network: Network, rule: Optimiser) -> Program:
        """Return the program of one step, as `fit` lowers it."""
        return lower_training(
            network, loss_function(self.loss), rule,
            samples=self.samples if self.batch < self.samples else None,
        )

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `Network.fit`, but for the number of epochs."""
        x, t = self.data
        return {
            "x": x, "t": t, "optimiser": self.optimiser, "loss": self.loss,
            "batch_size": self.batch, "shuffle": False, "seed": self.seed,
        }

    def outcome(self, history: History, seconds: float = math.nan) -> Trained:
        """Return the outcome of a training by `Network.fit`."""
        return Trained(list(history.loss if self.by_loss else history.mse), seconds)

    @cached_property
    def errors(self) -> list[float]:
        """Errors of the first epochs: the loss for Adam, else mean squared errors."""
        return self._oracle(self.network(), self.optimiser)

    @cached_property
    def fann_errors(self) -> list[float]:
        """The errors with FANN's derivatives, and RPROP's moves without a gradient."""
        rule = self.optimiser
        if isinstance(rule, Rprop):
            rule = replace(rule, moves_at_zero=True)
        return self._oracle(self.network(fann=True), rule)

    @property
    def by_loss(self) -> bool:
        """True if an epoch's error is the loss, not the mean squared error."""
        return isinstance(self.optimiser, Adam)

    def error(self, loss: float, squares: float) -> float:
        """Return an epoch's error by the sums of losses and of squared errors."""
        if self.by_loss:
            return loss / self.samples
        return squares / (self.samples * self.sizes[-1])

    def _oracle(self, network: Network, rule: Optimiser) -> list[float]:
        program = self.program(network, rule)
        parameters = network.parameters.astype(np.float64)
        x, t = self.data
        data, targets = program.inputs
        values: dict[str, Array] = {
            data.name: x.astype(np.float64), targets.name: t.astype(np.float64),
            "state": rule.initial_state(parameters.size, "float64"),
            "seed": np.asarray(self.seed), "rate": np.asarray(rule.rate),
        }
        errors = []
        for epoch in range(self.checked):
            for step in range(self.steps):
                first = step * self.batch
                count = min(self.batch, self.samples - first)
                numbers = {
                    "batch": count, "first": first, "samples": count,
                    "seen": first + count, "fresh": step == 0,
                    "count": epoch * self.steps + step,
                }
                values |= {name: np.asarray(n) for name, n in numbers.items()}
                reference.run_ops(program.ops, values, parameters)
            loss, squares = values["totals"][0, :2]
            errors.append(float(self.error(loss, squares)))
        return errors


Workload = Case | TrainingCase
"""The cases that the harness measures."""


def trainer(
    case: TrainingCase,
    train: Train,
    *,
    expected: Callable[[], list[float]] | None = None,
    config: str = "",
    threads: int | None = None,
    spins: bool = False,
) -> Prepared:
    """Return a candidate that trains.

    `expected` returns the expected errors; None: all of `TrainingCase.errors`.
    """

    def check() -> float:
        errors = case.errors if expected is None else expected()
        return compare(case, train(len(errors) - 1).errors, errors)

    return Prepared(
        check, {case.basis: lambda: timer(case, train)}, config, threads, spins, train
    )


def timer(case: TrainingCase, train: Train) -> Timer:
    """Return the timer of repeated trainings, in seconds of one run."""

    def run(repeats: int) -> float:
        seconds = sum(train(case.epochs).seconds for _ in range(repeats))
        return seconds / (repeats * case.runs)

    return run


def compare(case: TrainingCase, errors: list[float], expected: list[float]) -> float:
    """Return the largest relative difference of epochs' errors.

    WrongError: it exceeds the case's tolerance, or an error is missing or not finite.
    """
    if len(errors) != len(expected):
        raise WrongError(f"it trained {len(errors)} epochs, not {len(expected)}")
    worst = 0.0
    for number, (a, b) in enumerate(zip(errors, expected, strict=True), start=1):
        difference = abs(a - b) / abs(b)
        if not difference <= case.tolerance:
            raise WrongError(
                f"the error of epoch {number} is {a:.6g}, by the oracle {b:.6g}, at "
                f"most {case.tolerance:.2g} of it was allowed"
            )
        worst = max(worst, difference)
    return worst


class Clock:
    """Records the ends of epochs."""

    def __init__(self) -> None:
        self._ends: list[float] = []

    def __call__(self) -> None:
        """Record the end of an epoch."""
        self._ends.append(time.perf_counter())

    @property
    def seconds(self) -> float:
        """Seconds from the first end to the last."""
        return self._ends[-1] - self._ends[0]
