"""Times that the cost models expect of cards that were never measured.

The rates are those of the makers' data sheets; what these do not tell is estimated, as
for any device. No row is a measurement. Matrix units of these cards are not used, and
no work-group waits for another.

    python -m benchmarks.expected                     # rows and table
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from clnet.ir.lowering import lower
from clnet.network import Network
from clnet.opencl.device import Device
from clnet.planning.candidates import eligible
from clnet.planning.cover import shortest_path
from clnet.variants import VARIANTS

from .measurements import RESULTS
from .picks import cases_of

LOCAL = 64 << 10  # bytes of local memory of a group
# Compute units as OpenCL counts them, clock in GHz, work-items in lock step; TFLOP/s of
# float32, TB/s of memory, MB of the last cache.
CARDS: dict[str, tuple[int, float, int, float, float, float]] = {
    "AMD Instinct MI300X": (304, 2.1, 64, 163.4, 5.3, 256),
    "AMD Radeon RX 7900 XTX": (96, 2.5, 32, 61.4, 0.96, 96),
    "Intel Data Center GPU Max 1550": (1024, 1.6, 16, 52.4, 3.28, 408),
    "Intel Arc A770": (512, 2.1, 16, 17.2, 0.56, 16),
    "Apple M2 Max": (38, 1.4, 32, 13.6, 0.4, 48),
}


def device_of(name: str) -> Device:
    """Return the record of a card."""
    units, clock, simd, tera_flops, tera_bytes, cache = CARDS[name]
    device = Device(
        name, compute_units=units, clock=1e9 * clock, simd_width=simd,
        local_memory=LOCAL, declared_local_memory=LOCAL, unit_local_memory=LOCAL,
        largest_group=1024,
    )
    rates = device.rates
    memory = 1e12 * tera_bytes
    return replace(device, measured=replace(
        rates, flops=1e12 * tera_flops, memory=memory,
        cache=memory * rates.cache / rates.memory, cache_bytes=1e6 * cache,
    ))


def rows_of() -> Iterator[dict[str, Any]]:
    """Yield a row of each card and case."""
    for name in CARDS:
        device = device_of(name)
        for case in cases_of(False).values():
            network = Network.mlp(case.sizes, case.activation, seed=0)
            program = lower(network).at(case.precision)
            cover = shortest_path(len(program.ops), eligible(
                program, case.batch, case.batch, VARIANTS, device,
                lambda variant, span, device: list(variant.space(span, device))[:1], {},
            ))
            assert cover is not None
            variants = dict.fromkeys(step.variant.name for step in cover.steps)
            yield {
                "case": case.name, "batch": case.batch, "precision": case.precision,
                "median": cover.seconds, "device": name,
                "cover": " ".join(variants),
            }


def main() -> None:
    """Write the rows, and print a table in us."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "expected-cards.csv")
    rows = pd.DataFrame(rows_of())
    rows.to_csv(parser.parse_args().out, index=False, float_format="%.3g")
    table = rows.pivot_table(
        index=["case", "batch"], columns="device", values="median", sort=False
    )
    print((1e6 * table).to_string(float_format="%.3g"))


if __name__ == "__main__":
    main()
