"""`fit` by cascade training: outputs, candidates, one more neuron, and so on.

The rules are FANN's, of its cascade2: scores and the weights of a new neuron here, the
others in `clnet.nn.cascade`. A training of candidates is a few launches, each of
many epochs of all.
"""

from __future__ import annotations

import time
from dataclasses import astuple, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import as_whole, is_many
from clnet.errors import InputError, counted, quoted, warn
from clnet.ir import cascade as oracle
from clnet.nn.activations import activation
from clnet.nn.cascade import (
    Cascade,
    Row,
    Shortcut,
    Stagnation,
    cascade_of,
    initial_weights,
    is_cascade,
    network_neuron,
)
from clnet.nn.defaults import MAX_NEURONS
from clnet.nn.fann_parameters import FannParameters, bit_fail_limit
from clnet.nn.layers import Dense
from clnet.nn.optimisers import CASCADE
from clnet.nn.scaling import scaling_to_apply
from clnet.opencl.discovery import device_list
from clnet.opencl.session import device_errors, session
from clnet.training.callbacks import end, progress_bar, start, stopping
from clnet.training.cascade.launches import Parts
from clnet.training.cascade.trial import bound
from clnet.training.data_set import DataSet, warn_of_classes, warn_of_reach
from clnet.training.history import (
    INTERRUPTED,
    History,
    Measures,
    TrainingState,
    finite_epochs,
)
from clnet.training.options import DesiredError, desired_error, loss_of
from clnet.training.setup import checked_callbacks, chosen_seed, validation_of
from clnet.training.streaming import any_set
from clnet.training.trainer import ALL_DONE, CALLED, DIVERGED, Segment, Trainer
from clnet.variants.cascade.cascade import CascadeSamples, NeuronsTraining

if TYPE_CHECKING:
    from clnet.nn.losses import LossFunction
    from clnet.nn.model import Model
    from clnet.opencl.device import Device
    from clnet.opencl.session import Session
    from clnet.training.callbacks import Callback, Checkpoint
    from clnet.training.fit_options import FitOptions

Array = NDArray[Any]

TAKEN = {  # arguments of `Network.fit`; others must have their defaults
    "x", "t", "optimiser", "loss", "max_neurons", "validation", "callbacks", "seed",
    "device", "desired_error", "stop", "progress", "scale",
}
LOSSES = ("mse", "fann_linear", "fann_tanh")  # of squared errors, as candidates'


def fit_cascade(network: Model, options: FitOptions) -> History:
    """Train a network by cascade training, which grows; see `Network.fit`."""
    assert is_cascade(options.optimiser)
    cascade, max_neurons = cascade_of(network, options.optimiser), options.max_neurons
    _refuse(options)
    shortcut = Shortcut.of(network)
    neurons = as_whole(
        "max_neurons", MAX_NEURONS if max_neurons is None else max_neurons, 0
    )
    scaling = scaling_to_apply(network.scaling, options.scale)
    data, classes, columns = any_set(
        network, (options.x, options.t, None), network.classes, network.columns,
        scaling, None,
    )
    other = None
    if options.validation is not None:
        other, classes, _ = any_set(
            network, validation_of(options.validation), classes, columns, scaling, None,
            "validation ",
        )
    for samples in (data, other):
        if samples is not None and samples.weighted:
            raise InputError(
                "cascade training takes no sample_weight: a candidate's score is a "
                "plain sum"
            )
    assert isinstance(data, DataSet) and (other is None or isinstance(other, DataSet))
    loss = loss_of(network, CASCADE, options.loss)
    if loss.name not in LOSSES:
        raise InputError(
            f"candidates are judged by squared errors: cascade training takes the loss "
            f"{', '.join(LOSSES[:-1])} or {LOSSES[-1]}, not {loss.name}"
        )
    device, *more = device_list(options.device)
    if more:
        raise InputError("cascade training takes one device, not several")
    callbacks, checkpoints = checked_callbacks(options.callbacks)
    seed = chosen_seed(options.seed)
    warn_of_classes(network, options.t, loss)
    warn_of_reach(
        network,
        [activation(neuron.activation).limits for neuron in
         shortcut.output.neurons(network.fann_compatible)], data.t,
    )
    network.classes, network.columns = classes, columns
    training = CascadeTraining(
        network, shortcut, cascade, loss, data, other, neurons, seed, device,
        desired_error(network, options.desired_error, options.stop),
    )
    with device_errors(training.session):
        training.fit(callbacks, checkpoints, bool(options.progress))
    return training.history


def _refuse(options: FitOptions) -> None:
    """Raise InputError for an argument of `fit` that cascade training does not take."""
    for field in fields(options):
        name, default = field.name, field.default
        value = getattr(options, name)
        if name in TAKEN or value is default:
            continue
        if default is None or is_many(value) or value != default:
            instead = {
                "epochs": ": give max_neurons, and epochs of each training to Cascade",
                "state": ": fit goes on from the network as it is",
                "resume": ": fit goes on from the network as it is",
                "devices": ": give device",
            }.get(name, "")
            raise InputError(
                f"cascade training takes no {name}, found {quoted(value)}{instead}"
            )


class _OutputsRule:
    """Ends a training of the outputs; records are of those before a step."""

    measures: Measures  # Of the last epoch
    squares: float  # Its squared errors

    def __init__(self, cascade: Cascade, samples: int, goal: DesiredError) -> None:
        self._samples, self._goal = samples, goal
        self._stagnation = Stagnation(
            cascade.output_change_fraction, cascade.output_stagnation_epochs,
            cascade.min_out_epochs, cascade.max_out_epochs,
        )
        self.earliest = self._stagnation.earliest
        self._first: float | None = None  # the error of the first epoch

    def last(self, done: int, records: Array) -> int | None:
        """Return the number of the last epoch among these, if there is one."""
        n, outputs = self._samples, records.shape[1]
        sums = records.sum(axis=1, dtype=np.float64)
        rows = sums / [n, n * outputs, 1]
        met = self._goal.reached_by(rows) | ~finite_epochs(rows)
        last = int(met.argmax()) + 1 if met.any() else None
        for epoch, mse in enumerate(rows[:last, 1].tolist(), done):
            if self._first is None:
                self._first = mse
            if epoch and self._stagnation.ends(epoch, self._first - mse, falling=True):
                last = epoch - done + 1
                break
        at = -1 if last is None else last - 1
        loss, mse, fails = rows[at].tolist()
        self.measures = Measures(loss, mse, int(fails))
        self.squares = float(sums[at, 1])
        return last


class _CandidatesRule:
    """Ends a training of candidates, by the squared error that the best one cancels."""

    best: int  # The number of the best candidate

    def __init__(self, cascade: Cascade, squares: float) -> None:
        self._squares, self._limit = squares, cascade.candidate_limit * squares
        self._stagnation = Stagnation(
            cascade.candidate_change_fraction, cascade.candidate_stagnation_epochs,
            cascade.min_cand_epochs, cascade.max_cand_epochs,
        )
        self.earliest = self._stagnation.earliest

    def last(self, done: int, records: Array) -> int | None:
        """Return the number of the last epoch among these, if there is one."""
        scores = self._squares - records[:, :, 1].astype(float)
        scores[np.isnan(scores)] = -np.inf
        for epoch, (best, score) in enumerate(zip(
            scores.argmax(axis=1).tolist(), scores.max(axis=1).tolist(), strict=True
        ), done):
            self.best = best
            if score > self._limit or self._stagnation.ends(epoch, score):
                return epoch - done + 1
        return None


class CascadeTraining:
    """A running cascade training, as callbacks see it.

    An epoch of its history is the training of the outputs of one more neuron.
    """

    each_epoch = True
    ahead = False  # no neuron is added before the last one is reported
    _squares: float  # The squared errors that candidates are to cancel
    _mse: float  # Of the last training of the outputs
    _reached: bool  # Whether that has the desired error

    def __init__(
        self, network: Model, shortcut: Shortcut, cascade: Cascade, loss: LossFunction,
        data: DataSet, validation: DataSet | None, max_neurons: int, seed: int,
        device: Device, desired: DesiredError | None,
    ) -> None:
        self._model, self._shortcut, self._cascade = network, shortcut, cascade
        self._loss, self._data, self._validation = loss, data, validation
        self._max_neurons, self._seed = max_neurons, seed
        self._desired, self._device = desired, device
        self._rng = np.random.default_rng(seed)
        self._steps = self._candidate_epochs = 0
        self._networks: dict[int, Shortcut] = {}  # by the size of the parameters
        self._stored: tuple[Shortcut, Model] | None = None
        rule, fann = cascade.update, network.fann_compatible
        self.history: History = History(TrainingState(
            repr(cascade), 0, 0, seed, network.parameters.copy(),
            rule.initial_state(network.layout.size, network.dtype), network.formats,
        ))
        outputs = shortcut.output.neurons(fann)
        limit = bit_fail_limit(network.fann)
        self._limit = limit
        epochs = max(cascade.max_out_epochs, cascade.max_cand_epochs)
        rows = shortcut.read + max_neurons
        samples = CascadeSamples("training", len(data), rows, network.n_out)
        sets = [samples]
        if validation is not None:
            sets.append(replace(samples, name="validation", samples=len(validation)))
        self._halved = fann or loss.fann
        trained = NeuronsTraining(
            samples, outputs, False, rule, loss.name, limit, epochs, self._halved, fann
        )
        candidates = replace(trained, neurons=cascade.neurons(), candidates=True)
        self._added = tuple(
            network_neuron(one.activation, one.steepness, fann)
            for one in candidates.neurons
        )
        self.session: Session = session(device)
        with device_errors(self.session):
            parts = Parts(tuple(sets), trained, candidates, self._added)
            self._bound = bound(parts, self.session)
            for number, one in enumerate(filter(None, (data, validation))):
                self._bound.upload(number, self._read(one.x), one.t.T)

    @property
    def network(self) -> Model:
        """The network as it is now."""
        if self._stored is None or self._stored[0] is not self._shortcut:
            self._stored = self._shortcut, self._shortcut.network(self._model)
        return self._stored[1]

    @property
    def parameters(self) -> Array:
        """The network's parameters; assigning earlier ones takes its neurons back."""
        found = self.network.parameters.copy()
        self._networks[found.size] = self._shortcut
        return found

    @parameters.setter
    def parameters(self, values: Array) -> None:
        earlier = self._networks[values.size].network(self._model)
        earlier.parameters = values
        self._shortcut = Shortcut.of(earlier)

    def parameters_of(self, measure: str) -> Array:
        """Return the network's parameters, which all measures are of."""
        return self.parameters

    @property
    def validates(self) -> bool:
        """Whether a validation set is measured."""
        return self._validation is not None

    def update_network(self) -> None:
        """Let the network that is trained be the present one."""
        self._model.become(self.network)

    def saved(self) -> None:
        """Return nothing: between two neurons the network is all there is to keep."""

    def fit(
        self, callbacks: list[Callback], checkpoints: list[Checkpoint], progress: bool
    ) -> None:
        """Train, and let the network be the grown one; `history.stopped` tells why."""
        self._callbacks = [*callbacks, *checkpoints]
        start(self._callbacks, self)
        zero = np.zeros(1, int)
        # Reaching the desired error takes more than an epoch's measures.
        trainer = Trainer(
            self, self._report, zero + self._max_neurons + 1, [None], zero
        )
        try:
            with progress_bar(self._max_neurons, "neurons", progress) as self._bar:
                trainer.run()
            self.history.stopped = self._reason(int(trainer.codes[0]))
            if self.history.diverged:
                warn(self.history.stopped)
        except KeyboardInterrupt:
            count = len(self.history)
            self.history.stopped = (
                f"{INTERRUPTED} after {counted(count, 'training')} of the outputs; the "
                "network of the last one is kept"
            )
        except Exception:  # a callback's: the network gets the neurons so far
            self.update_network()
            raise
        end((*checkpoints, *callbacks), self)
        changes = self._cascade.as_fann()
        if self._loss.fann:
            changes["train_error_function"] = self._loss.name.removeprefix("fann_")
        self._model.fann = replace(self._model.fann or FannParameters(), **changes)
        self.update_network()
        self._end_history()
        self._bound.keep()

    # The loop ---------------------------------------------------------------------

    @property
    def done(self) -> Array:
        """The epochs of the history [1]."""
        return np.array([len(self.history)])

    def run(self, active: Array, left: Array) -> Segment:
        """Add a neuron, but before the first epoch; train the outputs; measure them."""
        before = self._shortcut
        try:
            if self.history:
                self._add_neuron(self._squares)
            begin = time.perf_counter()
            measures = self._train(last=left[0] == 1)
            checked = self._validated() if measures.finite else None
            seconds = time.perf_counter() - begin
        except BaseException:
            self._shortcut = before
            raise
        if not measures.finite:
            self._shortcut = before
        return Segment(
            np.ones(1, int), np.array([[astuple(measures)]]),
            None if checked is None else np.array([[astuple(checked)]]), seconds,
        )

    def _train(self, *, last: bool) -> Measures:
        """Train the outputs; return their measures, and note if they reach the goal."""
        desired = None if last else self._desired
        trained = self._train_outputs(desired)
        self._reached = desired is not None and desired.met_by(trained.measures)
        earlier = self._bound.outputs.weights(self._shortcut.read)
        if self._reached:
            trained = self._train_outputs(None)
        measures = trained.measures
        if measures.finite:
            # Records are of the weights before the last step.
            measures = self._accept()
        if self._reached and desired is not None:
            # Training on until the error falls no more may end above the goal.
            if not desired.met_by(measures):
                self._bound.outputs.start(earlier)
                measures = self._accept()
                trained.squares = measures.mse * self._data.t.size
            self._reached = desired.met_by(measures)
        self._squares, self._mse = trained.squares, measures.mse
        return measures

    def _report(self, active: Array, segment: Segment, codes: Array) -> None:
        """Add an epoch to the history unless it diverged, and call all callbacks."""
        if codes[0] == DIVERGED:
            return
        segment.log(self.history)
        epoch = self.history[-1]
        if self._bar is not None:
            self._bar.update(self._neurons - self._bar.n)
            self._bar.set_postfix(mse=f"{epoch.mse:.4g}", refresh=False)
        self._caller = stopping(self._callbacks, self, epoch)
        if self._reached or self._caller:
            codes[0] = CALLED

    @property
    def _neurons(self) -> int:
        """Neurons that were added before the last epoch."""
        return max(0, len(self.history) - 1)

    def _reason(self, code: int) -> str:
        """Return why the training has ended, by a code of `Trainer`."""
        if code == DIVERGED:
            self.history.diverged = True
            return (
                f"training diverged with {counted(len(self.history), 'neuron')}: the "
                f"mse is {self._mse}; the network before is kept"
            )
        neurons = counted(self._neurons, "neuron")
        if code == ALL_DONE:
            return f"max_neurons {self._neurons} is reached"
        if code == CALLED and self._reached:
            assert self._desired is not None
            return (
                f"{self._desired.measure} is at most {self._desired.most:g} with "
                f"{neurons}"
            )
        return f"{self._caller} stopped after {neurons}"

    def _train_outputs(self, desired: DesiredError | None) -> _OutputsRule:
        """Train the outputs; None: as long as their error falls."""
        cascade, outputs = self._cascade, self._bound.outputs
        goal = DesiredError("mse", 0.0) if desired is None else desired
        if desired is None and self._desired is not None:
            goal = replace(self._desired, most=0.0)
        rule = _OutputsRule(cascade, len(self._data), goal)
        outputs.start(self._shortcut.output.weights)
        self._steps += outputs.train(
            self._shortcut.read, cascade.max_out_epochs, rule,
            error=0.0, steps=self._steps, seed=self._seed % 2**32,
        )
        return rule

    def _accept(self) -> Measures:
        """Take the outputs' weights, and return the measures of their errors."""
        read = self._shortcut.read
        for errors in self._bound.errors:
            for output in range(self._model.n_out):
                errors(output, read, output)
        self._shortcut = self._shortcut.with_output(self._bound.outputs.weights(read))
        return self._measured(0, self._data.t)

    def _add_neuron(self, squares: float) -> None:
        """Train candidates, and add the best one."""
        cascade, read, outputs = self._cascade, self._shortcut.read, self._model.n_out
        rule = _CandidatesRule(cascade, squares)
        self._bound.candidates.start(initial_weights(
            self._rng, cascade.candidates, self._model.n_in, read, outputs
        ))
        mse = squares / (len(self._data) * outputs)
        self._candidate_epochs += self._bound.candidates.train(
            read, cascade.max_cand_epochs, rule,
            error=mse, steps=self._steps,
            seed=(self._seed + 1 + self._candidate_epochs) % 2**32,
        )
        for install in self._bound.install:
            install(rule.best, read, read)
        weights = self._bound.candidates.weights(read + outputs)[rule.best]
        neuron = self._added[rule.best]
        to_outputs = weights[read:, np.newaxis] * np.float32(cascade.weight_multiplier)
        self._shortcut = self._shortcut.grown(
            Row(
                Dense(1, neuron.activation, neuron.steepness, initialiser="fann"),
                weights[np.newaxis, :read],
            ),
            np.concatenate([self._shortcut.output.weights, to_outputs], axis=1),
        )

    def _validated(self) -> Measures | None:
        """Return the measures of the validation set."""
        if self._validation is None:
            return None
        return self._measured(1, self._validation.t)

    def _measured(self, number: int, targets: Array) -> Measures:
        """Return the measures of the accepted outputs on a set of samples."""
        errors = self._bound.residuals(number).T.astype(float)
        fann = self._halved
        half = np.array([
            0.5 if fann and activation(one.activation).symmetric else 1.0
            for one in self._shortcut.output.neurons(fann)
        ])
        t = targets.astype(float)
        values = self._loss.value(t - errors / half, t, half).sum(axis=1)
        if self._loss.mean:
            values = values / t.shape[1]
        fails = int(np.count_nonzero(np.abs(errors) >= self._limit))
        return Measures(float(values.mean()), float((errors**2).mean()), fails)

    def _read(self, x: Array) -> Array:
        """Return the values [read, n] that the outputs read for inputs x [n, n_in]."""
        found = np.concatenate([x, np.ones((len(x), 1), x.dtype)], axis=1).T
        for row in self._shortcut.hidden:
            neurons = row.neurons(self._model.fann_compatible)
            values = [
                oracle.value(neuron, w @ found)
                for neuron, w in zip(neurons, row.weights, strict=True)
            ]
            found = np.concatenate([found, np.stack(values)])
        return found

    def _end_history(self) -> None:
        """Complete the history."""
        parameters = self._model.parameters.copy()
        self.history.state = replace(
            self.history.state, epoch=len(self.history), count=self._steps,
            parameters=parameters,
            values=self._cascade.update.initial_state(parameters.size, "float32"),
            formats=self._model.formats,
        )
        self.history.plan = (
            f"{self._bound.name}: "
            f"{counted(self._cascade.candidates, 'candidate')} together; "
            f"{counted(self._steps, 'epoch')} of outputs, {self._candidate_epochs} of "
            "candidates"
        )
