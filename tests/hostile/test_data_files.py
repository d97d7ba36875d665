"""Whatever a file of labels, groups, scores or names says, what comes out is an error of Rekindle's own."""

import io
import json
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

import rekindle as rk
from packs import pack
from rekindle.choose.duplicates.groups_file import RedundantGroups
from rekindle.choose.importance.selection_via_proxy import CRITERIA, read_hardness, write_hardness
from rekindle.core.directory import Directory, PrivateDirectory
from rekindle.core.json_input import parse_json
from rekindle.errors import DataError, FormatError, RekindleError
from rekindle.fetch import listing
from rekindle.fetch.byte_files import LocalFile
from rekindle.fetch.bytes_array import BytesArray
from rekindle.fetch.labels import parse_labels
from rekindle.fetch.open_source import open_packed, open_source
from rekindle.fetch.packed import index_file
from rekindle.fetch.packed.record_index import CHUNK, ROW, Decoding, RecordIndex, make_rows
from rekindle.fetch.packed.sample_decoders import decoder

SAMPLES = [b"\xff\xd8first", b"\xff\xd8second", b"\xff\xd8third"]

pytestmark = pytest.mark.usefixtures("cache")


# Labels.


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("labels.json", b"[" * 100_000),
        ("labels.json", b'{"a":' * 100_000),
        ("labels.json", b'{"a.png": %s}' % (b"9" * 4300)),
        ("labels.json", b'{"a.png": %s}' % (b"9" * 5000)),
        ("labels.json", b'{"a.png": -1}'),
        ("labels.json", b'{"a.png": NaN}'),
        ("labels.json", b'{"a.png": 1e999}'),
        ("labels.json", b'{"labels": {"a.png": [0]}}'),
        ("labels.json", b"\xff\xfe"),
        ("labels.csv", b"a.png," + b"x" * 200_000),
        ("labels.csv", b"a.png," + b"9" * 5000),
        ("labels.csv", b"a.png," + "٩".encode() * 1001),
        ("labels.csv", b"a.png\n"),
        ("labels.csv", b"a.png,0\na.png,1\n"),
        ("labels.csv", b"a.png,\xff"),
    ],
)
def test_labels_that_cannot_be_are_data_errors(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        open_source(tmp_path)
    assert len(str(caught.value)) < 3000 + 4300


def test_messages_quote_little_of_long_labels() -> None:
    with pytest.raises(DataError) as caught:
        parse_labels(Path("labels.json"), json.dumps([["a" * 10**6]]).encode())
    assert len(str(caught.value)) < 1000


# Groups of near-duplicates.

HEAD = {"format": "rekindle redundancy", "version": 1, "data": "", "found_by": {}, "unreadable": []}
PAIR = '[{"label": 0, "class": "", "samples": [%s, {"id": 2, "path": "", "distance": 0}]}]'


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "\ud800",
        *(
            json.dumps(HEAD)[:-1] + f', "samples": {size}, "groups": {groups}}}'
            for size, groups in [
                ("10", PAIR % '{"id": 1e30, "path": "", "distance": 0}'),
                ("10", PAIR % '{"id": Infinity, "path": "", "distance": 0}'),
                ("10", PAIR % f'{{"id": {10**30}, "path": "", "distance": 0}}'),
                ("10", PAIR % '{"id": 1, "path": "", "distance": [1]}'),
                ("10", PAIR % '{"id": 2, "path": "", "distance": 0}'),
                ("10", PAIR % "7"),
                ("10", "5"),
                ("1e400", "[]"),
                ("9" * 4000, "[]"),
                ('"ten"', "[]"),
            ]
        ),
    ],
)
def test_groups_that_cannot_be_are_data_errors(tmp_path: Path, text: str) -> None:
    (tmp_path / "groups.json").write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(DataError):
        RedundantGroups.load(tmp_path / "groups.json")


def test_groups_of_more_samples_than_any_dataset_has_are_not_numbered() -> None:
    with pytest.raises(rk.ArgumentError, match="no dataset has 1,000,000,000,000,000,000 samples"):
        RedundantGroups(10**18, ()).numbers()


# Scores of a proxy.


def test_scores_that_unpack_to_far_more_than_the_file_has_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "scores.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        array = io.BytesIO()
        np.save(array, np.zeros(20 << 20, np.float32))
        archive.writestr(f"{CRITERIA[0]}.npy", array.getvalue())
    with pytest.raises(DataError, match="made to exhaust memory"):
        read_hardness(str(tmp_path / "scores.npz"), CRITERIA[0])


def test_any_damage_to_a_file_of_scores_is_a_data_error(tmp_path: Path) -> None:
    path = tmp_path / "scores.npz"
    write_hardness(path, {name: np.arange(5.0) for name in CRITERIA})
    content = path.read_bytes()
    for at in range(0, len(content), 3):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
        try:
            assert read_hardness(str(path), CRITERIA[0]).shape == (5,)
        except DataError:
            continue


# A cached listing.


def kept(path: Path) -> listing._CacheFile:
    return listing._CacheFile(PrivateDirectory(path.parent.name, Directory(path.parent.parent)), path.name)


@pytest.mark.parametrize("name", [b"a\0b", b"cat/a.png"])
def test_a_listing_with_names_that_no_file_has_is_made_again(tmp_path: Path, name: bytes) -> None:
    path = kept(tmp_path / "listing.npz")
    made = listing.Listing(
        BytesArray.from_list([name]), BytesArray.from_list([b"cat"]), np.zeros(1, np.int64)
    )
    listing._write(path, made)
    assert (listing._read(path) is None) == (b"\0" in name)


def test_a_compressed_listing_is_made_again(tmp_path: Path) -> None:
    ends = np.array([1000], np.int64)
    data = np.full(1000, 97, np.uint8)
    arrays = {"files": data, "file_ends": ends, "folders": data, "folder_ends": ends, "changed": ends}
    np.savez(tmp_path / "plain.npz", **arrays)
    np.savez_compressed(tmp_path / "small.npz", **arrays)
    assert listing._read(kept(tmp_path / "plain.npz")) is not None
    assert listing._read(kept(tmp_path / "small.npz")) is None


# HDF5: values in other files.


def labelled_samples(path: Path, make_label: object) -> None:
    with h5py.File(path, "w") as file:
        for number in range(9):
            group = file.create_group(f"s{number}")
            group["image"] = np.zeros((4, 4, 3), np.uint8)
            make_label(group, number)  # type: ignore[operator]


def test_labels_are_not_read_from_external_storage(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("TOPSECRET")

    def external(group: h5py.Group, number: int) -> None:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_external(str(tmp_path / "secret.txt").encode(), number, 1)
        space = h5py.h5s.create(h5py.h5s.SCALAR)
        h5py.h5d.create(group.id, b"label", h5py.h5t.STD_U8LE, space, properties)

    labelled_samples(tmp_path / "a.h5", external)
    with pytest.raises(FormatError, match="label' is stored in other files"):
        open_source(tmp_path / "a.h5", options={"images": "/"})


def test_labels_are_not_read_from_virtual_datasets(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["secret"] = np.arange(9)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"] = np.zeros((9, 4, 4, 3), np.uint8)
        layout = h5py.VirtualLayout((9,), "<i8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "secret.h5"), "secret", (9,))
        file.create_virtual_dataset("labels", layout)
    with pytest.raises(FormatError, match="labels' is stored in other files"):
        open_source(tmp_path / "a.h5")


def test_a_label_behind_a_link_to_another_file_is_not_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["secret"] = 84

    def link(group: h5py.Group, number: int) -> None:
        group["label"] = h5py.ExternalLink("secret.h5", "/secret")

    labelled_samples(tmp_path / "a.h5", link)
    source = open_source(tmp_path / "a.h5", options={"images": "/"})
    assert sorted(set(source.classes)) == [f"s{number}" for number in range(9)]  # Named by their groups.


# Indexes.


def index_of(path: Path, **changes: object) -> None:
    """Replace the index of a tar by one that says something else, with the right checksums."""
    files = [LocalFile(path)]
    honest = open_packed(path, files).index
    parts = {
        name: getattr(honest, name) for name in ("format", "rows", "decodings", "chunks", "names", "classes")
    }
    made = RecordIndex(**(parts | changes))  # type: ignore[arg-type]
    place, *_ = index_file.index_paths(files, {})
    assert index_file.write_index(place, made, files)


def rows_with(field: str, value: int) -> object:
    rows = make_rows([512, 2048, 4096], 7, [0, 1, 2])
    rows[field] = value
    return rows


ARRAY: Decoding = {"kind": "array", "dtype": "|u1", "shape": [2, 4], "order": "HW"}
CHUNKS: Decoding = {
    "kind": "chunks",
    "dtype": "|u1",
    "shape": [8, 8, 3],
    "chunk": [1, 8, 8, 3],
    "filters": [("lzf", 0)],
    "order": "HWC",
    "fill": 0,
}
WRONG_INDEXES: dict[str, dict[str, object]] = {
    "offset huge": {"rows": rows_with("offset", 2**62)},
    "offset at the limit": {"rows": rows_with("offset", 2**63 - 1)},
    "offset negative": {"rows": rows_with("offset", -5)},
    "length huge": {"rows": rows_with("length", 2**32 - 1)},
    "file 7": {"rows": rows_with("file", 7)},
    "decoding 9": {"rows": rows_with("decoding", 9)},
    "decodings are strings": {"decodings": ["x"]},
    "decodings are none": {"decodings": []},
    "names too few": {"names": BytesArray.from_list([b"a"])},
    "classes of numbers": {"classes": [1, None, {}]},
    "chunks that do not exist": {"decodings": [CHUNKS], "rows": rows_with("offset", 0)},
    "chunks outside of the file": {"chunks": np.full(3, 2**31 - 1, CHUNK)},
    "a chunk of another file": {"chunks": np.array([(0, 1, 9, 0, 0)], CHUNK)},
}


@pytest.mark.parametrize("what", WRONG_INDEXES)
def test_an_index_that_cannot_be_of_these_files_is_built_again(tmp_path: Path, what: str) -> None:
    path = pack(tmp_path / "a.tar", list(SAMPLES))
    index_of(path, **WRONG_INDEXES[what])
    source = open_packed(path, [LocalFile(path)])
    assert [bytes(source.read(number)) for number in range(3)] == SAMPLES
    assert source.targets == [0, 1, 2]
    assert len(source.samples) == len(source.lengths()) == 3
    source.prefetch([0, 1, 2])


@pytest.mark.parametrize("what", ["offset huge", "offset negative", "file 7", "decoding 9"])
def test_a_large_index_is_checked_block_by_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(index_file, "_CHECKED_WHEN_OPENED", -1)
    path = pack(tmp_path / "a.tar", list(SAMPLES))
    index_of(path, **WRONG_INDEXES[what])
    source = open_packed(path, [LocalFile(path)])
    for use in (lambda: source.read(0), lambda: source.path(1), lambda: source.targets, source.lengths):
        with pytest.raises(FormatError, match="the index is corrupt"):
            use()


@pytest.mark.parametrize(
    "description",
    [
        ARRAY | {"order": "CHW"},
        ARRAY | {"order": "HWC", "shape": [2, 2, 2]},
        ARRAY | {"order": ["HW"]},
        ARRAY | {"dtype": "|O"},
        ARRAY | {"dtype": [["a", "O"]]},
        ARRAY | {"dtype": "(2,2)u1"},
        ARRAY | {"dtype": "u1,"},
        ARRAY | {"shape": [[1]]},
        ARRAY | {"shape": [-1, 4]},
        ARRAY | {"shape": [2**40, 2**40]},
        ARRAY | {"shape": [float("inf")]},
        ARRAY | {"shape": [1] * 40, "order": ""},
        CHUNKS | {"chunk": [1, 8, 8]},
        CHUNKS | {"chunk": [0, 8, 8, 3]},
        CHUNKS | {"chunk": [2**40, 8, 8, 3]},
        CHUNKS | {"fill": [1, 2]},
        CHUNKS | {"fill": 2**70},
        CHUNKS | {"fill": float("nan")},
        CHUNKS | {"filters": [["gzip"]]},
        CHUNKS | {"filters": 5},
        {"kind": "pickle"},
        {"kind": ["bytes"]},
        {},
    ],
)
def test_a_decoding_that_cannot_be_is_a_format_error(tmp_path: Path, description: Decoding) -> None:
    (tmp_path / "a").write_bytes(bytes(100))
    with pytest.raises(FormatError, match="a'"):
        decoder(description, [LocalFile(tmp_path / "a")], np.empty(0, CHUNK))


def test_rows_are_32_bytes_so_that_a_block_holds_whole_ones() -> None:
    assert index_file.BLOCK % ROW.itemsize == 0


@pytest.mark.parametrize("text", ["", "[" * 100_000, "{", b"\xff", "9" * 5000])
def test_json_that_is_none_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_json(text)
    assert not issubclass(RecursionError, RekindleError)


@pytest.mark.parametrize("half", ["\\ud800", "\\uDBFF", "\\udc41"])
def test_a_name_that_is_half_a_character_is_refused(half: str) -> None:
    """Python keeps it, and whoever writes or shows the name later raises UnicodeEncodeError."""
    with pytest.raises(ValueError, match="half a character"):
        parse_json(f'{{"x": ["{half}"]}}')
    with pytest.raises(ValueError, match="half a character"):
        parse_json(f'{{"{half}": 1}}'.encode())
    with pytest.raises(ValueError, match="invalid"):
        parse_json(b'{"x": "\xed\xa0\x80"}')


def test_whole_characters_and_bytes_of_file_names_are_read() -> None:
    assert parse_json(r'["\ud83d\ude00", "\udcff"]') == ["\U0001f600", "\udcff"]
