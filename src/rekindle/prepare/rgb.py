"""RGB images: what counts as one, and how other images become one.

Every image in the library is an array of bytes (uint8), height × width × 3. The functions differ in what they
accept: `is_rgb` only that, `grey_to_rgb` also grey bytes, `to_rgb` images of any kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import DataError
from rekindle.prepare.steps.step import Image

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image as PillowImage

_BYTE = np.dtype(np.uint8)  # Comparing with the type itself would make this every time.

Pixels: TypeAlias = NDArray[np.generic]  # numbers of any type


def is_rgb(value: object) -> TypeGuard[Image]:
    """Whether the value is an array of bytes, height × width × 3."""
    return isinstance(value, np.ndarray) and value.dtype == _BYTE and value.ndim == 3 and value.shape[2] == 3


def is_pillow(value: object) -> TypeGuard[PillowImage]:
    """Whether the value is a Pillow image."""
    from PIL.Image import Image as PillowImage

    return isinstance(value, PillowImage)


def pillow_to_rgb(image: PillowImage) -> Image:
    """A Pillow image of any mode as RGB bytes."""
    return np.array(image.convert("RGB"))


def grey_to_rgb(pixels: Pixels) -> Image:
    """RGB bytes unchanged, grey bytes (height × width, or × 1) repeated for each channel; else DataError."""
    is_grey = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 1)
    if is_grey and pixels.dtype == np.uint8:
        return np.repeat(pixels.astype(np.uint8, copy=False).reshape(*pixels.shape[:2], 1), 3, axis=2)
    if is_rgb(pixels):
        return np.ascontiguousarray(pixels)
    raise DataError(
        f"an array of {pixels.dtype} {pixels.shape} is no image: expected bytes (uint8), height × width × 3"
    )


def to_rgb(image: PillowImage | torch.Tensor | Pixels) -> Image:
    """An image of any kind as RGB bytes; DataError if it is none.

    Grey images get three channels, an alpha channel is dropped, tensors (and arrays, if only that makes
    sense) have their channels first. Floats from 0 to 1 become 0 to 255; numbers outside of 0 to 255 are
    scaled to that range.

    >>> to_rgb(np.zeros((4, 5), dtype=np.uint8)).shape, int(to_rgb(np.ones((1, 4, 5))).max())
    ((4, 5, 3), 255)
    """
    import torch

    if is_pillow(image):
        return pillow_to_rgb(image)
    is_tensor = isinstance(image, torch.Tensor)
    pixels: Pixels = image.detach().cpu().numpy() if isinstance(image, torch.Tensor) else np.asarray(image)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    channels_first = is_tensor or pixels.shape[-1:] > (4,)
    if pixels.ndim == 3 and channels_first and pixels.shape[0] in (1, 3, 4):
        pixels = np.moveaxis(pixels, 0, -1)
    if (
        pixels.ndim != 3
        or pixels.shape[2] not in (1, 3, 4)
        or not pixels.size
        or pixels.dtype.kind not in "buif"
    ):
        raise DataError(f"a {type(image).__name__} of {pixels.dtype} {pixels.shape} is no image")
    return np.array(np.broadcast_to(_to_bytes(pixels[..., :3]), (*pixels.shape[:2], 3)))


def _to_bytes(pixels: Pixels) -> NDArray[np.uint8]:
    if pixels.dtype == np.uint8:
        return pixels.astype(np.uint8, copy=False)
    values = pixels.astype(np.float64)
    low, high = float(values.min()), float(values.max())
    if not np.isfinite(high - low):
        raise DataError("the image has values that are not finite (NaN or infinity)")
    if pixels.dtype.kind in "bf" and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    elif pixels.dtype.kind in "ui" and low >= 0 and high <= 255:
        low, high = 0.0, 255.0
    return np.rint((values - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)
