"""Programs: kernel text, macros, builds, and the session's cache."""

import dataclasses
import gc
import re
import weakref
from pathlib import Path

import pyopencl as cl
import pytest

import clnet
from clnet.errors import BuildError, DeviceError, InputError
from clnet.nn.activations import ACTIVATIONS, LEAK
from clnet.opencl import program
from clnet.opencl import session as sessions
from clnet.opencl.device import Device
from clnet.opencl.launch import Launch
from clnet.opencl.program import (
    RULE_HEADER,
    build,
    kernel_directory,
    kernel_text,
    matrix_units,
    retargeted,
    source_hash,
    source_text,
)
from clnet.opencl.session import session
from clnet.variants import ALL_VARIANTS

CPU = clnet.device("cpu")
SOURCES = sorted(
    path.relative_to(kernel_directory()).as_posix()
    for path in kernel_directory().rglob("*.cl")
)
KERNEL = "__kernel void k(__global int *y) { y[0] = %s; }\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder in place of the kernels'."""
    monkeypatch.setattr(program, "kernel_directory", lambda: tmp_path)
    kernel_text.cache_clear()
    source_hash.cache_clear()
    yield tmp_path
    kernel_text.cache_clear()
    source_hash.cache_clear()


# Text -----------------------------------------------------------------------------


def test_each_variant_with_kernels_has_a_file_of_its_name():
    for variant in ALL_VARIANTS:
        folder = type(variant).__module__.split(".")[-2]
        if variant.name != "host":
            assert f"{folder}/{variant.name}.cl" in SOURCES


@pytest.mark.parametrize("source", SOURCES)
def test_kernel_files_have_kernels_and_no_includes(source):
    text = kernel_text(source)
    assert "#include" not in text.replace(f"#include {RULE_HEADER}\n", "")
    assert "__kernel" in text


def test_includes_are_replaced_and_nest(folder):
    (folder / "a.cl").write_text('// a\n#include "b.h"\nint a;\n')
    (folder / "b.h").write_text('#include "c.h" // why\nint b;\n')
    (folder / "c.h").write_text("int c;\n")
    nested = '#line 1 "c.h"\nint c;\n#line 2 "b.h"\nint b;\n'
    inner = f'#line 1 "b.h"\n{nested}#line 3 "a.cl"\nint a;\n'
    assert kernel_text("a.cl") == "// a\n" + inner


def test_kernel_files_of_users_have_absolute_paths(tmp_path):
    own = tmp_path / "own.cl"
    own.write_text('#include "include/activations.h"\n')
    header = kernel_text("include/activations.h")
    assert kernel_text(str(own)) == (
        f'#line 1 "include/activations.h"\n{header}#line 2 "{own}"\n'
    )
    with pytest.raises(InputError, match=r"no kernel file .*no\.cl: expected one in"):
        kernel_text("no.cl")


def test_the_hash_covers_the_includes(folder):
    (folder / "a.cl").write_text('#include "b.h"\n')
    (folder / "b.h").write_text("int b;\n")
    before = source_hash("a.cl")
    assert re.fullmatch("[0-9a-f]{16}", before)
    kernel_text.cache_clear()
    source_hash.cache_clear()
    assert source_hash("a.cl") == before
    (folder / "b.h").write_text("int c;\n")
    kernel_text.cache_clear()
    source_hash.cache_clear()
    assert source_hash("a.cl") != before


def defines(text):
    return dict(re.findall(r"^#define (\S+) (.*)$", text, re.MULTILINE))


def test_macros_precede_the_text(folder):
    (folder / "a.cl").write_text("int a;\n")
    text = source_text("a.cl", {"REAL": "float", "N": 3, "F(X)": "X(1)"}, Device("d"))
    head, tail = text.split('#line 1 "a.cl"\n')
    assert tail == "int a;\n"
    assert defines(head) == {
        "REAL": "float", "N": "3", "F(X)": "X(1)", "OPERATOR_MATH": "0",
        "RATIONAL_TANH": "0", "LEAK": f"{LEAK}f", "PTX": "0",
    }
    assert "#pragma" not in text
    nvidia = Device("d", compute_capability=(9, 0))
    assert defines(source_text("a.cl", {"REAL": "float"}, nvidia))["PTX"] == "90"


def test_double_enables_its_extension(folder):
    (folder / "a.cl").write_text("int a;\n")
    device = Device("d", operator_math=True)
    text = source_text("a.cl", {"REAL": "double"}, device)
    assert text.startswith("#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n")
    # The operator-only forms are for float.
    assert defines(text)["OPERATOR_MATH"] == "0"
    assert defines(text)["LEAK"] == str(LEAK)
    single = source_text("a.cl", {"REAL": "float"}, device)
    assert defines(single)["OPERATOR_MATH"] == "1"


def test_kernels_in_the_package_come_first(tmp_path, monkeypatch):
    package = tmp_path / "site" / "clnet"
    (package / "opencl").mkdir(parents=True)
    monkeypatch.setattr(program, "__file__", str(package / "opencl" / "program.py"))
    find = kernel_directory.__wrapped__
    beside = tmp_path / "site" / "kernels"
    (beside / "include").mkdir(parents=True)
    with pytest.raises(BuildError, match="the kernel files are missing") as caught:
        find()
    assert str(package) in str(caught.value)
    (beside / "include/activations.h").touch()
    assert find() == beside
    inside = package / "kernels"
    (inside / "include").mkdir(parents=True)
    assert find() == beside  # an empty folder does not count
    (inside / "include/activations.h").touch()
    assert find() == inside


def test_the_kernel_directory_is_beside_or_in_the_package():
    package = Path(program.__file__).parents[1]
    assert kernel_directory() in (package / "kernels", package.parent / "kernels")


# Building -------------------------------------------------------------------------

CONTEXT = session(CPU).context


def test_a_built_program_has_its_kernels():
    built = build(CONTEXT, CPU, KERNEL % "1", "k.cl")
    assert [kernel.function_name for kernel in built.all_kernels()] == ["k"]


def test_companions_build_in_the_same_context():
    for device in CPU.places:
        assert build(CONTEXT, device, KERNEL % "2", "k.cl").all_kernels()


@pytest.mark.parametrize(
    "body", ["no_such_name", "1 +", "((", "1; } }", '"text', "1;\n#error gone\n"]
)
def test_build_errors_have_log_and_source(body):
    text = KERNEL % body
    with pytest.raises(BuildError) as caught:
        build(CONTEXT, CPU, text, "k.cl")
    error = caught.value
    assert isinstance(error, DeviceError)
    assert str(error).startswith(f"kernel k.cl does not build on {CPU.name}: ")
    assert "\n" not in str(error)
    assert "error" in str(error)
    assert error.source == text
    assert "error" in error.log
    assert str(error).split(": ", 1)[1] in error.log


def test_a_build_that_fails_without_a_reason_names_the_doctor(monkeypatch):
    """As on PoCL, where the folder of its cache cannot be written."""
    def fail(*_, **__):
        raise cl.RuntimeError("clBuildProgram failed")

    monkeypatch.setattr(cl.Program, "build", fail)
    with pytest.raises(BuildError, match="the compiler wrote no error; `clnet doctor`"):
        build(CONTEXT, CPU, KERNEL % "2", "k.cl")


def test_build_errors_name_file_and_line(folder):
    wrong = "\n__constant int wrong = no_such_name;\n"
    (folder / "a.h").write_text("// one\n// two\n")
    (folder / "b.h").write_text(wrong)
    for file, place in {
        wrong: r"wrong\.cl:2:", '#include "a.h"' + wrong: r"wrong\.cl:2:",
        '\n#include "a.h"\n#include "b.h"\n': r"b\.h:2:",
        '#if 0\n#include "a.h"\n#endif' + wrong: r"wrong\.cl:4:",
        '#if 0\n#include "a.h"\n#else' + wrong + "#endif\n": r"wrong\.cl:4:",
    }.items():
        (folder / "wrong.cl").write_text(file)
        kernel_text.cache_clear()
        text = source_text("wrong.cl", {"REAL": "float"}, CPU)
        with pytest.raises(BuildError, match=place):
            build(CONTEXT, CPU, text, "wrong.cl")


def test_a_refused_option_is_a_build_error():
    device = dataclasses.replace(CPU, build_options=("-no-such-option",))
    with pytest.raises(BuildError, match=r"kernel k.cl does not build on"):
        build(CONTEXT, device, KERNEL % "3", "k.cl")


def test_options_of_programs_with_barriers():
    device = dataclasses.replace(CPU, barrier_build_options=("-no-such-option",))
    build(CONTEXT, device, KERNEL % "3", "k.cl")
    with pytest.raises(BuildError, match=r"kernel k.cl does not build on"):
        build(CONTEXT, device, "/* barrier() */" + KERNEL % "3", "k.cl")


def test_the_cache_of_pyopencl_is_not_used(monkeypatch):
    def fail(*arguments, **options):
        raise OSError("No space left on device")

    monkeypatch.setattr("pyopencl.characterize.has_src_build_cache", lambda _: False)
    monkeypatch.setattr(
        "pyopencl.cache._create_built_program_from_source_cached", fail
    )
    assert build(CONTEXT, CPU, KERNEL % "5", "k.cl").all_kernels()


def test_variables_of_the_compiler_enter_its_options():
    device = dataclasses.replace(CPU, environment=(("CLNET_A", "1"),))
    built = build(CONTEXT, device, KERNEL % "4", "k.cl")
    options = built.get_build_info(device.handle, cl.program_build_info.OPTIONS)
    assert "-DVARIABLES=" in options


@pytest.mark.parametrize(("registers", "count"), [(168, 1), (None, 0)])
def test_a_launch_may_limit_registers(registers, count):
    device = dataclasses.replace(CPU, registers_option="-DMOST=")
    launch = Launch("probes/doctor.cl", "probe", {"SIZE": 4}, (), (), ())
    launch = dataclasses.replace(launch, registers=registers)
    built = sessions.Session(device).kernel(launch, device).program
    options = built.get_build_info(device.handle, cl.program_build_info.OPTIONS)
    assert options.count("-DMOST=168") == options.count("-DMOST") == count


@pytest.mark.parametrize("source", SOURCES)
def test_a_missing_macro_is_an_error(source):
    """Kernels have no default macros; kernels without macros build as they are."""
    text = source_text(source, {}, CPU)
    needed = re.search(r"#error (.*)", text)
    if needed is None:
        assert build(CONTEXT, CPU, text, source).all_kernels()
        return
    with pytest.raises(BuildError) as caught:
        build(CONTEXT, CPU, text, source)
    assert "#error" in caught.value.log or "needs" in caught.value.log


def test_programs_are_built_once(monkeypatch):
    built = []
    real = sessions.build
    monkeypatch.setattr(
        sessions, "build", lambda *parts: built.append(parts) or real(*parts)
    )
    network = clnet.Network.mlp([3, 17, 17, 17], "elliot", seed=0)
    network.compile(CPU, tune=False, variants=["naive"])
    first = len(built)
    network.compile(CPU, tune=False, variants=["naive"])
    clnet.Network.mlp([5, 9], "elliot").compile(CPU, tune=False, variants=["naive"])
    assert len(built) == first


def test_the_cache_of_programs_is_bounded(monkeypatch):
    monkeypatch.setattr(sessions, "PROGRAMS", 2)
    built, real = [], sessions.build

    def building(*parts):
        found = real(*parts)
        built.append(weakref.ref(found))
        return found

    monkeypatch.setattr(sessions, "build", building)
    new_session = sessions.Session(CPU)

    def kernel(size):
        launch = Launch("probes/doctor.cl", "probe", {"SIZE": size}, (), (), ())
        return new_session.kernel(launch, CPU)

    for size in (2, 4, 2, 8, 2):  # 2 is always used recently
        kernel(size)
    gc.collect()
    assert len(built) == 3
    assert [program() is not None for program in built] == [True, False, True]


def test_every_activation_has_its_function():
    text = kernel_text("include/activations.h")
    for name in ACTIVATIONS:
        assert re.search(rf"\bact_{name}\b", text)


# Matrix units ---------------------------------------------------------------------


def test_hidden_instructions_are_uncommented():
    text = b".target sm_90, texmode\n//sm_90a wgmma.fence;\n\0"
    assert retargeted(text) == b".target sm_90a, texmode\nwgmma.fence;\n"


@pytest.mark.parametrize(
    ("capability", "units"),
    [(None, ()), ((7, 5), ()), ((8, 6), (80,)), ((9, 0), (80, 90)), ((10, 0), (80,))],
)
def test_matrix_units(capability, units):
    device = dataclasses.replace(CPU, compute_capability=capability)
    assert matrix_units(device) == units
