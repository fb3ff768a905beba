"""Training by PyTorch and scikit-learn, and the list of all baselines of training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any, ClassVar

import numpy as np

from clnet.nn.optimisers import RPROP_LEAST_STEP, Adam, Batch, Incremental, Rprop
from clnet.opencl.device import Device

from ..candidates import Baseline, Candidate, Prepared, RefusedError
from ..cases.dense import Array
from ..cases.training import Clock, Trained, TrainingCase, trainer
from ..environment import blas_threads
from .dense import OnTorch, captured
from .fann import FannTraining
from .layers import torch_module
from .training_numpy import NumPyTraining


@dataclass(frozen=True)
class TorchTraining(OnTorch):
    """PyTorch: a Sequential, its loss and its optimiser; data on the device."""

    # On the CPU ``"torch"``, run op by op, or ``"torch-cpu-compile"``; on a CUDA device
    # ``"torch-cuda"``, op by op, ``"torch-graph"``, each step replayed as one CUDA
    # graph, ``"torch-compile"``, loss and gradients compiled with mode reduce-overhead,
    # or ``"torch-compile-graph"``, compiled and then captured
    name: str = "torch"

    def prepare(self, case: TrainingCase, device: Device) -> Prepared:
        """Return the loop over epochs and batches."""
        import torch

        torch.set_float32_matmul_precision(case.precision)
        target = "cpu" if self.name in self.on_cpu else "cuda"
        model = sequential(case).to(target)
        parameters = list(model.parameters())
        start = [p.detach().clone() for p in parameters]
        graph = self.name.endswith("-graph")
        rule, rate = torch_rule(case, parameters, graph)
        loss_of = _torch_loss(case, model)
        if "compile" in self.name:
            if not graph:
                # Without a reset all cases are compilations of one function.
                torch._dynamo.reset()
            mode = "reduce-overhead" if target == "cuda" and not graph else "default"
            loss_of = torch.compile(loss_of, mode=mode, dynamic=False)
        total = torch.zeros((), device=target)
        x, t = (torch.from_numpy(a).to(target) for a in _torch_data(case))
        batches = list(zip(x.split(case.batch), t.split(case.batch), strict=True))

        def step(rows: Any, targets: Any) -> None:
            rule.zero_grad(set_to_none=True)
            loss = loss_of(rows, targets)
            loss.backward()
            rule.step()
            with torch.no_grad():
                total.add_(loss, alpha=len(rows))

        def finish() -> None:
            if target == "cuda":
                torch.cuda.synchronize()

        run = _captured(step, batches) if graph else step
        scale = _TORCH_SCALES[case.optimiser.name](case)

        def train(epochs: int) -> Trained:
            restart(rule, parameters, start, rate)
            total.zero_()
            clock = Clock()
            errors = []
            for number in range(1 + epochs):
                for rows, targets in batches:
                    run(rows, targets)
                errors.append(total.clone())
                total.zero_()
                if number in (0, epochs):
                    finish()
                    clock()
            return Trained([float(e) * scale for e in errors], clock.seconds)

        if "compile" in self.name:
            train(0)
        threads = torch.get_num_threads() if target == "cpu" else None
        return trainer(
            case, train, expected=partial(torch_errors, case), threads=threads,
            spins=target == "cpu",
        )


TORCH_RPROP_AGREES = 3  # epochs; after a sign change PyTorch's step grows one later
# Factors from an epoch's sum of the steps' loss times their samples to its error.
_TORCH_SCALES: dict[str, Callable[[TrainingCase], float]] = {
    "rprop": lambda case: 1 / case.samples,
    **dict.fromkeys(
        ("incremental", "batch"), lambda case: 2 / (case.samples * case.sizes[-1])
    ),
    "adam": lambda case: 1 / case.samples,
}


def torch_errors(case: TrainingCase) -> list[float]:
    """Return the expected errors of the epochs in which PyTorch's rule agrees."""
    rprop = isinstance(case.optimiser, Rprop)
    return case.errors[: TORCH_RPROP_AGREES if rprop else None]


def restart(rule: Any, parameters: list[Any], start: list[Any], rate: float) -> None:
    """Set parameters to those of the start, and an optimiser's state to its first."""
    import torch

    with torch.no_grad():
        for p, values in zip(parameters, start, strict=True):
            p.copy_(values)
    for state in rule.state.values():
        for name, value in state.items():
            if value is not None:
                value.fill_(rate if name == "step_size" else 0)


def sequential(case: TrainingCase) -> Any:
    """Return a case's network, but for a softmax, as PyTorch's module."""
    module = torch_module(case.network())
    return module[:-1] if case.output == "softmax" else module  # part of the loss


def _torch_loss(case: TrainingCase, model: Any) -> Callable[[Any, Any], Any]:
    from torch.nn import functional

    kinds: dict[str, Callable[[Any, Any], Any]] = {
        "rprop": functional.mse_loss,
        **dict.fromkeys(("incremental", "batch"), lambda y, t: (
            0.5 / len(y) * functional.mse_loss(y, t, reduction="sum")
        )),
        "adam": functional.cross_entropy,
    }
    function = kinds[case.optimiser.name]
    return lambda x, t: function(model(x), t)


def torch_rule(
    case: TrainingCase, parameters: list[Any], capturable: bool
) -> tuple[Any, float]:
    """Return the optimiser and its initial rate."""
    from torch import optim

    rule = case.optimiser
    if isinstance(rule, Rprop):
        rate = rule.delta_zero * rule.increase_factor  # PyTorch's grows from then on
        optimiser = optim.Rprop(
            parameters, lr=rate, etas=(rule.decrease_factor, rule.increase_factor),
            step_sizes=(RPROP_LEAST_STEP, rule.delta_max), foreach=True,
            capturable=capturable,
        )
        return optimiser, rate
    if isinstance(rule, Adam):
        return optim.Adam(
            parameters, rule.learning_rate, (rule.beta1, rule.beta2), rule.eps,
            fused=True, capturable=capturable,
        ), rule.learning_rate
    if isinstance(rule, (Incremental, Batch)):
        return optim.SGD(parameters, rule.learning_rate, fused=True), rule.learning_rate
    raise RefusedError(f"{rule.name} is not implemented for PyTorch")


def _torch_data(case: TrainingCase) -> tuple[Array, Array]:
    x, t = case.data
    return x, case.labels if case.output == "softmax" else t


def _captured(
    step: Callable[[Any, Any], None], batches: list[tuple[Any, Any]]
) -> Callable[[Any, Any], None]:
    """Return a step as one CUDA graph; batches are copied to its inputs."""
    single = len(batches) == 1
    x, t = batches[0] if single else (batch.clone() for batch in batches[0])
    graph, _ = captured(lambda: step(x, t))

    def run(rows: Any, targets: Any) -> None:
        if not single:
            x.copy_(rows)
            t.copy_(targets)
        graph.replay()

    return run


@dataclass(frozen=True)
class ScikitLearnTraining(Baseline):
    """scikit-learn's MLPClassifier, an epoch a `partial_fit`."""

    name: str = "sklearn"

    requires: ClassVar[tuple[str, ...]] = ("sklearn",)

    def prepare(self, case: TrainingCase, device: Device) -> Prepared:
        """Return the loop over epochs, from the case's initial weights."""
        from sklearn.neural_network import MLPClassifier

        rule = case.optimiser
        if not isinstance(rule, Adam):
            raise RefusedError("MLPClassifier trains by Adam")
        network, (x, _) = case.network(), case.data
        classes = np.arange(case.sizes[-1])

        def train(epochs: int) -> Trained:
            model = MLPClassifier(
                case.sizes[1:-1], activation=case.hidden, solver="adam", alpha=0.0,
                batch_size=case.batch, learning_rate_init=rule.learning_rate,
                beta_1=rule.beta1, beta_2=rule.beta2, epsilon=rule.eps, shuffle=False,
            )
            first = slice(case.batch)
            model.partial_fit(x[first], case.labels[first], classes=classes)
            for i, (w, b) in enumerate(
                zip(model.coefs_, model.intercepts_, strict=True)
            ):
                w[...] = network.weights(i).T
                b[...] = network.biases(i)
            del model._optimizer  # its moments belong to other weights
            clock = Clock()
            for _ in range(1 + epochs):
                model.partial_fit(x, case.labels)
                clock()
            return Trained(model.loss_curve_[1:], clock.seconds)

        return trainer(
            case, train, config=f"scikit-learn {metadata.version('scikit-learn')}",
            threads=blas_threads(), spins=True,
        )


def training_baselines(library: str | None) -> tuple[Candidate, ...]:
    """Return every baseline, in the order of the tables."""
    names = (
        "torch", "torch-cpu-compile", "torch-cuda", "torch-graph", "torch-compile",
        "torch-compile-graph",
    )
    return (
        FannTraining(library), NumPyTraining(), ScikitLearnTraining(),
        *(TorchTraining(name) for name in names),
    )
