"""Echoes: each sample is read once an epoch and used several times; lengths known, bytes exact."""

import multiprocessing
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    SequentialSampler,
)

import rekindle as rk
from echoed import AFTER, BATCH, SIZE, STEPS, WAYS, Counted, epochs, load, make_images, views
from same import digest, same
from waiting import HANGS


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images"))


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("factor", [1, 1.5, 2, 3.25])
def test_the_length_is_right_and_repeats_are_marked(root: Path, after: str, factor: float) -> None:
    workers = 2 if factor == 1.5 else 1
    reuse = rk.Echo(factor, after, shuffle=8)
    loader = load(rk.open(root, transform=STEPS), reuse=reuse, num_workers=workers)
    for _ in range(2):
        uses: Counter[int] = Counter()
        fresh: Counter[int] = Counter()
        steps = []
        for images, _ in loader:
            info = loader.batch
            assert len(images) == len(info.ids) == len(info.fresh)
            uses.update(info.ids.tolist())
            fresh.update(info.ids[info.fresh].tolist())
            steps.append(info.step)
        assert len(steps) == len(loader)
        assert steps == list(range(len(loader)))
        assert set(fresh.values()) == {1}
        if after == "batch":  # Of four batches, ⌊4 · factor⌋.
            assert len(loader) == int(4 * factor)
        else:
            assert sum(uses.values()) == int(SIZE * factor)
            assert set(uses.values()) <= {int(factor), int(np.ceil(factor))}
        assert set(uses) == set(range(SIZE))
    loader.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("after", AFTER)
def test_the_same_bytes_with_any_cache_and_any_workers(root: Path, way: str, after: str) -> None:
    dataset = rk.open(root, transform=STEPS)
    reuse = rk.Echo(2.5, after, shuffle=8)
    bare = digest(epochs(load(dataset, reuse=reuse, memory=0)))
    loader = load(dataset, reuse=reuse, **WAYS[way])
    assert digest(epochs(loader)) == bare
    loader.close()


@pytest.mark.parametrize(
    ("after", "least", "most"),
    [("read", 4, 4), ("decode", 4, 4), ("RandomResizedCrop", 1.5, 2), ("augment", 1, 1), ("batch", 1, 1)],
)
def test_what_comes_after_the_echo_is_recomputed(root: Path, after: str, least: float, most: float) -> None:
    seen = views(root, after)
    assert {len(ones) for ones in seen} == {4}
    assert least <= np.mean([len(set(ones)) for ones in seen]) <= most


def jittered(sample: Any) -> Any:
    return sample[0] + torch.rand(5), sample[1]


@pytest.mark.parametrize("after", ["read", "decode", "augment", "batch"])
def test_a_sample_is_read_once_an_epoch(after: str) -> None:
    dataset = Counted()
    loader = load(dataset, reuse=rk.Echo(3, after, shuffle=5), final_transform=jittered)
    epochs(loader, 1)
    assert (
        set(dataset.asked.values()) == {1} or sum(dataset.asked.values()) <= SIZE + BATCH
    )  # the first, twice
    assert set(dataset.asked) == set(range(SIZE))


def test_a_cached_sample_is_dropped_after_its_last_use() -> None:
    loader = load(Counted(), batch_size=1, reuse=rk.Echo(1.5, "read", shuffle=4), final_transform=jittered)
    most = 0
    for _ in loader:
        most = max(most, loader.report().reuse.store.entries)
    assert 0 < most <= 6
    assert loader.report().reuse.store.entries == 0


def test_writing_to_a_batch_does_not_change_its_repeats() -> None:
    loader = load(Counted(), reuse=rk.Echo(3, "batch", shuffle=0))
    for values, _ in loader:
        assert sorted(values[:, 0].tolist()) == sorted(loader.batch.ids.tolist())
        values.zero_()


@pytest.mark.parametrize("after", ["decode", "batch"])
@pytest.mark.parametrize("stop", [1, 3, 7])
@pytest.mark.parametrize("way", WAYS)
def test_resuming_anywhere_yields_the_same_bytes(root: Path, after: str, stop: int, way: str) -> None:
    dataset = rk.open(root, transform=STEPS)
    reuse = rk.Echo(2.5, after, shuffle=4)
    whole = epochs(load(dataset, reuse=reuse), 2)
    loader = load(dataset, reuse=reuse, num_workers=1)
    iterator = iter(loader)
    for _ in range(stop):
        next(iterator)
    state = loader.state_dict()
    resumed = load(dataset, reuse=reuse, **WAYS[way])
    resumed.load_state_dict(state)
    assert same(epochs(resumed, 2), whole[stop:])
    with pytest.raises(rk.StateError, match="reuse"):
        load(dataset, reuse=rk.Echo(2, after, shuffle=4)).load_state_dict(state)
    loader.close(), resumed.close()


# What cannot work, and what repeats wait for.


def test_what_cannot_work_is_refused(root: Path) -> None:
    dataset = rk.open(root, transform=STEPS)
    in_order = SequentialSampler(dataset)
    with pytest.raises(rk.ArgumentError, match="whole batches are repeated"):
        load(dataset, shuffle=None, sampler=in_order, reuse=rk.Echo(2, "batch"))
    with pytest.raises(rk.ArgumentError, match="does not go with a batch_sampler"):
        rk.DataLoader(dataset, batch_sampler=BatchSampler(in_order, 3, False), reuse=rk.Echo(2))
    with pytest.raises(rk.ArgumentError, match="generator has no length"):
        load(dataset, shuffle=None, sampler=(number for number in range(3)), reuse=rk.Echo(2))
    with pytest.raises(rk.ArgumentError, match="integers; this one yielded 'a'"):
        list(load(dataset, shuffle=None, sampler=["a"], reuse=rk.Echo(2)))
    with pytest.raises(rk.ArgumentError, match="factor is 0"):
        rk.Echo(0)
    with pytest.raises(rk.ArgumentError, match="after is 3"):
        rk.Echo(2, 3)  # type: ignore[arg-type]
    with pytest.raises(rk.ArgumentError, match="shuffle is -1"):
        rk.Echo(2, shuffle=-1)
    with pytest.raises(rk.ArgumentError, match="the steps are"):
        load(dataset, reuse=rk.Echo(2, "Blur"))


class Held(Dataset[int]):
    """From the fifth sample on, nothing can be read before the test allows it."""

    def __init__(self) -> None:
        self.allowed = multiprocessing.get_context("fork").Event()

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        if index >= 4:
            assert self.allowed.wait(HANGS)
        return index


def test_repeats_go_on_while_the_source_reads() -> None:
    """What that saves is measured by the benchmark `echo`."""
    dataset = Held()
    loader = load(dataset, batch_size=4, num_workers=1, reuse=rk.Echo(3, "read", shuffle=0), shuffle=False)
    iterator = iter(loader)
    uses = torch.cat([next(iterator) for _ in range(3)]).tolist()
    assert uses == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert not dataset.allowed.is_set()
    dataset.allowed.set()
    uses += torch.cat(list(iterator)).tolist()
    assert Counter(uses) == dict.fromkeys(range(24), 3)
    loader.close()


@pytest.mark.parametrize(("factor", "shuffle"), [(1.5, 8), (1.2, 16), (3, 16)])
def test_echoed_batches_resume_after_every_one_of_them(factor: float, shuffle: int) -> None:
    def make() -> rk.DataLoader[Any]:
        echo = rk.Echo(factor, after="batch", shuffle=shuffle)
        return rk.DataLoader(range(331), batch_size=16, shuffle=True, seed=7, reuse=echo)

    loader = make()
    for _ in range(2):
        batches, states = [], []
        for batch in loader:
            batches.append((loader.batch.step, batch.tolist()))
            states.append(loader.state_dict())
        for position, state in enumerate(states, 1):
            resumed = make()
            resumed.load_state_dict(state)
            rest = [(resumed.batch.step, batch.tolist()) for batch in resumed]
            assert rest == batches[position:], position
