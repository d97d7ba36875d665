"""The pixels of a JPEG within a box, at full resolution, by kernels of our own (see `baseline_jpeg`).

They take three fifths of the time of libjpeg-turbo for the boxes of RandomResizedCrop, and four fifths for
whole images, with the same pixels. They take some seconds to compile, which another process does beside the
training: until they are there, and for all images that they do not decode, libjpeg-turbo does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compile_later import compiled_or_later
from rekindle.core.compiled_code import check_on_disk
from rekindle.fetch.source import Encoded
from rekindle.prepare.decode.jpeg import Frame
from rekindle.prepare.steps.step import Image

if TYPE_CHECKING:
    from rekindle.prepare.decode.baseline_jpeg.kernel import Scratch

_KEEP = 64 << 20  # bytes: larger scratch memory is freed after use


class _Kept(threading.local):
    scratch: Scratch | None = None
    fits = 0, 0, 0  # bytes of a file, rows and columns of a box
    pixels = np.empty(0, dtype=np.uint8)


_kept = _Kept()


def compile_box() -> Callable[..., bool]:
    """Compile the kernel, or load it."""
    check_on_disk(f"{__package__}.baseline_jpeg.kernel")
    from rekindle.prepare.decode.baseline_jpeg import kernel

    return kernel.decode_box()


def load_box() -> None:
    """Load the kernel if it is compiled: before there are workers, which would each do it."""
    compiled_or_later(compile_box)


def decode_jpeg_box(
    frame: Frame, data: Encoded, box: tuple[int, int, int, int], *, scratch: bool
) -> Image | None:
    """The pixels of the box (top, left, height, width); None if libjpeg-turbo has to decode the image.

    With `scratch`, they lie in this thread's scratch memory and are valid until the thread decodes the next
    image.
    """
    decode = compiled_or_later(compile_box) if frame.rows_at else None
    if decode is None:
        return None
    _, _, height, width = box
    nbytes = 3 * height * width
    pixels = _scratch_pixels(nbytes) if scratch else np.empty(nbytes, dtype=np.uint8)
    coded = np.frombuffer(data, dtype=np.uint8)
    if decode(coded, frame.height, frame.width, *box, *_scratch_for(len(coded), height, width), pixels):
        return pixels.reshape(height, width, 3)
    return None


def _scratch_pixels(nbytes: int) -> NDArray[np.uint8]:
    if _kept.pixels.size < nbytes:
        pixels = np.empty(nbytes + nbytes // 4, dtype=np.uint8)
        if pixels.nbytes > _KEEP:
            return pixels[:nbytes]
        _kept.pixels = pixels
    return _kept.pixels[:nbytes]


def _scratch_for(nbytes: int, height: int, width: int) -> Scratch:
    found, (most_bytes, most_height, most_width) = _kept.scratch, _kept.fits
    if found is not None and nbytes <= most_bytes and height <= most_height and width <= most_width:
        return found
    from rekindle.prepare.decode.baseline_jpeg.kernel import scratch_memory

    # A quarter more than is needed now, and no less than before: to be made seldom.
    most_bytes = max(nbytes + nbytes // 4, most_bytes)
    most_height, most_width = max(height + height // 4, most_height), max(width + width // 4, most_width)
    made = scratch_memory(most_bytes, most_height, most_width)
    if sum(memory.nbytes for memory in made) <= _KEEP:
        _kept.scratch, _kept.fits = made, (most_bytes, most_height, most_width)
    return made
