"""The cpu variant: results are the same to the bit, however workers share tasks."""

from __future__ import annotations

import itertools
import re
import threading
import time
from functools import cache

import numpy as np
import pytest
from bounds import assert_right
from variant_cases import alternate, selected
from waits import join

import clnet
from clnet import Dense, Network
from clnet.opencl import program
from clnet.opencl.session import session
from clnet.runtime.binding import PlanStep
from clnet.runtime.executable import Executable
from clnet.variants.dense import cpu
from clnet.variants.dense.cpu import STATE, Cpu

CPU = clnet.device("cpu")
CALLER = any(device.serial for device in CPU.companions)
MODES = {
    "one": ({"workers": 1, "caller": 0}, CPU),
    "here": ({"workers": 1, "caller": 0}, CPU.places[-1]),
    "two": ({"workers": 2, "caller": 0}, CPU),
    "five": ({"workers": 5, "caller": 0}, CPU),
    **({"lead": ({"workers": 2, "caller": 1}, CPU),
        "lead of five": ({"workers": 5, "caller": 1}, CPU)} if CALLER else {}),
}
SEVERAL = [name for name, (config, _) in MODES.items() if config["workers"] > 1]
GROUPS = (1, 2, 3, 4, 8)


def executable(network, batch, mode, group):
    config, device = MODES[mode]
    span = network.program.span(0, len(network.program.ops), batch)
    step = PlanStep(span, Cpu(), {**config, "group": group}, device)
    return Executable(session(CPU), network, [step], span.inputs, span.outputs)


def run(one, x):
    program = one.network.program
    one.x[program.input.name][...] = x
    one.run()
    return one.result(program.output.name)


def state_words(one):
    """Return the words that the workers share, as they are between calls."""
    return one.bound.buffers["0 state"].array.view(np.int32)


def assert_at_rest(one, mode, calls):
    words = state_words(one)
    assert words[0] == calls
    assert not words[1:STATE].any()
    if MODES[mode][0]["caller"] == 0:
        layers = len(one.network.layers)
        assert not words[STATE : STATE + layers].any()


@cache
def network(*sizes):
    names = itertools.cycle(["tanh", "relu", "sigmoid", "identity"])
    layers = [
        Dense(n, name, bias=i % 2 == 0)
        for i, (n, name) in enumerate(zip(sizes[1:], names, strict=False))
    ]
    return Network(sizes[0], layers, seed=len(sizes))


def inputs(network, batch, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (batch, network.n_in)).astype(np.float32)


EDGES = network(1, 15, 16, 17, 1, 63, 64, 65, 31, 127, 129, 3)
WIDE = network(33, 257, 128, 500, 10)
BATCHES = (*range(1, 14), 95, 96, 97, 193)


# The bits -------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "net"), selected(
    {str(batch): batch for batch in BATCHES}, {"edges": EDGES, "wide": WIDE},
    quick=lambda batch, net: batch % 2 == net,
))
def test_every_mode_gives_the_same_bits(net, batch):
    x = inputs(net, batch)
    first = run(executable(net, batch, "one", 4), x)
    assert_right(net, x, first)
    for mode, group in itertools.product(MODES, (1, 3, 4, 8)):
        y = run(executable(net, batch, mode, group), x)
        np.testing.assert_array_equal(y, first, err_msg=f"{mode} {group}")


@pytest.mark.parametrize(
    "width", [1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129]
)
def test_every_width(width):
    net = network(7, width, width, 5)
    for batch in (1, 2, 7):
        x = inputs(net, batch)
        expected = run(executable(net, batch, "one", 4), x)
        assert_right(net, x, expected)
        for mode in SEVERAL:
            for group in (1, 4):
                y = run(executable(net, batch, mode, group), x)
                np.testing.assert_array_equal(y, expected)


def test_a_sample_does_not_depend_on_its_neighbours():
    """Every tile adds up a sum in the same order."""
    x = inputs(WIDE, 97)
    together = run(executable(WIDE, 97, "one", 4), x)
    alone = executable(WIDE, 1, "one", 4)
    for i in (0, 5, 6, 94, 95, 96):
        np.testing.assert_allclose(run(alone, x[i]), together[i : i + 1], rtol=1e-4)
    x[3] = np.nan
    y = run(executable(WIDE, 97, "two", 2), x)
    others = np.arange(97) != 3
    np.testing.assert_array_equal(y[others], together[others])


@pytest.mark.parametrize("lanes", [8, 16])
def test_vectors_of_half_a_panel_or_a_whole_one(monkeypatch, lanes):
    """Whatever the registers of this processor hold."""
    monkeypatch.setattr(cpu, "lanes", lambda device: lanes)
    for net, batch, group in ((EDGES, 1, 4), (EDGES, 13, 3), (WIDE, 97, 2)):
        x = inputs(net, batch)
        assert_right(net, x, run(executable(net, batch, "one", group), x))


# Many calls -----------------------------------------------------------------------


def many_calls(net, batch, mode, group, calls, pause=None):
    """Call with several inputs in turn; every result is that of one worker."""
    xs = [inputs(net, batch, seed) for seed in range(5)]
    alone = executable(net, batch, "one", group)
    expected = [run(alone, x) for x in xs]
    one = executable(net, batch, mode, group)
    for call in range(calls):
        y = run(one, xs[call % 5])
        np.testing.assert_array_equal(y, expected[call % 5], err_msg=f"call {call}")
        assert_at_rest(one, mode, call + 1)
        if pause is not None:
            time.sleep(pause(call))


@pytest.mark.parametrize(
    ("group", "mode", "batch"), alternate(GROUPS, SEVERAL, [1, 2])
)
def test_many_calls(mode, group, batch):
    many_calls(EDGES, batch, mode, group, 200)


@pytest.mark.parametrize("mode", SEVERAL)
def test_many_calls_of_blocks(mode):
    many_calls(EDGES, 97, mode, 1, 40)
    many_calls(WIDE, 193, mode, 2, 10)


@pytest.mark.parametrize("mode", SEVERAL)
def test_helpers_may_return_between_calls(mode):
    """Pauses around the time for which a helper polls for the next call."""
    many_calls(EDGES, 1, mode, 1, 60, lambda call: 1e-4 * (call % 20))


@pytest.fixture
def one_poll(monkeypatch):
    """Workers poll once for another's task, then compute it again."""
    monkeypatch.setattr(cpu, "MAX_POLLS", 1)
    monkeypatch.setattr(cpu, "SPIN_POLLS", 200)


@pytest.mark.parametrize(("mode", "group", "batch"), alternate(SEVERAL, [1, 4], [1, 5]))
def test_tasks_may_be_computed_twice(one_poll, mode, group, batch):
    many_calls(EDGES, batch, mode, group, 150)
    many_calls(WIDE, batch, mode, group, 100)


@pytest.mark.parametrize("mode", SEVERAL)
def test_tasks_of_blocks_may_be_computed_twice(one_poll, mode):
    many_calls(WIDE, 193, mode, 1, 15)


@pytest.mark.parametrize("source", ["dense/cpu.cl", "training/epoch.cl"])
def test_atomics_between_workers_are_ordered(source):
    """x86 keeps this order in any case, ARM does not: only the text can be tested."""
    text = (program.kernel_directory() / source).read_text()
    relaxed = set(re.findall(r"\batomic_\w+", text))
    assert relaxed == {"atomic_inc"}  # claims a task
    assert not re.search(r"while \(\*", text)


@pytest.mark.parametrize(("mode", "group"), alternate(SEVERAL, [1, 4]))
def test_a_compiler_without_ordered_atomics(monkeypatch, mode, group):
    def without(*parts):
        return program.source_text(*parts).replace("__CLANG_ATOMIC", "NONE_HERE")

    monkeypatch.setattr("clnet.opencl.session.source_text", without)
    many_calls(EDGES, 2, mode, group, 50)


@pytest.mark.parametrize("mode", SEVERAL)
def test_the_call_count_may_overflow(mode):
    one = executable(EDGES, 1, mode, 1)
    x = inputs(EDGES, 1)
    expected = run(one, x)
    for standby in one.bound.standbys:
        standby.finish()
    for last, negative in ((np.iinfo(np.int32).max - 2, True), (-3, False)):
        state_words(one)[0] = last
        for _ in range(8):
            other = inputs(EDGES, 1, seed=1)
            run(one, other)
            np.testing.assert_array_equal(run(one, x), expected)
        for standby in one.bound.standbys:
            standby.finish()
        assert (state_words(one)[0] < 0) == negative


@pytest.mark.parametrize("mode", SEVERAL)
def test_no_call_has_the_number_of_an_unfinished_task(mode):
    one = executable(EDGES, 1, mode, 1)
    run(one, inputs(EDGES, 1))
    for standby in one.bound.standbys:
        standby.finish()
    state_words(one)[0] = -1
    run(one, inputs(EDGES, 1))
    assert state_words(one)[0] == 1


@pytest.mark.parametrize("mode", SEVERAL)
def test_replaced_parameters_are_repacked(mode):
    net = Network.mlp([9, 40, 40, 7], "tanh", seed=1)
    one = executable(net, 3, mode, 1)
    x = inputs(net, 3)
    rng = np.random.default_rng(0)
    for _ in range(20):
        assert_right(net, x, run(one, x))
        net.parameters = rng.uniform(-0.5, 0.5, net.parameters.shape)


@pytest.mark.parametrize("mode", SEVERAL)
def test_executables_side_by_side(mode):
    """Each has its own state; their helpers compete for cores."""
    ones = [executable(net, 2, mode, 1) for net in (EDGES, WIDE, EDGES)]
    xs = [inputs(one.network, 2) for one in ones]
    expected = [run(one, x) for one, x in zip(ones, xs, strict=True)]
    for _ in range(40):
        for one, x, y in zip(ones, xs, expected, strict=True):
            np.testing.assert_array_equal(run(one, x), y)


@pytest.mark.parametrize("mode", SEVERAL)
def test_threads_with_an_executable_each(mode):
    wrong = []

    def work(net, seed):
        try:
            many_calls(net, 1 + seed, mode, 2, 60)
        except BaseException as error:
            wrong.append(error)

    threads = [
        threading.Thread(target=work, args=(net, seed))
        for seed, net in enumerate([EDGES, WIDE, EDGES, WIDE])
    ]
    for thread in threads:
        thread.start()
    join(threads)
    assert wrong == []


def test_an_executable_may_be_deleted_before_its_helpers_return():
    for mode in SEVERAL:
        for _ in range(20):
            one = executable(EDGES, 1, mode, 1)
            run(one, inputs(EDGES, 1))
            del one
