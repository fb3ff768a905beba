"""Losses: values known by hand, and slopes by finite differences."""

import numpy as np
import pytest

from clnet.errors import InputError
from clnet.nn.losses import LOSSES, loss_function


@pytest.mark.parametrize(("name", "y", "t", "half", "value", "slope"), [
    ("mse", 3, 1, 1, 4, 4),
    ("mae", 3, 1, 1, 2, 1), ("mae", 1, 1, 1, 0, 0), ("mae", 1, 4, 1, 3, -1),
    ("huber", 1.5, 1, 1, 0.125, 0.5), ("huber", -2, 1, 1, 2.5, -1),
    ("binary_cross_entropy", 0, 1, 1, np.log(2), -0.5),
    ("binary_cross_entropy", 1000, 0, 1, 1000, 1),
    ("binary_cross_entropy", -1000, 0, 1, 0, 0),
    ("fann_linear", 0.25, 1, 1, 0.28125, -0.75),
    ("fann_linear", 0.25, 1, 0.5, 0.140625, -0.375),
    ("fann_tanh", 0, 0.5, 1, 0.26162407188227394, -np.log(3)),
    ("fann_tanh", 0, 1, 0.5, 0.5232481437645479, -np.log(3)),
    ("fann_tanh", 0, 1, 1, 2 * np.log(2), -17),
    ("fann_tanh", 3, 0, 1, 2 * np.log(2) + 34, 17),
    ("poisson", 2, 3, 1, 2 - 3 * np.log(2), 1 - 3 / (2 + 1e-8)),
    ("poisson", 2, 0, 1, 2, 1),
    ("poisson", 0, 0, 1, 0, 1), ("poisson", 0, 1, 1, 8 * np.log(10), 1 - 1e8),
])
def test_values_known_by_hand(name, y, t, half, value, slope):
    row = loss_function(name)
    arguments = [np.array([[number]], np.float64) for number in (y, t)]
    arguments.append(np.array([half], np.float64))
    assert row.value(*arguments).item() == pytest.approx(value, rel=3e-6, abs=1e-12)
    assert row.gradient(*arguments).item() == pytest.approx(slope, rel=1e-9, abs=1e-12)


def test_poisson_is_pytorchs_of_rates():
    torch = pytest.importorskip("torch")
    rng, row = np.random.default_rng(0), loss_function("poisson")
    y, t = rng.uniform(0, 9, (2, 5, 3))
    rate = torch.tensor(y, requires_grad=True)
    theirs = torch.nn.PoissonNLLLoss(log_input=False, reduction="sum")(
        rate, torch.tensor(t)
    )
    theirs.backward()
    assert row.value(y, t, np.ones(3)).sum() == pytest.approx(theirs.item(), rel=1e-12)
    np.testing.assert_allclose(row.gradient(y, t, np.ones(3)), rate.grad, rtol=1e-12)


def test_categorical_cross_entropy():
    row = loss_function("categorical_cross_entropy")
    z = np.log(np.array([[1.0, 2, 5]])) + 1e4
    t = np.array([[0.0, 1, 0]])
    assert row.value(z, t, np.ones(3)).sum() == pytest.approx(np.log(4), rel=1e-9)
    np.testing.assert_allclose(
        row.gradient(z, t, np.ones(3)), [[1 / 8, -6 / 8, 5 / 8]], rtol=1e-9
    )


@pytest.mark.parametrize("row", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_types_are_kept(row, dtype):
    rng = np.random.default_rng(0)
    y, t = rng.uniform(0, 1, (2, 4, 3)).astype(dtype)
    half = np.array([0.5, 1, 1], dtype)
    assert row.value(y, t, half).dtype == dtype
    assert row.gradient(y, t, half).dtype == dtype
    assert row.value(y, t, half).shape == row.gradient(y, t, half).shape == (4, 3)


@pytest.mark.parametrize("row", LOSSES.values(), ids=LOSSES)
def test_slopes_by_differences(row):
    rng = np.random.default_rng(1)
    y, t = rng.uniform(-1.5, 1.5, (40, 3)), rng.uniform(0, 1, (40, 3))
    half, step = np.array([0.5, 1, 0.5]), 1e-6
    near_kink = np.abs(np.abs((t - y) * half) - 1) < 1e-3
    y[near_kink] += 0.01
    for column in range(3):
        moved = [y.copy(), y.copy()]
        moved[0][:, column] += step
        moved[1][:, column] -= step
        ends = [row.value(m, t, half).sum(axis=1) for m in moved]
        expected = (ends[0] - ends[1]) / (2 * step)
        found = row.gradient(y, t, half)[:, column]
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["msee", "", None, 3])
def test_unknown_names(name):
    with pytest.raises(InputError, match="unknown loss"):
        loss_function(name)
