"""Writes tar files as WebDataset reads them: `key.jpg` and `key.cls` for each sample."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

from rekindle.core.atomic_file import AtomicFile
from rekindle.core.directory import Directory
from rekindle.errors import ArgumentError
from rekindle.fetch.image_signatures import image_format
from rekindle.fetch.packed.tar.index import CLASSES, IMAGE_EXTENSIONS
from rekindle.fetch.packed.writers import LabelPolicy, Writable, as_bytes


class TarWriter:
    """Samples as members of a tar; class names are a record of its global PAX header.

    Members are written here, because Python's `TarFile` would keep a list of all of them in memory.
    """

    def __init__(
        self, path: Path, classes: Sequence[str] | None = None, directory: Directory | None = None
    ) -> None:
        self._target = AtomicFile(path, directory=directory)
        self._policy = LabelPolicy(classes)
        self._last_key = ""
        if classes is not None:
            self._write_classes(classes)

    def add(self, key: str, data: Writable, label: int) -> None:
        """Add a sample. Its key must differ from the one before; dots in its last part become `_`."""
        folder, slash, name = key.rpartition("/")
        key = folder + slash + name.replace(".", "_")
        if key == self._last_key or not name:
            raise ArgumentError(f"the key {key!r} is empty, or that of the sample before.")
        labelled = self._policy.is_written(key, label)
        if not labelled and not self._last_key:
            self._write_classes([])  # Otherwise folders in the keys would be read as classes.
        self._last_key = key
        content = as_bytes(data)
        known = image_format(content)
        # Only these extensions are found again. Decoders go by the signature.
        self._write_member(f"{key}.{known.extension if known else IMAGE_EXTENSIONS[0]}", content)
        if labelled:
            self._write_member(f"{key}.cls", b"%d" % label)

    def _write_classes(self, classes: Sequence[str]) -> None:
        self._write(tarfile.TarInfo.create_pax_global_header({CLASSES: json.dumps(list(classes))}))

    def _write_member(self, name: str, content: bytes) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(content), 0o644
        self._write(member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        self._write(content)

    def _write(self, content: bytes) -> None:
        """Write a content that begins with a block, padded to whole blocks."""
        self._target.file.write(content)
        self._target.file.write(bytes(-len(content) % tarfile.BLOCKSIZE))

    def close(self) -> None:
        """Finish the tar, with two empty blocks and padding to a whole record, and give it its name."""
        self._target.file.write(bytes(2 * tarfile.BLOCKSIZE))
        self._target.file.write(bytes(-self._target.file.tell() % tarfile.RECORDSIZE))
        self._target.commit()

    def abort(self) -> None:
        """Remove what was written; does nothing after `close`."""
        self._target.abort()
