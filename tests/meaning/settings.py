"""Settings of trainings by decades, beside steps written here from the rules' papers.

A case is a network, samples, and an optimiser with penalties and clipping, all of any
magnitude, trained at learning rates from 1e-30 to 1e30. `fit` ends beside the oracle,
or says that training diverged where a number overflows; nothing else is raised or
warned of. A population of the same settings does the same.

The oracle computes in float64, in `RUNS` copies at once. The first is exact, the second
rounds each result to the network's type, others round it at random, and overflow where
that type does. Their spread is the tolerance, so that the bound follows each case's
conditioning. Steps of PyTorch's rules are compared with ``torch.optim`` besides.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import clnet
from clnet import Dense, Network, Population
from clnet.errors import ClnetWarning
from clnet.nn.optimisers import OPTIMISERS, Optimiser
from clnet.nn.random import uniform

Array = NDArray[Any]

RUNS, MORE_RUNS = 8, 128  # copies of the oracle; those of a case that seems wrong
SPREAD = 4.0  # the tolerance, by the spread of the copies
SUM_ULPS, FUNCTION_ULPS = 2.0, 16.0  # of a sum's terms, each; of a function's value
CHAOTIC = 1e-3  # change by roundings, besides a parameter, after which none is compared
RATES = 3  # learning rates of a case, each a program of its own
SCHEDULED = 12  # those that share one
EPOCHS = 3
FANN_CLAMP = 1500.0
HIDDEN = {
    "tanh": (np.tanh, lambda z, y: 1 - y * y),
    "sigmoid": (lambda z: 1 / (1 + np.exp(-z)), lambda z, y: y * (1 - y)),
    "relu": (lambda z: np.maximum(z, 0), lambda z, y: (z > 0) * 1.0),
    "identity": (lambda z: z, lambda z, y: np.ones_like(y)),
}


def decade(rng: np.random.Generator, most: int = 30) -> float:
    """Return a number of any magnitude."""
    return float(rng.uniform(1, 10) * 10.0 ** rng.integers(-most, most + 1))


def drawn_rule(rng: np.random.Generator) -> Optimiser:
    """Return an optimiser; each constant is its default, or one of any magnitude."""
    kind = OPTIMISERS[str(rng.choice(list(OPTIMISERS)))]
    constants: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name == "learning_rate" or rng.random() < 0.6:
            continue
        if field.type == "bool":
            constants[field.name] = bool(rng.integers(2))
        elif field.name in ("beta1", "beta2", "alpha"):
            near = 1 - 10.0 ** -rng.uniform(0, 7)
            constants[field.name] = float(rng.choice([0.0, near]))
        elif field.name == "momentum":
            constants[field.name] = float(rng.choice([0.5, 0.9, 0.999]))
        elif field.name.endswith("_shift"):
            constants[field.name] = float(rng.uniform(-40, 40))
        elif field.name.endswith("_factor"):
            constants[field.name] = float(10.0 ** rng.uniform(-3, 3))
        elif field.name == "temperature":
            constants[field.name] = float(10.0 ** rng.uniform(-5, 1))
        else:
            constants[field.name] = decade(rng)
    return kind(**constants)


@dataclass(frozen=True)
class Setting:
    """A network with its samples, and how it is trained."""

    network: Network
    rule: Optimiser
    x: Array
    t: Array
    weight: Array | None
    options: dict[str, Any]
    loss: str

    def at(self, rate: float) -> Setting:
        """Return the setting at a learning rate, where the rule has one."""
        if not hasattr(self.rule, "learning_rate"):
            return self
        rule = dataclasses.replace(self.rule, learning_rate=rate)
        return dataclasses.replace(self, rule=rule)

    def fit(self, network: Network | Population, **options: Any) -> Any:
        """Train a network, which is changed."""
        return network.fit(
            self.x, self.t, loss=self.loss, sample_weight=self.weight, seed=5,
            shuffle=False, tune=False, **self.options, **options,
        )

    def __str__(self) -> str:
        layers = "-".join(map(str, self.network.sizes))
        names = [layer.activation for layer in self.network.layers]
        return (
            f"{layers} {names} {self.network.dtype} {self.loss} {self.rule} "
            f"{self.options} weights {self.weight} of {len(self.x)} samples"
        )


def drawn(rng: np.random.Generator) -> Setting:
    """Return a random setting."""
    dtype = str(rng.choice(["float32", "float64"]))
    loss = str(rng.choice([
        "mse", "mse", "mae", "huber", "binary_cross_entropy",
        "categorical_cross_entropy",
    ]))
    last = {
        "binary_cross_entropy": "sigmoid", "categorical_cross_entropy": "softmax"
    }.get(loss) or str(rng.choice(["identity", "tanh"]))
    n_in, n_out = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    if last == "softmax":
        n_out = max(n_out, 2)
    layers = [
        Dense(int(rng.integers(1, 8)), str(rng.choice(list(HIDDEN))))
        for _ in range(rng.integers(3))
    ]
    network = Network(
        n_in, [*layers, Dense(n_out, last)], seed=int(rng.integers(1000)), dtype=dtype
    )
    n = int(rng.integers(1, 12))
    x = rng.normal(0, 1, (n, n_in)) * float(rng.choice([1, 1, 1e-3, 1e3]))
    t = rng.uniform(0, 1, (n, n_out))
    if last == "softmax":
        t = np.eye(n_out)[rng.integers(0, n_out, n)]
    weight = None
    if rng.random() < 0.3:
        weight = rng.uniform(0, 2, n) * (rng.random(n) < 0.8)
        weight[0] = 1
    rule = drawn_rule(rng)
    options: dict[str, Any] = {
        name: decade(rng) for name in ("l1", "l2") if rng.random() < 0.3
    }
    if rng.random() < 0.3:
        options[str(rng.choice(["clip_norm", "clip_value"]))] = decade(rng)
    options["batch_size"] = 1 if rule.batch == 1 else int(rng.integers(1, n + 1))
    return Setting(
        network, rule, x.astype(dtype), t.astype(dtype), weight, options, loss
    )


class Oracle:
    """Epochs of a setting in float64: exact, and rounded at random, in copies."""

    def __init__(self, setting: Setting, runs: int, seed: int) -> None:
        self._setting, self._runs = setting, runs
        self._rng = np.random.default_rng(seed)
        self._dtype = setting.network.dtype
        info = np.finfo(self._dtype)
        self._u, self._most = float(info.eps) / 2, float(info.max)
        self._tiny = float(info.tiny)
        self.overflowed = self.chaotic = False
        self._rule = setting.rule
        self._places = places(setting.network)
        self.w = np.tile(setting.network.parameters.astype(np.float64), (runs, 1))
        initial = [self._constant(one) for one in self._rule.initial]
        self._state = [one + np.zeros_like(self.w) for one in initial]
        self._count = 0
        self._biases = np.ones(self.w.shape[1], bool)
        for weights, _ in self._places:
            self._biases[weights] = False
        self._weight = setting.weight
        if self._weight is not None:
            self._weight = setting.weight / setting.weight.max()

    def _r(self, values: Any, ulps: float = 1.0) -> Array:
        """Return values [runs, …], rounded in all copies but the first."""
        values = np.array(values, np.float64)
        rest = values[1:]
        noise = self._rng.uniform(-1, 1, (2, *rest.shape))
        rest[1:] *= 1 + ulps * self._u * noise[0, 1:]
        rest[1:] += self._tiny * noise[1, 1:] * (rest[1:] != 0)
        rest[0] = rest[0].astype(self._dtype)
        over = np.abs(rest) > self._most
        rest[over] = np.copysign(np.inf, rest[over])
        if not np.isfinite(values).all() or (np.abs(values) > self._most).any():
            self.overflowed = True
        return values

    def _constant(self, number: float) -> Array:
        """Return a setting [runs, 1], rounded."""
        return self._r(np.full((self._runs, 1), number))

    def _underflown(self, values: Array) -> Array:
        """Return exponentials [runs, …], which underflow to 0 or to small numbers."""
        noise = self._rng.uniform(0, FUNCTION_ULPS, values[1:].shape)
        values[1:] += self._tiny * noise
        return values

    def _sum(self, terms: Array, axis: int) -> Array:
        """Return the sum of terms along an axis; in some order, which rounds each."""
        count = terms.shape[axis]
        return self._r(self._r(terms, SUM_ULPS * count).sum(axis=axis))

    def epoch(self) -> Array:
        """Take the steps of an epoch; return the mean loss [runs] of the epoch."""
        setting, r = self._setting, self._r
        n, size = len(setting.x), setting.options["batch_size"]
        total = squares = np.zeros(self._runs)
        weight = np.ones(n) if self._weight is None else self._weight.copy()
        if self._weight is not None:
            for start in range(0, n, n if size == 1 else size):
                part = weight[start : start + (n if size == 1 else size)]
                part /= part.mean() if part.sum() > 0 else 1
        for start in range(0, n, size):
            rows = slice(start, start + size)
            x, t = (one[rows].astype(np.float64) for one in (setting.x, setting.t))
            samples = len(x)
            losses, errors, g = self._gradient(x, t, weight[rows])
            total = r(total + losses)
            squares = r(squares + errors)
            mse = r(squares / ((start + samples) * setting.t.shape[1]))
            self._step(self._regularised(g, samples), samples, mse[:, np.newaxis])
            self._count += 1
        return r(total / n)

    def _gradient(self, x: Array, t: Array, weight: Array) -> tuple[Array, ...]:
        """Return the sums of losses and squares [runs], and the gradient's sum."""
        setting, r = self._setting, self._r
        names = [str(layer.activation) for layer in setting.network.layers]
        outputs = [r(np.broadcast_to(x, (self._runs, *x.shape)))]
        sums = []
        for (weights, biases), name in zip(self._places, names, strict=True):
            w = self.w[:, weights]
            terms = outputs[-1][:, :, np.newaxis] * w[:, np.newaxis]
            z = r(self._sum(terms, 3) + self.w[:, biases][:, np.newaxis])
            if name != "identity" and self._u * np.abs(terms[0]).max() > CHAOTIC:
                self.chaotic = True
            sums.append(z)
            if name == "softmax":
                below = r(z - z.max(axis=2, keepdims=True))
                e = r(self._underflown(np.exp(below)), FUNCTION_ULPS)
                outputs.append(r(e / self._sum(e, 2)[:, :, np.newaxis]))
            else:
                y = HIDDEN[name][0](z)
                if name == "sigmoid":
                    y = self._underflown(y)
                outputs.append(r(y, FUNCTION_ULPS))
        y, z, at = outputs[-1], sums[-1], weight[:, np.newaxis]
        width = t.shape[1]
        d = r(y - t)
        if setting.loss == "mse":
            losses, delta = r(d * d) / width, 2 * d / width
        elif setting.loss == "mae":
            losses, delta = np.abs(d) / width, np.sign(d) / width
        elif setting.loss == "huber":
            near = np.abs(d) <= 1
            losses = r(np.where(near, d * d / 2, np.abs(d) - 0.5)) / width
            delta = np.clip(d, -1, 1) / width
        elif setting.loss == "binary_cross_entropy":
            soft = r(np.log1p(np.exp(-np.abs(z))), FUNCTION_ULPS)
            losses = r(r(np.maximum(z, 0) - r(z * t)) + soft) / width
            delta = d / width
        else:
            below = r(z - z.max(axis=2, keepdims=True))
            total = self._sum(np.exp(below), 2)[:, :, np.newaxis]
            log_total = r(np.log(total), FUNCTION_ULPS)
            losses, delta = r(t * r(log_total - below)), d
        delta = r(delta * at)
        if names[-1] not in ("softmax",) and not setting.loss.startswith("binary"):
            delta = r(delta * r(HIDDEN[names[-1]][1](z, y)))
        g = np.zeros_like(self.w)
        for layer in reversed(range(len(names))):
            weights, biases = self._places[layer]
            before = outputs[layer]
            terms = delta[:, :, :, np.newaxis] * before[:, :, np.newaxis]
            g[:, weights] = self._sum(terms, 1)
            g[:, biases] = self._sum(delta, 1)
            if layer:
                terms = delta[:, :, :, np.newaxis] * self.w[:, weights][:, np.newaxis]
                slope = HIDDEN[names[layer - 1]][1](sums[layer - 1], before)
                delta = r(self._sum(terms, 2) * r(slope))
        flat = (self._runs, -1)
        return (
            self._sum(r(losses * at).reshape(flat), 1),
            self._sum(r(d * d * at).reshape(flat), 1), g,
        )

    def _regularised(self, g: Array, samples: int) -> Array:
        """Return the gradient's sum with the penalties', clipped."""
        options, r = self._setting.options, self._r
        l1, l2 = options.get("l1", 0.0), options.get("l2", 0.0)
        if l1 or l2:
            of_weights = self.w * ~self._biases
            penalty = r(
                r(self._constant(l1) * np.sign(of_weights))
                + r(self._constant(2 * l2) * of_weights)
            )
            g = r(g + r(samples * penalty))
        if "clip_value" in options:
            limit = self._constant(options["clip_value"] * samples)
            g = np.clip(g, -limit, limit)
        if "clip_norm" in options:
            most = self._constant(options["clip_norm"])
            norm = r(np.sqrt(self._sum(r(g * g), 1)))[:, np.newaxis] / samples
            g = np.where(norm > most, r(g * r(most / norm)), g)
        return g

    def _step(self, g: Array, samples: int, mse: Array) -> None:
        """Change the parameters by the gradient's sum."""
        rule, r, c, state, w = self._rule, self._r, self._constant, self._state, self.w
        rate = c(rule.rate)
        settings = {
            field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)
        }
        get = settings.get
        mean = r(g / samples)
        if rule.name == "incremental":
            state[0] = r(r(c(get("momentum")) * state[0]) - r(rate * g))
            w = r(w + state[0])
        elif rule.name == "batch":
            w = r(w - r(rate * mean))
        elif rule.name == "sgd":
            mean = r(mean + r(c(get("weight_decay")) * w))
            state[0] = r(r(c(get("momentum")) * state[0]) + mean)
            step = r(mean + r(c(get("momentum")) * state[0])) if get("nesterov") else (
                state[0]
            )
            w = r(w - r(rate * step))
        elif rule.name in ("adam", "adamw"):
            if rule.name == "adamw":
                w = r(w - r(r(rate * c(get("weight_decay"))) * w))
            else:
                mean = r(mean + r(c(get("weight_decay")) * w))
            state[0] = self._average(state[0], mean, get("beta1"))
            state[1] = self._average(state[1], r(mean * mean), get("beta2"))
            state[1] = np.maximum(state[1], 0)
            count = self._count + 1
            first, second = (
                r(c(power(-math.expm1(count * math.log(max(get(beta), 1e-300))))), 4)
                for beta, power in (("beta1", float), ("beta2", math.sqrt))
            )
            deviation = r(r(r(np.sqrt(state[1])) / second) + c(get("eps")))
            w = r(w - r(r(rate / first) * r(state[0] / deviation)))
        elif rule.name == "rmsprop":
            mean = r(mean + r(c(get("weight_decay")) * w))
            if get("centered"):  # its moving variance, as Finch (2009)
                off = r(mean - state[1])
                spread = r(state[0] + r(c(1 - get("alpha")) * r(off * off)))
                state[0] = self._average(spread, np.zeros_like(spread), get("alpha"))
                state[1] = self._average(state[1], mean, get("alpha"))
            else:
                state[0] = self._average(state[0], r(mean * mean), get("alpha"))
            state[0] = np.maximum(state[0], 0)
            deviation = r(r(np.sqrt(state[0])) + c(get("eps")))
            state[2] = r(r(c(get("momentum")) * state[2]) + r(mean / deviation))
            w = r(w - r(rate * state[2]))
        elif rule.name == "rprop":
            w = self._rprop(-g, settings)
        elif rule.name == "quickprop":
            w = self._quickprop(-g, r(rate / samples), settings)
        else:
            w = self._sarprop(-g, mse, settings)
        self.w = w

    def _average(self, average: Array, value: Array, decay: float) -> Array:
        rest = self._constant(1 - decay)
        kept = self._constant(decay)
        if decay < 0.5:
            return self._r(value + self._r(kept * self._r(average - value)))
        return self._r(average + self._r(rest * self._r(value - average)))

    def _rprop(self, slope: Array, settings: dict[str, Any]) -> Array:
        r, c, get, state = self._r, self._constant, settings.get, self._state
        before = np.maximum(state[0], c(1e-4))
        same = np.sign(state[1]) * np.sign(slope) >= 0
        grown, shrunk = (
            r(before * c(get(f"{name}_factor"))) for name in ("increase", "decrease")
        )
        state[0] = np.where(
            same, np.minimum(grown, c(get("delta_max"))),
            np.maximum(shrunk, c(get("delta_min"))),
        )
        slope = np.where(same, slope, 0)
        move = np.sign(slope)
        if get("moves_at_zero"):
            move = np.where(slope >= 0, 1, -1)
        state[1] = slope
        return np.clip(r(self.w + move * state[0]), -FANN_CLAMP, FANN_CLAMP)

    def _quickprop(self, slope: Array, rate: Array, settings: dict[str, Any]) -> Array:
        """Take FANN's step, `fann_update_weights_quickprop`."""
        r, c, get, state = self._r, self._constant, settings.get, self._state
        step, before = state
        mu = c(get("mu"))
        shrink = c(get("mu") / (1 + get("mu")))
        slope = r(slope + r(c(get("decay")) * self.w))
        with np.errstate(all="ignore"):
            gap = r(before - slope)
            flat = gap == 0
            vertex = np.where(flat, 0, r(r(step * slope) / np.where(flat, 1, gap)))
        gradient = r(rate * slope)
        up = np.where(slope > 0, gradient, 0) + np.where(
            slope > r(shrink * before), r(mu * step), vertex
        )
        down = np.where(slope < 0, gradient, 0) + np.where(
            slope < r(shrink * before), r(mu * step), vertex
        )
        move = r(np.where(step > 1e-3, up, np.where(step < -1e-3, down, gradient)))
        state[0], state[1] = move, slope
        return np.clip(r(self.w + move), -FANN_CLAMP, FANN_CLAMP)

    def _sarprop(self, slope: Array, mse: Array, settings: dict[str, Any]) -> Array:
        """Take FANN's step, `fann_update_weights_sarprop`; the noise is clnet's."""
        r, c, get, state = self._r, self._constant, settings.get, self._state
        heat = -get("temperature") * self._count
        cooled = r(np.exp2(c(heat + get("weight_decay_shift"))), FUNCTION_ULPS)
        # FANN's slope is the negative gradient, and the step goes against it: clnet
        # keeps the gradient, decayed.
        slope = r(-slope - r(self.w * cooled))
        before = np.maximum(state[0], c(1e-6))
        grown = np.minimum(r(before * c(get("increase_factor"))), c(get("delta_max")))
        shrunk = r(before * c(get("decrease_factor")))
        noise = r(np.sqrt(mse)) * r(np.exp2(c(heat + get("step_error_shift"))), 16)
        noise = r(uniform(5, self._count, self.w.shape[1]) * r(noise))
        small = before < r(c(get("step_error_threshold_factor")) * mse)
        shrunk = np.where(small, r(shrunk + noise), np.maximum(shrunk, c(1e-6)))
        sign = np.sign(state[1]) * np.sign(slope)
        step = np.where(sign > 0, grown, before)
        move = np.where(sign < 0, 0, np.where(slope < 0, step, -step))
        state[0] = np.where(sign > 0, grown, np.where(sign < 0, shrunk, 0))
        state[1] = np.where(sign < 0, 0, slope)
        return r(self.w + move)

    @property
    def decided_by_rounding(self) -> bool:
        """Whether rounding alone decides a parameter, or the argument of a function.

        Large steps to and fro, for example, leave the rounding of the largest numbers.
        """
        changes = np.abs(self.w - self.w[0]).max(axis=0)
        return self.chaotic or bool((changes > np.abs(self.w[0]) + CHAOTIC).any())


def places(network: Network) -> list[tuple[Array, Array]]:
    """Return the elements of each layer's weights and biases in the parameters."""
    numbers = Network(network.n_in, network.layers, dtype="float64")
    numbers.parameters = np.arange(numbers.parameters.size)
    return [
        (numbers.weights(i).astype(int), numbers.biases(i).astype(int))
        for i in range(len(network.layers))
    ]


def judged(
    setting: Setting, parameters: Array, losses: list[float], diverged: bool, seed: int
) -> str:
    """Return the kind of a training; raise AssertionError for a fault."""
    for runs in (RUNS, MORE_RUNS):
        with np.errstate(all="ignore"):
            fault, kind = _compared(setting, parameters, losses, diverged, seed, runs)
        if not fault:
            return kind
    raise AssertionError(f"{fault}: {setting}")


def _compared(
    setting: Setting, parameters: Array, losses: list[float], diverged: bool, seed: int,
    runs: int,
) -> tuple[str, str]:
    """Return a fault, or an empty text, and the kind."""
    oracle = Oracle(setting, runs, seed)
    expected = [oracle.epoch() for _ in range(EPOCHS)]
    live = np.concatenate([one.ravel() for pair in oracle._places for one in pair])
    if diverged:
        if not np.isfinite(parameters).all():
            return "the parameters of a divergence are not finite", ""
        # Where rounding decides a sum, whether it overflows is decided by it too.
        overflows = oracle.overflowed or oracle.chaotic
        return "" if overflows else "told to diverge", "diverged"
    found = [("parameters", parameters[live], oracle.w[:, live])]
    if len(losses) != EPOCHS:
        return f"{len(losses)} epochs", ""
    found += [
        (f"loss of epoch {i}", np.array([loss]), one[:, np.newaxis])
        for i, (loss, one) in enumerate(zip(losses, expected, strict=True))
    ]
    kind, rounded = "as the oracle", oracle.decided_by_rounding
    if rounded:
        kind = "finite, and decided by roundings"
    elif oracle.overflowed:
        kind += ", with overflows"
    for name, values, copies in found:
        if not np.isfinite(values).all():
            return f"{name} not finite, untold", ""
        exact = copies[0]
        spread = np.fmax.reduce(np.abs(copies - exact), axis=0)
        info = np.finfo(setting.network.dtype)
        least = info.eps * np.abs(exact) + info.tiny
        off = ~(np.abs(values - exact) <= SPREAD * spread + least)
        if rounded:
            continue
        if oracle.overflowed:
            off &= ~(np.abs(values - exact) <= 1e-3 * np.abs(exact))
            off &= np.isfinite(copies).all(axis=0)
        if off.any():
            at = int(np.argmax(off))
            return (
                f"{name} {at} is {values[at]!r}, expected {exact[at]!r} within "
                f"{SPREAD * spread[at]:.3g}"
            ), ""
    return "", kind


def compare_torch(setting: Setting) -> bool:
    """Compare the oracle's exact copy with ``torch.optim``; return whether it could."""
    import torch

    kinds = {
        "sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW,
        "rmsprop": torch.optim.RMSprop,
    }
    rule, options = setting.rule, setting.options
    plain = {"l1", "l2", "clip_norm", "clip_value"}.isdisjoint(options)
    if rule.name not in kinds or not plain or setting.weight is not None:
        return False
    constants = dataclasses.asdict(rule)
    constants["lr"] = constants.pop("learning_rate")
    if "beta1" in constants:
        constants["betas"] = constants.pop("beta1"), constants.pop("beta2")
    if constants.get("nesterov") and not constants["momentum"]:
        return False
    w = [
        torch.tensor(one.astype(np.float64), requires_grad=True)
        for i in range(len(setting.network.layers))
        for one in (setting.network.weights(i), setting.network.biases(i))
    ]
    step = kinds[rule.name](w, **constants)
    n, size = len(setting.x), options["batch_size"]
    losses = {
        "mse": torch.nn.functional.mse_loss, "mae": torch.nn.functional.l1_loss,
        "huber": torch.nn.functional.huber_loss,
        "binary_cross_entropy": torch.nn.functional.binary_cross_entropy_with_logits,
        "categorical_cross_entropy": torch.nn.functional.cross_entropy,
    }
    fused = setting.loss.endswith("cross_entropy")
    for _ in range(EPOCHS):
        for start in range(0, n, size):
            y, t = (
                torch.tensor(one[start : start + size].astype(np.float64))
                for one in (setting.x, setting.t)
            )
            for i, layer in enumerate(setting.network.layers):
                y = y @ w[2 * i].T + w[2 * i + 1]
                last = i == len(setting.network.layers) - 1
                if layer.activation != "identity" and not (last and fused):
                    y = getattr(torch, str(layer.activation))(y)
            step.zero_grad()
            losses[setting.loss](y, t).backward()
            step.step()
    with np.errstate(all="ignore"):
        oracle = Oracle(setting, RUNS, 0)
        for _ in range(EPOCHS):
            oracle.epoch()
    if oracle.overflowed or oracle.decided_by_rounding:
        return False
    decay = max(constants.get("betas", (0.0,)))
    rounding = 1e-12 + 4 * np.finfo(float).eps / (1 - decay)
    for (weights, biases), i in zip(oracle._places, range(0, len(w), 2), strict=True):
        for places_of, tensor in ((weights, w[i]), (biases, w[i + 1])):
            copies = oracle.w[:, places_of]
            spread = np.abs(copies - copies[0]).max(axis=0)
            off = np.abs(tensor.detach().numpy() - copies[0])
            # PyTorch's 1 - beta^n cancels in float64.
            close = spread + rounding * np.abs(copies[0]).max()
            if np.isnan(off).any():  # its variance is below 0
                return False
            assert not (off > close).any(), (
                f"the oracle differs from torch.optim by {off.max():.3g}: {setting}"
            )
    return True


def trained(
    setting: Setting, network: Network | Population, **options: Any
) -> tuple[Any, set[str]]:
    """Return the history and the warnings; raise AssertionError for unexpected ones."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = setting.fit(network, **options)
    texts = {str(one.message) for one in caught}
    for one in caught:
        text = str(one.message)
        expected = issubclass(one.category, ClnetWarning) and (
            "diverged" in text or "targets of output" in text
        )
        assert expected, f"warned of {one.category.__name__} {text}: {setting}"
    return history, texts


def case(seed: int) -> Counter[str]:
    """Judge a setting at some learning rates, alone and as a population."""
    rng, counts = np.random.default_rng(seed), Counter[str]()
    base = drawn(rng)
    start = base.network.parameters
    rates = [decade(rng) for _ in range(RATES - 1)] + [decade(rng, 2)]
    has_rate = hasattr(base.rule, "learning_rate")
    of_rates = [base.at(rate) for rate in (rates if has_rate else rates[:1])]
    for setting in of_rates:
        setting.network.parameters = start
        _judge_fit(setting, seed, counts, optimiser=setting.rule)
        counts["compared with torch.optim"] += compare_torch(setting)
    # Of one program, by a schedule and from other parameters.
    kind = base.network.dtype
    for rate in [decade(rng) for _ in range(SCHEDULED)]:
        base.network.parameters = (start * rng.choice([-1, 0.01, 1, 30])).astype(kind)
        scheduled = {"schedule": lambda epoch, rate=rate: rate} if has_rate else {}
        _judge_fit(
            base.at(rate), seed, counts, optimiser=base.at(1.0).rule, **scheduled
        )
    if kind == "float32" and rng.random() < 0.3:
        _judge_population(of_rates, start, seed, counts)
    return counts


def _judge_fit(
    setting: Setting, seed: int, counts: Counter[str], **options: Any
) -> None:
    """Train the network, which keeps its parameters."""
    network = setting.network
    start = network.parameters
    try:
        history, texts = trained(setting, network, epochs=EPOCHS, **options)
    except (clnet.errors.ClnetError, ArithmeticError, ValueError) as error:
        raise AssertionError(f"{type(error).__name__} {error}: {setting}") from error
    parameters = network.parameters.astype(np.float64)
    network.parameters = start
    assert history.diverged == any("diverged" in text for text in texts), (
        f"a divergence without a warning: {setting}"
    )
    kind = judged(setting, parameters, list(history.loss), history.diverged, seed)
    counts[f"{setting.rule.name}: {kind}"] += 1


def _judge_population(
    of_rates: list[Setting], start: Array, seed: int, counts: Counter[str]
) -> None:
    """Train the settings side by side."""
    first = of_rates[0]
    networks = []
    for one in of_rates:
        one.network.parameters = start
        networks.append(one.network)
    population = Population.of(networks)
    weight = first.weight
    setting = dataclasses.replace(
        first, weight=None if weight is None else np.tile(weight, (len(of_rates), 1))
    )
    try:
        histories, _ = trained(
            setting, population, optimiser=[one.rule for one in of_rates],
            epochs=EPOCHS,
        )
    except (clnet.errors.ClnetError, ArithmeticError, ValueError) as error:
        raise AssertionError(
            f"population: {type(error).__name__} {error}: {first}"
        ) from error
    for one, history, row in zip(
        of_rates, histories, population.parameters, strict=True
    ):
        one.network.parameters = start
        try:
            kind = judged(
                one, row.astype(np.float64), list(history.loss), history.diverged, seed
            )
        except AssertionError as error:
            raise AssertionError(f"population: {error}") from error
        counts[f"population: {kind}"] += 1
