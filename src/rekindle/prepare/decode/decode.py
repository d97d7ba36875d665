"""Decoding: from the bytes of an image file to an RGB array, height × width × 3 bytes.

At full size the result is exactly that of Pillow's `convert("RGB")`, for all formats. The usual JPEGs are
decoded by our kernels (see `jpeg_box`), others by libjpeg-turbo (`jpeg`), plain PNG and WebP by OpenCV, all
without the GIL; rarer formats by Pillow. A binary PPM is pixels after a short header: packed files store some
images this way, since nothing is left to decode.
"""

from __future__ import annotations

import re
import struct
from typing import Literal, NamedTuple

import numpy as np

from rekindle.core.limits import DEFAULT_LIMITS, Limits
from rekindle.errors import DecodeError
from rekindle.fetch.image_signatures import JPEG, PNG
from rekindle.fetch.source import Encoded
from rekindle.prepare.decode.jpeg import Frame, OddJpegError, decode_jpeg, read_frame
from rekindle.prepare.decode.jpeg_box import decode_jpeg_box
from rekindle.prepare.decode.pillow_decode import decode_by_pillow, described, size_by_pillow
from rekindle.prepare.decode.webp import is_webp, read_webp
from rekindle.prepare.opencv import cv2
from rekindle.prepare.steps.step import Image

_PNG = PNG + b"\r\n\x1a\n"
_RGB_OR_GREY = (2, 0)  # the colour types of PNG that OpenCV and Pillow decode alike
# The shortest header, which packed files have; Pillow reads all others.
_PPM = re.compile(rb"P6\n([1-9][0-9]{0,8}) ([1-9][0-9]{0,8})\n255\n")
_MAX_PPM_HEADER = 32
_CANVASES = 4  # that the decoder of an animated WebP and Pillow keep at a time


class Header(NamedTuple):
    """What the first bytes of a file contain: the image's size, and which decoder can read the rest."""

    height: int
    width: int
    decoder: Literal["jpeg", "opencv", "pillow", "ppm", "none"]
    frame: Frame | None = None  # of a JPEG that libjpeg-turbo can decode
    start: int = 0  # offset of a PPM's pixels


def read_header(data: Encoded, limits: Limits = DEFAULT_LIMITS) -> Header:
    """The header of an image, read before any pixel is decoded; DecodeError if it is none or too large."""
    if not data:
        raise DecodeError("the file is empty")
    header = _header(data, limits)
    if header.height * header.width > limits.pixels:
        limits.check_image(header.height, header.width)
    return header


def _header(data: Encoded, limits: Limits) -> Header:
    if data[:2] == JPEG:
        frame = read_frame(data)
        if frame.plain:
            return Header(frame.height, frame.width, "jpeg", frame)
        return _by_pillow(data, (frame.height, frame.width), limits)
    if data[:8] == _PNG and len(data) >= 33 and data[12:16] == b"IHDR":
        width, height, depth, colours = struct.unpack(">IIBB", data[16:26])
        if depth == 8 and colours in _RGB_OR_GREY and width and height and _is_plain_png(data):
            return Header(height, width, "opencv")
    if data[:2] == b"P6":
        ppm = _PPM.match(data[:_MAX_PPM_HEADER])
        if ppm is not None and len(data) >= ppm.end() + int(ppm[1]) * int(ppm[2]) * 3:
            return Header(int(ppm[2]), int(ppm[1]), "ppm", start=ppm.end())
    if is_webp(data):
        webp = read_webp(data)
        if webp.lossy:
            return Header(webp.height, webp.width, "opencv")
        if webp.animated:
            limits.check_image(webp.height * _CANVASES, webp.width, "for the canvases of an animation")
        return _by_pillow(data, (webp.height, webp.width), limits)
    return Header(*size_by_pillow(data, limits), "pillow")


def _by_pillow(data: Encoded, size: tuple[int, int], limits: Limits) -> Header:
    """The header of an image that Pillow decodes, if it reads the same size."""
    limits.check_image(*size)
    found = size_by_pillow(data, limits)
    if found != size:
        raise DecodeError(f"a corrupt image: its header has {size}, the decoder found {found}")
    return Header(*size, "pillow")


def _is_plain_png(data: Encoded) -> bool:
    """Whether all chunks up to the last are present, and none adds transparency or animation."""
    offset = 8
    while offset + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, offset)
        if kind == b"IEND":
            return bool(length == 0)  # OpenCV allocates whatever length a chunk declares.
        if kind in (b"tRNS", b"acTL"):
            return False
        offset += 12 + length
    return False


def decode(data: Encoded, limits: Limits = DEFAULT_LIMITS) -> Image:
    """The image as RGB bytes, height × width × 3, in memory of its own; DecodeError if it is corrupt."""
    return decode_with(read_header(data, limits), data)


def decode_with(
    header: Header, data: Encoded, shrink: int = 1, rows: int | None = None, *, scratch: bool = False
) -> Image:
    """The image with this header; of a JPEG only the resolution and the rows that are needed.

    `shrink`, `rows` and `scratch` apply to JPEGs, as in `jpeg.decode_jpeg`.
    """
    try:
        if header.frame is not None:
            if shrink == 1 and rows is None:
                whole = 0, 0, header.height, header.width
                pixels = decode_jpeg_box(header.frame, data, whole, scratch=scratch)
                if pixels is not None:
                    return pixels
            try:
                return decode_jpeg(header.frame, data, shrink, rows, scratch=scratch)
            except OddJpegError:  # Pillow judges for itself whether the data is complete.
                return decode_by_pillow(data, (header.height, header.width))
        if header.decoder == "opencv":
            return _decode_opencv(header, data)
        if header.decoder == "ppm":
            return pixels_of(header, data).copy()
        return decode_by_pillow(data, (header.height, header.width))
    except MemoryError as error:
        raise DecodeError(f"not enough memory for {header.width} × {header.height} pixels") from error


def pixels_of(header: Header, data: Encoded) -> Image:
    """The pixels of a PPM as a read-only view of `data`."""
    count = header.height * header.width * 3
    pixels: Image = np.frombuffer(data, dtype=np.uint8, count=count, offset=header.start)
    return pixels.reshape(header.height, header.width, 3)


def _decode_opencv(header: Header, data: Encoded) -> Image:
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        image = cv2.imdecode(np.frombuffer(data, dtype=np.uint8), flags)
    except cv2.error as error:
        raise DecodeError(f"a corrupt image: {described(error)}") from error
    if image is None or image.shape != (header.height, header.width, 3) or image.dtype != np.uint8:
        return decode_by_pillow(
            data, (header.height, header.width)
        )  # Its error says best what is wrong, if anything is.
    return image  # type: ignore[return-value]
