"""Reads ranges of remote objects: what was fetched ahead, what is kept on disk, or from the server now.

`prefetch` is told what will be read soon. Ranges that lie close together become one request; several requests
are under way at once, in threads of this process.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from rekindle.errors import RemoteError
from rekindle.fetch.range_cache import RangeCache, Shelf
from rekindle.fetch.remote_store import RemoteObject, RemoteStore

_GAP = 64 << 10  # bytes between two ranges that cost less than another request
_LONGEST = 8 << 20  # bytes of one request for several ranges
_IDLE = 5.0  # seconds without work after which a thread ends


class Range(NamedTuple):
    """A part of an object."""

    object: RemoteObject
    offset: int
    length: int

    @property
    def key(self) -> tuple[str, int, int]:
        """What tells it from others."""
        return self.object.version, self.offset, self.length


def coalesce(ranges: Iterable[Range], gap: int = _GAP, longest: int = _LONGEST) -> list[list[Range]]:
    """Ranges in groups that are read with one request each.

    >>> a = RemoteObject("a", 1000, "00")
    >>> groups = coalesce([Range(a, 500, 9), Range(a, 0, 9), Range(a, 12, 9)], gap=10)
    >>> [[one.offset for one in group] for group in groups]
    [[0, 12], [500]]
    """
    groups: list[list[Range]] = []
    end = 0
    for one in sorted(ranges, key=lambda one: (one.object.path, one.offset, one.length)):
        group = groups[-1] if groups else None
        if (
            group is not None
            and group[0].object.path == one.object.path
            and one.offset - end <= gap
            and max(end, one.offset + one.length) - group[0].offset <= longest
        ):
            group.append(one)
            end = max(end, one.offset + one.length)
        else:
            groups.append([one])
            end = one.offset + one.length
    return groups


class RangeReader:
    """Ranges of the objects of one store; safe in threads, after a fork, and picklable."""

    def __init__(self, store: RemoteStore, shelf: Shelf | None) -> None:
        self.store, self._shelf = store, shelf
        self._by_process: dict[int, _InProcess] = {}

    def read(self, wanted: Range) -> bytes:
        """The bytes of a range."""
        return self._here().read(wanted)

    def prefetch(self, ranges: Sequence[Range]) -> None:
        """Start to fetch what is not there yet; returns at once."""
        self._here().prefetch(ranges)

    def _here(self) -> _InProcess:
        """What belongs to this process: locks and threads do not survive a fork."""
        process = os.getpid()
        here = self._by_process.get(process)
        if here is None:
            here = self._by_process.setdefault(process, _InProcess(self.store, self._shelf))
        return here

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_by_process": {}}


_Bytes = dict[tuple[str, int, int], bytes]
_Answer = Future[_Bytes]


class _InProcess:
    """One process's reading. Its threads are daemons: nobody waits for them when the process ends."""

    def __init__(self, store: RemoteStore, shelf: Shelf | None) -> None:
        self._store = store
        self._cache = None if shelf is None else RangeCache(shelf)
        self._lock = threading.Lock()
        self._expected: dict[tuple[str, int, int], tuple[list[Range], _Answer]] = {}
        self._nbytes = 0  # expected or come, and not read yet
        self._queue: queue.SimpleQueue[tuple[list[Range], _Answer]] = queue.SimpleQueue()
        self._threads = 0

    def read(self, wanted: Range) -> bytes:
        expected = self._take(wanted)
        if expected is not None:
            group, answer = expected
            try:
                return answer.result().pop(wanted.key)
            except RemoteError:
                if len(group) == 1:
                    raise
                # Of several that were asked for together: let each be asked for by itself.
        return self._read_group([wanted])[wanted.key]

    def _read_group(self, group: list[Range]) -> _Bytes:
        """The bytes of ranges that lie close together; those not kept on disk, with one request."""
        found: _Bytes = {}
        if self._cache is not None:
            found = {one.key: data for one in group if (data := self._cache.get(*one.key)) is not None}
        for part in coalesce(one for one in group if one.key not in found):
            start = part[0].offset
            length = max(one.offset + one.length for one in part) - start
            data = self._store.fetch(part[0].object, start, length)
            for one in part:
                found[one.key] = own = data[one.offset - start :][: one.length] if len(part) > 1 else data
                if self._cache is not None:
                    self._cache.put(one.object.version, one.offset, own)
        return found

    # Ahead of what is read.

    def _take(self, wanted: Range) -> tuple[list[Range], _Answer] | None:
        """What has come already or is on its way; it is the taker's then."""
        with self._lock:
            expected = self._expected.pop(wanted.key, None)
            if expected is not None:
                self._nbytes -= wanted.length
            return expected

    def prefetch(self, ranges: Sequence[Range]) -> None:
        with self._lock:
            chosen: dict[tuple[str, int, int], Range] = {}
            for one in ranges:
                if one.key in self._expected or one.key in chosen or one.length == 0:
                    continue
                if not self._make_room(one.length):
                    break
                self._nbytes += one.length
                chosen[one.key] = one
            for group in coalesce(chosen.values()):
                answer: _Answer = Future()
                self._expected.update((one.key, (group, answer)) for one in group)
                self._queue.put((group, answer))
                self._start_thread()

    def _make_room(self, nbytes: int) -> bool:
        """Forget what has come and was never read, oldest first; false if that does not do."""
        most = self._store.options.ahead_bytes
        while self._nbytes + nbytes > most and self._expected:
            key, (_, answer) = next(iter(self._expected.items()))
            if not answer.done():
                return False
            del self._expected[key]
            self._nbytes -= key[2]
        return self._nbytes + nbytes <= most

    def _start_thread(self) -> None:
        if self._threads < self._store.options.parallel:
            self._threads += 1
            name = f"rekindle-remote-{self._threads}"
            threading.Thread(target=self._serve, daemon=True, name=name).start()

    def _serve(self) -> None:
        while True:
            try:
                group, answer = self._queue.get(timeout=_IDLE)
            except queue.Empty:
                with self._lock:
                    if self._queue.empty():
                        self._threads -= 1
                        return
                continue
            try:
                answer.set_result(self._read_group(group))
            except BaseException as error:
                answer.set_exception(error)
            del group, answer
