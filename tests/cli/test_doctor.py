"""The doctor: it reports each broken set-up with its cause and cure."""

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
from clnet.cli.doctor import Finding
from clnet.errors import BuildError, DeviceError
from clnet.opencl import session
from clnet.opencl.child_trial import run_child
from clnet.opencl.device import Device
from clnet.opencl.discovery import NO_PLATFORM, DiscoveryResult, discover
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
    monkeypatch.setattr(doctor, "_wheel", lambda: None)
    monkeypatch.setattr(doctor, "NVIDIA_DRIVER", tmp_path / "none")
    monkeypatch.setattr(doctor, "NVIDIA_LIBRARY", "libnosuch.so")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    return folder


@pytest.fixture
def found(monkeypatch):
    """Let OpenCL show given records."""

    def replace(*records, faults=()):
        shown = DiscoveryResult(records, faults)
        for module in (doctor, sys.modules["clnet.opencl.discovery"]):
            monkeypatch.setattr(module, "discover", lambda: shown)

    monkeypatch.delenv("CLNET_DEVICE", raising=False)
    return replace


def driver_findings():
    return list(doctor.driver_findings(doctor.icd_files()))


def platform_findings(files=()):
    return list(doctor.platform_findings(dict(files)))


# The files that name drivers ------------------------------------------------------


def test_vendors_that_do_not_exist(vendors, found, monkeypatch):
    monkeypatch.setenv("OCL_ICD_VENDORS", str(vendors / "nowhere"))
    (finding,) = bad(driver_findings())
    assert finding.subject == "OCL_ICD_VENDORS"
    assert str(vendors / "nowhere") in finding.found
    assert doctor.icd_files() == {}  # the loader searches no other folder then
    found(faults=(NO_PLATFORM,))
    (finding,) = bad(platform_findings())
    assert finding.cure == "unset OCL_ICD_VENDORS"


def test_an_empty_variable_is_as_none(vendors, monkeypatch):
    monkeypatch.setattr(doctor, "VENDORS", vendors / "nowhere")
    monkeypatch.setenv("OCL_ICD_VENDORS", "")
    assert doctor.icd_folder() == vendors / "nowhere"
    assert [finding.subject for finding in bad(driver_findings())] == ["drivers"]


def test_the_loaders_other_ways_to_name_files(vendors, monkeypatch):
    (vendors / "some.icd").write_text(LOADABLE)
    monkeypatch.setattr(doctor, "VENDORS", vendors)
    monkeypatch.setenv("OCL_ICD_VENDORS", "some.icd")
    assert doctor.icd_files() == {vendors / "some.icd": LOADABLE}
    monkeypatch.delenv("OCL_ICD_VENDORS")
    monkeypatch.setenv("OPENCL_VENDOR_PATH", str(vendors / "nowhere"))
    assert doctor.icd_files() == {}
    (finding,) = bad(driver_findings())
    assert "no .icd file" in finding.found
    assert "clnet[cpu]" in finding.cure


@pytest.mark.parametrize("library", ["/no/such/libdriver.so", "libnosuch.so", "", None])
def test_an_icd_file_whose_library_is_missing(vendors, library):
    file = vendors / "some.icd"
    if library is None:  # cannot be read
        file.mkdir()
    else:
        file.write_text(f"{library}\n")
    (finding,) = bad(driver_findings())
    assert finding.subject == str(file)
    assert f"names {library or 'nothing'}, which does not load" in finding.found


@linux
def test_an_icd_file_whose_library_loads(vendors):
    (vendors / "some.icd").write_text(LOADABLE)
    (finding,) = driver_findings()
    assert finding.ok


@linux
def test_one_file_in_place_of_a_folder(vendors, monkeypatch):
    file = vendors / "some.icd"
    file.write_text(LOADABLE)
    monkeypatch.setenv("OCL_ICD_VENDORS", str(file))
    assert doctor.icd_files() == {file: LOADABLE}
    library = vendors / "libdriver.so"
    library.touch()
    monkeypatch.setenv("OCL_ICD_VENDORS", str(library))
    assert doctor.icd_files() == {library: str(library)}


def test_the_wheel_is_searched(monkeypatch, tmp_path):
    pytest.importorskip("pocl_binary_distribution")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    files = doctor.icd_files()
    assert any("pocl" in library for library in files.values())
    assert not bad(driver_findings())


# NVIDIA ---------------------------------------------------------------------------


@linux
def test_a_missing_nvidia_icd(vendors, monkeypatch):
    (vendors / "other.icd").write_text(LOADABLE)
    assert not bad(driver_findings())  # without NVIDIA's library: no finding
    monkeypatch.setattr(doctor, "NVIDIA_LIBRARY", LOADABLE)
    (finding,) = bad(driver_findings())
    assert str(vendors / "nvidia.icd") in finding.cure
    monkeypatch.setenv("OCL_ICD_VENDORS", str(vendors / "other.icd"))
    (finding,) = bad(driver_findings())
    assert "unset OCL_ICD_VENDORS" in finding.cure


@linux
@pytest.mark.parametrize("sign", ["driver", "tool"])
def test_a_missing_nvidia_library(vendors, monkeypatch, sign):
    (vendors / "other.icd").write_text(LOADABLE)
    if sign == "driver":
        monkeypatch.setattr(doctor, "NVIDIA_DRIVER", vendors)
    else:
        monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    (finding,) = bad(driver_findings())
    assert "NVIDIA_DRIVER_CAPABILITIES" in finding.cure


def test_an_nvidia_icd_is_checked_with_the_others(vendors):
    (vendors / "nvidia.icd").write_text("libnvidia-opencl.so.1")
    (finding,) = driver_findings()
    assert finding.subject == str(vendors / "nvidia.icd")


def test_an_nvidia_library_without_a_gpu(found):
    files = {Path("nvidia.icd"): "libnvidia-opencl.so.1"}
    found(Device("A CPU", "cpu", platform="some"))
    assert any(f.subject == "NVIDIA" and f.ok is None for f in platform_findings(files))
    found(Device("A card", platform=NVIDIA))
    assert all(f.subject != "NVIDIA" for f in platform_findings(files))


# Caches ---------------------------------------------------------------------------


def test_the_folder_of_pocls_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path))
    assert doctor.pocl_cache() == tmp_path
    monkeypatch.delenv("POCL_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert doctor.pocl_cache() == tmp_path / "pocl" / "kcache"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert doctor.pocl_cache() == Path.home() / ".cache" / "pocl" / "kcache"


def test_caches_that_cannot_be_written(monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.touch()  # a folder cannot be made below it, not even by root
    monkeypatch.setenv("POCL_CACHE_DIR", str(file / "pocl"))
    monkeypatch.setenv("CLNET_CACHE_DIR", str(file / "clnet"))
    findings = bad(doctor.cache_findings())
    assert [f.subject for f in findings] == ["PoCL's cache", "clnet's cache"]
    assert "POCL_CACHE_DIR" in findings[0].cure
    assert "CLNET_CACHE_DIR" in findings[1].cure


def test_writable_caches(monkeypatch, tmp_path):
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "not" / "yet"))
    monkeypatch.setenv("CLNET_CACHE_DIR", str(tmp_path))
    findings = list(doctor.cache_findings())
    assert [f.ok for f in findings] == [True, True]
    assert list(tmp_path.iterdir()) == []  # the doctor leaves nothing behind


# Platforms ------------------------------------------------------------------------


def test_no_platform_without_the_extra(found, monkeypatch):
    found(faults=(NO_PLATFORM,))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    findings = bad(platform_findings())
    assert [f.subject for f in findings] == ["platforms"]
    assert "clnet[cpu]" in findings[0].cure
    (finding,) = bad(platform_findings({Path("some.icd"): LOADABLE}))
    assert "fix the faults above" in finding.cure
    found(Device("A card"))
    (finding,) = (f for f in platform_findings() if f.subject == "the extra cpu")
    assert finding.ok is None


def test_a_platform_that_is_broken(found):
    found(Device("A"), faults=("platform 1 does not tell its devices: reason",))
    (finding,) = bad(platform_findings())
    assert "platform 1" in finding.found


def test_no_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "DEV", tmp_path)
    processor = Device("A CPU", "cpu")
    (finding,) = doctor.gpu_findings([processor])
    assert finding.ok is None
    assert "driver" in finding.cure
    assert not list(doctor.gpu_findings([processor, Device("A card")]))


def test_a_gpu_that_the_user_may_not_open(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "DEV", tmp_path)
    (tmp_path / "dri").mkdir()
    node = tmp_path / "dri" / "renderD128"
    node.touch()
    assert not list(doctor.gpu_findings([]))  # no device: told by others
    monkeypatch.setattr(os, "access", lambda path, mode: path != node)
    (finding,) = doctor.gpu_findings([])
    assert finding.ok is None  # the user may want none
    assert finding.subject == str(node)
    assert "usermod" in finding.cure


def test_a_pocl_without_a_linker(found, monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found(Device("pthread-A", "cpu", platform=POCL))
    (finding,) = bad(platform_findings())
    assert finding.subject == "PoCL's linker"
    assert "binutils" in finding.cure
    found(Device("A card", platform=NVIDIA))
    assert not bad(platform_findings())


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
    monkeypatch.setattr(doctor, "PROBE", python("import os; os.abort()"))
    for name in ("some platform", POCL):
        victim = Device("A", platform=name, driver="1.5", index="3:0")
        finding = doctor.device_finding(victim)
        assert finding.ok is False
        assert finding.subject == "device 3:0"
        assert "SIGABRT" in finding.found
        assert "1.5" in finding.cure
        assert "CLNET_DEVICE" in finding.cure


def test_platforms_that_kill_the_process(monkeypatch, found):
    found()
    monkeypatch.setattr(doctor, "PROBE", python("import os; os.abort()"))
    *_, last = doctor.examine()
    assert last.ok is False
    assert "SIGABRT" in last.found
    assert ".icd" in last.cure


# Probes ---------------------------------------------------------------------------


def test_a_corrupt_cache_is_not_a_broken_driver(pocl, monkeypatch, tmp_path):
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path))
    assert doctor.device_finding(pocl).ok
    libraries = list(tmp_path.rglob("*.so"))
    assert libraries
    for library in libraries:
        library.write_bytes(library.read_bytes()[:1000])
    finding = doctor.device_finding(pocl)
    assert finding.ok is False
    assert f"{tmp_path} is corrupt" in finding.found
    assert "remove" in finding.cure


def test_every_device_here_runs_the_probe():
    for found in discover().devices:
        for one in found.places:
            doctor.probe(one.index)


def test_a_probe_of_no_device():
    with pytest.raises(DeviceError, match="99:0"):
        doctor.probe("99:0")
    outcome = run_child((*doctor.PROBE, "99:0"))
    assert "no device matches '99:0'" in outcome


def test_a_kernel_that_does_not_build(pocl, monkeypatch):
    monkeypatch.setattr(session, "source_text", lambda *_: "#error on purpose")
    with pytest.raises(BuildError, match=r"doctor\.cl does not build"):
        doctor.probe(pocl.index)


def test_a_wrong_result(pocl, monkeypatch):
    text = session.source_text("probes/doctor.cl", {"SIZE": 16}, pocl)
    wrong = re.sub(r"act_tanh\(\w+\[0\]\)", "0.5f", text)
    assert wrong != text
    monkeypatch.setattr(session, "source_text", lambda *_: wrong)
    with pytest.raises(DeviceError, match="computes wrong results"):
        doctor.probe(pocl.index)


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
