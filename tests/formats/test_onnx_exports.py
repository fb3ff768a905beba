"""ONNX files of other libraries' exporters."""

from __future__ import annotations

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


@pytest.mark.filterwarnings("ignore")
def test_pytorchs_modules(tmp_path):
    torch = pytest.importorskip("torch")
    nn = torch.nn
    activations = [
        nn.ReLU(), nn.LeakyReLU(0.2), nn.PReLU(8), nn.ELU(0.7), nn.SELU(), nn.CELU(0.5),
        nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish(), nn.Hardswish(), nn.ReLU6(),
        nn.Hardsigmoid(), nn.Hardtanh(-2, 3), nn.Softplus(2.0), nn.Softsign(),
        nn.Tanh(), nn.Sigmoid(), nn.LogSigmoid(), nn.Tanhshrink(), nn.Softshrink(0.3),
        nn.LogSoftmax(1), nn.Softmax(1), nn.BatchNorm1d(8),
        nn.Sequential(nn.Unflatten(1, (2, 4)), nn.Flatten(), nn.Dropout()),
        nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 2, 3, padding=1),
                      nn.AvgPool1d(2), nn.Flatten()),
    ]
    path = tmp_path / "x.onnx"
    for activation in activations:
        module = nn.Sequential(nn.Linear(4, 8), activation, nn.Linear(8, 3)).eval()
        torch.onnx.export(
            module, (torch.from_numpy(X[:2]),), path, dynamo=False, input_names=["x"],
            dynamic_axes={"x": {0: "N"}},
        )
        near(clnet.load(path).predict(X),
             module(torch.from_numpy(X)).detach().numpy())


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
def test_pytorchs_newer_exporter(tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    nn = torch.nn
    module = nn.Sequential(
        nn.Linear(4, 8), nn.GELU("tanh"), nn.BatchNorm1d(8), nn.Linear(8, 6), nn.Mish(),
        nn.Linear(6, 3), nn.LogSoftmax(1),
    ).eval()
    path = tmp_path / "x.onnx"
    torch.onnx.export(module, (torch.from_numpy(X[:2]),), path, dynamo=True,
                      dynamic_shapes=({0: torch.export.Dim("N")},))
    near(clnet.load(path).predict(X), module(torch.from_numpy(X)).detach().numpy())
