"""A store returns the right value or a miss, to all threads and processes, whatever happens to them."""

import multiprocessing
import os
import random
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle import ArgumentError
from rekindle.reuse import Jpeg, Store
from rekindle.reuse.cache import heap, memory_tier
from stored import is_right, kill_writers, value_of
from waiting import HANGS

KILOBYTE = 1 << 10


@pytest.fixture
def store():
    with Store(100, memory=KILOBYTE * 100) as made:
        yield made


def test_a_value_is_found_by_its_sample_and_generation_only(store):
    assert store.get(3, 0) is None
    assert store.put(3, 0, value_of(3, 0))
    assert is_right(store.get(3, 0), 3, 0)
    assert store.get(3, 1) is None
    assert store.get(4, 0) is None
    assert store.holds([3, 3, 4], [0, 1, 0]).tolist() == [True, False, False]


def test_generations_before_0_are_never_held(store):
    assert store.get(3, -1) is None
    assert not store.holds([3], [-1]).any()


def test_structures_are_cached_and_unknown_types_are_errors(store):
    assert store.put(1, 0, {"image": torch.arange(6).reshape(2, 3), "label": 4})
    found = store.get(1, 0)
    assert torch.equal(found["image"], torch.arange(6).reshape(2, 3))
    assert found["label"] == 4
    with pytest.raises(ArgumentError, match="object"):
        store.put(2, 0, object())


def test_a_newer_generation_replaces_an_older_one_and_never_the_reverse(store):
    assert store.put(5, 2, value_of(5, 2))
    assert not store.put(5, 1, value_of(5, 1))
    assert is_right(store.get(5, 2), 5, 2)
    assert store.put(5, 3, value_of(5, 3))
    assert store.get(5, 2) is None
    assert is_right(store.get(5, 3), 5, 3)
    assert store.stats.entries == 1


def test_writing_to_what_get_returns_does_not_change_the_cache(store):
    store.put(0, 0, np.zeros(10))
    store.get(0, 0)[:] = 7
    assert store.get(0, 0).tolist() == [0] * 10


def test_a_peek_notices_that_its_entry_was_overwritten(store):
    store.put(5, 0, value_of(5, 0))
    found = store.peek(5, 0)
    assert is_right(found.value, 5, 0)
    assert found.still_there()
    store.put(5, 1, value_of(5, 1))
    assert not found.still_there()
    assert store.peek(5, 0) is None


def test_a_full_store_refuses_new_samples_and_keeps_what_it_has(store):
    kept = [index for index in range(100) if store.put(index, 0, value_of(index, 0, 4000))]
    assert 15 <= len(kept) < 26
    assert store.stats.refused == 100 - len(kept)
    assert store.stats.entries == len(kept)
    assert store.stats.nbytes <= store.stats.capacity
    assert all(store.get(index, 0).nbytes == 4000 for index in kept)


def test_a_full_store_accepts_new_generations_of_what_it_has(store):
    kept = [index for index in range(100) if store.put(index, 0, value_of(index, 0, 4000))]
    for generation in range(1, 4):
        assert all(store.put(index, generation, value_of(index, generation, 4000)) for index in kept)
    assert store.holds(kept, 3).all()


def test_only_admitted_samples_are_cached(store):
    store.put(1, 0, value_of(1, 0))
    store.admit(np.arange(100) >= 50)
    assert not store.put(2, 0, value_of(2, 0))
    assert store.put(60, 0, value_of(60, 0))
    assert store.get(1, 0) is not None
    assert not store.put(1, 1, value_of(1, 1))
    assert store.stats.entries == 1  # The old generation made room.
    store.admit(None)
    assert store.put(2, 0, value_of(2, 0))
    with pytest.raises(ArgumentError, match="100 flags"):
        store.admit([True])


def test_drop_removes_older_generations(store):
    for index in range(4):
        store.put(index, index, value_of(index, index))
    store.drop(np.arange(4), before=2)
    assert store.holds(range(4), range(4)).tolist() == [False, False, True, True]


def test_hits_misses_refusals_and_errors_are_counted(store):
    store.put(1, 0, value_of(1, 0))
    for _ in range(3):
        store.get(1, 0)
    store.get(2, 0)
    stats = store.stats
    assert (stats.hits, stats.misses, stats.refused, stats.errors) == (3, 1, 0, 0)


def test_a_lossy_codec_returns_the_same_pixels_at_the_first_use_and_later():
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    with Store(10, memory=1 << 20, codec=Jpeg(80)) as store:
        first = store.keep(3, 0, image)
        assert not np.array_equal(first, image)
        assert np.array_equal(first, store.get(3, 0))
        store.admit(np.zeros(10, bool))
        assert np.array_equal(first, store.keep(4, 0, image))
    with Store(10, memory=1 << 20) as store:
        assert store.keep(3, 0, image) is image


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"memory": "all"}, "memory='all'"), ({"memory": -1}, "memory=-1"), ({"codec": "x"}, "codec='x'")],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        Store(10, **arguments)


def test_without_available_memory_values_are_refused(monkeypatch, store):
    monkeypatch.setattr(heap, "available_memory", lambda: 0)
    assert not store.put(1, 0, value_of(1, 0))
    assert store.get(1, 0) is None


def test_memory_is_reserved_on_demand():
    with Store(10, memory=8 << 30) as store:
        before = os.fstat(store._shared.fd).st_blocks
        assert before * 512 < 1 << 20
        store.put(0, 0, value_of(0, 0))
        assert os.fstat(store._shared.fd).st_blocks * 512 <= 3 << 20


def test_a_billion_samples_take_memory_for_what_is_cached_only(tmp_path):
    size = 10**9
    ids = [0, 63, 64, 12_345_678, size - 1]
    with Store(size, memory=8 << 20, disk=tmp_path) as store:
        taken = os.fstat(store._shared.fd).st_blocks * 512
        assert taken < 40 << 20
        assert not store.holds(range(0, size, 10**6), 0).any()
        for index in ids:
            assert store.get(index, 0) is None
            store.drop(np.array([index]), before=1)
        assert os.fstat(store._shared.fd).st_blocks * 512 == taken  # Looking takes none.
        assert all(store.put(index, 2, value_of(index, 2)) for index in ids)
        store._memory.recover()
        assert all(is_right(store.get(index, 2), index, 2) for index in ids)
        assert os.fstat(store._shared.fd).st_blocks * 512 < taken + (20 << 20)


def test_of_very_many_samples_a_share_is_admitted_by_chance():
    with Store(10**8, memory=1 << 20) as store:
        store.admit_share(0.25, 7)
        ids = range(0, 10**8, 50_000)
        admitted = [index for index in ids if store.put(index, 0, b"")]
        assert 0.2 < len(admitted) / len(ids) < 0.3
        assert store.holds(admitted, 0).all()
        store.admit_share(1.0, 7)
        assert all(store.put(index, 0, b"") for index in ids[:10])


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3), st.integers(1, 3000)), max_size=60),
    damage=st.sets(st.integers(0, 59), max_size=3),
)
def test_the_heap_never_allocates_a_byte_twice_and_leaks_none(steps, damage):
    with Store(8, memory=8 * KILOBYTE) as store:
        right = {}
        for number, (index, generation, nbytes) in enumerate(steps):
            if number in damage:  # As if a writer had died now.
                store._shared.arrays["control"][memory_tier._DIRTY] = 1
            value = np.full(nbytes, number, np.uint8)
            newest = right.get(index, (-1, None))[0]
            if store.put(index, generation, value):
                assert generation >= newest
                if generation > newest:
                    right[index] = (generation, value)
            elif generation > newest:
                right.pop(index, None)
            for held, (held_generation, held_value) in right.items():
                assert np.array_equal(store.get(held, held_generation), held_value)
        arrays = store._shared.arrays
        assert store.stats.entries == len(right)
        assert arrays["block_size"].sum() + _free_bytes(store) == arrays["heap_control"][heap._TOP]


def _free_bytes(store):
    arrays = store._shared.arrays
    return int(arrays["free_size"][: arrays["heap_control"][heap._FREE_BLOCKS]].sum())


def _churn(store, seed, until, wrong, rounds):
    """Put and get the same few samples in generations that go up with the rounds; counts wrong values."""
    draw = random.Random(seed)
    while rounds.value < until:
        for _ in range(50):
            index = draw.randrange(20)
            generation = rounds.value // 4 + draw.randrange(3)
            if draw.random() < 0.4:
                store.put(index, generation, value_of(index, generation))
            found = store.get(index, generation)
            if found is not None and not is_right(found, index, generation):
                wrong.value += 1
            seen = store.peek(index, generation)
            if seen is not None:
                good = is_right(seen.value, index, generation)
                if seen.still_there() and not good:
                    wrong.value += 1
        with rounds.get_lock():
            rounds.value += 1


def test_threads_and_processes_at_the_same_samples_get_the_right_value_or_a_miss():
    context = multiprocessing.get_context("fork")
    wrong, rounds = context.Value("q"), context.Value("q")
    with Store(20, memory=30 * KILOBYTE) as store:
        processes = [context.Process(target=_churn, args=(store, n, 400, wrong, rounds)) for n in range(2)]
        threads = [threading.Thread(target=_churn, args=(store, n, 500, wrong, rounds)) for n in (5, 6)]
        for one in [*processes, *threads]:
            one.start()
        for one in [*processes, *threads]:
            one.join()
        assert [process.exitcode for process in processes] == [0, 0]
        assert wrong.value == 0
        assert store.stats.hits > 100
        assert store.stats.errors == 0


def _write_for_ever(store, seed, generation):
    draw = random.Random(seed)
    while True:
        index = draw.randrange(20)
        yield store.put(index, generation, value_of(index, generation))
        generation += 1


def test_a_writer_killed_at_any_moment_leaves_no_wrong_bytes_and_leaks_no_space():
    draw = random.Random(0)
    with Store(20, memory=60 * KILOBYTE) as store:
        generation = 0
        for number in range(20):
            kill_writers([_write_for_ever(store, 2 * number + n, generation) for n in range(2)], draw)
            generation += 100_000
            for index in range(20):
                held = int(store._shared.arrays["stamp"][index] >> 32) - 1
                found = store.get(index, held)
                small = 400 if (held + 1) % 100_000 == 0 else None  # written below
                assert found is None or np.array_equal(found, value_of(index, held, small))
            assert store.put(number % 20, generation - 1, value_of(number % 20, generation - 1, 400))
            assert store.get(number % 20, generation - 1) is not None
        for index in range(20):
            store._memory.drop(index, before=generation + 1)
        store._memory.recover()  # As it does by itself when free space is too fragmented.
        for index in range(20):
            assert store.put(index, generation + 1, np.zeros(2900, np.uint8)), "space has leaked"


def test_a_child_forked_while_the_lock_is_held_can_write(store):
    with store._shared.lock:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if store._shared.lock._threads.acquire(timeout=HANGS) else 1)
        assert os.waitpid(pid, 0)[1] == 0
