"""Metrics, on hand-sized data and against plain NumPy."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from clnet import Dense, Network, Scaling
from clnet.cli.summary import confusion_text, evaluation_rows
from clnet.errors import WIDTH, InputError
from clnet.nn.activations import ACTIVATIONS
from clnet.nn.fann_parameters import BIT_FAIL_LIMIT
from clnet.nn.metrics import CONFUSED, Evaluation, Metrics, evaluate


def test_by_hand():
    y = [[0.9, 0.1], [0.2, 0.3], [1.0, 0.0], [0.5, 0.0]]
    t = [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]]
    # Errors: .1 .1 | .2 .7 | 1 1 | .5 0; the last sample is of no class.
    found = evaluate(y, t, middles=[0.5])
    assert found.mse == pytest.approx((0.01 + 0.01 + 0.04 + 0.49 + 2 + 0.25) / 8)
    assert found.bit_fail == 4
    assert (found.accuracy, found.hamming_loss) == (2 / 4, 3 / 8)


def test_exact_outputs():
    t = np.eye(3)
    assert evaluate(t, t) == Evaluation(0.0, 0, 1.0)


COLUMN = [[0.4], [0.6], [0.9], [1.0]]
PAIRS = [[3.0, -1.0], [0.0, 9.0], [2.0, 1.0]]


@pytest.mark.parametrize(("y", "t", "middles", "accuracy"), [
    # One output is right on the target's side of the middle, also of one class.
    ([[-0.2], [0.1], [-0.1], [0.3]], [[-1], [1], [1], [-1]], [0.0], 0.5),
    ([[0.4], [0.6], [0.2], [0.7]], [[0], [1], [1], [0]], [0.5], 0.5),
    (COLUMN, np.zeros((4, 1)), [0.5], 0.25), (COLUMN, np.ones((4, 1)), [0.5], 0.75),
    # One-hot targets are classes, whatever the outputs.
    (PAIRS, [[1, 0], [0, 1], [0, 1]], None, 2 / 3),
    (PAIRS, [[1, -1], [-1, 1], [1, -1]], None, 1),
    (PAIRS, [[1, 1], [0, 1], [0, 1]], None, None),
    (PAIRS, [[1, 0], [0, 2], [0, 1]], None, None), (PAIRS, np.ones((3, 2)), None, None),
])
def test_accuracy(y, t, middles, accuracy):
    options = {"middles": middles} if middles else {}
    assert evaluate(y, t, **options).accuracy == accuracy


def test_regression_has_no_accuracy():
    y, t = [[1.0], [2.0], [4.0]], [[1.0], [3.0], [5.0]]
    found = evaluate(y, t)
    assert found.accuracy is None
    assert found.mae == pytest.approx(2 / 3)
    assert found.r2 == pytest.approx(1 - 2 / 8)
    assert found.rmse == pytest.approx(np.sqrt(2 / 3))
    assert found.confusion is None
    assert repr(evaluate([[1.0]], [[3.0]])) == (
        "Evaluation(mse=4.0, bit_fail=1, mae=2.0, r2=0.0, rmse=2.0)"
    )
    assert repr(evaluate([[0.5, 0]], [[0, 1]])) == (
        "Evaluation(mse=0.625, bit_fail=2, accuracy=0.0)"
    )


def test_printed_rows_are_those_that_apply():
    y, t = [[1.0], [2.0], [4.0]], [[1.0], [3.0], [5.0]]
    assert evaluation_rows(evaluate(y, t), 3) == [
        ("MSE", "0.6667"), ("bit fail", "2 of 3"), ("MAE", "0.6667"),
        ("RMSE", "0.8165"), ("R²", "0.750000"),
    ]
    assert evaluation_rows(evaluate(y, t, middles=[0.5]), 3)[2:] == [
        ("accuracy", "1.000000")
    ]


def test_confusion_counts_each_class_by_row():
    t = np.eye(3)[[0, 0, 1, 2, 2, 2]]
    y = np.eye(3)[[0, 1, 1, 2, 2, 0]]
    found = evaluate(y, t)
    assert found.confusion.tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 2]]
    assert found.accuracy == np.trace(found.confusion) / 6
    assert "confusion" not in repr(found)
    one = evaluate([[0.1], [0.9], [0.8]], [[0], [0], [1]], middles=[0.5])
    assert one.confusion.tolist() == [[1, 1], [0, 1]]
    assert evaluate(np.eye(CONFUSED), np.eye(CONFUSED)).confusion.trace() == CONFUSED
    assert evaluate(*[np.eye(CONFUSED + 1)] * 2).confusion is None


def test_printed_confusion_fits_the_width():
    for classes in (2, 3, 10, 12):
        counts = np.full((classes, classes), 10**4)
        names = [f"a class with a long name {n}" for n in range(classes)]
        for found in (names, None, range(classes)):
            text = confusion_text(counts, found)
            assert max(map(len, text.splitlines())) <= WIDTH
            assert len(text.splitlines()) == classes + 2
    assert "not shown" in confusion_text(np.eye(40, dtype=int), None)
    text = confusion_text(np.array([[5, 1], [0, 7]]), ("no", "yes"))
    assert [line.split() for line in text.splitlines()[1:]] == [
        ["no", "yes"], ["no", "5", "1"], ["yes", "0", "7"]]


def test_r2_is_the_mean_over_outputs():
    y = [[1.0, 0.0, 2.0], [2.0, 1.0, 2.0], [4.0, 0.0, 2.0]]
    t = [[1.0, 0.5, 2.0], [3.0, 0.5, 2.0], [5.0, 0.5, 2.0]]
    assert evaluate(y, t).r2 == pytest.approx((0.75 + 0 + 1) / 3)
    assert evaluate(t, t).r2 == 1
    assert np.isnan(evaluate([[np.nan], [1.0]], [[0.0], [1.0]]).r2)


def test_an_error_of_the_limit_counts_as_failed():
    y = [[0.0, 0.0, 0.0, 0.0]]
    t = [[0.25, -0.25, 0.2499, 1.0]]
    assert evaluate(y, t, bit_fail_limit=0.25).bit_fail == 3
    assert evaluate(y, t, bit_fail_limit=2).bit_fail == 0
    assert BIT_FAIL_LIMIT == 0.35


def test_halved_errors_are_fanns():
    y, t = [[0.0, 0.0]], [[1.0, 1.0]]
    found = evaluate(y, t, [True], middles=[0.0])
    assert found == Evaluation(0.25, 2, 0.0, hamming_loss=1.0)
    assert evaluate(y, t, [True, False]).mse == pytest.approx((0.25 + 1) / 2)
    assert evaluate(y, t, (True,), 0.6).bit_fail == 0


def test_one_sample_may_come_without_its_batch():
    assert evaluate([0.0, 1.0], [0.0, 0.5]) == evaluate([[0.0, 1.0]], [[0.0, 0.5]])


@given(
    arrays=st.integers(1, 6).flatmap(
        lambda n: st.integers(2, 4).flatmap(
            lambda m: st.tuples(
                *[hnp.arrays(np.float64, (n, m), elements=st.floats(-2, 2))] * 2
            )
        )
    )
)
def test_metrics_agree_with_numpy(arrays):
    y, t = arrays
    found = evaluate(y, t, middles=[0.5])
    assert found.mse == pytest.approx(((y - t) ** 2).mean())
    assert found.bit_fail == np.count_nonzero(abs(y - t) >= BIT_FAIL_LIMIT)
    if found.hamming_loss is None:
        assert found.accuracy == np.mean(y.argmax(1) == t.argmax(1))
    else:
        assert found.accuracy == np.mean(((y > 0.5) == (t > 0.5)).all(1))
    assert 0 <= found.bit_fail <= y.size


def test_nan_shows_in_the_error():
    found = evaluate([[np.nan, 0.0]], [[1.0, 0.0]])
    assert np.isnan(found.mse)
    assert np.isnan(found.accuracy)  # it is of no class


def test_an_evaluation_holds_plain_numbers_and_does_not_change():
    y, t = np.zeros((2, 2), np.float32), np.ones((2, 2), np.float32)
    found = evaluate(y, t, middles=[0.5])
    none, array = type(None), np.ndarray
    by_class = [array, array, array, none, array]
    for one, kinds in (
        (found, [float, int, float, none, none, none, float, none, *by_class]),
        (evaluate(y, t), [float, int, none, float, float, float, *[none] * 7]),
    ):
        assert [type(value) for value in dataclasses.astuple(one)] == kinds
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.mse = 0


@pytest.mark.parametrize(("y", "t", "sentence"), [
    (np.zeros((2, 3)), np.zeros((3, 2)),
     r"targets have shape \[3, 2\], expected \[2, 3\]"),
    (np.zeros((2, 1)), np.zeros(2), r"\[2\], expected \[2, 1\]: give t\[:, None\]"),
    (np.zeros((0, 3)), np.zeros((0, 3)), "there is no sample to evaluate"),
    (np.zeros(()), np.zeros(()), r"outputs have shape \[\], expected \[batch, n_o"),
    (np.zeros((1, 1, 1)), np.zeros((1, 1, 1)), r"outputs have shape \[1, 1, 1\]"),
    ([["a"]], [[1.0]], "numbers"),
    ([[1.0]], [[None]], "numbers"),
    ([[1.0], [2.0, 3.0]], [[1.0]], "outputs must be a rectangular array"),
    ([[1j]], [[1.0]], "numbers"),
])
def test_bad_input(y, t, sentence):
    with pytest.raises(InputError, match=sentence):
        evaluate(y, t)


def test_halved_is_one_or_one_an_output():
    with pytest.raises(InputError, match="halved has 2 entries, expected 1 or 3"):
        evaluate(np.zeros((4, 3)), np.zeros((4, 3)), [True, False])


# Metrics of networks -----------------------------------------------------------------


def test_a_fann_networks_symmetric_outputs_are_halved():
    layers = [Dense(2, ["tanh", "sigmoid"])]
    y, t = [[0.0, 0.0]], [[1.0, 1.0]]
    assert Network(3, layers, fann_compatible=True).compare(y, t).mse == 0.625
    assert Network(3, layers).compare(y, t).mse == 1.0


def test_a_network_compares_what_it_predicts():
    network = Network.mlp([4, 3], "tanh", seed=0)
    x = np.random.default_rng(0).uniform(-1, 1, (5, 4)).astype(np.float32)
    plan = network.compile(None, 5, tune=False, variants=["naive"])
    t = np.eye(3)[[0, 1, 2, 0, 1]]
    assert network.compare(plan(x), t) == evaluate(plan(x), t)


@pytest.mark.parametrize(("name", "middle"), [
    ("sigmoid", 0.5), ("tanh", 0.0), ("gaussian_symmetric", 0.0), ("softmax", 0.5),
    ("elliot", 0.5), ("identity", None), ("relu", None), ("softplus", None),
])
def test_the_middle_is_the_output_functions(name, middle):
    n = 2 if name == "softmax" else 1
    network = Network(3, [Dense(n, name)], seed=1)
    y, t = np.linspace(-1, 1, 20).reshape(-1, n), np.ones((20 // n, n))
    assert network.compare(y, t) == evaluate(y, t, middles=[middle])


def test_every_bounded_functions_middle():
    v = np.linspace(-20, 20, 4001)
    for row in ACTIVATIONS.values():
        if row.bounded and row.name != "gaussian_stepwise":  # 0 everywhere, as in FANN
            y = row.value(v)
            assert (y.min() + y.max()) / 2 == pytest.approx(row.middle, abs=0.03)
        elif not row.bounded:
            assert row.middle is None


def test_the_middle_is_in_the_units_of_the_data():
    t = np.array([[10.0], [20.0], [30.0], [12.0]])
    scaling = Scaling.of(np.zeros((4, 3)) + np.arange(4)[:, None], t)
    network = Network(3, [Dense(1, "tanh")], scaling=scaling)
    assert scaling.scale_output([[18.0]]) == 0
    y = [[17.0], [19.0], [17.0], [11.0]]
    assert network.compare(y, t, scale=True).accuracy == 0.75
    assert network.compare(y, t, scale=False).accuracy == 1


# --- scikit-learn's figures -----------------------------------------------------------


def parts_of(y, t, middles, size, auc=True):
    """Return the evaluation of samples that come in parts."""
    metrics = Metrics([False], BIT_FAIL_LIMIT, middles, auc)
    for first in range(0, len(y), size):
        metrics.add(y[first: first + size], t[first: first + size])
    return metrics.evaluation()


def check_by_class(found, labels, outputs, scores):
    """Compare figures by class with scikit-learn's; labels [samples, classes]."""
    judge = pytest.importorskip("sklearn.metrics")
    theirs = judge.precision_recall_fscore_support(labels, outputs, zero_division=0)
    for name, expected in zip(("precision", "recall", "f1", "support"), theirs,
                              strict=True):
        np.testing.assert_allclose(getattr(found, name), expected, rtol=1e-15)
    pairs = zip(labels.T, scores.T, strict=True)
    areas = [judge.roc_auc_score(*pair) for pair in pairs]
    np.testing.assert_allclose(found.auc, areas, rtol=1e-12)


@pytest.mark.parametrize("size", [1, 7, 50])
@pytest.mark.parametrize(("low", "middle"), [(0.0, 0.5), (-1.0, 0.0)])
def test_several_hot_targets_have_scikit_learns_figures(size, low, middle):
    judge = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(size)
    labels = rng.random((50, 3)) < [0.2, 0.5, 0.8]
    labels[:2] = [[False] * 3, [True] * 3]
    y = np.clip(rng.normal(np.where(labels, 0.7, 0.3), 0.3), 0, 1).round(1)
    t, y = (one * (1 - low) + low for one in (labels, y))
    found = parts_of(y, t, [middle], size)
    assert found.accuracy == judge.accuracy_score(labels, y > middle)
    assert found.hamming_loss == pytest.approx(judge.hamming_loss(labels, y > middle))
    assert found.confusion is None
    check_by_class(found, labels, y > middle, y)
    assert "hamming_loss" in repr(found)


def test_right_answers_of_several_hot_targets_are_right():
    t = np.array([[1, 1, 0], [0, 0, 0], [1, 1, 1], [0, 1, 1], [1, 0, 1], [0, 1, 0]])
    found = evaluate(0.1 + 0.8 * t, t, middles=[0.5])
    assert (found.accuracy, found.hamming_loss) == (1, 0)
    assert evaluate(t, t).accuracy is None  # no middle
    soft = evaluate([[0.9, 0.1]], [[0.7, 0.3]], middles=[0.5])
    assert (soft.accuracy, soft.hamming_loss) == (1, None)


@pytest.mark.parametrize("size", [1, 9, 60])
def test_classes_have_scikit_learns_figures(size):
    rng = np.random.default_rng(size)
    t = np.eye(3)[rng.integers(3, size=60)]
    y = rng.random((60, 3)).round(1) + t / 2
    answers = np.eye(3)[y.argmax(axis=1)]
    check_by_class(parts_of(y, t, [0.5], size), t, answers, y)
    found = parts_of(y[:, :1], t[:, :1], [0.5], size)
    two = np.column_stack([1 - t[:, 0], t[:, 0]])
    check_by_class(found, two, np.column_stack([y[:, 0] <= 0.5, y[:, 0] > 0.5]),
                   np.column_stack([-y[:, 0], y[:, 0]]))


def test_a_class_without_samples_has_no_area():
    found = parts_of(np.eye(3)[[0, 1]], np.eye(3)[[0, 1]], [0.5], 2)
    assert found.auc[:2].tolist() == [1, 1]
    assert np.isnan(found.auc[2]) and found.recall[2] == found.f1[2] == 0
    assert parts_of(np.eye(3), np.eye(3), [0.5], 2, auc=False).auc is None
