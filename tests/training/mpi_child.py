"""Trainings and predictions by the ranks that `test_mpi` starts; rank 0 prints them."""

from __future__ import annotations

import json
import sys
import zlib
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from bounds import FLOAT32, LAMBDA
from deviations import deviations
from mpi4py import MPI

from clnet import Checkpoint, EarlyStopping, Network, Population, device, open_data
from clnet.cli.main import main as cli
from clnet.errors import ClnetError
from clnet.ir.lowering import lower_training
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import SGD
from clnet.planning import training_planner
from clnet.runtime import rank_sums
from clnet.variants.reference.generic import Generic, GenericBackward

COMM = MPI.COMM_WORLD
RNG = np.random.default_rng(0)
X = RNG.normal(size=(101, 5)).astype(np.float32)
T = np.tanh(X[:, :2])
# Few digits: sums of the products have the same bits in any order.
DIGITS = RNG.integers(-2, 3, (64, 3)).astype(np.float32)


def network(**options):
    return Network.mlp([5, 6, 2], "tanh", seed=1, **options)


def equal_on_all_ranks(values):
    checksums = COMM.allgather(zlib.crc32(np.ascontiguousarray(values)))
    assert len(set(checksums)) == 1, checksums
    return checksums[0]


def same_bits():
    """Return checksums of parameters and measures after a training."""
    net = network(dropout=0.25)
    history = net.fit(
        X, T, optimiser=SGD(0.1, 0.5), batch_size=6,  # of 8 blocks, two are empty
        validation=(X[:37], T[:37]), sample_weight=np.arange(101.0), epochs=2, seed=7,
        device="cpu", tune=False, comm=COMM,
    )
    return [
        equal_on_all_ranks(net.parameters),
        equal_on_all_ranks(history.epochs.rows[:, :-1]), history.stopped,
    ]


class Stored:
    """An array in a file that records the rows that are read of it."""

    chunks = None

    def __init__(self, array):
        self.array, self.rows = array, np.zeros(len(array), int)
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, rows):
        self.rows[rows] += 1
        return self.array[rows]


def by_parts(folder):
    """Return checksums of trainings on samples that are read by parts.

    Each goes on from the checkpoint of half as many ranks, after two of three epochs.
    """
    found = []
    weight = np.arange(101.0)
    for kind in "stored", "map", "copies":
        x = Stored(X)
        if kind == "map":
            path = folder / f"{COMM.size}-{COMM.rank}.npy"
            np.save(path, X)
            x = np.load(path, mmap_mode="r")
        where = device("cpu")
        if kind == "copies":
            where = replace(where, fine_svm=False, companions=())
        checkpoint = folder / f"{kind}-{COMM.size}.safetensors"
        other = folder / f"{kind}-{max(1, COMM.size // 2)}.safetensors"
        net = network(dropout=0.25)
        options = {
            "optimiser": SGD(0.1, 0.5), "batch_size": 6, "seed": 7, "device": where,
            "validation": (Stored(X), T, weight), "tune": False,
            "sample_weight": weight, "comm": COMM, "buffer": 6 * 4 * 8 * 13,
        }
        net.fit(x, T, epochs=2, callbacks=[Checkpoint(checkpoint)], **options)
        if kind == "stored":
            seen = np.array(COMM.allgather(x.rows.tolist()))
            # All look at the first samples, for errors; two epochs read each once.
            assert (np.sort(seen - 1, axis=0)[:-1] == 0).all(), seen
            assert (seen.max(axis=0) == 3).all(), seen
        net = network(dropout=0.25)
        history = net.fit(x, T, epochs=3, resume=other, **options)
        found.append([
            equal_on_all_ranks(net.parameters),
            equal_on_all_ranks(history.epochs.rows[:, :-1]), history.stopped,
        ])
    return found


RATE = 1e-6  # of `losses`: steps that are too short to be unstable


def exact_losses():
    """Return the oracle's losses of `losses`, and bounds of their errors.

    Validation is one more epoch whose rate is 0.
    """
    net = network()
    program = lower_training(net, loss_function("mse"), SGD(RATE), samples=len(X))
    state = np.zeros((SGD(RATE).slots, net.layout.size))
    start = {
        "batch": np.array(6), "state": state, "seed": 0,
        **{
            value.name: rows.astype(np.float64)
            for value, rows in zip(program.inputs, (X, T), strict=False)
        },
    }
    steps = [
        {"first": first, "samples": min(6, len(X) - first), "fresh": first == 0,
         "seen": min(first + 6, len(X)), "count": count, "rate": rate}
        for rate in (RATE, 0.0) for count, first in enumerate(range(0, len(X), 6))
    ]
    found = []
    for passes in steps[: len(steps) // 2], steps:
        values, deviation = deviations(
            program.ops, start, net.parameters, FLOAT32, passes
        )
        found.append([
            each[program.output.name][0, 0] / len(X) for each in (values, deviation)
        ])
    (loss, off), (validation, validation_off) = found
    return [loss, validation], [LAMBDA * off, LAMBDA * validation_off]


def losses():
    """Return losses of one epoch: in memory and by parts, alone and by ranks."""
    found = []
    for x in X, Stored(X):  # the latter by parts
        for comm in None, COMM:
            net = network()
            history = net.fit(
                x, T, optimiser=SGD(RATE), batch_size=6, epochs=1, device="cpu",
                validation=(x, T), shuffle=False, tune=False, comm=comm,
                buffer=6 * 4 * 7 * 13,
            )
            epoch = history[-1]
            found.append([epoch.loss, epoch.validation.loss])
    return found


def ignored():
    """Return losses with and without weights: those of wrong targets are 0."""
    weight = np.arange(101) % 3 > 0
    t = np.where(weight[:, np.newaxis], T, 1e6)
    found = []
    for options in {"sample_weight": weight}, {}:
        history = network().fit(
            Stored(X), t, optimiser=SGD(1e-9), batch_size=8, epochs=1, device="cpu",
            tune=False, comm=COMM, seed=2, buffer=6 * 4 * 8 * 9, **options,
        )
        found.append(history[-1].loss)
    return found


def in_pieces():
    """Return checksums of parameters, and plans: sums of many pieces, and of one.

    By the steps of single ops, so that pieces are complete one after the other.
    """
    shared = device("cpu")
    found, plans = [], []
    for where in shared, replace(shared, fine_svm=False, companions=()):
        for length in 64, rank_sums.PIECE_BYTES:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(rank_sums, "PIECE_BYTES", length)
                net = Network.mlp([5, 9, 6, 2], "tanh", seed=1)
                history = net.fit(
                    X, T, optimiser=SGD(0.1), batch_size=6, epochs=2, seed=7,
                    device=where, tune=False, comm=COMM,
                )
            found.append(equal_on_all_ranks(net.parameters))
            plans.append(history.plan)
    return found, plans


def population():
    """Return checksums of a population's parameters and errors: alone, and by ranks."""
    found = []
    for comm in None, COMM:
        networks = Population(network(), 5)
        histories = networks.fit(
            X, T, optimiser=["adam"] * 5, epochs=[1, 2, 3, 2, 1], seed=[3, 1, 4, 1, 5],
            rows=[np.arange(40 + i) for i in range(5)], batch_size=16, device="cpu",
            sample_weight=np.arange(5 * 101.0).reshape(5, 101), comm=comm,
        )
        errors = np.concatenate([one.epochs.rows[:, :-1] for one in histories])
        found.append([
            equal_on_all_ranks(networks.parameters), equal_on_all_ranks(errors),
            [len(one) for one in histories],
        ])
    return found


def population_by_parts():
    """Return a population's results on samples read by parts: alone, and by ranks."""
    found = []
    for comm in None, COMM:
        networks = Population(network(), 3)
        histories = networks.fit(
            Stored(X), Stored(T), optimiser=["adam"] * 3, epochs=[1, 2, 2], seed=2,
            batch_size=8, validation=(Stored(X), Stored(T)), patience=3, tune=False,
            device="cpu", buffer=1 << 11, comm=comm,
        )
        errors = np.concatenate([one.epochs.rows[:, :-1] for one in histories])
        assert not any("networks together" in one.plan for one in histories)
        found.append([
            equal_on_all_ranks(networks.parameters), equal_on_all_ranks(errors),
            [one.stopped for one in histories],
        ])
    return found


def linear():
    net = Network.mlp([3, 2], "identity")
    net.set_layer(0, np.zeros((2, 3)), np.zeros(2))
    return net


def exact():
    """Return the weights of a linear network after SGD; a wrong scale shows."""
    found = []
    for options in {}, {"comm": COMM}, {"comm": COMM, "blocks": None}:
        net = linear()
        net.fit(DIGITS[:16], DIGITS[16:32, :2], optimiser=SGD(0.25), batch_size=8,
                epochs=1, seed=3, device="cpu", tune=False, **options)
        found.append(net.parameters.tolist())
    return found


def restored():
    """Return least losses of trainings, and those of the restored networks.

    By steps of all samples, and by a weighted validation that is read by parts.
    """
    found, weight = [], np.linspace(1, 9, 101)
    for measure, validation, weights in [
        ("loss", None, None), ("validation_loss", map(Stored, (X, T, weight)), weight),
    ]:
        net, stop = network(), EarlyStopping(measure, patience=20)
        net.fit(X, T, optimiser=SGD(3.0, 0.9), batch_size=101, epochs=20, device="cpu",
                validation=validation and tuple(validation), tune=False, comm=COMM,
                callbacks=[stop], buffer=1 << 11)
        equal_on_all_ranks(net.parameters)
        errors = ((net.predict(X, "cpu") - T) ** 2).mean(axis=1)
        found.append([stop.best, float(np.average(errors, weights=weights))])
    return found


def predictions(folder):
    """Return outputs and their errors: of one process, of ranks, and in their file."""
    net, path = linear(), folder / "y.npy"
    net.set_layer(0, DIGITS[:2], DIGITS[2, :2])
    alone = net.predict(DIGITS, "cpu")
    found = net.predict(DIGITS, "cpu", comm=COMM)
    equal_on_all_ranks(found)
    if COMM.rank == 0:
        np.lib.format.open_memmap(path, "w+", np.float32, found.shape).flush()
    COMM.Barrier()
    out = np.load(path, mmap_mode="r+")
    assert net.predict(DIGITS, "cpu", comm=COMM, out=out) is out
    out.flush()
    COMM.Barrier()
    t, file = DIGITS[:, 1:], folder / "samples.npy"
    if COMM.rank == 0:
        np.save(file, np.concatenate([DIGITS, t], axis=1))
    COMM.Barrier()
    samples = open_data(file, outputs=2)
    return [
        [alone.tolist(), net.evaluate(DIGITS, t, "cpu").mse],
        [found.tolist(), net.evaluate(DIGITS, t, "cpu", comm=COMM).mse],
        [np.load(path).tolist(), None],
        [net.predict(samples, "cpu", comm=COMM).tolist(),
         net.evaluate(samples, None, "cpu", comm=COMM).mse],
    ]


def errors():
    """Return the errors that each rank raises for what is wrong on one of them."""
    net, last = network(), COMM.rank == COMM.size - 1
    other = Network.mlp([5, 7, 2], "tanh", seed=1) if last else net
    calls = {
        "x": lambda: net.predict(X[:, 1:] if last else X, "cpu", comm=COMM),
        "t": lambda: net.evaluate(X, T[1:] if last else T, "cpu", comm=COMM),
        "call": lambda: (
            net.evaluate(X, T, "cpu", comm=COMM) if last
            else net.predict(X, "cpu", comm=COMM)
        ),
        "iterable": lambda: net.predict(iter([X]), "cpu", comm=COMM),
        "batches": lambda: net.fit([(X, T)] * 3, comm=COMM, device="cpu"),
        "network": lambda: other.fit(X, T, comm=COMM, device="cpu", optimiser="sgd"),
        "samples": lambda: net.fit(X[last:], T[last:], comm=COMM, device="cpu"),
        "tune": lambda: net.fit(X, T, comm=COMM, tune="yes" if last else False),
        "blocks": lambda: net.fit(X, T, comm=COMM, device="cpu", blocks=3),
        "incremental": lambda: net.fit(
            X, T, comm=COMM, device="cpu", optimiser="incremental"
        ),
        "comm": lambda: net.predict(X, "cpu", comm="MPI"),
        "alone": lambda: net.fit(X, T, device="cpu", blocks=4),
    }
    found = {}
    for name, call in calls.items():
        try:
            call()
            text = ""
        except ClnetError as error:
            text = str(error)
        found[name] = COMM.gather(text)
    return found


def command_line(folder):
    """Return the exit statuses of two commands, and a checksum of a network's file."""
    data, saved = folder / "ranks.csv", folder / f"{COMM.size}.safetensors"
    if COMM.rank == 0:
        np.savetxt(data, DIGITS, delimiter=",")
    COMM.Barrier()
    command = ["train", str(data), "--outputs", "1", "--layers", "2-4-1", "--seed", "3",
               "--epochs", "2", "--device", "cpu", "--save", str(saved)]
    if COMM.size == 1:
        command.append("--mpi")  # others find it
    with redirect_stdout(StringIO()) as printed:
        statuses = [cli(command)]
    assert bool(printed.getvalue()) == (COMM.rank == 0)
    statuses.append(cli(["train", str(folder / "none.csv"), "--mpi"]))
    COMM.Barrier()
    return [*statuses, zlib.crc32(saved.read_bytes())]


def main(folder):
    results = {"size": COMM.size, "same_bits": same_bits()}
    with pytest.MonkeyPatch.context() as patch:
        steps = Generic(), GenericBackward()
        patch.setattr(training_planner, "TRAINING_VARIANTS", steps)
        results["in_pieces"] = in_pieces()
    results["by_parts"], results["population"] = by_parts(folder), population()
    results["population_by_parts"] = population_by_parts()
    if COMM.size == 1:
        results["exact_losses"] = exact_losses()
    if COMM.size < 4:
        results["losses"], results["ignored"] = losses(), ignored()
        results["command_line"] = command_line(folder)
    if COMM.size == 2:
        results["restored"], results["exact"] = restored(), exact()
        results["predictions"] = predictions(folder)
        results["errors"] = errors()
    if COMM.rank == 0:
        print(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
