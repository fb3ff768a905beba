"""`Network`, the public interface: make, convert, prune, fit, save, load.

Its predictions and evaluations are those of its base, in `predictor`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clnet.errors import counted
from clnet.network.predictor import Predictor
from clnet.nn.description import mlp_layers
from clnet.training.fit_options import FitOptions, takes

if TYPE_CHECKING:
    from os import PathLike

    from clnet.training.history import History


class Network(Predictor):
    """A feed-forward network: layers in a row, and one flat parameter buffer.

    The description changes by cascade training alone. The parameters may be replaced;
    every compiled plan uses the new ones from its next call on.

    Parameters
    ----------
    n_in : int
        Inputs, at least 1.
    layers : sequence of layers
        At least one, as `Dense`.
    seed : int or None
        Seed of the initial parameters; None: from the operating system.
    dtype : {"float32", "float64"}
        Type of parameters and arithmetic.
    fann_compatible : bool
        Whether pre-activations are clipped as in FANN (linear outputs at
        ±150/steepness); set for networks from FANN's files.
    parameters : array_like, shape [layout.size], optional
        The flat parameter buffer, instead of initial values.
    fann : FannParameters or None
        FANN's training parameters, of a ``.net`` file.
    scaling : Scaling or None
        Scaling of inputs and outputs, used with ``scale=True``.
    classes : sequence of str, int or bool, or None
        The labels that the outputs stand for, one each; two for a single output.
    columns : Columns or None
        The columns of tables that are the inputs and outputs; see `load_table`.

    Raises
    ------
    InputError
        If a size, type or name is not as above.

    Examples
    --------
    >>> layers = [clnet.Dense(32, "relu"), clnet.Sparse(16, "relu", density=0.2),
    ...           clnet.Dense(3, "softmax")]
    >>> clnet.Network(8, layers, seed=0)
    <Network 8-32-16-3 float32>
    """

    @classmethod
    def mlp(
        cls,
        sizes: Sequence[int],
        activation: str | Sequence[str] = "sigmoid",
        initialiser: str = "glorot",
        dropout: float = 0.0,
        *,
        output: str | None = None,
        seed: int | None = None,
        dtype: str = "float32",
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
        output : str or None
            Activation of the last layer; None: as `activation` says.
        seed, dtype, **options
            As for `Network`.

        Examples
        --------
        >>> clnet.Network.mlp([64, 100, 50, 10], "relu", output="softmax", seed=0)
        <Network 64-100-50-10 float32>
        """
        n_in, layers = mlp_layers(sizes, activation, initialiser, dropout, output)
        return cls(n_in, layers, seed=seed, dtype=dtype, **options)

    @classmethod
    def from_torch(cls, module: Any) -> Network:
        """Return the network of a PyTorch module, with its weights.

        The module is traced by `torch.fx`: `nn.Sequential`, or a class whose forward is
        one graph of Linear, activations that clnet has, Flatten, Identity, sums,
        differences, constant factors, columns of layers, concatenations of columns,
        and functions of one variable that are sums of activations. Dropout is for
        trainings here; BatchNorm1d, after ``module.eval()``, becomes part of a layer.
        Outputs differ by rounding alone: those of random inputs are compared.

        Raises
        ------
        InputError
            If there is anything else: it is named.
        ClnetError
            If PyTorch is not installed.
        """
        from clnet.formats.pytorch_trace import from_torch
        from clnet.ir.reference import run

        return from_torch(
            module, cls, lambda network, x: run(network.program, x, network.parameters)
        )

    @classmethod
    def from_state_dict(
        cls,
        state_dict: Mapping[str, Any] | str | PathLike[str],
        activation: str | Sequence[str],
    ) -> Network:
        """Return the network of a PyTorch state dict of linear modules in a row.

        PyTorch need not be installed. Names may be any that end in ``.weight`` or
        ``.bias``; Dropout between layers, which shifts them, does not matter.

        Parameters
        ----------
        state_dict : mapping or path
            Tensors, on any device and of any float type, or arrays, by name; or a
            ``.safetensors`` file of them.
        activation : str or sequence of str
            A name for the hidden layers, while the last has none, as is the custom
            there; or a list of one name a layer.

        Raises
        ------
        InputError, FormatError
            If the names, shapes and types are not of such modules, their order in a
            file cannot be told, or the number of activations is wrong.

        Examples
        --------
        >>> tensors = {"0.weight": np.eye(3), "0.bias": np.zeros(3),
        ...            "2.weight": np.ones((1, 3)), "2.bias": np.ones(1)}
        >>> net = clnet.Network.from_state_dict(tensors, "relu")
        >>> net.predict([1, -2, 3]).tolist()
        [5.0]
        """
        from clnet.formats.pytorch import from_state_dict

        return from_state_dict(state_dict, cls, activation)

    def to_torch(self) -> Any:
        """Return the network as a new `torch.nn.Sequential`, in evaluation mode.

        Linear modules, each followed by its activation, and by Dropout where a layer
        has it. Connections that partially or locally connected layers lack are weights
        of 0; a steepness is multiplied into the weights. `scaling` is left out, as by
        `compile`, with a `ClnetWarning`.

        Raises
        ------
        InputError
            If a layer reads others than its predecessor, or PyTorch has no module of
            its activation.
        ClnetError
            If PyTorch is not installed.
        """
        from clnet.formats.pytorch import to_torch

        return to_torch(self)

    def state_dict(self) -> dict[str, Any]:
        """Return the tensors of `to_torch` by name, as ``"0.weight"`` and ``"0.bias"``.

        Errors are those of `to_torch`.
        """
        return dict(self.to_torch().state_dict())

    def prune(
        self,
        *,
        density: float | None = None,
        threshold: float | None = None,
        layers: Iterable[int] | None = None,
        format: str = "auto",  # noqa: A002  as for `Sparse`
    ) -> Network:
        """Return a partially connected network without the smallest weights.

        The remaining weights keep their values, and can be trained further.

        Parameters
        ----------
        density : float or None
            Share of a layer's possible connections to keep, in (0, 1]: those with the
            largest weights, at least one, and only existing ones of a sparse layer.
        threshold : float or None
            Keep the weights with a larger absolute value. Either this or a density.
        layers : iterable of int or None
            Numbers of the layers, counted from 0; None: all.
        format : str
            As for `Sparse`.

        Raises
        ------
        InputError
            If an argument is not as above, or a layer would have no weight left.

        Examples
        --------
        >>> net = clnet.Network.mlp([100, 50, 10], seed=0)
        >>> small = net.prune(density=0.1, layers=[0])
        >>> [matrix.count for matrix in small.matrices]
        [500, 500]
        """
        from clnet.nn.conversion import pruned

        return pruned(self, density, threshold, layers, format)

    def to_dense(self, layers: Iterable[int] | None = None) -> Network:
        """Return the network with all or some layers made dense; new weights are 0.

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
        """Return the network with all or some sparse layers in a format of `Sparse`.

        Connections and weights stay the same, bit for bit.

        Raises
        ------
        InputError
            If there is no such format or layer.
        """
        from clnet.nn.conversion import stored

        return stored(self, format, layers)

    @takes(FitOptions)
    def fit(self, options: FitOptions) -> History:
        """Train on samples, and return the history.

        The data set goes to the device once. Parameters and optimiser state stay there,
        and the host reads one record an epoch. Ctrl-C stops the training and keeps the
        trained parameters.

        Sparse layers of format ``"auto"`` are trained in the format with the shortest
        measured step on the device; `History.plan` names it. Exceptions are trained in
        their own format: several devices, and an optimiser whose random numbers depend
        on the parameters' offsets (`Sarprop`). Parameters, states and files keep the
        network's format.

        Parameters
        ----------
        x : array_like, scipy.sparse matrix, samples with names, or source
            Inputs [samples, n_in]; converted to the network's dtype. Values that have
            names, as for `predict`, are found by those in `columns`, or set these
            where there are none. Memory maps,
            arrays of h5py and sparse matrices are read by parts if they take more than
            the `buffer`; iterables of batches (x, t) or (x, t, sample_weight) always.
            On one device a sparse matrix stays one, if its samples have few entries,
            and if the layers that read it are dense and it is not scaled.
        t : array_like, shape [samples, n_out], [samples] or [samples, 1], or None
            Targets, likewise; None: x has them. For one output also numbers [samples].
            Labels [samples] or [samples, 1] are strings, booleans or, for several
            outputs, whole numbers: they are trained as one-hot rows, and set `classes`,
            sorted, where there are none yet.
        optimiser : str, Optimiser or None
            A name of `clnet.optimisers`, with its default constants, or one of its
            rows; ``"fann"``: the optimiser and constants of the ``.net`` file.
            ``"cascade"``, or a `Cascade`: a shortcut network grows, with the constants
            of the ``.net`` file or FANN's defaults; see ``docs/how_to/cascade.md``
            for the arguments that apply. None:
            ``"fann"`` for a network from FANN's files; else ``"adam"``, or ``"rprop"``
            where a step takes the whole training set: by `batch_size`, or because the
            set is no larger than a mini-batch of 32.
        loss : str or None
            A name of `clnet.nn.losses`; None: categorical_cross_entropy for softmax,
            the error function of a network from FANN's files, else mse.
        epochs : int
            Passes over the data set at most; with `resume`, those before it included.
        max_neurons : int or None
            Neurons that cascade training adds at most; None: 30. Of no other training.
        batch_size : int or None
            Samples a step; None: the optimiser's ``default_batch``: 32 for the
            stochastic ``"sgd"``, ``"adam"``, ``"adamw"`` and ``"rmsprop"``, one for
            ``"incremental"``, all for FANN's other rules.
        shuffle : bool or None
            Whether each epoch has its own random order; None: yes, except for
            ``"incremental"``. Without effect on a batch of all samples.
        validation : (x, t), (x, t, sample_weight), source or None
            Validation set, measured after each epoch.
        sample_weight : array_like, shape [samples], or None
            Numbers of at least 0. The loss, the MSE and their gradient are means over
            the sum of the weights of a step's batch; where that is 0, they are 0. Steps
            of one sample, and a validation, divide by the mean weight of the set: those
            that come by parts are read once before. Bit fails are counted. Equal
            weights are as none. A weight of 2 is as the sample twice where a step takes
            the whole set and the optimiser the mean gradient, which all do but
            ``"quickprop"`` and ``"sarprop"``.
        callbacks : iterable of callables
            Called after each epoch with the `Training` and the `Epoch`; True stops the
            training. See `clnet.training.callbacks`.
        seed : int or None
            Seed of the order of samples; None: from the operating system.
        device : str, Device or None
            As for `clnet.device`.
        devices : list of these, ``"all"`` or None
            Devices that share each batch, instead of `device`. Each computes the
            gradients of its samples and adds those of all, so parameters stay equal.
            The result is that of one device, except for the order of summation and the
            elements that dropout drops.
        desired_error : float or None
            Stop when the training error that an epoch reports is at most this. The
            network has the parameters after the epoch.
        stop : {"mse", "bit_fail"} or None
            The error of `desired_error`; None: that of the ``.net`` file, else the MSE.
        schedule : str, callable or None
            Factor of the learning rate for each epoch, counted from 0: ``"step"``,
            ``"exponential"``, ``"cosine"`` over these epochs, a row of
            `clnet.schedules`, or a function of the epoch's number.
        l1, l2 : float
            Penalties of weights, not of biases: ``l1 * sum |w| + l2 * sum w^2`` is
            added to the mean loss for the gradient, not for the reported loss.
        clip_norm, clip_value : float or None
            Bound of the mean gradient's Euclidean norm, or of each of its elements.
        state : TrainingState or None
            Resume from the `state` of an earlier `History`, bit for bit as without the
            interruption, for `epochs` more epochs.
        resume : str, path or None
            Go on with the training of a file that a `Checkpoint` wrote, bit for bit as
            without the interruption, to its end after `epochs` epochs in all: the same
            program run again ends at the same place. Parameters, order of samples,
            history and callbacks go on, by the plan of the file.
        tune : bool or None
            None: use stored times; measure the likely candidates without one, for a
            tenth of the time that all epochs take at most, and nothing in a short
            training. True: measure the whole tuning space. False: measure nothing, use
            stored times or the cost model. Trainings of different lengths may thus
            have different plans: False gives plans that do not depend on the length.
        progress : bool or None
            True: show the progress of measurements and epochs on stderr; None: of
            measurements, as `compile` does.
        scale : bool or None
            True: scale inputs and targets, also of the validation set, by the network's
            `scaling`; losses are those of scaled values. None, False: as for `predict`.
        precision : str
            As for `compile`.
        comm : mpi4py.MPI.Comm or None
            The ranks that share each step, all of which call `fit` alike; see
            ``docs/how_to/mpi.md``. Each computes a part of the samples on its own
            device, and of a source reads that part alone. All get the same parameters
            and history; rank 0 alone calls callbacks.
        blocks : int or None
            With `comm`: the blocks that a step's samples are cut into, a power of two.
            Sums over blocks have one order, so that the result has the same bits on any
            number of ranks. None: a block a rank, summed in MPI's order.
        buffer : int or None
            Bytes of host memory for the samples of a source; None: 256 MiB. One that
            fits is read as a whole. Of others six blocks fit: their order is random in
            each epoch, and so is that of the samples in each, unless `shuffle` is
            False. The ranks of `comm` share these bytes.

        Returns
        -------
        History
            The epochs, the reason of the stop, and the state to resume from.

        Raises
        ------
        InputError, DeviceError
            If an argument is wrong, no such device exists, or memory does not suffice;
            if the file is of another network, data set or way to train.
        FormatError
            If `resume` is no checkpoint.

        Warns
        -----
        ClnetWarning
            Before the first epoch, if targets are beyond what the outputs' functions
            reach. If the loss is not finite: the training stops, and the last finite
            parameters are kept. If the file was written on another device: the results
            differ in rounding.

        Examples
        --------
        Exclusive or, by RPROP, as four samples are one step:

        >>> x, t = [[0, 0], [0, 1], [1, 0], [1, 1]], [0, 1, 1, 0]
        >>> net = clnet.Network.mlp([2, 8, 1], ["tanh", "sigmoid"], seed=0)
        >>> history = net.fit(x, t, epochs=500, desired_error=1e-3)
        >>> history.mse[-1] <= 1e-3, net.classify(x).tolist()
        (True, [0, 1, 1, 0])
        """
        from clnet.training.fit import fit

        return fit(self, options)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the network to a file atomically, in the format of its suffix.

        Parameters
        ----------
        path : str or path
            The file, whose suffix is one of those that `clnet.load` reads.

        Raises
        ------
        InputError
            If the path is no file name.
        FormatError
            If the format cannot hold the network, the file cannot be written, or its
            suffix is unknown.

        Examples
        --------
        >>> clnet.Network.mlp([2, 3, 1], seed=0).save("net.safetensors")
        """
        from clnet.formats import save

        save(self, path)

    def _repr_html_(self) -> str:
        from clnet.nn.notebook import html_table

        rows = []
        for number, layer in enumerate(self.layers):
            several = not isinstance(layer.activation, str)
            rows.append((
                number, type(layer).__name__, layer.n_out,
                "mixed" if several else layer.activation,
                self.matrices[number].count + self.biases(number).size,
            ))
        count = sum(row[-1] for row in rows)
        caption = f"{self!r}: {count} parameters, {counted(self.n_in, 'input')}"
        headers = ("layer", "kind", "neurons", "activation", "parameters")
        return html_table(caption, headers, rows)

    def __repr__(self) -> str:
        sizes = "-".join(str(n) for n in self.sizes)
        return f"<Network {sizes} {self._dtype}>"


def load(
    path: str | PathLike[str],
    *,
    dtype: str | None = None,
    memory_limit: int | None = None,
) -> Network:
    """Return the network of a file.

    Parameters
    ----------
    path : str or path
        ``.net``: FANN's network files; ``.safetensors``: clnet's own; ``.onnx``: those
        of feed-forward networks (the extra ``onnx``).
    dtype : {"float32", "float64"} or None
        Type of the numbers of a ``.net`` file, which does not hold it; None: float32.
    memory_limit : int or None
        Most bytes that the file may hold, and that its partially connected layers may
        take; None: 64 MiB, and 16 times the file's size. If they take more with the
        padding of their formats, they are stored as ``"csr"``, which has none, with a
        ClnetWarning. All else takes memory in proportion to the file.

    Raises
    ------
    FormatError
        If the file is missing, unreadable, truncated, foreign or not supported, its
        suffix is unknown, or it takes more than the limit.
    InputError
        If dtype is unknown, or given for a file that holds its own; or if the limit is
        wrong.

    Examples
    --------
    >>> clnet.Network.mlp([2, 3, 1], seed=0).save("net.safetensors")
    >>> clnet.load("net.safetensors")
    <Network 2-3-1 float32>
    """
    from clnet.formats import load_network

    return load_network(path, Network, dtype, memory_limit)
