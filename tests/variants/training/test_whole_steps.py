"""Variants that compute whole training steps, against the float64 oracle."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from bounds import FLOAT32, LAMBDA, OVERFLOWS
from deviations import deviations
from spans import samples_for, slot_of
from variant_cases import alternate

from clnet import Dense, Network
from clnet.errors import ClnetWarning
from clnet.ir import reference
from clnet.ir.loss import Tally
from clnet.ir.lowering import lower_training
from clnet.ir.update import Update
from clnet.nn.activations import ACTIVATIONS
from clnet.nn.losses import LOSSES, loss_function
from clnet.nn.optimisers import (
    OPTIMISERS,
    SGD,
    Adam,
    Batch,
    Incremental,
    Quickprop,
    Rprop,
    Sarprop,
)
from clnet.nn.random import key
from clnet.nn.regularisation import Regularisation
from clnet.nn.storage.layout import live_elements
from clnet.opencl.discovery import device
from clnet.opencl.session import session
from clnet.runtime import replay
from clnet.runtime.binding import PlanStep
from clnet.runtime.replay import Replay
from clnet.runtime.train_state import TrainState
from clnet.training import plans
from clnet.variants.training import epoch, group_step
from clnet.variants.training.epoch import Sequential, TiledEpoch
from clnet.variants.training.group_step import GroupStep

DEVICE = device()
SESSION = session(DEVICE)
TOLERANCE = 3e-5
RATE = 0.05
PLACES = DEVICE.places
VARIANTS = [
    variant for variant in (TiledEpoch(), GroupStep())
    if DEVICE.type == "cpu" or variant.name != "epoch"
]
# group_step is compiled for every network, loss and rule, which is slow on PoCL: the
# selections below cover all its code.
RULES = ["incremental", "rprop", "adam", "sarprop"]
KINDS = ["mse", "binary_cross_entropy", "categorical_cross_entropy"]
BATCHES = [1, 9, 33, 61, 391]


def selected(values, few, cheap=("epoch",)):
    """Pair variants with values: quickly, on CPUs, few values of all but the cheap."""
    return [
        pytest.param(
            variant, value, id=f"{variant.name}-{value}", marks=[pytest.mark.sweep] * (
                DEVICE.type == "cpu" and variant.name not in cheap and value not in few
            ),
        )
        for variant in VARIANTS for value in values
    ]


on_cpu = pytest.mark.skipif(DEVICE.type != "cpu", reason="a variant for CPUs")


def data_of(network, loss, n, seed=4):
    return list(samples_for(network, loss, n, seed=seed).values())


def trained(
    network, program, batch, data, variant, config, place, epochs=2, where=SESSION
):
    """Return the Replay and TrainState after some epochs on the device."""
    span = program.span(0, len(program.ops), batch)
    assert variant.refuse(span, place) is None
    rule = getattr(program.ops[-1], "optimiser", None)
    state = np.zeros((0 if rule is None else rule.slots, network.layout.size), "f4")
    if rule is not None:
        state[...] = np.reshape(rule.initial, (rule.slots, 1))
    train_state = TrainState(where, network.parameters, state)
    bound = Replay(
        where, [PlanStep(span, variant, config, place)], network.layout, train_state
    )
    for value, array in zip(program.inputs, data, strict=False):
        bound.write(value, array)
    bound.set(rate=RATE, seed=7, key=key(3, 1))
    count = 0
    for _ in range(epochs):
        count += bound.run_pass(len(data[0]), count)
    return bound, train_state


def expected(network, program, batch, data, epochs=2):
    """Return the oracle's values and parameters after the same epochs."""
    parameters = network.parameters.astype(np.float64)
    values = initial_values(network, program, batch, data)
    for one in step_scalars(len(data[0]), batch, epochs):
        values.update(one)
        reference.run_ops(program.ops, values, parameters)
    return values, parameters


def initial_values(network, program, batch, data):
    """Return the oracle's initial values."""
    rule = getattr(program.ops[-1], "optimiser", None)
    state = np.zeros((0 if rule is None else rule.slots, network.layout.size))
    if rule is not None:
        state[...] = np.reshape(rule.initial, (rule.slots, 1))
    values = {"batch": np.array(batch), "state": state, "rate": RATE, "seed": 7,
              "key": key(3, 1)}
    for value, array in zip(program.inputs, data, strict=False):
        values[value.name] = array.astype(np.float32).astype(np.float64)
    return values


def step_scalars(n, batch, epochs):
    """Return the oracle's scalars of each step."""
    firsts = [first for _ in range(epochs) for first in range(0, n, batch)]
    return [
        {"first": first, "samples": min(batch, n - first),
         "seen": min(first + batch, n), "fresh": first == 0, "count": count}
        for count, first in enumerate(firsts)
    ]


def assert_close(found, wanted, tolerance=TOLERANCE):
    size = max(1e-30, float(np.abs(wanted).max(initial=0)))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * size)


def check(network, loss, batch, rule, variant, *, n=None, shuffled=False,
          weighted=False, all_configs=False, tolerance=TOLERANCE, regular=None):
    """Compare one configuration a kind, or all on all devices, with the oracle.

    Few steps on unsaturated networks: RPROP depends on the sign of the gradient, which
    is lost where it rounds to zero.
    """
    options = {} if regular is None else {"regularisation": regular}
    program = lower_training(
        network, loss_function(loss), rule, samples=n, shuffled=shuffled,
        weighted=weighted, **options,
    )
    data = data_of(network, loss, n or batch)
    if weighted:
        data[1][0], data[2][0] = OVERFLOWS, 0
    epochs = 1 if rule is None else 2
    if rule is None:
        values, deviation = deviations(
            program.ops, initial_values(network, program, batch, data),
            network.parameters, FLOAT32, step_scalars(len(data[0]), batch, epochs),
        )
    else:
        values, parameters = expected(network, program, batch, data, epochs)
    live = live_elements(network.layout, network.storages)
    span = program.span(0, len(program.ops), batch)
    for place in PLACES if all_configs else PLACES[:1]:
        configs = list(variant.space(span, place))
        assert configs
        kinds = {c.get("alone", c.get("caller")): c for c in configs}
        for config in configs if all_configs else kinds.values():
            bound, train_state = trained(
                network, program, batch, data, variant, config, place, epochs
            )
            totals = bound.read(program.output)[0]
            assert_close((totals[:3] + totals[3:])[:2], values["totals"][0, :2])
            assert totals[2] == values["totals"][0, 2]
            if rule is not None:
                found = train_state.values()[0]
                assert_close(found, parameters, tolerance)
                assert not found[~live].any()
                continue
            flat = bound.read_gradients()
            assert not flat[~live].any()
            for op in program.ops:
                slot = slot_of(op)
                if slot is not None:
                    part = flat[slot.offset : slot.offset + slot.size]
                    off = np.abs(part - values[op.gradient.name][0])
                    assert (off <= LAMBDA * deviation[op.gradient.name][0]).all()


@pytest.mark.parametrize(
    ("variant", "batch"), selected([1, 7, 8, 9, 31, 33, 48, 61, 200, 391], BATCHES)
)
def test_batches(variant, batch):
    network = Network(13, [Dense(6, "tanh"), Dense(3, "sigmoid")], seed=batch)
    slow = variant.name == "group_step" and DEVICE.type == "cpu"  # a build a config
    check(
        network, "mse", batch, None, variant, all_configs=batch == 391 and not slow
    )


@pytest.mark.unoptimised
@pytest.mark.parametrize(("variant", "n_in"), selected([1, 3, 4, 5, 127], [5]))
@pytest.mark.parametrize("widths", [(1,), (2, 1), (7, 9, 5), (37, 4)])
def test_widths(variant, n_in, widths):
    layers = [Dense(w, "tanh", bias=w != 9) for w in widths]
    check(Network(n_in, layers, seed=n_in), "mse", 50, Rprop(), variant)


@on_cpu
@pytest.mark.parametrize("floats", [8, 16])
def test_vectors_of_both_widths(floats, monkeypatch):
    """With rests of rows and of vectors, on registers of either width."""
    monkeypatch.setattr("clnet.variants.training.epoch.lanes", lambda device: floats)
    network = Network(19, [Dense(21, "tanh"), Dense(13, "tanh"), Dense(5)], seed=1)
    for batch in 1, 9, 131:
        check(network, "mse", batch, SGD(RATE), TiledEpoch())


def test_layers_of_blocks_and_elements():
    """PoCL's optimiser let work-items without a block into the loop over blocks."""
    sizes = ((63, "elliot_symmetric", 1.0), (8, "tanh", 1.0),
             (4, "elliot_symmetric", 2.0), (48, "elliot_symmetric", 2.0))
    network = Network(17, [Dense(*size) for size in sizes], seed=1)
    check(network, "mse", 1, SGD(RATE), GroupStep(), n=2)


@pytest.mark.unoptimised
@pytest.mark.parametrize(("variant", "loss"), selected(LOSSES, KINDS, ()))
def test_every_loss_with_weights(variant, loss):
    last = LOSSES[loss].activation or "tanh"
    network = Network(5, [Dense(6, "sigmoid"), Dense(3, last)], seed=3)
    check(network, loss, 67, None, variant, weighted=True)


SMOOTH = [n for n in ACTIVATIONS if "threshold" not in n and "stepwise" not in n]


@pytest.mark.unoptimised
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
@pytest.mark.parametrize("fann", [False, True])
def test_every_activation_in_one_layer(variant, fann):
    names = tuple(SMOOTH)
    network = Network(
        7, [Dense(len(names), names, 0.8), Dense(len(names), names)], seed=1,
        fann_compatible=fann,
    )
    check(network, "fann_tanh" if fann else "mse", 40, None, variant)


@pytest.mark.unoptimised
@pytest.mark.parametrize(("variant", "name"), selected(OPTIMISERS, RULES, ()))
def test_every_optimiser_in_mini_batches(variant, name):
    rule = OPTIMISERS[name]()
    network = Network(9, [Dense(8, "tanh"), Dense(2, "sigmoid")], seed=5)
    check(network, "mse", rule.batch or 16, rule, variant, n=67, shuffled=True,
          tolerance=1e-3)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
@pytest.mark.parametrize("shuffled", [False, True])
def test_mini_batches_of_a_data_set(variant, shuffled):
    network = Network(9, [Dense(18, "gelu"), Dense(4, "softmax")], seed=5)
    check(network, "categorical_cross_entropy", 40, SGD(0.1, 0.5), variant, n=130,
          shuffled=shuffled, weighted=True, all_configs=variant.name == "epoch")


@pytest.mark.unoptimised
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
@pytest.mark.parametrize(
    "regular", [Regularisation(l1=1e-3, l2=1e-2), Regularisation(clip_value=1e-3)]
)
def test_penalties_and_clipped_values(variant, regular):
    network = Network(9, [Dense(18, "tanh"), Dense(4, "sigmoid")], seed=5)
    check(network, "mse", 40, SGD(0.1), variant, regular=regular)


@on_cpu
def test_gradients_clipped_by_their_norm():
    network = Network(9, [Dense(18, "tanh"), Dense(4, "sigmoid")], seed=5)
    regular = Regularisation(clip_norm=1e-3, l2=0.1)
    check(network, "mse", 90, SGD(0.5), TiledEpoch(), regular=regular, all_configs=True)
    program = lower_training(
        network, loss_function("mse"), SGD(), regularisation=regular
    )
    span = program.span(0, len(program.ops), 1)
    for variant in (Sequential(), GroupStep()):
        assert "clipped by its norm" in variant.refuse(span, DEVICE)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_losses_alone(variant):
    network = Network(9, [Dense(8, "tanh"), Dense(2, "sigmoid")], seed=5)
    whole = lower_training(network, loss_function("mse"), None, samples=50)
    stop = next(i for i, op in enumerate(whole.ops) if isinstance(op, Tally)) + 1
    program = dataclasses.replace(whole, ops=whole.ops[:stop], outputs=(whole.output,))
    data = data_of(network, "mse", 50)
    values, _ = expected(network, program, 16, data, 1)
    span = program.span(0, len(program.ops), 16)
    for config in variant.space(span, DEVICE):
        bound, _ = trained(network, program, 16, data, variant, config, DEVICE, 1)
        totals = bound.read(program.output)[0]
        assert_close((totals[:3] + totals[3:]), values["totals"][0, :3])


@on_cpu
@pytest.mark.parametrize(
    "rule",
    [Incremental(0.1, 0.3), Rprop(moves_at_zero=True), Adam(), Sarprop(), Batch(),
     Quickprop(0.1)],
    ids=lambda rule: rule.name,
)
def test_single_samples_in_sequence(rule):
    network = Network(
        13, [Dense(36, "elliot"), Dense(9, "tanh", bias=False),
             Dense(3, "sigmoid", bias=False)], seed=2,
    )
    # After three samples RPROP saturates an output, whose gradient rounds to zero.
    check(network, "mse", 1, rule, Sequential(), n=2, shuffled=True, weighted=True,
          tolerance=1e-3)


@pytest.mark.unoptimised
@on_cpu
@pytest.mark.parametrize(("loss", "n_in"), alternate(LOSSES, [1, 4, 7, 8, 9, 33]))
def test_single_samples_of_every_loss(loss, n_in):
    last = LOSSES[loss].activation or "tanh"
    network = Network(n_in, [Dense(n_in + 3, "relu"), Dense(n_in, last)], seed=3)
    check(network, loss, 1, SGD(0.01), Sequential(), n=9)


@on_cpu
def test_refusals_of_sequential():
    network = Network(3, [Dense(2, ("tanh", "sigmoid"))], seed=1)
    loss = loss_function("mse")
    program = lower_training(network, loss, SGD(), samples=9)

    def sentence(program, batch):
        return Sequential().refuse(program.span(0, len(program.ops), batch), DEVICE)

    assert "not of 2" in sentence(program, 2)
    assert "neurons differ" in sentence(program, 1)
    assert "whole gradient" in sentence(lower_training(network, loss, None), 1)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_other_programs_than_a_training_step_are_refused(variant):
    network = Network(3, [Dense(2, "tanh")], seed=1)
    program = lower_training(network, loss_function("mse"), SGD(), samples=9)
    for start, stop in ((2, len(program.ops)), (0, 2), (0, len(program.ops) - 2)):
        refusal = variant.refuse(program.span(start, stop, 3), DEVICE)
        assert "a step of training" in refusal
    if DEVICE.fp64:
        wide = Network(3, [Dense(2, "tanh")], seed=1, dtype="float64")
        program = lower_training(wide, loss_function("mse"), SGD())
        span = program.span(0, len(program.ops), 3)
        assert "float32" in variant.refuse(span, DEVICE)


def test_tiles_too_large_for_local_memory_are_refused():
    network = Network(5, [Dense(100_000, "tanh"), Dense(1, "tanh")], seed=1)
    program = lower_training(network, loss_function("mse"), SGD())
    refusal = GroupStep().refuse(program.span(0, len(program.ops), 64), DEVICE)
    assert "local memory" in refusal


@pytest.mark.parametrize("together", [1, 3, 5])  # of 12 steps
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_an_epoch_in_several_launches_is_the_same(variant, together, monkeypatch):
    network = Network(9, [Dense(8, "tanh"), Dense(2, "sigmoid")], seed=5)
    program = lower_training(
        network, loss_function("mse"), Adam(), samples=90, shuffled=True
    )
    data = data_of(network, "mse", 90)
    span = program.span(0, len(program.ops), 8)
    config = next(iter(variant.space(span, DEVICE)))

    def bits():
        bound, train_state = trained(network, program, 8, data, variant, config, DEVICE)
        totals = bound.read(program.output)
        SESSION.finish()
        return train_state.values()[0].tobytes(), totals.tobytes()

    whole = bits()
    most = together * span.flops
    monkeypatch.setattr(replay, "run_flops", lambda device: most)
    assert bits() == whole


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_fit_in_runs_that_do_not_divide_its_epochs_is_the_same(shuffle, monkeypatch):
    found = []
    for flops in (10**9, 400_000, 1):  # an epoch, 4 of its 13 steps, one
        monkeypatch.setattr(replay, "run_flops", lambda device, flops=flops: flops)
        network = Network(20, [Dense(24, "tanh"), Dense(3, "sigmoid")], seed=5)
        x, t, _ = data_of(network, "mse", 410)
        history = network.fit(
            x, t, optimiser="adam", batch_size=32, epochs=3, shuffle=shuffle, seed=1,
        )
        found.append((network.parameters.tobytes(), history.loss))
    assert found[0] == found[1] == found[2]


@on_cpu
def test_bitwise_reproducible_also_after_a_helper_timeout(monkeypatch):
    """Neither a task's gradient nor the order of tasks depends on its worker."""
    network = Network(33, [Dense(20, "tanh"), Dense(3, "sigmoid")], seed=1)
    program = lower_training(network, loss_function("mse"), Rprop(), samples=900)
    data = data_of(network, "mse", 900)
    span = program.span(0, len(program.ops), 450)
    config = next(iter(TiledEpoch().space(span, DEVICE)))

    def bits():
        _, train_state = trained(
            network, program, 450, data, TiledEpoch(), config, DEVICE, 5
        )
        SESSION.finish()
        return train_state.values()[0].tobytes()

    first = bits()
    assert all(bits() == first for _ in range(5))
    monkeypatch.setattr(epoch, "MAX_POLLS", 0)
    monkeypatch.setattr(epoch, "TASK_POLLS", 0)
    assert all(bits() == first for _ in range(5))


# Grid barriers ----------------------------------------------------------------------


def with_forward_progress(units):
    """Return the device with forward progress; one group never waits."""
    if DEVICE.forward_progress:
        return DEVICE
    return dataclasses.replace(DEVICE, forward_progress=True, compute_units=units)


def together(span, place):
    return next(c for c in GroupStep().space(span, place) if c["together"])


def test_steps_with_grid_barriers():
    n, batch, place = 391, 150, with_forward_progress(1)
    network = Network(13, [Dense(6, "tanh"), Dense(3, "sigmoid")], seed=batch)
    program = lower_training(network, loss_function("mse"), Adam(), samples=n)
    data = data_of(network, "mse", n)
    values, parameters = expected(network, program, batch, data, 3)
    config = together(program.span(0, len(program.ops), batch), place)
    bound, train_state = trained(
        network, program, batch, data, GroupStep(), config, place, 3, session(place)
    )
    totals = bound.read(program.output)[0]
    assert_close((totals[:3] + totals[3:])[:2], values["totals"][0, :2])
    assert_close(train_state.values()[0], parameters, 1e-3)
    assert not bound.bound.timed_out()


def test_devices_and_rules_with_grid_barriers():
    network = Network(13, [Dense(6, "tanh"), Dense(3, "sigmoid")], seed=1)

    def kinds(device, rule):
        program = lower_training(network, loss_function("mse"), rule)
        span = program.span(0, len(program.ops), 391)
        return any(c["together"] for c in GroupStep().space(span, device))

    gpu = dataclasses.replace(
        with_forward_progress(1), type="gpu", compute_capability=(9, 0),
        forward_progress=True,
    )
    assert kinds(gpu, Rprop())
    assert not kinds(dataclasses.replace(gpu, forward_progress=False), Rprop())
    assert not kinds(dataclasses.replace(gpu, compute_capability=None), Rprop())
    assert not kinds(gpu, Sarprop())  # needs the epoch's error before the update
    assert not kinds(gpu, None)


@pytest.mark.skipif(bool(DEVICE.forward_progress), reason="groups make progress here")
def test_a_barrier_timeout_is_reported_and_recomputed(monkeypatch):
    monkeypatch.setattr(group_step, "MAX_POLLS", 2000)
    place = with_forward_progress(5 * DEVICE.compute_units)
    network, other = (Network(4, [Dense(9, "tanh"), Dense(2)], seed=1) for _ in "ab")
    rng = np.random.default_rng(0)
    x, t = rng.uniform(-1, 1, (300, 4)), rng.uniform(0, 1, (300, 2))
    plan = plans.plan_training

    def waiting(network, program, device, batch, **options):
        found = plan(network, program, device, batch, tune=False)
        span = program.span(0, len(program.ops), batch)
        if not device.forward_progress or not isinstance(program.ops[-1], Update):
            return found
        step = PlanStep(span, GroupStep(), together(span, device), device)
        return dataclasses.replace(found, steps=(step,))

    monkeypatch.setattr(plans, "plan_training", waiting)
    seen = []
    with pytest.warns(ClnetWarning, match="group_step timed out"):
        history = network.fit(
            x, t, optimiser="rprop", epochs=6, device=place,
            validation=(x[:9], t[:9]),
            callbacks=[lambda _, epoch: seen.append(epoch.number)],
        )
    assert seen == [1, 2, 3, 4, 5, 6]
    assert "timed out" in history.plan
    expected = other.fit(
        x, t, optimiser="rprop", epochs=6, device=DEVICE, validation=(x[:9], t[:9])
    )
    np.testing.assert_allclose(history.loss, expected.loss, rtol=1e-4)
    np.testing.assert_allclose(
        history.validation_loss, expected.validation_loss, rtol=1e-4
    )
