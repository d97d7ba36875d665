"""Gzipped files, which cannot be read at random: they are unpacked once, into the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import zlib
from pathlib import Path
from typing import BinaryIO

from rekindle.core.atomic_file import atomic_write
from rekindle.core.directory import PRIVATE
from rekindle.core.progress import byte_progress_bar
from rekindle.core.user_cache import user_cache
from rekindle.errors import DataError, FormatError
from rekindle.fetch.byte_files import ByteFile, LocalFile

# With the compression method, of which there is one: a TFRecord may begin with a length of the first two
# bytes.
MAGIC = b"\x1f\x8b\x08"
_PIECE = 1 << 20
# Images hardly compress, so a file that grows more than this is made to fill the disk.
_MAX_RATIO, _ALWAYS_ALLOWED = 100, 64 << 20
_FIRST_PIECE = 1 << 9  # bytes of a gzip member that are tried first: there may be many small ones


def unzipped(file: ByteFile) -> ByteFile:
    """The file itself, or if it is gzipped, a file in the user's cache folder with its content."""
    if file.size < len(MAGIC) or bytes(file.read(0, len(MAGIC))) != MAGIC:
        return file
    try:
        folder = user_cache("unzipped")
    except OSError as error:
        raise DataError(
            f"cannot unpack {file.name!r} to {error.filename!r}: {error.strerror}. Unpack it, or set "
            "XDG_CACHE_HOME to a folder of your own."
        ) from error
    if folder is None:
        raise DataError(f"cannot unpack {file.name!r}: no home folder. Unpack it, or set XDG_CACHE_HOME.")
    name = file.name if file.is_remote else os.path.abspath(file.name)
    key = hashlib.sha256(
        f"{name}\n{file.version or _digest(file)}".encode("utf-8", "surrogatepass")
    ).hexdigest()
    target = f"{key[:16]}-{Path(file.name).name.removesuffix('.gz')[-100:]}"
    try:
        if folder.make().stat(target) is None:
            with atomic_write(target, directory=folder, mode=PRIVATE) as out:
                _unpack(file, out)
    except OSError as error:
        raise DataError(
            f"cannot unpack {file.name!r} to {str(folder.path)!r}: {error.strerror}. Unpack it, or set "
            "XDG_CACHE_HOME to a folder of your own on a disk with enough space."
        ) from error
    return LocalFile(folder.path / target)


def _digest(file: ByteFile) -> str:
    """A hash of the content, for a file without a version."""
    digest = hashlib.sha256()
    for offset in range(0, file.size, _PIECE):
        digest.update(file.read(offset, min(_PIECE, file.size - offset)))
    return digest.hexdigest()


def _unpack(file: ByteFile, out: BinaryIO) -> None:
    limit = max(_ALWAYS_ALLOWED, file.size * _MAX_RATIO)
    written, offset = 0, 0
    unpacker, length = zlib.decompressobj(31), _FIRST_PIECE
    with byte_progress_bar(f"unpacking {Path(file.name).name}", file.size) as report:
        while offset < file.size:
            data = memoryview(file.read(offset, min(_PIECE, file.size - offset)))
            used = 0
            while used < len(data):
                if unpacker.eof:  # A gzip file may have several members.
                    unpacker, length = zlib.decompressobj(31), _FIRST_PIECE
                given = data[used : used + length]
                try:
                    piece = unpacker.decompress(given, 16 * _PIECE)
                except zlib.error as error:
                    raise FormatError(
                        f"{file.name!r} at byte {offset + used}: corrupt gzip data: {error}"
                    ) from error
                written += len(piece)
                if written > limit:
                    raise FormatError(
                        f"{file.name!r} at byte {offset + used}: unpacks to more than {limit:,} bytes, "
                        f"{limit / file.size:,.0f} times its size. If you trust it, unpack it with gunzip."
                    )
                out.write(piece)
                # The unpacker copies what it did not use, so a new member is given little at first.
                used += len(given) - len(unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail)
                length = min(2 * length, _PIECE)
            offset += len(data)
            report(offset)
    if not unpacker.eof:
        raise FormatError(f"{file.name!r} at byte {file.size}: the gzip data is truncated.")
