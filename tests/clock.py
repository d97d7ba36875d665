"""A clock that only a test moves, in place of `time.perf_counter`: what is timed is exact on any machine."""

import threading
import time

import rekindle as rk


class Clock:
    """Stands still until `advance`; with `for_each_thread`, every thread has a time of its own.

    Workers that are forked take the clock with them, as it stands, and move it on their own.
    """

    def __init__(self, for_each_thread=True):
        self._at = threading.local() if for_each_thread else _Everywhere()

    def __call__(self):
        return getattr(self._at, "seconds", 0.0)

    def advance(self, seconds):
        self._at.seconds = self() + seconds

    def replace(self, monkeypatch):
        """Be what everybody takes the time from, until the test is over."""
        assert rk.DataLoader  # Imported by now: nobody keeps this clock for good.
        monkeypatch.setattr(time, "perf_counter", self)


class _Everywhere:
    """One time for all threads."""
