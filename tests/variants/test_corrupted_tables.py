"""Tables with one wrong number are refused before they are uploaded."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from devices import DEVICE, H200, posing
from hypothesis import given, settings
from hypothesis import strategies as st
from test_keys import NETWORKS, spans_of

from clnet.errors import DeviceError
from clnet.nn.storage.contents import Records
from clnet.opencl.launch import Table
from clnet.variants import VARIANTS

VARIANT = {variant.name: variant for variant in VARIANTS}
MOST_RECORDS = 12  # of a table, which are changed one after the other
CASES = [
    ("persistent_mixed", "mixed", 1, posing(3)),
    ("persistent_mixed", "csr float32", 1, posing(3)),
    ("persistent_mixed", "hyb float32", 1, H200),
    ("persistent_mma", "dense", 30, H200),
    ("persistent_mma", "wide", 128, H200),
    ("fused_sparse", "mixed", 5, H200),
    ("fused_sparse", "csr float64", 5, DEVICE),
    ("fused_sparse", "hyb float32", 1, DEVICE),
    ("generic", "hyb float32", 5, DEVICE),
    ("csr", "csr float32", 5, DEVICE),
    ("sell", "sell float32", 5, DEVICE),
    ("dia", "dia float32", 5, DEVICE),
]


@cache
def tables(name, network, batch, place):
    """The checked tables of a variant, with their values."""
    variant, program = VARIANT[name], NETWORKS[network]().program
    found = {
        argument.name: (argument, argument.values())
        for span in spans_of(program, variant, batch)
        if variant.refuse(span, place) is None
        for config in list(variant.space(span, place))[:3]
        for launch in variant.launches(span, config, place)
        for argument in launch.arguments
        if isinstance(argument, Table) and argument.contents is not None
    }
    return list(found.values())


def assert_refused(table, values):
    with pytest.raises(DeviceError, match="expected"):
        replace(table, make=lambda: values).values()


@settings(max_examples=30, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case[:2]))
def test_a_corrupted_table_is_refused(case, data):
    if not tables(*case):
        pytest.skip("on this device the variant reads no table")
    table, values = data.draw(st.sampled_from(tables(*case)))
    contents, wrong = table.contents, values.copy()
    if isinstance(contents, Records):
        # Far outside: the right ranges are those of the launch's own buffers.
        numbers = wrong.view(contents.record).reshape(-1)
        fields = [name for name in contents.record.names if "spare" not in name]
        numbers = numbers[data.draw(st.sampled_from(fields))]
        outside = [-(1 << 31), -(1 << 24), 1 << 24, (1 << 31) - 1]
    else:
        numbers = wrong.reshape(-1)
        outside = [contents.least - 1, contents.most + 1, -(1 << 31), (1 << 31) - 1]
    limits = np.iinfo(numbers.dtype)
    outside = [n for n in outside if limits.min <= n <= limits.max]
    if outside:
        at = data.draw(st.integers(0, len(numbers) - 1))
        numbers[at] = data.draw(st.sampled_from(outside))
        assert_refused(table, wrong)
    assert_refused(table, values.reshape(-1)[:-1])


@pytest.mark.parametrize("case", [
    case for case in CASES if case[0] in ("persistent_mixed", "persistent_mma")
], ids=lambda case: " ".join(case[:2]))
@pytest.mark.parametrize(("field", "by"), [
    ("weights", 1 << 20), ("rows", 1 << 16), ("function", 9), ("bias", 1 << 20),
])
def test_records_are_checked(case, field, by):
    for table, values in tables(*case):
        if not isinstance(table.contents, Records):
            continue
        size = table.contents.size
        for at in {*range(0, size, -(-size // MOST_RECORDS)), size - 1}:
            wrong = values.copy()
            wrong.view(table.contents.record).reshape(-1)[at][field] += by
            assert_refused(table, wrong)


def test_ranges_of_layers_that_read_past_the_end_are_refused():
    """A wrong number within its field's range, of which a sum is not."""
    wrong_ends = {
        "persistent_mixed": ("outputs", "end of the outputs"),
        "persistent_mma": ("weights", "end of the weights"),
        "fused_sparse": ("target", "end of the outputs"),
    }
    for case in CASES:
        if case[0] not in wrong_ends:
            continue
        field, name = wrong_ends[case[0]]
        table, values = next(
            (t, v) for t, v in tables(*case) if isinstance(t.contents, Records)
        )
        wrong = values.copy()
        records = wrong.view(table.contents.record).reshape(-1)
        fields = {n: records[n].astype(np.int64) for n in records.dtype.names}
        most = table.contents.ranges(fields)[field].most
        records[field][0] = np.broadcast_to(most, len(records))[0]
        with pytest.raises(DeviceError, match=name):
            replace(table, make=lambda wrong=wrong: wrong).values()
