"""The files of a disk cache: segments of records, only ever appended to, and a snapshot of their index.

A record is a header of 64 bytes (key, length, checksum of the value, checksum of the header) and the value's
bytes, padded to 64. A truncated or damaged file is read up to there. The snapshot only saves time: it lists
the records in the first so many bytes of each segment; what was appended later is found by scanning.
"""

from __future__ import annotations

import errno
import json
import os
import re
import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from rekindle.core.atomic_file import atomic_write
from rekindle.core.directory import PRIVATE, Directory
from rekindle.core.json_input import parse_json
from rekindle.reuse.cache.record import ALIGNMENT, Record

_HEADER = struct.Struct("<4sIqqQQ")  # magic, checksum of what follows, sample, generation, length, checksum
_MAGIC = b"rkr1"
_HEADER_BYTES = 64
_MAX_PARTS = 500  # that are written in one call: the system takes 1024 buffers
_ZEROS = bytes(ALIGNMENT)
SNAPSHOT = "index.snapshot"
_SEGMENT = re.compile(r"([0-9]{6,9})-([0-9]{8,12})\.segment")

Rows: TypeAlias = NDArray[np.int64]  # columns: sample, generation, segment, offset, length


@dataclass(frozen=True, slots=True)
class SegmentName:
    """A segment's file name: the run that wrote it, and its number."""

    run: int
    number: int

    def __str__(self) -> str:
        return f"{self.run:06d}-{self.number:08d}.segment"


def find_segments(folder: Directory) -> list[SegmentName]:
    """The segments of a folder, oldest first."""
    matches = map(_SEGMENT.fullmatch, folder.names())
    found = [SegmentName(int(match[1]), int(match[2])) for match in matches if match]
    return sorted(found, key=lambda name: name.number)


Lengths = TypeVar("Lengths", int, NDArray[np.int64])


def padded(length: Lengths) -> Lengths:
    """How many bytes of a segment the record of a value of this length takes: header, value and padding."""
    return (length + (_HEADER_BYTES + ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT


def append(fd: int, offset: int, index: int, generation: int, record: Record) -> int:
    """Write a record at the end of a segment, in one call; returns the offset after it. OSError."""
    parts = record.parts if len(record.parts) < _MAX_PARTS else [record.joined()]
    buffers: list[bytes | memoryview] = []
    checksum = xxhash.xxh3_64()
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        padding = _ZEROS[: 0 if last else -len(part) % ALIGNMENT]
        buffers += [part.data, padding] if padding else [part.data]
        checksum.update(part.data)
        checksum.update(padding)
    rest = _HEADER.pack(_MAGIC, 0, index, generation, record.nbytes, checksum.intdigest())[8:]
    header = (_MAGIC + struct.pack("<I", zlib.crc32(rest)) + rest).ljust(_HEADER_BYTES, b"\0")
    nbytes = _HEADER_BYTES + record.nbytes
    padding = _ZEROS[: -nbytes % ALIGNMENT]
    written = os.pwritev(fd, [header, *buffers, padding], offset)
    if written != nbytes + len(padding):
        raise OSError(errno.ENOSPC, f"only {written} of {nbytes} bytes were written")
    return offset + written


def read(fd: int, offset: int, index: int, generation: int, length: int) -> NDArray[np.uint8] | None:
    """A record's value; None if the record at this offset is another, or damaged. OSError."""
    memory = np.empty(_HEADER_BYTES + length, dtype=np.uint8)
    content = memory.data
    if os.preadv(fd, [content], offset) != _HEADER_BYTES + length:
        return None
    magic, _, found_index, found_generation, found_length, checksum = _HEADER.unpack_from(content)
    if (magic, found_index, found_generation, found_length) != (_MAGIC, index, generation, length):
        return None
    # XXH3 takes a tenth of the time of zlib's CRC-32.
    return memory[_HEADER_BYTES:] if xxhash.xxh3_64_intdigest(content[_HEADER_BYTES:]) == checksum else None


def scan(folder: Directory, name: SegmentName, offset: int = 0) -> Rows:
    """The records of a segment from `offset` on, by their headers, up to the first that is damaged."""
    rows: list[tuple[int, int, int, int, int]] = []
    with suppress(OSError), os.fdopen(folder.open(str(name)), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        while offset + _HEADER_BYTES <= size:
            header = os.pread(file.fileno(), _HEADER.size, offset)
            if len(header) < _HEADER.size or header[:4] != _MAGIC:
                break
            _, checksum, index, generation, length, _ = _HEADER.unpack(header)
            if zlib.crc32(header[8:]) != checksum or length > size - offset - _HEADER_BYTES:
                break
            rows.append((index, generation, name.number, offset, length))
            offset += padded(length)
    return np.array(rows, dtype=np.int64).reshape(-1, 5)


def write_snapshot(folder: Directory, rows: Rows, ends: dict[int, int]) -> None:
    """Save where all live records are, and up to which offset of each segment they are listed. OSError."""
    head = json.dumps({"ends": ends}).encode() + b"\n"
    content = head + np.ascontiguousarray(rows).tobytes()
    with atomic_write(SNAPSHOT, directory=folder, mode=PRIVATE) as file:
        file.write(xxhash.xxh3_64_digest(content) + content)


def read_snapshot(folder: Directory) -> tuple[Rows, dict[int, int]]:
    """What `write_snapshot` saved; no rows if there is no snapshot, or it is damaged."""
    try:
        content = folder.read(SNAPSHOT)
        if xxhash.xxh3_64_digest(content[8:]) != content[:8]:
            raise ValueError("wrong checksum")
        head, _, body = content[8:].partition(b"\n")
        ends = _segment_ends(parse_json(head))
        return np.frombuffer(body, dtype=np.int64).reshape(-1, 5), ends
    except (OSError, ValueError):
        return np.empty((0, 5), dtype=np.int64), {}


def _segment_ends(about: object) -> dict[int, int]:
    """Up to which offset the records of each segment are listed; ValueError if that is not what it says."""
    ends = about.get("ends") if isinstance(about, dict) else None
    if not isinstance(ends, dict) or not all(type(end) is int and 0 <= end < 2**62 for end in ends.values()):
        raise ValueError(f"{ends!r:.80} are not the ends of segments")
    return {int(number): end for number, end in ends.items()}


def read_index(folder: Directory, size: int, max_generation: int) -> tuple[Rows, dict[int, SegmentName]]:
    """For each sample the newest record of the newest run that has one, and all segments by number."""
    names = {name.number: name for name in find_segments(folder)}
    saved, ends = read_snapshot(folder)
    rows = [saved[np.isin(saved[:, 2], list(names))]]
    rows += [scan(folder, name, ends.get(number, 0)) for number, name in names.items()]
    every: Rows = np.concatenate(rows)
    sane = (every[:, 0] >= 0) & (every[:, 0] < size) & (every[:, 1] >= 0) & (every[:, 1] < max_generation)
    every = every[sane & _are_within(every, {number: _size(folder, name) for number, name in names.items()})]
    runs = np.array([names[number].run for number in every[:, 2].tolist()], dtype=np.int64)
    every = every[np.lexsort((every[:, 1], runs))]
    _, last = np.unique(every[::-1, 0], return_index=True)
    return every[::-1][last], names


def _are_within(rows: Rows, sizes: dict[int, int]) -> NDArray[np.bool_]:
    """Which records lie within their segments: what is read of one is as long as this says."""
    ends = np.array([sizes[number] for number in rows[:, 2].tolist()], dtype=np.int64)
    offsets, lengths = rows[:, 3], rows[:, 4]
    within: NDArray[np.bool_] = (offsets >= 0) & (lengths >= 0) & (lengths <= ends - _HEADER_BYTES)
    return within & (offsets <= ends - _HEADER_BYTES - lengths)


def _size(folder: Directory, name: SegmentName) -> int:
    state = folder.stat(str(name))
    return 0 if state is None else state.st_size
