"""Corrupt and hostile packed files: what is read is valid, or FormatError names the file; nothing else.

Every truncation and every single-bit flip of small files of each format; `slow`: many structured mutations.
HDF5's library itself runs in a process that may die of a file, which these tests make it do.
"""

import io
import os
import signal
import struct
import tarfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from packs import CLASSES, pack
from rekindle.errors import DataError, FormatError
from rekindle.fetch.open_source import format_of, open_packed, open_source
from rekindle.fetch.packed.hdf5 import inspector
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


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The smallest files of each format."""
    folder = tmp_path_factory.mktemp("small")
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


@pytest.mark.parametrize("kind", INDEXERS)
def test_every_truncation_is_noticed(small: dict[str, bytes], kind: str) -> None:
    whole = read_all(small[kind], INDEXERS[kind])
    assert whole is not None
    for length in range(len(small[kind])):
        found = read_all(small[kind][:length], INDEXERS[kind])
        # What ends behind all samples may still be read; TFRecords end between two records like whole files.
        assert found is None or found == whole[: len(found)]
        if kind != "tfrecord":
            assert found is None or found == whole


@pytest.mark.parametrize("kind", ["tar", "tfrecord"])
@pytest.mark.slow
def test_every_flipped_bit_gives_valid_data_or_an_error(small: dict[str, bytes], kind: str) -> None:
    data = small[kind]
    whole = read_all(data, INDEXERS[kind])
    assert whole is not None
    changed = 0
    for damaged in flips(data, range(len(data))):
        found = read_all(damaged, INDEXERS[kind])
        if kind == "tfrecord":
            assert found is None  # Checksums see every one.
        elif found is not None and found != whole:
            assert {len(sample) for sample, _ in found} <= {len(sample) for sample, _ in whole}
            changed += 1
    if kind == "tar":  # Only in the contents of members and in long names, which have no checksum.
        assert changed <= 8 * (sum(map(len, SAMPLES)) + 2 * 2 + 2 * 20)


def _used(data: bytes) -> list[int]:
    """Bytes that are not in the middle of a run of zeros."""
    plain = np.frombuffer(data, np.uint8) != 0
    near = np.convolve(plain, np.ones(9), mode="same") > 0
    return np.flatnonzero(near).tolist()


def test_every_flipped_bit_of_an_lmdb_file_gives_valid_data_or_an_error(small: dict[str, bytes]) -> None:
    for damaged in flips(small["lmdb"], _used(small["lmdb"])[::2]):
        read_all(damaged, index_lmdb)


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
            packed = Packed(self.path, [_local(self.path)], self._index, keep_index=False)
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


def _local(path: Path) -> Any:
    from rekindle.fetch.byte_files import LocalFile

    return LocalFile(path)


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    monkeypatch.setattr(inspector, "CPU_SECONDS", 0.2)  # seconds: a hundred times what small files take
    made = Guarded(tmp_path)
    yield made
    made.inspector.close()


@pytest.mark.parametrize("kind", HDF5)
def test_truncated_hdf5_files_are_noticed(small: dict[str, bytes], kind: str, guarded: Guarded) -> None:
    data = small[kind]
    assert guarded.read(data) is not None
    for length in range(0, len(data), 1 + len(data) // 300):
        assert guarded.read(data[:length]) is None


@pytest.mark.parametrize("kind", HDF5)
def test_flipped_bits_of_hdf5_files_give_valid_data_or_an_error(
    small: dict[str, bytes], kind: str, guarded: Guarded
) -> None:
    data = small[kind]
    rng = np.random.default_rng(0)
    for place in rng.permutation(_used(data))[:250].tolist():
        bit = int(rng.integers(8))
        guarded.read(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
    assert guarded.read_some


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["lmdb", *HDF5])
def test_every_flipped_bit_also_where_nothing_is(
    small: dict[str, bytes], kind: str, guarded: Guarded
) -> None:
    for damaged in flips(small[kind], range(len(small[kind]))):
        if kind == "lmdb":
            read_all(damaged, index_lmdb)
        else:
            guarded.read(damaged)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", HDF5)
def test_every_truncation_of_hdf5_files_is_noticed(
    small: dict[str, bytes], kind: str, guarded: Guarded
) -> None:
    for length in range(len(small[kind])):
        assert guarded.read(small[kind][:length]) is None


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """A few changes of kinds that break parsers: numbers at their limits, pieces moved, doubled or lost."""
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        place = int(rng.integers(len(changed)))
        match int(rng.integers(6)):
            case 0:
                changed[place] = int(rng.integers(256))
            case 1:
                width = int(rng.choice([1, 2, 4, 8]))
                value = int(
                    rng.choice([0, 1, 127, 255, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, -1, len(data)])
                )
                number = (value % 2 ** (8 * width)).to_bytes(width, str(rng.choice(["little", "big"])))  # type: ignore[arg-type]
                changed[place : place + width] = number
            case 2:
                del changed[place : place + int(rng.integers(1, 600))]
            case 3:
                end = place + int(rng.integers(1, 600))
                changed[place:place] = changed[place:end]
            case 4:
                other = int(rng.integers(len(changed)))
                length = int(rng.integers(1, 64))
                changed[place : place + length] = changed[other : other + length]
            case _:
                changed[place:] = b""
        if not changed:
            break
    return bytes(changed)


def _mutate(small: dict[str, bytes], kind: str, count: int, guarded: Guarded) -> None:
    rng = np.random.default_rng(count)
    for _ in range(count):
        damaged = mutated(small[kind], rng)
        if kind.startswith("hdf5"):
            guarded.read(damaged)
        else:
            read_all(damaged, INDEXERS[kind])


@pytest.mark.parametrize("kind", [*INDEXERS, *HDF5])
def test_structured_mutations(small: dict[str, bytes], kind: str, guarded: Guarded) -> None:
    _mutate(small, kind, 100 if kind.startswith("hdf5") else 1000, guarded)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", [*INDEXERS, *HDF5])
def test_a_hundred_thousand_structured_mutations(
    small: dict[str, bytes], kind: str, guarded: Guarded
) -> None:
    _mutate(small, kind, 100_000, guarded)


def _fifo(path: Path) -> Any:
    """A file that became a FIFO after it was opened, which the library waits for."""
    path.write_bytes(b"")
    file = _local(path)
    path.unlink()
    os.mkfifo(path)
    return file


def test_a_library_that_hangs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspector, "TIMEOUT", 2.0)
    process = Inspector()
    with pytest.raises(FormatError, match="took too long"):
        process.inspect(_fifo(tmp_path / "pipe.h5"), {})
    process.close()


def test_a_library_that_works_for_ever_is_stopped(small: dict[str, bytes], guarded: Guarded) -> None:
    """A heap that is lost, as a block of a disk may be, keeps HDF5 busy without an end."""
    data, heap = small["hdf5 groups"], small["hdf5 groups"].index(b"GCOL") + 16
    guarded.path.write_bytes(data[:heap] + bytes(4080) + data[heap + 4080 :])
    with pytest.raises(FormatError, match="took too long"):
        guarded.inspector.inspect(_local(guarded.path), {})
    assert guarded.read(data) is not None


def test_a_library_that_crashes_is_an_error_and_the_next_file_is_read(tmp_path: Path) -> None:
    pipe = _fifo(tmp_path / "pipe.h5")
    pack(tmp_path / "a.h5", list(SAMPLES))
    process = Inspector()

    def kill() -> None:
        while process._process is None:
            time.sleep(0.05)
        time.sleep(0.5)
        process._process.send_signal(signal.SIGSEGV)

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(FormatError, match="crashed"):
        process.inspect(pipe, {})
    thread.join()
    answer, _ = process.inspect(_local(tmp_path / "a.h5"), {})
    assert answer["images"]["shape"] == [2]
    process.close()


def test_names_in_a_tar_are_data_and_never_paths(tmp_path: Path) -> None:
    out = tmp_path / "a.tar"
    with tarfile.open(out, "w") as tar:
        for name in ("../../up.jpg", "/etc/absolute.jpg", "a/../../b.jpg"):
            member = tarfile.TarInfo(name)
            member.size = len(SAMPLES[0])
            tar.addfile(member, io.BytesIO(SAMPLES[0]))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
            member = tarfile.TarInfo("link.jpg")
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
    source = open_source(out)
    assert [bytes(source.read(number)) for number in range(len(source))] == [SAMPLES[0]] * 3
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.tar", "a.tar.rkindex"]


def test_values_that_share_bytes_are_refused(tmp_path: Path) -> None:
    """Many samples that are the same bytes would look like far more data than there is."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        images = file.create_dataset("images", (2,), h5py.vlen_dtype(np.uint8))
        images[0] = np.frombuffer(SAMPLES[0], np.uint8)
        images[1] = np.frombuffer(SAMPLES[0], np.uint8)
        place = images.id.get_offset()
    data = bytearray((tmp_path / "a.h5").read_bytes())
    data[place + 16 : place + 32] = data[place : place + 16]
    (tmp_path / "a.h5").write_bytes(data)
    with pytest.raises(FormatError, match="overlap"):
        open_source(tmp_path / "a.h5")


def test_a_hostile_index_beside_a_file_cannot_do_harm(tmp_path: Path) -> None:
    """Whoever gives away a file may give away an index with it, checksums and all."""
    from rekindle.fetch.packed import index_file
    from rekindle.fetch.packed.record_index import RecordIndex, make_rows

    path = pack(tmp_path / "a.tar", list(SAMPLES))
    files = [_local(path)]
    for rows, decodings in (
        (make_rows([-5], 10), [{"kind": "bytes"}]),
        (make_rows([2**62], 10), [{"kind": "bytes"}]),
        (make_rows([0], 10, files=7), [{"kind": "bytes"}]),
        (make_rows([0], 10, decodings=3), [{"kind": "bytes"}]),
        (make_rows([0], 10), [{"kind": "array", "dtype": "|O", "shape": [1]}]),
        (make_rows([0], 10), [{"kind": "array", "dtype": "|u1", "shape": [2**40, 2**40]}]),
        (
            make_rows([0], 1),
            [{"kind": "chunks", "dtype": "|u1", "shape": [4], "chunk": [1, 4], "filters": []}],
        ),
        (make_rows([0], 1), [{"kind": "pickle"}]),
    ):
        (place, *_) = index_file.index_paths(files, {})
        assert index_file.write_index(place, RecordIndex("tar", rows, decodings), files)
        try:
            packed = open_packed(path, [_local(path)])
        except FormatError:  # Samples that cannot be decoded so.
            continue
        assert [bytes(packed.read(number)) for number in range(2)] == SAMPLES  # The index was built again.


def test_a_length_that_lies_does_not_allocate(tmp_path: Path) -> None:
    import google_crc32c

    from rekindle.fetch.packed.tfrecord.index import mask

    head = struct.pack("<Q", 2**60)
    head += struct.pack("<I", mask(google_crc32c.value(head)))
    assert read_all(head + bytes(100), index_tfrecord) is None
