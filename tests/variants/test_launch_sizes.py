"""Launches and refusals of posed sizes: none is run."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from kernel_corpus import CORES, GFX90A, HOPPER, VARIANTS, spans

from clnet import Dense, Local, Network, Sparse
from clnet.checks import INT_MAX
from clnet.ir.lowering import lower, lower_training
from clnet.nn.description import Description
from clnet.nn.fann_parameters import FannParameters
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import optimiser
from clnet.variants.base import MOST_TERMS
from clnet.variants.dense.cpu import Cpu
from clnet.variants.dense.gemm import Gemm
from clnet.variants.dense.mma import Mma, MmaChain
from clnet.variants.reference.generic import GenericBackward

MOST_GROUPS = 65535  # in y and z, by devices that count them in 16 bits
WIDE = 600_000
MANY = 3_000_000  # samples
LARGE = {"global_memory": 1 << 50, "largest_buffer": 1 << 50}


def networks():
    """Yield networks that are wide, or cheap for many samples, and their batches."""
    yield Network(4, [Dense(WIDE)]), (1, 40)
    yield Network(WIDE, [Dense(4)]), (1, 40)
    yield Network(8, [Dense(6, "tanh", dropout=0.1), Dense(4)]), (70_000, MANY)
    for form in ("csr", "sell", "dia", "dense"):
        if form in ("csr", "sell"):
            pattern = np.arange(WIDE)[:, None] % 4 == np.arange(4)
            yield Network(4, [Sparse(WIDE, pattern=pattern, format=form)]), (40,)
        yield Network(6, [Sparse(6, density=0.3, format=form)]), (MANY,)
    yield Network(WIDE, [Local(window=3)]), (40,)
    yield Network(9, [Local(window=3)]), (MANY,)


@pytest.mark.parametrize("device", [HOPPER, GFX90A, CORES], ids=lambda d: d.name)
def test_all_groups_but_those_of_one_dimension_are_few(device):
    device = replace(device, **LARGE)
    for network, batches in networks():
        for program in (
            lower(network),
            lower_training(network, loss_function("mse"), optimiser("adam")),
        ):
            for batch in batches:
                for variant in VARIANTS:
                    for span in spans(program, batch, variant):
                        if variant.refuse(span, device) is not None:
                            continue
                        for config in variant.space(span, device):
                            for launch in variant.launches(span, config, device):
                                groups = np.floor_divide(
                                    launch.global_size, launch.local_size
                                )
                                assert (groups[1:] <= MOST_GROUPS).all(), (
                                    variant.name, config, batch, launch.source
                                )


class Posed(Description):
    """A network that is described alone, as programs of training take it."""

    fann = FannParameters()
    members = 1


POSED = {  # the widths and samples of each
    "inputs": ((20_000_000, 4), (1, 1000)),
    "neurons": ((4, 2_000_000), (1, 40)),
    "deep": ((5, 6, 4, 3), (600_000_000, 2_000_000_000)),
    "narrow": ((60, 64, 64, 4), (30_000_000, 2_000_000_000)),
}


@pytest.mark.parametrize("device", [HOPPER, CORES], ids=lambda d: d.name)
@pytest.mark.parametrize("name", POSED)
def test_numbers_of_launches_have_32_bits(name, device):
    """A variant refuses what it cannot count, with the number."""
    device = replace(device, **LARGE)
    widths, batches = POSED[name]
    network = Posed(widths[0], [Dense(n, "tanh") for n in widths[1:]], "float32", False)
    for program in (
        lower(network),
        lower_training(network, loss_function("mse"), optimiser("adam")),
    ):
        for batch, variant in itertools.product(batches, VARIANTS):
            for span in spans(program, batch, variant):
                if variant.refuse(span, device) is not None:
                    continue
                for config in itertools.islice(variant.space(span, device), 3):
                    for launch in variant.launches(span, config, device):
                        groups = launch.global_size[0] // launch.local_size[0]
                        numbers = [
                            *launch.arguments, *launch.defines.values(), groups
                        ]
                        assert all(
                            -INT_MAX <= number <= INT_MAX for number in numbers
                            if isinstance(number, int)
                        ), (variant.name, config, batch, launch.kernel)


def test_gathered_values_of_a_group_have_32_bits():
    width, batch = 40_000_000, 1 << 24
    program = lower_training(
        Posed(width, [Dense(1)], "float32", False), loss_function("mse"),
        optimiser("adam"), shuffled=True, samples=batch,
    )
    (launch,) = GenericBackward().launches(program.span(0, 1, batch), {}, HOPPER)
    assert launch.defines["ROWS"] * width <= INT_MAX


def test_values_and_weights_beyond_32_bits_are_refused_by_cpu():
    device = replace(CORES, **LARGE)
    assert Cpu().refuse(dense_span(5, 16, 100_000_000, 4), device) is None
    sentence = Cpu().refuse(dense_span(5, 16, 200_000_000, 4), device)
    assert sentence == (
        "its packed weights, and values between its layers, are 2147483647 numbers at "
        "most, not 3200000000"
    )
    assert "at most, not 3200000016" in Cpu().refuse(
        dense_span(200_000_000, 1, 1), device
    )


def dense_span(n_in, n_out, batch, length=2):
    """Return the first ops of a network that is described alone."""
    sizes = [n_in] + [n_out] * (length // 2)
    program = lower(
        Posed(n_in, [Dense(n, "tanh") for n in sizes[1:]], "float32", False)
    )
    return program.span(0, length, batch)


@pytest.mark.parametrize("variant", [Gemm(), Mma()], ids=lambda v: v.name)
def test_rows_beyond_offsets_of_32_bits_are_refused(variant):
    """The offset of a tile's last row is its number times the row's length."""
    assert variant.refuse(dense_span(MOST_TERMS, 2, 128), HOPPER) is None
    sentence = variant.refuse(dense_span(MOST_TERMS + 1, 2, 128), HOPPER)
    assert sentence == f"it reads rows of at most {MOST_TERMS} values, not 16777217"


def test_values_beyond_a_table_of_32_bits_are_refused():
    device = replace(HOPPER, **LARGE)
    assert MmaChain().refuse(dense_span(1000, 1000, 1 << 21, 4), device) is None
    sentence = MmaChain().refuse(dense_span(1000, 1000, 1 << 23, 4), device)
    assert "34359738352 bytes, not 68" in sentence
