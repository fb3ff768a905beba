"""place_rows alone, on any device that takes its launch: also for an interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from variant_cases import alternate

from clnet.opencl.discovery import device
from clnet.opencl.memory import Memory
from clnet.opencl.session import Session
from clnet.runtime.row_placement import RowPlacement
from clnet.variants.training.optimisers import TYPES

FIRST, ROWS, N_OUT = 3, 37, 2  # of 40 rows: two tiles of 16 and five rows
BLOCK, T_STRIDE = FIRST + ROWS + 2, 4
PADDING = 77.0


def placed(x, t, stride, dtype, places):
    """A block of `PADDING` as the kernel leaves it, and whether all are finite."""
    session = Session(replace(device(), companions=()))
    arrays = []
    for width in (stride, T_STRIDE):
        memory = Memory(session, BLOCK * width * np.dtype(dtype).itemsize)
        memory.write(session, np.full(BLOCK * width, PADDING, dtype))
        arrays.append((memory, width))
    middle = len(x) // 2 + 1
    parts = [(x[:middle], t[:middle]), (x[middle:], t[middle:])]
    done = RowPlacement(session, dtype, arrays).place(FIRST, parts, places)
    return done, *(
        memory.read(session, BLOCK * width, dtype).reshape(BLOCK, width)
        for memory, width in arrays
    )


@pytest.mark.parametrize(("types", "order"), alternate(
    [*((kind, "float32") for kind in TYPES), ("f4", "float64"), ("f8", "float64")],
    ["C", "F"],
))
def test_all_rows_are_at_their_places(types, order):
    kind, dtype = types
    if not device().fp64 and (kind == "f8" or dtype == "float64"):
        pytest.skip("the device has no float64")
    whole_lines = kind in ("f4", "i2", "u8")
    width, stride = (35, 48) if whole_lines else (19, 24)
    rng = np.random.default_rng(1)
    x = np.asarray(rng.uniform(0, 100, (ROWS, width)), kind, order=order)
    t = rng.normal(size=(ROWS, N_OUT)).astype("float32")
    places = rng.permutation(ROWS).astype(np.int32)
    done, found_x, found_t = placed(x, t, stride, dtype, places)
    assert done
    for found, values in ((found_x, x), (found_t, t)):
        expected = np.full(found.shape, PADDING, dtype)
        expected[FIRST + places, : values.shape[1]] = values
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("at", [(0, 0), (15, 15), (31, 18), (36, 3)])
def test_a_number_that_is_not_finite_is_found(order, at):
    x = np.asarray(np.ones((ROWS, 19)), "float32", order=order)
    x[at] = np.inf
    done, *_ = placed(x, np.ones((ROWS, 1)), 24, "float32", None)
    assert not done
