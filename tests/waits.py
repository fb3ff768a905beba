"""Kernels whose groups wait for each other, where they wait in vain."""

from __future__ import annotations

import numpy as np
import pytest
from bounds import assert_right

from clnet.binding import Step
from clnet.errors import ClnetWarning
from clnet.runtime import Plan
from clnet.variants import Generic


def assert_computed_again(network, waiting, batch):
    """Check that a plan of one step that waits in vain says so, and is right."""
    program, device = network.program, waiting.place

    def spare():
        return [
            Step(program.span(i, i + 1, batch), Generic(), {}, device)
            for i in range(len(program.ops))
        ]

    plan = Plan(network, device, batch, [waiting], lambda: [waiting], spare, "why")
    x = np.random.default_rng(1).uniform(-1, 1, (batch, network.n_in))
    x = x.astype(np.float32)
    with pytest.warns(ClnetWarning, match=f"{waiting.variant.name} waited in vain"):
        y = plan(x)
    assert_right(network, x, y)
    assert "waited in vain" in plan.explain()
    assert_right(network, x, plan(x))  # and no second warning
    assert {step.variant.name for step in plan.steps} == {"generic"}
