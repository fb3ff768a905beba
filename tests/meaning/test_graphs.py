"""A few graphs of the instrument `graphs`."""

import pytest

from tests.meaning.runner import run


def test_graphs_are_right_or_refused():
    pytest.importorskip("onnxruntime")
    report = run("graphs", 0, 40)
    assert not report.faults, report.text("graphs")
    assert any(kind.startswith("right") for kind in report.counts)
