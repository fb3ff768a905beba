"""``import clnet``: light, and complete."""

from __future__ import annotations

import subprocess
import sys

import clnet

HEAVY = {"numpy", "pyopencl", "scipy", "safetensors", "clnet.network"}


def test_nothing_is_imported_before_its_use():
    code = "import sys, clnet; print(*sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert HEAVY.isdisjoint(shown.stdout.split())


def test_a_network_needs_no_opencl():
    code = "import sys, clnet; clnet.Network.mlp([2, 1]); print(*sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "pyopencl" not in shown.stdout.split()


def test_every_public_name_is_there():
    for name in clnet.__all__:
        assert getattr(clnet, name) is not None
    assert set(clnet.__all__) <= set(dir(clnet))
