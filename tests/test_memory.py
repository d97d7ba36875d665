"""A batch is yours as long as you hold it, and its memory is used again when you let it go."""

import gc
import os
import random
import weakref
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset, IterableDataset

import rekindle as rk
from blocks import KINDS, RUNNERS, make
from rekindle.run.slots import SlotPool
from rekindle.run.window import Window
from same import digest

# Batches that are kept.


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_batch_stays_what_it_was_while_it_is_held(kind, runner):
    loader = make(kind, runner)
    kept, at_once = [], []
    for _ in range(2):
        for batch in loader:
            kept.append(batch)
            at_once.append(digest(batch))
    assert len(set(at_once)) == len(at_once) // 2
    assert [digest(batch) for batch in kept] == at_once
    del loader
    gc.collect()
    assert [digest(batch) for batch in kept] == at_once


@pytest.mark.parametrize("hold", [lambda x: x[3:5], lambda x: x.numpy()[::2], lambda x: x.view(-1)])
@pytest.mark.parametrize("every", [1, 3])
def test_a_view_keeps_its_batch_alive(hold, every):
    loader = make("rows")
    views, copies = [], []
    for _ in range(2):
        for step, (x, _) in enumerate(loader):
            if step % every == 0:
                views.append(hold(x))
                copies.append(np.asarray(hold(x)).copy())
            del x
    for view, copy in zip(views, copies, strict=True):
        assert np.array_equal(np.asarray(view), copy)


def as_long_as_asked(lengths):
    return torch.ones(lengths[0])


@pytest.mark.parametrize("runner", RUNNERS)
def test_batches_that_grow_a_little_each_are_whole_while_all_are_held(runner):
    """A slot has room to the end of its last page: such a batch fits one that was made for a smaller one."""
    lengths = range(20_000, 60_000, 997)
    loader = rk.DataLoader(lengths, batch_size=1, collate_fn=as_long_as_asked, **RUNNERS[runner])
    kept = list(loader)
    assert [len(batch) for batch in kept] == [*lengths]
    assert all(batch.all() for batch in kept)


def test_one_part_of_a_batch_keeps_its_own_values():
    loader = make("rows")
    small = [small for _, small in loader]
    assert torch.equal(torch.cat(small)[:, 0], torch.arange(256))


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_belongs_to_who_got_it_and_can_be_changed(kind, runner):
    """Writing to a batch changes no other batch, before or after."""
    plain = [digest(batch) for batch in make(kind, runner)]
    seen = []
    for batch in make(kind, runner):
        seen.append(digest(batch))
        for leaf in tree_leaves(batch):
            leaf[...] = -1
    assert seen == plain


def test_batches_outlive_their_loader_and_its_workers():
    loader = make("rows")
    iterator = iter(loader)
    batches = [next(iterator) for _ in range(5)]
    values = [digest(batch) for batch in batches]
    del iterator, loader
    gc.collect()
    assert [digest(batch) for batch in batches] == values
    batches[0][0].fill_(7)
    assert int(batches[0][0].sum()) == 7 * 8 * 1000


def test_batches_outlive_a_worker_that_is_killed():
    loader = make("rows")
    iterator = iter(loader)
    batches = [next(iterator) for _ in range(3)]
    values = [digest(batch) for batch in batches]
    for process in iterator._workers:
        process.kill()
    batches += list(iterator)
    assert [digest(batch) for batch in batches[:3]] == values
    assert torch.equal(torch.cat([small for _, small in batches])[:, 0], torch.arange(256))


def told_by_a_fork(batch, go):
    """A pipe from a child that digests its batch once it is told to `go`; its process id."""
    answer, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.read(go, 1)
            os.write(told, digest(batch).encode())
        finally:
            os._exit(0)
    os.close(told)
    return answer, child


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_a_forked_child_holds_is_not_overwritten_when_the_parent_goes_on(kind):
    go, started = os.pipe()
    children, expected = [], []
    for step, batch in enumerate(make(kind)):
        if step in (2, 3):
            expected.append(digest(batch))
            children.append(told_by_a_fork(batch, go))
        del batch
    os.write(started, b"xx")
    for (answer, child), value in zip(children, expected, strict=True):
        assert os.read(answer, 100).decode() == value
        os.waitpid(child, 0)
        os.close(answer)
    os.close(go)
    os.close(started)


def test_forks_within_the_loop_use_up_no_memory_and_no_descriptors():
    loader = make("rows", persistent_workers=True)
    list(loader)
    before = slots_in_use(), len(os.listdir("/proc/self/fd"))
    for batch in loader:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        del batch
    assert slots_in_use() <= before[0] + 2
    assert len(os.listdir("/proc/self/fd")) <= before[1] + 4


# Memory that is reused.


def slots_in_use():
    """How many pieces of shared memory this process has mapped."""
    return Path("/proc/self/maps").read_text().count("memfd:rekindle")


def lies_in_a_slot(tensor):
    """Whether a tensor is where a worker wrote it."""
    mapped = [
        line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:rek" in line
    ]
    ranges = [[int(end, 16) for end in span.split("-")] for span in mapped]
    return any(start <= tensor.data_ptr() < stop for start, stop in ranges)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_does_not_grow_over_epochs(kind):
    before = slots_in_use()
    loader = make(kind, persistent_workers=True, prefetch_factor=2)
    counts = []
    for _ in range(12):
        for batch in loader:
            del batch
        counts.append(slots_in_use() - before)
    assert counts[-1] <= counts[2]
    # In flight, in the loop's hands, the workers' status, and one to spare.
    assert counts[-1] <= 4 + 2 + 1 + 1


def test_a_batch_that_is_let_go_gives_its_memory_to_another():
    addresses = {x.data_ptr() for _ in range(4) for x, _ in make("rows", prefetch_factor=2)}
    assert len(addresses) < 32


def test_batches_that_are_kept_to_look_at_cost_the_later_ones_no_copy():
    before, loader = slots_in_use(), make("rows", persistent_workers=True, prefetch_factor=2)
    kept = [batch for batch, _ in zip(loader, range(3), strict=False)]
    assert all(lies_in_a_slot(x) for x, _ in loader)
    del kept
    for batch in loader:
        del batch
    assert slots_in_use() - before <= 4 + 2 + 1 + 1  # What was kept is given back.


def test_who_keeps_all_batches_does_not_use_up_the_descriptors():
    before = len(os.listdir("/proc/self/fd"))
    batches = list(make("rows", persistent_workers=True))
    assert not all(lies_in_a_slot(x) for x, _ in batches), "no batch was copied, so this shows nothing"
    assert len(os.listdir("/proc/self/fd")) - before < 8 + 4 + 8


def test_nothing_is_left_when_all_is_let_go():
    before = slots_in_use(), len(os.listdir("/proc/self/fd"))
    loader = make("rows")
    batches = list(loader)
    del loader
    gc.collect()
    assert slots_in_use() <= before[0] + 8  # those that held batches lie on
    del batches
    gc.collect()
    assert (slots_in_use(), len(os.listdir("/proc/self/fd"))) <= before


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_appears_in_dev_shm(kind):
    before = set(os.listdir("/dev/shm"))
    iterator = iter(make(kind))
    ours = [str(os.getpid()), *(str(worker.pid) for worker in iterator._workers)]
    for _ in iterator:
        new = set(os.listdir("/dev/shm")) - before
        # Torch's files there have the maker's process in their names; other programs run here as well.
        assert not [name for name in new if any(f"_{pid}_" in name for pid in ours)]


@pytest.mark.parametrize("kind", ["padded", "lists"])
def test_batches_may_grow(kind):
    expected = digest(list(make(kind, "inline")))
    for _ in range(2):
        assert digest(list(make(kind))) == expected


class Doubling(Dataset):
    """Batch sizes grow, and with them the slots."""

    def __len__(self):
        return 2**12

    def __getitem__(self, index):
        return torch.full((16,), index)


def test_batch_sizes_may_grow_and_shrink():
    sizes = [1, 2, 1024, 3, 512, 1, 2000, 553]
    starts = np.cumsum([0, *sizes])
    batches = [list(range(a, b)) for a, b in pairwise(starts)]
    for workers in (0, 2):
        loader = rk.DataLoader(Doubling(), batch_sampler=batches, num_workers=workers, seed=1)
        for _ in range(2):
            got = list(loader)
            assert [len(batch) for batch in got] == sizes
            assert torch.equal(torch.cat(got)[:, 0], torch.arange(sum(sizes)))


# A dataset whose loader is gone: scripts make loaders again and again, of large datasets and open files.


class Noisy(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return index, random.random()


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(12))


LOADERS = {
    "in turn": {},
    "shuffled": {"shuffle": True},
    "sampler": {"sampler": [3, 1, 2, 5, 6]},
    "reused": {"shuffle": True, "reuse": rk.Refurbish(2), "final_transform": lambda sample: sample},
    "workers": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
}
OF_STREAMS = ("in turn", "workers", "persistent")


@pytest.mark.parametrize("leave", ["at the end", "early", "between epochs"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [(Noisy, name) for name in LOADERS] + [(Stream, name) for name in OF_STREAMS],
)
def test_a_dataset_goes_with_the_last_loader_of_it_and_waits_for_no_garbage_collection(kind, options, leave):
    dataset = kind()
    dataset_is_there = weakref.ref(dataset)
    loader = rk.DataLoader(dataset, batch_size=4, seed=1, **LOADERS[options])
    gc.collect()
    gc.disable()
    try:
        for _ in range(2 if leave == "between epochs" else 1):
            for _ in loader:
                if leave == "early":
                    break
        del dataset, loader
        assert dataset_is_there() is None
    finally:
        gc.enable()


def test_the_memory_of_batches_that_the_loop_held_is_used_again() -> None:
    window = Window(1, None, whole=False)
    window.note_batch(64, 64 << 20)
    assert window.size == 2
    pool = SlotPool(window, shared=False)
    slots = [pool.take(100) for _ in range(window.size + 2)]  # two more, which the loop holds
    held = [pool.lease(slot) for slot in slots[2:]]
    for slot in slots[:2]:
        pool.give_back(slot)
    held.clear()
    assert {pool.take(100).number for _ in slots} == {slot.number for slot in slots}
    pool.close()
