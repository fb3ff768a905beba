"""The processor that PoCL compiles for: found in its record, replaced if unknown."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from clnet.opencl import target_cpu
from clnet.opencl.child_trial import run_child
from clnet.opencl.target_cpu import NAMES, UNKNOWN, best_name, is_unknown, set_name

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="about PoCL on Linux")


class Record:
    """Memory like PoCL's record of a device, and a handle of it."""

    def __init__(self, triple: bytes, name: bytes) -> None:
        self._texts = [ctypes.create_string_buffer(text) for text in (triple, name)]
        self.words = (ctypes.c_uint64 * 600)()
        self.words[1:6] = [1, 4096, 2**64 - 1, 2**63, ctypes.addressof(self.words)]
        self.words[79:81] = [ctypes.addressof(text) for text in self._texts]
        self.handle = SimpleNamespace(int_ptr=ctypes.addressof(self.words))

    @property
    def name(self) -> bytes:
        """The name that PoCL would pass on."""
        return ctypes.string_at(self.words[80])


@pytest.mark.parametrize(
    ("name", "best"),
    [(UNKNOWN, "haswell"), (UNKNOWN, "skylake-avx512"), ("znver3", "skylake-avx512")],
)
def test_an_unknown_processor_is_named(name, best, monkeypatch):
    monkeypatch.setattr(target_cpu, "best_name", lambda: best)
    record = Record(b"x86_64-unknown-linux-gnu", name.encode())
    assert is_unknown(record.handle)
    before = list(record.words)
    set_name(record.handle, "haswell")
    assert record.name == b"haswell"
    assert is_unknown(record.handle)  # as before, so that a device's record is the same
    changed = [i for i, word in enumerate(record.words) if word != before[i]]
    assert changed == [80]
    set_name(record.handle, "x86-64")  # once is enough
    assert record.name == b"haswell"


@pytest.mark.parametrize(("triple", "name"), [
    (b"x86_64-unknown-linux-gnu", b"znver3"),  # without AVX-512, as the machine
    (b"aarch64-unknown-linux-gnu", UNKNOWN.encode()),  # valid there
    (b"x86_64-unknown-linux-gnu", b"\xff\xfe"),
    (b"x86_64-unknown-linux-gnu", b"n" * 200),
    (b"", b""),
])
def test_other_records_stay(triple, name, monkeypatch):
    monkeypatch.setattr(target_cpu, "best_name", lambda: "haswell")
    record = Record(triple, name)
    before = list(record.words)
    assert not is_unknown(record.handle)
    set_name(record.handle, "haswell")
    assert list(record.words) == before


@pytest.mark.parametrize("address", [0, 8, 2**63, 2**64 - 8, -1])
def test_a_record_without_memory(address):
    assert not is_unknown(SimpleNamespace(int_ptr=address))
    assert not is_unknown(None)


def test_without_a_view_of_the_memory(monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(target_cpu.os, "open", refuse)
    assert not is_unknown(Record(b"x86_64-", UNKNOWN.encode()).handle)


@pytest.mark.parametrize(("lines", "name"), [
    ("", "x86-64"),
    ("flags : fpu sse2 avx", "x86-64"),
    ("flags\t: " + " ".join(sorted(NAMES[1][1])), "haswell"),
    ("flags\t: avx512f " + " ".join(sorted(NAMES[1][1])), "haswell"),
    ("model : 2\nflags\t: sse2 " + " ".join(sorted(NAMES[0][1])), "skylake-avx512"),
    (None, "x86-64"),
])
def test_the_best_name_has_no_feature_that_lacks(lines, name, monkeypatch):
    def read(*_, **__):
        if lines is None:
            raise FileNotFoundError
        return lines

    monkeypatch.setattr(Path, "read_text", read)
    assert best_name.__wrapped__() == name


def run_in_child(code: str, folder: Path, **environment: str) -> None:
    """Run it without programs of earlier runs; it must end well."""
    (cache := folder / "pocl").mkdir()
    assert not run_child(
        [sys.executable, "-W", "ignore", "-c", code], POCL_CACHE_DIR=str(cache),
        CLNET_CACHE_DIR=str(folder), PYOPENCL_NO_CACHE="1", **environment,
    )


def test_kernels_build_on_an_unknown_processor(pocl, tmp_path):
    # PoCL's records are made to look like those of a processor unknown to it.
    code = """if True:
        import ctypes, os
        os.environ["POCL_DEVICES"] = "pthread basic"
        import pyopencl as cl
        from clnet.opencl import target_cpu
        text, records = ctypes.create_string_buffer(b"generic"), 0
        for platform in cl.get_platforms():
            for handle in platform.get_devices():
                if found := target_cpu._find(handle):
                    ctypes.c_uint64.from_address(found[0]).value = (
                        ctypes.addressof(text))
                    records += 1
        import clnet
        device = clnet.device("pocl")
        assert records == 2
        assert ("POCL_LLVM_CPU_NAME", target_cpu.best_name()) in device.environment
        net = clnet.Network.mlp([3, 4, 2], seed=0)
        host, *others = (
            net.compile("pocl", tune=False, variants=[one])([1, 2, 3])
            for one in ("host", "naive", "cpu"))
        assert all(abs(one - host).max() < 1e-5 for one in others)
        clnet.opencl.discovery.discover.cache_clear()
        assert clnet.device("pocl") == device
    """
    if pocl.driver.split(".")[0] > "3":
        pytest.skip("newer than PoCL 4 or with another record")
    run_in_child(code, tmp_path)


def test_the_library_takes_vectors_as_kernels_pass_them(pocl, tmp_path):
    code = """if True:
        import numpy as np
        import pyopencl as cl
        import clnet
        from clnet.opencl.session import session

        one = session(clnet.device("pocl"))
        program = cl.Program(one.context, '''
            #pragma OPENCL EXTENSION cl_khr_fp64 : enable
            __kernel void narrow(__global const double *x, __global float *y)
            {
                vstore8(convert_float8(vload8(0, x)), 0, y);
                vstore16(sqrt(vload16(0, y)), 0, y);
            }
        ''').build()
        x, y = np.arange(8.0), np.full(16, 9, np.float32)
        given = cl.Buffer(one.context, cl.mem_flags.COPY_HOST_PTR, hostbuf=x)
        result = cl.Buffer(one.context, cl.mem_flags.COPY_HOST_PTR, hostbuf=y)
        program.narrow(one.queue, (1,), (1,), given, result)
        cl.enqueue_copy(one.queue, y, result)
        # OpenCL's sqrt is within 3 ulp, its square within 6 and a rounding.
        bound = 7 * np.finfo(np.float32).eps * x
        assert (abs(y[:8].astype(float) ** 2 - x) <= bound).all(), y
        assert list(y[8:]) == [3] * 8, y
    """
    if not pocl.fp64:
        pytest.skip("no float64")
    run_in_child(code, tmp_path)
