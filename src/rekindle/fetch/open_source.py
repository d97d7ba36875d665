"""Opens a path or URL as a source: a folder of images, or packed files, by their first bytes."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from rekindle.core.limits import DEFAULT_LIMITS, Limits
from rekindle.errors import ArgumentError, DataNotFoundError, FormatError
from rekindle.fetch.byte_files import ByteFile, ByteReader, LocalFile, allow_open_files
from rekindle.fetch.folder import IMAGE_EXTENSIONS, Folder
from rekindle.fetch.labels import Labels, read_labels
from rekindle.fetch.packed.gzip_cache import MAGIC as GZIP
from rekindle.fetch.packed.gzip_cache import unzipped
from rekindle.fetch.packed.record_index import Indexer, IndexSettings
from rekindle.fetch.packed.source import Packed
from rekindle.fetch.remote.files import packed_files
from rekindle.fetch.remote.folder import RemoteFolder
from rekindle.fetch.remote.object_store import RemoteOptions, is_url
from rekindle.fetch.remote.redact import without_secrets
from rekindle.fetch.shards import expand, is_pattern
from rekindle.fetch.source import Source

# A format's indexer, and the options of `open` that it takes.
FORMATS = {
    "hdf5": ("rekindle.fetch.packed.hdf5.index", "index_hdf5", {"images", "labels"}),
    "tfrecord": ("rekindle.fetch.packed.tfrecord.index", "index_tfrecord", {"features", "verify"}),
    "tar": ("rekindle.fetch.packed.tar.index", "index_tar", {"images", "labels"}),
    "lmdb": ("rekindle.fetch.packed.lmdb.index", "index_lmdb", {"images"}),
}
_HDF5 = b"\x89HDF\r\n\x1a\n"
_HDF5_OFFSETS = (0, 512, 1024, 2048, 4096, 8192)
_LMDB = b"\xde\xc0\xef\xbe"
_LABEL_FILES = (".csv", ".tsv", ".json")
_OPTION_TYPES = {"format": str, "images": str, "labels": str, "features": Mapping, "verify": bool}


def open_source(
    path: str | os.PathLike[str],
    labels: str | os.PathLike[str] | Labels | None = None,
    *,
    extensions: tuple[str, ...] = IMAGE_EXTENSIONS,
    options: Mapping[str, object] | None = None,
    remote: RemoteOptions | None = None,
    limits: Limits = DEFAULT_LIMITS,
    unlabelled: bool = False,
) -> Source:
    """The source for a folder, a packed file, or a pattern of packed files; a path or a URL.

    `unlabelled` allows folders of images without labels, as packed files are allowed to have none.
    """
    if not (labels is None or isinstance(labels, str | os.PathLike | Mapping)):
        raise ArgumentError(
            f"labels={labels!r:.80}: expected the path of a labels file or a mapping of file names to labels."
        )
    given = {name: value for name, value in (options or {}).items() if value is not None}
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(
            f"path is {path!r}. Give a folder, a file, a pattern or a URL, as a string or Path."
        )
    text = os.fspath(path)
    if is_url(text):
        files = packed_files(text, remote or RemoteOptions())
        if files is not None:
            return open_packed(without_secrets(text), files, labels, given, limits)
        _check_no_options(given, without_secrets(text))
        return RemoteFolder(
            text, labels, extensions=extensions, options=remote, limits=limits, unlabelled=unlabelled
        )
    if os.path.isdir(text) and not os.path.isfile(os.path.join(text, "data.mdb")):
        _check_no_options(given, text)
        return Folder(path, labels, extensions=extensions, limits=limits, unlabelled=unlabelled)
    if not os.path.exists(text) and not is_pattern(text):
        raise DataNotFoundError(
            f"there is no {text!r}. Give the path of a folder of images or of packed files."
        )
    return open_packed(path, local_files(text), labels, given, limits)


def _check_no_options(options: Mapping[str, object], folder: str) -> None:
    if options:
        raise ArgumentError(f"{', '.join(options)}: options of packed files, but {folder!r} is a folder.")


def local_files(pattern: str) -> list[ByteFile]:
    """The files that a path or pattern matches; for an LMDB folder, the file in it."""
    found: list[ByteFile] = []
    for name in expand(pattern):
        inside = os.path.join(name, "data.mdb")
        found.append(LocalFile(inside if os.path.isdir(name) else name))
    allow_open_files(len(found))
    return found


def open_packed(
    root: str | os.PathLike[str],
    files: Sequence[ByteFile],
    labels: str | os.PathLike[str] | Labels | None = None,
    options: Mapping[str, object] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Packed:
    """The samples of packed files of one format; an option that is not given is absent from `options`."""
    files = [unzipped(file) for file in files]
    indexer, settings, by_key = indexer_for(files, labels, options or {})
    return Packed(root, files, indexer, settings, labels=by_key, limits=limits)


def indexer_for(
    files: Sequence[ByteFile],
    labels: str | os.PathLike[str] | Labels | None,
    options: Mapping[str, object],
) -> tuple[Indexer, IndexSettings, Labels | None]:
    """What finds the samples of files of one format, its settings, and labels by the samples' keys."""
    settings = dict(options)
    for name, value in settings.items():
        if not isinstance(value, _OPTION_TYPES.get(name, object)):
            raise ArgumentError(f"{name}={value!r}: expected {_OPTION_TYPES[name].__name__.lower()}.")
    wanted = cast("str | None", settings.pop("format", None))
    formats = [wanted or format_of(file) for file in files]
    if len(set(formats)) > 1:
        other = next(number for number, one in enumerate(formats) if one != formats[0])
        raise FormatError(
            f"{files[0].name!r} is {formats[0]}, but {files[other].name!r} is {formats[other]}. Open "
            "files of one format."
        )
    if formats[0] not in FORMATS:
        raise ArgumentError(f"unknown format {wanted!r}. Give one of {', '.join(FORMATS)}.")
    module, function, known = FORMATS[formats[0]]
    by_key: Labels | None = None
    if isinstance(labels, Mapping):
        by_key = labels
    elif labels is not None and os.fspath(labels).lower().endswith(_LABEL_FILES):
        by_key = read_labels(Path(labels))
    elif labels is not None:
        settings["labels"] = os.fspath(labels)
    unknown = sorted(set(settings) - known)
    if unknown:
        raise ArgumentError(
            f"{unknown[0]}={settings[unknown[0]]!r} is not an option of {formats[0]} files, which take "
            f"{', '.join(sorted(known))}."
        )
    indexer: Indexer = getattr(importlib.import_module(module), function)
    return indexer, cast(IndexSettings, settings), by_key


def format_of(file: ByteReader) -> str:
    """The format of a file, by its first bytes; FormatError if it is unknown."""
    head = bytes(file.read(0, min(file.size, 512)))
    if _LMDB in (head[16:20], bytes(file.read(4112, 4)) if file.size >= 4116 else b""):
        return "lmdb"
    if any(at + 8 <= file.size and bytes(file.read(at, 8)) == _HDF5 for at in _HDF5_OFFSETS):
        return "hdf5"
    if head[257:262] == b"ustar" or (len(head) == 512 and _is_old_tar(head)):
        return "tar"
    length = int.from_bytes(head[:8], "little")
    if len(head) >= 12 and length + 16 <= file.size:
        return "tfrecord"
    if head.startswith(GZIP):
        raise FormatError(f"{file.name!r} at byte 0: gzip within gzip.")
    what = "the file is empty" if not file.size else f"it begins with {head[:8]!r}"
    raise FormatError(
        f"{file.name!r} at byte 0: neither HDF5, TFRecord, tar nor LMDB, or corrupt: {what}. "
        "Give such a file, or a folder of images."
    )


def _is_old_tar(head: bytes) -> bool:
    """Whether a header without the magic `ustar` has a tar's checksum."""
    stored = head[148:156].strip(b"\0 ")
    return stored.lstrip(b"0") == b"%o" % (sum(head[:148]) + 8 * 32 + sum(head[156:]))
