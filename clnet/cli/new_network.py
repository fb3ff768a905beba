"""Options of ``clnet train`` for the network, and the network that they describe."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from clnet.errors import InputError
from clnet.network import Network
from clnet.nn.activations import SOFTMAX
from clnet.nn.initialisers import WIDROW_NGUYEN
from clnet.nn.labels import output_middles
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import CASCADE

if TYPE_CHECKING:
    from clnet.cli.samples import FileSamples

HIDDEN = 64  # neurons of the hidden layer: docs/explanation/defaults.md
ACTIVATION = "tanh"  # of hidden layers
SCALES = (-1.0, 1.0)  # of columns that are known by name


def network_of(
    arguments: argparse.Namespace, data: FileSamples, network: Network | None
) -> tuple[Network, bool]:
    """Return the network to train, and whether it is trained on scaled data."""
    new = network is None
    if network is None:
        sizes, names = _layers(arguments, data)
        network = Network.mlp(
            sizes, names, seed=arguments.seed, dropout=arguments.dropout
        )
    else:
        for option in ("dropout", "hidden", "output"):
            if getattr(arguments, option):
                raise InputError(f"--{option} is for --layers, not for --network")
    two = data.labelled and data.n_out == 2 and network.n_out == 1
    fewer = data.labelled and network.classes is not None  # some may not occur
    n_out = network.n_out if two or fewer else data.n_out
    if (data.x.shape[1], n_out) != (network.n_in, network.n_out):
        raise InputError(
            f"{arguments.data} has {data.counts}, the network {network.n_in} and "
            f"{network.n_out}"
        )
    if data.labelled and network.classes is None:
        network.classes = data.classes
    if network.columns is None:
        network.columns = data.columns
    by_name = data.columns is not None and not arguments.no_scale and new
    inputs, outputs = arguments.scale, arguments.scale_outputs
    if by_name:
        middles = output_middles(network)
        free = not (data.labelled or counts(arguments)) and middles == (None,)
        inputs, outputs = inputs or SCALES, outputs or (SCALES if free else None)
    x = data.x
    if inputs is not None or outputs is not None:
        if data.labelled and outputs is not None:
            raise InputError("--scale-outputs is for numbers, not for classes")
        network.scaling = data.scaling(inputs, outputs, network.n_out)
        x = network.scaling.scale_input(x)
    if arguments.initialiser is not None:
        name = arguments.initialiser
        if name == WIDROW_NGUYEN and data.source is not None:
            raise InputError(
                f"--initialiser {name} needs the ranges of all inputs: give another, "
                f"or a --buffer in which {arguments.data} fits"
            )
        network.initialise(
            name, x if name == WIDROW_NGUYEN else None, seed=arguments.seed
        )
    named = network.columns is not None and not arguments.no_scale
    return network, network.scaling is not None and (named or scales(arguments))


def scales(arguments: argparse.Namespace) -> bool:
    """Return whether the command asks for scaling."""
    return arguments.scale is not None or arguments.scale_outputs is not None


def counts(arguments: argparse.Namespace) -> bool:
    """Return whether the command's loss is one of counts, which are not scaled."""
    return arguments.loss is not None and loss_function(arguments.loss).positive


def _layers(
    arguments: argparse.Namespace, data: FileSamples
) -> tuple[list[int], list[str]]:
    """Return the sizes and activations of a new network."""
    cascade = arguments.optimiser == CASCADE
    hidden = "" if cascade else f"-{HIDDEN}"
    layers = arguments.layers or f"{data.x.shape[1]}{hidden}-{data.n_out}"
    texts = layers.split("-")
    if len(texts) < 2 or not all(text.isdecimal() and int(text) for text in texts):
        raise InputError(
            f"--layers is {layers!r}, expected sizes of at least 1, as in 125-32-2"
        )
    sizes = [int(text) for text in texts]
    if arguments.hidden and len(sizes) == 2:
        raise InputError(
            f"the network {layers} has no hidden layer: leave out --hidden"
        )
    of_loss = arguments.loss and loss_function(arguments.loss).activation
    output = arguments.output or of_loss or (
        SOFTMAX if data.labelled and sizes[-1] > 1 and not cascade else
        "sigmoid" if data.labelled or data.are_binary(0) else
        "tanh" if data.are_binary(-1) else "identity"
    )
    return sizes, [arguments.hidden or ACTIVATION] * (len(sizes) - 2) + [output]
