"""Which actor loads which request: its home if that is up, else whoever is free; the oldest first."""

from __future__ import annotations

from collections import deque

from rekindle.core import counter_rng
from rekindle.run.ray.unit_results import Request, UnitResults

_WORTHWHILE_SECONDS = 0.01  # of work in a request: less, and its way through the cluster costs more
# Of a batch, so that a slow sample holds up little; but one is enough for what takes an actor no longer.
_REQUESTS_PER_ACTOR, _SHORT_SECONDS = 2, 0.1


class Schedule:
    """Requests that wait for an actor.

    Attributes:
        up: The numbers of the actors that can be asked.
        slow: Those of them that have not answered for long: others load what is meant for them.
        groups: By number, whose cached parts an actor can read: all with the same entry share a cache.

    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.up: set[int] = set()
        self.slow: set[int] = set()
        self.groups: dict[int, object] = {}
        self._anyone: deque[Request] = deque()
        self._at_home: list[deque[Request]] = [deque() for _ in range(size)]

    def is_first_of_group(self, number: int) -> bool:
        """Whether no actor with a lower number that is up shares the cache."""
        group = self.groups.get(number, number)
        return not any(self.groups.get(other, other) == group for other in self.up if other < number)

    def add(self, request: Request, *, first: bool = False) -> None:
        """Have a request wait; `first`: before all others."""
        queue = self._anyone if request.home is None else self._at_home[request.home]
        if first:
            queue.appendleft(request)
        else:
            queue.append(request)

    def next_for(self, number: int) -> Request | None:
        """What an actor is to load now."""
        own = self._at_home[number]
        _drop_done(own)
        _drop_done(self._anyone)
        if own and (not self._anyone or own[0].unit.key <= self._anyone[0].unit.key):
            return own.popleft()
        if self._anyone:
            return self._anyone.popleft()
        return self._stolen(number)

    def _stolen(self, number: int) -> Request | None:
        """The oldest request of an actor that cannot load it soon."""
        oldest: Request | None = None
        for home, queue in enumerate(self._at_home):
            if home == number:
                continue
            _drop_done(queue)
            if not queue or queue[0].fixed or not self._may_steal(number, home):
                continue
            if oldest is None or queue[0].unit.key < oldest.unit.key:
                oldest = queue[0]
        if oldest is not None and oldest.home is not None:
            self._at_home[oldest.home].popleft()
        return oldest

    def _may_steal(self, number: int, home: int) -> bool:
        if home not in self.up or home in self.slow:
            return True
        return self.groups.get(number, number) == self.groups.get(home, home)


def _drop_done(queue: deque[Request]) -> None:
    while queue and (queue[0].done or queue[0].unit.cancelled):
        queue.popleft()


def split(unit: UnitResults, size: int, *, sample_seconds: float | None, by_cache: bool) -> list[Request]:
    """The requests for a unit's rows: by who caches their parts, or in stretches of equal length."""
    rows = len(unit.unit.indices)
    if unit.unit.kind != "rows":
        return [Request(unit, range(rows))]
    if by_cache:
        ids = unit.unit.indices if unit.unit.ids is None else unit.unit.ids
        homes: dict[int, list[int]] = {}
        for row, home in enumerate(home_of(ids, size)):
            homes.setdefault(home, []).append(row)
        return [Request(unit, found, home) for home, found in homes.items()]
    length = _stretch(rows, size, sample_seconds)
    return [Request(unit, range(start, min(start + length, rows))) for start in range(0, rows, length)]


def home_of(ids: list[int], size: int) -> list[int]:
    """The number of the actor that caches each sample's part, whatever its generation.

    A part of the next generation replaces the last one where that lies.
    """
    found: list[int] = (counter_rng.seeds(0, ids, 0) % size).tolist()
    return found


def _stretch(rows: int, size: int, sample_seconds: float | None) -> int:
    """How many rows a request has."""
    evenly = max(-(-rows // size), 1)
    if sample_seconds is None:
        return evenly
    worthwhile, short = (
        int(seconds / max(sample_seconds, 1e-9)) + 1 for seconds in (_WORTHWHILE_SECONDS, _SHORT_SECONDS)
    )
    fewest = -(-rows // (size * _REQUESTS_PER_ACTOR))
    length = max(fewest, min(worthwhile, rows), min(short, evenly), 1)
    requests = max(-(-rows // length), 1)
    return max(-(-rows // requests), 1)  # All about as long: a short last one costs as much as the others.
