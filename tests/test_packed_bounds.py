"""Small files that claim to be large: errors before that costs memory or time."""

import struct
from pathlib import Path

import h5py
import numpy as np
import pytest

from one_inspector import one_inspector  # noqa: F401 - a fixture of all tests here
from packs import pack
from rekindle.errors import DataError, FormatError
from rekindle.fetch.byte_files import LocalFile
from rekindle.fetch.open_source import open_source
from rekindle.fetch.packed.hdf5.global_heap import REFERENCE, heap_ranges
from rekindle.fetch.packed.lmdb.index import MAGIC
from rekindle.tools.dataset_info import ValueRange, info

IMAGE = b"\xff\xd8image"

pytestmark = pytest.mark.usefixtures("cache")


# Labels.


@pytest.mark.parametrize("label", [10_000_000, 10**30])
def test_labels_of_packed_samples_are_numbers_of_classes_and_not_any_number(
    tmp_path: Path, label: int
) -> None:
    path = pack(tmp_path / "a.tar", [IMAGE])
    with pytest.raises(DataError, match=rf"a\.tar.*label {label} is too large"):
        open_source(path, {"photos/0000": label})


def test_a_label_far_beyond_the_named_classes_does_not_stop_info(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        images = file.create_dataset("images", (3,), h5py.vlen_dtype(np.uint8))
        for number in range(3):
            images[number] = np.frombuffer(IMAGE + bytes([number]), np.uint8)
        file["labels"] = np.array([1, 2**40, 1])
        file["labels"].attrs["classes"] = '["cat", "dog"]'
    found = info(open_source(tmp_path / "a.h5"))
    assert found.classes == 2
    assert found.samples_per_class == ValueRange(min=0, median=1, max=2)


# HDF5.


def test_chunks_of_labels_that_nobody_writes_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"] = np.zeros((2, 4, 4, 3), np.uint8)
        file.create_dataset("labels", (2,), "u1", chunks=((1 << 28) + 1,), maxshape=(None,))
    assert (tmp_path / "a.h5").stat().st_size < 10_000
    with pytest.raises(FormatError, match=r"a\.h5.*labels'.*268,435,457 bytes exceed"):
        open_source(tmp_path / "a.h5")


def test_more_samples_than_a_file_has_bytes_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("images", (3_000_000, 1, 1), "u1", chunks=(3_000_000, 1, 1))
    with pytest.raises(FormatError, match=r"a\.h5.*'images' has 3,000,000 entries"):
        open_source(tmp_path / "a.h5")


def test_heaps_that_overlap_are_refused(tmp_path: Path) -> None:
    """Each would be read as far as it says it goes: a few thousand of them, for minutes."""
    inner = struct.pack("<4sB3xQ", b"GCOL", 1, 40) + struct.pack("<HHIQ", 1, 1, 0, 8) + bytes(8)
    outer = struct.pack("<4sB3xQ", b"GCOL", 1, 32 + len(inner)) + struct.pack("<HHIQ", 1, 1, 0, len(inner))
    (tmp_path / "heaps").write_bytes(outer + inner)
    references = np.array([(len(inner), 0, 1), (8, 32, 1)], REFERENCE)
    with pytest.raises(FormatError, match="heaps' at byte 32: two heaps overlap"):
        heap_ranges(LocalFile(tmp_path / "heaps"), references, 0)


# LMDB.


def lmdb_file(nodes: list[bytes], pointers: list[int], more: bytes = b"") -> bytes:
    """Two pages of description and a leaf, each pointer of which is to one of its nodes; then other pages."""
    nothing = 2**64 - 1
    described = struct.pack("<IIQQ", MAGIC, 1, 0, 1 << 20)
    described += struct.pack("<IHHQQQQQ", 4096, 0, 0, 0, 0, 0, 0, nothing)
    described += struct.pack("<IHHQQQQQ", 0, 0, 1, 0, 1, 0, len(pointers), 2) + struct.pack("<QQ", 2, 1)
    pages = [(struct.pack("<QHHHH", page, 0, 8, 0, 0) + described).ljust(4096, b"\0") for page in (0, 1)]
    lower = 16 + 2 * len(pointers)
    places = [lower + sum(map(len, nodes[:number])) for number in range(len(nodes))]
    leaf = struct.pack("<QHHHH", 2, 0, 2, lower, 4096)
    leaf += struct.pack(f"<{len(pointers)}H", *(places[one] for one in pointers)) + b"".join(nodes)
    return b"".join(pages) + leaf.ljust(4096, b"\0") + more


def node(key: bytes, value: bytes) -> bytes:
    return struct.pack("<HHHH", len(value), 0, 0, len(key)) + key + value


def big_node(key: bytes, length: int, page: int) -> bytes:
    return struct.pack("<HHHH", length, 0, 1, len(key)) + key + struct.pack("<Q", page)


def opened(path: Path, data: bytes) -> list[bytes]:
    path.write_bytes(data)
    source = open_source(path)
    return [bytes(source.read(number)) for number in range(len(source))]


OVERFLOW = (struct.pack("<QHHI", 3, 0, 4, 2) + IMAGE).ljust(8192, b"\0")


def test_an_lmdb_file_made_by_hand_is_read(tmp_path: Path) -> None:
    nodes = [node(b"a", IMAGE + b"1"), big_node(b"b", 5000, 3)]
    found = opened(tmp_path / "data.mdb", lmdb_file(nodes, [0, 1], OVERFLOW))
    assert found == [IMAGE + b"1", OVERFLOW[16:5016]]


def test_a_page_whose_nodes_do_not_fit_it_is_an_error(tmp_path: Path) -> None:
    """A thousand pointers to one node with a long key would be a thousand copies of it."""
    data = lmdb_file([node(bytes(1000), IMAGE)], [0] * 1000)
    with pytest.raises(FormatError, match="at byte 8192: the nodes of a page need more bytes than it has"):
        opened(tmp_path / "data.mdb", data)


@pytest.mark.parametrize("second", [3, 4])
def test_values_that_share_pages_are_refused_before_they_are_read(tmp_path: Path, second: int) -> None:
    again = struct.pack("<QHHI", 4, 0, 4, 1)
    pages = OVERFLOW[:4096] + again + OVERFLOW[4096 + len(again) :]
    nodes = [big_node(b"a", 8000, 3), big_node(b"b", 4000, second)]
    with pytest.raises(FormatError, match=f"at byte {second * 4096}: a value overlaps another"):
        opened(tmp_path / "data.mdb", lmdb_file(nodes, [0, 1], pages))
