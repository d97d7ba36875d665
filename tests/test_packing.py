"""`rk.pack` interrupted, resumed or overwriting: no mix of two runs, no other source's work."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

import rekindle as rk
from one_inspector import one_inspector  # noqa: F401 - a fixture of all tests here
from packs import pack as pack_samples
from rekindle.core.atomic_file import AtomicFile, AtomicFolder
from rekindle.core.directory import Directory
from rekindle.fetch.source import Source
from rekindle.tools.cli import main
from rekindle.tools.pack_workspace import Workspace

COUNT = 6

pytestmark = pytest.mark.usefixtures("cache")


def samples(shade: int) -> list[bytes]:
    """Content of one length that differs from shade to shade."""
    return [b"\xff\xd8" + bytes([shade, number]) * 9 for number in range(COUNT)]


def folder(path: Path, shade: int) -> Source:
    """The samples as files of a folder, each a second newer than those of the shade before."""
    (path / "a").mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(samples(shade)):
        file = path / "a" / f"{number}.jpg"
        file.write_bytes(data)
        os.utime(file, (shade, shade))
    return rk.open(path).source


def packed(path: Path, shade: int) -> Source:
    file = pack_samples(path.with_suffix(".tar"), samples(shade))
    os.utime(file, (shade, shade))
    return rk.open(file).source


def remote(path: Path, shade: int) -> Source:
    content = {f"{path}/a/{number}.jpg": data for number, data in enumerate(samples(shade))}
    fsspec.filesystem("memory").pipe(content)
    return rk.open(f"memory:/{path}", remote=rk.RemoteOptions(cache_bytes=0)).source


def stored(path: Path) -> list[bytes]:
    return [bytes(data) for data, _ in rk.open(path, decode=False)]


def stop_after_the_first_shard(source: Source, target: Path, **settings: Any) -> Path:
    """Pack to two shards, interrupted in the second one; the working folder."""
    calls = 0

    def interrupt(*_: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rk.pack(source, target, shards=2, progress=interrupt, **settings)
    work = target.parent / f".{target.name}.packing"
    assert (work / f"{target.stem}-00000-of-00002{target.suffix}.json").exists()
    return work


def stop_before(name: Path, patch: pytest.MonkeyPatch) -> None:
    """Interrupt when a file gets this name."""
    replace = os.replace

    def guarded(made: str, target: str, **folders: int) -> None:
        into = Path(os.readlink(f"/proc/self/fd/{folders['dst_dir_fd']}"))
        if into / target == name.resolve():
            raise KeyboardInterrupt
        replace(made, target, **folders)

    patch.setattr(os, "replace", guarded)


def test_shards_of_two_packs_are_not_read_as_one(tmp_path: Path) -> None:
    source = folder(tmp_path / "train", 1)
    rk.pack(source, tmp_path / "x.tar", shards=3)
    rk.pack(source, tmp_path / "x.tar", shards=2, overwrite=True)
    two, three = (rf"{count} of {count} shards \S*x-\*-of-0000{count}\.tar" for count in (2, 3))
    with pytest.raises(rk.DataError, match=f"{two} and {three} exist.*Delete"):
        rk.open(tmp_path / "x-*.tar")
    assert stored(tmp_path / "x-*-of-00002.tar") == samples(1)
    rk.pack(source, tmp_path / "y.tar", shards=4)
    (tmp_path / "x-00000-of-00003.tar").unlink()
    with pytest.raises(rk.DataError, match="and 2 of 3 shards"):
        rk.open(tmp_path / "*.tar")


@pytest.mark.parametrize("ending", ["tar", "lmdb"])
def test_an_interrupted_overwrite_never_mixes_old_and_new_shards(tmp_path: Path, ending: str) -> None:
    target, pattern = tmp_path / f"x.{ending}", tmp_path / f"x-*.{ending}"
    rk.pack(folder(tmp_path / "old", 1), target, shards=3)
    new = folder(tmp_path / "new", 2)
    with pytest.MonkeyPatch.context() as patch:
        stop_before(tmp_path / f"x-00001-of-00003.{ending}", patch)
        with pytest.raises(KeyboardInterrupt):
            rk.pack(new, target, shards=3, overwrite=True)
    with pytest.raises(rk.DataError, match="1 of 3 shards"):
        rk.open(pattern)
    rk.pack(new, target, shards=3)
    assert stored(pattern) == samples(2)


def test_a_single_file_stays_until_the_new_one_takes_its_place(tmp_path: Path) -> None:
    target = tmp_path / "x.tar"
    rk.pack(folder(tmp_path / "old", 1), target)
    with pytest.MonkeyPatch.context() as patch:
        stop_before(target, patch)
        with pytest.raises(KeyboardInterrupt):
            rk.pack(folder(tmp_path / "new", 2), target, overwrite=True)
    assert stored(target) == samples(1)


@pytest.mark.parametrize("make", [folder, packed, remote])
def test_a_changed_source_is_packed_again(tmp_path: Path, make: Callable[[Path, int], Source]) -> None:
    """Even with unchanged names, labels and sizes."""
    target = tmp_path / "x.tar"
    stop_after_the_first_shard(make(tmp_path / "train", 1), target)
    rk.pack(make(tmp_path / "train", 2), target, shards=2)
    assert stored(tmp_path / "x-*.tar") == samples(2)


@pytest.mark.parametrize("make", [folder, packed])
def test_an_unchanged_source_is_resumed(
    tmp_path: Path, make: Callable[[Path, int], Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "x.tar"
    source = make(tmp_path / "train", 1)
    stop_after_the_first_shard(source, target)
    monkeypatch.setattr(Workspace, "restart", lambda *_: pytest.fail("it started from the beginning"))
    rk.pack(source, target, shards=2)
    assert stored(tmp_path / "x-*.tar") == samples(1)


def test_unfinished_files_of_a_killed_run_are_removed_by_the_next(tmp_path: Path) -> None:
    source, target = folder(tmp_path / "train", 1), tmp_path / "x.tar"
    work = stop_after_the_first_shard(source, target)
    half = AtomicFile(work / "x-00001-of-00002.tar")
    half.file.close()
    AtomicFolder(work / "x-00001-of-00002.lmdb")
    seen: list[set[str]] = []
    rk.pack(source, target, shards=2, progress=lambda *_: seen.append({path.name for path in work.iterdir()}))
    assert not [name for name in seen[0] if name.endswith(".part")]
    assert "x-00000-of-00002.tar" in seen[0]


def test_a_finished_shard_that_is_gone_is_written_again(tmp_path: Path) -> None:
    source, target = folder(tmp_path / "train", 1), tmp_path / "x.tar"
    work = stop_after_the_first_shard(source, target)
    (work / "x-00000-of-00002.tar").unlink()
    rk.pack(source, target, shards=2)
    assert stored(tmp_path / "x-*.tar") == samples(1)


def test_a_restart_removes_the_plan_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan beside a part of its work would be taken for all of it."""
    source, target = folder(tmp_path / "train", 1), tmp_path / "x.tar"
    work = stop_after_the_first_shard(source, target)
    remove, listed, gone = Directory.remove, Directory.names, []

    def recorded(directory: Directory, name: str) -> None:
        gone.append(directory.path / name)
        remove(directory, name)

    monkeypatch.setattr(Directory, "remove", recorded)
    monkeypatch.setattr(Directory, "names", lambda directory: listed(directory)[::-1])
    rk.pack(source, target, shards=3)
    assert gone[0] == work / "plan.json"
    assert len(gone) >= 3


# Labels.


@pytest.mark.parametrize("ending", ["tar", "h5", "tfrecord", "lmdb"])
def test_a_folder_is_packed_with_a_file_of_labels_or_with_none(tmp_path: Path, ending: str) -> None:
    source = tmp_path / "photos"
    source.mkdir()
    for number, data in enumerate(samples(1)):
        (source / f"{number}.jpg").write_bytes(data)
    labels = tmp_path / "labels.csv"
    labels.write_text("".join(f"{number}.jpg,{number % 2}\n" for number in range(COUNT)))
    for name, options, expected in (
        ("with", ["--labels", str(labels)], [0, 1] * (COUNT // 2)),
        ("without", [], [-1] * COUNT),
    ):
        target = tmp_path / f"{name}.{ending}"
        assert main(["pack", str(source), str(target), "--quiet", *options]) == 0
        read = rk.open(target).source
        assert [read.target(number) for number in range(COUNT)] == expected
        assert [bytes(read.copy(number)) for number in range(COUNT)] == samples(1)
    with pytest.raises(rk.DataError, match="no class folders and no labels"):
        rk.open(source)
