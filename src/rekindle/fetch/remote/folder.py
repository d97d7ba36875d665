"""A folder of images behind a URL, an object a sample, with the order and the labels of a local one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rekindle.core.limits import DEFAULT_LIMITS, Limits
from rekindle.errors import DataError
from rekindle.fetch.bytes_array import BytesArray
from rekindle.fetch.folder import IMAGE_EXTENSIONS, LabelledFiles, from_folders, from_labels
from rekindle.fetch.labels import LABEL_FILES, Labels, parse_labels, read_labels
from rekindle.fetch.listing import Listing
from rekindle.fetch.remote.files import range_cache_config
from rekindle.fetch.remote.object_store import RemoteObject, RemoteOptions, RemoteStore, is_url
from rekindle.fetch.remote.range_reader import Range, RangeReader


class RemoteFolder(LabelledFiles):
    """The samples of a folder behind a URL: the same as `Folder` has for a local copy of it.

    Args:
        root: The folder's URL.
        labels: Where labels come from, if not from class folders: a remote or local file, or a mapping.
        extensions: What the names of images end in, in upper or lower case.
        options: How objects are read.
        limits: How many bytes a sample may have.
        unlabelled: Whether images may have no label at all, as in `Folder`.

    """

    is_worth_prefetching = True

    def __init__(
        self,
        root: str,
        labels: str | os.PathLike[str] | Labels | None = None,
        *,
        extensions: tuple[str, ...] = IMAGE_EXTENSIONS,
        options: RemoteOptions | None = None,
        limits: Limits = DEFAULT_LIMITS,
        unlabelled: bool = False,
    ) -> None:
        self._limits = limits
        self._store = RemoteStore(root, options or RemoteOptions())
        self.root = self._store.name
        self._path = self._store.path.rstrip("/")
        objects = _find(self._store, self._path)
        if not objects:
            raise DataError(f"{self.root!r} is empty. Give the URL of a folder of images.")
        listing = _listing(objects, extensions)
        given = self._labels(labels, objects)
        files, self._targets = listing.files, np.empty(0, np.int64)
        if given is None:
            self.classes, self._targets, files = from_folders(self.root, listing, extensions, unlabelled)
        else:
            self.classes, self._targets = from_labels(self.root, listing, given, extensions)
        self._set_files([objects[os.fsdecode(files[number])] for number in range(len(files))], files)

    def _set_files(self, objects: list[RemoteObject], files: BytesArray) -> None:
        """Keep what describes each sample in arrays: a million Python objects are slow to share."""
        self._files = files
        self._sizes = np.array([one.size for one in objects], dtype=np.int64)
        self._versions = np.array([int(one.version, 16) for one in objects], dtype=np.uint64)
        self._etags = BytesArray.from_list([one.etag.encode("utf-8", "surrogatepass") for one in objects])
        self._reader = RangeReader(self._store, range_cache_config(self._store, objects))

    def _labels(
        self, labels: str | os.PathLike[str] | Labels | None, objects: Mapping[str, RemoteObject]
    ) -> Labels | None:
        if isinstance(labels, Mapping):
            return labels
        if labels is None:
            labels = next((name for name in LABEL_FILES if name in objects), None)
        if labels is None:
            return None
        name = os.fspath(labels)
        if is_url(name):
            store = RemoteStore(name, self._store.options)
            found = store.describe(store.path)
            return parse_labels(Path(store.name), store.fetch(found, 0, found.size))
        if name in objects:
            content = self._store.fetch(objects[name], 0, objects[name].size)
            return parse_labels(Path(name), content)
        return read_labels(Path(name))

    def read(self, index: int) -> bytes:
        """The bytes of a sample's object."""
        self._limits.check_encoded(int(self._sizes[index]))
        return self._reader.read(self._range(index))

    copy = read

    def prefetch(self, indices: Sequence[int]) -> None:
        """Start to fetch samples that will be read soon; returns at once."""
        most = self._limits.encoded_bytes
        self._reader.prefetch([self._range(index) for index in indices if self._sizes[index] <= most])

    def _range(self, index: int) -> Range:
        size = int(self._sizes[index])
        path = f"{self._path}/{os.fsdecode(self._files[index])}"
        version = f"{int(self._versions[index]):016x}"
        return Range(
            RemoteObject(path, size, version, self._etags[index].decode("utf-8", "surrogatepass")), 0, size
        )

    def path(self, index: int) -> str:
        """The URL of a sample."""
        return self._store.name_of(f"{self._path}/{os.fsdecode(self._files[index])}")

    def encoded_nbytes(self, index: int) -> int:
        """The size of a sample's object."""
        return int(self._sizes[index])

    def lengths(self) -> NDArray[np.int64]:
        """The size of each sample's object."""
        return self._sizes

    def version(self) -> str:
        """Changes with the version of any object."""
        return hashlib.sha256(self._sizes.tobytes() + self._versions.tobytes()).hexdigest()


def _find(store: RemoteStore, root: str) -> dict[str, RemoteObject]:
    """All objects below the root by relative name; the folders directly in it are listed in parallel."""
    top = store.list_folder(root)
    folders = [str(one["name"]) for one in top if one.get("type") == "directory"]
    folders = [one for one in folders if one.rstrip("/") != root]
    found = [one for one in top if one.get("type") != "directory" and str(one["name"]).rstrip("/") != root]
    objects = {str(one["name"]): store.object_of(one) for one in found}
    if folders:
        with ThreadPoolExecutor(min(store.options.parallel, len(folders))) as pool:
            for inside in pool.map(store.find, folders):
                objects.update(inside)
    return {name.removeprefix(root).lstrip("/"): one for name, one in objects.items()}


def _listing(objects: Mapping[str, RemoteObject], extensions: tuple[str, ...]) -> Listing:
    """The images among objects in the order of a local folder: folder by folder, sorted."""
    endings = tuple(extension.lower() for extension in extensions)
    wanted = [os.fsencode(name) for name in objects if name.lower().endswith(endings)]
    pairs = sorted(name.rpartition(b"/")[::2] for name in wanted)
    files = [folder + b"/" + name if folder else name for folder, name in pairs]
    folders = sorted({folder for folder, _ in pairs})
    return Listing(
        BytesArray.from_list(files), BytesArray.from_list(folders), np.zeros(len(folders), np.int64)
    )
