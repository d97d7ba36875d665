"""The part of a store that lies on disk: every process appends to a segment of its own, all read all.

Nothing on disk is trusted: each read checks a record's key and checksum. Every failure of the disk is a
refusal or a miss.

Old generations go when a segment has no live record left; refreshing in turns, as refurbishing does, empties
whole segments. The file is then deleted, which does not disturb those who still read from it. When the limit
is near, the live records of a segment that is mostly dead move on, and it is deleted too.

Why not LMDB: a prototype of 95 lines (key: sample; value: generation, checksum and record; `sync=False`) was
measured against these files with 2,000 values of 150 kB, 7 rounds alternated, medians on a busy machine:

==================================  =============  =============
values a second                     these files    LMDB
==================================  =============  =============
write, empty cache                  1,760          1,500
write, replacing a generation       1,540          2,310
read (cached by the system)         4,820          4,680
2 processes write · read            1,550 · 6,010  2,460 · 6,690
live share of the limit, when full  0.86–0.89      0.98
opening with 2,000 entries          30 ms          0.6 ms
writers killed 40 times             no damage      no damage
full disk                           less cache     less cache
==================================  =============  =============

Speed is a draw, and LMDB fills the limit better, but it maps the file and trusts it. Truncated at a random
offset, it ended the reading process with SIGBUS in 60 of 60 trials. One flipped bit in a page of its B-tree:
SIGBUS in 3 of 150, no longer writable in 2. A page of zeros: no longer writable, or not even readable, in 40
of 60, until somebody deletes the cache. Here, in 150 trials of each, some records were misses and all else
went on. No checksum in the value prevents that, and a cache must not end a training run. Besides, an
environment may not be used across `fork`: it would have to be closed in the parent, while threads read from
it, and opened again in both.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from rekindle.core.directory import Directory
from rekindle.core.interrupts import is_interrupt
from rekindle.reuse.cache import segments
from rekindle.reuse.cache.disk_index import DiskIndex, Location
from rekindle.reuse.cache.kept_generations import KeptGenerations
from rekindle.reuse.cache.record import Record
from rekindle.reuse.cache.shared_arrays import SharedMemory
from rekindle.reuse.cache.stamps import generation_of

_SEGMENT_BYTES = 256 << 20
_MIN_SEGMENTS = 16  # that a limit is divided into
_MAX_OPEN_FILES = 128
_RETRY_SECONDS = 5.0  # after a write that failed


class _File:
    """A file that is closed when the last reader drops it."""

    __slots__ = ("fd",)

    def __init__(self, folder: Directory, name: str) -> None:
        self.fd = -1
        self.fd = folder.open(name)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class DiskTier:
    """Entries in files, at most one generation of each sample. Failures are reported to `on_error`."""

    def __init__(
        self,
        memory: SharedMemory,
        folder: Directory,
        limit: int | None,
        on_error: Callable[[str], None],
        kept: KeptGenerations,
    ) -> None:
        self.index, self._kept = DiskIndex(memory, folder, kept), kept
        self._folder, self._limit, self._on_error = folder, limit, on_error
        self._segment_bytes = _SEGMENT_BYTES if limit is None else min(_SEGMENT_BYTES, limit // _MIN_SEGMENTS)
        self._readers: dict[int, _File] = {}
        self._reset_writer()
        _tiers.add(self)

    def _reset_writer(self) -> None:
        """The state of a process that has not written yet: its parent's segment stays its parent's."""
        self._write_lock, self._open_lock = threading.Lock(), threading.Lock()
        self._segment = -1  # number of the segment that this process appends to
        self._fd = -1
        self._end = 0
        self._retry_at = 0.0

    def forked(self) -> None:
        """In a forked process, whose parent keeps on writing."""
        inherited = self._fd
        self._reset_writer()
        if inherited >= 0:
            with suppress(OSError):
                os.close(inherited)

    def get(self, index: int, generation: int) -> NDArray[np.uint8] | None:
        """A copy of an entry's bytes, verified; None for a miss."""
        found = self.index.find(index, generation)
        if found is None:
            return None
        location, stamp = found
        return self._read(index, generation, location, stamp)

    def _read(self, index: int, generation: int, location: Location, stamp: int) -> NDArray[np.uint8] | None:
        number, offset, length = location
        why = "they are damaged"
        try:
            file = self._readers.get(number) or self._open_reader(number)
            content = segments.read(file.fd, offset, self._kept.sample(index), generation, length)
        except OSError as error:
            if is_interrupt(error):
                raise
            content, why = None, str(error)
        if content is None and self.index.stamp(index) == stamp:
            self.index.move(index, stamp, None)
            self._on_error(f"{length} bytes of the cache in {self._folder.path} cannot be read ({why})")
        return content

    def _open_reader(self, number: int) -> _File:
        """Open a segment for reading; closes deleted ones, and the one opened first if there are too many."""
        with self._open_lock:
            file = _File(self._folder, self.index.file_name(number))
            for old in [old for old in self._readers if not self.index.exists(old)]:
                del self._readers[old]
            if len(self._readers) >= _MAX_OPEN_FILES:
                del self._readers[next(iter(self._readers))]
            self._readers[number] = file
            return file

    def put(self, index: int, generation: int, record: Record, writer: int = 0) -> bool:
        """Keep a record and drop the older generation; False if there is no space, or a newer one is here."""
        if not self.index.would_take(index, generation):
            return False
        with self._write_lock:
            location = self._append(index, generation, record)
        return self.index.add(index, generation, location, writer)

    def _append(self, index: int, generation: int, record: Record) -> Location | None:
        """Write a record to this process's segment; None if there is no space or the disk fails."""
        if time.monotonic() < self._retry_at or not self._has_space(record.nbytes):
            return None
        return self._write(index, generation, record)

    def _write(self, index: int, generation: int, record: Record) -> Location | None:
        try:
            full = self._end and self._end + segments.padded(record.nbytes) > self._segment_bytes
            if self._segment < 0 or full:
                self._next_segment()
            offset = self._end
            sample = self._kept.sample(index)
            self._end = segments.append(self._fd, offset, sample, generation, record)
            return Location(self._segment, offset, record.nbytes)
        except OSError as error:
            if is_interrupt(error):
                raise
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            if self._fd >= 0:
                with suppress(OSError):
                    os.ftruncate(self._fd, self._end)
            self._on_error(f"the cache in {self._folder.path} cannot be written to ({error})")
            return None

    def _next_segment(self) -> None:
        number, fd = self.index.new_segment(self._segment)
        if self._fd >= 0:
            os.close(self._fd)
        self._segment, self._fd, self._end = number, fd, 0

    def _has_space(self, nbytes: int) -> bool:
        """Whether a record fits below the limit, after reclaiming dead space when the limit is near."""
        if self._limit is None:
            return True
        need = segments.padded(nbytes)
        near = self._limit - self._segment_bytes
        if self.index.total + need > near and self.index.is_cleanup_due(self._segment_bytes // 2):
            self.index.delete_dead()
            if self.index.total + need > near:
                self._compact()
        return self._fits(need)

    def _fits(self, need: int) -> bool:
        return self._limit is None or self.index.total + need <= self._limit

    def _compact(self) -> None:
        """Move the live records out of the segment that has the fewest, and delete it."""
        claimed = self.index.claim_mostly_dead()
        if claimed is None:
            return
        number, samples = claimed
        for index in samples:
            stamp = self.index.stamp(index)
            generation = generation_of(stamp)
            found = self.index.find(index, generation)
            if found is None or found[0].segment != number:
                continue
            content = self._read(index, generation, *found)
            location = None
            if content is not None and self._fits(segments.padded(len(content))):
                location = self._write(index, generation, Record.of([content]))
            self.index.move(index, stamp, location)
        self.index.release(number)
        self.index.delete_dead()

    def close(self, *, snapshot: bool) -> None:
        """Close all files; with `snapshot`, save the index, so that the next run opens quickly."""
        with self._write_lock:
            if self._segment >= 0:
                self.index.release(self._segment)
                os.close(self._fd)
                self._segment = self._fd = -1
            self._readers.clear()
        if snapshot:
            self.index.delete_dead()
            try:
                self.index.save()
            except OSError as error:
                self._on_error(f"the index of the cache in {self._folder.path} cannot be written ({error})")


_tiers: weakref.WeakSet[DiskTier] = weakref.WeakSet()


def _after_fork() -> None:
    for tier in list(_tiers):
        tier.forked()


os.register_at_fork(after_in_child=_after_fork)
