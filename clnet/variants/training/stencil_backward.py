"""stencil_backward: the backward products of a local layer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clnet.ir.activation import ActGrad, BiasGrad
from clnet.ir.product import ApplyT, Outer
from clnet.nn.storage.layout import round_up
from clnet.nn.storage.local import LocalStorage
from clnet.opencl.launch import (
    GRADIENTS,
    PARAMETERS,
    Argument,
    Launch,
    Launches,
    Scratch,
)
from clnet.variants.base import (
    MIXED_ACTIVATIONS,
    SHARED_WEIGHTS,
    VECTOR_BYTES,
    Config,
    Reach,
    contraction,
    refuse_op,
    stored,
    team_group,
    unsupported_dtype,
)
from clnet.variants.cost import Cost, span_cost
from clnet.variants.macros import real
from clnet.variants.training.gemm_backward import (
    BLOCK,
    ITEMS,
    MIN_PART,
    add_parts,
    split_k_cost,
)
from clnet.variants.training.wide import (
    TEAM,
    derivative_defines,
    derivative_operand,
    two_stage,
    vector,
    vector_defines,
)

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device

SOURCE = "training/stencil_backward.cl"
BANDS = 4  # of a work-item, with accumulators in registers
GROUP = 128  # work-items, on GPUs
CHUNK = 2048  # rows or columns of a work-item, on CPUs
BLOCKS = (1, 4, 16)  # samples of a work-item of `ApplyT`


@dataclass(frozen=True)
class StencilBackward:
    """Columns of a local layer's matrix, and its bands (``stencil_backward.cl``).

    Config: ``vec``, rows or columns at a time, and ``chunk``, of a work-item, both 1 on
    GPUs; of `ApplyT` ``block``, samples of a work-item; of `Outer` ``parts``, of the
    batch (split-k).
    """

    name: str = "stencil_backward"
    reach: Reach = "op"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all but the two products of a local layer."""
        verb = "computes gradients' products"
        return refuse_op(span, device, (ApplyT, Outer), verb, LocalStorage)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return blocks of samples, or enough parts of the batch to fill the device."""
        op = contraction(span)
        shape = {"vec": 1, "chunk": 1}
        if device.type == "cpu":
            shape = {"vec": VECTOR_BYTES // span.item_size, "chunk": CHUNK}
        if isinstance(op, ApplyT):
            blocks = dict.fromkeys(min(block, span.batch) for block in BLOCKS)
            return tuple({**shape, "block": block} for block in blocks)
        items = -(-op.storage.n_out // shape["chunk"]) * _band_groups(span)
        filling = -(-ITEMS["cpu" if shape["chunk"] > 1 else "gpu"]
                    * device.compute_units // items)
        most = max(1, span.batch // MIN_PART)
        sizes = dict.fromkeys((min(filling, most), 1))
        return tuple({**shape, "parts": parts} for parts in sizes)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count weights again for every block, and the partial sums."""
        op = contraction(span)
        values = sum(v.width for v in (*op.reads, *op.writes)) * span.batch
        parts, again = config.get("parts", 1), 0
        if isinstance(op, ApplyT):
            again = op.storage.size * -(-span.batch // config["block"])
        return split_k_cost(span, device, again, parts, values)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the product, and for several parts their sum."""
        op = contraction(span)
        storage = stored(op, LocalStorage)
        chunk = config["chunk"]
        group = 1 if chunk > 1 else min(GROUP, device.largest_group)
        defines: dict[str, int | str] = {
            "REAL": real(span), "WINDOW": storage.window, "VEC": config["vec"],
            "CHUNK": chunk,
        }
        if isinstance(op, ApplyT):
            across = round_up(-(-storage.n_in // chunk), group)
            items = across * -(-span.batch // config["block"])
            return (
                Launch(
                    SOURCE, "apply_t", defines, (items,), (group,),
                    (
                        PARAMETERS, op.weights.offset, storage.pitch, op.dz,
                        op.dz.stride, op.dx, op.dx.stride, storage.n_out, span.batch,
                        int(op.accumulate), across, config["block"],
                    ),
                ),
            )
        assert isinstance(op, Outer)
        across, bands = round_up(-(-storage.n_out // chunk), group), _band_groups(span)
        parts = config["parts"]
        partial = Scratch("partial", span.item_size * storage.size * parts)
        sums = Launch(
            SOURCE, "outer",
            {**defines, "BANDS": min(BANDS, storage.window), "BLOCK": BLOCK},
            (across * bands * parts,), (group,),
            (
                *((GRADIENTS, op.weights.offset) if parts == 1 else (partial, 0)),
                storage.pitch, storage.size, op.dz, op.dz.stride, op.x, op.x.stride,
                storage.n_out, span.batch, across, bands, -(-span.batch // parts),
            ),
        )
        if parts == 1:
            return (sums,)
        return (sums, add_parts(span, op, partial, parts, device))


def _band_groups(span: Span) -> int:
    """Return the number of groups of BANDS bands in a window."""
    return -(-stored(contraction(span), LocalStorage).window // BANDS)


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
        if span.shares_weights:
            return SHARED_WEIGHTS
        if not act.nonlinearity.uniform:
            return MIXED_ACTIVATIONS
        return unsupported_dtype(span, device)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return the shapes, none of them larger than the layer."""
        _, outer, _ = _ops(span)
        type_ = "cpu" if device.type == "cpu" else "gpu"
        team = 1 if type_ == "cpu" else team_group(TEAM, device)
        most = -(-outer.storage.n_out // (team * vector(team, span)))
        sizes = dict.fromkeys(min(vectors, most) for vectors in VECTORS[type_])
        return tuple({"team": team, "vectors": vectors} for vectors in sizes)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count every array once, and the partial sums of a shared bias."""
        groups, (_, _, bias) = _groups(span, config), _ops(span)
        reduces = bias is not None and bias.shared and groups > 1
        scratch = span.item_size * groups * reduces
        launches = 1 + reduces
        return span_cost(span, device, 2 * scratch, groups, launches, scratch, 1.0)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the one launch, and the reduction of a shared bias."""
        (act, outer, bias), team = _ops(span), config["team"]
        storage, groups = stored(outer, LocalStorage), _groups(span, config)
        saved = derivative_operand(act)
        values = (act.dy, saved, outer.x, act.dz)
        shape = vector_defines(span, team, values)
        target: Argument = GRADIENTS
        # Without a bias gradient the kernel ignores target and slot.
        slot = 0 if bias is None else bias.bias.offset
        reduction: Launches = ()
        if bias is not None and bias.shared:
            target, slot, reduction = two_stage(shape, span, target, slot, 1, groups)
        elif act.bias is not None:
            slot = act.bias.offset
        return (
            Launch.of_groups(
                "training/stencil_gradients.cl", "stencil_gradients",
                {
                    **shape, **derivative_defines(act, span),
                    "VECTORS": config["vectors"], "WINDOW": storage.window,
                    "BLOCK": BLOCK, "STORES_DS": int(act.dz in span.outputs),
                    "SUMS_BIAS": int(bias is not None),
                },
                groups, team,
                PARAMETERS, 0 if act.bias is None else act.bias.offset, GRADIENTS,
                outer.weights.offset, storage.pitch, act.dy, act.dy.stride, saved,
                saved.stride, outer.x, outer.x.stride,
                act.dz if act.dz in span.outputs else act.dy, act.dz.stride, target,
                slot, storage.n_out, span.batch,
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
