"""wide: a loss, derivatives and gradients of shared biases, for wide outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clnet.ir.activation import ActGrad, BiasGrad
from clnet.ir.loss import RECORD, Loss
from clnet.nn.storage.layout import round_up
from clnet.opencl.launch import (
    GRADIENTS,
    PARAMETERS,
    Argument,
    Launch,
    Launches,
    Scalar,
    Scratch,
)
from clnet.variants.base import (
    MIXED_ACTIVATIONS,
    SHARED_WEIGHTS,
    VECTOR_BYTES,
    Config,
    Reach,
    team_group,
    unsupported_dtype,
)
from clnet.variants.cost import Cost, span_cost
from clnet.variants.macros import (
    function_defines,
    gradient_defines,
    gradient_function,
    loss_defines,
    number,
    real,
)

if TYPE_CHECKING:
    from clnet.ir.op import Value
    from clnet.ir.program import Span
    from clnet.opencl.device import Device

SOURCE = "training/wide.cl"
MIN_WIDTH = 64  # outputs of a sample
MIN_WIDTH_LOSS = 8  # on a GPU: one work-item per sample is not coalesced
TEAM = 256  # work-items at most
WIDTH = 4  # elements of a vector
VECTORS = {"cpu": (1024, 256, 4096), "gpu": (4, 1, 16)}
"""Vectors of a work-item, the usually best first."""


@dataclass(frozen=True)
class Wide:
    """Each team takes a part of a sample (``wide.cl``).

    Config: ``team``, its work-items, 1 on CPU cores; ``vectors``, of a work-item;
    ``teams``, of a group.
    """

    name: str = "wide"
    reach: Reach = "op"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse other ops, narrow samples, and activations that differ by neuron."""
        (op, *_) = span.ops
        if not isinstance(op, (ActGrad, BiasGrad, Loss)):
            return "it computes a loss, derivatives or a bias gradient, and no other"
        if isinstance(op, BiasGrad) and not op.shared:
            return "it computes the gradient of a bias that all neurons share"
        if span.shares_weights:
            return SHARED_WEIGHTS
        width, least = _values(op)[0].width, MIN_WIDTH
        if isinstance(op, Loss) and device.type != "cpu":
            least = MIN_WIDTH_LOSS
        if width < least:
            return f"it takes samples of at least {least} outputs, and here are {width}"
        if isinstance(op, ActGrad) and not op.nonlinearity.uniform:
            return MIXED_ACTIVATIONS
        if isinstance(op, Loss) and len(set(op.halved)) > 1:
            return "it halves all errors or none, and here outputs differ"
        return unsupported_dtype(span, device)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return parts no larger than a sample."""
        type_ = "cpu" if device.type == "cpu" else "gpu"
        width, team = _values(_op(span))[0].width, 1
        if type_ == "gpu":
            team = team_group(min(TEAM, -(-width // WIDTH)), device)
        whole, teams = -(-width // _share({"team": team, "vectors": 1}, span)), 1
        sizes = dict.fromkeys(min(vectors, whole) for vectors in VECTORS[type_])
        if isinstance(_op(span), Loss) and type_ == "gpu":
            teams = team_group(TEAM, device) // team
        if teams > 1:
            sizes = {whole: None}
        return tuple(
            {"team": team, "vectors": vectors, "teams": teams} for vectors in sizes
        )

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count every array once; softmax reads outputs and targets twice."""
        op = _op(span)
        teams = span.batch * _parts(span, config)
        softmax = isinstance(op, Loss) and loss_defines(op, span)["SOFTMAX"]
        reduces = teams > span.batch and not isinstance(op, ActGrad)
        again = 2 * span.batch * op.reads[0].width if softmax else 0
        scratch = 0 if isinstance(op, ActGrad) else teams * len(RECORD)
        size, groups = span.item_size, -(-teams // config["teams"])
        launches = 1 + reduces * (3 if softmax else 1)
        moved, scratch = size * (again + scratch), size * scratch
        return span_cost(span, device, moved, groups, launches, scratch, 1.0)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return a launch over all parts, then the reductions of their partial sums."""
        op, shape = _op(span), vector_defines(span, config["team"], _values(_op(span)))
        shape["TEAMS"] = config["teams"]
        width, share = _values(op)[0].width, _share(config, span)
        parts = _parts(span, config)
        teams = span.batch * parts
        if isinstance(op, BiasGrad):
            target, offset, reduction = two_stage(
                shape, span, GRADIENTS, op.bias.offset, 1, teams
            )
            return (
                _launch(shape, "sum_parts", teams, op.dz, op.dz.stride, target, offset,
                        width, share, parts),
                *reduction,
            )
        if isinstance(op, ActGrad):
            saved = derivative_operand(op)
            return (
                _launch(
                    {**shape, **derivative_defines(op, span)}, "act_grad", teams,
                    PARAMETERS, 0 if op.bias is None else op.bias.offset, op.dy,
                    op.dy.stride, saved, saved.stride, op.dz, op.dz.stride, width,
                    share, parts,
                ),
            )
        rows = span.batch * len(RECORD)
        partial, _, reduction = two_stage(shape, span, op.record, 0, rows, parts)
        shape = {
            **shape, **loss_defines(op, span),
            "HALF": number(0.5 if op.halved[0] else 1, span), "WHOLE": int(parts == 1),
        }
        softmax: Launches = ()
        whole: Argument = op.t
        if shape["SOFTMAX"] and parts > 1:
            partials = Scratch("softmax parts", span.item_size * rows * parts)
            whole = Scratch("softmax", span.item_size * rows)
            softmax = (
                _launch(shape, "softmax_parts", teams, op.y, op.y.stride, op.t,
                        op.t.stride, partials, width, share, parts),
                _launch(shape, "softmax_reduce", span.batch, partials, parts, whole),
            )
        return (
            *softmax,
            _launch(
                shape, "loss_parts", teams, op.y, op.y.stride, op.t, op.t.stride,
                op.weight or op.t, whole, op.dy, op.dy.stride, partial, width,
                float(op.bit_fail_limit), span.batch, Scalar("samples"), share, parts,
            ),
            *reduction,
        )


def vector(team: int, span: Span) -> int:
    """Return the elements of a vector: a CPU core's registers where a team is one."""
    return VECTOR_BYTES // span.item_size if team == 1 else WIDTH


def vector_defines(
    span: Span, team: int, values: Iterable[Value]
) -> dict[str, int | str]:
    """Return the macros of ``wide.h`` for groups of one team, and the alignment."""
    whole = all(value.stride % vector(team, span) == 0 for value in values)
    return {
        "REAL": real(span), "WIDTH": vector(team, span), "TEAM": team, "TEAMS": 1,
        "ALIGNED": int(span.batch == 1 or whole),
    }


def derivative_operand(op: ActGrad) -> Value:
    """Return the operand of a uniform layer's derivative; any value if it has none."""
    return op.z or op.y or op.dy


def derivative_defines(op: ActGrad, span: Span) -> dict[str, int | str]:
    """Return the macros of a uniform layer's derivative and its bias (``wide.cl``)."""
    function = op.nonlinearity
    gradient, by_v = gradient_function(function.names[0], function.fann_compatible)
    return {
        "GRADIENT": gradient, "READS_Z": int(by_v),
        "HAS_BIAS": int(op.bias is not None), "BIAS_STEP": int(not op.shared),
        **gradient_defines(span), **function_defines(span, function),
    }


def two_stage(
    shape: Mapping[str, int | str], span: Span, target: Argument, offset: int,
    rows: int, parts: int,
) -> tuple[Argument, int, Launches]:
    """Return buffer of the parts' sums, its offset, and the launch that adds them."""
    if parts == 1:
        return target, offset, ()
    partial = Scratch("parts", span.item_size * rows * parts)
    reduction = _launch(shape, "reduce_parts", rows, partial, parts, target, offset)
    return partial, 0, (reduction,)


def _launch(
    defines: Mapping[str, int | str], kernel: str, teams: int, *arguments: Argument
) -> Launch:
    team, per_group = defines["TEAM"], defines["TEAMS"]
    assert isinstance(team, int)
    assert isinstance(per_group, int)
    group = team * per_group
    return Launch(
        SOURCE, kernel, defines, (round_up(teams * team, group),), (group,), arguments
    )


def _op(span: Span) -> ActGrad | BiasGrad | Loss:
    (op,) = span.ops
    assert isinstance(op, (ActGrad, BiasGrad, Loss))
    return op


def _values(op: ActGrad | BiasGrad | Loss) -> tuple[Value, ...]:
    """Return the arrays of the layer's width."""
    if isinstance(op, Loss):
        return op.y, op.t, op.dy
    return (*op.reads, *(op.writes if isinstance(op, ActGrad) else ()))


def _share(config: Config, span: Span) -> int:
    """Return the columns of a team."""
    return config["team"] * config["vectors"] * vector(config["team"], span)


def _parts(span: Span, config: Config) -> int:
    """Return the parts of a sample."""
    return -(-_values(_op(span))[0].width // _share(config, span))
