"""Who makes which part of a batch."""

from __future__ import annotations

from collections.abc import Collection

# A part should keep a worker busy for this long: less, and messages cost more than they help.
_WORTHWHILE_SECONDS = 0.002
# A batch is cut into this many parts a worker, so that a slow sample holds up little.
_PARTS_PER_WORKER = 4


class Dealer:
    """Cuts batches into parts and chooses a worker for each.

    `whole` gives a batch to one worker, as torch does, for code that looks at which worker it runs in; if
    the batches are to come `in_order`, to each worker in turn. Otherwise a part goes to the worker with the
    fewest samples to make.
    """

    def __init__(self, workers: int, *, whole: bool, in_order: bool) -> None:
        self.workers, self.whole, self._in_order = workers, whole, in_order
        self._outstanding = [0] * workers
        self._next = 0
        self._sample_seconds: float | None = None

    def cut(self, rows: int, *, whole: bool) -> list[tuple[int, int]]:
        """A batch's rows as (start, stop) of its parts."""
        if whole or self.whole or rows == 0:
            return [(0, rows)]
        if self._sample_seconds is None:
            size = -(-rows // self.workers)
        else:
            evenly = -(-rows // (self.workers * _PARTS_PER_WORKER))
            size = max(evenly, int(_WORTHWHILE_SECONDS / max(self._sample_seconds, 1e-9)) + 1)
        return [(start, min(start + size, rows)) for start in range(0, rows, size)]

    def choose(self, step: int, samples: int, among: Collection[int]) -> int:
        """The worker for a part of so many samples."""
        if self.whole and self._in_order:
            worker = step % self.workers
        else:
            turns = (number % self.workers for number in range(self._next, self._next + self.workers))
            able = (number for number in turns if number in among)
            worker = min(able, key=self._outstanding.__getitem__)
            self._next = worker + 1
        self._outstanding[worker] += samples
        return worker

    def returned(self, worker: int, asked: int, made: int, seconds: float) -> None:
        """Note that a worker is done with a part, and how long its samples took."""
        self._outstanding[worker] -= asked
        if made:
            took = seconds / made
            known = self._sample_seconds
            self._sample_seconds = took if known is None else 0.8 * known + 0.2 * took
