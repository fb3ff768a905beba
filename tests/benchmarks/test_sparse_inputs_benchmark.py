"""The comparison on wide sparse matrices: its rows and its table."""

from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from clnet.benchmarks import sparse_inputs
from clnet.benchmarks.measurements import RESULTS

FILES = sorted((Path(__file__).parents[2] / RESULTS).glob("sparse_inputs-*"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_both_have_rows_of_every_width(file):
    rows = pd.read_csv(file)
    kinds = sparse_inputs.SKLEARN, sparse_inputs.CLNET
    theirs, ours = (
        Counter(rows["inputs"][rows["estimator"] == kind]) for kind in kinds
    )
    assert theirs == ours
    assert set(ours) <= {*sparse_inputs.INPUTS}
    losses = rows.groupby("inputs")["loss"].agg(["min", "max"])
    assert (losses["max"] < 1.05 * losses["min"]).all()
    assert "times as fast" in sparse_inputs.table(rows)
