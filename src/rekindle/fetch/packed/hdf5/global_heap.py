"""Variable-length data of HDF5: references into global heaps, resolved to byte ranges.

A reference is a length, the address of a heap collection and an object number within it. A collection is
`GCOL`, a version, its size, then objects: number, reference count, size, and bytes padded to a multiple of
eight.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import FormatError
from rekindle.fetch.byte_files import ByteReader, truncated
from rekindle.fetch.packed.record_index import check_ranges

REFERENCE = np.dtype([("length", "<u4"), ("address", "<u8"), ("number", "<u4")])
_COLLECTION = struct.Struct("<4sB3xQ")
_OBJECT = struct.Struct("<HHIQ")


def heap_ranges(
    file: ByteReader, references: NDArray[np.void], base: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Offset and length of what each reference points to; empty ones are at 0."""
    count = len(references)
    offsets, lengths = np.zeros(count, dtype=np.int64), references["length"].astype(np.int64)
    full = np.flatnonzero(lengths)
    if len(full) and int(references["address"][full].max()) > file.size:
        at = int(full[np.argmax(references["address"][full])])
        raise truncated(file, int(references["address"][at]), f"sample {at}", int(lengths[at]))
    order = full[np.argsort(references["address"][full], kind="stable")]
    addresses, numbers = references["address"][order].tolist(), references["number"][order].tolist()
    previous, end = -1, 0
    objects: dict[int, tuple[int, int]] = {}
    for at, address, number in zip(order.tolist(), addresses, numbers, strict=True):
        if address != previous:
            if base + address < end:
                raise FormatError(f"{file.name!r} at byte {base + address}: two heaps overlap: corrupt.")
            previous, (end, objects) = address, _objects(file, base + address)
        found = objects.get(number)
        if found is None or found[1] != lengths[at]:
            raise FormatError(
                f"{file.name!r} at byte {base + address}: sample {at} needs {lengths[at]} bytes, object "
                f"{number} of this heap has {'none' if found is None else found[1]}: corrupt."
            )
        offsets[at] = found[0]
    check_ranges(offsets, lengths, file)
    return offsets, lengths


def _objects(file: ByteReader, offset: int) -> tuple[int, dict[int, tuple[int, int]]]:
    """Where a collection ends, and offset and size of each of its objects."""
    magic, version, size = _COLLECTION.unpack(file.read(offset, _COLLECTION.size))
    if magic != b"GCOL" or version != 1 or offset + size > file.size:
        raise FormatError(f"{file.name!r} at byte {offset}: not a heap, or a truncated one.")
    found: dict[int, tuple[int, int]] = {}
    at, end = offset + _COLLECTION.size, offset + size
    while at + _OBJECT.size <= end:
        number, _, _, length = _OBJECT.unpack(file.read(at, _OBJECT.size))
        if number == 0:  # The rest of the collection is free.
            break
        at += _OBJECT.size
        if at + length > end or number in found:
            raise FormatError(
                f"{file.name!r} at byte {at}: an object needs {length} bytes, its heap ends: corrupt."
            )
        found[number] = at, length
        at += -(-length // 8) * 8
    return end, found
