"""`fit`: a training from its setup to its history."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

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
from clnet.training.callbacks import end, start
from clnet.training.options import loss_of, rule_of
from clnet.training.setup import training_setup

if TYPE_CHECKING:
    from clnet.ir.program import Program
    from clnet.nn.model import Model
    from clnet.nn.optimisers import Optimiser
    from clnet.opencl.device import Device
    from clnet.training.fit_options import FitOptions
    from clnet.training.history import History
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
    from clnet.training.network_training import NetworkTraining
    from clnet.training.plans import Planning

    network = setup.network
    errors = session(setup.devices[0]).errors
    try:
        training = NetworkTraining(Planning(setup))
        network.classes, network.columns = setup.classes, setup.columns
        states = [] if setup.saved is None else setup.saved.callbacks
        start((*setup.callbacks, *setup.checkpoints), training, states)
        training.agree()
        try:
            training.run()
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
    loss = loss_of(network, optimiser)

    def lowered(stored: Model) -> Program:
        return lower_training(stored, loss, rule).at(precision)

    with Budget(progress=progress) as budget:
        return plan_training(
            network, lowered(network), where, batch, tune=tune, lowered=lowered,
            budget=budget,
        ).explain()
