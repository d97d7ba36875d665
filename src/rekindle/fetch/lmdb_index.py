"""Where the values of an LMDB file are: its B+ tree, read without the LMDB library.

The library trusts its files; this does not. Values are images as they are, or Caffe's `Datum` messages. Keys
that begin with `__` are notes of tools, not samples; `__classes__` is ours (a JSON list of names).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rekindle.errors import FormatError
from rekindle.fetch.byte_files import ByteFile
from rekindle.fetch.image_kinds import BEGINNINGS
from rekindle.fetch.listing import Names
from rekindle.fetch.record_index import (
    BYTES,
    MOST_BYTES,
    MOST_DECODINGS,
    NO_LABEL,
    Decoding,
    RecordIndex,
    check_ranges,
    make_rows,
)
from rekindle.fetch.wire import BYTES as WIRE_BYTES
from rekindle.fetch.wire import VARINT, fields, signed

CLASSES = b"__classes__"
MAGIC = 0xBEEFC0DE
_HEAD = 16  # bytes of a page before its content
_META = struct.Struct("<IIQQ")  # magic, version, address, size of the map; then two databases
_DATABASE = struct.Struct("<IHHQQQQQ")  # page size, flags, depth, branches, leaves, overflows, entries, root
_PAGE = struct.Struct("<QHHHH")  # number, spare, flags, lower, upper
_NODE = struct.Struct("<HHHH")  # two halves of a size, flags, length of the key
_BRANCH, _LEAF, _OVERFLOW = 0x01, 0x02, 0x04
_BIG, _DATABASE_INSIDE, _DUPLICATES = 0x01, 0x02, 0x04
_NOTHING = 2**64 - 1
_MOST_DEPTH = 64


def index_lmdb(
    files: Sequence[ByteFile], settings: Mapping[str, Any], told: Callable[[int], None]
) -> RecordIndex:
    """The samples of LMDB files. Settings: `images`, the name of a database within the file."""
    keys: list[bytes] = []
    columns: list[tuple[int, int, int, int, int]] = []
    decodings: list[Decoding] = [BYTES]
    numbers: dict[str, int] = {}
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
            text = "" if shape is None else str(shape)
            if shape is not None and text not in numbers:
                numbers[text] = len(decodings)
                order = "CHW BGR" if shape[0] == 3 else "CHW"
                decodings.append({"kind": "array", "dtype": "|u1", "shape": list(shape), "order": order})
                if len(decodings) > MOST_DECODINGS:
                    raise FormatError(f"{file.name!r} at byte {offset}: too many different sizes of images.")
            keys.append(key)
            columns.append((number, start, size, label, numbers.get(text, 0)))
            if not len(columns) & 1023:
                told(done + min(file.size, offset))
        table = np.array(values, dtype=np.int64).reshape(-1, 2)
        check_ranges(table[:, 0], table[:, 1], file.size, file.name)
        if len(columns) == first:
            raise FormatError(f"{file.name!r} at byte 0: there are no samples in it.")
        done += file.size
    table = np.array(columns, dtype=np.int64).reshape(-1, 5)
    rows = make_rows(table[:, 1], table[:, 2], table[:, 3], table[:, 0], decodings=table[:, 4])
    return RecordIndex("lmdb", rows, decodings, names=Names.of(keys), classes=classes)


def _value(file: ByteFile, offset: int, length: int) -> tuple[int, int, int, tuple[int, int, int] | None]:
    """Where the image in a value is, how long, its label, and its shape if it is pixels."""
    head = bytes(file.read(offset, min(length, 4)))
    if head.startswith(BEGINNINGS):
        return offset, length, NO_LABEL, None
    data = memoryview(file.read(offset, length))
    found: dict[int, tuple[int, int]] = {}
    try:
        for field, kind, start, end in fields(data, 0, len(data)):
            if kind == (WIRE_BYTES if field == 4 else VARINT) and field in (1, 2, 3, 4, 5, 7):
                found[field] = (start, end)
    except ValueError as error:
        raise FormatError(
            f"{file.name!r} at byte {offset}: a value is neither an image nor a Datum: {error}"
        ) from error
    if 4 not in found:
        raise FormatError(f"{file.name!r} at byte {offset}: a value is neither an image nor a Datum.")
    start, end = found[4]
    label = signed(found[5][0]) if 5 in found else 0  # What is not written is 0, in protocol buffers.
    channels, height, width = (found.get(field, (0, 0))[0] for field in (1, 2, 3))
    fits = channels in (1, 3) and channels * height * width == end - start > 0
    # Pixels may begin as a file does.
    looks_encoded = not fits and bytes(data[start : start + 4]).startswith(BEGINNINGS)
    if found.get(7, (0, 0))[0] or looks_encoded:
        return offset + start, end - start, label, None
    if not fits:
        raise FormatError(
            f"{file.name!r} at byte {offset}: a Datum of {channels} × {height} × {width} has "
            f"{end - start} bytes."
        )
    return offset + start, end - start, label, (channels, height, width)


def _classes(file: ByteFile, offset: int, length: int) -> list[str]:
    try:
        classes = json.loads(bytes(file.read(offset, length)))
    except (ValueError, RecursionError):
        classes = None
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise FormatError(f"{file.name!r} at byte {offset}: its names of classes are no list of names.")
    return classes


def entries(file: ByteFile, database: str | None = None) -> Iterator[tuple[bytes, int, int]]:
    """(key, offset, length) of each value, in the order of the keys."""
    page_size, root, count = _newest(file)
    tree = _Tree(file, page_size)
    if database is not None:
        for key, offset, length, flags in tree.walk(root, count):
            if key == database.encode() and flags & _DATABASE_INSIDE and length == _DATABASE.size:
                told = _DATABASE.unpack(file.read(offset, length))
                root, count = told[7], told[6]
                break
        else:
            raise FormatError(f"{file.name!r}: there is no database {database!r} within it.")
    for key, offset, length, flags in tree.walk(root, count):
        if flags & (_DATABASE_INSIDE | _DUPLICATES):
            raise FormatError(
                f"{file.name!r} at byte {offset}: {key!r} is a database within the file, or has several "
                "values. Name a database by images=."
            )
        yield key, offset, length


def _newest(file: ByteFile) -> tuple[int, int, int]:
    """Page size, root page and number of entries, of the newer of the two descriptions in the file."""
    found = []
    size = _META.size + 2 * _DATABASE.size + 16
    page_size = 4096
    for number in range(2):
        place = number * page_size + _HEAD
        if place + size > file.size:
            continue
        data = file.read(place, size)
        magic, version, _, _ = _META.unpack(data[: _META.size])
        free = _DATABASE.unpack(data[_META.size : _META.size + _DATABASE.size])
        main = _DATABASE.unpack(data[_META.size + _DATABASE.size : _META.size + 2 * _DATABASE.size])
        if magic != MAGIC or version != 1:
            continue
        if number == 0 and 512 <= free[0] <= 65536 and free[0] & (free[0] - 1) == 0:
            page_size = free[0]
        transaction = int.from_bytes(data[-8:], "little")
        found.append((transaction, main[7], main[6]))
    if not found:
        raise FormatError(f"{file.name!r} at byte {_HEAD}: not an LMDB file, or of another version.")
    _, root, count = max(found)
    return page_size, root, count


class _Tree:
    """Pages of the file, each used once: a tree that leads back to itself, or values that share pages, are
    refused before anything is made of them.
    """

    def __init__(self, file: ByteFile, page_size: int) -> None:
        self._file, self._size = file, page_size
        self._pages = file.size // page_size
        self._used = np.zeros(0, dtype=np.bool_)

    def walk(self, root: int, count: int) -> Iterator[tuple[bytes, int, int, int]]:
        """(key, offset, length, flags) of all nodes below a root; FormatError unless there are `count`."""
        self._used = np.zeros(self._pages, dtype=np.bool_)
        found = 0
        waiting = [] if root == _NOTHING else [(root, 0)]
        while waiting:
            page, depth = waiting.pop()
            data, kind = self._page(page, depth)
            nodes = self._nodes(page, data)
            if kind & _BRANCH:
                waiting += [(self._child(data, node), depth + 1) for node in reversed(nodes)]
                continue
            room = self._size - _HEAD
            for node in nodes:
                found += 1
                key, offset, length, flags = self._leaf(page, data, node)
                room -= _NODE.size + len(key) + (8 if flags & _BIG else length)
                if room < 0:
                    raise self._damaged(page * self._size, "a page with more in it than it holds")
                yield key, offset, length, flags
        if found != count:
            raise self._damaged(root * self._size if root != _NOTHING else 0, f"{found} values, not {count}")

    def _damaged(self, place: int, what: str) -> FormatError:
        return FormatError(
            f"{self._file.name!r} at byte {place}: {what}. The LMDB file is damaged or cut off."
        )

    def _page(self, page: int, depth: int) -> tuple[memoryview, int]:
        if page >= self._pages or self._used[page] or depth > _MOST_DEPTH:
            raise self._damaged(min(page, self._pages) * self._size, f"a page {page} that cannot be")
        self._used[page] = True
        data = memoryview(self._file.read(page * self._size, self._size))
        number, _, kind, _, _ = _PAGE.unpack(data[:_HEAD])
        if number != page or kind & 0x0F not in (_BRANCH, _LEAF) or kind & 0x20:
            raise self._damaged(page * self._size, "not a page of the tree")
        return data, kind

    def _nodes(self, page: int, data: memoryview) -> list[int]:
        lower = _PAGE.unpack(data[:_HEAD])[3]
        if not _HEAD <= lower <= self._size or lower % 2:
            raise self._damaged(page * self._size, "a page of a wrong length")
        nodes = list(struct.unpack(f"<{(lower - _HEAD) // 2}H", data[_HEAD:lower]))
        if nodes and not (lower <= min(nodes) and max(nodes) + _NODE.size <= self._size):
            raise self._damaged(page * self._size, "a node outside of its page")
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
        inside = 8 if flags & _BIG else length
        if key_end + inside > self._size or length > MOST_BYTES:
            raise self._damaged(page * self._size + node, "a node that leaves its page")
        key = bytes(data[node + _NODE.size : key_end])
        if not flags & _BIG:
            return key, page * self._size + key_end, length, flags
        overflow = int.from_bytes(data[key_end : key_end + 8], "little")
        place = overflow * self._size
        if overflow >= self._pages or place + _HEAD + length > self._file.size:
            raise self._damaged(page * self._size + node, f"a value of {length} bytes outside of the file")
        number, _, kind = _PAGE.unpack(self._file.read(place, _HEAD))[:3]
        if number != overflow or not kind & _OVERFLOW:
            raise self._damaged(place, "not a page of a value")
        end = min(overflow + -(-(_HEAD + length) // self._size), self._pages)
        if self._used[overflow:end].any():
            raise self._damaged(place, "a value that overlaps another, or the tree")
        self._used[overflow:end] = True
        return key, place + _HEAD, length, flags
