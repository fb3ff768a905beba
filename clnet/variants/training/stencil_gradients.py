"""stencil_gradients: the backward pass of a local layer, fused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clnet.ir.training_ops import ActGrad, BiasGrad, Outer
from clnet.nn.storage.local import LocalStorage
from clnet.opencl.launch import Argument, Gradients, Launch, Launches, Parameters
from clnet.variants.base import MIXED_ACTIVATIONS, Config, Reach, unsupported_dtype
from clnet.variants.cost import Cost, item_size, span_cost
from clnet.variants.team import team_group
from clnet.variants.training.outer import BLOCK
from clnet.variants.training.wide import (
    TEAM,
    derivative_defines,
    derivative_operand,
    two_stage,
    vector,
    vector_defines,
)

if TYPE_CHECKING:
    from clnet.ir.ops import Span
    from clnet.opencl.device import Device

WIDEST = 8  # window whose accumulators fit in registers
VECTORS = {"cpu": (256, 1024, 64), "gpu": (1, 2, 4)}
"""Vectors of a work-item, the usually best first."""


@dataclass(frozen=True)
class StencilGradients:
    """A work-item takes vectors of rows for all samples (``stencil_gradients.cl``).

    Config: ``team``, work-items of a group, 1 on CPU cores; ``vectors``, of a
    work-item.
    """

    name: str = "stencil_gradients"
    reach: Reach = "triple"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all but a local layer's `ActGrad`, `Outer`, `BiasGrad` in order."""
        act, *products = span.ops
        if not isinstance(act, ActGrad) or not products:
            return "it computes a layer's derivatives with its gradients, and no other"
        outer, *bias = products
        if not isinstance(outer, Outer) or outer.dz != act.dz:
            return "it computes a layer's derivatives with its gradients, and no other"
        if any(not isinstance(op, BiasGrad) or op.dz != act.dz for op in bias):
            return "it computes the layer's own bias gradient, and here is another op"
        if not isinstance(outer.storage, LocalStorage):
            return f"it computes gradients of local layers, not {outer.storage.name}"
        if outer.storage.window > WIDEST:
            return (
                f"it computes windows of at most {WIDEST}, and here is "
                f"{outer.storage.window}"
            )
        if not act.nonlinearity.uniform:
            return MIXED_ACTIVATIONS
        return unsupported_dtype(span, device)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return the shapes, none of them larger than the layer."""
        _, outer, _ = _ops(span)
        kind = "cpu" if device.type == "cpu" else "gpu"
        team = 1 if kind == "cpu" else team_group(TEAM, device)
        most = -(-outer.storage.n_out // (team * vector(team, span)))
        sizes = dict.fromkeys(min(vectors, most) for vectors in VECTORS[kind])
        return tuple({"team": team, "vectors": vectors} for vectors in sizes)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count every array once, and the partial sums of a shared bias."""
        groups, (_, _, bias) = _groups(span, config), _ops(span)
        reduces = bias is not None and bias.shared and groups > 1
        scratch = item_size(span) * groups * reduces
        launches = 1 + reduces
        return span_cost(span, device, 2 * scratch, groups, launches, scratch, 1.0)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the one launch, and the reduction of a shared bias."""
        (act, outer, bias), team = _ops(span), config["team"]
        storage, groups = outer.storage, _groups(span, config)
        assert isinstance(storage, LocalStorage)
        saved = derivative_operand(act)
        values = (act.dy, saved, outer.x, act.dz)
        shape = vector_defines(span, team, values)
        target: Argument = Gradients()
        # Without a bias gradient the kernel ignores target and slot.
        slot = 0 if bias is None else bias.bias.offset
        reduction: Launches = ()
        if bias is not None and bias.shared:
            target, slot, reduction = two_stage(shape, span, target, slot, 1, groups)
        elif act.bias is not None:
            slot = act.bias.offset
        return (
            Launch(
                "training/stencil_gradients.cl", "stencil_gradients",
                {
                    **shape, **derivative_defines(act, span),
                    "VECTORS": config["vectors"], "WINDOW": storage.window,
                    "BLOCK": BLOCK, "STORES_DS": int(act.dz in span.outputs),
                    "SUMS_BIAS": int(bias is not None),
                },
                (groups * team,), (team,),
                (
                    Parameters(), 0 if act.bias is None else act.bias.offset,
                    Gradients(), outer.weights.offset, storage.pitch, act.dy,
                    act.dy.stride, saved, saved.stride, outer.x, outer.x.stride,
                    act.dz if act.dz in span.outputs else act.dy, act.dz.stride,
                    target, slot, storage.n_out, span.batch,
                ),
            ),
            *reduction,
        )


def _ops(span: Span) -> tuple[ActGrad, Outer, BiasGrad | None]:
    act, outer, *rest = span.ops
    bias = rest[0] if rest else None
    assert isinstance(act, ActGrad)
    assert isinstance(outer, Outer)
    assert bias is None or isinstance(bias, BiasGrad)
    return act, outer, bias


def _groups(span: Span, config: Config) -> int:
    _, outer, _ = _ops(span)
    rows = config["team"] * config["vectors"] * vector(config["team"], span)
    return -(-outer.storage.n_out // rows)
