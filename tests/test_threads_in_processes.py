"""Several workers in the threads of one process: who shares one, and who is blamed when it dies."""

import os
import threading
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset, default_collate, get_worker_info

import rekindle as rk
from declared import Declared
from mortal import ready_workers
from rekindle.loader import settings
from rekindle.run.threads_per_process import MOST_THREADS, threads_per_process
from rekindle.run.unit_gate import ALONE, NOT_ALONE, UnitGate
from rekindle.run.window import Window
from waiting import HANGS, eventually

T = rk.transforms
pytestmark = pytest.mark.timeout(120)


class WhoLoads(Declared):
    """A sample is the process and the thread that loaded it; so many have to be loaded at the same time."""

    def __init__(self, together):
        super().__init__(24)
        self.barrier = threading.Barrier(together, timeout=HANGS)

    def __getitem__(self, index):
        self.barrier.wait()
        return os.getpid(), threading.get_ident()


def test_workers_share_processes_and_none_is_this_one():
    loader = rk.DataLoader(WhoLoads(3), 12, num_workers=6)
    pids, threads = (torch.cat(column).tolist() for column in zip(*loader, strict=True))
    assert len(set(pids)) == 2
    assert os.getpid() not in pids
    assert all(len({t for p, t in zip(pids, threads, strict=True) if p == pid}) == 3 for pid in set(pids))
    report = loader.report()
    assert (report.executor, report.threads) == ("processes", MOST_THREADS)
    assert "6 workers (2 processes × 3 threads)" in str(report)


class WorkerIds(Declared):
    def __getitem__(self, index):
        info = get_worker_info()
        return info.id, info.num_workers, info.seed, index


class HoldsGenerator(Declared):
    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(0)


def test_a_generator_of_the_datasets_own_is_not_shared_by_threads():
    assert threads_per_process(Declared(), default_collate, None) == MOST_THREADS
    assert threads_per_process(HoldsGenerator(), default_collate, None) == 1


def test_each_thread_has_the_id_of_its_own_worker():
    def seen(load, **options):
        torch.manual_seed(5)
        loader = load(WorkerIds(40), 5, num_workers=5, **options)
        return [[column.tolist() for column in (ids, count, index)] for ids, count, _, index in loader]

    assert seen(rk.DataLoader) == seen(torch.utils.data.DataLoader)
    ids, _, seeds, _ = next(iter(rk.DataLoader(WorkerIds(40), 5, num_workers=5)))
    assert len({seed - number for seed, number in zip(seeds.tolist(), ids.tolist(), strict=True)}) == 1


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_batches_are_those_of_one_worker(method):
    expected = list(rk.DataLoader(Declared(), 8, shuffle=True, seed=3))
    loader = rk.DataLoader(Declared(), 8, shuffle=True, seed=3, num_workers=5, multiprocessing_context=method)
    for _ in range(2):
        found = list(loader)
    assert not torch.equal(torch.stack([y for _, y in found]), torch.stack([y for _, y in expected]))
    loader.set_epoch(0)
    assert all(
        torch.equal(a, b)
        for one, other in zip(loader, expected, strict=True)
        for a, b in zip(one, other, strict=True)
    )


def memory_files(pid):
    """The memory files that a process has mapped, once for each time."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [int(line.split()[4]) for line in lines if "memfd:rekindle" in line]


def test_a_slot_is_mapped_once_a_process():
    earlier = memory_files("self")  # which a forked process has as well
    iterator = iter(rk.DataLoader(Declared(), 8, num_workers=4))
    next(iterator), next(iterator)
    (pid,) = ready_workers(iterator)
    slots = [number for number in memory_files(pid) if number not in earlier]
    mapped = Counter(slots)
    assert len(mapped) > 1
    assert sorted(mapped.values())[:-1] == [1] * (len(mapped) - 1)  # but the status, mapped by the fork too


def test_a_state_goes_on_with_other_workers():
    def shuffled(workers):
        return rk.DataLoader(Declared(), 8, shuffle=True, seed=3, num_workers=workers)

    expected = [index.tolist() for _, index in shuffled(0)]
    found, state = [], None
    for workers, take in ((5, 2), (2, 3), (6, 3)):
        loader = shuffled(workers)
        if state is not None:
            loader.load_state_dict(state)
        found += [index.tolist() for _, index in islice(loader, take)]
        state = loader.state_dict()
    assert found == expected


def test_processes_live_on_if_nothing_was_changed_and_see_what_was():
    dataset = Scaled()
    loader = rk.DataLoader(dataset, 8, num_workers=4)
    processes = []
    for scale in (1, 1, 3):
        dataset.scale = scale
        iterator = iter(loader)
        assert torch.cat(list(iterator)).tolist() == [scale * index for index in range(64)]
        processes.append(ready_workers(iterator))
    assert processes[0] == processes[1] != processes[2]


class Scaled(Declared):
    scale = 1

    def __getitem__(self, index):
        return self.scale * index


# What is decided about a dataset.


def steps():
    return [
        T.RandomResizedCrop(224),
        T.RandomHorizontalFlip(),
        T.ToTensor(),
        T.Normalize((0.5,) * 3, (0.5,) * 3),
    ]


def folder_of(tmp_path, nbytes):
    """Files that are never read: they are no images."""
    (tmp_path / "a").mkdir()
    for number in range(20):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(bytes(nbytes))
    return tmp_path


@pytest.mark.parametrize(("nbytes", "threads"), [(110_000, MOST_THREADS), (2_000, 1)])
def test_large_files_are_loaded_by_threads_and_small_ones_by_processes(tmp_path, nbytes, threads):
    dataset = rk.open(folder_of(tmp_path, nbytes), transform=steps())
    for chosen in (dataset, Subset(dataset, range(5))):
        assert rk.DataLoader(chosen, num_workers=8).report().threads == threads


def test_without_workers_no_file_is_looked_at_before_it_is_read(tmp_path, monkeypatch):
    dataset = rk.open(folder_of(tmp_path, 110_000), transform=steps())
    monkeypatch.setattr(dataset.source, "encoded_nbytes", lambda _: pytest.fail("looked at a file"))
    assert rk.DataLoader(dataset).report().threads == 1


def test_pixels_need_no_decoding_and_are_loaded_by_processes(tmp_path):
    pixels = np.zeros((300, 300, 3), np.uint8)
    images = rk.ArrayImages(np.stack([pixels] * 4), [0] * 4, steps())
    assert rk.DataLoader(images, num_workers=8).report().threads == 1
    (tmp_path / "a").mkdir()
    Image.fromarray(pixels).save(tmp_path / "a" / "0.ppm")
    assert rk.DataLoader(rk.open(tmp_path, transform=steps()), num_workers=8).report().threads == 1


def test_packed_pixels_are_loaded_by_threads(tmp_path):
    """Whole units of them run without the GIL: threads take less CPU than as many processes."""
    (tmp_path / "a").mkdir()
    Image.fromarray(np.zeros((400, 400, 3), np.uint8)).save(tmp_path / "a" / "0.ppm")
    rk.pack(tmp_path, tmp_path / "x.h5", progress=False)
    loader = rk.DataLoader(rk.open(tmp_path / "x.h5", transform=steps()), num_workers=8)
    assert loader.report().threads == MOST_THREADS


class Draws(Declared):
    draws_nothing = False


class Holds(Declared):
    releases_gil = False


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (Draws(), {}),
        (Holds(), {}),
        (Declared(), {"collate_fn": list}),
        (Declared(), {"worker_init_fn": print}),
        (Declared(), {"executor": "processes"}),
        (Declared(), {"final_transform": tuple}),
        (Declared(), {"reuse": rk.Refurbish(2), "final_transform": tuple, "shuffle": True}),
    ],
    ids=["draws", "holds the GIL", "collates", "init", "processes", "final", "reuses"],
)
def test_one_worker_a_process_where_threads_could_be_seen(dataset, options):
    loader = rk.DataLoader(dataset, 8, num_workers=4, **options)
    assert loader.report().threads == 1


# The parts by themselves.


def test_a_careful_unit_is_alone():
    status = [NOT_ALONE] * 3
    gate = UnitGate(status)
    gate.enter(0, careful=False)
    alone = threading.Thread(target=gate.enter, args=(1, True), daemon=True)
    alone.start()
    eventually(lambda: gate._is_closed)
    later = threading.Thread(target=gate.enter, args=(2, False), daemon=True)
    later.start()
    assert status == [NOT_ALONE] * 3  # It waits for the one that loads.
    gate.leave(0, careful=False)
    alone.join(HANGS)
    assert status == [NOT_ALONE, ALONE, NOT_ALONE]
    assert later.is_alive()  # It waits for the careful one.
    gate.leave(1, careful=True)
    later.join(HANGS)
    assert not later.is_alive()
    assert status == [NOT_ALONE] * 3


PHOTOGRAPHS = 64 * 3 * 224 * 224 * 4  # bytes of a batch


def test_batches_in_flight_do_not_grow_with_workers():
    def size(workers, rows=64, nbytes=PHOTOGRAPHS, whole=False, given=None):
        window = Window(workers, given, whole=whole)
        window.note_batch(rows)
        window.note_batch(rows, nbytes)
        return window.size

    assert [size(workers) for workers in (1, 2, 4, 16, 64)] == [2, 3, 4, 4, 4]
    assert size(128) == 8  # or there would be no sample for each of them to go on with
    assert size(16, rows=1, nbytes=PHOTOGRAPHS // 64) == 64
    assert size(16, nbytes=1 << 20) == 32  # Small batches take little memory, and short samples need more.
    assert [size(workers, whole=True) for workers in (2, 16)] == [4, 32]
    assert size(16, given=5) == 5


@pytest.mark.parametrize(
    ("nbytes", "expected"), [(1 << 10, 8), (1 << 19, 8), (1 << 20, 4), (PHOTOGRAPHS, 3), (0, 3)]
)
def test_more_tiny_batches_are_in_flight_where_nobody_sees_it(nbytes, expected):
    def window(given=None, whole=False, planned=True):
        window = Window(2, given, whole=whole, planned=planned)
        window.note_batch(64, nbytes)
        return window

    assert window().size == expected
    assert window().usual == window(planned=False).size == window(planned=False).usual <= 4
    assert window(given=3).size == 3
    assert window(whole=True).size == 4
    many = Window(128, None, whole=False, planned=True)
    many.note_batch(64, 1 << 10)
    assert many.size == many.usual  # Each takes two open files.


class Counted:
    """A sampler that counts how many indices it was asked for."""

    def __init__(self, size):
        self.size, self.given = size, 0

    def __len__(self):
        return self.size

    def __iter__(self):
        for index in range(self.size):
            self.given += 1
            yield index


@pytest.mark.parametrize(
    ("options", "batches"), [({}, 4), ({"prefetch_factor": 2}, 6), ({"prefetch_factor": 3}, 9)]
)
def test_prefetch_factor_means_what_it_means_in_torch_if_it_is_given(options, batches):
    sampler = Counted(200)
    iterator = iter(rk.DataLoader(Declared(200), 10, sampler=sampler, num_workers=3, **options))
    assert sampler.given == 10 * batches
    assert len(list(iterator)) == 20


def test_a_prefetch_factor_that_is_set_later_counts():
    sampler = Counted(200)
    loader = rk.DataLoader(Declared(200), 10, sampler=sampler, num_workers=3)
    loader.prefetch_factor = 1
    iterator = iter(loader)
    assert sampler.given == 30
    del iterator


def test_native_images_are_the_same_in_threads_of_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "threads_per_process", lambda *_: 2)
    (tmp_path / "a").mkdir()
    noise = np.random.default_rng(1)
    for number in range(12):
        Image.fromarray(noise.integers(0, 255, (40, 40, 3), np.uint8)).save(tmp_path / "a" / f"{number}.jpg")
    dataset = rk.open(tmp_path, transform=[T.RandomResizedCrop(16), T.ToTensor()])
    expected = [x for x, _ in rk.DataLoader(dataset, 5, seed=2)]
    loader = rk.DataLoader(dataset, 5, seed=2, num_workers=3)
    assert all(torch.equal(a, x) for a, (x, _) in zip(expected, loader, strict=True))
    assert "2 processes × up to 2 threads" in str(loader.report())
