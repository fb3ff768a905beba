"""Populations: many networks of one shape, trained side by side.

Start with `Population`; `cross_validation` scores grids, `files` has its file format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.checks import (
    INT_MAX,
    PRECISIONS,
    as_items,
    as_numbers,
    as_whole,
    is_many,
    is_whole,
)
from clnet.errors import InputError, counted, quoted
from clnet.network import Network
from clnet.nn.conversion import alike, dropout_of, with_dropout
from clnet.nn.copies import Uncached
from clnet.nn.model import EnsembleModel
from clnet.nn.scaling import scaling_to_apply
from clnet.population import files
from clnet.population.cross_validation import cross_validation
from clnet.training.fit_options import PopulationOptions, takes

if TYPE_CHECKING:
    from clnet.formats.sources import Source
    from clnet.nn.folds import CrossValidation
    from clnet.nn.metrics import Evaluation
    from clnet.opencl.device import Device
    from clnet.opencl.discovery import Devices
    from clnet.planning.inference import PlanCache
    from clnet.planning.predictions import Prediction
    from clnet.training.histories import Histories

Array = NDArray[Any]


class Population(Uncached):
    """Networks of one shape, whose parameters are the rows of one array.

    A thousand small networks train in one launch, each as `Network.fit` would train it:
    folds, settings and seeds of a search at the price of a few.

    Parameters
    ----------
    network : Network
        The shape of all: layers, dtype, classes, scaling, columns.
    seeds : int or iterable of int
        Of the initial parameters, one a network. A number n stands for 0 … n - 1.

    Attributes
    ----------
    network : Network
        The shape; its own parameters are not among the population's.
    dropout : ndarray, shape [networks, layers]
        The fraction of each layer's outputs that each network's training drops.

    Raises
    ------
    InputError
        If a seed is none, or there is no network.

    Examples
    --------
    Five networks, of which each leaves out a fifth of the samples:

    >>> rng = np.random.default_rng(0)
    >>> x = rng.uniform(-1, 1, (100, 2)); t = x[:, 0] * x[:, 1]
    >>> folds = np.split(rng.permutation(100), 5)
    >>> rows = [np.setdiff1d(np.arange(100), fold) for fold in folds]
    >>> population = clnet.Population(clnet.Network.mlp([2, 8, 1], "tanh"), 5)
    >>> found = population.fit(x, t, epochs=50, rows=rows, validation="rest", seed=0)
    >>> population.predict(x).shape, len(found[0].validation_loss)
    ((5, 100, 1), 50)
    """

    def __init__(self, network: Network, seeds: int | Iterable[int]) -> None:
        _check_network("network", network)
        numbers = (
            range(as_whole("seeds", seeds, most=INT_MAX // network.layout.size))
            if is_whole(seeds) else seeds
        )
        if not is_many(numbers):
            raise InputError(
                f"seeds must be whole numbers, one a network: {quoted(seeds)}"
            )
        self.network: Network = copy(network)
        self.dropout: Array = dropout_of(network)[np.newaxis]
        drawn_network = copy(network)

        def drawn(seed: Any) -> Array:
            drawn_network.initialise(seed=as_whole("a seed", seed, 0))
            return drawn_network.parameters

        self._replace(np.stack([drawn(seed) for seed in _some(numbers)]))
        self.dropout = self.dropout.repeat(len(self), axis=0)

    @classmethod
    def of(cls, networks: Iterable[Network]) -> Population:
        """Return the population of networks that are there.

        Raises
        ------
        InputError
            If there is none, or their layers, but for dropout, or dtypes differ.

        Examples
        --------
        >>> nets = [clnet.Network.mlp([2, 3, 1], seed=i) for i in range(4)]
        >>> clnet.Population.of(nets)
        <Population of 4 networks 2-3-1 float32>
        """
        listed = _some(networks)
        first = listed[0]
        for number, member in enumerate(listed):
            _check_network(f"item {number}", member)
            if not alike(member, first):
                raise InputError(
                    f"network {number} is {member!r}, expected the layers and dtype of "
                    f"the first, {first!r}"
                )
        return cls._made(
            first, np.stack([member.parameters for member in listed]),
            np.stack([dropout_of(member) for member in listed]),
        )

    @classmethod
    def _made(
        cls, network: Network, parameters: Array, dropout: Array
    ) -> Population:
        population = cls.__new__(cls)
        population.network, population.dropout = copy(network), dropout
        population._replace(parameters)
        return population

    def _replace(self, parameters: Array) -> None:
        parameters.flags.writeable = False
        self._parameters = parameters
        ensemble = self.__dict__.get("_ensemble")
        if ensemble is None:
            return
        if ensemble.network.members == len(parameters):
            ensemble.network.replace(parameters)
        else:
            del self._ensemble

    @property
    def parameters(self) -> Array:
        """The flat buffers [networks, size], read-only; assign to replace them.

        If the number of networks changes, all get the dropout of the first.

        Raises
        ------
        InputError
            If values that are assigned have another shape.
        """
        return self._parameters

    @parameters.setter
    def parameters(self, values: ArrayLike) -> None:
        array = as_numbers("parameters", values)
        shape = len(array), self.network.layout.size
        if array.ndim != 2 or array.shape != shape or not len(array):
            raise InputError(
                f"parameters have shape {list(array.shape)}, expected [networks, "
                f"{self.network.layout.size}]"
            )
        new = np.zeros(array.shape, self.network.dtype)
        np.copyto(new, array, where=self.network._live, casting="unsafe")
        if len(new) != len(self):
            self.dropout = self.dropout[:1].repeat(len(new), axis=0)
        self._replace(new)

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Network]:
        return (self[number] for number in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Network: ...

    @overload
    def __getitem__(self, index: slice | Sequence[int]) -> Population: ...

    def __getitem__(self, index: Any) -> Network | Population:
        """Return one network, a copy, or the population of some."""
        if is_whole(index):
            number = as_whole("a network's number", index, -len(self), len(self) - 1)
            member = with_dropout(self.network, self.dropout[number])
            member.parameters = self._parameters[number]
            return member
        try:
            chosen = self._parameters[index]
        except (IndexError, TypeError, ValueError) as error:
            raise InputError(f"no networks of a population of {len(self)}: {error}") \
                from None
        if chosen.ndim != 2 or not len(chosen):
            raise InputError(
                f"{quoted(index)} names no networks: give numbers or a slice"
            )
        return self._made(self.network, chosen.copy(), self.dropout[index].copy())

    def __repr__(self) -> str:
        shape = repr(self.network).removeprefix("<Network ")
        return f"<Population of {counted(len(self), 'network')} {shape}"

    def predict(
        self, x: ArrayLike | Source, device: Devices = None, *,
        scale: bool | None = None, precision: str = PRECISIONS[0],
        buffer: int | None = None,
    ) -> Array:
        """Return the outputs of all networks; their mean is that of an ensemble.

        Small chains of dense layers are computed together, in one launch for all
        networks; others one after the other.

        Parameters
        ----------
        x, device, scale, precision, buffer
            As for `Network.predict`.

        Returns
        -------
        ndarray, shape [networks, batch, n_out] or [networks, n_out]

        Raises
        ------
        InputError, DeviceError
            As `Network.predict`.
        """
        from clnet.planning.predictions import member_outputs

        how = self._prediction(device, scale, precision, buffer)
        return member_outputs(how, x)

    def _prediction(
        self, device: Devices, scale: bool | None, precision: str = PRECISIONS[0],
        buffer: int | None = None,
    ) -> Prediction:
        from clnet.planning.predictions import Prediction, of_members

        scaling = scaling_to_apply(self.network.scaling, scale)
        how = Prediction(
            self.network, self.network._plans, device, scaling, precision, buffer
        )
        return of_members(how, self._ensemble, self._parameters)

    @cached_property
    def _ensemble(self) -> PlanCache:
        """The plans that compute all networks in one launch."""
        from clnet.planning.inference import PlanCache

        return PlanCache(EnsembleModel(self.network, self._parameters))

    def classify(
        self, x: ArrayLike, device: Devices = None, *, scale: bool | None = None
    ) -> Array:
        """Return the class of each input that most networks choose.

        Ties go to the class with the largest mean output.

        Parameters
        ----------
        x, device, scale
            As for `Network.predict`.

        Returns
        -------
        ndarray, shape [batch], or [] of a single sample
            Classes, as of `Network.classify`.

        Raises
        ------
        InputError, DeviceError
            As `Network.classify`.

        Examples
        --------
        >>> net = clnet.Network(2, [clnet.Dense(2, "softmax")], classes=["no", "yes"])
        >>> clnet.Population(net, 3).classify([[3, 1], [1, 3]]).shape
        (2,)
        """
        scaling = scaling_to_apply(self.network.scaling, scale)
        scaled = scaling is not None
        y = self.predict(x, device, scale=scaled)
        chosen = self.network.labels_of(y, scaled)
        labels, numbers = np.unique(chosen, return_inverse=True)
        numbers = numbers.reshape(chosen.shape)
        votes = np.stack([(numbers == i).sum(axis=0) for i in range(len(labels))])
        mean = self.network.labels_of(y.mean(axis=0), scaled)
        ties = votes == votes.max(axis=0)
        favourite = ties & (labels.reshape(-1, *[1] * mean.ndim) == mean)
        winner = np.where(favourite.any(axis=0), favourite.argmax(axis=0),
                          ties.argmax(axis=0))
        winners: Array = labels[winner]
        return winners

    def evaluate(
        self, x: ArrayLike | Source, t: ArrayLike | None = None,
        device: Devices = None, *, scale: bool | None = None,
        buffer: int | None = None,
    ) -> list[Evaluation]:
        """Return the errors of each network's outputs.

        Samples are computed and read as in `predict`.

        Parameters
        ----------
        x, t, device, scale, buffer
            As for `Network.evaluate`.

        Returns
        -------
        list of Evaluation
            One for each network.

        Raises
        ------
        InputError, DeviceError
            As `Network.evaluate`.
        """
        from clnet.planning.predictions import evaluate

        return evaluate(self._prediction(device, scale, buffer=buffer), x, t)

    @takes(PopulationOptions)
    def fit(self, options: PopulationOptions) -> Histories:
        """Train each network, as `Network.fit` would by itself; return the histories.

        Parameters
        ----------
        x, t, loss, batch_size, shuffle, stop, scale, precision, tune, buffer
            As for `Network.fit`. Networks train one after the other on a source that is
            read by parts; a generator is read once, which is for one network.
        optimiser, epochs, seed, desired_error, schedule, l1, l2, clip_norm, clip_value
            As for `Network.fit`: one value for all, or a list of one for each network.
        learning_rate : float, list of float, or None
            Of the optimiser, likewise; None: its own.
        rows : sequence of arrays of int, or None
            The samples of each network, by their numbers in x; None: all. No sample is
            copied. Steps and orders are those of a training on these samples alone.
        sample_weight : array_like, shape [samples] or [networks, samples], or None
            As for `Network.fit`.
        validation : (x, t), (x, t, sample_weight), source, "rest" or None
            Measured after each epoch: samples for all, or for each network the samples
            that are not among its `rows`.
        patience : int or None
            Stop a network when its loss of the validation has not improved for so many
            epochs, and give it the parameters of its best epoch, as `EarlyStopping`.
        device : str, Device or None
            As for `clnet.device`.
        devices : list of these, ``"all"`` or None
            Devices that train a share of the networks each, instead of `device`.
            Networks of devices of one kind have the bits of one device.
        progress : bool or None
            True: show the progress of measurements and epochs on stderr; None: of
            measurements.
        comm : mpi4py.MPI.Comm or None
            Ranks of MPI, each of which trains some of the networks; all end with all
            networks and histories.

        Returns
        -------
        Histories
            A sequence of `History`, one a network, made when it is first read. ``plot``
            draws all, ``report`` writes a page.

        Raises
        ------
        InputError, DeviceError
            As `Network.fit`; if a list has another length, or rows are out of range.

        Warns
        -----
        ClnetWarning
            As `Network.fit`.

        Notes
        -----
        Chains of dense layers of float32 train in one launch, each network by its own
        dropout. Networks whose optimisers or clipping differ train in a launch for each
        kind. All others train one after the other.
        """
        from clnet.training.population import fit_population

        histories, parameters = fit_population(
            self.network, self.dropout, self._parameters, options
        )
        self._replace(parameters)
        return histories

    def explain(
        self, x: ArrayLike | Source, t: ArrayLike | None = None, **options: Any
    ) -> str:
        """Return how `fit` with these arguments would train, and why.

        Kernels are built, compared and measured as `fit` would; nothing is trained.

        Parameters
        ----------
        x, t, **options
            As for `fit`, without ``comm``.

        Returns
        -------
        str
            The kernel with its sizes, its time expected and measured, its memory, the
            others with their times or why they cannot; in the form of `Plan.explain`,
            for each kind of training apart. `History.plan` is this text too.

        Raises
        ------
        InputError, DeviceError
            As `fit`.

        Examples
        --------
        >>> x, t = np.eye(4), np.ones(4)
        >>> population = clnet.Population(clnet.Network.mlp([4, 3, 1]), 100)
        >>> text = population.explain(x, t, optimiser="rprop", device="cpu", tune=False)
        >>> text.splitlines()[0].split(",")[0]
        '100 networks together'
        """
        from clnet.training.population import explain_population

        if "comm" in options:
            raise InputError("explain is of one process: leave out comm")
        return explain_population(
            copy(self.network), self.dropout, PopulationOptions(x, t, **options)
        )

    @staticmethod
    def cross_validate(
        network: Network, x: ArrayLike, t: ArrayLike,
        grid: Mapping[str, Sequence[Any]] | None = None, *,
        folds: int | Sequence[ArrayLike] = 5, seed: int = 0,
        device: str | Device | None = None, progress: bool | None = None,
        **options: Any,
    ) -> CrossValidation:
        """Score all settings of a grid on samples that their training leaves out.

        All settings and folds train together, each from the network's parameters.

        Parameters
        ----------
        network : Network
            The shape, classes and initial parameters; it stays as it is.
        x, t : array_like
            As for `Network.fit`.
        grid : mapping of str to list, or None
            Values of the arguments of `fit` that may be lists; all combinations are
            tried. None: one setting, that of the options.
        folds : int, or sequence of arrays of int
            Number of folds, into which classes are spread evenly; or the samples that
            each training leaves out.
        seed : int
            Of the folds, and of `fit` unless the grid has its own.
        device, progress, **options
            As for `fit`.

        Returns
        -------
        CrossValidation
            The settings, their scores [settings, folds], the best setting, and the
            histories.

        Raises
        ------
        InputError, DeviceError
            As `fit`; if the grid is empty or has another name, or there are fewer
            samples than folds.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> x = rng.uniform(-1, 1, (120, 2)); t = x[:, 0] * x[:, 1] > 0
        >>> net = clnet.Network.mlp([2, 8, 1], "tanh", output="sigmoid", seed=0)
        >>> found = clnet.Population.cross_validate(
        ...     net, x, t, {"learning_rate": [1e-4, 0.05]}, folds=3, optimiser="adam",
        ...     epochs=60,
        ... )
        >>> found.best, found.scores.shape
        ({'learning_rate': 0.05}, (2, 3))
        """
        _check_network("network", network)
        return cross_validation(network, x, t, grid, folds, {
            "seed": seed, "device": device, "progress": progress, **options,
        })

    def save(self, path: str | PathLike[str]) -> None:
        """Write the population to a ``.safetensors`` file, whole or not at all.

        `clnet.load` reads its first network.

        Raises
        ------
        InputError
            If the path is no file name.
        FormatError
            If the suffix is another, or the file cannot be written.

        Examples
        --------
        >>> clnet.Population(clnet.Network.mlp([2, 3, 1]), 4).save("four.safetensors")
        >>> clnet.Population.load("four.safetensors")
        <Population of 4 networks 2-3-1 float32>
        """
        files.save(path, self[0], self._parameters, self.dropout)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Population:
        """Return the population of a file that `save` wrote.

        Raises
        ------
        InputError
            If the path is no file name.
        FormatError
            If the file is missing, damaged, of a later version, or holds no population.
        """
        network, parameters, dropout = files.load(path)
        first = np.empty((1, network.layout.size), network.dtype)
        population = cls._made(network, first, dropout_of(network)[np.newaxis])
        population.parameters = parameters
        if dropout is not None:
            population.dropout = dropout
        return population


def _check_network(name: str, network: object) -> None:
    if not isinstance(network, Network):
        raise InputError(f"{name} must be a Network, not {quoted(network)}")


def _some(items: Any) -> list[Any]:
    listed = as_items(items)
    if not listed:
        raise InputError("a population has at least one network, and here is none")
    return listed
