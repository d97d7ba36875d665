"""Corrupt and hostile packed files: what is read is valid, or FormatError names the file; nothing else.

Every truncation and every single-bit flip of small files of each format; `slow`: many structured mutations.
HDF5's library itself runs in a process that may die of a file, which these tests make it do.
"""

import io
import struct
import tarfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from hostile_packs import HDF5, INDEXERS, SAMPLES, Guarded, flips, read_all
from packs import pack
from rekindle.errors import FormatError
from rekindle.fetch.byte_files import LocalFile
from rekindle.fetch.open_source import open_packed, open_source
from rekindle.fetch.packed.lmdb.index import index_lmdb
from rekindle.fetch.packed.tfrecord.index import index_tfrecord


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
    files = [LocalFile(path)]
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
            packed = open_packed(path, [LocalFile(path)])
        except FormatError:  # Samples that cannot be decoded so.
            continue
        assert [bytes(packed.read(number)) for number in range(2)] == SAMPLES  # The index was built again.


def test_a_length_that_lies_does_not_allocate(tmp_path: Path) -> None:
    import google_crc32c

    from rekindle.fetch.packed.tfrecord.index import mask

    head = struct.pack("<Q", 2**60)
    head += struct.pack("<I", mask(google_crc32c.value(head)))
    assert read_all(head + bytes(100), index_tfrecord) is None
