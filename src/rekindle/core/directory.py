"""Directories held by a descriptor: all that Rekindle writes, renames, locks and deletes goes through here.

Other users of the machine may be able to write to the folder that a file goes to, and so can plant links
there, or swap a directory for another while it is used. So a directory is opened once, and everything in it
is reached relative to that descriptor; no link among its entries is followed, new files are new (`O_EXCL`),
and what is opened is a regular file. `PrivateDirectory` is one that nobody else can even enter.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Self

from rekindle.core.ownership import others_can_write

OUTPUT = 0o666  # less the umask, as every program's output
PRIVATE = 0o600
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
MARKER = ".rekindle"  # the file that a private directory has which Rekindle has made


class NotPrivateError(PermissionError):
    """There is something under a private directory's name that cannot be used as one."""


class Directory:
    """A directory, opened when it is first used; `name`s are those of its entries, or relative paths below.

    Args:
        path: Where it is. Links on the way there are followed: whoever gives the path has chosen them.

    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._fd = -1

    @property
    def descriptor(self) -> int:
        """The descriptor; OSError if the directory cannot be opened."""
        if self._fd < 0:
            fd = self._open()
            if self._fd < 0:
                self._fd = fd
            else:  # Another thread was quicker.
                os.close(fd)
        return self._fd

    def _open(self) -> int:
        return os.open(self.path, _DIRECTORY)

    def again(self) -> Self:
        """What is under this path now: another directory, if this one was deleted."""
        return type(self)(self.path)

    @property
    def path_for_libraries(self) -> str:
        """A path that leads to this very directory, for libraries that take no descriptor."""
        path = f"/proc/self/fd/{self.descriptor}"
        return path if os.path.isdir(path) else str(self.path)

    def make(self) -> Self:
        """Make it, and all directories on the way there, unless it exists. OSError."""
        os.makedirs(self.path, exist_ok=True)
        return self

    # Entries.

    def names(self) -> list[str]:
        """The names of all entries, in order."""
        # A descriptor of its own: the position in the listing belongs to the open file.
        fd = os.open(".", _DIRECTORY, dir_fd=self.descriptor)
        try:
            return sorted(os.listdir(fd))
        finally:
            os.close(fd)

    def scan(self, name: str = ".") -> Iterator[os.DirEntry[str]]:
        """The entries of this directory, or of one below."""
        fd = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self.descriptor)
        try:
            with os.scandir(fd) as entries:
                yield from entries
        finally:
            os.close(fd)

    def stat(self, name: str) -> os.stat_result | None:
        """The state of an entry itself, also if it is a link; None if there is none."""
        try:
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open(self, name: str) -> int:
        """A descriptor to read a regular file; OSError if it is none, or a link."""
        return self._regular(name, os.O_RDONLY, 0)

    def read(self, name: str) -> bytes:
        """The content of a regular file."""
        with os.fdopen(self.open(name), "rb") as file:
            return file.read()

    def create(self, name: str, mode: int) -> int:
        """A descriptor to write and read a new file; FileExistsError if there is anything of that name."""
        return self._regular(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def _regular(self, name: str, flags: int, mode: int) -> int:
        # Without O_NONBLOCK, opening a FIFO would wait.
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(name, flags, mode, dir_fd=self.descriptor)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "not a regular file", str(self.path / name))
        return fd

    def make_folder(self, name: str, mode: int = 0o777) -> None:
        """Make a directory; FileExistsError if there is anything of that name."""
        os.mkdir(name, mode, dir_fd=self.descriptor)

    def lock(self, name: str, *, by_process: bool = False, together: bool = False) -> int:
        """A descriptor that holds a lock on a file of this name; BlockingIOError if somebody else does.

        The lock belongs to the descriptor and its copies in forked processes, or to this process alone.
        Several hold it `together`, if all say so.
        """
        fd = self._regular(name, os.O_RDWR | os.O_CREAT, PRIVATE)
        take: Callable[[int, int], None] = fcntl.lockf if by_process else fcntl.flock
        try:
            take(fd, (fcntl.LOCK_SH if together else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except PermissionError:
            os.close(fd)
            raise BlockingIOError(errno.EAGAIN, "locked", str(self.path / name)) from None
        except OSError:
            os.close(fd)
            raise
        return fd

    def share_lock(self, fd: int) -> None:
        """Let others hold a lock of this process `together` with it."""
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)

    # What replaces and removes.

    def rename(self, name: str, new: str, target: Directory | None = None) -> None:
        """Rename an entry, in place of a file of that name: here, or into another directory."""
        into = self if target is None else target
        os.replace(name, new, src_dir_fd=self.descriptor, dst_dir_fd=into.descriptor)

    def remove(self, name: str) -> None:
        """Remove a file, or a link itself; FileNotFoundError if there is none."""
        os.unlink(name, dir_fd=self.descriptor)

    def discard(self, name: str) -> None:
        """Remove a file, or a link itself, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            self.remove(name)

    def remove_folder(self, name: str, only: Collection[str]) -> None:
        """Remove a folder whose entries are all files with such names; FileExistsError if one is not."""
        with contextlib.closing(Subdirectory(name, self)) as folder:
            folder.check_holds(only)
            for one in folder.names():
                folder.discard(one)
        os.rmdir(name, dir_fd=self.descriptor)

    def check_holds(self, only: Collection[str]) -> None:
        """Raise FileExistsError if an entry is a folder, or its name matches none of these patterns."""
        for name in self.names():
            state = self.stat(name)
            is_folder = state is not None and stat.S_ISDIR(state.st_mode)
            if is_folder or not any(fnmatchcase(name, pattern) for pattern in only):
                raise FileExistsError(errno.ENOTEMPTY, f"it holds something else, {name!r}", str(self.path))

    def remove_private(self, name: str) -> None:
        """Remove a private directory that carries the mark, and all in it. NotPrivateError for any other."""
        with contextlib.closing(PrivateDirectory(name, self)) as folder:
            if not folder.is_marked:
                raise NotPrivateError(errno.EPERM, "it was not made by Rekindle", str(folder.path))
            folder.clear()
        os.rmdir(name, dir_fd=self.descriptor)

    def close(self) -> None:
        """Close the descriptor; it is opened again when it is needed."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone by then.
        if getattr(self, "_fd", -1) >= 0:
            close(self._fd)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_fd": -1}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"


class Subdirectory(Directory):
    """A directory that is an entry of another, and no link."""

    def __init__(self, name: str, parent: Directory) -> None:
        super().__init__(parent.path / name)
        self._parent, self._name = parent, name

    def _open(self) -> int:
        return os.open(self._name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self._parent.descriptor)

    def again(self) -> Self:
        """What is under this name now."""
        return type(self)(self._name, self._parent.again())


class PrivateDirectory(Subdirectory):
    """A directory of this user's that nobody else can enter: a real one, owned by the user, mode 0700.

    One that others may only read is closed to them. Anything else under its name raises NotPrivateError,
    since what is in it may have been planted. `make` marks it as made by Rekindle, so that it may be
    deleted later.
    """

    def make(self) -> Self:
        """Make it, unless it exists, and open it. OSError."""
        self._parent.make()
        with contextlib.suppress(FileExistsError):
            self._parent.make_folder(self._name, 0o700)
        if not self.names():  # A new one, or its maker was killed before it was marked.
            with contextlib.suppress(FileExistsError):
                os.close(self.create(MARKER, PRIVATE))
        return self

    @property
    def is_marked(self) -> bool:
        """Whether Rekindle made it."""
        state = self.stat(MARKER)
        return state is not None and stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid()

    @property
    def is_in_place(self) -> bool:
        """Whether its name still leads to it: it was neither deleted nor moved."""
        state = self._parent.stat(self._name)
        return state is not None and os.path.samestat(state, os.fstat(self.descriptor))

    def clear(self, *, keep: Collection[str] = ()) -> None:
        """Remove all that is in it: nobody else can have put anything here."""
        for name in self.names():
            if name not in keep:
                self.remove_any(name)

    def remove_any(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it."""
        state = self.stat(name)
        if state is not None and stat.S_ISDIR(state.st_mode):
            shutil.rmtree(name, dir_fd=self.descriptor)
        else:
            self.discard(name)

    def _open(self) -> int:
        try:
            fd = super()._open()
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                state = self._parent.stat(self._name)
                is_link = state is not None and stat.S_ISLNK(state.st_mode)
                raise self._refused("it is a link" if is_link else "it is no directory") from None
            raise
        try:
            self._check(fd)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _check(self, fd: int) -> None:
        state = os.fstat(fd)
        if state.st_uid != os.geteuid():
            raise self._refused(f"it belongs to the user {state.st_uid}, not to you ({os.geteuid()})")
        if others_can_write(state):
            raise self._refused(f"others can write to it (mode {stat.S_IMODE(state.st_mode):04o})")
        if state.st_mode & 0o077:
            os.fchmod(fd, 0o700)
            if os.fstat(fd).st_mode & 0o077:
                raise self._refused("others can read it, and its file system cannot prevent that")

    def _refused(self, why: str) -> NotPrivateError:
        return NotPrivateError(errno.EPERM, f"{why}, so its content is not trusted", str(self.path))


@contextlib.contextmanager
def temporary_directory() -> Iterator[Path]:
    """A new directory that only this user can enter, removed with all that is in it when the block ends."""
    with tempfile.TemporaryDirectory(prefix="rekindle-") as folder:
        yield Path(folder)
