"""Checks of kernels whose work-groups wait for each other until a timeout."""

from __future__ import annotations

from math import inf

import numpy as np
import pyopencl.array as cla
import pytest
from bounds import assert_right

from clnet.errors import ClnetWarning
from clnet.opencl.session import session
from clnet.runtime.binding import PlanStep
from clnet.runtime.executable import Executable
from clnet.runtime.plan import Plan
from clnet.variants import Generic


def assert_timeout_is_recovered(network, waiting, batch):
    """Check that a plan of one step that times out warns, and is right."""
    program, device = network.program, waiting.device

    def fallback():
        return [
            PlanStep(program.span(i, i + 1, batch), Generic(), {}, device)
            for i in range(len(program.ops))
        ]

    def new_plan():
        steps = [waiting]
        return Plan(network, device, batch, steps, lambda: steps, fallback)

    x = np.random.default_rng(1).uniform(-1, 1, (batch, network.n_in))
    x = x.astype(np.float32)
    for on_device in (False, True):
        plan = new_plan()
        rows = cla.to_device(plan.queue, x) if on_device else x

        def call(plan=plan, rows=rows):
            y = plan(rows)
            return y.get() if isinstance(y, cla.Array) else y

        with pytest.warns(ClnetWarning, match=f"{waiting.variant.name} timed out"):
            y = call()
        assert_right(network, x, y)
        assert "timed out" in plan.explain()
        assert_right(network, x, call())  # and no second warning
        assert {step.variant.name for step in plan.steps} == {"generic"}
    assert_a_burst_waits_for_no_timeout(new_plan(), x)
    assert_reported_once(network, waiting, x)


def assert_a_burst_waits_for_no_timeout(plan, x):
    """Check that a call between device arrays gives NaN, and a later one warns."""
    direct = plan._device_call()
    executable = direct._executable
    assert executable.bound.can_time_out
    there = cla.to_device(plan.queue, x)
    with executable.store.filled(plan.network.parameters):
        direct._check_at = inf
    assert np.isnan(plan(there).get()).any()
    direct._check_at = 0.0
    with pytest.warns(ClnetWarning, match="timed out"):
        y = plan(there)
    assert_right(plan.network, x, y.get())


def assert_reported_once(network, waiting, x):
    """Check that a timeout is reported once, not by later calls."""
    span = waiting.span
    one = Executable(
        session(waiting.device), network, [waiting], span.inputs, span.outputs
    )
    one.x[network.program.input.name][...] = x
    one.run()
    y = one.result(network.program.output.name)
    assert one.result_timed_out(y)
    assert not one.result_timed_out(y)
