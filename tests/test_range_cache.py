"""The cache of remote ranges: bounded, undamaged, shared; coalesced ranges; and retries."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.core.directory import MARKER, Directory, PrivateDirectory
from rekindle.errors import RemoteError
from rekindle.fetch.remote import range_cache
from rekindle.fetch.remote.object_store import RemoteObject, is_url
from rekindle.fetch.remote.range_cache import RangeCache, RangeCacheConfig, VersionSet
from rekindle.fetch.remote.range_reader import Range, coalesce
from rekindle.fetch.remote.redact import without_secrets
from rekindle.fetch.remote.retry import RetryPolicy, backoff, with_retries

OLD, NEW = "00000000000000aa", "00000000000000bb"


def cache(directory: Path, max_bytes: int = 1 << 20, name: str = "data", *current: str) -> RangeCache:
    private = PrivateDirectory(directory.name, Directory(directory.parent))
    return RangeCache(RangeCacheConfig(private, max_bytes, name, VersionSet(current or (NEW,))))


def on_disk(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file() and path.name != MARKER]


def test_what_is_put_is_seen_by_others(tmp_path: Path) -> None:
    cache(tmp_path).put(NEW, 7, b"some bytes")
    assert cache(tmp_path).get(NEW, 7, 10) == b"some bytes"
    assert cache(tmp_path).get(NEW, 7, 9) is None
    assert cache(tmp_path).get(OLD, 7, 10) is None


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "empty"])
def test_a_corrupt_entry_is_removed_and_not_returned(tmp_path: Path, damage: str) -> None:
    kept = cache(tmp_path)
    kept.put(NEW, 0, b"x" * 100)
    (path,) = files(tmp_path)
    content = path.read_bytes()
    damaged = {
        "flip": content[:50] + b"y" + content[51:],
        "cut": content[:50],
        "grow": content + b"x",
        "empty": b"",
    }
    path.write_bytes(damaged[damage])
    assert kept.get(NEW, 0, 100) is None
    assert not files(tmp_path)
    kept.put(NEW, 0, b"x" * 100)
    assert kept.get(NEW, 0, 100) == b"x" * 100


def _fill(directory: Path, number: int) -> None:
    mine = cache(directory, 1 << 20)
    for entry in range(400):
        mine.put(NEW, number * 1_000_000 + entry * 10_000, bytes([number]) * 9000)


def test_several_processes_stay_within_the_limit_and_use_most_of_it(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_fill, args=(tmp_path, number)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert 0.8 * (1 << 20) < on_disk(tmp_path) <= 1 << 20
    kept = cache(tmp_path)
    for path in files(tmp_path):
        _, offset, length = path.name.split("-")
        number = int(offset, 16) // 1_000_000
        assert kept.get(NEW, int(offset, 16), int(length, 16)) == bytes([number]) * 9000


def test_a_full_cache_keeps_what_it_has(tmp_path: Path) -> None:
    mine = cache(tmp_path, 1 << 18)
    for entry in range(200):
        mine.put(NEW, entry, b"z" * 4000)
    before = sorted(files(tmp_path))
    for entry in range(200, 300):
        mine.put(NEW, entry, b"z" * 4000)
    assert sorted(files(tmp_path)) == before
    assert mine.get(NEW, 0, 4000) == b"z" * 4000


def test_old_versions_and_then_the_oldest_dataset_are_evicted(tmp_path: Path) -> None:
    old = cache(tmp_path, 1 << 18, "data", OLD)
    for entry in range(200):
        old.put(OLD, entry, b"z" * 4000)
    new = cache(tmp_path, 1 << 18)
    new.put(NEW, 0, b"y" * 4000)
    assert new.get(NEW, 0, 4000) is not None
    assert new.get(OLD, 0, 4000) is None
    for entry in range(200):
        new.put(NEW, entry, b"y" * 4000)
    time.sleep(0.01)
    other = cache(tmp_path, 1 << 18, "another")
    other.put(NEW, 0, b"x" * 4000)
    assert other.get(NEW, 0, 4000) is not None
    assert on_disk(tmp_path) <= 1 << 18


def test_a_half_written_file_is_no_entry_and_goes_when_its_writer_is_gone(tmp_path: Path) -> None:
    mine = cache(tmp_path)
    mine.put(NEW, 0, b"whole")
    (path,) = files(tmp_path)
    half = path.with_name(f".{path.name}.0123abcd.part")
    half.write_bytes(b"ha")
    recent = list(range_cache._entries(Directory(tmp_path)))
    assert len(recent) == 1
    assert half.exists()
    os.utime(half, (1, 1))
    list(range_cache._entries(Directory(tmp_path)))
    assert not half.exists()


def test_a_cache_that_cannot_be_written_is_harmless(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    nowhere = cache(tmp_path / "file" / "below")
    nowhere.put(NEW, 0, b"x")
    assert nowhere.get(NEW, 0, 1) is None


OBJECTS = [RemoteObject(name, 10_000, f"{number:016x}") for number, name in enumerate("ab")]


@given(
    st.lists(st.tuples(st.sampled_from(OBJECTS), st.integers(0, 9000), st.integers(1, 1000))),
    st.integers(0, 500),
    st.integers(1, 3000),
)
def test_every_range_is_in_one_request_and_requests_are_bounded(
    wanted: list[tuple[RemoteObject, int, int]], gap: int, longest: int
) -> None:
    ranges = [Range(*one) for one in wanted]
    groups = coalesce(ranges, gap, longest)
    assert sorted(one for group in groups for one in group) == sorted(ranges)
    for group in groups:
        assert len({one.object for one in group}) == 1
        end = group[0].offset
        for one in group:
            assert one.offset - end <= gap
            end = max(end, one.offset + one.length)
        assert len(group) == 1 or end - group[0].offset <= longest


def test_backoff_doubles_differs_between_ranges_and_repeats() -> None:
    policy = RetryPolicy(initial_backoff=0.1, max_backoff=5)
    waits = [backoff(attempt, "a", policy) for attempt in range(1, 12)]
    for attempt, wait in enumerate(waits):
        whole = min(0.1 * 2**attempt, 5)
        assert whole / 2 <= wait <= whole
    assert waits == [backoff(attempt, "a", policy) for attempt in range(1, 12)]
    assert waits != [backoff(attempt, "b", policy) for attempt in range(1, 12)]


def test_a_temporary_error_is_retried_and_a_final_one_is_not() -> None:
    seen: list[float] = []

    def second_time_lucky(seconds: float) -> str:
        seen.append(seconds)
        if len(seen) == 1:
            raise ConnectionResetError("gone")
        return "here"

    assert with_retries(second_time_lucky, "reading", RetryPolicy(initial_backoff=0.001)) == "here"
    assert len(seen) == 2

    def never(_: float) -> None:
        seen.append(0)
        raise PermissionError("not yours")

    with pytest.raises(RemoteError, match=r"reading: 1 attempt .*not yours"):
        with_retries(never, "reading", RetryPolicy())
    assert len(seen) == 3


def test_missing_credentials_come_with_what_to_do() -> None:
    class NoCredentialsError(Exception):  # botocore's, by its name
        pass

    def anonymous(_: float) -> None:
        raise NoCredentialsError("Unable to locate credentials")

    with pytest.raises(RemoteError, match=r"Unable to locate credentials.* environment or a profile.*anon"):
        with_retries(anonymous, "reading", RetryPolicy())


def test_urls_are_distinguished_from_paths_and_shown_without_secrets() -> None:
    assert is_url("s3://bucket/x")
    assert is_url("simplecache::s3://bucket/x")
    assert not is_url("/data/train")
    assert not is_url("train-{000..127}.tar")
    assert without_secrets("ftp://me:secret@host/x?signature=1") == "ftp://host/x"
