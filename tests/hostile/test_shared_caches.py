"""Caches on a machine with other users: what they plant is neither followed nor believed."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from other_users import ALICE, MALLORY, acting_as, contents, modes, needs_users, umask

import rekindle as rk
from packs import CLASSES, jpegs, pack
from rekindle.core import user_cache
from rekindle.core.directory import Directory, NotPrivateError, PrivateDirectory
from rekindle.fetch import listing, open_source
from rekindle.fetch.remote.range_cache import RangeCache, RangeCacheConfig, VersionSet
from rekindle.reuse.cache.store import Store

pytestmark = pytest.mark.usefixtures("cache")

# The disk cache.


def fill(disk: Path, fingerprint: str = "f") -> Path:
    """The directory of a store that holds sample 0."""
    with Store(10, memory=0, disk=disk, fingerprint=fingerprint) as store:
        assert store.put(0, 0, np.frombuffer(b"private" * 20, np.uint8))
        assert store._directory is not None
        return store._directory.directory.path


def test_a_planted_directory_is_passed_over_and_its_links_are_not_followed(shared: Path, home: Path) -> None:
    before = contents(home)
    planted = fill(shared)
    (planted / "about.json").unlink()
    (planted / "about.json").symlink_to(home / "notes")
    (planted / "lock").unlink()
    (planted / "lock").symlink_to(home / "new")
    planted.chmod(0o777)
    with Store(10, memory=0, disk=shared, fingerprint="f") as store:
        assert store.get(0, 0) is None
        assert store.put(0, 0, np.zeros(3))
    assert contents(home) == before


def test_links_in_the_users_own_directory_are_not_followed(shared: Path, home: Path) -> None:
    before = contents(home)
    directory = fill(shared)
    for name in ("about.json", "index.snapshot"):
        (directory / name).unlink()
        (directory / name).symlink_to(home / "notes")
    fill(shared)
    assert contents(home) == before


def test_only_the_users_own_caches_make_room(shared: Path, home: Path) -> None:
    (home / "lock").touch()
    kept = ["my-project", "rekindle-" + "0" * 24 + "-0", "0" * 24 + "-0"]
    for name in kept:
        shutil.copytree(home, shared / name)
    (shared / ("rekindle-" + "1" * 24 + "-0")).symlink_to(home)
    old = fill(shared, "old")
    with Store(10, memory=0, disk=shared, fingerprint="new", disk_limit=100):
        assert not old.exists()
    for name in kept:
        assert contents(shared / name) == contents(home)
    assert (home / "notes").exists()


def test_a_cache_is_private_whatever_the_umask(shared: Path) -> None:
    with umask(0):
        directory = fill(shared)
    assert modes(directory) == {0o700, 0o600}
    directory.chmod(0o755)
    assert fill(shared) == directory
    assert modes(directory) == {0o700, 0o600}


@needs_users
def test_users_who_share_a_folder_neither_see_nor_block_each_other(shared: Path) -> None:
    with acting_as(MALLORY):
        hers = fill(shared)
        held = Store(10, memory=0, disk=shared, fingerprint="f")
        for number in range(2, 30):  # The next names as well.
            (shared / f"{hers.name[:-1]}{number}").mkdir()
    with acting_as(ALICE):
        with Store(10, memory=0, disk=shared, fingerprint="f") as store:
            assert store.get(0, 0) is None
            assert store.put(0, 0, np.zeros(3))
        with Store(10, memory=0, disk=shared, fingerprint="f", disk_limit=0) as store:
            assert np.array_equal(store.get(0, 0), np.zeros(3))
        with pytest.raises(PermissionError):
            list(hers.iterdir())
    assert hers.exists()
    held.close()


@needs_users
def test_entries_that_somebody_else_planted_are_not_used(shared: Path) -> None:
    with acting_as(MALLORY):
        planted = fill(shared)
    for path in [planted, *planted.iterdir()]:
        path.chmod(0o777)  # As open as it could be.
    with acting_as(ALICE), Store(10, memory=0, disk=shared, fingerprint="f") as store:
        assert store.get(0, 0) is None


# The user's cache folder.


def _unsafe(kind: str, path: Path, elsewhere: Path) -> None:
    if kind == "link":
        elsewhere.mkdir(mode=0o700)
        path.symlink_to(elsewhere)
    elif kind == "file":
        path.write_bytes(b"")
    elif kind == "foreign":
        path.mkdir(mode=0o700)
        os.chown(path, MALLORY, MALLORY)
    else:
        path.mkdir()
        path.chmod(0o777)


UNSAFE = ["link", "file", "open", pytest.param("foreign", marks=needs_users)]


@pytest.mark.parametrize("kind", UNSAFE)
def test_an_unsafe_cache_folder_is_not_used_with_one_warning(kind: str, cache: Path, tmp_path: Path) -> None:
    _unsafe(kind, cache / "rekindle", tmp_path / "elsewhere")
    path = pack(tmp_path / "a.tar", jpegs(3), CLASSES)
    (tmp_path / "a.tar.rkindex").mkdir()  # So that the index would go to the cache folder.
    with pytest.warns(
        RuntimeWarning, match=r"the cache folder '.*' is not used: .*set XDG_CACHE_HOME"
    ) as seen:
        found = [open_source(path).targets for _ in range(2)]
    assert found == [[0, 1, 2]] * 2
    assert len(seen) == 1
    zipped = tmp_path / "a.tar.gz"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(rk.DataError, match=r"cannot unpack .*Unpack it, or set XDG_CACHE_HOME"):
        open_source(zipped)
    assert not list(tmp_path.glob("elsewhere/*"))


def test_what_is_in_the_cache_folder_is_private_whatever_the_umask(
    cache: Path, tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_CACHE_FROM", 1)
    monkeypatch.setattr(listing, "_SETTLED", -(10**12))
    path = pack(tmp_path / "a.tar", jpegs(3), CLASSES)
    (tmp_path / "a.tar.rkindex").mkdir()
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(path.read_bytes()))
    with umask(0):
        for source in (path, tmp_path / "a.tar.gz", images):
            open_source(source)
        ranges(user_cache.user_cache("ranges")).put("00" * 8, 0, b"some bytes")
    made = cache / "rekindle"
    assert {one.name for one in made.iterdir() if one.is_dir()} == {
        "indexes",
        "listings",
        "unzipped",
        "ranges",
    }
    assert modes(made) == {0o700, 0o600}


def ranges(directory: PrivateDirectory | None, max_bytes: int = 1 << 20, name: str = "data") -> RangeCache:
    assert directory is not None
    return RangeCache(RangeCacheConfig(directory, max_bytes, name, VersionSet(["00" * 8])))


@pytest.mark.parametrize("kind", UNSAFE)
def test_an_unsafe_folder_for_ranges_is_refused(kind: str, tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/shared-machine/a.tar", pack(tmp_path / "a.tar", jpegs(3), CLASSES).read_bytes())
    (tmp_path / "given").mkdir()
    _unsafe(kind, tmp_path / "given" / "ranges", tmp_path / "elsewhere")
    options = rk.RemoteOptions(cache_directory=tmp_path / "given")
    with pytest.raises(rk.ArgumentError, match=r"cache_directory=.*Give a folder of your own"):
        rk.open("memory://shared-machine/a.tar", remote=options)


@needs_users
def test_ranges_that_somebody_else_planted_are_not_served(shared: Path) -> None:
    with acting_as(MALLORY):
        ranges(PrivateDirectory("ranges", Directory(shared))).put("00" * 8, 0, b"planted")
    for path in shared.rglob("*"):
        path.chmod(0o777)
    with acting_as(ALICE):
        mine = ranges(PrivateDirectory("ranges", Directory(shared)))
        assert mine.get("00" * 8, 0, 7) is None


def test_a_full_cache_of_ranges_deletes_nothing_but_ranges(tmp_path: Path, home: Path) -> None:
    before = contents(home)
    parent = PrivateDirectory("ranges", Directory(tmp_path)).make()
    for name in ("0" * 32, "photos"):
        shutil.copytree(home, parent.path / name)
        os.utime(parent.path / name, (1, 1))
    old = ranges(parent, 200_000, "old")
    old.put("00" * 8, 0, bytes(4000))
    assert old.get("00" * 8, 0, 4000) is not None
    os.utime(old._folder.descriptor, (2, 2))
    new = ranges(parent, 100_000, "new")
    for number in range(40):
        new.put("00" * 8, number * 4000, bytes(4000))
    assert old.get("00" * 8, 0, 4000) is None
    for name in ("0" * 32, "photos"):
        assert contents(parent.path / name) == before


def test_everybody_who_can_swap_the_cache_folder_makes_it_unsafe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rekindle").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tmp_path.chmod(0o777)
    with pytest.raises(NotPrivateError, match="can swap it"):
        user_cache.user_cache("indexes")
    tmp_path.chmod(0o1777)
    assert user_cache.user_cache("indexes") is not None
