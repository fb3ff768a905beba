"""Candidates: spans alike are priced once, and runs found by doubling."""

from __future__ import annotations

from collections import Counter

import kernel_corpus
import pytest
from devices import DEVICE, H200
from hypothesis import given
from hypothesis import strategies as st

from clnet import Network
from clnet.ir.lowering import lower
from clnet.planning.candidates import eligible, longest, shape_of
from clnet.variants import VARIANTS


@given(st.integers(1, 70), st.integers(0, 70))
def test_the_longest_length(limit, most):
    asked = []

    def holds(length):
        asked.append(length)
        return length < most

    assert longest(limit, holds) == min(max(1, most - 1), limit)
    assert len(asked) <= 2 * limit.bit_length()


@pytest.mark.parametrize("device", [DEVICE, H200], ids=["own", "gpu"])
def test_spans_of_a_shape_cost_the_same(device):
    """By every variant, whatever the names of values and the offsets of slots."""
    known, repeats = {}, 0
    for name, network, batches in kernel_corpus.small():
        for _, program in kernel_corpus.programs(name, network, batches[-1]):
            for variant in kernel_corpus.VARIANTS:
                for span in kernel_corpus.spans(program, batches[-1], variant):
                    if len(span.ops) > 3:
                        continue
                    refusal = variant.refuse(span, device)
                    found = refusal, [
                        (dict(config), variant.cost(span, config, device))
                        for config in variant.space(span, device)
                    ] if refusal is None else []
                    key = variant.name, shape_of(span)
                    repeats += key in known
                    assert known.setdefault(key, found) == found, (name, variant.name)
    assert repeats > 1000


def test_equal_layers_are_priced_once():
    program, asked = lower(Network.mlp([8] * 41, seed=0)), Counter()

    def configs(variant, span, device):
        asked[variant.name] += 1
        return list(variant.space(span, device))[:1]

    found = list(eligible(program, 1, 1, VARIANTS, DEVICE, configs, {}))
    assert max(asked.values()) < 8  # of 40 layers; the first and the last differ
    generic = [c for c in found if c.step.variant.name == "generic"]
    assert {(c.start, c.stop) for c in generic} >= {(i, i + 1) for i in range(80)}
