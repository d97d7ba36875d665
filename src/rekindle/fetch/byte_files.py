"""Reads of byte ranges: the one way in which packed data is read, from local files and from remote objects.

Local files are mapped into memory: a read is a view that costs neither a copy nor a lock. Every offset is
checked against the file's size, and the size against the file as it is now, because touching a page behind
the end of a file kills the process. Copying a view holds the GIL, also while the disk is waited for: `copy`
lets the system read instead.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import resource
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import DataError, FormatError
from rekindle.fetch.regular_file import check_regular, open_regular, unreadable

Opened = TypeVar("Opened")

_DESCRIPTORS_A_FILE = 2  # the map's, and one to copy from
_DESCRIPTORS_RESERVED = 256  # workers and users need some as well


class ByteReader(Protocol):
    """Byte ranges of a file: all that an indexer needs."""

    @property
    def name(self) -> str:
        """Its path or URL."""

    @property
    def size(self) -> int:
        """Its size in bytes."""

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """Exactly these bytes; FormatError if they do not lie within the file."""


class ByteFile(ByteReader, Protocol):
    """A file or remote object whose samples are read; safe in threads and after a fork, picklable."""

    @property
    def version(self) -> str:
        """A string that changes with the content (size and mtime, or an ETag); empty if there is none."""

    @property
    def is_remote(self) -> bool:
        """Whether reads go over a network."""

    def copy(self, offset: int, length: int) -> bytes:
        """The same as `read`, in memory of its own, without holding the GIL while the disk is waited for."""

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Start to fetch these (offset, length), which will be read soon; returns at once."""

    def for_indexing(self) -> ByteReader:
        """The same file, read in the way that suits an indexer: headers, in order."""

    def check_unchanged(self) -> None:
        """Raise FormatError if the content is known to have changed since the file was opened."""


def check_range(file: ByteReader, offset: int, length: int) -> None:
    """Raise FormatError if a range does not lie within a file."""
    if offset < 0 or length < 0 or offset + length > file.size:
        raise truncated(file, offset, "a record", length)


def truncated(file: ByteReader, offset: int, what: str, needs: int) -> FormatError:
    """The error for a file that ends before something in it does."""
    return FormatError(
        f"{file.name!r} at byte {offset}: {what} needs {needs} bytes, the file has {file.size}: truncated or "
        "corrupt. Copy or make the file again."
    )


class LocalFile:
    """A file on disk as it is now, mapped into memory when it is first read.

    Reading it raises FormatError if the file was replaced or modified before that.
    """

    is_remote = False

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        try:
            state = os.stat(self.name)
        except OSError as error:
            raise self._unreadable(error) from error
        check_regular(self.name, state)
        self.size, self._mtime = state.st_size, state.st_mtime_ns
        self.owner, self.mode = state.st_uid, state.st_mode
        self._forget_open_files()

    def _forget_open_files(self) -> None:
        self._map: mmap.mmap | None = None
        self._view = memoryview(b"")
        self._descriptors: list[int] = []

    @property
    def version(self) -> str:
        """Size and modification time."""
        return f"{self.size} bytes, {self._mtime} ns"

    def read(self, offset: int, length: int) -> memoryview:
        """A view of these bytes; FormatError if they do not lie within the file."""
        end = offset + length
        if offset < 0 or length < 0 or end > self.size:  # Inline, because this is called for every sample.
            check_range(self, offset, length)
        if not length:
            return self._view[:0]
        mapped = self._map or self._mapped()
        if mapped.size() < end:  # Asks the system for the current size.
            raise FormatError(
                f"{self.name!r} at byte {offset}: the file has been truncated since it was opened."
            )
        return self._view[offset:end]

    def mapped(self, end: int) -> NDArray[np.uint8]:
        """The whole file, of which the first `end` bytes are known to exist; FormatError if they do not."""
        self.read(end - 1, 1)
        return np.frombuffer(self._view, dtype=np.uint8)

    def copy(self, offset: int, length: int) -> bytes:
        """These bytes, read by the system while other threads run."""
        if offset >= 0 and 0 < length <= self.size - offset:
            data = os.pread(self._descriptor(), length, offset)
            if len(data) == length:
                return data
        return bytes(self.read(offset, length))  # Raises the error that fits.

    def _descriptor(self) -> int:
        if not self._descriptors:  # If two threads get here, all use the descriptor of the first.
            self._descriptors.append(self._open())
        return self._descriptors[0]

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Ask the system to read these ranges ahead."""
        for offset, length in ranges:
            if offset >= 0 and length > 0 and offset + length <= self.size:
                mapped = self._map or self._mapped()
                start = offset // mmap.PAGESIZE * mmap.PAGESIZE
                mapped.madvise(mmap.MADV_WILLNEED, start, offset + length - start)

    def for_indexing(self) -> LocalFile:
        """The file itself."""
        return self

    def _mapped(self) -> mmap.mmap:
        file = self._open()
        try:  # The map has a descriptor of its own.
            mapped = _with_enough_descriptors(
                lambda: mmap.mmap(file, self.size, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
            )
        except OSError as error:
            raise self._unreadable(error) from error
        finally:
            os.close(file)
        # If two threads get here, both maps are valid, and the last one is kept.
        self._view = memoryview(mapped)
        self._map = mapped
        return mapped

    def _open(self) -> int:
        try:
            file, state = _with_enough_descriptors(lambda: open_regular(self.name))
        except OSError as error:
            raise self._unreadable(error) from error
        try:
            self._check(state)
        except FormatError:
            os.close(file)
            raise
        return file

    def check_unchanged(self) -> None:
        """Raise FormatError if the file was replaced or modified since it was opened."""
        try:
            state = os.stat(self.name)
        except OSError as error:
            raise self._unreadable(error) from error
        self._check(state)

    def _check(self, state: os.stat_result) -> None:
        if (state.st_size, state.st_mtime_ns) == (self.size, self._mtime):
            return
        what = "been truncated" if state.st_size < self.size else "changed"
        raise FormatError(
            f"{self.name!r} at byte {min(state.st_size, self.size)}: the file has {what} since it was opened "
            f"({self.size:,} bytes then, {state.st_size:,} now). Open it again."
        )

    def _unreadable(self, error: OSError) -> DataError:
        hint = ""
        if error.errno == errno.EMFILE:
            hint = (
                f". This process may open {_descriptor_limit():,} files: raise the limit (ulimit -n), "
                "or pack the data into fewer shards."
            )
        return unreadable(f"cannot read {self.name!r}: {error.strerror}{hint}", error)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone by then.
        for file in getattr(self, "_descriptors", ()):
            close(file)

    def __getstate__(self) -> dict[str, object]:
        kept = ("name", "size", "_mtime", "owner", "mode")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._forget_open_files()

    def __repr__(self) -> str:
        return f"LocalFile({self.name!r}, {self.size:,} bytes)"


def allow_open_files(files: int) -> None:
    """Raise this process's limit on open files so that it can open this many more, if it is allowed to."""
    if _DESCRIPTORS_A_FILE * files + _DESCRIPTORS_RESERVED > _descriptor_limit():
        _raise_descriptor_limit()


def _with_enough_descriptors(open_one: Callable[[], Opened]) -> Opened:
    """What `open_one` returns; raises the limit on open files if that is reached, as many shards may do."""
    try:
        return open_one()
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        _raise_descriptor_limit()
        return open_one()


def _descriptor_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _raise_descriptor_limit() -> None:
    """Raise the limit on open files to the most that this process is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # Opening one file too many is an error of its own.
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
