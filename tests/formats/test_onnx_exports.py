"""ONNX files of other libraries' exporters."""

import numpy as np
import pytest

import clnet

pytest.importorskip("onnx")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 4)).astype(np.float32)
NEAR = 2e-6


def near(y, expected):
    assert y.shape == expected.shape
    assert (np.abs(y - expected) <= NEAR * (1 + np.abs(expected))).all()


def classifiers():
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    yield MLPClassifier((5, 3), max_iter=20), 3
    yield MLPClassifier((5,), activation="tanh", max_iter=20), 2
    yield make_pipeline(StandardScaler(), MLPClassifier((5,), "logistic")), 3
    yield LogisticRegression(), 3
    yield LogisticRegression(), 2


def regressors():
    from sklearn.linear_model import LinearRegression, Ridge
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler

    yield MLPRegressor(hidden_layer_sizes=(5,), max_iter=20)
    yield make_pipeline(MinMaxScaler(), MLPRegressor(hidden_layer_sizes=(5,)))
    yield LinearRegression()
    yield Ridge()


@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_models(tmp_path):
    to_onnx = pytest.importorskip("skl2onnx").to_onnx
    path = tmp_path / "x.onnx"
    for model, classes in classifiers():
        model.fit(X, np.arange(len(X)) % classes)
        path.write_bytes(to_onnx(model, X[:1]).SerializeToString())
        near(clnet.load(path).predict(X), model.predict_proba(X))
    for model in regressors():
        model.fit(X, X @ [1.0, -2.0, 0.5, 3.0])
        path.write_bytes(to_onnx(model, X[:1]).SerializeToString())
        near(clnet.load(path).predict(X), model.predict(X)[:, None])


def modules(nn):
    """Yield 30 modules of 4 inputs."""
    for middle in (
        nn.ReLU(), nn.LeakyReLU(0.2), nn.PReLU(8), nn.ELU(0.7), nn.SELU(), nn.CELU(0.5),
        nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish(), nn.Hardswish(), nn.ReLU6(),
        nn.Hardsigmoid(), nn.Hardtanh(-2, 3), nn.Softplus(2.0), nn.Softsign(),
        nn.Tanh(), nn.Sigmoid(), nn.LogSigmoid(), nn.Tanhshrink(), nn.Softmin(1),
        nn.LogSoftmax(1), nn.Softmax(1), nn.BatchNorm1d(8), nn.Linear(8, 8, bias=False),
        nn.Sequential(nn.Unflatten(1, (2, 4)), nn.Flatten(), nn.Dropout()),
        nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 2, 3, padding=1),
                      nn.AvgPool1d(2), nn.Flatten()),
    ):
        yield nn.Sequential(nn.Linear(4, 8), middle, nn.Linear(8, 3))

    class Module(nn.Module):
        def __init__(self, forward):
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(8, 3)
            self.compute = forward

        def forward(self, x):
            return self.compute(self, x)

    yield Module(lambda self, x: x + 0.5 * self.one(x).relu())
    yield Module(lambda self, x: self.two(nn.functional.pad(self.one(x).sin(), (4, 0))))
    yield Module(lambda self, x: self.two(
        x[:, [0, 0, 2, 1]].tanh().repeat(1, 2) - self.one(x / 2).repeat(1, 2)))


@pytest.mark.parametrize("dynamo", [
    False, pytest.param(True, marks=pytest.mark.sweep)])  # 3 s of each module
@pytest.mark.filterwarnings("ignore")
def test_30_modules_of_pytorch(tmp_path, dynamo):
    torch = pytest.importorskip("torch")
    options = {"dynamic_axes": {"x": {0: "N"}}, "input_names": ["x"]}
    if dynamo:
        pytest.importorskip("onnxscript")
        options = {"dynamic_shapes": ({0: torch.export.Dim("N")},)}
    path = tmp_path / "x.onnx"
    torch.manual_seed(0)
    found = list(modules(torch.nn))
    assert len(found) == 30
    for module in found:
        module.eval()
        torch.onnx.export(
            module, (torch.from_numpy(X[:2]),), path, dynamo=dynamo, **options)
        near(clnet.load(path).predict(X),
             module(torch.from_numpy(X)).detach().numpy())


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
def test_keras_models(tmp_path):
    keras = pytest.importorskip("keras")
    k = keras.layers
    keras.utils.set_random_seed(0)
    models = [
        keras.Sequential([keras.Input((4,)), k.Dense(8, name), k.Dense(3, "softmax")])
        for name in ("relu", "elu", "selu", "sigmoid", "silu", "softplus",
                     "softsign", "tanh", "leaky_relu", "relu6", "hard_sigmoid", "mish",
                     "log_softmax", "linear")
    ]
    models.append(keras.Sequential([
        keras.Input((4,)), k.Dense(8), k.BatchNormalization(), k.LeakyReLU(),
        k.Dropout(0.3), k.Dense(3)]))
    x = keras.Input((4,))
    h = k.Dense(4, "relu")(x)
    models.append(keras.Model(x, k.Dense(2)(k.Concatenate()([k.Add()([x, h]), h]))))
    models.append(keras.Sequential([
        keras.Input((4,)), k.Rescaling(0.5, 1.0), k.Dense(6, "tanh"),
        k.Reshape((2, 3)), k.Flatten(), k.Dense(1)]))
    path = tmp_path / "x.onnx"
    for model in models:
        expected = model.predict(X, verbose=0)  # the export needs a first call
        model.export(path, format="onnx", verbose=False)
        near(clnet.load(path).predict(X), expected)
