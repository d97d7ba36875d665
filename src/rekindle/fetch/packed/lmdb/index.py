"""Indexes LMDB files: walks the B+ tree without the LMDB library.

The library trusts its files; this does not. Values are encoded images, or Caffe's `Datum` messages. Keys that
begin with `__` are notes of tools, not samples; `__classes__` is ours (a JSON list of class names).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from rekindle.core.json_input import parse_json
from rekindle.core.limits import DEFAULT_LIMITS, Limits
from rekindle.errors import FormatError
from rekindle.fetch.byte_files import ByteReader
from rekindle.fetch.bytes_array import BytesArray
from rekindle.fetch.image_signatures import SIGNATURES
from rekindle.fetch.packed import protobuf
from rekindle.fetch.packed.record_index import (
    BYTES,
    MAX_DECODINGS,
    MAX_SAMPLE_BYTES,
    NO_LABEL,
    Decoding,
    IndexSettings,
    RecordIndex,
    check_ranges,
    make_rows,
)

CLASSES = b"__classes__"
MAGIC = 0xBEEFC0DE
_PAGE = struct.Struct("<QHHHH")  # a page's header: number, spare, flags, lower, upper
_META = struct.Struct("<IIQQ")  # magic, version, address, size of the map; then two databases
_DATABASE = struct.Struct("<IHHQQQQQ")  # page size, flags, depth, branches, leaves, overflows, entries, root
_NODE = struct.Struct("<HHHH")  # two halves of a size, flags, length of the key
_BRANCH, _LEAF, _OVERFLOW, _LEAF2 = 0x01, 0x02, 0x04, 0x20
_BIG_VALUE, _SUBDATABASE, _DUPLICATES = 0x01, 0x02, 0x04
_NO_PAGE = 2**64 - 1
_MAX_DEPTH = 64

# Caffe's Datum: numbers of its fields.
_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _ENCODED = 1, 2, 3, 4, 5, 7


def index_lmdb(
    files: Sequence[ByteReader],
    settings: IndexSettings,
    report: Callable[[int], None],
    limits: Limits = DEFAULT_LIMITS,
) -> RecordIndex:
    """The samples of LMDB files. Settings: `images`, the name of a database within the file."""
    keys: list[bytes] = []
    columns: list[tuple[int, int, int, int, int]] = []
    decodings: list[Decoding] = [BYTES]
    numbers: dict[tuple[int, int, int], int] = {}
    classes: list[str] | None = None
    done = 0
    for number, file in enumerate(files):
        first = len(columns)
        values = []
        for key, offset, length in entries(file, settings.get("images")):
            values.append((offset, length))
            if key == CLASSES:
                classes = classes or _classes(file, offset, length)
            if key.startswith(b"__"):
                continue
            start, size, label, shape = _value(file, offset, length)
            if shape is not None and shape not in numbers:
                numbers[shape] = len(decodings)
                order = "CHW BGR" if shape[0] == 3 else "CHW"
                decodings.append({"kind": "array", "dtype": "|u1", "shape": list(shape), "order": order})
                if len(decodings) > MAX_DECODINGS:
                    raise FormatError(
                        f"{file.name!r} at byte {offset}: images of more than {MAX_DECODINGS:,} sizes."
                    )
            keys.append(key)
            columns.append((number, start, size, label, 0 if shape is None else numbers[shape]))
            if not len(columns) & 1023:
                report(done + min(file.size, offset))
        table = np.array(values, dtype=np.int64).reshape(-1, 2)
        check_ranges(table[:, 0], table[:, 1], file)
        if len(columns) == first:
            raise FormatError(f"{file.name!r} at byte 0: the file has no samples.")
        done += file.size
    table = np.array(columns, dtype=np.int64).reshape(-1, 5)
    rows = make_rows(table[:, 1], table[:, 2], table[:, 3], table[:, 0], decodings=table[:, 4])
    return RecordIndex("lmdb", rows, decodings, names=BytesArray.from_list(keys), classes=classes)


def _value(file: ByteReader, offset: int, length: int) -> tuple[int, int, int, tuple[int, int, int] | None]:
    """Offset and length of the image in a value, its label, and its shape if it is pixels."""
    head = bytes(file.read(offset, min(length, 4)))
    if head.startswith(SIGNATURES):
        return offset, length, NO_LABEL, None
    data = memoryview(file.read(offset, length))
    found: dict[int, tuple[int, int]] = {}
    try:
        for field, wire_type, start, end in protobuf.fields(data, 0, len(data)):
            if wire_type == (protobuf.BYTES if field == _DATA else protobuf.VARINT):
                found[field] = (start, end)
    except ValueError as error:
        raise FormatError(
            f"{file.name!r} at byte {offset}: a value is neither an image nor a Datum: {error}"
        ) from error
    if _DATA not in found:
        raise FormatError(f"{file.name!r} at byte {offset}: a value is neither an image nor a Datum.")
    start, end = found[_DATA]
    # A field that is not written is 0, in protocol buffers.
    label = protobuf.signed(found[_LABEL][0]) if _LABEL in found else 0
    channels, height, width = (found.get(field, (0, 0))[0] for field in (_CHANNELS, _HEIGHT, _WIDTH))
    has_shape = channels in (1, 3) and channels * height * width == end - start > 0
    # Pixels may begin with a signature by chance.
    looks_encoded = not has_shape and bytes(data[start : start + 4]).startswith(SIGNATURES)
    if found.get(_ENCODED, (0, 0))[0] or looks_encoded:
        return offset + start, end - start, label, None
    if not has_shape:
        raise FormatError(
            f"{file.name!r} at byte {offset}: a Datum of {channels} × {height} × {width} has "
            f"{end - start} bytes."
        )
    return offset + start, end - start, label, (channels, height, width)


def _classes(file: ByteReader, offset: int, length: int) -> list[str]:
    try:
        classes = parse_json(bytes(file.read(offset, length)))
    except ValueError:
        classes = None
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise FormatError(f"{file.name!r} at byte {offset}: {CLASSES.decode()} is not a list of names.")
    return classes


def entries(file: ByteReader, database: str | None = None) -> Iterator[tuple[bytes, int, int]]:
    """(key, offset, length) of each value, in the order of the keys."""
    page_size, root, count = _newest_root(file)
    tree = _Tree(file, page_size)
    if database is not None:
        for key, offset, length, flags in tree.walk(root, count):
            if key == os.fsencode(database) and flags & _SUBDATABASE and length == _DATABASE.size:
                *_, count, root = _DATABASE.unpack(file.read(offset, length))
                break
        else:
            raise FormatError(f"{file.name!r}: there is no database {database!r} within it.")
    for key, offset, length, flags in tree.walk(root, count):
        if flags & (_SUBDATABASE | _DUPLICATES):
            raise FormatError(
                f"{file.name!r} at byte {offset}: {key!r} is a database within the file, or has several "
                "values. Give the name of a database: images=."
            )
        yield key, offset, length


def _newest_root(file: ByteReader) -> tuple[int, int, int]:
    """Page size, root page and number of entries, from the newer of the file's two meta pages."""
    found = []
    size = _META.size + 2 * _DATABASE.size + 16
    page_size = 4096  # of the first, which says what the file's is
    for number in range(2):
        offset = number * page_size + _PAGE.size
        if offset + size > file.size:
            continue
        data = file.read(offset, size)
        magic, version, _, _ = _META.unpack(data[: _META.size])
        free = _DATABASE.unpack(data[_META.size : _META.size + _DATABASE.size])
        main = _DATABASE.unpack(data[_META.size + _DATABASE.size : _META.size + 2 * _DATABASE.size])
        if magic != MAGIC or version != 1:
            continue
        if not 512 <= free[0] <= 65536 or free[0] & (free[0] - 1) or (number and free[0] != page_size):
            # LMDB takes the size that the newer page has.
            raise FormatError(f"{file.name!r} at byte {offset}: a page size of {free[0]} bytes: corrupt.")
        page_size = free[0]
        transaction = int.from_bytes(data[-8:], "little")
        found.append((transaction, main[7], main[6]))
    if not found:
        raise FormatError(f"{file.name!r} at byte {_PAGE.size}: not an LMDB file, or of an unknown version.")
    _, root, count = max(found)
    return page_size, root, count


class _PageSet:
    """Numbers of pages, as bits that take memory only where there are any: a file may be sparse, and huge."""

    _BLOCK = 1 << 16  # pages

    def __init__(self) -> None:
        self._blocks: dict[int, NDArray[np.bool_]] = {}

    def add(self, start: int, end: int) -> bool:
        """Add the pages from `start` to `end`; False if one of them is there already."""
        while start < end:
            number, first = divmod(start, self._BLOCK)
            last = min(first + end - start, self._BLOCK)
            if number not in self._blocks:
                self._blocks[number] = np.zeros(self._BLOCK, dtype=np.bool_)
            pages = self._blocks[number][first:last]
            if pages.any():
                return False
            pages[:] = True
            start += last - first
        return True


class _Tree:
    """The pages of a file, each of which may be used once: cycles and values that share pages are errors."""

    def __init__(self, file: ByteReader, page_size: int) -> None:
        self._file, self._size = file, page_size
        self._pages = file.size // page_size
        self._used = _PageSet()

    def walk(self, root: int, count: int) -> Iterator[tuple[bytes, int, int, int]]:
        """(key, offset, length, flags) of all leaves below a root; FormatError unless there are `count`."""
        self._used = _PageSet()
        found = 0
        pending = [] if root == _NO_PAGE else [(root, 0)]
        while pending:
            page, depth = pending.pop()
            data, kind = self._page(page, depth)
            nodes = self._nodes(page, data)
            if kind & _BRANCH:
                pending += [(self._child(data, node), depth + 1) for node in reversed(nodes)]
                continue
            room = self._size - _PAGE.size
            for node in nodes:
                found += 1
                key, offset, length, flags = self._leaf(page, data, node)
                room -= _NODE.size + len(key) + (8 if flags & _BIG_VALUE else length)
                if room < 0:
                    raise self._corrupt(page * self._size, "the nodes of a page need more bytes than it has")
                yield key, offset, length, flags
        if found != count:
            offset = root * self._size if root != _NO_PAGE else 0
            raise self._corrupt(offset, f"{found} values instead of {count}")

    def _corrupt(self, offset: int, what: str) -> FormatError:
        return FormatError(
            f"{self._file.name!r} at byte {offset}: {what}: the LMDB file is truncated or corrupt."
        )

    def _page(self, page: int, depth: int) -> tuple[memoryview, int]:
        if page >= self._pages or depth > _MAX_DEPTH or not self._used.add(page, page + 1):
            raise self._corrupt(
                min(page, self._pages) * self._size, f"page {page} does not exist, or is used twice"
            )
        data = memoryview(self._file.read(page * self._size, self._size))
        number, _, kind, _, _ = _PAGE.unpack(data[: _PAGE.size])
        if number != page or kind & 0x0F not in (_BRANCH, _LEAF) or kind & _LEAF2:
            raise self._corrupt(page * self._size, "not a page of the tree")
        return data, kind

    def _nodes(self, page: int, data: memoryview) -> list[int]:
        lower = _PAGE.unpack(data[: _PAGE.size])[3]
        if not _PAGE.size <= lower <= self._size or lower % 2:
            raise self._corrupt(page * self._size, "a page of an invalid length")
        nodes = list(struct.unpack(f"<{(lower - _PAGE.size) // 2}H", data[_PAGE.size : lower]))
        if nodes and not (lower <= min(nodes) and max(nodes) + _NODE.size <= self._size):
            raise self._corrupt(page * self._size, "a node outside its page")
        return nodes

    @staticmethod
    def _child(data: memoryview, node: int) -> int:
        low, high, flags, _ = _NODE.unpack(data[node : node + _NODE.size])
        child: int = low | high << 16 | flags << 32
        return child

    def _leaf(self, page: int, data: memoryview, node: int) -> tuple[bytes, int, int, int]:
        low, high, flags, key_length = _NODE.unpack(data[node : node + _NODE.size])
        length = low | high << 16
        key_end = node + _NODE.size + key_length
        inside = 8 if flags & _BIG_VALUE else length
        if key_end + inside > self._size or length > MAX_SAMPLE_BYTES:
            raise self._corrupt(page * self._size + node, "a node that does not fit its page")
        key = bytes(data[node + _NODE.size : key_end])
        if not flags & _BIG_VALUE:
            return key, page * self._size + key_end, length, flags
        overflow = int.from_bytes(data[key_end : key_end + 8], "little")
        offset = overflow * self._size
        if overflow >= self._pages or offset + _PAGE.size + length > self._file.size:
            raise self._corrupt(page * self._size + node, f"a value of {length} bytes outside the file")
        number, _, kind = _PAGE.unpack(self._file.read(offset, _PAGE.size))[:3]
        if number != overflow or not kind & _OVERFLOW:
            raise self._corrupt(offset, "not an overflow page")
        end = min(overflow + -(-(_PAGE.size + length) // self._size), self._pages)
        if not self._used.add(overflow, end):
            raise self._corrupt(offset, "a value overlaps another, or the tree")
        return key, offset + _PAGE.size, length, flags
