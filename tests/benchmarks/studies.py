"""Shared by the tests of the bench: a tiny case, a short effort, faked devices."""

from clnet.benchmarks import harness, timing
from clnet.benchmarks.cases.dense import Case

from clnet.opencl.device import Device

TINY = Case("tiny", (5, 7, 3), "tanh", 2)
BRIEF = timing.Effort("quick", rounds=3, block=0.0)
GPU = Device("faked", type="gpu", compute_units=132)
CPU = Device("faked", type="cpu", compute_units=2)


def rows_of(trial, device, bases=("wall",), effort=BRIEF, study="s"):
    """Return the rows that a trial makes on a device."""
    kept = []
    harness.Harness(study, device, effort, tuple(bases), kept.append).run(trial)
    return kept
