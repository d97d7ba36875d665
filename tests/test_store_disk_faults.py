"""Damaged files, full disks and killed processes cost the disk cache entries, never a wrong byte."""

import errno
import itertools
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import warnings

import pytest

from rekindle.reuse import Store
from rekindle.reuse.cache import disk_tier, segments
from stored import SIZE, check, files, fill, is_right, kill_writers, stores_on_disk, value_of


@pytest.fixture
def on_disk(tmp_path, monkeypatch):
    return stores_on_disk(tmp_path, monkeypatch)


def _damage(path, draw):
    content = bytearray(path.read_bytes())
    kind = draw.choice(["flip", "truncate", "delete", "zero", "swap", "grow"])
    if kind == "delete" or not content:
        path.unlink()
        return
    at = draw.randrange(len(content))
    if kind == "flip":
        content[at] ^= 1 << draw.randrange(8)
    elif kind == "truncate":
        del content[at:]
    elif kind == "zero":
        content[at : at + 4096] = bytes(len(content[at : at + 4096]))
    elif kind == "swap":
        content = content[at:] + content[:at]
    else:
        content += bytes(draw.randrange(256) for _ in range(100))
    with open(path, "r+b") as file:  # In place, as a failing disk would.
        file.write(content)
        file.truncate()


@pytest.mark.parametrize("seed", range(12))
def test_damage_to_any_file_while_open_or_between_runs_is_a_miss(on_disk, tmp_path, seed):
    draw = random.Random(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with on_disk() as store:
            fill(store)
            for path in draw.sample(files(tmp_path), 3):
                _damage(path, draw)
            assert 0 < check(store) < SIZE
            fill(store, 1, range(0, SIZE, 2))
        for path in sorted(tmp_path.glob("*/*")):
            if path.name != "lock" and draw.random() < 0.5:
                _damage(path, draw)
        with on_disk() as store:
            check(store, 0)
            check(store, 1)
            assert len(fill(store, 2)) == SIZE
            assert check(store, 2) == SIZE


def test_deleting_half_of_the_files_warns_once_and_costs_half_of_the_cache(on_disk, tmp_path):
    with on_disk() as store:
        fill(store)
        for path in files(tmp_path)[::2]:
            path.unlink()
        with pytest.warns(RuntimeWarning, match="computed again") as caught:
            found = check(store)
        assert len(caught) == 1
        assert 0.3 * SIZE < found < 0.7 * SIZE
        assert store.stats.errors == SIZE - found
        assert store.stats.entries == found
        assert len(fill(store)) == SIZE
        assert check(store) == SIZE


def test_deleting_the_whole_folder_is_a_miss_and_no_error(on_disk, tmp_path):
    with on_disk() as store:
        fill(store)
        for path in [*tmp_path.glob("*/*"), *tmp_path.glob("*")]:
            path.unlink() if path.is_file() else path.rmdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            store._disk._readers.clear()
            assert check(store) == 0
            fill(store, 1)
            check(store, 1)
            store.close()


def test_failing_reads_are_misses(on_disk, monkeypatch):
    with on_disk() as store:
        fill(store)
        turn = itertools.count()
        real = os.preadv

        def preadv(*arguments):
            if next(turn) % 2:
                raise OSError(errno.EIO, "Input/output error")
            return real(*arguments)

        monkeypatch.setattr(segments.os, "preadv", preadv)
        with pytest.warns(RuntimeWarning, match="Input/output error"):
            assert check(store) == SIZE // 2


def _fill_until_full(folder, most_bytes_of_a_file):
    disk_tier._RETRY_SECONDS = 0
    store = Store(200, memory=0, disk=folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes_of_a_file, resource.RLIM_INFINITY))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kept = [index for index in range(200) if store.put(index, 0, value_of(index, 0))]
        assert 20 < len(kept) < 190
        assert all(is_right(store.get(index, 0), index, 0) for index in kept)
        store.close()  # The snapshot may not fit either.
    assert len(caught) == 1
    assert "cannot be written to" in str(caught[0].message)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    store = Store(200, memory=0, disk=folder)
    assert all(is_right(store.get(index, 0), index, 0) for index in kept)
    assert store.stats.entries == len(kept)
    os._exit(77)


def _run_until_full(folder, most_bytes_of_a_file):
    """In a process of its own, whose limits may be changed."""
    process = multiprocessing.get_context("fork").Process(
        target=_fill_until_full, args=(folder, most_bytes_of_a_file)
    )
    process.start()
    process.join()
    assert process.exitcode == 77


def test_files_that_may_not_grow_are_less_cache_and_one_warning(tmp_path):
    _run_until_full(tmp_path, 100_000)


def test_a_full_disk_is_less_cache_and_one_warning(tmp_path):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", tmp_path], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting is not permitted; the limit of a file's size stands for it")
    try:
        _run_until_full(tmp_path, resource.RLIM_INFINITY)
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def _write_for_ever(store, seed, generation):
    draw = random.Random(seed)
    while True:
        index = draw.randrange(SIZE)
        yield store.put(index, generation, value_of(index, generation))
        store.get(draw.randrange(SIZE), generation)
        generation += 1


def _right_or_nothing(store):
    for name in ("stamp", "disk_stamp"):
        for index, held in enumerate((store._shared.arrays[name] >> 32) - 1):
            value = store.get(index, int(held))
            assert value is None or is_right(value, index, int(held))


@pytest.mark.parametrize("kills", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_killing_writers_at_any_moment_loses_at_most_their_last_record(on_disk, tmp_path, kills):
    draw = random.Random(kills)
    generation = 0
    for number in range(kills // 10):
        with on_disk(memory=30_000 * (number % 2), disk_limit=400_000) as store:
            for _ in range(10):
                kill_writers([_write_for_ever(store, draw.random(), generation) for _ in range(2)], draw)
                generation += 100_000
                _right_or_nothing(store)
                assert store.put(0, generation, value_of(0, generation))
                assert is_right(store.get(0, generation), 0, generation)
            assert store.stats.errors == 0
            assert store.stats.entries > 5


def test_segments_of_a_killed_worker_are_deleted_before_it_is_waited_for(on_disk, tmp_path):
    with on_disk() as store:
        worker = os.fork()
        if worker == 0:
            fill(store)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)  # Now it is a zombie.
        written = set(files(tmp_path))
        assert check(store) == SIZE
        fill(store, 1)
        store._disk.index.delete_dead()
        assert written
        assert not written & set(files(tmp_path))
        assert check(store, 1) == SIZE
        os.waitpid(worker, 0)


def _train_until_killed(tmp_path, seed):
    disk_tier._SEGMENT_BYTES = 20_000
    store = Store(SIZE, memory=0, disk=tmp_path, disk_limit=300_000)
    _right_or_nothing(store)
    yield from _write_for_ever(store, seed, 0)


@pytest.mark.parametrize("kills", [15, pytest.param(200, marks=pytest.mark.slow)])
def test_a_cache_whose_owner_was_killed_opens_with_all_complete_records(on_disk, tmp_path, kills):
    draw = random.Random(kills)
    for _ in range(kills):
        kill_writers([_train_until_killed(tmp_path, draw.random())], draw)
    assert len(list(tmp_path.glob("*/lock"))) == 1
    with on_disk(disk_limit=300_000) as store:
        assert store.stats.entries > 5
        _right_or_nothing(store)
        assert store.stats.errors == 0


def _churn(store, seed, wrong):
    draw = random.Random(seed)
    for step in range(1500):
        index, generation = draw.randrange(SIZE), step // 30 + draw.randrange(2)
        if draw.random() < 0.5:
            store.put(index, generation, value_of(index, generation))
        value = store.get(index, generation)
        if value is not None and not is_right(value, index, generation):
            wrong.value += 1


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_processes_that_write_and_read_the_same_samples_get_the_right_value_or_a_miss(on_disk, method):
    context = multiprocessing.get_context(method)
    wrong = context.Value("q")
    with on_disk(memory=20_000) as store:
        processes = [
            context.Process(target=_churn, args=(store, seed, wrong))
            for seed in range(2 if method == "fork" else 1)
        ]
        for process in processes:
            process.start()
        _churn(store, 2, wrong)
        for process in processes:
            process.join()
        assert {process.exitcode for process in processes} == {0}
        assert wrong.value == 0
        assert store.stats.errors == 0
        assert store.stats.hits > 500
        _right_or_nothing(store)
    with on_disk() as store:
        assert store.stats.entries > 0
        _right_or_nothing(store)
