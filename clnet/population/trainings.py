"""The trainings of a population, by the arguments of its `fit`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from clnet.checks import check_flag
from clnet.nn.scaling import scaling_to_apply

if TYPE_CHECKING:
    from clnet.network import Network
    from clnet.opencl.device import Device
    from clnet.training.members import Members, Samples
    from clnet.training.options import TrainingOptions

Array = NDArray[Any]

EACH = (  # arguments of `Population.fit` that may be lists of one value a network
    "optimiser", "learning_rate", "epochs", "seed", "desired_error", "schedule", "l1",
    "l2", "clip_norm", "clip_value",
)


def trainings(
    network: Network, dropout: Array, given: Mapping[str, Any]
) -> tuple[Members, Samples, Device]:
    """Return the trainings of networks, their data and their device."""
    from clnet.opencl.discovery import device as find_device
    from clnet.training.data_set import warn_of_classes
    from clnet.training.members import members_of, rule_with_rate, samples_of

    device, batch_size = find_device(given["device"]), given["batch_size"]
    for name in "tune", "progress":
        check_flag(name, given[name], optional=True)
    samples = samples_of(
        network, given["x"], given["t"], given["validation"], given["patience"],
        scaling_to_apply(network.scaling, given["scale"]),
    )

    def options_of(
        n: int, optimiser: Any, learning_rate: Any, epochs: Any, desired_error: Any,
        schedule: Any, **regularisation: Any,
    ) -> TrainingOptions:
        rule = rule_with_rate(network, optimiser, learning_rate, n, batch_size)
        return network._training_options(
            n=n, optimiser=rule, loss=given["loss"], epochs=epochs,
            batch_size=batch_size, shuffle=given["shuffle"], desired=desired_error,
            stop=given["stop"], schedule=schedule, precision=given["precision"],
            **regularisation,
        )

    members = members_of(
        network, samples, len(dropout), isinstance(given["validation"], str),
        given["rows"], given["sample_weight"], {name: given[name] for name in EACH},
        options_of,
    )
    warn_of_classes(network, given["t"], members.options[0].loss)
    return replace(members, dropout=dropout), samples, device
