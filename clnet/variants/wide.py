"""wide: loss, derivatives and shared biases' gradient of samples of many outputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clnet.device import Device
from clnet.ops import Span, Value
from clnet.training_ops import RECORD, ActGrad, BiasGrad, Loss
from clnet.variants.backward import (
    gradient_defines,
    gradient_function,
    loss_defines,
)
from clnet.variants.base import (
    Argument,
    Config,
    Cost,
    Gradients,
    Launch,
    Parameters,
    Reach,
    Scalar,
    Scratch,
    function_defines,
    item_size,
    number,
    real,
    span_bytes,
    span_flops,
    unsupported_dtype,
)
from clnet.variants.team import team_group

SOURCE = "wide.cl"
LEAST = 64  # outputs of a sample
TEAM = 256  # work-items at most
WIDTH = 4  # values of a vector
VECTOR_BYTES = 32  # of a vector that is a core's register
VECTORS = {"cpu": (1024, 256, 4096), "gpu": (4, 1, 16)}
"""Vectors of a work-item, the usually best first."""


@dataclass(frozen=True)
class Wide:
    """Teams that take a part of a sample each (``wide.cl``).

    Config: ``team``, its work-items, 1 where each is a core's task; ``vectors``, of a
    work-item.
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
        width = _values(op)[0].width
        if width < LEAST:
            return f"it takes samples of at least {LEAST} outputs, and here are {width}"
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
        most = -(-width // _share({"team": team, "vectors": 1}, span))
        found = dict.fromkeys(min(vectors, most) for vectors in VECTORS[kind])
        return tuple({"team": team, "vectors": vectors} for vectors in found)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Every array once; softmax reads outputs and targets twice."""
        op = _op(span)
        teams = span.batch * _parts(span, config)
        softmax = isinstance(op, Loss) and loss_defines(op, span)["SOFTMAX"]
        again = 2 * span.batch * op.reads[0].width if softmax else 0
        scratch = 0 if isinstance(op, ActGrad) else teams * len(RECORD)
        joins = teams > span.batch and not isinstance(op, ActGrad)
        return Cost(
            span_flops(span), span_bytes(span) + item_size(span) * (again + scratch),
            1 + joins + (2 if softmax else 0), item_size(span) * scratch,
            min(device.compute_units, teams),
        )

    def launches(
        self, span: Span, config: Config, device: Device
    ) -> tuple[Launch, ...]:
        """Return a launch over all parts, then those that add what they leave."""
        op, team, vector = _op(span), config["team"], _vector(config, span)
        width, share = _values(op)[0].width, _share(config, span)
        parts = _parts(span, config)
        whole = all(value.stride % vector == 0 for value in _values(op))
        defines: dict[str, int | str] = {
            "REAL": real(span), "WIDTH": vector, "TEAM": team,
            "ALIGNED": int(span.batch == 1 or whole),
        }

        def launch(
            kernel: str, teams: int, *arguments: Argument, **more: int | str
        ) -> Launch:
            return Launch(
                SOURCE, kernel, {**defines, **more}, (teams * team,), (team,),
                arguments,
            )

        def joined(
            target: Argument, offset: int, rows: int, parts: int
        ) -> tuple[Argument, int, tuple[Launch, ...]]:
            """Return where parts go, and the launch that adds them."""
            if parts == 1:
                return target, offset, ()
            partial = Scratch("parts", item_size(span) * rows * parts)
            return partial, 0, (
                launch("join", rows, partial, parts, target, offset),
            )

        teams = span.batch * parts
        if isinstance(op, BiasGrad):
            target, offset, adds = joined(Gradients(), op.bias.offset, 1, teams)
            return (
                launch("sums", teams, op.ds, op.ds.stride, target, offset, width,
                       share, parts),
                *adds,
            )
        if isinstance(op, ActGrad):
            name, function = op.nonlinearity.names[0], op.nonlinearity
            gradient, by_sum = gradient_function(name, function.fann_compatible)
            at = (op.sums if by_sum else op.y) or op.dy
            return (
                launch(
                    "act_grad", teams, Parameters(),
                    0 if op.bias is None else op.bias.offset, op.dy, op.dy.stride,
                    at, at.stride, op.ds, op.ds.stride, width, share, parts,
                    GRADIENT=gradient, READS_SUMS=int(by_sum),
                    HAS_BIAS=int(op.bias is not None), BIAS_STEP=int(not op.shared),
                    **gradient_defines(span), **function_defines(span, function),
                ),
            )
        functions = {
            **loss_defines(op, span), "HALF": number(0.5 if op.halved[0] else 1, span),
        }
        partial, _, adds = joined(op.record, 0, span.batch * len(RECORD), parts)
        softmax: tuple[Launch, ...] = ()
        sums: Argument = op.t
        if functions["SOFTMAX"]:
            size = item_size(span) * span.batch * len(RECORD)
            pieces, sums = Scratch("softmax parts", size * parts), Scratch("sums", size)
            softmax = (
                launch("softmax_parts", teams, op.y, op.y.stride, op.t, op.t.stride,
                       pieces, width, share, parts, **functions),
                launch("softmax_join", span.batch, pieces, parts, sums, **functions),
            )
        return (
            *softmax,
            launch(
                "loss_parts", teams, op.y, op.y.stride, op.t, op.t.stride,
                op.weight or op.t, sums, op.dy, op.dy.stride, partial, width,
                float(op.bit_fail_limit), Scalar("samples"), share, parts, **functions,
            ),
            *adds,
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


def _vector(config: Config, span: Span) -> int:
    """Return the values of a vector."""
    return VECTOR_BYTES // item_size(span) if config["team"] == 1 else WIDTH


def _share(config: Config, span: Span) -> int:
    """Return the columns that a team takes."""
    return config["team"] * config["vectors"] * _vector(config, span)


def _parts(span: Span, config: Config) -> int:
    """Return the parts of a sample."""
    return -(-_values(_op(span))[0].width // _share(config, span))
