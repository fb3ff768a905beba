"""The description of a network: its layers, its parameters, no OpenCL."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.activations import SOFTMAX, activation
from clnet.checks import as_numbers, check_count
from clnet.errors import ClnetWarning, InputError, unknown
from clnet.initialisers import WIDROW_NGUYEN, Draw, initialiser, widrow_nguyen
from clnet.layers import Dense, Layer, bias_size, placed
from clnet.lowering import layout, live_elements, lower
from clnet.matrix import Matrix, Part
from clnet.metrics import BIT_FAIL_LIMIT, Evaluation, evaluate
from clnet.ops import Layout, Program
from clnet.regularisation import Regularisation
from clnet.scaling import Scaling
from clnet.storage import Storage

if TYPE_CHECKING:
    from os import PathLike

    from clnet.callbacks import Callback
    from clnet.device import Device
    from clnet.formats.fann import FannParameters
    from clnet.history import History, TrainingState
    from clnet.optimisers import Optimiser
    from clnet.runtime import Plan

DTYPES = ("float32", "float64")


class Network:
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

    def __init__(
        self,
        n_in: int,
        layers: Sequence[Layer],
        *,
        seed: int | None = None,
        dtype: str = "float32",
        fann_compatible: bool = False,
        parameters: ArrayLike | None = None,
        fann: FannParameters | None = None,
        scaling: Scaling | None = None,
    ) -> None:
        check_count("n_in", n_in)
        layers = tuple(layers) if isinstance(layers, Iterable) else ()
        if not layers:
            raise InputError(
                "a network needs a sequence of at least one layer, as [clnet.Dense(10)]"
            )
        for layer in layers:
            if isinstance(layer, type) or not hasattr(layer, "blocks"):
                raise InputError(
                    f"{layer!r} is not a layer: give layers as clnet.Dense(10)"
                )
        if layers[-1].dropout > 0:
            raise InputError(
                "the last layer has dropout, which is for layers that others read"
            )
        _check_sources([_sources(layers, i) for i in range(len(layers))])
        layers = placed(int(n_in), layers)
        if dtype not in DTYPES:
            raise unknown("dtype", dtype, DTYPES)
        self._n_in = int(n_in)
        self._layers = layers
        self._dtype = dtype
        self._fann_compatible = bool(fann_compatible)
        self._fann = fann
        self.scaling = scaling
        self._version = 0
        self._plans: dict[tuple[Any, ...], Plan] = {}
        if parameters is None:
            self._parameters = self._initial(None, seed)
        else:
            self.parameters = parameters

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
        sizes = list(sizes) if isinstance(sizes, Iterable) else []
        if len(sizes) < 2:
            raise InputError(
                f"sizes must be inputs and at least one layer, not {sizes}"
            )
        n = len(sizes) - 1
        if isinstance(activation, str) or not isinstance(activation, Iterable):
            names = [activation] * n
        else:
            names = list(activation)
        if len(names) != n:
            raise InputError(
                f"{len(names)} activations for {n} layers: give one, or one a layer"
            )
        layers = [
            Dense(s, a, initialiser=initialiser, dropout=dropout if i < n else 0.0)
            for i, (s, a) in enumerate(zip(sizes[1:], names, strict=True), start=1)
        ]
        return cls(sizes[0], layers, **options)

    @property
    def n_in(self) -> int:
        """Inputs."""
        return self._n_in

    @property
    def n_out(self) -> int:
        """Outputs."""
        return self.sizes[-1]

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers' descriptions."""
        return self._layers

    @property
    def dtype(self) -> str:
        """``"float32"`` or ``"float64"``."""
        return self._dtype

    @property
    def fann_compatible(self) -> bool:
        """Whether sums are clipped as FANN clips them."""
        return self._fann_compatible

    @property
    def fann(self) -> FannParameters | None:
        """FANN's training parameters: from a ``.net`` file, or of its algorithms.

        `fit` with one of FANN's algorithms notes it here, for ``.net`` files.
        """
        return self._fann

    @fann.setter
    def fann(self, fann: FannParameters | None) -> None:
        self._fann = fann

    @property
    def scaling(self) -> Scaling | None:
        """How inputs and outputs are scaled where ``scale=True``; may be replaced."""
        return self._scaling

    @scaling.setter
    def scaling(self, scaling: Scaling | None) -> None:
        if not (scaling is None or isinstance(scaling, Scaling)):
            raise InputError(f"scaling must be a Scaling or None, not {scaling!r}")
        if scaling is not None:
            found = (len(scaling.mean_in), len(scaling.mean_out))
            if found != (self.n_in, self.n_out):
                raise InputError(
                    f"the scaling is for {found[0]} inputs and {found[1]} outputs, "
                    f"expected {self.n_in} and {self.n_out}"
                )
        self._scaling = scaling

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        """The matrix of each layer."""
        slots = iter(self.layout.weights)
        return tuple(
            Matrix(
                layer.n_out,
                sum(self.sizes[source] for source in _sources(self._layers, number)),
                tuple(Part(*where, next(slots)) for where in self._stored[number]),
            )
            for number, layer in enumerate(self._layers)
        )

    @cached_property
    def _stored(self) -> tuple[tuple[tuple[int, int, Storage], ...], ...]:
        """Source, first column and storage of every part of every layer."""
        item_size = np.dtype(self._dtype).itemsize
        found = []
        for number, layer in enumerate(self._layers):
            sources = _sources(self._layers, number)
            widths = [self.sizes[source] for source in sources]
            firsts = np.cumsum([0, *widths[:-1]]).tolist()
            blocks = layer.blocks(widths, item_size)
            found.append(tuple(
                (source, first, storage)
                for source, first, block in zip(sources, firsts, blocks, strict=True)
                for storage in block
            ))
        return tuple(found)

    @cached_property
    def storages(self) -> tuple[Storage, ...]:
        """The storages of all layers, one for each slot of weights."""
        return tuple(storage for parts in self._stored for *_, storage in parts)

    @cached_property
    def layout(self) -> Layout:
        """Where weights and biases live in the flat buffer."""
        return layout(self.storages, [bias_size(layer) for layer in self._layers])

    @cached_property
    def program(self) -> Program:
        """The network's ops."""
        return lower(self)

    @property
    def version(self) -> int:
        """A number that grows whenever the parameters are replaced."""
        return self._version

    @property
    def parameters(self) -> NDArray[Any]:
        """The flat buffer, read-only: weights of every layer, then biases.

        Assign an array of the same shape to replace them; padding is set to zero.
        """
        view = self._parameters.view()
        view.flags.writeable = False
        return view

    @parameters.setter
    def parameters(self, values: ArrayLike) -> None:
        array = as_numbers("parameters", values, self._dtype)
        if array.shape != (self.layout.size,):
            raise InputError(
                f"parameters have shape {list(array.shape)}, expected "
                f"[{self.layout.size}]"
            )
        self._parameters = np.where(self._live, array, 0).astype(self._dtype)
        self._version += 1

    def weights(self, layer: int) -> NDArray[Any]:
        """Return the weights [n_out, n_in] of a layer, counted from 0, read-only.

        Of a locally connected layer [n_out, window].
        """
        matrix = self.matrices[self._checked(layer)].weights(self.parameters)
        matrix.flags.writeable = False
        return matrix

    def biases(self, layer: int) -> NDArray[Any]:
        """Return the biases [n_out] of a layer, counted from 0; empty without.

        One alone [1] where all neurons share it.
        """
        slot = self.layout.biases[self._checked(layer)]
        if slot is None:
            return np.zeros(0, self._dtype)
        return self.parameters[slot.offset : slot.offset + slot.size]

    def set_layer(
        self, layer: int, weights: ArrayLike, biases: ArrayLike | None = None
    ) -> None:
        """Replace the weights, and biases [n_out], of one layer, counted from 0.

        Weights are the matrix [n_out, n_in]; of a partially connected layer also its
        live entries [entries], row by row; of a locally connected one its windows
        [n_out, window]. A shared bias is [1].

        Raises
        ------
        InputError
            If a shape is wrong, biases are given for a layer that has none, or weights
            where there is no connection.
        """
        matrix = self.matrices[self._checked(layer)]
        values = as_numbers("weights", weights, self._dtype)
        live = not matrix.full and values.shape == (matrix.count,)
        if matrix.window is not None and values.shape == (matrix.n_out, matrix.window):
            live, values = True, values.ravel()
        if not live and values.shape != (matrix.n_out, matrix.n_in):
            raise InputError(
                f"weights of layer {layer} have shape {list(values.shape)}, expected "
                f"[{matrix.n_out}, {matrix.n_in}]"
            )
        new = self._parameters.copy()
        outside = 0
        if not live:
            rows, columns, _ = matrix.entries()
            outside = int(np.count_nonzero(values))
            values = values[rows, columns]
            outside -= int(np.count_nonzero(values))
        matrix.set_live(new, values)
        if outside:
            raise InputError(
                f"weights of layer {layer} have {outside} numbers where there is no "
                "connection, expected 0"
            )
        if biases is not None:
            place = self.layout.biases[layer]
            vector = as_numbers("biases", biases, self._dtype)
            expected = 0 if place is None else place.size
            if vector.shape != (expected,):
                raise InputError(
                    f"biases of layer {layer} have shape {list(vector.shape)}, "
                    f"expected [{expected}]"
                )
            if place is not None:
                new[place.offset : place.offset + place.size] = vector
        self.parameters = new

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
        from clnet.pruning import pruned

        return pruned(self, density, threshold, layers, format)

    def to_dense(self, layers: Iterable[int] | None = None) -> Network:
        """Return the network with its layers, or some, fully connected: new weights 0.

        Raises
        ------
        InputError
            If there is no such layer.
        """
        from clnet.pruning import dense

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
        from clnet.pruning import stored

        return stored(self, format, layers)

    def initialise(
        self,
        name: str | None = None,
        x: ArrayLike | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        """Draw weights and biases anew.

        Parameters
        ----------
        name : str or None
            A rule for all layers: as for `Dense`, or ``"widrow_nguyen"``, which reads
            the inputs' range as FANN does; None: each layer's own.
        x : array_like, shape [samples, n_in], or None
            The inputs, scaled as they are trained on; for ``"widrow_nguyen"`` alone.
        seed : int or None
            None: drawn from the operating system.

        Raises
        ------
        InputError
            If there is no such rule, x is missing, not wanted, has a wrong shape or no
            range, or the network has no hidden neuron to spread.
        """
        draw = None
        if name == WIDROW_NGUYEN and x is None:
            raise InputError(f"{name} reads the inputs' range: give x")
        if name != WIDROW_NGUYEN and x is not None:
            raise InputError(f"only {WIDROW_NGUYEN} reads the inputs: leave out x")
        if x is not None:
            inputs = as_numbers("x", x, "float64")
            if inputs.ndim != 2 or inputs.shape[1] != self.n_in:
                raise InputError(
                    f"x has shape {list(inputs.shape)}, expected [samples, {self.n_in}]"
                )
            draw = widrow_nguyen(inputs, sum(self.sizes[1:-1]))
        elif name is not None:
            draw = initialiser(name)
        self.parameters = self._initial(draw, seed)

    def compile(
        self,
        device: str | Device | None = None,
        batch: int = 1,
        *,
        tune: bool | None = None,
        variants: Sequence[str] | None = None,
    ) -> Plan:
        """Return a plan that runs this network on a device for one batch size.

        A plan knows nothing of `scaling`.

        Parameters
        ----------
        device : str, Device or None
            As for `clnet.device`.
        batch : int
            Samples a call.
        tune : bool or None
            None: use remembered times and measure the likely candidates that have
            none; True: measure the whole tuning space; False: measure nothing, use
            remembered times or the cost model.
        variants : sequence of str or None
            Only these variants may be used.

        Raises
        ------
        InputError, DeviceError
            If an argument is wrong, no such device exists, or memory does not suffice.
        """
        from clnet.planner import compile_network

        return compile_network(self, device, batch, tune=tune, variants=variants)

    def plan_for(self, device: Device, batch: int) -> Plan:
        """Return the plan that `predict` uses for a batch size; a few are kept."""
        from clnet.planner import PLANS, compile_network

        key = (device, batch)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = compile_network(self, device, batch)
            for oldest in list(self._plans)[:-PLANS]:
                self._plans.pop(oldest, None)  # another thread may have been first
        return plan

    def predict(
        self,
        x: ArrayLike,
        device: str | Device | None = None,
        *,
        scale: bool | None = None,
    ) -> NDArray[Any]:
        """Return the outputs for inputs.

        Parameters
        ----------
        x : array_like or scipy.sparse matrix, shape [batch, n_in] or [n_in]
            Inputs; converted to the network's dtype. Sparse ones become dense, some
            thousand samples at a time.
        device : str, Device or None
            As for `clnet.device`.
        scale : bool or None
            True: scale the inputs and descale the outputs by the network's `scaling`;
            False: as FANN, which never does; None: likewise, with a warning where
            there is a scaling.

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
        return self._predicted(x, device, self._scaling_to_apply(scale))

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
        device: str | Device | None = None,
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
    ) -> History:
        """Train on samples, and return how it went.

        The data set goes to the device once, parameters and the optimiser's state stay
        there, and the host reads one record an epoch. Ctrl-C ends the training and
        keeps what was learnt.

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
            A name of `clnet.losses`; None: categorical_cross_entropy for softmax, the
            error function of a network read from FANN's files, else mse.
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
            `clnet.callbacks`.
        seed : int or None
            Of the order of samples; None: drawn from the operating system.
        device : str, Device or None
            As for `clnet.device`.
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
            Whether to show a progress bar on stderr.
        scale : bool or None
            True: scale inputs and targets, those of the validation too, by the
            network's `scaling`; losses are of scaled ones. As for `predict`.

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
        from clnet.training import fit

        return fit(
            self, x, t, optimiser=optimiser, loss=loss, epochs=epochs,
            batch_size=batch_size, shuffle=shuffle, validation=validation,
            sample_weight=sample_weight, callbacks=callbacks, seed=seed, device=device,
            desired_error=desired_error, stop=stop, schedule=schedule,
            regularisation=Regularisation(l1, l2, clip_norm, clip_value), state=state,
            progress=progress, scaling=self._scaling_to_apply(scale),
        )

    def evaluate(
        self,
        x: ArrayLike,
        t: ArrayLike,
        device: str | Device | None = None,
        *,
        scale: bool | None = None,
    ) -> Evaluation:
        """Return how far the outputs for x [batch, n_in] are from t [batch, n_out].

        With ``scale=True`` as for `predict`: errors are then in the data's own units.
        """
        scaling = self._scaling_to_apply(scale)
        return self.compare(self._predicted(x, device, scaling), t)

    def compare(self, y: ArrayLike, t: ArrayLike) -> Evaluation:
        """Return how far this network's outputs y [batch, n_out] are from t, likewise.

        With the bit-fail limit, and for a FANN network the halved errors, of `fann`.
        """
        names = self._layers[-1].activation
        limit = BIT_FAIL_LIMIT if self._fann is None else self._fann.bit_fail_limit
        halved = [
            self._fann_compatible and name != SOFTMAX and activation(name).symmetric
            for name in ([names] if isinstance(names, str) else names)
        ]
        return evaluate(y, t, halved, limit)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the network to a file, by its suffix, whole or not at all."""
        from clnet.formats import save

        save(self, path)

    def __repr__(self) -> str:
        sizes = "-".join(str(n) for n in self.sizes)
        return f"<Network {sizes} {self._dtype}>"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Inputs, then neurons of each layer."""
        return (self._n_in, *(layer.n_out for layer in self._layers))

    def _scaling_to_apply(self, scale: bool | None) -> Scaling | None:
        """Return the scaling if `scale` asks for it; warn if it leaves that open."""
        if scale not in (True, False, None):
            raise InputError(f"scale must be True, False or None, not {scale!r}")
        if scale and self._scaling is None:
            raise InputError(
                "scale=True needs the network's scaling, and it has none: set it as in "
                "network.scaling = clnet.Scaling.of(x, t)"
            )
        if scale is None and self._scaling is not None:
            warnings.warn(
                "the network carries a scaling that is not used: pass scale=True to "
                "use it, or scale=False", ClnetWarning, stacklevel=3,
            )
        return self._scaling if scale else None

    def _predicted(
        self, x: ArrayLike, device: str | Device | None, scaling: Scaling | None
    ) -> NDArray[Any]:
        from clnet.planner import predict

        if scaling is None:
            return predict(self, x, device)
        scaled = scaling.scale_input(as_numbers("x", x, "float64"))
        return scaling.descale_output(predict(self, scaled, device))

    def _checked(self, layer: int) -> int:
        if layer not in range(len(self._layers)) or not isinstance(
            layer, (int, np.integer)
        ):
            raise InputError(f"layer {layer!r} of {len(self._layers)} does not exist")
        return layer

    @cached_property
    def _live(self) -> NDArray[np.bool_]:
        return live_elements(self.layout, self.storages)

    def _initial(self, draw: Draw | None, seed: int | None) -> NDArray[Any]:
        """Return parameters drawn by one rule; None: by each layer's own."""
        rng = _generator(seed)
        parameters = np.zeros(self.layout.size, self._dtype)
        for number, layer in enumerate(self._layers):
            matrix, place = self.matrices[number], self.layout.biases[number]
            n = matrix.count
            rule = draw or initialiser(layer.initialiser)
            weights, biases = rule(
                rng, n / matrix.n_out, n / matrix.n_in, n, place.size if place else 0
            )
            matrix.set_live(parameters, weights)
            if place is not None:
                parameters[place.offset : place.offset + place.size] = biases
        return parameters


def _generator(seed: int | None) -> np.random.Generator:
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise InputError(
            f"a seed must be a whole number of at least 0, or None, not {seed!r}"
        ) from None


def _sources(layers: Sequence[Layer], number: int) -> tuple[int, ...]:
    """Return what a layer, counted from 0, reads: 0 the input, k the k-th layer."""
    sources = layers[number].sources
    return (number,) if sources is None else sources


def _check_sources(sources: Sequence[tuple[int, ...]]) -> None:
    """Raise InputError unless layers read earlier ones, and each is read."""
    for number, found in enumerate(sources):
        if max(found) > number:
            raise InputError(
                f"layer {number} has the sources {found}, expected 0, the input, to "
                f"{number}, the output of the layer before"
            )
    unread = set(range(1, len(sources))) - {s for found in sources for s in found}
    if unread:
        raise InputError(
            f"the output of layer {min(unread) - 1} is in no later layer's sources"
        )
