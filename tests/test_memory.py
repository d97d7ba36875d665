"""A batch is the holder's as long as it is held; memory is reused, and too little of it is an error."""

import gc
import os
import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset, default_collate

import rekindle as rk
from rekindle.core import available_memory
from rekindle.run import slots
from rekindle.run.window import Window
from same import digest


class Blocks(Dataset):
    """Samples of four kilobytes; no two alike."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        return torch.full((1000,), index, dtype=torch.int32), np.full(7, index)


class Ragged(Dataset):
    """Sequences that get longer and longer."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((10 + index * index,), index)


def pad(samples):
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)


def keep_apart(samples):
    return {"all": samples, "array": np.concatenate([sample.numpy() for sample in samples])}


def through_default(samples):
    return [default_collate(samples)]


RUNNERS = {
    "inline": {},
    "processes": {"num_workers": 2, "executor": "processes"},
    "threads": {"num_workers": 2, "executor": "threads"},
}
KINDS = {
    "rows": (Blocks(), None),
    "padded": (Ragged(), pad),
    "lists": (Ragged(), keep_apart),
    "collated": (Blocks(), through_default),
}


def make(kind, runner="processes", **options):
    dataset, collate_fn = KINDS[kind]
    return rk.DataLoader(dataset, 8, collate_fn=collate_fn, seed=1, **RUNNERS[runner], **options)


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
    loader = make(kind, persistent_workers=True)
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
    before, loader = slots_in_use(), make("rows", persistent_workers=True)
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


# Too little memory.


@pytest.mark.parametrize("kind", ["rows", "padded"])
@pytest.mark.parametrize("runner", ["processes", "threads"])
def test_too_little_memory_is_an_error_with_numbers_and_a_cure(kind, runner, monkeypatch):
    monkeypatch.setattr(slots, "available_memory", lambda: 3 * 2**10)
    iterator = iter(make(kind, runner))
    with pytest.raises(rk.OutOfMemoryError) as caught:
        list(iterator)
    for part in ("6 batches", "MiB", "available", "batch_size", "prefetch_factor", "num_workers"):
        assert part in str(caught.value)
    # There is no going on, and no hanging either.
    with pytest.raises(rk.RekindleError):
        next(iterator)


def test_enough_memory_is_no_error(monkeypatch):
    monkeypatch.setattr(slots, "available_memory", lambda: 6 * 64 * 2**10)
    assert len(list(make("rows"))) == 32


def test_unknown_memory_is_no_error(monkeypatch):
    monkeypatch.setattr(slots, "available_memory", lambda: None)
    assert len(list(make("rows"))) == 32


def test_the_numbers_in_the_error_are_right(monkeypatch):
    monkeypatch.setattr(slots, "available_memory", lambda: 10 * 2**20)
    slots.SlotPool(Window(2, 3, whole=False)).check_room(2 * 2**20)  # 3 in flight, and 2 in use
    with pytest.raises(rk.OutOfMemoryError, match=r"6 batches of 2\.0 MiB.*12 MiB.*10 MiB"):
        slots.SlotPool(Window(2, 4, whole=False)).check_room(2 * 2**20)


LARGE = """
    import os, resource, sys
    import torch
    import rekindle as rk

    class Large(torch.utils.data.Dataset):
        def __len__(self):
            return 64
        def __getitem__(self, index):
            return torch.full((int(sys.argv[1]),), index, dtype=torch.uint8)

    if __name__ == "__main__":
        loader = rk.DataLoader(Large(), 8, num_workers=2, seed=1)
        before = set(os.listdir("/dev/shm"))
        shared = set()
        {limit}
        try:
            total = 0
            for batch in loader:
                total += len(batch)
                shared.update(os.listdir("/dev/shm"))
        except rk.OutOfMemoryError as error:
            print("OutOfMemoryError:", error)
        else:
            print("samples:", total, "in /dev/shm:", len(shared - before))
"""
ADDRESS_SPACE = """
        pages = int(open("/proc/self/statm").read().split()[0])
        limit = pages * resource.getpagesize() + 2**28
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
"""


def run(tmp_path, sample_bytes, limit="", before=()):
    script = tmp_path / "large.py"
    script.write_text(textwrap.dedent(LARGE.replace("        {limit}\n", limit)))
    command = [*before, sys.executable, str(script), str(sample_bytes)]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_limit_of_the_process_is_an_error_with_numbers_and_a_cure(tmp_path):
    done = run(tmp_path, 20 * 2**20, ADDRESS_SPACE)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("OutOfMemoryError:")
    assert "160.0 MiB" in done.stdout
    assert "batch_size" in done.stdout


def test_a_tiny_dev_shm_is_enough_and_not_used(tmp_path):
    mount = "mount -t tmpfs -o size=1m tmpfs /dev/shm"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    before = ("unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh")
    done = run(tmp_path, 2**20, before=before)
    assert (done.returncode, done.stdout) == (0, "samples: 64 in /dev/shm: 0\n"), done.stderr[-2000:]


# How much memory there is.

MEMINFO = "MemTotal:       32000 kB\nMemFree:         5000 kB\nMemAvailable:   20000 kB\n"
UNLIMITED = 9223372036854771712  # what control groups of version 1 say for "no limit"


def tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("files", "kilobytes"),
    [
        pytest.param({"proc/meminfo": MEMINFO}, 20_000, id="no container"),
        pytest.param({}, None, id="no word"),
        pytest.param({"proc/meminfo": "MemTotal: 32000 kB"}, None, id="an old kernel"),
        pytest.param(
            {
                "proc/meminfo": MEMINFO,
                "sys/fs/cgroup/memory.max": 10_000 << 10,
                "sys/fs/cgroup/memory.current": 4_000 << 10,
            },
            6_000,
            id="version 2, own namespace",
        ),
        pytest.param(
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/",
                "sys/fs/cgroup/memory.max": "max",
                "sys/fs/cgroup/memory.current": 4_000 << 10,
            },
            20_000,
            id="version 2, no limit",
        ),
        pytest.param(
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/slice/job",
                "sys/fs/cgroup/slice/memory.max": 8_000 << 10,
                "sys/fs/cgroup/slice/memory.current": 3_000 << 10,
                "sys/fs/cgroup/slice/job/memory.max": "max",
                "sys/fs/cgroup/slice/job/memory.current": 1_000 << 10,
            },
            5_000,
            id="version 2, the limit is above",
        ),
        pytest.param(
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "12:memory:/docker/abc\n1:name=systemd:/docker/abc",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": 10_000 << 10,
                "sys/fs/cgroup/memory/memory.usage_in_bytes": 3_000 << 10,
            },
            7_000,
            id="version 1, own namespace",
        ),
        pytest.param(
            {
                "proc/meminfo": MEMINFO,
                "sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED,
                "sys/fs/cgroup/memory/memory.usage_in_bytes": 3_000 << 10,
            },
            20_000,
            id="version 1, no limit",
        ),
        pytest.param(
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "5:memory:/slurm/uid_1/job_2\n4:cpu:/\n0::/",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED,
                "sys/fs/cgroup/memory/memory.usage_in_bytes": 3_000 << 10,
                "sys/fs/cgroup/memory/slurm/uid_1/job_2/memory.limit_in_bytes": 9_000 << 10,
                "sys/fs/cgroup/memory/slurm/uid_1/job_2/memory.usage_in_bytes": 1_000 << 10,
            },
            8_000,
            id="version 1, a cluster's job",
        ),
        pytest.param(
            {
                "proc/meminfo": MEMINFO,
                "sys/fs/cgroup/memory.max": 10_000 << 10,
                "sys/fs/cgroup/memory.current": 10_000 << 10,
                "sys/fs/cgroup/memory.stat": f"anon {2_000 << 10}\ninactive_file {7_000 << 10}",
            },
            7_000,
            id="version 2, cached files make room",
        ),
        pytest.param(
            {
                "proc/meminfo": MEMINFO,
                "sys/fs/cgroup/memory/memory.limit_in_bytes": 10_000 << 10,
                "sys/fs/cgroup/memory/memory.usage_in_bytes": 10_000 << 10,
                "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {7_000 << 10}",
            },
            7_000,
            id="version 1, cached files make room",
        ),
        pytest.param(
            {
                "proc/meminfo": MEMINFO,
                "sys/fs/cgroup/memory.max": 1_000 << 10,
                "sys/fs/cgroup/memory.current": 1_200 << 10,
            },
            0,
            id="over the limit",
        ),
        pytest.param(
            {"proc/meminfo": "MemAvailable: much", "sys/fs/cgroup/memory.max": "?"},
            None,
            id="nonsense",
        ),
    ],
)
def test_available_memory_is_what_the_machine_and_the_container_leave(files, kilobytes, tmp_path):
    bound = available_memory.available_memory(tree(tmp_path, files))
    assert bound == (None if kilobytes is None else kilobytes << 10)


def test_available_memory_of_this_machine_is_known():
    bound = available_memory.available_memory()
    assert bound is not None
    assert 2**20 < bound < 2**50
