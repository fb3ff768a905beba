"""Fixtures of the command line's tests."""

from __future__ import annotations

import pytest

from clnet import Network
from clnet.cli.main import main


@pytest.fixture(autouse=True)
def measured_times(monkeypatch, tmp_path_factory):
    """A store of measured times for these tests alone."""
    folder = tmp_path_factory.getbasetemp() / "times"
    monkeypatch.setenv("CLNET_CACHE_DIR", str(folder))


@pytest.fixture
def quick(monkeypatch):
    """Plans come from the cost model."""
    def plan_for(self, device, batch, *precision):
        return self.compile(device, batch, tune=False)

    monkeypatch.setattr(Network, "plan_for", plan_for)


@pytest.fixture
def clnet_command(capsys):
    """A function that runs a command: status, stdout, stderr."""
    def command(line):
        try:
            status = main(line.split())
        except SystemExit as leaving:  # argparse's way
            status = leaving.code
        return status, *capsys.readouterr()

    return command
