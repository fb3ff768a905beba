"""Optimisers: the NumPy rules against plain loops written from their sources."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from clnet import load
from clnet.errors import InputError
from clnet.network import Network
from clnet.nn.fann_parameters import FannParameters
from clnet.nn.optimisers import (
    OPTIMISERS,
    SGD,
    Adam,
    AdamW,
    Batch,
    Incremental,
    Quickprop,
    RMSprop,
    Rprop,
    Sarprop,
    StepInfo,
    fann_optimiser,
    optimiser,
)
from clnet.nn.random import uniform
from clnet.nn.regularisation import Regularisation
from clnet.nn.schedules import Exponential, Step

STEPS, N, SAMPLES = 12, 40, 5


def gradients():
    """Return gradients [STEPS, N]: changing signs, zeros, columns of zeros."""
    rng = np.random.default_rng(0)
    g = rng.normal(0, 1, (STEPS, N)) * 10.0 ** rng.integers(-3, 2, N)
    g[:, :10] = np.abs(g[:, :10])
    g[rng.uniform(size=g.shape) < 0.1] = 0
    g[:, :3] = 0
    return g


def run(rule, rate=None):
    """Return the parameters [STEPS, N] after each step."""
    w = np.random.default_rng(1).uniform(-1, 1, N)
    w[5] = 1499.9
    state = np.repeat(np.array(rule.initial)[:, np.newaxis], N, axis=1)
    state = state.reshape(rule.slots, N)
    found = []
    for count, g in enumerate(gradients()):
        now = StepInfo(rule.rate if rate is None else rate, SAMPLES, count,
                       mse(count), 3)
        rule.step(w, g, state, now)
        found.append(w.copy())
    return np.array(found)


def mse(count):
    return 0.2 / (1 + count)


def by_loops(rule, step):
    """Return the same from `step(w, g, s, count, i)`, s a dict of numbers."""
    found = np.empty((STEPS, N))
    start = np.random.default_rng(1).uniform(-1, 1, N)
    start[5] = 1499.9
    for i in range(N):
        w, s = float(start[i]), {}
        for count, g in enumerate(gradients()[:, i].tolist()):
            w = step(w, g, s, count, i)
            found[count, i] = w
    return found


def agree(rule, step):
    np.testing.assert_allclose(run(rule), by_loops(rule, step), rtol=1e-11, atol=1e-14)


def test_incremental():
    def step(w, g, s, count, i):
        s["dw"] = 0.3 * -g + 0.4 * s.get("dw", 0)
        return w + s["dw"]

    agree(Incremental(0.3, 0.4), step)


def test_batch():
    agree(Batch(0.3), lambda w, g, s, count, i: w - g * 0.3 / SAMPLES)


def test_rprop():
    def step(w, g, s, count, i):
        slope = -g
        p = max(s.get("step", 0.1), 0.0001)
        if s.get("previous", 0) * slope >= 0:
            s["step"] = min(p * 1.2, 50)
        else:
            s["step"], slope = max(p * 0.5, 0), 0
        s["previous"] = slope
        move = math.copysign(s["step"], slope) if slope else 0
        return min(max(w + move, -1500), 1500)

    agree(Rprop(), step)


def test_rprop_of_fann():
    """As section 9.3 of FANN's reference says, zero slopes move up included."""
    def step(w, g, s, count, i):
        slope = -g
        p = max(s.get("step", 0.1), 0.0001)
        if s.get("previous", 0) * slope >= 0:
            s["step"] = min(p * 1.2, 50)
        else:
            s["step"], slope = max(p * 0.5, 0), 0
        s["previous"] = slope
        return max(w - s["step"], -1500) if slope < 0 else min(w + s["step"], 1500)

    rule = Rprop(moves_at_zero=True)
    agree(rule, step)
    first = run(rule)[0] - np.random.default_rng(1).uniform(-1, 1, N)
    np.testing.assert_allclose(first[:3], 0.12)


def test_quickprop():
    eps, mu, decay = 0.7 / SAMPLES, 1.75, -0.0001

    def step(w, g, s, count, i):
        slope = -g + decay * w
        last, before = s.get("step", 0), s.get("previous", 0)
        shrunk, moved = before * mu / (1 + mu), 0
        if last > 0.001:
            moved += eps * slope if slope > 0 else 0
            moved += mu * last if slope > shrunk else last * slope / (before - slope)
        elif last < -0.001:
            moved += eps * slope if slope < 0 else 0
            moved += mu * last if slope < shrunk else last * slope / (before - slope)
        else:
            moved += eps * slope
        s["step"], s["previous"] = moved, slope
        return min(max(w + moved, -1500), 1500)

    agree(Quickprop(), step)


def test_quickprop_of_no_parabola_is_refused():
    """Its share mu / (1 + mu) has a pole."""
    with pytest.raises(InputError, match="mu of quickprop must be other than -1"):
        Quickprop(mu=-1)


def test_quickprop_where_fann_divides_by_zero():
    w, state = np.zeros(1), np.array([[0.5], [0.0]])
    Quickprop(decay=0).step(w, np.zeros(1), state, StepInfo(0.7, 1, 0, 0.1, 0))
    assert w == 0


def test_sarprop():
    t = 0.015

    def step(w, g, s, count, i):
        p = max(s.get("step", 0), 1e-6)
        slope = g - w * 2 ** (-t * count - 6.644)
        c = s.get("previous", 0) * slope
        if c > 0:
            s["step"] = min(p * 1.2, 50)
            w += s["step"] if slope < 0 else -s["step"]
        elif c < 0:
            if p < 0.1 * mse(count):
                r = uniform(3, count, N)[i]
                s["step"] = p * 0.5
                s["step"] += r * math.sqrt(mse(count)) * 2 ** (-t * count + 1.385)
            else:
                s["step"] = max(p * 0.5, 1e-6)
            slope = 0
        else:
            w += p if slope < 0 else -p
            s["step"] = 0
        s["previous"] = slope
        return w

    agree(Sarprop(), step)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd(nesterov):
    def step(w, g, s, count, i):
        g = g / SAMPLES + 0.01 * w
        s["v"] = 0.9 * s["v"] + g if "v" in s else g
        return w - 0.05 * (g + 0.9 * s["v"] if nesterov else s["v"])

    agree(SGD(0.05, 0.9, 0.01, nesterov), step)


@pytest.mark.parametrize("rule", [Adam(0.01, weight_decay=0.1), AdamW(0.01, 0.8, 0.9)])
def test_adam(rule):
    def step(w, g, s, count, i):
        g = g / SAMPLES
        if isinstance(rule, AdamW):
            w *= 1 - rule.learning_rate * rule.weight_decay
        else:
            g += rule.weight_decay * w
        s["m"] = rule.beta1 * s.get("m", 0) + (1 - rule.beta1) * g
        s["v"] = rule.beta2 * s.get("v", 0) + (1 - rule.beta2) * g * g
        m = s["m"] / (1 - rule.beta1 ** (count + 1))
        v = s["v"] / (1 - rule.beta2 ** (count + 1))
        return w - rule.learning_rate * m / (math.sqrt(v) + rule.eps)

    agree(rule, step)


@pytest.mark.parametrize("centered", [False, True])
def test_rmsprop(centered):
    def step(w, g, s, count, i):
        g = g / SAMPLES + 0.02 * w
        s["sq"] = 0.99 * s.get("sq", 0) + 0.01 * g * g
        s["mean"] = 0.99 * s.get("mean", 0) + 0.01 * g
        square = s["sq"] - s["mean"] ** 2 if centered else s["sq"]
        s["v"] = 0.5 * s.get("v", 0) + g / (math.sqrt(max(square, 0)) + 1e-8)
        return w - 0.01 * s["v"]

    agree(RMSprop(0.01, weight_decay=0.02, momentum=0.5, centered=centered), step)


@pytest.mark.parametrize("rule", [
    Adam(), AdamW(beta1=0.3), RMSprop(centered=True, momentum=0.5),
], ids=lambda rule: rule.name)
def test_float32_is_off_by_roundings_of_pytorch_in_float64(rule):
    """In 1,000 steps, more than the moments remember: each adds a few roundings.

    Squares of gradients are off by 3 u, which the decays average; each step adds half
    an ulp of the moment, of random sign: 6 u sqrt(1 / (1 - decay)), at most.
    """
    torch = pytest.importorskip("torch")
    made = {
        "adam": torch.optim.Adam, "adamw": torch.optim.AdamW,
        "rmsprop": torch.optim.RMSprop,
    }[rule.name]
    options = dataclasses.asdict(rule)
    options["lr"] = options.pop("learning_rate")
    if "beta1" in options:
        options["betas"] = options.pop("beta1"), options.pop("beta2")
    rng, u = np.random.default_rng(0), np.finfo(np.float32).eps / 2
    start = rng.uniform(-1, 1, N)
    exact = torch.tensor(start, requires_grad=True)
    oracle = made([exact], **options)
    w, state = start.astype(np.float32), np.zeros((rule.slots, N), np.float32)
    largest = 0.0
    for count in range(1000):
        g = rng.normal(0, 1, N).astype(np.float32)
        exact.grad = torch.tensor(g.astype(np.float64))
        oracle.step()
        rule.step(w, g, state, StepInfo(rule.rate, 1, count, 0.0, 0))
        moments = oracle.state[exact]
        name = "square_avg" if rule.name == "rmsprop" else "exp_avg_sq"
        expected = moments[name].numpy()
        if getattr(rule, "centered", False):
            expected = expected - moments["grad_avg"].numpy() ** 2
        off = np.abs(state[rule.squares[0]] / expected - 1)
        largest = max(largest, float(off.max()))
    decay = getattr(rule, "alpha", None) or rule.beta2
    assert largest < (3 + 6 / math.sqrt(1 - decay)) * u


def test_centered_rmsprop_of_equal_gradients_does_not_cancel():
    """Their deviation falls with the decay; a difference of squares is rounding."""
    rule, g = RMSprop(1.0, alpha=0.5, centered=True), np.full(3, 1e3, np.float32)
    w, state = np.zeros(3, np.float32), np.zeros((3, 3), np.float32)
    for count in range(20):
        rule.step(w, g, state, StepInfo(rule.rate, 1, count, 0.0, 0))
    exact = (1 - 0.5**20) * 0.5**20 * 1e6
    assert np.allclose(state[0], exact, rtol=1e-5)


def test_settings_beyond_float32_are_refused():
    """By one function, whatever carries the setting."""
    for make in (
        lambda: SGD(1e39), lambda: AdamW(weight_decay=-1e39),
        lambda: Quickprop(mu=1e39), lambda: Regularisation(l1=1e39),
        lambda: Regularisation(l2=1e39),
        lambda: Regularisation(clip_norm=1e39), lambda: Regularisation(clip_value=1e39),
        lambda: Exponential(1e39), lambda: Step(factor=10**400),
    ):
        with pytest.raises(InputError, match="must be within float32's range, not"):
            make()


@pytest.mark.parametrize("row", OPTIMISERS.values(), ids=OPTIMISERS)
def test_types_are_kept(row):
    w, g = np.ones(4, np.float32), np.ones(4, np.float32)
    state = np.ones((row.slots, 4), np.float32)
    row().step(w, g, state, StepInfo(0.1, 4, 0, 0.1, 0))
    assert w.dtype == state.dtype == np.float32
    assert np.isfinite(w).all()
    assert len(row().initial) == row.slots


def test_names_and_defaults():
    assert optimiser("rprop") == Rprop()
    assert optimiser(Adam(0.1)) == Adam(0.1)
    assert (Adam().learning_rate, Adam().beta2, Adam().eps) == (1e-3, 0.999, 1e-8)
    assert (SGD().rate, Rprop().rate) == (1e-3, 0.0)
    with pytest.raises(InputError, match="did you mean 'rprop'"):
        optimiser("rpropp")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Adam("x"), lambda: SGD(float("nan")), lambda: SGD(momentum=True),
        lambda: Adam(beta1=1.0), lambda: Adam(beta2=-0.1), lambda: SGD(nesterov=0.5),
        lambda: SGD(-0.1), lambda: RMSprop(alpha=1.0),
    ],
)
def test_bad_constants(make):
    with pytest.raises(InputError, match="must be"):
        make()


def test_fann_parameters_name_their_optimiser():
    def named(name, **options):
        return fann_optimiser(FannParameters(training_algorithm=name, **options))

    assert named("incremental", learning_momentum=0.25) == Incremental(0.7, 0.25)
    assert named("batch", learning_rate=0.5) == Batch(0.5)
    assert named("rprop", rprop_delta_zero=0.5) == Rprop(
        delta_zero=0.5, moves_at_zero=True
    )
    assert named("quickprop", quickprop_mu=2.0) == Quickprop(mu=2.0)
    assert named("sarprop", rprop_delta_max=9.0) == Sarprop(delta_max=9.0)


@pytest.mark.parametrize("rule", [
    Incremental(0.3, 0.2), Batch(0.4), Rprop(1.3, 0.4, 1e-5, 40, 0.2, True),
    Quickprop(0.6, -0.001, 1.5), Sarprop(1.3, 0.4, 30),
], ids=lambda rule: rule.name)
def test_fann_parameters_record_fanns_rules(rule, tmp_path):
    """The network records its training; its .net file continues with the same rule."""
    network = Network.mlp([2, 3, 1], "tanh", seed=0)
    x, t = np.eye(2), np.zeros((2, 1))
    network.fit(x, t, optimiser=rule, epochs=1, loss="fann_linear", stop="bit_fail")
    network.save(tmp_path / "a.net")
    found = load(tmp_path / "a.net").fann
    assert fann_optimiser(found) == rule
    assert found.train_error_function == "linear"
    assert found.train_stop_function == "bit_fail"


def test_rules_that_fann_lacks_change_no_parameters(tmp_path):
    network = Network.mlp([2, 3, 1], "tanh", seed=0)
    network.fit(np.eye(2), np.zeros((2, 1)), optimiser="adam", epochs=1)
    assert network.fann is None
    network.fann = FannParameters(training_algorithm="batch", learning_rate=0.1)
    network.fit(np.eye(2), np.zeros((2, 1)), optimiser="adam", epochs=1)
    assert network.fann.training_algorithm == "batch"
