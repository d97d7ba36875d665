"""The one place where Pillow opens what a file holds: of a fixed list of formats, and of a limited size.

Pillow knows formats that are programs (PostScript is handed to Ghostscript), rare ones that nobody tests, and
goes by the content and not by the name of a file. Only those of datasets are opened.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from rekindle.core.interrupts import is_interrupt
from rekindle.core.limits import Limits
from rekindle.errors import DecodeError
from rekindle.fetch.source import Encoded
from rekindle.prepare.rgb import pillow_to_rgb
from rekindle.prepare.steps.step import Image

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
_BUFFER = re.compile(r" ?<_io\.BytesIO object at 0x[0-9a-fA-F]+>")
_TILE_WIDTH, _TILE_HEIGHT = 322, 323  # TIFF's tags


def size_by_pillow(data: Encoded, limits: Limits) -> tuple[int, int]:
    """Height and width of an image; DecodeError if it is none of these formats, or made to exhaust memory."""
    try:
        with _opened(data) as image:
            tags = getattr(image, "tag_v2", {})
            tile = tags.get(_TILE_HEIGHT, 1), tags.get(_TILE_WIDTH, 1)
            size = image.height, image.width
    except Exception as error:  # Pillow's plugins raise all kinds of exceptions for broken files.
        if is_interrupt(error):
            raise
        raise DecodeError(f"not a readable image ({', '.join(FORMATS)}): {described(error)}") from error
    limits.check_image(*size)
    limits.check_image(*tile)  # A tile is decoded whole, however small the image is.
    return size


def decode_by_pillow(data: Encoded, size: tuple[int, int]) -> Image:
    """The first frame as RGB bytes; DecodeError if it is corrupt, or does not have this height and width."""
    try:
        with _opened(data) as image:
            found = image.height, image.width
            pixels = pillow_to_rgb(image) if found == size else None
    except Exception as error:
        if is_interrupt(error):
            raise
        raise DecodeError(f"a corrupt image: {described(error)}") from error
    if pixels is None or pixels.shape != (*size, 3):
        raise DecodeError(f"a corrupt image: its header has {size}, the decoder found {found}")
    return pixels


def _opened(data: Encoded) -> ImageFile:
    from PIL import Image as pillow  # noqa: N813

    return pillow.open(io.BytesIO(data), formats=FORMATS)


def described(error: Exception) -> str:
    """The error in one line, without the address of the buffer that Pillow read from."""
    text = _BUFFER.sub("", str(error)).replace("\n", " ")
    return f"{type(error).__name__}: {text}"
