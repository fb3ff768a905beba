"""Discovery: queries, order, selection, and the table of devices."""

import dataclasses
import importlib
from types import SimpleNamespace

import numpy as np
import pyopencl as cl
import pytest
from children import child_environment, run_python
from hypothesis import given
from hypothesis import strategies as st

from clnet.cli.device_table import device_table
from clnet.errors import DeviceError, InputError
from clnet.network import Network
from clnet.nn.layers import Dense
from clnet.opencl.device import TYPES, Device
from clnet.opencl.discovery import DiscoveryResult, device, devices

# The package's attribute of this name is the function.
module = importlib.import_module("clnet.opencl.discovery")

POCL = "Portable Computing Language"


class FakeHandle:
    """A device of a fake platform; queries without an answer fail."""

    def __init__(self, **answers):
        self.answers = {
            "name": "a device", "type": cl.device_type.GPU, "vendor": "a vendor",
            "version": "OpenCL 1.2", "driver_version": "1.0", "extensions": "",
            "max_compute_units": 4, "global_mem_size": 1 << 30,
            "max_mem_alloc_size": 1 << 28, "local_mem_size": 48 << 10,
            "max_work_group_size": 1024, "preferred_vector_width_float": 1,
            "int_ptr": 0, **answers,
        }

    def __getattr__(self, name):
        if name in self.answers:
            return self.answers[name]
        raise cl.LogicError("not such a query")


class FakePlatform:
    def __init__(self, name, *handles, version="OpenCL 1.2", fault=False):
        self.name, self.version, self.fault = name, version, fault
        self.handles = handles
        for handle in handles:
            handle.answers["platform"] = self

    def get_devices(self):
        if self.fault:
            raise cl.LogicError("out of order")
        return list(self.handles)


@pytest.fixture
def opencl(monkeypatch):
    """Replace the platforms of OpenCL."""

    def replace(*platforms):
        monkeypatch.setattr(cl, "get_platforms", lambda: list(platforms))
        module.discover.cache_clear()

    monkeypatch.delenv("CLNET_DEVICE", raising=False)
    yield replace
    module.discover.cache_clear()


def pocl(*names, **answers):
    cpu = cl.device_type.CPU
    return FakePlatform(
        POCL, *(FakeHandle(name=name, type=cpu, **answers) for name in names)
    )


def run(code, **environment):
    return run_python("-c", code, env=child_environment(**environment))


# Records --------------------------------------------------------------------------


def test_a_record_needs_no_opencl():
    fake = Device("fake")
    assert fake.places == (fake,)
    assert fake.type in TYPES
    assert fake == Device("fake", handle=object())
    assert hash(fake) == hash(Device("fake", handle=object()))
    with pytest.raises(dataclasses.FrozenInstanceError):
        fake.name = "other"


def test_vendor_queries_of_nvidia(opencl):
    opencl(FakePlatform("NVIDIA CUDA", FakeHandle(
        name="NVIDIA H200", vendor="NVIDIA Corporation", max_compute_units=132,
        extensions="cl_khr_fp64 cl_nv_device_attribute_query", warp_size_nv=32,
        compute_capability_major_nv=9, compute_capability_minor_nv=0,
        svm_capabilities=1,
    )))
    (card,) = devices()
    assert (card.type, card.index) == ("gpu", "0:0")
    assert (card.simd_width, card.compute_capability) == (32, (9, 0))
    assert (card.fp64, card.fp16, card.subgroups) == (True, False, False)
    assert card.fine_svm is False
    assert card.forward_progress is None  # a listing launches nothing
    assert card.local_memory == 47 << 10
    assert card.build_options == ()


def test_missing_queries_leave_defaults(opencl):
    opencl(FakePlatform("Some", FakeHandle()))
    (card,) = devices()
    assert (card.simd_width, card.compute_capability) == (32, None)
    assert card.fine_svm is card.system_svm is False
    assert card.forward_progress is None
    assert card.notes == ()


def test_kinds_of_shared_memory(opencl):
    for bits, fine, system in ((1, False, False), (3, True, False), (7, True, True)):
        opencl(FakePlatform("Some", FakeHandle(svm_capabilities=bits)))
        (card,) = devices()
        assert (card.fine_svm, card.system_svm) == (fine, system)


@pytest.mark.parametrize(("kind", "answers", "width"), [
    ("GPU", {"wavefront_width_amd": 64}, 64),
    ("GPU", {"preferred_work_group_size_multiple": 16}, 16),
    ("CPU", {"preferred_work_group_size_multiple": 8}, 1),
    ("ACCELERATOR", {}, 1),
])
def test_simd_width(opencl, kind, answers, width):
    handle = FakeHandle(type=getattr(cl.device_type, kind), **answers)
    opencl(FakePlatform("Some", handle))
    assert devices()[0].simd_width == width
    assert devices()[0].type == kind.lower()


def test_extensions_match_whole_words(opencl):
    names = "cl_khr_fp16 cl_khr_subgroups cl_khr_fp64_soft"
    opencl(FakePlatform("Some", FakeHandle(extensions=names)))
    (card,) = devices()
    assert (card.fp16, card.subgroups, card.fp64) == (True, True, False)


# Order and pairs ------------------------------------------------------------------


def test_devices_are_sorted_best_first(opencl):
    kinds = cl.device_type
    opencl(
        FakePlatform("A", FakeHandle(name="cpu", type=kinds.CPU)),
        FakePlatform("Oclgrind", FakeHandle(name="simulator", type=kinds.ALL)),
        FakePlatform(
            "B", FakeHandle(name="custom", type=kinds.CUSTOM),
            FakeHandle(name="fpga", type=kinds.ACCELERATOR),
            FakeHandle(name="small", max_compute_units=2),
            FakeHandle(name="large", max_compute_units=200),
        ),
    )
    names = [d.name for d in devices()]
    assert names == ["large", "small", "fpga", "cpu", "custom", "simulator"]


def test_newer_drivers_come_first(opencl):
    opencl(
        pocl("pthread-A", driver_version="3.0-rc2"),
        pocl("pthread-A", driver_version="3.1+debian"),
    )
    assert [d.driver for d in devices()] == ["3.1+debian", "3.0-rc2"]


@pytest.mark.parametrize(("names", "pairs"), [
    (["pthread-A"], [["pthread-A"]]),
    (["basic-A", "pthread-A"], [["pthread-A", "basic-A"]]),
    (["cpu-minimal-A", "cpu-A"], [["cpu-A", "cpu-minimal-A"]]),
    (["basic-A"], [["basic-A"]]),
    (["pthread-A", "pthread-A"], [["pthread-A"], ["pthread-A"]]),
    (["basic-A", "basic-A", "pthread-A"], [["pthread-A", "basic-A"], ["basic-A"]]),
    (
        ["basic-A", "basic-A", "pthread-A", "pthread-A"],
        [["pthread-A", "basic-A"], ["pthread-A", "basic-A"]],
    ),
])
def test_pocl_devices_of_one_cpu_are_paired(opencl, names, pairs):
    opencl(pocl(*names))
    assert [[p.name for p in d.places] for d in devices()] == pairs
    assert len({p.index for d in devices() for p in d.places}) == len(names)
    assert not any(c.companions for d in devices() for c in d.companions)


def test_devices_of_two_platforms_are_not_paired(opencl):
    opencl(pocl("basic-A"), pocl("pthread-A"))
    assert [len(d.places) for d in devices()] == [1, 1]


# Faults ---------------------------------------------------------------------------


def test_broken_platforms_become_faults(opencl):
    opencl(
        FakePlatform("Broken", fault=True), FakePlatform("Empty"), pocl("pthread-A")
    )
    assert [d.index for d in devices()] == ["2:0"]
    broken, empty = module.discover().faults
    assert "platform 0" in broken
    assert "out of order" in broken
    assert "platform 1 (Empty)" in empty
    with pytest.raises(DeviceError, match="out of order"):
        device("gpu")


def test_platforms_without_devices_are_an_error(opencl):
    opencl(FakePlatform("Empty"))
    with pytest.raises(DeviceError, match=r"platform 0 \(Empty\) has no device"):
        devices()


def test_no_platform_says_how_to_get_one():
    code = "from clnet.opencl.discovery import device; device()"
    done = run(code, OCL_ICD_VENDORS="/nowhere", CLNET_DEVICE=None)
    assert done.returncode == 1
    sentence = done.stderr.splitlines()[-1]
    for part in ("no OpenCL platform", "clnet[cpu]", "nvidia.icd", "driver", "doctor"):
        assert part in sentence


# Selection ------------------------------------------------------------------------


PRESENT = (
    Device("NVIDIA H200", index="1:0", vendor="NVIDIA Corporation"),
    Device("NVIDIA H200", index="1:1", vendor="NVIDIA Corporation"),
    Device("gfx90a", index="2:0", platform="AMD Accelerated Parallel Processing"),
    Device(
        "pthread-AMD EPYC", "cpu", index="0:1", platform=POCL,
        platform_version="OpenCL 3.0 PoCL 3.0-rc2",
        companions=(Device("basic-AMD EPYC", "cpu", index="0:0", serial=True),),
    ),
)


@pytest.fixture
def present(monkeypatch):
    monkeypatch.setattr(module, "discover", lambda: DiscoveryResult(PRESENT))
    monkeypatch.delenv("CLNET_DEVICE", raising=False)


SELECTED = {  # what selects each of the devices
    "1:0": [None, "gpu", "GPU", " gpu ", "nvidia", "h200"],
    "1:1": ["nvidia:1"],
    "2:0": ["gpu:2", "amd", "2:0"],
    "0:1": ["cpu", "cpu:0", "amd:1", "epyc", "pocl"],
    "0:0": ["0:0", "basic"],
}


@pytest.mark.parametrize(("index", "spec"), [
    (index, spec) for index, specs in SELECTED.items() for spec in specs
])
def test_selection(present, spec, index):
    assert device(spec).index == index


@pytest.mark.parametrize("spec", [
    "accelerator", "intel", "nvidia:2", "cpu:1", "3:0", "gpu:-1", "gpu:x", "", ":",
    ":0",
])
def test_a_missing_device_lists_the_devices_present(present, spec):
    with pytest.raises(DeviceError) as caught:
        device(spec)
    sentence = str(caught.value)
    assert repr(spec) in sentence
    for one in PRESENT:
        assert f"{one.index} {one.name} ({one.type})" in sentence
    assert "\n" not in sentence


def test_a_number_too_large_reports_the_number_of_matches(present):
    with pytest.raises(DeviceError, match="2 without the number"):
        device("nvidia:2")


def test_the_environment_variable_selects(present, monkeypatch):
    monkeypatch.setenv("CLNET_DEVICE", "cpu")
    assert device().index == "0:1"
    assert device("gpu").index == "1:0"
    monkeypatch.setenv("CLNET_DEVICE", "")
    assert device().index == "1:0"


def test_a_wrong_environment_variable_is_named(present, monkeypatch):
    monkeypatch.setenv("CLNET_DEVICE", "abacus")
    with pytest.raises(DeviceError, match=r"'abacus' \(from \$CLNET_DEVICE\)"):
        device()


def test_a_record_is_returned_unchanged():
    fake = Device("fake")
    assert device(fake) is fake


@pytest.mark.parametrize("spec", [0, ("gpu",), b"gpu", SimpleNamespace()])
def test_specifications_of_other_types(spec):
    with pytest.raises(InputError, match=type(spec).__name__):
        device(spec)


@given(st.text(max_size=20))
def test_any_text_matches_known_devices_only(spec):
    matches, number = module._matches(spec.strip().lower(), PRESENT)
    assert number >= 0
    assert set(matches) <= {one for d in PRESENT for one in d.places}


# Real devices ---------------------------------------------------------------------


def test_sub_devices():
    """Some of the compute units, where the driver splits; else an error."""
    whole = device()
    assert device(units=whole.compute_units) == whole
    if whole.platform == POCL and whole.handle.partition_max_sub_devices > 1:
        sub_device = device(whole, units=1)
        assert (sub_device.compute_units, sub_device.name) == (1, whole.name)
        assert sub_device is device(whole, units=1)
        network = Network(5, [Dense(3, "tanh")], seed=1)
        x = np.ones((2, 5), "float32")
        found = network.compile(sub_device, 2, tune=False)(x)
        np.testing.assert_allclose(found, network.predict(x, device=whole), atol=1e-6)
    with pytest.raises(DeviceError, match="has 4 compute units, not 5"):
        device(Device("d", compute_units=4), units=5)
    with pytest.raises(DeviceError, match="cannot be split"):
        device(Device("d", compute_units=4), units=2)
    with pytest.raises(InputError, match="units must be"):
        device(units=0)


SHOW = (
    "from clnet.opencl.discovery import device, devices\n"
    "import pyopencl as cl\n"
    "for d in devices():\n"
    "    if d.platform.startswith('Portable'):\n"
    "        cl.Context([p.handle for p in d.places])\n"
    "        print(*(p.name.split('-')[0] + str(p.serial)[0] for p in d.places))\n"
)


@pytest.mark.parametrize(("setting", "listed"), [
    (None, ["pthreadF basicT"]),
    ("pthread", ["pthreadF"]),
    ("pthread pthread", ["pthreadF", "pthreadF"]),
])
def test_devices_listed_by_pocl(setting, listed):
    """By default two devices of one context; a user's own setting stays."""
    pytest.importorskip("pocl_binary_distribution")
    done = run(SHOW, POCL_DEVICES=setting, OCL_ICD_VENDORS=None)
    assert done.stderr == ""
    # The system's PoCL may be listed before the wheel's.
    assert done.stdout.splitlines()[-len(listed) :] == listed


def test_real_records_are_sane():
    for found in devices():
        for one in found.places:
            assert one.handle is not None
            assert one.type in TYPES
            assert min(one.compute_units, one.vector_width, one.simd_width) >= 1
            assert 0 < one.largest_buffer <= one.global_memory
            assert one.local_memory > 0
            assert one.largest_group >= 1
            assert one.launch_cost > 0
            assert device(one.index) == one
    assert devices()[0] is devices()[0]  # looked up once


# The table ------------------------------------------------------------------------


def test_the_table_shows_missing_capabilities_and_quirks():
    table = device_table(
        [dataclasses.replace(PRESENT[3], fp64=True, notes=("a quirk, with reason",))]
    )
    head, _, row = table.splitlines()[:3]
    for column in ("device", "type", "units", "memory", "local", "fp64", "missing"):
        assert column in head
    for cell in ("0:1", "pthread-AMD EPYC", "cpu", "1 GiB", "32 KiB", "yes", "fp16"):
        assert cell in row
    assert "a quirk, with reason" in table
    assert "0:0 basic-AMD EPYC" in table


def test_the_table_of_no_devices():
    assert "device" in device_table([])


sizes = st.integers(min_value=0, max_value=(1 << 50) - 1)
words = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=90)


@given(
    st.builds(
        Device, name=words, type=st.sampled_from(TYPES),
        index=st.sampled_from(["0:0", "12:10"]), compute_units=st.integers(1, 99999),
        global_memory=sizes, local_memory=sizes, fp64=st.booleans(),
        notes=st.tuples(words),
    )
)
def test_the_table_fits_80_columns(fake):
    assert max(map(len, device_table([fake]).splitlines())) <= 80
