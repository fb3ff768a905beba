"""Files of times: exported, imported, and found where the device matches."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

import clnet
from clnet.cli.main import main
from clnet.errors import FormatError, InputError
from clnet.opencl import times_file
from clnet.opencl.device import Device, estimated
from clnet.opencl.store import Store, Timing

DEVICE = Device("a card", platform="a platform", compute_units=7, driver="1.2")
TIME = Timing(2e-6, 3e-6, 0.01)
HASH = " 0123456789abcdef"


@pytest.fixture(autouse=True)
def no_files(monkeypatch, tmp_path):
    """Neither shipped nor imported times."""
    monkeypatch.setenv("CLNET_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(times_file, "SHIPPED", tmp_path / "shipped")
    forget()
    yield
    forget()


def forget():
    times_file.given_times.cache_clear()


@pytest.fixture
def stored():
    """A store with the times of a span."""
    store = Store(DEVICE)
    store.put("span", f"mma(parts=1) device{HASH}", TIME)
    store.put("span", f"mma(parts=2) device{HASH}", replace(TIME, seconds=3.9e-6))
    store.put("span", f"naive() device{HASH}", replace(TIME, seconds=4.1e-6))
    store.put("span", "host() host numpy 2.0, openblas 1 threads", TIME)
    whole = "; ".join(f"{span} mma() device{HASH}" for span in ("0-2", "2-4"))
    store.put("host to host span", whole, TIME)
    return store


def test_times_go_through_a_file(stored, tmp_path):
    path = tmp_path / "times.json"
    rated = replace(DEVICE, measured=estimated(DEVICE))
    assert times_file.export_times(rated, path) == 2
    other = replace(DEVICE, driver="2.0", index="1:3")  # of another machine
    assert times_file.given_times(other) == {}
    target, content = times_file.import_times(path)
    assert target.parent == tmp_path / "cache" / "times"
    assert content["driver"] == "1.2" and content["clnet"] == clnet.__version__
    found = times_file.given_times(other)
    assert found == {"span": {
        "mma(parts=1) device": TIME,
        "mma(parts=2) device": replace(TIME, seconds=3.9e-6),
    }}
    assert times_file.given_rates(other).measured == rated.measured
    assert times_file.given_times(replace(other, compute_units=8)) == {}
    assert times_file.given_rates(replace(other, name="b")).measured is None


def test_the_newest_time_of_a_kernel_counts(stored, tmp_path):
    later = replace(TIME, spread=0.5)
    stored.put("span", "mma(parts=1) device fedcba9876543210", later)
    times_file.export_times(DEVICE, tmp_path / "times.json")
    times_file.import_times(tmp_path / "times.json")
    found = times_file.given_times(DEVICE)
    assert found["span"]["mma(parts=1) device"].spread == 0.5


def test_imported_times_go_before_shipped_ones(stored, tmp_path):
    shipped = times_file.SHIPPED / "card.json"
    shipped.parent.mkdir()
    times_file.export_times(DEVICE, shipped)
    stored.put("span", f"mma(parts=1) device{HASH}", replace(TIME, seconds=1e-6))
    times_file.export_times(DEVICE, tmp_path / "times.json")
    assert times_file.given_times(DEVICE)["span"]["mma(parts=1) device"] == TIME
    times_file.import_times(tmp_path / "times.json")
    assert times_file.given_times(DEVICE)["span"]["mma(parts=1) device"].seconds == 1e-6


@pytest.mark.parametrize(("damage", "words"), [
    (lambda c: c.update(clnet="0.0.1"), "has times of clnet '0.0.1', expected"),
    (lambda c: c.update(device={"name": "a"}), "is no file of times"),
    (lambda c: c.update(times=[1]), "is no file of times"),
    (lambda c: c["times"]["span"].update(a=[1.0, 2.0]), "is no file of times"),
    (lambda c: c["times"]["span"].update(a=[1.0, 2.0, -1.0]), "is no file of times"),
    (lambda c: c["times"]["span"].update(a=["1", 2.0, 1.0]), "is no file of times"),
    (lambda c: c.update(rates=[{"flops": 1.0}]), "is no file of times"),
    (lambda c: c.clear(), "is no file of times"),
])
def test_damaged_files_are_refused(stored, tmp_path, damage, words):
    path = tmp_path / "times.json"
    times_file.export_times(DEVICE, path)
    content = json.loads(path.read_text())
    damage(content)
    path.write_text(json.dumps(content))
    with pytest.raises(FormatError, match=words):
        times_file.import_times(path)
    times_file.SHIPPED.mkdir()
    path.replace(times_file.SHIPPED / "times.json")
    assert times_file.given_times(DEVICE) == {}  # a help only


def test_nothing_is_exported_of_an_empty_store(tmp_path):
    with pytest.raises(InputError, match="no times of a card are stored"):
        times_file.export_times(DEVICE, tmp_path / "times.json")


def test_the_shipped_files_can_be_read():
    folder = times_file.__file__
    paths = sorted((times_file.Path(folder).parents[1] / "times").glob("*.json"))
    for path in paths:
        content = times_file._parsed(path, path.read_bytes())
        assert path.stat().st_size < 100_000
        assert content["times"] and content["rates"] and content["driver"]


def test_the_command(tmp_path, monkeypatch, capsys):
    network, path = tmp_path / "a.safetensors", tmp_path / "times.json"
    clnet.Network.mlp([3, 2], seed=0).save(network)
    assert main(["tune", "--device", "cpu", "--export", str(path)]) == 2
    assert "no times of" in capsys.readouterr().err
    device = clnet.device("cpu")

    def measures(self, device_, batch, **options):
        Store(device).put("span", f"naive() device{HASH}", TIME)
        return SimpleNamespace(explain=lambda: "a plan")

    monkeypatch.setattr(clnet.Network, "compile", measures)
    assert main(["tune", str(network), "--device", "cpu", "--batch", "1", "--export",
                 str(path)]) == 0
    assert f"wrote {path}: 1 time of {device.name}" in capsys.readouterr().out
    assert main(["tune", "--import", str(path)]) == 0
    assert "imported 1 time" in capsys.readouterr().out
    assert times_file.given_times(device)["span"]["naive() device"] == TIME
    assert main(["tune", "--import", str(path), "--export", str(path), "--device",
                 "cpu", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["files"]) == 2
    assert main(["tune"]) == 2
    assert "tune needs a network" in capsys.readouterr().err
