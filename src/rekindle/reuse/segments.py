"""The files of a disk cache: segments of records, only ever appended to, and a snapshot of their index.

A record is a header of 64 bytes (key, length, checksum of the value, checksum of the header) and the value's
bytes, padded to 64. A file cut off or damaged anywhere is read up to there. The snapshot only saves time: it
says where the records of the first so many bytes of each segment are, and what follows is looked at as ever.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from rekindle.reuse.values import ALIGNMENT, Record

_HEADER = struct.Struct("<4sIqqQQ")  # magic, checksum of what follows, sample, generation, length, checksum
_MAGIC = b"rkr1"
HEADER = 64  # bytes before a record's value
_PARTS_AT_ONCE = 500  # fewer than the system takes in one call
_NO_BYTES = bytes(ALIGNMENT)
SNAPSHOT = "index.snapshot"
_LARGEST = 1 << 40

Rows = NDArray[np.int64]  # columns: sample, generation, segment, start, length


@dataclass(frozen=True, slots=True)
class SegmentName:
    """What a segment's name tells: the run that wrote it, and its number."""

    run: int
    number: int

    def __str__(self) -> str:
        return f"{self.run:06d}-{self.number:08d}.segment"


def find_segments(folder: Path) -> list[SegmentName]:
    """The segments of a folder, oldest first."""
    found = []
    for path in folder.glob("*-*.segment"):
        run, _, number = path.stem.partition("-")
        if run.isdigit() and number.isdigit():
            found.append(SegmentName(int(run), int(number)))
    return sorted(found, key=lambda name: name.number)


Lengths = TypeVar("Lengths", int, NDArray[np.int64])


def room(length: Lengths) -> Lengths:
    """The bytes that a record takes in a segment, or records, for an array of lengths."""
    return (length + (HEADER + ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT


def append(fd: int, start: int, index: int, generation: int, record: Record) -> int:
    """Write a record at the end of a segment, in one call; returns where the next one starts. OSError."""
    parts = record.parts if len(record.parts) < _PARTS_AT_ONCE else [record.joined()]
    buffers: list[bytes | memoryview] = []
    content = xxhash.xxh3_64()
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        padding = _NO_BYTES[: 0 if last else -len(part) % ALIGNMENT]
        buffers += [part.data, padding] if padding else [part.data]
        content.update(part.data)
        content.update(padding)
    rest = _HEADER.pack(_MAGIC, 0, index, generation, record.nbytes, content.intdigest())[8:]
    head = (_MAGIC + struct.pack("<I", zlib.crc32(rest)) + rest).ljust(HEADER, b"\0")
    total = HEADER + record.nbytes
    padding = _NO_BYTES[: -total % ALIGNMENT]
    written = os.pwritev(fd, [head, *buffers, padding], start)
    if written != total + len(padding):
        raise OSError(28, f"only {written} of {total} bytes were written")
    return start + written


def read(fd: int, start: int, index: int, generation: int, length: int) -> NDArray[np.uint8] | None:
    """A record's value; None if what lies there is not that record, or not whole. OSError."""
    memory = np.empty(HEADER + length, dtype=np.uint8)
    content = memory.data
    if os.preadv(fd, [content], start) != HEADER + length:
        return None
    magic, _, its_index, its_generation, its_length, its_sum = _HEADER.unpack_from(content)
    if (magic, its_index, its_generation, its_length) != (_MAGIC, index, generation, length):
        return None
    # XXH3 is the quickest checksum there is for this: a tenth of the time that zlib's takes.
    return memory[HEADER:] if xxhash.xxh3_64_intdigest(content[HEADER:]) == its_sum else None


def scan(path: Path, number: int, start: int = 0) -> Rows:
    """The records of a segment from `start` on, by their headers, up to the first that is damaged."""
    rows: list[tuple[int, int, int, int, int]] = []
    with suppress(OSError), open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        while start + HEADER <= size:
            head = os.pread(file.fileno(), _HEADER.size, start)
            if len(head) < _HEADER.size or head[:4] != _MAGIC:
                break
            _, its_sum, index, generation, length, _ = _HEADER.unpack(head)
            if zlib.crc32(head[8:]) != its_sum or length > size - start - HEADER:
                break
            rows.append((index, generation, number, start, length))
            start += room(length)
    return np.array(rows, dtype=np.int64).reshape(-1, 5)


def write_snapshot(folder: Path, rows: Rows, ends: dict[int, int]) -> None:
    """Save where all live records are, and the bytes of each segment that this speaks of. OSError."""
    head = json.dumps({"rows": len(rows), "ends": ends}).encode() + b"\n"
    content = head + np.ascontiguousarray(rows).tobytes()
    draft = folder / f"{SNAPSHOT}.{os.getpid()}"
    draft.write_bytes(xxhash.xxh3_64_digest(content) + content)
    os.replace(draft, folder / SNAPSHOT)


def read_snapshot(folder: Path) -> tuple[Rows, dict[int, int]]:
    """What `write_snapshot` saved; nothing if there is none, or a damaged one."""
    nothing = np.empty((0, 5), dtype=np.int64), dict[int, int]()
    try:
        content = (folder / SNAPSHOT).read_bytes()
    except OSError:
        return nothing
    if xxhash.xxh3_64_digest(content[8:]) != content[:8]:
        return nothing
    head, _, body = content[8:].partition(b"\n")
    about = json.loads(head)
    rows = np.frombuffer(body, dtype=np.int64).reshape(about["rows"], 5)
    return rows, {int(number): end for number, end in about["ends"].items()}


def read_index(folder: Path, size: int, most_generations: int) -> tuple[Rows, dict[int, SegmentName]]:
    """For each sample the newest record of the newest run that has one, and all segments by number."""
    names = {name.number: name for name in find_segments(folder)}
    saved, ends = read_snapshot(folder)
    rows = [saved[np.isin(saved[:, 2], list(names))]]
    rows += [scan(folder / str(name), number, ends.get(number, 0)) for number, name in names.items()]
    every: Rows = np.concatenate(rows)
    sane = (every[:, 0] >= 0) & (every[:, 0] < size) & (every[:, 1] >= 0) & (every[:, 1] < most_generations)
    every = every[sane & (every[:, 4] >= 0) & (every[:, 4] < _LARGEST)]
    runs = np.array([names[number].run for number in every[:, 2].tolist()], dtype=np.int64)
    every = every[np.lexsort((every[:, 1], runs))]
    _, last = np.unique(every[::-1, 0], return_index=True)
    return every[::-1][last], names
