"""A network: its description and parameters, and what users do with them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.ir.lowering import lower, output_middles, symmetric_outputs
from clnet.ir.ops import PRECISIONS, Program
from clnet.nn.description import mlp_layers
from clnet.nn.metrics import BIT_FAIL_LIMIT, Evaluation, evaluate
from clnet.nn.model import Model
from clnet.nn.regularisation import Regularisation
from clnet.nn.scaling import scaling_to_apply

if TYPE_CHECKING:
    from os import PathLike

    from clnet.nn.optimisers import Optimiser
    from clnet.opencl.device import Device
    from clnet.opencl.discovery import Devices
    from clnet.runtime.data_parallel import ParallelPlan
    from clnet.runtime.plan import Plan
    from clnet.training.callbacks import Callback
    from clnet.training.history import History, TrainingState
    from clnet.variants import Variant


class Network(Model):
    """A feed-forward network: layers in a row, and one flat parameter buffer.

    The description never changes; the parameters may be replaced, and every compiled
    plan then takes the new ones at its next call.

    Parameters
    ----------
    n_in : int
        Inputs, at least 1.
    layers : sequence of layers
        At least one, as `Dense`.
    seed : int or None
        Seed of the initial parameters; None: drawn from the operating system.
    dtype : {"float32", "float64"}
        Type of parameters and arithmetic.
    fann_compatible : bool
        Whether sums are clipped as FANN clips them (linear outputs at ±150/steepness);
        set for networks that were read from FANN's files.
    parameters : array_like, shape [layout.size], optional
        The flat buffer, instead of initial values.
    fann : FannParameters or None
        FANN's training parameters that a ``.net`` file carried.
    scaling : Scaling or None
        How inputs and outputs are scaled where `scale` is asked for.

    Raises
    ------
    InputError
        If a size, type or name is not as above.
    """

    @cached_property
    def _plans(self) -> OrderedDict[tuple[Any, ...], Plan | ParallelPlan]:
        return OrderedDict()

    @classmethod
    def mlp(
        cls,
        sizes: Sequence[int],
        activation: str | Sequence[str] = "sigmoid",
        initialiser: str = "glorot",
        dropout: float = 0.0,
        **options: Any,
    ) -> Network:
        """Return a fully connected network.

        Parameters
        ----------
        sizes : sequence of int
            Inputs, then neurons of each layer: ``[200, 400, 100]``.
        activation : str or sequence of str
            One for all layers, or one a layer.
        initialiser : str
            As for `Dense`.
        dropout : float
            As for `Dense`, of all layers but the last.
        **options
            As for `Network`.
        """
        n_in, layers = mlp_layers(sizes, activation, initialiser, dropout)
        return cls(n_in, layers, **options)

    @cached_property
    def program(self) -> Program:
        """The network's ops."""
        return lower(self)

    def prune(
        self,
        *,
        density: float | None = None,
        threshold: float | None = None,
        layers: Iterable[int] | None = None,
        format: str = "auto",  # noqa: A002  as for `Sparse`
    ) -> Network:
        """Return a network of partially connected layers without the smallest weights.

        What is left has its present weights, and can be trained on.

        Parameters
        ----------
        density : float or None
            Share of all connections of a layer, in (0, 1], of which the largest
            weights are kept: at least one, and of a sparse layer no new ones.
        threshold : float or None
            Weights of a larger absolute value are kept. Either this or a density.
        layers : iterable of int or None
            Which, counted from 0; None: all.
        format : str
            As for `Sparse`.

        Raises
        ------
        InputError
            If an argument is not as above, or a layer would have no weight left.
        """
        from clnet.nn.conversion import pruned

        return pruned(self, density, threshold, layers, format)

    def to_dense(self, layers: Iterable[int] | None = None) -> Network:
        """Return the network with its layers, or some, fully connected: new weights 0.

        Raises
        ------
        InputError
            If there is no such layer.
        """
        from clnet.nn.conversion import dense

        return dense(self, layers)

    def stored_as(
        self, format: str, layers: Iterable[int] | None = None  # noqa: A002
    ) -> Network:
        """Return the network with its sparse layers, or some, in a format of `Sparse`.

        Connections and weights stay the same, bit for bit.

        Raises
        ------
        InputError
            If there is no such format or layer.
        """
        from clnet.nn.conversion import stored

        return stored(self, format, layers)

    def compile(
        self,
        device: str | Device | None = None,
        batch: int = 1,
        *,
        tune: bool | None = None,
        variants: Sequence[str | Variant] | None = None,
        precision: str = PRECISIONS[0],
        progress: bool = False,
    ) -> Plan:
        """Return a plan that runs this network on a device for one batch size.

        A plan knows nothing of `scaling`.

        Parameters
        ----------
        device : str, Device or None
            As for `clnet.device`; or ``"fastest"``: the device on which a whole call is
            measured to be the shortest, from host array to host array. A GPU, or for
            small networks the CPU beside it.
        batch : int
            Samples a call.
        tune : bool or None
            None: use remembered times and measure the likely candidates that have
            none; True: measure the whole tuning space; False: measure nothing, use
            remembered times or the cost model.
        variants : sequence of str or Variant, or None
            Only these variants may be used: registered ones by name, others as they
            are. None: all that the planner searches unasked.
        precision : {"highest", "high", "medium"}
            How exact products are: as float32's, or where that is faster as with
            factors of 11 bits (TF32's), or of 8 (bfloat16's); sums are float32.
        progress : bool
            Whether to show on stderr what is measured, if that takes a while.

        Raises
        ------
        InputError, DeviceError
            If an argument is wrong, no such device exists, or memory does not suffice.
        """
        from clnet.planning.inference import compile_network
        from clnet.planning.tuning.search import Search

        with Search(progress=progress) as search:
            return compile_network(
                self, device, batch, tune=tune, variants=variants, precision=precision,
                search=search,
            )

    def plan_for(
        self, devices: Devices, batch: int, precision: str = PRECISIONS[0]
    ) -> Plan | ParallelPlan:
        """Return the plan that `predict` uses; those used last are kept."""
        from clnet.planning.inference import PLANS, places, plan_on

        key = (places(devices), batch, precision)
        plan = self._plans.get(key)
        if plan is None:
            plan = plan_on(self, key[0], batch, precision)
            self._plans[key] = plan
        with suppress(KeyError):  # another thread may have been first
            self._plans.move_to_end(key)
            while len(self._plans) > PLANS:
                self._plans.popitem(last=False)
        return plan

    def predict(
        self,
        x: ArrayLike,
        device: Devices = None,
        *,
        scale: bool | None = None,
        precision: str = PRECISIONS[0],
    ) -> NDArray[Any]:
        """Return the outputs for inputs.

        The first call of a batch size plans, from remembered times; where there are
        none it measures, for a few seconds at most. `compile` and ``clnet tune``
        search to the end: later calls choose by what they have found.

        Parameters
        ----------
        x : array_like or scipy.sparse matrix, shape [batch, n_in] or [n_in]
            Inputs; converted to the network's dtype. Sparse ones become dense, some
            thousand samples at a time.
        device : str, Device, list of these, or None
            As for `compile`. A list, or ``"all"``: devices that share the samples,
            by their speed, and run at the same time.
        scale : bool or None
            True: scale the inputs and descale the outputs by the network's `scaling`;
            False: as FANN, which never does; None: likewise, with a warning where
            there is a scaling.
        precision : str
            As for `compile`.

        Returns
        -------
        ndarray, shape [batch, n_out] or [n_out]
            Outputs, in the network's dtype.

        Raises
        ------
        InputError, DeviceError
            If the shape or type is wrong, there is no scaling to use, or no such
            device exists.
        """
        from clnet.planning.inference import predict

        scaling = scaling_to_apply(self._scaling, scale)
        return predict(self, self.plan_for, x, device, scaling, precision)

    def fit(
        self,
        x: ArrayLike,
        t: ArrayLike,
        *,
        optimiser: str | Optimiser = "rprop",
        loss: str | None = None,
        epochs: int = 100,
        batch_size: int | None = None,
        shuffle: bool | None = None,
        validation: tuple[ArrayLike, ArrayLike] | None = None,
        sample_weight: ArrayLike | None = None,
        callbacks: Iterable[Callback] = (),
        seed: int | None = None,
        device: Devices = None,
        devices: Devices = None,
        desired_error: float | None = None,
        stop: str | None = None,
        schedule: str | Callable[[int], float] | None = None,
        l1: float = 0.0,
        l2: float = 0.0,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        state: TrainingState | None = None,
        progress: bool = False,
        scale: bool | None = None,
        precision: str = PRECISIONS[0],
    ) -> History:
        """Train on samples, and return how it went.

        The data set goes to the device once, parameters and the optimiser's state stay
        there, and the host reads one record an epoch. Ctrl-C ends the training and
        keeps what was learnt.

        Sparse layers of format ``"auto"`` are trained in the format of the shortest
        step, measured on the device, which `History.plan` tells; several devices train
        them as they are stored, and so does an optimiser whose random numbers belong to
        the parameters' places (`Sarprop`). Parameters, states and files stay as the
        network stores them.

        Parameters
        ----------
        x : array_like or scipy.sparse matrix, shape [samples, n_in]
            Inputs; converted to the network's dtype. Sparse ones become dense, all at
            once: the device reads whole rows.
        t : array_like, shape [samples, n_out]
            Targets, likewise.
        optimiser : str or Optimiser
            A name of `clnet.optimisers`, with its default constants, or one of its
            rows; ``"fann"``: by the training parameters that a ``.net`` file carried.
        loss : str or None
            A name of `clnet.nn.losses`; None: categorical_cross_entropy for softmax,
            the error function of a network read from FANN's files, else mse.
        epochs : int
            Passes over the data set at most.
        batch_size : int or None
            Samples a step; None: all, or the one sample of ``"incremental"``.
        shuffle : bool or None
            Whether each epoch has its own random order; None: yes, but for
            ``"incremental"``. All samples at once have no order.
        validation : (x, t) or None
            Samples that are measured after each epoch.
        sample_weight : array_like, shape [samples], or None
            Factor of each sample's loss.
        callbacks : iterable of callables
            Called with the `Training` and its last `Epoch`; True stops. See
            `clnet.training.callbacks`.
        seed : int or None
            Of the order of samples; None: drawn from the operating system.
        device : str, Device or None
            As for `clnet.device`.
        devices : list of these, ``"all"`` or None
            Instead: devices that share each batch. Each computes the gradients of its
            samples and adds up those of all, so that parameters stay equal; the result
            is that of one device but for the order of sums, and for what dropout drops.
        desired_error : float or None
            Stop when the training's error is at most this.
        stop : {"mse", "bit_fail"} or None
            Which error that is; None: what a ``.net`` file says, else the MSE.
        schedule : str, callable or None
            Factor of the learning rate for each epoch, counted from 0: ``"step"``,
            ``"exponential"``, ``"cosine"`` over these epochs, a row of
            `clnet.schedules`, or a function of the epoch's number.
        l1, l2 : float
            Penalties of weights, biases left out: ``l1 * sum |w| + l2 * sum w^2`` is
            added to the mean loss that is descended, not to the one that is reported.
        clip_norm, clip_value : float or None
            Bound of the mean gradient's Euclidean norm, or of each of its elements.
        state : TrainingState or None
            Go on from here, bit for bit as if there had been no interruption: the
            `state` of an earlier `History`.
        progress : bool
            Whether to show a progress bar on stderr, and before it what is measured.
        scale : bool or None
            True: scale inputs and targets, those of the validation too, by the
            network's `scaling`; losses are of scaled ones. As for `predict`.
        precision : str
            As for `compile`.

        Returns
        -------
        History
            The epochs, why it ended, and the state to go on from.

        Raises
        ------
        InputError, DeviceError
            If an argument is wrong, no such device exists, or memory does not suffice.

        Warns
        -----
        ClnetWarning
            If the loss is not finite: the training stops, and the last finite
            parameters are kept.
        """
        from clnet.training.fit import fit
        from clnet.training.setup import training_setup

        setup = training_setup(
            self, x, t, optimiser=optimiser, loss=loss, epochs=epochs,
            batch_size=batch_size, shuffle=shuffle, validation=validation,
            sample_weight=sample_weight, callbacks=callbacks, seed=seed, device=device,
            devices=devices, desired_error=desired_error, stop=stop, schedule=schedule,
            regularisation=Regularisation(l1, l2, clip_norm, clip_value), state=state,
            scaling=scaling_to_apply(self._scaling, scale), precision=precision,
        )
        return fit(self, setup, progress)

    def evaluate(
        self,
        x: ArrayLike,
        t: ArrayLike,
        device: Devices = None,
        *,
        scale: bool | None = None,
    ) -> Evaluation:
        """Return how far the outputs for x [batch, n_in] are from t [batch, n_out].

        With ``scale=True`` as for `predict`: errors are then in the data's own units.

        Raises
        ------
        InputError, DeviceError
            As `predict`, and if t has another shape than the outputs.
        """
        from clnet.planning.inference import predict

        scaling = scaling_to_apply(self._scaling, scale)
        return self.compare(
            predict(self, self.plan_for, x, device, scaling), t,
            scale=scaling is not None,
        )

    def compare(
        self, y: ArrayLike, t: ArrayLike, *, scale: bool = False
    ) -> Evaluation:
        """Return how far this network's outputs y [batch, n_out] are from t, likewise.

        With the bit-fail limit, and for a FANN network the halved errors, of `fann`.
        With ``scale=True`` both are in the data's own units, by `scaling`: so is then
        the middle of the range by which one output tells two classes apart.

        Raises
        ------
        InputError
            If shapes differ, there is no sample, or no scaling to use.
        """
        limit = BIT_FAIL_LIMIT if self.fann is None else self.fann.bit_fail_limit
        halved = [self.fann_compatible and one for one in symmetric_outputs(self)]
        middles: Sequence[float | None] = output_middles(self)
        scaling = scaling_to_apply(self._scaling, scale)
        bounded = [middle for middle in middles if middle is not None]
        if scaling is not None and len(bounded) == len(middles):
            middles = scaling.descale_output(np.resize(bounded, self.n_out)).tolist()
        return evaluate(y, t, halved, limit, middles)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the network to a file, by its suffix, whole or not at all.

        Raises
        ------
        FormatError
            If the format cannot hold the network, the file cannot be written, or has an
            unknown suffix.
        """
        from clnet.formats import save

        save(self, path)

    def __getstate__(self) -> dict[str, Any]:
        # Plans are of this network and live on a device: copies make their own.
        return {name: v for name, v in self.__dict__.items() if name != "_plans"}

    def __repr__(self) -> str:
        sizes = "-".join(str(n) for n in self.sizes)
        return f"<Network {sizes} {self._dtype}>"


def load(path: str | PathLike[str], *, dtype: str | None = None) -> Network:
    """Return the network of a file.

    Parameters
    ----------
    path : str or path
        ``.net``: FANN's network files; ``.safetensors``: clnet's own.
    dtype : {"float32", "float64"} or None
        Type of the numbers of a ``.net`` file, which does not say it; None: float32.

    Raises
    ------
    FormatError
        If the file is missing, unreadable, truncated, foreign, not supported, or has
        an unknown suffix.
    InputError
        If dtype is unknown, or given for a file that says its own.
    """
    from clnet.formats import load_network

    return load_network(path, Network, dtype)
