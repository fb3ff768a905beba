"""The comparison of `fit`'s defaults: its rows, its table and a score."""

from pathlib import Path

import pandas as pd
import pytest
from clnet.benchmarks import defaults

import clnet
from clnet import DeviceError
from clnet.nn.defaults import EPOCHS
from clnet.nn.optimisers import MINI_BATCH, Adam

ROWS = Path(__file__).parents[2] / defaults.ROWS
DEFAULT = next(
    one.name for one in defaults.CHOICES
    if (one.optimiser, one.batch, one.epochs) == (Adam(), MINI_BATCH, EPOCHS)
)


def test_every_choice_has_rows_of_every_data_set():
    rows = pd.read_csv(ROWS)
    assert list(rows["data"].unique()) == list(defaults.splits(Path()))
    for one in defaults.CHOICES:
        kinds = defaults.NETWORKS if one.optimiser else [defaults.SKLEARN]
        found = rows[rows["choice"] == one.name]
        expected = {(d, k) for d in rows["data"].unique() for k in kinds}
        assert set(zip(found["data"], found["network"], strict=True)) == expected
    assert (rows["seeds"] == defaults.SEEDS).all()
    assert ((rows["low"] <= rows["mean"]) & (rows["mean"] <= rows["high"])).all()


def test_no_choice_without_a_schedule_is_better_than_the_default():
    rows = pd.read_csv(ROWS)
    summary = defaults.table(rows).partition("\n\n")[0].splitlines()[2:]
    names = [line.split("  ")[0] for line in summary]
    scheduled = {one.name for one in defaults.CHOICES if one.schedule}
    assert next(name for name in names if name not in scheduled) == DEFAULT


@pytest.mark.parametrize("name", ["sklearn iris", "sklearn linnerud"])
def test_a_score_is_of_the_test_set(name):
    pytest.importorskip("sklearn")
    try:
        device = clnet.device()
    except DeviceError as error:
        pytest.skip(f"no OpenCL device: {error}")
    split = defaults.splits(Path())[name](0)
    assert len(split.x_test) == len(split.t_test) == round(
        defaults.TEST * (len(split.x) + len(split.x_test))
    )
    for choice in (defaults.CHOICES[0], defaults.CHOICES[-1]):
        score = defaults.score(choice, "relu", split, 0, device)
        assert 0.8 < score <= 1 if split.classes else score < 1
