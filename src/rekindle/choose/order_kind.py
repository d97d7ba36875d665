"""The four ways in which a loader's order comes about."""

from __future__ import annotations

from enum import Enum


class OrderKind(Enum):
    """Who decides which sample comes when. The values are what a checkpoint holds."""

    SHUFFLED = "shuffled"  # our own permutation
    SEQUENTIAL = "sequential"
    SAMPLER = "sampler"  # the user's sampler, batch sampler or generator
    ITERABLE = "iterable"  # an IterableDataset itself

    def __init__(self, value: str) -> None:
        self.is_planned = value in ("shuffled", "sequential")  # our own, and known before the epoch starts
