"""dia: products with a matrix of diagonals, and with its transpose."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from clnet.nn.storage.sparse import DiaStorage
from clnet.opencl.launch import Constant, Launch, Launches
from clnet.variants.base import largest_group
from clnet.variants.cost import Cost, item_size, span_bytes, span_cost, span_flops
from clnet.variants.sparse.sparse import (
    SparseProduct,
    csr_runs,
    refuse_unless_product,
    sparse_product,
    vector_lanes,
)

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device
    from clnet.variants.base import Config, Reach

GROUPS = (128, 256, 64)  # work-items
SAMPLES = (8, 4, 2, 1)  # of a work-item
VECTORS = 4  # of rows, on CPUs


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
            return tuple({"runs": n} for n in csr_runs(_blocks(product, span), device))
        groups = dict.fromkeys(largest_group(n, device) for n in GROUPS)
        samples = [n for n in SAMPLES if n <= span.batch][:2]
        return tuple({"group": g, "samples": n} for n in samples for g in groups)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count the values once per work-item's samples; on CPUs once."""
        product = sparse_product(span)
        storage = _storage(product)
        moved = 4 * storage.offsets.size
        if "runs" in config:
            units = min(config["runs"], device.compute_units)
            return Cost(span_flops(span), span_bytes(span) + moved, 1, 0, units)
        tiles = -(-span.batch // config["samples"])
        moved += (tiles - 1) * item_size(span) * storage.size
        groups = tiles * -(-product.rows // config["group"])
        return span_cost(span, device, moved, groups)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the one launch."""
        product = sparse_product(span)
        storage, rows = _storage(product), product.rows
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
            blocks, runs = _blocks(product, span), config["runs"]
            return (
                Launch(
                    "sparse/dia.cl", "dia_blocks",
                    {
                        **defines, "GROUP": 1, "LANES": vector_lanes(span),
                        "VECTORS": VECTORS,
                    },
                    (runs,), (1,), (*arguments, -(-blocks // runs)),
                ),
            )
        group, samples = config["group"], config["samples"]
        return (
            Launch(
                "sparse/dia.cl", "dia", {**defines, "GROUP": group, "SAMPLES": samples},
                (-(-rows // group) * group * -(-span.batch // samples),), (group,),
                arguments,
            ),
        )


def _storage(product: SparseProduct) -> DiaStorage:
    assert isinstance(product.storage, DiaStorage)
    return product.storage


def _blocks(product: SparseProduct, span: Span) -> int:
    """Return the blocks of rows of a CPU's kernel."""
    return -(-product.rows // (VECTORS * vector_lanes(span)))


def _has_holes(storage: DiaStorage) -> bool:
    """Return whether a diagonal lacks an entry between the edges of the matrix."""
    offsets = storage.offsets
    lengths = np.minimum(storage.n_out, storage.n_in - offsets) + np.minimum(0, offsets)
    return int(lengths.sum()) > len(storage.pattern)
