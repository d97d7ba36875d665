"""Local files that packed data is read from: any number of them, and only the content that was opened."""

from __future__ import annotations

import os
import pickle
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rekindle as rk
from one_inspector import one_inspector  # noqa: F401 - a fixture of all tests here
from packs import ENDINGS, pack
from rekindle.errors import FormatError
from rekindle.fetch import open_source
from rekindle.fetch.byte_files import LocalFile
from rekindle.fetch.open_source import local_files
from rekindle.fetch.packed.source import Packed
from rekindle.fetch.packed.tar.index import index_tar

SAMPLES = [b"\xff\xd8" + bytes([number]) * 9 for number in range(4)]


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[list[LocalFile]]:
    """More files than this process may have open at first."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(map(int, os.listdir("/proc/self/fd"))) + 10
    for number in range(most):
        (tmp_path / f"{number:04}").write_bytes(b"%04d" % number)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    yield [LocalFile(path) for path in sorted(tmp_path.iterdir())]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_more_shards_than_descriptors_are_read(shards: list[LocalFile]) -> None:
    assert [bytes(file.read(0, 4)) for file in shards] == [b"%04d" % number for number in range(len(shards))]
    assert [file.copy(0, 4) for file in shards] == [b"%04d" % number for number in range(len(shards))]


def test_shards_leave_descriptors_to_others(shards: list[LocalFile]) -> None:
    free = len(shards) - len(os.listdir("/proc/self/fd")) - 3
    first, last = shards[0].name, shards[free - 1].name
    opened = local_files(f"{first[:-4]}{{{first[-4:]}..{last[-4:]}}}")
    assert [bytes(file.read(0, 1)) for file in opened] == [b"0"] * free
    for one in [end for _ in range(10) for end in os.pipe()]:
        os.close(one)


def test_a_limit_on_open_files_that_cannot_be_raised_is_reported(
    shards: list[LocalFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(resource, "setrlimit", _refuse)
        with pytest.raises(rk.DataError, match=r"Too many open files.*may open \d+ files.*ulimit -n"):
            [file.read(0, 4) for file in shards]


def _refuse(*_: Any) -> None:
    raise ValueError("not allowed to raise maximum limit")


def _replace(path: Path, other: Path) -> None:
    """Replace a file by another of the same size that is a second younger."""
    if path.is_dir():
        path, other = path / "data.mdb", other / "data.mdb"
    before = path.stat()
    assert other.stat().st_size == before.st_size
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))
    os.replace(other, path)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.usefixtures("cache")
def test_a_file_that_was_replaced_is_not_read_by_the_index_of_the_one_before(
    tmp_path: Path, ending: str
) -> None:
    path = pack(tmp_path / f"a.{ending}", SAMPLES)
    source = open_source(path)
    sent = pickle.dumps(source)
    assert bytes(source.read(0)) == SAMPLES[0]
    _replace(path, pack(tmp_path / f"b.{ending}", SAMPLES[::-1]))
    assert bytes(source.read(1)) == SAMPLES[1], "who has it open reads it as it was"
    with pytest.raises(FormatError, match=r"changed since it was opened.*Open it again"):
        source.copy(1)
    with pytest.raises(FormatError, match=r"changed since it was opened.*Open it again"):
        pickle.loads(sent).read(1)
    assert bytes(open_source(path).read(0)) == SAMPLES[-1]


def test_a_file_that_changes_while_it_is_indexed_is_refused(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.tar", SAMPLES)

    def index(files: Any, settings: Any, report: Any, limits: Any) -> Any:
        made = index_tar(files, settings, report, limits)
        os.utime(path, ns=(1, 1))
        return made

    with pytest.raises(FormatError, match="changed since it was opened"):
        Packed(path, [LocalFile(path)], index)
    assert not list(tmp_path.glob("*.rkindex"))
