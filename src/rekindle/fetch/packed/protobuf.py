"""Protocol buffers without a schema and without copies: the fields of a message, and where they lie."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MAX_FIELDS = 100_000  # of one message: no image has as many


def fields(data: memoryview, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(number, wire type, start, end) of each field; a varint's value is `start`. ValueError if corrupt."""
    offset = start
    left = _MAX_FIELDS
    while offset < end:
        left -= 1
        tag, offset = varint(data, offset, end)
        number, wire_type = tag >> 3, tag & 7
        if number == 0 or left < 0:
            raise ValueError(f"a field of number 0, or more than {_MAX_FIELDS:,}, at byte {offset}")
        if wire_type == VARINT:
            value, offset = varint(data, offset, end)
            yield number, wire_type, value, offset
            continue
        if wire_type == BYTES:
            length, offset = varint(data, offset, end)
        elif wire_type == FIXED64:
            length = 8
        elif wire_type == FIXED32:
            length = 4
        else:
            raise ValueError(f"a field of wire type {wire_type} at byte {offset}")
        if length > end - offset:
            raise ValueError(f"a field at byte {offset} needs {length} bytes, {end - offset} are left")
        yield number, wire_type, offset, offset + length
        offset += length


def varint(data: memoryview, offset: int, end: int) -> tuple[int, int]:
    """An integer of variable length, and where it ends."""
    value = shift = 0
    while offset < end and shift < 64:
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, offset
        shift += 7
    raise ValueError(f"an unterminated varint at byte {offset}")


def signed(value: int) -> int:
    """An unsigned 64-bit integer as a signed one."""
    return value - (1 << 64) if value >> 63 else value


def encode_varint(value: int) -> bytes:
    """An integer as `varint` reads it; negative ones take ten bytes."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_bytes(number: int, content: bytes) -> bytes:
    """A field that holds bytes, a string or a message."""
    return encode_varint(number << 3 | BYTES) + encode_varint(len(content)) + content


def encode_integer(number: int, value: int) -> bytes:
    """A field that holds an integer."""
    return encode_varint(number << 3 | VARINT) + encode_varint(value)
