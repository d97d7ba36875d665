"""Bytes of an image file become an RGB array: height × width × 3 bytes.

What comes out is what Pillow's `convert("RGB")` gives: exactly, for all formats and at full size. JPEG goes
through libjpeg-turbo itself (see `jpeg`), plain PNG and WebP through OpenCV, both without Python's lock;
whatever is rarer goes through Pillow. A binary PPM is pixels behind a short header: packed files hold some
images so, because there is nothing left to decode.
"""

from __future__ import annotations

import io
import re
import struct
from typing import Literal, NamedTuple

import cv2
import numpy as np

from rekindle.errors import DecodeError
from rekindle.fetch.source import Encoded
from rekindle.prepare.jpeg import START, Frame, OddJpegError, decode_jpeg, read_frame
from rekindle.prepare.step import Image

# Images are decoded in parallel; threads inside one image would only get in each other's way.
cv2.setNumThreads(1)

# More than this and Pillow warns of a decompression bomb: a quarter of a GiB of pixels.
PIXEL_LIMIT = 89_478_485

_PNG = b"\x89PNG\r\n\x1a\n"
_RGB_OR_GREY = (2, 0)  # a PNG's colour types that OpenCV and Pillow agree on
# As short as it can be, which is how packed files have it; Pillow knows the other ways to write it.
_PPM = re.compile(rb"P6\n([1-9][0-9]{0,8}) ([1-9][0-9]{0,8})\n255\n")
_MOST_PPM_HEADER = 32


class Header(NamedTuple):
    """What the first bytes tell: the size, and who can decode the rest."""

    height: int
    width: int
    decoder: Literal["jpeg", "opencv", "pillow", "ppm"]
    frame: Frame | None = None  # of a JPEG that libjpeg-turbo decodes
    start: int = 0  # where the pixels of a PPM begin


def read_header(data: Encoded, pixel_limit: int = PIXEL_LIMIT) -> Header:
    """The size of an image, before anything of it is decoded; DecodeError if it is none or too large."""
    if not data:
        raise DecodeError("the file is empty")
    header = _header(data)
    if header.height * header.width > pixel_limit:
        raise DecodeError(
            f"{header.width} × {header.height} pixels are more than the limit of {pixel_limit:,}: it may be "
            "made to fill the memory. If you trust it, raise pixel_limit"
        )
    return header


def _header(data: Encoded) -> Header:
    if data[:2] == START:
        frame = read_frame(data)
        return _pillow_header(data) if frame is None else Header(frame.height, frame.width, "jpeg", frame)
    if data[:8] == _PNG and len(data) >= 33 and data[12:16] == b"IHDR":
        width, height, depth, colours = struct.unpack(">IIBB", data[16:26])
        if depth == 8 and colours in _RGB_OR_GREY and width and height and _is_plain_png(data):
            return Header(height, width, "opencv")
    if data[:2] == b"P6":
        ppm = _PPM.match(data[:_MOST_PPM_HEADER])
        if ppm is not None and len(data) >= ppm.end() + int(ppm[1]) * int(ppm[2]) * 3:
            return Header(int(ppm[2]), int(ppm[1]), "ppm", start=ppm.end())
    if data[:4] == b"RIFF" and data[8:16] == b"WEBPVP8 ":  # Lossy, and neither alpha nor frames.
        header = _pillow_header(data)
        return Header(header.height, header.width, "opencv")
    return _pillow_header(data)


def _is_plain_png(data: Encoded) -> bool:
    """Whether all chunks up to the last are there, and none makes colours anything but what they are."""
    place = 8
    while place + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        if kind == b"IEND":
            return True
        if kind in (b"tRNS", b"acTL"):
            return False
        place += 12 + length
    return False


def _pillow_header(data: Encoded) -> Header:
    from PIL import Image as pillow  # noqa: N813

    try:
        with pillow.open(io.BytesIO(data)) as image:
            return Header(image.height, image.width, "pillow")
    except Exception as error:  # Pillow's plugins raise what they like on broken files.
        raise DecodeError(f"not an image that can be read: {_told(error)}") from error


def decode(data: Encoded, *, pixel_limit: int = PIXEL_LIMIT) -> Image:
    """The image as RGB bytes, height × width × 3, in memory of its own; DecodeError if it is broken."""
    return decode_with(read_header(data, pixel_limit), data)


def decode_with(
    header: Header, data: Encoded, shrink: int = 1, rows: int | None = None, *, scratch: bool = False
) -> Image:
    """The image whose header was read before; a JPEG only as large and as far down as is needed.

    `shrink`, `rows` and `scratch` are for JPEGs, and as in `jpeg.decode_jpeg`.
    """
    try:
        if header.frame is not None:
            try:
                return decode_jpeg(header.frame, data, shrink, rows, scratch=scratch)
            except OddJpegError:  # Pillow has its own eye on the end of the data.
                return _decode_pillow(data)
        if header.decoder == "opencv":
            return _decode_opencv(header, data)
        if header.decoder == "ppm":
            return pixels_of(header, data).copy()
        return _decode_pillow(data)
    except MemoryError as error:
        raise DecodeError(f"no memory for {header.width} × {header.height} pixels") from error


def pixels_of(header: Header, data: Encoded) -> Image:
    """The pixels of a PPM as they lie in `data`: not a copy, and not to be written to."""
    count = header.height * header.width * 3
    pixels: Image = np.frombuffer(data, dtype=np.uint8, count=count, offset=header.start)
    return pixels.reshape(header.height, header.width, 3)


def _decode_opencv(header: Header, data: Encoded) -> Image:
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        image = cv2.imdecode(np.frombuffer(data, dtype=np.uint8), flags)
    except cv2.error as error:
        raise DecodeError(f"a broken image: {_told(error)}") from error
    if image is None or image.shape != (header.height, header.width, 3):
        return _decode_pillow(data)  # It knows better what is wrong, if anything is.
    return image  # type: ignore[return-value]


def _decode_pillow(data: Encoded) -> Image:
    from PIL import Image as pillow  # noqa: N813

    try:
        with pillow.open(io.BytesIO(data)) as image:
            return np.array(image.convert("RGB"))
    except Exception as error:
        raise DecodeError(f"a broken image: {_told(error)}") from error


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")
