"""A `torch.utils.data.Subset` of a native dataset, as a native dataset."""

from __future__ import annotations

import hashlib
import reprlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Subset

from rekindle.core.samples import Sample
from rekindle.errors import ArgumentError, DecodeError
from rekindle.fetch.source import Stored
from rekindle.prepare.steps.step import Uniforms, Value

if TYPE_CHECKING:
    from rekindle.prepare.device.device_steps import DeviceSteps
    from rekindle.prepare.fused_kernel import Values
    from rekindle.prepare.native import NativeDataset
    from rekindle.prepare.native_images import Transform
    from rekindle.prepare.pipeline import Pipeline


def integers_of(subset: Subset[Sample]) -> NDArray[np.int64] | None:
    """The indices of a subset; None if they are no list of integers. ArgumentError for a mask."""
    try:
        array = np.asarray(subset.indices)
    except (TypeError, ValueError):  # lists of several lengths, say
        return None
    if array.dtype == bool:
        raise ArgumentError(
            f"Subset: its indices are a mask, {reprlib.repr(subset.indices)}, of which each False would be "
            "sample 0 and each True sample 1. Give the places: mask.nonzero()[0]."
        )
    plain = array.ndim == 1 and (array.dtype.kind in "iu" or not array.size)
    return array.astype(np.int64, copy=False) if plain else None


class NativeSubset:
    """Some samples of a native dataset, by their indices there; the methods are those of `NativeDataset`."""

    def __init__(self, dataset: NativeDataset, indices: Sequence[int] | NDArray[np.int64]) -> None:
        self.dataset = dataset
        self._indices: NDArray[np.int64] = np.asarray(indices, dtype=np.int64)
        self.uniforms = dataset.uniforms
        self.releases_gil, self.draws_nothing = dataset.releases_gil, dataset.draws_nothing

    def become(self, other: NativeSubset) -> None:
        """Have the same samples as another subset from now on."""
        vars(self).update(vars(other))

    @property
    def indices(self) -> NDArray[np.int64]:
        """Which samples these are in the dataset."""
        return self._indices

    @property
    def transform(self) -> Transform:
        return self.dataset.transform

    @property
    def fingerprint(self) -> str | None:
        """Changes with the samples; None if that of the dataset is not known."""
        found = getattr(self.dataset, "fingerprint", None)
        if found is None:
            return None
        return hashlib.blake2b(found.encode() + self._indices.tobytes(), digest_size=16).hexdigest()

    def has_indices_of(self, other: NativeSubset) -> bool:
        """Whether another subset has the same samples, by their indices."""
        return np.array_equal(self._indices, other._indices)

    @property
    def device_steps(self) -> DeviceSteps | None:
        return self.dataset.device_steps

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> tuple[Value, int]:
        return self.dataset[int(self._indices[index])]

    def example(self) -> tuple[Value, int] | None:
        return self.dataset.example()

    def sample(self, index: int, uniforms: Uniforms) -> tuple[Value, int]:
        return self.dataset.sample(int(self._indices[index]), uniforms)

    def samples_of(self, indices: Sequence[int], uniforms: Uniforms) -> list[tuple[Value, int]]:
        return self.dataset.samples_of(self._mapped(indices), uniforms)

    def write(self, index: int, uniforms: Uniforms, out: Values) -> int:
        return self.dataset.write(int(self._indices[index]), uniforms, out)

    def write_many(self, indices: Sequence[int], uniforms: Uniforms, out: Values) -> list[int]:
        return self.dataset.write_many(self._mapped(indices), uniforms, out)

    def split(self, split_point: int) -> tuple[Pipeline, Pipeline]:
        return self.dataset.split(split_point)

    def raw(self, index: int) -> Stored:
        return self.dataset.raw(int(self._indices[index]))

    def label(self, index: int) -> int:
        return self.dataset.label(int(self._indices[index]))

    def located(self, error: DecodeError, index: int) -> DecodeError:
        return self.dataset.located(error, int(self._indices[index]))

    def encoded_lengths(self) -> NDArray[np.int64] | None:
        lengths = self.dataset.encoded_lengths()
        return None if lengths is None else lengths[self._indices]

    def will_need(self, indices: Sequence[int]) -> None:
        self.dataset.will_need(self._mapped(indices))

    def before_device(self) -> NativeSubset:
        return NativeSubset(self.dataset.before_device(), self._indices)

    def _mapped(self, indices: Sequence[int]) -> list[int]:
        mapped: list[int] = self._indices[np.asarray(indices, dtype=np.int64)].tolist()
        return mapped
