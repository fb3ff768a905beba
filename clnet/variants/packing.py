"""Matrices as halves in the order that matrix units want (``fp16_split.h``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from clnet.nn.storage.layout import round_up
from clnet.opencl.launch import Argument, Launch, When
from clnet.opencl.program import GROUP_UNITS, WARP_UNITS

TILES = "tensor_core/pack_tiles.cl"
WARP = 32  # work-items
BLOCK = 16  # rows, and terms, of a block
BLOCK_BYTES = 2 * BLOCK * BLOCK  # of a plane
ROWS = 128  # most packed matrices end on multiples of it
TERMS: Mapping[int, int] = MappingProxyType({WARP_UNITS: 32, GROUP_UNITS: 64})
"""Likewise, for each kind of units."""
WORDS = 16  # bytes of what kernels count the places of packed values in
PACKERS = 1024  # work-items that pack a block of rows, at most
UNIT, HELD = 8, 4  # rows of a group and terms of a part in pack_tiles.cl; parts held
SPLITS: Mapping[str, int] = MappingProxyType({"highest": 2, "high": 1, "medium": 1})
"""Halves that keep a value, for each precision."""


@dataclass(frozen=True)
class Packing:
    """A matrix of rows of terms, packed.

    Attributes
    ----------
    rows, terms : int
        Its sizes.
    planes : int
        Halves a value.
    rows_to, terms_to : int
        Of what number rows and terms are filled up to a multiple, with zeros.
    piece : int
        Rows of a piece that a warp group's units read from local memory; 0: in blocks
        that pass through registers.
    """

    rows: int
    terms: int
    planes: int
    rows_to: int = ROWS
    terms_to: int = TERMS[WARP_UNITS]
    piece: int = 0

    @property
    def form(self) -> str:
        """Its order, in words that tell it from others."""
        order = f"pieces of {self.piece} rows" if self.piece else "blocks"
        return f"{self.planes} halves, {order}"

    @property
    def blocks(self) -> int:
        """Blocks of terms."""
        return round_up(self.terms, self.terms_to) // BLOCK

    @property
    def row_blocks(self) -> int:
        """Blocks of rows."""
        return round_up(self.rows, self.rows_to) // BLOCK

    @property
    def size(self) -> int:
        """Bytes of the blocks."""
        return self.row_blocks * self.blocks * self.planes * BLOCK_BYTES

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
        """Return the launch that packs a matrix.

        Parameters
        ----------
        source : Argument
            Where it is.
        offset, stride : int
            Values before its first row, and from one row to the next.
        to, scales : Argument
            Buffers of `size` and `scales_size` bytes.
        second : bool
            As the second operand of a product; pieces always are.
        transposed : bool
            Its rows are the source's columns: stride is from one term to the next.
        source_padded : int
            1: the source's rows start on a vector and end in zeros.
        totals : (Argument, int) or None
            Where the rows' sums are written too: a buffer, and the values before.
        when : {"call", "parameters", "inputs"}
            As for `Launch`.
        before : (int, int)
            Bytes that others take before it in the two buffers.
        """
        defines: dict[str, int | str] = {
            "SPLITS": self.planes, "TRANSPOSED": int(transposed),
            "SOURCE_PADDED": source_padded, "TOTALS": int(totals is not None),
        }
        if not self.piece:
            text, groups, packers = "tensor_core/pack.cl", self.row_blocks, PACKERS
            defines["SECOND"] = int(second)
        else:
            text, groups = TILES, self.row_blocks * BLOCK // UNIT
            defines.update(PIECE_ROWS=self.piece, HELD=HELD, PAIR=0)
            held = -(-self.blocks * BLOCK // UNIT // HELD)  # parts of a row at once
            packers = min(PACKERS, max(2 * WARP, UNIT << (held - 1).bit_length()))
        return Launch(
            text, "pack", {**defines, "PACKERS": packers},
            (groups * packers,), (packers,),
            (
                source, offset, stride, self.rows, self.terms,
                to, before[0] // WORDS, scales, before[1] // 4, self.blocks,
                *(totals or (scales, 0)),
            ),
            when=when,
        )


def together(launches: Iterable[Launch]) -> list[Launch]:
    """Return a training step's launches, two packings that follow each other as one.

    Where both are of pieces, of as many terms, and of the second no totals are wanted.
    """
    found: list[Launch] = []
    for launch in launches:
        if found and _go_together(found[-1], launch):
            found[-1] = _pair(found[-1], launch)
        else:
            found.append(launch)
    return found


def _go_together(first: Launch, second: Launch) -> bool:
    shapes = [launch.defines.get("PACKERS") for launch in (first, second)]
    return (
        first.source == second.source == TILES and shapes[0] == shapes[1]
        and "inputs" not in (first.when, second.when)
        and not first.defines["PAIR"] and not second.defines["TOTALS"]
    )


def _pair(first: Launch, second: Launch) -> Launch:
    own = ("PIECE_ROWS", "TRANSPOSED", "SOURCE_PADDED")
    of_second = {f"{name}_2": second.defines[name] for name in own}
    (size,), (group,) = first.global_size, first.local_size
    return Launch(
        first.source, first.kernel, {**first.defines, **of_second, "PAIR": 1},
        (size + second.global_size[0],), (group,),
        (*first.arguments, size // group, *second.arguments[:-2]), when=second.when,
    )
