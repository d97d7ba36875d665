"""The files below a folder, in torchvision's order; large listings are cached between runs."""

from __future__ import annotations

import hashlib
import os
import time
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rekindle.core.atomic_file import atomic_write
from rekindle.core.directory import PRIVATE, PrivateDirectory
from rekindle.core.interrupts import is_interrupt
from rekindle.core.user_cache import optional_user_cache
from rekindle.errors import DataError, DataNotFoundError
from rekindle.fetch.bytes_array import BytesArray

_CACHE_FROM = 10_000  # files: fewer are listed as fast as they are looked up
# ns: a folder that changed less than this ago may change again within one tick of the file system's clock
_SETTLED = 2_000_000_000
_VERSION = 1


@dataclass(frozen=True)
class Listing:
    """The files below a folder, and the folders that they are in, all relative to it."""

    files: BytesArray
    folders: BytesArray
    mtimes: NDArray[np.int64]  # of each folder, in ns

    def is_current(self, root: bytes) -> bool:
        """Whether no folder has changed since: no file was added, removed or renamed."""
        try:
            now = [os.stat(os.path.join(root, self.folders[n])).st_mtime_ns for n in range(len(self.folders))]
        except (OSError, ValueError):  # Gone, or with a name that no file can have.
            return False
        return bool(np.array_equal(now, self.mtimes))


class _CacheFile(NamedTuple):
    """Where a listing is cached."""

    directory: PrivateDirectory
    name: str


def list_files(root: Path, extensions: tuple[str, ...]) -> Listing:
    """All files below `root` that end in one of `extensions`, folder by folder, sorted."""
    top = os.fsencode(root)
    cache_file = _cache_file(top, extensions)
    if cache_file is not None:
        cached = _read(cache_file)
        if cached is not None and cached.is_current(top):
            return cached
    started = time.time_ns()
    listing = _walk(top, tuple(extension.lower().encode() for extension in extensions))
    is_settled = bool((listing.mtimes < started - _SETTLED).all())
    if cache_file is not None and is_settled and len(listing.files) >= _CACHE_FROM:
        with suppress(OSError):  # Without the cache, the next run lists the folder again.
            _write(cache_file, listing)
    return listing


def _walk(top: bytes, extensions: tuple[bytes, ...]) -> Listing:
    found: dict[bytes, list[bytes]] = {}
    mtimes: dict[bytes, int] = {}
    pending: list[tuple[bytes, frozenset[tuple[int, int]]]] = [(b"", frozenset())]
    while pending:
        folder, parents = pending.pop()
        path = os.path.join(top, folder) if folder else top
        state = os.stat(path)
        identity = state.st_dev, state.st_ino
        if identity in parents:  # A link to a parent folder, which would never end.
            continue
        mtimes[folder] = state.st_mtime_ns
        names = found[folder] = []
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir():  # Costs no system call, except for links.
                    pending.append((os.path.join(folder, entry.name), parents | {identity}))
                elif entry.name.lower().endswith(extensions):
                    names.append(entry.name)
    folders = sorted(found)
    files = []
    for folder in folders:
        prefix = os.path.join(folder, b"")
        files += [prefix + name for name in sorted(found[folder])]
    times = np.array([mtimes[folder] for folder in folders])
    return Listing(BytesArray.from_list(files), BytesArray.from_list(folders), times)


def _cache_file(top: bytes, extensions: tuple[str, ...]) -> _CacheFile | None:
    """Where the listing is cached; None if the user has no cache folder."""
    cache = optional_user_cache("listings")
    key = hashlib.sha256(repr((_VERSION, os.path.abspath(top), sorted(extensions))).encode()).hexdigest()
    return None if cache is None else _CacheFile(cache, f"{key[:32]}.npz")


def _read(kept: _CacheFile) -> Listing | None:
    """The cached listing, if it is undamaged: every array in the file has a checksum."""
    try:
        with os.fdopen(kept.directory.open(kept.name), "rb") as file:
            if not _is_stored(file):
                return None
            with np.load(file, allow_pickle=False) as cached:
                wanted = ("files", "file_ends", "folders", "folder_ends", "changed")
                arrays = [cached[name] for name in wanted]
    except Exception as error:  # Whatever is wrong with it, the folder is listed again.
        if is_interrupt(error):
            raise
        return None
    files, folders = BytesArray(*arrays[:2]), BytesArray(*arrays[2:4])
    for names in (files, folders):
        if names.data.dtype != np.uint8 or names.ends.dtype != np.int64:
            return None
        if (names.data.ndim, names.ends.ndim) != (1, 1) or not names.data.all():  # No name has a zero byte.
            return None
        if len(names) and (names.ends[-1] != names.data.size or (np.diff(names.ends, prepend=0) < 0).any()):
            return None
    return Listing(files, folders, arrays[4]) if arrays[4].shape == folders.ends.shape else None


def _is_stored(file: BinaryIO) -> bool:
    """Whether each array takes as many bytes of the file as of memory, as `_write` leaves them."""
    size = os.fstat(file.fileno()).st_size
    with zipfile.ZipFile(file) as archive:
        return all(
            member.compress_type == zipfile.ZIP_STORED and member.file_size <= size
            for member in archive.infolist()
        )


def _write(kept: _CacheFile, listing: Listing) -> None:
    kept.directory.make()
    with atomic_write(kept.name, directory=kept.directory, mode=PRIVATE) as file:
        np.savez(
            file,
            files=listing.files.data,
            file_ends=listing.files.ends,
            folders=listing.folders.data,
            folder_ends=listing.folders.ends,
            changed=listing.mtimes,
        )


def check_folder(root: Path) -> None:
    """Raise DataError if there is no such folder."""
    if not root.exists():
        raise DataNotFoundError(f"there is no folder {str(root)!r}. Give the path of a folder of images.")
    if not root.is_dir():
        raise DataError(f"{str(root)!r} is a file, not a folder. Give the path of a folder of images.")
