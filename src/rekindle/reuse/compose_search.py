"""Where a dataset keeps its Compose, and the same dataset with another function in its place.

The Compose is looked for in the attributes `transform` and `transforms`, then in all others; in the dataset
itself or in an object that calls it, such as a wrapper that makes two views of an image; through `Subset` and
`ConcatDataset`, nested as they may be. It is replaced wherever it is found.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import chain
from types import CodeType, FunctionType
from typing import Any, NamedTuple, TypeAlias

from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset

from rekindle.core.analysis.bytecode import all_names, may_reach_anything, texts_of
from rekindle.core.analysis.set_generators import who_sets_generators
from rekindle.core.samples import Sample
from rekindle.prepare.native import changes_whole_samples
from rekindle.prepare.native_images import NativeImages, own_steps
from rekindle.prepare.third_party_transforms import TakesArrays, is_albumentations
from rekindle.reuse.content_digest import content_digest
from rekindle.reuse.layers import is_compose
from rekindle.reuse.shared_steps import shared_by_steps

Part: TypeAlias = Callable[..., Sample]
Compose: TypeAlias = Any  # ours, torchvision's, Albumentations' or the user's own
_USUAL_NAMES = ("transform", "transforms")


class FoundCompose(NamedTuple):
    """A Compose whose steps can be applied one after the other; None, and the reason, if there is none."""

    compose: Compose
    reason: str = ""

    @property
    def albumentations(self) -> bool:
        """Whether it is one of Albumentations, which is called with arrays by name."""
        return is_albumentations(self.compose)


def find_compose(dataset: object) -> FoundCompose:
    """The Compose of a map-style dataset that is not native."""
    if isinstance(dataset, IterableDataset):
        return FoundCompose(None, f"{type(dataset).__name__} is an iterable dataset")
    if isinstance(dataset, ConcatDataset):
        return _common(dataset)
    inner = _inner(dataset)
    return find_compose(inner) if inner is not None else _judged(dataset, _composes_of(dataset))


def with_compose_replaced(dataset: object, part: Part) -> Any:
    """A copy of a dataset that calls `part` wherever it would call its Compose."""
    if isinstance(dataset, NativeImages):
        if isinstance(part, _Unchanged):
            return dataset.with_transform(None)
        # What a subclass does to a whole sample, it does after all steps: they must stay within it.
        if own_steps(dataset.transform) is not None and not changes_whole_samples(dataset):
            return _Transformed(dataset.with_transform(None), part)
        return dataset.with_transform(part)
    replaced: Any = copy.copy(dataset)
    if isinstance(dataset, ConcatDataset):
        replaced.datasets = [with_compose_replaced(member, part) for member in dataset.datasets]
        return replaced
    inner = _inner(dataset)
    if inner is not None:
        replaced.dataset = with_compose_replaced(inner, part)
        return replaced
    compose = find_compose(dataset).compose
    for name, value in vars(dataset).items():
        if value is compose:
            setattr(replaced, name, part)
        elif any(one is compose for one in _held_by(value).values()):
            wrapper = copy.copy(value)
            for inside, one in _held_by(value).items():
                if one is compose:
                    setattr(wrapper, inside, part)
            setattr(replaced, name, wrapper)
    return replaced


class _Transformed(Dataset[tuple[Sample, int]]):
    """Images with a function applied to each."""

    def __init__(self, images: NativeImages, part: Part) -> None:
        self._images, self._part = images, part

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Sample, int]:
        image, label = self._images[index]
        return self._part(image), label


def without_steps(dataset: object) -> Any:
    """A copy of a dataset whose Compose does nothing; the dataset itself, if it has none."""
    found = find_compose(dataset)
    return dataset if found.compose is None else with_compose_replaced(dataset, _Unchanged(found))


class _Unchanged(TakesArrays):
    """Returns what it is called with."""

    def __init__(self, found: FoundCompose) -> None:
        self.takes_arrays = found.albumentations

    def __call__(self, *values: Sample, **named: Sample) -> Sample:
        if named:
            return named
        return values[0] if len(values) == 1 else values


def copied(dataset: object) -> Any:
    """A shallow copy: a file that is opened with the first sample is not passed on to workers."""
    replaced: Any = copy.copy(dataset)
    if isinstance(dataset, ConcatDataset):
        replaced.datasets = [copied(member) for member in dataset.datasets]
    elif isinstance(dataset, Subset):
        replaced.dataset = copied(dataset.dataset)
    return replaced


def _inner(dataset: object) -> Dataset[Sample] | None:
    """The dataset of a subset that only passes on its samples; None for any other dataset."""
    if isinstance(dataset, Subset) and type(dataset).__getitem__ is Subset.__getitem__:
        return dataset.dataset
    return None


def _common(dataset: ConcatDataset[Sample]) -> FoundCompose:
    """The Compose of all members, if it is the same."""
    members = [find_compose(member) for member in dataset.datasets]
    refused = next((found for found in members if found.compose is None), None)
    if refused is not None:
        return refused
    first, others = members[0].compose, [found.compose for found in members[1:]]
    others = [one for one in others if one is not first]
    # How steps are shown does not tell them apart: `Lambda()`, whatever its function does.
    digest = _digest(first) if others else ""
    if digest is None or any(_digest(one) != digest for one in others):
        return FoundCompose(
            None,
            f"the members of {type(dataset).__name__} have different steps, or such as cannot be compared "
            "(give all members the same Compose, if they are to have the same)",
        )
    return members[0]


def _digest(compose: Compose) -> str | None:
    """Of what a Compose consists of; of one of Albumentations, which notes its draws, of its parameters."""
    if is_albumentations(compose):
        try:
            parameters = compose.to_dict()
        except NotImplementedError:  # There are steps that Albumentations cannot write to a file.
            return content_digest(compose)
        if "Lambda" not in repr(parameters):  # which would be shown by a name only
            return content_digest(parameters)
    return content_digest(compose)


def _composes_of(dataset: object) -> dict[str, Compose]:
    """The composes that a dataset has, by the names of its attributes; those of the usual names, if any."""
    if isinstance(dataset, NativeImages):
        return {"transform": dataset.transform}
    attributes = getattr(dataset, "__dict__", {})
    unused = _unused_pair(dataset, attributes)
    attributes = {name: value for name, value in attributes.items() if name != unused}
    for names in ([name for name in _USUAL_NAMES if name in attributes], attributes):
        found: dict[str, Compose] = {}
        for name in names:
            value = attributes[name]
            if _is_any_compose(value):
                found[name] = value
            else:
                found.update({f"{name}.{inside}": one for inside, one in _held_by(value).items()})
        if found:
            return found
    return {}


def _unused_pair(dataset: object, attributes: dict[str, Any]) -> str | None:
    """Which of torchvision's `transform` and `transforms` no code of the dataset uses; None if not just one.

    torchvision's datasets are made with both, and use one of them: a script that replaces the one in use
    leaves the old steps in the other.
    """
    pair = type(attributes.get("transforms"))
    if (pair.__module__, pair.__qualname__) != ("torchvision.datasets.vision", "StandardTransform"):
        return None
    codes = list(_codes_of(type(dataset)))
    if any(map(may_reach_anything, codes)):
        return None
    used = {name for code in codes for name in chain(all_names(code), texts_of(code))}
    unused = [name for name in _USUAL_NAMES if name not in used]
    return unused[0] if len(unused) == 1 else None


def _codes_of(kind: type) -> Iterator[CodeType]:
    """The code of a dataset's class, without what torch and torchvision give all datasets."""
    overridden = set[str]()
    for base in kind.__mro__:
        if base.__module__ in ("torchvision.datasets.vision", "torch.utils.data.dataset"):
            continue
        for name, member in vars(base).items():
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if name in overridden or not isinstance(function, FunctionType):
                continue
            yield function.__code__
            if "super" not in all_names(function.__code__):
                overridden.add(name)


def _held_by(value: object) -> dict[str, Compose]:
    """The composes that a transform calls: the attributes of what is a function, but no class or dataset."""
    if not callable(value) or isinstance(value, type | Dataset):
        return {}
    attributes = getattr(value, "__dict__", {})
    return {name: one for name, one in attributes.items() if _is_any_compose(one)}


def _judged(dataset: object, found: dict[str, Compose]) -> FoundCompose:
    kind = type(dataset).__name__
    if not found:
        transform = getattr(dataset, "__dict__", {}).get("transform")
        is_one = "" if transform is None else f": its transform, a {type(transform).__name__}, is no Compose"
        return FoundCompose(None, f"{kind} has no steps between which it can be split{is_one}")
    compose = next(iter(found.values()))
    if any(one is not compose for one in found.values()):
        return FoundCompose(None, f"{kind} applies several pipelines ({', '.join(found)})")
    if setter := who_sets_generators(dataset):
        return FoundCompose(
            None,
            f"{setter} sets the random generators itself, and steps that are done later would draw other "
            "numbers: a mask other ones than its image",
        )
    if shared := shared_by_steps(dataset, compose):
        return FoundCompose(
            None,
            f"steps of {kind}'s transform keep something in {shared} that is seen outside of them, and what "
            "is read there would be of another sample if they were done later",
        )
    reason = "".join(_why_albumentations_cannot_be_split(compose)) if is_albumentations(compose) else ""
    return FoundCompose(None, reason) if reason else FoundCompose(compose)


def _is_any_compose(value: object) -> bool:
    return is_compose(value) or (is_albumentations(value) and hasattr(value, "transforms"))


def _why_albumentations_cannot_be_split(compose: Compose) -> Iterator[str]:
    name = type(compose).__name__
    if name != "Compose":
        yield f"{name} of Albumentations is one step"
    elif compose.p != 1:
        yield f"the Compose of Albumentations is applied with a probability of {compose.p}, as one step"
    elif getattr(compose, "processors", None):
        yield "the Compose of Albumentations converts boxes or keypoints, as its first step and as its last"
