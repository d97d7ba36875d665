"""Transforms of other libraries, as functions of an RGB array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

import torch

from rekindle.errors import ArgumentError
from rekindle.prepare.steps.step import Image, Step, Value


class AlbumentationsTransform(Protocol):
    """A transform of Albumentations, which takes and returns arrays by name."""

    def __call__(self, *, image: Image) -> dict[str, Value]: ...

    def set_random_seed(self, seed: int) -> None: ...


class TakesArrays:
    """A function in the place of a transform.

    Attributes:
        takes_arrays: Whether it is called with arrays by name, as Albumentations' transforms are, or with
            Pillow images.

    """

    takes_arrays: bool


def on_arrays(transform: object) -> Callable[[Image], Value]:
    """A third-party transform as a function of an RGB array."""
    if not callable(transform) or _is_class_of_steps(transform):
        raise ArgumentError(
            f"transform is {transform!r}. Give steps of rekindle.transforms (instances: ToTensor(), not "
            "ToTensor), or a function of a Pillow image."
        )
    if is_albumentations(transform) or (isinstance(transform, TakesArrays) and transform.takes_arrays):
        return _OfAlbumentations(cast("AlbumentationsTransform", transform))
    return _OfPillowImages(transform)


def _is_class_of_steps(transform: object) -> bool:
    return isinstance(transform, type) and issubclass(transform, Step)


def is_albumentations(transform: object) -> bool:
    """Whether a transform is one of Albumentations."""
    # By name: nobody who does not use the library should wait for it to load.
    return any(base.__module__.partition(".")[0] == "albumentations" for base in type(transform).__mro__)


class _OfAlbumentations:
    """An Albumentations transform.

    Since version 1.4.19 they draw from generators of their own, created with them: these are seeded from
    torch's, which the loader seeds for each sample.
    """

    def __init__(self, transform: AlbumentationsTransform) -> None:
        self._transform = transform

    def __call__(self, image: Image) -> Value:
        if hasattr(self._transform, "set_random_seed"):
            self._transform.set_random_seed(int(torch.randint(2**31, ())))
        return self._transform(image=image)["image"]


class _OfPillowImages:
    """A transform of Pillow images, such as torchvision's."""

    def __init__(self, transform: Callable[[Value], Value]) -> None:
        self._transform = transform

    def __call__(self, image: Image) -> Value:
        from PIL import Image as pillow  # noqa: N813

        return self._transform(pillow.fromarray(image))
