"""Plans for sparse matrices of many inputs, which stay sparse."""

from __future__ import annotations

import threading
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.ir.lowering import lower
from clnet.ir.sparse_input import csr_arrays
from clnet.opencl.process import check_process
from clnet.opencl.session import device_errors, session
from clnet.planning.training_planner import plan_training
from clnet.planning.tuning.budget import Budget
from clnet.runtime.parameter_store import NO_PARAMETERS
from clnet.runtime.replay import Replay
from clnet.runtime.train_state import TrainState
from clnet.runtime.turn import Turn

if TYPE_CHECKING:
    from clnet.ir.sparse_input import SparseShape
    from clnet.nn.model import Model
    from clnet.opencl.device import Device

Array = NDArray[Any]


class SparsePlan:
    """A network compiled for rows of CSR matrices of a size at most.

    It is called as a `Plan` is. Kernels are planned as those of a validation are: in
    steps of samples of one data set, which is here the rows of a call.
    """

    calls_left = inf  # as of `Plan`

    def __init__(
        self, network: Model, device: Device, shape: SparseShape, precision: str,
        calls: float,
    ) -> None:
        self.network = network
        self.batch: int = shape.samples
        self.alternation: threading.Lock = threading.Lock()
        self._turn = Turn()
        self._session = session(device)
        self._program = lower(network, shape).at(precision)
        plan = plan_training(
            network, self._program, device, self.batch, budget=Budget(runs=int(calls))
        )
        with device_errors(self._session):
            state = np.zeros((0, network.layout.size), network.dtype)
            self._held = network.parameters
            self._state = TrainState(self._session, self._held, state)
            self._replay = Replay(
                self._session, plan.steps, network.layout, self._state
            )
        self._samples = 0

    def __call__(self, x: Any) -> Array:
        """Return the outputs [rows, n_out] for CSR rows."""
        try:
            self.start(x)
            return self.finish()
        except BaseException:  # Ctrl-C may come between the two
            self.cancel()
            raise

    def start(self, x: Any, parameters: Array | None = None) -> None:
        """Start a call for CSR rows, by parameters that are copied where they differ.

        Parameters are as for `Plan.start`.
        """
        check_process()
        if parameters is None:
            parameters = self.network.parameters
        try:
            self._turn.begin()
            with device_errors(self._session):
                if parameters is not self._held:
                    self._held = NO_PARAMETERS  # an interrupt leaves neither
                    self._state.replace(parameters)
                    self._held = parameters
                for value, array in zip(
                    self._program.inputs, csr_arrays(x), strict=True
                ):
                    self._replay.write(value, array)
                self._samples = x.shape[0]
                self._replay.run_pass(self._samples)
        except BaseException:
            self._turn.end()
            raise

    def finish(self, out: Array | None = None) -> Array:
        """Wait for the started call, as `Plan.finish` does."""
        try:
            with device_errors(self._session):
                y = self._replay.read(self._program.output)[: self._samples]
        finally:
            self._turn.end()
        if out is None:
            return y
        out[...] = y
        return out

    def cancel(self) -> None:
        """End the call that this thread has started, as `Plan.cancel` does."""
        if self._turn.is_mine:
            try:
                self._session.finish()
            finally:
                self._turn.end()

    def twin(self) -> SparsePlan:
        """Return the plan itself: calls do not overlap."""
        return self
