"""HDF5 files as h5py writes them, in every layout: the same samples as h5py reads."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import rekindle as rk
from one_inspector import one_inspector  # noqa: F401 - a fixture of all tests here
from packs import jpegs
from rekindle.errors import FormatError
from rekindle.fetch import open_source

COUNT = 13

pytestmark = pytest.mark.usefixtures("cache")


def pixels(*shape: int) -> np.ndarray[Any, Any]:
    # Some structure, so that compression does something.
    return (np.arange(np.prod(shape)) // 5 % 251).astype(np.uint8).reshape(shape)


STORAGES: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunked": {"chunks": (4, 10, 12, 3)},
    "chunks that end behind the array": {"chunks": (5, 7, 5, 2)},
    "gzip": {"chunks": (1, 10, 12, 3), "compression": "gzip"},
    "gzip, shuffle, fletcher32": {
        "chunks": (3, 10, 6, 3),
        "compression": "gzip",
        "shuffle": True,
        "fletcher32": True,
    },
    "lzf": {"chunks": (2, 10, 12, 3), "compression": "lzf"},
    "lzf, shuffle": {"chunks": (2, 5, 12, 3), "compression": "lzf", "shuffle": True},
    "guessed by h5py": {"compression": "gzip"},
}


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("storage", STORAGES)
def test_arrays_are_read_as_h5py_reads_them(tmp_path: Path, storage: str, libver: str) -> None:
    images = pixels(COUNT, 10, 12, 3)
    with h5py.File(tmp_path / "a.h5", "w", libver=libver) as file:
        file.create_dataset("images", data=images, **STORAGES[storage])
        file.create_dataset(
            "labels", data=np.arange(COUNT) % 4, **({"chunks": (5,)} if STORAGES[storage] else {})
        )
    data = rk.open(tmp_path / "a.h5")
    assert len(data) == COUNT
    for number in (*range(COUNT), 0, 12, 3):
        np.testing.assert_array_equal(data[number][0], images[number])
        assert data[number][1] == number % 4
    lengths = data.source.lengths()
    assert lengths.min() > 0
    assert lengths.sum() <= images.nbytes + 20_000


@pytest.mark.parametrize("dtype", ["<f4", ">i2", "<i8"])
@pytest.mark.parametrize(
    "options", [{"compression": "gzip", "shuffle": True}, {"compression": "lzf"}, {}], ids=str
)
def test_numbers_of_any_type_are_given_without_decoding(tmp_path: Path, dtype: str, options: Any) -> None:
    numbers = np.arange(COUNT * 30).reshape(COUNT, 5, 6).astype(dtype)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("table", data=numbers, **options)
    data = rk.open(tmp_path / "a.h5", images="table", decode=False)
    for number in range(COUNT):
        assert data[number][0].dtype == np.dtype(dtype)
        np.testing.assert_array_equal(data[number][0], numbers[number])
    with pytest.raises(rk.DecodeError, match=r"a\.h5.*is no image"):
        rk.open(tmp_path / "a.h5", images="table", transform=[rk.transforms.ToTensor()])[0]
    with pytest.raises(FormatError, match="cannot tell which dataset"):
        rk.open(tmp_path / "a.h5")


@pytest.mark.parametrize("userblock", [0, 512, 4096])
@pytest.mark.parametrize(
    "options",
    [{}, {"chunks": (4,)}, {"chunks": (3,), "compression": "gzip", "shuffle": True}, {"maxshape": (None,)}],
    ids=str,
)
@pytest.mark.parametrize("kind", ["vlen", "string"])
def test_bytes_of_any_length_are_found_in_heaps(
    tmp_path: Path, userblock: int, options: Any, kind: str
) -> None:
    images = [b"", *jpegs(COUNT - 2), b"\xff\xd8tiny"]
    if kind == "string":
        images = [image.replace(b"\0", b"\1") for image in images]
    dtype = h5py.vlen_dtype(np.uint8) if kind == "vlen" else h5py.string_dtype("utf-8")
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=userblock) as file:
        stored = file.create_dataset("train/encoded", (COUNT,), dtype=dtype, **options)
        for number, image in enumerate(images):
            stored[number] = np.frombuffer(image, np.uint8) if kind == "vlen" else image
        file["train/label"] = np.arange(COUNT, dtype=np.int32)
    source = open_source(tmp_path / "a.h5")
    found = [bytes(source.read(number)) for number in range(COUNT)]
    assert [one.rstrip(b"\0") if kind == "string" else one for one in found] == images
    assert source.targets == list(range(COUNT))


def test_a_dataset_a_sample_with_labels_as_attributes(tmp_path: Path) -> None:
    images = jpegs(3)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, image in enumerate(images):
            file[f"s{number}"] = np.void(image)
            file[f"s{number}"].attrs["label"] = 2 - number
    source = open_source(tmp_path / "a.h5")
    assert [bytes(source.read(number)) for number in range(3)] == images
    assert source.targets == [2, 1, 0]
    assert "s1" in source.path(1)


def test_groups_are_classes_or_hold_a_label_beside_the_image(tmp_path: Path) -> None:
    images = [pixels(4 + number, 5, 3) for number in range(4)]
    with h5py.File(tmp_path / "classes.h5", "w") as file:
        for number, image in enumerate(images):
            file[f"{'dog' if number % 2 else 'cat'}/{number}"] = image
    source = rk.open(tmp_path / "classes.h5")
    assert source.classes == ["cat", "dog"]
    by_name = {
        name.rpartition("/")[2]: image for (name, _), (image, _) in zip(source.samples, source, strict=True)
    }
    assert sorted(source.targets) == [0, 0, 1, 1]
    for number, image in enumerate(images):
        np.testing.assert_array_equal(by_name[str(number)], image)
    with h5py.File(tmp_path / "beside.h5", "w") as file:
        for number, image in enumerate(images):
            file[f"train/{number}/image"], file[f"train/{number}/label"] = image, 7 - number
        file["other/image"] = images[0]
    source = rk.open(tmp_path / "beside.h5", images="train")
    assert source.targets == [7, 6, 5, 4]
    np.testing.assert_array_equal(source[2][0], images[2])


def test_axes_are_brought_into_order(tmp_path: Path) -> None:
    image = pixels(COUNT, 3, 8, 9)
    grey = pixels(COUNT, 8, 9)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"], file["grey"], file["y"] = image, grey, np.arange(COUNT, dtype=np.uint8)
    np.testing.assert_array_equal(rk.open(tmp_path / "a.h5")[4][0], image[4].transpose(1, 2, 0))
    other = rk.open(tmp_path / "a.h5", images="grey")
    np.testing.assert_array_equal(other[4][0], np.dstack([grey[4]] * 3))
    assert other.targets == list(range(COUNT))


def test_labels_may_be_strings(tmp_path: Path) -> None:
    for number, dtype in enumerate((h5py.string_dtype(), "S5")):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["images"] = pixels(3, 4, 4, 3)
            file.create_dataset("labels", data=[b"owl", b"cat", b"owl"], dtype=dtype)
        source = rk.open(tmp_path / f"{number}.h5")
        assert (source.classes, source.targets) == (["cat", "owl"], [1, 0, 1])


def test_chunks_that_were_never_written_have_the_fill_value(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        images = file.create_dataset("images", (6, 4, 4, 3), "u1", chunks=(2, 4, 4, 3), fillvalue=9)
        images[4:] = 200
    source = rk.open(tmp_path / "a.h5")
    assert {int(value) for value in np.unique(source[1][0])} == {9}
    assert {int(value) for value in np.unique(source[5][0])} == {200}


def _compact(file: Any) -> None:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple((2, 2, 2, 3))
    h5py.h5d.create(file.id, b"images", h5py.h5t.STD_U8LE, space, plist)


def _external(file: Any) -> None:
    file.create_dataset("images", (2, 2, 2, 3), "u1", external=[("/etc/passwd", 0, 24)])


def _two(file: Any) -> None:
    file["a"], file["b"] = pixels(2, 2, 2, 3), pixels(2, 2, 2, 3)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (_compact, {}, "compact"),
        (_external, {}, "stored in other files"),
        (_two, {}, "give images=.*'a' .*'b'"),
        (_two, {"images": "c"}, "there is no dataset or group 'c'.*The file has: 'a'"),
        (_two, {"images": "a", "labels": "b"}, "labels='b' is not a dataset of 2"),
        (lambda file: None, {}, "no datasets"),
        (lambda file: file.create_dataset("images", (3,), h5py.vlen_dtype(np.uint8)), {}, "never written"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_says_why(
    tmp_path: Path, make: Any, options: Any, message: str
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        make(file)
    with pytest.raises(FormatError, match=message):
        rk.open(tmp_path / "a.h5", **options)


def test_a_link_to_another_file_is_not_followed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["images"] = pixels(2, 2, 2, 3)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"] = h5py.ExternalLink("secret.h5", "/images")
    with pytest.raises(FormatError, match="no datasets"):
        rk.open(tmp_path / "a.h5")


@pytest.mark.parametrize("readable", [True, False])
def test_names_beside_the_images_are_read_if_they_can_be(tmp_path: Path, readable: bool) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"] = pixels(3, 4, 5, 3)
        names = np.array([b"one", b"two", b"six"])
        if readable:
            file["filenames"] = names
        else:  # A layout that is not followed.
            layout = h5py.VirtualLayout((3,), names.dtype)
            file.create_virtual_dataset("filenames", layout)
    source = rk.open(tmp_path / "a.h5").source
    assert [source.key(number) for number in range(3)] == (
        ["one", "two", "six"] if readable else ["", "", ""]
    )


def _folds(path: Path) -> Path:
    """Three groups with as many images each; the last has neither labels nor names."""
    with h5py.File(path, "w") as file:
        for fold in range(3):
            file[f"fold{fold}/images"] = pixels(4, 5, 6, 3)
        for fold in range(2):
            file[f"fold{fold}/labels"] = np.arange(4) + 10 * fold
            file[f"fold{fold}/keys"] = [f"{fold}-{number}".encode() for number in range(4)]
    return path


@pytest.mark.parametrize("fold", [0, 1])
def test_labels_and_names_are_those_of_the_images_group(tmp_path: Path, fold: int) -> None:
    source = open_source(_folds(tmp_path / "a.h5"), options={"images": f"fold{fold}/images"})
    assert source.targets == [10 * fold + number for number in range(4)]
    assert source.path(3).endswith(f"{fold}-3")


def test_images_without_labels_do_not_get_those_of_others(tmp_path: Path) -> None:
    source = open_source(_folds(tmp_path / "a.h5"), options={"images": "fold2/images"})
    assert source.targets == [-1] * 4
    assert "byte" in source.path(0)


@pytest.mark.parametrize(
    ("others", "labels"),
    [
        (["train/digit", "labels"], "labels"),  # A name says more than to be a number.
        (["train/digit", "test/labels"], "train/digit"),
        (["train/x/labels", "labels"], "labels"),
        (["train/height", "train/width", "meta/number"], None),
        (["meta/labels"], "meta/labels"),
        (["meta/number"], "meta/number"),
    ],
)
def test_labels_are_looked_for_near_the_images_first(
    tmp_path: Path, others: list[str], labels: str | None
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["train/images"] = pixels(3, 4, 4, 3)
        for number, name in enumerate(others):
            file[name] = np.arange(3) + 10 * number
    start = None if labels is None else 10 * others.index(labels)
    expected = [-1] * 3 if start is None else [start, start + 1, start + 2]
    assert rk.open(tmp_path / "a.h5").targets == expected


@pytest.mark.parametrize(("precision", "offset"), [(8, 0), (1, 0), (4, 2)])
def test_numbers_of_which_only_some_bits_count_are_refused(
    tmp_path: Path, precision: int, offset: int
) -> None:
    """HDF5 gives those bits, shifted; the bytes in the file are others."""
    kind = h5py.h5t.STD_U8LE.copy()
    kind.set_precision(precision)
    kind.set_offset(offset)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        space = h5py.h5s.create_simple((2, 4, 4, 3))
        images = h5py.Dataset(h5py.h5d.create(file.id, b"images", kind, space))
        images[...] = pixels(2, 4, 4, 3)
    if precision == 8:
        assert len(rk.open(tmp_path / "a.h5")) == 2
    else:
        with pytest.raises(rk.DataError, match=rf"numbers of {precision} bits in 8"):
            rk.open(tmp_path / "a.h5")
