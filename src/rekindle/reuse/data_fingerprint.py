"""What identifies a dataset: names, sizes and times of its files, or its arrays."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sized

import numpy as np
import torch
from torch.utils.data import Subset

from rekindle.prepare.declared import fingerprint

_ARRAYS = ("data", "targets", "images", "labels", "tensors")


def data_fingerprint(dataset: object) -> str:
    """Equal for datasets that give the same samples, as far as can be seen without loading them.

    Looks at the files in `samples` and in other lists of files that it has (paths, or tuples that begin with
    one), and at arrays of the usual names. A dataset that knows better has an attribute `fingerprint`, a
    string.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in _parts(dataset):
        digest.update(part)
    return digest.hexdigest()


def _parts(dataset: object) -> Iterator[bytes]:
    declared = fingerprint(dataset)
    if declared is not None:
        yield declared.encode()
        return
    size = len(dataset) if isinstance(dataset, Sized) else "of unknown length"
    yield f"{type(dataset).__qualname__} {size}".encode()
    yield repr(getattr(dataset, "target_transform", None)).encode()
    if isinstance(dataset, Subset):
        yield np.asarray(dataset.indices).tobytes()
        yield from _parts(dataset.dataset)
        return
    for samples in _lists_of_files(dataset):
        for sample in samples:
            yield repr(sample).encode("utf-8", "surrogatepass")
            yield _file(_path(sample))
    for name in _ARRAYS:
        value = getattr(dataset, name, None)
        for array in value if isinstance(value, tuple) else (value,):
            if isinstance(array, torch.Tensor | np.ndarray):
                yield np.ascontiguousarray(array).tobytes()


def _lists_of_files(dataset: object) -> Iterator[list[object]]:
    """The attribute `samples`, and every other that is a list which begins with a file."""
    samples = getattr(dataset, "samples", None)
    if isinstance(samples, list):
        yield samples
    for _, value in sorted(getattr(dataset, "__dict__", {}).items()):
        if isinstance(value, list) and value and value is not samples and _file(_path(value[0])):
            yield value


def _path(sample: object) -> object:
    return sample[0] if isinstance(sample, tuple) and sample else sample


def _file(path: object) -> bytes:
    """Size and time of a file; nothing if this is no path, or no file is there."""
    if not isinstance(path, str | bytes | os.PathLike):  # An integer would be taken for an open file.
        return b""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return b""
    return f"{status.st_size} {status.st_mtime_ns}".encode()
