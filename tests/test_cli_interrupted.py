"""Packs that are killed or stopped: nothing half written opens, and a second run goes on."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rekindle as rk
from images_to_pack import everything, make_images
from rekindle.tools import image_recipe
from rekindle.tools.cli import main
from rekindle.tools.pack_workspace import workspace

FORMATS = ("h5", "tfrecord", "tar", "lmdb")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images") / "train")


def _killed_at(count: int, names: list[str], work: Callable[[], Any]) -> int | None:
    """Do the work in a process that kills itself at the `count`-th call of any of these; its exit code."""

    def run() -> None:
        calls = 0
        for name in names:
            module, _, function = name.rpartition(".")
            home = sys.modules[module]
            original = getattr(home, function)

            def deadly(*arguments: Any, original: Any = original, **keywords: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == count:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*arguments, **keywords)

            setattr(home, function, deadly)
        work()

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("options", [{}, {"resize": 16, "raw_share": 0.25}], ids=["plain", "small"])
def test_a_killed_pack_leaves_nothing_that_opens_and_a_second_one_resumes(
    images: Path, tmp_path: Path, ending: str, options: dict[str, Any]
) -> None:
    source = rk.open(images)
    rk.pack(source, _folder(tmp_path, "whole") / f"x.{ending}", shards=2, workers=2, **options)
    expected = everything(tmp_path / "whole")
    # Resizing takes many steps: each format is killed at every fourth, all formats together at every one.
    step, stride = (FORMATS.index(ending), 4) if options else (0, 1)
    while True:
        step += stride
        folder = _folder(tmp_path, "killed")
        target = folder / f"x.{ending}"

        def work(target: Path = target) -> None:
            rk.pack(source, target, shards=2, workers=2, **options)

        # Files get their names by these two calls: between them a run can be killed.
        code = _killed_at(step, ["os.replace", "os.rename"], work)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        for pattern in (f"x-*.{ending}", f"*.{ending}", f".{target.name}.packing/*.{ending}"):
            if len(list(folder.glob(pattern))) < 2:
                with pytest.raises(rk.DataError):
                    rk.open(folder / pattern)
        work()
        assert everything(folder) == expected, f"killed at renaming number {step}"
    assert step > 4


def _folder(parent: Path, name: str) -> Path:
    shutil.rmtree(parent / name, ignore_errors=True)
    (parent / name).mkdir()
    return parent / name


def test_a_second_run_does_not_do_again_what_is_done(images: Path, tmp_path: Path) -> None:
    source, target = rk.open(images), tmp_path / "x.tar"

    def work() -> None:
        rk.pack(source, target, resize=16, workers=1)

    assert _killed_at(140, ["rekindle.tools.image_recipe.prepare"], work) == -signal.SIGKILL
    kept = len(list((tmp_path / ".x.tar.packing").glob("piece-*")))
    assert kept == 2
    prepared = []
    original = image_recipe.prepare
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            image_recipe,
            "prepare",
            lambda *given, **options: (prepared.append(given[1]), original(*given, **options))[1],
        )
        work()
    assert sorted(prepared) == list(range(128, 150))
    assert len(rk.open(target)) == 150


def test_other_arguments_restart(images: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.tar"
    _killed_at(
        140, ["rekindle.tools.image_recipe.prepare"], lambda: rk.pack(images, target, resize=16, workers=1)
    )
    rk.pack(images, target, resize=12, workers=1)
    rk.pack(images, tmp_path / "y.tar", resize=12, workers=1)
    assert target.read_bytes() == (tmp_path / "y.tar").read_bytes()


def test_the_command_itself_can_be_killed_and_run_again(images: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.tfrecord"
    command = [sys.executable, "-m", "rekindle", "pack", str(images), str(target), "--quality", "80"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    work = tmp_path / ".x.tfrecord.packing"
    while process.poll() is None and not (work / "plan.json").exists():
        time.sleep(0.002)
    process.kill()
    process.communicate()
    assert not target.exists()
    assert process.returncode == -signal.SIGKILL
    assert main(command[3:]) == 0
    assert main([*command[3:5], str(tmp_path / "y.tfrecord"), *command[6:]]) == 0
    assert target.read_bytes() == (tmp_path / "y.tfrecord").read_bytes()


def test_only_one_process_packs_a_file(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with workspace(tmp_path / "x.tar"):
        assert main(["pack", str(images), str(tmp_path / "x.tar")]) == 2
    assert "another process is packing" in capsys.readouterr().err


def test_a_shard_whose_summary_is_damaged_is_written_again(images: Path, tmp_path: Path) -> None:
    source, target = rk.open(images).source, tmp_path / "train.tar"
    first = True

    def stop_at_the_second_shard(samples: int, nbytes: int) -> None:
        nonlocal first
        summaries = list((tmp_path / ".train.tar.packing").glob("*.tar.json"))
        if summaries and first:
            first = False
            summaries[0].write_bytes(b"")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rk.pack(source, target, shards=2, progress=stop_at_the_second_shard)
    assert not first
    assert rk.pack(source, target, shards=2).samples == len(source)
