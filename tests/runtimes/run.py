"""Install an OpenCL runtime in a folder, and run tests on it.

    python tests/runtimes/run.py RUNTIME FOLDER [arguments of pytest]

A runtime of PyPI gets a virtual environment of this Python. A runtime of Debian or
Ubuntu gets a root file system of its suite, with that suite's Python; it needs root and
mmdebstrap, and for Ubuntu the file ubuntu-archive-keyring.gpg of its package
ubuntu-keyring in /usr/share/keyrings. A second call uses what the first one installed,
and brings clnet's own needs up to date.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
SHARED = CHECKOUT.parent / "shared"  # data sets, which conftest.py looks for here
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
CLNET = ".[test,demo]"  # in the checkout
SOURCES = {  # apt's, of a suite that is not Debian's
    "noble": (
        "deb [signed-by=/usr/share/keyrings/ubuntu-archive-keyring.gpg]"
        " http://archive.ubuntu.com/ubuntu noble main universe",
    ),
}
TESTS = [
    f"tests/{folder}" for folder in (
        "variants", "runtime", "training", "planning", "opencl", "nn", "formats", "ir",
        "cli",
    )
]


@dataclass(frozen=True)
class Runtime:
    """One row of the table."""

    device: str  # Value of `CLNET_DEVICE`
    packages: tuple[str, ...]  # Of PyPI, or of the suite if there is one
    # The driver, or the .icd file that names it, below the environment's or the
    # system's root
    driver: str
    suite: str = ""  # Debian's or Ubuntu's suite; empty: a package of PyPI
    # Variables that the driver reads
    environment: dict[str, str] = field(default_factory=dict)
    # Tests that cannot pass; see docs/explanation/runtimes.md
    deselected: tuple[str, ...] = ()


def of_suite(
    suite: str, device: str, package: str, *deselected: str, **environment: str
) -> Runtime:
    """Return the row of one of Debian's or Ubuntu's runtimes."""
    driver = f"etc/OpenCL/vendors/{device}.icd"
    return Runtime(device, (package,), driver, suite, environment, deselected)


RUNTIMES = {
    "pocl-3": Runtime(
        "pocl", ("pocl-binary-distribution",),
        "lib/python{0.major}.{0.minor}/site-packages/pyopencl/.libs",
    ),
    "intel": Runtime(
        "intel", ("intel-opencl-rt", "intel-cmplr-lib-rt"), "lib/libintelocl.so",
    ),
    # Kernels with barriers crash or compute wrong numbers in these without their
    # optimiser, which conftest.py otherwise disables.
    "pocl-5": of_suite(
        "noble", "pocl", "pocl-opencl-icd", POCL_EXTRA_BUILD_FLAGS=""
    ),
    "pocl-6": of_suite(
        "trixie", "pocl", "pocl-opencl-icd", POCL_EXTRA_BUILD_FLAGS=""
    ),
    "pocl-7": of_suite(
        "sid", "pocl", "pocl-opencl-icd", POCL_EXTRA_BUILD_FLAGS=""
    ),
    "rusticl-25": of_suite(
        "trixie", "rusticl", "mesa-opencl-icd", RUSTICL_ENABLE="llvmpipe"
    ),
    "rusticl-26": of_suite(
        "sid", "rusticl", "mesa-opencl-icd", RUSTICL_ENABLE="llvmpipe"
    ),
}


def run(*command: str | Path, **environment: str) -> None:
    """Run a command in the checkout; exit with its status if it fails."""
    print("+", shlex.join(map(str, command)), flush=True)
    done = subprocess.run(command, cwd=CHECKOUT, env={**os.environ, **environment})
    if done.returncode:
        sys.exit(done.returncode)


def environment_of(runtime: Runtime, root: Path) -> dict[str, str]:
    """Return the variables of a test run, with the driver below a root folder."""
    return {
        "CLNET_DEVICE": runtime.device,
        "OCL_ICD_VENDORS": str(root / runtime.driver.format(sys.version_info)),
        **runtime.environment,
    }


def run_with_wheel(runtime: Runtime, root: Path, tests: Sequence[str]) -> None:
    """Run tests on a runtime of PyPI."""
    python = root / "bin/python"
    if not python.exists():
        run(sys.executable, "-m", "venv", root)
    run(python, "-m", "pip", "install", "-q", *runtime.packages, "-e", CLNET)
    (cache := root / "cache").mkdir(exist_ok=True)
    run(
        python, "-m", "pytest", *tests, POCL_CACHE_DIR=str(cache),
        **environment_of(runtime, root),
    )


def run_in_suite(runtime: Runtime, root: Path, tests: Sequence[str]) -> None:
    """Run tests on a runtime of Debian or Ubuntu, in its suite's root file system."""
    if not (root / "clnet").exists():
        packages = sorted(
            p for r in RUNTIMES.values() if r.suite == runtime.suite for p in r.packages
        )
        run(
            "mmdebstrap", "--variant=minbase",
            f"--include={','.join(['ca-certificates', 'python3-venv', *packages])}",
            # A mirror of an unstable suite may be some days old.
            '--aptopt=Acquire::Check-Valid-Until "false"',
            runtime.suite, root, *SOURCES.get(runtime.suite, ()),
        )
    for folder in ("clnet", SHARED.name):
        (root / folder).mkdir(exist_ok=True)
    if CERTIFICATES.exists():
        (root / CERTIFICATES.relative_to("/")).write_bytes(CERTIFICATES.read_bytes())
    script = f"""
        mount --bind {shlex.quote(str(CHECKOUT))} clnet
        [ ! -d {shlex.quote(str(SHARED))} ] ||
            mount --bind {shlex.quote(str(SHARED))} {SHARED.name}
        mount -t proc proc proc
        mount -t sysfs sys sys  # PoCL aborts without it
        mount --rbind /dev dev
        exec chroot . sh -ec '
            cd clnet
            [ -e /venv ] || python3 -m venv /venv
            /venv/bin/python -m pip install -q -e "{CLNET}"
            exec /venv/bin/python -m pytest "$@"' sh "$@"
    """
    run(
        "unshare", "--mount", "sh", "-ec", f"cd {shlex.quote(str(root))}\n{script}",
        "sh", *tests, **environment_of(runtime, Path("/")),
    )


def main() -> None:
    """Install a runtime if it is missing, and run tests on it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runtime", choices=RUNTIMES)
    parser.add_argument("folder", type=Path, help="of all runtimes")
    arguments, tests = parser.parse_known_args()
    runtime = RUNTIMES[arguments.runtime]
    root = (arguments.folder / (runtime.suite or arguments.runtime)).resolve()
    root.parent.mkdir(parents=True, exist_ok=True)
    tests = [*(tests or TESTS), *(f"--deselect={one}" for one in runtime.deselected)]
    (run_in_suite if runtime.suite else run_with_wheel)(runtime, root, tests)


if __name__ == "__main__":
    main()
