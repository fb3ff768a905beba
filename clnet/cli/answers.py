"""The outputs of ``clnet predict``, part by part."""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.errors import WIDTH
from clnet.formats import check_save_data
from clnet.formats.files import as_path, check_writable, write
from clnet.nn.labels import Label, encoded
from clnet.nn.metrics import metrics_of

if TYPE_CHECKING:
    from clnet.cli.samples import Samples
    from clnet.network import Network
    from clnet.nn.metrics import Evaluation
    from clnet.nn.scaling import Scaling
    from clnet.runtime.data_parallel import ParallelPlan
    from clnet.runtime.plan import Plan

NPY = ".npy"  # of outputs alone


class Answers:
    """The outputs of a network for samples; those that were yielded are counted."""

    def __init__(
        self, network: Network, plan: Plan | ParallelPlan, data: Samples, scale: bool,
        *, compares: bool = True,
    ) -> None:
        self.network: Network = network
        self.data: Samples = data
        self.counts: Counter[Label] = Counter()
        self._plan, self._scale = plan, scale
        scaling = network.scaling if scale else None
        self._metrics = metrics_of(network, scaling, auc=True)
        self.compares: bool = compares

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """Yield outputs [samples, n_out]."""
        scaling = self.network.scaling if self._scale else None
        for part in self.data.parts():
            y = run_in_batches(self._plan, np.asarray(part.x), scaling)
            if self.network.classes is not None:
                self.counts.update(self.network.labels_of(y, self._scale).tolist())
            if self.compares:
                t, _ = encoded(self.network, part.t, self.network.classes)
                self._metrics.add(y, t)
            yield y

    def read(self) -> Answers:
        """Compute all outputs, and return itself."""
        for _ in self:
            pass
        return self

    def evaluation(self) -> Evaluation:
        """Return the errors of the outputs; there must be targets."""
        return self._metrics.evaluation()


def check_out(path: str) -> None:
    """Raise the errors of writing outputs to a file now, before the work."""
    if path.lower().endswith(NPY):
        check_writable(as_path(path))
    else:
        check_save_data(path)


def write_outputs(path: str, answers: Answers) -> None:
    """Write outputs to a ``.npy`` file as they come, whole or not at all."""
    head, dtype = io.BytesIO(), np.dtype(answers.network.dtype)
    np.lib.format.write_array_header_1_0(head, {
        "descr": dtype.str, "fortran_order": False,
        "shape": (len(answers.data), answers.network.n_out),
    })

    def content() -> Iterator[bytes]:
        yield head.getvalue()
        for y in answers:
            yield y.astype(dtype, copy=False).tobytes()

    write(as_path(path), content())


def run_in_batches(
    plan: Plan | ParallelPlan, x: NDArray[Any], scaling: Scaling | None
) -> NDArray[Any]:
    """Return the outputs [samples, n_out] for x [samples, n_in], a batch at a time.

    With a scaling, x and the outputs are in the data's units.
    Shows a progress bar on stderr for long work, if that is a terminal.
    """
    from tqdm import tqdm

    network, batch = plan.network, plan.batch
    if scaling is not None:
        x = scaling.scale_input(x)
    y = np.empty((len(x), network.n_out), network.dtype)
    with tqdm(
        total=len(x), unit=" samples", disable=not sys.stderr.isatty(), delay=1,
        ncols=WIDTH, leave=False,
    ) as progress:
        for start in range(0, len(x), batch):
            chunk = x[start : start + batch]
            n = len(chunk)
            if n < batch:  # pad the last one, so that one plan computes all
                chunk = np.pad(chunk, ((0, batch - n), (0, 0)), mode="edge")
            y[start : start + n] = plan(chunk)[:n]
            progress.update(n)
    return y if scaling is None else scaling.descale_output(y)
