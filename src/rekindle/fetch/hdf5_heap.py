"""Bytes of variable length in HDF5: references into global heaps, followed to where the bytes are.

A reference is a length, the address of a heap collection and a number within it. A collection is
`GCOL`, a version, its size, then objects: number, references, size, and bytes up to a multiple of eight.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import FormatError
from rekindle.fetch.byte_files import ByteFile
from rekindle.fetch.record_index import check_ranges

REFERENCE = np.dtype([("length", "<u4"), ("address", "<u8"), ("number", "<u4")])
_COLLECTION = struct.Struct("<4sB3xQ")
_OBJECT = struct.Struct("<HHIQ")


def heap_ranges(
    file: ByteFile, references: NDArray[Any], base: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Offset and length of what each reference refers to; empty ones are at 0."""
    count = len(references)
    offsets, lengths = np.zeros(count, dtype=np.int64), references["length"].astype(np.int64)
    full = np.flatnonzero(lengths)
    if len(full) and int(references["address"][full].max()) > file.size:
        at = int(full[np.argmax(references["address"][full])])
        raise FormatError(
            f"{file.name!r} at byte {file.size}: sample {at} is said to be at {references['address'][at]}, "
            "outside of the file. It is damaged or cut off."
        )
    order = full[np.argsort(references["address"][full], kind="stable")]
    addresses, numbers = references["address"][order].tolist(), references["number"][order].tolist()
    previous, end = -1, 0
    objects: dict[int, tuple[int, int]] = {}
    for at, address, number in zip(order.tolist(), addresses, numbers, strict=True):
        if address != previous:
            if base + address < end:
                raise FormatError(
                    f"{file.name!r} at byte {base + address}: two heaps overlap. It is damaged."
                )
            previous, (end, objects) = address, _objects(file, base + address)
        found = objects.get(number)
        if found is None or found[1] != lengths[at]:
            raise FormatError(
                f"{file.name!r} at byte {base + address}: sample {at} has {lengths[at]} bytes as object "
                f"{number} of this heap, which has {'none' if found is None else found[1]} there."
            )
        offsets[at] = found[0]
    check_ranges(offsets, lengths, file.size, file.name)
    return offsets, lengths


def _objects(file: ByteFile, place: int) -> tuple[int, dict[int, tuple[int, int]]]:
    """Where a collection ends, and offset and size of each of its objects."""
    magic, version, size = _COLLECTION.unpack(file.read(place, _COLLECTION.size))
    if magic != b"GCOL" or version != 1 or place + size > file.size:
        raise FormatError(f"{file.name!r} at byte {place}: not a heap, or one that is cut off.")
    found: dict[int, tuple[int, int]] = {}
    at, end = place + _COLLECTION.size, place + size
    while at + _OBJECT.size <= end:
        number, _, _, length = _OBJECT.unpack(file.read(at, _OBJECT.size))
        if number == 0:  # What is left of the collection is free.
            break
        at += _OBJECT.size
        if at + length > end or number in found:
            raise FormatError(f"{file.name!r} at byte {at}: an object of {length} bytes leaves its heap.")
        found[number] = at, length
        at += -(-length // 8) * 8
    return end, found
