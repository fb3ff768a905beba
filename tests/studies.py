"""What the tests of the bench share: a tiny case, a short effort, a faked GPU."""

from __future__ import annotations

from clnet.cli.benchmarks import benchmarks
from clnet.opencl.device import Device

cases = benchmarks("cases")
rounds = benchmarks("rounds")

TINY = cases.Case("tiny", (5, 7, 3), "tanh", 2)
BRIEF = rounds.Effort("quick", rounds=3, block=0.0)
GPU = Device("faked", type="gpu", compute_units=132)
CPU = Device("faked", type="cpu", compute_units=2)
