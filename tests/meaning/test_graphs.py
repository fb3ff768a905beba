"""A few graphs of the instrument `graphs`."""

import pytest

from tests.meaning.runner import run


def test_graphs_are_right_or_refused():
    pytest.importorskip("onnxruntime")
    report = run("graphs", 0, 40)
    assert not report.faults, report.text("graphs")
    assert any(kind.startswith("right") for kind in report.counts)


def test_a_step_beyond_float32_is_refused():
    """Of infinite height, it is NaN on its lower side."""
    pytest.importorskip("onnxruntime")
    report = run("graphs", 2029686, 1)
    assert not report.faults, report.text("graphs")
    assert [*report.counts] == ["refused: drawn"]
