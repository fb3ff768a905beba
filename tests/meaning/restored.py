"""Restored networks beside what their trainings report: figures by NumPy in float64.

A case is a random training: options, early stopping, and how it is run. Where the
figure of an epoch is of one set of parameters, that of the network at the end must be
the best one reported. Else its parameters are those that the training has after it.
"""

from __future__ import annotations

import tempfile
import warnings
from collections import Counter
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import numpy as np
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss, mean_squared_error
from sklearn.model_selection import train_test_split

from clnet import (
    Cascade,
    Checkpoint,
    ClnetWarning,
    Dense,
    EarlyStopping,
    InputError,
    Network,
    Population,
    optimisers,
    schedules,
)
from clnet.formats.sources import BLOCKS
from clnet.opencl.discovery import device
from clnet.sklearn import MLPClassifier, MLPRegressor, mlp
from clnet.training.callbacks import MONITORED

BIT_FAIL_LIMIT = np.float32(0.35)
ROUNDING = {"float32": 2e-6, "float64": 1e-14}  # of a sum of few products
SLACK = {"float32": 2e-5, "float64": 1e-10}  # of a mean over samples, relative
FUNCTIONS = {
    "identity": lambda v: v, "tanh": np.tanh, "relu": lambda v: np.maximum(v, 0),
    "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    "softmax": lambda v: np.exp(v - v.max(1, keepdims=True))
    / np.exp(v - v.max(1, keepdims=True)).sum(1, keepdims=True),
}
RATES = {  # by optimiser, about where it trains well
    "SGD": 0.1, "Adam": 0.03, "AdamW": 0.03, "RMSprop": 0.01, "Batch": 0.3,
    "Quickprop": 0.3, "Incremental": 0.1, "Rprop": None, "Sarprop": None,
}
SHAPES = ([1, 1], [2, 3, 1], [3, 4, 2], [2, 5, 5, 3], [4, 2])
HOST = device("cpu")
PLACES = {  # how a training is run, for arrays in memory
    "one device": {"device": HOST},
    "copies": {"device": replace(HOST, fine_svm=False, companions=())},
    "two devices": {"devices": [HOST, replace(HOST, index="9:1")]},
}


class CrashError(Exception):
    """The end of a process, whose training another goes on with."""


class Stored:
    """An array that is sliced as one in a file."""

    chunks = None

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __getitem__(self, rows):
        return self.array[rows]

    def __array__(self, dtype=None, copy=None):
        return np.array(self.array, dtype)


@dataclass
class Samples:
    """Inputs, targets and weights, or None."""

    x: np.ndarray
    t: np.ndarray
    weight: np.ndarray | None

    def __len__(self):
        return len(self.x)

    def arrays(self):
        given = self.x, self.t, self.weight
        return given if self.weight is not None else given[:2]

    def batches(self, rng):
        """The samples in batches of any sizes."""
        cuts = np.unique(rng.integers(len(self), size=3))
        cuts = cuts[cuts > 0]
        return list(zip(*(np.split(one, cuts) for one in self.arrays()), strict=True))


def chosen(rng, items):
    listed = list(items)
    return listed[rng.integers(len(listed))]


def drawn_samples(rng, network, n, weighted):
    x, t = rng.normal(size=(n, network.n_in)), rng.normal(size=(n, network.n_out))
    if network.layers[-1].activation in ("sigmoid", "softmax"):
        t = np.eye(max(2, network.n_out))[rng.integers(network.n_out, size=n)]
        t = t[:, : network.n_out] if network.n_out > 1 else t[:, 1:]
    weight = rng.uniform(0, 3, n) * (rng.random(n) > 0.2) if weighted else None
    if weight is not None and not weight.any():
        weight[0] = 1.0
    return Samples(x, t, weight)


def drawn_network(rng, dropout=0.0):
    sizes = chosen(rng, SHAPES)
    ends = ["identity", "tanh", "sigmoid", *["softmax"] * (sizes[-1] > 1)]
    names = [chosen(rng, ["tanh", "relu", "sigmoid"]) for _ in sizes[2:]]
    return Network.mlp(
        sizes, [*names, chosen(rng, ends)], seed=int(rng.integers(1000)),
        dtype=chosen(rng, ["float32"] * 3 + ["float64"]), dropout=dropout,
    )


def drawn_loss(rng, network):
    losses = ["mse", "mae", "huber"]
    last = network.layers[-1].activation
    if last == "sigmoid":
        losses += ["binary_cross_entropy"] * 2
    if last == "softmax":
        losses = ["categorical_cross_entropy"]
    return chosen(rng, losses)


def drawn_rule(rng):
    rule = getattr(optimisers, chosen(rng, RATES))()
    if hasattr(rule, "momentum") and rng.random() < 0.5:
        rule = replace(rule, momentum=0.9)
    return rule


def with_rate(rng, rule):
    """A rule with a learning rate that is good, or too small or large."""
    rate = RATES[type(rule).__name__]
    if rate is None:
        return rule
    factor = 10.0 ** rng.choice([-2, -1, 0, 0, 0.5, 1, 1.5, 3])
    return replace(rule, learning_rate=float(rate * factor))


def outputs(network, x):
    """Outputs, sums of the last layer, and bounds of the rounding errors of these."""
    value, error = np.asarray(x, network.dtype).astype(float), 0.0
    for number, layer in enumerate(network.layers):
        weights = network.weights(number).astype(float)
        biases = network.biases(number).astype(float)
        sizes = abs(value) @ abs(weights).T + abs(biases)
        error = error @ abs(weights).T if np.ndim(error) else 0.0
        error = error + ROUNDING[network.dtype] * (sizes + 1)
        sums = value @ weights.T + biases
        value = FUNCTIONS[layer.activation](sums)
    return value, sums, error


def bounds(network, samples, measure, loss):
    """The least and the largest figure that rounding explains."""
    t = np.asarray(samples.t, network.dtype).astype(float)
    y, z, error = outputs(network, samples.x)
    error = error * 2  # of softmax too
    most, least = abs(y - t) + error, np.maximum(abs(y - t) - error, 0)
    if measure == "bit_fail":
        return [int((one >= BIT_FAIL_LIMIT).sum()) for one in (least, most)]
    name = loss if measure == "loss" else "mse"
    if name == "binary_cross_entropy":
        values = np.maximum(z, 0) - z * t + np.log1p(np.exp(-abs(z)))
        ends = [values - 2 * error, values + 2 * error]
    elif name == "categorical_cross_entropy":
        below = z - z.max(1, keepdims=True)
        values = -t * (below - np.log(np.exp(below).sum(1, keepdims=True)))
        ends = [values - 2 * error, values + 2 * error]
    else:
        of = {"mse": lambda e: e**2, "mae": lambda e: e,
              "huber": lambda e: np.where(e <= 1, e * e / 2, e - 0.5)}[name]
        ends = [of(least), of(most)]
    rows = [
        one.sum(1) if name == "categorical_cross_entropy" else one.mean(1)
        for one in ends
    ]
    low, high = (float(np.average(one, weights=samples.weight)) for one in rows)
    slack = SLACK[network.dtype] * max(abs(low), abs(high)) + 1e-30
    return [low - slack, high + slack]


def reported(epoch, measure):
    of = epoch.validation if measure.startswith("validation_") else epoch.training
    return getattr(of, measure.removeprefix("validation_"))


def best_of(history, measure, min_delta=0.0):
    """The number of the best epoch by early stopping's rule; None: there is none."""
    least, best = np.inf, None
    for epoch in history:
        if reported(epoch, measure) < least - min_delta:
            least, best = reported(epoch, measure), epoch.number
    return best


def check_figure(network, history, measure, samples, loss, what):
    """Check the restored network; return whether other epochs' figures were told."""
    best = history.best_epoch
    figure = reported(history[best - 1 - history.epochs.done], measure)
    low, high = bounds(network, samples, measure.removeprefix("validation_"), loss)
    assert low <= figure <= high, (
        f"{what}: {measure} {figure} of epoch {best} is reported, and that of the "
        f"restored network is from {low} to {high}"
    )
    others = [reported(epoch, measure) for epoch in history if epoch.number != best]
    return any(not low <= other <= high for other in others)


def family(rng, count):
    """A generator for what kernels are built for: one of so many.

    Cases share kernels, whose builds and trials take most of the time.
    """
    return np.random.default_rng(int(rng.integers(count)))


class Trial:
    """A random training by `Network.fit`."""

    def __init__(self, seed, folder):
        rng = np.random.default_rng(seed)
        self.seed, self.path = seed, folder / "training.safetensors"
        few = family(rng, 100)
        dropout = chosen(few, [0.0] * 5 + [0.3])
        self.network = drawn_network(few, dropout)
        self.network.initialise(seed=seed)
        self.initial = self.network.parameters
        self.loss, rule = drawn_loss(few, self.network), drawn_rule(few)
        self.rule = with_rate(rng, rule)
        self.n = int(chosen(few, [1, 2, 7, 20, 33]))
        self.batch = self.rule.batch or int(
            chosen(few, [1, 3, self.n, self.n, self.n, self.n + 4])
        )
        self.data = drawn_samples(rng, self.network, self.n, few.random() < 0.3)
        self.held_out = drawn_samples(
            rng, self.network, int(chosen(few, [1, 5, 12])), few.random() < 0.3
        )
        self.options = {
            "optimiser": self.rule, "loss": self.loss, "batch_size": self.batch,
            "shuffle": chosen(few, [None, True, False]), "tune": False,
            "l1": chosen(few, [0.0, 0.0, 0.01]), "l2": chosen(few, [0.0, 0.0, 0.1]),
            "clip_norm": chosen(few, [None, None, 1.0]),
        }
        self.parts = few.random() < 0.3
        few_devices = self.parts or min(self.batch, self.n) < 2
        self.place = "one device" if few_devices else chosen(
            few, ["one device"] * 6 + ["copies", "two devices"]
        )
        self.options |= PLACES[self.place]
        self.sparse = not self.parts and few.random() < 0.2
        self.measure = chosen(rng, MONITORED)
        self.one_step = self.batch >= self.n and not self.measure.startswith("valid")
        self.exact = not dropout if self.one_step else self.measure.startswith("valid")
        self.epochs = int(chosen(rng, [1, 2, 5, 12, 30]))
        self.stopping = {
            "monitor": self.measure, "patience": int(chosen(rng, [1, 3, 10, 50])),
            "min_delta": chosen(rng, [0.0, 0.0, 0.0, 0.01]),
            "restore_best": bool(rng.random() < 0.9),
        }
        if hasattr(self.rule, "learning_rate") and rng.random() < 0.2:
            self.options["schedule"] = schedules.Exponential(0.9)
        if rng.random() < 0.1:
            self.options["desired_error"] = float(chosen(rng, [0.01, 0.3]))
        self.kept = {}
        self.how = "at once"
        self.rng = rng

    def samples(self):
        """Arguments of `fit`, in memory or by parts; the same each time."""
        data, held_out = self.data, self.held_out.arrays()
        if not self.parts:
            x, t, weight = (*data.arrays(), None)[:3]
            x = scipy.sparse.csr_matrix(x) if self.sparse else x
            return {"x": x, "t": t, "sample_weight": weight, "validation": held_out}
        rng = np.random.default_rng([self.seed, 1])
        width = sum(one[0].size for one in data.arrays())
        itemsize = np.dtype(self.network.dtype).itemsize
        rows = min(self.batch, self.n) + int(rng.integers(4))
        kinds = ["stored", "batches"]
        if self.epochs == 1 and (data.weight is None or self.batch > 1):
            kinds.append("generator")  # which does not tell the mean weight before
        kind = chosen(rng, kinds)
        if kind != "stored":  # nor does a list its number of samples
            rows = max(rows, self.batch)
        options = {"buffer": BLOCKS * itemsize * width * rows}
        if kind == "stored":
            options |= {"x": Stored(data.x), "t": Stored(data.t),
                        "sample_weight": data.weight}
        else:
            listed = data.batches(rng)
            options |= {"x": iter(listed) if kind == "generator" else listed, "t": None}
        options["validation"] = chosen(rng, [
            held_out, tuple(map(Stored, held_out)), self.held_out.batches(rng)
        ])
        return options

    def fit(self, network, callbacks, **options):
        return network.fit(
            **self.samples(), callbacks=callbacks, **self.options, **options
        )

    def keep(self, training, epoch):
        self.kept[epoch.number] = training.parameters

    def train(self):
        """Train in one call or in two, and return the history."""
        rng, network = self.rng, self.network
        if self.epochs > 1:
            self.how = chosen(rng, [
                "at once", "goes on", "after a crash", "of another's file", "of a state"
            ])
        callbacks = [EarlyStopping(**self.stopping),
                     Checkpoint(self.path, every=int(chosen(rng, [1, 1, 3])))]
        if rng.random() < 0.5:
            callbacks.insert(int(rng.integers(2)), self.keep)
        whole = {"epochs": self.epochs, "seed": self.seed}
        if self.how == "at once":
            return self.fit(network, callbacks, **whole)
        first = int(rng.integers(1, self.epochs))
        if self.how == "of a state":
            state = self.fit(network, [], epochs=first, seed=self.seed).state
            return self.fit(
                network, callbacks, epochs=self.epochs - first, state=state
            )

        def crash(training, epoch):
            if epoch.number == first:
                raise CrashError

        earlier = [EarlyStopping(**self.stopping), Checkpoint(self.path)]
        if self.how == "after a crash":
            with suppress(CrashError):
                self.fit(network, [*earlier, crash], **whole)
        else:
            stops = self.how == "goes on"
            self.fit(network, earlier[not stops :], epochs=first, seed=self.seed)
        if not self.path.exists():  # of no epoch that was finite
            self.how, network.parameters = "at once", self.initial
            return self.fit(network, callbacks, **whole)
        network.parameters = network.parameters * 0
        return self.fit(network, callbacks, epochs=self.epochs, resume=self.path)

    def after(self, epochs):
        """The parameters after so many epochs of the same training in one call."""
        if epochs in self.kept:
            return self.kept[epochs]
        again = copy(self.network)
        again.parameters = self.initial
        if epochs:
            self.fit(again, [], epochs=epochs, seed=self.seed)
        return again.parameters

    def check(self):
        """Train, and return the kinds of what was judged."""
        found = Counter()
        where = self.place + ", by parts" * self.parts + ", sparse" * self.sparse
        try:
            history = self.train()
        except InputError as error:
            refusals = {"of another's file": "without this early stopping",
                        "of a state": "must be finite"}
            assert refusals.get(self.how, "\0") in str(error), f"{self.how}: {error}"
            return Counter({f"refused: {self.how}": 1})
        what = f"{self.how}, {where}, {self.rule.name}, batch {self.batch} of {self.n}"
        best, network = history.best_epoch, self.network
        np.testing.assert_array_equal(history.state.parameters, network.parameters)
        assert np.isfinite(network.parameters).all(), what
        expected = best_of(history, self.measure, self.stopping["min_delta"])
        assert best == expected or history.diverged, f"{what}: {best}, not {expected}"
        found["diverged"] += history.diverged
        if best is None or not self.stopping["restore_best"]:
            assert "restored" not in history.stopped, what
            found["nothing to restore"] += 1
            return found
        assert f"epoch {best} was the best by {self.measure}, and" in history.stopped
        if self.exact:
            samples = self.data if self.one_step else self.held_out
            found["told from other epochs"] += check_figure(
                network, history, self.measure, samples, self.loss, what
            )
            found[f"{self.measure}: {'one step' if self.one_step else 'after'}"] += 1
        else:
            after = self.after(best - self.one_step)
            np.testing.assert_array_equal(network.parameters, after, what)
            found["parameters of the epoch"] += 1
        found[f"fit {self.how}"] += 1
        found[f"fit on {where}"] += 1
        return found


def fit(seed):
    with tempfile.TemporaryDirectory() as folder:
        return Trial(seed, Path(folder)).check()


def population(seed):
    rng = np.random.default_rng(seed)
    few = family(rng, 30)
    network, count, n = drawn_network(few), int(few.integers(2, 6)), 24
    loss, rule = drawn_loss(few, network), with_rate(rng, drawn_rule(few))
    data = drawn_samples(rng, network, n, few.random() < 0.3)
    held_out = drawn_samples(rng, network, 9, few.random() < 0.3)
    options = {"patience": int(chosen(rng, [1, 3, 10]))}
    rows = None
    if few.random() < 0.5:
        rows = [rng.permutation(n)[: rng.integers(5, n)] for _ in range(count)]
    rest = rows is not None and few.random() < 0.7
    rate = getattr(rule, "learning_rate", None)
    if rate is not None and rng.random() < 0.7:
        options["learning_rate"] = (rate * 10.0 ** rng.uniform(-1, 1, count)).tolist()
    found = Population(network, count)
    histories = found.fit(
        data.x, data.t, sample_weight=data.weight, optimiser=rule, loss=loss,
        batch_size=rule.batch or int(chosen(few, [3, 8, 100])), rows=rows, seed=seed,
        epochs=int(chosen(rng, [1, 4, 15])), l2=chosen(few, [0.0, 0.1]),
        validation="rest" if rest else held_out.arrays(), tune=False, device=HOST,
        **options,
    )
    counts = Counter()
    for number, (one, history) in enumerate(zip(found, histories, strict=True)):
        what = f"network {number} of a population, {rule.name}"
        assert np.isfinite(one.parameters).all(), what
        np.testing.assert_array_equal(history.state.parameters, one.parameters, what)
        assert history.best_epoch == best_of(history, "validation_loss"), what
        if history.best_epoch is None:
            counts["nothing to restore"] += 1
            continue
        samples = held_out
        if rest:
            others = np.setdiff1d(np.arange(n), rows[number])
            samples = Samples(data.x[others], data.t[others], None)
        counts["told from other epochs"] += check_figure(
            one, history, "validation_loss", samples, loss, what
        )
        counts["network of a population"] += 1
    return counts


def cascade(seed):
    rng = np.random.default_rng(seed)
    measure = chosen(rng, MONITORED)
    network = Network(
        2, [Dense(int(chosen(rng, [1, 2])), chosen(rng, ["tanh", "identity"]))],
        seed=seed,
    )
    x, t = rng.normal(size=(30, 2)), rng.uniform(-1, 1, (30, network.n_out))
    held_out = rng.normal(size=(7, 2)), rng.uniform(-1, 1, (7, network.n_out))
    rule = Cascade(
        activation_functions=["tanh", "gaussian"], num_candidate_groups=1,
        max_out_epochs=int(chosen(rng, [2, 5, 30])), max_cand_epochs=10,
    )
    history = network.fit(
        x, t, optimiser=rule, max_neurons=int(chosen(rng, [0, 2, 4])), seed=seed,
        validation=held_out, device=HOST,
        desired_error=chosen(rng, [None, 0.2]),
        callbacks=[EarlyStopping(measure, patience=int(chosen(rng, [1, 9])))],
    )
    validates = measure.startswith("validation_")
    found = network.evaluate(*(held_out if validates else (x, t)), HOST)
    name = measure.removeprefix("validation_").replace("loss", "mse")
    figure = reported(history[history.best_epoch - 1], measure)
    assert history.best_epoch == best_of(history, measure)
    np.testing.assert_allclose(figure, getattr(found, name), 1e-4, err_msg=measure)
    np.testing.assert_array_equal(history.state.parameters, network.parameters)
    return Counter({"cascade": 1})


def scikit_learn(seed):
    """The score of the restored network, and the losses of others that are exact."""
    rng = np.random.default_rng(seed)
    n, solver = int(chosen(rng, [20, 60])), chosen(rng, ["sgd", "adam", "lbfgs"])
    classifies, stops = rng.random() < 0.5, rng.random() < 0.7
    X, y = rng.normal(size=(n, 3)), rng.normal(size=n)
    if classifies:
        y = (y > 0).astype(int) + (rng.random() < 0.5) * (X[:, 0] > 0.5)
    weight = rng.uniform(0.1, 3, n) if rng.random() < 0.3 else None
    kind = MLPClassifier if classifies else MLPRegressor
    estimator = kind(
        hidden_layer_sizes=(4,), solver=solver, random_state=seed, max_iter=12,
        early_stopping=bool(stops), n_iter_no_change=int(chosen(rng, [1, 3, 20])),
        batch_size=chosen(rng, ["auto", 5]), alpha=chosen(rng, [0.0, 0.1]),
        learning_rate=chosen(rng, ["constant", "invscaling", "adaptive"]),
        learning_rate_init=float(chosen(rng, [0.01, 0.1, 1.0])),
        validation_fraction=0.3,
    )
    sets = []

    def split(*arrays, **options):
        sets.append(train_test_split(*arrays, **options))
        return sets[-1]

    given = scipy.sparse.csr_matrix(X) if rng.random() < 0.3 else X
    with mock.patch.object(mlp, "train_test_split", split):
        try:
            estimator.fit(given, y, weight)
            first = getattr(estimator, "n_iter_", 0)
            if stops and rng.random() < 0.3:
                estimator.set_params(warm_start=True).fit(given, y, weight)
        except ValueError as error:
            assert "non-finite" in str(error), error
            return Counter({"diverged": 1})
    if solver == "lbfgs":
        penalty = sum(float((one.astype(float) ** 2).sum()) for one in estimator.coefs_)
        penalty *= 0.5 * estimator.alpha / (n if weight is None else weight.sum())
        if classifies:
            loss = log_loss(y, estimator.predict_proba(X), sample_weight=weight)
        else:
            loss = mean_squared_error(y, estimator.predict(X), sample_weight=weight) / 2
        np.testing.assert_allclose(estimator.loss_, loss + penalty, 1e-4)
        return Counter({"scikit-learn's class, lbfgs": 1})
    if not stops:
        assert estimator.best_loss_ == min(estimator.loss_curve_)
        assert estimator.loss_ == estimator.loss_curve_[-1]
        return Counter({"scikit-learn's class, least loss": 1})
    best = estimator.best_validation_score_
    scores = [one for one in estimator.validation_scores_ if np.isfinite(one)]
    if not scores:
        return Counter({"diverged": 1})
    assert best == max(scores)
    # A warm start splits anew.
    _, held_out, _, targets, *weights = sets[
        -1 if estimator.validation_scores_.index(best) >= first else 0
    ]
    score = estimator.score(held_out, estimator._labels(targets), *weights[1:])
    np.testing.assert_allclose(score, best, 1e-4, 1e-5)
    return Counter({"scikit-learn's class, early stopping": 1})


WAYS = [fit] * 6 + [population, cascade, scikit_learn, scikit_learn]


def case(seed):
    """Judge a training by its seed."""
    way = WAYS[seed % len(WAYS)]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        for kind in ClnetWarning, ConvergenceWarning:
            warnings.simplefilter("ignore", kind)
        return way(seed)
