"""Arrays of other libraries in predict and fit: read where they lie."""

import numpy as np
import pytest

from clnet import InputError, Network
from clnet.checks import as_array, as_numbers
from clnet.training.data_set import data_set

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
NETWORK = Network.mlp([3, 2], seed=1)
CPU = "cpu"


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


class ByInterface:
    """An array that has ``__array_interface__`` alone."""

    def __init__(self, array):
        self.__array_interface__ = array.__array_interface__
        self.array = array


def by_torch(x):
    return pytest.importorskip("torch").from_numpy(x)


def by_torch_with_gradient(x):
    return by_torch(x).requires_grad_()


KINDS = {
    "dlpack": ByDLPack, "interface": ByInterface, "memoryview": memoryview,
    "torch": by_torch, "torch, gradient": by_torch_with_gradient,
}


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_others_are_read_without_a_copy(kind, monkeypatch):
    x = X.copy()
    other = KINDS[kind](x)
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


@pytest.mark.parametrize("kind", KINDS)
def test_predict_fit_and_evaluate_take_them(kind):
    x = X.copy()
    t = np.ascontiguousarray(X[:, :2])
    make = KINDS[kind]
    np.testing.assert_array_equal(
        NETWORK.predict(make(x), CPU), NETWORK.predict(x, CPU)
    )
    plan = NETWORK.compile(CPU, 4, tune=False)
    np.testing.assert_array_equal(plan(make(x)), plan(x))
    networks = [Network.mlp([3, 2], seed=1) for _ in range(2)]
    for network, (inputs, targets) in zip(
        networks, [(x, t), (make(x), make(t))], strict=True
    ):
        network.fit(inputs, targets, epochs=2, seed=1, device=CPU)
    one, other = (network.parameters for network in networks)
    np.testing.assert_array_equal(one, other)
    assert NETWORK.evaluate(make(x), make(t), CPU) == NETWORK.evaluate(x, t, CPU)


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
