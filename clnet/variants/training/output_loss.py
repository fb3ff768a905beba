"""output_loss: a last layer of few outputs with the loss, forward and backward."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from clnet.ir.activation import ActGrad, BiasAct, BiasGrad
from clnet.ir.loss import RECORD, Loss, Tally
from clnet.ir.product import Apply, ApplyT, Outer
from clnet.nn.storage.dense import RowStorage
from clnet.opencl.launch import (
    GRADIENTS,
    PARAMETERS,
    Launch,
    Launches,
    Scalar,
    Scratch,
)
from clnet.opencl.program import WARP
from clnet.variants.base import (
    SHARED_WEIGHTS,
    Config,
    Reach,
    team_group,
    unsupported_dtype,
)
from clnet.variants.cost import Cost, span_cost
from clnet.variants.macros import loss_defines, number, padded, real
from clnet.variants.training.gemm_backward import GemmBackward, carried

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device

SOURCE = "training/output_loss.cl"
MAX_OUTPUTS = WARP  # sums of a work-item in registers; a work-item has an output
GROUP = 256  # work-items
VECTOR = 4  # elements
LANES = (2, 4, 8, 1)  # vectors of a row that a group reads
SAMPLES = (8, 4)  # of a group
KINDS = (Apply, BiasAct, Loss, Tally, Outer, BiasGrad, ApplyT, ActGrad)


class _Ops(NamedTuple):
    """The ops of a span, in order."""

    apply: Apply
    act: BiasAct
    loss: Loss
    tally: Tally
    outer: Outer
    bias_grad: BiasGrad
    apply_t: ApplyT
    act_grad: ActGrad


@dataclass(frozen=True)
class OutputLoss:
    """The last layer with the loss, forward and backward (``output_loss.cl``).

    Config: ``samples`` of a group of the first launch, each of a warp; ``lanes``,
    vectors of the layer's inputs of a group of the second.
    """

    name: str = "output_loss"
    reach: Reach = "output"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all but a dense, linear last layer of few outputs above another."""
        if device.type == "cpu":
            return f"it is for GPUs, and {device.name} is a cpu"
        if tuple(map(type, span.ops)) != KINDS:
            return "it computes a last layer with biases and its loss, and no other ops"
        ops = _Ops._make(span.ops)
        storage = ops.apply.storage
        if not isinstance(storage, RowStorage):
            return f"it computes dense layers only, not {storage.name}"
        if storage.n_out > MAX_OUTPUTS:
            return (
                f"it computes at most {MAX_OUTPUTS} outputs, and here are "
                f"{storage.n_out}"
            )
        if not ops.act.nonlinearity.plain:
            return "it computes linear layers, or whose activation the loss includes"
        return self._refuse_outside(ops, span, device)

    def _refuse_outside(self, ops: _Ops, span: Span, device: Device) -> str | None:
        if len(set(ops.loss.halved)) > 1:
            return "it halves all errors or none, and here outputs differ"
        written = {
            ops.tally.totals, ops.outer.gradient, ops.bias_grad.gradient,
            ops.act_grad.dz,
        }
        if not written >= set(span.outputs):
            return "it stores no outputs of the layer, and they are read later"
        if ops.bias_grad.shared or not padded(ops.apply.x):
            return "it needs a bias for each output, and padded inputs"
        if span.shares_weights:
            return SHARED_WEIGHTS
        return unsupported_dtype(span, device) or GemmBackward().refuse(
            _below(span), device
        )

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """As many groups as compute units, about."""
        vectors = -(-_Ops._make(span.ops).apply.storage.n_in // VECTOR)
        units = device.compute_units
        lanes = sorted(LANES, key=lambda n: abs(-(-vectors // n) - units))
        return tuple(
            {"samples": samples, "lanes": n}
            for samples in SAMPLES for n in lanes[:2]
            if samples * WARP <= device.largest_group
            and _local_bytes(samples, span, device) <= device.local_memory
        )

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count A twice a group, inputs again for the gradients, and derivatives."""
        ops, size = _Ops._make(span.ops), span.item_size
        storage = ops.apply.storage
        groups = -(-span.batch // config["samples"])
        inputs = span.batch * storage.n_in
        columns = -(-storage.n_in // (VECTOR * config["lanes"]))
        scratch = sum(buffer.size for buffer in _scratch(ops, span))
        again = size * (2 * groups * storage.size + inputs) + 2 * scratch
        return span_cost(
            span, device, again, min(groups, columns + 1), 2, scratch, 1.0
        )

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the launch over samples, and that of the sums over them."""
        ops, to = _Ops._make(span.ops), carried(_below(span))
        apply, loss, storage = ops.apply, ops.loss, ops.apply.storage
        assert isinstance(storage, RowStorage)
        group = team_group(GROUP, device)
        dy, record = _scratch(ops, span)
        vectors = -(-storage.n_in // VECTOR)
        below = {**to.defines, "BELOW_HAS_BIAS": to.defines["HAS_BIAS"]}
        defines: dict[str, int | str] = {
            **below, **loss_defines(loss, span), "REAL": real(span),
            "N_OUT": storage.n_out, "TEAM": WARP, "SAMPLES": config["samples"],
            "LANES": config["lanes"], "GROUP": group, "HAS_BIAS": 1,
            "HALF": number(0.5 if loss.halved[0] else 1, span),
        }
        weights, bias = apply.weights.offset, ops.bias_grad.bias.offset
        x, items = apply.x, config["samples"] * WARP
        return (
            Launch.of_groups(
                SOURCE, "output_loss", defines, -(-span.batch // config["samples"]),
                items,
                PARAMETERS, weights, storage.stride, bias,
                0 if to.bias is None else to.bias.offset, x, x.stride, loss.t,
                loss.t.stride, loss.weight or loss.t, to.kept, to.kept.stride, to.out,
                to.out.stride, dy, record, vectors, span.batch, Scalar("samples"),
                float(loss.bit_fail_limit),
            ),
            Launch.of_groups(
                SOURCE, "output_gradients", defines,
                (-(-vectors // config["lanes"]) + 1), group,
                dy, x, x.stride, record, GRADIENTS, weights, storage.stride, bias,
                ops.tally.totals, vectors, span.batch, Scalar("fresh"),
            ),
        )


def _local_bytes(samples: int, span: Span, device: Device) -> int:
    """Return the bytes of local memory of a group of either launch."""
    n_out = _Ops._make(span.ops).apply.storage.n_out
    sums = VECTOR * VECTOR * team_group(GROUP, device)
    return span.item_size * max(samples * n_out * (WARP + 1 + 6), sums)


def _below(span: Span) -> Span:
    """Return the span of the derivatives by the layer's inputs."""
    return replace(span, ops=span.ops[-2:])


def _scratch(ops: _Ops, span: Span) -> tuple[Scratch, Scratch]:
    """Return the buffers of the derivatives by outputs, and of the records."""
    rows = span.batch * span.item_size
    outputs = -(-ops.loss.y.width // VECTOR) * VECTOR
    return Scratch("dy", rows * outputs), Scratch("record", rows * len(RECORD))
