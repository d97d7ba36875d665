"""A random order of 0 … n − 1 as a function: any stretch of it, and its inverse, without an array of size n.

A number is written as two digits, x = left · base + right, and each is shifted in turn by a random amount
that depends on the other: a Feistel network (Luby and Rackoff: "How to construct pseudorandom permutations
from pseudorandom functions", 1988) on mixed radices (Black and Rogaway: "Ciphers with arbitrary finite
domains", 2002). The random amounts are tables of √n entries, so a round is one look into a table, and the
tables are drawn as a whole from the key. The two digits can write slightly more than n numbers; one that
is not below n goes through the network again until it is (cycle walking), which few need.

Small orders are shuffled as a whole: a table of n entries, each of the n! orders as likely as the others.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from rekindle.core import counter_rng

_Numbers = NDArray[np.int64]
_Table = NDArray[np.uint16] | NDArray[np.int64]  # as few bytes as its numbers need
_WHOLE = 4096  # orders up to this size are tables
_FEW = 65_536  # numbers up to this many go through more rounds: shorter tables mix less
_CHUNK = 8192  # numbers that pass all rounds while they are in the processor's cache
_LARGEST = 2**62


class KeyedPermutation:
    """The order of `size` numbers that a key stands for: a 64-bit number, the same order on every machine.

    >>> order = KeyedPermutation(10, key=7)
    >>> order.forward(np.arange(10)).tolist()
    [8, 0, 4, 7, 1, 3, 2, 6, 9, 5]
    >>> order.inverse(np.array([6, 8])).tolist()
    [7, 0]
    """

    def __init__(self, size: int, key: int) -> None:
        if not 0 <= size <= _LARGEST:
            raise ValueError(f"expected a size from 0 to 2**62, got {size}")
        self.size = size
        self._table: _Numbers | None = None
        if size <= _WHOLE:
            self._table = _shuffled(size, key)
            self._back = np.empty_like(self._table)
            self._back[self._table] = np.arange(size)
            return
        # The right digit is one of a power of two, about √size; the two write few numbers beyond `size`.
        self._right_bits = (size - 1).bit_length() // 2
        right = 1 << self._right_bits
        self._left_base = -(-size // right)
        self._key = key

    @cached_property
    def _rounds(self) -> list[tuple[_Table, _Table]]:
        """The tables of each pair of rounds, drawn when they are needed: an epoch may be planned ahead."""
        left, right = self._left_base, 1 << self._right_bits
        pairs = 3 if self.size <= _FEW else 2
        drawn = counter_rng.split(self._key, np.arange(pairs * max(left, right)))
        rows = drawn.reshape(pairs, max(left, right))
        low = rows & np.uint64(0xFFFFFFFF)
        rows >>= np.uint64(32)
        # What the left digit is shifted by depends on the right one, and the other way round.
        return list(zip(_below(left, rows[:, :right]), _below(right, low[:, :left]), strict=True))

    def forward(self, positions: _Numbers) -> _Numbers:
        """What stands at each of some positions."""
        return self._mapped(positions, back=False)

    def inverse(self, values: _Numbers) -> _Numbers:
        """The position of each of some numbers."""
        return self._mapped(values, back=True)

    def _mapped(self, numbers: _Numbers, *, back: bool) -> _Numbers:
        if self._table is not None:
            mapped: _Numbers = np.take(self._back if back else self._table, numbers)
            return mapped
        numbers = np.ascontiguousarray(numbers, dtype=np.int64)
        out = np.empty_like(numbers)
        once = self._backward_once if back else self._forward_once
        for start in range(0, len(numbers), _CHUNK):
            part = out[start : start + _CHUNK]
            once(numbers[start : start + _CHUNK], part)
            while part.max() >= self.size:
                outside = np.flatnonzero(part >= self.size)
                again = part[outside]
                once(again, again)
                part[outside] = again
        return out

    def _forward_once(self, numbers: _Numbers, out: _Numbers) -> None:
        bits, mask = self._right_bits, (1 << self._right_bits) - 1
        left, right = numbers >> bits, numbers & mask
        spare = np.empty_like(left)
        for to_left, to_right in self._rounds:
            left += np.take(to_left, right, mode="clip")
            np.subtract(left, self._left_base, out=spare)
            # As unsigned numbers, what is negative is the larger of the two.
            np.minimum(left.view(np.uint64), spare.view(np.uint64), out=left.view(np.uint64))
            right += np.take(to_right, left, mode="clip")
            right &= mask
        np.left_shift(left, bits, out=out)
        out |= right

    def _backward_once(self, numbers: _Numbers, out: _Numbers) -> None:
        bits, mask = self._right_bits, (1 << self._right_bits) - 1
        left, right = numbers >> bits, numbers & mask
        spare = np.empty_like(left)
        for to_left, to_right in reversed(self._rounds):
            right -= np.take(to_right, left, mode="clip")
            right &= mask
            left -= np.take(to_left, right, mode="clip")
            np.add(left, self._left_base, out=spare)
            np.minimum(left.view(np.uint64), spare.view(np.uint64), out=left.view(np.uint64))
        np.left_shift(left, bits, out=out)
        out |= right


@lru_cache(maxsize=64)
def keyed_permutation(size: int, key: int) -> KeyedPermutation:
    """A permutation that is asked for again and again, made once."""
    return KeyedPermutation(size, key)


def _below(bound: int, drawn: NDArray[np.uint64]) -> list[_Table]:
    """Tables of random numbers below a bound, from 32 random bits each."""
    scaled = (drawn * np.uint64(bound)) >> np.uint64(32)
    # Small entries: the tables of several orders share the processor's cache.
    return list(scaled.astype(np.uint16 if bound <= 1 << 16 else np.int64))


def _shuffled(size: int, key: int) -> _Numbers:
    """Random bits above the index, and one sort: 52 bits for 4,096 numbers, so hardly any two are equal."""
    index_bits = np.uint64(max(size - 1, 1).bit_length())
    keys = counter_rng.split(key, np.arange(size))
    keys <<= index_bits
    keys |= np.arange(size, dtype=np.uint64)
    keys.sort()
    keys &= np.uint64((1 << int(index_bits)) - 1)
    return keys.view(np.int64)
