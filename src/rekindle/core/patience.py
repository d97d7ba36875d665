"""Tells the user, in a line on stderr, what it is that a start takes so long for."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_TELL_AFTER = 2.0  # seconds in a row that a process does such things silently


class Patience:
    """How long this process has done what takes long at a start, and what of it the user was told."""

    def __init__(self) -> None:
        self._spent, self._started, self._stopped = 0.0, 0.0, 0.0
        self._doing: list[str] = []  # A kernel is compiled while another one is loaded.
        self._told: set[str] = set()
        self._timer = threading.Timer(0, self._tell)

    def start(self, doing: str) -> None:
        """Something is being done from now on; `stop` ends it."""
        if not self._doing:
            self._started = time.monotonic()
            if self._started - self._stopped > _TELL_AFTER:  # What the user waited for then is long over.
                self._spent = 0.0
        self._doing.append(doing)
        if doing not in self._told:
            self._timer.cancel()
            spent = self._spent + time.monotonic() - self._started
            self._timer = threading.Timer(max(0.0, _TELL_AFTER - spent), self._tell)
            self._timer.daemon = True
            self._timer.start()

    def stop(self) -> None:
        """What was started last is done."""
        self._doing.pop()
        if not self._doing:
            self._timer.cancel()
            self._stopped = time.monotonic()
            self._spent += self._stopped - self._started

    @contextmanager
    def during(self, doing: str) -> Iterator[None]:
        """The user is told if what is done meanwhile takes long; not by workers: all would say it."""
        if multiprocessing.parent_process() is not None:
            yield
            return
        self.start(doing)
        try:
            yield
        finally:
            self.stop()

    def _tell(self) -> None:
        doing = self._doing[-1:]
        if doing and doing[0] not in self._told:
            self._told.update(doing)
            self._spent, self._started = 0.0, time.monotonic()
            print(f"rekindle: {doing[0]}", file=sys.stderr, flush=True)


PATIENCE = Patience()
