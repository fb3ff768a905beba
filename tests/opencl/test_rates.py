"""The record of rates: estimated, measured once, remembered with the device."""

import pickle
from dataclasses import asdict, replace

import pytest
from devices import DEVICE

import clnet
from clnet.cli.main import main
from clnet.errors import WIDTH
from clnet.opencl import rate_probes
from clnet.opencl.device import Device, Rates, data_sheet, estimated
from clnet.opencl.store import Store

CARD = Device("a card", compute_units=100, clock=1e9, compute_capability=(8, 7))


@pytest.fixture
def quick(monkeypatch, own_store):
    """Small probes, and nothing remembered."""
    for name, value in {
        "READ": 1 << 24, "AROUND": 1 << 20, "CHASED": 10, "ROUNDS": 2, "LAUNCHES": 1,
        "TRIED_LAUNCHES": 3, "STEPS": {True: 1 << 8, False: 1 << 4}, "MATRIX_STEPS": 8,
    }.items():
        monkeypatch.setattr(rate_probes, name, value)
    rate_probes._known.cache_clear()
    yield
    rate_probes._known.cache_clear()


def test_estimates_follow_from_clock_units_and_lanes():
    rates = estimated(CARD)
    assert rates.flops == 2 * 128 * 1e9 * 100  # of 8.6, the newest that is not newer
    assert rates.matrix == 512e9 * 100
    assert rates.warp_group == rates.matrix
    assert estimated(replace(CARD, clock=2e9)).flops == 2 * rates.flops
    assert data_sheet(CARD) == {"flops": rates.flops, "matrix": rates.matrix}
    cores = Device("cores", "cpu", compute_units=4, clock=3e9, vector_width=8)
    assert estimated(cores).flops == 2 * 2 * 8 * 3e9 * 4
    for unknown in (Device("a card"), Device("cores", "cpu")):
        assert data_sheet(unknown) == {}
        assert min(asdict(unknown.rates).values()) > 0


def test_measured_rates_are_remembered(quick, monkeypatch):
    if DEVICE.untested or DEVICE.emulated:
        pytest.skip("untested and emulated devices are not measured")
    device = replace(DEVICE, measured=None)
    assert rate_probes.known(device).measured is None
    first = rate_probes.measured(device)
    assert first == device  # as a key of sessions and plans
    assert [one.name for one in first.places] == [one.name for one in device.places]
    for one in first.places:
        assert one.rates is one.measured
        assert one.measured.flops > 0 and one.measured.memory > 0
    stored = Store(device).rates(rate_probes._version())
    assert stored == {
        f"{place} {name}": rate
        for place, one in enumerate(first.places)
        for name, rate in asdict(one.measured).items()
    }
    rate_probes._known.cache_clear()  # as in another process
    monkeypatch.setattr(rate_probes, "_measured", None)
    assert rate_probes.measured(device).measured == first.measured
    monkeypatch.setattr(rate_probes, "_version", lambda: "of other kernels")
    rate_probes._known.cache_clear()
    assert rate_probes.known(device).measured is None


def test_devices_that_may_break_are_not_probed(quick, monkeypatch):
    monkeypatch.setattr(rate_probes, "_measured", None)
    for doubtful in (
        replace(DEVICE, untested=True), replace(DEVICE, emulated=True),
        Device("a record"),
    ):
        assert rate_probes.measured(doubtful).measured is None


def test_a_failing_probe_leaves_estimates(quick, monkeypatch):
    def fails(device):
        raise clnet.DeviceError("it broke")

    monkeypatch.setattr(rate_probes, "_measured", fails)
    assert rate_probes.measured(DEVICE).measured is None


def test_a_measured_device_is_pickled(quick):
    rates = estimated(DEVICE)
    device = replace(DEVICE, measured=rates)
    assert device.rates == rates
    again = pickle.loads(pickle.dumps(device))
    assert again == device and again.rates == rates


def test_the_command_shows_the_record(quick, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "roofline.png"
    assert main(["devices", "--measure", "--plot", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "float32 multiply-adds" in out and "a launch among many" in out
    assert max(map(len, out.splitlines())) <= WIDTH
    assert picture.stat().st_size > 1000
    assert main(["devices", "--plot", str(picture)]) == 2
    assert "give --measure too" in capsys.readouterr().err


def test_the_command_measures_the_named_device_alone(quick, capsys, monkeypatch):
    measured = []
    monkeypatch.setattr(
        rate_probes, "measured", lambda one, again: measured.append(one) or one
    )
    assert main(["devices", "--measure", "--device", DEVICE.index]) == 0
    assert [one.index for one in measured] == [DEVICE.index]
    assert "float32 multiply-adds" in capsys.readouterr().out
    assert main(["devices", "--device", "no such device"]) == 2
    assert "no such device" in capsys.readouterr().err


def test_a_table_fits_every_card():
    from clnet.cli.device_table import ROWS, rate_table

    assert list(ROWS) == list(asdict(estimated(CARD)))
    large = Rates(*[9.87654e15] * 6, *[1e-3] * 4)
    for rates in (None, large):
        table = rate_table(replace(CARD, measured=rates))
        assert max(map(len, table.splitlines())) <= WIDTH
        assert ("estimated" in table) == (rates is None)


@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a GPU")
def test_rates_of_a_gpu_are_plausible(own_store):
    rate_probes._known.cache_clear()
    rates, sheet = rate_probes.measured(DEVICE).rates, data_sheet(DEVICE)
    assert rates.cache > rates.memory
    assert rates.latency < rates.handover < 1e-4
    for name, bound in sheet.items():
        assert 0.2 * bound < getattr(rates, name) < 1.3 * bound, name
