"""MixUp and CutMix: batches of which each sample is mixed with the one before it.

Zhang et al., "mixup: beyond empirical risk minimization", ICLR 2018; Yun et al., "CutMix", ICCV 2019. Samples
are paired and boxes drawn as torchvision.transforms.v2 does it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from itertools import islice

import torch

from rekindle.errors import ArgumentError
from rekindle.prepare import parameters
from rekindle.prepare.image_step import further_numbers
from rekindle.prepare.step import Numbers, whole_number


def mixup(images: torch.Tensor, labels: torch.Tensor, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and soft labels: `share` of each sample, the rest of the one before it."""
    return _mixed(images, share), _mixed(labels, share)


def cutmix(
    images: torch.Tensor, labels: torch.Tensor, box: tuple[int, int, int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Images with a box (top, left, height, width) of the sample before, and labels soft by its area."""
    top, left, height, width = box
    cut = (..., slice(top, top + height), slice(left, left + width))
    mixed = images.clone()
    mixed[cut] = images.roll(1, 0)[cut]
    share = 1 - height * width / (images.shape[-2] * images.shape[-1])
    return mixed, _mixed(labels, share)


def _mixed(values: torch.Tensor, share: float) -> torch.Tensor:
    return values.roll(1, 0).mul_(1 - share).add_(values.mul(share))


class _Mixing(ABC):
    """A step on batches: images of N × C × H × W floats, labels of N classes or N × classes.

    Attributes:
        uniforms: How many uniform numbers a batch takes.

    """

    uniforms: int

    def __init__(self, *, alpha: float = 1.0, num_classes: int | None = None) -> None:
        name = type(self).__name__
        self.alpha = parameters.number(name, "alpha", alpha, 1e-6)
        if num_classes is not None:
            num_classes = parameters.positive_integer(name, "num_classes", num_classes)
        self.num_classes = num_classes

    @abstractmethod
    def apply(
        self, images: torch.Tensor, labels: torch.Tensor, numbers: Numbers
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mixed images and soft labels, given `uniforms` numbers. What is given is not changed."""

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mix with numbers from torch's global generator."""
        return self.apply(images, labels, torch.rand(self.uniforms, dtype=torch.float64).numpy())

    def _soft_labels(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The labels as N × classes floats, once images and labels have been found to fit."""
        name = type(self).__name__
        if images.ndim != 4 or not images.is_floating_point():
            raise ArgumentError(
                f"{name}: images are {images.dtype} {tuple(images.shape)}. "
                "Give a batch of floats, N × C × H × W."
            )
        if labels.ndim not in (1, 2) or labels.shape[0] != images.shape[0]:
            raise ArgumentError(
                f"{name}: labels are {tuple(labels.shape)} for {images.shape[0]} images. "
                "Give one class for each image, or N × classes."
            )
        if labels.ndim == 2:
            return labels if labels.is_floating_point() else labels.float()
        if self.num_classes is None:
            raise ArgumentError(f"{name}: labels are classes and num_classes is None. Give num_classes.")
        return torch.nn.functional.one_hot(labels.long(), self.num_classes).float()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(alpha={self.alpha}, num_classes={self.num_classes})"


class MixUp(_Mixing):
    """Each sample a weighted sum of itself and the one before; weights drawn from Beta(alpha, alpha)."""

    uniforms = 2

    def apply(
        self, images: torch.Tensor, labels: torch.Tensor, numbers: Numbers
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return mixup(images, self._soft_labels(images, labels), symmetric_beta(self.alpha, numbers))


class CutMix(_Mixing):
    """Each sample with a box of the one before; its area drawn from Beta(alpha, alpha)."""

    uniforms = 4

    def box(self, height: int, width: int, numbers: Numbers) -> tuple[int, int, int, int]:
        """Where images of this size are overwritten: (top, left, height, width)."""
        half = 0.5 * math.sqrt(1 - symmetric_beta(self.alpha, numbers[:2]))
        x, y = whole_number(numbers[2], 0, width), whole_number(numbers[3], 0, height)
        half_width, half_height = int(half * width), int(half * height)
        left, right = max(x - half_width, 0), min(x + half_width, width)
        top, bottom = max(y - half_height, 0), min(y + half_height, height)
        return top, left, bottom - top, right - left

    def apply(
        self, images: torch.Tensor, labels: torch.Tensor, numbers: Numbers
    ) -> tuple[torch.Tensor, torch.Tensor]:
        soft = self._soft_labels(images, labels)
        return cutmix(images, soft, self.box(images.shape[-2], images.shape[-1], numbers))


def symmetric_beta(alpha: float, numbers: Numbers) -> float:
    """A number from Beta(alpha, alpha), from two uniform ones.

    Above one half by Ulrich's formula (Devroye, "Non-uniform random variate generation", 1986, IX.3.2), below
    it by Jöhnk's rejection, which then accepts more than three tries of four.
    """
    first, second = numbers.tolist()
    if alpha == 1:
        return float(first)
    if alpha > 0.5:
        radius = math.sqrt(1 - first ** (2 / (2 * alpha - 1)))
        return float(0.5 * (1 + radius * math.cos(2 * math.pi * second)))
    retries = further_numbers(numbers)
    while True:
        # In logarithms: powers of small alpha underflow.
        x, y = math.log(first or 2.0**-53) / alpha, math.log(second or 2.0**-53) / alpha
        largest = max(x, y)
        if largest + math.log1p(math.exp(min(x, y) - largest)) <= 0:
            return math.exp(x - largest) / (math.exp(x - largest) + math.exp(y - largest))
        first, second = islice(retries, 2)
