"""The vectors of the kernels for CPU cores, by clang's code for other processors.

    python tests/offline/cpu_widths.py [CLANG]        # needs a CPU device of OpenCL

Of each kernel's largest loop it tells the vector instructions of arithmetic, the widest
registers, and the loads and stores on the stack: registers that did not suffice.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import clnet
from clnet.opencl.program import source_text
from clnet.variants import VARIANTS

X86, ARM = "--target=x86_64-linux-gnu", "--target=aarch64-linux-gnu"
TARGETS = {
    "SSE2": (X86, "-march=x86-64"),
    "AVX2": (X86, "-march=znver3"),
    "AVX-512": (X86, "-march=icelake-server", "-mprefer-vector-width=512"),
    "NEON": (ARM, "-mcpu=neoverse-n1"),
    "SVE": (ARM, "-mcpu=neoverse-v1"),
}
NETWORKS = {
    "cpu": (clnet.Network.mlp([256, 256, 256], "tanh", seed=0), 32),
    "stencil_cpu": (clnet.Network(1024, [clnet.Local(window=3)], seed=0), 1),
}
ARITHMETIC = re.compile(
    r"v?fn?m\w+ps|v?(mul|add)ps|f(mla|mls|mad|mul|add)\b.*(\.4s|\bz)"
)
STACK = re.compile(r"%rsp|\[sp\b")
WIDTHS = {"%zmm": 512, "%ymm": 256, "%xmm": 128, ".4s": 128}
JUMP = r"(j\w+|b\.?\w*|cbn?z|tbn?z)\s.*{label}$"


def source(name: str) -> str:
    """Return the kernels of a variant for a network, as functions of their own."""
    network, batch = NETWORKS[name]
    device, program = replace(clnet.device("cpu"), vector_width=8), network.program
    variant = next(one for one in VARIANTS if one.name == name)
    span = program.span(0, len(program.ops), batch)
    launch = variant.launches(span, next(iter(variant.space(span, device))), device)[-1]
    text = source_text(launch.source, launch.defines, device)
    return re.sub(r"__attribute__\(\(reqd_work_group_size\([^)]*\)\)\)", "", text)


def loops(assembly: str) -> Iterator[list[str]]:
    """Yield the instructions of each innermost loop."""
    label, body = "", list[str]()
    for line in map(str.strip, assembly.splitlines()):
        if found := re.match(r"(\.?\w+):", line):
            label, body = found[1], []
            continue
        body.append(line)
        if label and re.match(JUMP.format(label=re.escape(label)), line):
            yield body


def main() -> None:
    """Print a line for each kernel and processor."""
    clang = sys.argv[1] if len(sys.argv) > 1 else "clang"
    # No target but a GPU's knows the calls of kernels.
    options = (
        "-x", "cl", "-cl-std=CL1.2", "-Xclang", "-finclude-default-header", "-O3",
        "-ffp-contract=fast", "-fno-unroll-loops",
        "-D__kernel=__attribute__((noinline))", "-S", "-o", "-",
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in NETWORKS:
            file = Path(folder, f"{name}.cl")
            file.write_text(source(name), encoding="utf-8")
            for target, flags in TARGETS.items():
                assembly = subprocess.run(
                    [clang, *options, *flags, str(file)], capture_output=True,
                    text=True, check=True,
                ).stdout
                counts = [
                    (
                        sum(bool(ARITHMETIC.match(line)) for line in body),
                        max((
                            width for line in body if ARITHMETIC.match(line)
                            for key, width in WIDTHS.items() if key in line
                        ), default=0),
                        sum(bool(STACK.search(line)) for line in body),
                    )
                    for body in loops(assembly)
                ]
                vectors, bits, stack = max(counts)
                print(
                    f"{name:12} {target:8} {vectors:3} of {bits} bits, "
                    f"{stack} on the stack"
                )


if __name__ == "__main__":
    main()
