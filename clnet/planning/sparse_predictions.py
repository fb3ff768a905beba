"""Predictions for sparse matrices of many inputs, which stay sparse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.ir.lowering import lower
from clnet.ir.sparse_input import SparseShape, csr_arrays, csr_rows
from clnet.opencl.session import device_errors, session
from clnet.planning.training_planner import plan_training
from clnet.planning.tuning.search import Search
from clnet.runtime.replay import Replay
from clnet.runtime.train_state import TrainState

if TYPE_CHECKING:
    from clnet.nn.model import Model
    from clnet.opencl.device import Device

LONGEST = 2048  # samples of a call: their programs serve predictions of any number


def predict_sparse(
    network: Model, x: Any, device: Device, precision: str
) -> NDArray[Any]:
    """Return the outputs [samples, n_out] for a CSR matrix that the network reads.

    Kernels are planned as those of a validation are: in steps of samples of one data
    set, which is here a part of the matrix.
    """
    rows = csr_rows("x", x, network.dtype)
    n = rows.shape[0]
    batch = min(LONGEST, 1 << (n - 1).bit_length())
    parts = [rows[start : start + batch] for start in range(0, n, batch)]
    shape = SparseShape.of(batch, max(part.nnz for part in parts))
    program = lower(network, shape).at(precision)
    plan = plan_training(
        network, program, device, batch, search=Search(runs=len(parts))
    )
    where, y = session(device), []
    with device_errors(where):
        state = np.zeros((0, network.layout.size), network.dtype)
        replay = Replay(
            where, plan.steps, network.layout,
            TrainState(where, network.parameters, state),
        )
        for part in parts:
            for value, array in zip(program.inputs, csr_arrays(part), strict=True):
                replay.write(value, array)
            replay.run_pass(part.shape[0])
            y.append(replay.read(program.output)[: part.shape[0]])
    return np.concatenate(y)
