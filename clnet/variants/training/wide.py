"""wide: a loss, derivatives and shared biases' gradient by teams of work-items."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clnet.ir.ops import Span, Value
from clnet.ir.training_ops import RECORD, ActGrad, BiasGrad, Loss
from clnet.nn.storage.layout import round_up
from clnet.opencl.device import Device
from clnet.opencl.launch import Argument, Gradients, Launch, Parameters, Scalar, Scratch
from clnet.variants.base import (
    VECTOR_BYTES,
    Config,
    Cost,
    Reach,
    function_defines,
    item_size,
    number,
    real,
    span_bytes,
    span_flops,
    unsupported_dtype,
)
from clnet.variants.team import team_group
from clnet.variants.training.backward import (
    gradient_defines,
    gradient_function,
    loss_defines,
)

SOURCE = "training/wide.cl"
LEAST = 64  # outputs of a sample
LEAST_LOSS = 8  # on a GPU: neighbouring work-items would read values of so many samples
TEAM = 256  # work-items at most
WIDTH = 4  # values of a vector
VECTORS = {"cpu": (1024, 256, 4096), "gpu": (4, 1, 16)}
"""Vectors of a work-item, the usually best first."""


@dataclass(frozen=True)
class Wide:
    """Teams that take a part of a sample each (``wide.cl``).

    Config: ``team``, its work-items, 1 where each is a core's task; ``vectors``, of a
    work-item; ``teams``, of a group.
    """

    name: str = "wide"
    reach: Reach = "op"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse other ops, narrow samples, and functions that differ by neuron."""
        (op, *_) = span.ops
        if not isinstance(op, (ActGrad, BiasGrad, Loss)):
            return "it computes a loss, derivatives or a bias's gradient, and no other"
        if isinstance(op, BiasGrad) and not op.shared:
            return "it sums the gradient of a bias that all neurons share"
        width, least = _values(op)[0].width, LEAST
        if isinstance(op, Loss) and device.type != "cpu":
            least = LEAST_LOSS
        if width < least:
            return f"it takes samples of at least {least} outputs, and here are {width}"
        if isinstance(op, ActGrad) and not op.nonlinearity.uniform:
            return "it applies one activation a layer, and here neurons differ"
        if isinstance(op, Loss) and len(set(op.halved)) > 1:
            return "it halves no error or all, and here outputs differ"
        return unsupported_dtype(span, device)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return shares, none of them larger than a sample."""
        kind = "cpu" if device.type == "cpu" else "gpu"
        width, team = _values(_op(span))[0].width, 1
        if kind == "gpu":
            team = team_group(min(TEAM, -(-width // WIDTH)), device)
        most, teams = -(-width // _share({"team": team, "vectors": 1}, span)), 1
        found = dict.fromkeys(min(vectors, most) for vectors in VECTORS[kind])
        if isinstance(_op(span), Loss) and kind == "gpu":
            teams = team_group(TEAM, device) // team
        if teams > 1:
            found = {most: None}
        return tuple(
            {"team": team, "vectors": vectors, "teams": teams} for vectors in found
        )

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Every array once; softmax reads outputs and targets twice."""
        op = _op(span)
        teams = span.batch * _parts(span, config)
        softmax = isinstance(op, Loss) and loss_defines(op, span)["SOFTMAX"]
        joins = teams > span.batch and not isinstance(op, ActGrad)
        again = 2 * span.batch * op.reads[0].width if softmax else 0
        scratch = 0 if isinstance(op, ActGrad) else teams * len(RECORD)
        return Cost(
            span_flops(span), span_bytes(span) + item_size(span) * (again + scratch),
            1 + joins * (3 if softmax else 1), item_size(span) * scratch,
            min(device.compute_units, -(-teams // config["teams"])),
        )

    def launches(
        self, span: Span, config: Config, device: Device
    ) -> tuple[Launch, ...]:
        """Return a launch over all parts, then those that add what they leave."""
        op, shape = _op(span), vector_defines(span, config["team"], _values(_op(span)))
        shape["TEAMS"] = config["teams"]
        width, share = _values(op)[0].width, _share(config, span)
        parts = _parts(span, config)
        teams = span.batch * parts
        if isinstance(op, BiasGrad):
            target, offset, adds = joined(
                shape, span, Gradients(), op.bias.offset, 1, teams
            )
            return (
                _launch(shape, "sums", teams, op.ds, op.ds.stride, target, offset,
                        width, share, parts),
                *adds,
            )
        if isinstance(op, ActGrad):
            at = derivative_reads(op)
            return (
                _launch(
                    {**shape, **derivative_defines(op, span)}, "act_grad", teams,
                    Parameters(), 0 if op.bias is None else op.bias.offset, op.dy,
                    op.dy.stride, at, at.stride, op.ds, op.ds.stride, width, share,
                    parts,
                ),
            )
        rows = span.batch * len(RECORD)
        partial, _, adds = joined(shape, span, op.record, 0, rows, parts)
        shape = {
            **shape, **loss_defines(op, span),
            "HALF": number(0.5 if op.halved[0] else 1, span), "WHOLE": int(parts == 1),
        }
        softmax: tuple[Launch, ...] = ()
        sums: Argument = op.t
        if shape["SOFTMAX"] and parts > 1:
            pieces = Scratch("softmax parts", item_size(span) * rows * parts)
            sums = Scratch("softmax", item_size(span) * rows)
            softmax = (
                _launch(shape, "softmax_parts", teams, op.y, op.y.stride, op.t,
                        op.t.stride, pieces, width, share, parts),
                _launch(shape, "softmax_join", span.batch, pieces, parts, sums),
            )
        return (
            *softmax,
            _launch(
                shape, "loss_parts", teams, op.y, op.y.stride, op.t, op.t.stride,
                op.weight or op.t, sums, op.dy, op.dy.stride, partial, width,
                float(op.bit_fail_limit), span.batch, Scalar("samples"), share, parts,
            ),
            *adds,
        )


def vector(team: int, span: Span) -> int:
    """Return the values of a vector: of a core's registers where a team is one core."""
    return VECTOR_BYTES // item_size(span) if team == 1 else WIDTH


def vector_defines(
    span: Span, team: int, values: Iterable[Value]
) -> dict[str, int | str]:
    """Return the macros of ``wide.h``, and whether all rows start on whole vectors.

    Of groups of one team.
    """
    whole = all(value.stride % vector(team, span) == 0 for value in values)
    return {
        "REAL": real(span), "WIDTH": vector(team, span), "TEAM": team, "TEAMS": 1,
        "ALIGNED": int(span.batch == 1 or whole),
    }


def derivative_reads(op: ActGrad) -> Value:
    """Return what a uniform layer's derivative reads; anything if that is nothing."""
    return op.sums or op.y or op.dy


def derivative_defines(op: ActGrad, span: Span) -> dict[str, int | str]:
    """Return the macros of a uniform layer's derivative (``wide.cl``)."""
    function = op.nonlinearity
    gradient, by_sum = gradient_function(function.names[0], function.fann_compatible)
    return {
        "GRADIENT": gradient, "READS_SUMS": int(by_sum),
        "HAS_BIAS": int(op.bias is not None), "BIAS_STEP": int(not op.shared),
        **gradient_defines(span), **function_defines(span, function),
    }


def joined(
    shape: Mapping[str, int | str], span: Span, target: Argument, offset: int,
    rows: int, parts: int,
) -> tuple[Argument, int, tuple[Launch, ...]]:
    """Return where teams leave sums, of so many parts a row, and what adds them.

    Parameters
    ----------
    shape : mapping
        The macros of ``wide.h``.
    span : Span
        What is computed.
    target : Argument
        What is to hold the sum of each row, [rows] from `offset` on: if there is one
        part, that is where teams leave it.
    offset, rows, parts : int
        As above.
    """
    if parts == 1:
        return target, offset, ()
    partial = Scratch("parts", item_size(span) * rows * parts)
    return partial, 0, (_launch(shape, "join", rows, partial, parts, target, offset),)


def _launch(
    defines: Mapping[str, int | str], kernel: str, teams: int, *arguments: Argument
) -> Launch:
    team, of_group = defines["TEAM"], defines["TEAMS"]
    assert isinstance(team, int)
    assert isinstance(of_group, int)
    group = team * of_group
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
    """Return the columns that a team takes."""
    return config["team"] * config["vectors"] * vector(config["team"], span)


def _parts(span: Span, config: Config) -> int:
    """Return the parts of a sample."""
    return -(-_values(_op(span))[0].width // _share(config, span))
