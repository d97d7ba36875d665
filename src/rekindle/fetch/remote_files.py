"""Packed files and folders of images behind a URL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rekindle.errors import DataError, FormatError
from rekindle.fetch.range_cache import Shelf, Versions, default_bound
from rekindle.fetch.range_reader import Range, RangeReader
from rekindle.fetch.remote_store import RemoteObject, RemoteOptions, RemoteStore, cache_below


@dataclass(frozen=True)
class RemoteFile:
    """A `ByteFile` behind a URL."""

    reader: RangeReader
    object: RemoteObject
    name: str

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self.object.size

    @property
    def version(self) -> str:
        """What the server tells of the content."""
        return self.object.version

    def read(self, offset: int, length: int) -> bytes:
        """These bytes; FormatError if they do not lie within the object."""
        if offset < 0 or length < 0 or offset + length > self.object.size:
            raise FormatError(
                f"{self.name!r} at byte {offset}: {length} bytes are said to be here, but the object has "
                f"{self.object.size}. It is damaged or cut off."
            )
        return self.reader.read(Range(self.object, offset, length))

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Start to fetch these (offset, length); returns at once."""
        size = self.object.size
        self.reader.prefetch(
            [Range(self.object, a, n) for a, n in ranges if a >= 0 and n > 0 and a + n <= size]
        )


def remote_files(url: str, options: RemoteOptions, patterns: Iterable[str] | None = None) -> list[RemoteFile]:
    """The objects that a URL names, in order; `*` stands for any, and `patterns` for several URLs.

    All patterns are of the file system that `url` names.
    """
    store = RemoteStore(url, options)
    paths: list[str] = []
    for pattern in patterns or (url,):
        path = store.strip(pattern)
        if re.search(r"[*?\[]", path) and not pattern.startswith("http"):
            found = store.glob(path)
            if not found:
                raise DataError(f"nothing is called {store.name_of(path)!r}. Look at the pattern.")
            paths += found
        else:
            paths.append(path)
    with ThreadPoolExecutor(min(options.parallel, len(paths))) as pool:
        objects = list(pool.map(store.describe, paths))
    reader = RangeReader(store, shelf_for(store, (one.version for one in objects)))
    return [RemoteFile(reader, one, store.name_of(one.path)) for one in objects]


def shelf_for(store: RemoteStore, versions: Iterable[str]) -> Shelf | None:
    """Where what is read from a store is kept; None for nowhere."""
    options = store.options
    directory = cache_below(options, "ranges")
    bound = default_bound(directory) if options.cache_bytes is None else options.cache_bytes
    return Shelf(directory, bound, store.name, Versions(versions)) if bound else None
