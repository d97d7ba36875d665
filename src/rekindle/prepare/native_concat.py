"""A `torch.utils.data.ConcatDataset` of native datasets with one transform, as a native dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import ArgumentError, DecodeError
from rekindle.fetch.source import Stored
from rekindle.prepare.steps.same_steps import are_same_steps
from rekindle.prepare.steps.step import Uniforms, Value

if TYPE_CHECKING:
    from rekindle.prepare.device.device_steps import DeviceSteps
    from rekindle.prepare.fused_kernel import Values
    from rekindle.prepare.native import NativeDataset
    from rekindle.prepare.native_images import Transform
    from rekindle.prepare.pipeline import Pipeline


class NativeConcat:
    """Native datasets one after the other; the methods are those of `NativeDataset`.

    All of them have the same steps, so that one pipeline stands for all.
    """

    def __init__(self, parts: Sequence[NativeDataset]) -> None:
        self.parts = list(parts)
        self._ends = np.cumsum([len(part) for part in self.parts])
        first = self.parts[0]
        self.uniforms = first.uniforms
        self.releases_gil, self.draws_nothing = first.releases_gil, first.draws_nothing

    def become(self, other: NativeConcat) -> None:
        """Have the same samples as another from now on."""
        vars(self).update(vars(other))

    @property
    def transform(self) -> Transform:
        return self.parts[0].transform

    @property
    def device_steps(self) -> DeviceSteps | None:
        return self.parts[0].device_steps

    @property
    def fingerprint(self) -> str | None:
        """Changes with the samples; None if that of a part is not known."""
        found = [getattr(part, "fingerprint", None) for part in self.parts]
        return None if None in found else hashlib.blake2b(repr(found).encode(), digest_size=16).hexdigest()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> tuple[Value, int]:
        part, within = self._find(index)
        return part[within]

    def example(self) -> tuple[Value, int] | None:
        """An image and a label with the shape and dtype of all; None if these vary."""
        found = [part.example() for part in self.parts]
        if any(one is None or _form(one) != _form(found[0]) for one in found):
            return None
        return found[0]

    def sample(self, index: int, uniforms: Uniforms) -> tuple[Value, int]:
        part, within = self._find(index)
        return part.sample(within, uniforms)

    def samples_of(self, indices: Sequence[int], uniforms: Uniforms) -> list[tuple[Value, int]]:
        numbers, within = self._find_many(indices)
        if len(numbers) and (numbers == numbers[0]).all():
            return self.parts[int(numbers[0])].samples_of(within.tolist(), uniforms)
        found = zip(numbers.tolist(), within.tolist(), strict=True)
        return [self.parts[n].sample(i, uniforms[row]) for row, (n, i) in enumerate(found)]

    def write(self, index: int, uniforms: Uniforms, out: Values) -> int:
        part, within = self._find(index)
        return part.write(within, uniforms, out)

    def write_many(self, indices: Sequence[int], uniforms: Uniforms, out: Values) -> list[int]:
        numbers, within = self._find_many(indices)
        if len(numbers) and (numbers == numbers[0]).all():
            only = self.parts[int(numbers[0])]
            return only.write_many(within.tolist(), uniforms, out)
        found = zip(numbers.tolist(), within.tolist(), strict=True)
        return [self.parts[n].write(i, uniforms[row], out[row]) for row, (n, i) in enumerate(found)]

    def split(self, split_point: int) -> tuple[Pipeline, Pipeline]:
        return self.parts[0].split(split_point)

    def raw(self, index: int) -> Stored:
        part, within = self._find(index)
        return part.raw(within)

    def label(self, index: int) -> int:
        part, within = self._find(index)
        return part.label(within)

    def located(self, error: DecodeError, index: int) -> DecodeError:
        part, within = self._find(index)
        return part.located(error, within)

    def encoded_lengths(self) -> NDArray[np.int64] | None:
        found = [part.encoded_lengths() for part in self.parts]
        known = [lengths for lengths in found if lengths is not None]
        return np.concatenate(known) if len(known) == len(found) else None

    def will_need(self, indices: Sequence[int]) -> None:
        numbers, within = self._find_many(indices)
        for number in np.unique(numbers).tolist():
            self.parts[number].will_need(within[numbers == number].tolist())

    def before_device(self) -> NativeConcat:
        return NativeConcat([part.before_device() for part in self.parts])

    def _find(self, index: int) -> tuple[NativeDataset, int]:
        """The dataset that a sample is in, and its index there."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range: the dataset has {len(self)} samples")
        index %= len(self)
        number = int(np.searchsorted(self._ends, index, side="right"))
        return self.parts[number], index - (int(self._ends[number - 1]) if number else 0)

    def _find_many(self, indices: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The number of the dataset that each sample is in, and its index there."""
        wanted = np.asarray(indices, dtype=np.int64)
        if wanted.size and not (wanted.min() >= 0 and wanted.max() < len(self)):
            raise IndexError(f"indices {indices} are out of range: the dataset has {len(self)} samples")
        numbers = np.searchsorted(self._ends, wanted, side="right").astype(np.int64)
        starts = np.concatenate([[0], self._ends[:-1]])
        return numbers, wanted - starts[numbers]


def check_one_transform(parts: Sequence[NativeDataset]) -> None:
    """ArgumentError unless all datasets have the same steps, with the same options."""
    described, steps = [_described(part) for part in parts], [part.split(0)[1].steps for part in parts]
    for number, other in enumerate(described[1:], start=1):
        if other != described[0] or not are_same_steps(steps[0], steps[number]):
            raise ArgumentError(
                f"parts 0 and {number} of the ConcatDataset have different transforms. Give all of them one "
                "and the same, or a loader each."
            )


def _described(dataset: NativeDataset) -> str:
    """The steps of a dataset in words, and what its samples are."""
    first, rest = dataset.split(0)
    form, on_cpu = _form(dataset.example()), dataset.device_steps is None
    return f"{first.limits} {rest} {dataset.uniforms} {form} {on_cpu}"


def _form(example: tuple[Value, int] | None) -> object:
    """Shape, dtype and order in memory of the image of an example."""
    if example is None:
        return None
    image = example[0]
    strides = image.stride() if hasattr(image, "stride") else image.strides
    return type(image), tuple(image.shape), image.dtype, strides
