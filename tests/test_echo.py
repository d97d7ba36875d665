"""Echoes: each sample is read once an epoch and used several times; lengths known, bytes exact."""

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
    get_worker_info,
)

import rekindle as rk
from photographs import photographs
from same import digest, same
from waiting import HANGS

T = rk.transforms
SIZE, BATCH = 20, 6
STEPS = [T.RandomResizedCrop(40), T.RandomHorizontalFlip(), T.ToTensor()]
WAYS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "2 threads": {"num_workers": 2, "executor": "threads"},
    "2 processes": {"num_workers": 2, "executor": "processes"},
}
AFTER = ["read", "decode", "augment", "batch", "RandomResizedCrop"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images") / "one"
    folder.mkdir()
    for number in range(SIZE):
        photograph = photographs()[number % 8][:90, number : number + 100]
        Image.fromarray(np.ascontiguousarray(photograph)).save(folder / f"{number:03}.jpg")
    return folder.parent


def load(dataset: Any, **settings: Any) -> Any:
    return rk.DataLoader(dataset, **{"batch_size": BATCH, "shuffle": True, "seed": 3, **settings})


def epochs(loader: Any, count: int = 2) -> list[Any]:
    return [[part.clone() for part in batch] for _ in range(count) for batch in loader]


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("factor", [1, 1.5, 2, 3.25])
def test_the_length_is_right_and_repeats_are_marked(root: Path, after: str, factor: float) -> None:
    loader = load(rk.open(root, transform=STEPS), reuse=rk.Echo(factor, after, shuffle=8), num_workers=2)
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


def views(root: Path, after: str) -> list[list[bytes]]:
    """What each sample looked like in one epoch."""
    loader = load(rk.open(root, transform=STEPS), reuse=rk.Echo(4, after, shuffle=4))
    seen: dict[int, list[bytes]] = {}
    for images, _ in loader:
        for id_, image in zip(loader.batch.ids.tolist(), images, strict=True):
            seen.setdefault(id_, []).append(image.numpy().tobytes())
    return list(seen.values())


@pytest.mark.parametrize(
    ("after", "least", "most"),
    [("read", 4, 4), ("decode", 4, 4), ("RandomResizedCrop", 1.5, 2), ("augment", 1, 1), ("batch", 1, 1)],
)
def test_what_comes_after_the_echo_is_recomputed(root: Path, after: str, least: float, most: float) -> None:
    seen = views(root, after)
    assert {len(ones) for ones in seen} == {4}
    assert least <= np.mean([len(set(ones)) for ones in seen]) <= most


class Counted(Dataset[Any]):
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked: Counter[int] = Counter()

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        self.asked[index] += 1
        return torch.full((5,), index), torch.rand(1)


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


# Samplers.

SAMPLERS: dict[str, Callable[[Any], Any]] = {
    "in order": SequentialSampler,
    "a rank's": lambda dataset: DistributedSampler(dataset, num_replicas=2, rank=1, seed=4),
    "some twice": lambda dataset: WeightedRandomSampler(
        torch.arange(SIZE).tolist(), 30, generator=torch.Generator().manual_seed(5)
    ),
}


@pytest.mark.parametrize("which", ["in order", "some twice"])
def test_the_samples_of_a_sampler_are_echoed(root: Path, which: str) -> None:
    dataset = rk.open(root, transform=STEPS)
    drawn = Counter(SAMPLERS[which](dataset))
    loader = load(
        dataset, shuffle=None, sampler=SAMPLERS[which](dataset), reuse=rk.Echo(2, "decode", shuffle=8)
    )
    uses: Counter[int] = Counter()
    fresh: Counter[int] = Counter()
    views = set()
    for images, _ in loader:
        uses.update(loader.batch.ids.tolist())
        fresh.update(loader.batch.ids[loader.batch.fresh].tolist())
        views.update(digest(image) for image in images)
    assert uses == {index: 2 * count for index, count in drawn.items()}
    assert fresh == dict.fromkeys(drawn, 1)
    assert len(views) == uses.total()  # Every copy is augmented by itself, also of what is drawn twice.
    assert len(loader) == -(-uses.total() // BATCH)
    loader.close()


def test_ranks_of_a_distributed_sampler_echo_every_sample_once_among_them(root: Path) -> None:
    dataset = rk.open(root, transform=STEPS)
    uses: Counter[int] = Counter()
    for rank in range(2):
        sampler = DistributedSampler(dataset, num_replicas=2, rank=rank, seed=4)
        with load(dataset, shuffle=None, sampler=sampler, reuse=rk.Echo(2, "decode", shuffle=8)) as loader:
            for _ in loader:
                uses.update(loader.batch.ids.tolist())
            assert len(loader) == -(-SIZE // BATCH)
    assert uses == dict.fromkeys(range(SIZE), 2)


@pytest.mark.parametrize("which", SAMPLERS)
@pytest.mark.parametrize("way", WAYS)
def test_echoes_of_a_sampler_are_resumed(root: Path, which: str, way: str) -> None:
    dataset = rk.open(root, transform=STEPS)

    def echoing(**settings: Any) -> Any:
        sampler = SAMPLERS[which](dataset)
        return load(dataset, shuffle=None, sampler=sampler, reuse=rk.Echo(2.5, "read", shuffle=4), **settings)

    whole = epochs(echoing(), 2)
    loader = echoing(num_workers=1)
    iterator = iter(loader)
    next(iterator), next(iterator)
    resumed = echoing(**WAYS[way])
    resumed.load_state_dict(loader.state_dict())
    assert same(epochs(resumed, 2), whole[2:])
    loader.close(), resumed.close()


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("factor", [1, 1.5, 2])
def test_a_sampler_loses_no_more_than_an_echoed_batch(factor: float, drop_last: bool) -> None:
    settings: dict[str, Any] = {"reuse": rk.Echo(factor, shuffle=4), "drop_last": drop_last}
    loader = load(Counted(), shuffle=None, sampler=SequentialSampler(range(SIZE)), **settings)
    assert len(list(loader)) == len(loader) == len(load(Counted(), **settings))


class Remembering(Sampler[int]):
    """A sampler with a generator of its own, which can be saved."""

    def __init__(self) -> None:
        self._turn = 7

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[int]:
        self._turn += 1
        yield from np.random.default_rng(self._turn).permutation(SIZE).tolist()

    def state_dict(self) -> dict[str, int]:
        return {"turn": self._turn}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._turn = state["turn"]


@pytest.mark.parametrize("stop", [0, 2, 11])
def test_a_sampler_with_a_state_is_resumed_from_it(stop: int) -> None:
    def echoing() -> Any:
        return load(Counted(), shuffle=None, sampler=Remembering(), reuse=rk.Echo(2, "read", shuffle=4))

    def ids(loader: Any, batches: Any) -> list[list[int]]:
        return [loader.batch.ids.tolist() for _ in batches]

    whole = echoing()
    expected = [batch for _ in range(3) for batch in ids(whole, whole)]
    assert expected[:7] != expected[7:14]
    loader = echoing()
    taken = 0
    while taken < stop:
        taken += len(ids(loader, islice(loader, stop - taken)))
    resumed = echoing()
    resumed.load_state_dict(loader.state_dict())
    assert [batch for _ in range(2) for batch in ids(resumed, resumed)][:7] == expected[stop : stop + 7]


# Streams.


class Stream(IterableDataset[Any]):
    """Numbers, each worker its own; with a random part."""

    def __init__(self, size: int = 40) -> None:
        self.size = size

    def __iter__(self) -> Any:
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(start, self.size, step):
            yield torch.tensor([float(number)]), torch.rand(1)


class Sized(Stream):
    def __len__(self) -> int:
        return self.size


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("after", ["read", "augment", "batch"])
@pytest.mark.parametrize("factor", [1.5, 2])
def test_a_stream_is_echoed(workers: int, after: str, factor: float) -> None:
    loader = rk.DataLoader(
        Sized(36), batch_size=4, num_workers=workers, seed=1, reuse=rk.Echo(factor, after, shuffle=6)
    )
    for _ in range(2):
        uses: Counter[float] = Counter()
        fresh: Counter[float] = Counter()
        batches = 0
        for numbers, _ in loader:
            uses.update(numbers[:, 0].tolist())
            fresh.update(numbers[:, 0][loader.batch.fresh].tolist())
            batches += 1
        assert set(uses) == {float(number) for number in range(36)}
        assert set(uses.values()) <= {int(factor), int(np.ceil(factor))}
        assert set(fresh.values()) == {1}
        if workers < 2:  # Each of several workers may end with a batch that is not full.
            assert batches == len(loader)
    loader.close()


def shifted(sample: Any) -> Any:
    return sample[0] + torch.rand(1), sample[1]


def test_the_final_transform_of_a_stream_is_applied_to_each_repeat_or_once() -> None:
    for after, distinct in (("read", 2), ("augment", 1)):
        loader = rk.DataLoader(
            Stream(), batch_size=4, seed=1, reuse=rk.Echo(2, after, shuffle=6), final_transform=shifted
        )
        seen: dict[int, set[float]] = {}
        for numbers, _ in loader:
            for value in numbers[:, 0].tolist():
                seen.setdefault(int(value), set()).add(value)
        assert {len(values) for values in seen.values()} == {distinct}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("after", ["read", "batch"])
def test_a_stream_of_echoes_is_resumed(workers: int, after: str) -> None:
    def make() -> Any:
        return rk.DataLoader(
            Stream(), batch_size=4, num_workers=workers, seed=1, reuse=rk.Echo(2, after, shuffle=6)
        )

    whole = epochs(make(), 2)
    loader = make()
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert same(epochs(resumed, 2), whole[5:])
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
