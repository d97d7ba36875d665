"""`rekindle pack`: the samples of any source, made smaller or partly decoded if asked for, as packed files.

All work happens in a hidden folder beside the target, and what is finished there is kept: a second run goes
on where a killed one was. Files get their names only when all of them are whole. The same source and options
give the same bytes, however often a run was interrupted.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from rekindle import recipes, spool
from rekindle.errors import ArgumentError, DataError, RekindleError, RemoteError
from rekindle.fetch.remote_store import is_url
from rekindle.fetch.source import Source, copied
from rekindle.fetch.writers import WRITTEN_ENDINGS, Writer, writer_for
from rekindle.recipes import Recipe
from rekindle.spool import Record

_TOGETHER = 64  # samples that are prepared, and kept for a second run, as one piece
_VERSION = 1


@dataclass(frozen=True)
class Packed:
    """What a run has written."""

    files: list[Path]
    samples: int
    left_out: list[str]  # why, of each sample that could not be read, if those are to be left out
    nbytes: int


Progress = Callable[[int, int], None]  # samples and bytes more than before


def pack(
    source: Source,
    target: Path,
    recipe: Recipe = recipes.AS_IT_IS,
    *,
    shards: int = 1,
    workers: int | None = None,
    overwrite: bool = False,
    skip_broken: bool = False,
    told: Progress = lambda samples, nbytes: None,
) -> Packed:
    """Write all samples to `target`, or to so many shards of it: `train-00000-of-00008.tar`."""
    _check(source, target, shards)
    names = shard_names(target, shards)
    work = target.parent / f".{target.name}.packing"
    with _writing(target), _alone_in(work):
        plan = _plan(source, recipe, shards, skip_broken)
        going_on = _same_plan(work, plan)
        if not (going_on and (work / "complete").exists()):
            there = [name for name in names if name.exists()]
            if there and not overwrite:
                raise ArgumentError(f"{str(there[0])!r} is there already. Remove it, or say --overwrite.")
        if going_on:
            _remove_unfinished(work)
        else:
            _begin_anew(work, plan)
        run = _Run(source, target, recipe, work, skip_broken, workers or os.cpu_count() or 1, told)
        bounds = [len(source) * number // shards for number in range(shards + 1)]
        done = run.shards(names, list(pairwise(bounds)))
        (work / "complete").touch()
        _move(work, names)
        shutil.rmtree(work)
    left_out = [reason for shard in done for reason in shard["left_out"]]
    samples = sum(shard["samples"] for shard in done)
    return Packed(names, samples, left_out, sum(map(_size, names)))


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


def _check(source: Source, target: Path, shards: int) -> None:
    if target.suffix.lower() not in WRITTEN_ENDINGS:
        raise ArgumentError(
            f"cannot tell a format from {str(target)!r}. Let the name end in {', '.join(WRITTEN_ENDINGS)}."
        )
    if not 1 <= shards <= max(len(source), 1):
        raise ArgumentError(f"--shards must be from 1 to the {len(source):,} samples, but got {shards}")
    if not len(source):
        raise DataError(f"{os.fspath(source.root)!r} holds no samples.")
    if not target.parent.is_dir():
        raise ArgumentError(f"there is no folder {str(target.parent)!r} to write to.")


class _Run:
    """One run of packing."""

    def __init__(
        self,
        source: Source,
        target: Path,
        recipe: Recipe,
        work: Path,
        skip_broken: bool,
        workers: int,
        told: Progress,
    ) -> None:
        self._source, self._target, self._recipe, self._work = source, target, recipe, work
        self._skip_broken, self._workers, self._told = skip_broken, workers, told
        self._keys = sample_keys(source)
        # A plain copy of what is on this machine costs as much to keep as to make again.
        self._spooled = not recipe.is_plain or is_url(os.fspath(source.root))

    def shards(self, names: Sequence[Path], bounds: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
        """Write the samples between each two bounds to a file in the working folder, unless it is there.

        While one shard is finished, which waits for the disk, samples of the next are prepared.
        """
        paths = [self._work / f"{name.name}.json" for name in names]
        notes = [self._note(name, path) for name, path in zip(names, paths, strict=True)]
        missing = [ends for note, ends in zip(notes, bounds, strict=True) if note is None]
        done: list[dict[str, Any]] = []
        with closing(self._pieces(missing)) as pieces:
            for name, path, note, (start, stop) in zip(names, paths, notes, bounds, strict=True):
                if note is not None:
                    done.append(note)
                    self._told(stop - start, note["nbytes"])
                    continue
                firsts = range(start, stop, _TOGETHER)
                done.append(self._shard(name, islice(pieces, len(firsts))))
                spool.write_whole(path, [json.dumps(done[-1]).encode()])
                for first in firsts:
                    self._piece(first).unlink(missing_ok=True)
        return done

    def _note(self, name: Path, path: Path) -> dict[str, Any] | None:
        """What an earlier run wrote about a shard that it finished and that is still there, or None."""
        moved = (self._work / "complete").exists() and name.exists()
        return _read_note(path) if moved or (self._work / name.name).exists() else None

    def _shard(self, name: Path, pieces: Iterable[list[Record]]) -> dict[str, Any]:
        writer = writer_for(self._work / name.name, self._source.classes or None)
        left_out: list[str] = []
        samples = nbytes = 0
        try:
            for records in pieces:
                added = self._add(writer, records, left_out)
                samples += len(records)
                nbytes += added
                self._told(len(records), added)
            writer.close()
        except BaseException:
            writer.abort()
            raise
        return {"samples": samples - len(left_out), "left_out": left_out, "nbytes": nbytes}

    def _add(self, writer: Writer, records: Sequence[Record], left_out: list[str]) -> int:
        nbytes = 0
        for record in records:
            if record.data is None:
                left_out.append(record.key)
            else:
                writer.add(record.key, record.data, record.label)
                nbytes += len(record.data)
        return nbytes

    def _pieces(self, bounds: Sequence[tuple[int, int]]) -> Generator[list[Record], None, None]:
        """The records in order, prepared by several threads at once, a few pieces ahead."""
        waiting: deque[Future[list[Record]]] = deque()
        prefetch = getattr(self._source, "prefetch", None)
        with ThreadPoolExecutor(self._workers, thread_name_prefix="rekindle-pack") as pool:
            try:
                for start, stop in bounds:
                    for first in range(start, stop, _TOGETHER):
                        last = min(first + _TOGETHER, stop)
                        if prefetch is not None and not self._piece(first).exists():
                            prefetch(range(first, last))
                        waiting.append(pool.submit(self._prepare, first, last))
                        if len(waiting) > 2 * self._workers:
                            yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def _piece(self, first: int) -> Path:
        return self._work / f"piece-{first:012}"

    def _prepare(self, first: int, last: int) -> list[Record]:
        if not self._spooled:
            return [self._record(index) for index in range(first, last)]
        piece = self._piece(first)
        kept = spool.read(piece)
        if kept is not None:
            return kept
        records = [self._record(index) for index in range(first, last)]
        spool.write(piece, records)
        return records

    def _record(self, index: int) -> Record:
        label = self._source.target(index)
        try:
            data = recipes.prepare(copied(self._source, index), index, self._recipe)
        except RemoteError:  # Not the sample's fault: it may be read the next time.
            raise
        except (DataError, OSError) as error:
            told = getattr(error, "strerror", None) or error
            reason = f"{self._source.path(index)!r} (sample {index}): {told}"
            if self._skip_broken:
                return Record(reason, None, label)
            raise DataError(
                f"{reason}. Remove it, or say --skip-broken; what is done is kept for the next run."
            ) from error
        return Record(self._keys[index], data, label)


def sample_keys(source: Source) -> list[str]:
    """A name for each sample: its own, without what it ends in where that leaves it unique, and without NULs,
    at which names end in a tar and in HDF5.
    """
    named: Callable[[int], str] | None = getattr(source, "key", None)
    size = len(source)
    if named is not None:
        keys = [named(index).replace("\0", "_") or f"{index:08}" for index in range(size)]
    else:
        root = os.path.join(os.fspath(source.root), "")
        paths = [source.path(index).removeprefix(root) for index in range(size)]
        stems = [os.path.splitext(path)[0] for path in paths]
        seen = Counter(stems)
        keys = [stem if seen[stem] == 1 else path for stem, path in zip(stems, paths, strict=True)]
    if len(set(keys)) < size:
        keys = [f"{index:08}_{key}" for index, key in enumerate(keys)]
    return keys


# The working folder.


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Say what could not be written, and what to do."""
    try:
        yield
    except RekindleError:
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = " Make room, and run the same command again to go on." if full else ""
        raise DataError(f"cannot write {str(target)!r}: {error.strerror or error}.{hint}") from error


@contextmanager
def _alone_in(work: Path) -> Iterator[None]:
    """Hold the working folder for this process; ArgumentError if another one is at work there."""
    work.mkdir(exist_ok=True)
    with (work / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArgumentError(f"another `rekindle pack` is at work in {str(work)!r}.") from None
        yield


def _plan(source: Source, recipe: Recipe, shards: int, skip_broken: bool) -> dict[str, Any]:
    """What a run must agree in with an earlier one to go on with its work."""
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


def _same_plan(work: Path, plan: dict[str, Any]) -> bool:
    try:
        return bool(json.loads((work / "plan.json").read_text()) == plan)
    except (OSError, ValueError):
        return False


def _read_note(path: Path) -> dict[str, Any] | None:
    """What an earlier run wrote about a shard that it finished; None if there is nothing whole."""
    try:
        note: dict[str, Any] = json.loads(path.read_text())
        return note
    except (OSError, ValueError):
        return None


def _remove_unfinished(work: Path) -> None:
    """Remove what a killed run was writing; what it finished stays."""
    for path in work.glob(".*"):
        if path.suffix in (".part", ".old"):
            _remove(path)


def _begin_anew(work: Path, plan: dict[str, Any]) -> None:
    # Without its plan nothing of the earlier run counts, if this is interrupted as well.
    (work / "plan.json").unlink(missing_ok=True)
    for path in work.iterdir():
        if path.name != "lock":
            _remove(path)
    spool.write_whole(work / "plan.json", [json.dumps(plan).encode()])


def _move(work: Path, names: Sequence[Path]) -> None:
    """Give the finished files, or folders, their names; an earlier run may have done so with some.

    Of several, all that have been there before go first: a mixture of both would look like a whole set.
    """
    made = {name: work / name.name for name in names if (work / name.name).exists()}
    for name in made:
        if len(names) > 1 or name.is_dir():
            _remove(name)
    for name, path in made.items():
        os.replace(path, name)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    files = [one for one in path.rglob("*") if one.is_file()] if path.is_dir() else [path]
    return sum(one.stat().st_size for one in files)
