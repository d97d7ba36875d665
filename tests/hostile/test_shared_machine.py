"""Other users of the machine: what they plant is not followed, believed or deleted, and they read nothing."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import rekindle as rk
from packs import CLASSES, jpegs, pack
from rekindle.core import user_cache
from rekindle.core.atomic_file import atomic_write
from rekindle.core.compiled_code import check_compiled_code
from rekindle.core.directory import Directory, NotPrivateError, PrivateDirectory
from rekindle.fetch import listing, open_source
from rekindle.fetch.packed import index_file
from rekindle.fetch.packed.record_index import RecordIndex
from rekindle.fetch.remote.range_cache import RangeCache, RangeCacheConfig, VersionSet
from rekindle.reuse.cache.store import Store

ALICE, MALLORY = 65534, 65533
needs_users = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setattr(user_cache, "_warned", set())
    return folder


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that everybody can write to, as /tmp."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder of the user's, with files that must not change."""
    folder = tmp_path / "home"
    (folder / "thesis").mkdir(parents=True)
    for name in ("thesis/thesis.tex", "notes", "plan.json", "train.tar"):
        (folder / name).write_text(f"precious {name}")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def acting_as(user: int) -> Iterator[None]:
    """What this process does is done with the rights of another user."""
    groups, mask = os.getgroups(), os.umask(0o022)
    os.setgroups([])
    os.setegid(user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)
        os.umask(mask)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> set[int]:
    """The permissions of a folder and of all that is in it."""
    return {stat.S_IMODE(path.lstat().st_mode) for path in [folder, *folder.rglob("*")]}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for number in range(6):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), (number, 0, 0)).save(path)
    return tmp_path / "images"


# `rekindle pack`.


def test_a_link_in_place_of_the_working_folder_is_not_followed(
    images: Path, tmp_path: Path, home: Path
) -> None:
    before = contents(home)
    (tmp_path / ".train.tar.packing").symlink_to(home)
    with pytest.raises(rk.ArgumentError, match=r"\.train\.tar\.packing.*it is a link.*Remove that"):
        rk.pack(images, tmp_path / "train.tar")
    assert contents(home) == before


def test_a_link_in_place_of_the_lock_is_not_followed(images: Path, tmp_path: Path, home: Path) -> None:
    before = contents(home)
    work = PrivateDirectory(".train.tar.packing", Directory(tmp_path)).make()
    (work.path / "lock").symlink_to(home / "notes")
    with pytest.raises(rk.DataError, match="cannot write"):
        rk.pack(images, tmp_path / "train.tar")
    assert contents(home) == before


def test_a_folder_that_pack_did_not_make_is_neither_used_nor_emptied(
    images: Path, tmp_path: Path, home: Path
) -> None:
    before = contents(home)
    home.rename(tmp_path / ".train.tar.packing")
    with pytest.raises(rk.ArgumentError, match="not made by rekindle pack"):
        rk.pack(images, tmp_path / "train.tar")
    assert contents(tmp_path / ".train.tar.packing") == before


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_working_folder_that_others_can_write_to_is_refused(
    images: Path, tmp_path: Path, mode: int
) -> None:
    work = PrivateDirectory(".train.tar.packing", Directory(tmp_path)).make()
    if os.geteuid() == 0:
        os.chown(work.path, -1, MALLORY)
    elif mode == 0o770:
        pytest.skip("the user's group may have no other member")
    work.path.chmod(mode)
    with pytest.raises(rk.ArgumentError, match="others can write to it"):
        rk.pack(images, tmp_path / "train.tar")


def test_a_working_folder_that_is_swapped_while_packing_endangers_nothing(
    images: Path, tmp_path: Path, home: Path
) -> None:
    before = contents(home)
    work = tmp_path / ".train.tar.packing"

    def swap(*_: int) -> None:
        if not work.is_symlink():
            work.rename(tmp_path / "moved")
            work.symlink_to(home)

    with pytest.raises(rk.DataError, match="it is a link"):  # The folder under that name is not deleted.
        rk.pack(images, tmp_path / "train.tar", progress=swap)
    assert contents(home) == before
    assert len(rk.open(tmp_path / "train.tar")) == 6


def test_packed_files_have_the_permissions_that_the_umask_gives_and_work_is_private(
    images: Path, tmp_path: Path
) -> None:
    seen: set[int] = set()
    for ending, mask, mode in (("tar", 0o077, 0o600), ("h5", 0o022, 0o644), ("lmdb", 0o077, 0o600)):
        target = tmp_path / f"x.{ending}"
        work = tmp_path / f".x.{ending}.packing"
        with umask(mask):
            rk.pack(
                images, target, progress=lambda *_, work=work: seen.add(stat.S_IMODE(work.stat().st_mode))
            )
        data = target / "data.mdb" if target.is_dir() else target
        assert stat.S_IMODE(data.stat().st_mode) == mode
    assert seen == {0o700}
    assert stat.S_IMODE((tmp_path / "x.lmdb").stat().st_mode) == 0o700


def test_a_folder_that_holds_more_than_lmdb_files_is_not_replaced(
    images: Path, tmp_path: Path, home: Path
) -> None:
    before = contents(home)
    home.rename(tmp_path / "x.lmdb")
    with pytest.raises(rk.ArgumentError, match=r"'notes', which is not LMDB's"):
        rk.pack(images, tmp_path / "x.lmdb", overwrite=True)
    assert contents(tmp_path / "x.lmdb") == before


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


# The index beside the data.


def reversed_labels(path: Path) -> Path:
    """The index of a packed file, with other labels."""
    source = open_source(path)
    (location, *_) = index_file.index_paths(source.files, {})
    rows = source.index.rows.copy()
    rows["label"] = 2 - rows["label"]
    index = RecordIndex("tar", rows, source.index.decodings, names=source.index.names, classes=CLASSES)
    assert index_file.write_index(location, index, source.files)
    assert open_source(path).targets == [2, 1, 0]
    return location.path


@needs_users
def test_an_index_that_somebody_else_wrote_is_not_believed(tmp_path: Path, cache: Path) -> None:
    path = pack(tmp_path / "a.tar", jpegs(3), CLASSES)
    planted = reversed_labels(path)
    os.chown(planted, MALLORY, MALLORY)
    content = planted.read_bytes()
    with pytest.warns(
        RuntimeWarning, match=r"a\.tar\.rkindex' is not used: .*user 65533.*Delete the index"
    ) as seen:
        assert open_source(path).targets == [0, 1, 2]
    assert len(seen) == 1
    assert planted.read_bytes() == content
    (kept,) = cache.rglob("*.rkindex")
    assert kept.parent == cache / "rekindle" / "indexes"


@needs_users
def test_an_index_of_the_datas_owner_or_of_root_is_believed(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared / "none"))
    path = pack(shared / "a.tar", jpegs(3), CLASSES)
    index = reversed_labels(path)
    for data, owner in ((MALLORY, MALLORY), (MALLORY, 0), (ALICE, ALICE)):
        os.chown(path, data, data)
        os.chown(index, owner, owner)
        with acting_as(ALICE):
            assert open_source(path).targets == [2, 1, 0]
    os.chown(path, 0, 0)
    os.chown(index, MALLORY, MALLORY)
    with acting_as(ALICE), pytest.warns(RuntimeWarning, match="is not used"):
        assert open_source(path).targets == [0, 1, 2]


def test_an_index_that_others_can_write_to_is_built_again(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.tar", jpegs(3), CLASSES)
    planted = reversed_labels(path)
    planted.chmod(0o666)
    assert open_source(path).targets == [0, 1, 2]
    assert stat.S_IMODE(planted.stat().st_mode) & 0o022 == 0


def test_a_link_to_an_index_is_not_followed(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.tar", jpegs(3), CLASSES)
    planted = reversed_labels(path)
    planted.rename(tmp_path / "elsewhere")
    planted.symlink_to(tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere").read_bytes()
    assert open_source(path).targets == [0, 1, 2]
    assert (tmp_path / "elsewhere").read_bytes() == before


def test_an_index_made_with_other_settings_is_not_used_under_this_name(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.h5", jpegs(3), CLASSES)
    assert open_source(path).targets == [0, 1, 2]
    default = tmp_path / "a.h5.rkindex"
    default.unlink()
    assert open_source(path, options={"images": "images"}).targets == [0, 1, 2]
    (other,) = tmp_path.glob("*.rkindex")
    assert other != default
    other.rename(default)
    before = default.stat().st_ino
    open_source(path)
    assert default.stat().st_ino != before


@pytest.mark.parametrize(("data", "index"), [(0o600, 0o600), (0o644, 0o644), (0o666, 0o644)])
def test_an_index_can_be_read_by_those_who_can_read_the_data(tmp_path: Path, data: int, index: int) -> None:
    path = pack(tmp_path / "a.tar", jpegs(3), CLASSES)
    path.chmod(data)
    with umask(0):
        open_source(path)
    assert stat.S_IMODE((tmp_path / "a.tar.rkindex").stat().st_mode) == index


def _survives(action: Callable[[], None]) -> bool:
    process = multiprocessing.get_context("fork").Process(target=action)
    process.start()
    process.join()
    return process.exitcode == 0


def test_an_index_that_is_truncated_while_it_is_used_ends_nothing(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.tar", jpegs(3), CLASSES)
    open_source(path)

    def truncate() -> None:
        source = open_source(path)
        os.truncate(tmp_path / "a.tar.rkindex", 0)
        assert source.targets == [0, 1, 2]
        assert bytes(source.read(1)) == jpegs(3)[1]

    assert _survives(truncate)


# Compiled code, and what users ask for.


def test_compiled_code_is_not_loaded_from_a_folder_that_others_can_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "compiled"))
    check_compiled_code()
    (tmp_path / "compiled").mkdir()
    check_compiled_code()
    (tmp_path / "compiled").chmod(0o1777)
    with pytest.raises(rk.ArgumentError, match=r"NUMBA_CACHE_DIR is .*mode 1777.*folder of your own"):
        check_compiled_code()
    if os.geteuid() == 0:
        (tmp_path / "compiled").chmod(0o755)
        os.chown(tmp_path / "compiled", MALLORY, MALLORY)
        with pytest.raises(rk.ArgumentError, match="belongs to the user 65533"):
            check_compiled_code()


def test_a_report_replaces_a_link_and_does_not_follow_it(tmp_path: Path, home: Path) -> None:
    before = contents(home)
    (tmp_path / "report.html").symlink_to(home / "notes")
    with rk.DataLoader([1, 2, 3]) as loader:
        assert len(list(loader)) == 3
        loader.report().to_html(tmp_path / "report.html")
    assert contents(home) == before
    assert "<html" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("kind", ["pipe", "link to a device"])
def test_a_file_never_takes_the_place_of_a_device(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/null")
    before = path.lstat().st_ino
    with pytest.raises(OSError, match="not a regular file"), atomic_write(path):
        pytest.fail("it was opened")
    assert path.lstat().st_ino == before
    assert os.listdir(tmp_path) == ["a"]


def test_no_pipe_is_waited_for_where_a_file_should_be(tmp_path: Path) -> None:
    directory = PrivateDirectory("private", Directory(tmp_path)).make()
    os.mkfifo(directory.path / "about.json")
    with pytest.raises(OSError, match="not a regular file"):
        directory.open("about.json")
    assert json.dumps(directory.names()) == '[".rekindle", "about.json"]'
