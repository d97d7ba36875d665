"""Calls a collate function, and says what to do where torch's own cannot stack samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch.utils.data import default_collate

from rekindle.core.samples import Batch, Collate, Sample
from rekindle.errors import UnequalSamplesError


def collate(function: Collate, samples: Sample) -> Batch:
    """What the function makes of samples; UnequalSamplesError if torch's own finds that shapes differ."""
    try:
        return function(samples)
    except RuntimeError as error:
        unequal = _unequal(samples) if function is default_collate and isinstance(samples, list) else None
        if unequal is None:
            raise
        raise UnequalSamplesError(
            f"{unequal}, so they cannot be stacked to a batch. Add a step to the transform that gives all "
            "images one size, such as Resize((224, 224)), RandomResizedCrop(224) or CenterCrop(224) "
            "(Resize(224) sets the shorter side only); or give a collate_fn= that pads or lists them."
        ) from error


def _unequal(values: Sequence[Sample], where: str = "") -> str | None:
    """In which shapes samples differ; None if that is not what is wrong with them."""
    first = values[0]
    if isinstance(first, torch.Tensor | np.ndarray):
        for number, other in enumerate(values):
            if isinstance(other, torch.Tensor | np.ndarray) and other.shape != first.shape:
                return (
                    f"the samples of a batch differ in shape{where}: {tuple(first.shape)} first, "
                    f"{tuple(other.shape)} in row {number}"
                )
    elif isinstance(first, Mapping):
        for key in first:
            if all(isinstance(value, Mapping) and key in value for value in values):
                found = _unequal([value[key] for value in values], f"{where} at {key!r}")
                if found is not None:
                    return found
    elif all(isinstance(value, tuple | list) for value in values):
        for number in range(min(map(len, values))):
            found = _unequal([value[number] for value in values], where)
            if found is not None:
                return found
    return None
