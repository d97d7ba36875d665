"""Whatever bytes lie in a disk cache: a miss at worst, for no more memory than the bytes themselves."""

import json
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rekindle.core.directory import Directory
from rekindle.reuse.cache import segments
from rekindle.reuse.cache.codecs import find_codec
from rekindle.reuse.cache.deserialization import decode
from rekindle.reuse.cache.serialization import HEADER_LENGTH, encode
from rekindle.reuse.cache.store import Store


def described(description, content=b""):
    """A record with this header, whose checksum is right."""
    text = description if isinstance(description, bytes) else json.dumps(description).encode()
    head = HEADER_LENGTH.pack(len(text)) + text
    return np.frombuffer(head.ljust(-(-len(head) // 64) * 64, b"\0") + content, np.uint8)


@pytest.mark.parametrize(
    "description",
    [
        ["image", "L", [20000, 20000], 0, None, ["dict", [], []]],
        ["image", "L", [20000, 20000], 4, None, ["dict", [], []]],
        ["tensor", "quint8", [4], None],
        ["array", '"|O"', [1], None],
        ["array", '"<u1"', [-1, 4], None],
        ["array", '"<u1"', [2**62, 2**62], None],
        ["named", ["os", "stat_result"], [], []],
        b"[" * 100_000,
        b'["list",[' * 5_000 + b'["none"]' + b"]]" * 5_000,
        b"\xff\xfe",
        ["nothing of this name"],
        [],
        None,
    ],
    ids=range(13),
)
def test_a_header_that_describes_no_value_is_an_error_before_memory_is_taken(description, monkeypatch):
    monkeypatch.setattr(Image, "new", lambda *given: pytest.fail("memory was taken"))
    with pytest.raises(Exception):  # noqa: B017, PT011 - any kind: the store makes a miss of it
        decode(described(description, b"1234"))


@pytest.mark.parametrize("name", ["lz4", "zstd"])
def test_a_length_that_cannot_have_been_compressed_so_far_is_an_error(name):
    codec = find_codec(name)
    packed = codec.pack(np.zeros(1 << 24, np.uint8)).joined()
    assert codec.unpack(packed).shape == (1 << 24,), "what was compressed a lot is no attack"
    wrong = packed.copy()
    wrong[:8] = np.frombuffer(struct.pack("<Q", 1 << 50), np.uint8)
    with pytest.raises(ValueError, match="cannot be"):
        codec.unpack(wrong)


def _snapshot(folder: Path, head: bytes, rows=()):
    content = head + b"\n" + np.array(rows, np.int64).tobytes()
    (folder / segments.SNAPSHOT).write_bytes(xxhash.xxh3_64_digest(content) + content)


HEADS = {
    "no JSON": b"{",
    "nested": b"[" * 100_000,
    "a list": b"[]",
    "ends of text": b'{"rows": 1, "ends": {"x": 1}}',
    "ends before the start": b'{"rows": 1, "ends": {"0": -5}}',
    "an end of no number": b'{"rows": 1, "ends": {"0": null}}',
    "infinite": b'{"rows": 1, "ends": {"0": 1e999}}',
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_a_snapshot_that_is_none_is_not_used(tmp_path, head):
    _snapshot(tmp_path, head, [[0, 0, 0, 0, 5]])
    rows, ends = segments.read_snapshot(Directory(tmp_path))
    assert (len(rows), ends) == (0, {})


@pytest.mark.parametrize("row", [[0, 0, 0, 0, 1 << 39], [0, 0, 0, -64, 100], [0, 0, 0, 2**62, 100]])
def test_a_record_that_its_file_has_no_room_for_is_none(tmp_path, row):
    (tmp_path / "000000-00000000.segment").write_bytes(bytes(128))
    _snapshot(tmp_path, b'{"rows": 1, "ends": {"0": 0}}', [row])
    assert len(segments.read_index(Directory(tmp_path), 10, 100)[0]) == 0


@pytest.mark.parametrize("name", ["000000-99999999999999999999", "²-1", "0-" + "9" * 200, "000001-x", "-"])
def test_files_of_other_names_are_no_segments(tmp_path, name):
    (tmp_path / f"{name}.segment").touch()
    assert segments.find_segments(Directory(tmp_path)) == []


VALUE = {"x": np.arange(12).reshape(3, 4), "y": (1, 2.5, "text", b"bytes", None), "z": [np.float32(2)]}


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_change_to_a_record_is_another_value_or_an_error(data):
    memory = encode(VALUE).joined().copy()
    for _ in range(data.draw(st.integers(1, 4))):
        memory[data.draw(st.integers(0, len(memory) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(memory[: data.draw(st.integers(0, len(memory)))])
    except Exception as error:
        assert not isinstance(error, (MemoryError, SystemError)), error  # noqa: PT017


def test_an_entry_that_cannot_be_read_is_a_miss(tmp_path):
    store = Store(10, memory=0, disk=tmp_path, fingerprint="f")
    store.put(0, 0, np.arange(4))
    store.codec.unpack = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert store.get(0, 0) is None
    store.close()
