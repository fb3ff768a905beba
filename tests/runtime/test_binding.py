"""Launches without events work and fail as pyopencl's do."""

from __future__ import annotations

import numpy as np
import pyopencl as cl
import pytest

import clnet
from clnet.opencl.session import session
from clnet.runtime import binding

SESSION = session(clnet.device())
TEXT = "__kernel void count(__global int *x) { x[get_global_id(0)] += 1; }"


@pytest.mark.parametrize("events", [False, True])
@pytest.mark.parametrize("direct", [False, True])
def test_prepared_launches(events, direct, monkeypatch):
    if not direct:
        monkeypatch.setattr(binding, "_enqueue_function", lambda: None)
    kernel = cl.Program(SESSION.context, TEXT).build().count
    launch = binding.prepared_launch(SESSION.queue, kernel, (8,), (4,), events=events)
    with pytest.raises(cl.Error):
        launch()  # without an argument
    flags = cl.mem_flags
    x = cl.Buffer(
        SESSION.context, flags.READ_WRITE | flags.COPY_HOST_PTR,
        hostbuf=np.zeros(8, np.int32),
    )
    kernel.set_arg(0, x)
    found = [launch() for _ in range(3)]
    if events:
        assert all(isinstance(event, cl.Event) for event in found)
    values = np.zeros(8, np.int32)
    cl.enqueue_copy(SESSION.queue, values, x)
    np.testing.assert_array_equal(values, 3)
