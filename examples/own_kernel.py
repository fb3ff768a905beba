"""A kernel of your own in the race with clnet's: four_sums.cl, beside this file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import clnet
from clnet.variants.dense.naive import Naive

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device
    from clnet.opencl.launch import Launches
    from clnet.variants.base import Config

KERNEL = Path(__file__).resolve().with_name("four_sums.cl")


@dataclass(frozen=True)
class FourSums(Naive):
    """As naive, with the launch of another kernel, which has the same arguments."""

    name: str = "four_sums"

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the layer's one launch."""
        (launch,) = super().launches(span, config, device)
        return (replace(launch, source=str(KERNEL), kernel="four_sums"),)


def main() -> None:
    """Measure naive, four_sums and split for a network, and print the race."""
    net = clnet.Network.mlp([200, 400, 100], "sigmoid", seed=0)
    plan = net.compile("cpu", tune=True, variants=["naive", "split", FourSums()])
    print(plan.explain())


if __name__ == "__main__":
    main()
