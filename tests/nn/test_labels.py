"""Class labels: as targets, in files, and given back."""

import copy
import json

import numpy as np
import pytest
from safetensors import safe_open
from tensor_files import changed, rewrite

import clnet
from clnet import ClnetWarning, Dense, FormatError, InputError, Network
from clnet.nn.labels import decided, encoded
from clnet.nn.optimisers import Adam

FAST = Adam(learning_rate=0.03)


def net(n_out=3, activation="softmax", **options):
    return Network(2, [Dense(n_out, activation)], seed=0, **options)


@pytest.mark.parametrize(("labels", "classes"), [
    ([2, 0, 1, 2], (0, 1, 2)), ([[2], [0], [1], [2]], (0, 1, 2)),
    (np.uint8([7, 3, 5, 7]), (3, 5, 7)), ([30.0, -1.0, 2.0, 30.0], (-1, 2, 30)),
    (["c", "a", "b", "c"], ("a", "b", "c")), (np.array([["é"], ["a"], ["b"], ["é"]]),
                                              ("a", "b", "é")),
    (np.array(["c", "a", "b", "c"], object), ("a", "b", "c")),
    (np.array([9, 1, 4, 9], object), (1, 4, 9)),
])
def test_labels_become_one_hot(labels, classes):
    t, found = encoded(net(), labels)
    assert found == classes
    assert {type(one) for one in found} <= {int, str}
    assert np.array_equal(t, np.eye(3)[[2, 0, 1, 2]])
    assert np.array_equal(encoded(net(), labels, classes[::-1])[0],
                          np.eye(3)[[0, 2, 1, 0]])


def test_labels_take_the_ends_of_symmetric_outputs():
    t, _ = encoded(net(activation="tanh"), ["c", "a", "b"])
    assert np.array_equal(t, 2 * np.eye(3)[[2, 0, 1]] - 1)
    t, classes = encoded(net(1, "tanh"), ["b", "a"])
    assert (t.tolist(), classes) == ([[1], [-1]], ("a", "b"))


@pytest.mark.parametrize(("labels", "classes"), [
    (["no", "yes", "no"], ("no", "yes")), ([False, True, False], (False, True)),
    ([[False], [True], [False]], (False, True)),
])
def test_one_output_stands_for_two_classes(labels, classes):
    t, found = encoded(net(1, "sigmoid"), labels)
    assert (t.tolist(), found) == ([[0], [1], [0]], classes)


def test_numbers_of_one_output_become_a_column():
    for t in ([1, 2, 3], [1.5, 2, 3], [[1], [2], [3]]):
        found, classes = encoded(net(1, "identity"), t)
        assert np.array_equal(found, np.reshape(t, (3, 1))) and classes is None
    found, classes = encoded(net(1, "identity"), [True, False])
    assert found.tolist() == [[1], [0]] and classes is None


@pytest.mark.parametrize("t", [np.eye(3), np.eye(3, dtype=bool), np.zeros((0, 3)), 3,
                               np.zeros(0)])
def test_other_targets_stay(t):
    found, classes = encoded(net(), t)
    assert np.array_equal(found, t) and classes is None


def test_classes_that_do_not_occur():
    assert encoded(net(4), [0, 2])[1] == (0, 1, 2, 3)
    assert encoded(net(2), [True, True])[1] == (False, True)
    t, _ = encoded(net(), ["b", "b"], ("a", "b", "c"))
    assert np.array_equal(t, np.eye(3)[[1, 1]])


@pytest.mark.parametrize(("n_out", "labels", "classes", "sentence"), [
    (3, ["a", "b"], None, "2 different labels, expected 3 for 3 outputs: set the"),
    (2, ["a", "b", "c"], None, "3 different labels, expected 2 for 2 outputs"),
    (1, ["a", "b", "c"], None, "3 different labels, expected 2 for 1 output"),
    (3, [0, 3], None, "2 different labels, expected 3"),
    (3, [0, -1], None, "2 different labels"),
    (3, ["a", "d"], ("a", "b", "c"), r"the label 'd', expected one of .*\['a', 'b', "),
    (3, [0, 1, 2], ("a", "b", "c"), "the label 0, expected one of"),
    (3, [0.5, 1, 2], None, "holds fractions"),
    (3, [np.nan, 1, 2], None, r"holds nan at \[0\], expected a label"),
    (3, [1e300, 1, 2], None, "holds fractions"),
    (3, np.array(["a", None, "b"], object), None, r"holds None at \[1\]"),
    (3, np.array(["a", np.nan, "b"], object), None, r"holds nan at \[1\]"),
    (3, ["a", "", "b"], None, r"holds '' at \[1\]"),
    (3, np.array(["a", 1, "b"], object), None, "holds int and str"),
])
def test_bad_labels(n_out, labels, classes, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        encoded(net(n_out), labels, classes)
    assert "\n" not in str(caught.value)


def test_text_for_an_unbounded_output():
    with pytest.raises(InputError, match="no bounds between which two classes"):
        encoded(net(1, "identity"), ["a", "b"])


@pytest.mark.parametrize(("classes", "sentence"), [
    (["a", "b"], "classes are 2, expected 3"), (["a", "b", "b"], "expected different"),
    (["a", "b", 1], "expected all strings"), (["a", "b", None], "expected all strings"),
    ([1, 2, 2.5], "expected all strings"), ("abc", "classes must be a list"),
    (3, "classes must be a list"),
])
def test_bad_classes(classes, sentence):
    with pytest.raises(InputError, match=sentence):
        net(classes=classes)
    network = net(classes=["x", "y", "z"])
    with pytest.raises(InputError, match=sentence):
        network.classes = classes
    assert network.classes == ("x", "y", "z")


def test_decisions():
    y = np.array([[0.1, 0.9], [0.8, 0.2]])
    assert decided(y, None, None).tolist() == [1, 0]
    assert decided(y, None, ("no", "yes")).tolist() == ["yes", "no"]
    assert decided(y[0], None, ("no", "yes")) == "yes"
    assert decided(y[:, :1], 0.5, (False, True)).tolist() == [False, True]
    with pytest.raises(InputError, match="no bounds"):
        decided(y[:, :1], None, None)


# --- networks ------------------------------------------------------------------------


def samples(n=60):
    rng = np.random.default_rng(0)
    labels = np.array(["left", "mid", "right"])[rng.integers(0, 3, n)]
    x = rng.normal(0, 0.2, (n, 2))
    x[:, 0] += np.select([labels == "left", labels == "right"], [-2, 2])
    return x, labels


@pytest.mark.parametrize("activation", ["softmax", "tanh"])
def test_a_network_learns_labels_and_gives_them_back(activation, tmp_path):
    x, labels = samples()
    network = Network.mlp([2, 8, 3], ["tanh", activation], seed=0)
    history = network.fit(x[:40], labels[:40], epochs=60, seed=0, optimiser=FAST,
                          validation=(x[40:], labels[40:, None]))
    assert network.classes == ("left", "mid", "right")
    assert history[-1].validation is not None
    assert network.classify(x[0]) == network.classify(x)[0]
    assert network.predict(x).shape == (60, 3)
    share = np.mean(network.classify(x) == labels)
    assert network.evaluate(x, labels).accuracy == share > 0.9
    one_hot = network.evaluate(x, encoded(network, labels, network.classes)[0])
    assert network.evaluate(x, labels) == one_hot
    network.save(tmp_path / "a.safetensors")
    again = clnet.load(tmp_path / "a.safetensors")
    assert again.classes == network.classes
    assert np.array_equal(again.classify(x), network.classify(x))
    assert copy.deepcopy(network).classes == network.classes
    assert network.prune(density=0.5).classes == network.classes


def test_labels_train_as_their_one_hot_rows():
    x, labels = samples()
    one, two = (Network.mlp([2, 4, 3], ["tanh", "softmax"], seed=0) for _ in range(2))
    one.fit(x, labels, epochs=2, seed=0, tune=False)
    two.fit(x, encoded(two, labels)[0], epochs=2, seed=0, tune=False)
    assert np.array_equal(one.parameters, two.parameters)
    assert two.classes is None
    assert set(two.classify(x)) <= {0, 1, 2}


def test_one_output_with_scaling():
    """The middle between two classes is that of the descaled outputs."""
    x, labels = samples()
    right = labels == "right"
    scaling = clnet.Scaling.of(x, np.where(right, 1.0, 0.0)[:, None], outputs=None)
    network = Network.mlp([2, 4, 1], ["tanh", "sigmoid"], seed=0, scaling=scaling)
    network.fit(x, right, epochs=60, seed=0, optimiser=FAST, scale=True)
    assert network.classes == (False, True)
    found = network.classify(x, scale=True)
    assert found.dtype == bool and np.mean(found == right) > 0.9
    assert network.evaluate(x, right, scale=True).accuracy == np.mean(found == right)


def test_a_refused_training_sets_no_classes():
    x, labels = samples()
    network = net()
    with pytest.raises(InputError, match="epochs"):
        network.fit(x, labels, epochs=0)
    assert network.classes is None
    network.classes = "a", "b", "c"
    with pytest.raises(InputError, match="the label 'left', expected one of"):
        network.fit(x, labels, epochs=1)
    with pytest.raises(InputError, match="the label 'left', expected one of"):
        network.evaluate(x, labels)


# --- files ---------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".safetensors", ".onnx"])
@pytest.mark.parametrize("classes", [("a", "b", "ü"), (3, 1, 2)])
def test_files_keep_classes(tmp_path, classes, suffix):
    if suffix == ".onnx":
        pytest.importorskip("onnx")
    net(classes=classes).save(tmp_path / f"a{suffix}")
    assert clnet.load(tmp_path / f"a{suffix}").classes == classes


def test_files_without_classes_are_as_before(tmp_path):
    net().save(tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", "numpy") as file:
        assert "classes" not in json.loads(file.metadata()["clnet"])


@pytest.mark.parametrize("classes", [["a", "b"], ["a", "b", "b"], [1.5, 2, 3], 7, {}])
def test_damaged_classes(tmp_path, classes):
    path = tmp_path / "a.safetensors"
    net(classes=("a", "b", "c")).save(path)
    rewrite(path, describe=changed(classes=classes))
    with pytest.raises(FormatError, match="classes"):
        clnet.load(path)


def test_fann_has_no_place_for_names(tmp_path):
    network = Network(2, [Dense(2, "sigmoid")], seed=0, classes=("a", "b"))
    with pytest.warns(ClnetWarning, match=r"FANN has no place: a \.safetensors"):
        network.save(tmp_path / "a.net")
    assert clnet.load(tmp_path / "a.net").classes is None
    network.classes = 0, 1
    network.save(tmp_path / "a.net")
