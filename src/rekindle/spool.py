"""Prepared samples kept in files until all of them are packed: whole and checksummed, or not there."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_HEADER = struct.Struct("<IQqB")  # length of the key, length of the data, label, whether there is data
_CHECKSUM = 4


class Record(NamedTuple):
    """A sample as it will be stored. Without data it is left out, and the key tells why."""

    key: str
    data: bytes | None
    label: int


def write(path: Path, records: Sequence[Record]) -> None:
    """Keep records in a file."""
    parts: list[bytes] = []
    for record in records:
        key, data = record.key.encode("utf-8", "surrogateescape"), record.data or b""
        parts += [_HEADER.pack(len(key), len(data), record.label, record.data is not None), key, data]
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    write_whole(path, [*parts, checksum.to_bytes(_CHECKSUM, "little")])


def read(path: Path) -> list[Record] | None:
    """The records that were kept; None if there are none, or if they are not whole."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    if zlib.crc32(content[:-_CHECKSUM]).to_bytes(_CHECKSUM, "little") != content[-_CHECKSUM:]:
        return None
    records, place, end = [], 0, len(content) - _CHECKSUM
    while place < end:
        key_length, length, label, has_data = _HEADER.unpack_from(content, place)
        place += _HEADER.size
        key = content[place : place + key_length].decode("utf-8", "surrogateescape")
        place += key_length
        records.append(Record(key, content[place : place + length] if has_data else None, label))
        place += length
    return records


def write_whole(path: Path, parts: Sequence[bytes]) -> None:
    """Write a file that is there whole or not at all."""
    unfinished = path.with_name(f".{path.name}.part")
    with unfinished.open("wb") as file:
        file.writelines(parts)
    os.replace(unfinished, path)
