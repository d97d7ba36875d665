"""Keyed permutations, to the bit, by compiled loops: for many millions of numbers.

Numba takes about a second to compile them, once on a machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from numba.core.typing.templates import Signature
from numpy.typing import NDArray

from rekindle.core.compiled_code import check_compiled_code, kernel
from rekindle.core.keyed_permutation import KeyedPermutation

check_compiled_code()

_Unsigned = NDArray[np.uint64]
_Entries = NDArray[np.uint16 | np.uint32]
_SIZE, _BITS, _BASE, _PAIRS, _START = range(5)  # what is known of an order
WITHIN_KERNELS: Any = {
    "boundscheck": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}  # options of functions that only kernels call

# Written so that no row waits for a guess: half of all comparisons of random numbers turn out otherwise than
# the processor expects, which costs as much as ten additions. Indices are unsigned: others are tested first.


@numba.njit(**WITHIN_KERNELS)
def is_at_least(number: np.uint64, other: np.uint64) -> np.uint64:
    """All bits, or none. Both numbers are below 2**63."""
    return ((number - other) >> np.uint64(63)) - np.uint64(1)


@numba.njit(**WITHIN_KERNELS)
def wrapped(number: np.uint64, bound: np.uint64) -> np.uint64:
    """A number below 2 · bound, less `bound` if it is not below it."""
    wrapped: np.uint64 = number - (bound & is_at_least(number, bound))
    return wrapped


@numba.njit(**WITHIN_KERNELS)
def map_forward(numbers: _Unsigned, order: _Unsigned, tables: _Entries) -> None:
    """`KeyedPermutation.forward`, written to the same memory."""
    size, bits, base, pairs = order[_SIZE], order[_BITS], order[_BASE], order[_PAIRS]
    entries = tables[order[_START] :]
    right_base = np.uint64(1) << bits
    mask, of_a_pair = right_base - np.uint64(1), right_base + base
    if pairs == np.uint64(0):
        for at in range(np.uint64(numbers.size)):
            numbers[at] = np.uint64(entries[numbers[at]])
        return
    first_left, first_right = entries, entries[right_base:]
    second_left, second_right = entries[of_a_pair:], entries[of_a_pair + right_base :]
    third_left, third_right = second_left, second_right
    if pairs == np.uint64(3):
        third_left, third_right = (
            entries[np.uint64(2) * of_a_pair :],
            entries[np.uint64(2) * of_a_pair + right_base :],
        )
    for at in range(np.uint64(numbers.size)):
        number = numbers[at]
        while True:
            left, right = number >> bits, number & mask
            left = wrapped(left + np.uint64(first_left[right]), base)
            right = (right + np.uint64(first_right[left])) & mask
            left = wrapped(left + np.uint64(second_left[right]), base)
            right = (right + np.uint64(second_right[left])) & mask
            if pairs == np.uint64(3):
                left = wrapped(left + np.uint64(third_left[right]), base)
                right = (right + np.uint64(third_right[left])) & mask
            number = left << bits | right
            if number < size:
                break
        numbers[at] = number


@numba.njit(**WITHIN_KERNELS)
def map_back(numbers: _Unsigned, order: _Unsigned, tables: _Entries) -> None:
    """`KeyedPermutation.inverse` of an order of two pairs of rounds, written to the same memory."""
    size, bits, base = order[_SIZE], order[_BITS], order[_BASE]
    entries = tables[order[_START] :]
    right_base = np.uint64(1) << bits
    mask, of_a_pair = right_base - np.uint64(1), right_base + base
    first_left, first_right = entries, entries[right_base:]
    second_left, second_right = entries[of_a_pair:], entries[of_a_pair + right_base :]
    for at in range(np.uint64(numbers.size)):
        number = numbers[at]
        while True:
            left, right = number >> bits, number & mask
            right = (right - np.uint64(second_right[left])) & mask
            left = wrapped(left + base - np.uint64(second_left[right]), base)
            right = (right - np.uint64(first_right[left])) & mask
            left = wrapped(left + base - np.uint64(first_left[right]), base)
            number = left << bits | right
            if number < size:
                break
        numbers[at] = number


def packed_orders(orders: Sequence[KeyedPermutation]) -> tuple[_Unsigned, _Entries]:
    """An array with a row for each order, and the tables of all: what the functions above take."""
    parts = [order.tables() for order in orders]
    kind = np.uint16 if all(part.entries.max(initial=0) < 1 << 16 for part in parts) else np.uint32
    begins = np.cumsum([0, *(len(part.entries) for part in parts[:-1])]).tolist()
    tables = np.concatenate([part.entries.astype(kind, copy=False) for part in parts])
    known = [[*part[:-1], begin] for part, begin in zip(parts, begins, strict=True)]
    return np.array(known, dtype=np.uint64), tables


def _signature(entries: str) -> Signature:
    from numba import boolean, types, uint64, void

    numbers, table = types.Array(uint64, 1, "C"), types.Array(getattr(types, entries), 1, "C")
    return void(numbers, numbers, table, boolean)


@kernel(_signature, boundscheck=False)
def _map(numbers: _Unsigned, order: _Unsigned, tables: _Entries, back: bool) -> None:
    if back:
        map_back(numbers, order, tables)
    else:
        map_forward(numbers, order, tables)


class CompiledPermutation:
    """A permutation of at least 65,537 numbers, by compiled loops."""

    def __init__(self, order: KeyedPermutation) -> None:
        self.size = order.size
        orders, self._tables = packed_orders([order])
        self._order = orders[0]
        self._map = _map(self._tables.dtype.name)

    def forward(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """What stands at each of some positions."""
        return self._mapped(positions, back=False)

    def inverse(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """The position of each of some numbers."""
        return self._mapped(values, back=True)

    def _mapped(self, numbers: NDArray[np.int64], *, back: bool) -> NDArray[np.int64]:
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < self.size):
            raise ValueError(
                f"expected numbers from 0 to {self.size - 1}, got {numbers.min()} to {numbers.max()}"
            )
        mapped = numbers.astype(np.uint64)
        self._map(mapped, self._order, self._tables, back)
        return mapped.view(np.int64)
