"""Run every kernel and configuration under oclgrind, on small shapes.

    OCL_ICD_VENDORS=<folder> python tests/runtimes/oclgrind_kernels.py

Oclgrind interprets kernels, and reports accesses outside of buffers and arrays, data
races, uses of uninitialised values, barriers that not all work-items reach and wrong
calls of OpenCL. `docs/explanation/offline_builds.md` says how to install it. A case is
a span of a network of `kernel_corpus` in one configuration of a variant; of the cases
whose programs differ in numbers alone, the first one runs.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pyopencl as cl
from devices import LaunchesFor
from kernel_corpus import KernelCase, cases
from results import Results, key_of

from clnet.ir.update import Update
from clnet.nn.random import key as order_key
from clnet.opencl.device import Device
from clnet.opencl.discovery import device
from clnet.opencl.launch import Scratch
from clnet.opencl.program import source_text
from clnet.opencl.session import Session
from clnet.runtime.binding import PlanStep
from clnet.runtime.replay import Replay
from clnet.runtime.train_state import TrainState
from clnet.variants import packing

SETTINGS = {
    "CLNET_DEVICE": "oclgrind", "OCLGRIND_CHECK_API": "1", "OCLGRIND_DATA_RACES": "1",
    "OCLGRIND_UNINITIALIZED": "1", "OCLGRIND_NUM_THREADS": "1",
    "OCLGRIND_LOCAL_MEM_SIZE": str(256 << 10), "OCLGRIND_MAX_ERRORS": "10000",
}
# Its check of uninitialised values lacks an instruction that optimisers introduce, and
# optimised choices between vectors are wrong.
BUILD_OPTIONS = ("-cl-opt-disable",)
UNCHECKED = {key: value for key, value in SETTINGS.items() if "UNINIT" not in key}
PTX_ONLY = {("dense/persistent_ring.cl", "persistent_ring")}  # no path in plain C
WITHOUT = "without the check of uninitialised values"
packing.PACKERS = 64  # more would have nothing to pack, and take most of the time
CASE = "== case "
CHUNK = 5  # cases of a process, whose results are kept when it ends
LIMIT = 1200  # seconds of a case: then its process ends
REPORT = re.compile(  # of oclgrind, and of `run_cases`
    r"^(Uninitialized|Invalid|Oclgrind -|.*(race|divergence|FATAL|ended the case))",
    re.MULTILINE,
)
# Queries of extensions, which discovery expects to fail.
KNOWN = ("Function: clGetDeviceInfo\n\tError:    CL_INVALID_VALUE",)
# Oclgrind reports whatever two groups access, also in the order of a flag of
# `atomics.h`. `tests/variants/thread_sanitizer.py` judges the order of these kernels,
# of cpu.cl and epoch.cl.
FLAGGED = re.compile(r"data race.*Kernel: workers\b", re.DOTALL)


def descriptions(real: Device) -> dict[str, Device]:
    """Return records that variants describe launches for: GPUs, and CPUs.

    A launch's groups run one after another, so that one group alone may wait for all.
    """
    real = replace(real, companions=(), forward_progress=False, compute_units=3)
    gpu = replace(
        real, type="gpu", simd_width=32, largest_group=256, local_memory=32 << 10,
        declared_local_memory=32 << 10, unit_local_memory=32 << 10,
    )
    one = replace(gpu, compute_units=1, forward_progress=True)
    large = {"local_memory": 47 << 10, "declared_local_memory": 48 << 10,
             "unit_local_memory": 226 << 10, "largest_group": 1024}
    return {
        "gpu": gpu,
        "wave64": replace(gpu, simd_width=64, largest_group=1024),
        "one group": one,
        "warp mma": replace(one, **large, compute_capability=(8, 0)),
        "warp group mma": replace(one, **large, compute_capability=(9, 0)),
        "cpu": replace(real, operator_math=True),
    }


def signature(case: KernelCase, described: Device) -> tuple[object, ...]:
    """Return what distinguishes a case's programs, but for numbers above 1."""
    return (
        case.variant.name, *case.config.items(), case.span.dtype,
        *(
            (launch.source, launch.kernel, *(
                (name, value) if str(value) in "01" else name
                for name, value in sorted(launch.defines.items())
            ))
            for launch in case.launches(described)
        ),
    )


def distinct(
    described: Mapping[str, Device], names: Sequence[str] = ()
) -> list[tuple[str, KernelCase]]:
    """Return the first case of each signature, with its record; of all records or some.

    New kernels come first, then new configurations. The host variant has no kernels.
    """
    found: dict[object, tuple[str, KernelCase]] = {}
    for name, record in described.items():
        for case in cases(record) if not names or name in names else ():
            if case.variant.name != "host" and not kernels(case, record) & PTX_ONLY:
                found.setdefault(signature(case, record), (name, case))
    seen: set[object] = set()

    def repeats(row: tuple[str, KernelCase]) -> int:
        name, case = row
        ran = kernels(case, described[name])
        config = case.variant.name, *case.config.items()
        known = 2 if config in seen else 1 if ran <= seen else 0
        seen.update(ran, [config])
        return known

    return sorted(found.values(), key=repeats)


def execute(case: KernelCase, described: Device, where: Session) -> None:
    """Run a case on random inputs."""
    rng = np.random.default_rng(0)
    span, layout = case.span, case.network.layout
    rule = next((op.optimiser for op in span.ops if isinstance(op, Update)), None)
    state = np.zeros((0 if rule is None else rule.slots, layout.size), span.dtype)
    if rule is not None:
        state[...] = np.reshape(rule.initial, (rule.slots, 1))
    replay = Replay(
        where,
        [PlanStep(span, LaunchesFor(case.variant, described), case.config,
        where.device)],
        layout, TrainState(where, case.network.parameters, state),
    )
    replay.write_gradients(rng.uniform(0.1, 1, layout.size).astype(span.dtype))
    for value in span.inputs:
        rows = rng.uniform(0.1, 1, (value.height(span.batch), value.width))
        replay.write(value, rows.astype(span.dtype))
    replay.set(
        rate=0.05, seed=7, first=0, samples=span.batch, seen=span.batch,
        key=order_key(3, 1),
    )
    scratch = any(
        isinstance(argument, Scratch)
        for launch in case.launches(described) for argument in launch.arguments
    )
    for step in range(2 if scratch else 1):  # one step finds what another has left
        replay.set(fresh=step == 0, count=step)
        replay.run()
        where.finish()


def fill_by_copy(queue: object, buffer: cl.Buffer, value: object, at: int, size: int):
    """Fill a buffer of zeros: oclgrind takes filled memory for uninitialised."""
    return cl.enqueue_copy(queue, buffer, np.zeros(size, np.uint8), dst_offset=at)


def run_cases(path: Path, first: int, end: int) -> None:
    """Run cases first … end - 1 of a file of `main`; print each one before it runs."""
    cl.enqueue_fill_buffer = fill_by_copy
    real = device()
    described = descriptions(real)
    where = {
        operators: Session(replace(
            real, companions=(), operator_math=operators, build_options=BUILD_OPTIONS
        ))
        for operators in (False, True)
    }
    rows = pickle.loads(path.read_bytes())
    for number, (name, case) in enumerate(rows[first:end], first):
        config = " ".join(f"{key}={value}" for key, value in case.config.items())
        print(f"{CASE}{number} {name}: {case.name} {config}", flush=True)
        record = described[name]
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        try:
            execute(case, record, where[record.operator_math])
        except Exception as error:  # a report like the others
            print(f"\n{type(error).__name__} ended the case: {error}", flush=True)


def reports(output: str) -> list[str]:
    """Return the reports of an output, known ones left out."""
    blocks = [block.strip() for block in re.split(r"\n\n+", output)]
    return [
        block for block in blocks
        if REPORT.search(block) and not FLAGGED.search(block)
        and not any(known in block for known in KNOWN)
    ]


def reports_of_cases(output: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each case of a process's output with its reports."""
    for part in output.split(CASE)[1:]:
        name, _, rest = part.partition("\n")
        yield name, reports(rest)


def run_tests(paths: Sequence[str]) -> int:
    """Run tests, and print the reports; return 1 if there are any, or a test fails.

    Uninitialised values are not looked for: tests fill buffers (see `fill_by_copy`).
    """
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "-s", "-rfE", *paths],
        env={**os.environ, **UNCHECKED,
             "OCLGRIND_BUILD_OPTIONS": " ".join(BUILD_OPTIONS)}, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )
    found = reports(child.stdout)
    failed = re.findall(r"^(?:FAILED|ERROR) .*", child.stdout, re.MULTILINE)
    print(*found, *failed, child.stdout.splitlines()[-1], sep="\n\n")
    print(f"{len(found)} reports")
    return int(bool(found or child.returncode))


def run_process(
    path: Path, first: int, end: int, settings: Mapping[str, str]
) -> tuple[int, list[tuple[str, list[str]]]]:
    """Return the exit status of a process with some cases, and the cases that ran."""
    child = subprocess.run(
        [sys.executable, __file__, "--cases", str(path), str(first), str(end)],
        env={**os.environ, **settings}, stdout=subprocess.PIPE, check=False,
        stderr=subprocess.STDOUT, text=True, errors="replace",
    )
    ran = list(reports_of_cases(child.stdout))
    if not ran:
        raise SystemExit(f"no case runs: {child.stdout[-2000:]}")
    return child.returncode, ran


def run_chunk(path: Path, end: int, first: int) -> list[tuple[str, list[str]]]:
    """Return some cases with their reports.

    A case that ends the process runs again without the check of uninitialised values,
    which crashes on some kernels; if it ends the process again, that is a report.
    """
    found: list[tuple[str, list[str]]] = []
    end = min(end, first + CHUNK)
    while first < end:
        status, ran = run_process(path, first, end, SETTINGS)
        found += ran
        first += len(ran)
        if status:
            number = first - 1
            status, ran = run_process(path, number, number + 1, UNCHECKED)
            name, each = ran[0]
            each += [f"the process ended with {status}"] * (status != 0)
            found[-1] = f"{name} {WITHOUT}", each
    return found


def main() -> int:
    """Run the cases; print their counts and reports; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("records", nargs="*", help="of `descriptions`; by default all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=int, default=sys.maxsize, metavar="N",
                        help="run the first N cases: new kernels and configurations")
    parser.add_argument("--variants", nargs="+", metavar="NAME",
                        help="run the cases of these alone")
    parser.add_argument("--results", type=Path, metavar="FILE",
                        help="append results to it; run no case again")
    parser.add_argument("--tests", nargs="+", metavar="PATH",
                        help="run tests instead, as those of populations and cascades")
    parser.add_argument("--cases", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cases:
        path, first, end = options.cases
        run_cases(Path(path), int(first), int(end))
        return 0
    real = device()
    if not real.emulated:
        raise SystemExit(f"{real.name} is not oclgrind: set OCL_ICD_VENDORS")
    if options.tests:
        return run_tests(options.tests)
    described = descriptions(real)
    rows = [
        row for row in distinct(described, options.records)
        if not options.variants or row[1].variant.name in options.variants
    ][: options.limit]
    print(f"{'record':16}{'kernels':>9}{'configurations':>16}{'cases':>7}")
    for name in (*described, "all"):
        chosen = [row for row in rows if name in (row[0], "all")]
        ran = {x for record, case in chosen for x in kernels(case, described[record])}
        configs = {(case.variant.name, *case.config.items()) for _, case in chosen}
        print(f"{name:16}{len(ran):9}{len(configs):16}{len(chosen):7}", flush=True)
    keys = [case_key(case, described[name]) for name, case in rows]
    results = Results(options.results)
    left = [row for row, key in zip(rows, keys, strict=True)
            if key not in results.faults]
    left_keys = [key for key in keys if key not in results.faults]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases"
        path.write_bytes(pickle.dumps(left))
        with ThreadPoolExecutor(options.jobs) as pool:
            chunks = {
                pool.submit(run_chunk, path, len(left), first): first
                for first in range(0, len(left), CHUNK)
            }
            for done, chunk in enumerate(as_completed(chunks), 1):
                for at, (case, each) in enumerate(chunk.result(), chunks[chunk]):
                    results.add(left_keys[at], case, each)
                    if each:
                        print(f"{case}: {len(each)} reports, the first:\n{each[0]}\n")
                print(f"{done} of {len(chunks)} processes have ended", flush=True)
    reported = sum(bool(results.faults[key]) for key in keys)
    print(f"{reported} of {len(keys)} cases have reports")
    return int(reported > 0)


def case_key(case: KernelCase, described: Device) -> str:
    """Return a name for what a case runs."""
    return key_of(case.name, sorted(case.config.items()), *(
        (source_text(launch.source, launch.defines, described), launch.kernel,
         launch.global_size, launch.local_size)
        for launch in case.launches(described)
    ))


def kernels(case: KernelCase, described: Device) -> set[tuple[str, str]]:
    """Return the kernels of a case, each with its file."""
    return {(launch.source, launch.kernel) for launch in case.launches(described)}


if __name__ == "__main__":
    sys.exit(main())
