"""Keyed permutations and hashes, in NumPy and on the device."""

import numpy as np
import pyopencl as cl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clnet.nn.random import ROUNDS, half_bits, key, keys, permuted, shuffled, uniform
from clnet.opencl.discovery import device
from clnet.opencl.program import build, source_text
from clnet.opencl.session import session


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 3000), seed=st.integers(0, 2**63), epoch=st.integers(0, 10**6))
def test_permuted_is_a_bijection(n, seed, epoch):
    found = permuted(np.arange(n), n, key(seed, epoch))
    assert found.dtype == np.uint32
    np.testing.assert_array_equal(np.sort(found), np.arange(n))


def test_keys_differ_by_seed_and_epoch():
    found = {tuple(key(seed, epoch)) for seed in range(20) for epoch in range(20)}
    assert len(found) == 400
    assert all(len(words) == ROUNDS for words in found)
    orders = {tuple(permuted(np.arange(50), 50, key(7, e))) for e in range(50)}
    assert len(orders) == 50


@given(
    seed=st.integers(0, 2**63 - 1) | st.sampled_from([0, 2**32 - 1, 2**32]),
    first=st.integers(0, 2**31), count=st.integers(1, 20),
)
def test_keys_of_many_epochs(seed, first, count):
    expected = [key(seed, first + i) for i in range(count)]
    np.testing.assert_array_equal(keys(seed, first, count), expected)


@pytest.mark.parametrize("n", [3, 10, 13])
def test_every_image_is_equally_likely(n):
    epochs = 1000
    counts = np.zeros((n, n))
    for epoch in range(epochs):
        counts[np.arange(n), permuted(np.arange(n), n, key(3, epoch))] += 1
    # Chi square of (n - 1)^2 degrees of freedom, five deviations above its mean.
    expected, freedom = epochs / n, (n - 1) ** 2
    chi = ((counts - expected) ** 2 / expected).sum()
    assert chi < freedom + 5 * np.sqrt(2 * freedom)


@given(n=st.integers(1, 2**31 - 1))
def test_bits_hold_n_and_walks_are_short(n):
    bits = 2 * half_bits(n)
    assert 2**bits >= n
    assert n <= 4 or 2**bits <= 4 * n


def test_large_sets_fit_in_32_bits():
    n = 2**31 - 1
    found = permuted(np.arange(1000), n, key(1, 1))
    assert found.max() < n
    assert len(set(found.tolist())) == 1000


def test_uniform_numbers():
    found = uniform(1, 2, 20000)
    assert found.min() >= 0
    assert found.max() < 1
    assert abs(found.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 0.03
    assert (uniform(1, 3, 100) != found[:100]).all()


@pytest.mark.parametrize("n", [1, 3, 5, 17, 300])
def test_numbers_beyond_n_are_taken_as_the_last(n):
    """Otherwise a walk might never end: its cycle may have no number below n."""
    beyond = np.array([n, n + 1, 2 * n + 7, 2**31], np.uint32)
    words = key(2, 1)
    last = permuted(np.array([n - 1]), n, words)
    assert (permuted(beyond, n, words) == last).all()
    i = np.concatenate([np.arange(n, dtype=np.uint32), beyond])
    np.testing.assert_array_equal(on_device(i, n, words), permuted(i, n, words))


def test_a_walk_ends_for_n_of_0():
    on_device(np.arange(3, dtype=np.uint32), 0, key(2, 1))


def on_device(i, n, words):
    """Return the results of `permuted` in random.h."""
    where = session(device())
    text = source_text("include/random.h", {}, where.device) + """
        __kernel void walk(__global uint *i, const uint n, const uint bits, uint8 key)
        {
            i[get_global_id(0)] = permuted(i[get_global_id(0)], n, bits, key);
        }
    """
    program = build(where.context, where.device, text, "include/random.h")
    kernel = cl.Kernel(program, "walk")
    flags, found = cl.mem_flags, np.empty_like(i)
    buffer = cl.Buffer(where.context, flags.COPY_HOST_PTR, hostbuf=i)
    kernel.set_args(buffer, np.uint32(n), np.uint32(half_bits(n)), words)
    cl.enqueue_nd_range_kernel(where.queue, kernel, i.shape, None)
    cl.enqueue_copy(where.queue, found, buffer)
    return found


def test_the_order_of_a_block_is_that_of_its_random_numbers():
    for n in (1, 2, 3, 1000, 1 << 16):
        words = np.arange(8, dtype=np.uint32) + n
        source = np.random.PCG64(np.random.SeedSequence([*words.tolist(), 7]))
        np.testing.assert_array_equal(
            shuffled(n, words, 7), np.argsort(source.random_raw(n))
        )


def test_numbers_that_agree_in_their_high_bits_are_ordered_by_the_low_ones(
    monkeypatch,
):
    raw = np.array([3, 1, 2, 1 << 40, 0], np.uint64)

    class Source:
        def __init__(self, seed):
            pass

        def random_raw(self, n):
            return raw

    monkeypatch.setattr(np.random, "PCG64", Source)
    found = shuffled(5, np.arange(8, dtype=np.uint32), 0)
    assert found.tolist() == [4, 1, 2, 0, 3]
