"""A log of each rank that any other can read without its help, in the store of torch.distributed.

Collectives need every rank to come. What a rank writes here is there for whoever wants to know, so that one
rank alone can put together what all of them know.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch.distributed as dist

from rekindle.choose.agreement import group_store, pauses, read_values, store_timeout

_AT_ONCE = 256  # entries that are read at once


class Head(NamedTuple):
    """What is in a rank's log, and how far the rank has got."""

    term: int = -1  # how often the log was begun again
    entries: int = 0
    step: int = -1  # where the rank has got to: to this step,
    reports: int = 0  # and so many reports on it


class RankLog:
    """The log of this rank, which is begun again for every term; and those of the others.

    All ranks must make theirs, and begin them again, at the same points of the script, and a rank may read
    only as long as no other has begun the next term. The store holds one term at a time.
    """

    def __init__(self, name: str) -> None:
        self._store, self._key = group_store(name)
        self.head = Head(term=0)

    @property
    def timeout(self) -> float:
        """How long to wait for another rank, in seconds."""
        return store_timeout(self._store)

    def begin_again(self) -> None:
        """Begin the next term. What is there of this one is overwritten in time."""
        self.head = Head(self.head.term + 1)

    def write(self, entries: Sequence[bytes], step: int, reports: int = 0) -> None:
        """Add entries, and say that the rank has got to so many `reports` on a step."""
        old, own = self.head, f"{self._key}/{dist.get_rank()}"
        for number, entry in enumerate(entries, old.entries):
            self._store.set(f"{own}/{number}", entry)
        # Last, because whoever reads this takes the entries for written.
        reached = max((old.step, old.reports), (step, reports))
        self.head = Head(old.term, old.entries + len(entries), *reached)
        self._store.set(own, json.dumps(self.head))

    def head_of(self, rank: int) -> Head:
        """The head of a rank's log in this rank's term; nothing is in it if the other is not there yet."""
        key = f"{self._key}/{rank}"
        if not self._store.check([key]):
            return Head()
        head = Head(*json.loads(self._store.get(key)))
        return head if head.term == self.head.term else Head()

    def wait_for(self, rank: int, step: int, reports: int) -> Head | None:
        """The head of a rank's log once it has got there; None if it has not before the time is over."""
        deadline = time.monotonic() + self.timeout
        for pause in pauses():
            head = self.head_of(rank)
            if (head.step, head.reports) >= (step, reports):
                return head
            if time.monotonic() >= deadline:
                return None
            time.sleep(pause)
        raise AssertionError("pauses never end")

    def entries_of(self, rank: int, first: int, last: int) -> list[bytes]:
        """The entries of a rank from `first` up to `last`."""
        keys = [f"{self._key}/{rank}/{number}" for number in range(first, last)]
        found: list[bytes] = []
        for start in range(0, len(keys), _AT_ONCE):
            found += read_values(self._store, keys[start : start + _AT_ONCE])
        return found
