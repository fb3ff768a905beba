"""ONNX files, written and read."""

import sys
import warnings

import numpy as np
import pytest
from bounds import WITH_PARAMETERS

import clnet
from clnet import Dense, FormatError, Local, Network, Scaling, Sparse
from clnet.nn.activations import ACTIVATIONS, SOFTMAXES, activation

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

NEAR = 1e-6  # of the larger of 1 and the output: what two libraries' float32 differ by
RNG = np.random.default_rng(0)


def graph(nodes, constants=(), n_in=4, shape=None, versions=17, outputs=("y",),
          kind=TensorProto.FLOAT):
    """Return a model of nodes, each (type, inputs, output, attributes)."""
    made = [helper.make_node(one[0], one[1].split(), one[2].split(),
                             **(one[3] if len(one) > 3 else {})) for one in nodes]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape or ["N", n_in])
    return helper.make_model(
        helper.make_graph(
            made, "g", [x],
            [helper.make_tensor_value_info(name, kind, None) for name in outputs],
            [numpy_helper.from_array(np.asarray(value), name)
             for name, value in dict(constants).items()],
        ),
        opset_imports=[helper.make_opsetid("", versions),
                       helper.make_opsetid("ai.onnx.ml", 3)], ir_version=8,
    )


def loaded(tmp_path, model):
    path = tmp_path / "x.onnx"
    path.write_bytes(model.SerializeToString())
    return clnet.load(path)


def ran(path, x):
    """Return the outputs by ONNX Runtime."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(
        path, options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def near(y, expected, factor=1.0):
    assert y.shape == expected.shape
    error = np.abs(y - expected) / np.maximum(1, np.abs(expected))
    assert error.max() <= factor * NEAR, error.max()


def right(tmp_path, nodes, constants, x=None, **options):
    """Return the network of a graph, which predicts as ONNX Runtime."""
    network = loaded(tmp_path, graph(nodes, constants, **options))
    x = X if x is None else x
    near(network.predict(x), ran(str(tmp_path / "x.onnx"), x))
    return network


# --- written -------------------------------------------------------------------------

LAYERS = {
    "dense": lambda name: [Dense(5, name, 0.7), Dense(3, name)],
    "sparse": lambda name: [Sparse(7, name, density=0.4), Dense(3)],
    "local": lambda name: [Local(3, name), Local(2, name, bias="neuron")],
    "sources": lambda name: [Dense(4, name), Dense(3, name, bias=False),
                             Dense(2, sources=(0, 1, 2))],
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("name", [*ACTIVATIONS, *SOFTMAXES])
def test_a_written_network_gives_the_same_numbers_in_onnx_runtime(tmp_path, name, kind):
    network = Network(6, LAYERS[kind](name), seed=1)
    path = tmp_path / "x.onnx"
    network.save(path)
    onnx.checker.check_model(path, full_check=True)
    x = RNG.normal(size=(9, 6)).astype(np.float32)
    y = network.predict(x)
    near(clnet.load(path).predict(x), y, 2)
    near(ran(path, x), y)


SPECIAL = [0.0, -0.0, 1e-7, -1e-7, 1e-30, -1e-30, 0.5, -0.5, 3, -3, 1e3, -1e3, 1e9,
           -1e9, 1e30, -1e30, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [*ACTIVATIONS, *WITH_PARAMETERS])
def test_special_values_in_onnx_runtime_and_read_again(tmp_path, name, dtype):
    """In float32 ONNX Runtime's Elu, Selu and Tanh are off by a unit of 1 near 0."""
    network = Network(1, [Dense(1, name)], dtype=dtype)
    network.set_layer(0, [[1.0]], [0.0])
    path = tmp_path / "x.onnx"
    network.save(path)
    v = np.array(SPECIAL, dtype)[:, None]
    with np.errstate(all="ignore"):
        exact = activation(name).value(v.astype(np.float64))
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(ran(path, v), exact, 20 * eps, 4 * eps)
    if name == "gaussian_stepwise":  # FANN's: 0, which depends on no input
        return
    near(clnet.load(path).predict(v[6:10]), network.predict(v[6:10]))
    if "(" not in name or name.startswith("clip"):
        assert [layer.activation for layer in clnet.load(path).layers] == [name]


@pytest.mark.parametrize(("node", "right"), [
    (("Clip", "x low high"), lambda x: np.clip(x, -10, 10)),
    (("Clip", "x low"), lambda x: np.maximum(x, -10)),
    (("Max", "x low"), lambda x: np.maximum(x, -10)),
    (("Min", "high x"), lambda x: np.minimum(x, 10)),
    (("Max", "x slopes"), lambda x: np.maximum(x, np.float32([2, -1, 0.5]))),
    (("Min", "slopes x low"), lambda x: np.minimum(x, np.float32(-10))),
    (("Selu", "x"), activation("selu").value),
    (("LeakyRelu", "x", {"alpha": 1.5}), lambda x: np.where(x < 0, 1.5 * x, x)),
    (("Elu", "x", {"alpha": 3.0}), activation("elu(3)").value),
    (("PRelu", "x slopes"), lambda x: np.where(x < 0, np.float32([2, -1, 0.5]) * x, x)),
])
def test_nodes_are_exact_at_every_magnitude(tmp_path, node, right):
    numbers = {"low": np.float32(-10), "high": np.float32(10),
               "slopes": np.float32([2, -1, 0.5])}
    kind, inputs, *given = node
    network = loaded(tmp_path, graph([(kind, inputs, "y", *given)], numbers, n_in=3))
    for x in (1e-7, -1e-7, 1e8, -1e8, 1e9, -1e9, np.inf, -np.inf):
        x = np.full((1, 3), x, np.float32)
        np.testing.assert_allclose(network.predict(x), right(x), 1e-6, err_msg=kind)


def test_a_choice_keeps_the_small_inputs_that_it_hands_on(tmp_path):
    """Of sums of activations that are equal, one of x is taken, not one of x - 0.3."""
    network = loaded(tmp_path, graph([
        ("HardSigmoid", "x", "moved", {"alpha": 1.0, "beta": -0.3}),
        ("Greater", "moved edge", "large"), ("Where", "large moved x", "y"),
    ], {"edge": np.float32(0.1)}, n_in=1))
    x = np.float32([[-3.4e-5], [1e-9], [0.3]])
    np.testing.assert_allclose(network.predict(x), x, 1e-6)


def test_float64_and_mixed_neurons_and_fanns_limits(tmp_path):
    layers = [Dense(4, ("tanh", "relu", "tanh", "identity"), (1, 2, 0.5, 400)),
              Dense(2)]
    path = tmp_path / "x.onnx"
    for compatible in (False, True):
        network = Network(
            6, layers, seed=1, dtype="float64", fann_compatible=compatible)
        network.save(path)
        onnx.checker.check_model(path, full_check=True)
        x = 10 * RNG.normal(size=(9, 6))
        again = clnet.load(path)
        assert again.dtype == "float64"
        near(again.predict(x), network.predict(x), 1e-6)
        near(ran(path, x), network.predict(x), 1e-6)


def test_a_function_of_the_files_own_is_known_by_its_body(tmp_path):
    """Of another body it is what its nodes compute."""
    network = Network(1, [Dense(1, "gelu")], dtype="float64", seed=1)
    path = tmp_path / "x.onnx"
    network.save(path)
    model = onnx.load(path)
    (function,) = model.functions
    del function.node[:]
    function.node.append(onnx.helper.make_node("Neg", ["v"], ["y"]))
    onnx.save(model, path)
    x = np.array([[-1.5], [2.0]])
    negated = clnet.load(path)
    assert [layer.activation for layer in negated.layers] == ["identity"]
    near(negated.predict(x), ran(path, x))


def test_a_scaling_is_part_of_the_graph(tmp_path):
    x, t = 5 * RNG.normal(size=(50, 6)) + 100, 3 * RNG.normal(size=(50, 2))
    network = Network(6, [Dense(4, "tanh"), Dense(2)], seed=1)
    network.scaling = Scaling.of(x, t)
    path = tmp_path / "x.onnx"
    network.save(path)
    onnx.checker.check_model(path, full_check=True)
    x = x.astype(np.float32)
    y = network.predict(x, scale=True)
    near(clnet.load(path).predict(x), y, 50)  # x is 100 with a deviation of 5
    near(ran(path, x), y)


def test_a_sparse_layer_takes_its_entries_alone(tmp_path):
    network = Network(500, [Sparse(500, density=0.001)], seed=1)
    network.save(tmp_path / "x.onnx")
    assert (tmp_path / "x.onnx").stat().st_size < 20_000


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    for name in list(sys.modules):
        if name.startswith("clnet.formats.onnx."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(FormatError, match=r"x\.onnx needs onnx, which.*clnet\[onnx\]"):
        Network(1, [Dense(1)]).save(tmp_path / "x.onnx")


# --- read ----------------------------------------------------------------------------

W = RNG.normal(size=(4, 3)).astype(np.float32)
B = RNG.normal(size=3).astype(np.float32)
X = RNG.normal(size=(5, 4)).astype(np.float32)
GELU = [("Div", "v root", "u"), ("Erf", "u", "e"), ("Add", "e one", "f"),
        ("Mul", "v f", "g"), ("Mul", "g half", "y")]
NUMBERS = {"root": np.float32(np.sqrt(2)), "one": np.float32(1),
           "half": np.float32(0.5), "three": np.float32(3), "six": np.float32(6)}


@pytest.mark.parametrize("nodes, names", [
    ([("Gemm", "x W b", "v"), *GELU], ["gelu"]),
    ([("MatMul", "x W", "u"), ("Add", "u b", "v"), ("Sigmoid", "v", "s"),
      ("Mul", "v s", "y")], ["silu"]),
    ([("MatMul", "x W", "v"), ("Softplus", "v", "s"), ("Tanh", "s", "t"),
      ("Mul", "v t", "y")], ["mish"]),
    ([("MatMul", "x W", "v"), ("Add", "v three", "s"), ("Clip", "s zero six", "c"),
      ("Div", "c six", "d"), ("Mul", "v d", "y")], ["hardswish"]),
    ([("MatMul", "x W", "v"), ("LeakyRelu", "v", "y", {"alpha": 0.2})],
     [f"leaky_relu({float(np.float32(0.2))})"]),
    ([("MatMul", "x W", "u"), ("Dropout", "u", "v"), ("Add", "v b", "w"),
      ("Identity", "w", "y")], ["identity"]),
    ([("MatMul", "x W", "v"), ("LogSoftmax", "v", "y")],
     ["log_softmax"]),
])
def test_nodes_become_activations(tmp_path, nodes, names):
    network = right(
        tmp_path, nodes, {"W": W, "b": B, "zero": np.float32(0), **NUMBERS}
    )
    assert sorted(layer.activation for layer in network.layers) == sorted(names)


@pytest.mark.parametrize("large", [5000, -1e5])
@pytest.mark.parametrize("name, nodes", [
    ("gelu", [("Gemm", "x W b", "v"), *GELU]),
    ("silu", [("MatMul", "x W", "u"), ("Add", "u b", "v"), ("Sigmoid", "v", "s"),
              ("Mul", "v s", "y")]),
    ("silu", [("MatMul", "x W", "u"), ("Mul", "u b", "v"), ("Sigmoid", "v", "s"),
              ("Mul", "v s", "y")]),
])
def test_functions_are_those_of_each_neuron_though_one_is_saturated(
    tmp_path, name, nodes, large
):
    bias = np.array([large, *B[1:]], "f")
    network = right(tmp_path, nodes, {"W": W, "b": bias, **NUMBERS})
    assert [layer.activation for layer in network.layers] == [name]


SWITCHED = {
    "Min": ([("Min", "x far", "y")], None),
    "Max": ([("Neg", "x", "u"), ("Neg", "far", "f"), ("Max", "u f", "y")], None),
    "Where Equal": ([("Equal", "x code", "e"), ("Where", "e zero x", "y")], None),
    "Where IsNaN": ([("IsNaN", "x", "e"), ("Where", "e zero x", "y")], "IsNaN"),
    "Where not NaN": ([("Equal", "x x", "e"), ("Where", "e x zero", "y")], "Equal"),
    "product with a step": ([("Less", "x far", "e"), ("Cast", "e", "k", {"to": 1}),
                             ("Mul", "x k", "y")], None),
    "Where Greater": ([("Greater", "x far", "e"), ("Where", "e zero x", "y")], None),
    "Equal": ([("Equal", "x three", "e"), ("Cast", "e", "y", {"to": 1})], None),
    "between": ([("Mul", "x half", "u"), ("Greater", "u far", "a"),
                 ("Less", "u farther", "b"), ("And", "a b", "e"),
                 ("Where", "e zero x", "y")], None),
    "step": ([("Greater", "x far", "e"), ("Cast", "e", "y", {"to": 1})], None),
}


@pytest.mark.parametrize("name", SWITCHED)
def test_what_happens_far_away_is_right_or_refused(tmp_path, name):
    nodes, refused = SWITCHED[name]
    x = np.array([5000, 4999, 5001, 3, -999, 0.1, 1e30, -1e30, -5001], "f")
    constants = {"code": np.float32(-999), "zero": np.float32(0),
                 "far": np.float32(5000), "farther": np.float32(5001), **NUMBERS}
    if refused is None:
        right(tmp_path, nodes, constants, x[:, None], n_in=1)
        return
    with pytest.raises(FormatError, match=rf"\({refused}\)"):
        loaded(tmp_path, graph(nodes, constants, n_in=1))


def test_columns_of_several_sources(tmp_path):
    nodes = [
        ("Slice", "x from to axis", "a"), ("Gather", "x some", "b", {"axis": 1}),
        ("Gemm", "a V", "h"), ("Relu", "h", "r"), ("Concat", "r b", "c", {"axis": 1}),
        ("MatMul", "c U", "y"),
    ]
    first, second = right(tmp_path, nodes, {
        "from": np.array([1]), "to": np.array([3]), "axis": np.array([1]),
        "some": np.array([3, 0]), "V": W[:2], "U": RNG.normal(size=(5, 2)).astype("f"),
    }).layers
    assert isinstance(first, Sparse)
    assert second.sources == (0, 1)


def test_normalisation_is_folded(tmp_path):
    constants = {"W": W, **{name: np.abs(RNG.normal(size=3)).astype("f") + 0.1
                            for name in ("s", "b", "m", "v")}}
    nodes = [("MatMul", "x W", "h"), ("BatchNormalization", "h s b m v", "n"),
             ("Relu", "n", "y")]
    network = right(tmp_path, nodes, constants)
    assert [layer.activation for layer in network.layers] == ["relu"]


def test_the_number_of_samples_may_shape_but_not_count(tmp_path):
    shape = [("Shape", "x", "s"), ("Gather", "s zero", "n"),
             ("Concat", "n two two", "t", {"axis": 0}), ("Reshape", "x t", "r"),
             ("Flatten", "r", "f"), ("MatMul", "f W", "y")]
    constants = {"zero": np.array([0]), "two": np.array([2]), "W": W}
    right(tmp_path, shape, constants)
    count = [("Shape", "x", "s"), ("Gather", "s zero", "n"),
             ("Cast", "n", "m", {"to": 1}), ("MatMul", "x W", "v"), ("Div", "v m", "y")]
    with pytest.raises(FormatError, match="depend on the number of samples"):
        loaded(tmp_path, graph(count, constants))


REFUSED = [
    ([("Mul", "x x", "y")], r"node 'y' \(Mul\) is a function of one variable that"),
    ([("ReduceSum", "x axis", "y")], r"node 'y' \(ReduceSum\) mixes samples"),
    ([("Gather", "x axis", "y")], r"output 'y' mixes samples"),
    ([("Softmax", "x", "y", {"axis": 0})], "mixes samples"),
    ([("LSTM", "x W W", "y")], r"node 'y' \(LSTM\) is of no type that"),
    ([("MatMul", "x W", "v"), ("Gather", "v axis", "s", {"axis": 1}),
      ("Mul", "v s", "y")], "neither affine nor a known function of one variable"),
    ([("ArgMax", "x", "y", {"axis": 1})], r"node 'y' \(ArgMax\) gives labels"),
    ([("Sub", "x x", "v"), ("Div", "x axis", "y")], "divides by zero, or multiplies"),
    ([("Relu", "z", "y")], "reads 'z', which no node before it makes"),
    ([("Transpose", "x", "y")], "has the samples in dimension 1, expected the first"),
    ([("Identity", "W", "y")], "output 'y' does not depend on the input"),
    ([("MatMul", "x V", "y")], r"samples of shape \[4\] by a matrix of shape \[3, 4\]"),
    # Functions of far multiples, and that bend beyond their samples.
    ([("MatMul", "x W", "v"), ("Mul", "v large", "u"), ("Erf", "u", "e"),
      ("Add", "e one", "f"), ("Mul", "v f", "y")], "is no sum of activations"),
    ([("MatMul", "x W", "u"), ("Sigmoid", "u", "s"), ("Sub", "u far", "v"),
      ("Sigmoid", "v", "t"), ("Mul", "v t", "p"), ("Add", "p s", "y")],
     r"'p' \(Mul\) is neither affine nor a known"),
    # Bounds that are no number.
    ([("Clip", "x complex", "y")], "reads constants of type complex64, expected numb"),
    ([("Clip", "x B", "y")], "has bounds of several numbers, expected one each"),
    ([("Clip", "x zero B", "y")], "has bounds of several numbers"),
    ([("Clip", "x inf one", "y")], "has bounds of inf and 1.0"),
    # Memory: of a node that repeats, of a window, of a resized value.
    ([("Expand", "x long4", "y")], "Incompatible dimensions"),
    ([("Expand", "x long3", "y")], "memory limit"),
    ([("Tile", "x long2", "y")], "memory limit"),
    ([("Upsample", "x wide", "y")], "memory limit"),  # of version 9, the last one
    *(([("Reshape", "x s14", "r"), ("Conv", "r K", "c", window), ("Relu", "c", "y")],
       "memory limit")
      for window in ({"kernel_shape": [1 << 40]}, {"pads": [1 << 40, 1]},
                     {"pads": [0, 1 << 40]})),
    *(([("Reshape", "x s14", "r"), ("Resize", f"r none {size}", "c"),
        ("Relu", "c", "y")], "memory limit") for size in ("scales", "none sizes")),
]


@pytest.mark.parametrize(("nodes", "message"), REFUSED)
def test_other_graphs_are_refused_in_a_sentence(tmp_path, nodes, message):
    constants = {
        "W": W, "V": W.T, "axis": np.array([0]), "B": B, "s14": np.array([0, 1, 4]),
        "K": np.ones((2, 1, 2), np.float32), "large": np.float32(1e30),
        "far": np.float32(5000), "complex": np.complex64(1j), "zero": np.float32(0),
        "inf": np.float32(np.inf), "long2": np.array([1, 1 << 40]),
        "long3": np.array([1 << 40, 1, 1]),
        "long4": np.array([1, 1 << 40, 4]), "none": np.array([], np.float32),
        "wide": np.array([1, 1 << 40], np.float32),
        "scales": np.array([1, 1, 1e12], np.float32),
        "sizes": np.array([1, 1, 1 << 40]), **NUMBERS,
    }
    read = {name for node in nodes for name in node[1].split()}
    used = {name: value for name, value in constants.items() if name in read}
    with pytest.raises(FormatError, match=message) as caught:
        versions = 9 if nodes[0][0] == "Upsample" else 17
        loaded(tmp_path, graph(nodes, used, versions=versions))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("shape", [["N", None], ["N", "M"]])
def test_inputs_without_a_shape(tmp_path, shape):
    with pytest.raises(FormatError, match="expected samples of a known shape"):
        loaded(tmp_path, graph([("Relu", "x", "y")], shape=shape))


@pytest.mark.parametrize("nodes", [
    [("Gemm", "x W b", "v"), ("Add", "v none", "u"), ("MatMul", "u V", "y")],
    [("Mul", "x large", "u"), ("Mul", "u large", "y")],
    [("Gemm", "x W b", "v"), ("Sub", "v inf", "u"), ("Tanh", "u", "y")],
])
@pytest.mark.filterwarnings("error")
def test_infinity_goes_through_as_in_onnx_runtime(tmp_path, nodes):
    network = loaded(tmp_path, graph(nodes, {
        "W": W, "b": B, "V": np.eye(3, dtype="f"), "none": np.float32(0),
        "inf": np.float32(np.inf), "large": np.float32(1e38),
    }))
    with np.errstate(all="ignore"):
        y = network.predict(X)
    np.testing.assert_allclose(y, ran(str(tmp_path / "x.onnx"), X), 10 * NEAR)


def test_labels_beside_scores_are_left_out(tmp_path):
    nodes = [("MatMul", "x W", "y"), ("ArgMax", "y", "label", {"axis": 1})]
    model = graph(nodes, {"W": W}, outputs=("label", "y"))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    network = loaded(tmp_path, model)
    near(network.predict(X), X @ W)


def test_tensors_in_a_file_beside_it(tmp_path):
    model = graph([("Gemm", "x W b", "y")], {"W": W, "b": B})
    path = tmp_path / "x.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="x.data",
                    size_threshold=0)
    near(clnet.load(path).predict(X), X @ W + B)
    (tmp_path / "x.data").unlink()
    with pytest.raises(FormatError, match="tensor 'W' cannot be read"):
        clnet.load(path)


def test_other_files(tmp_path):
    path = tmp_path / "x.onnx"
    path.write_bytes(b"no graph at all")
    with pytest.raises(FormatError, match="is not an ONNX file"):
        clnet.load(path)
    with pytest.raises(clnet.InputError, match=r"dtype is for \.net files"):
        clnet.load(path, dtype="float32")


def test_log_softmax_trains_as_softmax_does():
    t = np.eye(3)[RNG.integers(0, 3, 5)]
    losses = []
    for name in SOFTMAXES:
        network = Network(4, [Dense(6, "mish"), Dense(3, name)], seed=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            history = network.fit(X, t, epochs=5, seed=1, tune=False)
        losses.append(history.losses[-1] if hasattr(history, "losses")
                      else history.epochs[-1].loss)
    assert losses[0] == losses[1]
    np.testing.assert_allclose(np.exp(network.predict(X)).sum(axis=1), 1, rtol=1e-6)


# --- names ---------------------------------------------------------------------------


def test_names_of_classes_and_columns_come_back(tmp_path):
    """They are metadata, beside a graph that ONNX Runtime runs as before."""
    inputs = clnet.Column("length"), clnet.Column("hue", ("r", "g"))
    columns = clnet.Columns(inputs, ("t",))
    network = Network(3, [Dense(2, "softmax")], seed=0, classes=("no", "yes"),
                      columns=columns)
    path = tmp_path / "a.onnx"
    network.save(path)
    again = clnet.load(path)
    assert (again.classes, again.columns) == (("no", "yes"), columns)
    x = RNG.standard_normal((5, 3)).astype(np.float32)
    near(again.predict(x), ran(path, x))
    network.classes = network.columns = None
    network.save(path)
    assert not onnx.load(path).metadata_props


@pytest.mark.parametrize(("key", "text"), [
    ("classes", '["a"]'), ("classes", "["), ("classes", "7"), ("classes", "[" * 10**5),
    ("columns", "[]"), ("columns", '{"inputs": [{"name": "a"}]}'),
])
def test_names_of_another_network_are_refused(tmp_path, key, text):
    model = graph([("Relu", "x", "y")], n_in=2)
    helper.set_model_props(model, {f"clnet.{key}": text})
    with pytest.raises(FormatError, match=f"holds {key} not of its network"):
        loaded(tmp_path, model)
