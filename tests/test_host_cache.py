"""Processes of one host find and share one cache, whatever becomes of them; what is planted is left alone."""

import fcntl
import json
import os
import struct
import uuid
from contextlib import ExitStack

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from host_members import SIZE, Member, is_right, left_behind, open_store, value_of
from rekindle.core.memfd import anonymous_file, find_memory_files
from rekindle.reuse import Store
from rekindle.reuse.cache import host_memory
from rekindle.reuse.cache.host_memory import HostCache, find_caches, parse_header
from rekindle.reuse.cache.kept_generations import KeptGenerations
from rekindle.reuse.cache.shared_arrays import SharedMemory
from rekindle.reuse.host_cache import open_for_ranks


@pytest.fixture
def name():
    return uuid.uuid4().hex


def test_one_process_makes_a_cache_and_the_others_find_its_entries(name):
    first, second = Member(name), Member(name)
    assert sorted([first.answer(), second.answer()]) == [False, True]
    for index in range(SIZE):
        assert (first, second)[index % 2].ask("put", index, 0, value_of(index, 0))
    assert all(
        is_right(member.ask("get", index, 0), index, 0) for member in (first, second) for index in range(SIZE)
    )
    first.end()
    second.end()
    assert left_behind(name) == ([], [])


def test_what_another_is_computing_is_waited_for_and_found(name):
    first, second = Member(name), Member(name)
    first.answer(), second.answer()
    orders = [member.ask("order_of", [*range(16)], [0] * 16) for member in (first, second)]
    assert [sorted(order) for order in orders] == [[*range(16)]] * 2
    assert orders[0] != orders[1]  # In step, they begin with different rows.
    assert first.ask("wait_or_claim", 3, 0) is None
    assert second.ask("order_of", [*range(16)], [0] * 16)[-1] == 3  # The first has begun with it.
    second._pipe.send(("wait_or_claim", 3, 0))
    assert not second._pipe.poll(0.1)
    assert first.ask("put", 3, 0, value_of(3, 0))
    first.ask("release", 3, 0)
    assert is_right(second.answer(), 3, 0)
    assert is_right(first.ask("wait_or_claim", 3, 0), 3, 0)  # It has come since it was missed.
    assert first.ask("wait_or_claim", 4, 0) is None
    first.kill()
    assert second.ask("wait_or_claim", 4, 0) is None  # Its computer is gone.
    second.end()


def test_the_maker_may_be_killed_and_the_cache_lives_on_until_the_last_one_is(name):
    maker = Member(name)
    assert maker.answer() is True
    other = Member(name)
    assert other.answer() is False
    assert maker.ask("put", 3, 0, value_of(3, 0))
    maker.kill()
    assert is_right(other.ask("get", 3, 0), 3, 0)
    third = Member(name)
    assert third.answer() is False
    assert is_right(third.ask("get", 3, 0), 3, 0)
    other.kill()
    assert third.ask("put", 4, 0, value_of(4, 0))
    third.kill()
    assert left_behind(name) == ([], [])
    assert not [file for file in os.listdir("/dev/shm") if "rekindle" in file or name in file]
    again = Member(name)
    assert again.answer() is True  # A new one: nothing was left.
    again.end()


def test_a_member_killed_in_a_write_costs_that_entry_and_no_other(name):
    victim, other = Member(name), Member(name)
    victim.answer(), other.answer()
    for index in range(SIZE):
        assert victim.ask("put", index, 0, value_of(index, 0))
    victim.ask("hang in a write")
    other._pipe.send(("put", 5, 1, value_of(5, 1)))  # waits for the lock
    assert not other._pipe.poll(0.1)
    victim.kill()
    assert other.answer() is True
    found = {index: other.ask("get", index, 0) for index in range(SIZE)}
    assert [index for index, value in found.items() if value is None] == [3, 5]
    assert all(value is None or is_right(value, index, 0) for index, value in found.items())
    assert other.ask("put", 3, 0, value_of(3, 0))
    other.end()


def test_of_many_that_start_at_once_one_makes_the_cache(name):
    members = [Member(name) for _ in range(8)]
    assert [member.answer() for member in members].count(True) == 1
    assert members[0].ask("put", 1, 2, value_of(1, 2))
    assert all(is_right(member.ask("get", 1, 2), 1, 2) for member in members)
    for member in members:
        member.kill()
    assert left_behind(name) == ([], [])


def test_a_cache_whose_maker_died_before_it_was_complete_is_not_joined(name):
    incomplete = SharedMemory(host_memory.FIELDS, {}, 1 << 12, name=name)
    assert [file.pid for file in find_memory_files(name)] == [os.getpid()]
    assert not [*find_caches(name)]
    incomplete.close()


def _header(name, size=SIZE, heap=1 << 20, directory="", about=None):
    text = json.dumps(HostCache(name, size, heap, directory, about or {})._asdict()).encode()
    return struct.pack("<8s16sI", b"rkhost02", xxhash.xxh3_128_digest(text), len(text)) + text


PLANTS = {
    "garbage": lambda name, good: (os.urandom(good.nbytes), good.nbytes),
    "nothing": lambda name, good: (b"", 0),
    "a page": lambda name, good: (_header(name), 4096),
    "too small": lambda name, good: (_header(name), good.nbytes - 4096),
    "too large": lambda name, good: (_header(name), good.nbytes + 4096),
    "another's header": lambda name, good: (_header("another"), good.nbytes),
    "a wrong checksum": lambda name, good: (_header(name).replace(b"40", b"41"), good.nbytes),
    "another size": lambda name, good: (_header(name, size=SIZE + 64), good.nbytes),
    "a huge heap": lambda name, good: (_header(name, heap=2**55), good.nbytes),
    "a wrong type": lambda name, good: (_header(name, size="40"), good.nbytes),
    "a path out of the folder": lambda name, good: (_header(name, directory="../.."), good.nbytes),
}


@pytest.mark.parametrize("kind", PLANTS)
def test_what_is_planted_under_the_name_is_left_alone(name, kind, tmp_path):
    disk = {"disk": tmp_path} if "path" in kind else {}
    with Store(SIZE, memory=1 << 20, **disk) as good:
        content, nbytes = PLANTS[kind](name, good._shared)
    fd = anonymous_file(nbytes, name)
    try:
        os.pwrite(fd, content, 0)
        made = []
        with open_store(name, made.append, **disk) as store:
            assert made == [store]
            assert store.get(1, 0) is None
            assert store.put(1, 0, value_of(1, 0))
            assert is_right(store.get(1, 0), 1, 0)
        assert os.fstat(fd).st_size == nbytes
    finally:
        os.close(fd)


def test_memory_that_could_be_truncated_is_not_joined(name):
    fd = os.memfd_create(f"rekindle-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(fd, 0o600)
        with Store(SIZE, memory=1 << 20) as good:
            os.ftruncate(fd, good._shared.nbytes)
        os.pwrite(fd, _header(name), 0)
        assert [file.open() for file in find_memory_files(name)] == [None]
        assert not [*find_caches(name)]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        assert len([*find_caches(name)]) == 1
    finally:
        os.close(fd)


def test_memory_of_another_user_is_not_opened(name, monkeypatch):
    fd = anonymous_file(4096, name)
    try:
        (file,) = find_memory_files(name)
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        assert file.open() is None
        assert not [*find_memory_files(name)]
    finally:
        os.close(fd)


def test_the_size_of_memory_that_can_be_found_is_fixed(name):
    fd = anonymous_file(8192, name)
    try:
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 4096)
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 1 << 20)
    finally:
        os.close(fd)


@given(st.binary(max_size=200), st.integers(0, 199), st.integers(0, 255))
def test_a_header_that_was_changed_is_none(tail, position, byte):
    good = _header("x", about={"split": "2"}).ljust(4096, b"\0")
    assert parse_header(good).about == {"split": "2"}
    text_end = good.rindex(b"}") + 1
    changed = bytearray(good)
    changed[position] = byte
    if bytes(changed) != good and position < text_end:
        assert parse_header(bytes(changed)) is None
    assert parse_header(tail) is None
    assert parse_header(b"rkhost02" + tail) is None


def test_two_loaders_of_one_process_share_and_close_apart(name):
    with open_store(name) as first:
        second = open_store(name)
        assert first._shared is second._shared
        first.put(1, 0, value_of(1, 0))
        assert is_right(second.get(1, 0), 1, 0)
        assert (first.stats.from_others, second.stats.from_others) == (0, 1)
        second.close()
        assert is_right(first.get(1, 0), 1, 0)
        assert first.put(2, 0, value_of(2, 0))
        assert (first.stats.hits, first.stats.from_others) == (1, 0)
    del first, second
    assert left_behind(name) == ([], [])


def test_a_disk_is_shared_and_survives_the_death_of_its_maker(name, tmp_path):
    settings = {"disk": tmp_path, "fingerprint": "same"}
    make = lambda: Member(name, **settings)  # noqa: E731
    maker = make()
    assert maker.answer()
    other = make()
    assert not other.answer()
    big = np.zeros(300_000, np.uint8)
    for index in range(8):  # More than memory has room for.
        assert (maker, other)[index % 2].ask("put", index, 0, big + index)
    assert all(other.ask("get", index, 0)[0] == index for index in range(8))
    assert len([*tmp_path.glob("rekindle-*")]) == 1
    maker.kill()
    assert all(other.ask("get", index, 0)[0] == index for index in range(8))
    with Store(SIZE, memory=1 << 20, **settings) as alone:  # Not of this cache: a directory of its own.
        assert alone._state.folder.path not in {None}
        assert len([*tmp_path.glob("rekindle-*")]) == 2
    assert other.ask("put", 9, 0, big)
    other.kill()
    with Store(SIZE, memory=1 << 20, **settings) as later:
        found = [later.get(index, 0) for index in range(8)]
        assert sum(value is not None for value in found) >= 4  # All that was on disk.
        assert all(value is None or value[0] == index for index, value in enumerate(found))


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "get", "epoch", "drop"]),
        st.integers(0, 1),
        st.integers(0, 5),
        st.integers(0, 12),
    ),
    max_size=80,
)


@settings(max_examples=20, deadline=None)
@given(OPERATIONS, st.sampled_from([1, 2, 4]), st.integers(1, 4), st.sampled_from([2_000, 1 << 16]))
def test_members_that_share_several_generations_get_right_values_or_misses(steps, ways, span, memory):
    name, kept = uuid.uuid4().hex, KeptGenerations(ways, span)
    with ExitStack() as stack:
        make = lambda **given: Store(6, memory=memory, kept=kept, **given)  # noqa: E731
        stores = [stack.enter_context(open_for_ranks(name, make, lambda store: None)) for _ in range(2)]
        epochs = [0, 0]
        for what, member, index, generation in steps:
            store = stores[member]
            if what == "put" and store.put(index, generation, value_of(index, generation)):
                assert is_right(stores[1 - member].get(index, generation), index, generation)
            elif what == "get":
                found = store.get(index, generation)
                assert found is None or is_right(found, index, generation)
            elif what == "epoch":
                epochs[member] = max(epochs[member], generation)
                store.note_epoch(epochs[member])
            elif what == "drop":
                store.drop(np.array([index]), before=generation)
                assert not store.holds([index] * generation, range(generation)).any()
        ids, generations = np.repeat(np.arange(6), 13), np.tile(np.arange(13), 6)
        held = stores[0].holds(ids, generations)
        assert stores[0].stats.entries == held.sum()
        assert np.bincount(ids, weights=held).max() <= ways
        for index, generation in zip(ids[held], generations[held], strict=True):
            assert is_right(stores[1].get(int(index), int(generation)), index, generation)


def test_generations_that_somebody_needs_are_kept_and_others_go(name):
    kept = KeptGenerations(ways=4, span=3)
    make = lambda **given: Store(SIZE, memory=1 << 20, kept=kept, **given)  # noqa: E731
    with (
        open_for_ranks(name, make, lambda _: None) as ahead,
        open_for_ranks(name, make, lambda _: None) as behind,
    ):
        for generation in (0, 3, 6):
            ahead.note_epoch(generation)
            assert ahead.put(1, generation, value_of(1, generation))
        assert behind.holds([1, 1, 1], [0, 3, 6]).all()  # `behind` is in epoch 0.
        behind.note_epoch(4)
        assert behind.holds([1, 1, 1], [0, 3, 6]).tolist() == [False, True, True]
        behind.close()
        ahead.note_epoch(7)
        assert ahead.holds([1, 1, 1], [0, 3, 6]).tolist() == [False, False, True]
