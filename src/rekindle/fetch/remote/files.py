"""Packed files behind a URL."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rekindle.core.directory import Directory, NotPrivateError, PrivateDirectory
from rekindle.core.user_cache import optional_user_cache
from rekindle.errors import ArgumentError, DataNotFoundError
from rekindle.fetch.byte_files import check_range
from rekindle.fetch.remote.header_reader import HeaderReader
from rekindle.fetch.remote.object_store import RemoteObject, RemoteOptions, RemoteStore
from rekindle.fetch.remote.range_cache import RangeCacheConfig, VersionSet, default_max_bytes
from rekindle.fetch.remote.range_reader import Range, RangeReader
from rekindle.fetch.shards import check_complete, expand_braces


@dataclass(frozen=True)
class RemoteFile:
    """A `ByteFile` behind a URL."""

    reader: RangeReader
    object: RemoteObject
    name: str
    is_remote = True

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return self.object.size

    @property
    def version(self) -> str:
        """A digest of what the server reports about the content; empty if it reports nothing."""
        return self.object.version if self.object.is_identified else ""

    def read(self, offset: int, length: int) -> bytes:
        """These bytes; FormatError if they do not lie within the object."""
        check_range(self, offset, length)
        return self.reader.read(Range(self.object, offset, length))

    copy = read

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Start to fetch these (offset, length); returns at once."""
        size = self.object.size
        self.reader.prefetch(
            [Range(self.object, a, n) for a, n in ranges if a >= 0 and n > 0 and a + n <= size]
        )

    def for_indexing(self) -> HeaderReader:
        """The same object, read in few requests for headers."""
        return HeaderReader(self.reader.store, self.object, self.name)

    def check_unchanged(self) -> None:
        """Nothing: where a server allows it, each request is conditional on the version that was opened."""


def packed_files(url: str, options: RemoteOptions) -> list[RemoteFile] | None:
    """The packed files that a URL or a pattern of URLs stands for; None if it is a folder of images."""
    urls = expand_braces(url)
    store = RemoteStore(urls[0], options)
    if len(urls) == 1 and not _has_wildcard(url) and store.is_folder(store.path):
        inside = f"{url.rstrip('/')}/data.mdb"
        return remote_files(inside, options) if store.exists(store.strip(inside)) else None
    return remote_files(urls[0], options, urls)


def remote_files(url: str, options: RemoteOptions, urls: Sequence[str] = ()) -> list[RemoteFile]:
    """The objects behind a URL, or behind several of one file system, in order; `*` is a wildcard."""
    store = RemoteStore(url, options)
    paths: list[str] = []
    for name in urls or (url,):
        path = store.strip(name)
        if not _has_wildcard(name):
            paths.append(path)
            continue
        found = [one for one in store.glob(path) if not one.endswith((".rkindex", ".part"))]
        if not found:
            raise DataNotFoundError(f"no object matches {store.name_of(path)!r}. Check the pattern.")
        check_complete(found)
        paths += found
    with ThreadPoolExecutor(min(options.parallel, len(paths))) as pool:
        objects = list(pool.map(store.describe, paths))
    reader = RangeReader(store, range_cache_config(store, objects))
    return [RemoteFile(reader, one, store.name_of(one.path)) for one in objects]


def _has_wildcard(url: str) -> bool:
    """Whether a URL is a pattern; never over HTTP, which has no listings."""
    return not url.startswith(("http://", "https://")) and re.search(r"[*?\[]", url) is not None


def range_cache_config(store: RemoteStore, objects: Sequence[RemoteObject]) -> RangeCacheConfig | None:
    """How ranges of these objects are cached; None for not at all, as for objects without a version."""
    options = store.options
    if not all(one.is_identified for one in objects):
        return None
    if options.cache_directory is None:
        directory = optional_user_cache("ranges")
    else:
        directory = PrivateDirectory("ranges", Directory(Path(options.cache_directory).absolute()))
        try:
            with contextlib.suppress(FileNotFoundError):
                _ = directory.descriptor
        except NotPrivateError as error:
            raise ArgumentError(
                f"cache_directory={os.fspath(options.cache_directory)!r} cannot be used: "
                f"{str(directory.path)!r}: {error.strerror}. Give a folder of your own."
            ) from error
    if directory is None:
        return None
    max_bytes = default_max_bytes(directory) if options.cache_bytes is None else options.cache_bytes
    versions = VersionSet(one.version for one in objects)
    return RangeCacheConfig(directory, max_bytes, store.name, versions) if max_bytes else None
