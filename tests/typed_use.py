"""A user's script, which `.ci/run` checks by ``mypy --strict`` beside the wheel."""

from __future__ import annotations

import numpy as np

import clnet

x, t = np.zeros((4, 8)), np.zeros((4, 1))
net = clnet.Network.mlp([8, 32, 1], activation="tanh", seed=0)
history: clnet.History = net.fit(
    x, t, optimiser=clnet.optimisers.Adam(1e-2), epochs=3, device="cpu",
    callbacks=[clnet.EarlyStopping("loss", patience=5)],
)
losses: list[float] = history.loss
device: clnet.Device = clnet.device("cpu")
explanation: str = net.compile(device, tune=False).explain()
sizes: tuple[int, ...] = clnet.Network(8, [clnet.Dense(3), clnet.Dense(1)]).sizes
error: float = net.evaluate(x, t, device).mse
