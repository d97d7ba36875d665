"""Memory of a cache that several processes of this host use: found by name, believed by its header.

The header comes first in the memory and is written last, so memory whose maker was killed has none. What is
in it is checked: a checksum, the name, sizes that fit the file. Memory that does not pass is left alone.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import NamedTuple

import numpy as np
import xxhash

from rekindle.core.json_input import parse_json
from rekindle.core.memfd import MemoryFile, find_memory_files
from rekindle.reuse.cache.shared_arrays import Field, SharedMemory

_MAGIC = b"rkhost02"  # changes with the layout of the memory, and with that of the values in it
_START = struct.Struct("<8s16sI")  # magic, checksum of what follows, length of it
_BYTES = 4096
_FIELD = "header"
_LONGEST = _BYTES - _START.size


class HostCache(NamedTuple):
    """What the header of a cache says.

    Attributes:
        name: By which it is found.
        size: Samples.
        heap: Bytes for values in memory.
        directory: The name of its directory on disk; empty if it has none.
        about: What the values depend on, in words: the same for all that use the cache.

    """

    name: str
    size: int
    heap: int
    directory: str
    about: dict[str, str]


FIELDS: tuple[Field, ...] = ((_FIELD, np.uint8, _BYTES),)  # the first of all


def write_header(memory: SharedMemory, header: HostCache) -> None:
    """Make the memory one that others can join; ValueError if there is too much to say about it."""
    content = json.dumps(header._asdict()).encode()
    if len(content) > _LONGEST:
        raise ValueError(f"a header of {len(content)} bytes: at most {_LONGEST} have room")
    memory.flags[_FIELD][_START.size : _START.size + len(content)] = np.frombuffer(content, np.uint8)
    start = _START.pack(_MAGIC, xxhash.xxh3_128_digest(content), len(content))
    memory.flags[_FIELD][: _START.size] = np.frombuffer(start, np.uint8)


def find_caches(name: str) -> Iterator[tuple[MemoryFile, HostCache]]:
    """The caches of this name that processes of this user have open, with what their headers say."""
    for file in find_memory_files(name):
        header = _read(file)
        if header is not None and header.name == name:
            yield file, header


def _read(file: MemoryFile) -> HostCache | None:
    memory = SharedMemory.attached(file.identity)
    if memory is not None:  # Not opened again: closing it would release this process's locks.
        return parse_header(memory.flags[_FIELD].tobytes() if _FIELD in memory.flags else b"")
    fd = file.open()
    if fd is None:
        return None
    with closing(os.fdopen(fd, "rb", buffering=0)) as opened:
        return parse_header(opened.read(_BYTES) or b"")


def parse_header(content: bytes) -> HostCache | None:
    """What a header says; None if it is none."""
    with suppress(ValueError, TypeError, struct.error):
        magic, checksum, length = _START.unpack_from(content)
        text = content[_START.size : _START.size + length]
        if magic != _MAGIC or len(text) != length or xxhash.xxh3_128_digest(text) != checksum:
            return None
        said = parse_json(text)
        if isinstance(said, dict):
            return _checked(HostCache(**said))
    return None


def _checked(header: HostCache) -> HostCache | None:
    """A header whose values have the right types; None for any other."""
    name, size, heap, directory, about = header
    texts = [name, directory, *about, *about.values()] if isinstance(about, dict) else [None]
    right = all(isinstance(text, str) for text in texts)
    return header if right and all(type(one) is int and 0 <= one < 2**56 for one in (size, heap)) else None
