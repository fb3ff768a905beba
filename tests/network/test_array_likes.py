"""Array-likes of every kind at every entry: the same result, or one sentence."""

import copy
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from clnet import InputError, Network, Population
from clnet.checks import as_array, as_numbers
from clnet.training.data_set import data_set

CPU = "cpu"
WHOLE = np.array([[1, 2, 3], [0, -1, 2], [4, 0, 1], [2, 2, 0]])
X = WHOLE.astype(np.float32)
T = X[:, :2] / 8
CODES = np.array([0, 1, 1, 0])


class ByArray:
    """An array that has ``__array__`` alone, as JAX's."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.array, dtype)


class ByInterface:
    """An array that has ``__array_interface__`` alone."""

    def __init__(self, array):
        self.array, self.__array_interface__ = array, array.__array_interface__


class ByDLPack:
    """An array that has the DLPack protocol alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OnDevice(ByDLPack):
    def __dlpack__(self, **options):
        raise BufferError("the array is on a device")

    def __dlpack_device__(self):
        return 2, 0


def with_ml_dtypes(name):
    def made(x, folder):
        return x.astype(getattr(pytest.importorskip("ml_dtypes"), name))
    return made


def in_a_file(x, folder):
    np.save(folder / f"{id(x)}.npy", x)
    return np.load(folder / f"{id(x)}.npy", mmap_mode="r")


def by_h5py(x, folder):
    h5py = pytest.importorskip("h5py")
    return h5py.File.in_memory().create_dataset("x", data=x) if hasattr(
        h5py.File, "in_memory"
    ) else h5py.File(folder / f"{id(x)}.h5", "w").create_dataset("x", data=x)


def by_scipy(x, folder):
    return pytest.importorskip("scipy.sparse").csr_array(x)


def by_torch(x, folder):
    return pytest.importorskip("torch").from_numpy(x)


def every_second(x, folder):
    wide = np.zeros((2 * len(x), 2 * x.shape[1]), x.dtype)
    wide[::2, ::2] = x
    return wide[::2, ::2]


KINDS = {
    "list": lambda x, _: x.tolist(),
    "tuple of tuples": lambda x, _: tuple(map(tuple, x.tolist())),
    "list of tuples": lambda x, _: list(map(tuple, x.tolist())),
    "list of arrays": lambda x, _: list(x),
    "objects": lambda x, _: x.astype(object),
    "decimals": lambda x, _: [[Decimal(v) for v in row] for row in x.tolist()],
    "fractions": lambda x, _: [[Fraction(v) for v in row] for row in x.tolist()],
    "float64": lambda x, _: x.astype(np.float64),
    "float16": lambda x, _: x.astype(np.float16),
    "big-endian": lambda x, _: x.astype(">f4"),
    "bfloat16": with_ml_dtypes("bfloat16"),
    "float8": with_ml_dtypes("float8_e5m2"),
    "without a mask": lambda x, _: np.ma.array(x),
    "transposed": lambda x, _: np.asfortranarray(x),
    "with strides": every_second,
    "memory map": in_a_file,
    "h5py": by_h5py,
    "torch": by_torch,
    "torch, gradient": lambda x, _: by_torch(x, _).requires_grad_(),
    "memoryview": lambda x, _: memoryview(x),
    "__dlpack__": lambda x, _: ByDLPack(x),
    "__array__": lambda x, _: ByArray(x),
    "__array_interface__": lambda x, _: ByInterface(x),
    "scipy.sparse": by_scipy,
}
INPUTS_ALONE = {"scipy.sparse"}  # no targets, and no inputs of a plan


def fitted(x, t=T, n_out=2, **options):
    network = Network.mlp([3, n_out], seed=1)
    network.fit(x, t, epochs=2, seed=1, device=CPU, **options)
    return network.parameters


NETWORK = Network.mlp([3, 2], "softmax", seed=1)
ENTRIES = {
    "predict": lambda x: NETWORK.predict(x, CPU),
    "classify": lambda x: NETWORK.classify(x, CPU),
    "evaluate": lambda x: NETWORK.evaluate(x, T, CPU).mse,
    "fit": fitted,
    "validation": lambda x: fitted(X, validation=(x, T)),
}
OTHER_ENTRIES = {
    "plan": lambda x: NETWORK.compile(CPU, 4, tune=False)(x),
    "batches": lambda x: fitted([(x, T)], None),
    "targets": lambda x: fitted(X, x, 3),
    "compare": lambda x: Network.mlp([3, 3]).compare(x, X / 8).mse,
    "population": lambda x: Population.of(
        [Network.mlp([3, 2], seed=1)]
    ).predict(x, CPU),
}


@pytest.mark.parametrize("entry", {**ENTRIES, **OTHER_ENTRIES})
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_result(kind, entry, tmp_path):
    if entry in OTHER_ENTRIES and kind in INPUTS_ALONE:
        pytest.skip("its inputs alone may be sparse")
    call = {**ENTRIES, **OTHER_ENTRIES}[entry]
    np.testing.assert_array_equal(call(KINDS[kind](X, tmp_path)), call(X))


@pytest.mark.parametrize("kind", ["int8", "uint8", "int64", "bool"])
def test_whole_numbers_and_booleans(kind):
    x = np.abs(WHOLE).astype(kind)
    for call in ENTRIES.values():
        np.testing.assert_array_equal(call(x), call(x.astype(np.float32)))


def test_a_matrix_is_an_array():
    with pytest.warns(PendingDeprecationWarning):
        x = np.matrix(X)
    np.testing.assert_array_equal(NETWORK.predict(x, CPU), NETWORK.predict(X, CPU))


def test_weights_are_of_any_kind(tmp_path):
    w = np.ones((2, 3), np.float32)
    for kind, make in KINDS.items():
        if kind not in INPUTS_ALONE:
            network = Network.mlp([3, 2], seed=1)
            network.set_layer(0, make(w, tmp_path), [1, 2])
            np.testing.assert_array_equal(network.weights(0), w)


def test_objects_among_which_booleans_are():
    x = X.astype(object)
    x[:, 1] = [True, False, True, True]
    expected = x.astype(np.float32)
    np.testing.assert_array_equal(
        NETWORK.predict(x, CPU), NETWORK.predict(expected, CPU)
    )


def test_targets_of_objects_are_numbers():
    network = Network.mlp([3, 1], seed=1)
    other = Network.mlp([3, 1], seed=1)
    t = [0.5, 1, 2, 3.25]
    for one, targets in ((network, t), (other, np.array(t, object))):
        one.fit(X, targets, epochs=1, seed=1, device=CPU)
    np.testing.assert_array_equal(network.parameters, other.parameters)


WRONG = {
    "none": ([[1, None, 2]], "x: found None at \\[0, 1\\], expected numbers"),
    "text": (np.array([[1, "2", 3]], object), "x: found '2' at \\[0, 1\\]"),
    "ragged": ([[1, 2, 3], [1]], "x must be a rectangular array"),
    "complex": ([[1j, 2, 3]], "x: found dtype complex128"),
    "huge": ([[10**400, 2, 3]], "x: found dtype object, expected numbers"),
    "without axes": (np.array(1.0), "x has shape \\[\\]"),
    "empty": (np.zeros((0, 3)), "x has no sample"),
    "of no column": (np.zeros((3, 0)), "x has shape \\[3, 0\\]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_holds_no_numbers_is_told(case):
    x, sentence = WRONG[case]
    with pytest.raises(InputError, match=f"^{sentence}"):
        NETWORK.predict(x, CPU)
    with pytest.raises(InputError):
        fitted(x, np.zeros((len(x) if isinstance(x, list) else 1, 2)))


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_what_a_mask_hides_is_missing(dtype):
    x = np.ma.array(X.astype(dtype), mask=np.zeros(X.shape, bool))
    x[2, 1] = np.ma.masked
    y = NETWORK.predict(x, CPU)
    assert np.isnan(y).any(axis=1).tolist() == [False, False, True, False]
    with pytest.raises(InputError, match=r"^x holds nan at \[2, 1\]"):
        fitted(x)


def test_labels_that_a_mask_hides():
    for labels in (CODES, CODES.astype(bool), np.array(list("abba"))):
        t = np.ma.array(labels, mask=[0, 0, 1, 0])
        with pytest.raises(InputError, match=r"^t holds (nan|None) at \[2\], expected"):
            Network.mlp([3, 2], "softmax", seed=1).fit(X, t, epochs=1, device=CPU)


def test_a_missing_label_is_told():
    pandas = pytest.importorskip("pandas")
    t = pandas.Series([0, 1, None, 0], dtype="Int64")
    with pytest.raises(InputError, match=r"^t holds nan at \[2\], expected a label"):
        Network.mlp([3, 2], "softmax", seed=1).fit(X, t, epochs=1, device=CPU)


def test_a_closed_file_is_told(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        x = file.create_dataset("x", data=X)
    plan = NETWORK.compile(CPU, 4, tune=False)
    for call in (*ENTRIES.values(), plan):
        with pytest.raises(InputError, match=r"^(validation )?x is a data set of "):
            call(x)
    with pytest.raises(InputError, match=r"^t is a data set of a closed"):
        fitted(X, x)


def test_one_rule_for_nan():
    x = X.copy()
    x[1, 2] = np.nan
    y = NETWORK.predict(x, CPU)
    assert np.isnan(y).any(axis=1).tolist() == [False, True, False, False]
    with pytest.raises(InputError, match=r"^the outputs of sample 1 hold NaN, which"):
        NETWORK.classify(x, CPU)
    with pytest.raises(InputError, match=r"^the outputs hold NaN, which is"):
        NETWORK.classify(x[1], CPU)
    with pytest.raises(InputError, match=r"^x holds nan at \[1, 2\]"):
        fitted(x)
    found = NETWORK.evaluate(x, CODES, CPU)
    assert np.isnan(found.mse) and np.isnan(found.accuracy)


def test_numbers_beyond_the_type_are_told_as_given():
    x = X.astype(np.float64)
    x[0, 0] = 1e39
    with pytest.raises(InputError, match=r"^x holds 1e\+39 at \[0, 0\], expected "
                                         "numbers within float32's range"):
        fitted(x)


def test_one_class_alone_is_told():
    network = Network.mlp([3, 1], "sigmoid", seed=1)
    with pytest.raises(InputError, match=r"^t holds the label 'a' alone, expected 2 "):
        network.fit(X, ["a"] * 4, epochs=1, device=CPU)


def test_a_divergence_by_large_targets_advises_scaling():
    network = Network.mlp([3, 2], seed=1)
    with pytest.warns(UserWarning, match=r"try scaled targets: these reach 5e\+29"):
        network.fit(X, T * 1e30, epochs=1, device=CPU)


def test_plans_are_neither_pickled_nor_copied():
    plan = NETWORK.compile(CPU, 4, tune=False)
    for call in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(InputError, match=r"^a plan belongs to its process's dev"):
            call(plan)
    network = pickle.loads(pickle.dumps(NETWORK))
    np.testing.assert_array_equal(network.predict(X, CPU), NETWORK.predict(X, CPU))


# Read where they lie ----------------------------------------------------------------


READ_WHERE_THEY_LIE = [
    "__dlpack__", "__array_interface__", "memoryview", "torch", "torch, gradient",
]


@pytest.mark.parametrize("kind", READ_WHERE_THEY_LIE)
def test_arrays_of_others_are_read_without_a_copy(kind, monkeypatch, tmp_path):
    x = X.copy()
    other = KINDS[kind](x, tmp_path)
    assert np.shares_memory(as_numbers("x", other, "float32"), x)
    seen = []
    network = Network.mlp([3, 2], seed=1)
    monkeypatch.setattr(
        network._plans, "plan",
        lambda *_: lambda chunk: seen.append(chunk) or np.zeros((4, 2), np.float32),
    )
    network.predict(other)
    assert np.shares_memory(seen[0], x)
    assert np.shares_memory(data_set(NETWORK, other, other[:, :2]
                                     if "torch" in kind else x[:, :2]).x, x)


def test_jax_arrays_are_read_without_a_copy():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    x = jax.device_put(X, jax.devices("cpu")[0])  # by default a GPU has it
    found = as_numbers("x", x, "float32")
    assert found.ctypes.data == x.unsafe_buffer_pointer()
    half = as_numbers("x", x.astype(jnp.bfloat16))
    assert half.dtype == np.float32
    np.testing.assert_array_equal(half, np.asarray(x.astype(jnp.bfloat16), np.float32))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_tensors_of_other_types_and_layouts():
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(X)
    for other in (tensor.bfloat16(), tensor.half(), tensor.double(), tensor.to_sparse(),
                  tensor.to_sparse_csr(), torch.nn.Parameter(tensor), tensor.T.mT):
        found = as_numbers("x", other, "float32")
        np.testing.assert_array_equal(found, other.detach().to_dense().float().numpy())
    assert as_array("t", torch.tensor([3, 1], dtype=torch.int16)).dtype == np.int16


def test_labels_are_tensors_too():
    torch = pytest.importorskip("torch")
    network = Network.mlp([3, 2], "softmax", seed=1)
    network.fit(torch.from_numpy(X), torch.tensor([0, 1, 1, 0]), epochs=1, device=CPU)


def test_arrays_of_a_device_are_refused():
    torch = pytest.importorskip("torch")
    for x in (OnDevice(X), torch.empty(4, 3, device="meta")):
        for use in (lambda x: NETWORK.predict(x, CPU),
                    lambda x: NETWORK.fit(x, X[:, :2], epochs=1, device=CPU),
                    lambda x: NETWORK.fit(X, x, epochs=1, device=CPU)):
            with pytest.raises(InputError, match=r"^\w is a \w+ that the host cannot "
                                                 "read, expected an array in host"):
                use(x)
