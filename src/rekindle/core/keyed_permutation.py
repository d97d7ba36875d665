"""A random order of 0 … n − 1 as a function: any stretch of it, and its inverse, without an array of size n.

A number is written as two digits, x = left · base + right, and each is shifted in turn by a random amount
that depends on the other: a Feistel network (Luby and Rackoff: "How to construct pseudorandom permutations
from pseudorandom functions", 1988) on mixed radices (Black and Rogaway: "Ciphers with arbitrary finite
domains", 2002). The random amounts are tables of √n entries, so a round is one look into a table. An entry is
a function of the key: who asks for few numbers has the entries that these need computed, and the tables are
drawn once they pay. The two digits can write slightly more than n numbers; one that is not below n goes
through the network again until it is (cycle walking), which few need.

Small orders are shuffled as a whole: a table of n entries, each of the n! orders as likely as the others.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rekindle.core import counter_rng

_Numbers = NDArray[np.int64]
_Table: TypeAlias = NDArray[np.uint16] | NDArray[np.int64]
_WHOLE = 4096  # orders up to this size are tables
_FEW = 65_536  # numbers up to this many go through more rounds: shorter tables mix less
_CHUNK = 8192  # numbers that pass all rounds while they are in the processor's cache
_LARGEST = 2**62
_LOW_BITS, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_ENTRIES_A_NUMBER = 8  # entries of tables that take as long to draw as one number takes without them


class PermutationTables(NamedTuple):
    """A permutation as plain numbers, for compiled code.

    With `pairs` of rounds, `entries` are, for each pair, what the left digit is shifted by for each right
    one, and what the right digit is shifted by for each left one. Without, they are the order itself.
    """

    size: int
    right_bits: int
    left_base: int
    pairs: int
    entries: _Table


class Permutation(Protocol):
    """A random order, by whichever code it is evaluated."""

    size: int

    def forward(self, positions: _Numbers) -> _Numbers:
        """What stands at each of some positions."""

    def inverse(self, values: _Numbers) -> _Numbers:
        """The position of each of some numbers."""


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
        self._pairs = 3 if size <= _FEW else 2  # of rounds
        self._longest = max(self._left_base, right)
        self._rounds: list[tuple[_Table, _Table]] = []  # the tables of each pair
        self._asked = 0  # numbers, before there were tables

    def tables(self) -> PermutationTables:
        """The permutation as plain numbers, all of them drawn."""
        if self._table is not None:
            return PermutationTables(self.size, 0, 0, 0, self._table)
        self._draw_rounds()
        entries = np.concatenate([table for pair in self._rounds for table in pair])
        return PermutationTables(self.size, self._right_bits, self._left_base, self._pairs, entries)

    def _draw_rounds(self) -> None:
        """Draw the tables, unless they are there."""
        if self._rounds:
            return
        left, right = self._left_base, 1 << self._right_bits
        drawn = counter_rng.split(self._key, np.arange(self._pairs * self._longest))
        rows = drawn.reshape(self._pairs, self._longest)
        low = rows & _LOW_BITS
        rows >>= _HALF
        # What the left digit is shifted by depends on the right one, and the other way round.
        to_left, to_right = _below(left, rows[:, :right]), _below(right, low[:, :left])
        self._rounds = list(zip(_small(to_left, left), _small(to_right, right), strict=True))

    def _to_left(self, pair: int, right: _Numbers) -> _Table:
        """What the left digits are shifted by in this pair of rounds: an entry for each right one."""
        if self._rounds:
            return self._rounds[pair][0].take(right, mode="clip")
        drawn = counter_rng.split(self._key, right + pair * self._longest)
        drawn >>= _HALF
        return _below(self._left_base, drawn).view(np.int64)

    def _to_right(self, pair: int, left: _Numbers) -> _Table:
        if self._rounds:
            return self._rounds[pair][1].take(left, mode="clip")
        drawn = counter_rng.split(self._key, left + pair * self._longest)
        drawn &= _LOW_BITS
        return _below(1 << self._right_bits, drawn).view(np.int64)

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
        if not self._rounds:
            self._asked += len(numbers)
            if self._asked * _ENTRIES_A_NUMBER > self._pairs * self._longest:
                self._draw_rounds()
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
        for pair in range(self._pairs):
            left += self._to_left(pair, right)
            np.subtract(left, self._left_base, out=spare)
            # As unsigned numbers, what is negative is the larger of the two.
            np.minimum(left.view(np.uint64), spare.view(np.uint64), out=left.view(np.uint64))
            right += self._to_right(pair, left)
            right &= mask
        np.left_shift(left, bits, out=out)
        out |= right

    def _backward_once(self, numbers: _Numbers, out: _Numbers) -> None:
        bits, mask = self._right_bits, (1 << self._right_bits) - 1
        left, right = numbers >> bits, numbers & mask
        spare = np.empty_like(left)
        for pair in reversed(range(self._pairs)):
            right -= self._to_right(pair, left)
            right &= mask
            left -= self._to_left(pair, right)
            np.add(left, self._left_base, out=spare)
            np.minimum(left.view(np.uint64), spare.view(np.uint64), out=left.view(np.uint64))
        np.left_shift(left, bits, out=out)
        out |= right


@lru_cache(maxsize=64)
def keyed_permutation(size: int, key: int) -> KeyedPermutation:
    """A permutation that is asked for again and again, made once."""
    return KeyedPermutation(size, key)


def _below(bound: int, drawn: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Random numbers below a bound, from 32 random bits each."""
    scaled: NDArray[np.uint64] = drawn * np.uint64(bound)
    scaled >>= _HALF
    return scaled


def _small(tables: NDArray[np.uint64], bound: int) -> list[_Table]:
    """Tables of numbers below a bound, with small entries: those of several orders share a cache."""
    return list(tables.astype(np.uint16 if bound <= 1 << 16 else np.int64))


def _shuffled(size: int, key: int) -> _Numbers:
    """Random bits above the index, and one sort: 52 bits for 4,096 numbers, so hardly any two are equal."""
    index_bits = np.uint64(max(size - 1, 1).bit_length())
    keys = counter_rng.split(key, np.arange(size))
    keys <<= index_bits
    keys |= np.arange(size, dtype=np.uint64)
    keys.sort()
    keys &= np.uint64((1 << int(index_bits)) - 1)
    return keys.view(np.int64)
