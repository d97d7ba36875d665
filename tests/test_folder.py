"""Folders of images: what ImageFolder sees, labels from files, cached listings, and clear errors."""

import json
import os
import pickle
from pathlib import Path

import pytest

from light_torchvision import torchvision
from rekindle.errors import DataError
from rekindle.fetch import Folder, listing


def put(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return root


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    names = [
        "cat/2.jpg", "cat/10.JPEG", "cat/1.png", "cat/deep/er/0.bmp", "cat/deep-er/0.webp", "cat-fish/a.tiff",
        "Dog/z.PnG", "Dog/notes.txt", "Dog/b/ä.ppm", "stray.jpg", "zebra/.hidden.jpg",
    ]  # fmt: skip
    return put(tmp_path / "data", *names)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(listing, "_CACHE_FROM", 1)
    monkeypatch.setattr(listing, "_SETTLED", 0)
    return tmp_path / "cache"


def test_class_folders_are_what_torchvision_sees(classes: Path) -> None:
    theirs = torchvision.datasets.ImageFolder(str(classes))
    ours = Folder(classes)
    assert ours.classes == theirs.classes
    assert ours.class_to_idx == theirs.class_to_idx
    assert ours.samples == theirs.samples
    assert ours.targets == theirs.targets
    assert len(ours) == len(theirs)


def test_a_sample_is_the_bytes_of_its_file(classes: Path) -> None:
    folder = pickle.loads(pickle.dumps(Folder(classes)))
    for index in range(len(folder)):
        assert folder.read(index) == Path(folder.path(index)).read_bytes()


def test_linked_class_folders_are_followed_and_loops_end(classes: Path) -> None:
    os.symlink(classes / "cat", classes / "linked")
    os.symlink(classes, classes / "Dog" / "loop")
    folder = Folder(classes)
    assert folder.targets.count(folder.class_to_idx["linked"]) == folder.targets.count(
        folder.class_to_idx["cat"]
    )


@pytest.mark.parametrize("kind", ["csv", "csv with header", "json", "pairs", "nested", "mapping"])
def test_labels_come_from_files_and_mappings(tmp_path: Path, kind: str) -> None:
    root = put(tmp_path, "b.png", "a.jpg", "c/d.png")
    labels = {"a.jpg": "tree", "b.png": "house", "c/d.png": "tree"}
    lines = "".join(f"{name},{label}\n" for name, label in labels.items())
    given = None
    if kind == "csv":
        (root / "labels.csv").write_text(lines)
    elif kind == "csv with header":
        given = "mine.csv"
        (root / given).write_text("file,label\n" + lines)
    elif kind == "mapping":
        given = labels
    else:
        made = {"json": labels, "pairs": list(labels.items()), "nested": {"labels": list(labels.items())}}
        (root / "labels.json").write_text(json.dumps(made[kind]))
    folder = Folder(root, given)
    assert folder.classes == ["house", "tree"]
    assert [Path(path).name for path, _ in folder.samples] == ["a.jpg", "b.png", "d.png"]
    assert folder.targets == [1, 0, 1]


def test_labels_that_are_numbers_are_the_targets(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg", "b.jpg")
    (tmp_path / "labels.csv").write_text("a.jpg,7\nb.jpg,0\n")
    folder = Folder(tmp_path)
    assert folder.targets == [7, 0]
    assert folder.classes == [str(number) for number in range(8)]


@pytest.mark.parametrize(
    ("names", "labels", "message"),
    [
        ((), None, "no class folders"),
        (("a.jpg",), None, "no class folders and no labels"),
        (("full/a.jpg", "empty/notes.txt"), None, "no images in the class folders empty"),
        (("a.jpg", "b.jpg"), {"a.jpg": 1}, "have no label, the first is 'b.jpg'. Label them"),
        (
            ("a.jpg", "b.jpg"),
            {"x/a": 1},
            "'a.jpg'. None of the 1 names in labels= .* 'x/a': write .* as 'a.jpg'",
        ),
        (("a.jpg", "b.jpg"), {}, "the first is 'a.jpg'. labels= has no entries"),
        (("a.jpg",), {"a.jpg": 1, "b.jpg": 2}, "do not exist, the first is 'b.jpg'"),
        ((), {"a.jpg": 1}, "holds no images"),
        (("a.jpg",), {"a.jpg": -1}, "negative"),
        (("a.jpg",), {"a.jpg": 10_000_000}, "label 10000000 is too large"),
        (("a.jpg",), {"a.jpg": 10**30}, "too large for a class number"),
        (("a.jpg",), "labels.xml", "but got"),
        (("a.jpg",), "none.csv", "cannot read"),
    ],
)
def test_what_is_wrong_with_a_folder_is_reported(tmp_path: Path, names, labels, message: str) -> None:
    root = tmp_path / "data"
    root.mkdir()
    put(root, *names)
    if labels == "labels.xml":
        (root / labels).write_text("<a/>")
    with pytest.raises(DataError, match=message):
        Folder(root, labels)


def test_a_missing_folder_and_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no folder"):
        Folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match="is a file"):
        Folder(put(tmp_path, "a.jpg") / "a.jpg")


@pytest.mark.parametrize("text", ["a.jpg\n", "a.jpg,1\na.jpg,2\n", "\xff"])
def test_broken_labels_are_refused(tmp_path: Path, text: str) -> None:
    put(tmp_path, "a.jpg")
    (tmp_path / "labels.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"labels\.csv"):
        Folder(tmp_path)


def test_a_cached_listing_is_used_and_every_change_noticed(
    classes: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Folder(classes).samples
    assert len(list(cache.rglob("*.npz"))) == 1
    with monkeypatch.context() as patched:
        patched.setattr(listing, "_walk", None)  # Calling it would fail.
        assert Folder(classes).samples == before
    put(classes, "cat/new.jpg")
    after = Folder(classes).samples
    assert len(after) == len(before) + 1
    (classes / "cat" / "deep" / "er" / "0.bmp").unlink()
    assert len(Folder(classes).samples) == len(before)


def test_a_corrupt_listing_is_built_again(classes: Path, cache: Path) -> None:
    before = Folder(classes).samples
    (cached,) = cache.rglob("*.npz")
    whole = cached.read_bytes()
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 0x55
        cached.write_bytes(damaged)
        assert Folder(classes).samples == before
        cached.write_bytes(whole[:place])
        assert Folder(classes).samples == before


def test_a_folder_that_just_changed_is_not_cached(
    classes: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_SETTLED", 3600 * 10**9)
    Folder(classes)
    assert not list(cache.rglob("*.npz"))


def test_a_cache_that_cannot_be_written_is_harmless(
    classes: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("a file where a folder should be")
    assert len(Folder(classes))


def test_short_reads_are_continued(classes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(classes)
    whole = [Path(path).read_bytes() for path, _ in folder.samples]
    read = os.read
    monkeypatch.setattr(os, "read", lambda file, most: read(file, min(most, 3)))
    assert [folder.read(index) for index in range(len(folder))] == whole
