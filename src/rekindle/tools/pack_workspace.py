"""The hidden folder that `pack` works in: what is finished there survives a killed run.

It is private to the user, since what is found in it is believed, and all in it is deleted in the end. Beside
the shards it holds `lock` (one run at a time), `plan.json` (only a run with the same plan resumes), a
`NAME.json` for each finished shard, and `complete` once all of them are.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rekindle.core import atomic_file
from rekindle.core.directory import MARKER, Directory, NotPrivateError, PrivateDirectory, Subdirectory
from rekindle.errors import ArgumentError
from rekindle.fetch.packed.lmdb.writer import FILES as LMDB_FILES
from rekindle.tools import pack_spool


@dataclass(frozen=True)
class ShardSummary:
    """What a finished shard holds."""

    samples: int
    left_out: list[str]
    nbytes: int


_MOST_VANISHED = 100  # times in a row; more than that is no accident


class Workspace:
    """The working folder of one target, held by this process."""

    def __init__(self, folder: PrivateDirectory, parent: Directory) -> None:
        self.folder, self._parent = folder, parent

    @property
    def is_complete(self) -> bool:
        """Whether all shards are finished, and only have to be moved."""
        return self.folder.stat("complete") is not None

    def is_for(self, plan: Mapping[str, object]) -> bool:
        """Whether what is here was made by the same plan."""
        try:
            return bool(json.loads(self.folder.read("plan.json")) == plan)
        except (OSError, ValueError):
            return False

    def restart(self, plan: Mapping[str, object]) -> None:
        """Remove all earlier work."""
        # The plan goes first: without it, what an interrupt leaves here counts for nothing.
        self.folder.discard("plan.json")
        self.folder.clear(keep=(MARKER, "lock"))
        pack_spool.write_whole(self.folder, "plan.json", [json.dumps(plan).encode()])

    def resume(self) -> None:
        """Remove what a killed run was still writing; what it finished stays."""
        for name in self.folder.names():
            if name.startswith(".") and name.endswith((".part", ".old")):
                self.folder.remove_any(name)

    def finished(self, shard: Path) -> ShardSummary | None:
        """What an earlier run finished of a shard; None if there is none, or its summary is damaged."""
        moved = self.is_complete and shard.exists()
        if not moved and self.folder.stat(shard.name) is None:
            return None
        try:
            return ShardSummary(**json.loads(self.folder.read(f"{shard.name}.json")))
        except (OSError, ValueError, TypeError):
            return None

    def finish(self, shard: Path, summary: ShardSummary) -> None:
        """Note that a shard is written."""
        pack_spool.write_whole(self.folder, f"{shard.name}.json", [json.dumps(asdict(summary)).encode()])

    def check_replaceable(self, shards: Sequence[Path]) -> None:
        """Raise ArgumentError if one of these is a folder that holds more than an LMDB database."""
        for shard in shards:
            if shard.is_dir() and not shard.is_symlink():
                try:
                    Subdirectory(shard.name, self._parent).check_holds(LMDB_FILES)
                except FileExistsError as error:
                    raise ArgumentError(
                        f"the folder {str(shard)!r} is not replaced: {error.strerror}, which is not LMDB's. "
                        "Move that, or pack to another name."
                    ) from error

    def publish(self, shards: Sequence[Path]) -> None:
        """Move all shards to where they belong, and remove the working folder.

        Of several, all that were there before go first: a mix of old and new would look complete. An
        interrupted run may have moved some already.
        """
        pack_spool.write_whole(self.folder, "complete", [])
        made = [shard.name for shard in shards if self.folder.stat(shard.name) is not None]
        for name in made:
            state = self._parent.stat(name)
            if state is not None and stat.S_ISDIR(state.st_mode):
                self._parent.remove_folder(name, LMDB_FILES)
            elif len(shards) > 1:
                self._parent.discard(name)
        for name in made:
            atomic_file.replace(self.folder, name, self._parent, name)
        self._parent.remove_private(self.folder.path.name)


@contextmanager
def workspace(target: Path) -> Iterator[Workspace]:
    """Hold the working folder of a target; ArgumentError if another process does."""
    parent = Directory(target.parent)
    vanished = 0
    while True:
        folder = PrivateDirectory(f".{target.name}.packing", parent)
        try:
            if not folder.make().is_marked:
                raise NotPrivateError(errno.EPERM, "it was not made by rekindle pack", str(folder.path))
            lock = folder.lock("lock")
        except NotPrivateError as error:
            raise ArgumentError(
                f"cannot pack to {str(target)!r}: its working folder would be {error.filename!r}, but "
                f"{error.strerror}. Remove that, or pack to another folder."
            ) from error
        except BlockingIOError:
            raise ArgumentError(
                f"another process is packing {str(target)!r} (it holds {str(folder.path)!r})."
            ) from None
        except FileNotFoundError:  # Another process has just finished, and deleted it.
            vanished += 1
            if vanished == _MOST_VANISHED:  # Nothing can be made there, in /proc for instance.
                raise
            continue
        try:
            if folder.is_in_place:
                try:
                    yield Workspace(folder, parent)
                except BaseException:
                    if not set(folder.names()) - {MARKER, "lock"}:  # Refused before anything was done.
                        parent.remove_private(folder.path.name)
                    raise
                return
        finally:
            os.close(lock)
