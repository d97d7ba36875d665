"""Echoes of what a user's sampler or a stream yields."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DistributedSampler,
    IterableDataset,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
    get_worker_info,
)

import rekindle as rk
from echoed import BATCH, SIZE, STEPS, WAYS, Counted, epochs, load, make_images
from same import digest, same


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images"))


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
