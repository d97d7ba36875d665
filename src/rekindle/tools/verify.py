"""`rekindle.verify`: whether every sample of a dataset can be read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice

import numpy as np

from rekindle.core.printable import printable
from rekindle.errors import DataError, RemoteError
from rekindle.fetch.packed.source import Packed
from rekindle.fetch.source import Source
from rekindle.tools.shared_arguments import ProgressCallback, Samples, as_source, progress_of, thread_count

_NO_CHECKSUMS = "there are no checksums: changed bytes that can still be decoded are not found"
_CHUNK = 32  # samples a task
_MOST_NAMED = 1000


@dataclass(frozen=True)
class SampleProblem:
    """A sample that is wrong: its index, where it is, and why."""

    sample: int
    path: str
    reason: str

    def __str__(self) -> str:
        where = f"{self.path}: "
        file, _, inside = self.path.rpartition(": ")
        if self.path in self.reason or (
            file and inside.startswith("byte ") and f"{file!r} at {inside}:" in self.reason
        ):
            where = ""  # The reason says it.
        return printable(f"sample {self.sample}: {where}{self.reason}")


@dataclass(frozen=True, repr=False)
class VerifyResult:
    """What `verify` found; prints as a list of what is wrong.

    Attributes:
        path: What was opened.
        samples: How many samples it has.
        bad: How many of them are wrong.
        first_bad: The first of these, at most 1,000.
        checksums: Whether each sample has a checksum that was verified. Without them (all but TFRecord, and
            HDF5 with fletcher32), bytes that were changed and can still be decoded are not found.

    """

    path: str
    samples: int
    bad: int
    first_bad: list[SampleProblem]
    checksums: bool

    @property
    def ok(self) -> bool:
        """Whether every sample can be read and has a valid label."""
        return not self.bad

    def to_dict(self) -> dict[str, object]:
        """Plain data, fit for JSON."""
        return {**asdict(self), "ok": self.ok}

    def __repr__(self) -> str:
        lines = [str(problem) for problem in self.first_bad]
        if self.bad > len(self.first_bad):
            lines.append(f"… and {self.bad - len(self.first_bad):,} more")
        verdict = f"{self.bad:,} bad"
        if self.ok:
            verdict = "all good" if self.checksums else f"all can be decoded ({_NO_CHECKSUMS})"
        return "\n".join([*lines, f"{printable(self.path)}: {self.samples:,} samples, {verdict}"])


def verify(
    source: Samples, *, workers: int | None = None, progress: bool | ProgressCallback = True
) -> VerifyResult:
    """Read and decode every sample, and check its checksum (where the format has one) and its label.

    Args:
        source: The path or URL of a folder or of packed files, or a dataset made by `rekindle.open`.
        workers: How many threads read and decode; one a core by default.
        progress: Whether to show a progress bar (on a terminal only), or a function that is called with the
            numbers of samples and bytes done since its last call.

    Returns:
        How many samples are wrong, and the first of them with the reason; `.ok` if none is.

    Raises:
        DataError: There is nothing at that path, or it cannot be read.
        FormatError: A packed file is damaged in such a way that its samples cannot be found: the message
            names the file and the offset.

    Example:
        >>> import os, tempfile
        >>> from PIL import Image
        >>> import rekindle as rk
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     os.makedirs(f"{folder}/cat")
        ...     for number in range(3):
        ...         Image.new("RGB", (64, 48)).save(f"{folder}/cat/{number}.png")
        ...     os.truncate(f"{folder}/cat/1.png", 60)
        ...     found = rk.verify(folder)
        >>> found.ok, found.samples, [problem.sample for problem in found.first_bad]
        (False, 3, [1])

    """
    threads = thread_count(workers)
    opened = as_source(source)
    checksums = False
    if isinstance(opened, Packed):
        opened = opened.indexed_again()
        checksums = opened.has_checksums
    first_bad: list[SampleProblem] = []
    bad = 0
    with progress_of(progress, "verifying", opened) as report:
        for chunk in _checked(opened, threads):
            bad += len(chunk.problems)
            first_bad += chunk.problems[: _MOST_NAMED - len(first_bad)]
            report(chunk.samples, chunk.nbytes)
    return VerifyResult(os.fspath(opened.root), len(opened), bad, first_bad, checksums)


@dataclass(frozen=True)
class _Chunk:
    """Some samples that were checked: how many, how many bytes, and what is wrong."""

    samples: int
    nbytes: int
    problems: list[SampleProblem]


def _checked(source: Source, workers: int) -> Iterator[_Chunk]:
    """All samples, checked by several threads, in order."""
    some_labelled = any(target >= 0 for target in source.targets)
    chunks = iter(range(start, min(start + _CHUNK, len(source))) for start in range(0, len(source), _CHUNK))
    with ThreadPoolExecutor(workers, thread_name_prefix="rekindle-verify") as pool:

        def submit(indices: range) -> Future[_Chunk]:
            source.prefetch(indices)
            return pool.submit(_check, source, indices, some_labelled)

        waiting = [submit(indices) for indices in islice(chunks, 2 * workers)]
        while waiting:
            yield waiting.pop(0).result()
            waiting += [submit(indices) for indices in islice(chunks, 1)]


def _check(source: Source, indices: range, some_labelled: bool) -> _Chunk:
    classes = len(source.classes)
    problems, nbytes = [], 0
    for index in indices:
        try:
            nbytes += _decoded_size(source, index)
        except (DataError, RemoteError, OSError) as error:
            problems.append(SampleProblem(index, source.path(index), str(error)))
            continue
        label = source.target(index)
        if label >= classes or (label < 0 and some_labelled):
            reason = f"the label is {label}, but must be from 0 to {classes - 1}"
            problems.append(SampleProblem(index, source.path(index), reason))
    return _Chunk(len(indices), nbytes, problems)


def _decoded_size(source: Source, index: int) -> int:
    """How many bytes a sample has as it is stored; DecodeError if it cannot be decoded to its end."""
    stored = source.copy(index)
    if isinstance(stored, np.ndarray):
        return stored.nbytes
    from rekindle.prepare.decode.decode import decode

    decode(stored)
    return len(stored)
