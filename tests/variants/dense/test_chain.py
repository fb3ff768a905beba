"""Macros of chains of layers (``chain.h``)."""

from __future__ import annotations

import pytest

from clnet.variants.dense.chain import wide_table


@pytest.mark.parametrize(("numbers", "initialiser"), [
    (range(4), "{0, 1, 2, 3}"),
    (range(5), "{0, 1, 2, 3, 4, 256}"),
    ([-1, *range(4)], "{-1, 0, 1, 2, 3, 256}"),
    ([300, *range(4)], "{300, 0, 1, 2, 3}"),
    ([8] * 5, "{8, 8, 8, 8, 8}"),
])
def test_tables_of_bytes_end_in_a_larger_number(numbers, initialiser):
    assert wide_table(numbers) == initialiser
