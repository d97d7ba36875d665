"""`rk.pack`, `rk.info` and `rk.verify` from Python: what they take, what they return, what they raise."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from PIL import Image
from torch.utils.data import TensorDataset

import rekindle as rk
from wrapped_source import WrappedSource

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Six PNG files in two classes."""
    for number in range(6):
        path = tmp_path / "train" / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (20, 30 + number, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return tmp_path / "train"


def sources(images: Path) -> dict[str, Any]:
    """The same samples, in every way to name them."""
    fsspec.filesystem("memory").put(str(images), "pack-info-verify", recursive=True)
    rk.pack(images, images.parent / "all.tar")
    return {
        "text": str(images),
        "path": images,
        "URL": "memory://pack-info-verify",
        "packed": images.parent / "all.tar",
        "dataset": rk.open(images, rk.transforms.RandomCrop(8)),
        "undecoded dataset": rk.open(images, decode=False),
        "source": rk.open(images).source,
        "other source": WrappedSource(rk.open(images).source),
    }


def test_every_way_to_name_a_source_gives_the_same_samples(images: Path, tmp_path: Path) -> None:
    expected = [rk.open(images, decode=False)[index] for index in range(6)]
    for number, (kind, source) in enumerate(sources(images).items()):
        result = rk.pack(source, str(tmp_path / f"{number}.tar"))
        assert result.samples == 6, kind
        packed = rk.open(result.files[0], decode=False)
        assert [(bytes(data), label) for data, label in packed] == expected, kind
        found = rk.info(source)
        assert (found.samples, found.classes, found.image_formats) == (6, 2, {"PNG": 6}), kind
        assert rk.verify(source).ok, kind


@pytest.mark.parametrize("function", [rk.info, rk.verify, lambda source: rk.pack(source, "x.tar")])
@pytest.mark.parametrize("source", [TensorDataset(), 3, None], ids=["torch dataset", "number", "nothing"])
def test_what_has_no_samples_on_disk_is_refused(source: Any, function: Any) -> None:
    with pytest.raises(rk.ArgumentError, match=r"cannot read samples from .*rekindle\.open"):
        function(source)


def test_a_pack_result_lists_files_sizes_and_what_was_left_out(images: Path, tmp_path: Path) -> None:
    broken = images / "dog" / "3.png"
    broken.write_bytes(broken.read_bytes()[:100])
    result = rk.pack(images, tmp_path / "x.tar", shards=2, quality=80, skip_broken=True)
    assert result.files == [tmp_path / f"x-0000{number}-of-00002.tar" for number in range(2)]
    assert result.samples == 5
    assert len(result.left_out) == 1
    assert str(broken) in result.left_out[0]
    assert result.nbytes == sum(file.stat().st_size for file in result.files)
    assert "samples=5" in repr(result)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"resize": 0}, r"resize \(--resize\) must be at least 1 pixel, but got 0"),
        ({"quality": 0}, r"quality \(--quality\) must be from 1 to 100, but got 0"),
        ({"raw_share": 1.5}, r"raw_share \(--raw-share\) must be from 0 to 1, but got 1.5"),
        ({"shards": 0}, r"shards \(--shards\) must be an integer from 1 to 6, the number of samples, .* 0"),
        ({"shards": 1.5}, r"but got 1\.5"),
        ({"workers": 0}, r"workers must be a positive integer or None, but got 0"),
        ({"target": "x.zip"}, r"'x\.zip' does not end in .*\.tfrecord"),
        ({"target": "memory://x.tar"}, r"target is 'memory://x\.tar', but must be a file on this machine"),
        ({"target": "missing/x.tar"}, r"there is no folder 'missing' to write to"),
    ],
)
def test_an_argument_that_cannot_work_is_named_as_in_python(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    with pytest.raises(rk.ArgumentError, match=message):
        rk.pack(images, **{"target": "x.tar", **arguments})
    assert set(tmp_path.iterdir()) == before


def test_an_existing_target_is_replaced_only_with_overwrite(images: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.tar"
    target.write_bytes(b"mine")
    with pytest.raises(rk.ArgumentError, match=r"exists\..*overwrite=True \(--overwrite\)"):
        rk.pack(images, target)
    assert target.read_bytes() == b"mine"
    assert rk.pack(images, target, overwrite=True).samples == len(rk.open(target)) == 6


def test_a_broken_image_says_how_to_leave_it_out(images: Path, tmp_path: Path) -> None:
    (images / "cat" / "0.png").write_bytes(b"\x89PNG")
    with pytest.raises(rk.DataError, match=r"0\.png' \(sample 0\).*skip_broken=True \(--skip-broken\)"):
        rk.pack(images, tmp_path / "x.tar", resize=8)


def test_progress_adds_up_to_all_samples(images: Path, tmp_path: Path) -> None:
    size = sum(file.stat().st_size for file in images.rglob("*.png"))
    for run in (
        lambda progress: rk.pack(images, tmp_path / "x.tar", progress=progress),
        lambda progress: rk.verify(images, progress=progress),
    ):
        calls: list[tuple[int, int]] = []
        run(lambda samples, nbytes, calls=calls: calls.append((samples, nbytes)))
        assert [sum(column) for column in zip(*calls, strict=True)] == [6, size]


def test_there_is_a_progress_bar_on_a_terminal_unless_switched_off(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    rk.pack(images, tmp_path / "x.tar", progress=False)
    rk.verify(images, progress=False)
    assert capsys.readouterr().err == ""
    rk.pack(images, tmp_path / "x.tar", overwrite=True)
    assert "packing" in capsys.readouterr().err
    rk.verify(images)
    assert "verifying" in capsys.readouterr().err


def test_info_prints_as_a_table_and_is_plain_data(images: Path) -> None:
    found = rk.info(images)
    assert (found.width.min, found.width.max, found.height.median) == (30, 35, 20)
    assert (found.unlabelled, found.unreadable, found.inspected) == (0, 0, 6)
    lines = str(found).splitlines()
    assert lines[0].split() == ["path", str(images)]
    assert "6 PNG (of 6 inspected)" in str(found)
    assert "per class   3 samples" in lines  # not "3 to 3"
    assert "pixels      30–35 × 20" in lines
    assert repr(found) == str(found)
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["samples_per_class"] == {"min": 3, "median": 3, "max": 3}
    assert plain["nbytes"] == sum(file.stat().st_size for file in images.rglob("*.png"))


def test_info_counts_images_whose_header_cannot_be_read(images: Path) -> None:
    (images / "cat" / "0.png").write_bytes(b"no image at all")
    found = rk.info(images)
    assert (found.unreadable, found.image_formats) == (1, {"PNG": 5, "unknown": 1})
    assert "1 of them; `rekindle verify` names them" in str(found)


def test_verify_lists_the_first_bad_samples_and_counts_all(images: Path) -> None:
    for file in images.rglob("*.png"):
        os.truncate(file, 60)
    for number in range(6, 1040):
        (images / "dog" / f"{number:04}.png").write_bytes(b"")
    found = rk.verify(images, workers=2)
    assert (found.ok, found.samples, found.bad, len(found.first_bad)) == (False, 1040, 1040, 1000)
    assert [problem.sample for problem in found.first_bad] == list(range(1000))
    assert found.first_bad[0].path.endswith("0.png")
    text = str(found).splitlines()
    assert text[0].startswith("sample 0: ")
    assert text[-2:] == ["… and 40 more", f"{images}: 1,040 samples, 1,040 bad"]
    plain = json.loads(json.dumps(found.to_dict()))
    assert (plain["ok"], plain["bad"], plain["first_bad"][1]["sample"]) == (False, 1040, 1)
    assert repr(found) == str(found)


@pytest.mark.parametrize("function", [rk.info, rk.verify, lambda source: rk.pack(source, "x.tar")])
def test_a_missing_path_is_named(function: Any) -> None:
    with pytest.raises(rk.DataError, match="there is no 'nowhere'"):
        function("nowhere")


class _Unplugged(WrappedSource):
    """A source whose second sample cannot be fetched at the moment."""

    def read(self, index: int) -> Any:
        if index == 1:
            raise rk.RemoteError("there is no network")
        return self._source.read(index)

    copy = read


def test_a_network_error_is_not_a_broken_image(images: Path, tmp_path: Path) -> None:
    source = rk.open(images).source
    with pytest.raises(rk.RemoteError, match="there is no network"):
        rk.pack(_Unplugged(source), tmp_path / "train.tar", skip_broken=True)  # type: ignore[arg-type]
    done = rk.pack(source, tmp_path / "train.tar", skip_broken=True)
    assert (done.samples, done.left_out) == (len(source), [])
