"""Calls a collate function, and says what to do where torch's own cannot stack samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from PIL.Image import Image
from torch.utils.data import default_collate

from rekindle.core.samples import Batch, Collate, Sample
from rekindle.errors import PillowSamplesError, UnequalSamplesError

_SAME_SIZE = (  # for images
    "Add a step to the transform that gives all images one size, such as Resize((224, 224)), "
    "RandomResizedCrop(224) or CenterCrop(224) (Resize(224) sets the shorter side only); or give a "
    "collate_fn= that pads or lists them."
)
_PAD = (
    "Give a collate_fn= that pads them to one length (torch.nn.utils.rnn.pad_sequence) or lists them; or cut "
    "or pad them in the dataset."
)


def collate(function: Collate, samples: Sample) -> Batch:
    """What the function makes of samples.

    UnequalSamplesError if torch's own finds that shapes differ, PillowSamplesError if it is given images.
    """
    try:
        return function(samples)
    except KeyError as error:
        if function is default_collate:
            _note(error, _other_keys(samples))
        raise
    except TypeError as error:
        if function is default_collate:
            _note(error, _none(samples))
        if function is not default_collate or not _holds_images(samples):
            raise
        raise PillowSamplesError(
            "the samples are Pillow images, which cannot be stacked to a batch. Give the dataset a transform "
            "that ends in a tensor of one size, such as Compose([RandomResizedCrop(224), ToTensor()]) of "
            "torchvision.transforms; or give a collate_fn= that converts them."
        ) from error
    except RuntimeError as error:
        unequal = _unequal(samples) if function is default_collate and isinstance(samples, list) else None
        if unequal is None:
            if function is default_collate:
                _note(error, _none(samples))
            raise
        where, first, other, row = unequal
        is_image = isinstance(first, tuple) and isinstance(other, tuple) and len(first) == len(other) == 3
        what = "length" if isinstance(first, int) else "shape"
        raise UnequalSamplesError(
            f"the samples of a batch differ in {what}{where}: {first} first, {other} in row {row}, so they "
            f"cannot be stacked to a batch. {_SAME_SIZE if is_image else _PAD}"
        ) from error


def _note(error: Exception, what: str | None) -> None:
    if what is not None:
        error.add_note(f"rekindle: {what}")


def _none(samples: Sample) -> str | None:
    """Which of the samples is None, or holds it, and what to do."""
    for row, sample in enumerate(samples if isinstance(samples, list) else ()):
        where = _keys_to_none(sample)
        if where is not None:
            what = f"has None at {', '.join(map(repr, where))}" if where else "is None"
            return (
                f"the sample in row {row} of the batch {what}, which cannot be stacked. "
                "Let the dataset return a value (a label of -1, say), or raise an exception, which "
                "on_error='skip' passes over; or give a collate_fn= that leaves it out."
            )
    return None


def _keys_to_none(value: Sample) -> list[object] | None:
    """The keys, one within the other, at which a sample holds None: none if it is None itself.

    None if there is no None in it.
    """
    if value is None:
        return []
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list | tuple):
        items = list(enumerate(value))
    else:
        return None
    for key, item in items:
        within = _keys_to_none(item)
        if within is not None:
            return [key, *within]
    return None


def _other_keys(samples: Sample) -> str | None:
    """Which of the samples lacks a key that the first one has, and what to do."""
    if not (isinstance(samples, list) and all(isinstance(sample, Mapping) for sample in samples)):
        return None
    for row, sample in enumerate(samples):
        missing = [key for key in samples[0] if key not in sample]
        if missing:
            return (
                f"the sample in row {row} of the batch has no {missing[0]!r}, which the first one has. Let "
                "all samples have the same keys, or give a collate_fn=."
            )
    return None


def _holds_images(value: Sample) -> bool:
    """Whether there are Pillow images among these samples, or within them."""
    if isinstance(value, Mapping):
        return any(map(_holds_images, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_holds_images, value))
    return isinstance(value, Image)


def _unequal(
    values: Sequence[Sample], where: str = ""
) -> tuple[str, tuple[int, ...] | int, tuple[int, ...] | int, int] | None:
    """Where samples differ, the first shape, or length of a list, another, and its row.

    None if that is not what is wrong.
    """
    first = values[0]
    if isinstance(first, torch.Tensor | np.ndarray):
        for number, other in enumerate(values):
            if isinstance(other, torch.Tensor | np.ndarray) and other.shape != first.shape:
                return where, tuple(first.shape), tuple(other.shape), number
    elif isinstance(first, Mapping):
        for key in first:
            if all(isinstance(value, Mapping) and key in value for value in values):
                found = _unequal([value[key] for value in values], f"{where} at {key!r}")
                if found is not None:
                    return found
    elif all(isinstance(value, tuple | list) for value in values):
        for number, other in enumerate(values):
            if len(other) != len(first):
                return where, len(first), len(other), number
        for number in range(len(first)):
            found = _unequal([value[number] for value in values], where)
            if found is not None:
                return found
    return None
