"""What workers need to know to reuse: the dataset in two parts, and where the first parts are cached."""

from __future__ import annotations

from dataclasses import dataclass

from rekindle.reuse.cache.store import Store
from rekindle.reuse.split_dataset import NativeSplit, Split


@dataclass(frozen=True)
class WorkerView:
    """A dataset split in two. Without a store nothing is cached: the split is only one between two seeds.

    `part_seed` is what the first parts follow from, if not the loader's seed.
    """

    split: Split
    store: Store | None
    part_seed: int | None = None

    @property
    def native(self) -> bool:
        """Whether the random numbers of both parts are drawn for them."""
        return isinstance(self.split, NativeSplit)
