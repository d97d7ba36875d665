"""The command line as its users see it: what is printed, and the exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import rekindle as rk
from images_to_pack import make_images
from rekindle.fetch.packed.tar.writer import TarWriter
from rekindle.fetch.packed.writers import writer_for
from rekindle.tools import image_recipe
from rekindle.tools.cli import main
from rekindle.tools.image_recipe import Recipe
from waiting import HANGS

FORMATS = ("h5", "tfrecord", "tar", "lmdb")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images") / "train")


@pytest.mark.parametrize("ending", FORMATS)
def test_a_packed_folder_has_the_same_samples(
    images: Path, tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / f"train.{ending}"
    assert main(["pack", str(images), str(target)]) == 0
    assert re.search(r"train\.\w+: 150 samples, .* samples/s", capsys.readouterr().out)
    before, after = rk.open(images, decode=False), rk.open(target, decode=False)
    assert after.classes == before.classes
    assert [(bytes(data), label) for data, label in after] == [before[index] for index in range(150)]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("ending", FORMATS)
def test_any_format_can_be_packed_into_any_other_in_shards(images: Path, tmp_path: Path, ending: str) -> None:
    assert main(["pack", str(images), str(tmp_path / "first.tar")]) == 0
    assert main(["pack", str(tmp_path / "first.tar"), str(tmp_path / f"x.{ending}"), "--shards", "4"]) == 0
    before, after = rk.open(images, decode=False), rk.open(tmp_path / f"x-*.{ending}", decode=False)
    assert [(bytes(data), label) for data, label in after] == [before[index] for index in range(150)]
    assert after.source.path(77).endswith("class1/077"), "samples keep their names"


def test_images_are_resized_and_a_share_of_them_stored_as_pixels(images: Path, tmp_path: Path) -> None:
    target = tmp_path / "small.h5"
    assert main(["pack", str(images), str(target), "--resize", "16", "--raw-share", "0.5"]) == 0
    data = rk.open(target, decode=False)
    raw = [bytes(stored)[:2] == b"P6" for stored, _ in data]
    assert raw == [image_recipe.is_raw(index, Recipe(raw_share=0.5)) for index in range(150)]
    assert sum(raw) == 75
    for image, _ in rk.open(target):
        assert max(image.shape[:2]) == 16
    with Image.open(io.BytesIO(data[0][0])) as jpeg:
        assert jpeg.format == "JPEG"


def test_quality_sets_the_size(images: Path, tmp_path: Path) -> None:
    for quality in ("30", "95"):
        main(["pack", str(images), str(tmp_path / f"{quality}.tar"), "--quality", quality])
    low, high = (rk.open(tmp_path / f"{quality}.tar").source.lengths().sum() for quality in ("30", "95"))
    assert low < 0.6 * high


def test_images_that_are_small_enough_are_stored_as_they_are(images: Path) -> None:
    stored = (images / "class0/001.png").read_bytes()
    assert image_recipe.prepare(stored, 0, Recipe(resize=100)) == stored
    assert image_recipe.prepare(stored, 0, Recipe(resize=10)) != stored


def test_the_next_shard_is_prepared_while_one_is_finished(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finishing a shard waits for the disk; processors need not."""
    begun = threading.Event()
    prepare, close = image_recipe.prepare, TarWriter.close

    def recorded(stored: Any, index: int, recipe: Recipe, **options: bool) -> bytes:
        if index >= 75:
            begun.set()
        return prepare(stored, index, recipe, **options)

    def patient(writer: TarWriter) -> None:
        assert begun.wait(HANGS)
        close(writer)

    monkeypatch.setattr(image_recipe, "prepare", recorded)
    monkeypatch.setattr(TarWriter, "close", patient)
    rk.pack(images, tmp_path / "x.tar", resize=16, shards=2, workers=1)
    assert len(rk.open(tmp_path / "x-*.tar")) == 150


def test_packing_does_not_import_torch(images: Path, tmp_path: Path) -> None:
    """Loading it takes as long as preparing some hundred photographs."""
    program = "import sys; from rekindle.tools.cli import main; sys.exit(main() or 'torch' in sys.modules)"
    command = ["pack", str(images), str(tmp_path / "x.tar"), "--resize", "16", "--raw-share", "0.5"]
    assert subprocess.run([sys.executable, "-c", program, *command], check=False).returncode == 0


def test_the_help_loads_only_what_it_needs() -> None:
    """So that it appears in less than a tenth of a second."""
    heavy = {"torch", "numpy", "importlib.metadata"}
    program = f"""
import sys
from rekindle.tools.cli import main
try:
    main(["--help"])
finally:
    print(*{heavy!r} & sys.modules.keys(), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stderr.split() == []


# Errors.


def test_an_existing_file_is_not_overwritten_unless_asked(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "x.tar"
    target.write_bytes(b"mine")
    assert main(["pack", str(images), str(target)]) == 2
    assert "overwrite=True (--overwrite)" in capsys.readouterr().err
    assert target.read_bytes() == b"mine"
    assert main(["pack", str(images), str(target), "--overwrite"]) == 0
    assert len(rk.open(target)) == 150


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["pack", "nowhere", "x.h5"], 1, "there is no 'nowhere'"),
        (["pack", "{images}", "x.zip"], 2, ".tfrecord"),
        (["pack", "{images}", "missing/x.h5"], 2, "no folder"),
        (["pack", "{images}", "x.h5", "--quality", "101"], 2, "1 to 100"),
        (["pack", "{images}", "x.h5", "--raw-share", "2"], 2, "0 to 1"),
        (
            ["pack", "{images}", "x.h5", "--shards", "1000"],
            2,
            "from 1 to 150, the number of samples, but got 1000",
        ),
        (["pack", "{images}", "s3://bucket/x.h5"], 2, "this machine"),
        (["info", "nowhere.h5"], 1, "nowhere.h5"),
        (["verify", "{images}/class0/000.jpg"], 1, "neither HDF5"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([one.format(images=images) for one in arguments]) == code
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.startswith("rekindle: ")
    assert printed.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_no_misuse(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "lmdb", None)
    assert main(["pack", str(images), str(tmp_path / "x.lmdb")]) == 1
    assert "pip install 'rekindle[lmdb]'" in capsys.readouterr().err
    with pytest.raises(ImportError):
        rk.pack(images, tmp_path / "x.lmdb")


def test_packing_says_if_there_are_no_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (4, 3)).save(tmp_path / "photos" / "0.png")
    assert main(["pack", str(tmp_path / "photos"), str(tmp_path / "x.tar")]) == 0
    said = capsys.readouterr().err
    assert said.startswith("rekindle: 1 of 1 samples have no label")
    assert "--labels FILE" in said
    assert rk.open(tmp_path / "x.tar").targets == [-1]
    (tmp_path / "labels.csv").write_text("0.png,cat\n", encoding="utf-8")
    labels = ["--labels", str(tmp_path / "labels.csv")]
    assert main(["pack", str(tmp_path / "photos"), str(tmp_path / "y.tar"), *labels]) == 0
    assert capsys.readouterr().err == ""


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "pack images into HDF5" in capsys.readouterr().err


@pytest.mark.parametrize("ending", FORMATS)
def test_a_full_disk_is_an_error_of_one_line(images: Path, tmp_path: Path, ending: str) -> None:
    """HDF5's library crashes if a write fails. A file size limit fails as a full disk does."""
    program = (
        "import resource, sys; from rekindle.tools.cli import main;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); sys.exit(main())"
    )
    command = ["pack", str(images), str(tmp_path / f"x.{ending}")]
    ended = subprocess.run([sys.executable, "-c", program, *command], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert ended.stderr.startswith(f"rekindle: cannot write {command[2]!r}: ")
    assert not Path(command[2]).exists()
    assert main(command) == 0
    assert len(rk.open(command[2])) == 150


def test_a_folder_that_cannot_be_written_to_is_named(
    images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", str(images), "/proc/x.tar"]) == 1
    assert capsys.readouterr().err.startswith("rekindle: cannot write '/proc/x.tar': ")


def test_a_file_that_vanishes_is_named_and_can_be_left_out(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(images, tmp_path / "train")
    source = rk.open(tmp_path / "train")
    (tmp_path / "train/class0/001.png").unlink()
    with pytest.raises(rk.DataError, match=r"class0/001.png' \(sample 1\): No such file"):
        rk.pack(source, tmp_path / "x.tar")
    packed = rk.pack(source, tmp_path / "x.tar", skip_broken=True)
    assert (packed.samples, len(packed.left_out)) == (149, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pack", "a", "b.tar", "--shard", "4"], "does not take '--shard'. Did you mean --shards?"),
        (["pack", "a", "b.tar", "--resise=4"], "does not take '--resise'. Did you mean --resize?"),
        (["verify", "a", "--nothing"], "does not take '--nothing'. See rekindle verify --help."),
        (
            ["info", "a-0.tar", "a-1.tar"],
            "does not take 'a-1.tar'. Give many files as one pattern",
        ),
        (["verify", "a", "--workers", "two"], "a positive integer, but got 'two'"),
        (["pak", "a", "b.tar"], "invalid choice: 'pak' (choose from 'pack'"),
    ],
)
def test_a_misspelt_option_is_answered_with_the_nearest_one(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_broken_image_is_named_and_can_be_left_out(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(images, tmp_path / "train")
    broken = tmp_path / "train/class1/060.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    command = ["pack", str(tmp_path / "train"), str(tmp_path / "x.h5"), "--resize", "10"]
    assert main(command) == 1
    assert str(broken) in capsys.readouterr().err
    assert main([*command, "--skip-broken"]) == 0
    assert str(broken) in capsys.readouterr().err
    assert len(rk.open(tmp_path / "x.h5")) == 149


def test_verify_names_bad_samples_and_has_an_exit_code(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(images, tmp_path / "train")
    for number in (60, 63):
        path = tmp_path / f"train/class1/{number:03}.jpg"
        path.write_bytes(path.read_bytes()[:200])
    target = tmp_path / "x.tar"
    main(["pack", str(tmp_path / "train"), str(target)])
    capsys.readouterr()
    assert main(["verify", str(target)]) == 1
    printed = capsys.readouterr().out
    assert "class1/060" in printed
    assert "2 bad" in printed
    assert main(["verify", str(target), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["bad"], found["samples"]) == (False, 2, 150)
    assert [one["sample"] for one in found["first_bad"]] == [60, 63]
    assert main(["verify", str(images), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_verify_checks_checksums_even_if_there_is_an_index(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "x.tfrecord"
    main(["pack", str(images), str(target)])
    assert main(["verify", str(target)]) == 0
    before = target.stat()
    damaged = bytearray(target.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    target.write_bytes(damaged)
    os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert len(rk.open(target)) == 150, "the index still stands"
    capsys.readouterr()
    assert main(["verify", str(target), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["bad"], found["samples"], found["checksums"]) == (1, 150, True)
    assert "checksum" in found["first_bad"][0]["reason"]


def test_a_label_out_of_range_is_found(tmp_path: Path) -> None:
    writer = writer_for(tmp_path / "x.tar", ["cat", "dog"])
    for number, label in enumerate((0, 1, 7)):
        writer.add(f"{number}", np.zeros((4, 4, 3), np.uint8), label)
    writer.close()
    found = rk.verify(tmp_path / "x.tar")
    assert [problem.sample for problem in found.first_bad] == [2]
    assert "the label is 7, but must be from 0 to 1" in found.first_bad[0].reason


def test_info_shows_what_is_in_a_dataset(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["pack", str(images), str(tmp_path / "x.lmdb")])
    capsys.readouterr()
    assert main(["info", str(tmp_path / "x.lmdb")]) == 0
    printed = capsys.readouterr().out
    for part in ("lmdb, 1 file", "150", "class0, class1, class2", "50 samples", "100 PNG, 50 JPEG", "30 × 2"):
        assert part in printed
    assert main(["info", str(images), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["format"], found["samples"], found["classes"]) == ("folder", 150, 3)


def test_an_incomplete_set_of_shards_does_not_open(images: Path, tmp_path: Path) -> None:
    main(["pack", str(images), str(tmp_path / "x.tar"), "--shards", "3"])
    assert len(rk.open(tmp_path / "x-*.tar")) == 150
    (tmp_path / "x-00001-of-00003.tar").unlink()
    with pytest.raises(rk.DataError, match="2 of 3 shards"):
        rk.open(tmp_path / "x-*.tar")
    assert len(rk.open(tmp_path / "x-0000{0,2}-of-00003.tar")) == 100


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["pack", "--help"], ["info", "--help"], ["verify", "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "rekindle pack train/ train.tar --shards 64" in shown
    assert "train-00000-of-0000N.tar" in "".join(shown.split())
    assert "Show what is in a dataset: format, samples, classes, sizes." in shown


def test_names_that_differ_only_in_their_ending_stay_apart(tmp_path: Path) -> None:
    (tmp_path / "train/a").mkdir(parents=True)
    for ending in ("jpg", "png"):
        Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / f"train/a/same.{ending}")
    main(["pack", str(tmp_path / "train"), str(tmp_path / "x.tar")])
    assert len(rk.open(tmp_path / "x.tar")) == 2


def test_help_does_not_import_torch() -> None:
    program = "import sys; from rekindle.tools import cli; cli._parser(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
@pytest.mark.parametrize("ending", [".h5", ".tfrecord", ".tar", ".lmdb"])
def test_names_that_are_no_text_are_packed(tmp_path: Path, ending: str) -> None:
    folder = tmp_path / "train" / "one"
    folder.mkdir(parents=True)
    for name in (b"caf\xe9.png", b"plain.png"):
        Image.fromarray(np.zeros((4, 4, 3), dtype=np.uint8)).save(folder / "made.png")
        os.rename(folder / "made.png", os.path.join(os.fsencode(folder), name))
    assert main(["pack", str(tmp_path / "train"), str(tmp_path / f"train{ending}")]) == 0
    assert len(rk.open(tmp_path / f"train{ending}")) == 2
