"""How many batches are on their way at once: what the training loop can use, not more the more workers.

All workers fill each batch, so a few batches are enough to have them all at work, and each of them takes
memory. Only where each batch is loaded by one worker, as in torch's loader, do more workers need more of
them. Nothing here depends on a clock: a user's sampler is asked for batches this far ahead.
"""

from __future__ import annotations

_BATCHES = 4
_TORCHS = 2  # batches a worker: torch's default
_SAMPLES_PER_WORKER = 4  # at least, so that each has something to load while its last answer is on its way
_SMALL = 32 << 20  # bytes in all: as long as batches take no more than this, short samples get more of them
# Of a planned order, which nobody sees being asked for, as many batches a worker as take no more bytes than
# this in all: workers run dry half as often while the main process waits for a processor. More of them no
# longer fit a core's cache, and are slower; and each takes two open files.
_TINY, _A_WORKER, _IN_ALL = 4 << 20, 4, 16


class Window:
    """The number of batches in flight, `size`, as far as is known what batches are.

    `given` is the number that the user asked for, `whole` says that each is loaded by one worker, `planned`
    that the order is known before the epoch. `usual` is the size if batches were not tiny: parts of batches
    are as large as for that.
    """

    def __init__(self, workers: int, given: int | None, *, whole: bool, planned: bool = False) -> None:
        self._workers, self._given, self._whole, self._planned = workers, given, whole, planned
        self._rows, self._nbytes = 1, 0  # of a batch
        # Attributes: they are looked at several times a batch.
        self.usual = self._usual()
        self.size = self._size()

    def _size(self) -> int:
        """How many batches there may be."""
        if self._given is not None or self._whole or not (self._planned and self._nbytes):
            return self.usual
        return max(self.usual, min(_A_WORKER * self._workers, _IN_ALL, _TINY // self._nbytes))

    def _usual(self) -> int:
        """How many batches there may be, if they are not tiny."""
        if self._given is not None:
            return self._given
        torchs = _TORCHS * self._workers
        if self._whole:
            return torchs
        # With two workers one less than torch has: the loop holds two batches for a moment, with torch one.
        few = min(_BATCHES, max(torchs - 1, 2))
        fewest = max(few, -(-_SAMPLES_PER_WORKER * self._workers // self._rows))
        return max(fewest, min(torchs, _SMALL // self._nbytes)) if self._nbytes else fewest

    def note_whole(self) -> None:
        """Note that each batch is loaded by one worker."""
        self._whole = True
        self.usual = self._usual()
        self.size = self._size()

    def note_batch(self, rows: int, nbytes: int = 0) -> None:
        """Note how many samples a batch has, and the bytes that it takes if they are known."""
        if rows > self._rows or nbytes > self._nbytes:
            self._rows, self._nbytes = max(rows, self._rows), max(nbytes, self._nbytes)
            self.usual = self._usual()
            self.size = self._size()
