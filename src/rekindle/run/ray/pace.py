"""How long requests take, and so when one is late: then another actor is asked as well."""

from __future__ import annotations

from collections import deque

_REMEMBERED = 256  # requests
_ENOUGH = 8  # requests, to say anything
_SHARE = 0.95
_TIMES = 4  # that many times longer than nearly all others is late
_LEAST = 0.5  # seconds: below, it is the network or the scheduler


class Pace:
    """The seconds a sample of the last requests, from being the next one at its actor to being back."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._late: float | None = None
        self.sample_seconds: float | None = None  # spent in the dataset, on average of late

    def note(self, seconds: float, rows: int, load_seconds: float, samples: int) -> None:
        """Note a request that came back."""
        self._seconds.append(seconds / max(rows, 1))
        self._late = None
        if samples:
            took, known = load_seconds / samples, self.sample_seconds
            self.sample_seconds = took if known is None else 0.8 * known + 0.2 * took

    def late_after(self, rows: int) -> float:
        """The seconds after which a request of so many rows is late."""
        if len(self._seconds) < _ENOUGH:
            return float("inf")
        if self._late is None:
            ordered = sorted(self._seconds)
            self._late = _TIMES * ordered[int(_SHARE * (len(ordered) - 1))]
        return max(_LEAST, self._late * rows)
