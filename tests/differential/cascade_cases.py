"""Cases of cascade training, drawn from seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from clnet import Cascade, Dense
from clnet.nn.optimisers import Quickprop, Rprop, Sarprop

from .cases import FAMILY, Case, Draw

WIDTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24)
SAMPLES = (1, 2, 7, 8, 9, 31, 63, 64, 65, 100, 127, 128, 129, 200)
OUTPUTS = ("sigmoid", "tanh", "identity", "gaussian", "elliot", "elliot_symmetric",
           "gaussian_symmetric", "sin_symmetric", "cos_symmetric", "sin", "cos")
HIDDEN = (*(name for name in OUTPUTS if name != "identity"), "linear_piece",
          "linear_piece_symmetric")


@dataclass(frozen=True)
class CascadeOptions:
    """Options of a cascade training, and the configuration of its kernels."""

    chosen: Cascade  # Its constants
    loss: str  # Of the outputs
    samples: int  # Of both sets
    validation: int
    neurons: int  # To be added, at most
    kernel: str  # The device's type that the kernels are of: `"cpu"` or `"gpu"`
    units: int  # Compute units of the device, at most
    constants: tuple[tuple[str, int], ...]  # BLOCK, GROUP and TEAM of the kernels


def cascades(number: int) -> Iterator[Case]:
    """Yield the cases of a family, whose seeds are ``number * FAMILY`` and up."""
    draw = Draw(number, 7)
    n_in, n_out = draw.one(WIDTHS), draw.one((1, 1, 2, 3, 4, 5, 9))
    fann = draw.chance(0.4)
    sizes = [draw.one((1, 2, 5)) for _ in range(draw.one((0, 0, 0, 1, 2)))]
    layers = tuple(
        Dense(
            n, draw.one(OUTPUTS if k == len(sizes) else HIDDEN),
            draw.one((1.0, 1.0, 0.5, 0.3)), sources=tuple(range(k + 1)),
        ) for k, n in enumerate([*sizes, n_out])
    )
    group = draw.one((32, 64, 128, 256))
    chosen = Cascade(
        draw.one((Rprop(moves_at_zero=draw.chance(0.5)), Rprop(delta_zero=0.01),
                  Quickprop(), Quickprop(0.3, mu=1.2), Sarprop())),
        output_change_fraction=draw.one((0.01, 0.1)),
        candidate_change_fraction=draw.one((0.01, 0.1)),
        output_stagnation_epochs=draw.count(1, 4),
        candidate_stagnation_epochs=draw.count(1, 4),
        max_out_epochs=draw.count(1, 6), min_out_epochs=draw.count(0, 3),
        max_cand_epochs=draw.count(1, 6), min_cand_epochs=draw.count(0, 3),
        num_candidate_groups=draw.count(1, 3),
        candidate_limit=draw.one((1000.0, 0.5)),
        weight_multiplier=draw.one((0.4, 1.0)),
        activation_functions=tuple(
            draw.one(HIDDEN) for _ in range(draw.count(1, 3))
        ),
        activation_steepnesses=draw.one(((0.5,), (0.25, 1.0))),
    )
    shape = Case(
        0, "cascade", n_in, layers, fann_compatible=fann,
        options=CascadeOptions(
            chosen, draw.one(("mse", "fann_linear", "fann_tanh")), 1, 0,
            draw.count(0, 3), draw.one(("cpu", "gpu")), draw.one((1, 2, 4)),
            (("BLOCK", draw.count(1, 4)), ("GROUP", group),
             ("TEAM", draw.one([n for n in (1, 4, 16, 32) if n <= group]))),
        ),
    )
    sets = [
        {"samples": draw.one(SAMPLES), "validation": draw.one((0, 0, 1, 70))}
        for _ in range(4)
    ]
    for member in range(FAMILY):
        yield replace(
            shape, seed=number * FAMILY + member,
            options=replace(shape.options, **sets[member % len(sets)]),
        )
