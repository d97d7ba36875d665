"""Damage to packed files: which is one sample's error, which the file's, and what `verify` says of it."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import rekindle as rk
from packs import CLASSES, jpegs, pack
from rekindle.tools.cli import main

pytestmark = pytest.mark.usefixtures("cache")
COUNT = 12
T = rk.transforms


def _records(path: Path) -> list[int]:
    """Where each record of a TFRecord file begins."""
    data, found, at = path.read_bytes(), [], 0
    while at < len(data):
        found.append(at)
        at += 16 + struct.unpack_from("<Q", data, at)[0]
    return found


def _flip(path: Path, *offsets: int) -> Path:
    data = bytearray(path.read_bytes())
    for offset in offsets:
        data[offset] ^= 1
    path.write_bytes(data)
    return path


def _with_damaged(path: Path, *numbers: int) -> Path:
    """A TFRecord file in which a byte of these records' images is changed."""
    starts = [*_records(pack(path, jpegs(COUNT), CLASSES)), path.stat().st_size]
    return _flip(path, *(starts[number + 1] - 1200 for number in numbers))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("steps", [None, [T.RandomCrop(8), T.ToTensor()]], ids=["stored", "steps"])
def test_a_damaged_record_of_a_tfrecord_is_the_error_of_its_sample(
    tmp_path: Path, workers: int, steps: Any
) -> None:
    path = _with_damaged(
        tmp_path / "a.tfrecord", 0, 5
    )  # the first is where the features are found, otherwise
    starts = _records(path)
    for _ in range(2):  # with a new index, and with a saved one
        dataset = rk.open(path, steps)
        assert len(dataset) == COUNT
        assert dataset.targets == [-1, 1, 2, 0, 1, -1, 0, 1, 2, 0, 1, 2]
        assert dataset.classes == CLASSES
        for number in (0, 5):
            with pytest.raises(
                rk.FormatError, match=rf"a\.tfrecord' at byte {starts[number] + 12}: wrong chec"
            ):
                dataset[number]
        assert dataset[1][1] == 1
    left = []
    loader = rk.DataLoader(dataset, 4, num_workers=workers, on_error="skip", error_budget=0.5)
    for _ in loader:
        left += loader.batch.ids.tolist()
    assert left == [1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
    assert [bad.id for bad in loader.report().bad_samples] == [0, 5]
    loader.close()


def test_samples_of_damaged_records_need_no_label_by_key(tmp_path: Path) -> None:
    path = _with_damaged(tmp_path / "a.tfrecord", 3)
    labels = {
        f"photos/{number:04}": "even" if number % 2 == 0 else "odd" for number in range(COUNT) if number != 3
    }
    dataset = rk.open(path, labels=labels)
    assert dataset.targets == [0, 1, 0, -1, 0, 1, 0, 1, 0, 1, 0, 1]
    assert dataset.classes == ["even", "odd"]
    assert dataset.source.path(3).endswith(f"a.tfrecord: byte {_records(path)[3] + 12}")


def test_a_tfrecord_of_which_all_records_are_damaged_is_an_error_when_it_is_opened(tmp_path: Path) -> None:
    path = _with_damaged(tmp_path / "a.tfrecord", *range(COUNT))
    with pytest.raises(
        rk.FormatError, match=r"at byte 12: wrong checksum of a record, and of all 12: .*verify=False"
    ):
        rk.open(path)
    assert len(rk.open(path, verify=False)) == COUNT


def test_a_damaged_length_says_that_the_file_has_to_be_made_again(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.tfrecord", jpegs(COUNT), CLASSES)
    start = _records(path)[4]
    _flip(path, start + 8)
    message = (
        rf"at byte {start}: wrong checksum of a record's length: .*cannot be found\. Make the file again"
    )
    with pytest.raises(rk.FormatError, match=message):
        rk.open(path)


def test_verify_lists_every_damaged_record_and_counts_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _with_damaged(tmp_path / "a.tfrecord", 2, 7, 11)
    starts = _records(path)
    assert main(["verify", str(path), "--quiet"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["sample 2", "sample 7", "sample 11", str(path)]
    for line, number in zip(lines, (2, 7, 11), strict=False):
        assert f"{str(path)!r} at byte {starts[number] + 12}: wrong checksum" in line
        assert line.count(str(path)) == 1
    assert lines[-1].endswith("12 samples, 3 bad")


def test_info_and_pack_pass_over_damaged_records(tmp_path: Path) -> None:
    path = _with_damaged(tmp_path / "a.tfrecord", 0, 5)
    found = rk.info(path)
    assert (found.unreadable, found.image_formats) == (2, {"JPEG": 10, "unknown": 2})
    with pytest.raises(
        rk.DataError, match=r"wrong checksum .*[^.]\. Remove it, or leave it out with skip_broken"
    ):
        rk.pack(path, tmp_path / "b.tar")
    result = rk.pack(path, tmp_path / "b.tar", skip_broken=True)
    assert (result.samples, len(result.left_out)) == (10, 2)


@pytest.mark.parametrize("ending", ["h5", "tar", "lmdb", "tfrecord"])
def test_verify_says_whether_changed_bytes_would_be_found(
    tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pixels = [np.full((8, 8, 3), number, np.uint8) for number in range(COUNT)]
    path = pack(tmp_path / f"a.{ending}", [*pixels], CLASSES)
    assert main(["verify", str(path)]) == 0
    good = capsys.readouterr().out.splitlines()[-1]
    file = path / "data.mdb" if path.is_dir() else path
    before = file.stat()
    _flip(file, file.read_bytes().index(bytes([7]) * 192) + 100)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    code = main(["verify", str(path), "--json"])
    found = json.loads(capsys.readouterr().out)
    if ending == "tfrecord":
        assert good.endswith("12 samples, all good")
        assert (code, found["bad"], found["checksums"]) == (1, 1, True)
    else:
        assert "all can be decoded (there are no checksums: changed bytes" in good
        assert (code, found["ok"], found["checksums"]) == (0, True, False)
        assert rk.open(path)[7][0].tolist() != pixels[7].tolist()


def test_verify_finds_changed_bytes_of_hdf5_with_fletcher32(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        images = np.arange(COUNT, dtype=np.uint8)[:, None, None, None] + np.zeros((1, 8, 8, 3), np.uint8)
        file.create_dataset("images", data=images, chunks=(1, 8, 8, 3), fletcher32=True)
        file["labels"] = np.arange(COUNT) % 3
    assert str(rk.verify(path)).endswith("12 samples, all good")
    _flip(path, path.read_bytes().index(bytes([7]) * 192) + 100)
    found = rk.verify(path)
    assert [problem.sample for problem in found.first_bad] == [7]
    assert "fletcher32" in found.first_bad[0].reason


@pytest.mark.parametrize("ending", ["tfrecord", "tar", "h5"])
def test_verify_lists_every_shard_that_is_damaged_as_a_whole(
    tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = [pack(tmp_path / f"s-{number}.{ending}", jpegs(4), CLASSES) for number in range(4)]
    for number in (1, 3):
        os.truncate(shards[number], shards[number].stat().st_size * 2 // 3)
    pattern = str(tmp_path / f"s-*.{ending}")
    assert main(["verify", pattern]) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert [str(shards[number]) in line for line, number in zip(lines, (1, 3), strict=True)] == [True, True]
    assert last == f"{pattern}: 2 damaged files, whose samples cannot be found"
    assert main(["verify", pattern, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["damaged_files"]) == (False, lines)
    assert main(["verify", str(shards[1])]) == 1
    assert capsys.readouterr().err == f"rekindle: {lines[0]}\n"
