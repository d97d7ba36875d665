"""`rekindle.pack`: the samples of any source as packed files, smaller or partly decoded if asked for.

All work happens in a hidden folder beside the target, and what is finished there is kept: a second run
resumes where a killed one stopped. Files get their names only when all of them are complete. The same source
and options give the same bytes, however often a run was interrupted.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from rekindle.core.given_numbers import integer_of
from rekindle.errors import ArgumentError, DataError, RekindleError
from rekindle.fetch.packed.source import Packed
from rekindle.fetch.packed.writers import WRITTEN_EXTENSIONS
from rekindle.fetch.remote.object_store import is_url
from rekindle.fetch.remote.redact import without_secrets
from rekindle.fetch.source import Source
from rekindle.tools.image_recipe import Recipe
from rekindle.tools.pack_shards import ShardPacker
from rekindle.tools.pack_workspace import workspace
from rekindle.tools.shared_arguments import ProgressCallback, Samples, as_source, progress_of, thread_count

_VERSION = 2


@dataclass(frozen=True)
class PackResult:
    """What `pack` has written.

    Attributes:
        files: The files, in the order of their samples.
        samples: How many samples they hold.
        left_out: With `skip_broken`, which samples could not be read, and why.
        nbytes: The size of all files.

    """

    files: list[Path]
    samples: int
    left_out: list[str]
    nbytes: int


def pack(
    source: Samples,
    target: str | os.PathLike[str],
    *,
    resize: int | None = None,
    quality: int | None = None,
    raw_share: float = 0.0,
    shards: int = 1,
    workers: int | None = None,
    overwrite: bool = False,
    skip_broken: bool = False,
    progress: bool | ProgressCallback = True,
) -> PackResult:
    """Write a dataset of images to an HDF5, TFRecord, tar (WebDataset) or LMDB file, or to shards of one.

    Images are stored as they are, unless `resize`, `quality` or `raw_share` ask for something else. `target`
    appears when it is complete. A run that was interrupted or killed resumes when it is called again with the
    same arguments; its work lies in a hidden folder beside `target` until then.

    Args:
        source: What to pack: the path or URL of a folder or of packed files, or a dataset made by
            `rekindle.open` (whose transform does not matter here).
        target: The file to write. Its name ends in .h5, .hdf5, .tfrecord, .tfrecords, .tar or .lmdb.
        resize: Shrink images whose longer side has more pixels than this; they become JPEGs.
        quality: Store every image as a JPEG of this quality, 1 to 100. None keeps images that need no
            resizing as they are; resized ones get 90.
        raw_share: The share of images, 0 to 1 and evenly spread, to store as pixels (binary PPM): more bytes,
            no decoding.
        shards: How many files to write: `train.tar` becomes `train-00000-of-00008.tar` and so on.
        workers: How many threads prepare images; one a core by default.
        overwrite: Whether to replace files that exist.
        skip_broken: Whether to decode every image and leave out those that cannot be, instead of stopping at
            the first that cannot be read.
        progress: Whether to show a progress bar (on a terminal only), or a function that is called with the
            numbers of samples and bytes done since its last call.

    Returns:
        The files, how many samples and bytes they hold, and what was left out.

    Raises:
        ArgumentError: An argument cannot work, `target` exists, or another process is writing it.
        DataError: An image or file of the source cannot be read, or `target` cannot be written.

    Example:
        >>> import os, tempfile
        >>> from PIL import Image
        >>> import rekindle as rk
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("cat", "dog"):
        ...         os.makedirs(f"{folder}/train/{name}")
        ...         Image.new("RGB", (64, 48)).save(f"{folder}/train/{name}/0.png")
        ...     result = rk.pack(f"{folder}/train", f"{folder}/train.tar", resize=32, shards=2)
        ...     [file.name for file in result.files], result.samples
        ...     image, label = rk.open(f"{folder}/train-*.tar")[1]
        ...     image.shape, label
        (['train-00000-of-00002.tar', 'train-00001-of-00002.tar'], 2)
        ((24, 32, 3), 1)

    """
    recipe = Recipe(resize, quality, raw_share)
    threads = thread_count(workers)
    path = _local(target)
    samples = as_source(source)
    shards = _checked_shards(samples, shards)
    _check(samples, path)
    names = shard_names(path, shards)
    with _writing(path), workspace(path) as work:
        plan = _plan(samples, recipe, shards, skip_broken)
        resumes = work.is_for(plan)
        existing = [name for name in names if name.exists()]
        if existing and not overwrite and not (resumes and work.is_complete):
            raise ArgumentError(
                f"{str(existing[0])!r} exists. Remove it, or replace it with overwrite=True (--overwrite)."
            )
        work.check_replaceable(existing)
        if resumes:
            work.resume()
        else:
            work.restart(plan)
        with progress_of(progress, "packing", samples) as report:
            packer = ShardPacker(samples, sample_keys(samples), recipe, work, skip_broken, threads, report)
            bounds = [len(samples) * number // shards for number in range(shards + 1)]
            done = packer.pack(names, list(pairwise(bounds)))
        work.publish(names)
    left_out = [reason for shard in done for reason in shard.left_out]
    return PackResult(names, sum(shard.samples for shard in done), left_out, sum(map(_size, names)))


def shard_names(target: Path, shards: int) -> list[Path]:
    """The files that a target in so many shards consists of.

    >>> [str(name) for name in shard_names(Path("train.tar"), 2)]
    ['train-00000-of-00002.tar', 'train-00001-of-00002.tar']
    """
    if shards == 1:
        return [target]
    return [
        target.with_name(f"{target.stem}-{number:05}-of-{shards:05}{target.suffix}")
        for number in range(shards)
    ]


def sample_keys(source: Source) -> list[str]:
    """A unique name for each sample: its own, without its ending where it is unique without it.

    NULs, at which names end in a tar and in HDF5, are replaced.
    """
    size = len(source)
    if isinstance(source, Packed):
        keys = [source.key(index).replace("\0", "_") or f"{index:08}" for index in range(size)]
    else:
        root = os.path.join(os.fspath(source.root), "")
        paths = [source.path(index).removeprefix(root) for index in range(size)]
        stems = [os.path.splitext(path)[0] for path in paths]
        seen = Counter(stems)
        keys = [stem if seen[stem] == 1 else path for stem, path in zip(stems, paths, strict=True)]
    if len(set(keys)) < size:
        keys = [f"{index:08}_{key}" for index, key in enumerate(keys)]
    return keys


def _local(target: str | os.PathLike[str]) -> Path:
    if is_url(os.fspath(target)):
        raise ArgumentError(
            f"target is {without_secrets(os.fspath(target))!r}, but must be a file on this machine. "
            "Pack to a local file, then upload it."
        )
    path = Path(target)
    if path.suffix.lower() not in WRITTEN_EXTENSIONS:
        raise ArgumentError(
            f"{str(path)!r} does not end in a format's name. Let it end in {', '.join(WRITTEN_EXTENSIONS)}."
        )
    return path


def _checked_shards(source: Source, shards: object) -> int:
    count = integer_of(shards)
    if count is None or not 1 <= count <= max(len(source), 1):
        raise ArgumentError(
            f"shards (--shards) must be an integer from 1 to {len(source):,}, the number of samples, but got "
            f"{shards!r}"
        )
    return count


def _check(source: Source, target: Path) -> None:
    if not len(source):
        raise DataError(f"{os.fspath(source.root)!r} holds no samples.")
    if not target.parent.is_dir():
        raise ArgumentError(f"there is no folder {str(target.parent)!r} to write to. Make it first.")


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Turn an OSError into a DataError that says what could not be written."""
    try:
        yield
    except RekindleError:
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = " Free some space and pack again: it resumes where it stopped." if full else ""
        raise DataError(f"cannot write {str(target)!r}: {error.strerror or error}.{hint}") from error


def _plan(source: Source, recipe: Recipe, shards: int, skip_broken: bool) -> dict[str, object]:
    """What must be equal in two runs for the second to resume the first."""
    digest = hashlib.sha256()
    for path, target in source.samples:
        digest.update(f"{path}\0{target}\0".encode("utf-8", "surrogateescape"))
    digest.update(source.version().encode())
    return {
        "version": _VERSION,
        "source": digest.hexdigest(),
        "classes": source.classes,
        "recipe": asdict(recipe),
        "shards": shards,
        "skip_broken": skip_broken,
    }


def _size(path: Path) -> int:
    files = [one for one in path.rglob("*") if one.is_file()] if path.is_dir() else [path]
    return sum(one.stat().st_size for one in files)
