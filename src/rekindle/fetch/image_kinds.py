"""What kind of image file some bytes are, by how they begin."""

from __future__ import annotations

_KINDS = {
    b"\xff\xd8": "jpg",
    b"\x89PNG": "png",
    b"P6": "ppm",
    b"P3": "ppm",
    b"P5": "pgm",
    b"P2": "pgm",
    b"BM": "bmp",
    b"GIF8": "gif",
    b"II*\0": "tif",
    b"MM\0*": "tif",
    b"RIFF": "webp",
}
BEGINNINGS = tuple(_KINDS)


def ending_of(data: bytes) -> str:
    """What the name of such a file ends in; `bin` if it is no image that is known."""
    return next((ending for begin, ending in _KINDS.items() if data.startswith(begin)), "bin")
