"""Protocol buffers as bytes: the fields of a message, and where they lie. No schema, no copies."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def fields(data: memoryview, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(number, kind, start, end) of each field; of a number, start is its value. ValueError if damaged."""
    place = start
    while place < end:
        tag, place = varint(data, place, end)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, place = varint(data, place, end)
            yield number, kind, value, place
            continue
        if kind == BYTES:
            length, place = varint(data, place, end)
        elif kind == FIXED64:
            length = 8
        elif kind == FIXED32:
            length = 4
        else:
            raise ValueError(f"a field of kind {kind} at byte {place}")
        if number == 0 or length > end - place:
            raise ValueError(f"a field of {length} bytes at byte {place}, where {end - place} are left")
        yield number, kind, place, place + length
        place += length


def varint(data: memoryview, place: int, end: int) -> tuple[int, int]:
    """A whole number of variable length, and where it ends."""
    value = shift = 0
    while place < end and shift < 64:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, place
        shift += 7
    raise ValueError(f"a number without an end at byte {place}")


def signed(value: int) -> int:
    """A 64-bit number, negative if its highest bit is set."""
    return value - (1 << 64) if value >> 63 else value


def encoded_varint(value: int) -> bytes:
    """A number as `varint` reads it; negative ones take ten bytes."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encoded_bytes(number: int, content: bytes) -> bytes:
    """A field that holds bytes, a text or a message."""
    return encoded_varint(number << 3 | BYTES) + encoded_varint(len(content)) + content


def encoded_number(number: int, value: int) -> bytes:
    """A field that holds a whole number."""
    return encoded_varint(number << 3 | VARINT) + encoded_varint(value)
