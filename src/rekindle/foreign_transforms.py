"""Transforms that are not ours, as functions of an RGB array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.errors import ArgumentError


def adapted(transform: Any) -> Callable[[Any], Any]:
    """A foreign transform as a function of an RGB array."""
    if not callable(transform):
        raise ArgumentError(
            f"transform is {transform!r}. Give steps of rekindle.transforms, or a function of a Pillow image."
        )
    if any(base.__module__.partition(".")[0] == "albumentations" for base in type(transform).__mro__):
        return _Albumentations(transform)
    return _OnPillowImages(transform)


class _Albumentations:
    """An Albumentations transform, which takes and gives arrays by name.

    Since version 1.4.19 its transforms draw from generators of their own, made when they are: these are
    seeded from torch's, which the loader seeds for each sample.
    """

    def __init__(self, transform: Any) -> None:
        self._transform = transform

    def __call__(self, image: NDArray[np.uint8]) -> Any:
        if hasattr(self._transform, "set_random_seed"):
            self._transform.set_random_seed(int(torch.randint(2**31, ())))
        return self._transform(image=image)["image"]


class _OnPillowImages:
    """A transform of Pillow images, such as torchvision's."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self._transform = transform

    def __call__(self, image: NDArray[np.uint8]) -> Any:
        from PIL import Image

        return self._transform(Image.fromarray(image))
