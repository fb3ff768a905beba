"""Run the kernels of resident workers on threads, under ThreadSanitizer.

    export LD_PRELOAD=$(gcc -print-file-name=libtsan.so)
    python tests/variants/thread_sanitizer.py

Workers of `cpu.cl` and `epoch.cl` order their accesses to values and gradients by the
flags of `atomics.h`. Clang compiles the kernels for the host; each work-group is a
thread. ThreadSanitizer reports accesses that no flag orders, whatever their order in
this run. With ``--relaxed``, the flags order nothing: it then must report.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from clnet import Network
from clnet.ir.lowering import lower, lower_training
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import optimiser
from clnet.nn.random import key as order_key
from clnet.opencl import bound
from clnet.opencl.discovery import device
from clnet.opencl.program import source_text
from clnet.opencl.session import Session
from clnet.planning.training_planner import TRAINING_VARIANTS
from clnet.runtime.binding import PlanStep
from clnet.runtime.replay import Replay
from clnet.runtime.train_state import TrainState
from clnet.variants import ALL_VARIANTS

WATCHED = ("workers", "lead", "helpers")
POLLS = 1 << 30  # no task is computed twice: two workers then store the same values
RUNS = 20
FUNCTIONS = """
#define DEFINED __attribute__((overloadable))
size_t DEFINED get_global_id(uint k) { extern size_t work_item(); return work_item(); }
size_t DEFINED get_global_size(uint k) { extern size_t items(); return items(); }
int DEFINED atomic_inc(volatile __global int *p)
{
    return __atomic_fetch_add(p, 1, __ATOMIC_RELAXED);
}
int DEFINED min(int a, int b) { return a < b ? a : b; }
int DEFINED max(int a, int b) { return a > b ? a : b; }
uint DEFINED min(uint a, uint b) { return a < b ? a : b; }
#define SCALAR(name) float DEFINED name(float v) { return __builtin_##name(v); }
SCALAR(sin) SCALAR(cos) SCALAR(sqrt) SCALAR(expm1) SCALAR(log1p)
float8 DEFINED sqrt(float8 v)
{
    for (int k = 0; k < 8; ++k) v[k] = __builtin_sqrtf(v[k]);
    return v;
}
int8 DEFINED convert_int8(uchar8 v) { return __builtin_convertvector(v, int8); }
#define VLOAD8(T)                                                                  \\
    T##8 DEFINED vload8(size_t i, const __global T *p)                             \\
    {                                                                              \\
        T##8 v;                                                                    \\
        for (int k = 0; k < 8; ++k) v[k] = p[8 * i + k];                           \\
        return v;                                                                  \\
    }
VLOAD8(int)
VLOAD8(uchar)
void DEFINED vstore8(int8 v, size_t i, __global int *p)
{
    for (int k = 0; k < 8; ++k) p[8 * i + k] = v[k];
}
"""
PLACE = """
#include <stddef.h>
static _Thread_local size_t item, count;
size_t work_item(void) { return item; }
size_t items(void) { return count; }
void place(size_t i, size_t n) { item = i; count = n; }
"""
# ThreadSanitizer knows accesses of 16 bytes at most.
PASSES = "default<O1>,function(scalarizer),tsan-module,function(tsan)"


def compiled(text: str, folder: Path) -> ctypes.CDLL:
    """Return a program as a library with instrumented accesses."""
    number = len(list(folder.iterdir()))
    at = folder / str(number)
    kernel, bitcode, place = (at.with_suffix(s) for s in (".cl", ".bc", ".c"))
    kernel.write_text(FUNCTIONS + text)
    place.write_text(PLACE)
    for command in (
        ["clang", "-x", "cl", "-cl-std=CL1.2", "-Xclang", "-finclude-default-header",
         "-Xclang", "-disable-llvm-passes", "-fsanitize=thread", "-fPIC", "-O1", "-g",
         "-w", "-emit-llvm", "-c", "-o", bitcode, kernel],
        ["opt", "-scalarize-load-store", f"-passes={PASSES}", "-o", bitcode, bitcode],
        ["clang", "-shared", "-fPIC", "-O1", "-o", at.with_suffix(".so"), bitcode,
         place, "-lm"],
    ):
        subprocess.run([str(word) for word in command], check=True,
                       env={"PATH": os.environ["PATH"]})
    return ctypes.CDLL(str(at.with_suffix(".so")))


class Kernel:
    """A kernel on threads, with the interface of pyopencl's that bindings use."""

    def __init__(self, library: ctypes.CDLL, name: str, workers: int) -> None:
        self._place, self._function = library.place, getattr(library, name)
        self._place.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
        self._function.restype = None
        self._workers = workers
        self._arguments: dict[int, object] = {}
        self._threads: list[Thread] = []

    def set_arg(self, index: int, value: object) -> None:
        if isinstance(value, np.floating):
            argument = ctypes.c_float(value)
        elif isinstance(value, np.integer):
            argument = ctypes.c_uint32(int(value) & 0xFFFFFFFF)
        else:  # memory that is shared with the host
            argument = ctypes.c_void_p(value.mem.ctypes.data)
        self._arguments[index] = argument

    def _work(self, number: int, arguments: list[object]) -> None:
        self._place(number, self._workers)
        self._function(*arguments)

    def start(self) -> None:
        """Start the threads unless they are still running."""
        if any(thread.is_alive() for thread in self._threads):
            return
        arguments = [self._arguments[i] for i in range(len(self._arguments))]
        self._threads = [
            Thread(target=self._work, args=(number, arguments))
            for number in range(self._workers)
        ]
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        for thread in self._threads:
            thread.join()

    def run(self) -> None:
        self.start()
        self.finish()


class Watched(Session):
    """A session whose `WATCHED` kernels run on threads."""

    def __init__(self, real, folder: Path, ordered: bool) -> None:
        super().__init__(real)
        self._folder, self._ordered = folder, ordered
        self._libraries: dict[str, ctypes.CDLL] = {}

    def kernel(self, launch, on):
        if launch.kernel not in WATCHED:
            return super().kernel(launch, on)
        defines = dict(launch.defines)
        if "MAX_POLLS" in defines:
            defines["MAX_POLLS"] = POLLS
        text = source_text(launch.source, defines, on)
        if not self._ordered:
            text = text.replace("__ATOMIC_RELEASE", "__ATOMIC_RELAXED")
            text = text.replace("__ATOMIC_ACQUIRE", "__ATOMIC_RELAXED")
            text = text.replace("__ATOMIC_SEQ_CST", "__ATOMIC_RELAXED")
        if text not in self._libraries:
            self._libraries[text] = compiled(text, self._folder)
        return Kernel(self._libraries[text], launch.kernel, launch.global_size[0])


def bind_to_threads() -> None:
    """Let bindings launch a `Kernel` by its own methods."""
    launched, standby = bound.prepared_launch, bound.Standby
    bound.prepared_launch = lambda queue, kernel, *sizes, **options: (
        kernel.run if isinstance(kernel, Kernel)
        else launched(queue, kernel, *sizes, **options)
    )
    bound.Standby = lambda session, on, kernel, launch: (
        SimpleNamespace(start=kernel.start, finish=kernel.finish)
        if isinstance(kernel, Kernel) else standby(session, on, kernel, launch)
    )


def steps(real):
    """Yield networks and steps: every protocol of both kernels."""
    network = Network.mlp([40, 70, 90, 5], "tanh", seed=1)
    training = {
        (shuffled, rule): lower_training(
            network, loss_function("mse"), optimiser(rule), shuffled=shuffled,
            samples=300 if shuffled else None,
        )
        for shuffled, rule in ((True, "adam"), (False, "rprop"))
    }
    for name, programs in (("cpu", [lower(network)]), ("epoch", training.values())):
        variant = next(
            v for v in (*ALL_VARIANTS, *TRAINING_VARIANTS) if v.name == name
        )
        for program in programs:
            batch = 200 if name == "cpu" else 100
            span = program.span(0, len(program.ops), batch)
            size = "group" if name == "cpu" else "tile"
            found = list(variant.space(span, real))
            least = min(config[size] for config in found)  # most tasks
            for config in found:
                if config[size] == least:
                    yield network, PlanStep(span, variant, config, real)


def main() -> None:
    """Run each protocol some times."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--relaxed", action="store_true")
    options = parser.parse_args()
    real = device()
    real = replace(real, compute_units=max(3, real.compute_units))
    bind_to_threads()
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        where = Watched(real, Path(folder), not options.relaxed)
        for network, step in steps(real):
            state = np.full((4, network.layout.size), 0.1, "float32")
            replay = Replay(
                where, [step], network.layout,
                TrainState(where, network.parameters, state),
            )
            for value in step.span.inputs:
                rows = rng.uniform(0.1, 1, (value.height(step.span.batch), value.width))
                replay.write(value, rows.astype("float32"))
            replay.set(rate=0.05, seed=7, key=order_key(3, 1))
            for count in range(RUNS):
                replay.run_pass(3 * step.span.batch, 3 * count)
            where.finish()
            for standby in replay.bound.standbys:
                standby.finish()
            print(f"{step.variant.name} {dict(step.config)}", flush=True)


if __name__ == "__main__":
    main()
