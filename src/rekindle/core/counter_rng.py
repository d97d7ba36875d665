"""Random numbers as a pure function of (seed, sample, turn, step); a turn is an epoch and a draw within it.

The generator is SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA'14)
used as a hash: a counter goes in, random bits come out, and there is no state between two calls. So a
sample's numbers do not depend on which worker draws them, or on what was drawn before.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

NEXT_DRAW = 1 << 32  # added to an epoch for each earlier draw of the sample in it: that makes a turn

# Arrays and not scalars: these wrap around at 64 bits, as they are meant to, without a warning.
_GOLDEN, _FIRST_FACTOR, _SECOND_FACTOR = (
    np.array([number], dtype=np.uint64)
    for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_TO_UNIT = np.array([2.0**-53])
_ONE, _11, _27, _30, _31 = (np.array([number], dtype=np.uint64) for number in (1, 11, 27, 30, 31))


class Step(IntEnum):
    """What numbers are drawn for, where that is not a step of the user's pipeline.

    Steps of a pipeline count up from 0; these lie at the other end of the 32-bit numbers.
    """

    SAMPLE = 0xFFFFFFFF
    BATCH = 0xFFFFFFFE
    STREAM = 0xFFFFFFFD
    FINAL = 0xFFFFFFFC  # of a sample that is split in two: what is done afresh each time
    ECHO = 0xFFFFFFFB
    BATCH_TRANSFORM = 0xFFFFFFFA
    DUPLICATES = 0xFFFFFFF9  # the order in which near-duplicates take turns
    ROWS = 0xFFFFFFF8  # the order within a balanced batch
    LEFT_OUT = 0xFFFFFFF7  # what an incomplete last batch has
    RECOMPUTE = 0xFFFFFFF6  # which of equally old results are recomputed
    ORDER = 0xFFFFFFF5  # of the samples of an epoch
    CIRCLE = 0xFFFFFFF4  # the order in which results are recomputed
    DEALT = 0xFFFFFFF3  # what is recomputed, to the ranks
    FRESH_ORDER = 0xFFFFFFF2  # of a rank's samples that are recomputed in an epoch
    CACHED_ORDER = 0xFFFFFFF1  # of the others
    CHOICE_ORDER = 0xFFFD0000  # of what a method chooses from, plus the number of the draw
    SUBSTITUTE = 0xFFFF0000  # plus the number of the attempt
    CHOICE = 0xFFFE0000  # plus the number of the draw


def split(base: ArrayLike, counter: ArrayLike) -> NDArray[np.uint64]:
    """The `counter`-th number of the sequence that starts at `base`: 64 random bits each.

    >>> [hex(number) for number in split(0, [0, 1])]
    ['0xe220a8397b1dcdaf', '0x6e789e6aa1b965f4']
    """
    bits = _unsigned(counter) + _ONE
    bits *= _GOLDEN
    return _mixed(bits + _unsigned(base))


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output for each state, written to the same memory."""
    shifted = bits >> _30
    bits ^= shifted
    bits *= _FIRST_FACTOR
    np.right_shift(bits, _27, shifted)
    bits ^= shifted
    bits *= _SECOND_FACTOR
    np.right_shift(bits, _31, shifted)
    bits ^= shifted
    return bits


def _unsigned(numbers: ArrayLike) -> NDArray[np.uint64]:
    array = np.asarray(numbers).astype(np.uint64, copy=False)
    return array if array.ndim else array.reshape(1)


def seeds(seed: int, samples: ArrayLike, turns: ArrayLike = 0, step: int = Step.SAMPLE) -> NDArray[np.uint64]:
    """One 64-bit seed for each of `samples`, in its turn (or its generation), for `step`."""
    start = base(seed, step, turns) if type(turns) is int else split(_split_one(seed, step), turns)
    return split(start, samples)


def keys(seed: int, steps: Sequence[int], turn: int, sample: int) -> list[int]:
    """What `seeds` gives one sample in its turn, for each of several steps."""
    found: list[int] = split(split(split(seed, steps), turn), sample).tolist()
    return found


@lru_cache(maxsize=64)
def base(seed: int, step: int, turn: int) -> int:
    """Where the sequence of a turn starts, whose numbers are the seeds of its samples."""
    return _split_one(_split_one(seed, step), turn)


def _split_one(base: int, counter: int) -> int:
    return int(split(base, counter)[0])


def uniforms(
    seed: int, samples: ArrayLike, turns: ArrayLike = 0, step: int = 0, count: int = 1
) -> NDArray[np.float64]:
    """`count` numbers, uniform in [0, 1), for each of `samples` in its turn: an (n, count) array.

    A sample's first numbers do not depend on how many are drawn. Each has 53 random bits.
    """
    bits = _mixed(seeds(seed, samples, turns, step)[:, None] + _counters(count))
    bits >>= _11
    numbers = bits.astype(np.float64)
    numbers *= _TO_UNIT
    return numbers


@lru_cache(maxsize=64)
def _counters(count: int) -> NDArray[np.uint64]:
    """What is added to a base to get its first numbers."""
    counters = np.arange(1, count + 1, dtype=np.uint64)
    counters *= _GOLDEN
    counters.flags.writeable = False
    return counters


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
