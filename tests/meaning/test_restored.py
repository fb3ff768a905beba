"""Some seeds of restored networks, and those that have found faults."""

import pytest

pytest.importorskip("sklearn", "1.7")

from . import restored


@pytest.mark.parametrize("seed", [22, 24, 7, 8, 16])
def test_restored(seed):
    assert restored.case(seed).total()
