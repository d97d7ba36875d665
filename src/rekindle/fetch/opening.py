"""Which source a path stands for: a folder of images, or packed files of a format that their bytes tell."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rekindle.errors import ArgumentError, DataError, FormatError
from rekindle.fetch.byte_files import ByteFile, LocalFile, make_room_for
from rekindle.fetch.folder import IMAGE_EXTENSIONS, Folder
from rekindle.fetch.labels import Labels, read_labels
from rekindle.fetch.packed import Indexer, Packed
from rekindle.fetch.remote_files import packed_files
from rekindle.fetch.remote_folder import RemoteFolder
from rekindle.fetch.remote_store import RemoteOptions, is_url
from rekindle.fetch.shards import expand, is_pattern
from rekindle.fetch.shown_urls import without_secrets
from rekindle.fetch.source import Source
from rekindle.fetch.unzipped import MAGIC as GZIP
from rekindle.fetch.unzipped import unzipped

# A format's indexer, and the options of `open` that it takes.
FORMATS = {
    "hdf5": ("hdf5_index", "index_hdf5", {"images", "labels"}),
    "tfrecord": ("tfrecord_index", "index_tfrecord", {"features", "verify"}),
    "tar": ("tar_index", "index_tar", {"images", "labels"}),
    "lmdb": ("lmdb_index", "index_lmdb", {"images"}),
}
_HDF5 = b"\x89HDF\r\n\x1a\n"
_HDF5_PLACES = (0, 512, 1024, 2048, 4096, 8192)
_LMDB = b"\xde\xc0\xef\xbe"
LABEL_FILES = (".csv", ".tsv", ".json")


def open_source(
    path: str | os.PathLike[str],
    labels: str | os.PathLike[str] | Labels | None = None,
    *,
    extensions: tuple[str, ...] = IMAGE_EXTENSIONS,
    options: Mapping[str, Any] | None = None,
    remote: RemoteOptions | None = None,
) -> Source:
    """The source that a folder, a packed file, or a pattern of packed files stands for, here or elsewhere."""
    given = {name: value for name, value in (options or {}).items() if value is not None}
    text = os.fspath(path)
    if is_url(text):
        files = packed_files(text, remote or RemoteOptions())
        if files is not None:
            return open_packed(without_secrets(text), files, labels, given)
        _refuse(given, without_secrets(text))
        return RemoteFolder(text, labels, extensions=extensions, options=remote)
    if os.path.isdir(text) and not os.path.isfile(os.path.join(text, "data.mdb")):
        _refuse(given, text)
        return Folder(path, labels, extensions=extensions)
    if not os.path.exists(text) and not is_pattern(text):
        raise DataError(f"there is no {text!r}. Give the path of a folder of images or of packed files.")
    return open_packed(path, local_files(text), labels, given)


def _refuse(options: Mapping[str, Any], folder: str) -> None:
    if options:
        raise ArgumentError(f"{', '.join(options)}: options for packed files, but {folder!r} is a folder.")


def local_files(pattern: str) -> list[ByteFile]:
    """The files that a path or pattern stands for; of an LMDB folder, the file in it."""
    found: list[ByteFile] = []
    for name in expand(pattern):
        inside = os.path.join(name, "data.mdb")
        found.append(LocalFile(inside if os.path.isdir(name) else name))
    make_room_for(len(found))
    return found


def open_packed(
    root: str | os.PathLike[str],
    files: Sequence[ByteFile],
    labels: str | os.PathLike[str] | Labels | None = None,
    options: Mapping[str, Any] | None = None,
) -> Packed:
    """The samples of packed files of one format, wherever they are; options that are not given are absent."""
    settings = dict(options or {})
    wanted = settings.pop("format", None)
    files = [unzipped(file) for file in files]
    formats = [wanted or format_of(file) for file in files]
    if len(set(formats)) > 1:
        other = next(number for number, one in enumerate(formats) if one != formats[0])
        raise FormatError(
            f"{files[0].name!r} is {formats[0]}, but {files[other].name!r} is {formats[other]}. Open "
            "files of one format."
        )
    if formats[0] not in FORMATS:
        raise ArgumentError(f"format is {wanted!r}. Give one of {', '.join(FORMATS)}.")
    module, name, known = FORMATS[formats[0]]
    by_key: Labels | None = None
    if isinstance(labels, Mapping):
        by_key = labels
    elif labels is not None and os.fspath(labels).lower().endswith(LABEL_FILES):
        by_key = read_labels(Path(labels))
    elif labels is not None:
        settings["labels"] = os.fspath(labels)
    unknown = sorted(set(settings) - known)
    if unknown:
        raise ArgumentError(
            f"{unknown[0]}={settings[unknown[0]]!r} is not for {formats[0]} files, which take "
            f"{', '.join(sorted(known))}."
        )
    indexer: Indexer = getattr(importlib.import_module(f"rekindle.fetch.{module}"), name)
    return Packed(root, files, indexer, settings, labels=by_key)


def format_of(file: ByteFile) -> str:
    """The format of a file, by its first bytes; FormatError if it is none that is known."""
    head = bytes(file.read(0, min(file.size, 512)))
    if _LMDB in (head[16:20], bytes(file.read(4112, 4)) if file.size >= 4116 else b""):
        return "lmdb"
    if any(place + 8 <= file.size and bytes(file.read(place, 8)) == _HDF5 for place in _HDF5_PLACES):
        return "hdf5"
    if head[257:262] == b"ustar" or (len(head) == 512 and _is_old_tar(head)):
        return "tar"
    length = int.from_bytes(head[:8], "little")
    if len(head) >= 12 and length + 16 <= file.size:
        return "tfrecord"
    if head.startswith(GZIP):
        raise FormatError(f"{file.name!r} at byte 0: GZIP within GZIP.")
    what = "the file is empty" if not file.size else f"it begins with {head[:8]!r}"
    raise FormatError(f"{file.name!r} at byte 0: neither HDF5, TFRecord, tar nor LMDB, or damaged: {what}.")


def _is_old_tar(head: bytes) -> bool:
    """Whether a header without the word `ustar` has a tar's checksum."""
    told = head[148:156].strip(b"\0 ")
    return told.lstrip(b"0") == b"%o" % (sum(head[:148]) + 8 * 32 + sum(head[156:]))
