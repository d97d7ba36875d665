"""Small packed files of every format, and damage to them."""

import io
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from packs import CLASSES, pack
from rekindle.errors import DataError, FormatError
from rekindle.fetch.byte_files import LocalFile
from rekindle.fetch.open_source import format_of
from rekindle.fetch.packed.hdf5.index import index_hdf5
from rekindle.fetch.packed.hdf5.inspector import Inspector
from rekindle.fetch.packed.lmdb.index import index_lmdb
from rekindle.fetch.packed.source import Packed
from rekindle.fetch.packed.tar.index import index_tar
from rekindle.fetch.packed.tfrecord.index import index_tfrecord

SAMPLES = [b"\xff\xd8" + b"first" * 9, b"\xff\xd8second"]
NAME = "hostile.file"


class InMemory:
    """A file that is only bytes."""

    name = NAME
    version = ""
    is_remote = False

    def __init__(self, data: bytes) -> None:
        self.size, self._data = len(data), memoryview(data)

    def read(self, offset: int, length: int) -> memoryview:
        if offset < 0 or length < 0 or offset + length > self.size:
            raise FormatError(f"{NAME!r} at byte {offset}: outside of the file")
        return self._data[offset : offset + length]

    def copy(self, offset: int, length: int) -> bytes:
        return bytes(self.read(offset, length))

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        raise AssertionError(f"nothing asked for {ranges}")

    def for_indexing(self) -> "InMemory":
        return self

    def check_unchanged(self) -> None:
        """Bytes do not change."""


def read_all(data: bytes, indexer: Callable[..., Any]) -> list[tuple[bytes, int]] | None:
    """The samples; None if there is a FormatError. Any other error is a bug."""
    try:
        packed = Packed("packed", [InMemory(data)], indexer, keep_index=False)
        found = [(bytes(packed.read(number)), packed.target(number)) for number in range(len(packed))]
    except DataError as error:
        # Errors of labels name the source rather than the file.
        if (isinstance(error, FormatError) and NAME in str(error)) or "label" in str(error):
            return None
        raise
    assert sum(len(sample) for sample, _ in found) <= len(data)
    return found


def flips(data: bytes, places: Iterable[int]) -> Iterator[bytes]:
    """The data with one bit changed at a time."""
    changed = bytearray(data)
    for place in places:
        for bit in range(8):
            changed[place] ^= 1 << bit
            yield bytes(changed)
            changed[place] ^= 1 << bit


def small_tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in (("a.jpg", SAMPLES[0]), ("a.cls", b"3"), ("é.jpg", SAMPLES[1]), ("é.cls", b"4")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    content = out.getvalue()
    return content[: len(content.rstrip(b"\0")) // 512 * 512 + 512 + 1024]


def small_files(folder: Path) -> dict[str, bytes]:
    """The smallest files of each format."""
    pack(folder / "a.tfrecord", list(SAMPLES), CLASSES)
    pack(folder / "a.lmdb", [*SAMPLES, b"\xff\xd8" + bytes(5000)])
    with h5py.File(folder / "a.h5", "w", libver="earliest") as file:
        images = file.create_dataset("images", (2,), h5py.vlen_dtype(np.uint8))
        for number, sample in enumerate(SAMPLES):
            images[number] = np.frombuffer(sample, np.uint8)
        file["labels"] = [0, 1]
    with h5py.File(folder / "b.h5", "w", libver="latest") as file:
        pixels = np.arange(72, dtype=np.uint8).reshape(6, 2, 2, 3)
        file.create_dataset("images", data=pixels, chunks=(2, 2, 2, 3), compression="gzip", shuffle=True)
    with h5py.File(folder / "c.h5", "w", libver="earliest") as file:
        for number, sample in enumerate(SAMPLES):
            one = file.create_dataset(f"train/{number}", data=np.frombuffer(sample, np.uint8))
            one.attrs["label"] = ["cat", "dog"][number]
    return {
        "tar": small_tar(),
        "tfrecord": (folder / "a.tfrecord").read_bytes(),
        "lmdb": (folder / "a.lmdb" / "data.mdb").read_bytes(),
        "hdf5": (folder / "a.h5").read_bytes(),
        "hdf5 chunks": (folder / "b.h5").read_bytes(),
        "hdf5 groups": (folder / "c.h5").read_bytes(),
    }


HDF5 = ["hdf5", "hdf5 chunks", "hdf5 groups"]
INDEXERS: dict[str, Callable[..., Any]] = {"tar": index_tar, "tfrecord": index_tfrecord, "lmdb": index_lmdb}


class Guarded:
    """HDF5 files under test: written to a place of their own, indexed by one process that is kept."""

    def __init__(self, folder: Path) -> None:
        self.path, self.inspector = folder / NAME, Inspector()
        self.read_some = 0

    def read(self, data: bytes) -> list[Any] | None:
        self.path.write_bytes(data)
        try:
            if format_of(InMemory(data)) != "hdf5":
                return None
            packed = Packed(self.path, [LocalFile(self.path)], self._index, keep_index=False)
            assert len(packed) * 8 <= 3000 * len(data)
            found = [packed.read(number) for number in range(min(len(packed), 50))]
        except FormatError as error:
            if NAME in str(error):
                return None
            raise
        assert sum(np.asarray(one).nbytes for one in found) <= 2000 * len(data)
        self.read_some += 1
        return found

    def _index(self, files: Any, settings: Any, report: Any, limits: Any) -> Any:
        return index_hdf5(files, settings, report, inspector=self.inspector)
