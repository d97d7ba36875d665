"""JPEG decoding by libjpeg-turbo (simplejpeg), and no more of the image than is needed.

A JPEG is decoded at 1/2, 1/4 or 1/8 of its resolution where that is enough. And it is decoded only down to
the last row that is needed: its header holds the number of rows, and a copy with a smaller number makes the
decoder stop there. The decoded rows are bit-identical.

libjpeg only warns when data ends early, and fills the rest with grey. Here that is an error.
"""

from __future__ import annotations

import re
import struct
import threading
from typing import NamedTuple

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from rekindle.errors import DecodeError
from rekindle.fetch.source import Encoded
from rekindle.prepare.steps.step import Image

_END = b"\xff\xd9"
_PLAIN = frozenset((0xC0, 0xC1, 0xC2))  # frames: baseline, extended and progressive, Huffman-coded
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # start-of-frame markers; these three are not
_PROGRESSIVE = frozenset((0xC2, 0xC6, 0xCA, 0xCE))  # several scans, each over all rows
_TABLES = frozenset((0xC4, 0xCC, 0xDB, 0xDC, *range(0xE0, 0xF0), 0xFE))  # segments that do not matter here
_ALONE = frozenset((0x01, *range(0xD0, 0xD8)))  # TEM and RST0 to RST7: no length and no content follow
_RESTARTS = 0xDD  # restart markers between rows: damage and missing rows look alike then
_SCAN = 0xDA  # where the pixels start
_MARKER = re.compile(rb"\xff[^\x00\xff]", re.DOTALL)  # any number of 0xFF may precede one
_SEGMENT = struct.Struct(">BBH").unpack_from  # 0xFF, marker, length from here
_FRAME = struct.Struct(">BHHB").unpack_from  # bits, height, width, components
# The commonest header, to be read at once: as libjpeg writes it, with tables of the usual lengths.
_USUAL = re.compile(
    rb"\xff\xd8(?:\xff\xe0\x00\x10.{14})?(?:\xff\xdb(?:\x00\x43.{65}|\x00\x84.{130}))+"
    rb"\xff([\xc0\xc1]\x00\x11\x08....\x03).{9}"
    rb"(?:\xff\xc4(?:\x00\x1f.{29}|\x00\xb5.{179}|\x01\xa2.{416}))+\xff\xda\x00\x0c\x03.{5}",
    re.DOTALL,
).match
_SIZE = struct.Struct(">HH").unpack_from  # rows, columns
_MOST_SEGMENTS = 20_000  # before the pixels: a gigabyte of metadata, in segments of the greatest length
_MOST_SCANS = 100  # each goes over all pixels, however short it is; encoders make about ten
_LOST = (
    "Premature end",
    "Corrupt JPEG data: bad",
    "Corrupt JPEG data: premature",
    "Corrupt JPEG data: found",
)
_ROWS_LEFT_OUT = "extraneous bytes before marker 0xd9"  # libjpeg's warning at the end, if there was no other
_ROWS_BELOW = 16  # decoded beyond the last row: chroma upsampling reads the next row
_WORTH_STOPPING = 32  # rows
_SAMPLING_AT = (4, 6, 9, 12)  # from the number of rows on: how many components, and how each is sampled
_FULL = 0x11
_LUMA = (_FULL, 0x21, 0x22)
_OF_KERNELS = [[3, luma, _FULL, _FULL] for luma in _LUMA]  # that `baseline_jpeg.header` takes; and grey ones
_ROWS_BESIDE = 2  # as in `baseline_jpeg.units`: half a row of chroma
_KEEP = 64 << 20  # bytes: larger scratch memory is freed after use

_scratch = threading.local()


class OddJpegError(Exception):
    """A warning about a JPEG that need not matter: another decoder decides."""


class Frame(NamedTuple):
    """The frame header of a JPEG."""

    height: int
    width: int
    rows_at: int  # the offset of the number of rows; 0 if all rows have to be decoded
    plain: bool  # whether `decode_jpeg` knows its kind: colour or grey, 8 bits, Huffman-coded


def read_frame(data: Encoded) -> Frame:
    """The frame header of a JPEG, found as libjpeg finds it; DecodeError if libjpeg would find none."""
    # Both have to read the same size: what is decoded is only as large as what was announced.
    usual = _USUAL(data)
    if usual is not None:
        rows_at = usual.start(1) + 4
        height, width = _SIZE(data, rows_at)
        if height and width:
            return Frame(height, width, rows_at if data[-2:] == _END else 0, True)
    return _read_segments(data)


def _read_segments(data: Encoded) -> Frame:
    """The same for any header, segment by segment."""
    height = width = components = rows_at = kind = 0
    plain = restarts = False
    offset, last = 2, len(data) - 10
    for _ in range(_MOST_SEGMENTS):
        if offset > last:
            raise DecodeError("a corrupt JPEG: it ends within its header")
        start, marker, length = _SEGMENT(data, offset)
        if start == 0xFF and marker in _TABLES and length >= 2:  # most segments
            offset += 2 + length
            continue
        if start != 0xFF or marker in (0x00, 0xFF):  # fill bytes, or garbage
            found = _MARKER.search(data, offset)
            offset = len(data) if found is None else found.start()
            continue
        if marker in _ALONE:
            offset += 2
            continue
        if marker in _FRAMES:
            if kind:
                raise DecodeError("a corrupt JPEG: two frame headers")
            bits, height, width, components = _FRAME(data, offset + 4)
            if not height or not width or length != 8 + 3 * components:
                raise DecodeError(
                    f"a corrupt JPEG: a frame header of {width} × {height} pixels, {components} components"
                )
            rows_at, kind = offset + 5, marker
            plain = kind in _PLAIN and bits == 8 and components in (1, 3)
        elif marker == _SCAN:
            if not kind:
                raise DecodeError("a corrupt JPEG: pixels before the frame header")
            if kind in _PROGRESSIVE or data[offset + 4] != components:
                _check_scans(data, offset)
            # Data that ends with the end marker was not truncated: rows that are not decoded are present.
            stoppable = plain and kind not in _PROGRESSIVE and not restarts and data[-2:] == _END
            return Frame(height, width, rows_at if stoppable else 0, plain)
        elif marker == _RESTARTS:
            restarts = True
        elif marker not in _TABLES:
            raise DecodeError(f"a corrupt JPEG: the marker {marker:#04x} in its header")
        if length < 2:
            raise DecodeError(f"a corrupt JPEG: a segment of {length} bytes in its header")
        offset += 2 + length
    raise DecodeError(f"a corrupt JPEG: more than {_MOST_SEGMENTS:,} segments in its header")


def _check_scans(data: Encoded, offset: int) -> None:
    scans = bytes(data[offset:]).count(b"\xff\xda")
    if scans > _MOST_SCANS:
        raise DecodeError(f"a JPEG of {scans:,} scans, made to take long: at most {_MOST_SCANS} are decoded")


def decode_jpeg(
    frame: Frame, data: Encoded, shrink: int = 1, rows: int | None = None, *, scratch: bool = False
) -> Image:
    """The image at 1/`shrink` of its resolution; at least its first `rows` rows (at full resolution).

    With `scratch`, the result lies in this thread's scratch memory and is valid until the thread decodes the
    next image. Reusing memory saves a third of the time: fresh memory is mapped page by page.
    """
    can_stop = rows is not None and scratch and frame.rows_at
    rows = _rows_decoded(frame, data, rows, shrink) if rows is not None and can_stop else frame.height
    stops = rows < frame.height
    height, width = -(-rows // shrink), -(-frame.width // shrink)
    nbytes = height * width * 3
    # Exactly as large as announced: if the decoder needs more, it says so instead of writing.
    memory = _scratch_memory("pixels", nbytes)[:nbytes] if scratch else np.empty(nbytes, dtype=np.uint8)
    encoded = _with_rows(frame, data, rows) if stops else data
    try:
        image: Image = simplejpeg.decode_jpeg(
            encoded, min_height=height, min_width=width, min_factor=shrink, buffer=memory
        )
    except (ValueError, KeyError) as error:
        warning = str(error)
        # Only the first of several warnings is reported: with this one, nothing was wrong before.
        if stops and warning.endswith(_ROWS_LEFT_OUT):
            _check_size(simplejpeg.decode_jpeg_header(encoded)[:2], (rows, frame.width))
            return memory.reshape(height, width, 3)
        if warning.startswith(_LOST):
            raise DecodeError(f"a corrupt JPEG: {error}") from error
        if stops:  # Another warning, maybe about later rows: decode the whole image to judge it.
            return decode_jpeg(frame._replace(rows_at=0), data, shrink, scratch=scratch)
        raise OddJpegError from error
    _check_size(image.shape, (height, width, 3))
    return image


def _rows_decoded(frame: Frame, data: Encoded, rows: int, shrink: int) -> int:
    """How many rows to decode for so many at the top.

    Where `jpeg_box` would decode them, exactly those that it reads: both have to find the same damage, since
    either may be asked, the kernels being compiled or not.
    """
    sampling = [data[frame.rows_at + n] for n in _SAMPLING_AT]
    is_grey = sampling[0] == 1 and sampling[1] in _LUMA
    if shrink == 1 and (is_grey or sampling in _OF_KERNELS):
        luma = _FULL if is_grey else sampling[1]
        tall = 8 * (luma & 15)
        rows += 0 if luma == _FULL else _ROWS_BESIDE
        return min(-(-rows // tall) * tall, frame.height)
    rows += _ROWS_BELOW
    return rows if rows + _WORTH_STOPPING <= frame.height else frame.height


def _check_size(decoded: tuple[int, ...], announced: tuple[int, ...]) -> None:
    if decoded != announced:
        raise DecodeError(f"a corrupt JPEG: its header has {announced}, the decoder found {decoded}")


def _with_rows(frame: Frame, data: Encoded, rows: int) -> NDArray[np.uint8]:
    """A copy of the JPEG, in scratch memory, whose header has this number of rows."""
    copy = _scratch_memory("encoded", len(data))[: len(data)]
    copy[:] = np.frombuffer(data, dtype=np.uint8)  # by NumPy, without the GIL
    struct.pack_into(">H", copy, frame.rows_at, rows)  # type: ignore[arg-type]
    return copy


def _scratch_memory(name: str, nbytes: int) -> NDArray[np.uint8]:
    memory: NDArray[np.uint8] | None = getattr(_scratch, name, None)
    if memory is None or memory.nbytes < nbytes:
        memory = np.empty(nbytes + nbytes // 4, dtype=np.uint8)
        if memory.nbytes <= _KEEP:
            setattr(_scratch, name, memory)
    return memory
