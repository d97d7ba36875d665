"""What a sample of a packed file may cost: small files that would cost hours or gigabytes are refused."""

import gzip
import io
import os
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import rekindle as rk
from rekindle.errors import DataError, FormatError
from rekindle.fetch.byte_files import LocalFile
from rekindle.fetch.open_source import open_source
from rekindle.fetch.packed import gzip_cache, protobuf
from rekindle.fetch.packed.hdf5.inspector import Inspector
from rekindle.fetch.packed.lmdb.index import MAGIC
from rekindle.fetch.packed.sample_decoders import ChunkedArray
from rekindle.fetch.packed.tar import index as tar_index

IMAGE = b"\xff\xd8image"

pytestmark = pytest.mark.usefixtures("cache")


# HDF5's chunks.


def chunked(path: Path, shape: tuple[int, ...], chunk: tuple[int, ...], **options: Any) -> Any:
    with h5py.File(path, "w") as file:
        most = (None, *shape[1:])
        images = file.create_dataset("images", shape, "u1", maxshape=most, chunks=chunk, **options)
        file["labels"] = np.zeros(shape[0], np.int64)
        if options.get("compression") == "gzip":
            whole = zlib.compress(bytes(int(np.prod(chunk))), 9)
            for position in np.ndindex(*(-(-a // b) for a, b in zip(shape, chunk, strict=True))):
                start = tuple(int(a * b) for a, b in zip(position, chunk, strict=True))
                images.id.write_direct_chunk(start, whole)
    return path


def test_a_sample_of_a_hundred_thousand_huge_chunks_is_refused(tmp_path: Path) -> None:
    """150,528 chunks of 256 MB, of each of which a sample has a byte: hours, from a file of 2 KB."""
    path = chunked(tmp_path / "a.h5", (1, 224, 224, 3), (1 << 28, 1, 1, 1))
    assert path.stat().st_size < 10_000
    with pytest.raises(FormatError, match=r"a\.h5.*rekindle\.Limits\(array_bytes="):
        open_source(path)


def test_twelve_bytes_of_pixels_in_large_compressed_chunks_are_refused(tmp_path: Path) -> None:
    path = chunked(tmp_path / "a.h5", (1, 2, 2, 3), (1 << 25, 1, 1, 1), compression="gzip")
    assert path.stat().st_size < 1 << 20
    with pytest.raises(FormatError, match="402,653,184 bytes exceed the limit of 268,435,456"):
        open_source(path)


def test_a_limit_that_is_raised_admits_the_sample(tmp_path: Path) -> None:
    path = chunked(tmp_path / "a.h5", (2, 2, 2, 3), (64, 1, 1, 1), compression="gzip")
    with pytest.raises(FormatError, match=r"Limits\(array_bytes=49152\)"):  # 12 chunks, 4 KiB for each
        open_source(path, limits=rk.Limits(array_bytes=49_151))
    assert not np.asarray(open_source(path, limits=rk.Limits(array_bytes=49_152)).read(0)).any()


def test_chunks_that_were_never_written_are_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        images = file.create_dataset("images", (2, 4, 4, 3), "u1", chunks=(1, 2, 2, 3), fillvalue=7)
        images[0, 2:, 2:] = 200
    made: list[int] = []
    whole = ChunkedArray.chunk
    monkeypatch.setattr(
        ChunkedArray, "chunk", lambda self, number: made.append(number) or whole(self, number)
    )
    source = open_source(tmp_path / "a.h5")
    expected = np.full((4, 4, 3), 7, np.uint8)
    assert np.array_equal(source.read(1), expected)
    expected[2:, 2:] = 200
    assert np.array_equal(source.read(0), expected)
    assert made == [3]


def test_labels_that_were_never_written_cost_no_more_than_the_limit(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"] = np.zeros((40_000, 1, 1, 3), np.uint8)
        file.create_dataset("labels", (40_000,), "S10000", chunks=(100,))
    with pytest.raises(FormatError, match=r"labels'.*400,000,000 bytes exceed the limit"):
        open_source(tmp_path / "a.h5")


# Bytes of a sample.


def test_a_sample_of_more_bytes_than_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, size in (("a.jpg", 10), ("b.jpg", 11)):
            member = tarfile.TarInfo(name)
            member.size = size
            tar.addfile(member, io.BytesIO(bytes(size)))
    source = open_source(tmp_path / "a.tar", limits=rk.Limits(encoded_bytes=10))
    for read in (source.read, source.copy):
        assert len(read(0)) == 10
        with pytest.raises(DataError, match=r"11 bytes of one sample exceed.*encoded_bytes=11"):
            read(1)


# GZIP.


class Counted:
    """An unpacker that counts the bytes it is given and gives back."""

    moved = 0

    def __init__(self, unpacker: Any) -> None:
        self._unpacker = unpacker

    def decompress(self, data: Any, most: int) -> bytes:
        Counted.moved += len(data)
        return self._unpacker.decompress(data, most)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._unpacker, name)


def test_gzip_of_many_empty_members_takes_time_in_proportion_to_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows a member is copied by zlib: 1 MiB for each of 50,000 members were 25 GB."""
    member = gzip.compress(b"", mtime=0)
    content = member * ((1 << 19) // len(member))
    (tmp_path / "a.gz").write_bytes(content + gzip.compress(b"x" * 100))
    made = zlib.decompressobj
    monkeypatch.setattr(gzip_cache.zlib, "decompressobj", lambda bits: Counted(made(bits)))
    Counted.moved = 0
    with pytest.raises(FormatError, match="neither HDF5"):
        open_source(tmp_path / "a.gz")
    assert Counted.moved < 40 * len(content)


def test_gzip_of_members_of_all_sizes_is_unpacked_exactly(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parts = [rng.bytes(size) for size in (0, 1, 500, 600, 5000, 0, 3 << 20, 7)]
    (tmp_path / "a.gz").write_bytes(b"".join(map(gzip.compress, parts)))
    unpacked = gzip_cache.unzipped(LocalFile(tmp_path / "a.gz"))
    assert bytes(unpacked.read(0, unpacked.size)) == b"".join(parts)


def test_a_gzip_bomb_says_what_to_do_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(13 << 20), 1) * 5)
    with pytest.raises(FormatError, match=r"a\.gz.*unpacks to more than 67,108,864 bytes.*gunzip"):
        open_source(tmp_path / "a.gz")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.stat().st_size]


# Labels.


@pytest.mark.parametrize("name", ["labels.json", "labels.csv"])
def test_a_large_label_does_not_make_as_many_class_names(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / name).write_text('{"a.png": 9999999}' if name.endswith("json") else "a.png,9999999\n")
    with pytest.raises(DataError, match=r"label 9999999 is too large.*Limits\(classes=10000000\)"):
        open_source(tmp_path)


def test_a_limit_on_class_numbers_can_be_raised(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"label 50 is too large.*Limits\(classes=51\)"):
        open_source(tmp_path, {"a.png": 50}, limits=rk.Limits(classes=50))
    assert open_source(tmp_path, {"a.png": 50}, limits=rk.Limits(classes=51)).targets == [50]


# Sparse files.


def test_a_sparse_lmdb_file_costs_what_its_tree_has(tmp_path: Path) -> None:
    """A bit for each of its pages would be 8 GB; a value of zeros was parsed for hours."""
    nothing = 2**64 - 1
    meta = struct.pack("<IIQQ", MAGIC, 1, 0, 1 << 40) + struct.pack(
        "<IHHQQQQQ", 512, 0, 0, 0, 0, 0, 0, nothing
    )
    meta += struct.pack("<IHHQQQQQ", 0, 0, 1, 0, 1, 0, 2, 2) + struct.pack("<QQ", 2, 1)
    pages = [(struct.pack("<QHHHH", page, 0, 8, 0, 0) + meta).ljust(512, b"\0") for page in (0, 1)]
    nodes = struct.pack("<HHHH", len(IMAGE), 0, 0, 1) + b"a" + IMAGE
    far = (1 << 42) // 512 - 3_000_000
    big = struct.pack("<HHHH", 0, 1 << 14, 1, 1) + b"b" + struct.pack("<Q", far)  # 1 GiB of zeros
    leaf = struct.pack("<QHHHH", 2, 0, 2, 20, 512) + struct.pack("<HH", 20, 20 + len(nodes)) + nodes + big
    with open(tmp_path / "data.mdb", "wb") as file:
        file.write(b"".join(pages) + leaf.ljust(512, b"\0"))
        file.seek(far * 512)
        file.write(struct.pack("<QHHI", far, 0, 4, 1 << 21))
        file.truncate(1 << 42)
    with pytest.raises(FormatError, match="neither an image nor a Datum: a field of number 0"):
        open_source(tmp_path / "data.mdb")


def test_a_sparse_hdf5_file_is_inspected_no_longer_than_the_limit(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"] = np.zeros((2, 2, 2, 3), np.uint8)
    os.truncate(tmp_path / "a.h5", 1 << 40)
    asked: list[float] = []

    class Asked(Inspector):
        def _ask(self, file: Any, request: bytes, seconds: float) -> Any:
            asked.append(seconds)
            return {"unsupported": "nothing"}

    with pytest.raises(FormatError, match="nothing"):
        Asked().inspect(LocalFile(tmp_path / "a.h5"), {}, rk.Limits(seconds=7))
    assert asked == [60 + 7]


def test_a_message_of_many_fields_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 100,000"):
        list(protobuf.fields(memoryview(b"\x08\x00" * 100_001), 0, 200_002))


# tar.


def test_class_names_of_a_tar_are_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty list with megabytes of spaces in it was parsed again for each sample."""
    parsed: list[str] = []
    parse = tar_index.parse_json
    monkeypatch.setattr(tar_index, "parse_json", lambda text: parsed.append(text) or parse(text))
    headers = {tar_index.CLASSES: f"[{' ' * 1000}]"}
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT, pax_headers=headers) as tar:
        for number in range(10):
            member = tarfile.TarInfo(f"{number}.jpg")
            member.size = len(IMAGE)
            tar.addfile(member, io.BytesIO(IMAGE))
    assert len(open_source(tmp_path / "a.tar")) == 10
    assert len(parsed) == 1
