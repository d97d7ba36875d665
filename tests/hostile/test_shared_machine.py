"""Other users of the machine: what they plant is not followed, believed or deleted, and they read nothing."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from other_users import ALICE, MALLORY, acting_as, contents, needs_users, umask

import rekindle as rk
from packs import CLASSES, jpegs, pack
from rekindle.core.atomic_file import atomic_write
from rekindle.core.compiled_code import check_compiled_code
from rekindle.core.directory import Directory, PrivateDirectory
from rekindle.fetch import open_source
from rekindle.fetch.packed import index_file
from rekindle.fetch.packed.record_index import RecordIndex

pytestmark = pytest.mark.usefixtures("cache")

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
