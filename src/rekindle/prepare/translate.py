"""`native`: the native equivalent of a torchvision-style dataset, or an error that lists what has none."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

from torch.utils.data import ConcatDataset, IterableDataset, Subset

from rekindle.core.samples import Sample
from rekindle.errors import ArgumentError
from rekindle.fetch.listed_files import ListedFiles
from rekindle.prepare.array_images import ArrayImages
from rekindle.prepare.foreign_datasets import ForeignImages, look_into
from rekindle.prepare.image_dataset import ImageDataset
from rekindle.prepare.native import NativeDataset, as_native, follow_transforms, is_torchs
from rekindle.prepare.native_concat import NativeConcat, check_one_transform
from rekindle.prepare.native_subset import NativeSubset, integers_of
from rekindle.prepare.steps.same_steps import are_same_steps
from rekindle.prepare.translated import TranslatedDataset

if TYPE_CHECKING:
    from rekindle.prepare.steps.compose import Compose


def native(dataset: object) -> Any:
    """The native equivalent of a dataset of torchvision's or timm's: the same samples, labels and order.

    Files are decoded and transformed by Rekindle's own steps, in place of Pillow and torchvision, as the
    dataset is now: later changes of the original are not followed (`DataLoader(native=True)` follows them).

    Args:
        dataset: `ImageFolder`, `DatasetFolder`, `ImageNet`, CIFAR, the MNIST family, STL10, SVHN, Food101 and
            others that have a list of files or one array; timm's `ImageDataset`; `Subset`, `random_split` and
            `ConcatDataset` of them. With a transform of torchvision's (v1 or v2) or timm's that ends in a
            tensor. A dataset that is native already is returned as it is.

    Raises:
        ArgumentError: Lists everything that could not be translated, and why.

    """
    if isinstance(dataset, str | PathLike):
        raise ArgumentError(
            f"{str(dataset)!r} is a path, not a dataset. rk.open(path, transform=…) reads it."
        )
    problems: list[str] = []
    translated = _translated(dataset, "", problems)
    if problems:
        listed, one = "".join(f"\n  {line}" for line in problems), len(problems) == 1
        raise ArgumentError(
            f"{len(problems)} {'thing' if one else 'things'} in this dataset cannot be "
            f"translated to Rekindle's own steps:{listed}\n"
            f"Change {'it' if one else 'them'}, or use the dataset as it is, without native=: it runs "
            "unchanged, in processes."
        )
    return translated


def translated(dataset: Any) -> TranslatedDataset:
    """The same for a loader: follows the original, if that is changed between two epochs."""
    return TranslatedDataset(dataset, _as_one, _is_same)


def _as_one(dataset: object) -> NativeDataset:
    follow_transforms(dataset)  # Some parts may be ours.
    found = as_native(native(dataset))
    assert found is not None
    return found


def _translated(dataset: object, where: str, problems: list[str]) -> Any:
    """The native equivalent; adds to the problems if there is none."""
    if isinstance(dataset, IterableDataset):
        problems.append(
            f"{where}{type(dataset).__name__} is an IterableDataset, which has no list of samples"
        )
        return None
    if as_native(dataset) is not None:
        return dataset
    if isinstance(dataset, Subset | ConcatDataset):
        if not is_torchs(dataset):
            problems.append(f"{where}{type(dataset).__qualname__} gives its samples in a way of its own")
            return None
        if isinstance(dataset, Subset):
            if integers_of(dataset) is None:
                problems.append(f"{where}Subset: its indices are no list of integers")
                return None
            inner = _translated(dataset.dataset, f"{where}Subset: ", problems)
            return None if problems else Subset(inner, dataset.indices)
        return _concatenated(dataset, where, problems)
    images, found = look_into(dataset)
    steps = None if images is None else _steps(images, found)
    problems += [f"{where}{type(dataset).__qualname__}: {problem}" for problem in found]
    if found or images is None:
        return None
    try:
        if images.pixels is not None:
            return ArrayImages(images.pixels, images.labels, steps)
        assert images.paths is not None
        classes = [_class_name(name) for name in getattr(dataset, "classes", ())]
        files = ListedFiles(images.paths, images.labels, classes, root=str(getattr(dataset, "root", "")))
        return ImageDataset(files, steps)
    except ArgumentError as error:  # Steps that do not fit the images.
        problems.append(f"{where}{type(dataset).__qualname__}: {error}")
        return None


def _concatenated(
    dataset: ConcatDataset[Sample], where: str, problems: list[str]
) -> ConcatDataset[Sample] | None:
    parts = [
        _translated(part, f"{where}ConcatDataset[{number}]: ", problems)
        for number, part in enumerate(dataset.datasets)
    ]
    if problems:
        return None
    joined: ConcatDataset[Sample] = ConcatDataset(parts)
    if joined.cumulative_sizes != dataset.cumulative_sizes:
        problems.append(f"{where}ConcatDataset: its parts no longer have the lengths that it was made with")
        return None
    try:
        check_one_transform([_as_one(part) for part in parts])
    except ArgumentError as error:
        problems.append(f"{where}{error}")
    return joined


def _steps(images: ForeignImages, problems: list[str]) -> Compose | None:
    """The steps that do what a dataset's transform does; adds to the problems if there are none."""
    from rekindle.prepare.steps.from_torchvision import translate_transform

    if images.transform is None:
        problems.append("without a transform its samples are Pillow images: add one that ends in a tensor")
        return None
    translation = translate_transform(images.transform, images.channels)
    problems += translation.unknown
    if not translation.unknown and not translation.makes_tensors:
        problems.append("the transform ends in a Pillow image: add a conversion to a tensor")
    if translation.unknown:
        return None
    try:
        return translation.compose()
    except ArgumentError as error:  # Steps in an order that they do not have here.
        problems.append(str(error))
        return None


def _class_name(name: object) -> str:
    """ImageNet has tuples of names."""
    return ", ".join(map(str, name)) if isinstance(name, tuple) else str(name)


def _is_same(one: NativeDataset, other: NativeDataset) -> bool:
    """Whether two translations give the same samples."""
    if not are_same_steps(one.split(0)[1].steps, other.split(0)[1].steps):
        return False
    if isinstance(one, ImageDataset) and isinstance(other, ImageDataset):
        mine, others = one.source, other.source
        if isinstance(mine, ListedFiles) and isinstance(others, ListedFiles):
            return mine.lists_the_same(others)
        return one is other
    if isinstance(one, ArrayImages) and isinstance(other, ArrayImages):
        return one is other or one.has_the_same(other)
    if isinstance(one, NativeSubset) and isinstance(other, NativeSubset):
        return one.has_indices_of(other) and _is_same(one.dataset, other.dataset)
    if isinstance(one, NativeConcat) and isinstance(other, NativeConcat):
        pairs = zip(one.parts, other.parts, strict=False)
        return len(one.parts) == len(other.parts) and all(_is_same(a, b) for a, b in pairs)
    return False
