"""sequential: steps of single samples, one after the other in one launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clnet.nn.random import half_bits
from clnet.opencl.launch import (
    KEY,
    PARAMETERS,
    STATE,
    Constant,
    Launch,
    Launches,
    Scalar,
    Scratch,
)
from clnet.variants.base import Config, Reach, Untuned, refuse_unless_cpu
from clnet.variants.cost import Cost, span_flops
from clnet.variants.training.whole_step import (
    LANES,
    RULE,
    RUN,
    Allocator,
    accepted_step,
    constant_tables,
    layer_table,
    neuron_table,
    refuse_unless_whole_step,
    rule_of,
    step_defines,
)

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device

BLOCK = 32  # values of a block of the backward pass


@dataclass(frozen=True)
class Sequential(Untuned):
    """One work-item, with vector lanes along the rows of A (``sequential.cl``)."""

    name: str = "sequential"
    reach: Reach = "program"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse other devices and dtypes, batches, and uses of the whole gradient."""
        refusal = refuse_unless_cpu(span, device)
        refusal = refusal or refuse_unless_whole_step(span, clips_norm=False)
        if refusal is not None:
            return refusal
        if span.batch > 1:
            return f"it takes steps of one sample, not of {span.batch}"
        step = accepted_step(span)
        if step.backward and step.update is None:
            return "it never stores a whole gradient, which this program returns"
        if any(not layer.act.nonlinearity.uniform for layer in step.layers):
            return "it applies one activation a layer, and here neurons differ"
        return None

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count parameters and state, read and written."""
        step = accepted_step(span)
        moved = 4 * step.size * (3 + 2 * step.slots)
        return Cost(span_flops(span), moved, 1, 0, 1, 0.5)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the one launch of the steps."""
        step = accepted_step(span)
        rule, _ = rule_of(step, span)
        defines = {**step_defines(step, span), **rule}
        allocate = Allocator(BLOCK)
        layers, neurons = layer_table(step, allocate, 1, LANES), neuron_table(step)
        defines |= constant_tables(step, layers, neurons)
        widest = max(layer.n_in for layer in step.layers)
        x, t, *_ = step.data
        offsets = (allocate(step.layers[0].n_in), allocate(max(widest, t.width)))
        return (
            Launch(
                "training/sequential.cl", "sequential", defines, (1,), (1,),
                (
                    Constant.of(layers),
                    Constant.of(neurons),
                    PARAMETERS, x, t, step.weight,
                    Scratch("memory", 4 * allocate.end), STATE, step.tally.totals,
                    len(step.layers), step.size, step.samples, half_bits(step.samples),
                    *offsets, float(step.loss.bit_fail_limit),
                    t.width, Scalar("steps"), Scalar("first"), Scalar("samples"), *RUN,
                    *RULE, *KEY,
                ),
            ),
        )
