"""What passes through the loader without being looked into: it belongs to the user's code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

# These really are anything. Everything else has a type.
Index: TypeAlias = Any  # what a sampler yields and a dataset is asked for; an int, if nobody says otherwise
Sample: TypeAlias = Any  # what a dataset gives for an index
Batch: TypeAlias = Any  # what a collate function makes of samples
Collate: TypeAlias = Callable[[Sample], Batch]  # of a list of samples, or of one without batching


class MapStyleDataset(Protocol):
    """A dataset that is asked for samples by index."""

    def __getitem__(self, index: Index, /) -> Sample: ...
    def __len__(self) -> int: ...
