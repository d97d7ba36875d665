"""How often each sample was drawn in an epoch so far: every draw of a sample is a view of its own."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.core.state_fields import StateFields

_Ids = NDArray[np.int64]
_SMALLEST = 1024  # entries of a table
_MOST_DRAWS = 2**31 - 1
_LARGEST = 2**30  # ids from here on, and negative ones, are counted one by one


def earlier_occurrences(values: NDArray[np.integer]) -> _Ids:
    """For each value, how many equal ones come before it.

    >>> earlier_occurrences(np.array([5, 3, 5, 5, 3])).tolist()
    [0, 0, 1, 2, 1]
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    groups = np.repeat(starts, np.diff(starts, append=len(values)))
    earlier = np.empty(len(values), dtype=np.int64)
    earlier[order] = np.arange(len(values)) - groups
    return earlier


class DrawCounts:
    """Counts the draws of each sample: a byte a sample, as long as none is drawn very often."""

    def __init__(self) -> None:
        self._table: NDArray[np.uint8 | np.uint32] = np.zeros(_SMALLEST, dtype=np.uint8)
        self._others: Counter[int] = Counter()  # of ids that have no place in the table

    def add(self, ids: _Ids) -> _Ids | None:
        """Count these draws, and say how often each sample was drawn before; None if none of them was."""
        if not len(ids):
            return None
        lowest, highest = int(ids.min()), int(ids.max())
        if lowest < 0 or highest >= _LARGEST:
            return self._add_one_by_one(ids)
        self._make_room(highest)
        before = self._table[ids]
        if len(set(ids.tolist())) == len(ids):
            draws, most = before.astype(np.int64), int(before.max())
        else:
            draws = before + earlier_occurrences(ids)
            most = int(draws.max())
        self._widen(most + 1)
        if most:
            np.maximum.at(
                self._table, ids, (draws + 1).astype(self._table.dtype)
            )  # The last of several draws counts.
            return draws
        self._table[ids] = 1
        return None

    def _add_one_by_one(self, ids: _Ids) -> _Ids | None:
        draws = []
        for one in ids.tolist():
            if 0 <= one < _LARGEST:
                earlier = self.add(np.array([one]))
                draws.append(0 if earlier is None else int(earlier[0]))
            else:
                draws.append(self._others[one])
                self._others[one] += 1
        return np.array(draws) if any(draws) else None

    def _make_room(self, highest: int) -> None:
        if highest >= len(self._table):
            # Zeros that nobody has written to take no memory.
            larger = np.zeros(1 << int(highest).bit_length(), dtype=self._table.dtype)
            larger[: len(self._table)] = self._table
            self._table = larger

    def _widen(self, count: int) -> None:
        if count > 255 and self._table.dtype == np.uint8:
            self._table = self._table.astype(np.uint32)

    def state(self, without: list[_Ids]) -> dict[str, torch.Tensor]:
        """The counts as a checkpoint holds them, as they were before the last draws, those of `without`."""
        table, others = self._table.astype(np.int64), self._others.copy()
        for ids in without:
            inside = (ids >= 0) & (ids < _LARGEST)
            np.subtract.at(table, ids[inside], 1)
            others.subtract(ids[~inside].tolist())
        repeated = np.flatnonzero(table > 1)
        outside = {one: count for one, count in others.items() if count}
        ids = np.concatenate([repeated, np.array(list(outside), dtype=np.int64)])
        counts = np.concatenate([table[repeated], np.array(list(outside.values()), dtype=np.int64)])
        drawn = np.packbits(np.trim_zeros(table > 0, "b"))
        fields = {"drawn": drawn, "repeated": ids, "counts": counts}
        return {name: torch.from_numpy(values) for name, values in fields.items()}

    @classmethod
    def resumed(cls, state: dict[str, torch.Tensor]) -> DrawCounts:
        """The counts that a checkpoint holds."""
        counts = cls()
        drawn = np.flatnonzero(np.unpackbits(state["drawn"].numpy()))
        if len(drawn):
            counts.add(drawn)
        for one, count in zip(state["repeated"].tolist(), state["counts"].tolist(), strict=True):
            if 0 <= one < _LARGEST:
                counts._widen(count)
                counts._table[one] = count
            else:
                counts._others[one] = count
        return counts


def checked_draws(fields: StateFields) -> dict[str, torch.Tensor]:
    """What `DrawCounts.state` gave; StateError if it cannot have."""
    drawn = fields.array("drawn", np.dtype(np.uint8))
    if 8 * len(drawn) > _LARGEST:
        fields.refuse("drawn", f"{len(drawn)} bytes, but {_LARGEST // 8} are the most")
    ids = fields.array("repeated", np.dtype(np.int64))
    counts = fields.array("counts", np.dtype(np.int64), len(ids), within="samples are repeated")
    inside = ids[(ids >= 0) & (ids < _LARGEST)]
    bits = np.unpackbits(drawn)
    if inside.max(initial=-1) >= len(bits) or not bits[inside].all():
        fields.refuse("repeated", "samples that were never drawn")
    if len(counts) and not 1 <= counts.min() <= counts.max() <= _MOST_DRAWS:
        fields.refuse("counts", f"expected numbers of draws from 1 to {_MOST_DRAWS}")
    found = {"drawn": drawn, "repeated": ids, "counts": counts}
    return {name: torch.from_numpy(values) for name, values in found.items()}
