"""Which worker loads which part of a batch."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from rekindle.run.in_flight_batch import Part

# A part should keep a worker busy for this long: less, and messages cost more than they help. And for this
# long for each worker there is: the one process that sends and receives them all must keep up.
_WORTHWHILE_SECONDS, _SECONDS_PER_WORKER = 0.005, 0.0005
# A batch is split into this many parts a worker, so that a slow sample holds up little.
_PARTS_PER_WORKER = 4
# As many parts a worker should be in flight, so that it has one to go on with: parts are not larger for it.
_PARTS_IN_FLIGHT = 2
# And no more than this many: where many batches are in flight, small parts would only cost messages.
_MOST_IN_FLIGHT = 16
# How far a part's time moves what is known of a sample's. Workers that wait for a processor take longer, and
# smaller parts, with more messages, would have them wait still longer: so what is known is a quick sample.
_SHARE_IF_FASTER, _SHARE_IF_SLOWER = 0.3, 0.05


class Load(NamedTuple):
    """A part that came back: how many rows its worker was to load, how many it did, and how long it took."""

    worker: int
    assigned: int
    loaded: int
    seconds: float


class WorkSplitter:
    """Splits batches into parts and chooses a worker for each.

    `whole` gives a batch to one worker, as torch does, for code that looks at which worker it runs in; if
    the batches are to come `in_order`, to each worker in turn. Otherwise a part goes to the worker with the
    fewest samples to load.
    """

    def __init__(self, workers: int, *, whole: bool, in_order: bool) -> None:
        self.workers, self.whole, self._in_order = workers, whole, in_order
        self._outstanding = [0] * workers
        self._next = 0
        self.came_back: list[Load] = []  # since the last choice
        self._sample_seconds: float | None = None

    def assign(self, step: int, rows: int, *, whole: bool, batches: int) -> list[Part]:
        """All rows of batch `step`, in parts; about so many batches are in flight."""
        self._note_what_came_back()
        size = rows if whole or self.whole else self._part_size(rows, batches)
        return [
            Part(start, stop, self.choose(step, stop - start, range(self.workers)))
            for start in range(0, max(rows, 1), max(size, 1))
            for stop in (min(start + size, rows),)
        ]

    def _part_size(self, rows: int, batches: int) -> int:
        if self._sample_seconds is None or self.workers == 1:  # One worker holds up nobody else.
            return -(-rows // self.workers)
        evenly = -(-rows // (self.workers * _PARTS_PER_WORKER))
        busy = max(_WORTHWHILE_SECONDS, _SECONDS_PER_WORKER * self.workers)
        worthwhile = int(busy / max(self._sample_seconds, 1e-9)) + 1
        most = batches * rows // (self.workers * _PARTS_IN_FLIGHT)
        fewest = min(batches * rows // (self.workers * _MOST_IN_FLIGHT), rows)
        return max(evenly, fewest, min(worthwhile, most))

    def choose(self, step: int, samples: int, among: Collection[int]) -> int:
        """The worker for a part of so many samples."""
        if self.came_back:
            self._note_what_came_back()
        if self.whole and self._in_order:
            worker = step % self.workers
        elif len(among) == self.workers:
            worker = self._least_loaded()
        else:
            turns = (number % self.workers for number in range(self._next, self._next + self.workers))
            able = (number for number in turns if number in among)
            worker = min(able, key=self._outstanding.__getitem__)
        self._next = (worker + 1) % self.workers
        self._outstanding[worker] += samples
        return worker

    def _least_loaded(self) -> int:
        """The worker with the fewest samples to load; of several, the next in turn."""
        fewest = min(self._outstanding)
        try:
            return self._outstanding.index(fewest, self._next)
        except ValueError:
            return self._outstanding.index(fewest)

    def _note_what_came_back(self) -> None:
        """Learn which workers have less to do now, and how long their samples took."""
        loads, self.came_back = self.came_back, []
        for load in loads:
            self._outstanding[load.worker] -= load.assigned
            if load.loaded:
                took = load.seconds / load.loaded
                known = self._sample_seconds or took
                share = _SHARE_IF_FASTER if took < known else _SHARE_IF_SLOWER
                self._sample_seconds = known + share * (took - known)
