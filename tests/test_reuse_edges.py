"""Reuse beside all else: steps that write in place, samplers, worker_init_fn, streams, ranks."""

import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, SubsetRandomSampler, get_worker_info

import rekindle as rk
from light_torchvision import torchvision
from rekindle.reuse.cache import memory_budget as budget
from rekindle.reuse.cache.memory_budget import memory_budget
from same import digest, same

T = rk.transforms
V = torchvision.transforms
SIZE, BATCH = 20, 6


def load(dataset: Any, **settings: Any) -> Any:
    return rk.DataLoader(dataset, **{"batch_size": BATCH, "shuffle": True, "seed": 3, **settings})


def images(steps: list[Any]) -> Any:
    pixels = np.random.default_rng(0).integers(0, 256, (SIZE, 12, 12, 3), dtype=np.uint8)
    return rk.ArrayImages(pixels, range(SIZE), transform=steps)


# What is kept is not written to.

NORMALIZE = T.Normalize((0.5, 0.4, 0.3), (0.2, 0.2, 0.2), inplace=True)
WRITING = [T.RandomHorizontalFlip(), T.ToTensor(), NORMALIZE, T.RandomErasing(p=1, inplace=True)]
WRITTEN_TO = {
    "before RandomErasing": rk.Refurbish(3, split="RandomErasing"),
    "before Normalize": rk.Refurbish(3, split="Normalize"),
    "after ToTensor": rk.Echo(3, after="ToTensor", shuffle=4),
    "after all": rk.Refurbish(3, split=4),
}


def zeroed(sample: Any) -> torch.Tensor:
    """A copy of a sample's image, which is then overwritten."""
    copy = sample[0].clone()
    sample[0].zero_()
    return copy


def collate_and_spoil(samples: list[Any]) -> torch.Tensor:
    return torch.stack([zeroed(sample) for sample in samples])


@pytest.mark.parametrize("cut", WRITTEN_TO)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("collate_fn", [None, collate_and_spoil])
def test_steps_and_functions_that_write_in_place_leave_the_cache_as_it_was(
    cut: str, workers: int, collate_fn: Any
) -> None:
    settings: dict[str, Any] = {"reuse": WRITTEN_TO[cut], "collate_fn": collate_fn}
    bare = load(images(WRITING), memory=0, **settings)
    loader = load(images(WRITING), num_workers=workers, **settings)
    for _ in range(4):
        assert digest(list(loader)) == digest(list(bare))
    assert loader.report().reuse.store.hits > SIZE
    loader.close()


@pytest.mark.parametrize("steps", [[T.ToTensor()], []], ids=["tensors", "arrays"])
def test_samples_that_are_handed_over_one_by_one_are_no_views_of_the_cache(steps: list[Any]) -> None:
    loader = load(images(steps), batch_size=None, reuse=rk.Refurbish(4, split=len(steps)))
    seen: dict[int, set[str]] = {}
    for _ in range(4):
        for image, label in loader:
            seen.setdefault(label, set()).add(digest(image))
            image[:] = 0
    assert {len(views) for views in seen.values()} == {1}


# Whole batches.


class Uneven(Dataset[int]):
    """Of which one sample takes long."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> int:
        time.sleep(0.1 if index == 0 else 0)
        return index


def test_batches_that_overtake_each_other_are_all_repeated() -> None:
    settings: dict[str, Any] = {"batch_size": 2, "shuffle": False, "reuse": rk.Echo(2, "batch", shuffle=3)}
    expected = list(load(Uneven(), **settings))
    loader = load(Uneven(), num_workers=2, in_order=False, worker_init_fn=a_batch_each, **settings)
    iterator = iter(loader)
    found = [next(iterator) for _ in range(len(loader))]
    assert same(found, expected)
    assert next(iterator, None) is None
    loader.close()


def a_batch_each(_: int) -> None:
    """Does nothing, but with it workers make whole batches."""


@pytest.mark.parametrize(("settings", "most"), [({}, 16), ({"shuffle": 40}, 40)])
def test_few_batches_are_kept_unless_more_are_asked_for(settings: dict[str, int], most: int) -> None:
    loader = load(range(300), batch_size=1, shuffle=False, reuse=rk.Echo(2, "batch", **settings))
    places: dict[int, list[int]] = {}
    for place, batch in enumerate(loader):
        places.setdefault(batch.item(), []).append(place)
    apart = [second - first for first, second in places.values()]
    assert most // 2 < max(apart) <= 2 * most
    assert f"shuffle={most})" in loader.state_dict()["reuse"]


def test_samples_are_shuffled_as_far_as_ever() -> None:
    assert rk.Echo(2).buffer == 4096
    assert "shuffle=4096)" in load(range(SIZE), reuse=rk.Echo(2)).state_dict()["reuse"]


# Samplers.


def without_a_warning(**settings: Any) -> Any:
    return rk.Refurbish(3, split=1, balance=None, **settings)


@pytest.mark.parametrize("reuse", [without_a_warning(), rk.Echo(2, after="decode", shuffle=4)], ids=repr)
@pytest.mark.parametrize("kind", [np.arange, torch.arange])
def test_samplers_may_give_whole_numbers_of_any_kind(reuse: Any, kind: Any) -> None:
    dataset = images([T.RandomCrop(8), T.RandomHorizontalFlip(), T.ToTensor()])

    def made(indices: Any) -> Any:
        sampler = SubsetRandomSampler(indices, generator=torch.Generator().manual_seed(1))
        return load(dataset, shuffle=None, sampler=sampler, reuse=reuse)

    whole = made(list(range(12)))
    expected = [digest(batch) for _ in range(3) for batch in whole]
    loader = made(kind(12))
    next(iter(loader))
    resumed = made(kind(12))
    resumed.load_state_dict(loader.state_dict())
    found = [digest(batch) for _ in range(3) for batch in resumed]
    assert found == expected[1:]


class Gaps(Dataset[Any]):
    """Of which one sample cannot be made."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 9:
            raise OSError("no such sample")
        return torch.tensor(index)


def same_again(sample: Any) -> Any:
    return sample


def test_what_stands_in_for_a_sample_is_kept_under_its_own_number() -> None:
    def batches(indices: Any) -> list[list[int]]:
        loader = load(
            Gaps(), shuffle=None, sampler=indices, on_error="substitute", error_budget=1,
            reuse=rk.Refurbish(2, balance=None), final_transform=same_again,
        )  # fmt: skip
        return [[batch.tolist(), loader.batch.ids.tolist()] for _ in range(3) for batch in loader]

    found = batches(np.arange(SIZE))
    assert found == batches(range(SIZE))
    assert all(values == ids for values, ids in found)


@pytest.mark.parametrize("index", [True, 1.0, "1"])
def test_what_is_no_integer_is_refused(index: Any) -> None:
    for reuse in (rk.Refurbish(2, balance=None), rk.Echo(2)):
        loader = load(Gaps(), shuffle=None, sampler=[index], reuse=reuse, final_transform=same_again)
        with pytest.raises(rk.ArgumentError, match=f"integers; this one yielded {index!r}"):
            list(loader)


# Workers and their dataset.


class Range(IterableDataset[int]):
    """As in torch's documentation."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))


def share_out(worker: int) -> None:
    """As in torch's documentation."""
    info = get_worker_info()
    assert info is not None
    whole: Any = info.dataset
    each = -(-(whole.end - whole.start) // info.num_workers)
    whole.start += worker * each
    whole.end = min(whole.start + each, whole.end)


def doubled(number: int) -> int:
    return 2 * number


@pytest.mark.parametrize(
    ("settings", "uses"),
    [
        ({"reuse": rk.Echo(2, shuffle=4)}, 2),
        ({"reuse": rk.Echo(2, "batch", shuffle=4)}, 2),
        ({"final_transform": doubled}, 1),
        ({"reuse": rk.Echo(3, "augment", shuffle=4), "final_transform": doubled}, 3),
    ],
)
def test_a_stream_is_shared_out_by_the_function_for_workers(settings: dict[str, Any], uses: int) -> None:
    loader = rk.DataLoader(
        Range(3, 15), batch_size=3, num_workers=2, worker_init_fn=share_out, seed=1, **settings
    )
    step = 2 if "final_transform" in settings else 1
    seen = Counter(number for batch in loader for number in batch.tolist())
    assert seen == {step * number: uses for number in range(3, 15)}
    loader.close()


class Opened(Dataset[Any]):
    """What it gives depends on what a worker has set."""

    def __init__(self) -> None:
        self.transform = V.Compose([doubled, torch.tensor])
        self.offset: int | None = None

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        assert self.offset is not None, "not opened"
        return self.transform(index + self.offset)


def open_it(_: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.offset = 100


@pytest.mark.parametrize(
    "settings",
    [
        {"reuse": rk.Refurbish(2, split=1)},
        {"reuse": rk.Echo(1, "decode")},
        {"reuse": rk.Echo(1, "augment"), "final_transform": same_again},
        {"reuse": rk.Refurbish(2), "final_transform": same_again},
        {"final_transform": same_again},
    ],
)
def test_the_data_set_that_a_worker_is_told_of_is_the_one_that_is_read(settings: dict[str, Any]) -> None:
    loader = load(Opened(), num_workers=1, worker_init_fn=open_it, **settings)
    seen = sorted(number for batch in loader for number in batch.tolist())
    assert seen == [2 * (number + 100) for number in range(SIZE)]
    loader.close()


# Reports of streams.


class Pictures(IterableDataset[Any]):
    """A stream with a transform, and without a length."""

    def __init__(self) -> None:
        self.transform = V.Compose([V.RandomHorizontalFlip(), V.Normalize([0.5], [0.5])])

    def __iter__(self) -> Iterator[Any]:
        return (self.transform(torch.full((3, 4, 4), float(number))) for number in range(SIZE))


@pytest.mark.parametrize("after", ["decode", "augment", "batch"])
def test_the_report_of_an_echoed_stream_claims_no_cut_among_its_steps(after: str) -> None:
    loader = rk.DataLoader(Pictures(), batch_size=4, reuse=rk.Echo(2, after, shuffle=4))
    assert len(list(loader)) == 10
    report = loader.report()
    assert report.reuse is not None
    assert report.reuse.expected is None
    assert "split=" not in report.reuse.split
    assert str(report)


# Memory.


@pytest.mark.parametrize(
    ("told", "ranks"),
    [(None, 1), ("1", 1), ("4", 4), ("0", 1), ("", 1), ("-2", 1), ("many", 1), ("2.5", 1)],
)
def test_the_ranks_of_a_machine_share_half_of_its_memory(
    monkeypatch: pytest.MonkeyPatch, told: str | None, ranks: int
) -> None:
    monkeypatch.setattr(budget, "available_memory", lambda: 64 << 20)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if told is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", told)
    assert memory_budget("auto") == (32 << 20) // ranks
    assert memory_budget(8 << 20) == 8 << 20
    monkeypatch.setattr(budget, "available_memory", lambda: None)
    assert memory_budget("auto") * ranks == 1 << 30
    assert memory_budget("auto") % os.sysconf("SC_PAGE_SIZE") == 0
