"""The files below a folder, in torchvision's order, quickly; large listings are kept between runs.

A million names are one run of bytes and an array of where each ends: 100 MB as Python strings, 40 MB here,
and forked workers share them for good, because there is no reference count to write to.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import DataError

_KEEP_FROM = 10_000  # files: fewer are listed as fast as they are looked up
_SETTLED = (
    2_000_000_000  # ns: a folder changed less than this ago may change again within one tick of its clock
)
_VERSION = 1


@dataclass(frozen=True)
class Names:
    """Many names as one run of bytes."""

    joined: NDArray[np.uint8]
    ends: NDArray[np.int64]

    @staticmethod
    def of(names: list[bytes]) -> Names:
        ends = np.cumsum(np.fromiter(map(len, names), dtype=np.int64, count=len(names)))
        return Names(np.frombuffer(b"".join(names), dtype=np.uint8), ends)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: int) -> bytes:
        start = self.ends[number - 1] if number else 0
        return self.joined[start : self.ends[number]].tobytes()


@dataclass(frozen=True)
class Listing:
    """The files below a folder, and the folders they were found in, all relative to it."""

    files: Names
    folders: Names
    changed: NDArray[np.int64]  # when each folder was, in ns

    def is_current(self, root: bytes) -> bool:
        """Whether no folder has changed since: no file was added, removed or renamed."""
        try:
            now = [os.stat(os.path.join(root, self.folders[n])).st_mtime_ns for n in range(len(self.folders))]
        except OSError:
            return False
        return bool(np.array_equal(now, self.changed))


def list_files(root: Path, extensions: tuple[str, ...], *, keep: bool = True) -> Listing:
    """All files below `root` that end in one of `extensions`, folder by folder, sorted."""
    top = os.fsencode(root)
    store = _store(top, extensions) if keep else None
    if store is not None:
        kept = _read(store)
        if kept is not None and kept.is_current(top):
            return kept
    started = time.time_ns()
    listing = _walk(top, tuple(extension.lower().encode() for extension in extensions))
    settled = bool((listing.changed < started - _SETTLED).all())
    if store is not None and settled and len(listing.files) >= _KEEP_FROM:
        _write(store, listing)
    return listing


def _walk(top: bytes, extensions: tuple[bytes, ...]) -> Listing:
    found: dict[bytes, list[bytes]] = {}
    changed: dict[bytes, int] = {}
    waiting: list[tuple[bytes, frozenset[tuple[int, int]]]] = [(b"", frozenset())]
    while waiting:
        folder, above = waiting.pop()
        path = os.path.join(top, folder) if folder else top
        state = os.stat(path)
        itself = state.st_dev, state.st_ino
        if itself in above:  # A link back up, which would never end.
            continue
        changed[folder] = state.st_mtime_ns
        names = found[folder] = []
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir():  # Without a look at the file, except for links.
                    waiting.append((os.path.join(folder, entry.name), above | {itself}))
                elif entry.name.lower().endswith(extensions):
                    names.append(entry.name)
    folders = sorted(found)
    files = []
    for folder in folders:
        before = os.path.join(folder, b"")
        files += [before + name for name in sorted(found[folder])]
    return Listing(Names.of(files), Names.of(folders), np.array([changed[folder] for folder in folders]))


def _store(top: bytes, extensions: tuple[str, ...]) -> Path | None:
    """Where the listing is kept; None if there is no such place."""
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    key = hashlib.sha256(repr((_VERSION, os.path.abspath(top), sorted(extensions))).encode()).hexdigest()
    return cache / "rekindle" / "listings" / f"{key[:32]}.npz"


def _read(store: Path) -> Listing | None:
    """What was kept, if it is whole: every array in the file has a checksum."""
    try:
        with store.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            arrays = [kept[name] for name in ("files", "file_ends", "folders", "folder_ends", "changed")]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError):
        return None
    files, folders = Names(*arrays[:2]), Names(*arrays[2:4])
    for names in (files, folders):
        if names.joined.dtype != np.uint8 or names.ends.dtype != np.int64 or names.ends.ndim != 1:
            return None
        if len(names) and (names.ends[-1] != names.joined.size or (np.diff(names.ends, prepend=0) < 0).any()):
            return None
    return Listing(files, folders, arrays[4]) if arrays[4].shape == folders.ends.shape else None


def _write(store: Path, listing: Listing) -> None:
    """Keep a listing: the file is whole or not there, whoever else writes. Not being able to does no harm."""
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=store.parent, suffix=".part", delete=False) as file:
            try:
                np.savez(
                    file,
                    files=listing.files.joined,
                    file_ends=listing.files.ends,
                    folders=listing.folders.joined,
                    folder_ends=listing.folders.ends,
                    changed=listing.changed,
                )
                file.close()
                os.replace(file.name, store)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError:
        pass


def check_folder(root: Path) -> None:
    """Raise DataError if there is no such folder."""
    if not root.exists():
        raise DataError(f"there is no folder {str(root)!r}. Give the path of a folder of images.")
    if not root.is_dir():
        raise DataError(f"{str(root)!r} is a file, not a folder. Give the path of a folder of images.")
