"""A planner whose measurements are faked, for the tests of its choices."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np

import clnet
from clnet import Network
from clnet.opencl.device import Device
from clnet.opencl.store import Timing
from clnet.planning import inference, planner
from clnet.planning.planner import Planner
from clnet.planning.tuning import times
from clnet.planning.tuning.calls import CallTrial
from clnet.variants.dense.naive import Naive

NETWORK = Network.mlp([5, 7, 6, 3], seed=1)
OPS = len(NETWORK.program.ops)
CPU = clnet.device("cpu")


def inputs(network, batch, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (batch, network.n_in)).astype(network.dtype)


class Lab:
    """A fake of measuring and of plans: times by a rule, and a list of the requests.

    `rule` takes the steps and returns seconds, or an exception to raise.
    """

    def __init__(self, monkeypatch):
        self.rule = lambda steps: 1e-3
        self.measured = []
        monkeypatch.setattr(times, "quiet_errors", nullcontext)
        monkeypatch.setattr(CallTrial, "session", None)
        monkeypatch.setattr(CallTrial, "ready", staticmethod(self.ready))
        monkeypatch.setattr(CallTrial, "check", lambda *parts: True)
        monkeypatch.setattr(
            planner, "Plan", lambda *parts: SimpleNamespace(
                steps=parts[3], device_steps=parts[4], text=parts[-1]()
            ),
        )

    def ready(self, steps, inputs, outputs, *, on_device, alike=()):
        assert {step.span.batch for step in steps} == {steps[0].span.batch}
        self.measured.append(tuple(steps))
        seconds = self.rule(steps)
        if isinstance(seconds, Exception):
            raise seconds
        return Timing(seconds, seconds, 0.0)

    def plan(
        self, network=NETWORK, device=CPU, batch=1, tune=None, variants=None,
        budget=None,
    ):
        chosen = inference.VARIANTS
        if variants is not None:
            chosen = inference._variants_of(variants)
        return Planner(
            network, device, batch, tune, chosen, budget=budget
        ).plan()


def by_name(seconds, otherwise=1e-3):
    """Seconds by the variants' names, an op or layer or run alike."""
    return lambda steps: sum(seconds.get(s.variant.name, otherwise) for s in steps)


def names(plan):
    return [step.variant.name for step in plan.steps]


GPU = Device("gpu", compute_units=100, local_memory=48 << 10, simd_width=32, fp64=True)


@dataclasses.dataclass(frozen=True)
class Broken(Naive):
    """Naive, with something wrong in its launches."""

    name: str = "broken"
    change: dict = dataclasses.field(default_factory=dict, hash=False)

    def launches(self, span, config, device):
        (launch,) = super().launches(span, config, device)
        change = dict(self.change)
        defines = {**launch.defines, **change.pop("defines", {})}
        return (dataclasses.replace(launch, defines=defines, **change),)
