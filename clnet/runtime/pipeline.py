"""Pipelines: calls of a plan, each started before the one before is waited for."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

if TYPE_CHECKING:
    from clnet.runtime.data_parallel import ParallelPlan
    from clnet.runtime.plan import Plan

Array = NDArray[Any]


class _Call(NamedTuple):
    """A started call: its plan, the array for its outputs, and who waits for them."""

    plan: Plan | ParallelPlan
    out: Array | None
    answer: Future[Array]


class Pipeline:
    """Calls of a plan and its twin, in order, as a context that ends them."""

    def __init__(
        self, plan: Plan | ParallelPlan, parameters: Array, thread: bool
    ) -> None:
        self._plan, self._parameters = plan, parameters
        self._thread = ThreadPoolExecutor(1, "clnet-device") if thread else None
        self._calls = 0
        self._ended = False
        self._started: list[_Call] = []  # not answered yet: two at most
        self.batch: int = plan.batch
        self.ahead: int = 2 if thread else 1

    def call(
        self, x: Array, out: Array | None, other: Plan | ParallelPlan | None = None
    ) -> Future[Array]:
        """Start a call; its answer comes with the next one, or by `finish`."""
        own = self._plan.twin() if self._calls % 2 else self._plan
        self._calls += 1
        call = _Call(other or own, out, Future())
        self._do(call, x)
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

    def _do(self, call: _Call | None, x: Array | None = None) -> None:
        if self._thread is None:
            self._step(call, x)
        else:
            self._thread.submit(self._step, call, x)

    def _step(self, call: _Call | None, x: Array | None) -> None:
        """Start a call, if there is one, and answer the one before."""
        if self._ended:
            return
        before = self._started[:]  # one at most
        if before and call is not None and before[0].plan is call.plan:
            self._answer(before.pop())
        if call is not None and x is not None:
            self._started.append(call)  # Ctrl-C may come as it has started
            try:
                call.plan.start(x, self._parameters)
            except BaseException as error:
                self._fail(call, error)
        for one in before:
            self._answer(one)

    def _answer(self, call: _Call) -> None:
        try:
            answer = call.plan.finish(call.out)
        except BaseException as error:
            self._fail(call, error)
        else:
            self._remove(call)
            call.answer.set_result(answer)

    def _fail(self, call: _Call, error: BaseException) -> None:
        call.plan.cancel()
        self._remove(call)
        call.answer.set_exception(error)

    def _remove(self, call: _Call) -> None:
        self._started = [one for one in self._started if one is not call]

    def _cancel(self) -> None:
        for call in self._started:
            call.plan.cancel()
