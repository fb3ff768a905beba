"""The runner of cases: it keeps what they share, and judges what they find."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from memory import GuardedMemory

import clnet
from clnet import Network
from clnet.errors import ClnetWarning
from clnet.nn.storage.layout import live_elements
from clnet.opencl.device import Device

from . import pytorch
from .cascades import Cascades
from .cases import Case, Outcome
from .check import (
    Fit,
    Predict,
    Skipped,
    Train,
    WrongError,
    data,
    initial_state,
    largest,
    lowered,
    passes,
)
from .populations import Populations

JUDGED = 16  # of so many cases, PyTorch judges one
KINDS = {"predict": Predict, "gradients": Train, "train": Train, "fit": Fit,
         "population": Populations, "cascade": Cascades}


def home(case: Case, device: Device) -> Device:
    """Return the device of a case, which may pose as one with a single group."""
    if case.one_group and not device.forward_progress:
        return replace(device, forward_progress=True, compute_units=1)
    return device


class Runner:
    """Runs cases on a device, and keeps what they share."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._shapes: dict[Case, Any] = {}
        self._same: dict[Any, Any] = {}
        self._network: dict[Any, Network] = {}
        self._guarded = GuardedMemory()

    def run(self, case: Case) -> Outcome:
        """Return the outcome of a case."""
        bound = None
        try:
            with (
                warnings.catch_warnings(), np.errstate(all="ignore"),
                self._guarded.installed(),
            ):
                warnings.simplefilter("error", ClnetWarning)
                bound = self._bound(case)
                margin = bound(case)
                for size in self._guarded.written():
                    raise WrongError(f"bytes behind a buffer of {size} were written")
                judged = case.seed % JUDGED == 0 and self._judge(case, bound)
                outcome = Outcome(margin=margin, judged=judged)
        except Skipped as reason:
            outcome = Outcome(skipped=str(reason))
        except Exception as error:  # any other is a fault
            outcome = Outcome(f"{type(error).__name__}: {error}")
        steps = () if bound is None else tuple(dict.fromkeys(
            (step.variant.name, str(dict(step.config))) for step in bound.steps
        ))
        if outcome.fault is not None and steps:
            by = ", ".join(dict.fromkeys(name for name, _ in steps))
            outcome = replace(outcome, fault=f"{outcome.fault} (by {by})")
        return replace(outcome, steps=steps)

    def _judge(self, case: Case, bound: Any) -> bool:
        """Compare the oracle with PyTorch; return whether that is possible."""
        if case.task == "cascade" or not (pytorch.AVAILABLE and pytorch.knows(case)):
            return False
        network, start = bound.network, bound.network.parameters
        if case.task == "predict":
            # PyTorch's products are of whole matrices, as if NaN reached all neurons.
            x = np.nan_to_num(case.inputs(case.batch, network.n_in))
            found = pytorch.check_outputs(case, network, x)
        else:
            start = np.asarray(case.parameters(network), case.dtype)
            start = np.where(live_elements(network.layout, network.storages), start, 0)
            program = lowered(case, network)
            values = data(case, program, network)
            values["state"] = initial_state(case, start)
            found = pytorch.check_training(
                case, program, network, values, start, passes(case, program)
            )
        largest(*found, "the oracle beside PyTorch")
        return True

    def forget(self) -> None:
        """Forget what cases share."""
        self._shapes.clear()
        self._same.clear()
        self._network.clear()

    def _bound(self, case: Case) -> Any:
        if case.shape not in self._shapes:
            family = case.n_in, case.layers, case.dtype, case.fann_compatible
            if family not in self._network:
                self.forget()
                self._network[family] = case.network()
            self._shapes[case.shape] = KINDS[case.task](
                case, self._network[family], home(case, self.device),
                self._same.setdefault(case.task, {}),
            )
        return self._shapes[case.shape]


def default_device(spec: str | None) -> Device:
    """Return the device of a specification."""
    return clnet.device(spec)
