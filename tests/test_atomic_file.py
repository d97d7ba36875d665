"""Files and folders appear complete or not at all, whatever happens to their writer."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import rekindle
from rekindle.core.atomic_file import AtomicFile, AtomicFolder, atomic_write, replace
from rekindle.core.directory import Directory
from rekindle.core.user_cache import user_cache, user_cache_path

ROOT = Path(rekindle.__file__).parent


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_has_its_name_only_once_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with atomic_write(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
        assert len(names(tmp_path)) == 2
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["a"]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none" / "report.html"
    message = f"no folder to write to, make it first: '{path.parent}'"
    with pytest.raises(FileNotFoundError, match=message):
        rekindle.DataLoader(range(4)).report().to_html(path)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match=message):
        rekindle.RedundantGroups(4, ()).save(path)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_while_writing_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def fail() -> None:
        with atomic_write(path) as file:
            file.write(b"new")
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_a_name_that_cannot_be_had_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "a" / "inside").mkdir(parents=True)
    with pytest.raises(OSError), atomic_write(tmp_path / "a") as file:  # noqa: PT011 - which one is the system's
        file.write(b"a file cannot take the place of a folder")
    assert names(tmp_path) == ["a"]
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "none" / "a"):
        pytest.fail("there is no such folder")


def test_an_aborted_file_or_folder_leaves_nothing_and_a_committed_one_stays(tmp_path: Path) -> None:
    for kind in (AtomicFile, AtomicFolder):
        kind(tmp_path / "aborted").abort()
        committed = kind(tmp_path / kind.__name__)
        assert committed.is_open
        committed.commit()
        committed.abort()
        assert not committed.is_open
    assert names(tmp_path) == ["AtomicFile", "AtomicFolder"]


def test_a_folder_takes_the_place_of_another(tmp_path: Path) -> None:
    for content in (b"old", b"new"):
        folder = AtomicFolder(tmp_path / "a", files=("old", "new"))
        (folder.part.path / content.decode()).write_bytes(content)
        folder.commit()
    assert names(tmp_path) == ["a"]
    assert names(tmp_path / "a") == ["new"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_link_to_a_folder_is_replaced_and_the_folder_kept(tmp_path: Path, kind: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    if kind == "file":
        (tmp_path / "new").write_bytes(b"new")
    else:
        (tmp_path / "new").mkdir()
    replace(Directory(tmp_path), "new", Directory(tmp_path), "link")
    assert not (tmp_path / "link").is_symlink()
    assert names(tmp_path) == ["data", "link"]
    assert names(tmp_path / "data") == ["x"]


def test_an_old_folder_gets_its_name_back_if_the_new_one_cannot_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_bytes(b"")
    move = os.replace

    def rename(source: str, target: str, **folders: int) -> None:
        move(source, target, **folders)
        if source == "old":
            move(tmp_path / "new", tmp_path / "elsewhere")

    monkeypatch.setattr(os, "replace", rename)
    with pytest.raises(FileNotFoundError):
        replace(Directory(tmp_path), "new", Directory(tmp_path), "old", ["old"])
    assert names(tmp_path) == ["elsewhere", "old"]
    assert names(tmp_path / "old") == ["old"]


def test_permissions_are_those_of_other_new_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "file"):
            pass
        AtomicFolder(tmp_path / "folder").commit()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o750


def test_a_killed_writer_leaves_the_old_file_and_a_part(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    program = (
        "import sys; from rekindle.core.atomic_file import AtomicFile\n"
        "file = AtomicFile(sys.argv[1]); file.file.write(b'new'); file.file.flush()\n"
        "print('written', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "a")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        process.send_signal(signal.SIGKILL)
    assert (tmp_path / "a").read_bytes() == b"old"
    (part,) = (name for name in names(tmp_path) if name != "a")
    assert part.startswith(".a.")
    assert part.endswith(".part")


def test_the_cache_folder_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache_path() == tmp_path / "rekindle"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_cache_path() == tmp_path / ".cache" / "rekindle"


def test_a_user_without_a_home_folder_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert user_cache("listings") is None


def test_only_one_module_finds_the_cache_folder() -> None:
    found = [path.name for path in ROOT.rglob("*.py") if 'get("XDG_CACHE_HOME")' in path.read_text()]
    assert found == ["user_cache.py"]
