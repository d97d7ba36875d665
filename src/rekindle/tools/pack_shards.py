"""Writes the shards of a pack: threads prepare samples, one writer a shard takes them in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from pathlib import Path

from rekindle.errors import DataError, RemoteError
from rekindle.fetch.packed.writers import Writer, writer_for
from rekindle.fetch.remote.object_store import is_url
from rekindle.fetch.source import Source
from rekindle.tools import image_recipe, pack_spool
from rekindle.tools.image_recipe import Recipe
from rekindle.tools.pack_spool import SpooledSample
from rekindle.tools.pack_workspace import ShardSummary, Workspace
from rekindle.tools.shared_arguments import ProgressCallback

_CHUNK = 64  # samples that are prepared, and spooled for a later run, together


class ShardPacker:
    """One run of `pack`, in its working folder."""

    def __init__(
        self,
        source: Source,
        keys: Sequence[str],
        recipe: Recipe,
        work: Workspace,
        skip_broken: bool,
        workers: int,
        report: ProgressCallback,
    ) -> None:
        self._source, self._keys, self._recipe, self._work = source, keys, recipe, work
        self._skip_broken, self._workers, self._report = skip_broken, workers, report
        # A plain copy of local files costs as much to spool as to make again.
        self._spools = not recipe.is_plain or is_url(os.fspath(source.root))

    def pack(self, shards: Sequence[Path], bounds: Sequence[tuple[int, int]]) -> list[ShardSummary]:
        """Write the samples between each pair of bounds to a shard in the working folder, unless it is there.

        While one shard is finished, which waits for the disk, samples of the next are prepared.
        """
        earlier = [self._work.finished(shard) for shard in shards]
        missing = [ends for summary, ends in zip(earlier, bounds, strict=True) if summary is None]
        done: list[ShardSummary] = []
        with closing(self._chunks(missing)) as chunks:
            for shard, summary, (start, stop) in zip(shards, earlier, bounds, strict=True):
                if summary is not None:
                    done.append(summary)
                    self._report(stop - start, summary.nbytes)
                    continue
                firsts = range(start, stop, _CHUNK)
                done.append(self._write(shard, islice(chunks, len(firsts))))
                self._work.finish(shard, done[-1])
                for first in firsts:
                    self._work.folder.discard(_spool(first))
        return done

    def _write(self, shard: Path, chunks: Iterable[list[SpooledSample]]) -> ShardSummary:
        writer = writer_for(shard.name, self._source.classes or None, self._work.folder)
        left_out: list[str] = []
        samples = nbytes = 0
        try:
            for chunk in chunks:
                added = _add(writer, chunk, left_out)
                samples += len(chunk)
                nbytes += added
                self._report(len(chunk), added)
            writer.close()
        except BaseException:
            writer.abort()
            raise
        return ShardSummary(samples - len(left_out), left_out, nbytes)

    def _chunks(self, bounds: Sequence[tuple[int, int]]) -> Generator[list[SpooledSample], None, None]:
        """The samples in order, prepared by several threads at once, a few chunks ahead."""
        waiting: deque[Future[list[SpooledSample]]] = deque()
        with ThreadPoolExecutor(self._workers, thread_name_prefix="rekindle-pack") as pool:
            try:
                for start, stop in bounds:
                    for first in range(start, stop, _CHUNK):
                        last = min(first + _CHUNK, stop)
                        if self._work.folder.stat(_spool(first)) is None:
                            self._source.prefetch(range(first, last))
                        waiting.append(pool.submit(self._prepare, first, last))
                        if len(waiting) > 2 * self._workers:
                            yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def _prepare(self, first: int, last: int) -> list[SpooledSample]:
        if not self._spools:
            return [self._sample(index) for index in range(first, last)]
        spooled = pack_spool.read(self._work.folder, _spool(first))
        if spooled is not None:
            return spooled
        samples = [self._sample(index) for index in range(first, last)]
        pack_spool.write(self._work.folder, _spool(first), samples)
        return samples

    def _sample(self, index: int) -> SpooledSample:
        label = self._source.target(index)
        try:
            stored = self._source.copy(index)
            data = image_recipe.prepare(stored, index, self._recipe, check=self._skip_broken)
        except RemoteError:  # Not the sample's fault: a later run may be able to read it.
            raise
        except (DataError, OSError) as error:
            cause = (error.strerror if isinstance(error, OSError) else None) or error
            reason = f"{self._source.path(index)!r} (sample {index}): {cause}"
            if self._skip_broken:
                return SpooledSample(reason, None, label)
            raise DataError(
                f"{reason.removesuffix('.')}. Remove it, or leave it out with skip_broken=True "
                "(--skip-broken); a second run resumes where this one stopped."
            ) from error
        return SpooledSample(self._keys[index], data, label)


def _spool(first: int) -> str:
    """The file that keeps the samples from this one on."""
    return f"piece-{first:012}"


def _add(writer: Writer, samples: Sequence[SpooledSample], left_out: list[str]) -> int:
    """Write samples, and add why others could not be read to `left_out`; how many bytes were written."""
    nbytes = 0
    for sample in samples:
        if sample.data is None:
            left_out.append(sample.key)
        else:
            writer.add(sample.key, sample.data, sample.label)
            nbytes += len(sample.data)
    return nbytes
