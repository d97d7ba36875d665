"""A dataset of the images of a source, such as a folder or packed files."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.core.limits import DEFAULT_LIMITS, Limits
from rekindle.errors import ArgumentError, DecodeError, RekindleError
from rekindle.fetch.image_signatures import JPEG
from rekindle.fetch.packed.source import Packed
from rekindle.fetch.source import Array, Source, Stored
from rekindle.prepare.decode.jpeg_box import load_box
from rekindle.prepare.native_images import NativeImages, Transform, own_steps
from rekindle.prepare.steps.step import Image, Uniforms, Value
from rekindle.prepare.third_party_transforms import on_arrays

if TYPE_CHECKING:
    from rekindle.prepare.fused_kernel import Values
    from rekindle.prepare.pipeline import Pipeline

_READ_TOGETHER, _BYTES_TOGETHER = 64, 4 << 20  # files, and bytes that end it earlier


class ImageDataset(NativeImages):
    """Images of a source such as a folder or packed files, decoded and transformed; `open` returns one.

    `classes`, `class_to_idx`, `samples` and `targets` are as in torchvision's `ImageFolder`.
    """

    immutable_attributes = ("source",)

    def __init__(
        self,
        source: Source,
        transform: Transform = None,
        decode: bool = True,
        *,
        dtype: torch.dtype | None = None,
        channels_last: bool = False,
        limits: Limits = DEFAULT_LIMITS,
        place: str | int = "cpu",
    ) -> None:
        self.source, self.decode = source, decode
        self._size = len(source)  # needed for each sample
        self._prefetches = source.is_worth_prefetching
        self._limits = limits
        self._third_party: Callable[[Image], Value] | None = None
        self._set_transform(transform, place, dtype, channels_last)

    def _is_packed(self) -> bool:
        """Whether samples may be taken from the source's files; of others, only `read` is known."""
        return type(self.source) is Packed and "read" not in vars(self.source)

    def _may_hold_jpegs(self) -> bool:
        """Whether to load what decodes them. Of packed files, which may hold pixels, a few samples tell."""
        size = len(self.source)
        if not self._is_packed() or self._prefetches:
            return size > 0
        try:
            some = [self.source.read(index) for index in range(0, size, max(size // 8, 1))]
        except RekindleError:  # Raised again by whoever wants the sample.
            return True
        return any(not isinstance(one, np.ndarray) and one[:2] == JPEG for one in some)

    def _set_transform(
        self,
        transform: Transform,
        place: str | int = "cpu",
        dtype: torch.dtype | None = None,
        channels_last: bool = False,
    ) -> None:
        if not self.decode and transform is not None:
            raise ArgumentError(f"decode=False yields bytes, to which {transform!r} cannot be applied.")
        steps = own_steps(transform) if self.decode else None
        self._third_party = self._pipeline = self._before_device = self._device_steps = None
        self._transform, self._built_from = transform, None
        self.releases_gil = self.draws_nothing = not self.decode
        if self.decode and self._may_hold_jpegs():
            load_box()
        if steps is not None:
            limits, self._maps = self._limits, self._is_packed()
            self._run_steps(steps, place, dtype=dtype, channels_last=channels_last, limits=limits)
            return
        if place != "cpu":
            raise ArgumentError(f"place={place!r} is for steps of rekindle.transforms.")
        if dtype is not None or channels_last:
            raise ArgumentError("dtype and channels_last are for steps of rekindle.transforms.")
        self._options = "cpu", None, False
        self._third_party = on_arrays(transform) if self.decode else None

    def _use(self, pipeline: Pipeline) -> None:
        super()._use(pipeline)
        if self._maps:
            pipeline.runs_units()  # Loads the kernels, or has them compiled: before there are workers.

    def with_transform(self, transform: Transform) -> Self:
        """The same images with another transform."""
        other = copy.copy(self)
        other.decode = True
        other._set_transform(transform)
        return other

    def __len__(self) -> int:
        return self._size

    @property
    def classes(self) -> list[str]:
        """The name of each class, by its index."""
        return self.source.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The index of each class, by its name."""
        return self.source.class_to_idx

    @property
    def samples(self) -> list[tuple[str, int]]:
        """Path and class index of each sample."""
        return self.source.samples

    imgs = samples  # torchvision's other name for it

    @property
    def targets(self) -> list[int]:
        """The class index of each sample."""
        return self.source.targets

    @property
    def fingerprint(self) -> str:
        """Changes with the samples as far as is seen without reading them, as the key of caches on disk."""
        described = f"{self.source.version()} {self.samples}"
        return hashlib.blake2b(described.encode(errors="surrogateescape"), digest_size=16).hexdigest()

    @property
    def sample_nbytes(self) -> Callable[[int], int] | None:
        """The size of a sample's file, by its index; None if the source does not know it."""
        nbytes: Callable[[int], int] | None = getattr(self.source, "nbytes", None)
        return nbytes

    def will_need(self, indices: Sequence[int]) -> None:
        """Start to fetch samples that will be requested soon, if the source can."""
        if self._prefetches:
            self.source.prefetch([self._check(index) for index in indices])

    def __getitem__(self, index: int) -> tuple[Value, int]:
        if self._pipeline is not None:
            return super().__getitem__(index)
        index = self._check(index)
        label = self.source.target(index)
        if self._third_party is None:
            return self._stored(index), label
        return self._third_party(self._decoded(index)), label

    def _stored(self, index: int) -> bytes | Array:
        try:
            return self.source.copy(index)
        except DecodeError as error:
            raise self.located(error, index) from error

    def _decoded(self, index: int) -> Image:
        from rekindle.prepare.decode.decode import decode

        try:
            data = self.source.read(index)
            if isinstance(data, np.ndarray):
                return data.copy()  # It may be a view of a file.
            return decode(data, self._limits)
        except DecodeError as error:
            raise self.located(error, index) from error

    def sample(self, index: int, uniforms: Uniforms) -> tuple[Value, int]:
        """(image, label), given `uniforms` random numbers."""
        assert self._pipeline is not None
        index = self._check(index)
        try:
            return self._pipeline.make(self.source.read(index), uniforms), self.source.target(index)
        except DecodeError as error:
            raise self.located(error, index) from error

    def samples_of(self, indices: Sequence[int], uniforms: Uniforms) -> list[tuple[Value, int]]:
        """(image, label) of each, given a row of random numbers for each."""
        pipeline = self._pipeline
        assert pipeline is not None
        if len(indices) > 1 and self._maps and pipeline.runs_units():
            assert isinstance(self.source, Packed)
            mapped = self.source.mapped(np.array([*map(self._check, indices)], dtype=np.int64))
            images = pipeline.make_mapped(mapped, uniforms)
            if images is not None:
                return [*zip(images, mapped.labels.tolist(), strict=True)]
        return super().samples_of(indices, uniforms)

    def write(self, index: int, uniforms: Uniforms, out: Values) -> int:
        """Write the image to `out`, given `uniforms` random numbers; returns the label."""
        assert self._pipeline is not None
        index = self._check(index)
        try:
            self._pipeline.run(self.source.read(index), uniforms, out)
        except DecodeError as error:
            raise self.located(error, index) from error
        return self.source.target(index)

    def write_many(self, indices: Sequence[int], uniforms: Uniforms, out: Values) -> list[int]:
        """Write an image to each row of `out`, given a row of random numbers for each; returns the labels."""
        assert self._pipeline is not None
        pipeline, read = self._pipeline, self.source.read
        if indices and not 0 <= min(indices) <= max(indices) < self._size:
            indices = [*map(self._check, indices)]
        labels, left = None, [*range(len(indices))]
        if self._maps and pipeline.runs_units():  # Raw images are written straight from packed files.
            assert isinstance(self.source, Packed)
            mapped = self.source.mapped(np.array(indices, dtype=np.int64))
            left, labels = pipeline.run_mapped(mapped, uniforms, out), mapped.labels.tolist()
        while left:
            # A few files first, then their pixels: a system call in between leaves the processor's caches
            # cold, which costs Python more than the call itself.
            encoded: list[Stored] = []
            nbytes = 0
            for row in left[:_READ_TOGETHER]:
                data = read(indices[row])
                encoded.append(data)
                nbytes += data.nbytes if isinstance(data, np.ndarray) else len(data)
                if nbytes > _BYTES_TOGETHER:
                    break
            count = len(encoded)
            pipeline.run_unit(encoded, left[:count], uniforms, out)
            left = left[count:]
        return [*map(self.source.target, indices)] if labels is None else labels

    def raw(self, index: int) -> Stored:
        index = self._check(index)
        try:
            return self.source.read(index)
        except DecodeError as error:
            raise self.located(error, index) from error

    def label(self, index: int) -> int:
        return self.source.target(self._check(index))

    def encoded_lengths(self) -> NDArray[np.int64] | None:
        """The length of each file in bytes: a measure of the time that decoding takes."""
        return self.source.lengths()

    def located(self, error: DecodeError, index: int) -> DecodeError:
        """The error with the name of the file that it is about."""
        return DecodeError(f"{self.source.path(index)!r} (sample {index}): {error}")

    def __repr__(self) -> str:
        return (
            f"ImageDataset({str(self.source.root)!r}: {len(self):,} images, {len(self.classes):,} classes, "
            f"transform={self.transform!r})"
        )
