"""`fit`: a training from its setup to its history."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import INT_MAX, PRECISIONS, as_whole
from clnet.errors import InputError
from clnet.ir.lowering import lower_training
from clnet.nn.cascade import is_cascade
from clnet.nn.optimisers import CASCADE
from clnet.opencl.discovery import device as find_device
from clnet.opencl.session import device_error, session
from clnet.planning.training_planner import plan_training
from clnet.planning.tuning.budget import Budget
from clnet.training.callbacks import end, progress_bar, start, stopping
from clnet.training.data_set import advice
from clnet.training.history import all_done, interrupted_after
from clnet.training.options import default_loss, rule_of
from clnet.training.plans import Planning
from clnet.training.setup import training_setup
from clnet.training.training import Training

if TYPE_CHECKING:
    from clnet.ir.program import Program
    from clnet.nn.model import Model
    from clnet.nn.optimisers import Optimiser
    from clnet.opencl.device import Device
    from clnet.training.fit_options import FitOptions
    from clnet.training.history import Epoch, History
    from clnet.training.setup import TrainingSetup

Array = NDArray[Any]


def fit(network: Model, options: FitOptions) -> History:
    """Train a network; see `Network.fit`."""
    if is_cascade(options.optimiser):
        from clnet.training.cascade.training import fit_cascade

        return fit_cascade(network, options)
    if options.max_neurons is not None:
        raise InputError(
            "max_neurons is of cascade training: leave it out, or give optimiser="
            f'"{CASCADE}"'
        )
    if options.comm is None:
        return train(training_setup(network, options))
    from clnet.runtime.ranks import joined
    from clnet.training.mpi import shared_setup

    with joined(options.comm, "fit") as ranks:
        assert ranks is not None
        ranks.together(options.check)
        return train(shared_setup(network, options, ranks))


def train(setup: TrainingSetup) -> History:
    """Train a network by its setup."""
    network = setup.network
    errors = session(setup.devices[0]).errors
    try:
        training = Training(setup, Planning(setup))
        network.classes, network.columns = setup.classes, setup.columns
        states = [] if setup.saved is None else setup.saved.callbacks
        start((*setup.callbacks, *setup.checkpoints), training, states)
        training.agree()
        try:
            _train(training, setup)
            end((*setup.checkpoints, *setup.callbacks), training)
            training.agree()
        except (Exception, KeyboardInterrupt):  # the network gets the parameters so far
            with suppress(*errors):
                training.update_network()
            raise
        training.finish()
    except errors as error:
        raise device_error(setup.devices[0], error, *setup.devices[1:]) from error
    network.fann = setup.options.fann
    return training.history


def explain(
    network: Model,
    optimiser: str | Optimiser,
    device: str | Device | None,
    batch: int,
    tune: bool | None = None,
    precision: str = PRECISIONS[0],
    progress: bool = False,
) -> str:
    """Return how a training step over all samples would be computed, and why."""
    batch = as_whole("batch", batch, most=INT_MAX)
    rule, where = rule_of(network, optimiser), find_device(device)
    loss = default_loss(network, optimiser)

    def lowered(stored: Model) -> Program:
        return lower_training(stored, loss, rule).at(precision)

    with Budget(progress=progress) as budget:
        return plan_training(
            network, lowered(network), where, batch, tune=tune, lowered=lowered,
            budget=budget,
        ).explain()


def _train(training: Training, setup: TrainingSetup) -> None:
    """Train epoch by epoch until a stop rule holds; `history.stopped` names it."""
    history = training.history
    if training.stopped:  # before the checkpoint was written
        history.stopped = training.stopped
        return
    try:
        done = len(history)
        with progress_bar(
            done + setup.epochs, "epochs", setup.progress, done
        ) as bar:
            for epoch in training.epochs(setup.epochs):
                if bar is not None:
                    bar.update(len(history) - bar.n)
                    bar.set_postfix(loss=f"{epoch.loss:.4g}", refresh=False)
                if not epoch.training.finite:
                    name = "mse" if np.isfinite(epoch.loss) else "loss"
                    history.stopped = (
                        f"training diverged: the {name} of epoch {epoch.number} is "
                        f"{getattr(epoch, name)}; the last finite parameters are "
                        f"kept, {advice(setup.data.t)}"
                    )
                    return
                training.stopped = history.stopped = training.agree(
                    _stopped(training, setup, epoch)
                )
                for checkpoint in setup.checkpoints:
                    checkpoint(training, epoch)
                if training.stopped:
                    return
        history.stopped = all_done(len(history))
    except KeyboardInterrupt:
        if setup.ranks is not None:
            raise  # it ends all ranks
        training.interrupted = True
        history.stopped = interrupted_after(len(history))


def _stopped(training: Training, setup: TrainingSetup, epoch: Epoch) -> str:
    """Return why the training stops after an epoch, or an empty text."""
    name = stopping(setup.callbacks, training, epoch)
    if name:
        return f"{name} stopped after epoch {epoch.number}"
    desired = setup.options.desired
    return "" if desired is None else desired.reached(epoch) or ""
