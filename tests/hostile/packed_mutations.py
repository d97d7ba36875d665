"""Mutations of packed files that know the formats: fields, lengths, types and shapes, with right checksums.

Random bytes hardly pass the first checksum. These change one or a few fields of a file to values at their
limits, leave out, double and swap its parts, and compute what depends on them again.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import google_crc32c
import numpy as np

from rekindle.fetch.packed.protobuf import encode_varint
from rekindle.fetch.packed.tfrecord.index import mask

EXTREMES = (0, 1, 2, 3, 7, 8, 127, 255, 511, 512, 513, 4095, 4096, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**40)
EXTREMES_64 = (*EXTREMES, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
BLOCK = 512


def chosen(rng: np.random.Generator, values: Sequence[int]) -> int:
    return int(values[int(rng.integers(len(values)))])


# tar: a list of headers of 512 bytes, each with its content.

Member = tuple[bytes, bytes]


def tar_members(data: bytes) -> list[Member]:
    found, at = [], 0
    while any(data[at : at + BLOCK]):
        size = int(data[at + 124 : at + 135], 8)
        found.append((data[at : at + BLOCK], data[at + BLOCK : at + BLOCK + size]))
        at += BLOCK + -(-size // BLOCK) * BLOCK
    return found


def tar_file(members: Sequence[Member], end: bytes = bytes(1024)) -> bytes:
    return b"".join(head + body + bytes(-len(body) % BLOCK) for head, body in members) + end


def with_field(head: bytes, start: int, content: bytes) -> bytes:
    """A header with other bytes in it and the checksum that is right for them."""
    changed = bytearray(head)
    changed[start : start + len(content)] = content
    changed[148:156] = b" " * 8
    changed[148:156] = b"%06o\0 " % sum(changed)
    return bytes(changed[:BLOCK])


def _tar_number(rng: np.random.Generator, width: int) -> bytes:
    value = chosen(rng, EXTREMES)
    forms = (
        b"%0*o\0" % (width - 1, value % 8 ** (width - 1)),
        b"%*o " % (width - 1, value % 8 ** (width - 1)),
        b"\x80" + value.to_bytes(width - 1, "big"),
        b"\xff" * width,
        b"-1".ljust(width, b"\0"),
        b"9" * width,
        b"\0" * width,
        b"7" * width,
    )
    return forms[int(rng.integers(len(forms)))]


def _pax(rng: np.random.Generator) -> bytes:
    keys = (
        b"path",
        b"size",
        b"GNU.sparse.major",
        b"GNU.sparse.size",
        b"REKINDLE.classes",
        b"hdrcharset",
        b"x",
    )
    values = (
        b"other.jpg",
        b"%d" % chosen(rng, EXTREMES),
        b"-3",
        b"",
        b'["a","b"]',
        b"[" * 3000,
        b"\xff\0",
        b"9" * 30,
    )
    key, value = keys[int(rng.integers(len(keys)))], values[int(rng.integers(len(values)))]
    body = b" " + key + b"=" + value + b"\n"
    length = len(body) + 1
    while len(b"%d" % length) + len(body) != length:
        length += 1
    if rng.integers(5) == 0:
        length = chosen(rng, EXTREMES)
    return b"%d" % length + body


def mutated_tar(data: bytes, rng: np.random.Generator) -> bytes:
    members, end = tar_members(data), bytes(1024)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(members)))
        head, body = members[at]
        match int(rng.integers(11)):
            case 0:
                head = with_field(head, 124, _tar_number(rng, 12))
            case 1:
                types = b"\x00012345678xXgLKSDNVMZ"
                head = with_field(head, 156, types[(k := int(rng.integers(len(types)))) : k + 1])
            case 2:
                names = (b"", b"a.jpg", b"a.cls/", b"dir/", b"x" * 100, b"\xff.jpg", b"../b.jpg", b"b.JPG\0c")
                head = with_field(head, 0, names[int(rng.integers(len(names)))].ljust(100, b"\0"))
            case 3:
                magics = (b"ustar\x0000", b"ustar  \0", bytes(8), b"ustar\0\0\0")
                head = with_field(head, 257, magics[int(rng.integers(4))])
            case 4:
                head = with_field(head, 345, b"prefix/of/it".ljust(155, b"\0"))
            case 5:
                kind = b"xxxgXLK"[(k := int(rng.integers(7))) : k + 1]
                content = (
                    b"long/name.jpg\0"
                    if kind in b"LK"
                    else b"".join(_pax(rng) for _ in range(rng.integers(1, 3)))
                )
                before = with_field(with_field(head, 156, kind), 124, b"%011o\0" % len(content))
                members.insert(at, (before, content))
                continue
            case 6:
                head = head[:148] + _tar_number(rng, 8) + head[156:]  # a wrong checksum, most often
            case 7:
                members.insert(at, members[int(rng.integers(len(members)))])
                continue
            case 8:
                other = int(rng.integers(len(members)))
                members[at], members[other] = members[other], members[at]
                continue
            case 9:
                end = bytes(chosen(rng, (0, 1, 511, 512, 1024, 5000)))
            case _:
                body = (b"12", b"-1", b'{"label": 1}', b"9" * 30, b"", b"\xff", b"[" * 5000)[
                    int(rng.integers(7))
                ]
                head = with_field(head, 124, b"%011o\0" % len(body))
        members[at] = head, body
    return tar_file(members, end)


# TFRecord: messages of nested fields.

Field = tuple[int, int, "bytes | int | list[Field]"]  # number, wire type, content


def message(fields: Sequence[Field]) -> bytes:
    out = b""
    for number, kind, content in fields:
        raw = message(content) if isinstance(content, list) else content
        out += encode_varint(number << 3 | kind)
        if isinstance(raw, int):
            out += encode_varint(raw)
        elif kind == 2:
            out += encode_varint(len(raw)) + raw
        else:
            out += raw
    return out


def record(content: bytes) -> bytes:
    head = struct.pack("<Q", len(content))
    sums = [struct.pack("<I", mask(google_crc32c.value(part))) for part in (head, content)]
    return head + sums[0] + content + sums[1]


def feature(name: bytes, kind: int, *values: bytes | int) -> Field:
    fields: list[Field] = [(1, 2 if isinstance(value, bytes) else 0, value) for value in values]
    return 1, 2, [(1, 2, name), (2, 2, [(kind, 2, fields)])]


def _all_lists(fields: list[Field]) -> list[list[Field]]:
    inner = [content for _, _, content in fields if isinstance(content, list)]
    return [fields, *(one for content in inner for one in _all_lists(content))]


def mutated_example(rng: np.random.Generator) -> bytes:
    """The message of a sample, in which some fields are of other types, doubled or empty."""
    label = chosen(rng, EXTREMES_64)
    example: list[Field] = [
        (1, 2, [feature(b"image/encoded", 1, b"\xff\xd8image"), feature(b"image/class/label", 3, label)])
    ]
    for _ in range(int(rng.integers(0, 4))):
        lists = _all_lists(example)
        fields = lists[int(rng.integers(len(lists)))]
        at = int(rng.integers(len(fields) + 1))
        match int(rng.integers(8)):
            case 0:
                fields.insert(at, (chosen(rng, (1, 2, 3, 4, 15, 16, 2**28)), 0, chosen(rng, EXTREMES_64)))
            case 1:
                fields.insert(at, (chosen(rng, (1, 2, 3, 9)), 2, b"\xff\xd8other"))
            case 2 if fields:
                fields.insert(at, fields[int(rng.integers(len(fields)))])
            case 3 if fields:
                fields.pop(min(at, len(fields) - 1))
            case 4:
                fields.insert(at, (chosen(rng, (1, 2, 3)), 2, []))
            case 5:
                fields.insert(at, (chosen(rng, (1, 7)), chosen(rng, (1, 5)), bytes(8)))
            case 6:
                packed = b"".join(encode_varint(chosen(rng, EXTREMES_64)) for _ in range(2))
                fields.insert(at, (chosen(rng, (1, 3)), 2, packed))
            case _:
                fields.insert(at, feature(b"image/class/label", chosen(rng, (1, 2, 3, 3)), 5))
    content = message(example)
    if content and rng.integers(6) == 0:  # A length that is not that of its content.
        at = int(rng.integers(len(content)))
        content = content[:at] + encode_varint(chosen(rng, EXTREMES_64)) + content[at + 1 :]
    return content


# LMDB: fields of pages and nodes, at their places.


def mutated_lmdb(data: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    pages = len(data) // 4096
    for _ in range(int(rng.integers(1, 4))):
        page = int(rng.integers(pages))
        at = page * 4096
        kind = int.from_bytes(changed[at + 10 : at + 12], "little")
        lower = int.from_bytes(changed[at + 12 : at + 14], "little")
        if page < 2:  # Both descriptions: versions, sizes, depths, counts, roots, transactions.
            place, width = [
                (16, 4),
                (20, 4),
                (40, 4),
                (44, 2),
                (88, 4),
                (92, 2),
                (94, 2),
                (120, 8),
                (128, 8),
                (144, 8),
            ][int(rng.integers(10))]
        elif kind & 3 and 18 <= lower <= 4096 and rng.integers(3):
            pointer = 16 + 2 * int(rng.integers((lower - 16) // 2))
            node = int.from_bytes(changed[at + pointer : at + pointer + 2], "little")
            place, width = [
                (pointer, 2),
                (node, 2),
                (node + 2, 2),
                (node + 4, 2),
                (node + 6, 2),
                (node + 9, 8),
            ][int(rng.integers(6))]
            place = min(place, 4080)
        else:
            place, width = [(0, 8), (8, 2), (10, 2), (12, 2), (14, 2), (12, 4)][int(rng.integers(6))]
        near = int.from_bytes(changed[at + place : at + place + width], "little")
        values = (
            *EXTREMES_64,
            near + 1,
            near - 1,
            near ^ 1,
            near * 2,
            near + 4096,
            near ^ 1 << int(rng.integers(16)),
        )
        value = chosen(rng, [one % 2**63 for one in values]) % 2 ** (8 * width)
        changed[at + place : at + place + width] = value.to_bytes(width, "little")
    return bytes(changed)


# HDF5: numbers of a known value, which stand for shapes, chunks, sizes and addresses, at their places.


def _rotated(value: int, count: int) -> int:
    return (value << count | value >> (32 - count)) & 0xFFFFFFFF


def lookup3(data: bytes) -> int:
    """Jenkins's hash, the checksum of HDF5's newer structures."""
    a = b = c = (0xDEADBEEF + len(data)) & 0xFFFFFFFF
    words = data
    while len(words) > 12:
        x, y, z = struct.unpack("<III", words[:12])
        a, b, c, words = (a + x) & 0xFFFFFFFF, (b + y) & 0xFFFFFFFF, (c + z) & 0xFFFFFFFF, words[12:]
        for shift in (4, 6, 8, 16, 19, 4):
            a = (a - c & 0xFFFFFFFF) ^ _rotated(c, shift)
            c = c + b & 0xFFFFFFFF
            a, b, c = b, c, a
    if not words:
        return c
    x, y, z = struct.unpack("<III", words.ljust(12, b"\0"))
    a, b, c = (a + x) & 0xFFFFFFFF, (b + y) & 0xFFFFFFFF, (c + z) & 0xFFFFFFFF
    for shift in (14, 11, 25, 16, 4, 14, 24):
        c = (c ^ b) - _rotated(b, shift) & 0xFFFFFFFF
        a, b, c = b, c, a
    return b


def headers(data: bytes) -> list[tuple[int, int]]:
    """Start and end of each object header that has a checksum, which follows it."""
    found, at = [], data.find(b"OHDR")
    while at >= 0:
        flags = data[at + 5]
        start = at + 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
        width = 1 << (flags & 3)
        end = start + width + int.from_bytes(data[start : start + width], "little")
        if end + 4 <= len(data) and lookup3(data[at:end]) == int.from_bytes(data[end : end + 4], "little"):
            found.append((at, end))
        at = data.find(b"OHDR", at + 4)
    return found


def mutated_hdf5(data: bytes, numbers: Sequence[int], rng: np.random.Generator) -> bytes:
    """A file in which some of these numbers, or the bytes of a header, are others."""
    changed, sums = bytearray(data), headers(data)
    places = [
        (at, width)
        for width in (8, 4)
        for number in numbers
        for at in range(len(data) - width)
        if data[at : at + width] == number.to_bytes(width, "little")
    ]
    for _ in range(int(rng.integers(1, 3))):
        if places and rng.integers(3):
            at, width = places[int(rng.integers(len(places)))]
            near = int.from_bytes(data[at : at + width], "little")
            value = chosen(rng, (*EXTREMES_64, near + 1, near - 1, near * 2)) % 2 ** (8 * width)
            changed[at : at + width] = value.to_bytes(width, "little")
        elif sums:
            start, end = sums[int(rng.integers(len(sums)))]
            changed[int(rng.integers(start + 6, end))] = chosen(rng, EXTREMES) % 256
        else:
            used = np.flatnonzero(np.frombuffer(data, np.uint8))
            changed[chosen(rng, used.tolist())] = chosen(rng, EXTREMES) % 256
    for start, end in sums:
        changed[end : end + 4] = lookup3(bytes(changed[start:end])).to_bytes(4, "little")
    return bytes(changed)
