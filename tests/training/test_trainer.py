"""The loop of trainings, by a computation of given errors."""

from __future__ import annotations

import numpy as np
import pytest

from clnet.training.options import DesiredError
from clnet.training.trainer import (
    ALL_DONE,
    CALLED,
    DIVERGED,
    REACHED,
    RUNNING,
    Segment,
    Trainer,
)


class Given:
    """Networks whose errors are known before [networks, epochs]."""

    def __init__(self, mse, size=1, each_epoch=False):
        self.mse, self.size, self.each_epoch = np.array(mse, float), size, each_epoch
        self.done = np.zeros(len(self.mse), int)
        self.enqueued, self.reports = 0, []

    @property
    def ahead(self):
        return bool(self.enqueued > self.done.max())

    def run(self, active, left):
        count = min(self.size, int(left.min()))
        columns = self.done[active, np.newaxis] + np.arange(count)
        self.enqueued = int(columns.max()) + 1
        measures = np.repeat(self.mse[active[:, np.newaxis], columns, np.newaxis], 3, 2)
        return Segment(np.full(len(active), count), measures, None, 0.0)

    def report(self, active, segment, codes):
        self.done[active] += segment.training.shape[1]
        self.reports.append((active.tolist(), segment.training[:, -1, 1].tolist()))


def trained(given, most, desired=(None,), which=None, report=None):
    which = np.zeros(len(most), int) if which is None else np.array(which)
    trainer = Trainer(given, report or given.report, np.array(most), desired, which)
    trainer.run()
    return trainer.codes.tolist()


def test_each_network_stops_by_its_own_rule():
    given = Given([[4, 3, 2, 1], [4, 3, 2, 1], [4, np.inf, 2, 1], [4, 3, 2, 1]])

    def report(active, segment, codes):
        given.report(active, segment, codes)
        codes[(active == 3) & (given.done[active] == 3)] = CALLED

    desired = [None, DesiredError("mse", 2.0)]
    codes = trained(given, [2, 4, 4, 3], desired, [0, 1, 0, 0], report)
    assert codes == [ALL_DONE, REACHED, DIVERGED, CALLED]
    assert given.done.tolist() == [2, 3, 2, 3]
    assert [active for active, _ in given.reports] == [[0, 1, 2, 3]] * 2 + [[1, 3]]


@pytest.mark.parametrize("each_epoch", [False, True])
@pytest.mark.parametrize("size", [1, 3, 9])
def test_segments_end_at_the_first_stop(size, each_epoch):
    given = Given([[9, 8, 7, 6, 5, 4, 3]], size, each_epoch)
    assert trained(given, [7], [DesiredError("mse", 5.0)]) == [REACHED]
    assert given.done == [5]
    epochs = 5 if each_epoch else -(-5 // size)
    assert len(given.reports) == epochs
    assert given.reports[-1] == ([0], [5.0])


def test_epochs_that_a_report_makes_void_are_run_again():
    given, reported = Given([[5, 4, 3, 2]], 4, each_epoch=True), []

    def report(active, segment, codes):
        given.report(active, segment, codes)
        given.enqueued = int(given.done[0])  # as a callback that reads the parameters
        reported.append(segment.training[0, 0, 1])

    assert trained(given, [4], report=report) == [ALL_DONE]
    assert reported == [5, 4, 3, 2]


def test_an_interrupt_leaves_networks_running():
    def report(active, segment, codes):
        raise KeyboardInterrupt

    given = Given([[1, 1]])
    trainer = Trainer(given, report, np.array([2]), [None], np.zeros(1, int))
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert trainer.codes.tolist() == [RUNNING]
