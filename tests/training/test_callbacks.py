"""Callbacks: their view of a training, early stopping, checkpoints."""

from __future__ import annotations

import numpy as np
import pytest
from test_training import net, spirals

from clnet import load
from clnet.errors import ClnetError, ClnetWarning, FormatError
from clnet.nn.optimisers import Adam
from clnet.training.callbacks import Checkpoint, EarlyStopping


def test_callbacks_see_and_stop():
    x, t = spirals()
    seen = []

    def watch(training, epoch):
        seen.append((epoch.number, training.parameters.copy(), len(training.history)))
        return epoch.number == 4

    network = net()
    before = network.parameters.copy()
    history = network.fit(x, t, epochs=50, callbacks=[lambda *_: None, watch])
    assert [(n, length) for n, _, length in seen] == [(i, i) for i in range(1, 5)]
    assert (seen[0][1] != before).any()
    np.testing.assert_array_equal(seen[-1][1], network.parameters)
    assert history.stopped == "watch stopped after epoch 4"


def test_early_stopping_restores_the_best():
    x, t = spirals()
    kept = {}

    def keep(training, epoch):
        kept[epoch.number] = training.parameters

    stop = EarlyStopping(patience=3)
    network = net()
    history = network.fit(
        x[:15], t[:15], epochs=400, optimiser=Adam(0.2), callbacks=[keep, stop],
        validation=(x[60:], t[60:]),
    )
    best = 1 + int(np.argmin(history.validation_loss))
    assert stop.best_epoch == best == len(history) - 3
    assert history.best_epoch == best
    assert history.stopped == (
        f"EarlyStopping stopped after epoch {len(history)}; epoch {best} was the best "
        "by validation_loss, and its parameters are restored"
    )
    np.testing.assert_array_equal(network.parameters, kept[best])


def test_early_stopping_serves_another_training():
    x, t = spirals()
    stop = EarlyStopping(patience=2)
    found = []
    for _ in range(2):
        network = net()
        network.fit(x[:15], t[:15], epochs=60, optimiser=Adam(0.2), callbacks=[stop],
                    validation=(x[60:], t[60:]))
        found.append(network.parameters.tobytes())
    assert found[0] == found[1]


def test_a_validation_that_overflows():
    """Training goes on; for early stopping a non-finite value is no improvement.

    Compensated sums of infinities are NaN, plain ones infinite.
    """
    x, t = spirals()
    network = net("identity")
    wide = np.full((4, 2), 1.0), np.full((4, 2), 1e30)
    with pytest.warns(ClnetWarning, match="validation loss of epoch 1 is (inf|nan)"):
        history = network.fit(
            x, t, epochs=30, validation=wide, callbacks=[EarlyStopping(patience=4)]
        )
    assert len(history) == 4
    assert ", which improves nothing" in history.stopped
    assert not np.isfinite(history.validation_loss).any()
    assert np.isfinite(network.parameters).all()


def test_an_error_in_a_callback_keeps_the_trained_parameters():
    x, t = spirals()

    def fail(training, epoch):
        if epoch.number == 3:
            raise ZeroDivisionError

    network, other = net(), net()
    with pytest.raises(ZeroDivisionError):
        network.fit(x, t, epochs=50, seed=1, callbacks=[fail])
    other.fit(x, t, epochs=3, seed=1)
    np.testing.assert_array_equal(network.parameters, other.parameters)


def test_checkpoints(tmp_path):
    x, t = spirals()
    network = net()
    path = tmp_path / "best.safetensors"
    network.fit(x, t, epochs=5, seed=1, callbacks=[Checkpoint(path, every=2)])
    other = net()
    other.fit(x, t, epochs=5, seed=1)  # the last epoch is saved too
    np.testing.assert_array_equal(load(path).parameters, other.parameters)


@pytest.mark.parametrize(("name", "message"), [
    ("a.net", "'softmax', which FANN does not have"),
    ("no/a.safetensors", "there is no"),
])
def test_checkpoints_that_cannot_be_saved_fail_before_the_training(
    tmp_path, name, message
):
    x, t = spirals()
    network = net("softmax")
    before = network.parameters.copy()
    with pytest.raises(FormatError, match=message):
        network.fit(x, t, epochs=5, callbacks=[Checkpoint(tmp_path / name, every=5)])
    np.testing.assert_array_equal(network.parameters, before)


@pytest.mark.parametrize(
    "make",
    [
        lambda: EarlyStopping("los"), lambda: EarlyStopping(patience=0),
        lambda: EarlyStopping(min_delta=-1), lambda: EarlyStopping(min_delta="a"),
        lambda: Checkpoint("a.txt"), lambda: Checkpoint("a.net", every=0),
    ],
)
def test_bad_callbacks(make):
    with pytest.raises(ClnetError):
        make()
