"""Bytes of a file by offset and length: the one way in which packed data is read.

Local files are mapped into memory: a read is a view that costs neither a copy nor a lock. Every offset is
checked against the size, and the size against the file as it is now, because touching a page behind the end
of a file ends the process. To copy a view would hold Python's lock, also while the disk is waited for: who
needs bytes in memory of their own lets the system read them.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import resource
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from rekindle.errors import DataError, FormatError

Opened = TypeVar("Opened")

_DESCRIPTORS_A_FILE = 2  # the map's, and one to copy from
_LEFT_TO_OTHERS = 256  # descriptors: workers and users need some as well


class ByteFile(Protocol):
    """A file (or object behind a URL) to read ranges of; safe in threads and after a fork, picklable."""

    @property
    def name(self) -> str:
        """Its path or URL."""

    @property
    def size(self) -> int:
        """How many bytes it has."""

    @property
    def version(self) -> str:
        """A text that changes when the content does: size and time of change, or what a server says."""

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """These bytes, all of them; FormatError if they do not lie within the file."""

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Start to fetch these (offset, length), which will be read soon; returns at once."""


class LocalFile:
    """A file on disk as it is now, mapped into memory when it is first read.

    FormatError if it is another by then.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        try:
            state = os.stat(self.name)
        except OSError as error:
            raise DataError(f"cannot read {self.name!r}: {error.strerror}") from error
        self.size, self._changed = state.st_size, state.st_mtime_ns
        self._begin()

    def _begin(self) -> None:
        self._map: mmap.mmap | None = None
        self._view = memoryview(b"")
        self._descriptors: list[int] = []

    @property
    def version(self) -> str:
        """Size and time of the last change."""
        return f"{self.size} bytes, {self._changed} ns"

    def read(self, offset: int, length: int) -> memoryview:
        """A view of these bytes; FormatError if they do not lie within the file."""
        end = offset + length
        if offset < 0 or length < 0 or end > self.size:
            raise FormatError(
                f"{self.name!r} at byte {offset}: {length} bytes are said to be here, but the file has "
                f"{self.size}. It is damaged or cut off."
            )
        if not length:
            return self._view[:0]
        mapped = self._map or self._mapped()
        if mapped.size() < end:  # As it is now: the system is asked.
            raise FormatError(
                f"{self.name!r} at byte {offset}: the file has become shorter since it was opened."
            )
        return self._view[offset:end]

    def copy(self, offset: int, length: int) -> bytes:
        """These bytes, read by the system while other threads run."""
        if offset >= 0 and 0 < length <= self.size - offset:
            data = os.pread(self._descriptor(), length, offset)
            if len(data) == length:
                return data
        return bytes(self.read(offset, length))  # Which says what is wrong.

    def _descriptor(self) -> int:
        if not self._descriptors:  # Two threads may both get here: the first one's is used by all.
            self._descriptors.append(self._open())
        return self._descriptors[0]

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Tell the system to read these ranges ahead."""
        for offset, length in ranges:
            if offset >= 0 and length > 0 and offset + length <= self.size:
                mapped = self._map or self._mapped()
                start = offset // mmap.PAGESIZE * mmap.PAGESIZE
                mapped.madvise(mmap.MADV_WILLNEED, start, offset + length - start)

    def _mapped(self) -> mmap.mmap:
        file = self._open()
        try:  # The map has a descriptor of its own.
            mapped = _with_descriptors(
                lambda: mmap.mmap(file, self.size, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
            )
        except OSError as error:
            raise self._unreadable(error) from error
        finally:
            os.close(file)
        # Two threads may both get here: each result is whole, and the last one stays.
        self._view = memoryview(mapped)
        self._map = mapped
        return mapped

    def _open(self) -> int:
        try:
            file = _with_descriptors(lambda: os.open(self.name, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise self._unreadable(error) from error
        try:
            self._check(os.fstat(file))
        except FormatError:
            os.close(file)
            raise
        return file

    def check_unchanged(self) -> None:
        """Raise FormatError if there is another file of this name by now, or another content."""
        try:
            state = os.stat(self.name)
        except OSError as error:
            raise self._unreadable(error) from error
        self._check(state)

    def _check(self, state: os.stat_result) -> None:
        if (state.st_size, state.st_mtime_ns) == (self.size, self._changed):
            return
        what = "become shorter" if state.st_size < self.size else "changed"
        raise FormatError(
            f"{self.name!r} at byte {min(state.st_size, self.size)}: the file has {what} since it was opened "
            f"({self.size:,} bytes then, {state.st_size:,} now). Open it again."
        )

    def _unreadable(self, error: OSError) -> DataError:
        hint = ""
        if error.errno == errno.EMFILE:
            hint = (
                f". This process may have {_most_descriptors():,} files open: raise the limit (ulimit -n), "
                "or pack the data into fewer shards."
            )
        return DataError(f"cannot read {self.name!r}: {error.strerror}{hint}")

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone by then.
        for file in getattr(self, "_descriptors", ()):
            close(file)

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "size": self.size, "_changed": self._changed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __repr__(self) -> str:
        return f"LocalFile({self.name!r}, {self.size:,} bytes)"


def make_room_for(files: int) -> None:
    """Let this process open so many files, beside what it needs otherwise; as far as it may."""
    if _DESCRIPTORS_A_FILE * files + _LEFT_TO_OTHERS > _most_descriptors():
        _allow_more_descriptors()


def _with_descriptors(open_one: Callable[[], Opened]) -> Opened:
    """What is opened; many shards may take more descriptors than a process has at first."""
    try:
        return open_one()
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        _allow_more_descriptors()
        return open_one()


def _most_descriptors() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _allow_more_descriptors() -> None:
    """Let this process have as many descriptors as it may."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != most:
        with contextlib.suppress(ValueError, OSError):  # Whoever needs one that is not there is told.
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
