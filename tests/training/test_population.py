"""Populations: each network as `Network.fit` would train it alone."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from population_oracle import check_network, compare_with_oracle
from variant_cases import selected

import clnet
from clnet import Dense, EarlyStopping, InputError, Network, Population, Sparse
from clnet.opencl.session import session
from clnet.planning import training_planner
from clnet.runtime import member_replay
from clnet.training import member_training
from clnet.variants.members.group_members import GroupMembers, LaneMembers
from clnet.variants.members.members import TrainMembers, VectorMembers

N, SAMPLES = 5, 60
RULES = {"adam": clnet.optimisers.Adam, "sgd": clnet.optimisers.SGD}
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (SAMPLES, 3))
T = np.stack([X[:, 0] * X[:, 1], X[:, 2] ** 2], axis=1)
FOLDS = np.split(RNG.permutation(SAMPLES), N)
ROWS = [np.setdiff1d(np.arange(SAMPLES), fold) for fold in FOLDS]
RESTS = [np.sort(fold) for fold in FOLDS]
# The same terms, none negative, added in two orders: half an ulp an addition each.
ORDER_OF_SUMS = (SAMPLES + 1) * np.finfo(np.float32).eps
WEIGHTS = RNG.uniform(0, 2, (N, SAMPLES)) * (RNG.uniform(0, 1, (N, SAMPLES)) < 0.7)


def shape(**options):
    return Network.mlp([3, 9, 2], "tanh", seed=0, **options)


def alone(network, number, *, rows=None, validation=None, patience=None,
          learning_rate=None, sample_weight=None, **options):
    """Train one network of a population by `Network.fit`, by the same arguments."""
    options = {
        name: value[number] if isinstance(value, list) else value
        for name, value in options.items()
    }
    if learning_rate is not None:
        rule = options.get("optimiser") or "adam"
        options["optimiser"] = RULES[rule](learning_rate=learning_rate[number])
    own = slice(None) if rows is None else rows[number]
    if isinstance(validation, str):
        validation = X[RESTS[number]], T[RESTS[number]]
    if sample_weight is not None:
        options["sample_weight"] = np.broadcast_to(sample_weight, (N, SAMPLES))[
            number, own
        ]
    return network.fit(
        X[own], T[own], validation=validation, tune=False,
        callbacks=[] if patience is None else [EarlyStopping(patience=patience)],
        **options,
    )


def compare(options, network=None):
    """Train a population, and each network alone: bits are equal.

    Those of weighted mini-batches are not, whose weights the kernel scales.
    """
    population = Population(network or shape(), N)
    if "sample_weight" in options and "batch_size" in options:
        return compare_with_oracle(population, X, T, options)
    equal = np.testing.assert_array_equal
    singles = list(population)
    histories = population.fit(X, T, **options)
    for number, single in enumerate(singles):
        history = alone(single, number, **options)
        found = histories[number]
        equal(population.parameters[number], single.parameters)
        assert found.stopped == history.stopped
        assert found.best_epoch == history.best_epoch
        equal(found.loss, history.loss)
        equal(found.mse, history.mse)
        assert found.bit_fail == history.bit_fail
        np.testing.assert_allclose(
            found.validation_loss, history.validation_loss, rtol=ORDER_OF_SUMS
        )
        assert found.state.count == history.state.count
        equal(found.state.values, history.state.values)
        equal(found.state.parameters, single.parameters)
    return histories


@pytest.mark.parametrize("options", [
    {"optimiser": "adam", "batch_size": 16, "rows": ROWS, "validation": "rest"},
    {"optimiser": "rprop", "epochs": [1, 4, 9, 3, 9], "seed": 1},
    {"optimiser": "rprop", "epochs": 60, "desired_error": [0.1, 0.05, 0.02, 0.2, 0.001],
     "seed": 1},
    {"optimiser": "adam", "batch_size": 8, "epochs": 40, "patience": 3,
     "learning_rate": [0.3, 0.1, 0.03, 0.01, 1.0], "rows": ROWS, "validation": "rest"},
    {"optimiser": "adam", "batch_size": 20, "seed": [1, 2, 3, 4, 1 << 40],
     "validation": (X[:7], T[:7]), "schedule": "cosine"},
    {"optimiser": ["rprop", "batch", "rprop", "batch", "rprop"], "clip_norm": 0.5},
    {"optimiser": "rprop", "sample_weight": WEIGHTS},
    {"optimiser": "rprop", "sample_weight": WEIGHTS[0], "rows": ROWS},
    {"optimiser": "adam", "sample_weight": WEIGHTS, "batch_size": 16},
    {"optimiser": "sgd", "sample_weight": WEIGHTS, "batch_size": 1, "epochs": 2},
    {"optimiser": "rprop", "validation": (X, T, np.arange(SAMPLES))},
])
def test_each_network_as_if_alone(options, same_rounding):
    histories = compare({"epochs": 12, "seed": 3, **options})
    assert all("networks together" in one.plan for one in histories)


@pytest.mark.parametrize("kind", [TrainMembers, GroupMembers])
def test_networks_of_any_dropout(kind, monkeypatch):
    variant = kind(N)
    if isinstance(variant, TrainMembers) and clnet.device().type != "cpu":
        pytest.skip("a CPU-only kernel")
    monkeypatch.setattr(member_training, "members_variants", lambda *_: (variant,))
    fractions = [0.3, 0.0, 0.1, 0.5, 0.7]
    networks = [
        Network.mlp([3, 9, 7, 2], "tanh", seed=seed, dropout=fraction)
        for seed, fraction in enumerate(fractions)
    ]
    population = Population.of(networks)
    assert [one.layers for one in population] == [one.layers for one in networks]
    histories = compare_with_oracle(population, X, T, {
        "optimiser": "adam", "batch_size": 16, "epochs": 5, "seed": list(range(N)),
    })
    assert all(f"{N} networks together" in one.plan for one in histories)
    assert all(variant.name in one.plan for one in histories)


def test_another_batch_size_takes_other_launches(same_rounding):
    for batch in (16, 20):
        compare({"optimiser": "adam", "batch_size": batch, "epochs": 2, "seed": 3})


def test_networks_of_any_penalty_share_a_launch(same_rounding):
    histories = compare({
        "optimiser": "adam", "batch_size": 16, "epochs": 5, "seed": 3,
        "l1": [0.0, 1e-3, 0.0, 1e-2, 0.0], "l2": [0.0, 0.0, 0.01, 0.1, 0.001],
    })
    assert all(f"{N} networks" in one.plan for one in histories)


@st.composite
def fits(draw):
    each = lambda values: draw(  # noqa: E731
        st.one_of(values, st.lists(values, min_size=N, max_size=N))
    )
    rule = draw(st.sampled_from(["adam", "rprop", "sgd", "batch"]))
    options = {
        "optimiser": rule, "epochs": each(st.integers(1, 12)),
        "seed": each(st.integers(0, 1 << 62)),
        "l1": each(st.sampled_from([0.0, 1e-3])),
        "l2": each(st.sampled_from([0.0, 0.01])),
        "desired_error": each(st.sampled_from([0.0, 0.1, 0.3])),
        "rows": draw(st.sampled_from([None, ROWS])),
        "schedule": None if rule == "rprop" else each(
            st.sampled_from(["cosine", "step"])
        ),
    }
    if rule in ("adam", "sgd"):
        options["batch_size"] = draw(st.sampled_from([7, 16, SAMPLES]))
        options["shuffle"] = draw(st.booleans())
    if options["rows"] is not None and draw(st.booleans()):
        options["validation"] = "rest"
        options["patience"] = draw(st.sampled_from([None, 2]))
    elif draw(st.booleans()):
        options["sample_weight"] = WEIGHTS
        options["desired_error"] = None  # rounding may decide the epoch of a stop
    return options


@settings(max_examples=6, deadline=None)
@given(fits())
def test_random_options(same_rounding, options):
    compare(options)


@pytest.mark.sweep
@settings(max_examples=100, deadline=None)
@given(fits())
def test_many_random_options(same_rounding, options):
    compare(options)


@pytest.mark.parametrize(("network", "options"), [
    (shape(dtype="float64"), {}),
    (Network(3, [Sparse(6, "tanh", density=0.5), Dense(2)], seed=0), {}),
])
def test_all_others_train_one_after_the_other(network, options):
    options = {"epochs": 3, "optimiser": "rprop", "seed": 0, **options}
    histories = compare(options, network)
    assert not any("together" in one.plan for one in histories)


KERNELS = [
    lambda device, n, samples, subsets, alike: GroupMembers(n, subsets),
    lambda device, n, samples, subsets, alike: LaneMembers(n, samples, subsets),
    lambda device, n, samples, subsets, alike: VectorMembers(n, alike and not subsets),
]


@pytest.mark.parametrize(("kernel", "options"), selected(
    dict(zip(("group", "lane", "vector"), KERNELS, strict=True)),
    {
        "rows": {"optimiser": "rprop", "rows": ROWS}, "rprop": {"optimiser": "rprop"},
        "batches": {"optimiser": "adam", "batch_size": 16},
    },
    quick=lambda kernel, options: kernel == options,
))
def test_weights_by_each_kernel(options, kernel, monkeypatch):
    if kernel is KERNELS[2] and ("rows" in options or clnet.device().type != "cpu"):
        pytest.skip("refused")
    monkeypatch.setattr(
        member_training, "members_variants", lambda *given: (kernel(*given),)
    )
    options = {"epochs": 3, "seed": 4, "sample_weight": WEIGHTS, **options}
    histories = compare_with_oracle(Population(shape(), N), X, T, options)
    assert "networks together" in histories[0].plan


def test_weights_of_0_leave_samples_out():
    kept = np.zeros((N, SAMPLES))
    for row, rows in zip(kept, ROWS, strict=True):
        row[rows] = 1
    by_rows, by_weights = Population(shape(), N), Population(shape(), N)
    by_rows.fit(X, T, optimiser="rprop", epochs=4, rows=ROWS, seed=0)
    by_weights.fit(X, T, optimiser="rprop", epochs=4, sample_weight=kept, seed=0)
    # Steps of RPROP follow from the gradients' signs, and no gradient is near 0.
    np.testing.assert_array_equal(by_rows.parameters, by_weights.parameters)


def test_a_network_that_diverges_disturbs_no_other():
    population = Population(shape(output="identity"), 3)
    before = population.parameters[2]
    rates = [1e-3, 1e38, 1e-2]
    with pytest.warns(clnet.ClnetWarning, match="diverged"):
        histories = population.fit(
            X, T, optimiser="sgd", learning_rate=rates, epochs=5, seed=0
        )
    assert [one.diverged for one in histories] == [False, True, False]
    assert np.isfinite(population.parameters).all()
    check_network(
        population, 2, before, histories[2], X, T, optimiser="sgd", epochs=5, seed=0,
        learning_rate=1e-2,
    )


def test_epochs_without_end_take_no_memory():
    population = Population(shape(), 2)
    histories = population.fit(X, T, epochs=1 << 40, desired_error=10.0)
    assert [len(one.epochs) for one in histories] == [1, 1]


def test_interrupts_keep_what_is_trained(monkeypatch, cores):
    population = Population(shape(), 3)
    before = population.parameters
    calls = []

    def run(self, *arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, *arguments)

    options = {
        "epochs": 10**6, "optimiser": ["rprop", "rprop", "batch"], "seed": 0,
        "tune": False,
    }
    population.explain(X, T, **options)  # the kernels are compared with the oracle
    original = member_training.MemberReplay.run_members
    monkeypatch.setattr(member_training.MemberReplay, "run_members", run)
    histories = population.fit(X, T, **options)
    assert all(one.stopped.startswith("interrupted after") for one in histories)
    assert [len(one) > 0 for one in histories] == [True, True, False]
    changed = (population.parameters != before).any(axis=1)
    assert changed.tolist() == [True, True, False]


def test_an_interrupt_amid_a_validation_ends_after_the_epoch(monkeypatch, cores):
    """Its parameters are trained: it is reported, and the state is of it."""
    options = {"optimiser": "rprop", "seed": 0, "tune": False,
               "validation": (X[:9], T[:9])}
    whole = Population(shape(), 3)
    histories = whole.fit(X, T, epochs=3, **options)
    original, calls = member_training.MemberReplay.run_members, []

    def run(self, *arguments):
        calls.append(arguments)
        if len(calls) == 6:  # the validation of the third epoch
            raise KeyboardInterrupt
        return original(self, *arguments)

    monkeypatch.setattr(member_training.MemberReplay, "run_members", run)
    population = Population(shape(), 3)
    ended = population.fit(X, T, epochs=9, **options)
    assert [len(history) for history in ended] == [3, 3, 3]
    np.testing.assert_array_equal(population.parameters, whole.parameters)
    for history, right in zip(ended, histories, strict=True):
        assert history.stopped.startswith("interrupted after")
        assert history.state.epoch == 3
        np.testing.assert_array_equal(history.validation_loss, right.validation_loss)


def test_a_page_of_all_networks(tmp_path):
    pytest.importorskip("matplotlib")
    population = Population(shape(), 12)
    histories = population.fit(
        X, T, epochs=[1 + i % 3 for i in range(12)], optimiser="rprop",
        validation=(X[:9], T[:9]), seed=0,
    )
    histories.report(tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text("utf-8")
    assert page.count("<svg") == 1 and page.count("<tr>") == 13
    best = min(range(12), key=lambda i: histories[i].validation_loss[-1])
    assert page.index(f"<td>{best} ") == page.index("<td>")
    assert histories._repr_html_().count("<tr>") == 11
    assert histories.plot().get_xlabel() == "epoch"
    assert repr(histories) == "<Histories of 12 networks>"
    assert [len(one) for one in pickle.loads(pickle.dumps(histories))] == [1, 2, 3] * 4
    with pytest.raises(InputError, match=r"\.html, not '\.txt'"):
        histories.report(tmp_path / "a.txt")


@pytest.mark.parametrize("weighted", [False, True])
def test_a_training_takes_the_launches_of_an_earlier_one_alike(monkeypatch, weighted):
    def train(rate, x, weight):
        population.parameters = start
        found = population.fit(
            x, T, optimiser="adam", learning_rate=rate, epochs=20, seed=[1, 2, 3, 4, 5],
            desired_error=[0.3, 0.1, 0.01, 0.03, 0.0], batch_size=SAMPLES,
            sample_weight=weight if weighted else None,
        )
        return [one.loss for one in found], population.parameters

    population = Population(shape(), N)
    start, rates = population.parameters, [0.1, 0.03, 0.01, 0.3, 0.2]
    train(0.5, X, WEIGHTS)
    session(clnet.device()).kept.clear()
    losses, parameters = train(rates, X[::-1], WEIGHTS[::-1])
    train(0.5, X, WEIGHTS)
    monkeypatch.setattr(member_training, "MemberReplay", None)
    again, parameters_again = train(rates, X[::-1], WEIGHTS[::-1])
    assert again == losses
    np.testing.assert_array_equal(parameters_again, parameters)


@pytest.mark.parametrize("changed", [
    {"batch_size": 16}, {"precision": "high"}, {"optimiser": "sgd"}, {"l2": 0.1},
    {"validation": (X[:11], T[:11])}, {"device": "other"},
], ids=lambda options: next(iter(options)))
def test_a_second_training_plans_nothing_and_one_of_other_options_does(
    monkeypatch, own_store, changed
):
    def planned(**others):
        plans.clear()
        population.fit(X, T, **{
            "optimiser": "adam", "learning_rate": [0.1, 0.03, 0.01, 0.3, 0.2],
            "epochs": 2, "seed": 0, "validation": (X[:7], T[:7]), "patience": 2,
            **others,
        })
        return len(plans)

    plans, population = [], Population(shape(), N)
    make = training_planner.Planner
    monkeypatch.setattr(
        training_planner, "Planner",
        lambda *arguments, **options: plans.append(0) or make(*arguments, **options),
    )
    if "device" in changed:
        changed = {"device": replace(clnet.device(), companions=(), fine_svm=False)}
    assert planned() == 2  # a step, and the validation
    assert planned() == 0
    with monkeypatch.context() as patch:
        patch.setattr(member_training, "MemberReplay", None)  # nor binds it memory
        assert planned(learning_rate=[0.1, 0.3, 0.1, 0.2, 0.01]) == 0
    assert planned(**changed) > 0
    assert planned() == 0


def test_a_kept_validation_takes_other_samples():
    def checked(x, t):
        population = Population(shape(), N)
        histories = population.fit(
            X, T, optimiser="adam", epochs=5, seed=0, validation=(x, t)
        )
        return [history.validation_loss for history in histories]

    session(clnet.device()).kept.clear()
    expected = checked(X[:7], T[:7])
    session(clnet.device()).kept.clear()
    others = checked(X[7:14], T[7:14])
    assert checked(X[:7], T[:7]) == expected != others


@pytest.mark.parametrize("freed", [False, True])
def test_states_are_read_before_their_memory_is_used(freed):
    def train(seed):
        population = Population(shape(), N)
        return population.fit(X, T, optimiser="adam", epochs=3, seed=seed)

    expected = [one.state.values for one in train(1)]
    found = train(1)
    np.testing.assert_array_equal(found[1].state.values, expected[1])
    if freed:
        session(clnet.device()).release()
    else:
        Population(shape(), N).fit(
            -X, T, optimiser="adam", epochs=3, seed=[2, 3, 4, 5, 6]
        )
    assert found._made.keys() == {1}
    for one, state in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.state.values, state)


def test_a_launch_of_unknown_time_is_cut_between_members(
    monkeypatch, same_rounding
):
    calls = []
    original = member_replay.MemberReplay.run

    def run(self):
        calls.append(self.bound.numbers["members"])
        original(self)

    options = {"epochs": 3, "optimiser": "rprop", "seed": 0}
    compare(options)  # the kernel is compared with the oracle
    session(clnet.device()).kept.clear()  # the time is unknown again
    monkeypatch.setattr(member_replay, "run_flops", lambda device: 1)
    monkeypatch.setattr(member_replay.MemberReplay, "run", run)
    compare(options)
    assert calls[:N] == [1] * N and set(calls[N:]) <= {1, N}


def test_a_validation_after_a_training_without_one_is_of_each_epoch():
    options = {"optimiser": "rprop", "epochs": 50, "seed": 0}
    compare(options)
    compare({**options, "validation": (X[:7], T[:7])})


@pytest.mark.parametrize("options", [
    {"optimiser": "rprop", "rows": ROWS, "validation": "rest", "patience": 3},
    {"optimiser": ["adam", "sgd"] * 2 + ["adam"], "batch_size": 16},
])
def test_devices_train_a_share_each(options):
    other = replace(clnet.device(), fine_svm=False, companions=())
    options = {"epochs": 9, "seed": 2, **options}
    found = []
    for where in {}, {"devices": [clnet.device(), other]}:
        population = Population(shape(), N)
        histories = population.fit(X, T, **options, **where)
        found.append((
            population.parameters.tobytes(),
            [(one.loss, one.stopped, one.state.values.tobytes()) for one in histories],
        ))
    assert found[0] == found[1]


def batches():
    return [(X[:25], T[:25]), (X[25:], T[25:])]


@pytest.mark.parametrize("read_by_parts", ["training", "validation"])
def test_sources_train_one_after_the_other(read_by_parts, same_rounding):
    population = Population(shape(), 3)
    singles = list(population)
    x = [batches()] if read_by_parts == "training" else [X, T]
    validation = batches() if read_by_parts == "validation" else (X[:7], T[:7])
    options = {"epochs": 4, "batch_size": 8, "validation": validation, "tune": False}
    histories = population.fit(*x, seed=[1, 2, 3], **options)
    for i, single in enumerate(singles):
        history = single.fit(*x, seed=i + 1, **options)
        np.testing.assert_array_equal(population.parameters[i], single.parameters)
        assert histories[i].validation_loss == history.validation_loss
    assert "read by parts" in " ".join(population.explain(*x, **options).split())


def test_sources_have_no_numbered_samples():
    population = Population(shape(), 3)
    for options in {"rows": [[0, 1]] * 3}, {"sample_weight": np.ones(SAMPLES)}:
        with pytest.raises(InputError, match="numbers the samples of arrays"):
            population.fit(batches(), **options)
    with pytest.raises(InputError, match="can be read once"):
        population.fit(iter(batches()), epochs=1)


def test_a_network_stops_at_the_error_that_its_history_tells():
    """Divided in another order, a sum may be below the error by a rounding."""
    rng = np.random.default_rng(0)
    x, t = rng.normal(size=(7, 3)), rng.normal(size=(7, 3))
    network = Network.mlp([3, 5, 3], "tanh", seed=0)
    first = Population(network, 20).fit(x, t, epochs=1, optimiser="rprop", seed=0)
    for member, history in enumerate(first):
        error = history[-1].mse
        for desired in (np.nextafter(error, 0), error):
            found = Population(network, 20).fit(
                x, t, epochs=2, optimiser="rprop", seed=0, desired_error=desired
            )[member]
            assert len(found) == (1 if error <= desired else 2)
            assert "None" not in found.stopped
