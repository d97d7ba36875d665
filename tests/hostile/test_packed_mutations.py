"""Two parsers of every packed format, on files whose fields were changed with care.

Ours reads a file or raises an error of Rekindle's own. Where the format's own library reads it as well, both
find the same samples.
"""

import io
import shutil
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from packed_mutations import (
    Member,
    mutated_hdf5,
    mutated_lmdb,
    mutated_tar,
    tar_file,
    tar_members,
    with_field,
)
from second_parser import digest

from hostile_packs import InMemory, small_tar
from packs import pack
from rekindle.errors import DataError, FormatError, RekindleError
from rekindle.fetch.byte_files import LocalFile
from rekindle.fetch.open_source import open_packed
from rekindle.fetch.packed import index_file
from rekindle.fetch.packed.hdf5 import inspector
from rekindle.fetch.packed.hdf5.index import index_hdf5
from rekindle.fetch.packed.hdf5.inspector import Inspector
from rekindle.fetch.packed.lmdb.index import entries
from rekindle.fetch.packed.source import Packed
from rekindle.fetch.packed.tar.index import index_tar, members

PREFIX = "prefix/of/it/"  # which tarfile believes also in headers that have none
SECOND_PARSER = Path(__file__).with_name("second_parser.py")
few_or_many = pytest.mark.parametrize(
    "count", [300, pytest.param(30_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)


# tar, and Python's tarfile.


def tarfile_members(data: bytes) -> list[tuple[str, int, int]] | None:
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            found = [one for one in tar.getmembers() if one.isreg() and not one.issparse()]
    except (tarfile.TarError, ValueError, OverflowError, EOFError, IndexError):
        return None
    return [(_shown(one.name), one.offset_data, one.size) for one in found]


def _shown(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace").removeprefix(PREFIX)


def our_members(data: bytes) -> list[tuple[str, int, int]] | None:
    try:
        return [(_shown(one.name), one.offset, one.size) for one in members(InMemory(data))]
    except RekindleError:
        return None


def same_tar(data: bytes) -> bool:
    """Whether ours read it; an AssertionError if it is something else to tarfile."""
    ours, theirs = our_members(data), tarfile_members(data)
    try:
        source = Packed("packed", [InMemory(data)], index_tar, keep_index=False)
        for number in range(len(source)):
            source.read(number)
            source.path(number)
        _ = source.classes
    except DataError:
        pass
    if ours is None or theirs is None or b"GNU.sparse" in data:  # Ours takes no sparse member, of any kind.
        return False
    assert ours == theirs
    return True


@few_or_many
def test_a_mutated_tar_is_what_tarfile_reads_or_an_error(count: int) -> None:
    rng, data = np.random.default_rng(count), small_tar()
    assert same_tar(data)
    assert sum(same_tar(mutated_tar(data, rng)) for _ in range(count)) > count // 20


def header(kind: bytes, content: bytes) -> Member:
    plain = tar_members(small_tar())[0][0]
    return with_field(with_field(plain, 156, kind), 124, b"%011o\0" % len(content)), content


NAME, OTHER = header(b"x", b"14 path=b.jpg\n"), header(b"x", b"14 path=c.jpg\n")


@pytest.mark.parametrize(
    "before",
    [
        [NAME, OTHER],
        [header(b"L", b"b.jpg\0"), NAME],
        [NAME, header(b"L", b"b.jpg\0")],
        [header(b"g", b"14 path=b.jpg\n")],
        [header(b"g", b"9 size=1\n")],
    ],
)
def test_a_tar_that_other_readers_read_otherwise_is_refused(before: list[Member]) -> None:
    """Of two names of a member, some readers take the first and some the last."""
    image = tar_members(small_tar())[0]
    assert our_members(tar_file([*before, image])) is None
    assert our_members(tar_file([*before[1:], image])) is not None


def test_a_link_has_no_content_whatever_its_extended_header_says() -> None:
    image = tar_members(small_tar())[0]
    link = with_field(image[0], 156, b"2"), b""
    assert our_members(tar_file([header(b"x", b"11 size=47\n"), link, image])) == [("a.jpg", 2048, 47)]


def test_a_folder_without_a_type_is_skipped_and_has_no_content() -> None:
    """A name with a slash at its end says so; where its content would be, other readers look for a header."""
    image = tar_members(small_tar())[0]
    folder = with_field(with_field(image[0], 0, b"folder/"), 156, b"\0")
    assert our_members(tar_file([(folder, image[1]), image])) is None
    empty = with_field(folder, 124, b"%011o\0" % 0), b""
    assert our_members(tar_file([empty, image])) == tarfile_members(tar_file([empty, image]))


@pytest.mark.parametrize("kind", [b"L", b"x"])
def test_a_header_that_goes_on_after_its_length_is_refused(kind: bytes) -> None:
    """Some readers take its length, some the whole block: the member would have two names."""
    image = tar_members(small_tar())[0]
    head, content = header(kind, b"bcdef.jpg" if kind == b"L" else b"14 path=b.jpg\n14 path=c.jpg\n")
    short = with_field(head, 124, b"%011o\0" % (1 if kind == b"L" else 14)), content
    assert our_members(tar_file([short, image])) is None
    assert our_members(tar_file([(head, content if kind == b"L" else content[:14]), image])) is not None


def test_extended_headers_of_solaris_are_read() -> None:
    image = tar_members(small_tar())[0]
    assert our_members(tar_file([header(b"X", b"14 path=b.jpg\n"), image])) == [("b.jpg", 1536, 47)]


# LMDB and HDF5, and their libraries, in a process that may die.


def second_opinions(kind: str, files: list[bytes], folder: Path) -> list[str]:
    """What the format's own library finds in each file: a digest, or nothing if it refuses or crashes."""
    (folder / "files").mkdir()
    for number, data in enumerate(files):
        (folder / "files" / str(number)).write_bytes(data)
    out = folder / "answers"
    out.touch()
    while (done := len(out.read_text().splitlines())) < len(files):
        program = [sys.executable, SECOND_PARSER, kind, out, str(done), folder / "files"]
        subprocess.run(program, stderr=subprocess.DEVNULL, timeout=600)
        if len(out.read_text().splitlines()) < len(files):  # It died of this file.
            with out.open("a") as answers:
                answers.write("\n")
    return out.read_text().splitlines()


def compared(kind: str, files: list[bytes], read: Callable[[bytes], str], folder: Path) -> int:
    """How many of the files both parsers read."""
    both = 0
    for data, theirs in zip(files, second_opinions(kind, files, folder), strict=True):
        ours = read(data)
        if ours and theirs:
            assert ours == theirs
            both += 1
    return both


def our_lmdb(data: bytes) -> str:
    try:
        return digest(
            [(key, data[offset : offset + length]) for key, offset, length in entries(InMemory(data))]
        )
    except RekindleError:
        return ""


@few_or_many
def test_a_mutated_lmdb_file_is_what_lmdb_reads_or_an_error(tmp_path: Path, count: int) -> None:
    samples = [b"\xff\xd8" + bytes([number]) * (50 * number) for number in range(60)]
    data = (pack(tmp_path / "a.lmdb", [*samples, b"\xff\xd8" + bytes(9000)]) / "data.mdb").read_bytes()
    rng, both = np.random.default_rng(count), 0
    for first in range(0, count, 1000):  # So that it takes little memory and disk.
        work = tmp_path / f"work {first}"
        work.mkdir()
        files = [data, *(mutated_lmdb(data, rng) for _ in range(min(1000, count)))]
        both += compared("lmdb", files, our_lmdb, work)
        shutil.rmtree(work)
    assert both > count // 20


@pytest.mark.parametrize("size", [512, 8192, 5000])
def test_an_lmdb_file_of_two_page_sizes_is_refused(tmp_path: Path, size: int) -> None:
    """LMDB takes that of its newer description, and finds nothing, or something else."""
    data = bytearray((pack(tmp_path / "a.lmdb", [b"\xff\xd8one"]) / "data.mdb").read_bytes())
    assert our_lmdb(bytes(data))
    struct.pack_into("<I", data, 4096 + 16 + 24, size)
    assert not our_lmdb(bytes(data))


LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunked": {"chunks": (2, 3, 4, 3), "fillvalue": 9},
    "gzip": {"chunks": (3, 5, 7, 3), "compression": "gzip", "shuffle": True, "fletcher32": True},
    "lzf": {"chunks": (1, 5, 7, 1), "compression": "lzf"},
}
NUMBERS = (6, 5, 7, 3, 2, 4, 1)  # of which all shapes consist


def hdf5_file(layout: str, libver: str) -> bytes:
    content = io.BytesIO()
    with h5py.File(content, "w", libver=libver) as file:
        pixels = np.random.default_rng(0).integers(0, 255, (6, 5, 7, 3), np.uint8)
        images = file.create_dataset("images", pixels.shape, "u1", **LAYOUTS[layout])
        images[:4] = pixels[:4]
        file["labels"] = np.arange(6)
    return content.getvalue()


@pytest.fixture(scope="module")
def process() -> Iterator[Inspector]:
    """One for all tests: starting it takes longer than they do."""
    made = Inspector()
    yield made
    made.close()


@pytest.fixture
def our_hdf5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: Inspector) -> Callable[[bytes], str]:
    monkeypatch.setattr(inspector, "CPU_SECONDS", 0.2)

    def read(data: bytes) -> str:
        (tmp_path / "a.h5").write_bytes(data)
        try:
            source = Packed(
                "a.h5",
                [LocalFile(tmp_path / "a.h5")],
                lambda *given: index_hdf5(*given, inspector=process),
                {"images": "images"},
                keep_index=False,
            )
            if len(source) > 50:
                return ""
            found = [
                (np.asarray(source.read(n)).tobytes(), b"%d" % source.target(n)) for n in range(len(source))
            ]
        except RekindleError:
            return ""
        return digest(found)

    return read


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "count", [12, pytest.param(3000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_a_mutated_hdf5_file_is_what_h5py_reads_or_an_error(
    tmp_path: Path, our_hdf5: Callable[[bytes], str], layout: str, libver: str, count: int
) -> None:
    data, rng = hdf5_file(layout, libver), np.random.default_rng(count)
    files = [data, *(mutated_hdf5(data, NUMBERS, rng) for _ in range(count))]
    (tmp_path / "work").mkdir()
    assert compared("hdf5", files, our_hdf5, tmp_path / "work") >= 1


def test_a_chunk_that_is_not_where_it_is_looked_for_is_an_error(our_hdf5: Callable[[bytes], str]) -> None:
    """Chunk 2 of 0 to 3 says that it is chunk 4, or 3, or 99: HDF5 does not find it, or two of them."""
    data = hdf5_file("lzf", "earliest")
    key = struct.pack("<5Q", 2, 0, 0, 0, 0)
    assert our_hdf5(data)
    assert data.count(key) == 1
    for number in (3, 4, 99):
        assert not our_hdf5(data.replace(key, struct.pack("<5Q", number, 0, 0, 0, 0)))


def test_a_chunk_that_is_stored_in_no_bytes_is_an_error(our_hdf5: Callable[[bytes], str]) -> None:
    """It is not one that was never written: h5py reads what lies there, not the fill value."""
    data = hdf5_file("chunked", "earliest")
    key = struct.pack("<II5Q", 72, 0, 2, 3, 0, 0, 0)
    assert our_hdf5(data)
    assert data.count(key) == 1
    assert not our_hdf5(data.replace(key, struct.pack("<II5Q", 0, 0, 2, 3, 0, 0, 0)))


def test_a_chunk_that_is_listed_and_not_found_is_an_error(our_hdf5: Callable[[bytes], str]) -> None:
    """The list of chunks ends, as it says itself, before its last one: HDF5 reads the fill value there."""
    data = hdf5_file("gzip", "earliest")
    end = struct.pack("<6Q", 0, 3, 5, 7, 3, 1)
    assert our_hdf5(data)
    assert data.count(end) == 1
    assert not our_hdf5(data.replace(end, struct.pack("<6Q", 0, 0, 5, 7, 3, 1)))


def test_a_fill_value_that_is_not_read_is_an_error(our_hdf5: Callable[[bytes], str]) -> None:
    """It is said to have 7 bytes, in a dataset of bytes: HDF5 reads zeros."""
    data = hdf5_file("chunked", "earliest")
    message = bytes([2, 3, 2, 1, 1, 0, 0, 0, 9])  # version, two times, is it defined, its size, it
    assert data.count(message) == 1
    assert not our_hdf5(data.replace(message, message[:4] + bytes([7]) + message[5:]))


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_chunks_whose_places_the_library_reports_wrongly_are_an_error(tmp_path: Path, axis: int) -> None:
    """In new files of which one axis, not the first, can grow, HDF5 lists chunks where it does not read them.

    What lies there would be taken for never written, and be the fill value.
    """
    pixels = np.random.default_rng(0).integers(1, 255, (6, 5, 7, 3), np.uint8)
    most: list[int | None] = list(pixels.shape)
    most[axis] = None
    for libver in ("earliest", "latest"):
        path = tmp_path / f"{libver}.h5"
        with h5py.File(path, "w", libver=libver) as file:
            file.create_dataset("images", data=pixels, maxshape=tuple(most), chunks=(2, 2, 3, 3))
    source = open_packed(tmp_path / "earliest.h5", [LocalFile(tmp_path / "earliest.h5")])
    assert all(np.array_equal(np.asarray(source.read(number)), pixels[number]) for number in range(6))
    with pytest.raises(FormatError, match="outside of the array"):
        open_packed(tmp_path / "latest.h5", [LocalFile(tmp_path / "latest.h5")])


# Index files, whose checksums are right.


@few_or_many
def test_a_mutated_index_gives_the_samples_of_the_file_or_an_error(tmp_path: Path, count: int) -> None:
    samples = [b"\xff\xd8first", b"\xff\xd8second", b"\xff\xd8third"]
    path = pack(tmp_path / "a.tar", list(samples))
    files = [LocalFile(path)]
    honest, (place, *_) = open_packed(path, files).index, index_file.index_paths(files, {})
    rng = np.random.default_rng(count)
    whole = path.read_bytes()
    for _ in range(count):
        rows = honest.rows.copy()
        for _ in range(int(rng.integers(1, 4))):
            name = rows.dtype.names[int(rng.integers(6))]
            width = rows.dtype[name].itemsize
            value = (
                int(rng.choice([0, 1, 7, 255, 4096, 2**31, 2**32 - 1]))
                if width == 4
                else int(rng.choice([-1, -(2**63), 0, 1, 4096, 2**31, 2**62, 2**63 - 1]))
            )
            rows[name][int(rng.integers(len(rows)))] = value
        index = type(honest)("tar", rows, honest.decodings, honest.chunks, honest.names, honest.classes)
        assert index_file.write_index(place, index, files)
        source = open_packed(path, [LocalFile(path)])
        for number in range(len(source)):
            assert bytes(source.read(number)) in whole
            source.path(number)
        assert len(source.lengths()) == 3
        source.prefetch(range(3))
