"""The comparison of the searches with scikit-learn's: its rows and its table."""

import json
from itertools import product
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("resource")
from clnet.benchmarks import searches
from clnet.benchmarks.measurements import RESULTS

FILES = sorted((Path(__file__).parents[2] / RESULTS).glob("searches-*"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_search_has_a_row_of_every_case(file):
    rows = pd.read_csv(file)
    found = list(zip(rows["case"], rows["search"], strict=True))
    assert found == list(product(searches.CASES, searches.SEARCHES))
    assert (rows["of"] == 200).all()
    full = rows[rows["settings"] == rows["of"]]
    for _, of_case in full.groupby("case"):  # the same winner as one by one
        assert of_case["best"].map(json.loads).map(str).nunique() == 1
        assert of_case["score"].max() - of_case["score"].min() < 1e-3
    assert "processor ×" in searches.table(rows)


def test_settings():
    pytest.importorskip("sklearn")
    grids = searches.settings("batches of 16")
    assert len(grids) == 200
    assert grids[0].keys() == {"alpha", "learning_rate_init", "hidden_layer_sizes"}
