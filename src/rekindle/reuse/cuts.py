"""A data set in two parts: what is kept, and what is done anew each time.

A native data set is cut between any two of its layers, or before the first (the decoded image is kept), or
before decoding (the bytes are). A data set whose `transform` is a Compose, as torchvision's are, is cut the
same way, unmodified. For any other, what it gives is kept, and `final_transform` is the rest.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, Subset

from rekindle.errors import ArgumentError, DecodeError
from rekindle.reuse.layers import Layer, is_compose, layers_of

BEFORE_DECODING = -1


class NativeCut:
    """A native data set, cut before layer `place`.

    Attributes:
        uniforms: How many uniform numbers a sample takes.
        early: How many of them are for the part that is kept.

    """

    def __init__(self, dataset: Any, place: int) -> None:
        self._dataset, self.place = dataset, place
        self.uniforms: int = dataset.uniforms
        self._encoded = place == BEFORE_DECODING
        self._first, self._rest = dataset.cut(max(place, 0))
        self.early: int = self._first.uniforms

    @property
    def read_from(self) -> Any:
        """The data set that samples are read from."""
        return self._dataset

    def partial(self, index: int, numbers: NDArray[np.float64]) -> Any:
        """What is kept of a sample, in memory of its own."""
        raw = self._dataset.raw(index)
        if self._encoded:
            return raw.copy() if isinstance(raw, np.ndarray) else bytes(raw)
        try:
            return self._first.make(raw, numbers)
        except DecodeError as error:
            raise self._dataset.located(error, index) from error

    def finish(self, index: int, kept: Any, numbers: NDArray[np.float64], out: NDArray[Any] | None) -> Any:
        """The image of a sample, of which this was kept; written to `out`, if that is given."""
        if not self._encoded:
            if out is None:
                return self._rest.make_image(kept, numbers)
            return self._rest.run_image(kept, numbers, out)
        try:
            if out is None:
                return self._rest.make(kept, numbers)
            return self._rest.run(kept, numbers, out)
        except DecodeError as error:
            raise self._dataset.located(error, index) from error

    def label(self, index: int) -> int:
        """The label of a sample."""
        label: int = self._dataset.label(index)
        return label


class ForeignCut:
    """Any other data set: `partial` is one too, and `finish` a function of what it gives."""

    def __init__(self, partial: Any, finish: Callable[[Any], Any] | None) -> None:
        self._partial, self._finish = partial, finish

    @property
    def read_from(self) -> Any:
        """The data set that samples are read from: the one given, or a copy that has only the first steps."""
        return self._partial.dataset if isinstance(self._partial, Finished) else self._partial

    def partial(self, index: Any) -> Any:
        """What is kept of a sample."""
        return self._partial[index]

    def finish(self, kept: Any) -> Any:
        """The sample of which this was kept."""
        return kept if self._finish is None else self._finish(kept)


class Finished:
    """A data set with a function applied to what it gives."""

    def __init__(self, dataset: Any, function: Callable[[Any], Any]) -> None:
        self.dataset, self._function = dataset, function

    def __getitem__(self, index: Any) -> Any:
        return self._function(self.dataset[index])


Cut = NativeCut | ForeignCut


def cut_foreign(dataset: Any, place: int) -> ForeignCut:
    """A data set with a Compose as its `transform`, cut before layer `place` of that."""
    steps = [layer.step for layer in layers_of(dataset)]
    return ForeignCut(_with_steps(dataset, steps[:place]), _OnFirst(steps[place:]))


def _with_steps(dataset: Any, steps: Sequence[Any]) -> Any:
    """A copy of a data set whose transform has only these steps."""
    if isinstance(dataset, Subset):
        return Subset(_with_steps(dataset.dataset, steps), dataset.indices)
    transform = type(dataset.transform)(list(steps)) if steps else _unchanged
    if hasattr(dataset, "with_transform"):
        return dataset.with_transform(transform)
    partial = copy.copy(dataset)
    partial.transform = transform
    both = getattr(dataset, "transforms", None)  # where torchvision's data sets keep their two transforms
    if both is not None and hasattr(both, "target_transform"):
        partial.transforms = type(both)(transform, both.target_transform)
    return partial


def _unchanged(image: Any) -> Any:
    return image


class _OnFirst:
    """Steps on the first part of a sample, which is the image."""

    def __init__(self, steps: Sequence[Any]) -> None:
        self._steps = list(steps)

    def __call__(self, sample: Any) -> Any:
        if type(sample) not in (tuple, list):
            return self._apply(sample)
        return type(sample)([self._apply(sample[0]), *sample[1:]])

    def _apply(self, image: Any) -> Any:
        for step in self._steps:
            image = step(image)
        return image


def can_be_cut(dataset: Any) -> bool:
    """Whether a data set that is not native has steps: a Compose as its transform. A stream is never cut."""
    if isinstance(dataset, IterableDataset):
        return False
    if isinstance(dataset, Subset):
        return can_be_cut(dataset.dataset)
    return is_compose(getattr(dataset, "transform", None))


def not_cuttable(dataset: Any, wanted: str) -> ArgumentError:
    """What to say of a data set without steps."""
    return ArgumentError(
        f"{wanted}: {type(dataset).__name__} has no steps between which it can be cut. Use rk.open() or a "
        "data set whose `transform` is a Compose; or move what is to be done anew each time out of the data "
        "set, into DataLoader(final_transform=…)."
    )


def described(layers: Sequence[Layer], place: int) -> str:
    """A cut in words."""
    if place == BEFORE_DECODING:
        return "before decoding"
    if place >= len(layers):
        return "after the last step"
    return f"before {layers[place]} (split={place})"
