"""Populations by PyTorch: the parameters of all networks in one tensor a layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from clnet.opencl.device import Device

from ..candidates import Prepared
from ..cases.training import Trained, TrainingCase, trainer
from .dense import OnTorch, captured
from .training import restart, sequential, torch_errors, torch_rule


@dataclass(frozen=True)
class TorchPopulation(OnTorch):
    """All networks' epochs of full batches on a CUDA device, each one CUDA graph."""

    # ``"torch-baddbmm"``, products of stacks of matrices, or ``"torch-vmap"``,
    # `torch.func.vmap` of one network's gradient
    name: str = "torch-baddbmm"

    def prepare(self, case: TrainingCase, device: Device) -> Prepared:
        """Return the training of all networks, from the case's initial weights."""
        import torch

        torch.set_float32_matmul_precision(case.precision)
        model = sequential(case).to("cuda")
        start = [
            p.detach().expand(case.networks, *p.shape).clone()
            for p in model.parameters()
        ]
        parameters = [p.clone().requires_grad_() for p in start]
        x, t = (torch.from_numpy(a).to("cuda") for a in case.data)
        rule, rate = torch_rule(case, parameters, capturable=True)
        gradients = _by_vmap if self.name == "torch-vmap" else _by_products
        losses_of = gradients(case, model, parameters, x, t)
        error = torch.zeros((), device="cuda")

        def epoch() -> None:
            rule.zero_grad(set_to_none=True)
            error.copy_(losses_of()[0])
            rule.step()

        graph, _ = captured(epoch)

        def train(epochs: int) -> Trained:
            restart(rule, parameters, start, rate)
            errors = []
            for number in range(1 + epochs):
                graph.replay()
                if number < case.checked:
                    errors.append(error.clone())
            torch.cuda.synchronize()
            return Trained([float(e) for e in errors], math.nan)

        def expected() -> list[float]:
            # Of a parity's patterns some gradients are zero but for rounding, by whose
            # sign RPROP moves a whole step.
            return torch_errors(case) if case.file or case.by_loss else case.errors[:1]

        return trainer(case, train, expected=expected)


Losses = Callable[[], Any]
"""A function that sets the gradients of all networks, and returns their losses [N]."""


def _loss(case: TrainingCase) -> Callable[[Any, Any], Any]:
    """Return the mean loss of outputs [..., samples, n_out], of each network."""
    if case.by_loss:
        return lambda y, t: -(t * y.log_softmax(-1)).sum(-1).mean(-1)
    return lambda y, t: ((y - t) ** 2).mean((-2, -1))


def _by_products(
    case: TrainingCase, model: Any, parameters: Sequence[Any], x: Any, t: Any
) -> Losses:
    import torch

    n = case.networks
    activations = {"tanh": torch.tanh, "relu": torch.relu, "sigmoid": torch.sigmoid}
    loss = _loss(case)

    def losses_of() -> Any:
        v = x.expand(n, *x.shape)
        for i in range(0, len(parameters), 2):
            weights, biases = parameters[i : i + 2]
            v = torch.baddbmm(biases.unsqueeze(1), v, weights.transpose(1, 2))
            last = i == len(parameters) - 2
            name = case.output if last else case.hidden
            if name != "softmax":  # part of the loss
                v = activations[name](v)
        losses = loss(v, t)
        losses.sum().backward()
        return losses.detach()

    return losses_of


def _by_vmap(
    case: TrainingCase, model: Any, parameters: Sequence[Any], x: Any, t: Any
) -> Losses:
    import torch

    names = [name for name, _ in model.named_parameters()]
    loss = _loss(case)

    def loss_of(values: tuple[Any, ...]) -> Any:
        values_of = dict(zip(names, values, strict=True))
        return loss(torch.func.functional_call(model, values_of, (x,)), t)

    gradient = torch.func.vmap(torch.func.grad_and_value(loss_of))

    def losses_of() -> Any:
        gradients, losses = gradient(tuple(p.detach() for p in parameters))
        for p, g in zip(parameters, gradients, strict=True):
            p.grad = g
        return losses

    return losses_of
