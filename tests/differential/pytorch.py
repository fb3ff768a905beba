"""PyTorch in float64, a second opinion on the oracle: outputs, gradients, trainings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
from bounds import FLOAT64, LAMBDA, span_bound
from deviations import deviation, perturbed_runs

from clnet import Network
from clnet.ir.lowering import nonlinearity
from clnet.ir.program import Program
from clnet.nn.activations import LEAK, SELU_ALPHA, SELU_SCALE, SOFTMAX
from clnet.nn.losses import HUBER_DELTA, LOSSES
from clnet.nn.optimisers import SGD, Adam, AdamW, Optimiser, RMSprop
from clnet.nn.random import permuted
from clnet.nn.storage.layout import live_elements

from .cases import Case

AVAILABLE = find_spec("torch") is not None
RULES = (SGD, Adam, AdamW, RMSprop)  # that PyTorch has
LOSS_NAMES = ("mse", "mae", "huber", "binary_cross_entropy",
              "categorical_cross_entropy")


def functions() -> dict[str, Callable[[Any], Any]]:
    """Return PyTorch's activations by clnet's names; it lacks FANN's stepwise ones."""
    import torch
    from torch.nn import functional

    return {
        "identity": lambda v: v, "sigmoid": torch.sigmoid, "tanh": torch.tanh,
        "gaussian": lambda v: torch.exp(-v * v),
        "gaussian_symmetric": lambda v: 2 * torch.exp(-v * v) - 1,
        "elliot": lambda v: functional.softsign(v) / 2 + 0.5,
        "elliot_symmetric": functional.softsign,
        "linear_piece": lambda v: functional.hardtanh(v, 0.0, 1.0),
        "linear_piece_symmetric": functional.hardtanh,
        "sin_symmetric": torch.sin, "cos_symmetric": torch.cos,
        "sin": lambda v: torch.sin(v) / 2 + 0.5,
        "cos": lambda v: torch.cos(v) / 2 + 0.5,
        "relu": functional.relu,
        # Its slope at 0 is FANN's 1; that of PyTorch's function is LEAK.
        "leaky_relu": lambda v: torch.where(v < 0, LEAK * v, v),
        # At 0 PyTorch's slope is that from below.
        "selu": lambda v: torch.where(
            v < 0, SELU_SCALE * SELU_ALPHA * torch.expm1(v), SELU_SCALE * v),
        "elu": functional.elu, "gelu": functional.gelu, "silu": functional.silu,
        # PyTorch's function adds 1 to a tanh near -1, and its error is beyond rounding.
        "gelu_tanh": lambda v: v * torch.sigmoid(
            math.sqrt(8 / math.pi) * (v + 0.044715 * v**3)
        ),
        "mish": functional.mish, "hardswish": functional.hardswish,
        "softplus": lambda v: torch.logaddexp(v, torch.zeros_like(v)),
    }


def outputs(network: Network, flat: Any, x: Any, logits: bool = False) -> Any:
    """Return the outputs for inputs x [batch, n_in] and parameters `flat` [size].

    With `logits`, those of the last layer before its activation.
    """
    import torch

    known = functions()
    values = [x]
    for number, layer in enumerate(network.layers):
        matrix, slot = network.matrices[number], network.layout.biases[number]
        z = torch.zeros((len(x), layer.n_out), dtype=torch.float64)
        for part in matrix.parts:
            entries = part.storage.entries()
            rows, columns, slots = map(torch.tensor, entries)
            dense = torch.zeros(
                (part.storage.n_out, part.storage.n_in), dtype=torch.float64
            ).index_put((rows, columns), flat[part.weights.offset + slots])
            z = z + values[part.source] @ dense.T
        if slot is not None:
            z = z + flat[slot.offset : slot.offset + slot.size]
        act = nonlinearity(layer.activation, layer.steepness, network.fann_compatible)
        v = z * torch.tensor(act.steepness, dtype=torch.float64)
        if act.limits is not None:
            limits = torch.tensor(act.limits, dtype=torch.float64)
            v = torch.minimum(torch.maximum(v, -limits), limits)
        if logits and number == len(network.layers) - 1:
            return v
        if layer.activation == SOFTMAX:
            values.append(torch.softmax(v, dim=1))
        elif layer.activation == "log_softmax":
            values.append(torch.log_softmax(v, dim=1))
        elif len(act.names) == 1:
            values.append(known[act.names[0]](v))
        else:
            columns = [known[name](v[:, i]) for i, name in enumerate(act.names)]
            values.append(torch.stack(columns, dim=1))
    return values[-1]


def knows(case: Case) -> bool:
    """Return whether PyTorch has all that a case needs."""
    names = set()
    for layer in case.layers:
        found = layer.activation
        names |= {found} if isinstance(found, str) else set(found)
    if not names <= functions().keys() | {SOFTMAX}:
        return False
    if case.options is None:
        return True
    trains = case.task != "gradients"
    return (
        not case.fann_compatible and case.options.loss in LOSS_NAMES
        and not any(layer.dropout for layer in case.layers)
        and not (trains and type(case.options.rule) not in RULES)
    )


def check_outputs(case: Case, network: Network, x: Any) -> Any:
    """Return errors and bounds of the oracle's outputs."""
    import torch

    program = network.program
    span = program.span(0, len(program.ops), case.batch)
    span = type(span)(span.ops, span.batch, "float64", span.outputs)
    exact, bounds = span_bound(span, {program.input.name: x}, network.parameters)
    flat = torch.from_numpy(network.parameters.astype(np.float64))
    found = outputs(network, flat, torch.from_numpy(x.astype(np.float64))).numpy()
    wanted, bound = exact[program.output.name], bounds[program.output.name]
    known = ~np.isnan(wanted)
    return np.abs(found - wanted)[known], 2 * bound[known]


def check_training(
    case: Case, program: Program, network: Network, values: Mapping[str, Any],
    parameters: Any, passes: Iterable[Mapping[str, Any]],
) -> tuple[Any, Any]:
    """Return errors and bounds of the oracle's gradients, or trained parameters."""
    import torch

    options = case.options
    assert options is not None
    passes = list(passes)
    runs = perturbed_runs(program.ops, values, parameters, FLOAT64, passes)
    exact, draws = next(runs), list(runs)
    rows = {name: torch.from_numpy(np.array(values[name], np.float64))
            for name in values if name != "state"}
    x, t, *weight = (rows[value.name] for value in program.inputs)
    flat = torch.from_numpy(np.array(parameters, np.float64)).requires_grad_()
    rule = None if case.task == "gradients" else _rule(options.rule, flat)
    live = live_elements(network.layout, network.storages)
    weights = torch.from_numpy(live.copy())
    weights[network.layout.biases_start :] = False
    for now in passes:
        at = (now["first"] + np.arange(now["samples"])) % len(x)
        if options.shuffled and now["batch"] < options.samples:
            at = permuted(at, options.samples, now["key"]).astype(np.int64)
        flat.grad = None
        each = _loss(options.loss, outputs(
            network, flat, x[at], LOSSES[options.loss].fused is not None
        ), t[at])
        total = (each * weight[0][at, 0]).sum() if weight else each.sum()
        if rule is None:
            total.backward()
            continue
        regular = options.regularisation
        penalty = regular.l1 * flat[weights].abs().sum()
        penalty = penalty + regular.l2 * flat[weights].square().sum()
        (total / now["samples"] + penalty).backward()
        assert flat.grad is not None
        flat.grad[~torch.from_numpy(live)] = 0
        if regular.clip_value is not None:
            flat.grad.clamp_(-regular.clip_value, regular.clip_value)
        if regular.clip_norm is not None:
            flat.grad *= min(1.0, regular.clip_norm / float(flat.grad.norm()))
        for group in rule.param_groups:
            group["lr"] = now["rate"]
        rule.step()
    errors, bounds = [], []

    def compare(name: str, found: Any, live: Any) -> None:
        spread = deviation(exact[name], [draw[name] for draw in draws])
        errors.append(np.abs(found - exact[name][0])[live])
        bounds.append(LAMBDA * spread[0][live])

    if rule is not None:
        compare("parameters", flat.detach().numpy(), live)
    else:
        assert flat.grad is not None
        gradient = flat.grad.numpy()
        for op in program.ops:
            for value, slot in op.gradient_slots.items():
                where = slice(slot.offset, slot.offset + slot.size)
                compare(value.name, gradient[where], live[where])
    return np.concatenate(errors), np.concatenate(bounds)


def _loss(name: str, y: Any, t: Any) -> Any:
    """Return each sample's loss [batch]."""
    from torch.nn import functional

    if name == "categorical_cross_entropy":
        return -(t * functional.log_softmax(y, dim=1)).sum(dim=1)
    rule = {
        "mse": functional.mse_loss, "mae": functional.l1_loss,
        "huber": lambda *a, **k: functional.huber_loss(*a, delta=HUBER_DELTA, **k),
        "binary_cross_entropy": functional.binary_cross_entropy_with_logits,
    }[name]
    return rule(y, t, reduction="none").mean(dim=1)


def _rule(rule: Optimiser, flat: Any) -> Any:
    from torch import optim

    if isinstance(rule, SGD):
        return optim.SGD([flat], rule.rate, rule.momentum, 0.0, rule.weight_decay,
                         rule.nesterov)
    if isinstance(rule, RMSprop):
        return optim.RMSprop([flat], rule.rate, rule.alpha, rule.eps,
                             rule.weight_decay, rule.momentum, rule.centered)
    assert isinstance(rule, Adam)
    kind = optim.AdamW if isinstance(rule, AdamW) else optim.Adam
    return kind([flat], rule.rate, (rule.beta1, rule.beta2), rule.eps,
                rule.weight_decay)
