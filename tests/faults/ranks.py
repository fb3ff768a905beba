"""Ranks of MPI: the same bits for any number of them, also where ranks fail.

``python -m tests.faults.ranks --settings 20 --faults 100`` trains so many random
networks by 1, 2, 4 and 8 ranks, and lets so many ranks fail in trainings that are
resumed by other numbers of ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
import zlib
from itertools import count, islice
from pathlib import Path

import numpy as np
from children import by_ranks
from differential.cases import family
from waits import HANG_SECONDS

from clnet.errors import ClnetError, ClnetWarning
from clnet.runtime.ranks import joined
from clnet.training.saved import SavedTraining
from faults.resumed import (
    CASES,
    CHECKPOINT,
    CURVE,
    EVERY,
    MOST_SECONDS,
    RESULT,
    check_curve,
    compared,
    train,
)

RANKS = (1, 2, 4, 8)
FAILING = (1, 2, 4)  # ranks of a training in which one fails
EPOCHS = 100  # of a training whose ranks fail
LEAST_BATCH = max(RANKS)
FAULTS = {signal.SIGKILL: 0.7, signal.SIGURG: 0.3}
"""The signals and their shares. SIGURG raises an error: LLVM leaves it alone."""
LAST_SECONDS = 10.0  # from the fault of one rank to the end of all
STRIDE = 17  # families from one to the next: other activations, losses, optimisers


# Random settings --------------------------------------------------------------------


def settings(seed):
    """Yield cases of `Network.fit` that ranks can share, from a seed."""
    for number in count(seed * 10_000, STRIDE):
        case = next(family(number))
        options = case.options
        if case.task == "fit" and options.rule.batch is None:
            yield case


def train_settings(seed, how_many):
    """Train random networks by all ranks; rank 0 prints a line for each."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    for case in islice(settings(seed), how_many):
        options, network = case.options, case.network()
        samples = max(options.samples, 3 * LEAST_BATCH)
        regular = options.regularisation
        x = case.inputs(samples, network.n_in)
        t, weight = case.targets(samples, network.n_out)
        held_out = options.validation
        warnings.simplefilter("ignore", ClnetWarning)
        try:
            history = network.fit(
                x, t, optimiser=options.rule, loss=options.loss, epochs=3,
                batch_size=max(case.batch, LEAST_BATCH) if options.batches else None,
                shuffle=options.shuffled, seed=case.seed, schedule=options.schedule,
                validation=(x[:held_out], t[:held_out]) if held_out else None,
                sample_weight=weight[:, 0] if options.weighted else None,
                l1=regular.l1, l2=regular.l2, clip_norm=regular.clip_norm,
                clip_value=regular.clip_value, precision=case.precision, device="cpu",
                tune=False, comm=comm,
            )
            found = [
                zlib.crc32(network.parameters.data),
                zlib.crc32(np.ascontiguousarray(history.state.values).data),
                zlib.crc32(np.ascontiguousarray(history.epochs.rows[:, :-1]).data),
                history.stopped,
            ]
        except ClnetError as error:
            found = [str(error)]
        everywhere = comm.allgather(found)
        if comm.rank == 0:
            kinds = "-".join(type(layer).__name__ for layer in case.layers)
            equal = all(other == found for other in everywhere)
            print(json.dumps([
                f"{case.seed}: {type(options.rule).__name__}, {options.loss}, {kinds}, "
                f"{case.dtype}", found if equal else everywhere,
            ]), flush=True)


def differing_settings(seed, how_many):
    """Return what differs between numbers of ranks, and print each setting."""
    lines = []
    for ranks in RANKS:
        code = f"from faults.ranks import *; train_settings({seed}, {how_many})"
        done = subprocess.run(**by_ranks(ranks, "-c", code), capture_output=True)
        if done.returncode:
            return [f"{ranks} ranks: {done.stderr[-2000:]}"]
        lines.append([json.loads(line) for line in done.stdout.splitlines()])
    wrong = []
    for (name, first), *others in zip(*lines, strict=True):
        print(name, *first, sep="; ", flush=True)
        wrong += [
            f"{name}: {found} with {ranks} ranks, {first} with one"
            for ranks, (_, found) in zip(RANKS[1:], others, strict=True)
            if found != first
        ]
    return wrong


# Faults -----------------------------------------------------------------------------


def rank(case, folder, every, epochs):
    """Train as one of the ranks; rank 0 prints the processes' numbers first."""
    from mpi4py import MPI

    def fail(*_):
        raise RuntimeError("a fault")

    signal.signal(signal.SIGURG, fail)
    processes = MPI.COMM_WORLD.allgather(os.getpid())
    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps(processes), flush=True)
    with joined(MPI.COMM_WORLD, "train"):
        train(case, folder, every, epochs, MPI.COMM_WORLD)
        signal.signal(signal.SIGURG, signal.SIG_IGN)


def start(ranks, *arguments):
    code = f"from faults.ranks import rank; rank{arguments!r}"
    return subprocess.Popen(
        **by_ranks(ranks, "-c", code), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def ended(process, seconds):
    """Return what the ranks wrote on stderr; they end in so many seconds."""
    try:
        return process.communicate(timeout=seconds)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"ranks go on after {seconds} s") from None


def failed(draw, case, folder, every):
    """Let one rank fail; return its fault and the seconds to the end of all ranks.

    The fault is None if the training ended before.
    """
    ranks = draw.choice(FAILING)
    failing = draw.randrange(ranks)
    (fault,) = draw.choices(list(FAULTS), FAULTS.values())
    with start(ranks, case, str(folder), every, EPOCHS) as process:
        processes = json.loads(process.stdout.readline() or "[0]")
        ready = process.stdout.readline()
        try:
            if ready:
                process.wait(draw.uniform(0, MOST_SECONDS))
        except subprocess.TimeoutExpired:
            os.kill(processes[failing], fault)
        since = time.monotonic()
        errors = ended(process, HANG_SECONDS)
        seconds = time.monotonic() - since
    if process.returncode == 0:
        return None, 0.0
    name = f"rank {failing} of {ranks}"
    assert ready, f"exit code {process.returncode}: {errors[-2000:]}"
    assert seconds < LAST_SECONDS, f"{name}, {fault.name}: ended after {seconds} s"
    if fault != signal.SIGKILL:
        told = errors.count(f"clnet: {name}")
        assert told == 1, f"{name}, {fault.name}: {told} sentences in {errors[-2000:]}"
    if (folder / CHECKPOINT).exists():
        SavedTraining.load(folder / CHECKPOINT)
    if (folder / CURVE).exists():
        check_curve(folder / CURVE, None)
    return fault, seconds


def undisturbed(case, folder):
    """Train by one rank, unless that is done; return the folder."""
    whole = folder / f"{case}-whole"
    whole.mkdir(exist_ok=True)
    if not (whole / RESULT).exists():
        with start(1, case, str(whole), 0, EPOCHS) as process:
            errors = ended(process, HANG_SECONDS)
        assert process.returncode == 0, errors[-2000:]
    return whole


def differing_faults(seed, least):
    """Return what is wrong after so many faults at least; print each training."""
    draw, wrong = random.Random(seed), []
    tally, longest = dict.fromkeys(FAULTS, 0), 0.0
    cases = [(case, every) for case in CASES if case != "incremental"
             for every in EVERY]
    with tempfile.TemporaryDirectory() as folder:
        for number in count():
            if sum(tally.values()) >= least:
                break
            case, every = cases[number % len(cases)]
            parts, faults = Path(folder) / f"{case}-{number}", 0
            parts.mkdir()
            problems = []
            try:
                whole = undisturbed(case, Path(folder))
                while True:
                    fault, seconds = failed(draw, case, parts, every)
                    if fault is None:
                        break
                    faults, longest = faults + 1, max(longest, seconds)
                    tally[fault] += 1
                problems = compared(parts, whole)
            except AssertionError as error:
                problems = [str(error)]
            print(f"{case}, every {every} epochs: {faults} faults", *problems,
                  sep="\n  ", flush=True)
            wrong += problems
    counts = ", ".join(f"{found} {fault.name}" for fault, found in tally.items())
    print(f"{counts}; all ranks ended within {longest:.1f} s")
    return wrong


def main() -> int:
    """Run the command; return 1 if bits differ or ranks do not end."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.ranks")
    parser.add_argument("--settings", type=int, default=20)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    wrong = differing_settings(args.seed, args.settings) if args.settings else []
    if args.faults:
        wrong += differing_faults(args.seed, args.faults)
    for sentence in wrong:
        print(f"wrong: {sentence}")
    print(f"{args.settings} settings, {args.faults} faults: {len(wrong)} problems")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
