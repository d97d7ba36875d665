"""The image formats that Rekindle knows by a file's first bytes, its signature."""

from __future__ import annotations

from typing import NamedTuple


class ImageFormat(NamedTuple):
    """What a format is called, and the extension of its files, without the dot."""

    name: str
    extension: str


JPEG = b"\xff\xd8"
PNG = b"\x89PNG"
_FORMATS = {
    JPEG: ImageFormat("JPEG", "jpg"),
    PNG: ImageFormat("PNG", "png"),
    b"P6": ImageFormat("PPM", "ppm"),
    b"P3": ImageFormat("PPM", "ppm"),
    b"P5": ImageFormat("PGM", "pgm"),
    b"P2": ImageFormat("PGM", "pgm"),
    b"BM": ImageFormat("BMP", "bmp"),
    b"GIF8": ImageFormat("GIF", "gif"),
    b"II*\0": ImageFormat("TIFF", "tif"),
    b"MM\0*": ImageFormat("TIFF", "tif"),
    b"RIFF": ImageFormat("WebP", "webp"),
}
SIGNATURES = tuple(_FORMATS)


def image_format(data: bytes) -> ImageFormat | None:
    """The format of an encoded image; None if its signature is not known.

    >>> image_format(b"GIF89a...")
    ImageFormat(name='GIF', extension='gif')
    """
    return next((found for signature, found in _FORMATS.items() if data.startswith(signature)), None)
