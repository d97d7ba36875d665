"""Writes tar files as WebDataset reads them: `key.jpg` and `key.cls` for each sample."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import ArgumentError
from rekindle.fetch.atomic import AtomicFile
from rekindle.fetch.image_kinds import ending_of
from rekindle.fetch.tar_index import CLASSES, IMAGES
from rekindle.fetch.writers import Labelling, as_bytes


class TarWriter:
    """Samples as members of a tar. Names of classes are a record of the archive's own header.

    Members are written one by one in a piece, and forgotten: Python's `TarFile` would remember all of them.
    """

    def __init__(self, path: Path, classes: Sequence[str] | None = None) -> None:
        self._target = AtomicFile(path)
        self._labelling = Labelling(classes)
        self._last = ""
        if classes is not None:
            self._name_classes(classes)

    def add(self, key: str, data: bytes | memoryview | NDArray[np.uint8], label: int) -> None:
        """Add a sample. Keys must differ from the one before; dots in their last part become `_`."""
        folder, slash, name = key.rpartition("/")
        key = folder + slash + name.replace(".", "_")
        if key == self._last or not name:
            raise ArgumentError(f"two samples in a row have the key {key!r}, or it is empty.")
        labelled = self._labelling.is_written(key, label)
        if not labelled and not self._last:
            self._name_classes([])  # Folders in the keys would be taken as classes.
        self._last = key
        content = as_bytes(data)
        kind = ending_of(content)
        # With another ending it would not be found. Whoever decodes it goes by its bytes.
        self._member(f"{key}.{kind if kind in IMAGES else IMAGES[0]}", content)
        if labelled:
            self._member(f"{key}.cls", b"%d" % label)

    def _name_classes(self, classes: Sequence[str]) -> None:
        self._write(tarfile.TarInfo.create_pax_global_header({CLASSES: json.dumps(list(classes))}))

    def _member(self, name: str, content: bytes) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(content), 0o644
        self._write(member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        self._write(content)

    def _write(self, content: bytes) -> None:
        """Write what starts at a block's beginning, and zeros up to the end of its last block."""
        self._target.file.write(content)
        self._target.file.write(bytes(-len(content) % tarfile.BLOCKSIZE))

    def close(self) -> None:
        """Finish the tar, as all tars are: two empty blocks, and more up to a whole record."""
        self._target.file.write(bytes(2 * tarfile.BLOCKSIZE))
        self._target.file.write(bytes(-self._target.file.tell() % tarfile.RECORDSIZE))
        self._target.close()

    def abort(self) -> None:
        """Leave nothing behind."""
        self._target.abort()
