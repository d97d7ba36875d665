"""Images of one size in memory, such as CIFAR-10."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.errors import ArgumentError
from rekindle.prepare.native_images import NativeImages, Transform, own_steps
from rekindle.prepare.steps.step import Image, Uniforms, Value

if TYPE_CHECKING:
    from rekindle.prepare.fused_kernel import Values


class ArrayImages(NativeImages):
    """A dataset of images of one size in memory, such as CIFAR-10, with labels: `ds[i]` is (image, label).

    Crops, flips, conversion and normalization of many images are one call.

    Args:
        images: An array of bytes, samples × height × width × 3; or, grey, samples × height × width, which
            steps see with three equal channels (`FirstChannel` after the conversion leaves one).
        labels: A label for each.
        transform: Steps of `rekindle.transforms`, in a list or a Compose; None yields the arrays unchanged.
        dtype: `torch.uint8` leaves the conversion to floats and the normalization to the device.
        channels_last: Whether channels are last in memory (`torch.channels_last`).
        place: Where steps run: "cpu", "device", or the first step to run on the device; see `open`.

    """

    def __init__(
        self,
        images: NDArray[np.uint8],
        labels: Sequence[int] | NDArray[np.integer],
        transform: Transform = None,
        *,
        dtype: torch.dtype | None = None,
        channels_last: bool = False,
        place: str | int = "cpu",
    ) -> None:
        array = np.asarray(images)
        self._is_grey = array.ndim == 3
        if array.dtype != np.uint8 or not (self._is_grey or (array.ndim == 4 and array.shape[3] == 3)):
            channels_first = array.ndim == 4 and array.shape[1] == 3
            how = " Move the channels to the end: images.transpose(0, 2, 3, 1)." if channels_first else ""
            raise ArgumentError(
                f"images are {array.dtype} {array.shape}. Give bytes (uint8), samples × height × width × 3, "
                f"or without the 3 if they are grey.{how}"
            )
        self.images: NDArray[np.uint8] = np.ascontiguousarray(array)
        self._labels = np.asarray(labels, dtype=np.int64)
        if self._labels.shape != (len(array),):
            raise ArgumentError(
                f"{len(array)} images, but labels of shape {self._labels.shape}. Give one for each image."
            )
        self._set_transform(transform, place, dtype, channels_last)

    def _set_transform(
        self,
        transform: Transform,
        place: str | int = "cpu",
        dtype: torch.dtype | None = None,
        channels_last: bool = False,
    ) -> None:
        steps = own_steps(transform)
        if steps is None:
            raise ArgumentError(f"transform is {transform!r}. Give steps of rekindle.transforms.")
        self._transform = transform
        height, width = self.images.shape[1:3]
        self._run_steps(steps, place, dtype=dtype, channels_last=channels_last, size=(height, width))

    def with_transform(self, transform: Transform) -> Self:
        """The same images with another transform."""
        other = copy.copy(self)
        other._set_transform(transform)
        return other

    def __len__(self) -> int:
        return len(self.images)

    def has_the_same(self, other: ArrayImages) -> bool:
        """Whether another dataset has the same images and labels."""
        return np.array_equal(self._labels, other._labels) and np.array_equal(self.images, other.images)

    @property
    def fingerprint(self) -> str:
        """Changes with the images and labels, as the key of caches on disk."""
        digest = hashlib.blake2b(f"{self.images.shape}".encode(), digest_size=16)
        digest.update(self.images.data)
        digest.update(np.ascontiguousarray(self._labels).data)
        return digest.hexdigest()

    @property
    def targets(self) -> list[int]:
        """The label of each sample."""
        targets: list[int] = self._labels.tolist()
        return targets

    def raw(self, index: int) -> Image:
        return self._image(self._check(index))

    def _image(self, index: int) -> Image:
        image: Image = self.images[index]
        return np.repeat(image[..., None], 3, axis=2) if self._is_grey else image

    def label(self, index: int) -> int:
        return int(self._labels[self._check(index)])

    def __repr__(self) -> str:
        shape = " × ".join(map(str, self.images.shape[1:]))
        return f"ArrayImages({len(self):,} images of {shape}, transform={self.transform!r})"

    def sample(self, index: int, uniforms: Uniforms) -> tuple[Value, int]:
        """(image, label), given `uniforms` random numbers."""
        assert self._pipeline is not None
        index = self._check(index)
        return self._pipeline.make_image(self._image(index), uniforms), int(self._labels[index])

    def write(self, index: int, uniforms: Uniforms, out: Values) -> int:
        """Write the image to `out`, given `uniforms` random numbers; returns the label."""
        assert self._pipeline is not None
        index = self._check(index)
        self._pipeline.run_image(self._image(index), uniforms, out)
        return int(self._labels[index])

    def write_many(self, indices: Sequence[int], uniforms: Uniforms, out: Values) -> list[int]:
        """Write an image to each row of `out`, given a row of random numbers for each; returns the labels."""
        assert self._pipeline is not None
        if not self._pipeline.runs_units():
            return super().write_many(indices, uniforms, out)
        chosen = np.asarray(indices, dtype=np.int64)
        if self._is_grey:
            wanted = np.repeat(self.images[chosen][..., None], 3, axis=3)
            self._pipeline.run_many(wanted, np.arange(len(chosen)), uniforms, out)
        else:
            self._pipeline.run_many(self.images, chosen, uniforms, out)
        labels: list[int] = self._labels[chosen].tolist()
        return labels
