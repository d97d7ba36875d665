"""Images mutated by their structure: markers, chunks, lengths and declared sizes, not bytes at random.

`mutated(kind, rng)` gives one hostile image; `judge(data)` is what has to hold for any bytes. As a program,
it judges many in a process of its own, whose memory is limited:

    python tests/hostile/image_mutations.py KIND SEED COUNT
"""

from __future__ import annotations

import io
import resource
import struct
import sys
import zlib
from collections.abc import Callable
from functools import cache

import numpy as np
import simplejpeg
from PIL import Image

from rekindle.core.limits import Limits
from rekindle.errors import DecodeError
from rekindle.prepare.decode.decode import decode, decode_with, read_header
from rekindle.prepare.decode.jpeg import Frame
from rekindle.prepare.decode.jpeg_box import decode_jpeg_box
from rekindle.prepare.pipeline import Pipeline
from rekindle.prepare.steps.crop import RandomResizedCrop
from rekindle.prepare.steps.to_tensor import ToTensor

LIMITS = Limits(pixels=4_000_000)
PIPELINE = Pipeline([RandomResizedCrop((16, 24)), ToTensor()], limits=LIMITS)
LENGTHS = (0, 1, 2, 3, 4, 7, 8, 9, 16, 17, 63, 64, 255, 256, 1000, 4096, 32767, 32768, 65500, 65535)
LONG = (*LENGTHS, 65536, 1 << 20, (1 << 24) - 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
Random = np.random.Generator


def judge(data: bytes) -> str:
    """Either "refused" or "decoded"; AssertionError or another exception if the promise does not hold."""
    try:
        header = read_header(data, LIMITS)
    except DecodeError:
        return "refused"
    assert 0 < header.height * header.width <= LIMITS.pixels
    if header.frame is not None:
        _agrees_with_libjpeg(data, (header.height, header.width))
        _has_pixels_of_libjpeg(data, header.frame)
    outcome = "refused"
    try:
        image = decode(data, LIMITS)
        assert image.shape == (header.height, header.width, 3)
        assert image.dtype == np.uint8
        outcome = "decoded"
    except DecodeError:
        pass
    for shrink, rows in ((1, 5), (2, header.height), (8, 1)):
        try:
            some = decode_with(header, data, shrink, rows, scratch=True)
        except DecodeError:
            continue
        assert header.frame is None or some.shape[1] in (header.width, -(-header.width // shrink))
        assert some.shape[0] >= -(-min(rows, header.height) // shrink)
    try:
        made = PIPELINE.make(data, np.array([0.4, 0.5, 0.6, 0.7]))
    except DecodeError:
        return outcome
    assert made.shape == (3, 16, 24)
    return outcome


def _agrees_with_libjpeg(data: bytes, size: tuple[int, int]) -> None:
    try:
        theirs = simplejpeg.decode_jpeg(data, strict=False).shape[:2]  # with warnings, which a header raises
    except (ValueError, KeyError):
        return  # It refuses the data, or does not know its colours.
    assert theirs == size, f"libjpeg reads {theirs}, we read {size}"


def _has_pixels_of_libjpeg(data: bytes, frame: Frame) -> None:
    """What our kernels decode, if they are compiled."""
    pixels = decode_jpeg_box(frame, data, (0, 0, frame.height, frame.width), scratch=False)
    if pixels is None:
        return
    try:
        expected = simplejpeg.decode_jpeg(data, strict=False)
    except ValueError as error:
        if str(error).startswith("Warning"):  # about the header
            return
        raise AssertionError(f"libjpeg refuses what was decoded: {error}") from error
    assert np.array_equal(pixels, expected)


def picture(width: int = 45, height: int = 37) -> Image.Image:
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([x, y, (x * y) % 256], axis=2).astype(np.uint8))


def saved(format: str, image: Image.Image | None = None, **settings: object) -> bytes:
    buffer = io.BytesIO()
    (image or picture()).save(buffer, format, **settings)
    return buffer.getvalue()


@cache
def seeds(kind: str) -> tuple[bytes, ...]:
    grey, palette, alpha = picture().convert("L"), picture().convert("P"), picture().convert("RGBA")
    frames = [picture(45, 37).convert("P").point(lambda value, by=by: (value + by) % 256) for by in (9, 99)]
    return {
        "jpeg": (
            saved("JPEG"),
            saved("JPEG", subsampling=0),
            saved("JPEG", progressive=True),
            saved("JPEG", restart_marker_blocks=1),
            saved("JPEG", grey),
            saved("JPEG", picture().convert("CMYK")),
            saved("JPEG", picture(83, 301)),
        ),
        "png": (
            saved("PNG"),
            saved("PNG", grey),
            saved("PNG", palette),
            saved("PNG", alpha),
            saved("PNG", palette, save_all=True, append_images=frames),
        ),
        "webp": (
            saved("WEBP"),
            saved("WEBP", lossless=True),
            saved("WEBP", alpha),
            saved("WEBP", save_all=True, append_images=[picture().rotate(90), picture().rotate(180)]),
        ),
        "bmp": (saved("BMP"), saved("BMP", palette), saved("BMP", picture().convert("1"))),
        "gif": (saved("GIF", palette), saved("GIF", palette, save_all=True, append_images=frames)),
        "tiff": (
            saved("TIFF"),
            saved("TIFF", compression="tiff_lzw"),
            saved("TIFF", compression="tiff_deflate"),
        ),
        "ppm": (saved("PPM"), saved("PPM", grey), b"P3\n2 2\n255\n" + b"1 2 3 " * 4),
    }[kind]


def mutated(kind: str, rng: Random) -> bytes:
    """One image of this kind after one to four mutations of its structure."""
    given = seeds(kind)
    data = given[rng.integers(len(given))]
    data = _MUTATORS.get(kind, _fields)(data, rng)
    if rng.random() < 0.1:
        data = data[: rng.integers(len(data) + 1)]
    return data


def _pick(rng: Random, values: tuple[int, ...]) -> int:
    return int(values[rng.integers(len(values))])


def _times(rng: Random) -> range:
    return range(1 + int(rng.integers(4)))


# JPEG: a list of segments, each (marker, content or None, bytes that follow it without a marker).

_Segment = list  # [marker, content | None, declared length | None, tail]
_SOI, _SOS, _EOI = 0xD8, 0xDA, 0xD9
_FRAMES = [*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)]


def _segments(data: bytes) -> list[_Segment]:
    found: list[_Segment] = []
    offset = 2
    while offset < len(data):
        marker = data[offset + 1]
        if marker == _EOI:
            found.append([marker, None, None, data[offset + 2 :]])
            break
        length = struct.unpack_from(">H", data, offset + 2)[0]
        content, offset = data[offset + 4 : offset + 2 + length], offset + 2 + length
        end = offset
        while marker == _SOS and not (
            data[end] == 0xFF and data[end + 1] != 0 and not 0xD0 <= data[end + 1] < 0xD8
        ):
            end += 1
        found.append([marker, content, None, data[offset:end]])
        offset = end
    return found


def _joined(segments: list[_Segment]) -> bytes:
    out = bytearray(b"\xff\xd8")
    for marker, content, length, tail in segments:
        out += bytes((0xFF, marker))
        if content is not None:
            out += struct.pack(">H", (len(content) + 2 if length is None else length) & 0xFFFF) + content
        out += tail
    return bytes(out)


def _frame(rng: Random) -> _Segment:
    components = int(rng.integers(1, 5))
    size = struct.pack(">BHHB", 8, _pick(rng, LENGTHS), _pick(rng, LENGTHS), components)
    parts = b"".join(bytes((n + 1, _pick(rng, (0x11, 0x22, 0x21, 0x44, 0x00)), 0)) for n in range(components))
    return [_pick(rng, tuple(_FRAMES)), size + parts, None, b""]


def _mutate_jpeg(data: bytes, rng: Random) -> bytes:
    segments = _segments(data)
    for _ in _times(rng):
        which = int(rng.integers(14))
        at = int(rng.integers(len(segments) + 1))
        there = segments[min(at, len(segments) - 1)]
        frames = [one for one in segments if one[0] in _FRAMES and one[1] and len(one[1]) >= 9]
        frame = frames[rng.integers(len(frames))] if frames else None
        if which == 0:  # a marker without a length, and what a parser would take for one
            alone = _pick(rng, (0x01, *range(0xD0, 0xD8)))
            tail = b"" if rng.random() < 0.5 else struct.pack(">H", _pick(rng, LENGTHS))
            segments.insert(at, [alone, None, None, tail])
        elif which == 1:  # fill bytes and garbage before a marker
            filler = (b"\xff" * int(rng.integers(1, 9)), b"\xff\x00" * 3, bytes(5), b"\0\xff\xff\0")
            there[3] = there[3] + filler[rng.integers(4)]
        elif which == 2:
            segments.insert(at, _frame(rng))
        elif which == 3 and frame is not None:  # height or width
            content = bytearray(frame[1])
            struct.pack_into(">H", content, _pick(rng, (1, 3)), _pick(rng, LENGTHS))
            frame[1] = bytes(content)
        elif which == 4 and frame is not None:  # sampling factors
            content = bytearray(frame[1])
            content[7 + 3 * int(rng.integers((len(content) - 6) // 3))] = int(rng.integers(256))
            frame[1] = bytes(content)
        elif which == 5 and frame is not None:  # the number of components, of bits
            content = bytearray(frame[1])
            content[_pick(rng, (0, 5))] = _pick(rng, (0, 1, 2, 3, 4, 5, 8, 12, 16, 255))
            frame[1] = bytes(content)
        elif which == 6 and frame is not None:
            frame[0] = _pick(rng, tuple(_FRAMES))
        elif which == 7:  # the number of lines after the first scan
            segments.insert(at, [0xDC, struct.pack(">H", _pick(rng, LENGTHS)), None, b""])
        elif which == 8 and there[1] is not None:
            there[2] = _pick(rng, (*LENGTHS, len(there[1]) + 1, len(there[1]) + 3, len(there[1])))
        elif which == 9:
            segments.insert(at, segments[rng.integers(len(segments))].copy())
        elif which == 10 and len(segments) > 1:
            del segments[min(at, len(segments) - 1)]
        elif which == 11:  # reserved markers, a second start, an early end
            segments.insert(
                at, [_pick(rng, (0x02, 0xBF, 0xF0, 0xFD, 0xC8, 0xDE, 0xDF, _SOI, _EOI)), None, None, b""]
            )
        elif which == 12:
            kind = _pick(rng, (0xDD, 0xCC, 0xE1, 0xEE, 0xFE))
            content = (
                struct.pack(">H", _pick(rng, LENGTHS)) if kind == 0xDD else rng.bytes(int(rng.integers(40)))
            )
            segments.insert(at, [kind, content, None, b""])
        elif there[0] == _SOS and there[1]:  # components and spectrum of a scan
            content = bytearray(there[1])
            content[rng.integers(len(content))] = int(rng.integers(256))
            there[1] = bytes(content)
    data = _joined(segments)
    return _two_sizes(data, rng) if rng.random() < 0.25 else data


def _two_sizes(data: bytes, rng: Random) -> bytes:
    """Another header, planted where a parser ends up that takes a length after a marker that has none."""
    alone = bytes((0xFF, _pick(rng, (0x01, *range(0xD0, 0xD8), 0xFF, 0x00))))
    jump = 2 + 2 + struct.unpack_from(">H", data, 2)[0]
    planted = _joined([_frame(rng), [_SOS, bytes(10), None, bytes(20)]])[2:] + b"\xff\xd9"
    return (b"\xff\xd8" + alone + data[2:]).ljust(jump, b"\0")[: max(jump, len(data) + 2)] + planted


# PNG and WebP: chunks.


def _png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _mutate_png(data: bytes, rng: Random) -> bytes:
    chunks, offset = [], 8
    while offset + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, offset)
        chunks.append([kind, data[offset + 8 : offset + 8 + length]])
        offset += 12 + length
    for _ in _times(rng):
        which = int(rng.integers(7))
        at = int(rng.integers(len(chunks)))
        if which < 2:
            header = bytearray(chunks[0][1].ljust(13, b"\0"))
            if rng.random() < 0.5:
                struct.pack_into(">I", header, _pick(rng, (0, 4)), _pick(rng, LONG))
            else:
                header[8 + rng.integers(5)] = _pick(rng, (0, 1, 2, 3, 4, 6, 8, 16, 255))
            chunks[0][1] = bytes(header)
        elif which == 2:
            chunks.insert(at, chunks[rng.integers(len(chunks))].copy())
        elif which == 3 and len(chunks) > 1:
            del chunks[at]
        elif which == 4:
            kind = (b"tRNS", b"acTL", b"fcTL", b"fdAT", b"PLTE", b"zTXt", b"iCCP", b"IHDR", b"IEND", b"XXXX")
            chunks.insert(at, [kind[rng.integers(len(kind))], rng.bytes(int(rng.integers(30)))])
        elif which == 5:
            content = bytearray(chunks[at][1])
            if len(content) >= 4:
                struct.pack_into(">I", content, int(rng.integers(len(content) - 3)), _pick(rng, LONG))
            chunks[at][1] = bytes(content)
        else:
            chunks[at][1] = zlib.compress(bytes(int(rng.integers(1, 200_000))))
    parts = [data[:8], *(_png_chunk(kind, content) for kind, content in chunks)]
    if rng.random() < 0.2:
        part = bytearray(parts[-1])
        struct.pack_into(">I", part, 0, _pick(rng, LONG))
        parts[-1] = bytes(part)
    return b"".join(parts)


def _mutate_webp(data: bytes, rng: Random) -> bytes:
    chunks, offset = [], 12
    while offset + 8 <= len(data):
        kind, length = struct.unpack_from("<4sI", data, offset)
        chunks.append([kind, data[offset + 8 : offset + 8 + length], length])
        offset += 8 + length + length % 2
    for _ in _times(rng):
        which = int(rng.integers(6))
        at = int(rng.integers(len(chunks)))
        content = bytearray(chunks[at][1])
        if (
            which == 0 and len(content) >= 10
        ):  # what a canvas, a frame and a picture have in their first bytes
            content[rng.integers(10)] = int(rng.integers(256))
        elif which == 1 and len(content) >= 10:
            struct.pack_into("<I", content, int(rng.integers(7)), _pick(rng, LONG))
        elif which == 2:
            chunks[at][2] = _pick(rng, LONG)
        elif which == 3:
            chunks.insert(at, chunks[rng.integers(len(chunks))].copy())
        elif which == 4 and len(chunks) > 1:
            del chunks[at]
            continue
        elif which == 5:
            size = struct.pack("<I", _pick(rng, LONG))[:3] + struct.pack("<I", _pick(rng, LONG))[:3]
            chunks.insert(0, [b"VP8X", bytes((int(rng.integers(256)), 0, 0, 0)) + size, 10])
            continue
        chunks[at][1] = bytes(content)
    body = b"".join(
        struct.pack("<4sI", kind, length) + content + bytes(len(content) % 2)
        for kind, content, length in chunks
    )
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body


# Others: the integers of their headers.


def _fields(data: bytes, rng: Random) -> bytes:
    out = bytearray(data)
    for _ in _times(rng):
        # TIFF's directory is at the end.
        at = (
            int(rng.integers(min(60, len(out) - 4)))
            if rng.random() < 0.6
            else int(rng.integers(len(out) - 4))
        )
        order = "<>"[rng.integers(2)]
        if rng.random() < 0.5:
            struct.pack_into(order + "H", out, at, _pick(rng, LENGTHS))
        else:
            struct.pack_into(order + "I", out, at, _pick(rng, LONG))
    return bytes(out)


_MUTATORS: dict[str, Callable[[bytes, Random], bytes]] = {
    "jpeg": _mutate_jpeg,
    "png": _mutate_png,
    "webp": _mutate_webp,
}
KINDS = ("jpeg", "png", "webp", "bmp", "gif", "tiff", "ppm")


def judge_many(kind: str, seed: int, count: int) -> tuple[int, list[str]]:
    """How many of `count` mutations were decoded, and what went wrong with others."""
    decoded, wrong = 0, []
    for number in range(count):
        data = mutated(kind, np.random.default_rng((seed, number)))
        try:
            decoded += judge(data) == "decoded"
        except Exception as error:
            wrong.append(f"{kind} {(seed, number)}: {type(error).__name__}: {error}: {data.hex()[:4000]}")
    return decoded, wrong


def main(kind: str, seed: str, count: str) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    decoded, wrong = judge_many(kind, int(seed), int(count))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{kind}: {count} mutations, {decoded} decoded, {len(wrong)} wrong, at most {peak} MiB")
    print("\n".join(wrong[:20]))
    return 1 if wrong or peak > 1500 else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
