"""The part of a store that lies on disk: every process appends to a segment of its own, all read all.

Nothing on disk is believed: a record is checked against its key and its checksum each time it is read. Every
failure of the disk is a refusal or a miss.

Old generations go when a segment has no live record left; refreshing in turns, as refurbishing does, empties
whole segments. The file is then deleted; who still reads from it is not disturbed. When the limit is near,
the live records of a segment that is mostly dead move on, and it is deleted too.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rekindle.reuse import segments
from rekindle.reuse.disk_directory import DiskDirectory, Place
from rekindle.reuse.shared import SharedMemory
from rekindle.reuse.values import Record

_SEGMENT_BYTES = 256 << 20
_FEWEST_SEGMENTS = 16  # that a limit is divided into
_OPEN_FILES = 128
_TRY_AGAIN = 5.0  # seconds after a write that failed


class _File:
    """A file that is closed when nobody reads from it any more."""

    __slots__ = ("fd",)

    def __init__(self, path: Path) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class DiskTier:
    """Entries in files, at most one generation of each sample. `trouble` is told what fails."""

    def __init__(
        self, memory: SharedMemory, folder: Path, limit: int | None, trouble: Callable[[str], None]
    ) -> None:
        self.directory = DiskDirectory(memory, folder)
        self._folder, self._limit, self._trouble = folder, limit, trouble
        self._most_bytes = _SEGMENT_BYTES if limit is None else min(_SEGMENT_BYTES, limit // _FEWEST_SEGMENTS)
        self._readers: dict[int, _File] = {}
        self.begin()
        _tiers.add(self)

    def begin(self) -> None:
        """The state of a process that has not written yet: its parent's segment is its parent's."""
        self._threads, self._opening = threading.Lock(), threading.Lock()
        self._own = -1  # number of the segment that this process appends to
        self._fd = -1
        self._end = 0
        self._try_again_at = 0.0

    def forked(self) -> None:
        """In a new process, whose parent goes on writing."""
        inherited = self._fd
        self.begin()
        if inherited >= 0:
            with suppress(OSError):
                os.close(inherited)

    def get(self, index: int, generation: int) -> NDArray[np.uint8] | None:
        """An entry's bytes, in memory of their own, checked; None for a miss."""
        found = self.directory.find(index, generation)
        if found is None:
            return None
        place, stamp = found
        return self._read(index, generation, place, stamp)

    def _read(self, index: int, generation: int, place: Place, stamp: int) -> NDArray[np.uint8] | None:
        number, start, length = place
        why = "they are damaged"
        try:
            file = self._readers.get(number) or self._open_reader(number)
            content = segments.read(file.fd, start, index, generation, length)
        except OSError as error:
            content, why = None, str(error)
        if content is None and self.directory.stamp(index) == stamp:
            self.directory.move(index, stamp, None)
            self._trouble(f"{length} bytes of the cache in {self._folder} cannot be read ({why})")
        return content

    def _open_reader(self, number: int) -> _File:
        """Open a segment for reading; the file opened first and deleted ones make room."""
        with self._opening:
            file = _File(self.directory.path(number))
            for old in [old for old in self._readers if not self.directory.exists(old)]:
                del self._readers[old]
            if len(self._readers) >= _OPEN_FILES:
                del self._readers[next(iter(self._readers))]
            self._readers[number] = file
            return file

    def put(self, index: int, generation: int, record: Record) -> bool:
        """Keep the bytes, in place of an older generation; False if there is no room or a newer one."""
        if not self.directory.would_take(index, generation):
            return False
        with self._threads:
            place = self._append(index, generation, record)
        return self.directory.enter(index, generation, place)

    def _append(self, index: int, generation: int, record: Record) -> Place | None:
        """Write a record to this process's segment; None if there is no room or the disk fails."""
        if time.monotonic() < self._try_again_at or not self._has_room(record.nbytes):
            return None
        return self._write(index, generation, record)

    def _write(self, index: int, generation: int, record: Record) -> Place | None:
        try:
            if self._own < 0 or (self._end and self._end + segments.room(record.nbytes) > self._most_bytes):
                self._next_segment()
            start = self._end
            self._end = segments.append(self._fd, start, index, generation, record)
            return self._own, start, record.nbytes
        except OSError as error:
            self._try_again_at = time.monotonic() + _TRY_AGAIN
            if self._fd >= 0:
                with suppress(OSError):
                    os.ftruncate(self._fd, self._end)
            self._trouble(f"the cache in {self._folder} cannot be written to ({error})")
            return None

    def _next_segment(self) -> None:
        number, fd = self.directory.new_segment(self._own)
        if self._fd >= 0:
            os.close(self._fd)
        self._own, self._fd, self._end = number, fd, 0

    def _has_room(self, nbytes: int) -> bool:
        """Whether a record fits below the limit, after looking for dead space when that is near."""
        if self._limit is None:
            return True
        need = segments.room(nbytes)
        near = self._limit - self._most_bytes
        if self.directory.total + need > near and self.directory.has_died(self._most_bytes // 2):
            self.directory.delete_dead()
            if self.directory.total + need > near:
                self._compact()
        return self._fits(need)

    def _fits(self, need: int) -> bool:
        return self._limit is None or self.directory.total + need <= self._limit

    def _compact(self) -> None:
        """Move the live records out of the segment that has the least of them, and delete it."""
        taken = self.directory.take_mostly_dead()
        if taken is None:
            return
        number, samples = taken
        for index in samples:
            stamp = self.directory.stamp(index)
            generation = (stamp >> 32) - 1
            found = self.directory.find(index, generation)
            if found is None or found[0][0] != number:
                continue
            content = self._read(index, generation, found[0], found[1])
            place = None
            if content is not None and self._fits(segments.room(len(content))):
                place = self._write(index, generation, Record([content], len(content)))
            self.directory.move(index, stamp, place)
        self.directory.leave(number)
        self.directory.delete_dead()

    def close(self, *, snapshot: bool) -> None:
        """Close all files; with `snapshot`, save the index, so that the next run opens quickly."""
        with self._threads:
            if self._own >= 0:
                self.directory.leave(self._own)
                os.close(self._fd)
                self._own = self._fd = -1
            self._readers.clear()
        if snapshot:
            self.directory.delete_dead()
            try:
                self.directory.save()
            except OSError as error:
                self._trouble(f"the index of the cache in {self._folder} cannot be written ({error})")


_tiers: weakref.WeakSet[DiskTier] = weakref.WeakSet()


def _after_fork() -> None:
    for tier in list(_tiers):
        tier.forked()


os.register_at_fork(after_in_child=_after_fork)
