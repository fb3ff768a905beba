"""Fixtures that several test modules share."""

from __future__ import annotations

from pathlib import Path

import pytest

FANN_DATASETS = Path(__file__).parents[2] / "shared" / "datasets" / "fann"


@pytest.fixture
def fann_datasets() -> Path:
    """The folder of FANN's data sets and networks beside the checkout."""
    if not FANN_DATASETS.is_dir():
        pytest.skip(f"the FANN data sets are not at {FANN_DATASETS}")
    return FANN_DATASETS
