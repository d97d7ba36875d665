"""Entries of a cache that were overwritten: another value or an exception, which is a miss; never a crash.

The first byte of a value says which codec reads it; a compressed one is the value before it was compressed,
or after.
"""

import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch
import xxhash
from PIL import Image

from rekindle.core.directory import Directory
from rekindle.reuse.cache.codecs import Codec, find_codec
from rekindle.reuse.cache.record import ALIGNMENT
from rekindle.reuse.cache.segments import SNAPSHOT, SegmentName, append, read_index, write_snapshot
from rekindle.reuse.cache.serialization import encode

_CODECS = ("raw", "jpeg", "lz4", "zstd")


@cache
def _codec(name: str) -> Codec:
    return find_codec(name)


def check_value(data: bytes) -> None:
    if not data:
        return
    memory = np.zeros(len(data) - 1 + ALIGNMENT, dtype=np.uint8)  # aligned, as in the cache
    start = -memory.ctypes.data % ALIGNMENT
    record = memory[start : start + len(data) - 1]
    record[:] = np.frombuffer(data, dtype=np.uint8)[1:]
    try:
        value = _codec(_CODECS[data[0] % len(_CODECS)]).unpack(record)
    except MemoryError:
        raise
    except Exception:  # As the store does: a miss.
        return
    _read(value)


def _read(value: object) -> None:
    """Touch every byte of a value: of one that lies outside of the record, this crashes."""
    if isinstance(value, tuple | list):
        for part in value:
            _read(part)
    elif isinstance(value, dict):
        _read(list(value.items()))
    elif isinstance(value, np.ndarray | np.generic | Image.Image | bytearray):
        bytes(value.tobytes() if hasattr(value, "tobytes") else value)
    elif isinstance(value, torch.Tensor):
        value.clone()


def values() -> list[bytes]:
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    picture = Image.fromarray(pixels)
    picture.info["dpi"] = (72.0, 1 + 2j)
    fields = np.zeros(2, dtype=[("x", "<f4"), ("y", "u1", (2,))])
    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    given: list[object] = [
        (pixels, 3, "name" * 30, None, True, 2.5),
        {"image": picture, "mask": Image.new("P", (3, 2)), "target": np.int64(4)},
        [tensor, tensor.t(), torch.zeros(0, 2, dtype=torch.bfloat16), b"bytes", bytearray(b"more")],
        (fields, np.asfortranarray(pixels), np.empty((0, 3)), np.datetime64("2020-01-01")),
    ]
    seeds = []
    for value in given:
        for number, name in enumerate(_CODECS):
            seeds.append(bytes([number]) + _codec(name).pack(value).joined().tobytes())
    seeds.append(b"\0" + encode(Image.new("L", (0, 5))).joined().tobytes())
    return seeds


@cache
def _folder() -> tuple["tempfile.TemporaryDirectory[str]", Directory]:
    folder = tempfile.TemporaryDirectory()
    with open(Path(folder.name) / str(SegmentName(1, 1)), "wb") as file:
        append(file.fileno(), 0, 3, 0, encode(5))
    return folder, Directory(Path(folder.name))


def check_snapshot(data: bytes) -> None:
    folder, directory = _folder()
    (Path(folder.name) / SNAPSHOT).write_bytes(xxhash.xxh3_64_digest(data) + data)
    rows, names = read_index(directory, 10, 5)
    assert len(names) == 1
    for index, generation, segment, offset, length in rows.tolist():
        assert 0 <= index < 10
        assert 0 <= generation < 5
        assert segment in names
        assert offset >= 0
        assert length >= 0


def snapshots() -> list[bytes]:
    folder, directory = _folder()
    rows = np.array([[3, 0, 1, 0, 10], [4, 1, 1, 128, 20], [5, 0, 2, 0, 9]])
    made = []
    for count, ends in ((3, {1: 192, 2: 64}), (0, {})):
        write_snapshot(directory, rows[:count], ends)
        made.append((Path(folder.name) / SNAPSHOT).read_bytes()[8:])
    return made
