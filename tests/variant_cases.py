"""Networks and batches as cases, their products; a variant beside the oracle."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pyopencl as cl
import pytest
from bounds import WITH_PARAMETERS, span_bound

from clnet import Dense, Network, Sparse
from clnet.nn.activations import ACTIVATIONS
from clnet.opencl.device import Device
from clnet.opencl.discovery import device
from clnet.opencl.session import session
from clnet.runtime.binding import PlanStep
from clnet.runtime.executable import Executable

H200 = Device(
    "H200", "gpu", compute_units=132, local_memory=47 << 10,
    declared_local_memory=48 << 10, unit_local_memory=226 << 10, largest_group=1024,
    simd_width=32, fp64=True, forward_progress=True, compute_capability=(9, 0),
    clock=1.98e9, launch_cost=5e-6,
)
LAPTOP = Device(
    "laptop", "gpu", compute_units=24, local_memory=64 << 10, largest_group=256,
    simd_width=16,
)
SMALL = Device(
    "small", "gpu", compute_units=2, local_memory=8 << 10, largest_group=64,
    simd_width=4,
)
LEAST = Device("least", "cpu", local_memory=1 << 10, largest_group=1, fp64=True)


# The cases ------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A network and a batch. Layer and op variants run its last layer."""

    sizes: tuple[int, ...]
    batch: int = 3
    activation: str | tuple[str, ...] = "sigmoid"  # one, or one a layer
    dtype: str = "float32"
    steepness: float = 1.0
    bias: bool = True
    fann: bool = False

    def __str__(self) -> str:
        sizes = "-".join(map(str, self.sizes[:6]))
        name = self.activation if isinstance(self.activation, str) else "various"
        marks = [
            f"{name}{self.steepness:g}", *["nobias"] * (not self.bias),
            *["fann"] * self.fann, *["double"] * (self.dtype == "float64"),
        ]
        return f"{sizes}x{self.batch}-{'-'.join(marks)}"

    @property
    def seed(self) -> int:
        return zlib.crc32(repr(self).encode())

    def network(self) -> Network:
        names = [self.activation] * (len(self.sizes) - 1)
        if not isinstance(self.activation, str):
            names = list(self.activation)
        layers = [
            Dense(n, name, self.steepness, self.bias, "uniform")
            for n, name in zip(self.sizes[1:], names, strict=True)
        ]
        return Network(
            self.sizes[0], layers, seed=self.seed, dtype=self.dtype,
            fann_compatible=self.fann,
        )


NAMES = (*ACTIVATIONS, *WITH_PARAMETERS)


def sparse(n_out, form, name="tanh", density=0.3, **more):
    """Return a layer of random connections, the same in each process."""
    return Sparse(n_out, name, density=density, format=form, seed=n_out, **more)


def spans(case, variant):
    """Return the network of a case, and its spans of the variant's reach."""
    network = case.network()
    program = network.program
    n = len(program.ops)
    bounds = {
        "op": [(n - 2, n - 1), (n - 1, n)],
        "layer": [(n - 2, n)],
        "pair": [(n - 2, n)],
        # Also from an inner value to an inner value.
        "run": [(0, n)] + ([(2, n - 2)] if n in (6, 8) else []),
    }[variant.reach]
    return network, [program.span(a, b, case.batch) for a, b in bounds]


def configs(variant, span, where):
    """Return a variant's tuning space on a device, and its space on a GPU."""
    as_gpu = dataclasses.replace(
        where, type="gpu", simd_width=32, compute_units=H200.compute_units,
        local_memory=min(where.local_memory, H200.local_memory),
        largest_group=min(where.largest_group, H200.largest_group),
    )
    found = []
    for record in (where,) if where.type == "gpu" else (where, as_gpu):
        if variant.refuse(span, record) is None:
            found += [c for c in variant.space(span, record) if c not in found]
    return found


# The check ------------------------------------------------------------------------


class Bound:
    """A span bound to buffers of the test, or to host arrays."""

    def __init__(self, network, span, variant, config, where):
        self.span = span
        self.session = session(device())
        self.on_host = variant.name == "host"
        self.executable = Executable(
            self.session, network,
            [PlanStep(span, variant, config, None if self.on_host else where)],
            span.inputs, span.outputs, on_device=not self.on_host,
        )
        self.buffers = {}
        if not self.on_host:
            for value in dict.fromkeys((*span.inputs, *span.outputs)):
                size = span.batch * value.stride * np.dtype(span.dtype).itemsize
                self.buffers[value] = cl.Buffer(
                    self.session.context, cl.mem_flags.READ_WRITE, size
                )
                self.executable.bind(value.name, self.buffers[value])

    def __call__(self, inputs):
        """Return the outputs for inputs by name; outputs hold NaN before the run."""
        if self.on_host:
            for name, x in inputs.items():
                self.executable.x[name][:] = x
            self.executable.run()
            return {y.name: self.executable.result(y.name) for y in self.span.outputs}
        for value in self.span.outputs:
            self._write(value, np.nan)
        for value in self.span.inputs:
            self._write(value, inputs[value.name])
        self.executable.run()
        for queue in self.session.queues.values():
            queue.finish()
        for value in self.span.inputs:
            if value not in self.span.outputs:
                np.testing.assert_array_equal(self._read(value), inputs[value.name])
        return {value.name: self._read(value) for value in self.span.outputs}

    def _write(self, value, x):
        rows = np.zeros((self.span.batch, value.stride), self.span.dtype)
        rows[:, : value.width] = x
        cl.enqueue_copy(self.session.queue, self.buffers[value], rows)
        self.session.queue.finish()

    def _read(self, value):
        rows = np.empty((self.span.batch, value.stride), self.span.dtype)
        cl.enqueue_copy(self.session.queue, rows, self.buffers[value])
        assert not rows[:, value.width :].any(), f"the padding of {value} was written"
        return rows[:, : value.width]


def assert_within_bounds(span, inputs, parameters, results):
    with np.errstate(invalid="ignore"):
        exact, bounds = span_bound(span, inputs, parameters)
    for name, y in results.items():
        missing = np.isnan(exact[name])
        np.testing.assert_array_equal(np.isnan(y), missing)
        error = np.abs(y - exact[name])[~missing]
        allowed = bounds[name][~missing]
        worst = np.argmax(error - allowed) if error.size else 0
        assert (error <= allowed).all(), (
            f"{name}: {error[worst]} is beyond {allowed[worst]}"
        )


def check(network, span, variant, config, where, seed, missing=np.nan):
    """Compare with the oracle, the same executable over several calls."""
    rng = np.random.default_rng(seed)

    def draw():
        return {
            x.name: rng.standard_normal((span.batch, x.width)).astype(span.dtype)
            for x in span.inputs
        }

    run = Bound(network, span, variant, config, where)
    # A call is right whatever the previous one left in scratch memory.
    run({value.name: np.nan for value in span.inputs} if not run.on_host else draw())
    inputs = draw()
    results = run(inputs)
    assert_within_bounds(span, inputs, network.parameters, results)
    for name, again in run(inputs).items():
        np.testing.assert_array_equal(again, results[name])
    # New parameters, and NaN in one sample, which affects no other.
    network.parameters = rng.uniform(-0.5, 0.5, network.parameters.shape) / np.sqrt(
        max(network.sizes)
    )
    inputs = draw()
    for x in inputs.values():
        x[span.batch // 2, rng.integers(x.shape[1])] = missing
    assert_within_bounds(span, inputs, network.parameters, run(inputs))


def alternate(*axes: Iterable[Any]) -> list[Any]:
    """Return the product of values; the quick run has each value of each axis.

    The values of shorter axes recur along the longest.
    """
    named = [{str(getattr(v, "name", v)): v for v in axis} for axis in axes]
    quick = {
        tuple(i % len(axis) for axis in named) for i in range(max(map(len, named)))
    }
    return selected(*named, quick=lambda *at: at in quick)


def selected(*axes: Mapping[str, Any], quick: Callable[..., bool]) -> list[Any]:
    """Return the product of named values as parameters of a test.

    The quick run has those for whose places in the axes `quick` holds.
    """
    places = product(*(range(len(axis)) for axis in axes))
    return [
        pytest.param(
            *(axis[name] for axis, name in zip(axes, names, strict=True)),
            id="-".join(names), marks=[] if quick(*at) else [pytest.mark.sweep],
        )
        for at, names in zip(places, product(*axes), strict=True)
    ]
