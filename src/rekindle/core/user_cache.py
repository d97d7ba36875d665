"""The user's cache folder, for what can be computed again: listings, indexes, unpacked files, ranges."""

from __future__ import annotations

import errno
import os
import stat
import warnings
from pathlib import Path

from rekindle.core.directory import Directory, NotPrivateError, PrivateDirectory

_warned: set[str] = set()


def user_cache_path() -> Path | None:
    """`$XDG_CACHE_HOME/rekindle`, by default `~/.cache/rekindle`; None for a user without a home folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(base or Path.home() / ".cache") / "rekindle"
    except RuntimeError:  # No HOME, and no entry in the password database: common in containers.
        return None


def user_cache(name: str) -> PrivateDirectory | None:
    """A directory in the cache folder, which need not exist yet; None for a user without a home folder.

    NotPrivateError if the cache folder cannot be private.
    """
    path = user_cache_path()
    if path is None:
        return None
    parent = Directory(path.absolute().parent)
    root = PrivateDirectory(path.name, parent)
    try:
        _ = root.descriptor
        mode = os.fstat(parent.descriptor).st_mode
    except FileNotFoundError:
        return PrivateDirectory(name, root)
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise NotPrivateError(
            errno.EPERM, "everybody can swap it for another (its parent is open to all)", str(path)
        )
    return PrivateDirectory(name, root)


def optional_user_cache(name: str) -> PrivateDirectory | None:
    """The same for those who can do without: if the folder cannot be private, one warning and None."""
    try:
        return user_cache(name)
    except NotPrivateError as error:
        if str(error.filename) not in _warned:
            _warned.add(str(error.filename))
            warnings.warn(
                f"the cache folder {error.filename!r} is not used: {error.strerror}. Delete it, or set "
                "XDG_CACHE_HOME to a folder of your own; until then, nothing is cached.",
                RuntimeWarning,
                stacklevel=3,
            )
        return None
    except OSError:
        return None
