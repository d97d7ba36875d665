"""The passes over one loader: those that several threads make at a time have workers of their own."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rekindle.loader.epoch_iterator import EpochIterator


class Passes:
    """The passes over one loader that go on, and the lock that is held while one begins or ends.

    With the lock held, a script's code may run: a sampler's, a dataset's when workers get copies of it. What
    ends workers of a loader that is garbage does not take it.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.by_threads = False  # Others of another thread went on when the last one began.
        self.mixed = False  # Batches came of several of those in turn.
        self.last_epoch = 0  # of the pass that began last
        self.begun: list[weakref.ref[EpochIterator]] = []
        _all.add(self)

    def going_on(self) -> list[EpochIterator]:
        """Those that are not over, nor dropped."""
        begun = [one() for one in [*self.begun]]
        return [one for one in begun if one is not None and one.goes_on]

    def elsewhere(self) -> list[EpochIterator]:
        """Those of other threads."""
        return [one for one in self.going_on() if one.thread != threading.get_ident()]

    def before_another(self) -> list[EpochIterator]:
        """Those of other threads, when a pass is about to begin."""
        elsewhere = self.elsewhere()
        self.by_threads = bool(elsewhere)
        self.mixed = self.mixed and self.by_threads
        self.begun = [*map(weakref.ref, self.going_on())]
        return elsewhere

    def goes_on_after_another(self) -> None:
        """Note a batch of a pass since whose last one another pass has begun, or yielded one."""
        self.mixed = self.by_threads

    def why_unknown(self, what: str) -> str | None:
        """Why nobody can say what is asked for; None if that is not so."""
        if not self.mixed:
            return None
        return (
            f"{what} is of one pass, and several threads iterate over this loader at the same time. Make a "
            "loader for each thread."
        )


_all: weakref.WeakSet[Passes] = weakref.WeakSet()


def _renew_locks() -> None:
    """The thread that held one may not be there any more."""
    for passes in [*_all]:
        passes.lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_locks)
