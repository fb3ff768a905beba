"""The comparison of the estimators with scikit-learn's: its rows and its table."""

from itertools import product
from pathlib import Path

import pandas as pd
import pytest
from clnet.benchmarks import estimators
from clnet.benchmarks.measurements import RESULTS

FILES = sorted((Path(__file__).parents[2] / RESULTS).glob("estimators-*"))
NAMES = [*estimators.CLASSES, *estimators.REGRESSIONS]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_estimator_has_a_row_of_every_data_set(file):
    rows = pd.read_csv(file)
    found = list(zip(rows["data"], rows["estimator"], strict=True))
    assert found == list(product(NAMES, estimators.ESTIMATORS))
    assert (rows["seeds"] == estimators.SEEDS).all()
    assert ((rows["low"] <= rows["score"]) & (rows["score"] <= rows["high"])).all()
    assert "from 1000 samples on, at least" in estimators.table(rows)


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_standardised(name):
    pytest.importorskip("sklearn")
    x, y = estimators.samples(name)
    assert len(x) == len(y)
    assert abs(x.mean(axis=0)).max() < 1e-9
    assert name in estimators.CLASSES or abs(y.std() - 1) < 1e-9
