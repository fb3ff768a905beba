"""ensemble: the outputs of many networks for the same samples, in a launch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clnet.ir.activation import Softmax
from clnet.ir.program import Ensemble
from clnet.opencl.launch import PARAMETERS, Launch, Launches
from clnet.variants.base import (
    VECTOR_BYTES,
    Config,
    Reach,
    Untuned,
    only_op,
    refuse_unless_dense_layers,
)
from clnet.variants.cost import Cost, span_cost
from clnet.variants.dense.chain import chain, chain_defines

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device

GROUPS = 8  # work-groups of a compute unit, so that it is busy to the end
GROUP_SIZES = (128, 64, 32)  # work-items of a group of a GPU, of which the largest fits
EFFICIENCY = 0.3  # of vectors' rate
JUMPS = {"threshold", "threshold_symmetric"}
MAX_SIZE = 1 << 15  # parameters of a network, whose own kernels are faster beyond


@dataclass(frozen=True)
class EnsembleOutputs(Untuned):
    """A work-item takes samples through networks, layer by layer (``ensemble.cl``)."""

    name: str = "ensemble"
    reach: Reach = "op"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all but small chains of dense layers whose outputs do not jump."""
        op = span.ops[0]
        if not isinstance(op, Ensemble):
            return "it computes many networks, and this is one"
        inner = _chain_of(span)
        refusal = refuse_unless_dense_layers(inner, device)
        if refusal is not None:
            return refusal
        names = {layer.act.nonlinearity.names[0] for layer in chain(inner)}
        if names & JUMPS:  # the comparison sees no rounding within a network
            return f"it takes no network that jumps, as by {', '.join(names & JUMPS)}"
        if op.size > MAX_SIZE:
            return f"it takes networks of at most {MAX_SIZE} parameters, not {op.size}"
        if not _group(span, device):
            return (
                f"it keeps the values of two layers in local memory, and {device.name} "
                f"has {device.local_memory} bytes"
            )
        return None

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count the parameters once for each block of samples."""
        op, (tiles, members, _) = only_op(span, Ensemble), _division(span, device)
        again = span.item_size * op.members * op.size * (tiles - 1)
        return span_cost(
            span, device, again, tiles * -(-op.members // members),
            efficiency=EFFICIENCY,
        )

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the one launch, of a group for each block of samples and networks."""
        op, inner = only_op(span, Ensemble), _chain_of(span)
        blocks, members, length = _division(span, device)
        group, last = _group(span, device), op.program.ops[-1]
        softmax = 1 + last.log if isinstance(last, Softmax) else 0
        defines = {
            **chain_defines(inner), "WIDTH": _width(span, device), "GROUP": group,
            "N_IN": op.x.width, "WIDEST": _widest(span), "SOFTMAX": int(softmax),
        }
        groups = blocks * -(-op.members // members)
        launch = Launch.of_groups(
            "dense/ensemble.cl", "ensemble", defines, groups, group,
            PARAMETERS, op.size, op.members, members, op.x, op.x.stride, op.y,
            op.y.stride, span.batch, length, blocks,
        )
        return (launch,)


def _chain_of(span: Span) -> Span:
    """Return the layers of one network, without a last softmax."""
    program = only_op(span, Ensemble).program
    ops = program.ops[: len(program.ops) - isinstance(program.ops[-1], Softmax)]
    return replace(span, ops=ops, outputs=ops[-1].writes)


def _width(span: Span, device: Device) -> int:
    """Return the samples of a work-item: a vector of them on a CPU."""
    return VECTOR_BYTES // span.item_size if device.type == "cpu" else 1


def _widest(span: Span) -> int:
    """Return the values of a layer that are kept, at most."""
    program = only_op(span, Ensemble).program
    kept = [layer.n_out for layer in chain(_chain_of(span))]
    return max(1, *(kept if isinstance(program.ops[-1], Softmax) else kept[:-1] or [1]))


def _group(span: Span, device: Device) -> int:
    """Return the work-items of a group; 0: their values do not fit in local memory."""
    item = span.item_size * _width(span, device)
    item *= only_op(span, Ensemble).x.width + 2 * _widest(span)
    sizes = (1,) if device.type == "cpu" else GROUP_SIZES
    return next(
        (n for n in sizes if n <= device.largest_group
         and n * item <= device.local_memory), 0,
    )


def _division(span: Span, device: Device) -> tuple[int, int, int]:
    """Return the blocks of samples, networks of a group, and samples of a block."""
    op, tile = only_op(span, Ensemble), _group(span, device) * _width(span, device)
    wanted = GROUPS * device.compute_units
    tiles = -(-span.batch // tile)
    length = tile * -(-tiles // wanted)
    blocks = -(-span.batch // length)
    return blocks, -(-op.members // min(op.members, -(-wanted // blocks))), length
