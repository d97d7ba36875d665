"""The rows of a `RefurbishSequence`, to the bit, by compiled loops: what a rank with millions of them needs.

The fresh rows of consecutive batches are consecutive numbers, and so are the others. So each permutation is
evaluated for a stretch of numbers at a time, in a loop that does nothing else, and what it gives is put where
the shuffle within batches has it. Numba takes about two seconds to compile that, once on a machine, so it is
for long epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compiled_code import check_compiled_code, kernel
from rekindle.core.compiler import Signature, numba
from rekindle.core.keyed_permutation import KeyedPermutation
from rekindle.core.permutation_kernel import (
    WITHIN_KERNELS,
    is_at_least,
    map_back,
    map_forward,
    packed_orders,
    wrapped,
)

check_compiled_code()

_Unsigned = NDArray[np.uint64]
_Entries = NDArray[np.uint16 | np.uint32]
_FRESH, _OTHERS, _FIRST_DEALT = 0, 1, 2  # numbers of orders; that of the circle is the last
_AT_ONCE = 16_384  # rows that stay in the processor's cache


@numba.njit(**WITHIN_KERNELS)
def _every_nth(
    visits: _Unsigned, first: np.uint64, n: np.uint64, place: np.uint64, order: _Unsigned, tables: _Entries
) -> None:
    """A rank's visits from `first` on, every n-th, that stand at the places from `place` on of an order."""
    for at in range(np.uint64(visits.size)):
        visits[at] = place + at
    map_forward(visits, order, tables)
    for at in range(np.uint64(visits.size)):
        visits[at] = first + n * visits[at]


@numba.njit(**WITHIN_KERNELS)
def _find_stretches(visits: _Unsigned, starts: _Unsigned, found: NDArray[np.uint32]) -> None:
    """The number of the stretch that each visit is in."""
    one = np.uint64(1)
    for at in range(np.uint64(visits.size)):
        stretch, count = np.uint64(0), np.uint64(starts.size)
        while count > one:
            half = count >> one
            stretch += half & is_at_least(visits[at], starts[stretch + half])
            count -= half
        found[at] = np.uint32(stretch)


@numba.njit(**WITHIN_KERNELS)
def _undeal(
    visits: _Unsigned, stretches: NDArray[np.uint32], starts: _Unsigned, orders: _Unsigned, tables: _Entries
) -> None:
    """The visits that stand at these positions of the order in which they are dealt: stretch by stretch."""
    one, count = np.uint64(1), np.uint64(visits.size)
    ends = np.zeros(starts.size + 1, dtype=np.uint64)
    for at in range(count):
        ends[np.uint64(stretches[at]) + one] += one
    for stretch in range(np.uint64(starts.size)):
        ends[stretch + one] += ends[stretch]
    together, where = np.empty(visits.size, dtype=np.uint64), np.empty(visits.size, dtype=np.uint64)
    for at in range(count):
        here = np.uint64(stretches[at])
        to = ends[here]
        together[to], where[at] = visits[at] - starts[here], to
        ends[here] = to + one
    begin = np.uint64(0)
    for stretch in range(np.uint64(starts.size)):
        map_forward(together[begin : ends[stretch]], orders[stretch + np.uint64(_FIRST_DEALT)], tables)
        begin = ends[stretch]
    for at in range(count):
        visits[at] = starts[np.uint64(stretches[at])] + together[where[at]]


@numba.njit(**WITHIN_KERNELS)
def _fill_some(
    slots: NDArray[np.uint32],
    first_batch: np.uint64,
    before: _Unsigned,
    orders: _Unsigned,
    tables: _Entries,
    starts: _Unsigned,
    generations_of: NDArray[np.int64],
    constants: _Unsigned,
    ids: _Unsigned,
    fresh: NDArray[np.bool_],
    generations: NDArray[np.int64],
) -> None:
    world, first_fresh, first_other, oldest, size = constants
    batch_size, one = np.uint64(slots.shape[1]), np.uint64(1)
    fresh_count, others_before = before[-1] - before[0], first_batch * batch_size - before[0]
    # The fresh rows of all batches, then the others: visits, counted from the oldest; then samples.
    samples, stretches = np.empty(ids.size, dtype=np.uint64), np.empty(ids.size, dtype=np.uint32)
    _every_nth(samples[:fresh_count], first_fresh, world, before[0], orders[_FRESH], tables)
    _every_nth(samples[fresh_count:], first_other, world, others_before, orders[_OTHERS], tables)
    _find_stretches(samples, starts, stretches)
    if world > one:
        _undeal(samples, stretches, starts, orders, tables)
    for at in range(np.uint64(ids.size)):
        samples[at] = wrapped(samples[at] + oldest, size)
    map_back(samples, orders[-1], tables)
    # Where the shuffle within batches puts them. The slots of a batch are its fresh ones, then the others.
    row = np.uint64(0)
    for batch in range(np.uint64(slots.shape[0])):
        fresh_here, to_fresh = before[batch + one] - before[batch], before[batch] - before[0]
        to_other = fresh_count + batch * batch_size - to_fresh - fresh_here
        for column in range(min(batch_size, np.uint64(ids.size) - row)):
            slot = np.uint64(slots[batch, column])
            is_other = is_at_least(slot, fresh_here)
            source = slot + (to_fresh & ~is_other) + (to_other & is_other)
            ids[row], fresh[row] = samples[source], is_other == np.uint64(0)
            generations[row] = generations_of[np.uint64(stretches[source])]
            row += one


def _signature(entries: str) -> Signature:
    from numba import boolean, int64, types, uint32, uint64, void

    numbers, table = types.Array(uint64, 1, "C"), types.Array(getattr(types, entries), 1, "C")
    slots, orders, turns = (
        types.Array(uint32, 2, "C"),
        types.Array(uint64, 2, "C"),
        types.Array(int64, 1, "C"),
    )
    return void(
        slots, uint64, numbers, orders, table, numbers, turns, numbers, numbers,
        types.Array(boolean, 1, "C"), turns,
    )  # fmt: skip


@kernel(_signature, boundscheck=False)
def _fill(
    slots: NDArray[np.uint32],  # batches × rows
    first_batch: np.uint64,
    before: _Unsigned,  # how many fresh rows there are before each of the batches, and in all of them
    orders: _Unsigned,
    tables: _Entries,
    starts: _Unsigned,  # of the stretches of visits, counted from the oldest
    generations_of: NDArray[np.int64],  # each stretch
    constants: _Unsigned,
    ids: _Unsigned,
    fresh: NDArray[np.bool_],
    generations: NDArray[np.int64],
) -> None:
    batch_size = slots.shape[1]
    at_once = max(1, _AT_ONCE // batch_size)
    for batch in range(0, slots.shape[0], at_once):
        end = min(batch + at_once, slots.shape[0])
        rows = slice(batch * batch_size, end * batch_size)
        _fill_some(
            slots[batch:end], first_batch + np.uint64(batch), before[batch : end + 1], orders, tables, starts,
            generations_of, constants, ids[rows], fresh[rows], generations[rows],
        )  # fmt: skip


@dataclass(frozen=True)
class VisitStretches:
    """The visits of an epoch's window, in stretches that are dealt, and were computed, together.

    `starts` are visits, and end with the window's end; `generations` has one for each stretch, and `dealt`
    the order in which it is dealt, unless there is but one rank.
    """

    starts: Sequence[int]
    generations: Sequence[int]
    dealt: Sequence[KeyedPermutation]


class CompiledRows:
    """The rows of one rank of an epoch.

    Its visits are every `world`-th from `first_fresh` and `first_other` on. `circle` has two pairs of rounds:
    at least 65,537 samples.
    """

    def __init__(
        self,
        *,
        world: int,
        first_fresh: int,
        first_other: int,
        stretches: VisitStretches,
        fresh_order: KeyedPermutation,
        other_order: KeyedPermutation,
        circle: KeyedPermutation,
    ) -> None:
        self._orders, self._tables = packed_orders([fresh_order, other_order, *stretches.dealt, circle])
        oldest, size = stretches.starts[0], circle.size
        self._starts = np.array([start - oldest for start in stretches.starts[:-1]], dtype=np.uint64)
        self._generations = np.array(stretches.generations, dtype=np.int64)
        constants = [world, first_fresh - oldest, first_other - oldest, oldest % size, size]
        self._constants = np.array(constants, dtype=np.uint64)
        self._fill = _fill(self._tables.dtype.name)

    def rows(
        self, slots: NDArray[np.uint32], first_batch: int, before: NDArray[np.int64], count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """The ids, generations, and which are fresh, of the first `count` rows of some batches.

        `slots` and `before` are those of `BalancedShuffle` for these; only the last may be incomplete.
        """
        ids = np.empty(count, dtype=np.uint64)
        generations, fresh = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.bool_)
        self._fill(
            slots, np.uint64(first_batch), before.view(np.uint64), self._orders, self._tables, self._starts,
            self._generations, self._constants, ids, fresh, generations,
        )  # fmt: skip
        return ids.view(np.int64), generations, fresh
