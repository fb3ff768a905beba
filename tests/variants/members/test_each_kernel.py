"""Kernels of many networks: rules, losses and rows of each, beside the oracle."""

from __future__ import annotations

import numpy as np
import pytest
from member_oracle import DEVICE, check

from clnet.nn.optimisers import SGD, Adam, Rprop
from clnet.nn.regularisation import Regularisation
from clnet.variants.members.group_members import GroupMembers, LaneMembers
from clnet.variants.members.members import TrainMembers, VectorMembers


def group(count, samples, subsets):
    return GroupMembers(count, subsets)


def vector(count, samples, subsets):
    if DEVICE.type != "cpu":
        pytest.skip("a CPU-only kernel")
    return VectorMembers(count, not subsets)


def rows(count, samples, subsets):
    if DEVICE.type != "cpu":
        pytest.skip("a CPU-only kernel")
    return TrainMembers(count, subsets)


def each(*cases):
    """Parametrise a test by the kernel, the sizes and the number of samples."""
    return pytest.mark.parametrize(
        ("kernel", "sizes", "samples"), cases,
        ids=[case[0].__name__ for case in cases],
    )


@pytest.mark.unoptimised
@pytest.mark.parametrize("rule", [Adam(), SGD(momentum=0.9), Rprop()])
@each((group, [4, 17, 3], 35), (LaneMembers, [4, 17, 3], 35), (vector, [4, 17, 3], 35))
def test_rules_in_mini_batches(kernel, sizes, samples, rule):
    check(kernel, sizes, samples, rule,
          samples if isinstance(rule, Rprop) else samples // 3)


@pytest.mark.unoptimised
@each((group, [4, 12, 2], 60), (LaneMembers, [4, 7, 2], 30))
def test_networks_with_rows_of_their_own(kernel, sizes, samples):
    rng = np.random.default_rng(1)
    counts = samples // 3, samples * 3 // 5, samples
    rows = [rng.permutation(samples)[:n] for n in counts]
    check(kernel, sizes, samples, subsets=rows)
    check(kernel, sizes, samples, SGD(), samples // 5 + 1, subsets=rows)


@pytest.mark.unoptimised
@pytest.mark.parametrize(("activation", "loss"), [
    (["gelu", "softmax"], "categorical_cross_entropy"), ("elliot", "huber"),
    ("elu", "mae"), (["relu", "sigmoid"], "binary_cross_entropy"),
])
@each((group, [4, 17, 3], 10), (LaneMembers, [4, 17, 3], 10), (vector, [4, 17, 3], 10))
def test_functions(kernel, sizes, samples, activation, loss):
    check(kernel, sizes, samples, activation=activation, loss=loss)


@pytest.mark.unoptimised
@each((group, [6, 20, 9, 4], 50), (rows, [6, 20, 9, 4], 50))
def test_dropout(kernel, sizes, samples):
    check(kernel, sizes, samples, dropout=0.6)
    check(kernel, sizes, samples, SGD(), 16, dropout=0.6, activation="gelu")


@each((group, [6, 20, 4], 50), (rows, [6, 20, 4], 50), (LaneMembers, [4, 6, 2], 25),
      (vector, [4, 6, 2], 25))
def test_weights(kernel, sizes, samples):
    everything = [np.arange(samples)] * 3 if kernel is rows else None
    check(kernel, sizes, samples, subsets=everything, weighted=True)


@pytest.mark.unoptimised
@pytest.mark.parametrize("regular", [
    Regularisation(clip_norm=0.05), Regularisation(l1=1e-2, l2=1e-2, clip_value=0.01),
])
@each((group, [6, 20, 4], 33), (LaneMembers, [4, 6, 2], 11), (vector, [4, 6, 2], 11))
def test_regularisation(kernel, sizes, samples, regular):
    check(kernel, sizes, samples, SGD(), regular=regular)
