"""Some seeds of the settings by decades, and those that have found faults."""

import pytest

from . import settings


@pytest.mark.parametrize("seed", [1, 110])
def test_settings(seed):
    pytest.importorskip("torch")
    assert settings.case(seed).total()
