"""Kernels build for GPUs that are not here: one program a kernel.

``offline_build.py`` builds all of them.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from shutil import which

import pytest
from kernel_corpus import (
    CORES,
    DEVICES,
    DG2,
    GFX90A,
    GFX1100,
    HOPPER,
    PVC,
    Source,
    sample,
    sources,
)
from offline_build import (
    build_for_amd,
    build_for_intel,
    check,
    check_launches,
    knows,
    read_with_warnings,
)
from variant_cases import selected

from clnet import Network
from clnet.ir.lowering import lower
from clnet.opencl.program import kernel_directory, source_text
from clnet.variants.dense.naive import Fused, FusedLocal
from clnet.variants.dense.persistent import Persistent

KERNELS = sorted(
    path for path in kernel_directory().rglob("*") if path.suffix in (".cl", ".h")
)
CLANG, OCLOC = which("clang"), which("ocloc")
WAVE32 = GFX1100
if CLANG and not knows(CLANG, GFX1100.name):  # before clang 15
    WAVE32 = replace(GFX1100, name="gfx1030")


@cache
def sampled(device):
    return sources(device, sample)


def assert_all_build(builder, device, part=slice(None)):
    first = {}
    for source in sampled(device).values():
        for launch in source.launches:
            first.setdefault((source.file, launch.kernel), source)
    chosen = list({source.text: source for source in first.values()}.values())[part]
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(partial(check, builder, device), chosen)
        faults = {s.name: f for s, f in zip(chosen, found, strict=True) if f}
    assert not faults


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.name)
def test_inline_functions_are_static(path):
    """A plain inline function has no definition where a compiler does not inline it."""
    text = path.read_text(encoding="utf-8")
    assert not re.findall(r"^(?!.*(?://|\bstatic )).*\binline\b.*", text, re.MULTILINE)


@pytest.mark.parametrize("device", DEVICES.values(), ids=lambda device: device.name)
def test_launches_are_within_limits(device):
    for source in sampled(device).values():
        assert not list(check_launches(source, device)), source.name


@pytest.mark.skipif(not CLANG, reason="there is no clang")
@pytest.mark.parametrize(("device", "part"), selected(
    {one.name: one for one in (WAVE32, GFX90A)},
    {"even": slice(0, None, 2), "odd": slice(1, None, 2)},
    quick=lambda device, part: device == part,
))
def test_kernels_build_for_amd(device, part):
    if not knows(CLANG, device.name):
        pytest.skip(f"{CLANG} does not compile for {device.name}")
    assert_all_build(partial(build_for_amd, CLANG, None), device, part)


@pytest.mark.skipif(not CLANG, reason="there is no clang")
@pytest.mark.parametrize("device", [CORES, DG2, HOPPER], ids=lambda device: device.name)
def test_clang_reads_kernels_without_warnings(device):
    assert_all_build(partial(read_with_warnings, CLANG), device)


@pytest.mark.skipif(not CLANG, reason="there is no clang")
@pytest.mark.parametrize(("body", "fault"), [
    ("\n#if NO_SUCH_MACRO\n#endif\n", "-Wundef"),
    ("int f(float v) { return v; }", "-Wfloat-conversion"),
    ("short f(int v) { return v; }", "-Wimplicit-int-conversion"),
])
def test_warnings_are_found(body, fault, tmp_path):
    found = list(read_with_warnings(CLANG, Source("", "", body, []), DG2, tmp_path))
    assert any(fault in line for line in found)


@pytest.mark.skipif(not OCLOC, reason="there is no ocloc")
def test_kernels_build_for_intel():
    assert_all_build(partial(build_for_intel, OCLOC), DG2)


@pytest.mark.skipif(not OCLOC, reason="there is no ocloc")
@pytest.mark.parametrize(
    "variant", [Fused(), FusedLocal(), Persistent()], ids=lambda variant: variant.name
)
def test_chains_of_narrow_layers_build_for_intel(variant):
    """Their tables are of numbers below 256, which ocloc 22.43 failed to index."""
    program = lower(Network.mlp([5, 16, 7, 28, 9, 30], "tanh", seed=1))
    span = program.span(0, len(program.ops), 1)
    launches = variant.launches(span, next(iter(variant.space(span, PVC))), PVC)
    for launch in launches:
        text = source_text(launch.source, launch.defines, PVC)
        source = Source(variant.name, launch.source, text, [launch])
        assert not check(partial(build_for_intel, OCLOC), PVC, source)


@pytest.mark.skipif(not CLANG, reason="there is no clang")
@pytest.mark.parametrize(("body", "fault"), [
    ("inline float f(float v) { return v; } __kernel void k(__global float *x)"
     " { x[0] = f(x[0]); }", "undefined: f"),
    ("__kernel void k(__global float *x) { x[0] = f(x[0]); }", "error"),
    ("__kernel void k(__global float *x) { x[0] *= 0.1; }", "double"),
    ("__kernel void k(__global float *x) { __local float y[20000]; y[(int)x[0]] = 1;"
     " x[1] = y[(int)x[2]]; }", "local memory"),
])
def test_faults_are_found(body, fault, tmp_path):
    if not knows(CLANG, GFX90A.name):
        pytest.skip(f"{CLANG} does not compile for {GFX90A.name}")
    launch = replace(next(iter(sampled(GFX90A).values())).launches[0], kernel="k")
    source = Source("", "", f"#pragma clang optimize off\n{body}", [launch])
    found = list(build_for_amd(CLANG, None, source, GFX90A, tmp_path))
    assert found
    assert fault in found[0]
