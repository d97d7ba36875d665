"""MixUp and CutMix: each sample of a batch is mixed with the one before it.

Zhang et al., "mixup: beyond empirical risk minimization", ICLR 2018; Yun et al., "CutMix", ICCV 2019. Samples
are paired and boxes drawn as in torchvision.transforms.v2.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from itertools import islice

import torch

from rekindle.errors import ArgumentError
from rekindle.prepare.steps import parameters
from rekindle.prepare.steps.image_step import more_uniforms
from rekindle.prepare.steps.step import Uniforms, draw_uniforms, random_integer


def mixup(images: torch.Tensor, labels: torch.Tensor, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and soft labels: `share` of each sample and the rest of the one before it."""
    return _mixed(images, share), _mixed(labels, share)


def cutmix(
    images: torch.Tensor, labels: torch.Tensor, box: tuple[int, int, int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Images with a box (top, left, height, width) of the previous sample; labels mixed by its area."""
    top, left, height, width = box
    inside = (..., slice(top, top + height), slice(left, left + width))
    mixed = images.clone()
    mixed[inside] = images.roll(1, 0)[inside]
    share = 1 - height * width / (images.shape[-2] * images.shape[-1])
    return mixed, _mixed(labels, share)


def _mixed(values: torch.Tensor, share: float) -> torch.Tensor:
    return values.roll(1, 0).mul_(1 - share).add_(values.mul(share))


class BatchMixing(ABC):
    """A step on batches: images are N × C × H × W floats, labels N classes or N × classes.

    Attributes:
        uniforms: How many uniform random numbers a batch needs.

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
        self, images: torch.Tensor, labels: torch.Tensor, uniforms: Uniforms
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mixed images and soft labels, given `uniforms` random numbers; the inputs are unchanged."""

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mix with random numbers from torch's global generator."""
        return self.apply(images, labels, draw_uniforms(self.uniforms))

    def _soft_labels(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The labels as N × classes floats; ArgumentError if images and labels do not match."""
        name = type(self).__name__
        if not isinstance(labels, torch.Tensor):
            raise ArgumentError(
                f"{name}: labels are of type {type(labels).__name__}. Give a tensor: one class for each "
                "image, or N × classes."
            )
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
        if labels.ndim == 1 and (labels.is_floating_point() or labels.is_complex()):
            raise ArgumentError(
                f"{name}: labels are {labels.dtype}, one number for each image. Classes are integers: give "
                "these, or N × classes; targets of a regression cannot be mixed here."
            )
        if labels.ndim == 2 and self.num_classes not in (None, labels.shape[1]):
            raise ArgumentError(
                f"{name}: labels are {tuple(labels.shape)}, but num_classes is {self.num_classes}. Give one "
                f"class for each image, or N × {self.num_classes}."
            )
        if labels.ndim == 2:
            return labels if labels.is_floating_point() else labels.float()
        if self.num_classes is None:
            raise ArgumentError(f"{name}: labels are classes and num_classes is None. Give num_classes.")
        try:
            return torch.nn.functional.one_hot(labels.long(), self.num_classes).float()
        except RuntimeError as error:  # Looked at only now: on a GPU, to look would be to wait for it.
            wrong = labels[(labels < 0) | (labels >= self.num_classes)]
            if not len(wrong):
                raise
            raise ArgumentError(
                f"{name}: a label is {wrong[0].item()}, but num_classes is {self.num_classes}: labels must "
                f"be from 0 to {self.num_classes - 1}. Give the number of classes of the dataset."
            ) from error

    def __repr__(self) -> str:
        return f"{type(self).__name__}(alpha={self.alpha}, num_classes={self.num_classes})"


class MixUp(BatchMixing):
    """Replace each sample by a weighted sum with the one before it; weight drawn from Beta(alpha, alpha)."""

    uniforms = 2

    def apply(
        self, images: torch.Tensor, labels: torch.Tensor, uniforms: Uniforms
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return mixup(images, self._soft_labels(images, labels), symmetric_beta(self.alpha, uniforms))


class CutMix(BatchMixing):
    """Paste a box of the previous sample into each sample; its area drawn from Beta(alpha, alpha)."""

    uniforms = 4

    def box(self, height: int, width: int, uniforms: Uniforms) -> tuple[int, int, int, int]:
        """The box that is pasted into images of this size: (top, left, height, width)."""
        half = 0.5 * math.sqrt(1 - symmetric_beta(self.alpha, uniforms[:2]))
        x, y = random_integer(uniforms[2], 0, width), random_integer(uniforms[3], 0, height)
        half_width, half_height = int(half * width), int(half * height)
        left, right = max(x - half_width, 0), min(x + half_width, width)
        top, bottom = max(y - half_height, 0), min(y + half_height, height)
        return top, left, bottom - top, right - left

    def apply(
        self, images: torch.Tensor, labels: torch.Tensor, uniforms: Uniforms
    ) -> tuple[torch.Tensor, torch.Tensor]:
        soft = self._soft_labels(images, labels)
        return cutmix(images, soft, self.box(images.shape[-2], images.shape[-1], uniforms))


def symmetric_beta(alpha: float, uniforms: Uniforms) -> float:
    """A sample of Beta(alpha, alpha), computed from two uniform random numbers.

    For alpha above one half by Ulrich's formula (Devroye, "Non-uniform random variate generation", 1986,
    IX.3.2), otherwise by Jöhnk's rejection, which then accepts more than three attempts of four.
    """
    first, second = uniforms.tolist()
    if alpha == 1:
        return float(first)
    if alpha > 0.5:
        radius = math.sqrt(1 - first ** (2 / (2 * alpha - 1)))
        return float(0.5 * (1 + radius * math.cos(2 * math.pi * second)))
    retries = more_uniforms(uniforms)
    while True:
        # In logarithms: powers of small alpha underflow.
        x, y = math.log(first or 2.0**-53) / alpha, math.log(second or 2.0**-53) / alpha
        largest = max(x, y)
        if largest + math.log1p(math.exp(min(x, y) - largest)) <= 0:
            return math.exp(x - largest) / (math.exp(x - largest) + math.exp(y - largest))
        first, second = islice(retries, 2)
