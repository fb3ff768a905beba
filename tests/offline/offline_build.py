"""Build every kernel for GPUs that are not here: clang for AMD's, ocloc for Intel's.

    python tests/offline/offline_build.py gfx1100 gfx90a dg2 pvc
    python tests/offline/offline_build.py --warnings hopper ampere cores core

A program fails if it does not compile, if the compiler warns, if it calls a function
that is neither its own nor a builtin of OpenCL (with ``--device-libraries``: if it does
not link), if a float kernel has a constant of type double, or if a launch exceeds the
device's work-group size or local memory. With ``--warnings``, clang only reads the
programs, for any record, and warns of more. `docs/explanation/offline_builds.md` says
where the compilers are.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import prod
from pathlib import Path
from shutil import which

sys.path.insert(0, str(Path(__file__).parents[1]))

from kernel_corpus import DEVICES, RECORDS, Source, large, outline, small, sources
from results import Results, key_of

from clnet.opencl.device import Device

STANDARD = "-cl-std=CL1.2"
# Bitcode of ROCm's device libraries, beside that of the wavefront and the processor.
LIBRARIES = ("opencl", "ocml", "ockl", "oclc_daz_opt_off", "oclc_unsafe_math_off",
             "oclc_finite_only_off", "oclc_correctly_rounded_sqrt_on",
             "oclc_abi_version_500")
LIBRARY_OF = {"gfx90a": "90a", "gfx1030": "1030", "gfx1100": "1030"}
FLOAT64 = "cl_khr_fp64"
# Of clang that only reads: macros that are 0 without a word, and numbers that a
# conversion changes. Macros leave variables unused, and conditions constant.
WARNINGS = (
    "-Wall", "-Wextra", "-Wundef", "-Wimplicit-int-conversion", "-Wfloat-conversion",
    "-Wno-unused", "-Wno-unused-parameter", "-Wno-sign-compare",
    "-Wno-constant-logical-operand", "-Wno-pass-failed",
)
_LOCAL = re.compile(r"\.group_segment_fixed_size:\s*(\d+)")
_SPILLS = re.compile(r"^warning: kernel .* spilled around .*$", re.MULTILINE)
_NAME = re.compile(r"\.symbol:\s*'?(\w+)\.kd")

Builder = Callable[[Source, Device, Path], Iterator[str]]


def run(*command: str | Path) -> tuple[bool, str]:
    """Return whether a command succeeds, and its output."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False,
        errors="replace",
    )
    return done.returncode == 0, done.stdout + done.stderr


def first(output: str) -> str:
    """Return the line of an output that says most."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((x for x in lines if "error" in x or "warning" in x),
                lines[0] if lines else "no log")


def knows(clang: str, processor: str) -> bool:
    """Return whether a clang compiles for a processor of AMD's."""
    return run(
        clang, "-x", "cl", "-target", "amdgcn-amd-amdhsa", f"-mcpu={processor}",
        "-nogpulib", "-c", "-o", "/dev/null", "/dev/null",
    )[0]


def clang_command(clang: str, target: str, source: Source) -> list[str]:
    """Return clang's command and options for a program in OpenCL C."""
    command = [
        clang, "-x", "cl", STANDARD, "-target", target, "-Xclang",
        "-fdeclare-opencl-builtins", "-Xclang", "-finclude-default-header",
    ]
    if FLOAT64 not in source.text:
        command += ["-Xclang", f"-cl-ext=-{FLOAT64}"]  # constants of type double warn
    return command


def read_with_warnings(
    clang: str, source: Source, device: Device, folder: Path
) -> Iterator[str]:
    """Let clang read a program; yield its errors and warnings."""
    text = folder / "kernel.cl"
    text.write_text(source.text, encoding="utf-8")
    target = "x86_64" if device.type == "cpu" else "spir64"
    if device.compute_capability is not None:
        target = "nvptx64"
    _, output = run(
        *clang_command(clang, target, source), "-Dasm=__asm__", "-fsyntax-only",
        *WARNINGS, text,
    )
    yield from dict.fromkeys(re.findall(r"^.*(?:warning|error): .*$", output, re.M))


def build_for_amd(
    clang: str, libraries: Path | None, source: Source, device: Device, folder: Path
) -> Iterator[str]:
    """Compile and link a program; yield the faults."""
    text, out = folder / "kernel.cl", folder / "kernel.o"
    text.write_text(source.text, encoding="utf-8")
    tools = Path(run(clang, "-print-prog-name=llvm-nm")[1].strip()).parent
    command = [
        *clang_command(clang, "amdgcn-amd-amdhsa", source), f"-mcpu={device.name}",
        "-nogpulib", "-O2", "-Wno-pass-failed",
    ]
    if libraries is None:
        command.append("-c")
    else:
        version = LIBRARY_OF[device.name]
        wave64 = "on" if device.simd_width == 64 else "off"
        names = (*LIBRARIES, f"oclc_wavefrontsize64_{wave64}",
                 f"oclc_isa_version_{version}")
        for name in names:
            command += ["-Xclang", "-mlink-builtin-bitcode", "-Xclang",
                        f"{libraries / name}.bc"]
        command.append(f"--ld-path={tools / 'ld.lld'}")
    good, output = run(*command, "-o", out, text)
    if not good or "warning:" in output:
        yield first(output)
    if not good:
        return
    if libraries is None:
        _, names_left = run(tools / "llvm-nm", "-u", out)
        own = [w for w in names_left.split() if w != "U" and not w.startswith("_Z")]
        if own:
            yield f"undefined: {', '.join(own)}"
    _, notes = run(tools / "llvm-readelf", "--notes", out)
    declared = dict(zip(_NAME.findall(notes), map(int, _LOCAL.findall(notes)),
                        strict=True))
    for launch in source.launches:
        if declared[launch.kernel] > device.declared_local_memory:
            yield f"{launch.kernel} has {declared[launch.kernel]} B of local memory"


def build_for_intel(
    ocloc: str, source: Source, device: Device, folder: Path
) -> Iterator[str]:
    """Compile and link a program; yield the faults."""
    text = folder / "kernel.cl"
    text.write_text(source.text, encoding="utf-8")
    good, output = run(
        ocloc, "compile", "-file", text, "-device", device.name, "-options", STANDARD,
        "-out_dir", folder, "-output", "kernel",
    )
    output = _SPILLS.sub("", output)  # a matter of speed
    if not good or "warning:" in output:
        yield first(output)


def check_launches(source: Source, device: Device) -> Iterator[str]:
    """Yield the launches beyond a device's limits."""
    for launch in source.launches:
        items = prod(launch.local_size)
        if items > device.largest_group:
            yield f"{launch.kernel} has {items} work-items, not {device.largest_group}"


def check(builder: Builder, device: Device, source: Source) -> list[str]:
    """Return a program's faults."""
    with tempfile.TemporaryDirectory() as folder:
        return [
            *check_launches(source, device), *builder(source, device, Path(folder))
        ]


def builder_of(
    device: Device, clang: str, ocloc: str, libraries: Path | None
) -> Builder:
    """Return what builds for a device."""
    if device.name.startswith("gfx"):
        return partial(build_for_amd, clang, libraries)
    return partial(build_for_intel, ocloc)


def main() -> int:
    """Build for the devices that are named; return 1 if a program fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    records = {record.name: record for record in RECORDS}
    parser.add_argument("devices", nargs="+", choices=records)
    parser.add_argument("--warnings", action="store_true",
                        help="do not build: let clang read programs, and warn of more")
    parser.add_argument("--clang", default=which("clang") or "clang")
    parser.add_argument("--ocloc", default=which("ocloc") or "ocloc")
    parser.add_argument("--device-libraries", type=Path, metavar="FOLDER",
                        help="ROCm's *.bc: link with them")
    parser.add_argument("--every", type=int, default=1, metavar="N",
                        help="build every N-th program of a kernel file")
    parser.add_argument("--outlines", action="store_true", help="of the programs that "
                        "differ in numbers above 1 alone, build the first one")
    parser.add_argument("--results", type=Path, metavar="FILE",
                        help="append results to it; build no program again")
    parser.add_argument("--jobs", type=int, default=4)
    options = parser.parse_args()
    results = Results(options.results)
    failed = 0
    print(f"{'device':10} {'kernels':>8} {'programs':>9} {'failed':>7}")
    for name in options.devices:
        device = records[name]
        if options.warnings:
            build = partial(read_with_warnings, options.clang)
        elif name in DEVICES:
            build = builder_of(
                device, options.clang, options.ocloc, options.device_libraries
            )
        else:
            parser.error(f"no compiler here builds for {name}: give --warnings")
        found = (sources(device, small) | sources(device, large)).values()
        if options.outlines:
            found = {outline(*x.launches): x for x in reversed(found)}.values()
        chosen, seen = {}, Counter()
        for source in found:
            if seen[source.file] % options.every == 0:
                chosen[key_of(name, source.text)] = source
            seen[source.file] += 1
        kernels = {(x.file, one.kernel) for x in chosen.values() for one in x.launches}
        with ThreadPoolExecutor(options.jobs) as pool:
            for key, faults in pool.map(
                lambda key, build=build, device=device, chosen=chosen:
                    (key, check(build, device, chosen[key])),
                chosen.keys() - results.faults.keys(),
            ):
                results.add(key, f"{name} {chosen[key].name}", faults)
        bad = [(x, results.faults[k]) for k, x in chosen.items() if results.faults[k]]
        failed += len(bad)
        print(f"{name:10} {len(kernels):8} {len(chosen):9} {len(bad):7}", flush=True)
        for text, count in Counter(
            f"{x.file}: {one}" for x, found in bad for one in found
        ).most_common(50):
            print(f"  {count} x {text}")
        for source, _ in bad[:5]:
            print(f"  e.g. {source.name}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
