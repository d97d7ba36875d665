"""What is packed comes back: every sample, whatever it is, with its label or without one."""

import io
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from PIL import Image

import rekindle as rk
from one_inspector import one_inspector  # noqa: F401 - a fixture of all tests here
from packs import CLASSES, ENDINGS, jpegs
from rekindle.fetch import open_source, writer_for
from rekindle.tools.cli import main

pytestmark = pytest.mark.usefixtures("cache")


def _gif() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((4, 5, 3), 90, np.uint8)).save(buffer, "GIF")
    return buffer.getvalue()


JPEG_2000 = b"\0\0\0\x0cjP  \r\n\x87\n" + b"its beginning"
OF_ANY_KIND = [jpegs(1)[0], _gif(), JPEG_2000, b"P3\n1 1\n255\n9 8 7\n", b"", b"no image"]


def _written(path: Path, samples: list[bytes], labels: list[int], classes: list[str] | None = None) -> Path:
    writer = writer_for(path, classes)
    try:
        for number, (data, label) in enumerate(zip(samples, labels, strict=True)):
            writer.add(f"{'ab'[number % 2]}/{number}", data, label)
        writer.close()
    finally:
        writer.abort()
    return path


def _samples(source: Any) -> list[bytes]:
    return [bytes(source.read(number)) for number in range(len(source))]


def _packed(source: Path, target: Path) -> Any:
    assert main(["pack", str(source), str(target)]) == 0
    return open_source(target)


@pytest.mark.parametrize("labels", [[0, 1, 2, 0, 1, 2], [-1] * 6], ids=["labelled", "unlabelled"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_content_of_any_kind_is_kept(tmp_path: Path, ending: str, labels: list[int]) -> None:
    first = _written(tmp_path / "first.lmdb", OF_ANY_KIND, labels)
    again = _packed(first, tmp_path / f"again.{ending}")
    assert _samples(again) == OF_ANY_KIND
    assert again.targets == labels


@pytest.mark.parametrize("labels", [[-1, 0, 2, -1, 1], [2, -1, 0, 1, -1]], ids=str)
@pytest.mark.parametrize("classes", [CLASSES, None], ids=["named", "numbered"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_some_samples_without_labels_change_nothing_for_the_others(
    tmp_path: Path, ending: str, classes: list[str] | None, labels: list[int]
) -> None:
    first = _written(tmp_path / "first.lmdb", jpegs(5), labels, classes)
    again = _packed(first, tmp_path / f"again.{ending}")
    assert _samples(again) == jpegs(5)
    assert again.targets == labels
    assert again.classes == (classes or ["0", "1", "2"])


@pytest.mark.parametrize("ending", ENDINGS)
def test_where_no_sample_has_a_label_none_gets_one(tmp_path: Path, ending: str) -> None:
    first = _written(tmp_path / "first.lmdb", jpegs(4), [-1] * 4)
    again = _packed(first, tmp_path / f"again.{ending}")
    assert again.targets == [-1] * 4, "folders in the keys are no classes"
    assert again.classes == []


def test_where_no_sample_has_a_label_other_tools_find_none(tmp_path: Path) -> None:
    assert b".cls" not in _written(tmp_path / "a.tar", jpegs(2), [-1, -1]).read_bytes()
    assert b"class/label" not in _written(tmp_path / "a.tfrecord", jpegs(2), [-1, -1]).read_bytes()


@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
def test_a_label_after_samples_without_is_refused_where_classes_are_not_known(
    tmp_path: Path, ending: str
) -> None:
    with pytest.raises(rk.ArgumentError, match="'b/1' has the label 3, but the first sample has none"):
        _written(tmp_path / f"a.{ending}", jpegs(2), [-1, 3])


@pytest.mark.parametrize("ending", ENDINGS)
def test_keys_of_any_bytes_are_packed(tmp_path: Path, ending: str) -> None:
    """Many who write LMDB files have numbers as keys, byte by byte."""
    keys = [*(number.to_bytes(4, "big") for number in range(3)), b"a\0b", b"a_b"]
    with (
        lmdb.open(str(tmp_path / "first.lmdb"), map_size=1 << 24) as database,
        database.begin(write=True) as transaction,
    ):
        for key, image in zip(keys, jpegs(5), strict=True):
            transaction.put(key, image)
    assert _samples(_packed(tmp_path / "first.lmdb", tmp_path / f"again.{ending}")) == jpegs(5)
