"""Pipelines: calls of a plan, each started before the one before is waited for."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, NamedTuple

from numpy.typing import NDArray

Array = NDArray[Any]


class _StartedCall(NamedTuple):
    """A call that is started, or will be."""

    plan: Any  # With the methods of `Plan`, as those below
    x: Any
    parameters: Array
    out: Array | None
    answer: Future[Array]


class Pipeline:
    """Calls of a plan and its twin, in order, as a context that ends them."""

    def __init__(self, plan: Any, threaded: bool) -> None:
        self._plan = plan
        self._thread = ThreadPoolExecutor(1, "clnet-device") if threaded else None
        self._calls = 0
        self._ended = False
        self._started: list[_StartedCall] = []  # not answered yet: two at most
        self.ahead: int = 2 if threaded else 1

    def call(self, x: Any, parameters: Array, out: Array | None) -> Future[Array]:
        """Start a call; the next one or `finish` answers."""
        plan = self._plan.twin() if self._calls % 2 else self._plan
        self._calls += 1
        call = _StartedCall(plan, x, parameters, out, Future())
        self._do(call)
        return call.answer

    def finish(self) -> None:
        """Answer the last call."""
        self._do(None)

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the calls that are not answered."""
        self._ended = True
        if self._thread is None:
            self._cancel()
            return
        self._thread.submit(self._cancel)
        self._thread.shutdown()

    def _do(self, call: _StartedCall | None) -> None:
        if self._thread is None:
            self._step(call)
        else:
            self._thread.submit(self._step, call)

    def _step(self, call: _StartedCall | None) -> None:
        """Start a call, if there is one, and answer the one before."""
        if self._ended:
            return
        before = self._started[:]  # one at most
        if before and call is not None and before[0].plan is call.plan:
            self._answer(before.pop())
        if call is not None:
            self._started.append(call)  # Ctrl-C may come as it has started
            try:
                call.plan.start(call.x, call.parameters)
            except BaseException as error:
                self._fail(call, error)
        for earlier in before:
            self._answer(earlier)

    def _answer(self, call: _StartedCall) -> None:
        try:
            y = call.plan.finish(call.out)
        except BaseException as error:
            self._fail(call, error)
        else:
            self._remove(call)
            call.answer.set_result(y)

    def _fail(self, call: _StartedCall, error: BaseException) -> None:
        call.plan.cancel()
        self._remove(call)
        call.answer.set_exception(error)

    def _remove(self, call: _StartedCall) -> None:
        self._started = [started for started in self._started if started is not call]

    def _cancel(self) -> None:
        for call in self._started:
            call.plan.cancel()
