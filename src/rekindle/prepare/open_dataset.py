"""`open`: a dataset over a folder of images or packed files."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from rekindle.core.limits import DEFAULT_LIMITS, Limits
from rekindle.errors import ArgumentError
from rekindle.fetch.folder import IMAGE_EXTENSIONS
from rekindle.fetch.labels import Labels
from rekindle.fetch.open_source import open_source
from rekindle.fetch.remote.object_store import RemoteOptions
from rekindle.prepare.image_dataset import ImageDataset
from rekindle.prepare.native_images import Transform


def open(
    path: str | os.PathLike[str],
    transform: Transform = None,
    decode: bool = True,
    *,
    labels: str | os.PathLike[str] | Labels | None = None,
    extensions: tuple[str, ...] = IMAGE_EXTENSIONS,
    dtype: torch.dtype | None = None,
    channels_last: bool = False,
    limits: Limits = DEFAULT_LIMITS,
    place: str | int = "cpu",
    format: str | None = None,
    images: str | None = None,
    features: Mapping[str, str] | None = None,
    verify: bool | None = None,
    remote: RemoteOptions | None = None,
) -> ImageDataset:
    """A dataset over a folder of images or packed files: `ds[i]` is (image, label).

    Args:
        path: A folder of class folders, as for torchvision's `ImageFolder`, or a folder of images with
            `labels`. Or an HDF5, TFRecord, tar (WebDataset) or LMDB file, or many of one format:
            `"train-*.tfrecord"`, `"shards/{000..127}.tar"`. Any of them may be a URL: `"s3://…"`.
        transform: Steps of `rekindle.transforms`, in a list or a Compose: these run natively. Or any callable
            on a Pillow image (torchvision's transforms), or an Albumentations transform. None yields RGB
            arrays.
        decode: False yields the bytes of the files instead of images (for packed pixels, the array).
        labels: A CSV or JSON file, or a mapping, from file names (in packed files, keys) to labels, instead
            of class folders. Or the name of the dataset of labels in an HDF5 file, or the extension of the
            members that are labels in a tar file. Samples without a label have -1.
        extensions: The extensions of image files.
        dtype: `torch.uint8` leaves the conversion to floats and the normalization to the device.
        channels_last: Whether channels are last in memory (`torch.channels_last`).
        limits: What one sample may cost, in bytes and pixels; one that would cost more raises an error.
        place: Where steps run. "cpu": all of them in the workers. "device": as many as possible, from the
            first step before which images have one size, on the loader's `device`, a whole batch at a time.
            Or the name or index of the first step to run there. The random numbers are the same; pixels
            differ slightly (see the guide on augmentation on the device). `ds[i]` always runs all steps on
            the CPU.
        format: `"hdf5"`, `"tfrecord"`, `"tar"` or `"lmdb"`, if the first bytes of the files do not show it.
        images: The dataset (or the group of datasets) of images in an HDF5 file, the extension of the members
            that are images in a tar file, or the database within an LMDB file.
        features: The features of a TFRecord's examples: `{"image": …, "label": …}`; ImageNet's by default.
        verify: False skips the checksums of TFRecord files, which are verified when they are indexed.
        remote: How objects behind a URL are read: credentials, cache, deadline.

    """
    if not isinstance(limits, Limits):
        raise ArgumentError(f"limits is {limits!r}. Give rekindle.Limits(…).")
    options = {"format": format, "images": images, "features": features, "verify": verify}
    source = open_source(path, labels, extensions=extensions, options=options, remote=remote, limits=limits)
    return ImageDataset(
        source,
        transform,
        decode,
        dtype=dtype,
        channels_last=channels_last,
        limits=limits,
        place=place,
    )
