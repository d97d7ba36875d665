"""The images of any map-style data set before transforms: height × width × 3 bytes, and a label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, Subset

from rekindle.errors import ArgumentError, DataError, DecodeError
from rekindle.reuse.cuts import can_be_cut, cut_foreign

_NO_LABEL = -1


class Pictures(Dataset[tuple[NDArray[np.uint8], int]]):
    """A data set whose item is (RGB bytes, label), whatever the items of the given one are.

    Of what `rekindle.open` and `ArrayImages` made, and of a data set with a Compose as its `transform`, the
    images are taken before any step. Other data sets are asked for items: an image (Pillow, array, tensor or
    encoded bytes), or a tuple of one and a label.
    """

    def __init__(self, dataset: Any) -> None:
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise ArgumentError(
                f"expected a data set with a length whose samples have indices, but got {dataset!r}"
            )
        self._base, self._indices = _without_subsets(dataset)
        self._native = hasattr(self._base, "raw") and hasattr(self._base, "label")
        self._uncut = cut_foreign(self._base, 0) if not self._native and can_be_cut(self._base) else None

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        place = int(self._indices[index])
        if not self._native:
            item = self._base[place] if self._uncut is None else self._uncut.partial(place)
            image, label = (item[0], item[1]) if type(item) in (tuple, list) else (item, _NO_LABEL)
            return as_rgb(image), _as_label(label)
        try:
            return as_rgb(self._base.raw(place)), self._base.label(place)
        except DecodeError as error:
            raise getattr(self._base, "located", lambda error, place: error)(error, place) from error

    def will_need(self, indices: Sequence[int]) -> None:
        """Let the data set start to fetch samples that will be asked for soon, if it can."""
        will_need = getattr(self._base, "will_need", None)
        if will_need is not None:
            will_need([int(self._indices[index]) for index in indices])

    def path(self, index: int) -> str:
        """Where a sample is, for people to read; "" if nobody knows."""
        place = int(self._indices[index])
        if hasattr(self._base, "source"):
            return str(self._base.source.path(place))
        try:
            return str(self._base.samples[place][0])  # as torchvision's folders have them
        except (AttributeError, TypeError, LookupError):
            return ""

    def class_name(self, label: int) -> str:
        """The name of a class; "" if it has none."""
        names = getattr(self._base, "classes", None)
        return str(names[label]) if isinstance(names, list) and 0 <= label < len(names) else ""


def _without_subsets(dataset: Any) -> tuple[Any, Sequence[int]]:
    """A data set and the indices that are meant, where subsets of it are given."""
    if type(dataset) is not Subset:
        return dataset, range(len(dataset))
    base, indices = _without_subsets(dataset.dataset)
    return base, [indices[index] for index in dataset.indices]


def _as_label(label: Any) -> int:
    number = label.item() if hasattr(label, "item") and np.size(label) == 1 else label
    if not isinstance(number, int | float) or number != int(number):
        raise DataError(
            f"the label is {label!r}, and must be a whole number: only samples of one label are compared"
        )
    return int(number)


def as_rgb(image: Any) -> NDArray[np.uint8]:
    """An image of any kind as height × width × 3 bytes; DataError if it is none.

    Floats from 0 to 1 become 0 to 255; other numbers that are no bytes are stretched to that.

    >>> as_rgb(np.zeros((4, 5), dtype=np.uint8)).shape, int(as_rgb(torch.ones(1, 4, 5)).max())
    ((4, 5, 3), 255)
    """
    if isinstance(image, bytes | memoryview):
        from rekindle.prepare.decode import decode

        return decode(image)
    if hasattr(image, "convert"):
        return np.array(image.convert("RGB"))
    pixels = image.detach().cpu().numpy() if isinstance(image, torch.Tensor) else np.asarray(image)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    channels_first = isinstance(image, torch.Tensor) or pixels.shape[-1:] > (4,)
    if pixels.ndim == 3 and channels_first and pixels.shape[0] in (1, 3, 4):
        pixels = np.moveaxis(pixels, 0, -1)
    if (
        pixels.ndim != 3
        or pixels.shape[2] not in (1, 3, 4)
        or not pixels.size
        or pixels.dtype.kind not in "buif"
    ):
        raise DataError(f"{type(image).__name__} of {pixels.dtype} {pixels.shape} is no image")
    return np.array(np.broadcast_to(_as_bytes(pixels[..., :3]), (*pixels.shape[:2], 3)))


def _as_bytes(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    if pixels.dtype == np.uint8:
        return pixels
    numbers = pixels.astype(np.float64)
    least, most = numbers.min(), numbers.max()
    if not np.isfinite(most - least):
        raise DataError("some of the image's numbers are not finite")
    if pixels.dtype.kind in "bf" and least >= 0 and most <= 1:
        least, most = 0.0, 1.0
    elif pixels.dtype.kind in "ui" and least >= 0 and most <= 255:
        least, most = 0.0, 255.0
    stretched: NDArray[np.uint8] = np.rint((numbers - least) * (255 / max(most - least, 1e-12))).astype(
        np.uint8
    )
    return stretched
