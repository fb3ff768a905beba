"""Quirks: rows are complete and work, and vendors are named nowhere else."""

import dataclasses
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from test_target_cpu import run_in_child

import clnet
from clnet.opencl import quirks
from clnet.opencl.device import TYPES, Device
from clnet.opencl.quirks import (
    ENVIRONMENT_QUIRKS,
    NVIDIA,
    POCL,
    QUIRKS,
    apply_environment_quirks,
    apply_quirks,
    registers_option,
    variables_option,
)
from clnet.opencl.session import Session

SAMPLES = (
    Device("Oclgrind Simulator", "gpu", platform="Oclgrind", simd_width=32),
    Device("a large CPU", "cpu", global_memory=1 << 60, largest_buffer=1 << 58),
    Device("pthread-A", "cpu", platform=POCL),
    Device("basic-A", "cpu", platform=POCL),
    Device("cpu-A", "cpu", platform=POCL, driver="7.1"),
    Device("llvmpipe (LLVM 19)", "gpu", platform="rusticl", simd_width=8),
    Device(
        "H200", "gpu", platform=NVIDIA, local_memory=48 << 10,
        compute_capability=(9, 0),
    ),
)
FIELDS = {field.name for field in dataclasses.fields(Device)}


@pytest.mark.parametrize("quirk", QUIRKS, ids=lambda quirk: quirk.reason[:30])
def test_rows_are_complete(quirk):
    assert quirk.effect
    assert set(quirk.effect) <= FIELDS - {"name", "index", "handle", "notes"}
    assert quirk.reason == quirk.reason.strip()
    assert quirk.reason.endswith(")")  # the drivers affected
    assert "\n" not in quirk.reason


@pytest.mark.parametrize("quirk", QUIRKS, ids=lambda quirk: quirk.reason[:30])
def test_rows_edit_the_devices_that_they_match(quirk, monkeypatch):
    monkeypatch.setattr(quirks.sys, "platform", "linux")
    monkeypatch.setattr(quirks.shutil, "which", lambda program: None)
    monkeypatch.setattr(quirks.target_cpu, "is_unknown", lambda handle: True)
    edited = [apply_quirks(sample) for sample in SAMPLES]
    hits = [
        (before, after)
        for before, after in zip(SAMPLES, edited, strict=True)
        if quirk.reason in after.notes
    ]
    assert hits
    for before, after in hits:
        for field in quirk.effect:
            assert getattr(after, field) != getattr(before, field)
            kinds = type(getattr(before, field)), type(None)  # None: to be probed
            assert type(getattr(after, field)) in kinds


def test_environment_quirks(monkeypatch, tmp_path):
    monkeypatch.setattr(quirks.platformdirs, "user_cache_dir", lambda *_: tmp_path)
    for quirk in ENVIRONMENT_QUIRKS:
        assert quirk.effect
        assert quirk.reason.endswith(")")
    environment = {"HOME": "/"}
    apply_environment_quirks(environment)
    assert environment == {"HOME": "/", "POCL_DEVICES": "pthread basic"}


@pytest.mark.skipif(sys.platform != "linux", reason="about PoCL on Linux")
def test_without_a_linker_numpy_computes(pocl, tmp_path):
    code = """if True:
        import clnet
        net = clnet.Network(1, [clnet.Dense(1)])
        plan = net.compile("pocl", tune=False, variants=["cpu", "host"])
        assert {step.variant.name for step in plan.steps} == {"host"}
        plan([0])
    """
    run_in_child(code, tmp_path, PATH="")


def test_kernels_run_without_a_folder_of_caches(pocl, tmp_path):
    file = tmp_path / "file"
    file.touch()  # a folder cannot be made below it, not even by root
    code = """if True:
        import clnet
        net = clnet.Network(1, [clnet.Dense(1)])
        net.compile("pocl", tune=False, variants=["naive"])([0])
    """
    run_in_child(code, tmp_path, XDG_CACHE_HOME=str(file / "x"), HOME=str(file))


def test_a_users_setting_stays():
    environment = {"POCL_DEVICES": "pthread pthread"}
    apply_environment_quirks(environment)
    assert environment["POCL_DEVICES"] == "pthread pthread"


def test_only_quirks_write_the_environment():
    writes = re.compile(r"environ\.(setdefault|update|pop)|environ\[.*\] = |putenv")
    package = Path(quirks.__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        assert not writes.search(path.read_text(encoding="utf-8")), path


def test_pocl():
    parallel = apply_quirks(Device("pthread-A", "cpu", platform=POCL))
    serial = apply_quirks(Device("basic-A", "cpu", platform=POCL))
    assert (parallel.operator_math, parallel.serial) == (True, False)
    assert (serial.operator_math, serial.serial) == (True, True)
    assert serial.launch_cost == 1e-6
    assert parallel.launch_cost == 3e-5
    assert len(parallel.notes) == len(serial.notes) == 2


@pytest.mark.parametrize(
    ("name", "serial"),
    [("cpu-znver4-A", False), ("cpu-minimal-znver4-A", True), ("cpu-tbb-A", False)],
)
def test_names_of_newer_pocls(name, serial):
    assert apply_quirks(Device(name, "cpu", platform=POCL)).serial is serial


@pytest.mark.parametrize(("driver", "count"), [("3.0", 0), ("6.0", 0), ("7.1", 2)])
def test_variables_of_a_compiler(driver, count, monkeypatch):
    chosen = apply_quirks(Device("cpu-A", "cpu", platform=POCL, driver=driver))
    assert len(chosen.environment) == count
    here = replace(clnet.device(), environment=(("CLNET_A", "1"), ("CLNET_B", "1")))
    monkeypatch.setenv("CLNET_A", "0")
    monkeypatch.setenv("CLNET_B", "")
    monkeypatch.delenv("CLNET_B")
    Session(here)
    assert (os.environ["CLNET_A"], os.environ["CLNET_B"]) == ("0", "1")


@pytest.mark.parametrize(("name", "platform", "driver", "inlined"), [
    ("cpu-A", POCL, "3.0", 0), ("cpu-A", POCL, "6.0", 1), ("cpu-A", POCL, "7.1", 1),
    ("llvmpipe (LLVM 19)", "rusticl", "25.0", 0), ("AMD Radeon", "rusticl", "25.0", 0),
])
def test_all_functions_are_inlined(name, platform, driver, inlined):
    chosen = apply_quirks(Device(name, "cpu", platform=platform, driver=driver))
    assert " ".join(chosen.build_options).count("always_inline") == inlined
    of_barriers = " ".join(chosen.barrier_build_options).count("always_inline")
    assert of_barriers == name.startswith("llvmpipe")


def test_variables_enter_the_key_of_a_compilers_cache():
    device = Device("cpu-A", "cpu", environment=(("A", "1"), ("B", "2")))
    environments = ({}, {"A": "1"}, {"A": "1", "B": "2"}, {"A": "2", "B": "1"})
    options = [variables_option(device, environment) for environment in environments]
    assert len(set(options)) == len(environments)
    assert variables_option(device, environments[1]) == options[1]
    assert variables_option(Device("A"), environments[1]) == ()


def test_nvidias_option_limits_registers():
    *others, card = map(apply_quirks, SAMPLES)
    assert registers_option(card, 168) == ("-cl-nv-maxrregcount=168",)
    assert registers_option(card, None) == ()
    assert {registers_option(other, 168) for other in others} == {()}


def test_a_gpu_under_pocl_has_no_quirk():
    card = Device("NVIDIA A100", "gpu", platform=POCL)
    assert apply_quirks(card) is card


@pytest.mark.parametrize(("name", "platform", "kind"), [
    ("Oclgrind Simulator", "Oclgrind", "gpu"),
    ("Intel(R) FPGA Emulation Device", "Intel(R) FPGA", "accelerator"),
    ("llvmpipe (LLVM 15.0.6, 256 bits)", "rusticl", "gpu"),
    ("SwiftShader Device", "clvk", "gpu"),
])
def test_emulators_are_recognised(name, platform, kind):
    found = apply_quirks(Device(name, kind, platform=platform))
    assert found.emulated
    assert found.type == "cpu"


def test_memory_is_limited_to_the_hosts(monkeypatch):
    monkeypatch.setattr(quirks, "host_memory", lambda: 1 << 31)
    large = Device("A", "cpu", global_memory=1 << 35, largest_buffer=1 << 33)
    assert apply_quirks(large).global_memory == 1 << 31
    assert apply_quirks(large).largest_buffer == 1 << 31
    small = Device("A", "cpu", global_memory=1 << 30, largest_buffer=1 << 29)
    assert apply_quirks(small) is small
    card = Device("A", "gpu", global_memory=1 << 35)
    assert apply_quirks(card) is card


def test_host_memory_in_a_container(tmp_path):
    assert quirks.host_memory() > 0
    limit = tmp_path / "memory.max"
    unlimited = quirks._limit(limit)
    limit.write_text("max\n")
    assert quirks._limit(limit) == unlimited > 1 << 60
    limit.write_text("1048576\n")
    assert quirks._limit(limit) == 1 << 20


def test_unknown_devices_have_no_quirk():
    for kind in TYPES:
        unknown = Device("some processor", kind, platform="some platform")
        assert apply_quirks(unknown) is unknown


def test_platforms_are_named_in_the_quirks_only():
    package = Path(quirks.__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        if path.name != "quirks.py":
            text = path.read_text(encoding="utf-8")
            assert POCL not in text, path
            assert f'"{NVIDIA}"' not in text, path
