"""Prepared samples kept in files until all of them are packed: complete and checksummed, or not there."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from rekindle.core.atomic_file import atomic_write
from rekindle.core.directory import PRIVATE, Directory

_HEADER = struct.Struct("<IQqB")  # length of the key, length of the data, label, whether there is data
_CHECKSUM = 4


class SpooledSample(NamedTuple):
    """A sample as it will be stored. Without data it is left out, and the key says why."""

    key: str
    data: bytes | None
    label: int


def write(folder: Directory, name: str, samples: Sequence[SpooledSample]) -> None:
    """Keep samples in a file."""
    parts: list[bytes] = []
    for sample in samples:
        key, data = sample.key.encode("utf-8", "surrogateescape"), sample.data or b""
        parts += [_HEADER.pack(len(key), len(data), sample.label, sample.data is not None), key, data]
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    write_whole(folder, name, [*parts, checksum.to_bytes(_CHECKSUM, "little")])


def read(folder: Directory, name: str) -> list[SpooledSample] | None:
    """The samples in a file; None if there is none, or if it is truncated or damaged."""
    try:
        content = folder.read(name)
    except OSError:
        return None
    if zlib.crc32(content[:-_CHECKSUM]).to_bytes(_CHECKSUM, "little") != content[-_CHECKSUM:]:
        return None
    samples, offset, end = [], 0, len(content) - _CHECKSUM
    while offset < end:
        key_length, length, label, has_data = _HEADER.unpack_from(content, offset)
        offset += _HEADER.size
        key = content[offset : offset + key_length].decode("utf-8", "surrogateescape")
        offset += key_length
        samples.append(SpooledSample(key, content[offset : offset + length] if has_data else None, label))
        offset += length
    return samples


def write_whole(folder: Directory, name: str, parts: Sequence[bytes]) -> None:
    """Write a file that is there completely or not at all."""
    with atomic_write(name, directory=folder, mode=PRIVATE) as file:
        file.writelines(parts)
