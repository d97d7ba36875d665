"""A remote object as it is read when it is indexed: headers, in order, with what they describe in between.

Where headers lie far apart, only a little is read at each. Where they lie close together, another request for
each would take longer than all that is in between: then the object is read in order, in parts that double up
to what saturates a network, several requests side by side. Nothing of it is kept: the index is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rekindle.errors import FormatError
from rekindle.fetch.remote_store import RemoteObject, RemoteStore

_LITTLE = 64 << 10  # bytes around a header that lies alone
_CLOSE = 512 << 10  # bytes from one header to the next that are read rather than left out
_REQUEST = 8 << 20  # bytes of one request
_AT_ONCE = 4  # requests
_KEPT = 64 << 20  # bytes that are remembered


class Skimmed:
    """A `ByteFile` for one indexer, in one thread."""

    def __init__(self, store: RemoteStore, wanted: RemoteObject, name: str) -> None:
        self.name, self.size, self.version = name, wanted.size, wanted.version
        self._store, self._object = store, wanted
        self._windows: OrderedDict[int, bytes] = OrderedDict()
        self._kept = 0
        self._length, self._end = _LITTLE, 0

    def read(self, offset: int, length: int) -> bytes:
        """These bytes; FormatError if they do not lie within the object."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise FormatError(
                f"{self.name!r} at byte {offset}: {length} bytes are said to be here, but the object has "
                f"{self.size}. It is damaged or cut off."
            )
        for start in reversed(self._windows):
            window = self._windows[start]
            if start <= offset and offset + length <= start + len(window):
                return window[offset - start : offset - start + length]
        return self._fetch(offset, length)[:length]

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Nothing: what is read next is known only when it has been read."""

    def _fetch(self, offset: int, length: int) -> bytes:
        is_next = abs(offset - self._end) <= _CLOSE
        self._length = min(2 * self._length, _REQUEST * _AT_ONCE) if is_next else _LITTLE
        whole = min(max(length, self._length), self.size - offset)
        starts = range(offset, offset + whole, _REQUEST)
        parts = [(start, min(_REQUEST, offset + whole - start)) for start in starts]
        if len(parts) <= 1:
            window = b"".join(self._store.fetch(self._object, *part) for part in parts)
        else:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                window = b"".join(pool.map(lambda part: self._store.fetch(self._object, *part), parts))
        self._end = offset + whole
        self._windows[offset] = window
        self._kept += len(window)
        while self._kept > _KEPT and len(self._windows) > 1:
            self._kept -= len(self._windows.popitem(last=False)[1])
        return window
