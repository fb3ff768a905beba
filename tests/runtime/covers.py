"""Plans of any cover, for the tests of the runtime."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import clnet
from clnet import Network
from clnet.ir.product import Apply
from clnet.runtime.binding import PlanStep
from clnet.runtime.plan import Plan
from clnet.variants.dense.cpu import Cpu, serial_companion
from clnet.variants.dense.naive import Naive
from clnet.variants.reference.generic import Generic, Host

CPU = clnet.device("cpu")
NO_SVM = dataclasses.replace(
    CPU, fine_svm=False,
    companions=tuple(dataclasses.replace(c, fine_svm=False) for c in CPU.companions),
)
NETWORK = Network.mlp([5, 7, 3], "tanh", seed=1)
DEVICES = pytest.mark.parametrize("device", [CPU, NO_SVM], ids=["shared", "buffers"])


def inputs(network, batch, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (batch, network.n_in)).astype(network.dtype)


def on_device(network, batch=1, device=CPU, variants=("naive", "generic")):
    return network.compile(device, batch, tune=False, variants=list(variants))


KINDS = {
    "host": (Host(), {}, None),
    "naive": (Naive(), {}, 0),
    "generic": (Generic(), {}, 0),
    "naive serial": (Naive(), {}, 1),
    "generic serial": (Generic(), {}, 1),
    "cpu": (Cpu(), {"workers": 2, "group": 2, "caller": 0}, 0),
    "cpu with caller": (Cpu(), {"workers": 2, "group": 2, "caller": 1}, 0),
    "cpu serial": (Cpu(), {"workers": 1, "group": 2, "caller": 0}, 1),
}


# The kinds that need a companion in the calling thread, if there is none.
ABSENT = set() if serial_companion(CPU) else {
    name for name, (_, config, index) in KINDS.items() if index or config.get("caller")
}


def cover(network, device, kinds, batch):
    """A plan with layers of the named kinds, in order."""
    if not ABSENT.isdisjoint(kinds):
        pytest.skip("the device has no serial companion")
    program, steps, start = network.program, [], 0
    kinds = iter(kinds)
    while start < len(program.ops):
        whole = isinstance(program.ops[start], Apply)
        variant, config, index = KINDS[next(kinds) if whole else "generic"]
        step_device = None if index is None else device.places[index]
        size = 2 if whole and variant.reach != "op" else 1
        for first in range(start, start + (2 if whole else 1), size):
            span = program.span(first, first + size, batch)
            assert variant.refuse(span, device) is None
            steps.append(PlanStep(span, variant, config, step_device))
        start += 2 if whole else 1
    device_steps = lambda: [s for s in steps if s.device is not None]  # noqa: E731
    return Plan(network, device, batch, steps, device_steps, device_steps)
