"""Products of parameters: the quick run has a part of each, ``-m sweep`` the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import pytest


def selected(*axes: Mapping[str, Any], quick: Callable[..., bool]) -> list[Any]:
    """Return the product of named values as parameters of a test.

    The quick run has those for whose places in the axes `quick` holds.
    """
    places = product(*(range(len(axis)) for axis in axes))
    return [
        pytest.param(
            *(axis[name] for axis, name in zip(axes, names, strict=True)),
            id="-".join(names), marks=[] if quick(*at) else [pytest.mark.sweep],
        )
        for at, names in zip(places, product(*axes), strict=True)
    ]
