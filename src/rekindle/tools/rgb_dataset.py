"""The images of any map-style dataset before its transforms: height × width × 3 bytes, and a label."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset, Subset

from rekindle.core.samples import Sample
from rekindle.errors import ArgumentError, DataError, DecodeError
from rekindle.prepare.declared import will_need
from rekindle.prepare.image_dataset import ImageDataset
from rekindle.prepare.native import has_raw_images
from rekindle.prepare.rgb import to_rgb
from rekindle.reuse.compose_search import without_steps

MapDataset: TypeAlias = Dataset[Sample] | Sequence[Sample]
_NO_LABEL = -1


class RgbDataset(Dataset[tuple[NDArray[np.uint8], int]]):
    """Items of (RGB pixels, label), whatever the items of the given dataset are.

    The images of `rekindle.open` and `ArrayImages`, and those of a dataset with a Compose as its `transform`,
    are taken before any step. The items of other datasets are an image (Pillow, array, tensor or encoded
    bytes), or a tuple of one and a label.
    """

    def __init__(self, dataset: MapDataset) -> None:
        self._base, self._indices = _without_subsets(dataset)
        self._untransformed = self._base if has_raw_images(self._base) else without_steps(self._base)

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        base, number = self._base, int(self._indices[index])
        if has_raw_images(base):
            try:
                return as_rgb(base.raw(number)), base.label(number)
            except DecodeError as error:
                raise base.located(error, number) from error
        item = self._untransformed[number]
        image, label = (item[0], item[1]) if type(item) in (tuple, list) else (item, _NO_LABEL)
        return as_rgb(image), _as_label(label)

    def will_need(self, indices: Sequence[int]) -> None:
        """Let the dataset prefetch samples that will be read soon, if it can."""
        announce = will_need(self._base)
        if announce is not None:
            announce([int(self._indices[index]) for index in indices])

    def path(self, index: int) -> str:
        """The path of a sample, for people to read; "" if it has none."""
        number = int(self._indices[index])
        if isinstance(self._base, ImageDataset):
            return self._base.source.path(number)
        try:
            return str(getattr(self._base, "samples")[number][0])  # noqa: B009 - torchvision's folders have it
        except (AttributeError, TypeError, LookupError):
            return ""

    def class_name(self, label: int) -> str:
        """The name of a class; "" if it has none."""
        names = getattr(self._base, "classes", None)
        return str(names[label]) if isinstance(names, list) and 0 <= label < len(names) else ""


def _without_subsets(dataset: MapDataset) -> tuple[MapDataset, Sequence[int]]:
    """A dataset and the indices into it, where a subset of it is given."""
    if type(dataset) is not Subset:
        if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
            raise ArgumentError(f"expected a map-style dataset with a length, but got {dataset!r}")
        return dataset, range(len(dataset))
    base, indices = _without_subsets(dataset.dataset)
    return base, [indices[index] for index in dataset.indices]


def _as_label(label: Sample) -> int:
    number = label.item() if hasattr(label, "item") and np.size(label) == 1 else label
    if not isinstance(number, int | float) or number != int(number):
        raise DataError(
            f"the label is {label!r}, but must be an integer: only samples of the same label are compared"
        )
    return int(number)


def as_rgb(image: Sample) -> NDArray[np.uint8]:
    """An image of any kind, or the bytes of an image file, as RGB bytes; DataError if it is none."""
    if isinstance(image, bytes | memoryview):
        from rekindle.prepare.decode.decode import decode

        return decode(image)
    return to_rgb(image)
