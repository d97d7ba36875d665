"""A sample that is drawn several times in an epoch gives another view each time, the same on every run."""

import random
from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    Subset,
    WeightedRandomSampler,
)

import rekindle as rk
from rekindle.choose.draws import DrawCounts, earlier_occurrences
from rekindle.choose.partition import Share, share_of
from resumable import through_a_file

SIZE = 12
T = rk.transforms


class Noisy(Dataset):
    """Draws from all three generators."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return index, random.random() + np.random.rand() + float(torch.rand(()))


class Together(Noisy):
    """Loads a whole batch at once."""

    def __getitems__(self, indices):
        return [self[index] for index in indices]


def arrays():
    pixels = np.random.RandomState(0).randint(0, 256, (SIZE, 16, 16, 3)).astype(np.uint8)
    return rk.ArrayImages(pixels, np.arange(SIZE), [T.RandomResizedCrop(12), T.ColorJitter(0.5)])


def views(batches):
    """The index and the bytes of every sample, in order."""
    return [
        (int(index), value.numpy().tobytes() if isinstance(value, torch.Tensor) else value)
        for index, value in islice(_rows(batches), None)
    ]


def _rows(batches):
    for first, second in batches:
        indices, values = (first, second) if first.dim() == 1 else (second, first)
        yield from zip(indices.tolist(), values, strict=True)


def weighted(count=30):
    return WeightedRandomSampler(range(1, SIZE + 1), count, generator=torch.Generator().manual_seed(1))


DATASETS = {
    "third-party": Noisy,
    "together": Together,
    "native": arrays,
    "subset": lambda: Subset(arrays(), list(range(SIZE))),
}
ORDERS = {
    "weighted": lambda: {"sampler": weighted(), "batch_size": 4},
    "replacement": lambda: {
        "sampler": RandomSampler(
            range(SIZE), replacement=True, num_samples=30, generator=torch.Generator().manual_seed(1)
        ),
        "batch_size": 4,
    },
    "batch_sampler": lambda: {"batch_sampler": [[3, 3, 1], [1, 3], [3, 3], [2]]},
    "repeated augmentation": lambda: {"sampler": [i for i in range(SIZE) for _ in range(3)], "batch_size": 5},
    "numpy integers": lambda: {"sampler": list(np.arange(24) % 8), "batch_size": 5},
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dataset", DATASETS)
def test_each_draw_of_a_sample_is_a_view_of_its_own(dataset, order):
    loader = rk.DataLoader(DATASETS[dataset](), seed=3, **ORDERS[order]())
    seen = views(loader) + views(loader)
    repeats = Counter(index for index, _ in seen)
    assert max(repeats.values()) > 3
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("dataset", ["third-party", "native"])
def test_the_first_draw_is_the_view_that_a_sample_has_where_none_is_repeated(dataset):
    data = DATASETS[dataset]()
    once = dict(views(rk.DataLoader(data, batch_size=4, seed=3)))
    drawn = views(rk.DataLoader(data, seed=3, batch_sampler=[[3, 3, 1], [1, 3, 2]]))
    assert [index for index, value in drawn if value == once[index]] == [3, 1, 2]


class Resumable(Sampler):
    """Repeats samples, and is resumed by its own state: what it gave before is not drawn again."""

    def __init__(self, batches):
        self.batches, self.place = batches, 0

    def __iter__(self):
        while self.place < len(self.batches):
            self.place += 1
            yield self.batches[self.place - 1]
        self.place = 0

    def __len__(self):
        return len(self.batches)

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


@settings(max_examples=12, deadline=None)
@given(
    batches=st.lists(st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=5), min_size=2, max_size=6),
    stateful=st.booleans(),
    kind=st.sampled_from(["third-party", "native"]),
    executors=st.sampled_from(
        [[{"num_workers": 1}], [{"num_workers": 2}], [{"num_workers": 2, "executor": "threads"}]]
    ),
    data=st.data(),
)
def test_any_repeats_give_the_same_bytes_for_any_workers_from_any_batch(
    batches, stateful, kind, executors, data
):
    dataset = DATASETS[kind]()

    def make(**options):
        sampler = Resumable([list(batch) for batch in batches]) if stateful else batches
        return rk.DataLoader(dataset, batch_sampler=sampler, seed=3, **options)

    with make() as loader:
        first, states = [], []
        for batch in loader:
            first += views([batch])
            states.append(through_a_file(loader.state_dict()))
        second = views(loader)
    assert len(set(first + second)) == len(first + second)
    lengths = np.cumsum([len(batch) for batch in batches])
    place = data.draw(st.integers(1, len(batches) - 1))
    for options in executors:
        with make(**options) as loader:
            assert (views(loader), views(loader)) == (first, second)
        with make(**options) as resumed:
            resumed.load_state_dict(states[place - 1])
            assert (views(resumed), views(resumed)) == (first[lengths[place - 1] :], second)
    with make(num_workers=2) as ahead:  # Workers are ahead of what was yielded; a state is not.
        iterator = iter(ahead)
        views(islice(iterator, place))
        state = through_a_file(ahead.state_dict())
    with make() as resumed:
        resumed.load_state_dict(state)
        assert views(resumed) == first[lengths[place - 1] :]


# With the rest of the library.


def test_samples_that_a_method_of_importance_repeats_have_a_view_each():
    loader = rk.DataLoader(
        Noisy(), batch_size=4, shuffle=True, seed=3, importance=rk.OnlineBatchSelection(epochs=3)
    )
    seen, repeated = [], 0
    for _ in range(3):
        for indices, values in loader:
            seen += zip(indices.tolist(), values.tolist(), strict=True)
            loader.feedback(losses=indices.float())
        repeated = max(repeated, *Counter(index for index, _ in seen[-SIZE:]).values())
    assert repeated > 1
    assert len(set(seen)) == len(seen)


def test_an_image_that_stands_for_its_near_duplicates_has_a_view_for_each():
    groups = rk.RedundantGroups.of([list(range(9))], SIZE)
    method = rk.Buckets(warmup=1, groups=groups, copies="repeat")
    loader = rk.DataLoader(Noisy(), batch_size=4, shuffle=True, seed=3, importance=method)
    for _ in range(3):
        seen = []
        for indices, values in loader:
            seen += zip(indices.tolist(), values.tolist(), strict=True)
            loader.feedback(losses=torch.ones(len(indices)))
        assert len(set(seen)) == len(seen)


class Tripled:
    """A method that has every sample three times an epoch."""

    needs_feedback = False

    def plan(self, epoch, scores):
        return np.repeat(np.arange(len(scores)), 3), None


@pytest.mark.parametrize("redundancy", [None, [[0, 1, 2], [3, 4]]])
def test_repeats_of_a_sample_share_its_cached_part_and_are_finished_each_in_its_own_way(redundancy):
    given = {} if redundancy is None else {"redundancy": rk.Redundancy(redundancy, mode="replace")}
    loader = rk.DataLoader(
        arrays(),
        batch_size=4,
        shuffle=True,
        seed=3,
        importance=Tripled(),
        reuse=rk.Refurbish(2, split=1),
        **given,
    )
    for _ in range(3):
        seen = views(loader)
        assert len(set(seen)) == len(seen) == 3 * SIZE


def partial_and_rest(sample):
    index, drawn = sample
    return index, torch.tensor([drawn, random.random()])


def test_a_sampler_s_repeats_share_the_cached_part():
    loader = rk.DataLoader(
        Noisy(),
        batch_sampler=[[3, 3, 1], [1, 3]],
        seed=3,
        reuse=rk.Refurbish(2, balance=None),
        final_transform=partial_and_rest,
    )
    rows = [row for _, values in loader for row in values.tolist()]
    assert len({first for first, _ in rows}) == 2
    assert len({rest for _, rest in rows}) == 5


def test_without_a_cache_both_parts_are_drawn_anew_for_each_repeat():
    loader = rk.DataLoader(
        Noisy(), batch_sampler=[[3, 3, 1], [1, 3]], seed=3, final_transform=partial_and_rest
    )
    rows = [row for _, values in loader for row in values.tolist()]
    assert len({first for first, _ in rows}) == len({rest for _, rest in rows}) == 5


class Broken(Noisy):
    def __getitem__(self, index):
        if index % 3 == 1:
            raise ValueError("broken")
        return super().__getitem__(index)


@pytest.mark.parametrize(
    "order", [{"shuffle": True}, {"sampler": [0, 1, 1, 4, 7, 10, 2, 3, 4, 4, 1, 5]}], ids=str
)
def test_a_substitute_has_a_view_of_its_own(order):
    def make(**options):
        return rk.DataLoader(
            Broken(), batch_size=4, seed=3, on_error="substitute", error_budget=1.0, **order, **options
        )

    seen = views(make())
    assert len(seen) == SIZE
    assert len(set(seen)) == SIZE
    with make(num_workers=2) as loader:
        assert views(loader) == seen


# Several ranks.


def rank_views(sampler, dataset="third-party"):
    return views(rk.DataLoader(DATASETS[dataset](), batch_size=2, sampler=sampler, seed=3))


class Repeated(Sampler):
    """Repeated augmentation: every sample on several ranks, as timm's RepeatAugSampler has it."""

    def __init__(self, rank, num_replicas):
        self.rank, self.num_replicas = rank, num_replicas

    def __iter__(self):
        return iter([index for index in range(SIZE) for _ in range(3)][self.rank :: self.num_replicas])

    def __len__(self):
        return 3 * SIZE // self.num_replicas


@pytest.mark.parametrize("dataset", ["third-party", "together", "native"])
def test_ranks_that_draw_the_same_samples_have_different_views(dataset):
    for world in (2, 3):
        everyone = [row for rank in range(world) for row in rank_views(Repeated(rank, world), dataset)]
        assert len(set(everyone)) == len(everyone) == 3 * SIZE


def test_views_do_not_depend_on_how_many_ranks_divide_the_samples():
    worlds = []
    for world in (1, 2, 4):
        samplers = [DistributedSampler(range(SIZE), world, rank, seed=5) for rank in range(world)]
        worlds.append(sorted(row for sampler in samplers for row in rank_views(sampler)))
    assert worlds[0] == worlds[1] == worlds[2]


def test_the_rank_is_in_the_key_unless_ranks_are_known_to_divide_the_samples(monkeypatch):
    monkeypatch.setattr("rekindle.choose.distributed.rank_and_world", lambda: (2, 4))
    data = range(SIZE)

    class Renamed(DistributedSampler):
        pass

    class Weighted(DistributedSampler):
        def __iter__(self):
            return iter([1, 1, 1])

    assert share_of(DistributedSampler(data, 4, 2)) == Share()
    assert share_of(BatchSampler(Renamed(data, 4, 2), 3, False)) == Share()
    assert share_of(Weighted(data, 4, 1)) == Share(1, 4)
    # Ranks that hold parts of one model ask for the same batches.
    assert share_of(Weighted(data, 2, 1)) == Share(1, 2)
    assert share_of(RandomSampler(data)) == share_of([1, 2]) == share_of(weighted()) == Share(2, 4)


# Counting.


@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(
        st.lists(st.integers(0, 6) | st.sampled_from([-1, 5000, 2**40]), max_size=8), min_size=1, max_size=60
    ),
    data=st.data(),
)
def test_draws_are_counted_and_can_be_taken_back(batches, data):
    counts, known, expected = DrawCounts(), Counter(), []
    arrays = [np.array(batch, dtype=np.int64) for batch in batches]
    for batch, ids in zip(batches, arrays, strict=True):
        before = []
        for one in batch:
            before.append(known[one])
            known[one] += 1
        expected.append(before)
        earlier = counts.add(ids)
        assert (earlier.tolist() if earlier is not None else [0] * len(batch)) == before
    place = data.draw(st.integers(0, len(batches)))
    resumed = DrawCounts.resumed(through_a_file(counts.state(without=arrays[place:])))
    for ids, before in zip(arrays[place:], expected[place:], strict=True):
        earlier = resumed.add(ids)
        assert (earlier.tolist() if earlier is not None else [0] * len(ids)) == before


def test_a_sample_may_be_drawn_any_number_of_times():
    counts = DrawCounts()
    counts.add(np.array([7]))
    for before in range(1, 1001, 100):
        assert counts.add(np.full(100, 7)).tolist() == list(range(before, before + 100))


@given(st.lists(st.integers(-3, 3)))
def test_earlier_occurrences_are_those_before(values):
    assert earlier_occurrences(np.array(values, dtype=np.int64)).tolist() == [
        values[:place].count(value) for place, value in enumerate(values)
    ]
