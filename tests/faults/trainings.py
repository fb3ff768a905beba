"""Scenarios of trainings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clnet
from clnet import Cascade, Checkpoint, Dense, Device, Network, Population
from clnet.opencl.discovery import Devices
from clnet.planning.training_planner import TRAINING_VARIANTS, plan_training
from clnet.training import member_training, plans
from clnet.training.history import TrainingState
from clnet.variants.members.group_members import GroupMembers
from faults.setting import CPU, T, X, few_variants, mlp, uninterrupted


def fitted(
    folder: Path, devices: Devices = CPU, variants: Sequence[str] = (), **options: Any
) -> Any:
    chosen = [one for one in TRAINING_VARIANTS if one.name in variants] or None
    plan = partial(plan_training, tune=False, variants=chosen)
    network = mlp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "plan_training", plan)
        history = uninterrupted(network.fit(
            X, T, devices=devices, epochs=3, seed=1, **options
        ))
    return np.array([*history.loss, *network.parameters])


def together(folder: Path, device: Device = CPU, *, groups: bool = False) -> Any:
    """A population: in one launch, by workers or a work-group each."""
    rows = [np.arange(9), np.arange(2, 9), np.arange(5)]
    made = Population(mlp(), 3)
    with pytest.MonkeyPatch.context() as patch:
        if groups:
            patch.setattr(
                member_training, "members_variants",
                lambda device, members, samples, subsets, alike: (
                    GroupMembers(members, subsets),
                ),
            )
        histories = made.fit(
            X, T, device=device, epochs=[3, 2, 4], seed=1, optimiser="adam",
            batch_size=4, rows=rows, validation=(X, T), patience=2,
        )
    losses = [uninterrupted(one).loss for one in histories]
    return np.hstack([*losses, made.parameters.reshape(-1)])


def cascaded(folder: Path, device: Device = CPU) -> Any:
    """A cascade training, which adds neurons."""
    few = Cascade(activation_functions=["tanh"], max_cand_epochs=6, max_out_epochs=6)
    network = Network(6, [Dense(3, sources=(0,))], seed=1)
    history = uninterrupted(network.fit(
        X, T, device=device, optimiser=few, max_neurons=2, seed=1, desired_error=0,
    ))
    return np.array([*history.loss, *network.parameters])


def checkpointed(folder: Path) -> Any:
    path, network = folder / "net.safetensors", mlp()
    with few_variants():
        uninterrupted(network.fit(
            X, T, device=CPU, epochs=2, seed=1, optimiser="adam",
            callbacks=[Checkpoint(path)],
        ))
    return clnet.load(path).parameters


def resumed(folder: Path) -> Callable[[], Any]:
    state_file = folder / "state.safetensors"
    options = {"device": CPU, "epochs": 2, "optimiser": "adam"}
    network = mlp()
    with few_variants():
        state = network.fit(X, T, seed=1, **options).state

    def run() -> Any:
        state.save(state_file)
        network.parameters = network.parameters * 0
        with few_variants():
            history = network.fit(
                X, T, state=TrainingState.load(state_file), **options
            )
        return uninterrupted(history).state.parameters

    return run
