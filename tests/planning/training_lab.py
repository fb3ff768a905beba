"""Networks and programs of the tests of planning trainings."""

from __future__ import annotations

import dataclasses

from clnet import Dense, Network
from clnet.ir.lowering import lower_training
from clnet.ir.update import Update
from clnet.nn.losses import loss_function
from clnet.opencl.discovery import device
from clnet.variants.cost import Cost
from clnet.variants.reference.generic import Generic, GenericBackward
from clnet.variants.training.optimisers import Optimisers

DEVICE = device("cpu")
PLAIN = (Generic(), GenericBackward(), Optimisers())


def net(last="sigmoid", **options):
    return Network(4, [Dense(5, "tanh"), Dense(2, last)], seed=1, **options)


def program_of(network, rule=None, loss="mse", **options):
    return lower_training(network, loss_function(loss), rule, **options)


@dataclasses.dataclass(frozen=True)
class Everything:
    """A whole program by generic kernels, as one span."""

    name: str = "everything"
    reach: str = "program"

    def refuse(self, span, device):
        return None if isinstance(span.ops[-1], Update) else "it trains"

    def space(self, span, device):
        return ({"a": 1}, {"a": 2})

    def cost(self, span, config, device):
        return Cost(1, 1, 1, 0, 1)

    def launches(self, span, config, device):
        found = []
        for op in span.ops:
            part = dataclasses.replace(span, ops=(op,), outputs=op.writes)
            for variant in PLAIN:
                if variant.refuse(part, device) is None:
                    found += variant.launches(part, {}, device)
                    break
        return tuple(found)
