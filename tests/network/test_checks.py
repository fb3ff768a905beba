"""Whole numbers of callers: Python's and NumPy's alike, at every public entry."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import clnet
from clnet import Checkpoint, Dense, EarlyStopping, Local, Network, Pattern, Sparse
from clnet.checks import INT_MAX, all_finite, as_whole, convert_wholes
from clnet.errors import InputError
from clnet.nn import schedules
from clnet.nn.fann_parameters import FannParameters
from clnet.training.fit import explain

KINDS = [np.int8, np.uint8, np.int16, np.uint16, np.int64, np.uint64, np.array]
X = np.random.default_rng(0).uniform(-1, 1, (12, 6)).astype(np.float32)
T = np.random.default_rng(1).uniform(-1, 1, (12, 2)).astype(np.float32)
NETWORK = Network.mlp([6, 5, 2], seed=1)
CPU = clnet.device("cpu")
SPLITTABLE = replace(
    CPU, name="splittable", compute_units=200,
    handle=SimpleNamespace(create_sub_devices=lambda properties: [CPU.handle]),
)


def fitted(**options):
    network = Network.mlp([6, 5, 2], seed=1)
    history = network.fit(X, T, device=CPU, **{"epochs": 2, "seed": 1, **options})
    return [epoch.loss for epoch in history.epochs], network.parameters


def drawn(network):
    return [layer.n_out for layer in network.layers], network.parameters


def stored(network):
    return [matrix.format for matrix in network.matrices]


def initialised(seed):
    network = Network.mlp([6, 5, 2], seed=1)
    network.initialise(seed=seed)
    return network.parameters


def saved_outputs(n, path):
    clnet.save_data(path / "x.csv", X, T)
    return clnet.load_data(path / "x.csv", outputs=n)


SPARSE = Network(6, [Sparse(5, density=0.5), Dense(2)], seed=1)
MIXED = Network(6, [Dense(5), Sparse(4, density=0.5), Dense(2)], seed=1)

# Each entry with one whole number of its, and a number that it takes.
ENTRIES = {
    "n_in": (lambda n: drawn(Network(n, [Dense(2)], seed=1)), 6),
    "Dense": (lambda n: drawn(Network(6, [Dense(n), Dense(2)], seed=1)), 100),
    "mlp": (lambda n: drawn(Network.mlp([6, n, 2], seed=1)), 100),
    "Sparse": (lambda n: drawn(Network(6, [Sparse(n, density=0.5)], seed=1)), 100),
    "Sparse seed": (
        lambda n: drawn(Network(6, [Sparse(9, density=0.5, seed=n)], seed=1)), 100
    ),
    "Sparse memory limit": (
        lambda n: drawn(Network(4, [Sparse(3, density=0.2, memory_limit=n)], seed=1)),
        100,
    ),
    "Local": (lambda n: drawn(Network(120, [Local(n)], seed=1)), 100),
    "Local n_in": (lambda n: Local(3, n_in=n).n_out, 100),
    "sources": (
        lambda n: drawn(Network(6, [Dense(5), Dense(2, sources=(0, n))], seed=1)), 1
    ),
    "Pattern n_out": (lambda n: drawn(Network(
        9, [Sparse(100, pattern=Pattern(n, 9, [3, 99], [8, 0]))], seed=1
    )), 100),
    "Pattern n_in": (lambda n: drawn(Network(
        100, [Sparse(9, pattern=Pattern(9, n, [3, 8], [99, 0]))], seed=1
    )), 100),
    "seed": (lambda n: drawn(Network.mlp([6, 2], seed=n)), 100),
    "initialise seed": (initialised, 100),
    "weights": (NETWORK.weights, 1),
    "biases": (NETWORK.biases, 1),
    "prune layers": (lambda n: stored(NETWORK.prune(density=0.5, layers=[n])), 1),
    "prune layer": (lambda n: stored(NETWORK.prune(density=0.5, layers=n)), 1),
    "to_dense": (lambda n: stored(MIXED.to_dense([n])), 1),
    "stored_as": (lambda n: stored(MIXED.stored_as("ell", [n])), 1),
    "compile": (lambda n: NETWORK.compile(CPU, n, tune=False)(X[:9]), 9),
    "plan_for": (lambda n: NETWORK.plan_for(CPU, n)(X[:9]), 9),
    "epochs": (lambda n: fitted(epochs=n), 3),
    "batch_size": (lambda n: fitted(batch_size=n), 5),
    "fit seed": (lambda n: fitted(seed=n, batch_size=5), 100),
    "explain": (lambda n: explain(NETWORK, "rprop", CPU, n, tune=False), 9),
    "patience": (lambda n: EarlyStopping(patience=n).patience, 100),
    "every": (lambda n: Checkpoint("a.net", every=n).every, 100),
    "step": (lambda n: schedules.Step(every=n)(250), 100),
    "cosine": (lambda n: schedules.Cosine(n)(30), 100),
    "FannParameters": (
        lambda n: FannParameters(cascade_max_out_epochs=n).cascade_max_out_epochs, 100
    ),
    "units": (lambda n: clnet.device(SPLITTABLE, units=n).compute_units, 100),
}


def assert_same(found, expected):
    if isinstance(expected, (tuple, list)):
        assert type(found) is type(expected)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(found, expected)
    else:
        assert type(found) is type(expected)
        assert found == expected


@pytest.mark.parametrize("name", ENTRIES)
def test_whole_numbers_of_numpy_are_those_of_python(name):
    use, number = ENTRIES[name]
    expected = use(number)
    for kind in KINDS:
        assert_same(use(kind(number)), expected)


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize(
    "wrong", [True, np.True_, 2.5, np.float32(2.5), np.float64(1.0), -1, np.int8(-1),
              "1", np.array([1]), np.array(2.5), 1j], ids=repr,
)
def test_all_else_is_refused_in_a_sentence(name, wrong):
    use, _ = ENTRIES[name]
    if name == "prune layer" and isinstance(wrong, np.ndarray) and wrong.ndim:
        pytest.skip("several layers")
    with pytest.raises(InputError, match=r"whole number|does not exist"):
        use(wrong)


def test_load_data_takes_numbers_of_numpy(tmp_path):
    expected = saved_outputs(3, tmp_path)
    for kind in KINDS:
        assert_same(saved_outputs(kind(3), tmp_path), expected)
    with pytest.raises(InputError, match="outputs must be a whole number of at least"):
        saved_outputs(True, tmp_path)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int64"])
def test_arrays_of_numbers(dtype):
    """200 + 100 overflows in 8 bits."""
    sizes = np.array([200, 100, 10], dtype)
    expected = Network.mlp([200, 100, 10], seed=1)
    found = Network.mlp(sizes, seed=1)
    assert found.sizes == (200, 100, 10)
    assert {type(n) for n in (*found.sizes, found.layout.size)} == {int}
    assert repr(found.layers) == repr(expected.layers)
    np.testing.assert_array_equal(found.parameters, expected.parameters)
    network = Network(200, [Dense(100), Dense(5, sources=np.array([0, 1], dtype))])
    assert network.matrices[1].n_in == 300
    pruned = found.prune(density=0.5, layers=np.array([0, 1], dtype))
    assert [matrix.format for matrix in pruned.matrices] == ["csr", "csr"]
    rows, columns = np.array([1, 199], dtype), np.array([99, 3], dtype)
    pattern = Pattern(200, 100, rows, columns)
    assert Network(100, [Sparse(200, pattern=pattern)], seed=1).layout.size


@pytest.mark.parametrize(
    "sizes", [np.array(3), 3, None, "6", [3], np.zeros((2, 2), int)]
)
def test_sizes_that_are_no_list_of_numbers(sizes):
    with pytest.raises(InputError, match=r"sizes must be a list|n_out must be"):
        Network.mlp(sizes)


def test_sizes_beyond_what_kernels_count():
    for make in (
        lambda n: Network(n, [Dense(1)]), Dense, Local,
        lambda n: Pattern(n, 1, [0], [0]), lambda n: Pattern(1, n, [0], [0]),
        lambda n: NETWORK.compile(CPU, n),
    ):
        with pytest.raises(InputError, match=f"whole number of at most {INT_MAX}"):
            make(1 << 31)
    for layers in (
        [Dense(1 << 18)], [Local(1 << 16), Local(1 << 13)],
        [Sparse(1 << 17, pattern=Pattern(
            1 << 17, 1 << 18, np.arange(1 << 17), np.arange(1 << 18)[::-2]
        ), format="dia")],
    ):
        with pytest.raises(InputError, match=f"(parameters|dia).* at most {INT_MAX}"):
            Network(1 << 18, layers, seed=1)


def test_steepness_bias_density_and_dtype_become_pythons():
    layer = Dense(3, steepness=np.float32(0.5), bias=np.True_)
    assert repr(layer) == repr(Dense(3, steepness=0.5))
    assert hash(Dense(3, steepness=np.array(0.5))) == hash(layer)
    assert type(Sparse(3, density=np.float32(0.5)).density) is float
    assert type(Network(3, [Dense(2)], dtype=np.dtype("float64")).dtype) is str


def test_as_whole_names_its_bounds():
    assert as_whole("n", np.uint8(200)) + 100 == 300
    for found, least, most, bound in (
        (0, 1, None, "at least 1"), (-1, 0, 3, "at least 0"), (4, 0, 3, "at most 3"),
        (1.5, 2, None, "at least 2"), (None, 1, 3, "at least 1"),
    ):
        with pytest.raises(InputError) as caught:
            as_whole("n", found, least, most)
        expected = f"n must be a whole number of {bound}, not {found!r}"
        assert str(caught.value) == expected


def test_fields_are_converted():
    layer = Dense(3)
    object.__setattr__(layer, "n_out", np.uint8(200))
    convert_wholes(layer, "n_out")
    assert type(layer.n_out) is int


# Sparse matrices ----------------------------------------------------------------------


def lil_column(matrix):
    matrix.rows[3][0] = 10**8


def dok_key(matrix):
    matrix._dict[(10**8, 2)] = 1.0


def entry(name, at, value):
    """Return a function that changes an entry of a matrix's array."""
    def damage(matrix):
        array = np.array(getattr(matrix, name))
        array[at] = value
        setattr(matrix, name, array)

    return damage


BEYOND, END = entry("indices", 1, 10**8), entry("indptr", -1, 10**7)
START = entry("indptr", 2, 10**6)
DAMAGES = [
    ("csr", BEYOND), ("csr", entry("indices", 0, -5)), ("csr", START),
    ("csr", entry("indptr", 3, 0)), ("csr", END), ("csc", BEYOND), ("csc", START),
    ("csc", END), ("bsr", BEYOND), ("bsr", END), ("coo", entry("row", 0, 10**8)),
    ("coo", entry("col", -1, 6)), ("lil", lil_column), ("dok", dok_key),
]
USES = {
    "predict": lambda m: NETWORK.predict(m, CPU),
    "fit": lambda m: Network.mlp([6, 2], seed=1).fit(m, T, epochs=1, device=CPU),
    "targets": lambda m: Network.mlp([6, 6], seed=1).fit(X, m, epochs=1, device=CPU),
    "pattern": lambda m: Sparse(12, pattern=m),
    "of": Pattern.of,
    "set_layer": lambda m: Network(6, [Dense(12)]).set_layer(0, m),
    "scaling": lambda m: clnet.Scaling.of(m, T),
    "evaluate": lambda m: Network.mlp([6, 6], seed=1).evaluate(X, m, CPU),
}


@pytest.mark.parametrize(("form", "damage"), DAMAGES)
@pytest.mark.parametrize("use", USES)
def test_sparse_matrices_with_wrong_indices_are_refused(form, damage, use):
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.csr_matrix(np.where(X > 0, X, 0)).asformat(form)
    USES[use](matrix.copy())
    damage(matrix)
    with pytest.raises(InputError, match=r"is a sparse matrix \[12, 6\] with wrong"):
        USES[use](matrix)


@pytest.mark.parametrize("form", ["csr", "csc", "bsr", "coo", "lil", "dok", "dia"])
def test_sparse_matrices_are_taken_as_they_are(form):
    sparse = pytest.importorskip("scipy.sparse")
    x = np.where(X > 0, X, 0)
    for kind in (sparse.csr_matrix, sparse.csr_array):
        matrix = kind(x).asformat(form)
        np.testing.assert_array_equal(
            NETWORK.predict(matrix, CPU), NETWORK.predict(x, CPU)
        )
        assert len(Pattern.of(matrix)) == np.count_nonzero(x)


def test_a_pattern_of_one_axis_or_of_huge_ones_is_refused():
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(InputError, match="is no matrix"):
        Pattern.of(sparse.coo_array(np.ones(3)))
    huge = sparse.coo_array(([1.0], ([0], [1 << 40])), shape=(1 << 40, 1 << 41))
    with pytest.raises(InputError, match=f"at most {INT_MAX}"):
        Pattern.of(huge)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_many_numbers_are_finite_unless_one_is_not(dtype):
    """Rows with others between them, columns, reversed rows, one row again."""
    numbers = np.ones((200, 65), dtype)
    views = [
        numbers, numbers[:, :64], numbers[:, 64:], numbers[::-1], numbers.T,
        numbers[0], np.broadcast_to(numbers[0], (200, 65)), numbers[:, :64].reshape(-1),
    ]
    assert all(all_finite(view) for view in views)
    numbers[:, 64] = np.nan
    assert all_finite(numbers[:, :64])
    for bad in np.nan, np.inf, -np.inf:
        numbers[:] = 1
        numbers[7, 3] = bad
        assert not all_finite(numbers[:, :64])
        assert not all_finite(numbers)
    assert all_finite(np.full(10_000, np.finfo(dtype).max))
    numbers[7, 3:5] = np.inf, -np.inf
    assert not all_finite(numbers)
