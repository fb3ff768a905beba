"""`Predictor`, a model with plans: compile, predict, classify, evaluate, compare."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.checks import PRECISIONS, as_numbers, as_whole, check_flag, is_number
from clnet.errors import InputError, quoted
from clnet.nn.labels import decided, output_middles
from clnet.nn.model import Model
from clnet.nn.scaling import scaling_to_apply

if TYPE_CHECKING:
    from clnet.formats.sources import Source
    from clnet.ir.program import Program
    from clnet.nn.metrics import Evaluation
    from clnet.opencl.device import Device
    from clnet.opencl.discovery import Devices
    from clnet.planning.inference import PlanCache
    from clnet.runtime.data_parallel import ParallelPlan
    from clnet.runtime.plan import Plan
    from clnet.variants.base import Variant


class Predictor(Model):
    """A model that predicts, by plans that it keeps, and compares with targets.

    Parameters and errors are those of `clnet.Network`.
    """

    @cached_property
    def _plans(self) -> PlanCache:
        from clnet.planning.inference import PlanCache

        return PlanCache(self)

    @cached_property
    def _recent(self) -> dict[tuple[Any, ...], Plan]:
        return self._plans.recent

    @cached_property
    def program(self) -> Program:
        """The network's ops."""
        from clnet.ir.lowering import lower

        return lower(self)

    def compile(
        self,
        device: str | Device | None = None,
        batch: int = 1,
        *,
        tune: bool | None = None,
        variants: Sequence[str | Variant] | None = None,
        precision: str = PRECISIONS[0],
        progress: bool | None = None,
    ) -> Plan:
        """Return a plan that runs this network on a device for one batch size.

        A plan does not apply `scaling`. Its results on random inputs were compared with
        a float64 reference, once on each device: kernels that give others are left out.

        Parameters
        ----------
        device : str, Device or None
            As for `clnet.device`; or ``"fastest"``: the device with the shortest
            measured time of a call, from host array to host array: a GPU, or for small
            networks the CPU.
        batch : int
            Samples a call.
        tune : bool or None
            None: use stored times, and measure the likely candidates without one;
            True: measure the whole tuning space; False: measure nothing, use stored
            times or the cost model.
        variants : sequence of str or Variant, or None
            The variants to choose from, registered ones by name. None: all that the
            planner searches by default.
        precision : {"highest", "high", "medium"}
            Precision of products: that of float32, or, if that is faster, of factors
            with 11 bits (TF32) or 8 bits (bfloat16); accumulation is in float32.
        progress : bool or None
            Whether a line on stderr shows what is built and measured, if that takes
            longer than a second; None: if stderr is a terminal.

        Raises
        ------
        InputError, DeviceError
            If an argument is wrong, no such device exists, memory does not suffice, or
            no variant computes the network rightly.

        Warns
        -----
        ClnetWarning
            If a kernel fails or gives wrong results, and is left out.

        Examples
        --------
        >>> net = clnet.Network.mlp([8, 4, 2], seed=0)
        >>> plan = net.compile("cpu", batch=16, tune=False)
        >>> plan(np.zeros((16, 8))).shape
        (16, 2)
        """
        from clnet.planning.inference import compile_network
        from clnet.planning.tuning.budget import Budget

        with Budget(progress=progress) as budget:
            return compile_network(
                self, device, batch, tune=tune, variants=variants, precision=precision,
                budget=budget,
            )

    def plan_for(
        self, devices: Devices, batch: int, precision: str = PRECISIONS[0],
        calls: float = 1,
    ) -> Plan | ParallelPlan:
        """Return the plan that `predict` uses, good for so many calls.

        It comes from a cache of recent ones.
        """
        if not is_number(calls):
            raise InputError(f"calls must be a number, not {quoted(calls)}")
        batch = as_whole("batch", batch)
        plan = self._plans.plan(devices, batch, precision, calls)
        return cast("Plan | ParallelPlan", plan)

    def predict(
        self,
        x: ArrayLike | Source,
        device: Devices = None,
        *,
        scale: bool | None = None,
        precision: str = PRECISIONS[0],
        out: NDArray[Any] | None = None,
        buffer: int | None = None,
        comm: Any = None,
    ) -> NDArray[Any]:
        """Return the outputs for inputs.

        The first call with a batch size makes a plan from stored times; without stored
        times NumPy computes the outputs, at once. When the calls of a batch size have
        taken about as long as measuring would, `predict` measures, for a few seconds at
        most, and plans anew: results may then differ in rounding. `compile` measures at
        once, to the end, and gives a plan that stays; `predict` uses the times that it
        and ``clnet tune`` store.

        Parameters
        ----------
        x : array_like, scipy.sparse matrix, samples with names, or source
            Inputs [batch, n_in] or [n_in]; converted to the network's dtype. Arrays of
            other libraries in host memory are read where they lie, by ``__array__``,
            the buffer protocol or DLPack. A sparse matrix becomes dense, some samples
            at a time, or stays sparse where it would be large, as in `fit`. Values that
            have names are found by those of the network's `columns`: frames of pandas,
            polars, pyarrow and other libraries, dicts of columns or of one sample,
            lists of dicts, a Series with an index of names, structured arrays. A
            missing number is NaN. Sources are read by parts: memory maps, arrays of
            h5py, iterables of batches.
        device : str, Device, list of these, or None
            As for `compile`. A list, or ``"all"``: devices that run at the same time
            and share the samples in proportion to their speed. The devices are found
            at the first call with a batch size: later ones use the same plan, whatever
            ``$CLNET_DEVICE`` is by then.
        scale : bool or None
            True: scale the inputs and descale the outputs by the network's `scaling`;
            False: do not scale, as in FANN; None: do not scale, and warn if the network
            has a scaling.
        precision : str
            As for `compile`.
        out : ndarray, shape of the outputs, or None
            Receives the outputs, part by part: a memory map for more than memory holds.
            None: a new array.
        buffer : int or None
            Bytes of host memory for parts of a source; None: 256 MiB.
        comm : mpi4py.MPI.Comm or None
            The ranks that share the samples, all of which call `predict` alike: each
            reads and computes a part of the rows of an array, or of a source of
            `clnet.open_data`, on its own device. All get all outputs, but with `out`
            each writes its own rows alone.

        Returns
        -------
        ndarray, shape [batch, n_out] or [n_out]
            Outputs, in the network's dtype, or `out`.

        Raises
        ------
        InputError, DeviceError
            If the shape or type is wrong, the scaling is missing, or no such device
            exists.

        Examples
        --------
        >>> net = clnet.Network.mlp([8, 32, 3], ["relu", "softmax"], seed=0)
        >>> y = net.predict(np.zeros((5, 8)))
        >>> y.shape, bool(np.allclose(y.sum(axis=1), 1))
        ((5, 3), True)
        """
        plain = out is None and buffer is None and scale is None and comm is None
        if plain and self._scaling is None and type(x) is np.ndarray and (
            x.dtype.kind != "V"
        ):
            try:
                plan = self._recent.get((x.shape, device, precision))
            except TypeError:  # a list of devices
                plan = None
            if plan is not None and plan.calls_left > 0:
                plan.calls_left -= 1
                y: NDArray[Any] = plan(x)
                return y
        from clnet.planning.predictions import Prediction, predict

        scaling = scaling_to_apply(self._scaling, scale)
        how = Prediction(self, self._plans, device, scaling, precision, buffer)
        return predict(how, x, out, comm)

    def classify(
        self,
        x: ArrayLike,
        device: Devices = None,
        *,
        scale: bool | None = None,
        precision: str = PRECISIONS[0],
    ) -> NDArray[Any]:
        """Return the class of each input: the one of the largest output.

        A single output stands for the second class above the middle of its range.

        Parameters
        ----------
        x, device, scale, precision
            As for `predict`.

        Returns
        -------
        ndarray, shape [batch] or []
            Of `classes`; without them the numbers of the outputs, from 0.

        Raises
        ------
        InputError, DeviceError
            As `predict`, and if the one output is unbounded, or an output is NaN.

        Examples
        --------
        >>> net = clnet.Network(2, [clnet.Dense(2, "softmax")], classes=["no", "yes"])
        >>> net.set_layer(0, np.eye(2), np.zeros(2))
        >>> net.classify([[3, 1], [1, 3]]).tolist()
        ['no', 'yes']
        """
        scaling = scaling_to_apply(self._scaling, scale)
        y = self.predict(x, device, scale=scaling is not None, precision=precision)
        return self.labels_of(y, scaling is not None)

    def labels_of(self, y: NDArray[Any], scale: bool = False) -> NDArray[Any]:
        """Return the class of each of the outputs y [batch, n_out]; see `classify`."""
        check_flag("scale", scale)
        y = as_numbers("y", y)
        if not y.ndim or y.shape[-1] != self.n_out:
            raise InputError(
                f"y has shape {list(y.shape)}, expected [batch, {self.n_out}]"
            )
        middles = output_middles(self, self._scaling if scale else None)
        return decided(y, middles[0], self._classes)

    def evaluate(
        self,
        x: ArrayLike | Source,
        t: ArrayLike | None = None,
        device: Devices = None,
        *,
        scale: bool | None = None,
        buffer: int | None = None,
        comm: Any = None,
    ) -> Evaluation:
        """Return the errors of the outputs for x [batch, n_in]; t is as for `fit`.

        Sources are read by parts, with a `buffer` as for `predict`; t is None where
        their batches have targets. With ``scale=True``, as for `predict`, errors are in
        the units of the data. The ranks of `comm` share the samples as in `predict`.

        Raises
        ------
        InputError, DeviceError
            As `predict`, and if the shape of t is not that of the outputs.

        Examples
        --------
        >>> net = clnet.Network(1, [clnet.Dense(1)])
        >>> net.set_layer(0, [[2]], [1])
        >>> result = net.evaluate([[0], [1], [2]], [1, 3, 6])
        >>> round(result.mse, 3), result.bit_fail
        (0.333, 1)
        """
        from clnet.planning.predictions import Prediction, evaluate

        scaling = scaling_to_apply(self._scaling, scale)
        how = Prediction(self, self._plans, device, scaling, buffer=buffer)
        return evaluate(how, x, t, comm)[0]

    def compare(self, y: ArrayLike, t: ArrayLike, *, scale: bool = False) -> Evaluation:
        """Return the errors of outputs against targets.

        The bit-fail limit is that of ``fann``; a FANN network halves the errors of
        symmetric outputs. With ``scale=True`` y and t are in the units of the data, and
        so is the threshold of a single output between two classes.

        Parameters
        ----------
        y : array_like, shape [batch, n_out]
            Outputs of this network.
        t : array_like, shape [batch, n_out], or as for `fit`
            Targets.
        scale : bool
            Whether both are in the units of the data.

        Returns
        -------
        Evaluation
            The errors.

        Raises
        ------
        InputError
            If shapes differ, there is no sample, or the scaling is missing.
        """
        from clnet.nn.metrics import evaluations

        scaling = scaling_to_apply(self._scaling, scale)
        return evaluations(self, scaling, [(as_numbers("y", y)[np.newaxis], t)])[0]
