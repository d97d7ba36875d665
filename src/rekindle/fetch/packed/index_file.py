"""The index of packed files as a file: flat, mapped into memory, checksummed, written atomically.

    magic, version · length and checksum of the description · description (JSON) · rows, chunks, names · a
    checksum for each 256 KiB of these

A small index is checked when it is opened. Of a large one the description is, and each block of the rest when
it is first used: ten million samples open in milliseconds. An index that is damaged, or whose files have
changed, is built again.

An index says which label a sample has, so one beside the data is believed only if it was written by this
user, by root or by the owner of the data, and nobody else can change it. Any other is ignored with a warning.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import stat
import struct
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import and_
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from rekindle.core.atomic_file import atomic_write
from rekindle.core.directory import PRIVATE, Directory, PrivateDirectory
from rekindle.core.interrupts import is_interrupt
from rekindle.core.json_input import parse_json
from rekindle.core.ownership import is_trusted
from rekindle.core.user_cache import optional_user_cache
from rekindle.errors import FormatError
from rekindle.fetch.byte_files import ByteFile, LocalFile
from rekindle.fetch.bytes_array import BytesArray
from rekindle.fetch.packed.index_content import RowChecks, check_description
from rekindle.fetch.packed.record_index import CHUNK, ROW, Decoding, IndexSettings, RecordIndex

SUFFIX = ".rkindex"
BLOCK = 1 << 18
_MAGIC = b"RKINDEX\x05"  # another version whenever an indexer finds other samples in the same file
_HEAD = struct.Struct("<8sQII")  # magic, length of the description, its checksum, the checksum of these three
_MAX_DESCRIPTION = 64 << 20
_CHECKED_WHEN_OPENED = 16 << 20  # bytes
_PAGE = 4096
_ALIGNMENT = 64
_ARRAYS = {"rows": ROW, "chunks": CHUNK, "ends": np.dtype("<i8"), "names": np.dtype("u1")}


class _Description(TypedDict):
    """The JSON part of an index file."""

    format: str
    files: Sequence[Sequence[str]]  # name and version of each
    settings: IndexSettings  # of the indexer
    decodings: Sequence[Decoding]
    classes: Sequence[str] | None
    named: bool  # whether samples have names
    arrays: dict[str, Sequence[int]]  # offset and number of items of each
    bytes: int  # of all arrays
    sums: int  # the checksum of their checksums


class IndexFile:
    """An index mapped from a file; `check` must be called for each block before it is used."""

    def __init__(
        self,
        path: Path,
        index: RecordIndex,
        data: memoryview,
        sums: NDArray[np.uint32],
        checks: RowChecks,
    ) -> None:
        self.path, self.index = path, index
        self._data, self._sums, self._checks = data, sums, checks
        self.checked = bytearray(len(sums))

    def check(self, block: int) -> None:
        """Raise FormatError if the checksum of this block is wrong, or a row that begins in it impossible."""
        start, end = block * BLOCK, (block + 1) * BLOCK
        try:
            if zlib.crc32(self._data[start:end]) != int(self._sums[block]):
                raise ValueError("wrong checksum")
            self._checks.check(start, end)
        except ValueError as error:
            raise FormatError(
                f"{str(self.path)!r} at byte {start} of its arrays: the index is corrupt: {error}. Delete "
                "it, and it is built again."
            ) from error
        self.checked[block] = 1

    def check_all(self) -> None:
        """Check every block that was not checked before."""
        for block in range(len(self._sums)):
            if not self.checked[block]:
                self.check(block)


class IndexLocation(NamedTuple):
    """Where an index may be: beside the data, or in the user's cache folder."""

    directory: Directory
    name: str
    settings: IndexSettings

    @property
    def path(self) -> Path:
        """Its path."""
        return self.directory.path / self.name

    @property
    def is_private(self) -> bool:
        """Whether nobody else can write there."""
        return isinstance(self.directory, PrivateDirectory)


def index_paths(files: Sequence[ByteFile], settings: IndexSettings) -> list[IndexLocation]:
    """Where the index of these files, made with these settings, may be: beside the first, or in the cache."""
    found = []
    if not files[0].is_remote:
        first = Path(files[0].name)
        is_default = len(files) == 1 and not settings
        key = "" if is_default else f".{_key([file.name for file in files], settings)[:12]}"
        found.append(IndexLocation(Directory(first.parent), f"{first.name}{key}{SUFFIX}", settings))
    cache = optional_user_cache("indexes")
    if cache is not None:
        names = [file.name if file.is_remote else os.path.abspath(file.name) for file in files]
        found.append(IndexLocation(cache, f"{_key(names, settings)[:32]}{SUFFIX}", settings))
    return found


def _key(names: Sequence[str], settings: IndexSettings) -> str:
    return hashlib.sha256(json.dumps([names, settings], sort_keys=True).encode()).hexdigest()


def _as_json(settings: IndexSettings) -> IndexSettings:
    """Settings as they are when they were written and read again."""
    read: IndexSettings = json.loads(json.dumps(settings))
    return read


def write_index(location: IndexLocation, index: RecordIndex, files: Sequence[ByteFile]) -> bool:
    """Write the index of these files; False if that is not possible at this location."""
    names = index.names or BytesArray(np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.int64))
    arrays = {"rows": index.rows, "chunks": index.chunks, "ends": names.ends, "names": names.data}
    contents: list[memoryview] = []
    places: dict[str, Sequence[int]] = {}
    total = 0
    for name, dtype in _ARRAYS.items():
        array = np.ascontiguousarray(arrays[name], dtype=dtype)
        contents.append(array.view(np.uint8).reshape(-1).data if array.size else memoryview(b""))
        places[name] = [total, len(array)]
        total += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    description: _Description = {
        "format": index.format,
        "files": [[file.name, file.version] for file in files],
        "settings": _as_json(location.settings),
        "decodings": list(index.decodings),
        "classes": None if index.classes is None else list(index.classes),
        "named": index.names is not None,
        "arrays": places,
        "bytes": total,
        "sums": 2**32,  # not known yet: as many digits as it may have
    }
    try:
        mode = PRIVATE
        if isinstance(location.directory, PrivateDirectory):
            location.directory.make()
        else:
            occupant = location.directory.stat(location.name)
            if occupant is not None and occupant.st_uid not in {os.geteuid(), 0, *_owners(files)}:
                return False
            modes = [file.mode for file in files if isinstance(file, LocalFile)]
            mode |= reduce(and_, modes, 0o044)  # Read by those who can read the data.
        with atomic_write(location.name, directory=location.directory, sync=True, mode=mode) as file:
            _write(file, description, contents)
    except OSError:
        return False
    return True


def _write(file: BinaryIO, description: _Description, contents: Iterable[memoryview]) -> None:
    # The arrays are written first, because the description has the checksum of their checksums. Its own
    # length must be known before that, so room is left for a checksum of any value.
    room = len(json.dumps(description))
    start = -(-(_HEAD.size + room) // _PAGE) * _PAGE
    file.seek(start)
    sums, pending = [], b""
    for piece in _pieces(contents):
        file.write(piece)
        pending += piece
        while len(pending) >= BLOCK:
            sums.append(zlib.crc32(pending[:BLOCK]))
            pending = pending[BLOCK:]
    if pending:
        sums.append(zlib.crc32(pending))
    assert file.tell() == start + description["bytes"]
    table = np.array(sums, dtype="<u4").tobytes()
    file.write(table)
    text = json.dumps({**description, "sums": zlib.crc32(table)}).encode().ljust(room)
    head = _HEAD.pack(_MAGIC, len(text), zlib.crc32(text), 0)[:-4]
    file.seek(0)
    file.write(head + struct.pack("<I", zlib.crc32(head)) + text)


def _pieces(contents: Iterable[memoryview]) -> Iterator[bytes]:
    """The contents of all arrays, each padded to the alignment, in pieces of up to a block."""
    for content in contents:
        for start in range(0, len(content), BLOCK):
            yield bytes(content[start : start + BLOCK])
        yield bytes(-len(content) % _ALIGNMENT)


def read_index(location: IndexLocation, files: Sequence[ByteFile]) -> IndexFile | None:
    """The index there, if it is trusted, undamaged and of these files as they are now; None otherwise."""
    try:
        if not location.is_private and not _is_trusted(location, files):
            return None
        with os.fdopen(location.directory.open(location.name), "rb") as file:
            state = os.fstat(file.fileno())
            if state.st_size < _HEAD.size or not is_trusted(state, _owners(files)):
                return None
            if state.st_size <= _CHECKED_WHEN_OPENED:  # Its checksums are computed now: all of it is read.
                content = memoryview(file.read())
            else:
                content = memoryview(mmap.mmap(file.fileno(), state.st_size, prot=mmap.PROT_READ))
        return _read(location, content, files)
    except Exception as error:  # Whatever is wrong with it, it is built again.
        if is_interrupt(error):
            raise
        return None


def _owners(files: Sequence[ByteFile]) -> set[int]:
    """The user who owns all of these files, if there is one."""
    owners = {file.owner for file in files if isinstance(file, LocalFile)}
    return owners if len(owners) == 1 else set()


def _is_trusted(location: IndexLocation, files: Sequence[ByteFile]) -> bool:
    """Whether an index beside the data may be believed; a warning if it is not this user's fault."""
    state = location.directory.stat(location.name)
    if state is None:
        return False
    if stat.S_ISREG(state.st_mode) and is_trusted(state, _owners(files)):
        return True
    if state.st_uid != os.geteuid():  # One's own is replaced.
        warnings.warn(
            f"the index {str(location.path)!r} is not used: it belongs to the user {state.st_uid} (mode "
            f"{stat.S_IMODE(state.st_mode):04o}), and one is believed only if it was written by you, root or "
            "the owner of the data, and nobody else can write to it. The data is indexed again, for your "
            "cache folder. Delete the index, or have it deleted.",
            RuntimeWarning,
            stacklevel=2,
        )
    return False


def _read(location: IndexLocation, mapped: memoryview, files: Sequence[ByteFile]) -> IndexFile | None:
    magic, length, text_sum, head_sum = _HEAD.unpack(mapped[: _HEAD.size])
    if magic != _MAGIC or zlib.crc32(mapped[: _HEAD.size - 4]) != head_sum or length > _MAX_DESCRIPTION:
        return None
    text = mapped[_HEAD.size : _HEAD.size + length]
    if len(text) != length or zlib.crc32(text) != text_sum:
        return None
    description = cast(_Description, parse_json(bytes(text)))
    if [version for _, version in description["files"]] != [file.version for file in files]:
        return None
    if description["settings"] != _as_json(location.settings):
        return None
    start = -(-(_HEAD.size + length) // _PAGE) * _PAGE
    total = int(description["bytes"])
    data = mapped[start : start + total]
    table = mapped[start + total :]
    if len(data) != total or len(table) != 4 * -(-total // BLOCK) or zlib.crc32(table) != description["sums"]:
        return None
    arrays = {}
    for name, dtype in _ARRAYS.items():
        offset, count = map(int, description["arrays"][name])
        if not 0 <= offset <= offset + count * dtype.itemsize <= total:
            return None
        arrays[name] = np.frombuffer(data, dtype=dtype, count=count, offset=offset)
    if description["arrays"]["rows"][0] != 0:
        return None
    names = BytesArray(arrays["names"], arrays["ends"]) if description["named"] else None
    index = RecordIndex(
        description["format"],
        arrays["rows"],
        description["decodings"],
        arrays["chunks"],
        names,
        description["classes"],
    )
    check_description(index)
    checks = RowChecks(files, index, int(description["arrays"]["chunks"][0]))
    made = IndexFile(location.path, index, data, np.frombuffer(table, dtype="<u4"), checks)
    if total <= _CHECKED_WHEN_OPENED:
        made.check_all()
    return made
