"""FANN's scaling: its formula, its constants, and networks that carry one."""

import numpy as np
import pytest

import clnet
from clnet import ClnetWarning, InputError, Network, Scaling

EXAMPLE = Scaling([1.5, 2], [0.5, 0], [-1, -1], [1, 1], [1000], [0.25], [0], [0.5])


pytestmark = pytest.mark.usefixtures("modelled_plans")


def data(n=60, seed=0):
    """Return two inputs of different size, and a target far from 0."""
    rng = np.random.default_rng(seed)
    x = rng.normal([1000, 0.01], [50, 0.003], (n, 2))
    t = 500 + 0.3 * x[:, :1] + 2000 * x[:, 1:]
    return x, t


def test_by_hand():
    x = np.array([[1.0, 7.0], [2.5, -7.0]])
    scaled = EXAMPLE.scale_input(x)
    # ((x − 1.5) / 0.5 + 1) · 1 − 1; the second column has deviation 0.
    assert scaled.tolist() == [[-1, 7], [2, -7]]
    assert np.array_equal(EXAMPLE.descale_input(scaled), x)
    # ((x − 1000) / 0.25 + 1) · 0.5 + 0
    assert EXAMPLE.scale_output([1000.5]).tolist() == [1.5]
    assert EXAMPLE.descale_output(np.float32([[1.5]])).dtype == np.float32
    assert EXAMPLE.descale_output([[1.5]]).tolist() == [[1000.5]]


def test_constants_of_data():
    x, t = np.array([[1.0, 5], [3, 5]]), np.array([[10.0], [30]])
    scaling = Scaling.of(x, t, (-2, 2), (0, 1))
    assert scaling == Scaling(
        [2, 5], [1, 1], [-2, -2], [2, 2], [20], [10], [0], [0.5]
    )
    # One deviation from the mean maps to an end; constant columns are centred.
    assert scaling.scale_input(x).tolist() == [[-2, 0], [2, 0]]
    assert scaling.scale_output(t).tolist() == [[0], [1]]


@pytest.mark.parametrize("size", [None, 1, 7], ids=["at once", "one by one", "by 7"])
def test_constant_columns_are_scikit_learns(size):
    """A column of one number, or of its rounded sums, says nothing: it is centred."""
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    rng = np.random.default_rng(0)
    n = 150
    x = np.column_stack([
        np.full(n, 14.62), np.full(n, 2024), np.full(n, -1e30), np.zeros(n),
        np.float32(0.1) + np.zeros(n), rng.choice([0.1 + 0.2, 0.3], n),  # up to an ulp
        1e8 + np.linspace(0, 1, n), 1 + 1e-12 * rng.standard_normal(n),  # not constant
        1e-300 * rng.standard_normal(n), rng.standard_normal(n),
    ])
    if size is None:
        scaling = Scaling.of(x, x)
    else:
        scaling = Scaling.of_parts(
            (x[first: first + size],) * 2 for first in range(0, n, size)
        )
    theirs = preprocessing.StandardScaler().fit(x)
    constant = np.array([True] * 6 + [False] * 2 + [True, False])
    assert ((theirs.scale_ == 1) == constant).all()
    for side in ("in", "out"):
        deviation = np.array(getattr(scaling, f"deviation_{side}"))
        assert (deviation[constant] == 1).all()
        mean_rounding = n * np.spacing(np.abs(x).max(axis=0)[~constant])
        difference = np.abs(deviation - theirs.scale_)[~constant]
        assert (difference <= mean_rounding).all()
        scaled = getattr(scaling, f"scale_{side}put")(x)
        rounding = n * np.spacing(np.abs(x[0, constant]))
        assert (np.abs(scaled[:, constant]) <= rounding).all()
    later = scaling.scale_input([14.63, *x[0, 1:]])
    assert later[0] == pytest.approx(0.01)


def test_constants_of_fann_itself(fann_datasets):
    """FANN sums in float32 and writes six decimals."""
    network = clnet.load(fann_datasets / "nets" / "scaled.net")
    x, t = clnet.load_data(fann_datasets / "scaling.data", dtype="float64")
    theirs = network.scaling
    ranges = [
        (new_min[0], new_min[0] + 2 * factor[0]) for new_min, factor in (
            (theirs.new_min_in, theirs.factor_in),
            (theirs.new_min_out, theirs.factor_out),
        )
    ]
    ours = Scaling.of(x, t, *ranges)
    for name in ("mean_in", "deviation_in", "factor_in", "new_min_in", "mean_out",
                 "deviation_out", "factor_out", "new_min_out"):
        np.testing.assert_allclose(
            getattr(ours, name), getattr(theirs, name), rtol=1e-4, atol=1e-6
        )


def test_unscaled_columns():
    x, t = data()
    scaling = Scaling.of(x, t, outputs=None)
    np.testing.assert_allclose(scaling.scale_output(t), t, rtol=1e-12)
    np.testing.assert_allclose(scaling.descale_output(t), t, rtol=1e-12)
    scaling = Scaling.of(x, t, inputs=None)
    np.testing.assert_allclose(scaling.scale_input(x), x, rtol=1e-12)


@pytest.mark.parametrize(("x", "ends", "sentence"), [
    ([[1.0], [2]], (1, -1), "two rising numbers"),
    ([[1.0], [2]], (1,), "two rising numbers"),
    ([[1.0], [2]], (0, np.inf), "two rising numbers"),
    ([[1.0], [2]], "01", "must be a list"),
    ([[1.0], [2]], ("a", "b"), "must be a number"),
    ([1.0, 2], (0, 1), "shape"),
    (np.zeros((0, 1)), (0, 1), "at least one sample"),
    ([[1.0], [np.nan]], (0, 1), "not finite"),
    ([["a"]], (0, 1), "expected numbers"),
    ([[1e200], [-1e200]], (0, 1), "input 0 holds numbers too large to be scaled"),
])
def test_bad_data_and_ranges(x, ends, sentence):
    with pytest.raises(InputError, match=sentence):
        Scaling.of(x, [[0.0]] * len(x), inputs=ends)


def test_wrong_arrays():
    for bad in ([1.0], [[1.0, 2, 3]], 1.0, [["a", "b"]], np.zeros((1, 1, 2))):
        with pytest.raises(InputError, match=r"^inputs"):
            EXAMPLE.scale_input(bad)
    with pytest.raises(InputError, match="output 0 was scaled to one point"):
        Scaling([], [], [], [], [0], [1], [0], [0]).descale_output([1.0])
    with pytest.raises(InputError, match="factor_out has 0 entries, expected 1"):
        Scaling([], [], [], [], [0], [1], [0], [])
    with pytest.raises(InputError, match="mean_in must be a list"):
        Scaling("1", [], [], [], [0], [1], [0], [0])


# Networks that carry one ------------------------------------------------------------


def test_a_scaling_fits_its_network():
    network = Network.mlp([2, 1], "identity", scaling=EXAMPLE)
    assert network.scaling == EXAMPLE
    network.scaling = None
    assert network.scaling is None
    with pytest.raises(InputError, match="for 2 inputs and 1 output, expected 3"):
        Network.mlp([3, 1], "identity", scaling=EXAMPLE)
    with pytest.raises(InputError, match="must be Scaling or None, not 3"):
        network.scaling = 3


@pytest.mark.parametrize("suffix", [".net", ".safetensors"])
def test_trained_scaled_and_saved(tmp_path, suffix):
    """A fit to raw data needs the scaling, which the file contains."""
    x, t = data()
    network = Network.mlp([2, 8, 1], ["tanh", "identity"], seed=1)
    network.scaling = Scaling.of(x, t)
    history = network.fit(
        x, t, optimiser="rprop", epochs=200, scale=True, validation=(x[:20], t[:20])
    )
    assert history.validation_loss[-1] < 0.01
    found = network.evaluate(x, t, scale=True)
    assert found.mse < 0.01 * t.var()
    by_hand = network.scaling.descale_output(
        network.predict(network.scaling.scale_input(x), scale=False)
    )
    np.testing.assert_allclose(network.predict(x, scale=True), by_hand, rtol=1e-5)
    assert network.predict(x[0], scale=True).shape == (1,)
    network.save(tmp_path / f"a{suffix}")
    back = clnet.load(tmp_path / f"a{suffix}")
    assert back.evaluate(x, t, scale=True).mse == pytest.approx(found.mse, rel=1e-2)


def test_scaling_happens_before_numbers_lose_digits():
    x = 1e8 + np.linspace(0, 1, 9)[:, np.newaxis]  # all equal in float32
    network = Network.mlp([1, 1], "identity", scaling=Scaling.of(x, x))
    network.set_layer(0, [[1.0]], [0.0])
    y = network.predict(x, scale=True)
    inner = network.scaling.scale_output(np.float64(x))
    assert np.ptp(inner) > 1
    assert np.ptp(network.predict(network.scaling.scale_input(x), scale=False)) > 1
    assert y.dtype == np.float32


def test_scale_is_checked_and_a_missing_one_warns():
    x, t = data()
    network = Network.mlp([2, 1], "identity", seed=0)
    for call in (network.predict, lambda x, scale: network.evaluate(x, t, scale=scale),
                 lambda x, scale: network.fit(x, t, scale=scale)):
        with pytest.raises(InputError, match="and it has none: set it as in"):
            call(x, scale=True)
        with pytest.raises(InputError, match="must be True, False or None, not 2"):
            call(x, scale=2)
    network.scaling = Scaling.of(x, t)
    with pytest.warns(ClnetWarning, match="a scaling that is not used") as caught:
        y = network.predict(x)
    assert caught[0].filename == __file__
    assert np.array_equal(y, network.predict(x, scale=False))
    with pytest.warns(ClnetWarning, match="a scaling that is not used") as caught:
        network.evaluate(x, t)
    assert caught[0].filename == __file__
    with pytest.warns(ClnetWarning, match="a scaling that is not used") as caught:
        network.fit(x, t, epochs=1)
    assert caught[0].filename == __file__
