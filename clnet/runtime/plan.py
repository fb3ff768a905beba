"""Plans: a network compiled for a device and a batch size, to be called.

The planner (`clnet.planning.planner`) chooses a plan's steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from os import PathLike
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from clnet.checks import as_numbers
from clnet.errors import InputError, OutOfMemoryError, counted, warn
from clnet.ir.lowering import lower
from clnet.nn.notebook import html_table
from clnet.opencl.device_arrays import (
    check_device_array,
    order_arrays_after,
)
from clnet.opencl.launch import may_time_out
from clnet.opencl.memory import copier, copy_rows
from clnet.opencl.process import check_process
from clnet.opencl.session import device_error, device_errors, session
from clnet.runtime.direct_calls import DeviceCall, DirectCall, host_call
from clnet.runtime.executable import Executable
from clnet.runtime.turn import Turn

if TYPE_CHECKING:
    from clnet.nn.model import Model
    from clnet.opencl.device import Device
    from clnet.runtime.binding import PlanStep

Array = NDArray[Any]


class Reasons(Protocol):
    """The reasons for a plan's steps."""

    def __call__(self) -> str:
        """Return them as text."""
        ...

    def draw(self, axes: Any) -> None:
        """Draw them on matplotlib's axes."""
        ...


def refuse_copy(plan: object) -> NoReturn:
    """Raise InputError, instead of copying or pickling a plan."""
    raise InputError(
        "a plan belongs to its process's device, and is not copied or pickled: pickle "
        "the network, and compile it there"
    )


class Plan:
    """A network compiled for a device and a batch size: call it.

    Not made directly: `Network.compile` returns one.

    Parameters
    ----------
    network : Model
        When its parameters are replaced, the next call uses the new ones.
    device : Device
        Of the steps.
    batch : int
        Samples per call.
    steps : sequence of PlanStep
        The cover for host arrays.
    device_steps : callable
        Returns the cover for device arrays, without steps on the host.
    fallback_steps : callable
        Returns a cover without kernels that can time out.
    explanation : Reasons or None
        The reasons for the steps; None: none are known.

    Attributes
    ----------
    alternation : threading.Lock
        Held while a caller alternates between this plan and its `twin`.
    direct : dict of tuple to callable
        Of a shape of host arrays, the shortest way to their outputs: a ``DirectCall``.
    calls_left : float
        Calls by `Network.predict` until it measures and plans anew; infinite: it has.
    calls_a_look : float
        Those from one look at a search beside them to the next.

    Examples
    --------
    >>> plan = clnet.Network.mlp([8, 4, 2], seed=0).compile("cpu", tune=False)
    >>> plan(np.zeros(8)).shape
    (2,)
    >>> plan.explain().splitlines()[0]
    '8-4-2, float32, batch 1, on ...'
    """

    calls_left = inf
    calls_a_look = inf

    def __init__(
        self,
        network: Model,
        device: Device,
        batch: int,
        steps: Sequence[PlanStep],
        device_steps: Callable[[], Sequence[PlanStep]],
        fallback_steps: Callable[[], Sequence[PlanStep]],
        explanation: Reasons | None = None,
    ) -> None:
        self.network = network
        self.device = device
        self.batch = batch
        self.steps: tuple[PlanStep, ...] = tuple(steps)
        self._explanation = explanation
        self._time_outs = ""
        self._session = session(device)
        self._device_steps = device_steps
        self._fallback_steps = fallback_steps
        self._on_device: DeviceCall | None = None
        self._turn = Turn()
        self._started_with: Array | None = None
        self._started_rows = batch
        self._twin: Plan | None = None
        self.alternation: threading.Lock = threading.Lock()
        program = lower(network)
        self._input, self._output = program.input, program.output
        self._dtype = np.dtype(network.dtype)
        self._shape = (batch, program.input.width)
        self._prepare()

    def _prepare(self) -> None:
        with device_errors(self._session):
            self._executable = Executable(
                self._session, self.network, self.steps, [self._input], [self._output]
            )
        self._x = self._executable.x[self._input.name]
        self._fill = copier(self._x)
        self.direct: dict[tuple[int, ...], DirectCall] = {}
        if not self._executable.bound.can_time_out:
            read = self._executable.host.reader(self._output.name)
            direct = partial(host_call, self._executable, self._turn, self._dtype)
            self.direct[self._shape] = direct(self._fill, read)
            if self.batch == 1:
                fill_one = copier(self._x[0])
                self.direct[self._shape[1:]] = direct(fill_one, lambda: read()[0])

    __reduce__ = refuse_copy

    @property
    def queue(self) -> Any:
        """The ``pyopencl.CommandQueue`` of the device: make device arrays on it."""
        return self._session.queue

    def explain(self) -> str:
        """Return the chosen cover, the other candidates' times, and the refusals."""
        reasons = self._explanation() if self._explanation else ""
        return reasons + self._time_outs

    def plot(
        self, path: str | PathLike[str] | None = None, *, axes: Any = None
    ) -> Any:
        """Draw the chosen cover beside those that lost: a colour a variant.

        Parameters
        ----------
        path, axes
            As for `History.plot`.

        Returns
        -------
        matplotlib.axes.Axes
            The axes.

        Raises
        ------
        ClnetError, InputError, FormatError
            As by `History.plot`.

        Examples
        --------
        >>> plan = clnet.Network.mlp([8, 4, 2], seed=0).compile("cpu", tune=False)
        >>> plan.plot().get_xlabel()
        'us, the spans alone; at the end the whole call'
        """
        from clnet.formats.pictures import drawn

        draw = self._explanation.draw if self._explanation else lambda axes: None
        return drawn(draw, path, axes)

    def __repr__(self) -> str:
        sizes = "-".join(str(n) for n in self.network.sizes)
        samples = counted(self.batch, "sample")
        return f"<Plan {sizes} {self._dtype}, {samples}, on {self.device.name}>"

    def _repr_html_(self) -> str:
        rows = [
            (
                ", ".join(dict.fromkeys(type(op).__name__ for op in step.span.ops)),
                step.variant.name,
                " ".join(f"{name}={value}" for name, value in step.config.items()),
                step.device.name if step.device else "host",
            )
            for step in self.steps
        ]
        return html_table(repr(self), ("ops", "variant", "config", "device"), rows)

    def __call__(self, x: Any, out: Any = None) -> Any:
        """Return the outputs for inputs.

        Parameters
        ----------
        x : array_like or pyopencl.array.Array, shape [batch, n_in] or [n_in]
            Inputs; one sample may come without the batch axis if the batch is 1.
            A device array must be contiguous, of the network's dtype, and made in the
            context of `queue`; it is read in place. The call is ordered with the
            array's events, and with the commands of its queue before and after; an
            array without a queue gets an event. Arrays of `queue` cost the host least.
        out : ndarray or pyopencl.array.Array, shape [batch, n_out], optional
            Receives the outputs, on the side of the inputs; None: a new array.

        Returns
        -------
        ndarray or pyopencl.array.Array, shape [batch, n_out] or [n_out]
            The outputs, on the side of the inputs. On the device they are valid for
            later commands of their queue, and the host does not wait for them. If the
            kernels' work-groups wait for each other, one call in 10 ms does wait: it is
            computed anew if they timed out. Outputs of others that timed out are NaN,
            and the next call that waits warns. On a CPU the calling thread may compute
            them itself, and first waits for the commands that its inputs depend on:
            no user event that the caller completes later may be among them.

        Raises
        ------
        InputError, DeviceError
            If a shape, type or context is wrong, or the device fails.
        """
        if type(x) is np.ndarray and out is None:
            direct = self.direct.get(x.shape)
            if direct is not None and (y := direct(x)) is not None:
                return y
        check_process()
        if type(x) is not np.ndarray and hasattr(x, "queue"):
            return self._call_on_device(x, out)
        if out is not None:
            self._check_out(out)
        if self.network.columns is not None:
            from clnet.formats.data_frame import named_inputs

            x, _ = named_inputs(self.network.columns, x)
        array = as_numbers("x", x, self._dtype)
        if array is not x and out is None and array.shape in self.direct:
            return self(array)
        rows = self._shaped(array)
        self._check_turn()
        try:
            with self._turn.lock:
                self._turn.busy = True
                try:
                    self._fill_inputs(rows)
                    self._executable.run()
                    y = self._outputs(out)
                finally:
                    self._turn.busy = False
        except self._session.errors as error:
            raise device_error(self.device, error) from error
        return y if array.ndim == 2 else y[0]

    def start(self, x: Array, parameters: Array | None = None) -> None:
        """Start a call without waiting for it; `finish` returns its outputs.

        Other calls wait until then. An interrupt (Ctrl-C) may come between the two:
        `cancel` ends the call, if there is one. A call of fewer samples than the plan's
        computes those of a call before as well, which are dropped.

        Parameters
        ----------
        x : ndarray, shape [samples, n_in]
            Inputs, at most as many samples as the plan is for.
        parameters : ndarray or None
            The network's `parameters` of some moment, so that several calls use the
            same ones; None: those of now.

        Raises
        ------
        InputError, DeviceError
            If the shape is wrong, or the device fails: the call is not started then.
        """
        check_process()
        few = x.ndim == 2 and 0 < len(x) < self.batch and x.shape[1] == self._shape[1]
        rows = x if few else self._shaped(x)
        self._check_turn()
        with device_errors(self._session):
            try:
                self._turn.begin()
                self._fill_inputs(rows)
                self._started_with = parameters
                self._started_rows = len(rows)
                self._executable.start(parameters)
            except BaseException:
                self._turn.end()
                raise

    def finish(self, out: Array | None = None) -> Array:
        """Wait for the started call, and return its outputs [samples, n_out].

        Parameters
        ----------
        out : ndarray, shape [samples, n_out], optional
            Receives the outputs; None: a new array.

        Raises
        ------
        InputError, DeviceError
            If `out` has other rows than the call, or the device fails.
        """
        with device_errors(self._session):
            try:
                self._executable.finish()
                if out is not None and len(out) != self._started_rows:
                    raise InputError(
                        f"out has {len(out)} rows, expected {self._started_rows}, as "
                        "many as the started call"
                    )
                y = self._outputs(out, self._started_with, self._started_rows)
                self._turn.end()
            except BaseException:  # Ctrl-C may come as the turn ends
                self._turn.end()
                raise
        return y

    def _fill_inputs(self, rows: Array) -> None:
        """Fill the inputs."""
        with self._executable.enqueuing:  # a direct call has ended, and none begins
            if len(rows) < self.batch:
                copy_rows(self._x[: len(rows)], rows)
            else:
                self._fill(rows)

    def cancel(self) -> None:
        """Wait for the call that this thread has started, if any, and end it."""
        if self._turn.is_mine:
            try:
                with suppress(*self._session.errors):
                    self._executable.finish()
            finally:
                self._turn.end()

    def _check_turn(self) -> None:
        """Raise InputError if this thread has started a call: it would wait forever."""
        if self._turn.is_mine:
            raise InputError("this plan has started a call: finish it before the next")

    @property
    def has_twin(self) -> bool:
        """Whether calls of this plan and its `twin` have overlapped."""
        return self._twin is not None

    def twin(self) -> Plan:
        """Return a second plan of the same steps, for double buffering.

        It has memory of its own, so that calls of the two overlap. It is this plan
        itself where memory runs out, or on a CPU, where overlap gains nothing.
        """
        if self._twin is None:
            self._twin = self
            if self.device.type != "cpu":
                with suppress(OutOfMemoryError):
                    self._twin = Plan(
                        self.network, self.device, self.batch, self.steps,
                        self._device_steps, self._fallback_steps, self._explanation,
                    )
        return self._twin

    def _outputs(
        self, out: Array | None, parameters: Array | None = None,
        rows: int | None = None,
    ) -> Array:
        """Return the outputs of the last run, recomputed by the fallback if it failed.

        These are its first `rows`; None: all.

        A run fails if work-groups that wait for each other do not run concurrently, for
        example while another program uses the device. The plan then stays with the
        fallback.
        """
        y = self._executable.result(self._output.name, out, rows)
        if not self._executable.result_timed_out(y):
            return y
        x = self._x.copy()
        self._fall_back(self.steps)
        self._x[...] = x
        self._executable.run(parameters)
        return self._executable.result(self._output.name, out, rows)

    def _fall_back(self, steps: Sequence[PlanStep]) -> None:
        """Replace the steps, of which some timed out, by the fallback, and warn."""
        names = ", ".join(
            step.variant.name for step in steps
            if step.device is not None and may_time_out(
                step.variant.launches(step.span, step.config, step.device)
            )
        )
        text = (
            f"{names} timed out on {self.device.name} (is another program using it?); "
            "this call and later ones are computed by a fallback"
        )
        warn(text)
        self._time_outs += f"\n\n{text}"
        self.steps = tuple(self._fallback_steps())
        self._device_steps = self._fallback_steps
        self._on_device = None
        self._prepare()

    def _shaped(self, x: Array) -> Array:
        if x.shape == self._shape:
            return x
        if x.ndim == 1 and self.batch == 1 and x.shape[0] == self._shape[1]:
            return x[np.newaxis]
        raise InputError(
            f"x has shape {list(x.shape)}, expected {list(self._shape)}: this plan is "
            f"for a batch of {self.batch}"
        )

    def _check_out(self, out: Any) -> None:
        shape = [self.batch, self._output.width]
        if not isinstance(out, np.ndarray):
            raise InputError(
                f"out is of type {type(out).__name__}, expected an ndarray, as x is one"
            )
        if list(out.shape) != shape or out.dtype != self._dtype:
            raise InputError(
                f"out is an array {list(out.shape)} of {out.dtype}, expected {shape} "
                f"of {self._dtype}"
            )
        if not out.flags.writeable:
            raise InputError("out is read-only, expected an array to write to")

    def _call_on_device(self, x: Any, out: Any) -> Any:
        if self._on_device is not None:
            y = self._on_device(x, out)
            if y is not None:
                return y
        context = self._session.context
        check_device_array("x", x, self._shape, self._dtype, context)
        shape = (self.batch, self._output.width)
        if out is not None:
            check_device_array("out", out, shape, self._dtype, context)
            if out.data == x.data:
                raise InputError("out is x's own memory, expected another array")
        with self._turn.lock, device_errors(self._session):
            self._check_turn()
            if out is None:
                out = self._device_call().new_output()
            if self._device_call().run(x, out):
                self._fall_back(self._device_steps())
                self._device_call().run(x, out)
            order_arrays_after(self.queue, x, out)
        return out if x.ndim == 2 else out.reshape(self._output.width)

    def _device_call(self) -> DeviceCall:
        """Return the call between device arrays, made at its first use."""
        if self._on_device is None:
            executable = Executable(
                self._session, self.network, self._device_steps(), [self._input],
                [self._output], on_device=True,
            )
            self._on_device = DeviceCall(
                executable, self._turn, self._input, self._output
            )
        return self._on_device
