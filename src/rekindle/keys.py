"""Random numbers as a pure function of (seed, sample, turn, step).

The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11): a
counter goes in, random bits come out, and there is no state between two calls. So a sample's numbers do
not depend on which worker draws them, or on what was drawn before.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MASK = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_MOST_BLOCKS = 0xFFFF


class Step(IntEnum):
    """What numbers are drawn for, where that is not a step of the user's pipeline.

    Steps of a pipeline count up from 0; these lie at the other end of the 32-bit numbers.
    """

    SAMPLE = 0xFFFFFFFF
    BATCH = 0xFFFFFFFE
    STREAM = 0xFFFFFFFD
    SUBSTITUTE = 0xFFFF0000  # plus the number of the attempt


def philox4x32(counters: ArrayLike, key: int) -> NDArray[np.uint64]:
    """Random bits: a (4, n) array of 32-bit numbers for a (4, n) array of 32-bit counters.

    >>> [hex(word) for word in philox4x32([[0], [0], [0], [0]], key=0)[:, 0]]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    words = np.asarray(counters, dtype=np.uint64)
    # The two halves of a round are the same operation: even and odd words as the rows of two arrays.
    even, odd = words[0::2], words[1::2]
    for subkeys in _round_keys(key):
        product = (even * _MULTIPLIERS)[::-1]
        even, odd = (product >> _SHIFT) ^ odd ^ subkeys, product & _MASK
    out = np.empty_like(words)
    out[0::2], out[1::2] = even, odd
    return out


@lru_cache(maxsize=16)
def _round_keys(key: int) -> NDArray[np.uint64]:
    rounds = range(_ROUNDS)
    low = [(key + turn * _WEYL[0]) & 0xFFFFFFFF for turn in rounds]
    high = [((key >> 32) + turn * _WEYL[1]) & 0xFFFFFFFF for turn in rounds]
    return np.array([low, high], dtype=np.uint64).T.reshape(_ROUNDS, 2, 1)


def seeds(seed: int, samples: ArrayLike, turns: ArrayLike = 0, step: int = Step.SAMPLE) -> NDArray[np.uint64]:
    """One 64-bit seed for each of `samples`, in its turn (the epoch or the generation), for `step`."""
    ids = np.atleast_1d(np.asarray(samples, dtype=np.int64)).view(np.uint64)
    counters = np.empty((4, ids.size), dtype=np.uint64)
    counters[0] = ids & _MASK
    counters[1] = ids >> _SHIFT
    counters[2] = turns
    counters[3] = step
    bits = philox4x32(counters, seed)
    joined: NDArray[np.uint64] = bits[0] << _SHIFT | bits[1]
    return joined


def uniforms(
    seed: int, samples: ArrayLike, turns: ArrayLike = 0, step: int = 0, count: int = 1
) -> NDArray[np.float64]:
    """`count` numbers, uniform in [0, 1), for each of `samples` in its turn: an (n, count) array.

    A sample's first numbers do not depend on how many are drawn. Each has 53 random bits.
    """
    if not (0 <= step < 2**16 and 0 <= count < 2 * _MOST_BLOCKS):
        raise ValueError(
            f"step {step} or count {count} is out of range: 65535 and {2 * _MOST_BLOCKS - 1} at most"
        )
    ids = np.atleast_1d(np.asarray(samples, dtype=np.int64)).view(np.uint64)
    blocks = -(-count // 2)  # One block of Philox is 128 bits: two numbers.
    counters = np.empty((4, ids.size, blocks), dtype=np.uint64)
    counters[0] = (ids & _MASK)[:, None]
    counters[1] = (ids >> _SHIFT)[:, None]
    counters[2] = np.broadcast_to(np.asarray(turns, dtype=np.uint64), ids.shape)[:, None]
    # The steps in `Step` have all of their upper 16 bits set; a block's number never does.
    counters[3] = np.arange(blocks, dtype=np.uint64) << np.uint64(16) | np.uint64(step)
    bits = philox4x32(counters.reshape(4, -1), seed)
    words = np.stack([bits[0] << _SHIFT | bits[1], bits[2] << _SHIFT | bits[3]], axis=1)
    numbers = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers.reshape(ids.size, 2 * blocks)[:, :count]


def permutation(size: int, seed: int, turn: int) -> NDArray[np.int64]:
    """A random order of 0 … size − 1, the same on every machine and for every version of NumPy.

    Random high bits above the index, then one sort: a few passes over memory and no loop. NumPy promises
    the raw output of its bit generators for good, but not that of `permutation`. Samples whose random bits
    are equal keep their relative order: of 10,000,000 samples, fewer than a hundred.
    """
    index_bits = np.uint64(max(size - 1, 1).bit_length())
    keys: NDArray[np.uint64] = np.random.Philox(key=[seed, turn]).random_raw(size)
    keys <<= index_bits
    keys |= np.arange(size, dtype=np.uint64)
    keys.sort()
    keys &= np.uint64((1 << int(index_bits)) - 1)
    return keys.view(np.int64)
