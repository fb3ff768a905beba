"""JAX: inference by a jitted function, training by one jitted loop over all epochs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from clnet.nn.optimisers import RPROP_LEAST_STEP, Adam, Optimiser, Rprop
from clnet.opencl.device import Device

from ..candidates import Baseline, Prepared, RefusedError, forward
from ..cases.dense import Array, Case
from ..cases.training import Trained, TrainingCase, trainer
from .layers import name_elsewhere, weights_and_biases


class OnJax(Baseline):
    """A baseline of JAX's, on JAX's default device."""

    requires: ClassVar[tuple[str, ...]] = ("jax",)


def _config() -> str:
    import jax

    return f"jax {jax.__version__} on {jax.default_backend()}"


def _activations() -> dict[str, Callable[[Any], Any]]:
    import jax

    return {
        "identity": lambda v: v, "sigmoid": jax.nn.sigmoid, "tanh": jax.numpy.tanh,
        "relu": jax.nn.relu,
    }


@dataclass(frozen=True)
class Jax(OnJax):
    """``f(x @ W.T + b)``, layer by layer, as one jitted function."""

    name: str = "jax"

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return the function, its parameters on the device."""
        import jax

        f = name_elsewhere(case.activation, _activations())
        layers = [
            (jax.device_put(w.T), jax.device_put(b))
            for w, b in weights_and_biases(case)
        ]

        @jax.jit  # type: ignore[untyped-decorator]
        def model(x: Any) -> Any:
            with jax.default_matmul_precision("highest"):
                for weights, biases in layers:
                    x = f(x @ weights + biases)
            return x

        return forward(case, lambda x: np.asarray(model(x)), config=_config())


@dataclass(frozen=True)
class JaxTraining(OnJax):
    """A training as one jitted function: a loop over epochs, a scan over batches."""

    name: str = "jax"

    def prepare(self, case: TrainingCase, device: Device) -> Prepared:
        """Return the training, its data and initial weights on the device."""
        import jax
        from jax import lax, numpy
        from jax.flatten_util import ravel_pytree

        rule = case.optimiser
        if rule.name not in _UPDATES:
            raise RefusedError(f"{rule.name} is not implemented for JAX")
        update = _UPDATES[rule.name]
        network = case.network()
        start, unravel = ravel_pytree([
            (numpy.array(network.weights(i).T), numpy.array(network.biases(i)))
            for i in range(len(case.sizes) - 1)
        ])
        state = numpy.array(rule.initial_state(start.size, case.dtype))
        x, t = case.data
        whole = case.samples // case.batch * case.batch
        full = tuple(
            numpy.array(a[:whole].reshape(-1, case.batch, a.shape[1])) for a in (x, t)
        )
        rest = tuple(numpy.array(a[whole:]) for a in (x, t))
        loss = _loss(case)
        gradient = jax.value_and_grad(lambda w, x, t: loss(unravel(w), x, t))

        def step(carry: Any, batch: Any) -> Any:
            w, state, count = carry
            error, g = gradient(w, *batch)
            w, state = update(rule, w, g, state, count, len(batch[0]))
            return (w, state, count + 1), error

        def epoch(number: Any, carry: Any) -> Any:
            *inner, errors = carry
            inner, losses = lax.scan(step, tuple(inner), full)
            error = losses.sum()
            if len(rest[0]):
                inner, last = step(inner, rest)
                error += last
            return *inner, errors.at[number].set(error, mode="drop")

        @jax.jit  # type: ignore[untyped-decorator]
        def run(epochs: Any, w: Any, state: Any) -> Any:
            errors = numpy.zeros(case.checked, case.dtype)
            with jax.default_matmul_precision("highest"):
                return lax.fori_loop(0, epochs, epoch, (w, state, 0, errors))

        if case.networks > 1:
            run = jax.jit(jax.vmap(run, in_axes=(None, 0, 0)))
            start, state = (
                numpy.tile(a, (case.networks, *[1] * a.ndim)) for a in (start, state)
            )
        numbers = case.samples * (1 if case.by_loss else case.sizes[-1] / 2)

        def train(epochs: int) -> Trained:
            w, *_, errors = run(1 + epochs, start, state)
            w.block_until_ready()
            first = np.asarray(errors).reshape(case.networks, -1)[0]
            relative = first[: 1 + epochs] / numbers
            return Trained(relative.tolist(), math.nan)

        return trainer(case, train, config=_config())


def _loss(case: TrainingCase) -> Callable[[Any, Any, Any], Any]:
    """Return the sum of the losses of a batch: cross-entropies, or half squares."""
    import jax

    functions = _activations()

    def loss(layers: Any, x: Any, t: Any) -> Any:
        for weights, biases in layers[:-1]:
            x = functions[case.hidden](x @ weights + biases)
        weights, biases = layers[-1]
        x = x @ weights + biases
        if case.output == "softmax":
            return -(t * jax.nn.log_softmax(x)).sum()
        return 0.5 * ((functions[case.output](x) - t) ** 2).sum()

    return loss


def _rprop(rule: Rprop, w: Any, g: Any, state: Any, count: Any, n: int) -> Any:
    from jax import numpy

    before = numpy.maximum(state[0], RPROP_LEAST_STEP)
    same = state[1] * numpy.sign(g) >= 0
    step = numpy.where(
        same, numpy.minimum(before * rule.increase_factor, rule.delta_max),
        numpy.maximum(before * rule.decrease_factor, rule.delta_min),
    )
    g = numpy.where(same, g, 0)
    return w - numpy.sign(g) * step, numpy.stack([step, g])


def _descent(rule: Optimiser, w: Any, g: Any, state: Any, count: Any, n: int) -> Any:
    return w - rule.rate / n * g, state


def _adam(rule: Adam, w: Any, g: Any, state: Array, count: Any, n: int) -> Any:
    from jax import numpy

    g = g / n
    first = rule.beta1 * state[0] + (1 - rule.beta1) * g
    second = rule.beta2 * state[1] + (1 - rule.beta2) * g * g
    deviation = numpy.sqrt(second / (1 - rule.beta2 ** (count + 1))) + rule.eps
    step = rule.learning_rate / (1 - rule.beta1 ** (count + 1)) * first / deviation
    return w - step, numpy.stack([first, second])


_UPDATES: dict[str, Callable[..., Any]] = {
    "rprop": _rprop, "incremental": _descent, "batch": _descent, "adam": _adam
}
