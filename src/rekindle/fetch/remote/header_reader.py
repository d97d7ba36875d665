"""Reads a remote object while it is indexed: headers, in order, with what they describe in between.

Where headers lie far apart, only a little is read at each. Where they lie close together, a request for each
would take longer than reading all that is between them: then the object is read in order, in requests that
double in size until they saturate a network, several at once. Nothing is cached on disk: the index is.
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

from rekindle.fetch.byte_files import check_range
from rekindle.fetch.remote.object_store import RemoteObject, RemoteStore

_MIN_READ = 64 << 10  # bytes read around a header that lies alone
_GAP = 512 << 10  # bytes between two headers that are read rather than skipped
_REQUEST = 8 << 20  # bytes of one request
_PARALLEL = 4  # requests
_MEMORY = 64 << 20  # bytes of windows that are kept


class HeaderReader:
    """A `ByteReader` of a remote object, for one indexer in one thread."""

    def __init__(self, store: RemoteStore, remote: RemoteObject, name: str) -> None:
        self.name, self.size = name, remote.size
        self._store, self._object = store, remote
        self._windows: OrderedDict[int, bytes] = OrderedDict()
        self._nbytes = 0  # of all windows
        self._length, self._end = _MIN_READ, 0

    def read(self, offset: int, length: int) -> bytes:
        """These bytes; FormatError if they do not lie within the object."""
        check_range(self, offset, length)
        for start in reversed(self._windows):
            window = self._windows[start]
            if start <= offset and offset + length <= start + len(window):
                return window[offset - start : offset - start + length]
        return self._fetch(offset, length)[:length]

    def _fetch(self, offset: int, length: int) -> bytes:
        """A window that begins with these bytes."""
        is_sequential = abs(offset - self._end) <= _GAP
        self._length = min(2 * self._length, _REQUEST * _PARALLEL) if is_sequential else _MIN_READ
        end = offset + min(max(length, self._length), self.size - offset)
        parts = [(start, min(_REQUEST, end - start)) for start in range(offset, end, _REQUEST)]
        if len(parts) <= 1:
            window = b"".join(self._store.fetch(self._object, *part) for part in parts)
        else:
            with ThreadPoolExecutor(_PARALLEL) as pool:
                window = b"".join(pool.map(lambda part: self._store.fetch(self._object, *part), parts))
        self._end = end
        self._windows[offset] = window
        self._nbytes += len(window)
        while self._nbytes > _MEMORY and len(self._windows) > 1:
            self._nbytes -= len(self._windows.popitem(last=False)[1])
        return window
