"""Arguments that `pack`, `info` and `verify` share: where samples come from, how progress is shown."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeAlias

from rekindle.core.available_cores import available_cores
from rekindle.core.given_numbers import integer_of
from rekindle.core.progress import progress_bar
from rekindle.errors import ArgumentError
from rekindle.fetch.folder import Folder
from rekindle.fetch.open_source import open_source
from rekindle.fetch.packed.source import Packed
from rekindle.fetch.remote.folder import RemoteFolder
from rekindle.fetch.source import Source

if TYPE_CHECKING:
    from rekindle.prepare.image_dataset import ImageDataset

Samples: TypeAlias = "str | os.PathLike[str] | ImageDataset | Source"
# Called with how many samples and bytes were done since the last call.
ProgressCallback: TypeAlias = Callable[[int, int], None]


def as_source(samples: Samples) -> Source:
    """The source that a path, a URL or a dataset of `rekindle.open` reads from; ArgumentError for others."""
    if isinstance(samples, str | os.PathLike):
        return open_source(samples, unlabelled=True)
    if isinstance(samples, Folder | Packed | RemoteFolder):
        return samples
    # Here and not above: datasets need torch, which takes seconds to load and a source does not need.
    from rekindle.prepare.image_dataset import ImageDataset

    if isinstance(samples, ImageDataset):
        return samples.source
    if isinstance(samples, Source):
        return samples
    raise ArgumentError(
        f"cannot read samples from {samples!r}. Give the path or URL of a folder or of packed files, or a "
        "dataset made by rekindle.open."
    )


def progress_of(
    progress: bool | ProgressCallback, title: str, source: Source
) -> AbstractContextManager[ProgressCallback]:
    """What to call with the progress made: a bar on a terminal, nothing, or the user's own function."""
    if callable(progress):
        return nullcontext(progress)
    return progress_bar(title, len(source), quiet=not progress)


def thread_count(workers: int | None) -> int:
    """How many threads to start: one a core that this process may use, unless `workers` is given."""
    if workers is None:
        return available_cores()
    count = integer_of(workers)
    if count is None or count < 1:
        raise ArgumentError(f"workers must be a positive integer or None, but got {workers!r}")
    return count
