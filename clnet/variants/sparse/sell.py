"""sell, dia: products by the kernels of formats: sliced ELL and ELL, diagonals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.ir.product import ApplyT
from clnet.nn.storage.sparse import SLICE, DiaStorage, EllStorage, SellStorage
from clnet.opencl.launch import Constant, Launch, Launches
from clnet.variants.base import largest_group
from clnet.variants.cost import Cost, span_cost
from clnet.variants.sparse.sparse import (
    UNROLL,
    SparseProduct,
    csr_runs,
    lanes_defines,
    refuse_unless_product,
    sparse_product,
    team_cost,
    tiled_input,
    vector_lanes,
)

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device
    from clnet.variants.base import Config, Reach

# The usually best first.
TILES = (16, 32, 8, 4)  # samples
GROUPS = (512, 256, 1024, 128, 64, 32)  # work-items, for one sample
MAX_GROUPS = 3  # of these that are worth measuring
TILE_PARTS = (4, 8, 2, 1)  # for a tile of samples


@dataclass(frozen=True)
class Sell:
    """One work-group per slice of rows (``sell.cl``).

    Config: ``parts`` of a slice (slice-k); ``vector``, rows of a work-item; ``tile``,
    samples; ``staged``, whether x is in local memory.
    """

    name: str = "sell"
    reach: Reach = "pair"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all but sparse products, other storages, and small work-groups."""
        op = span.ops[0]
        sentence = refuse_unless_product(span, device)
        if sentence is not None:
            return sentence
        if isinstance(op, ApplyT):
            return "it multiplies by a layer's matrix, not by its transpose"
        storage = sparse_product(span).storage
        if not isinstance(storage, (EllStorage, SellStorage)):
            return f"it reads ell and sell layers, not {storage.name}"
        if device.largest_group < _height(storage):
            return (
                f"its groups have {_height(storage)} work-items or more, and "
                f"{device.name} allows {device.largest_group}"
            )
        return None

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """Parts of a few vectors per work-item, the likely best first."""
        product = sparse_product(span)
        height = _height(product.storage)
        configs: list[Config] = []
        if span.batch < TILES[-1]:
            # Vectors of rows must be aligned.
            aligned = _stride(product.storage) % 4 == 0 and height % 4 == 0
            vector = 4 if aligned else 1
            groups = [n for n in GROUPS if height <= n <= device.largest_group]
            configs += [
                {"parts": group * vector // height, "vector": vector, "tile": 1,
                 "staged": staged}
                for staged in (0, 1) for group in groups[:MAX_GROUPS]
            ]
        if span.batch > 1:
            largest = 4 * device.largest_group // height
            tiles = [t for t in TILES if t < 2 * span.batch and t <= largest]
            configs += [
                {"parts": parts, "vector": 1, "tile": tile, "staged": 0}
                for tile in tiles[:2]
                for parts in [n for n in TILE_PARTS if n * tile <= largest][:3]
            ]
        return tuple(
            c for c in configs if _local_bytes(product, span, c) <= device.local_memory
        )

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count entries for every tile of samples, and transposed values twice."""
        storage = sparse_product(span).storage
        entries = storage.nbytes(span.item_size)
        slices = _slices(storage)
        return team_cost(
            span, device, entries, config["tile"], slices, config["staged"]
        )

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the product, and for tiles the transposition of x before it."""
        product, tile, parts = sparse_product(span), config["tile"], config["parts"]
        storage = product.storage
        assert isinstance(storage, (EllStorage, SellStorage))
        height, slices = _height(storage), _slices(storage)
        items = height // config["vector"] if tile == 1 else height * tile // 4
        x, before = tiled_input(span, tile, device)

        def table(name: str) -> Constant:
            key = f"{product.csr.key} of slices, {name}"
            return Constant(key, partial(_table, storage, name))

        return (
            *before,
            Launch.of_groups(
                "sparse/sell.cl", "sell",
                {
                    **product.defines(span), "HEIGHT": height, "TILE": tile,
                    "VECTOR": config["vector"], "PARTS": parts, "UNROLL": UNROLL,
                    "STAGED": config["staged"], "WIDTH_X": product.columns,
                    "COLUMN": product.column_type,
                },
                slices * -(-span.batch // tile), items * parts,
                *product.parameters(), table("slices"), _stride(storage),
                table("lengths"), table("order"), table("columns"), x, product.x.stride,
                *product.outputs(), product.rows, span.batch,
            ),
        )


def _height(storage: object) -> int:
    return storage.height if isinstance(storage, SellStorage) else SLICE


def _stride(storage: object) -> int:
    return storage.n_out if isinstance(storage, EllStorage) else _height(storage)


def _slices(storage: EllStorage | SellStorage | object) -> int:
    assert isinstance(storage, (EllStorage, SellStorage))
    return -(-storage.n_out // _height(storage))


def _local_bytes(product: SparseProduct, span: Span, config: Config) -> int:
    """Return the bytes of partial sums, and of x where it is staged."""
    height, tile, parts = _height(product.storage), config["tile"], config["parts"]
    values = parts * height * (tile + 4)
    if tile == 1:
        values = parts * height * 2
    staged = product.columns if config["staged"] else 0
    return (values + staged + 8) * span.item_size


def _table(storage: EllStorage | SellStorage, name: str) -> NDArray[Any]:
    """Return a table of ``sell.cl``."""
    slices, height = _slices(storage), _height(storage)
    if name == "columns":
        return storage.indices["columns"].ravel()
    if name == "slices":
        if isinstance(storage, SellStorage):
            return storage.starts[:-1].astype(np.int32)
        return np.arange(slices, dtype=np.int32) * height
    order = storage.order if isinstance(storage, SellStorage) else np.arange(
        storage.n_out
    )
    rows = order if name == "order" else storage.pattern.lengths[order]
    return np.pad(rows, (0, slices * height - storage.n_out)).astype(np.int32)


DIA_GROUPS = (128, 256, 64)  # work-items
DIA_SAMPLES = (8, 4, 2, 1)  # of a work-item
DIA_VECTORS = 4  # of rows, on CPUs


@dataclass(frozen=True)
class Dia:
    """Neighbouring rows on neighbouring work-items, or in vectors (``dia.cl``).

    Config on GPUs: ``group``, work-items of a group; ``samples`` of a work-item. On
    CPUs: ``runs`` of rows.
    """

    name: str = "dia"
    reach: Reach = "pair"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all but sparse products, and other storages."""
        sentence = refuse_unless_product(span, device)
        if sentence is None and not isinstance(
            sparse_product(span).storage, DiaStorage
        ):
            return f"it reads dia layers, not {sparse_product(span).storage.name}"
        return sentence

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """As many samples per work-item as the batch has; on CPUs, runs per core."""
        product = sparse_product(span)
        if device.type == "cpu":
            runs = csr_runs(_dia_blocks(product, span), device)
            return tuple({"runs": n} for n in runs)
        groups = dict.fromkeys(largest_group(n, device) for n in DIA_GROUPS)
        samples = [n for n in DIA_SAMPLES if n <= span.batch][:2]
        return tuple({"group": g, "samples": n} for n in samples for g in groups)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count the values once per work-item's samples; on CPUs once."""
        product = sparse_product(span)
        storage = _diagonals(product)
        moved = 4 * storage.offsets.size
        if "runs" in config:
            units = min(config["runs"], device.compute_units)
            return Cost(span.flops, span.bytes + moved, 1, 0, units)
        tiles = -(-span.batch // config["samples"])
        moved += (tiles - 1) * span.item_size * storage.size
        groups = tiles * -(-product.rows // config["group"])
        return span_cost(span, device, moved, groups)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the one launch."""
        product = sparse_product(span)
        storage, rows = _diagonals(product), product.rows
        defines: dict[str, int | str] = {
            **product.defines(span), "TRANSPOSED": int(product.transposed),
            "HOLES": int(_has_holes(storage)),
        }
        arguments = (
            *product.parameters(),
            Constant(
                f"dia {product.weights.offset} offsets",
                partial(storage.indices.__getitem__, "offsets"),
            ),
            storage.offsets.size, storage.n_out, product.x, product.x.stride,
            product.columns, *product.outputs(), rows, span.batch,
        )
        if "runs" in config:
            blocks, runs = _dia_blocks(product, span), config["runs"]
            launch = Launch.of_groups(
                "sparse/dia.cl", "dia_blocks",
                {**defines, **lanes_defines(span), "GROUP": 1, "VECTORS": DIA_VECTORS},
                runs, 1,
                *arguments, -(-blocks // runs),
            )
            return (launch,)
        group, samples = config["group"], config["samples"]
        launch = Launch.of_groups(
            "sparse/dia.cl", "dia",
            {**defines, "GROUP": group, "SAMPLES": samples, "WIDTH": 1},
            -(-rows // group) * -(-span.batch // samples), group, *arguments,
        )
        return (launch,)


def _diagonals(product: SparseProduct) -> DiaStorage:
    assert isinstance(product.storage, DiaStorage)
    return product.storage


def _dia_blocks(product: SparseProduct, span: Span) -> int:
    """Return the blocks of rows of a CPU's kernel."""
    return -(-product.rows // (DIA_VECTORS * vector_lanes(span)))


def _has_holes(storage: DiaStorage) -> bool:
    """Return whether a diagonal lacks an entry between the edges of the matrix."""
    offsets = storage.offsets
    lengths = np.minimum(storage.n_out, storage.n_in - offsets) + np.minimum(0, offsets)
    return int(lengths.sum()) > len(storage.pattern)
