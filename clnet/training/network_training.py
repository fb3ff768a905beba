"""`NetworkTraining`: a running training of one network, as callbacks see it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import all_finite
from clnet.errors import warn
from clnet.training.callbacks import progress_bar, stopping
from clnet.training.data_set import advice
from clnet.training.history import (
    History,
    TrainingState,
    diverged_state,
    state_after,
)
from clnet.training.saved import SavedTraining
from clnet.training.segments import Segments
from clnet.training.trainer import CALLED, DIVERGED, REACHED, RUNNING, Trainer, reason

if TYPE_CHECKING:
    from clnet.nn.model import Model
    from clnet.training.plans import Planning
    from clnet.training.trainer import Segment

Array = NDArray[Any]


class NetworkTraining:
    """A running training; made by `fit`."""

    def __init__(self, planning: Planning) -> None:
        setup = planning.setup
        self.network: Model = setup.network
        self.history: History = History(setup.state)
        self.stopped: str = ""
        if setup.saved is not None:
            self.history.go_on(setup.saved.measures)
            self.stopped = setup.saved.stopped
        self._setup = setup
        self._segments = Segments(
            planning, self.history, bool(setup.callbacks or setup.checkpoints)
        )
        self._caller = ""  # the name of the callback that has stopped the training
        self._bar: Any = None
        self._interrupted = False
        self._ended = False  # the device's memory may be another training's
        self.history.read_by(self._state_now)

    @property
    def validates(self) -> bool:
        """Whether a validation set is measured after each epoch."""
        return self._setup.validation is not None

    @property
    def parameters(self) -> Array:
        """The flat buffer, read from the device; assign to replace it."""
        return self.network.parameters if self._ended else self._segments.values()[0]

    @parameters.setter
    def parameters(self, values: Array) -> None:
        if self._ended:
            self.network.parameters = values
        else:
            self._segments.replace(values)

    def parameters_of(self, measure: str) -> Array | None:
        """Return the parameters that a measure of the last epoch is of; or None."""
        if measure.startswith("validation_"):
            return self.parameters
        # The epoch may be the checkpoint's.
        resumes = self.history.epochs.last == self._setup.state.epoch
        counted = self._setup.data.counts["samples"] is not None
        if resumes and (self._setup.steps == 1 or not counted):
            return None
        if self._setup.steps > 1:
            return self.parameters
        return self._segments.parameters_before()

    def _state_now(self) -> TrainingState:
        return self._state_of(*self._segments.values())

    def _state_of(self, parameters: Array, values: Array) -> TrainingState:
        """Return the state after the last epoch, which has these arrays."""
        start = self._setup.state
        epochs = self.history.epochs.last - start.epoch
        return state_after(start, epochs, self._setup.steps, parameters, values)

    def saved(self) -> SavedTraining:
        """Return the training as it is now, for a file."""
        from clnet.planning.training_planner import saved_plan

        plans = [
            saved_plan(plan, device) for one in self._segments.passes
            for plan, device in one.plans
        ]
        return SavedTraining(
            self.history.state, self.history.epochs.rows, self.stopped,
            self._settings, plans,
            [
                (type(callback).__name__, callback.state_dict())
                for callback in self._setup.callbacks if hasattr(callback, "state_dict")
            ],
        )

    @cached_property
    def _settings(self) -> dict[str, Any]:
        return self._setup.settings()

    def agree(self, caller: str = "") -> str:
        """Return rank 0's callback that stops; all take the parameters it replaced."""
        ranks = self._setup.ranks
        if ranks is None:
            return caller
        replaced = self._segments.replaced
        name, values = ranks.from_first(
            lambda: (caller, self._segments.values()[0] if replaced else None)
        )
        if values is not None and not ranks.first:
            self.parameters = values
        return name

    def update_network(self) -> None:
        """Copy the present parameters to the network."""
        self.network.parameters = self.parameters

    # The loop ---------------------------------------------------------------------

    def run(self) -> None:
        """Train epoch by epoch until a rule stops it; `history.stopped` names it."""
        history, setup, done = self.history, self._setup, len(self.history)
        if self.stopped:  # before the checkpoint was written
            history.stopped = self.stopped
            return
        zero = np.zeros(1, int)
        desired = setup.options.desired
        trainer = Trainer(
            self._segments, self._report, zero + setup.epochs, [desired], zero
        )
        try:
            with progress_bar(
                done + setup.epochs, "epochs", setup.progress, done
            ) as self._bar:
                trainer.run()
        except KeyboardInterrupt:
            if setup.ranks is not None:
                raise  # it ends all ranks
            self._interrupted = True
            trainer.codes[0] = RUNNING
        code = int(trainer.codes[0])
        if code != DIVERGED:
            history.stopped = reason(code, history, desired, self._caller)
            return
        epoch = history[-1]
        name = "mse" if np.isfinite(epoch.loss) else "loss"
        history.stopped = (
            f"training diverged: the {name} of epoch {epoch.number} is "
            f"{getattr(epoch, name)}; the last finite parameters are kept, "
            f"{advice(setup.data.t)}"
        )

    def _report(self, active: Array, segment: Segment, codes: Array) -> None:
        """Add epochs to the history, call all callbacks, and then the checkpoints."""
        history, setup = self.history, self._setup
        self._segments.report(segment)
        epoch = history[-1]
        if self._bar is not None:
            self._bar.update(len(history) - self._bar.n)
            self._bar.set_postfix(loss=f"{epoch.loss:.4g}", refresh=False)
        if codes[0] == DIVERGED:
            return
        self._caller = self.agree(stopping(setup.callbacks, self, epoch))
        if self._caller:
            codes[0] = CALLED
        if codes[0] in (CALLED, REACHED):  # which checkpoints tell
            desired = setup.options.desired
            self.stopped = reason(codes[0], history, desired, self._caller)
            history.stopped = self.stopped
        for checkpoint in setup.checkpoints:
            checkpoint(self, epoch)

    # The end ----------------------------------------------------------------------

    def finish(self) -> None:
        """Give the network the trained parameters, and the history its state.

        Warns
        -----
        ClnetWarning
            If they are not finite: the network gets the last finite ones.
        """
        history, segments = self.history, self._segments
        parameters, values = segments.finish()
        last = history.epochs.last
        diverged = bool(history.epochs) and not history[-1].training.finite
        if diverged and segments.replaced:
            pass  # early stopping has restored the best ones
        elif diverged:  # the last epoch began with parameters that gave this loss
            parameters = segments.finite_parameters(last - 2)
        elif not all_finite(parameters):
            diverged = True
            parameters = segments.finite_parameters(last - 1)
            history.stopped = (
                f"training diverged: epoch {last} left parameters that are not "
                f"finite; the last finite ones are kept, {advice(self._setup.data.t)}"
            )
        elif not all_finite(values):
            diverged = True
            history.stopped = diverged_state(last)
        history.diverged = diverged
        warning = history.stopped if diverged else history.tell_validation()
        if warning:
            warn(warning)
        self.network.parameters = parameters
        history.state = self._state_of(self.network.parameters.copy(), values)
        self._ended = True
        if not self._interrupted:
            segments.keep()
