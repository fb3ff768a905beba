"""The doctor: it reports each broken set-up with its cause and cure."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import platform
import re
import shutil
import sys
from pathlib import Path

import pytest
from cli_output import bad

from clnet.cli import doctor
from clnet.cli.doctor import Finding, devices, drivers, probe
from clnet.errors import BuildError, DeviceError
from clnet.opencl.child_process import run_child
from clnet.opencl.device import Device
from clnet.opencl.discovery import NO_PLATFORM, DiscoveryResult, device, discover
from clnet.opencl.quirks import NVIDIA, POCL

LOADABLE = "libc.so.6"
linux = pytest.mark.skipif(sys.platform != "linux", reason="about Linux's files")


@pytest.fixture
def vendors(tmp_path, monkeypatch):
    """An empty folder of .icd files, and no wheel that brings another."""
    folder = tmp_path / "vendors"
    folder.mkdir()
    monkeypatch.setenv("OCL_ICD_VENDORS", str(folder))
    for other in ("OCL_ICD_FILENAMES", "OPENCL_VENDOR_PATH"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(drivers, "_wheel", lambda: None)
    return folder


@pytest.fixture
def found(monkeypatch):
    """Let OpenCL show given records."""

    def replace(*records, faults=()):
        shown = DiscoveryResult(records, faults)
        for module in (doctor, devices):
            monkeypatch.setattr(module, "discover", lambda: shown)
        module = sys.modules["clnet.opencl.discovery"]
        monkeypatch.setattr(module, "discover", lambda: shown)

    monkeypatch.delenv("CLNET_DEVICE", raising=False)
    return replace


@pytest.fixture
def pocl():
    """PoCL's own device of this machine, if there is one."""
    try:
        return device("pocl")
    except DeviceError:
        pytest.skip("no PoCL")


def icd_findings():
    return list(drivers.icd_findings(drivers.icd_files()))


def nvidia_findings():
    return list(drivers.nvidia_findings(drivers.icd_files()))


def platform_findings():
    return list(devices.platform_findings({}))


# The files that name drivers ------------------------------------------------------


def test_vendors_that_do_not_exist(vendors, monkeypatch):
    monkeypatch.setenv("OCL_ICD_VENDORS", str(vendors / "nowhere"))
    (finding,) = bad(icd_findings())
    assert finding.subject == "OCL_ICD_VENDORS"
    assert str(vendors / "nowhere") in finding.found
    assert drivers.icd_files() == {}  # the loader searches no other folder then
    assert devices._cure_of_none({}) == "unset OCL_ICD_VENDORS"


def test_an_empty_variable_is_as_none(vendors, monkeypatch):
    monkeypatch.setattr(drivers, "VENDORS", vendors / "nowhere")
    monkeypatch.setenv("OCL_ICD_VENDORS", "")
    assert drivers.icd_folder() == vendors / "nowhere"
    assert [finding.subject for finding in bad(icd_findings())] == ["drivers"]


def test_the_loaders_other_ways_to_name_files(vendors, monkeypatch):
    (vendors / "some.icd").write_text(LOADABLE)
    monkeypatch.setattr(drivers, "VENDORS", vendors)
    monkeypatch.setenv("OCL_ICD_VENDORS", "some.icd")
    assert drivers.icd_files() == {vendors / "some.icd": LOADABLE}
    monkeypatch.delenv("OCL_ICD_VENDORS")
    monkeypatch.setenv("OPENCL_VENDOR_PATH", str(vendors / "nowhere"))
    assert drivers.icd_files() == {}
    assert [finding.subject for finding in bad(icd_findings())] == ["drivers"]


@pytest.mark.parametrize("system", ["Windows", "Darwin"])
def test_systems_without_icd_files(vendors, monkeypatch, system):
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setenv("OCL_ICD_FILENAMES", "some.dll")
    assert icd_findings() == []
    assert nvidia_findings() == []


def test_no_icd_file(vendors):
    (finding,) = bad(icd_findings())
    assert "no .icd file" in finding.found
    assert "clnet[cpu]" in finding.cure


@pytest.mark.parametrize("library", ["/no/such/libdriver.so", "libnosuch.so", ""])
def test_an_icd_file_whose_library_is_missing(vendors, library):
    (vendors / "some.icd").write_text(f"{library}\n")
    (finding,) = bad(icd_findings())
    assert finding.subject.endswith("some.icd")
    assert library in finding.found
    assert "does not load" in finding.found


def test_an_icd_file_that_cannot_be_read(vendors):
    (vendors / "some.icd").mkdir()
    (finding,) = bad(icd_findings())
    assert "names nothing" in finding.found


@linux
def test_an_icd_file_whose_library_loads(vendors):
    (vendors / "some.icd").write_text(LOADABLE)
    (finding,) = icd_findings()
    assert finding.ok


@linux
def test_one_file_in_place_of_a_folder(vendors, monkeypatch):
    file = vendors / "some.icd"
    file.write_text(LOADABLE)
    monkeypatch.setenv("OCL_ICD_VENDORS", str(file))
    assert drivers.icd_files() == {file: LOADABLE}
    library = vendors / "libdriver.so"
    library.touch()
    monkeypatch.setenv("OCL_ICD_VENDORS", str(library))
    assert drivers.icd_files() == {library: str(library)}


def test_a_variable_that_the_loader_does_not_read(vendors, monkeypatch):
    monkeypatch.setenv("OCL_ICD_FILENAMES", "some.icd")
    assert icd_findings()[0].ok is None
    assert "OCL_ICD_VENDORS" in icd_findings()[0].cure


def test_the_wheel_is_searched(monkeypatch, tmp_path):
    pytest.importorskip("pocl_binary_distribution")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    files = drivers.icd_files()
    assert any("pocl" in library for library in files.values())
    assert not bad(icd_findings())


# NVIDIA ---------------------------------------------------------------------------


@pytest.fixture
def no_nvidia(monkeypatch, tmp_path):
    monkeypatch.setattr(drivers, "NVIDIA_DRIVER", tmp_path / "none")
    monkeypatch.setattr(drivers, "NVIDIA_LIBRARY", "libnosuch.so")
    monkeypatch.setattr(shutil, "which", lambda name: None)


def test_no_nvidia_is_no_finding(vendors, no_nvidia):
    assert nvidia_findings() == []


@linux
def test_a_missing_nvidia_icd(vendors, no_nvidia, monkeypatch):
    monkeypatch.setattr(drivers, "NVIDIA_LIBRARY", LOADABLE)
    (finding,) = bad(nvidia_findings())
    assert str(vendors / "nvidia.icd") in finding.cure
    (vendors / "other.icd").touch()
    monkeypatch.setenv("OCL_ICD_VENDORS", str(vendors / "other.icd"))
    (finding,) = bad(nvidia_findings())
    assert "unset OCL_ICD_VENDORS" in finding.cure


@pytest.mark.parametrize("sign", ["driver", "tool"])
def test_a_missing_nvidia_library(vendors, no_nvidia, monkeypatch, sign):
    if sign == "driver":
        monkeypatch.setattr(drivers, "NVIDIA_DRIVER", vendors)
    else:
        monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    (finding,) = bad(nvidia_findings())
    assert "NVIDIA_DRIVER_CAPABILITIES" in finding.cure


def test_an_nvidia_icd_is_checked_with_the_others(vendors, no_nvidia):
    (vendors / "nvidia.icd").write_text("libnvidia-opencl.so.1")
    assert nvidia_findings() == []


def test_an_nvidia_library_without_a_gpu(found):
    files = {Path("nvidia.icd"): "libnvidia-opencl.so.1"}
    found(Device("A CPU", "cpu", platform="some"))
    remarks = list(devices.platform_findings(files))
    assert any(f.subject == "NVIDIA" and f.ok is None for f in remarks)
    found(Device("A card", platform=NVIDIA))
    assert all(f.subject != "NVIDIA" for f in devices.platform_findings(files))


# Platforms ------------------------------------------------------------------------


def test_no_platform_without_the_extra(found, monkeypatch):
    found(faults=(NO_PLATFORM,))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    findings = bad(platform_findings())
    assert [f.subject for f in findings] == ["platforms"]
    assert "clnet[cpu]" in findings[0].cure
    (finding,) = bad(devices.platform_findings({Path("some.icd"): LOADABLE}))
    assert "fix the faults above" in finding.cure
    found(Device("A card"))
    (finding,) = (f for f in platform_findings() if f.subject == "the extra cpu")
    assert finding.ok is None


def test_a_platform_that_is_broken(found):
    found(Device("A"), faults=("platform 1 does not tell its devices: reason",))
    (finding,) = bad(platform_findings())
    assert "platform 1" in finding.found


def test_no_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(devices, "DEV", tmp_path)
    processor = Device("A CPU", "cpu")
    (finding,) = devices.gpu_findings([processor])
    assert finding.ok is None
    assert "driver" in finding.cure
    assert not list(devices.gpu_findings([processor, Device("A card")]))


def test_a_gpu_that_the_user_may_not_open(monkeypatch, tmp_path):
    monkeypatch.setattr(devices, "DEV", tmp_path)
    (tmp_path / "dri").mkdir()
    node = tmp_path / "dri" / "renderD128"
    node.touch()
    assert not list(devices.gpu_findings([]))  # no device: told by others
    monkeypatch.setattr(os, "access", lambda path, mode: path != node)
    (finding,) = devices.gpu_findings([])
    assert finding.ok is None  # the user may want none
    assert finding.subject == str(node)
    assert "usermod" in finding.cure


def test_two_pocls_are_named_with_their_versions(found):
    newer = Device("pthread-A", "cpu", platform=POCL, driver="3.1", index="1:0")
    older = Device("pthread-A", "cpu", platform=POCL, driver="3.0", index="0:0")
    found(newer, older)
    (finding,) = (f for f in platform_findings() if f.subject == POCL)
    assert finding.ok is None
    assert "takes 1:0 (pthread-A, 3.1) before 0:0 (pthread-A, 3.0)" in finding.found
    assert "CLNET_DEVICE=0:0" in finding.cure


def test_a_pocl_without_a_linker(found, monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found(Device("pthread-A", "cpu", platform=POCL))
    (finding,) = bad(platform_findings())
    assert finding.subject == "PoCL's linker"
    assert "binutils" in finding.cure
    found(Device("A card", platform=NVIDIA))
    assert not bad(platform_findings())


def test_a_pocl_without_its_other_device(found):
    alone = Device("pthread-A", "cpu", platform=POCL)
    found(alone)
    (finding,) = (f for f in platform_findings() if f.ok is None)
    assert "POCL_DEVICES" in finding.cure
    found(dataclasses.replace(alone, companions=(Device("basic-A", "cpu"),)))
    assert all(f.ok for f in platform_findings())


def test_the_default(found, monkeypatch):
    found(Device("A"))
    (finding,) = (f for f in platform_findings() if f.subject == "the default")
    assert finding.ok
    monkeypatch.setenv("CLNET_DEVICE", "abacus")
    (finding,) = bad(platform_findings())
    assert "abacus" in finding.found
    assert "doctor" not in finding.found  # it is at work
    assert "CLNET_DEVICE" in finding.cure


# Children -------------------------------------------------------------------------


def python(code):
    return (sys.executable, "-c", code)


def test_a_kernel_that_kills_the_process(monkeypatch):
    monkeypatch.setattr(probe, "COMMAND", python("import os; os.abort()"))
    for name in ("some platform", POCL):
        victim = Device("A", platform=name, driver="1.5", index="3:0")
        finding = devices.device_finding(victim)
        assert finding.ok is False
        assert finding.subject == "device 3:0"
        assert "SIGABRT" in finding.found
        assert "1.5" in finding.cure
        assert "CLNET_DEVICE" in finding.cure


def test_platforms_that_kill_the_process(monkeypatch, found):
    found()
    monkeypatch.setattr(probe, "COMMAND", python("import os; os.abort()"))
    *_, last = doctor.examine()
    assert last.ok is False
    assert "SIGABRT" in last.found
    assert ".icd" in last.cure


# Probes ---------------------------------------------------------------------------


def test_a_corrupt_cache_is_not_a_broken_driver(pocl, monkeypatch, tmp_path):
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path))
    assert devices.device_finding(pocl).ok
    libraries = list(tmp_path.rglob("*.so"))
    assert libraries
    for library in libraries:
        library.write_bytes(library.read_bytes()[:1000])
    finding = devices.device_finding(pocl)
    assert finding.ok is False
    assert f"{tmp_path} is corrupt" in finding.found
    assert "remove" in finding.cure


def test_every_device_here_runs_the_probe():
    for found in discover().devices:
        for one in found.places:
            probe.run(one.index)


def test_a_probe_of_no_device():
    with pytest.raises(DeviceError, match="99:0"):
        probe.run("99:0")
    outcome = run_child((*probe.COMMAND, "99:0"))
    assert "no device matches '99:0'" in outcome


def test_a_kernel_that_does_not_build(pocl, monkeypatch):
    monkeypatch.setattr(probe, "source_text", lambda *_: "#error on purpose")
    with pytest.raises(BuildError, match=r"doctor\.cl does not build"):
        probe.run(pocl.index)


def test_a_wrong_result(pocl, monkeypatch):
    text = probe.source_text("probes/doctor.cl", {"SIZE": 16}, pocl)
    wrong = re.sub(r"act_tanh\(\w+\[0\]\)", "0.5f", text)
    assert wrong != text
    monkeypatch.setattr(probe, "source_text", lambda *_: wrong)
    with pytest.raises(DeviceError, match="computes wrong results"):
        probe.run(pocl.index)


# The report -----------------------------------------------------------------------


def fits(line):
    """Whether a line fits, or is one long word: a path is not wrapped."""
    return len(line) <= 80 or len(line.split()) <= 2


def test_the_report_of_this_machine(capsys):
    status = doctor.report()
    lines = capsys.readouterr().out.splitlines()
    assert status == any(line.startswith("BAD") for line in lines)
    assert all(map(fits, lines))
    for found in discover().devices:
        assert any(f"device {found.index}" in line for line in lines)


@pytest.mark.parametrize(
    ("verdicts", "status"), [([True, None], 0), ([True, False], 1), ([], 0)]
)
def test_the_status_of_a_report(monkeypatch, capsys, verdicts, status):
    findings = [
        Finding("a thing", ok, "found " + "x" * 200, "" if ok else "the cure")
        for ok in verdicts
    ]
    monkeypatch.setattr(doctor, "examine", lambda: iter(findings))
    assert doctor.report() == status
    out = capsys.readouterr().out
    assert all(map(fits, out.splitlines()))
    assert out.count("x" * 200) == len(findings)  # a path is not wrapped
    assert out.count("the cure") == sum(not ok for ok in verdicts)
