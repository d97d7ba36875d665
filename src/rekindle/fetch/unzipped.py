"""Files that are compressed as a whole (GZIP) cannot be read in places: they are unpacked once."""

from __future__ import annotations

import hashlib
import os
import tempfile
import zlib
from pathlib import Path

from rekindle.errors import DataError, FormatError
from rekindle.fetch.byte_files import ByteFile, LocalFile
from rekindle.fetch.progress import progress

# With the method, of which there is one: a TFRecord begins with a length, which two bytes are too easily.
MAGIC = b"\x1f\x8b\x08"
_PIECE = 1 << 20
# Images hardly compress, so a file that grows more than this is made to fill the disk.
_MOST_GROWTH, _ALWAYS_ALLOWED = 100, 64 << 20


def unzipped(file: ByteFile) -> ByteFile:
    """The file itself, or, if it is GZIP'd, a file in the user's cache folder with what is in it."""
    if file.size < len(MAGIC) or bytes(file.read(0, len(MAGIC))) != MAGIC:
        return file
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rekindle" / "unzipped"
    name = file.name if "://" in file.name else os.path.abspath(file.name)
    key = hashlib.sha256(f"{name}\n{file.version or _digest(file)}".encode()).hexdigest()
    target = cache / f"{key[:16]}-{Path(file.name).name.removesuffix('.gz')[-100:]}"
    if not target.exists():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=cache, suffix=".part", delete=False) as out:
                try:
                    _unpack(file, out)
                    out.close()
                    os.replace(out.name, target)
                except BaseException:
                    os.unlink(out.name)
                    raise
        except OSError as error:
            raise DataError(
                f"cannot unpack {file.name!r} to {str(cache)!r}: {error.strerror}. Unpack it, or set "
                "XDG_CACHE_HOME to a folder with room."
            ) from error
    return LocalFile(target)


def _digest(file: ByteFile) -> str:
    """What tells a file from another of its name where nothing else does: all that is in it."""
    digest = hashlib.sha256()
    for place in range(0, file.size, _PIECE):
        digest.update(file.read(place, min(_PIECE, file.size - place)))
    return digest.hexdigest()


def _unpack(file: ByteFile, out: object) -> None:
    most = max(_ALWAYS_ALLOWED, file.size * _MOST_GROWTH)
    made, place = 0, 0
    unpacker = zlib.decompressobj(31)
    with progress(f"unpacking {Path(file.name).name}", file.size) as told:
        while place < file.size:
            data = bytes(file.read(place, min(_PIECE, file.size - place)))
            place += len(data)
            while data:
                if unpacker.eof:  # Another member of the same file.
                    unpacker = zlib.decompressobj(31)
                try:
                    piece = unpacker.decompress(data, 16 * _PIECE)
                except zlib.error as error:
                    raise FormatError(f"{file.name!r} at byte {place}: damaged GZIP: {error}") from error
                made += len(piece)
                if made > most:
                    raise FormatError(f"{file.name!r} at byte {place}: unpacks to more than {most:,} bytes.")
                out.write(piece)  # type: ignore[attr-defined]
                data = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
            told(place)
    if not unpacker.eof:
        raise FormatError(f"{file.name!r} at byte {file.size}: the GZIP'd data ends early. It is cut off.")
