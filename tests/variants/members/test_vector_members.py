"""vector_members: every network beside the oracle."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from member_oracle import DEVICE, SESSION, N, check

from clnet import Network, Population
from clnet.ir.lowering import lower_training
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import Adam, Sarprop
from clnet.variants.members.members import VectorMembers
from clnet.variants.training.whole_step import LANES

if DEVICE.type != "cpu":
    pytest.skip("a CPU-only kernel", allow_module_level=True)

checked = partial(check, lambda count, samples, subsets: VectorMembers(1, not subsets))


@pytest.mark.parametrize(("sizes", "samples"), [
    ([2, 3, 1], 4), ([1, 1], 1), ([3, 7, 2], 9), ([4, 8, 8, 3], 33), ([5, 12, 3], 7),
])
def test_widths(sizes, samples):
    checked(sizes, samples)


def test_many_networks_that_end_apart():
    """Some lanes stop before others, and the last vector is not full."""
    count = LANES * DEVICE.compute_units + 3
    rng = np.random.default_rng(0)
    x, t = rng.uniform(-1, 1, (20, 3)), rng.uniform(0, 1, (20, 2))
    population = Population(Network.mlp([3, 6, 2], "tanh", seed=0), count)
    singles = list(population)
    epochs = [3 + i % 4 for i in range(count)]
    desired = [0.1 + 0.01 * (i % 5) for i in range(count)]
    histories = population.fit(
        x, t, optimiser="rprop", epochs=epochs, desired_error=desired, seed=0
    )
    assert "\n1-2       vector_members" in histories[0].plan
    for i, single in enumerate(singles):
        history = single.fit(
            x, t, optimiser="rprop", epochs=epochs[i], desired_error=desired[i], seed=0
        )
        assert len(history) == len(histories[i])
        assert history.stopped.split()[0] == histories[i].stopped.split()[0]
        np.testing.assert_allclose(histories[i].mse, history.mse, rtol=1e-4)
        np.testing.assert_allclose(population.parameters[i], single.parameters,
                                   rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [
    {"optimiser": "adam"}, {"optimiser": "rmsprop", "l1": 1e-3},
    {"optimiser": "rprop", "loss": "fann_tanh"}, {"optimiser": "sgd", "clip_norm": 0.1},
    {"optimiser": "adam", "loss": "binary_cross_entropy"},
], ids=lambda options: "-".join(map(str, options.values())))
def test_vectors_of_both_widths_have_the_same_bits(options, monkeypatch):
    """The last vector is not full."""
    rng = np.random.default_rng(0)
    x, t = rng.uniform(-1, 1, (11, 3)), rng.uniform(0, 1, (11, 2))
    last = "sigmoid" if "binary" in options.get("loss", "") else "tanh"
    shape = Network.mlp([3, 5, 2], ("gelu", last), seed=0)
    found = []
    for floats in (8, 16):
        monkeypatch.setattr(
            "clnet.variants.members.members.lanes", lambda device, n=floats: n
        )
        SESSION.kept.clear()  # launches of the other width
        population = Population(shape, LANES * DEVICE.compute_units + 3)
        histories = population.fit(x, t, epochs=4, batch_size=5, seed=0, **options)
        assert "\n1-2       vector_members" in histories[0].plan
        found.append((population.parameters, [one.mse for one in histories]))
    np.testing.assert_array_equal(*(parameters for parameters, _ in found))
    np.testing.assert_array_equal(*(errors for _, errors in found))


def test_refusals():
    def refusal(network, rule=None, **options):
        program = lower_training(network, loss_function("mse"), rule or Adam())
        span = program.span(0, len(program.ops), 8)
        return VectorMembers(1, **options).refuse(span, DEVICE)

    net = Network.mlp([4, 8, 2], seed=0)
    assert refusal(net) is None
    assert "orders differ" in refusal(net, alike=False)
    assert "sarprop" in refusal(net, Sarprop())
    assert "parameters" in refusal(Network.mlp([40, 8, 2], seed=0))
    assert "float32" in refusal(Network.mlp([4, 8, 2], dtype="float64", seed=0))
    assert N < LANES
