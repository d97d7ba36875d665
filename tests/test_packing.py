"""Packs that are interrupted, started again, or written over: no mixture, no other source's work."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

import rekindle as rk
from packs import pack as pack_samples
from rekindle import packing
from rekindle.fetch.atomic import AtomicFile, AtomicFolder
from rekindle.fetch.source import Source

COUNT = 6


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def samples(shade: int) -> list[bytes]:
    """Some content, all of one length, that is another for each shade."""
    return [b"\xff\xd8" + bytes([shade, number]) * 9 for number in range(COUNT)]


def folder(path: Path, shade: int) -> Source:
    """The samples as files of a folder, each a second younger than those of the shade before."""
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
    """Pack to two shards, and be interrupted in the second; the working folder."""
    calls = 0

    def told(*_: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        packing.pack(source, target, shards=2, told=told, **settings)
    work = target.parent / f".{target.name}.packing"
    assert (work / f"{target.stem}-00000-of-00002{target.suffix}.json").exists()
    return work


def stop_before(name: Path, patch: pytest.MonkeyPatch) -> None:
    """Interrupt whoever gives a file this name."""
    replace = os.replace

    def guarded(made: Path, target: Path) -> None:
        if Path(target) == name:
            raise KeyboardInterrupt
        replace(made, target)

    patch.setattr(os, "replace", guarded)


def test_shards_of_two_packs_are_not_read_as_one(tmp_path: Path) -> None:
    source = folder(tmp_path / "train", 1)
    packing.pack(source, tmp_path / "x.tar", shards=3)
    packing.pack(source, tmp_path / "x.tar", shards=2, overwrite=True)
    two, three = (rf"{count} of {count} shards \S*x-\*-of-0000{count}\.tar" for count in (2, 3))
    with pytest.raises(rk.DataError, match=f"{two} and {three} are there.*Delete"):
        rk.open(tmp_path / "x-*.tar")
    assert stored(tmp_path / "x-*-of-00002.tar") == samples(1)
    packing.pack(source, tmp_path / "y.tar", shards=4)
    (tmp_path / "x-00000-of-00003.tar").unlink()
    with pytest.raises(rk.DataError, match="and 2 of 3 shards"):
        rk.open(tmp_path / "*.tar")


@pytest.mark.parametrize("ending", ["tar", "lmdb"])
def test_an_interrupted_overwrite_is_no_mixture_of_old_and_new(tmp_path: Path, ending: str) -> None:
    target, pattern = tmp_path / f"x.{ending}", tmp_path / f"x-*.{ending}"
    packing.pack(folder(tmp_path / "old", 1), target, shards=3)
    new = folder(tmp_path / "new", 2)
    with pytest.MonkeyPatch.context() as patch:
        stop_before(tmp_path / f"x-00001-of-00003.{ending}", patch)
        with pytest.raises(KeyboardInterrupt):
            packing.pack(new, target, shards=3, overwrite=True)
    with pytest.raises(rk.DataError, match="1 of 3 shards"):
        rk.open(pattern)
    packing.pack(new, target, shards=3)
    assert stored(pattern) == samples(2)


def test_a_single_file_stays_until_the_new_one_takes_its_place(tmp_path: Path) -> None:
    target = tmp_path / "x.tar"
    packing.pack(folder(tmp_path / "old", 1), target)
    with pytest.MonkeyPatch.context() as patch:
        stop_before(target, patch)
        with pytest.raises(KeyboardInterrupt):
            packing.pack(folder(tmp_path / "new", 2), target, overwrite=True)
    assert stored(target) == samples(1)


@pytest.mark.parametrize("make", [folder, packed, remote])
def test_a_source_that_has_changed_is_packed_anew(
    tmp_path: Path, make: Callable[[Path, int], Source]
) -> None:
    """With the names, labels and sizes of before."""
    target = tmp_path / "x.tar"
    stop_after_the_first_shard(make(tmp_path / "train", 1), target)
    packing.pack(make(tmp_path / "train", 2), target, shards=2)
    assert stored(tmp_path / "x-*.tar") == samples(2)


@pytest.mark.parametrize("make", [folder, packed])
def test_a_source_that_is_only_opened_again_is_not(
    tmp_path: Path, make: Callable[[Path, int], Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "x.tar"
    stop_after_the_first_shard(make(tmp_path / "train", 1), target)
    monkeypatch.setattr(packing, "_begin_anew", lambda *_: pytest.fail("all was done again"))
    packing.pack(make(tmp_path / "train", 1), target, shards=2)
    assert stored(tmp_path / "x-*.tar") == samples(1)


def test_what_a_killed_run_was_writing_goes_when_the_next_one_begins(tmp_path: Path) -> None:
    source, target = folder(tmp_path / "train", 1), tmp_path / "x.tar"
    work = stop_after_the_first_shard(source, target)
    half = AtomicFile(work / "x-00001-of-00002.tar")
    half.file.close()
    AtomicFolder(work / "x-00001-of-00002.lmdb")
    seen: list[set[str]] = []
    packing.pack(
        source, target, shards=2, told=lambda *_: seen.append({path.name for path in work.iterdir()})
    )
    assert not [name for name in seen[0] if name.endswith(".part")]
    assert "x-00000-of-00002.tar" in seen[0]


def test_a_finished_shard_that_is_gone_is_made_again(tmp_path: Path) -> None:
    source, target = folder(tmp_path / "train", 1), tmp_path / "x.tar"
    work = stop_after_the_first_shard(source, target)
    (work / "x-00000-of-00002.tar").unlink()
    packing.pack(source, target, shards=2)
    assert stored(tmp_path / "x-*.tar") == samples(1)


def test_the_plan_is_the_first_to_go_when_a_run_starts_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier run's plan beside a part of its work would be taken for all of it."""
    source, target = folder(tmp_path / "train", 1), tmp_path / "x.tar"
    work = stop_after_the_first_shard(source, target)
    unlink, listed, gone = Path.unlink, Path.iterdir, []

    def noted(path: Path, missing_ok: bool = False) -> None:
        gone.append(path)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", noted)
    monkeypatch.setattr(Path, "iterdir", lambda path: sorted(listed(path), reverse=True))
    packing.pack(source, target, shards=3)
    assert gone[0] == work / "plan.json"
    assert len(gone) >= 3
