"""Files and folders that appear under their name complete, or not at all.

The content is written beside its target, under a hidden name that ends in `.part`, so a reader never sees
half a file, and a writer that is killed leaves only a `.part`. A link that has the target's name is replaced,
and never followed: somebody else may have put it there.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from rekindle.core.directory import OUTPUT, Directory, Subdirectory


class AtomicFile:
    """A file open for writing and reading; `commit` gives it its name, `abort` removes it.

    Args:
        path: Its name: a path, or relative to `directory`.
        directory: Where it goes to; by default, what the path says.
        sync: Whether the content is on disk before the file has its name, so that it also survives a power
            failure: for results. What has a checksum and can be made again does without, which is faster.
        mode: Its permissions, less the umask.

    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        directory: Directory | None = None,
        sync: bool = True,
        mode: int = OUTPUT,
    ) -> None:
        self._directory, self._name = _entry(path, directory)
        self._sync = sync
        self._part: str | None = _beside(self._name, "part")
        _check_replaceable(self._directory, self._name)
        try:
            descriptor = self._directory.create(self._part, mode)
        except FileNotFoundError as error:
            folder = os.path.dirname(self._directory.path / self._name)
            reason = "there is no folder to write to, make it first"
            raise FileNotFoundError(errno.ENOENT, reason, folder) from error
        self.file: BinaryIO = os.fdopen(descriptor, "w+b")

    @property
    def is_open(self) -> bool:
        """Whether the file was neither committed nor aborted."""
        return self._part is not None

    def commit(self) -> None:
        """Give the file its name, in place of one that has it now."""
        assert self._part is not None, "neither committed nor aborted before"
        self.file.flush()
        if self._sync:
            os.fsync(self.file.fileno())
        self.file.close()
        self._directory.rename(self._part, self._name)
        self._part = None

    def abort(self) -> None:
        """Remove what was written; does nothing after `commit`."""
        if self._part is not None:
            with suppress(OSError):  # What is still in the buffer may not fit on the disk.
                self.file.close()
            self._directory.remove(self._part)
            self._part = None


@contextmanager
def atomic_write(
    path: str | os.PathLike[str],
    *,
    directory: Directory | None = None,
    sync: bool = False,
    mode: int = OUTPUT,
) -> Iterator[BinaryIO]:
    """A file to write; it appears at `path` when the block ends, and never if the block raises.

    >>> import tempfile
    >>> from pathlib import Path
    >>> target = Path(tempfile.mkdtemp()) / "settings.json"
    >>> with atomic_write(target) as file:
    ...     _ = file.write(b"{}")
    ...     target.exists()
    False
    >>> target.read_bytes()
    b'{}'
    """
    target = AtomicFile(path, directory=directory, sync=sync, mode=mode)
    try:
        yield target.file
        target.commit()
    finally:
        target.abort()


class AtomicFolder:
    """A folder to write files into, `part`; `commit` gives it its name, `abort` removes it.

    Args:
        path: Its name: a path, or relative to `directory`.
        directory: Where it goes to; by default, what the path says.
        files: The names, or patterns of names, of its files: a folder that holds anything else is not
            replaced.

    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        directory: Directory | None = None,
        files: Collection[str] = (),
    ) -> None:
        self._directory, self._name = _entry(path, directory)
        self._files = files
        self._part = _beside(self._name, "part")
        self._directory.make_folder(self._part)
        self.part = Subdirectory(self._part, self._directory)
        self.is_open = True

    def commit(self) -> None:
        """Give the folder its name, in place of a folder that has it now."""
        replace(self._directory, self._part, self._directory, self._name, self._files)
        self.is_open = False

    def abort(self) -> None:
        """Remove what was written; does nothing after `commit`."""
        if self.is_open:
            shutil.rmtree(self._part, ignore_errors=True, dir_fd=self._directory.descriptor)
            self.is_open = False


def replace(
    source: Directory, finished: str, target: Directory, name: str, files: Collection[str] = ()
) -> None:
    """Give a finished file or folder its name, in place of what has that name now.

    A folder cannot be renamed over another that is not empty, so the old one moves aside first, and only if
    all in it is called like one of `files`. In that moment nothing has the name; a crash then leaves the old
    folder under a hidden name that ends in `.old`.
    """
    try:
        source.rename(finished, name, target)
    except OSError as error:
        state = target.stat(name)
        is_link = state is not None and stat.S_ISLNK(state.st_mode)
        is_folder = error.errno in (errno.ENOTEMPTY, errno.EEXIST)
        if not is_folder and not (error.errno == errno.ENOTDIR and is_link):
            raise
        if is_folder:
            Subdirectory(name, target).check_holds(files)
        old = _beside(name, "old")
        target.rename(name, old)
        try:
            source.rename(finished, name, target)
        except BaseException:
            target.rename(old, name)
            raise
        if is_folder:
            target.remove_folder(old, files)
        else:
            target.remove(old)


def _entry(path: str | os.PathLike[str], directory: Directory | None) -> tuple[Directory, str]:
    if directory is not None:
        return directory, os.fspath(path)
    folder, name = os.path.split(path)
    return Directory(folder or "."), name


def _beside(name: str, suffix: str) -> str:
    """A hidden name in the same folder, and so on the same file system, that nothing has."""
    folder, last = os.path.split(name)
    return os.path.join(folder, f".{last}.{secrets.token_hex(4)}.{suffix}")


def _check_replaceable(directory: Directory, name: str) -> None:
    """Raise OSError for a device, a pipe, or a link to one (/dev/stdout), whose place no file should take."""
    try:
        mode = os.stat(name, dir_fd=directory.descriptor).st_mode
    except OSError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "not a regular file", str(directory.path / name))
