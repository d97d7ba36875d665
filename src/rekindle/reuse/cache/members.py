"""Who uses a cache that is shared: a number for each loader, and how far it is in its training."""

from __future__ import annotations

import os

import numpy as np

from rekindle.core.process_state import is_running
from rekindle.reuse.cache.shared_arrays import Field, SharedMemory

_MEMBERS = 256  # whose epochs are kept; later ones overwrite the earliest
_COUNT, _OLDEST, _ROWS = 0, 1, 8  # indices into `members`: rows of process and epoch follow


FIELDS: tuple[Field, ...] = (("members", np.int64, _ROWS + 2 * _MEMBERS),)


class Members:
    """The loaders that use a cache."""

    def __init__(self, memory: SharedMemory) -> None:
        self._lock, self._words = memory.lock, memory.arrays["members"]
        self._rows = self._words[_ROWS:].reshape(_MEMBERS, 2)

    def join(self) -> int:
        """A number for one more, from 1 on; it is at the beginning of its training."""
        with self._lock:
            self._words[_COUNT] += 1
            member = int(self._words[_COUNT])
            self._set(member, 0)
        return member

    def leave(self, member: int) -> None:
        """Forget one."""
        with self._lock:
            self._rows[member % _MEMBERS] = 0
            self._find_oldest()

    def note_epoch(self, member: int, epoch: int) -> bool:
        """Note how far one is; returns whether all of them have come further by that."""
        with self._lock:
            before = self._words[_OLDEST]
            self._set(member, epoch)
            return bool(self._words[_OLDEST] > before)

    def _set(self, member: int, epoch: int) -> None:
        self._rows[member % _MEMBERS] = os.getpid(), epoch
        self._find_oldest()

    def _find_oldest(self) -> None:
        processes, epochs = self._rows.T.tolist()
        running = [epoch for pid, epoch in zip(processes, epochs, strict=True) if pid and is_running(pid)]
        self._words[_OLDEST] = min(running, default=0)

    @property
    def joined(self) -> int:
        """How many there were, those that are gone included."""
        return int(self._words[_COUNT])

    @property
    def oldest_epoch(self) -> int:
        """The epoch that the one is in that is furthest behind."""
        return int(self._words[_OLDEST])
