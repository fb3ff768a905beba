"""NaN in a sample's inputs: it stays NaN, and stays in its sample."""

from __future__ import annotations

import numpy as np
import pytest
from devices import DEVICE
from variant_cases import alternate

from clnet import Dense, DeviceError, Network, Sparse
from clnet.variants import ALL_VARIANTS


def check_its_sample_alone(network, variant):
    """Check that one NaN of a sample makes all of its outputs NaN, and no others."""
    x = np.random.default_rng(2).random((9, 17), np.float32)
    x[4, 3] = np.nan
    try:
        plan = network.compile(DEVICE, 9, variants=[variant], tune=False)
    except DeviceError as refusal:
        pytest.skip(str(refusal)[:60])
    assert (np.isnan(plan(x)) == (np.arange(9) == 4)[:, None]).all()


@pytest.mark.parametrize(("variant", "activation"), alternate(
    [v.name for v in ALL_VARIANTS],
    ["sigmoid", "linear_piece", "cos_symmetric", "tanh", "linear_piece_symmetric",
     "identity"],
))
def test_nan_passes_the_limit_of_pre_activations(variant, activation):
    """FANN's limit is no `clamp`, whose result of NaN is undefined."""
    layers = [Dense(20, activation, steepness=0.5) for _ in range(3)]
    network = Network(17, layers, seed=1, fann_compatible=True)
    check_its_sample_alone(network, variant)


@pytest.mark.parametrize(("variant", "depth"), alternate(
    [v.name for v in ALL_VARIANTS], [1, 2]
))
def test_nan_reaches_all_neurons_of_a_masked_layer(variant, depth):
    """Zeros are multiplied there, by whichever variant."""
    mask = np.eye(17, dtype=bool)
    layers = [Sparse(17, "tanh", pattern=mask, format="dense")] * depth
    network = Network(17, layers, seed=1)
    check_its_sample_alone(network, variant)
