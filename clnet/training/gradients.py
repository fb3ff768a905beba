"""The loss and its gradients at any parameters, for optimisers on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.opencl.discovery import device as find_device
from clnet.opencl.session import device_errors, session
from clnet.planning.training_planner import plan_training
from clnet.planning.tuning.budget import Budget
from clnet.runtime.replay import Replay
from clnet.runtime.train_state import TrainState
from clnet.training.programs import program_of

if TYPE_CHECKING:
    from clnet.nn.losses import LossFunction
    from clnet.nn.model import Model
    from clnet.opencl.device import Device
    from clnet.training.data_set import DataSet

Array = NDArray[Any]


class Gradients:
    """Sums over samples of a network's loss and of its gradients.

    Dropout drops nothing here.
    """

    def __init__(
        self, network: Model, loss: LossFunction, device: str | Device | None,
        data: DataSet, precision: str, calls: int,
    ) -> None:
        self._program = program_of(
            network, loss, None, precision, weighted=data.weighted, dropout=False,
            sparse=data.sparse,
        )
        where = find_device(device)
        plan = plan_training(
            network, self._program, where, len(data), budget=Budget(runs=calls)
        )
        self._session = session(where)
        with device_errors(self._session):
            size = network.layout.size
            self._train_state = TrainState(
                self._session, network.parameters, np.zeros((0, size), network.dtype)
            )
            self._replay = Replay(
                self._session, plan.steps, network.layout, self._train_state
            )
        self._samples = 0

    def write(self, data: DataSet) -> None:
        """Take the samples of the next calls."""
        self._samples = len(data)
        with device_errors(self._session):
            for value, array in zip(self._program.inputs, data.arrays, strict=True):
                self._replay.write(value, array)

    def __call__(self, parameters: Array) -> tuple[float, Array]:
        """Return the loss's sum over the samples, and its gradients [size]."""
        n = self._samples
        with device_errors(self._session):
            self._train_state.replace(parameters)
            self._replay.set(
                first=0, samples=n, seen=n, fresh=True, count=0, steps=1, seed=0
            )
            self._replay.run()
            gradients = self._replay.read_gradients()
            totals = self._replay.read(self._program.output)[0].astype(np.float64)
        return float(totals[0] + totals[len(totals) // 2]), gradients
