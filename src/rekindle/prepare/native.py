"""Native datasets: the contract between them and the loader, and which datasets fulfil it.

The loader draws the random numbers of a native dataset for many samples at once, and has each sample written
straight into the batch. What a sample looks like and where its randomness comes from is then no longer up to
`__getitem__`, so a dataset is native only if its `__getitem__` is known to do the same: that of
`ImageDataset` and `ArrayImages` with steps of `rekindle.transforms`, or that of a `torch.utils.data.Subset`
of one, or of a `ConcatDataset` of some with the same steps. A subclass that overrides it is not, nor is a
wrapper, whatever attributes it forwards: the loader calls their `__getitem__` for every sample. Datasets of
other libraries become native if they are translated (`translate.py`).

`as_native` decides this once for a dataset, never for each sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Subset

from rekindle.errors import ArgumentError, DecodeError
from rekindle.fetch.source import Stored
from rekindle.prepare.array_images import ArrayImages
from rekindle.prepare.image_dataset import ImageDataset
from rekindle.prepare.native_concat import NativeConcat, check_one_transform
from rekindle.prepare.native_images import NativeImages, Transform
from rekindle.prepare.native_subset import NativeSubset, integers_of
from rekindle.prepare.steps.step import Uniforms, Value
from rekindle.prepare.translated import TranslatedDataset

if TYPE_CHECKING:
    from rekindle.prepare.device.device_steps import DeviceSteps
    from rekindle.prepare.fused_kernel import Values
    from rekindle.prepare.pipeline import Pipeline

DatasetT = TypeVar("DatasetT")


class NativeDataset(Protocol):
    """A map-style dataset of (image, label) whose steps the loader runs itself. See the module's docstring.

    Attributes:
        transform: The steps, in a list or a Compose.
        uniforms: How many uniform random numbers one sample needs.
        releases_gil: Whether nearly all of the work runs without the GIL.
        draws_nothing: Whether no step can draw from the global random number generators.
        device_steps: The steps that run on the device, a whole batch at a time; None if there are none.

    """

    @property
    def transform(self) -> Transform: ...

    @property
    def uniforms(self) -> int: ...

    @property
    def releases_gil(self) -> bool: ...

    @property
    def draws_nothing(self) -> bool: ...

    @property
    def device_steps(self) -> DeviceSteps | None: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[Value, int]: ...

    # Whole samples.

    def example(self) -> tuple[Value, int] | None:
        """An image (of no meaning) and a label with the shape and dtype of all; None if these vary."""

    def sample(self, index: int, uniforms: Uniforms) -> tuple[Value, int]:
        """(image, label), given `uniforms` random numbers."""

    def samples_of(self, indices: Sequence[int], uniforms: Uniforms) -> list[tuple[Value, int]]:
        """(image, label) of each, given a row of random numbers for each."""

    def write(self, index: int, uniforms: Uniforms, out: Values) -> int:
        """Write the image to `out`; returns the label."""

    def write_many(self, indices: Sequence[int], uniforms: Uniforms, out: Values) -> list[int]:
        """Write an image to each row of `out`, given a row of random numbers for each; returns the labels."""

    # Parts of samples, for reuse.

    def split(self, split_point: int) -> tuple[Pipeline, Pipeline]:
        """The pipeline in two: its first `split_point` layers, from `raw` to an image, and the rest."""

    def raw(self, index: int) -> Stored:
        """The input of the pipeline: the bytes of a file, or pixels."""

    def label(self, index: int) -> int:
        """The class index of a sample."""

    def located(self, error: DecodeError, index: int) -> DecodeError:
        """The error with the name of the file that it is about."""

    def encoded_lengths(self) -> NDArray[np.int64] | None:
        """The length of each file in bytes, where it is known: a measure of the time that decoding takes."""

    # What surrounds them.

    def will_need(self, indices: Sequence[int]) -> None:
        """Start to fetch samples that will be requested soon, if the source can."""

    def before_device(self) -> NativeDataset:
        """The dataset without the steps that run on the device: samples are bytes, channels first."""


OURS = (NativeImages, ImageDataset, ArrayImages)
# Methods that give samples or parts of them. A subclass that overrides one of them gets its `__getitem__`
# called.
_GIVES_SAMPLES = ("__getitem__", "sample", "samples_of", "write", "write_many", "split", "raw", "label")
_GIVES_WHOLE_SAMPLES = ("__getitem__", "sample")


def as_native(dataset: object) -> NativeDataset | None:
    """The dataset as a native one, a `Subset` as a `NativeSubset`; None if it is not native."""
    if isinstance(dataset, NativeSubset):
        return dataset if as_native(dataset.dataset) is not None else None
    if isinstance(dataset, NativeConcat):
        return dataset if all(as_native(part) is not None for part in dataset.parts) else None
    if isinstance(dataset, TranslatedDataset):
        return dataset
    if isinstance(dataset, Subset):
        inner = as_native(dataset.dataset) if is_torchs(dataset) else None
        indices = None if inner is None else integers_of(dataset)
        return None if inner is None or indices is None else NativeSubset(inner, indices)
    if isinstance(dataset, ConcatDataset):
        return _native_concat(dataset) if is_torchs(dataset) else None
    if isinstance(dataset, NativeImages) and is_unmodified(dataset) and dataset.has_steps:
        return dataset
    return None


def is_unmodified(dataset: NativeImages) -> bool:
    """Whether no subclass of our datasets overrides how this one makes its samples."""
    return _has_only(dataset, _GIVES_SAMPLES, _OWN_METHODS) and getattr(dataset, "__getitems__", None) is None


def changes_whole_samples(dataset: NativeImages) -> bool:
    """Whether a subclass of our datasets may do something to a sample after its last step."""
    return not _has_only(dataset, _GIVES_WHOLE_SAMPLES, _OWN_METHODS)


def is_torchs(dataset: Subset[object] | ConcatDataset[object]) -> bool:
    """Whether a subset, or datasets one after the other, give samples the way torch's own class does."""
    return _has_only(dataset, _OF_A_SUBSET, _TORCHS_METHODS)


def _native_concat(dataset: ConcatDataset[object]) -> NativeConcat | None:
    """Datasets one after the other, if all are native and have the same steps."""
    found = [as_native(part) for part in dataset.datasets]
    parts = [part for part in found if part is not None]
    if not parts or len(parts) < len(found):
        return None
    if dataset.cumulative_sizes != [*accumulate(map(len, parts))]:  # A part has another length by now.
        return None
    try:
        check_one_transform(parts)
    except ArgumentError:
        return None
    return NativeConcat(parts)


def _has_only(dataset: object, names: Sequence[str], methods: frozenset[object]) -> bool:
    """Whether what a dataset has under these names is among these methods; it may have been put in later."""
    if not vars(dataset).keys().isdisjoint(names):
        return False
    mro = type(dataset).__mro__
    return all(
        next((vars(kind)[name] for kind in mro if name in vars(kind)), None) in methods for name in names
    )


_OF_A_SUBSET = ("__getitem__", "__getitems__", "__len__")
# As they are now, before a script can put others in their place.
_OWN_METHODS = frozenset(vars(kind)[name] for kind in OURS for name in _GIVES_SAMPLES if name in vars(kind))
_TORCHS_METHODS = frozenset(
    vars(kind).get(name) for kind in (Subset, ConcatDataset) for name in _OF_A_SUBSET
)  # A ConcatDataset has no `__getitems__`.


def follow_changes(given: object, native: object) -> None:
    """Have what `for_workers` made of a dataset follow a changed transform, or a subset's changed indices.

    Likewise what was translated: ArgumentError if it was changed into what cannot be.
    """
    if isinstance(given, TranslatedDataset):
        given.follow()
        return
    follow_transforms(given)
    if isinstance(native, NativeSubset) and isinstance(given, Subset):
        again = for_workers(given)
        if isinstance(again, NativeSubset):
            native.become(again)
    if isinstance(native, NativeConcat) and isinstance(given, ConcatDataset):
        joined: object = for_workers(given)
        if not isinstance(joined, NativeConcat):
            raise ArgumentError(
                "the parts of the ConcatDataset no longer have one and the same transform, as they had when "
                "this DataLoader was made. Make another DataLoader for it."
            )
        native.become(joined)


def follow_transforms(dataset: object) -> None:
    """Have datasets of ours, or parts of one, run their steps as they are now."""
    if isinstance(dataset, Subset):
        follow_transforms(dataset.dataset)
    elif isinstance(dataset, ConcatDataset):
        for part in dataset.datasets:
            follow_transforms(part)
    elif isinstance(dataset, NativeImages):
        dataset.follow_transform()


def for_workers(dataset: DatasetT) -> DatasetT | NativeDataset:
    """What workers load samples from: a native dataset without its steps on the device; any other as it is.

    A subset stays native, and random numbers are keyed by the indices that the loader requests from it.
    """
    native = as_native(dataset)
    if native is None:
        return dataset
    return native if native.device_steps is None else native.before_device()


def device_steps(dataset: object) -> DeviceSteps | None:
    """The steps of a dataset that run on the device; None if there are none."""
    native = as_native(dataset)
    return None if native is None else native.device_steps


def has_raw_images(dataset: object) -> TypeGuard[NativeImages]:
    """Whether a dataset is one of ours, so that `raw` and `label` are its images before any transform."""
    return isinstance(dataset, NativeImages) and is_unmodified(dataset)


def encoded_lengths(dataset: object) -> NDArray[np.int64] | None:
    """The length of each sample's file in bytes, where a dataset of ours knows it."""
    kinds = NativeImages | NativeSubset | NativeConcat | TranslatedDataset
    return dataset.encoded_lengths() if isinstance(dataset, kinds) else None
