"""Names, flags and records at every public entry: all else is refused in a sentence."""

from functools import partial

import numpy as np
import pytest

import clnet
from clnet import (
    Cascade,
    Columns,
    Dense,
    EarlyStopping,
    Local,
    Network,
    Pattern,
    Population,
    Sparse,
    optimisers,
)
from clnet.errors import ClnetError
from clnet.nn.fann_parameters import FannParameters
from clnet.nn.losses import loss_function

X = np.random.default_rng(0).uniform(0, 1, (12, 6)).astype(np.float32)
T = np.random.default_rng(1).uniform(0, 1, (12, 2)).astype(np.float32)
NETWORK = Network.mlp([6, 5, 2], seed=1)
POPULATION = Population(NETWORK, 2)
TENSORS = {"0.weight": np.eye(3), "2.weight": np.eye(3)}


def layer(kind, **arguments):
    return Network(6, [kind(**arguments)], seed=1)


def predicted(**arguments):
    return NETWORK.predict(X, **arguments)


def compiled(**arguments):
    return NETWORK.compile(**{"device": "cpu", "tune": False, **arguments})


def fitted(network=NETWORK, **arguments):
    return network.fit(X, T, **{"epochs": 1, "device": "cpu", **arguments})


def grown(**arguments):
    network = Network(6, [Dense(2)], seed=1)
    return network.fit(X, T, **{"optimiser": "cascade", "device": "cpu", **arguments})


def explained(**arguments):
    return POPULATION.explain(X, T, **{"device": "cpu", **arguments})


def validated(**arguments):
    return Population.cross_validate(NETWORK, X, T, **{
        "folds": 2, "epochs": 1, "device": "cpu", **arguments
    })


def planned(**arguments):
    return NETWORK.plan_for(clnet.device("cpu"), 2, **arguments)


def method(make, name):
    """Return a method of an object that each call makes."""
    def entry(**arguments):
        return getattr(make(), name)(**arguments)

    entry.__name__ = name
    return entry


# An entry with its arguments that are a name, a flag or a record. Those with "!" have a
# value always; of the others, None is the default.
ROWS = [
    (fitted, "optimiser loss schedule stop device devices precision!",
     "shuffle tune progress scale", "comm state blocks! callbacks!"),
    (partial(fitted, POPULATION), "optimiser loss schedule stop device validation "
     "precision!", "shuffle tune progress scale", "comm"),
    (grown, "loss stop device devices precision!", "shuffle tune progress scale",
     "comm callbacks!"),
    (explained, "optimiser", "tune", ""),
    (validated, "optimiser device", "progress", "grid"),
    (partial(Population.cross_validate, x=X, t=T), "", "", "network!"),
    (compiled, "device precision!", "tune progress", "variants"),
    (planned, "precision!", "", "calls!"),
    (predicted, "device precision!", "scale", "comm"),
    (partial(NETWORK.classify, X), "device precision!", "scale", ""),
    (partial(NETWORK.evaluate, X, T), "device", "scale", "comm"),
    (partial(NETWORK.compare, T, T), "", "scale", ""),
    (partial(NETWORK.labels_of, T), "", "scale!", ""),
    (partial(POPULATION.predict, X), "device precision!", "scale", ""),
    (partial(POPULATION.classify, X), "device", "scale", ""),
    (partial(POPULATION.evaluate, X, T), "device", "scale", ""),
    (partial(layer, partial(Dense, 2)), "activation! initialiser!", "bias!", ""),
    (partial(layer, partial(Sparse, 2, density=0.5)),
     "activation! initialiser! placement! format!", "bias!", "pattern"),
    (partial(layer, partial(Local, 3)), "activation! initialiser! bias", "", ""),
    (partial(Network.mlp, [6, 2]), "activation! initialiser! output dtype!", "", ""),
    (partial(Network, 6, [Dense(2)]), "dtype!", "fann_compatible!",
     "fann scaling columns"),
    (partial(Network, 6), "", "", "layers!"),
    (NETWORK.initialise, "name", "", ""),
    (NETWORK.set_layers, "", "", "layers!"),
    (partial(NETWORK.prune, density=0.5), "format!", "", ""),
    (layer(Sparse, n_out=5, density=0.5).stored_as, "format!", "", ""),
    (partial(Network.from_state_dict, TENSORS), "activation!", "", ""),
    (partial(Population, seeds=2), "", "", "network!"),
    (partial(Population, NETWORK), "", "", "seeds!"),
    (Population.of, "", "", "networks!"),
    (clnet.device, "spec", "", ""),
    (partial(clnet.load, "of.net"), "dtype", "", ""),
    (partial(clnet.load_data, "of.data"), "dtype", "", ""),
    (partial(clnet.load_table, "of.csv"), "dtype", "",
     "target categories! ignore! columns"),
    (partial(clnet.open_data, "of.npy"), "", "", "target categories! ignore! columns"),
    (EarlyStopping, "monitor!", "restore_best!", ""),
    (Cascade, "rule! activation_functions!", "", ""),
    (FannParameters, "training_algorithm! train_error_function! train_stop_function!",
     "", ""),
    (loss_function, "name!", "", ""),
    (optimisers.SGD, "", "nesterov!", ""), (optimisers.RMSprop, "", "centered!", ""),
    (optimisers.Rprop, "", "moves_at_zero!", ""),
    (Columns, "", "", "inputs!"), (Pattern.of, "", "", "matrix!"),
    (method(fitted, "final_loss"), "", "validation!", ""),
    (method(fitted, "plot"), "", "", "axes"),
    (method(partial(fitted, POPULATION), "plot"), "", "", "axes"),
    (method(compiled, "plot"), "", "", "axes"),
]
ARRAYS = [
    np.zeros(3), np.zeros((50, 50)), np.array("x"), np.array(["tanh", "x"]), [["a"]],
    [[1, 2], [3]], object(),
]
RECORDS = [*ARRAYS, "nonsense"]
NAMES = [*RECORDS, np.array([]), ["nonsense", "tanh"], {1: 2}, 0.5, b"tanh", True]
FLAGS = [*RECORDS, np.array([]), [True], {1: 2}, 0.5, 2, np.array(True)]
USES = [
    (entry, argument, wrong)
    for entry, *arguments in ROWS
    for several, wrong in zip(arguments, (NAMES, FLAGS, RECORDS), strict=True)
    for argument in several.split()
]


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch, cpu):
    monkeypatch.chdir(tmp_path)
    NETWORK.save("of.net")
    clnet.save_data("of.data", X, T)
    clnet.save_data("of.csv", X, T)
    np.save("of.npy", X)


@pytest.mark.parametrize("entry", [
    fitted, partial(fitted, POPULATION), grown, explained, validated, compiled, planned,
    predicted,
])
def test_right_values_are_taken(entry):
    """Else every wrong one would be refused."""
    entry()


@pytest.mark.filterwarnings("ignore::clnet.ClnetWarning")
@pytest.mark.parametrize(("entry", "argument", "wrong"), USES)
def test_a_wrong_value_is_refused_in_a_sentence(entry, argument, wrong):
    name = argument.removesuffix("!")
    for value in (None, *wrong) if argument.endswith("!") else wrong:
        with pytest.raises(ClnetError) as caught:
            entry(**{name: value})
        text = str(caught.value)
        assert "\\n" not in text
        assert len(text.partition("known are")[0]) < 250, text


@pytest.mark.filterwarnings("ignore::clnet.ClnetWarning")
@pytest.mark.parametrize(("entry", "name"), [
    (partial(NETWORK.fit, t=T), "x"), (partial(NETWORK.fit, X), "t"),
    (partial(POPULATION.fit, t=T), "x"), (partial(POPULATION.fit, X), "t"),
    (partial(Population.cross_validate, NETWORK, t=T, folds=2), "x"),
    (partial(Population.cross_validate, NETWORK, X, folds=2), "t"),
    (NETWORK.predict, "x"), (partial(NETWORK.evaluate, t=T), "x"),
    (partial(NETWORK.evaluate, X), "t"), (partial(NETWORK.compare, t=T), "y"),
    (partial(NETWORK.compare, T), "t"), (NETWORK.labels_of, "y"),
    (method(compiled, "__call__"), "x"),
    (partial(clnet.Scaling.of, t=T), "x"), (clnet.Scaling.of(X, T).scale_input, "x"),
    (partial(clnet.save_data, "b.csv", t=T), "x"),
])
@pytest.mark.parametrize("value", [
    None, "abc", {}, object(), ["a", "b"], np.array("x"), np.zeros((2, 3, 5)),
    np.full((12, 6), None), [[1, 2], [3]], 1.5,
])
def test_samples_that_are_none_are_refused_in_a_sentence(entry, name, value):
    with pytest.raises(ClnetError) as caught:
        entry(**{name: value})
    assert "\n" not in str(caught.value)
