"""A look at an entry of a cache without a copy."""

from __future__ import annotations

from rekindle.reuse.cache.memory_tier import MemoryTier
from rekindle.reuse.cache.serialization import Value


class Peek:
    """An entry's value in place: arrays are views that are valid until it is overwritten.

    Read them, never write to them, then ask `still_there`: if it says no, discard what was read. This serves
    kernels that work straight from the cache as well as callers who copy.
    """

    __slots__ = ("_index", "_stamp", "_tier", "value")

    def __init__(self, value: Value, tier: MemoryTier | None = None, index: int = 0, stamp: int = 0) -> None:
        self.value, self._tier, self._index, self._stamp = value, tier, index, stamp

    def still_there(self) -> bool:
        """Whether all that was read of the value up to now is valid."""
        return self._tier is None or self._tier.unchanged(self._index, self._stamp)
