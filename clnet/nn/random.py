"""Counter-based random numbers: keyed permutations of 0 … n-1, and hashes.

The order of an epoch's samples is such a permutation, computed element by element. A
Feistel network (Luby and Rackoff, "How to construct pseudorandom permutations from
pseudorandom functions", 1988) permutes the numbers of an even count of bits that
holds n; a result beyond n is permuted again until it is below ("cycle walking": Black
and Rogaway, "Ciphers with arbitrary finite domains", 2002). So no permutation is stored
or uploaded. The same functions are in ``kernels/include/random.h``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FEW_KEYS = 8  # are made one by one
POOL = 4  # words of a SeedSequence
HASH_BITS = 24  # a float32 holds them
ROUNDS = 8  # of the network, a word of the key each; fewer bias small permutations


def half_bits(n: int) -> int:
    """Return the bits of each half of the Feistel network for n numbers."""
    return max(1, ((max(n, 2) - 1).bit_length() + 1) // 2)


def key(seed: int, epoch: int) -> NDArray[np.uint32]:
    """Return the key [ROUNDS] of an epoch, counted from 0."""
    words = np.random.SeedSequence([seed, epoch]).generate_state(ROUNDS)
    return np.asarray(words, np.uint32)


def shuffled(n: int, words: NDArray[np.uint32], number: int) -> NDArray[np.intp]:
    """Return the order of the n samples of a numbered block, by an epoch's key.

    Random numbers are sorted. Those of NumPy's bit generators are the same in all its
    versions, the orders of its `Generator.permutation` are not.
    """
    source = np.random.PCG64(np.random.SeedSequence([*words.tolist(), number]))
    raw = source.random_raw(n)
    # Low bits give way to positions: numbers are sorted in half the time of `argsort`.
    bits = np.uint64(max(n - 1, 1).bit_length())
    packed = np.sort(raw >> bits << bits | np.arange(n, dtype=np.uint64))
    high = packed >> bits
    if (high[1:] == high[:-1]).any():  # the low bits decide
        return np.argsort(raw)
    return np.asarray(packed & ((np.uint64(1) << bits) - np.uint64(1)), np.intp)


def keys(seed: int, first: int, count: int) -> NDArray[np.uint32]:
    """Return the keys [count, ROUNDS] of consecutive epochs.

    They are `key`'s: NumPy's `SeedSequence` (O'Neill, "Developing a seed_seq
    alternative", 2015), computed for all epochs at once.
    """
    if count < FEW_KEYS or first + count > 1 << 32:
        return np.stack([key(seed, first + i) for i in range(count)])
    words = [np.uint32(seed & 0xFFFFFFFF)]
    if seed >> 32:
        words.append(np.uint32(seed >> 32))
    epochs = np.arange(first, first + count, dtype=np.uint32)
    entropy = [np.full(count, word) for word in words] + [epochs]
    entropy += [np.zeros(count, np.uint32)] * (POOL - len(entropy))
    factor = 0x43B0D7E5

    def hashed(values: NDArray[np.uint32], multiplier: int) -> NDArray[np.uint32]:
        nonlocal factor
        values = values ^ np.uint32(factor)
        factor = factor * multiplier & 0xFFFFFFFF
        values = values * np.uint32(factor)
        return np.asarray(values ^ (values >> np.uint32(16)), np.uint32)

    pool = [hashed(values, 0x931E8875) for values in entropy]
    for source in range(POOL):
        for target in range(POOL):
            if source != target:
                other = hashed(pool[source], 0x931E8875)
                hashed_word = pool[target] * np.uint32(0xCA01F9DD)
                hashed_word = hashed_word - other * np.uint32(0x4973F715)
                pool[target] = hashed_word ^ (hashed_word >> np.uint32(16))
    factor = 0x8B51F9DD
    return np.stack(
        [hashed(pool[i % POOL], 0x58F38DED) for i in range(ROUNDS)], axis=1
    )


def mixed(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return a hash of each number: every bit depends on every bit.

    Multiply and shift, with the constants that Wellons found by search ("Prospecting
    for hash functions", 2018).
    """
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x7FEB352D)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0x846CA68B)
    return np.asarray(x ^ (x >> np.uint32(16)), np.uint32)


def permuted(i: NDArray[Any], n: int, words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the images of numbers i in the permutation of 0 … n-1 by a key."""
    bits = np.uint32(half_bits(n))
    mask = np.uint32((1 << int(bits)) - 1)
    x = np.minimum(np.asarray(i, np.uint32), np.uint32(n - 1))
    images = walking = x.reshape(-1)
    positions = np.arange(images.size)
    while walking.size:  # those that are not below n go on
        left, right = walking >> bits, walking & mask
        for word in words:
            left, right = right, left ^ (mixed(right ^ word) & mask)
        walking = (left << bits) | right
        below = walking < n
        images[positions[below]] = walking[below]
        walking, positions = walking[~below], positions[~below]
    return images.reshape(x.shape)


def hashes(seed: int, count: int, n: int) -> NDArray[np.uint32]:
    """Return n numbers of `HASH_BITS` bits: hashes of seed, count and 0 … n-1."""
    i = np.arange(n, dtype=np.uint32)
    start = np.asarray([seed & 0xFFFFFFFF], np.uint32)
    start = mixed(start) ^ np.uint32(count & 0xFFFFFFFF)
    return mixed(i ^ mixed(start)) >> np.uint32(32 - HASH_BITS)


def uniform(seed: int, count: int, n: int) -> NDArray[np.float64]:
    """Return n numbers in [0, 1): hashes of seed, count and 0 … n-1."""
    return np.asarray(hashes(seed, count, n) * 2.0**-HASH_BITS, np.float64)


def stream(number: int) -> int:
    """Return the word that is XORed to the seed for another sequence of hashes."""
    return int(mixed(np.asarray([number], np.uint32))[0])
