"""Random tables: a few, and those that have found faults."""

import pytest

pytest.importorskip("polars")
pytest.importorskip("sklearn")

from .tables import case


@pytest.mark.parametrize("seed", [*range(10), 20199, 20246])
def test_tables_reach_the_network_as_scikit_learn_reads_them(seed):
    assert case(seed).total()
