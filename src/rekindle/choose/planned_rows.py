"""Some rows of a planned epoch: which samples, of which generation and turn, fresh or not, at what weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rekindle.core.counter_rng import NEXT_DRAW

_Scalar = TypeVar("_Scalar", bound=np.generic)
_Turns = int | NDArray[np.int64]
_REPETITION = NEXT_DRAW << 12  # added to a turn for each repetition of a row: beyond the draws of its own


class PlannedRows(NamedTuple):
    """Rows in the order of training; every array has one entry for each.

    `generations` and `turns` identify the augmentation of a sample: that of the cached part, and that of the
    rest. Both are the epoch itself, one number for all, as long as nothing is reused and no sample occurs
    twice: of a sample that does, each occurrence has a turn of its own. `fresh` says which samples are
    recomputed, `weights` what each counts for in the loss.
    """

    ids: NDArray[np.int64]
    generations: _Turns
    turns: _Turns
    fresh: NDArray[np.bool_]
    weights: NDArray[np.float32]
    last_uses: NDArray[np.bool_] | None = None  # of results that are cached for this epoch only
    substituted_ids: NDArray[np.int64] | None = None  # the samples that near-duplicates are substituted for

    def part(self, rows: slice | NDArray[np.int64]) -> PlannedRows:
        """Some of the rows, or all of them in another order."""
        ids, generations, turns, fresh, weights, last_uses, substituted_ids = self
        return PlannedRows(  # Written out: it is done for every batch.
            ids[rows],
            generations if isinstance(generations, int) else generations[rows],
            turns if isinstance(turns, int) else turns[rows],
            fresh[rows],
            weights[rows],
            None if last_uses is None else last_uses[rows],
            None if substituted_ids is None else substituted_ids[rows],
        )

    @classmethod
    def joined(cls, parts: Sequence[tuple[slice, PlannedRows]]) -> PlannedRows:
        """The rows of several parts, each in its place."""
        count = sum(len(rows.ids) for _, rows in parts)
        columns: list[Any] = []
        for values in zip(*(rows for _, rows in parts), strict=True):
            first: object = values[0]
            if not isinstance(first, np.ndarray) and all(value is first for value in values):
                columns.append(first)
                continue
            column = np.empty(count, dtype=np.asarray(first).dtype)
            for (place, _), value in zip(parts, values, strict=True):
                column[place] = value
            columns.append(column)
        return cls(*columns)

    def repeated(self, times: NDArray[np.int64]) -> PlannedRows:
        """The same rows, where each has come so many times before: each time it is a view of its own."""
        turns = self.turns + times * _REPETITION
        fresh = self.fresh if isinstance(self.generations, int) else self.fresh & (times == 0)
        return self._replace(turns=turns, fresh=fresh)

    def with_mean_weight_of_one(self) -> PlannedRows:
        """The same rows, their weights scaled to a mean of 1."""
        mean = self.weights.mean(dtype=np.float64) if len(self.weights) else 0
        return self if mean <= 0 else self._replace(weights=(self.weights / mean).astype(np.float32))


def constant(value: _Scalar, count: int) -> NDArray[_Scalar]:
    """The same value for every row, which takes no memory: an array of stride 0."""
    return np.broadcast_to(value, (count,))
