"""The size of a WebP, read before a decoder sees the file: Pillow allocates the canvas when it opens one."""

from __future__ import annotations

from typing import NamedTuple

from rekindle.errors import DecodeError
from rekindle.fetch.source import Encoded

_IS_ANIMATED = 2  # a flag of the extended format
_LONGEST_HEADER = 30


class WebpHeader(NamedTuple):
    """The first chunk of a WebP."""

    height: int
    width: int
    lossy: bool  # and without alpha or animation
    animated: bool


def is_webp(data: Encoded) -> bool:
    """Whether the data begins as a WebP does."""
    return data[:4] == b"RIFF" and data[8:12] == b"WEBP"


def read_webp(data: Encoded) -> WebpHeader:
    """The size of the canvas, and what is on it; DecodeError if the header is corrupt."""
    kind = bytes(data[12:16])
    if len(data) < _LONGEST_HEADER or kind not in (b"VP8 ", b"VP8L", b"VP8X"):
        raise DecodeError(f"a corrupt WebP: its first chunk is {kind!r}")
    if kind == b"VP8X":
        width, height = (1 + int.from_bytes(data[at : at + 3], "little") for at in (24, 27))
        return WebpHeader(height, width, False, bool(data[20] & _IS_ANIMATED))
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return WebpHeader(1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF), False, False)
    width, height = (int.from_bytes(data[at : at + 2], "little") & 0x3FFF for at in (26, 28))
    if not height or not width:
        raise DecodeError(f"a corrupt WebP: {width} × {height} pixels")
    return WebpHeader(height, width, True, False)
