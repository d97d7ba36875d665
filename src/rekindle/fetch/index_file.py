"""The index of packed files as a file: flat, mapped into memory, checksummed, written whole or not at all.

    magic, version · length and checksum of the description · description (JSON) · rows, chunks, names · a
    checksum for each 256 KiB of these

Small ones are checked when they are opened. Of large ones the description is, and each part of the rest when
it is first used: ten million samples open in milliseconds. One that is damaged or belongs to files that have
changed since is made again.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import FormatError
from rekindle.fetch.byte_files import ByteFile
from rekindle.fetch.listing import Names
from rekindle.fetch.record_index import CHUNK, ROW, RecordIndex

ENDING = ".rkindex"
BLOCK = 1 << 18
_MAGIC = b"RKINDEX\x03"  # another version whenever an indexer finds other samples in the same file
_HEAD = struct.Struct("<8sQII")  # magic, length of the description, its checksum, the checksum of these three
_MOST_DESCRIPTION = 64 << 20
_CHECKED_AT_ONCE = 16 << 20
_PAGE = 4096
_ARRAYS = {"rows": ROW, "chunks": CHUNK, "ends": np.dtype("<i8"), "names": np.dtype("u1")}


class IndexFile:
    """An index that was read from a file: `index` is mapped, `check` must be called for what is used."""

    def __init__(self, path: Path, index: RecordIndex, data: memoryview, sums: NDArray[np.uint32]) -> None:
        self.path, self.index = path, index
        self._data, self._sums = data, sums
        self.checked = bytearray(len(sums))

    def check(self, block: int) -> None:
        """Raise FormatError if this block is not what was written."""
        if zlib.crc32(self._data[block * BLOCK : (block + 1) * BLOCK]) != int(self._sums[block]):
            raise FormatError(
                f"{str(self.path)!r} at byte {block * BLOCK} of its arrays: the index is damaged. Delete it: "
                "it will be made again."
            )
        self.checked[block] = 1

    def check_all(self) -> None:
        """Check all that was not checked before."""
        for block in range(len(self._sums)):
            if not self.checked[block]:
                self.check(block)


def places(files: Sequence[ByteFile], settings: Mapping[str, Any]) -> list[Path]:
    """Where the index of these files, read with these settings, may be: beside the first, or in the cache."""
    key = hashlib.sha256(
        json.dumps([[file.name for file in files], settings], sort_keys=True).encode()
    ).hexdigest()
    plain = len(files) == 1 and not settings
    found = []
    if "://" not in files[0].name:
        first = Path(files[0].name)
        found.append(first.with_name(f"{first.name}{'' if plain else '.' + key[:12]}{ENDING}"))
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return found
    absolute = [file.name if "://" in file.name else os.path.abspath(file.name) for file in files]
    key = hashlib.sha256(json.dumps([absolute, settings], sort_keys=True).encode()).hexdigest()
    return [*found, cache / "rekindle" / "indexes" / f"{key[:32]}{ENDING}"]


def write_index(path: Path, index: RecordIndex, files: Sequence[ByteFile]) -> bool:
    """Write the index of these files; False if that cannot be done here."""
    names = index.names or Names(np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.int64))
    arrays = {"rows": index.rows, "chunks": index.chunks, "ends": names.ends, "names": names.joined}
    parts, place, total = {}, {}, 0
    for name, array in arrays.items():
        plain = np.ascontiguousarray(array, dtype=_ARRAYS[name])
        parts[name], place[name] = plain, [total, len(plain)]
        total += -(-plain.nbytes // 64) * 64
    description = {
        "format": index.format,
        "files": [[file.name, file.version] for file in files],
        "decodings": list(index.decodings),
        "classes": None if index.classes is None else list(index.classes),
        "named": index.names is not None,
        "arrays": place,
        "bytes": total,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            try:
                _write(file, description, parts, total)
                file.close()
                os.chmod(file.name, 0o644)
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError:
        return False
    return True


def _write(file: Any, description: dict[str, Any], parts: Mapping[str, NDArray[Any]], total: int) -> None:
    # The arrays come first in time, because the description has the checksum of their checksums; its own
    # length must be known before, so that is written with room for any number.
    text = json.dumps({**description, "sums": 2**32}).encode()
    start = -(-(_HEAD.size + len(text)) // _PAGE) * _PAGE
    file.seek(start)
    sums, held = [], b""
    for name, array in parts.items():
        padding = -array.nbytes % 64
        for piece in _pieces(array, padding):
            held += piece
            while len(held) >= BLOCK:
                sums.append(zlib.crc32(held[:BLOCK]))
                held = held[BLOCK:]
            file.write(piece)
        del name
    if held:
        sums.append(zlib.crc32(held))
    assert file.tell() == start + total
    table = np.array(sums, dtype="<u4").tobytes()
    file.write(table)
    text = json.dumps({**description, "sums": zlib.crc32(table)}).encode().ljust(len(text))
    head = _HEAD.pack(_MAGIC, len(text), zlib.crc32(text), 0)[:-4]
    file.seek(0)
    file.write(head + struct.pack("<I", zlib.crc32(head)) + text)
    file.flush()
    os.fsync(file.fileno())


def _pieces(array: NDArray[Any], padding: int) -> Any:
    view = array.view(np.uint8).reshape(-1).data if array.size else memoryview(b"")
    for start in range(0, len(view), BLOCK):
        yield bytes(view[start : start + BLOCK])
    if padding:
        yield bytes(padding)


def read_index(path: Path, files: Sequence[ByteFile]) -> IndexFile | None:
    """The index at `path`, if it is whole and made of these files as they are now; None otherwise."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < _HEAD.size:
                return None
            mapped = memoryview(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ))
        return _read(path, mapped, files)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, FormatError):
        return None


def _read(path: Path, mapped: memoryview, files: Sequence[ByteFile]) -> IndexFile | None:
    magic, length, text_sum, head_sum = _HEAD.unpack(mapped[: _HEAD.size])
    if magic != _MAGIC or zlib.crc32(mapped[: _HEAD.size - 4]) != head_sum or length > _MOST_DESCRIPTION:
        return None
    text = mapped[_HEAD.size : _HEAD.size + length]
    if len(text) != length or zlib.crc32(text) != text_sum:
        return None
    told = json.loads(bytes(text))
    if [version for _, version in told["files"]] != [file.version for file in files]:
        return None
    start = -(-(_HEAD.size + length) // _PAGE) * _PAGE
    total = int(told["bytes"])
    data = mapped[start : start + total]
    table = mapped[start + total :]
    if len(data) != total or len(table) != 4 * -(-total // BLOCK) or zlib.crc32(table) != told["sums"]:
        return None
    arrays = {}
    for name, dtype in _ARRAYS.items():
        offset, count = map(int, told["arrays"][name])
        if not 0 <= offset <= offset + count * dtype.itemsize <= total:
            return None
        arrays[name] = np.frombuffer(data, dtype=dtype, count=count, offset=offset)
    if told["arrays"]["rows"][0] != 0:
        return None
    names = Names(arrays["names"], arrays["ends"]) if told["named"] else None
    index = RecordIndex(
        told["format"], arrays["rows"], told["decodings"], arrays["chunks"], names, told["classes"]
    )
    made = IndexFile(path, index, data, np.frombuffer(table, dtype="<u4"))
    if total <= _CHECKED_AT_ONCE:
        made.check_all()
    return made
