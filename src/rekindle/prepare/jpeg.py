"""JPEGs through libjpeg-turbo (simplejpeg), and no more of them than is needed.

A JPEG is decoded at 1/2, 1/4 or 1/8 of its size where less is needed than it holds. And it is decoded only
down to the last row that is needed: its header says how many rows there are, and a copy whose header says
fewer makes the decoder stop there. The rows that come out are the same to the last bit.

libjpeg only warns when data ends early, and fills the rest with grey. Here that is an error.
"""

from __future__ import annotations

import struct
import threading
from typing import NamedTuple

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from rekindle.errors import DecodeError
from rekindle.fetch.source import Encoded
from rekindle.prepare.step import Image

START = b"\xff\xd8"
_END = b"\xff\xd9"
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # of which three mean something else
_KNOWN_FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended and progressive, with Huffman's codes
_STOPPABLE = (0xC0, 0xC1)  # in progressive ones, each of several passes goes over all rows
_RESTARTS = 0xDD  # marks between rows, which make damage and rows left out look alike
_SCAN = 0xDA  # where the pixels start
_SEGMENT = struct.Struct(">BBH").unpack_from  # 0xFF, what it is, how long it is from here
_FRAME = struct.Struct(">BHHB").unpack_from  # bits, height, width, colours
_LOST = (
    "Premature end",
    "Corrupt JPEG data: bad",
    "Corrupt JPEG data: premature",
    "Corrupt JPEG data: found",
)
_ROWS_LEFT_OUT = "extraneous bytes before marker 0xd9"  # of which libjpeg tells at the end, if nothing else
_ROWS_BELOW = 16  # decoded beyond the last row: smoothing of colours looks at the next row
_WORTH_STOPPING = 32  # rows
_KEEP = 64 << 20  # bytes: scratch memory larger than this is given back after use

_scratch = threading.local()


class OddJpegError(Exception):
    """Something is odd about a JPEG that need not matter: another decoder has the last word."""


class Frame(NamedTuple):
    """What the header of a JPEG tells."""

    height: int
    width: int
    rows_at: int  # where the header says how many rows there are; 0 if all of them have to be decoded


def read_frame(data: Encoded) -> Frame | None:
    """The size of a JPEG in colours or grey; None if it is broken or of another kind."""
    # Data that ends in the mark of the end was not cut off, so rows that are not looked at are there.
    height, width, rows_at, stoppable = 0, 0, 0, data[-2:] == _END
    place, last = 2, len(data) - 10
    while place <= last:
        start, marker, length = _SEGMENT(data, place)
        if start != 0xFF:
            return None
        if marker in _FRAMES:
            bits, height, width, colours = _FRAME(data, place + 4)
            if marker not in _KNOWN_FRAMES or bits != 8 or colours not in (1, 3) or not height or not width:
                return None
            rows_at, stoppable = place + 5, stoppable and marker in _STOPPABLE
        elif marker == _RESTARTS:
            stoppable = False
        elif marker == _SCAN:
            return Frame(height, width, rows_at if stoppable else 0) if height else None
        place += 1 if marker == 0xFF else 2 + length
    return None


def decode_jpeg(
    frame: Frame, data: Encoded, shrink: int = 1, rows: int | None = None, *, scratch: bool = False
) -> Image:
    """The image at 1/`shrink` of its size; at least its first `rows` rows (of the whole size).

    With `scratch`, the result lies in this thread's scratch memory and is good until the thread decodes the
    next one. Memory that is used again saves a third of the time: fresh memory comes page by page.
    """
    rows = frame.height if rows is None else rows + _ROWS_BELOW
    stops = scratch and bool(frame.rows_at) and rows + _WORTH_STOPPING <= frame.height
    if not stops:
        rows = frame.height
    height, width = -(-rows // shrink), -(-frame.width // shrink)
    memory = _scratch_memory("pixels", height * width * 3) if scratch else None
    encoded = _with_rows(frame, data, rows) if stops else data
    try:
        image: Image = simplejpeg.decode_jpeg(
            encoded, min_height=height, min_width=width, min_factor=shrink, buffer=memory
        )
    except (ValueError, KeyError) as error:
        told = str(error)
        # Only the first of several warnings is told: with this one, nothing was wrong before.
        if stops and told.endswith(_ROWS_LEFT_OUT) and memory is not None:
            return memory[: height * width * 3].reshape(height, width, 3)
        if told.startswith(_LOST):
            raise DecodeError(f"a broken JPEG: {error}") from error
        if stops:  # Something else is odd, maybe further down: it is judged as the whole image is.
            return decode_jpeg(frame._replace(rows_at=0), data, shrink, scratch=scratch)
        raise OddJpegError from error
    return image


def _with_rows(frame: Frame, data: Encoded, rows: int) -> NDArray[np.uint8]:
    """A copy of the JPEG whose header says that it has so many rows, in scratch memory."""
    copy = _scratch_memory("encoded", len(data))[: len(data)]
    copy[:] = np.frombuffer(data, dtype=np.uint8)  # by NumPy, without Python's lock
    struct.pack_into(">H", copy, frame.rows_at, rows)  # type: ignore[arg-type]
    return copy


def _scratch_memory(name: str, nbytes: int) -> NDArray[np.uint8]:
    memory: NDArray[np.uint8] | None = getattr(_scratch, name, None)
    if memory is None or memory.nbytes < nbytes:
        memory = np.empty(nbytes + nbytes // 4, dtype=np.uint8)
        if memory.nbytes <= _KEEP:
            setattr(_scratch, name, memory)
    return memory
