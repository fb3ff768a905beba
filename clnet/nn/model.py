"""A model: a description with its parameters; an ensemble of many. No OpenCL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.checks import as_items, as_numbers, as_whole, check_kind, is_among
from clnet.errors import InputError, counted, quoted
from clnet.nn.columns import Columns
from clnet.nn.copies import Cache
from clnet.nn.description import Description
from clnet.nn.fann_parameters import FannParameters
from clnet.nn.initialisers import WIDROW_NGUYEN, Draw, initialiser, widrow_nguyen
from clnet.nn.labels import Classes, Label, as_classes
from clnet.nn.scaling import Scaling
from clnet.nn.storage.layout import copy_live, live_elements

if TYPE_CHECKING:
    from clnet.nn.layers import Layer

RESULTS = 16  # that a network keeps
MASKED = 1 << 12  # parameters below which a mask of all is faster than layer by layer


class Model(Description):
    """A feed-forward network: layers in a row, and one flat parameter buffer.

    The description changes by cascade training alone (`become`); the parameters may be
    replaced. Everything below the façade, `clnet.Network`, names this class.
    """

    members: int = 1  # networks whose parameters follow each other in the buffer

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
        classes: Iterable[Label] | None = None,
        columns: Columns | None = None,
    ) -> None:
        super().__init__(n_in, layers, dtype, fann_compatible)
        check_kind("fann", fann, FannParameters)
        self._version = 0
        if parameters is None:
            self._parameters = self._initial(None, seed)
            self._parameters.flags.writeable = False
        else:
            self.parameters = parameters
        self.fann = fann
        self.scaling = scaling
        self.classes = classes
        self.columns = columns

    @property
    def version(self) -> int:
        """A number that grows whenever the parameters are replaced."""
        return self._version

    @property
    def parameters(self) -> NDArray[Any]:
        """The flat buffer, read-only: weights of every layer, then biases.

        Assign an array of the same shape to replace them; padding is set to zero. The
        property is one object until then.
        """
        return self._parameters

    @parameters.setter
    def parameters(self, values: ArrayLike) -> None:
        array = as_numbers("parameters", values)
        if array.shape != (self.layout.size,):
            raise InputError(
                f"parameters have shape {list(array.shape)}, expected "
                f"[{self.layout.size}]"
            )
        new = np.zeros(array.shape, self._dtype)
        if self.layout.size <= MASKED:
            np.copyto(new, array, where=self._live, casting="unsafe")
        else:
            copy_live(self.layout, self.storages, array, new)
        self._replace(new)

    @cached_property
    def _live(self) -> NDArray[np.bool_]:
        return live_elements(self.layout, self.storages)

    def _replace(self, parameters: NDArray[Any]) -> None:
        """Replace the flat buffer by one whose padding is zero, without a copy."""
        parameters.flags.writeable = False
        self._parameters = parameters
        self._version += 1

    @cached_property
    def results(self) -> Cache:
        """Results that follow from the description, kept for later calls by keys."""
        return Cache(RESULTS)

    def become(self, other: Model) -> None:
        """Take the description and parameters of another network, which has grown.

        Plans compiled before tell so at their next call.
        """
        version = self._version
        self.__dict__.clear()
        self.__dict__.update(other.__dict__)
        self._version = version + 1

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._parameters.flags.writeable = False  # a copy of an array is not

    @property
    def scaling(self) -> Scaling | None:
        """Scaling of inputs and outputs by ``scale=True``; may be replaced."""
        return self._scaling

    @scaling.setter
    def scaling(self, scaling: Scaling | None) -> None:
        check_kind("scaling", scaling, Scaling)
        if scaling is not None:
            sides = (len(scaling.mean_in), len(scaling.mean_out))
            if sides != (self.n_in, self.n_out):
                raise InputError(
                    f"the scaling is for {counted(sides[0], 'input')} and "
                    f"{counted(sides[1], 'output')}, expected {self.n_in} and "
                    f"{self.n_out}"
                )
        self._scaling = scaling

    @property
    def classes(self) -> Classes | None:
        """The labels that the outputs stand for, one each; two for a single output.

        `Network.fit` sets them when it is given labels; None: it was not.
        """
        return self._classes

    @classes.setter
    def classes(self, classes: Iterable[Label] | None) -> None:
        self._classes = None if classes is None else as_classes(classes, self.n_out)

    @property
    def columns(self) -> Columns | None:
        """The columns of tables that are inputs and outputs; may be replaced.

        `Network.fit` sets them when it is given a frame; None: it was not.
        """
        return self._columns

    @columns.setter
    def columns(self, columns: Columns | None) -> None:
        check_kind("columns", columns, Columns)
        if columns is not None and columns.n_in != self.n_in:
            raise InputError(
                f"the columns make {counted(columns.n_in, 'input')}, expected "
                f"{self.n_in}"
            )
        self._columns = columns

    def in_layout(self, parameters: NDArray[Any]) -> NDArray[Any]:
        """Return earlier or present `parameters` in this model's layout.

        They are as they are here; a view of a network has another layout.
        """
        return parameters

    def weights(self, layer: int) -> NDArray[Any]:
        """Return the weights [n_out, n_in] of a layer, counted from 0, read-only.

        Of a locally connected layer [n_out, window].

        Examples
        --------
        >>> clnet.Network.mlp([2, 3, 1], seed=0).weights(0).shape
        (3, 2)
        """
        matrix = self.matrices[self.layer_number(layer)].weights(self.parameters)
        matrix.flags.writeable = False
        return matrix

    def biases(self, layer: int) -> NDArray[Any]:
        """Return the biases [n_out] of a layer, counted from 0; empty without.

        One alone [1] where all neurons share it.
        """
        slot = self.layout.biases[self.layer_number(layer)]
        if slot is None:
            return np.zeros(0, self._dtype)
        return slot.of(self.parameters)

    def set_layer(
        self, layer: int, weights: ArrayLike, biases: ArrayLike | None = None
    ) -> None:
        """Replace the weights, and biases [n_out], of one layer, counted from 0.

        Weights are the matrix [n_out, n_in]; of a partially connected layer also its
        live entries [entries], row by row; of a locally connected one its windows
        [n_out, window]. A shared bias is [1].

        Examples
        --------
        >>> net = clnet.Network(2, [clnet.Dense(1)])
        >>> net.set_layer(0, [[1, 2]], [3])
        >>> net.predict([10, 100]).tolist()
        [213.0]
        """
        new = self.parameters.copy()
        _set_layer(self, new, self.layer_number(layer), weights, biases)
        self._replace(new)

    def set_layers(
        self, layers: Iterable[tuple[ArrayLike, ArrayLike | None]]
    ) -> None:
        """Replace the weights, and biases, of all layers; each as for `set_layer`."""
        pairs = [tuple(as_items(pair)) for pair in as_items(layers)]
        if [len(pair) for pair in pairs] != [2] * len(self.layers):
            raise InputError(
                f"layers are {quoted(layers)}, expected (weights, biases) of each of "
                f"{counted(len(self.layers), 'layer')}"
            )
        new = self.parameters.copy()
        for number, (weights, biases) in enumerate(pairs):
            _set_layer(self, new, number, weights, biases)
        self._replace(new)

    def initialise(
        self,
        name: str | None = None,
        x: ArrayLike | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        """Draw weights and biases anew.

        Examples
        --------
        >>> net = clnet.Network.mlp([2, 3, 1])
        >>> net.initialise("he", seed=0)
        """
        self._replace(self._initial(_draw_of(self, name, x), seed))

    def _initial(self, draw: Draw | None, seed: int | None) -> NDArray[Any]:
        """Return parameters [size] drawn by one rule; None: by each layer's own."""
        rng = np.random.default_rng(
            None if seed is None else as_whole("a seed", seed, 0)
        )
        parameters = np.zeros(self.layout.size, self.dtype)
        for number, layer in enumerate(self.layers):
            matrix, slot = self.matrices[number], self.layout.biases[number]
            n = matrix.count
            rule = draw or initialiser(layer.initialiser)
            weights, biases = rule(rng, n / matrix.n_out, n / matrix.n_in)
            matrix.draw_live(parameters, weights)
            if slot is not None:
                slot.of(parameters)[...] = biases(slot.size)
        return parameters


class EnsembleModel(Model):
    """Networks of one shape, whose parameters follow each other in the flat buffer."""

    def __init__(self, network: Model, parameters: NDArray[Any]) -> None:
        self.members: int = len(parameters)
        super().__init__(
            network.n_in, network.layers, dtype=network.dtype,
            fann_compatible=network.fann_compatible, fann=network.fann,
        )
        self.replace(parameters)

    @property
    def n_out(self) -> int:
        """Outputs of all networks, network after network."""
        return self.members * super().n_out

    def replace(self, parameters: NDArray[Any]) -> None:
        """Replace the parameters by an array [members, size] whose padding is zero."""
        self._replace(parameters.reshape(-1))

    def _initial(self, draw: Draw | None, seed: int | None) -> NDArray[Any]:
        """Return no numbers: drawn parameters would be replaced."""
        return np.empty(0, self.dtype)


def _draw_of(network: Model, name: str | None, x: ArrayLike | None) -> Draw | None:
    """Return the rule of a name, for inputs x; see `Model.initialise`."""
    reads = is_among(name, [WIDROW_NGUYEN])
    if reads and x is None:
        raise InputError(f"{name} reads the inputs' range: give x")
    if not reads and x is not None:
        raise InputError(f"only {WIDROW_NGUYEN} reads the inputs: leave out x")
    if x is not None:
        inputs = as_numbers("x", x, "float64")
        if inputs.ndim != 2 or inputs.shape[1] != network.n_in:
            raise InputError(
                f"x has shape {list(inputs.shape)}, expected [samples, {network.n_in}]"
            )
        return widrow_nguyen(inputs, sum(network.sizes[1:-1]))
    return None if name is None else initialiser(name)


def _set_layer(
    network: Model, new: NDArray[Any], layer: int, weights: ArrayLike,
    biases: ArrayLike | None,
) -> None:
    """Set one layer in new parameters [size]; see `Model.set_layer`."""
    matrix = network.matrices[layer]
    values = as_numbers("weights", weights)
    live = not matrix.full and values.shape == (matrix.count,)
    if matrix.window is not None and values.shape == (matrix.n_out, matrix.window):
        live, values = True, values.ravel()
    if not live and values.shape != (matrix.n_out, matrix.n_in):
        raise InputError(
            f"weights of layer {layer} have shape {list(values.shape)}, expected "
            f"[{matrix.n_out}, {matrix.n_in}]"
        )
    outside = 0
    if not live and not matrix.full:
        values = values.astype(network.dtype)
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
        slot = network.layout.biases[layer]
        vector = as_numbers("biases", biases)
        expected = 0 if slot is None else slot.size
        if vector.shape != (expected,):
            raise InputError(
                f"biases of layer {layer} have shape {list(vector.shape)}, "
                f"expected [{expected}]"
            )
        if slot is not None:
            slot.of(new)[...] = vector
