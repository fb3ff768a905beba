"""Fixtures that several test modules share."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# Workers and child processes import the same modules: each is compiled once.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Before OpenCL is loaded: processes that share a cold cache of PoCL may fail.
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    where = os.environ.get("POCL_CACHE_DIR", str(Path.home() / ".cache" / "pocl"))
    os.environ["POCL_CACHE_DIR"] = str(Path(where) / f"tests-{worker}")
    Path(os.environ["POCL_CACHE_DIR"]).mkdir(parents=True, exist_ok=True)

import clnet.cli.bench  # noqa: F401  tests import clnet.benchmarks from here on
from clnet.errors import DeviceError
from clnet.opencl import discovery, times_file
from clnet.opencl.device import Device
from clnet.opencl.quirks import POCL

sys.dont_write_bytecode = False

# The machine may be one whose times are shipped.
times_file.SHIPPED = Path(os.devnull)

# No test asserts a time.
hypothesis.settings.register_profile(
    "clnet", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("clnet")

EXTRA_FLAGS = "POCL_EXTRA_BUILD_FLAGS"  # PoCL adds these flags to every build
KERNEL_TESTS = Path(__file__).parent / "variants"

# A machine may lack these: words of a DeviceError, and the reason to skip a test.
LACKS = {
    "has no float64": "the device has no float64",
    "no device matches 'cpu'": "needs an OpenCL device for the CPU",
    "no device matches 'pocl'": "needs PoCL",
}


def skip_reason(error: str) -> str | None:
    """Return what the machine lacks, by a DeviceError's message, or None."""
    return next((reason for words, reason in LACKS.items() if words in error), None)


def skip_if_lacking(outcome: Any) -> None:
    """Make a DeviceError of what the machine lacks a skipped test."""
    error = outcome.excinfo[1] if outcome.excinfo else None
    if isinstance(error, DeviceError) and (reason := skip_reason(str(error))):
        outcome.force_exception(pytest.skip.Exception(reason))


def optimised(item: pytest.Item) -> bool:
    """Return whether PoCL optimises the kernels of a test.

    It takes half the time of a build. The tests of the kernels themselves are
    optimised, but for those marked ``unoptimised``; of the others those marked
    ``optimised``.
    """
    if item.path.is_relative_to(KERNEL_TESTS):
        return item.get_closest_marker("unoptimised") is None
    return item.get_closest_marker("optimised") is not None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, None]:
    """Disable PoCL's optimiser where a test does not need it.

    ``POCL_EXTRA_BUILD_FLAGS= pytest`` optimises all.
    """
    with pytest.MonkeyPatch.context() as patch:
        if EXTRA_FLAGS not in os.environ and not optimised(item):
            patch.setenv(EXTRA_FLAGS, "-cl-opt-disable")
        yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call() -> Generator[None, Any, None]:
    """Skip a test that needs more than the machine has."""
    skip_if_lacking((yield))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, None]:
    """Skip a test whose fixtures need more than the machine has."""
    skip_if_lacking((yield))


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: Any) -> Generator[None, Any, None]:
    """Skip a module that needs more than the machine has when it is imported."""
    report = (yield).get_result()
    if report.failed and (reason := skip_reason(str(report.longrepr))):
        report.outcome = "skipped"
        report.longrepr = str(collector.path), 1, f"Skipped: {reason}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file together: they share kernels."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


FANN_DATASETS = Path(__file__).parents[2] / "shared" / "datasets" / "fann"


@pytest.fixture
def fann_datasets() -> Path:
    """The folder of FANN's data sets and networks beside the checkout."""
    if not FANN_DATASETS.is_dir():
        pytest.skip(f"the FANN data sets are not at {FANN_DATASETS}")
    return FANN_DATASETS


@pytest.fixture(autouse=True, scope="session")
def cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Do not read or write the user's measured times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLNET_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def cpu() -> Device:
    """The CPU's device, for tests whose child processes name it."""
    return discovery.device("cpu")


@pytest.fixture
def pocl() -> Device:
    """PoCL's own device of this machine, if there is one."""
    return discovery.device("pocl")


@pytest.fixture
def device() -> Device:
    """The default device."""
    try:
        return discovery.device()
    except DeviceError as error:
        pytest.skip(f"no OpenCL device: {error}")


@pytest.fixture(scope="session")
def cores() -> None:
    """Skip the test on GPUs, whose sums are of another order."""
    if discovery.device().type != "cpu":
        pytest.skip("bits are equal on CPUs alone")


@pytest.fixture(scope="session")
def same_rounding(cores: None) -> None:
    """Skip the test where roundings depend on the rest of a kernel, as on Intel's."""
    if discovery.device().platform != POCL:
        pytest.skip("bits are equal on PoCL alone")


@pytest.fixture(autouse=True, scope="session")
def no_waiting() -> Iterator[None]:
    """Plan without the pauses that exact times need."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clnet.planning.tuning.measure.WARM_UP_SECONDS", 0.0)
        patch.setattr("clnet.planning.tuning.measure.SPIN_SECONDS", 0.0)
        patch.setattr("clnet.planning.tuning.times.SPIN_SECONDS", 0.0)
        yield


@pytest.fixture(autouse=True, scope="session")
def estimated_rates() -> Iterator[None]:
    """Plan by estimated rates: measuring them takes seconds in each empty store."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clnet.planning.planner.measured", lambda device: device)
        yield


@pytest.fixture(autouse=True, scope="session")
def modelled_training() -> Iterator[None]:
    """Let `fit` rank modelled costs: building and measuring all takes too long here."""
    from clnet.planning.training_planner import plan_training
    from clnet.training import plans

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "plan_training", partial(plan_training, tune=False))
        yield


@pytest.fixture
def modelled_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the plans of calls from the cost model: some tests are not about times."""
    from clnet.planning.inference import PlanCache, compile_network
    from clnet.planning.tuning.budget import Budget

    def plan(
        self: PlanCache, devices: Any, batch: Any, precision: str, calls: float = 1
    ) -> Any:
        return compile_network(
            self.network, devices[0] if isinstance(devices, tuple) else devices, batch,
            tune=False, precision=precision, budget=Budget(),
        )

    monkeypatch.setattr(PlanCache, "plan", plan)


@pytest.fixture
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin with an empty store of measured times."""
    from clnet.planning.tuning import times

    monkeypatch.setenv("CLNET_CACHE_DIR", str(tmp_path))
    # Pauses that tests do not need:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr("clnet.planning.tuning.measure.WARM_UP_SECONDS", 1e-4)
    times.store_of.cache_clear()
    yield
    times.store_of.cache_clear()


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure without waiting for spinning threads."""
    from clnet.benchmarks import timing

    monkeypatch.setattr(timing, "SPIN_SECONDS", 0.0)
    monkeypatch.setattr(timing, "SETTLE_SECONDS", 0.0)
