"""Cases, drawn from seeds.

Kernels are built for activations, constants and configurations, and a build takes some
hundred times as long as a case. So `FAMILY` cases in a row share a network and its
covers, and the families of a season share activations and steepnesses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np

from clnet import Dense, Local, Network, Sparse
from clnet.checks import PRECISIONS
from clnet.nn.activations import ACTIVATIONS, SOFTMAX
from clnet.nn.layers import Layer
from clnet.nn.losses import LOSSES
from clnet.nn.optimisers import OPTIMISERS, SGD, Adam, Optimiser, RMSprop, Rprop
from clnet.nn.regularisation import PLAIN, Regularisation
from clnet.nn.schedules import SCHEDULES
from clnet.nn.storage.formats import AUTO, FORMATS
from clnet.nn.storage.pattern import PLACEMENTS

FAMILY = 128  # cases of one network
BATCHES = 4  # batch sizes of one network
SEASON = 16 * FAMILY  # cases of one palette
POPULATIONS = 1 << 29  # families from this number on are populations,
CASCADES = 1 << 30  # and from this one on cascade trainings

TASKS = {"predict": 0.6, "gradients": 0.15, "train": 0.15, "fit": 0.06,
         "population": 0.04}
"""The kinds of cases, and their shares.

``predict``: outputs. ``gradients``: a training step without an update. ``train``:
epochs of steps, replayed. ``fit``: `Network.fit`, with all its options.
``population``: `Population.fit`, of which each network is compared.
"""
CHAINS = {"dense": 0.8, "deep": 0.2}  # networks that may train side by side
NETWORKS = {"dense": 0.35, "deep": 0.1, "local": 0.15, "sparse": 0.2, "mixed": 0.2}

# Around whole vectors, warps, groups and tiles.
WIDTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 21, 31, 32, 33, 48, 63, 64, 65, 100, 127,
          128, 129)
WIDE = (255, 256, 257, 500, 1023, 1025)
BATCH_SIZES = (1, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127,
               128, 129)
LARGE_BATCHES = (255, 256, 257, 1000)
# At most, for the oracle's sake, which runs a training some times:
PARAMETERS = {"predict": 40_000, "population": 2_000}
TRAINED_PARAMETERS = 6_000
PRODUCTS = 100  # of a call or step, times as many
STEEPNESS = (1.0, 1.0, 0.5, 2.0, -1.0, 0.1)


@dataclass(frozen=True)
class Options:
    """Options of a training, of ``gradients``, ``train`` and ``fit``."""

    rule: Optimiser  # The optimiser; not of `gradients`
    loss: str  # A name of `losses.LOSSES` that fits the last layer
    samples: int  # Rows of the data set
    batches: bool = False  # Whether steps take `Case.batch` samples; False: all
    shuffled: bool = False  # Whether the order is random, and samples have weights
    weighted: bool = False
    regularisation: Regularisation = PLAIN  # Penalties and clipping
    epochs: int = 1  # Passes over the data set
    schedule: str | None = None  # As for `Network.fit`
    devices: int = 1  # Devices that share a batch; of `fit`
    # Samples of the validation set; of `fit`. Of `population` the training's own, if it
    # is not 0.
    validation: int = 0
    members: int = 1  # Networks of a population
    # Whether each trains on samples of its own, at a rate, with penalties and with
    # dropout of its own
    subsets: bool = False
    rates: bool = False
    penalties: bool = False
    dropouts: bool = False


@dataclass(frozen=True)
class Case:
    """One comparison."""

    seed: int  # Of parameters and data
    task: str  # One of `TASKS`
    n_in: int  # As for `Network`
    layers: tuple[Layer, ...]
    dtype: str = "float32"
    fann_compatible: bool = False
    batch: int = 1  # Samples of a call or step
    precision: str = PRECISIONS[0]  # One of `PRECISIONS`
    options: Options | None = None  # Of a training
    cover: int = 0  # Seed of the cover
    season: int = 0  # Seed of the configurations that covers prefer
    # A variant and its configuration: the cover takes it wherever it can, and the
    # reference variants elsewhere; None: drawn from `cover`
    only: tuple[str, Mapping[str, int]] | None = field(default=None, hash=False)
    # Whether a device without forward progress poses as one with a single group
    one_group: bool = False

    @property
    def shape(self) -> Case:
        """The case without its data: cases of equal shapes share what is compiled."""
        return replace(self, seed=0)

    def network(self) -> Network:
        """Return the network with parameters drawn from the seed."""
        network = Network(
            self.n_in, self.layers, seed=self.seed, dtype=self.dtype,
            fann_compatible=self.fann_compatible,
        )
        network.parameters = self.parameters(network)
        return network

    def parameters(self, network: Network) -> Any:
        """Return parameters [size]; the scale differs from seed to seed."""
        rng = np.random.default_rng([self.seed, 1])
        fan_in = np.sqrt(np.mean(network.sizes[:-1]))
        scale = rng.choice([0.3, 1.0, 1.0, 1.0, 4.0]) / fan_in
        found = rng.standard_normal(network.layout.size) * scale
        if rng.random() < 0.1:
            found[rng.random(found.shape) < 0.5] = 0
        return found

    def inputs(self, samples: int, width: int) -> Any:
        """Return inputs [samples, width] in the dtype; of some seeds with NaN."""
        rng = np.random.default_rng([self.seed, 2])
        x = rng.standard_normal((samples, width)) * rng.choice([0.01, 1, 1, 1, 10])
        if rng.random() < 0.2:
            x[rng.random(x.shape) < rng.random()] = 0
        if self.task == "predict" and rng.random() < 0.1:
            x[rng.integers(samples), rng.integers(width)] = np.nan
        return x.astype(self.dtype)

    def targets(self, samples: int, width: int) -> tuple[Any, Any]:
        """Return targets [samples, width] and weights [samples, 1] in the dtype."""
        rng = np.random.default_rng([self.seed, 3])
        t = rng.uniform(0.02, 0.98, (samples, width))
        assert self.options is not None
        if LOSSES[self.options.loss].fused == "softmax":
            t /= t.sum(axis=1, keepdims=True)
        if rng.random() < 0.5:  # classes
            t = np.eye(width)[rng.integers(width, size=samples)]
        weights = rng.uniform(0, 2, (samples, 1))
        return t.astype(self.dtype), weights.astype(self.dtype)


@dataclass(frozen=True)
class Outcome:
    """The result of a case."""

    fault: str | None = None  # The sentence of a failure; None: all is right
    skipped: str | None = None  # Why nothing was compared
    margin: float = 0.0  # Largest error over its bound
    steps: tuple[tuple[str, str], ...] = ()  # Variant and configuration of each step
    judged: bool = False  # Whether the oracle was compared with PyTorch


# Draws ------------------------------------------------------------------------------


class Draw:
    """Random choices."""

    def __init__(self, *seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def one(self, items: Any) -> Any:
        """Return one of some items; of a mapping, one by its share."""
        if isinstance(items, Mapping):
            ends = list(accumulate(items.values()))
            at = np.searchsorted(ends, self.rng.random() * ends[-1], side="right")
            return list(items)[at]
        items = list(items)
        return items[int(self.rng.integers(len(items)))]

    def chance(self, share: float) -> bool:
        """Return True in a share of the calls."""
        return bool(self.rng.random() < share)

    def count(self, low: int, high: int) -> int:
        """Return a whole number from low to high."""
        return int(self.rng.integers(low, high + 1))


@dataclass(frozen=True)
class Palette:
    """The choices of a season: kernels are built for each of them."""

    dtype: str
    precision: str
    fann: bool
    activations: tuple[str, ...]
    steepness: tuple[float, ...]
    rules: tuple[Optimiser, ...]
    loss: str
    penalty: Regularisation

    @classmethod
    def of(cls, season: int) -> Palette:
        """Return the palette of a season."""
        draw = Draw(season, 4)
        names = list(ACTIVATIONS)
        dtype = "float64" if draw.chance(0.35) else "float32"
        precision = PRECISIONS[0]
        if dtype == "float32" and draw.chance(0.2):
            precision = draw.one(PRECISIONS[1:])
        penalty = {}
        if draw.chance(0.3):
            penalty["l1"] = draw.one((1e-3, 0.1))
        if draw.chance(0.3):
            penalty["l2"] = draw.one((1e-3, 0.1))
        clip = draw.one({"": 0.5, "clip_norm": 0.25, "clip_value": 0.25})
        if clip:
            penalty[clip] = draw.one((0.01, 0.5))
        losses = [name for name, row in LOSSES.items() if row.activation is None]
        return cls(
            dtype, precision, draw.chance(0.2),
            # All of them, in as many seasons.
            (names[season % len(names)], draw.one(("tanh", "sigmoid", "relu"))),
            (1.0, draw.one(STEEPNESS)), (_rule(draw), _rule(draw)), draw.one(losses),
            Regularisation(**penalty),
        )


def family(number: int) -> Iterator[Case]:
    """Yield the cases of a family, whose seeds are ``number * FAMILY`` and up."""
    if number >= CASCADES:
        from .cascade_cases import cascades

        yield from cascades(number)
        return
    draw = Draw(number, 0)
    season = number * FAMILY // SEASON
    palette = Palette.of(season)
    task = "population" if number >= POPULATIONS else draw.one(TASKS)
    dtype = "float32" if task == "population" else palette.dtype  # of its kernels
    most = PARAMETERS.get(task, TRAINED_PARAMETERS)
    size = most + 1
    while size > most:
        n_in, layers = _layers(draw, palette, task)
        size = Network(n_in, layers, seed=0).layout.size
    if task == "population":
        layers = _dropped(Draw(number, 6), layers)
    limit = PRODUCTS * most / size
    few = [n for n in BATCH_SIZES if n <= max(1, limit)]
    many = [n for n in LARGE_BATCHES if n <= limit] or few
    batches = [draw.one(many if draw.chance(0.05) else few) for _ in range(BATCHES)]
    if draw.chance(0.2):
        batches = [1] * BATCHES  # of which some variants compute no more
    one_group = task == "predict" and draw.chance(0.3)
    cover = draw.count(0, 1 << 31)
    rule = draw.one(palette.rules)
    shapes = []
    for batch in batches:
        options = None if task == "predict" else _options(
            draw, palette, rule, task, layers, batch
        )
        shapes.append(Case(
            0, task, n_in, layers, dtype, palette.fann, batch,
            palette.precision, options, cover, season, one_group=one_group,
        ))
    for member in range(FAMILY):
        yield replace(shapes[member % BATCHES], seed=number * FAMILY + member)


def _layers(
    draw: Draw, palette: Palette, task: str
) -> tuple[int, tuple[Layer, ...]]:
    chains = task == "population" and draw.chance(0.9)
    kind = draw.one(CHAINS if chains else NETWORKS)
    widths = WIDTHS if draw.chance(0.9) else (*WIDTHS, *WIDE)

    def neurons(n: int, last: bool) -> dict[str, Any]:
        names: Any = draw.one(palette.activations)
        if draw.chance(0.04):
            names = tuple(draw.one(palette.activations) for _ in range(n))
        elif last and draw.chance(0.15):
            names = draw.one((SOFTMAX, "sigmoid", "identity"))
            if names == SOFTMAX and n == 1:  # which is refused
                names = "sigmoid"
        steepness: Any = draw.one(palette.steepness)
        if names == SOFTMAX:
            steepness = 1.0
        elif draw.chance(0.03):
            steepness = tuple(draw.one(palette.steepness) for _ in range(n))
        dropout = 0.0
        if task != "predict" and not last and not chains and draw.chance(0.15):
            dropout = draw.one((0.1, 0.5))
        return {"activation": names, "steepness": steepness, "dropout": dropout}

    if kind == "local":
        n_in, count = draw.count(8, 200), draw.count(1, 6)
        width, stack = n_in, []
        for number in range(count):
            window = min(draw.one((1, 2, 3, 3, 4, 5, 7, 9, 17, 33)), width)
            width -= window - 1
            stack.append(Local(
                window, bias=draw.one(("shared", "neuron", None)),
                **neurons(width, number == count - 1),
            ))
        return n_in, tuple(stack)
    count = draw.one({1: 0.15, 2: 0.4, 3: 0.3, 4: 0.15})
    sizes = [draw.one(widths) for _ in range(count + 1)]
    if kind == "deep":
        sizes = [draw.one(WIDTHS)] + [draw.one(WIDTHS)] * draw.count(3, 9)
    count = len(sizes) - 1
    layers: list[Layer] = []
    unread: set[int] = set()
    shortcuts = kind == "mixed" and draw.chance(0.5)
    for number in range(count):
        n, last = sizes[number + 1], number == count - 1
        options = neurons(n, last)
        options["bias"] = not draw.chance(0.15)
        sources = None
        if shortcuts and number:
            found = {k for k in range(number + 1) if draw.chance(0.5)}
            found |= unread if last else set()
            sources = tuple(sorted(found | {number}))
        unread = (unread | {number}) - set(sources or (number,))
        options["sources"] = sources
        read = sum(sizes[k] for k in sources or (number,))
        sparse = kind == "sparse" or (kind == "mixed" and draw.chance(0.4))
        if kind == "mixed" and not sources and read > 8 and draw.chance(0.2):
            window = draw.count(1, min(9, read))
            sizes[number + 1] = read - window + 1
            for name in ("activation", "steepness"):
                if isinstance(options[name], tuple):
                    options[name] = options[name][0]
            options["bias"] = draw.one(("shared", "neuron", None))
            layers.append(Local(window, **options))
        elif sparse:
            layers.append(_sparse(draw, n, read, options))
        else:
            layers.append(Dense(n, **options))
    return sizes[0], tuple(layers)


def _sparse(draw: Draw, n_out: int, n_in: int, options: dict[str, Any]) -> Sparse:
    form = draw.one((*FORMATS, AUTO))
    if draw.chance(0.6):
        return Sparse(
            n_out, density=draw.one((0.02, 0.1, 0.3, 0.8, 1.0)),
            placement=draw.one(list(PLACEMENTS)), seed=draw.count(0, 99), format=form,
            **options,
        )
    mask = np.zeros((n_out, n_in), bool)
    rows, columns = np.indices(mask.shape)
    kind = draw.one(("band", "long row", "long column", "empty rows", "one entry"))
    if kind == "band":
        offset = draw.count(-n_out + 1, n_in - 1)
        mask |= np.abs(columns - rows - offset) <= draw.count(0, 3)
    elif kind == "empty rows":
        mask |= draw.rng.random(mask.shape) < 0.3
        mask[draw.rng.random(n_out) < 0.5] = False
    elif kind != "one entry":
        mask |= draw.rng.random(mask.shape) < 0.05
        line = draw.count(0, n_out - 1), draw.count(0, n_in - 1)
        mask[line[0] if kind == "long row" else (slice(None), line[1])] = True
    mask[draw.count(0, n_out - 1), draw.count(0, n_in - 1)] = True
    return Sparse(n_out, pattern=mask, format=form, **options)


def _options(
    draw: Draw, palette: Palette, rule: Optimiser, task: str,
    layers: tuple[Layer, ...], batch: int,
) -> Options:
    last = layers[-1].activation
    fused = {"sigmoid": "binary_cross_entropy", SOFTMAX: "categorical_cross_entropy"}
    loss = palette.loss
    if last == SOFTMAX or (last in fused and draw.chance(0.5)):
        loss = fused[last]
    if task == "gradients":
        return Options(rule, loss, batch, weighted=draw.chance(0.3))
    batches = rule.batch is not None or draw.chance(0.7)
    size = rule.batch or batch
    devices = 1
    if task == "fit" and draw.chance(0.15) and not any(n.dropout for n in layers):
        devices = min(draw.count(2, 3), size)
    schedule = None
    fits = task in ("fit", "population")
    if fits and draw.chance(0.3) and hasattr(rule, "learning_rate"):
        schedule = draw.one(list(SCHEDULES))
    several = {} if task != "population" else {
        "members": draw.count(1, 5), "subsets": draw.chance(0.5),
        "rates": draw.chance(0.5),
    }
    options = Options(
        rule, loss, samples=draw.count(size, 3 * size + 2) if batches else size,
        batches=batches, shuffled=batches and draw.chance(0.5),
        weighted=draw.chance(0.25),
        regularisation=palette.penalty if draw.chance(0.5) else PLAIN,
        epochs=draw.count(1, 2), schedule=schedule, devices=devices,
        validation=draw.count(1, 40) if fits and draw.chance(0.3) else 0,
        **several,
    )
    return options if task != "population" else replace(
        options, penalties=draw.chance(0.5), dropouts=draw.chance(0.5)
    )


def _dropped(draw: Draw, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Return a population's layers, of which half have hidden neurons left out."""
    if draw.chance(0.5):
        return layers
    return tuple(
        replace(layer, dropout=draw.one((0.0, 0.1, 0.5))) for layer in layers[:-1]
    ) + layers[-1:]


def _rule(draw: Draw) -> Optimiser:
    """Return an optimiser with default constants or others."""
    name = draw.one(list(OPTIMISERS))
    if draw.chance(0.5):
        return OPTIMISERS[name]()
    others: dict[str, Any] = {
        "sgd": lambda: SGD(0.05, 0.9, draw.one((0.0, 0.01)), draw.chance(0.5)),
        "adam": lambda: Adam(0.01, 0.5, 0.7, weight_decay=draw.one((0.0, 0.1))),
        "rmsprop": lambda: RMSprop(0.01, 0.9, 0.1, 0.01, 0.5, draw.chance(0.5)),
        "rprop": lambda: Rprop(delta_zero=0.01, moves_at_zero=draw.chance(0.5)),
    }
    return others[name]() if name in others else OPTIMISERS[name]()
