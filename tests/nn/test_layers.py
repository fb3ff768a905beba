"""Partially connected layers, and layers of several sources: run and trained."""

import dataclasses

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_files import rewrite

import clnet
from clnet import Dense, InputError, Network, Pattern, Sparse
from clnet.cli.summary import network_text
from clnet.errors import WIDTH
from clnet.ir import reference
from clnet.nn.optimisers import OPTIMISERS
from clnet.nn.storage.formats import FORMATS
from clnet.nn.storage.layout import live_elements
from clnet.nn.storage.pattern import PLACEMENTS

MASK = np.random.default_rng(5).random((9, 11)) < 0.3
MASK[3] = False  # a neuron with its bias alone
SHORTCUT = (
    Dense(6, "tanh", sources=(0,)),
    Dense(5, "sigmoid", sources=(0, 1)),
    Dense(3, "tanh", sources=(0, 1, 2)),
)


def sparse_net(form="auto", seed=1, **options):
    layers = [Sparse(9, "tanh", pattern=MASK, format=form),
              Sparse(7, "sigmoid", density=0.4, format=form, seed=3), Dense(2)]
    return Network(11, layers, seed=seed, **options)


def by_hand(network, x):
    """Return the outputs by whole matrices and biases, in float64."""
    ys = [x.astype(np.float64)]
    for number, layer in enumerate(network.layers):
        sources = layer.sources or (number,)
        v = np.hstack([ys[source] for source in sources]) @ network.weights(number).T
        v = v + (network.biases(number) if layer.bias else 0)
        act = {"tanh": np.tanh, "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
               "identity": lambda v: v}[layer.activation]
        ys.append(act(v))
    return ys[-1]


def check_by_hand(network, batch, rtol=1e-5, atol=1e-6):
    x = np.random.default_rng(0).standard_normal((batch, network.n_in))
    x = x.astype(network.dtype)
    np.testing.assert_allclose(network.predict(x), by_hand(network, x), rtol, atol)


# Placement ---------------------------------------------------------------------------


sizes = st.integers(1, 30)


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, st.floats(0.001, 1), st.integers(0, 9))
def test_placements(n_out, n_in, density, seed):
    for name in PLACEMENTS:
        layer = Sparse(n_out, density=density, placement=name, seed=seed)
        pattern = layer.connections(n_in)
        assert (pattern.n_out, pattern.n_in) == (n_out, n_in)
        assert layer.connections(n_in) == pattern
        if name == "uniform":
            assert len(pattern) == max(1, round(density * n_out * n_in))
        if name == "rows":
            assert set(pattern.lengths) == {max(1, round(density * n_in))}
        if name == "fann":
            total = max(n_out, n_in, int(0.5 + density * n_out * n_in))
            assert len(pattern) == total
            assert pattern.lengths.min() >= 1
            assert set(pattern.columns) == set(range(n_in))
            assert np.ptp(pattern.lengths) <= 1


def test_other_seeds_are_other_connections():
    layers = [Sparse(50, density=0.1, seed=seed) for seed in (0, 0, 1)]
    first, again, other = (layer.connections(40) for layer in layers)
    assert first == again != other


@pytest.mark.parametrize(
    ("sizes", "rate", "total"),
    [((2, 3, 4, 5), 0.5, 31), ((2, 2, 2), 0.01, 8), ((2, 3, 4, 5), 1.0, 50)],
)
def test_fanns_counts(sizes, rate, total):
    """FANN's numbers of connections, biases included."""
    layers = [Sparse(n, density=rate, placement="fann") for n in sizes[1:]]
    network = Network(sizes[0], layers)
    assert sum(m.count + m.n_out for m in network.matrices) == total


def test_uniform_placement_is_uniform():
    counts = sum(
        Sparse(4, density=0.25, seed=seed).connections(4).mask().astype(int)
        for seed in range(400)
    )
    assert np.abs(counts - 100).max() < 45  # five standard deviations


# Description -------------------------------------------------------------------------


def test_a_pattern_may_be_given_as_mask_pattern_or_matrix():
    pattern = Pattern.of(MASK)
    layers = [Sparse(9, pattern=MASK), Sparse(9, pattern=pattern)]
    sparse = pytest.importorskip("scipy.sparse")
    layers.append(Sparse(9, pattern=sparse.csr_array(MASK)))
    assert layers[0] == layers[1] == layers[2]
    assert hash(layers[0]) == hash(layers[1])
    assert "n_out=9, n_in=11" in repr(layers[0])


@pytest.mark.parametrize(("options", "sentence"), [
    ({}, "either a density or a pattern"),
    ({"density": 0.5, "pattern": MASK}, "either a density or a pattern"),
    ({"density": 0}, r"density must be in \(0, 1\], not 0"),
    ({"density": 1.5}, r"density must be in \(0, 1\], not 1.5"),
    ({"density": float("nan")}, r"in \(0, 1\], not nan"),
    ({"density": True}, r"in \(0, 1\], not True"),
    ({"density": "0.1"}, r"in \(0, 1\], not '0.1'"),
    ({"pattern": MASK[:4]}, r"a pattern is \[4, 11\] for 9 neurons"),
    ({"pattern": MASK.astype(float)}, "boolean mask"),
    ({"density": 0.5, "format": "crs"}, "unknown format 'crs': did you mean 'csr'"),
    ({"density": 0.5, "placement": "row"}, "did you mean 'rows'"),
    ({"density": 0.5, "seed": None}, "number of at least 0, not None"),
    ({"density": 0.5, "sources": ()}, r"sources must be .* not \(\)"),
    ({"density": 0.5, "sources": (1, 0)}, "increasing"),
    ({"density": 0.5, "sources": (0, 0)}, "increasing"),
    ({"density": 0.5, "sources": 1}, "sources must be"),
])
def test_bad_layers(options, sentence):
    with pytest.raises(InputError, match=sentence):
        Sparse(9, **options)


@pytest.mark.parametrize(("layers", "sentence"), [
    ([Sparse(9, pattern=MASK)], r"a pattern is \[9, 11\], expected \[9, 3\] for 3"),
    ([Sparse(9, density=1.0, memory_limit=20)], "27 connections of a layer need"),
    ([Dense(2, sources=(1,))], r"layer 0 has the sources \(1,\), expected 0"),
    ([Dense(2), Dense(2, sources=(0,))], "layer 0 is in no later layer's sources"),
])
def test_layers_that_make_no_network(layers, sentence):
    with pytest.raises(InputError, match=sentence):
        Network(3, layers)


def test_weights_belong_where_connections_are():
    network = sparse_net()
    weights = np.where(MASK, np.arange(99.0).reshape(9, 11), 0)
    network.set_layer(0, weights, np.ones(9))
    np.testing.assert_array_equal(network.weights(0), weights)
    network.set_layer(0, weights[MASK] + 1)
    np.testing.assert_array_equal(network.weights(0)[MASK], weights[MASK] + 1)
    np.testing.assert_array_equal(network.biases(0), 1)
    with pytest.raises(InputError, match="have 1 numbers where there is no connection"):
        network.set_layer(0, weights + (np.arange(99).reshape(9, 11) == MASK.argmin()))
    with pytest.raises(InputError, match=r"have shape \[5\], expected \[9, 11\]"):
        network.set_layer(0, np.zeros(5))


def test_initial_weights_do_not_depend_on_the_format():
    first, *others = (sparse_net(form) for form in FORMATS)
    for other in others:
        for number in range(3):
            np.testing.assert_array_equal(other.weights(number), first.weights(number))
    assert not first.weights(0)[~MASK].any()
    assert first.weights(0)[MASK].all()


# Running -----------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("batch", [1, 6])
def test_every_format_runs(form, batch):
    network = sparse_net(form)
    check_by_hand(network, batch)
    ops = 6 + (form == "hyb")  # HYB is a sum: the first layer's is of two
    assert len(network.program.ops) == ops


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("case", [
    (40, 40, np.abs(np.subtract.outer(np.arange(40), np.arange(40))) <= 2),
    (30, 9, np.arange(30)[:, np.newaxis] % 3 == np.zeros(9)),
    (70, 300, np.eye(70, 300, dtype=bool) | (np.arange(70) == 4)[:, np.newaxis]),
    (5, 7, np.arange(35).reshape(5, 7) == 34),
], ids=["banded", "empty and full rows", "one long row", "single entry"])
def test_patterns_on_the_device(form, case):
    n_out, n_in, mask = case
    network = Network(n_in, [Sparse(n_out, pattern=mask, format=form)], seed=2)
    x = np.random.default_rng(0).standard_normal((3, n_in)).astype("float32")
    plan = network.compile(batch=3, variants=["generic"], tune=False)
    np.testing.assert_allclose(plan(x), by_hand(network, x), rtol=1e-5, atol=1e-5)


def test_missing_connections_read_nothing():
    """Not even infinities, except in the masked format, which multiplies zeros."""
    x = np.full((1, 11), np.inf, "float32")
    x[0, MASK[0]] = 1
    for form in FORMATS:
        network = Network(11, [Sparse(9, pattern=MASK, format=form)], seed=1)
        plan = network.compile(variants=["generic"], tune=False)
        with np.errstate(invalid="ignore"):
            expected = reference.run(network.program, x, network.parameters)
        for y in (plan(x), expected):
            if form != "dense":
                assert np.isfinite(y[0, 0])
                assert y[0, 3] == network.biases(0)[3]


def test_float64():
    check_by_hand(sparse_net("hyb", dtype="float64"), 4, 1e-12, 0)


def test_several_sources():
    network = Network(4, SHORTCUT, seed=1)
    assert [network.weights(i).shape for i in range(3)] == [(6, 4), (5, 10), (3, 15)]
    check_by_hand(network, 7)
    assert "3 act" in network.compile(batch=7, tune=False).explain()


def test_sparse_layers_of_several_sources():
    mask = np.random.default_rng(1).random((3, 10)) < 0.4
    mask[:, 4:] = False  # nothing of the second source
    layers = [Dense(6, "tanh"), Dense(2, "tanh"),
              Sparse(3, pattern=np.hstack([mask, np.ones((3, 2), bool)]),
                     sources=(0, 1, 2), format="hyb")]
    network = Network(4, layers, seed=1)
    check_by_hand(network, 7)
    assert {part.source for part in network.matrices[2].parts} == {0, 2}


def test_scipy_inputs():
    sparse = pytest.importorskip("scipy.sparse")
    network = sparse_net()
    rng = np.random.default_rng(0)
    x = sparse.random_array((50, 11), density=0.2, rng=rng, dtype="float32")
    expected = network.predict(x.toarray())
    for kind in (sparse.csr_array, sparse.coo_array, sparse.csc_matrix):
        np.testing.assert_array_equal(network.predict(kind(x)), expected)
    t = rng.random((50, 2)).astype("float32")
    weights = []
    for inputs in (x.tocsr(), x.toarray()):
        trained = sparse_net()
        trained.fit(inputs, t, epochs=3, seed=1)
        weights.append(trained.parameters)
    np.testing.assert_array_equal(*weights)
    with pytest.raises(InputError, match=r"x has shape \[50, 7\]"):
        network.predict(x.tocsr()[:, :7])
    with pytest.raises(InputError, match="complex"):
        network.predict(x.tocsr().astype(complex))


# Training ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMISERS)
def test_training_never_adds_connections(name):
    layers = [Sparse(9, "tanh", pattern=MASK, format="hyb"),
              Sparse(7, density=0.4, format="dense"),
              Sparse(2, "sigmoid", density=0.4)]
    network = Network(11, layers, seed=1)
    before = network.parameters.copy()
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (20, 11)).astype("float32")
    x[:, 0] = 0  # slopes of exactly 0, which FANN's rules move along
    t = rng.uniform(0, 1, (20, 2)).astype("float32")
    batch_size = 1 if name == "incremental" else None
    history = network.fit(x, t, optimiser=name, epochs=4, batch_size=batch_size)
    assert np.isfinite(history.epochs[-1].training.loss)
    live = live_elements(network.layout, network.storages)
    assert not network.parameters[~live].any()
    assert (network.parameters[live] != before[live]).any()
    for number, matrix in enumerate(network.matrices):
        rows, columns, _ = matrix.entries()
        outside = np.ones((matrix.n_out, matrix.n_in), bool)
        outside[rows, columns] = False
        assert not network.weights(number)[outside].any()


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_trains_alike(form):
    first, other = sparse_net("csr"), sparse_net(form)
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (20, 11)).astype("float32")
    t = rng.uniform(0, 1, (20, 2)).astype("float32")
    for network in (first, other):
        network.fit(x, t, optimiser="sgd", epochs=5)
    for number in range(3):
        np.testing.assert_allclose(
            other.weights(number), first.weights(number), rtol=1e-4, atol=1e-6
        )


# Summaries and files -----------------------------------------------------------------


def test_summaries_have_density_format_and_bytes():
    network = sparse_net("csr")
    text = network_text(network)
    assert max(map(len, text.splitlines())) <= WIDTH
    row = text.splitlines()[-3].split()
    entries = int(MASK.sum())
    size = (4 + 2) * entries + 4 * 10 + 4 * 9
    assert row == ["0", "9", "tanh", "1", "csr", f"{100 * MASK.mean():.3g}%", "yes",
                   str(entries + 9), str(size)]
    assert "ell+coo" in network_text(sparse_net("hyb"))


@pytest.mark.parametrize("form", ["auto", "hyb"])
def test_safetensors(tmp_path, form):
    network = sparse_net(form)
    network.save(tmp_path / "a.safetensors")
    back = clnet.load(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(back.parameters, network.parameters)
    assert back.storages == network.storages
    assert back.layers[0] == network.layers[0]
    pattern = network.layers[1].connections(9)
    assert back.layers[1] == dataclasses.replace(
        network.layers[1], density=None, pattern=pattern, seed=0
    )
    back.save(tmp_path / "b.safetensors")
    one, two = ((tmp_path / f"{n}.safetensors").read_bytes() for n in "ab")
    assert one == two


def test_safetensors_of_several_sources(tmp_path):
    layers = (*SHORTCUT[:2], Sparse(3, density=0.3, sources=(0, 1, 2)))
    network = Network(4, layers, seed=1)
    network.save(tmp_path / "a.safetensors")
    back = clnet.load(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(back.parameters, network.parameters)
    assert back.layers[:2] == network.layers[:2]


@pytest.mark.parametrize(("name", "change"), [
    ("2.weight", lambda a: a[:-1]),
    ("2.weight.crow_indices", lambda a: a[:-1]),
    ("2.weight.crow_indices", lambda a: a[::-1].copy()),
    ("2.weight.crow_indices", lambda a: a + 1),
    ("2.weight.col_indices", lambda a: a[:-1]),
    ("2.weight.col_indices", lambda a: a * 0),
    ("2.weight.col_indices", lambda a: a + 1000),
    ("2.weight.col_indices", lambda a: a.astype("float32")),
    ("2.weight.col_indices", lambda a: None),
])
def test_damaged_safetensors(tmp_path, name, change):
    path = tmp_path / "a.safetensors"
    sparse_net().save(path)
    rewrite(path, {name: change(safetensors.numpy.load_file(path)[name])})
    with pytest.raises(clnet.FormatError, match=r"a\.safetensors"):
        clnet.load(path)
