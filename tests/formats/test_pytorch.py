"""PyTorch's modules, in and out; see `test_state_dicts` for what needs no PyTorch."""

import sys

import numpy as np
import pytest
from bounds import WITH_PARAMETERS, assert_right, span_bound

from clnet import (
    ClnetError,
    ClnetWarning,
    Dense,
    FormatError,
    InputError,
    Local,
    Network,
    Scaling,
    Sparse,
)
from clnet.formats.pytorch import SPECIAL
from clnet.nn.activations import ACTIVATIONS
from clnet.nn.aliases import ACTIVATION, ALIASES, PYTORCH

RNG = np.random.default_rng(7)
HAVE = {*ALIASES[ACTIVATION][PYTORCH].values(), *SPECIAL.values(), *WITH_PARAMETERS}


@pytest.fixture
def torch():
    found = pytest.importorskip("torch")
    found.manual_seed(1)
    return found


def outputs(torch, module, x):
    with torch.no_grad():
        return module.eval()(torch.from_numpy(x)).numpy()


def assert_same(torch, network, module, factor=1.0):
    """Assert that a module computes a network, within the bounds of rounding.

    A factor allows for roundings of weights, as many as it says for each product's two.
    """
    x = RNG.normal(size=(9, network.n_in)).astype(network.dtype)
    y = outputs(torch, module, x)
    if factor == 1:
        assert_right(network, x, y)
    program = network.program
    exact, bound = span_bound(
        program.span(0, len(program.ops), len(x)), {program.input.name: x},
        network.parameters,
    )
    name = program.output.name
    assert y.shape == exact[name].shape
    assert (np.abs(y - exact[name]) <= factor * bound[name]).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted(HAVE))
def test_out_and_in_with_every_activation(torch, name, dtype):
    network = Network.mlp([4, 6, 5, 3], [name, name, name], seed=1, dtype=dtype)
    module = network.to_torch()
    assert not module.training
    assert_same(torch, network, module)
    again = Network.from_torch(module)
    assert again.layers == network.layers
    assert again.dtype == dtype
    np.testing.assert_array_equal(again.parameters, network.parameters)
    state = network.state_dict()
    assert list(state)[:3] == ["0.weight", "0.bias", "2.weight"]
    from_state = Network.from_state_dict(state, [name] * 3)
    np.testing.assert_array_equal(from_state.parameters, network.parameters)
    module.load_state_dict(state)


@pytest.mark.parametrize("name", sorted(set(ACTIVATIONS) - HAVE))
def test_activations_that_pytorch_lacks_are_refused(torch, name):
    with pytest.raises(InputError, match=f"layer 0 has the activation {name}, for wh"):
        Network.mlp([2, 3, 1], [name, "tanh"], seed=1).to_torch()


def test_random_numbers_of_pytorch_are_left_alone(torch):
    state = torch.random.get_rng_state()
    Network.mlp([3, 4, 1], seed=1).to_torch()
    assert torch.equal(state, torch.random.get_rng_state())


def test_all_kinds_of_layers(torch):
    for layer in (
        Sparse(5, "tanh", density=0.5), Local(3, "relu"), Local(2, bias="neuron"),
        Dense(5, "silu", bias=False), Dense(5, "sigmoid", steepness=0.25),
        Dense(5, "tanh", steepness=[0.5, 1, 2, -1, 4]), Sparse(5, density=0.3,
                                                              format="ell"),
    ):
        network = Network(6, [layer, Dense(2)], seed=1, dtype="float64")
        # A steepness is multiplied into the weights: a rounding each.
        assert_same(torch, network, network.to_torch(), factor=2)


def test_a_scaling_that_is_left_out_is_told(torch):
    network = Network(2, [Dense(1)], seed=1)
    network.scaling = Scaling.of(RNG.normal(size=(9, 2)), RNG.normal(size=(9, 1)))
    with pytest.warns(ClnetWarning, match="has no scaling: it takes inputs that"):
        network.to_torch()


def test_networks_of_fann_clip_their_sums(torch):
    network = Network(2, [Dense(3, "relu", steepness=0.5), Dense(1)], seed=1,
                      fann_compatible=True, dtype="float64")
    network.set_layer(0, network.weights(0) * 1e4)
    module = network.to_torch()
    assert list(module.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert_same(torch, network, module)
    mixed = Network(2, [Dense(2, "relu", steepness=[0.5, 1])], fann_compatible=True)
    with pytest.raises(InputError, match="layer 0 clips the sums of its neurons as FA"):
        mixed.to_torch()


def test_networks_that_are_no_row_are_refused(torch):
    shortcut = Network(3, [Dense(2), Dense(1, sources=(0, 1))], seed=1)
    with pytest.raises(InputError, match=r"layer 1 has the sources \(0, 1\), but"):
        shortcut.to_torch()
    mixed = Network(3, [Dense(2, ("tanh", "relu"))], seed=1)
    with pytest.raises(InputError, match="layer 0 has the activations relu, tanh"):
        mixed.state_dict()


def test_dropout_goes_both_ways(torch):
    network = Network.mlp([3, 4, 5, 2], "relu", dropout=0.25, seed=1)
    module = network.to_torch()
    assert [type(one).__name__ for one in module[:3]] == ["Linear", "ReLU", "Dropout"]
    again = Network.from_torch(module.train())
    assert again.layers == network.layers
    state = network.state_dict()
    assert [*state][::2] == ["0.weight", "3.weight", "6.weight"]
    assert Network.from_state_dict(state, ["relu"] * 3).sizes == network.sizes


def test_tensors_of_a_training_and_of_half_precision(torch):
    nn = torch.nn
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    for kind in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        state = dict(module.to(kind).named_parameters())
        assert all(tensor.requires_grad for tensor in state.values())
        network = Network.from_state_dict(state, "relu")
        assert network.dtype == ("float64" if kind is torch.float64 else "float32")
        for number, name in enumerate(("0", "2")):
            expected = state[f"{name}.weight"].detach().double().numpy()
            np.testing.assert_array_equal(network.weights(number), expected)
        assert (Network.from_torch(module).parameters == network.parameters).all()


def test_bfloat16_files(torch, tmp_path):
    save_file = pytest.importorskip("safetensors.torch").save_file
    tensors = {"0.weight": torch.randn(3, 4, dtype=torch.bfloat16)}
    save_file(tensors, tmp_path / "a.safetensors")
    network = Network.from_state_dict(tmp_path / "a.safetensors", ["relu"])
    np.testing.assert_array_equal(network.weights(0), tensors["0.weight"].float())
    save_file({"a.weight": torch.zeros(2, 2).to(torch.float8_e5m2)},
              tmp_path / "a.safetensors")
    with pytest.raises(FormatError, match=r"'a\.weight' is of F8_E5M2, expected F64"):
        Network.from_state_dict(tmp_path / "a.safetensors", ["relu"])


def test_training_goes_on_in_pytorch(torch):
    network = Network.mlp([2, 3, 1], "tanh", seed=1)
    module = network.to_torch().train()
    before = module[0].weight.clone()
    module(torch.ones(4, 2)).sum().backward()
    torch.optim.SGD(module.parameters(), 0.1).step()
    assert not torch.equal(before, module[0].weight)
    is_same = network.to_torch().state_dict()["0.weight"]
    assert torch.equal(before, is_same)


# Modules ----------------------------------------------------------------------------


def normalised(torch, n, **options):
    """A BatchNorm1d with statistics of its own."""
    module = torch.nn.BatchNorm1d(n, **options)
    with torch.no_grad():
        for tensor in module.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(n) + 0.5)
    return module.eval()


def modules(torch):
    nn, f = torch.nn, torch.nn.functional

    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2, self.out = nn.Linear(12, 8), nn.Linear(8, 8), \
                nn.Linear(8, 3)
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            x = x.view(x.size(0), -1)
            x = self.drop(f.relu(self.fc1(x)))
            x = torch.tanh(self.fc2(x))
            return f.softmax(self.out(f.dropout(x, 0.1, self.training)), dim=1)

    class Shortcuts(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
            self.last = nn.Linear(18, 2, bias=False)

        def forward(self, x):
            h = f.leaky_relu(self.layers[0](x), 0.01, inplace=True)
            h += self.layers[0](h)
            y = f.gelu(h + self.layers[1](h))
            z = self.layers[2](y)
            z = z.reshape(z.shape[0], -1)
            return self.last(torch.cat((y, torch.sigmoid(z), x), dim=1))

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 5), nn.Linear(15, 2), nn.ELU()
            self.norm = normalised(torch, 5)

        def forward(self, x):
            a = self.a(x)
            both = torch.cat([a, self.c(a), self.norm(a)], -1)
            return self.b(both) + self.b(both).sigmoid()

    class Clamps(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            x = torch.clamp(self.a(x), -0.25, 0.5).clip(max=0.3)
            x = f.relu6(f.hardtanh(self.b(x), max_val=0.5)).clamp(0.1)
            return f.selu(f.elu(f.leaky_relu(x - 0.2, 0.3), alpha=0.4))

    class Arithmetic(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(3, 6, bias=False)
            self.weight = nn.Parameter(torch.randn(6, 2))
            self.square = nn.Parameter(torch.randn(4, 6))
            self.register_buffer("mean", torch.rand(4))
            self.register_buffer("deviation", 1 + torch.rand(1, 4))

        def forward(self, x):
            x = (x / 2 - self.mean) / self.deviation
            a = 1 - torch.sigmoid(2 * self.a(x) + 0.5)
            b = -self.b(a[:, 1:4] - a[:, [5, 0, 1]]) * 3
            b -= a
            b = f.linear(b, self.square, bias=self.mean)
            return torch.tanh(torch.matmul(self.a(b), self.weight) + 0.25) / 2

    class Functions(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 6), nn.Linear(6, 4)

        def forward(self, x):
            x = self.a(x.relu())
            first, second = torch.split(x * x.sigmoid(), 3, dim=1)
            x = torch.cat((second, first), 1).unsqueeze(1).squeeze(1)
            x = 0.5 * x * (1 + torch.erf(x / 2 ** 0.5))
            y, first = self.b(x), x[:, 2:]
            return torch.where(y > 0, y, 0.25 * y) + torch.maximum(first, -first)

    return {
        "a Linear": nn.Linear(3, 2),
        "nested": nn.Sequential(
            nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(inplace=True)),
            nn.Identity(), nn.Sequential(nn.Linear(5, 2), nn.Softmax(dim=-1)),
        ),
        "two Linear in a row": nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)),
        "normalised before": nn.Sequential(
            nn.Linear(4, 5, bias=False), normalised(torch, 5), nn.ReLU(),
            nn.Linear(5, 2)),
        "normalised behind": nn.Sequential(
            nn.Linear(4, 5), nn.Tanh(), normalised(torch, 5), nn.Dropout(0.1),
            nn.Linear(5, 2)),
        "normalised inputs and outputs": nn.Sequential(
            normalised(torch, 4), nn.Linear(4, 5), nn.SiLU(),
            normalised(torch, 5, affine=False), normalised(torch, 5)),
        "activations in a row": nn.Sequential(
            nn.Linear(3, 4), nn.Softplus(), nn.Tanh(), nn.Hardtanh(0, 1)),
        "parameters": nn.Sequential(
            nn.Linear(3, 4), nn.LeakyReLU(0.2), nn.ELU(0.5), nn.ReLU6(), nn.SELU(),
            nn.Hardtanh(-0.5, 0.25)),
        "clamps": Clamps(),
        "dropouts": nn.Sequential(
            nn.Linear(3, 4), nn.Dropout(0.1), nn.Dropout(0.2), nn.Tanh(),
            nn.Linear(4, 2), nn.Dropout(0.1), nn.Dropout(0.0)),
        "functional": Functional(), "shortcuts": Shortcuts(), "shared": Shared(),
        "arithmetic": Arithmetic(),
        "functions": Functions(),
        "weight norm": torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)),
    }


NAMES = ["a Linear", "nested", "two Linear in a row", "normalised before",
         "normalised behind", "normalised inputs and outputs", "activations in a row",
         "parameters", "clamps", "dropouts", "functional", "shortcuts", "shared",
         "arithmetic", "functions", "weight norm"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_modules_are_taken(torch, name, dtype):
    module = modules(torch)[name].eval().to(getattr(torch, dtype))
    network = Network.from_torch(module)
    assert network.dtype == dtype
    # BatchNorm1d becomes a factor and a shift, each of some roundings.
    assert_same(torch, network, module, factor=4)
    x = RNG.normal(size=(3, network.n_in)).astype(dtype)
    assert_right(network, x, network.predict(x, "cpu"))


def test_a_functional_module_s_layers(torch):
    network = Network.from_torch(modules(torch)["functional"])
    assert network.layers == (
        Dense(8, "relu", dropout=0.5), Dense(8, "tanh", dropout=0.1),
        Dense(3, "softmax"),
    )


def test_a_dropout_belongs_to_the_layer_of_which_it_is_the_only_reader(torch):
    class Dropped(torch.nn.Module):
        def __init__(self, twice):
            super().__init__()
            self.twice, self.drop = twice, torch.nn.Dropout(0.5)
            self.a, self.b = torch.nn.Linear(3, 4), torch.nn.Linear(4, 4)

        def forward(self, x):
            h = self.a(x)
            h = h * torch.sigmoid(h)
            return self.b(self.drop(h)) + (h if self.twice else 0.0)

    first, last = Network.from_torch(Dropped(twice=False)).layers
    assert (first, last) == (Dense(4, "silu", dropout=0.5), Dense(4))
    layers = Network.from_torch(Dropped(twice=True)).layers
    assert [(layer.dropout, layer.sources) for layer in layers] == [
        (0, None), (0.5, None), (0, None), (0, (1, 3))
    ]


def refused(torch):
    nn = torch.nn

    class Branches(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    def Forward(forward):  # noqa: N802  as a class
        kind = type("Forward", (nn.Module,), {"forward": forward})
        module = kind()
        module.fc = nn.Linear(3, 3)
        return module

    def plus_in_place(self, x):
        h = y = self.fc(x)
        h += x
        return y + x

    hooked = nn.Sequential(nn.Linear(3, 3))
    hooked[0].register_forward_hook(lambda *_: None)

    def inplace(h):
        return nn.functional.relu(h, inplace=True)

    return [
        (3, "module must be a torch.nn.Module, not 3"),
        (nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), "module '1' is 'LayerNorm"
         "|module '1' is LayerNorm"),
        (nn.Sequential(nn.Conv1d(1, 1, 3)), r"module '0' is Conv1d\(1, 1, kernel_siz"),
        (nn.Sequential(nn.Linear(3, 3), nn.Softplus(2)), "'1' is softplus with beta=2"
         ", which clnet does not have; clnet.load takes more, from a f"),
        (nn.Sequential(nn.Linear(3, 3), nn.CELU(0.5)), "module '1' is CELU"),
        (Forward(lambda self, x: self.fc(x).clamp(self.fc.bias)),
         "clamp of forward has tensors as bounds, expected numbers"),
        (nn.Sequential(nn.Linear(3, 3), nn.Softmax(0)), "module '1' mixes samples"),
        (nn.Sequential(nn.Linear(3, 3), nn.Linear(4, 3)),
         r"module '1' multiplies samples of shape \[3\] by a matrix of shape \[4, 3\]"),
        (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), r"call module\.eval"),
        (nn.Sequential(nn.Linear(3, 3),
                       nn.BatchNorm1d(3, track_running_stats=False).eval()),
         "takes statistics of each batch"),
        (nn.Sequential(nn.Linear(3, 3), nn.Flatten(0)), "module '1' mixes sa"),
        (nn.Sequential(), "no Linear"),
        (hooked, "module '0' has a forward hook"),
        (Branches(), "forward of Branches is not one graph"),
        (Forward(lambda self, x: self.fc(x) * x), "mul of forward is neither aff"),
        (Forward(lambda self, x: 1 / self.fc(x)), "truediv of forward is a functio"),
        (Forward(lambda self, x: self.fc(x) * self.fc.weight), "mixes samples, or t"),
        (Forward(lambda self, x: self.fc.weight * 2), "the output reads mul"),
        (Forward(lambda self, x: self.fc(x)[:2]), "getitem of forward mixes samples"),
        (Forward(lambda self, x: self.fc(x)[:, 1]), "output has 1 dimensions, expec"),
        (Forward(lambda self, x: self.fc(x)[:, [0, 3]]), "index 3 is out of bounds"),
        (Forward(lambda self, x: self.fc(x)[:, 3:]), "do not depend on the input"),
        (Forward(lambda self, x: self.fc(x[:, :3])), "Forward takes 3 inputs and more"),
        (Forward(lambda self, x: self.fc(x).tan()), "from a file of torch.onnx.export"),
        (Forward(lambda self, x, y: self.fc(x) + y), "takes a second input, y"),
        (Forward(lambda self, x: (self.fc(x), x)), "the output reads"),
        (Forward(lambda self, x: torch.cat((self.fc(x), x))), "cat of forward mixes"),
        (Forward(lambda self, x: self.fc(x).view(-1, 1)), "view of forward mixes"),
        (Forward(lambda self, x: self.fc(x).view(-1)), "view of forward mixes"),
        (Forward(lambda self, x: (lambda h: inplace(h) + h)(self.fc(x))),
         "a sum reads values that a call in place changed|add of forward reads"),
        (Forward(lambda self, x: (lambda h: (inplace(h.flatten(1)), h))(self.fc(x))[1]),
         "the output reads values that a call in place changed"),
        (Forward(lambda self, x: (lambda h: (h.relu_(), self.fc(h)))(self.fc(x))[1]),
         "module 'fc' reads values that a call in place changed"),
        (Forward(plus_in_place), "the graph of Forward has other outputs than the mod"),
        (Forward(lambda self, x: nn.functional.dropout(self.fc(x))), "other outputs"),
        (Forward(lambda self, x: torch.matmul(x, self.fc(x))), "multiplies two val"),
    ]


def test_other_modules_are_refused_in_one_sentence(torch):
    for module, why in refused(torch):
        with pytest.raises(InputError, match=why) as caught:
            Network.from_torch(module)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400


def test_without_pytorch_modules_are_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for use in (Network.mlp([2, 1], seed=1).to_torch, Network.mlp([2, 1]).state_dict,
                lambda: Network.from_torch(None)):
        with pytest.raises(ClnetError, match=r"needs torch, .*pip install torch"):
            use()


def test_a_factor_alone_makes_no_bias():
    torch = pytest.importorskip("torch")

    class Doubled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(4, 3, bias=False)

        def forward(self, x):
            return self.fc(x * 2)

    assert [layer.bias for layer in Network.from_torch(Doubled()).layers] == [False]
