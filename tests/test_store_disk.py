"""A cache on disk survives its processes, and no damage to it ever becomes a wrong byte."""

import json

import numpy as np
import pytest

from rekindle import ArgumentError
from rekindle.reuse import Store
from stored import SIZE, check, files, fill, is_right, stores_on_disk, value_of


@pytest.fixture
def on_disk(tmp_path, monkeypatch):
    return stores_on_disk(tmp_path, monkeypatch)


def test_what_is_put_on_disk_is_found_by_this_run_and_the_next(on_disk, tmp_path):
    with on_disk(fingerprint="a") as store:
        assert len(fill(store)) == SIZE
        assert check(store) == SIZE
        assert store.holds(range(SIZE), 0).all()
        assert len(files(tmp_path)) > 3
    with on_disk(fingerprint="a") as store:
        assert store.stats.entries == SIZE
        assert check(store) == SIZE


@pytest.mark.parametrize("other", [{"fingerprint": "b"}, {"fingerprint": "a", "codec": "lz4"}])
def test_another_fingerprint_or_codec_starts_empty(on_disk, other):
    with on_disk(fingerprint="a") as store:
        fill(store)
    with on_disk(**other) as store:
        assert check(store) == 0
    with on_disk(fingerprint="a") as store:
        assert check(store) == SIZE


@pytest.mark.parametrize("codec", ["raw", "lz4", "zstd", "jpeg"])
def test_every_codec_works_on_disk(on_disk, codec):
    image = np.full((16, 16, 3), 7, np.uint8)
    with on_disk(codec=codec) as store:
        first = store.keep(3, 0, {"image": image, "label": 9})
        assert np.array_equal(store.get(3, 0)["image"], first["image"])
    with on_disk(codec=codec) as store:
        found = store.get(3, 0)
        assert np.array_equal(found["image"], first["image"])
        assert found["label"] == 9
        found["image"][:] = 0  # Its own memory, and writable.


def test_values_go_to_memory_first_and_then_to_disk(on_disk, tmp_path):
    with on_disk(memory=40_000) as store:
        assert len(fill(store)) == SIZE
        in_memory, on_its_disk = store._memory.entries, store._disk.index.entries
        assert in_memory > 5
        assert on_its_disk == SIZE - in_memory
        assert check(store) == SIZE
        for generation in range(1, 6):
            assert len(fill(store, generation)) == SIZE
            assert check(store, generation) == SIZE
            assert check(store, generation - 1) == 0
            assert store.stats.entries == SIZE


def test_an_older_generation_never_replaces_a_newer_one_on_disk(on_disk):
    with on_disk() as store:
        assert store.put(1, 3, value_of(1, 3))
        assert not store.put(1, 2, value_of(1, 2))
        assert is_right(store.get(1, 3), 1, 3)


def test_drop_removes_older_generations_from_disk(on_disk, tmp_path):
    with on_disk() as store:
        fill(store)
        store.drop(np.arange(SIZE), before=1)
        assert check(store) == 0
    assert not files(tmp_path)


def test_a_new_run_may_start_again_at_generation_0(on_disk):
    with on_disk() as store:
        fill(store, 9)
    with on_disk() as store:
        assert check(store, 9) == SIZE
        assert len(fill(store, 0, range(10))) == 10
        assert store.holds(range(10), 0).all()
    with on_disk() as store:  # The newest run counts, not the highest generation.
        assert store.holds(range(10), 0).all()
        assert store.holds(range(10, SIZE), 9).all()
        assert store.stats.entries == SIZE


def test_segments_without_a_live_record_are_deleted(on_disk, tmp_path):
    with on_disk() as store:
        for generation in range(8):
            assert len(fill(store, generation)) == SIZE
        live = sum(value_of(index, 7).nbytes for index in range(SIZE))
        assert sum(path.stat().st_size for path in files(tmp_path)) < 2 * live + 3 * 20_000
        assert check(store, 7) == SIZE


def test_a_limit_in_bytes_is_kept(on_disk, tmp_path):
    with on_disk(disk_limit=60_000) as store:
        for generation in range(4):
            fill(store, generation)
            assert sum(path.stat().st_size for path in files(tmp_path)) <= 60_000
            assert check(store, generation) > 5
        assert store.stats.capacity == 60_000
        assert store.stats.refused > 0


def test_near_the_limit_live_records_move_out_of_segments_that_are_mostly_dead(on_disk, tmp_path):
    with on_disk(disk_limit=300_000) as store:
        fill(store)  # 130 kB, of which every tenth record stays.
        for generation in range(1, 30):
            kept = fill(store, generation, [index for index in range(SIZE) if index % 10])
            assert len(kept) == SIZE * 9 // 10
            assert sum(path.stat().st_size for path in files(tmp_path)) <= 300_000
        assert check(store, 29) == SIZE * 9 // 10
        assert check(store, 0) == SIZE // 10
        assert store.stats.refused == store.stats.errors == 0


def test_caches_of_other_fingerprints_make_room(on_disk, tmp_path):
    for name in "ab":
        with on_disk(fingerprint=name) as store:
            fill(store)
    with on_disk(fingerprint="b") as used, on_disk(fingerprint="c", disk_limit=1000):
        assert check(used) == SIZE
        kept = {json.loads(path.read_text())["fingerprint"][-1] for path in tmp_path.glob("*/about.json")}
        assert kept == {"b", "c"}


def test_two_stores_at_a_time_do_not_share_a_directory(on_disk):
    with on_disk() as one, on_disk() as other:
        fill(one, 0)
        assert check(other) == 0
        fill(other, 1)
        assert check(one, 0) == SIZE


def test_a_path_that_cannot_be_a_folder_is_an_error_at_construction(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="cannot hold a cache"):
        Store(10, disk=tmp_path / "file")


def test_opening_without_the_snapshot_finds_the_same(on_disk, tmp_path):
    with on_disk() as store:
        for generation in range(3):
            fill(store, generation, range(generation * 10, SIZE))
        expected = store._shared.arrays["disk_stamp"] >> 32
    for path in tmp_path.glob("*/index.snapshot"):
        path.unlink()
    with on_disk() as store:
        assert np.array_equal(store._shared.arrays["disk_stamp"] >> 32, expected)
