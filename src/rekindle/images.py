"""Data sets of images: `open` makes one from a folder or packed files, `ArrayImages` from an array in memory.

Both are ordinary map-style data sets. With steps of `rekindle.transforms` they are also *native*: the loader
draws the random numbers for many samples at once, and each sample is written straight into the batch. A
native data set has, beside `__getitem__`:

- `uniforms`: how many uniform numbers a sample takes
- `example()`: an (image, label) that has the type and shape of all, or None if images differ in size
- `write(index, numbers, out) -> label`: the image goes to `out`; `write_many` does so for many, where there
  is one
- `sample(index, numbers) -> (image, label)`: the same in memory of its own
- `device_steps`: the steps that are left to the device, or None; and `before_device()`: the data set without
  them, which writes bytes
"""

from __future__ import annotations

import copy
import hashlib
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from rekindle.errors import ArgumentError, DecodeError
from rekindle.fetch.folder import IMAGE_EXTENSIONS
from rekindle.fetch.labels import Labels
from rekindle.fetch.opening import open_source
from rekindle.fetch.remote_store import RemoteOptions
from rekindle.fetch.source import Source, Stored, copied
from rekindle.foreign_transforms import adapted

if TYPE_CHECKING:
    from rekindle.prepare.batched.suffix import Suffix
    from rekindle.prepare.pipeline import Pipeline

_NO_NUMBERS = np.empty(0)


def open(
    path: str | os.PathLike[str],
    transform: Any = None,
    decode: bool = True,
    *,
    labels: str | os.PathLike[str] | Labels | None = None,
    extensions: tuple[str, ...] = IMAGE_EXTENSIONS,
    dtype: torch.dtype | None = None,
    channels_last: bool = False,
    pixel_limit: int | None = None,
    place: str | int = "cpu",
    format: str | None = None,
    images: str | None = None,
    features: Mapping[str, str] | None = None,
    verify: bool | None = None,
    remote: RemoteOptions | None = None,
) -> ImageDataset:
    """A data set over a folder of images or packed files: `ds[i]` is (image, label).

    Args:
        path: A folder of class folders, as torchvision's `ImageFolder` takes, or one of images with labels.
            Or an HDF5, TFRecord, tar (WebDataset) or LMDB file, or many of one format:
            `"train-*.tfrecord"`, `"shards/{000..127}.tar"`. All of it may be behind a URL: `"s3://…"`.
        transform: Steps of `rekindle.transforms`, in a list or a Compose: these run natively. Or any
            callable on a Pillow image (torchvision's transforms), or an Albumentations transform. None
            gives RGB arrays.
        decode: False gives the bytes of the files instead of images (of packed pixels, the array).
        labels: A CSV or JSON file, or a mapping, of file names (of packed files, keys) and labels, in place
            of class folders. Or the name of the data set of labels in an HDF5 file, or the ending of members
            that are labels in a tar. Samples without a label have -1.
        extensions: What the names of images end in.
        dtype: `torch.uint8` leaves the conversion to floats and the normalisation to the device.
        channels_last: Whether channels lie last in memory (`torch.channels_last`).
        pixel_limit: Images with more pixels are refused; by default those of which Pillow warns.
        place: Where steps run. "cpu": all of them with the workers. "device": all that can, from the first
            step on before which images have one size, on the loader's `device`, a whole batch at a time. Or
            the name or index of the first step to run there. The numbers drawn are the same; pixels differ
            by little (docs/device.md). `ds[i]` always runs all steps on the CPU.
        format: `"hdf5"`, `"tfrecord"`, `"tar"` or `"lmdb"`, where the first bytes of the files do not tell.
        images: The data set (or the group of data sets) of images in an HDF5 file, the ending of members
            that are images in a tar, or the database within an LMDB file.
        features: The features of a TFRecord's examples: `{"image": …, "label": …}`; ImageNet's by default.
        verify: False leaves out the checksums of TFRecord files, which are looked at when they are indexed.
        remote: How objects behind a URL are read: credentials, cache, deadline.

    """
    options = {"format": format, "images": images, "features": features, "verify": verify}
    source = open_source(path, labels, extensions=extensions, options=options, remote=remote)
    return ImageDataset(
        source,
        transform,
        decode,
        dtype=dtype,
        channels_last=channels_last,
        pixel_limit=pixel_limit,
        place=place,
    )


class _Native(Dataset[tuple[Any, int]]):
    """What native data sets share. `uniforms` is None for one whose transform is foreign."""

    uniforms: int | None = None
    releases_gil = False
    draws_nothing = False
    device_steps: Suffix | None = None
    _pipeline: Pipeline | None = None
    _before_device: Pipeline | None = None

    def _use(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.uniforms = pipeline.uniforms
        self.releases_gil, self.draws_nothing = pipeline.releases_gil, pipeline.draws_nothing

    def _cut(
        self,
        place: str | int,
        dtype: torch.dtype | None,
        channels_last: bool,
        pixel_limit: int | None,
        size: tuple[int, int] | None = None,
    ) -> None:
        """Leave the steps that `place` says to the device."""
        from rekindle.prepare.batched.suffix import Suffix
        from rekindle.prepare.place import find_cut
        from rekindle.prepare.tensors import PILToTensor

        assert self._pipeline is not None
        steps = self._pipeline.steps
        cut = find_cut(steps, place, size)
        if cut is not None:
            before, after = steps[:cut], steps[cut:]
            self.device_steps = Suffix(before, after, dtype=dtype, channels_last=channels_last)
            self._before_device = _pipeline([*before, PILToTensor()], None, False, pixel_limit, size)

    def before_device(self) -> Self:
        """The data set as workers see it if the last steps are the device's: bytes, channels first."""
        assert self._before_device is not None
        before = copy.copy(self)
        before._use(self._before_device)
        before.device_steps = before._before_device = None
        return before

    def example(self) -> tuple[Any, int] | None:
        """An image (of no meaning) and a label that look as all do; None if they do not all look alike."""
        if self._pipeline is None or self._pipeline.output is None:
            return None
        image = self._pipeline.output.empty(1)[0]
        return (image if self._pipeline.output.tensor else image.numpy()), 0

    @property
    def layers(self) -> tuple[Any, ...]:
        """The steps, as the smallest ones between which the pipeline can be cut; none if it is foreign."""
        return () if self._pipeline is None else self._pipeline.layers

    def cut(self, place: int) -> tuple[Pipeline, Pipeline]:
        """The pipeline in two: its first `place` layers, from `raw` to an image, and the rest."""
        assert self._pipeline is not None
        return self._pipeline.cut(place)

    @abstractmethod
    def raw(self, index: int) -> Any:
        """What the pipeline starts from: the bytes of a file, or an image in memory."""

    @abstractmethod
    def label(self, index: int) -> int:
        """The class number of a sample."""

    @abstractmethod
    def __len__(self) -> int:
        """How many images there are."""

    def _check(self, index: int) -> int:
        size = len(self)
        if 0 <= index < size:
            return index
        if -size <= index < 0:
            return index + size
        raise IndexError(f"index {index} is out of range: there are {size} samples")

    def _drawn(self) -> NDArray[np.float64]:
        """Numbers for a sample that is asked for by itself: from torch's generator, as torchvision draws."""
        return torch.rand(self.uniforms, dtype=torch.float64).numpy() if self.uniforms else _NO_NUMBERS


class ImageDataset(_Native):
    """Images of a source such as a folder or packed files, decoded and transformed; `open` makes one.

    `classes`, `class_to_idx`, `samples` and `targets` are as torchvision's `ImageFolder` has them.
    """

    def __init__(
        self,
        source: Source,
        transform: Any = None,
        decode: bool = True,
        *,
        dtype: torch.dtype | None = None,
        channels_last: bool = False,
        pixel_limit: int | None = None,
        place: str | int = "cpu",
    ) -> None:
        self.source, self.transform, self.decode = source, transform, decode
        self._size = len(source)  # asked for with each sample
        self._announces = hasattr(source, "prefetch") and getattr(source, "is_worth_prefetching", True)
        self._foreign: Callable[[Any], Any] | None = None
        self._pixel_limit = pixel_limit
        steps = _own_steps(transform) if decode else None
        if place != "cpu" and steps is None:
            raise ArgumentError(f"place={place!r} is for steps of rekindle.transforms.")
        if not decode:
            if transform is not None:
                raise ArgumentError(f"decode=False gives bytes, on which {transform!r} cannot work.")
            self.releases_gil = self.draws_nothing = True
            return
        if steps is None:
            if dtype is not None or channels_last:
                raise ArgumentError("dtype and channels_last are for steps of rekindle.transforms.")
            self._foreign = adapted(transform)
            return
        self._use(_pipeline(steps, dtype, channels_last, pixel_limit))
        if place != "cpu":
            self._cut(place, dtype, channels_last, pixel_limit)

    def __len__(self) -> int:
        return self._size

    @property
    def classes(self) -> list[str]:
        """The name of each class, by its number."""
        return self.source.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The number of each class, by its name."""
        return self.source.class_to_idx

    @property
    def samples(self) -> list[tuple[str, int]]:
        """Path and class number of each sample."""
        return self.source.samples

    imgs = samples  # torchvision's other name for it

    @property
    def targets(self) -> list[int]:
        """The class number of each sample."""
        return self.source.targets

    @property
    def fingerprint(self) -> str:
        """Changes with the samples, as far as can be seen without reading them: what caches on disk go by."""
        told = f"{self.source.version()} {self.samples}"
        return hashlib.blake2b(told.encode(errors="surrogateescape"), digest_size=16).hexdigest()

    def will_need(self, indices: Sequence[int]) -> None:
        """Let the source start to fetch samples that will be asked for soon, if it can."""
        if self._announces:
            self.source.prefetch([self._check(index) for index in indices])  # type: ignore[attr-defined]

    def __getitem__(self, index: int) -> tuple[Any, int]:
        index = self._check(index)
        if self._pipeline is not None:
            return self.sample(index, self._drawn())
        label = self.source.target(index)
        if self._foreign is None:
            return copied(self.source, index), label
        data = self.source.read(index)
        from rekindle.prepare.decode import PIXEL_LIMIT, decode

        try:
            if isinstance(data, np.ndarray):
                image = data.copy()  # It may lie in a file.
            else:
                image = decode(data, pixel_limit=self._pixel_limit or PIXEL_LIMIT)
        except DecodeError as error:
            raise self.located(error, index) from error
        return self._foreign(image), label

    def sample(self, index: int, numbers: NDArray[np.float64]) -> tuple[Any, int]:
        """(image, label), given `uniforms` numbers."""
        assert self._pipeline is not None
        index = self._check(index)
        try:
            return self._pipeline.make(self.source.read(index), numbers), self.source.target(index)
        except DecodeError as error:
            raise self.located(error, index) from error

    def write(self, index: int, numbers: NDArray[np.float64], out: NDArray[Any]) -> int:
        """Write the image to `out`, given `uniforms` numbers; returns the label."""
        assert self._pipeline is not None
        index = self._check(index)
        try:
            self._pipeline.run(self.source.read(index), numbers, out)
        except DecodeError as error:
            raise self.located(error, index) from error
        return self.source.target(index)

    def raw(self, index: int) -> Stored:
        return self.source.read(self._check(index))

    def label(self, index: int) -> int:
        return self.source.target(self._check(index))

    def encoded_lengths(self) -> NDArray[np.int64] | None:
        """The length of each file in bytes, where the source knows it: decoding takes about as long."""
        lengths = getattr(self.source, "lengths", None)
        return None if lengths is None else lengths()

    def with_transform(self, transform: Any) -> ImageDataset:
        """The same images with another transform."""
        return ImageDataset(self.source, transform, pixel_limit=self._pixel_limit)

    def located(self, error: DecodeError, index: int) -> DecodeError:
        """The error with the name of the file."""
        return DecodeError(f"{self.source.path(index)!r} (sample {index}): {error}")

    def __repr__(self) -> str:
        return (
            f"ImageDataset({str(self.source.root)!r}: {len(self):,} images, {len(self.classes):,} classes, "
            f"transform={self.transform!r})"
        )


class ArrayImages(_Native):
    """Images of one size that lie in memory, such as CIFAR-10, with labels: `ds[i]` is (image, label).

    Flips, crops, conversion and normalisation are one call for a whole batch.

    Args:
        images: An array of samples × height × width × 3 bytes.
        labels: A label for each.
        transform: Steps of `rekindle.transforms`, in a list or a Compose; None gives the arrays as they are.
        dtype: `torch.uint8` leaves the conversion to floats and the normalisation to the device.
        channels_last: Whether channels lie last in memory (`torch.channels_last`).
        place: Where steps run: "cpu", "device", or the first step to run on the device; as for `open`.

    """

    def __init__(
        self,
        images: NDArray[np.uint8],
        labels: Sequence[int] | NDArray[np.integer[Any]],
        transform: Any = None,
        *,
        dtype: torch.dtype | None = None,
        channels_last: bool = False,
        place: str | int = "cpu",
    ) -> None:
        array = np.asarray(images)
        if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3:
            raise ArgumentError(
                f"images are {array.dtype} {array.shape}. Give bytes (uint8), samples × height × width × 3."
            )
        self.images: NDArray[np.uint8] = np.ascontiguousarray(array)
        self._labels = np.asarray(labels, dtype=np.int64)
        if self._labels.shape != (len(array),):
            raise ArgumentError(
                f"{len(array)} images, but labels of shape {self._labels.shape}. Give one for each."
            )
        steps = _own_steps(transform)
        if steps is None:
            raise ArgumentError(f"transform is {transform!r}. Give steps of rekindle.transforms.")
        self.transform = transform
        size = array.shape[1:3]
        self._use(_pipeline(steps, dtype, channels_last, None, size))
        if place != "cpu":
            self._cut(place, dtype, channels_last, None, size)

    def _use(self, pipeline: Pipeline) -> None:
        super()._use(pipeline)
        vars(self).pop("write_many", None)
        if pipeline.runs_many():
            self.write_many = self._write_many

    def __len__(self) -> int:
        return len(self.images)

    @property
    def targets(self) -> list[int]:
        """The label of each sample."""
        targets: list[int] = self._labels.tolist()
        return targets

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.sample(self._check(index), self._drawn())

    def raw(self, index: int) -> NDArray[np.uint8]:
        image: NDArray[np.uint8] = self.images[self._check(index)]
        return image

    def label(self, index: int) -> int:
        return int(self._labels[self._check(index)])

    def sample(self, index: int, numbers: NDArray[np.float64]) -> tuple[Any, int]:
        """(image, label), given `uniforms` numbers."""
        assert self._pipeline is not None
        index = self._check(index)
        return self._pipeline.make_image(self.images[index], numbers), int(self._labels[index])

    def write(self, index: int, numbers: NDArray[np.float64], out: NDArray[Any]) -> int:
        """Write the image to `out`, given `uniforms` numbers; returns the label."""
        assert self._pipeline is not None
        index = self._check(index)
        self._pipeline.run_image(self.images[index], numbers, out)
        return int(self._labels[index])

    def _write_many(
        self, indices: Sequence[int], numbers: NDArray[np.float64], out: NDArray[Any]
    ) -> list[int]:
        """Write the images to the rows of `out`, given a row of numbers for each; returns the labels."""
        assert self._pipeline is not None
        chosen = np.asarray(indices, dtype=np.int64)
        self._pipeline.run_many(self.images, chosen, numbers, out)
        labels: list[int] = self._labels[chosen].tolist()
        return labels


def _own_steps(transform: Any) -> list[Any] | None:
    """The transform as steps of ours; None if it is something else."""
    if transform is None:
        return []
    own = "prepare.step" in {m.__module__.removeprefix("rekindle.") for m in type(transform).__mro__}
    if own:
        return [transform]
    if isinstance(transform, list | tuple):
        return list(transform)
    return None


def _pipeline(
    steps: Iterable[Any],
    dtype: torch.dtype | None,
    channels_last: bool,
    pixel_limit: int | None,
    size: tuple[int, int] | None = None,
) -> Pipeline:
    # Here and not above: compiled code and OpenCV take a second to load, which only users of images need.
    from rekindle.prepare.decode import PIXEL_LIMIT
    from rekindle.prepare.pipeline import Pipeline

    limit = PIXEL_LIMIT if pixel_limit is None else pixel_limit
    return Pipeline(steps, dtype=dtype, channels_last=channels_last, pixel_limit=limit, size=size)
