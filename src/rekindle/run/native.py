"""Native data sets as workers see them: subsets of them, and those that leave steps to the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Subset

_FORWARDED = ("uniforms", "releases_gil", "draws_nothing")


def is_native(dataset: Any) -> bool:
    """Whether the loader draws a data set's random numbers for it (see `rekindle.images`)."""
    return getattr(dataset, "uniforms", None) is not None and hasattr(dataset, "write")


def for_workers(dataset: Any, *, without_device_steps: bool = False) -> Any:
    """What workers load from: the data set itself, but for native ones, also as `torch.utils.data.Subset`.

    A subset stays native, and keys are made of the indices that the loader asks it for. With
    `without_device_steps` samples come as they are before the steps that are left to the device.
    """
    if type(dataset) is Subset:
        inner = for_workers(dataset.dataset, without_device_steps=without_device_steps)
        return NativeSubset(inner, dataset.indices) if is_native(inner) else dataset
    if without_device_steps and getattr(dataset, "device_steps", None) is not None:
        return dataset.before_device()
    return dataset


def device_steps(dataset: Any) -> Any:
    """The steps that a data set, or the one that it is a subset of, leaves to the device; None for none."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return getattr(dataset, "device_steps", None)


class NativeSubset:
    """Some samples of a native data set, by their indices there."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self._dataset = dataset
        self._indices: NDArray[np.int64] = np.asarray(indices, dtype=np.int64)
        for name in _FORWARDED:
            setattr(self, name, getattr(dataset, name, False))
        if hasattr(dataset, "write_many"):
            self.write_many = self._write_many

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[int(self._indices[index])]

    def will_need(self, indices: Sequence[int]) -> None:
        """Let the data set start to fetch samples that will be asked for soon, if it can."""
        will_need = getattr(self._dataset, "will_need", None)
        if will_need is not None:
            will_need(self._indices[np.asarray(indices, dtype=np.int64)].tolist())

    def example(self) -> Any:
        """A sample that looks as all do, or None."""
        return self._dataset.example()

    def sample(self, index: int, numbers: NDArray[np.float64]) -> Any:
        """(image, label), given `uniforms` numbers."""
        return self._dataset.sample(int(self._indices[index]), numbers)

    def write(self, index: int, numbers: NDArray[np.float64], out: NDArray[Any]) -> Any:
        """Write the image to `out`; returns the label."""
        return self._dataset.write(int(self._indices[index]), numbers, out)

    # What reuse needs: the pipeline in two, and what it starts from.

    @property
    def transform(self) -> Any:
        return self._dataset.transform

    def cut(self, place: int) -> Any:
        """The pipeline in two."""
        return self._dataset.cut(place)

    def raw(self, index: int) -> Any:
        """What the pipeline starts from."""
        return self._dataset.raw(int(self._indices[index]))

    def label(self, index: int) -> int:
        """The class number of a sample."""
        label: int = self._dataset.label(int(self._indices[index]))
        return label

    def located(self, error: Exception, index: int) -> Exception:
        """The error with the name of the file."""
        located: Exception = self._dataset.located(error, int(self._indices[index]))
        return located

    def encoded_lengths(self) -> Any:
        """The length of each file in bytes, where it is known."""
        lengths = getattr(self._dataset, "encoded_lengths", lambda: None)()
        return None if lengths is None else lengths[self._indices]

    def _write_many(self, indices: Sequence[int], numbers: NDArray[np.float64], out: NDArray[Any]) -> Any:
        """Write the images to the rows of `out`; returns the labels."""
        chosen = self._indices[np.asarray(indices, dtype=np.int64)]
        return self._dataset.write_many(chosen.tolist(), numbers, out)
