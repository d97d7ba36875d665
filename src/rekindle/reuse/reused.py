"""What workers need to know to reuse: where a sample is cut, and where its first part is kept."""

from __future__ import annotations

from dataclasses import dataclass

from rekindle.reuse.cuts import Cut, NativeCut
from rekindle.reuse.store import Store


@dataclass(frozen=True)
class Reused:
    """A data set cut in two. Without a store, nothing is kept, and the cut is only one between two seeds."""

    cut: Cut
    store: Store | None

    @property
    def native(self) -> bool:
        """Whether the random numbers of both parts are drawn for them."""
        return isinstance(self.cut, NativeCut)
