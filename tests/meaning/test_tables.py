"""A few random tables; ``python -m tests.meaning tables`` judges more."""

import pytest

pytest.importorskip("polars")
pytest.importorskip("sklearn")

from .tables import case


@pytest.mark.parametrize("seed", range(12))
def test_tables_reach_the_network_as_scikit_learn_reads_them(seed):
    assert case(seed).total()
