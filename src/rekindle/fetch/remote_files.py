"""Packed files and folders of images behind a URL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rekindle.errors import DataError, FormatError
from rekindle.fetch.range_cache import Shelf, Versions, default_bound
from rekindle.fetch.range_reader import Range, RangeReader
from rekindle.fetch.remote_store import RemoteObject, RemoteOptions, RemoteStore, cache_below
from rekindle.fetch.shards import check_complete, without_braces
from rekindle.fetch.skimming import Skimmed


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
        """What the server tells of the content; empty if that is nothing."""
        return self.object.version if self.object.is_identified else ""

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

    def skimmed(self) -> Skimmed:
        """The file as it is read when it is indexed."""
        return Skimmed(self.reader.store, self.object, self.name)


def packed_files(url: str, options: RemoteOptions) -> list[RemoteFile] | None:
    """The packed files that a URL or a pattern of URLs stands for; None if it is a folder of images."""
    names = without_braces(url)
    store = RemoteStore(names[0], options)
    if len(names) == 1 and not _has_wildcard(url) and store.is_folder(store.path):
        inside = f"{url.rstrip('/')}/data.mdb"
        return remote_files(inside, options) if store.exists(store.strip(inside)) else None
    return remote_files(names[0], options, names)


def remote_files(url: str, options: RemoteOptions, names: Sequence[str] = ()) -> list[RemoteFile]:
    """The objects behind a URL, or behind several of one file system, in order; `*` stands for any."""
    store = RemoteStore(url, options)
    paths: list[str] = []
    for name in names or (url,):
        path = store.strip(name)
        if not _has_wildcard(name):
            paths.append(path)
            continue
        found = [one for one in store.glob(path) if not one.endswith((".rkindex", ".part"))]
        if not found:
            raise DataError(f"nothing is named like {store.name_of(path)!r}. Look at the pattern.")
        check_complete(found)
        paths += found
    with ThreadPoolExecutor(min(options.parallel, len(paths))) as pool:
        objects = list(pool.map(store.describe, paths))
    reader = RangeReader(store, shelf_for(store, objects))
    return [RemoteFile(reader, one, store.name_of(one.path)) for one in objects]


def _has_wildcard(url: str) -> bool:
    """Whether a URL is a pattern; of HTTP, which has no listings, none is."""
    return not url.startswith(("http://", "https://")) and re.search(r"[*?\[]", url) is not None


def shelf_for(store: RemoteStore, objects: Sequence[RemoteObject]) -> Shelf | None:
    """Where what is read of these objects is kept; None for nowhere: what may have changed is read anew."""
    if not all(one.is_identified for one in objects):
        return None
    options = store.options
    directory = cache_below(options, "ranges")
    bound = default_bound(directory) if options.cache_bytes is None else options.cache_bytes
    return Shelf(directory, bound, store.name, Versions(one.version for one in objects)) if bound else None
