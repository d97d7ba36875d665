"""Files that are at their place whole or not at all: written beside it under another name, then renamed."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import IO

from rekindle.errors import DataError


class AtomicFile:
    """A file to write, which gets its name by `close`; `abort` removes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            number, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        except OSError as error:
            raise DataError(f"cannot write {str(path)!r}: {error.strerror}") from error
        self.name = name
        self.file: IO[bytes] = os.fdopen(number, "w+b")

    def close(self) -> None:
        """Put the file at its place."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        os.chmod(self.name, 0o644)
        os.replace(self.name, self.path)
        self.name = ""

    def abort(self) -> None:
        """Remove what was written, unless it is at its place."""
        if self.name:
            self.file.close()
            os.unlink(self.name)
            self.name = ""


class AtomicFolder:
    """The same for a folder: `name` is where to write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.name = tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        except OSError as error:
            raise DataError(f"cannot write {str(path)!r}: {error.strerror}") from error

    def close(self) -> None:
        """Put the folder at its place; one that was there before goes."""
        os.chmod(self.name, 0o755)
        if self.path.is_dir():
            old = tempfile.mkdtemp(prefix=f".{self.path.name}.", suffix=".old", dir=self.path.parent)
            os.rename(self.path, Path(old) / "old")
            os.rename(self.name, self.path)
            shutil.rmtree(old)
        else:
            os.rename(self.name, self.path)
        self.name = ""

    def abort(self) -> None:
        """Remove what was written, unless it is at its place."""
        if self.name:
            shutil.rmtree(self.name, ignore_errors=True)
            self.name = ""
