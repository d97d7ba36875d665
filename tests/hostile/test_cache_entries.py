"""Entries of a cache that say what cannot be: a miss, at a cost in proportion to their own size."""

import json
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import xxhash
from PIL import Image

from rekindle.core.directory import Directory
from rekindle.reuse import Store
from rekindle.reuse.cache import segments
from rekindle.reuse.cache.codecs import find_codec
from rekindle.reuse.cache.deserialization import decode
from rekindle.reuse.cache.serialization import encode

FEW_BYTES = 1 << 20


def record(*description: object) -> np.ndarray:
    text = json.dumps(description).encode()
    return np.frombuffer(struct.pack("<I", len(text)) + text + bytes(200), dtype=np.uint8)


def refused_at_little_cost(unpack: object, memory: np.ndarray) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"cannot be|is not|expected"):
            unpack(memory)  # type: ignore[operator]
        assert tracemalloc.get_traced_memory()[1] < FEW_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["lz4", "zstd"])
def test_a_compressed_entry_cannot_ask_for_more_than_it_can_hold(name: str) -> None:
    codec = find_codec(name)
    good = codec.pack(np.zeros(1000, np.uint8)).joined()
    for length in (1 << 30, 1 << 40, (1 << 64) - 1):
        changed = good.copy()
        changed[:8] = np.frombuffer(struct.pack("<Q", length), dtype=np.uint8)
        refused_at_little_cost(codec.unpack, changed)


def test_a_zstandard_frame_of_another_length_than_the_entry_says_is_not_made() -> None:
    import zstandard

    frame = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    memory = np.frombuffer(struct.pack("<Q", 100) + frame, dtype=np.uint8)
    refused_at_little_cost(find_codec("zstd").unpack, memory)


def test_an_entry_of_few_bytes_is_no_large_image() -> None:
    nothing = ["dict", [], []]
    for nbytes in (0, 10):
        refused_at_little_cost(decode, record("image", "RGB", [60_000, 60_000], nbytes, None, nothing))
    for shape in ([60_000, 60_000, 3], [2**40, 1, 3], [-1, -1, 3], [1, 3], "a"):
        refused_at_little_cost(find_codec("jpeg").unpack, record("picture", ["array", shape], 60))


@pytest.mark.parametrize("dtype", ["S0", "U0", "V0"])
def test_entries_without_bytes_take_no_memory(dtype: str) -> None:
    memory = record("array", json.dumps(f"|{dtype}".replace("|U", "<U")), [2**40], None)
    assert decode(memory).nbytes == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["raw", "lz4", "zstd", "jpeg"])
@pytest.mark.parametrize(
    "value",
    [np.zeros((3000, 2000, 3), np.uint8), np.zeros((1, 60_000, 3), np.uint8), np.zeros((1, 1, 3), np.uint8)],
    ids=lambda value: str(value.shape),
)
def test_the_emptiest_images_come_back(name: str, value: np.ndarray) -> None:
    codec = find_codec(name)
    assert np.array_equal(codec.unpack(codec.pack(value).joined()), value)  # type: ignore[arg-type]
    bits = Image.fromarray(value).convert("1")
    assert codec.unpack(codec.pack(bits).joined()) == bits


SNAPSHOTS = [
    b"no JSON\n",
    b"[" * 100_000 + b"\n",
    b"[]\n",
    b'{"ends": 5}\n',
    b'{"ends": {"a": 1}}\n',
    b'{"ends": {"1": "a"}}\n',
    b'{"ends": {"1": -64}}\n',
    b'{"ends": {"1": 1e400}}\n',
    b'{"ends": {}}\n' + bytes(39),
]


@pytest.mark.parametrize("content", SNAPSHOTS, ids=lambda content: content[:20].decode())
def test_a_snapshot_that_cannot_be_is_not_used(tmp_path: Path, content: bytes) -> None:
    with Store(5, memory=0, disk=tmp_path) as store:
        assert store.put(3, 0, "kept")
    (folder,) = (path for path in tmp_path.iterdir() if list(path.glob("*.segment")))
    (folder / segments.SNAPSHOT).write_bytes(xxhash.xxh3_64_digest(content) + content)
    with Store(5, memory=0, disk=tmp_path) as store:
        assert store.get(3, 0) == "kept"


@pytest.mark.parametrize(("offset", "length"), [(0, 2**40 - 1), (-64, 10), (2**62, 10), (0, -1), (10**6, 10)])
def test_a_snapshot_lists_only_what_its_segments_hold(tmp_path: Path, offset: int, length: int) -> None:
    folder = Directory(tmp_path)
    with open(tmp_path / str(segments.SegmentName(1, 1)), "wb") as file:
        end = segments.append(file.fileno(), 0, 3, 0, encode(5))
    rows = np.array([[3, 1, 1, offset, length], [4, 0, 1, 0, 5]])
    segments.write_snapshot(folder, rows, {1: end})
    found, _ = segments.read_index(folder, 10, 5)
    assert found.tolist() == [[4, 0, 1, 0, 5]]
