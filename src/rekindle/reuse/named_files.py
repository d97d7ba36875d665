"""The files that a dataset reads, as far as it names them: what is cached of it is stale once they change."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator

from torch.utils.data import Dataset

from rekindle.prepare.declared import fingerprint

_LONGEST = 1024  # characters of a name
_MOST_FOLDERS = 8  # in which names are looked for
_MOST_ENTRIES = 10_000  # of a folder whose files nothing names


class NamedFiles:
    """Files that are named by the strings and paths within some objects, each of which is shown to `see`.

    A name may be relative to a folder that is named as well. A folder of which no file is named counts with
    the files in it. Datasets that declare a `fingerprint` are taken at their word.
    """

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._declared: set[str] = set()

    def see(self, value: object) -> None:
        """Note what an object names itself; not what it holds."""
        if type(value) is str:
            self._names.add(value)
        elif isinstance(value, os.PathLike | bytes):
            self._names.add(os.fsdecode(value))
        elif isinstance(value, Dataset):
            declared = fingerprint(value)
            if declared is not None:
                self._declared.add(f"{type(value).__qualname__} {declared}")

    def digest(self) -> str:
        """Equal if names, sizes and times of these files are.

        The time of the last change counts beside that of the content, which an archive or a copy may set.
        """
        found = hashlib.blake2b(digest_size=16)
        for part in (*sorted(self._declared), *self._stated()):
            found.update(part.encode("utf-8", "surrogatepass") + b"\0")
        return found.hexdigest()

    def _stated(self) -> Iterator[str]:
        names = sorted(name for name in self._names if 0 < len(name) <= _LONGEST and "\0" not in name)
        folders = [name for name in names if os.path.isdir(name) and not _holds_everything(name)]
        read_from: set[str] = set()
        for name in names:
            for path in (name, *(os.path.join(one, name) for one in folders[:_MOST_FOLDERS])):
                state = _state(path)
                if state:
                    read_from.add(os.path.dirname(os.path.realpath(path)))
                    yield f"{path} {state}"
                    break
        for folder in folders:
            real = os.path.realpath(folder)
            if not any(os.path.commonpath([real, one]) == real for one in read_from):
                yield from _states_within(folder)


def _state(path: str) -> str:
    """Size and times of a file; nothing if there is no such file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return ""
    if stat.S_ISDIR(status.st_mode):
        return ""
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def _states_within(folder: str) -> Iterator[str]:
    left = _MOST_ENTRIES
    for parent, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files)[:left]:
            path = os.path.join(parent, name)
            yield f"{path} {_state(path)}"
        left -= len(files) + len(folders)
        if left <= 0:
            return


def _holds_everything(folder: str) -> bool:
    """Whether a folder has other things in it, as a home folder or that of the script."""
    real = os.path.realpath(folder)
    return any(
        os.path.commonpath([real, os.path.realpath(one)]) == real
        for one in (os.getcwd(), os.path.expanduser("~"))
    )
