"""Some seeds of each instrument, and those that have found faults."""

from importlib import import_module

import pytest

from tests.meaning.runner import run

NEEDED = {  # packages, by instrument
    "restored": ["sklearn"], "settings": ["torch"], "tables": ["polars", "sklearn"],
}
SEEDS = {
    "restored": [22, 24, 7, 8, 16], "settings": [1, 110],
    "tables": [*range(10), 20199, 20246],
}


@pytest.mark.parametrize(("instrument", "seed"), [
    (instrument, seed) for instrument, seeds in SEEDS.items() for seed in seeds
])
def test_a_seed(instrument, seed):
    for package in NEEDED[instrument]:
        pytest.importorskip(package, "1.7" if instrument == "restored" else None)
    assert import_module(f"tests.meaning.{instrument}").case(seed).total()


@pytest.mark.parametrize(("first", "cases", "kind"), [
    (0, 40, "right"),
    # A step beyond float32, of infinite height, is NaN on its lower side.
    (2029686, 1, "refused: drawn"),
])
def test_graphs_are_right_or_refused(first, cases, kind):
    pytest.importorskip("onnxruntime")
    report = run("graphs", first, cases)
    assert not report.faults, report.text("graphs")
    assert any(found.startswith(kind) for found in report.counts)
