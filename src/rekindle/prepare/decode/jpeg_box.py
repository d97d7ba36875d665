"""The pixels of a JPEG within a box, at full resolution, by kernels of our own (see `baseline_jpeg`).

They take less than half of the time of libjpeg-turbo for the boxes of RandomResizedCrop, and three fifths
for whole images, with the same pixels. They take some seconds to compile, which another process does beside
the training: until they are there, and for all images that they do not decode, libjpeg-turbo does.
"""

from __future__ import annotations

import logging
import math
import operator
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from rekindle.core.compile_later import compiled_or_later
from rekindle.core.compiled_code import check_on_disk
from rekindle.fetch.source import Encoded
from rekindle.prepare.decode.jpeg import Frame
from rekindle.prepare.steps.step import Image

if TYPE_CHECKING:
    from rekindle.prepare.decode.baseline_jpeg.kernel import Scratch

DecodeBox: TypeAlias = Callable[..., bool]  # `baseline_jpeg.kernel.decode_box`, compiled

_log = logging.getLogger("rekindle")
_KEEP = 64 << 20  # bytes: larger scratch memory is freed after use


class _Kept(threading.local):
    scratch: Scratch | None = None
    fits: tuple[int, ...] = 0, 0, 0  # bytes of a file, samples and width of a box
    pixels: NDArray[np.uint8] = np.empty(0, dtype=np.uint8)


_kept = _Kept()


def compile_box() -> DecodeBox:
    """Compile the kernel, or load it, and try it: what does not decode as libjpeg-turbo does is not used."""
    check_on_disk(f"{__package__}.baseline_jpeg.kernel")
    from rekindle.prepare.decode.baseline_jpeg import kernel

    decode = kernel.decode_box()
    if all(_decodes_as_libjpeg(decode, colours) for colours in ("444", "422", "420", "Gray")):
        return decode
    _log.warning(
        "The compiled JPEG decoder gives other pixels than libjpeg-turbo on this machine, and is not used: "
        "loading takes longer. Please report it, with the processor and numba's version."
    )
    return _decode_nothing


def _decodes_as_libjpeg(decode: DecodeBox, colours: str) -> bool:
    """Whether a small image has the same pixels: of smooth and of noisy blocks, and cut at its edges."""
    y, x = np.mgrid[:37, :45]
    noise = (x * 57 + y * 31) * (x * 13 + y) % 251
    image = np.stack([5 * x, np.where(x < 20, 255 - 6 * y, noise), noise * (y > 16)], axis=2).astype(np.uint8)
    if colours == "Gray":
        data = simplejpeg.encode_jpeg(
            image[..., 2:].copy(), quality=90, colorspace="GRAY", colorsubsampling="Gray"
        )
    else:
        data = simplejpeg.encode_jpeg(image, quality=90, colorsubsampling=colours)
    expected, pixels = simplejpeg.decode_jpeg(data), np.empty(image.size, dtype=np.uint8)
    scratch = _scratch_for(len(data), *image.shape[:2])
    decoded = decode(np.frombuffer(data, dtype=np.uint8), 37, 45, 0, 0, 37, 45, *scratch, pixels)
    return decoded and np.array_equal(pixels, expected.ravel())


def _decode_nothing(*_: object) -> bool:
    return False


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
    size, coded = (height, width, 3), np.frombuffer(data, dtype=np.uint8)
    try:
        image = _scratch_pixels(size) if scratch else np.empty(size, dtype=np.uint8)
        memory = _scratch_for(len(coded), height, width)
    except MemoryError:  # libjpeg-turbo needs less.
        return None
    decoded = decode(coded, frame.height, frame.width, *box, *memory, image.reshape(-1))
    return image if decoded else None


def _scratch_pixels(size: tuple[int, int, int]) -> Image:
    pixels, nbytes = _kept.pixels, math.prod(size)
    if pixels.size < nbytes:
        pixels = np.empty(nbytes + nbytes // 4, dtype=np.uint8)
        if pixels.nbytes <= _KEEP:
            _kept.pixels = pixels
    return pixels[:nbytes].reshape(size)


def _scratch_for(nbytes: int, height: int, width: int) -> Scratch:
    from rekindle.prepare.decode.baseline_jpeg.kernel import samples_of, scratch_memory

    found, needed = _kept.scratch, (nbytes, samples_of(height, width), width)
    if found is not None and all(map(operator.le, needed, _kept.fits)):
        return found
    # A quarter more than is needed now, and no less than before: to be made seldom.
    fits = tuple(max(number + number // 4, before) for number, before in zip(needed, _kept.fits, strict=True))
    made = scratch_memory(*fits)
    if sum(memory.nbytes for memory in made) <= _KEEP:
        _kept.scratch, _kept.fits = made, fits
    return made
