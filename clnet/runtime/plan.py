"""Plans: a network made ready for a device and a batch, to be called.

Nothing here chooses: a plan's steps come from `clnet.planning.planner`.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import as_numbers
from clnet.errors import ClnetWarning, InputError, OutOfMemoryError
from clnet.ir.lowering import lower
from clnet.nn.model import Model
from clnet.opencl.device import Device
from clnet.opencl.launch import may_fail
from clnet.opencl.memory import copy_rows
from clnet.opencl.session import failed, session
from clnet.runtime.binding import Step
from clnet.runtime.executable import Executable

Array = NDArray[Any]

CHUNK = 8192  # samples a call of `predict` for each device, on average at most


class Plan:
    """A network compiled for a device and a batch size: call it.

    Not made directly: `Network.compile` returns one.

    Parameters
    ----------
    network : Model
        What to run; when its parameters are replaced, the next call takes the new ones.
    device : Device
        Where.
    batch : int
        Samples a call.
    steps, device_steps : sequence of Step
        The cover for host arrays, and the one for device arrays, which has no host
        steps.
    spare_steps : callable
        Returns a cover whose kernels do not wait for each other.
    explanation : str
        Why these steps.

    Attributes
    ----------
    turns : threading.Lock
        Held by who calls this plan and its `double` in turns.
    """

    def __init__(
        self,
        network: Model,
        device: Device,
        batch: int,
        steps: Sequence[Step],
        device_steps: Callable[[], Sequence[Step]],
        spare_steps: Callable[[], Sequence[Step]],
        explanation: str,
    ) -> None:
        self.network = network
        self.device = device
        self.batch = batch
        self.steps = tuple(steps)
        self._explanation = explanation
        self._session = session(device)
        self._device_steps = device_steps
        self._spare_steps = spare_steps
        self._on_device: Executable | None = None
        self._lock = threading.Lock()
        self._double: Plan | None = None
        self.turns = threading.Lock()
        program = lower(network)
        self._input, self._output = program.input, program.output
        self._dtype = np.dtype(network.dtype)
        self._shape = (batch, program.input.width)
        self._prepare()

    def _prepare(self) -> None:
        self._executable = Executable(
            self._session, self.network, self.steps, [self._input], [self._output]
        )
        self._x = self._executable.x[self._input.name]

    @property
    def queue(self) -> Any:
        """The `pyopencl.CommandQueue` of the device: make device arrays on it."""
        return self._session.queue

    def explain(self) -> str:
        """Return the chosen cover, the losers with their times, and the refusals."""
        return self._explanation

    def __call__(self, x: Any, out: Any = None) -> Any:
        """Return the outputs for inputs.

        Parameters
        ----------
        x : array_like or pyopencl.array.Array, shape [batch, n_in] or [n_in]
            Inputs; one sample may come without the batch axis if the batch is 1.
            A device array must be contiguous, of the network's dtype, and made in the
            context of `queue`; it is read in place. Commands of its own queue before
            and after the call are ordered with it, and so are its events; one without a
            queue gets an event.
        out : ndarray or pyopencl.array.Array, shape [batch, n_out], optional
            Where the result goes, on the side where the inputs are; without it a new
            array is made.

        Returns
        -------
        ndarray or pyopencl.array.Array, shape [batch, n_out] or [n_out]
            The outputs, on the side where the inputs were. On the device they may not
            be there yet: later commands of their queue find them.

        Raises
        ------
        InputError, DeviceError
            If a shape, type or context is wrong, or the device fails.
        """
        if type(x) is not np.ndarray or x.dtype is not self._dtype or out is not None:
            if hasattr(x, "queue"):
                return self._call_on_device(x, out)
            if out is not None:
                self._check_out(out)
            x = as_numbers("x", x, self._dtype.name)
        rank = x.ndim
        if x.shape != self._shape:
            x = self._shaped(x)
        with self._lock:
            copy_rows(self._x, x)
            try:
                self._executable.run()
                y = self._outputs(out)
            except self._session.errors as error:
                raise failed(self.device, error) from error
        return y if rank == 2 else y[0]

    def start(self, x: Array) -> None:
        """Begin a call, whose outputs `finish` returns: the host is free meanwhile.

        Until then no other call can begin.

        Parameters
        ----------
        x : ndarray, shape [batch, n_in]
            Inputs.

        Raises
        ------
        InputError, DeviceError
            If the shape is wrong, or the device fails: nothing has begun then.
        """
        if x.shape != self._shape:
            x = self._shaped(x)
        self._lock.acquire()
        try:
            copy_rows(self._x, x)
            self._executable.start()
        except BaseException as error:
            self._lock.release()
            if isinstance(error, self._session.errors):
                raise failed(self.device, error) from error
            raise

    def finish(self, out: Array | None = None) -> Array:
        """Wait for the call that was begun, and return its outputs [batch, n_out].

        Parameters
        ----------
        out : ndarray, shape [batch, n_out], optional
            Where they go; without it a new array is made.

        Raises
        ------
        DeviceError
            If the device fails.
        """
        try:
            self._executable.finish()
            return self._outputs(out)
        except self._session.errors as error:
            raise failed(self.device, error) from error
        finally:
            self._lock.release()

    def double(self) -> Plan:
        """Return a plan of the same steps whose calls may run beside this one's.

        It has memory of its own. Where that is not there, or the device is the host's
        CPU, which would only be kept from computing, it is this plan itself.
        """
        if self._double is None:
            self._double = self
            if self.device.type != "cpu":
                with suppress(OutOfMemoryError):
                    self._double = Plan(
                        self.network, self.device, self.batch, self.steps,
                        self._device_steps, self._spare_steps, self._explanation,
                    )
        return self._double

    def _outputs(self, out: Array | None) -> Array:
        """Return the outputs of the last run; if it failed, of one by the spare steps.

        It fails where kernels wait for others that do not run beside them after all, as
        where several programs share the device. The spare steps are then kept.
        """
        y = self._executable.result(self._output.name, out)
        if not self._executable.failed(y):
            return y
        x = self._x.copy()
        self._fall_back(self.steps)
        self._x[...] = x
        self._executable.run()
        return self._executable.result(self._output.name, out)

    def _fall_back(self, steps: Sequence[Step]) -> None:
        """Go on with the spare steps, as kernels of these have failed, and warn."""
        names = ", ".join(
            step.variant.name for step in steps
            if step.device is not None and may_fail(
                step.variant.launches(step.span, step.config, step.device)
            )
        )
        text = (
            f"{names} timed out on {self.device.name}, which may have other work: "
            "the plan goes on, and has computed this call again, without it"
        )
        warnings.warn(text, ClnetWarning, stacklevel=4)
        self._explanation += f"\n\n{text}"
        self.steps = tuple(self._spare_steps())
        self._device_steps = self._spare_steps
        self._on_device = None
        self._prepare()

    def _shaped(self, x: Array) -> Array:
        if x.ndim == 1 and self.batch == 1 and x.shape[0] == self._shape[1]:
            return x[np.newaxis]
        raise InputError(
            f"x has shape {list(x.shape)}, expected {list(self._shape)}: this plan is "
            f"for a batch of {self.batch}"
        )

    def _check_out(self, out: Any) -> None:
        wanted = [self.batch, self._output.width]
        if not isinstance(out, np.ndarray):
            raise InputError(
                f"out is of type {type(out).__name__}, expected an ndarray, as x is one"
            )
        if list(out.shape) != wanted or out.dtype != self._dtype:
            raise InputError(
                f"out is an array {list(out.shape)} of {out.dtype}, expected {wanted} "
                f"of {self._dtype}"
            )
        if not out.flags.writeable:
            raise InputError("out is read-only, expected an array to write to")

    def _call_on_device(self, x: Any, out: Any) -> Any:
        import pyopencl.array

        self._check_array("x", x, self._input.width)
        if out is not None:
            self._check_array("out", out, self._output.width)
            if out.data == x.data:
                raise InputError("out is x's own memory, expected another array")
        with self._lock:
            try:
                if out is None:
                    out = pyopencl.array.empty(
                        self.queue, (self.batch, self._output.width), self._dtype
                    )
                if self._run_on_device(x, out).timed_out():
                    self._fall_back(self._device_steps())
                    self._run_on_device(x, out)
                self._give_back_arrays(x, out)
            except self._session.errors as error:
                raise failed(self.device, error) from error
        return out if x.ndim == 2 else out.reshape(self._output.width)

    def _run_on_device(self, x: Any, out: Any) -> Executable:
        """Enqueue a call between device arrays, and return the executable."""
        if self._on_device is None:
            self._on_device = Executable(
                self._session, self.network, self._device_steps(), [self._input],
                [self._output], on_device=True,
            )
        self._on_device.bind(self._input.name, x.data)
        self._on_device.bind(self._output.name, out.data)
        self._wait_for_arrays(x, out)
        self._on_device.run()
        return self._on_device

    def _wait_for_arrays(self, *arrays: Any) -> None:
        """Let the next commands wait for the events and queues of arrays."""
        import pyopencl as cl

        events = [
            event for array in arrays for event in array.events
            if event.command_queue != self.queue
        ]
        for queue in {event.command_queue for event in events} - {None}:
            queue.flush()
        events += [_marker(queue) for queue in self._other_queues(arrays)]
        if events:
            cl.enqueue_barrier(self.queue, wait_for=events)

    def _give_back_arrays(self, *arrays: Any) -> None:
        """Let later commands of arrays' queues wait for this call's."""
        import pyopencl as cl

        others = [array for array in arrays if array.queue != self.queue]
        if not others:
            return
        done = _marker(self.queue)
        for array in others:
            array.add_event(done)
        for queue in self._other_queues(others):
            if queue.device == self.queue.device:
                cl.enqueue_barrier(queue, wait_for=[done])
            else:  # PoCL 3.0's calling thread would wait there, holding a lock
                done.wait()

    def _other_queues(self, arrays: Iterable[Any]) -> set[Any]:
        """Return the queues of arrays but the plan's; an array may have none."""
        return {array.queue for array in arrays} - {None, self.queue}

    def _check_array(self, what: str, array: Any, width: int) -> None:
        import pyopencl.array

        if not isinstance(array, pyopencl.array.Array):
            raise InputError(
                f"{what} is of type {type(array).__name__}, expected a device array "
                "(pyopencl.array.Array)"
            )
        shapes = [(self.batch, width)] + ([(width,)] if self.batch == 1 else [])
        if array.shape not in shapes or array.dtype != self._dtype:
            raise InputError(
                f"{what} is a device array {list(array.shape)} of {array.dtype}, "
                f"expected {[self.batch, width]} of {self._dtype}"
            )
        if not array.flags.c_contiguous or array.offset:
            raise InputError(
                f"{what} is a device array that is not contiguous from its buffer's "
                "start: pass a copy"
            )
        if array.context != self._session.context:
            raise InputError(
                f"{what} lives in another OpenCL context than the plan: make it on "
                "plan.queue"
            )


def _marker(queue: Any) -> Any:
    """Return an event of all commands of a queue so far, on which others may wait."""
    import pyopencl as cl

    event = cl.enqueue_marker(queue)
    queue.flush()  # else the wait of another queue might have no end
    return event
