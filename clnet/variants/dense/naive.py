"""naive, local, split, fused, fused_local, ensemble: kernels without matrix units.

The studies' ladder: neurons by one work-item, by staged inputs, by teams (``team.h``),
then all layers in a launch, by one group or by one a tile of samples; and outputs of
many networks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from clnet.checks import INT_MAX
from clnet.ir.activation import Softmax
from clnet.ir.program import Ensemble
from clnet.nn.storage.layout import round_up
from clnet.opencl.launch import PARAMETERS, Launch, Launches, Scratch
from clnet.variants.base import (
    GROUP,
    VECTOR_BYTES,
    Config,
    DenseLayers,
    Reach,
    Untuned,
    dense_layer,
    only_op,
    refuse_unless_dense_layers,
    team_group,
)
from clnet.variants.cost import Cost, span_cost
from clnet.variants.dense.chain import (
    chain,
    chain_defines,
    parameter_count,
    strides,
    wide_table,
)
from clnet.variants.macros import layer_defines, padded, weights_and_bias

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device

@dataclass(frozen=True)
class Naive(DenseLayers, Untuned):
    """One dense layer; every work-item reads a row of A (``naive.cl``)."""

    name: str = "naive"
    reach: Reach = "layer"

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count rows once per sample."""
        layer = dense_layer(span)
        again = span.item_size * layer.n_in * layer.n_out * (span.batch - 1)
        groups = -(-layer.n_out // GROUP) * span.batch
        return span_cost(span, device, again, groups)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the layer's one launch."""
        layer = dense_layer(span)
        x, y = layer.apply.x, layer.act.y
        group = min(GROUP, device.largest_group)
        across = round_up(layer.n_out, group)
        return (
            Launch(
                "dense/naive.cl", "naive", layer_defines(span, layer),
                (across * span.batch,), (group,),
                (*weights_and_bias(layer), x, x.stride, y, y.stride, layer.n_in,
                 layer.n_out, across),
            ),
        )


GROUPS = (64, 128, 256)  # work-items
STAGES = (256, 1024, 4096)  # values


@dataclass(frozen=True)
class Staged(DenseLayers):
    """One dense layer; a group reads its input once (``local.cl``).

    Config: ``group``, work-items of a group; ``stage``, values staged at once.
    """

    name: str = "local"
    reach: Reach = "layer"

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return stages, from the smallest that holds the whole input down."""
        layer = dense_layer(span)
        most = device.local_memory // span.item_size // 4 * 4
        stages = list(dict.fromkeys(min(stage, most) for stage in STAGES))
        shorter = [stage for stage in stages if stage < layer.n_in]
        stages = [*stages[len(shorter) :][:1], *reversed(shorter)]
        groups = list(dict.fromkeys(min(g, device.largest_group) for g in GROUPS))
        if device.simd_width == 1:  # all perform alike there
            stages, groups = stages[:1], groups[:1]
        return tuple({"group": g, "stage": s} for s in stages for g in groups)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count A once per sample, and x once per group."""
        layer = dense_layer(span)
        blocks = -(-layer.n_out // config["group"])
        again = layer.apply.weights.size * (span.batch - 1)
        again += layer.n_in * span.batch * (blocks - 1)
        return span_cost(span, device, span.item_size * again, blocks * span.batch)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the layer's one launch."""
        layer = dense_layer(span)
        x, y = layer.apply.x, layer.act.y
        group = config["group"]
        defines = {
            **layer_defines(span, layer), "GROUP": group, "STAGE": config["stage"],
        }
        return (
            Launch(
                "dense/local.cl", "staged", defines,
                (span.batch * group, -(-layer.n_out // group)), (group, 1),
                (*weights_and_bias(layer), x, x.stride, y, y.stride, layer.n_in,
                 layer.n_out),
            ),
        )


@dataclass(frozen=True)
class Fused(DenseLayers):
    """Layers separated by barriers instead of launches (``fused.cl``).

    Config: ``items``, work-items per neuron; ``group``, work-items of the only group.
    """

    name: str = "fused"
    reach: Reach = "run"

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return all team sizes; the likely ones with a smaller group too."""
        return tuple(
            config for config in single_sample_configs(device)
            if team_local_bytes(config, span) <= device.local_memory
        )

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count the parameters once per sample, on one compute unit."""
        layers = chain(span)
        # Hidden values count as one write and one read.
        hidden = span.batch * sum(layer.n_out for layer in layers[:-1])
        again = parameter_count(span) * (span.batch - 1) + 2 * hidden
        moved = span.item_size * again
        return span_cost(span, device, moved, 1, scratch=_scratch(span))

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the one launch of one group."""
        layers = chain(span)
        x, y = layers[0].apply.x, layers[-1].act.y
        defines = {
            **chain_defines(span),
            **team_defines(config, span, max(strides(span))),
            "WIDEST": max(strides(span)),
        }
        launch = Launch.of_groups(
            "dense/fused.cl", "fused", defines, 1, config["group"],
            PARAMETERS, x, x.stride, x.width, y, y.stride, span.batch,
            Scratch("values", _scratch(span)),
        )
        return (launch,)


def _scratch(span: Span) -> int:
    """Return the bytes of the values between layers, double-buffered."""
    return 2 * max(strides(span)) * span.item_size


SINGLE_GROUPS = (1024, 512)  # work-items, of one sample: enough loads in flight
ITEMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # the study's table II
MOST_UNROLLED = 8  # vectors; more would exhaust the registers of a group of 256


def team_defines(config: Config, span: Span, n_in: int) -> dict[str, int | str]:
    """Return the macros of ``team.h``."""
    items, group, tile = config["items"], config["group"], config.get("tile", 1)
    vectors = -(-n_in // 4)
    # Loads in flight must fit in a compute unit's registers.
    most = max(1, min(MOST_UNROLLED, 16384 // (group * span.item_size), 32 // tile))
    unroll = 1
    while unroll < most and unroll * items < vectors:
        unroll *= 2
    return {"GROUP": group, "ITEMS": items, "TILE": tile, "UNROLL": unroll}


def team_local_bytes(config: Config, span: Span) -> int:
    """Return the bytes of local memory for the partial sums of teams."""
    partials = config.get("tile", 1) * config["group"] if config["items"] > 1 else 1
    return partials * span.item_size


def single_sample_configs(device: Device) -> list[dict[str, int]]:
    """Return all team sizes; the likely ones with a smaller group too."""
    groups = list(dict.fromkeys(team_group(group, device) for group in SINGLE_GROUPS))
    sizes = team_sizes(device, groups[0])
    configs = [{"items": n, "group": groups[0]} for n in sizes]
    if device.simd_width > 1:
        likely = [n for n in sizes if sizes[0] // 4 <= n <= sizes[0]]
        configs += [{"items": n, "group": g} for g in groups[1:] for n in likely]
    return configs


def team_sizes(device: Device, group: int) -> tuple[int, ...]:
    """Return the work-items per neuron that a group allows, the default first."""
    if device.simd_width == 1:
        # Work-items run one after another: a team only adds work.
        return tuple(items for items in ITEMS[:3] if items <= group)
    sizes = [items for items in ITEMS if items <= group]
    default = min(device.simd_width, sizes[-1])
    return (default, *(items for items in sizes if items != default))


SPLIT_GROUP = 256  # work-items
OTHER_GROUPS = (128, 512)
SPLIT_TILES = (8, 4, 2, 1)  # samples


@dataclass(frozen=True)
class Split(DenseLayers):
    """One dense layer; a team of work-items reads a row of A (``split.cl``).

    Config: ``items``, work-items per neuron; ``group``, work-items of a group;
    ``tile``, samples for which a weight is loaded once.
    """

    name: str = "split"
    reach: Reach = "layer"

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return all team sizes; likely ones with other groups, or tiles of a batch."""
        group = team_group(SPLIT_GROUP, device)
        sizes = team_sizes(device, group)
        # At least half of a tile is filled.
        tiles = [tile for tile in SPLIT_TILES if tile < 2 * span.batch]
        configs = [{"items": n, "group": group, "tile": tiles[0]} for n in sizes]
        if device.simd_width > 1:
            likely = [n for n in sizes if sizes[0] // 2 <= n <= sizes[0] * 2]
            configs += [
                {"items": n, "group": group, "tile": tile}
                for tile in tiles[1:] for n in likely[:2]
            ]
            if span.batch == 1:
                configs += [
                    {"items": n, "group": size, "tile": 1}
                    for size in OTHER_GROUPS if size <= device.largest_group
                    for n in likely
                ]
        return tuple(
            config for config in configs
            if team_local_bytes(config, span) <= device.local_memory
            and prod(_groups(span, config)) <= INT_MAX
        )

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count A once per tile of samples, and x once per group."""
        layer = dense_layer(span)
        tiles, blocks = _groups(span, config)
        again = layer.apply.weights.size * (tiles - 1)
        again += layer.n_in * span.batch * (blocks - 1)
        return span_cost(span, device, span.item_size * again, tiles * blocks)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the layer's one launch."""
        layer = dense_layer(span)
        x, y = layer.apply.x, layer.act.y
        tiles, blocks = _groups(span, config)
        defines = {
            **layer_defines(span, layer),
            **team_defines(config, span, layer.n_in),
            "X_PADDED": padded(x),
        }
        launch = Launch.of_groups(
            "dense/split.cl", "split", defines, tiles * blocks, config["group"],
            *weights_and_bias(layer), x, x.stride, y, y.stride, layer.n_in, layer.n_out,
            span.batch,
        )
        return (launch,)


def _groups(span: Span, config: Config) -> tuple[int, int]:
    """Return the launch's groups: tiles of samples, blocks of neurons."""
    teams = config["group"] // config["items"]
    return -(-span.batch // config["tile"]), -(-dense_layer(span).n_out // teams)


TILE_GROUP = 256  # work-items, for a batch
TILES = (16, 8, 4, 2, 1)  # samples
# Loads, one after the other, as long as a round of a group's teams, which reduce by
# barriers.
ROUND_LOADS = 4


@dataclass(frozen=True)
class FusedLocal:
    """A work-group computes all layers of a tile of samples (``fused_local.cl``).

    Config: ``items``, work-items per neuron; ``group``, work-items of a group;
    ``tile``, samples of a group.
    """

    name: str = "fused_local"
    reach: Reach = "run"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse also layers whose values do not fit in local memory."""
        refusal = refuse_unless_dense_layers(span, device)
        if refusal is None and not self._configs(span, device):
            needed = _widest(span) * span.item_size
            refusal = (
                f"it keeps two neighbouring layers' values in local memory, {needed} "
                f"bytes and partial sums, and {device.name} has {device.local_memory}"
            )
        return refusal

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Return team sizes, and tiles of a batch, that fit local memory."""
        return self._configs(span, device)

    def _configs(self, span: Span, device: Device) -> tuple[Config, ...]:
        configs: list[Config] = []
        if span.batch == 1:
            configs += [{**c, "tile": 1} for c in single_sample_configs(device)]
        else:
            group = team_group(TILE_GROUP, device)
            sizes = team_sizes(device, group)
            likely = [n for n in sizes if n in (1, sizes[0] // 4, sizes[0])]
            if device.simd_width == 1:
                likely = likely[:1]
            tiles = [tile for tile in TILES if tile < 2 * span.batch]
            # First the largest tile of which every compute unit still gets one.
            units = device.compute_units
            tiles.sort(key=lambda tile: max(0, units - -(-span.batch // tile)))
            configs += [
                {"items": n, "group": group, "tile": tile}
                for tile in tiles for n in likely
            ]
        room = device.local_memory
        return tuple(config for config in configs if _local_bytes(config, span) <= room)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count the parameters once per tile of samples, and rounds of teams."""
        tiles = -(-span.batch // config["tile"])
        again = parameter_count(span) * (tiles - 1)
        teams = config["group"] // config["items"]
        rounds = sum(-(-layer.n_out // teams) for layer in chain(span))
        waves = -(-tiles // device.compute_units)
        return span_cost(
            span, device, span.item_size * again, tiles,
            loads=ROUND_LOADS * rounds * waves,
        )

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the one launch, of a group per tile."""
        layers = chain(span)
        x, y = layers[0].apply.x, layers[-1].act.y
        group, tile = config["group"], config["tile"]
        values = tile * _widest(span)
        offsets = [
            0 if number % 2 == 0 else values - tile * stride
            for number, stride in enumerate(strides(span))
        ]
        defines = {
            **chain_defines(span),
            **team_defines(config, span, max(strides(span))),
            "VALUES": values,
            "OFFSETS": wide_table(offsets),
        }
        launch = Launch.of_groups(
            "dense/fused_local.cl", "fused_local", defines, -(-span.batch // tile),
            group,
            PARAMETERS, x, x.stride, x.width, y, y.stride, span.batch,
        )
        return (launch,)


def _widest(span: Span) -> int:
    """Return a sample's values in local memory: the inputs of two layers, at most."""
    widths = (*strides(span), 0)  # the last output goes to global memory
    return max(a + b for a, b in pairwise(widths))


def _local_bytes(config: Config, span: Span) -> int:
    """Return the local memory of a config in bytes."""
    values = config["tile"] * _widest(span) * span.item_size
    return values + team_local_bytes(config, span)


ENSEMBLE_GROUPS = 8  # work-groups of a compute unit, so that it is busy to the end
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
            "N_IN": op.x.width, "WIDEST": _widest_kept(span), "SOFTMAX": int(softmax),
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


def _widest_kept(span: Span) -> int:
    """Return the values of a layer that are kept, at most."""
    program = only_op(span, Ensemble).program
    kept = [layer.n_out for layer in chain(_chain_of(span))]
    return max(1, *(kept if isinstance(program.ops[-1], Softmax) else kept[:-1] or [1]))


def _group(span: Span, device: Device) -> int:
    """Return the work-items of a group; 0: their values do not fit in local memory."""
    item = span.item_size * _width(span, device)
    item *= only_op(span, Ensemble).x.width + 2 * _widest_kept(span)
    sizes = (1,) if device.type == "cpu" else GROUP_SIZES
    return next(
        (n for n in sizes if n <= device.largest_group
         and n * item <= device.local_memory), 0,
    )


def _division(span: Span, device: Device) -> tuple[int, int, int]:
    """Return the blocks of samples, networks of a group, and samples of a block."""
    op, tile = only_op(span, Ensemble), _group(span, device) * _width(span, device)
    wanted = ENSEMBLE_GROUPS * device.compute_units
    tiles = -(-span.batch // tile)
    length = tile * -(-tiles // wanted)
    blocks = -(-span.batch // length)
    return blocks, -(-op.members // min(op.members, -(-wanted // blocks))), length
