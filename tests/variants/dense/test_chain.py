"""Macros of chains of layers (``chain.h``)."""

from __future__ import annotations

import pytest

from clnet.variants.dense.chain import table


@pytest.mark.parametrize(("numbers", "initialiser"), [
    (range(8), "{0, 1, 2, 3, 4, 5, 6, 7}"),
    (range(9), "{0, 1, 2, 3, 4, 5, 6, 7, 8, 256}"),
    ([-1, *range(8)], "{-1, 0, 1, 2, 3, 4, 5, 6, 7, 256}"),
    ([300, *range(8)], "{300, 0, 1, 2, 3, 4, 5, 6, 7}"),
    ([8] * 9, "{8, 8, 8, 8, 8, 8, 8, 8, 8}"),
])
def test_long_tables_of_bytes_end_in_a_larger_number(numbers, initialiser):
    assert table(numbers) == initialiser
