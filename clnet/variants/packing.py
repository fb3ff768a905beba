"""Matrices packed as halves, in the order of matrix units (``fp16_split.h``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from clnet.nn.storage.layout import round_up
from clnet.opencl.launch import Argument, Launch, When
from clnet.opencl.program import WARP, WARP_GROUP_MMA, WARP_MMA

TILES = "tensor_core/pack_tiles.cl"
LINE_WORDS = 32  # of a cache line: words of different layers share none
BLOCK = 16  # rows, and terms, of a block
BLOCK_BYTES = 2 * BLOCK * BLOCK  # of one split
ROW_MULTIPLE = 128  # rows of most packed matrices are padded to it
TERM_MULTIPLE: Mapping[int, int] = MappingProxyType({WARP_MMA: 32, WARP_GROUP_MMA: 64})
"""Terms are padded to it, for each kind of units."""
UNIT_BYTES = 16  # of offsets in packed buffers: 4 words
PACKERS = 1024  # work-items that pack a block of rows, at most
MATRICES = 4  # that a launch packs, at most
CORE, HELD = 8, 4  # rows and terms of a core matrix; its rows that a work-item holds
SPLITS: Mapping[str, int] = MappingProxyType({"highest": 2, "high": 1, "medium": 1})
"""Halves of a value, for each precision."""


@dataclass(frozen=True)
class Packing:
    """A matrix of rows of terms, packed."""

    rows: int  # Its sizes
    terms: int
    splits: int  # Halves a value
    # Rows and terms are padded with zeros to multiples of these
    row_multiple: int = ROW_MULTIPLE
    term_multiple: int = TERM_MULTIPLE[WARP_MMA]
    # Rows of a panel, in the layout of warp group units, which read local memory; 0:
    # the layout of warp units, blocks that pass through registers
    panel: int = 0

    @property
    def layout_name(self) -> str:
        """The name of its memory layout, part of buffers' keys."""
        order = f"panels of {self.panel} rows" if self.panel else "blocks"
        return f"{self.splits} splits, {order}"

    @property
    def blocks(self) -> int:
        """Blocks of terms."""
        return round_up(self.terms, self.term_multiple) // BLOCK

    @property
    def row_blocks(self) -> int:
        """Blocks of rows."""
        return round_up(self.rows, self.row_multiple) // BLOCK

    @property
    def size(self) -> int:
        """Bytes of the blocks."""
        return self.row_blocks * self.blocks * self.splits * BLOCK_BYTES

    @property
    def scales_size(self) -> int:
        """Bytes of the rows' scales."""
        return 4 * BLOCK * self.row_blocks

    def launch(
        self, source: Argument, offset: int, stride: int, to: Argument,
        scales: Argument, *, second: bool, transposed: bool = False,
        source_padded: int = 1,
        totals: tuple[Argument, int] | None = None, when: When = "call",
        before: tuple[int, int] = (0, 0),
    ) -> Launch:
        """Return the launch that packs a matrix."""
        defines: dict[str, int | str] = {
            "SPLITS": self.splits, "TRANSPOSED": int(transposed),
            "SOURCE_PADDED": source_padded, "TOTALS": int(totals is not None),
        }
        if not self.panel:
            text, groups, packers = "tensor_core/pack.cl", self.row_blocks, PACKERS
            defines["SECOND"] = int(second)
        else:
            text, groups = TILES, self.row_blocks * BLOCK // CORE
            defines.update(PANEL_ROWS=self.panel, HELD=HELD, MATRICES=1, GATHERS=0)
            held = -(-self.blocks * BLOCK // CORE // HELD)  # work-items of a row
            packers = min(PACKERS, max(2 * WARP, CORE << (held - 1).bit_length()))
        return Launch(
            text, "pack", {**defines, "PACKERS": packers},
            (groups * packers,), (packers,),
            (
                source, offset, stride, self.rows, self.terms,
                to, before[0] // UNIT_BYTES, scales, before[1] // 4, self.blocks,
                *(totals or (scales, 0)),
            ),
            when=when,
        )


def merge_packings(launches: Iterable[Launch]) -> list[Launch]:
    """Return a training step's launches, with up to four consecutive packings merged.

    All are of panels, in groups of one size, and only the first stores totals. A batch
    that is packed by rows is gathered in the same launch.
    """
    merged: list[Launch] = []
    for launch in launches:
        if merged and _can_gather(merged[-1], launch):
            merged[-1] = replace(
                launch,
                defines={
                    **launch.defines, "GATHERS": 1,
                    "SHUFFLED": merged[-1].defines["SHUFFLED"],
                },
                arguments=(*launch.arguments, *merged[-1].arguments),
            )
        elif merged and _can_merge(merged[-1], launch):
            merged[-1] = _merged(merged[-1], launch)
        else:
            merged.append(launch)
    return merged


def _can_gather(gather: Launch, packing: Launch) -> bool:
    """Return whether a packing of a batch's inputs could gather the batch."""
    return (
        gather.gathers is not None and packing.source == TILES
        and not packing.defines["TRANSPOSED"]
        and packing.arguments[:2] == (gather.gathers, 0)
    )


def _can_merge(first: Launch, second: Launch) -> bool:
    shapes = [launch.defines.get("PACKERS") for launch in (first, second)]
    return (
        first.source == second.source == TILES and shapes[0] == shapes[1]
        and "inputs" not in (first.when, second.when)
        and first.defines["MATRICES"] != MATRICES and not second.defines["TOTALS"]
    )


def _merged(first: Launch, second: Launch) -> Launch:
    count = first.defines["MATRICES"]
    assert isinstance(count, int)
    macros = ("PANEL_ROWS", "TRANSPOSED", "SOURCE_PADDED")
    further = {f"{name}_{count + 1}": second.defines[name] for name in macros}
    (size,), (group,) = first.global_size, first.local_size
    return Launch(
        first.source, first.kernel,
        {**first.defines, **further, "MATRICES": count + 1},
        (size + second.global_size[0],), (group,),
        (*first.arguments, size // group, *second.arguments[:-2]),
        when="call" if "call" in (first.when, second.when) else "parameters",
    )
