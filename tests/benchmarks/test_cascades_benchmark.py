"""Cascade training beside FANN's: the rows, their medians and the data sets."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from clnet.benchmarks import cascades
from clnet.benchmarks.measurements import RESULTS

FILES = sorted((Path(__file__).parents[2] / RESULTS).glob("cascades-*"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_rows(file):
    rows = pd.read_csv(file)
    ends = cascades.ends_of(rows)
    for name, case in cascades.CASES.items():
        of_case = ends[ends["case"] == name]
        assert (of_case.groupby("library")["seed"].nunique() == case.seeds).all()
        ours = of_case[of_case["library"] == "clnet"]
        theirs = of_case[of_case["library"] == "fann"]
        if name.startswith("parity"):  # in every seed, with no more neurons
            assert ours["solved"].all()
            assert ours["neurons"].median() <= theirs["neurons"].median()
    medians = pd.DataFrame(cascades.medians_of(rows[rows["table"] == "trainings"]))
    found = rows[rows["table"] != "trainings"]
    assert medians["table"].tolist() == found["table"].tolist()
    np.testing.assert_allclose(medians["median"], found["median"], rtol=1e-4)
    assert "processor ×" in cascades.table(rows)


def test_data_sets():
    x, t = cascades.parity(3)
    assert x.shape == (8, 3)
    assert len({tuple(row) for row in x.tolist()}) == 8
    np.testing.assert_array_equal(t[:, 0], x.sum(axis=1) % 2)
    x, t = cascades.spirals()
    assert x.shape == (2 * cascades.SPIRAL, 2)
    np.testing.assert_allclose(x[0], [0, 6.5])
    np.testing.assert_allclose(x[: cascades.SPIRAL], -x[cascades.SPIRAL :])
    radius = np.hypot(*x.T)
    assert radius.min() == pytest.approx(0.5)
    assert t.sum() == cascades.SPIRAL
