"""Which generations of a sample a cache can hold at a time, and in which row of its index each goes."""

from __future__ import annotations

from typing import NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", int, NDArray[np.int64])


class KeptGenerations(NamedTuple):
    """Up to `ways` generations of a sample, where one follows another after `span` epochs.

    >>> kept = KeptGenerations(ways=2, span=3)
    >>> [kept.row(5, generation) for generation in (0, 2, 5, 8)]
    [10, 11, 10, 11]
    """

    ways: int = 1
    span: int = 1

    def row(self, index: Number, generation: Number) -> Number:
        """The row of a generation: that of the next one is another, if there are several.

        The first generation is followed by another after up to `span` epochs, the others after `span`.
        """
        return index if self.ways == 1 else index * self.ways + -(-generation // self.span) % self.ways

    def rows(self, index: int) -> range:
        """All rows of a sample."""
        return range(index * self.ways, (index + 1) * self.ways)

    def all_rows(self, some: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
        """All rows of the samples that have one of these, sample by sample, in an index of so many."""
        samples = np.unique(some // self.ways)
        found: NDArray[np.int64] = (samples[:, None] * self.ways + np.arange(self.ways)).ravel()
        return found[found < rows]

    def sample(self, row: Number) -> Number:
        """The sample that a row belongs to."""
        return row // self.ways

    @overload
    def is_over(self, generation: int, epoch: int) -> bool: ...
    @overload
    def is_over(self, generation: NDArray[np.int64], epoch: int) -> NDArray[np.bool_]: ...
    def is_over(self, generation: int | NDArray[np.int64], epoch: int) -> bool | NDArray[np.bool_]:
        """Whether nobody who has reached this epoch uses the generation any more."""
        return generation + self.span <= epoch
