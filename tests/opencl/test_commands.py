"""Launches without events work and fail as pyopencl's do."""

import numpy as np
import pyopencl as cl
import pytest

import clnet
from clnet.opencl import commands
from clnet.opencl.session import session

SESSION = session(clnet.device())
TEXT = "__kernel void count(__global int *x) { x[get_global_id(0)] += 1; }"


@pytest.mark.parametrize("events", [False, True])
@pytest.mark.parametrize("direct", [False, True])
def test_prepared_launches(events, direct, monkeypatch):
    if not direct:
        monkeypatch.setattr(commands, "_enqueue_function", lambda: None)
    kernel = cl.Program(SESSION.context, TEXT).build().count
    launch = commands.prepared_launch(SESSION.queue, kernel, (8,), (4,), events=events)
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


class FailedEvent:
    def wait(self):
        raise cl.RuntimeError("the kernel was not compiled")


def test_an_error_that_only_an_event_tells_is_raised(monkeypatch):
    """By each call until one succeeds; later calls do not wait."""
    events = [FailedEvent(), FailedEvent()]
    monkeypatch.setattr(cl, "enqueue_nd_range_kernel", lambda *_: events.pop())
    kernel = cl.Program(SESSION.context, TEXT).build().count
    launch = commands.prepared_launch(
        SESSION.queue, kernel, (8,), (4,), events=True, late_errors=True
    )
    for _ in range(2):
        with pytest.raises(cl.RuntimeError, match="not compiled"):
            launch()
    done = cl.UserEvent(SESSION.context)
    done.set_status(cl.command_execution_status.COMPLETE)
    pending = cl.UserEvent(SESSION.context)
    events += [pending, done]
    assert [launch(), launch()] == [done, pending]
