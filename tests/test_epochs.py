"""A script says which epoch is next, puts in another sampler, and overrides what torch lets it override."""

import copy
import pickle
from itertools import islice

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
)

import rekindle as rk

SIZE = 12


class Noisy(Dataset):
    """Samples that draw."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return index, torch.rand(())


def rows(batches):
    return [pair for batch in batches for pair in zip(*map(torch.Tensor.tolist, batch), strict=True)]


def epochs(loader, count):
    return [rows(loader) for _ in range(count)]


def distributed():
    return DistributedSampler(range(SIZE), num_replicas=2, rank=1, seed=5)


# set_epoch.


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("reuse", [None, rk.Refurbish(2)])
def test_set_epoch_makes_the_next_pass_that_epoch(workers, reuse):
    def make():
        final = (lambda sample: sample) if reuse is not None else None
        return rk.DataLoader(
            Noisy(),
            batch_size=4,
            shuffle=True,
            seed=3,
            num_workers=workers,
            reuse=reuse,
            final_transform=final,
        )

    with make() as loader:
        whole = epochs(loader, 5)
    with make() as loader:
        loader.set_epoch(3)
        assert rows(loader) == whole[3]
        assert loader.batch.epoch == 3
        assert rows(loader) == whole[4]
        loader.set_epoch(1)
        assert epochs(loader, 2) == whole[1:3]
        next(iter(loader))
        loader.set_epoch(0)  # whatever became of the pass before
        assert rows(loader) == whole[0]


def test_set_epoch_of_the_epoch_that_a_state_is_in_goes_on_within_it():
    loader = rk.DataLoader(Noisy(), batch_size=4, shuffle=True, seed=3)
    whole = epochs(loader, 3)
    loader.set_epoch(1)
    next(iter(loader))
    state = loader.state_dict()
    resumed = rk.DataLoader(Noisy(), batch_size=4, shuffle=True, seed=3)
    resumed.load_state_dict(state)
    resumed.set_epoch(1)
    assert rows(resumed) == whole[1][4:]
    resumed.load_state_dict(state)
    resumed.set_epoch(2)
    assert resumed.state_dict()["epoch"] == copy.deepcopy(resumed).state_dict()["epoch"] == 2
    assert rows(resumed) == whole[2]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_state_goes_on_where_it_stood_whatever_epoch_was_set_before(shuffle):
    arguments = {"batch_size": 4, "shuffle": shuffle, "seed": 3}
    loader = rk.DataLoader(Noisy(), **arguments)
    whole = rows(rk.DataLoader(Noisy(), **arguments))
    next(iter(loader))
    state = loader.state_dict()
    for resumed in (loader, rk.DataLoader(Noisy(), **arguments)):
        resumed.set_epoch(5)
        resumed.load_state_dict(state)
        assert rows(resumed) == whole[4:]


@pytest.mark.parametrize("epoch", [-1, 1.0, True, "2", 2**40])
def test_set_epoch_refuses_what_is_no_epoch(epoch):
    with pytest.raises(rk.ArgumentError, match="set_epoch"):
        rk.DataLoader(Noisy()).set_epoch(epoch)


def test_set_epoch_tells_a_sampler_and_an_iterable_dataset():
    class Stream(IterableDataset):
        epoch = 0

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            return iter([self.epoch] * 3)

    sampler, stream = distributed(), Stream()
    rk.DataLoader(Noisy(), batch_size=4, sampler=sampler).set_epoch(2)
    loader = rk.DataLoader(stream, batch_size=3)
    loader.set_epoch(2)
    assert sampler.epoch == 2
    assert [batch.tolist() for batch in loader] == [[2, 2, 2]]


# A sampler's epoch.


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_sampler_s_epoch_is_followed_by_the_augmentation(wrapped):
    def make():
        sampler = distributed()
        order = (
            {"batch_sampler": BatchSampler(sampler, 2, False)}
            if wrapped
            else {"sampler": sampler, "batch_size": 2}
        )
        return sampler, rk.DataLoader(Noisy(), seed=3, **order)

    sampler, loader = make()
    whole = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        whole.append(rows(loader))
    sampler, loader = make()
    for epoch in (2, 3):  # A script that saved nothing but the number of the epoch.
        sampler.set_epoch(epoch)
        assert rows(loader) == whole[epoch]
        assert loader.batch.epoch == epoch


def test_a_sampler_that_is_never_told_its_epoch_does_not_stop_the_loader_s():
    loader = rk.DataLoader(Noisy(), batch_size=3, sampler=distributed(), seed=3)
    first, second = epochs(loader, 2)
    assert [index for index, _ in first] == [index for index, _ in second]
    assert not set(first) & set(second)


class CountsItself(Sampler):
    """Goes to the next epoch when a pass is over, as Accelerate's SeedableRandomSampler does."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        yield from range(SIZE)
        self.set_epoch(self.epoch + 1)


def test_a_sampler_that_counts_epochs_itself_brings_no_epoch_twice():
    loader = rk.DataLoader(Noisy(), batch_size=4, sampler=CountsItself(), seed=3)
    numbers = []
    for stop in (None, 1, None, None, 2, None):
        seen = rows(islice(loader, stop))
        assert seen
        numbers.append(loader.batch.epoch)
    assert numbers == list(range(6))


def test_our_own_order_follows_the_epoch_that_a_framework_tells_its_sampler():
    def make():
        return rk.DataLoader(Noisy(), batch_size=4, shuffle=True, seed=3)

    whole = epochs(make(), 4)
    loader = make()
    assert len(list(loader.sampler)) == SIZE  # Looking at the order changes nothing.
    loader.sampler.set_epoch(2)
    assert epochs(loader, 2) == whole[2:]


# Samplers put in later.


class Repeated:
    """Repeats forever, as timm's and Ultralytics' _RepeatSampler do."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class MultiEpochs(rk.DataLoader):
    """timm's MultiEpochsDataLoader: one iterator for all epochs."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._DataLoader__initialized = False
        self.batch_sampler = Repeated(self.batch_sampler)
        self._DataLoader__initialized = True
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


class Infinite(MultiEpochs):
    """Ultralytics' InfiniteDataLoader."""

    def __init__(self, *arguments, **options):
        rk.DataLoader.__init__(self, *arguments, **options)
        object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
        self.iterator = rk.DataLoader.__iter__(self)

    def reset(self):
        self.iterator = self._get_iterator()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [MultiEpochs, Infinite])
@pytest.mark.parametrize("order", [{"shuffle": True, "seed": 3}, {"shuffle": True}, {}], ids=str)
def test_a_loader_of_endless_passes_has_all_samples_in_each_and_new_views(kind, order, workers):
    loader = kind(Noisy(), batch_size=5, num_workers=workers, **order)
    passes = epochs(loader, 4)
    assert [sorted(index for index, _ in one) for one in passes] == [list(range(SIZE))] * 4
    together = [row for one in passes for row in one]
    assert len(set(together)) == len(together)
    if order:
        assert [index for index, _ in passes[0]] != [index for index, _ in passes[1]]
    if kind is Infinite:
        loader.reset()
        assert len(rows(loader)) == SIZE
    loader.close()


def test_endless_passes_recompute_what_is_reused_as_epochs_would():
    loader = MultiEpochs(
        Noisy(), batch_size=6, shuffle=True, seed=3, reuse=rk.Refurbish(2, balance=None),
        final_transform=lambda sample: sample,
    )  # fmt: skip
    values = [dict(one) for one in epochs(loader, 5)]
    for index in range(SIZE):
        assert 2 <= len({one[index] for one in values}) <= 4


@pytest.mark.parametrize("seed", [None, 3])
def test_a_sampler_put_in_later_is_obeyed_where_torch_obeys_it(seed):
    loader = rk.DataLoader(Noisy(), batch_size=4, shuffle=True, seed=seed)
    rows(loader)
    object.__setattr__(loader, "batch_sampler", [[1, 2], [3]])
    assert [index for index, _ in rows(loader)] == [1, 2, 3]
    within = rk.DataLoader(Noisy(), batch_size=2, seed=seed)
    within.batch_sampler.sampler = [5, 4, 4]
    assert [index for index, _ in rows(within)] == [5, 4, 4]
    single = rk.DataLoader(range(SIZE), batch_size=None, seed=seed)
    object.__setattr__(single, "sampler", [7, 8])
    assert list(single) == [7, 8]


def test_a_sampler_put_in_later_is_obeyed_by_persistent_workers_too():
    loader = rk.DataLoader(Noisy(), batch_size=4, seed=3, num_workers=1, persistent_workers=True)
    rows(loader)
    object.__setattr__(loader, "batch_sampler", [[1, 2], [3]])
    assert [index for index, _ in rows(loader)] == [1, 2, 3]
    loader.close()


def test_a_sampler_put_in_later_where_none_is_possible_is_refused():
    loader = rk.DataLoader(Noisy(), batch_size=4, shuffle=True, seed=3, importance=rk.RandomSubset(0.5))
    object.__setattr__(loader, "batch_sampler", [[1, 2], [3]])
    with pytest.raises(rk.ArgumentError, match="chooses the samples itself"):
        iter(loader)


# Torch's own names.


def test_a_subclass_s_get_iterator_is_called():
    class Wrapping(rk.DataLoader):
        def _get_iterator(self):
            batches = super()._get_iterator()
            return (("wrapped", batch) for batch in batches)

    assert [name for name, _ in Wrapping(range(4), batch_size=2)] == ["wrapped"] * 2


@pytest.mark.parametrize("loaders", [torch.utils.data.DataLoader, rk.DataLoader])
def test_a_call_of_get_iterator_starts_persistent_workers_afresh(loaders):
    class Scaled(Dataset):
        scale = 1

        def __len__(self):
            return 4

        def __getitem__(self, index):
            return index * self.scale

    def drawn(loader, get):
        return [index for batch in get(loader) for index in batch.tolist()]

    dataset, generator = Scaled(), torch.Generator().manual_seed(3)
    loader = loaders(dataset, num_workers=1, persistent_workers=True, shuffle=True, generator=generator)
    drawn(loader, iter)
    dataset.scale = 10
    kept, fresh = drawn(loader, iter), drawn(loader, loaders._get_iterator)
    assert (sorted(kept), sorted(fresh)) == ([0, 1, 2, 3], [0, 10, 20, 30])
    # New workers are seeded anew, from the loader's generator.
    expected = torch.Generator().manual_seed(3)
    for pass_ in range(3):
        if pass_ != 1:
            torch.empty((), dtype=torch.int64).random_(generator=expected)
        order = torch.randperm(4, generator=expected)
        torch.randperm(4, generator=expected)  # RandomSampler draws one more at the end.
    assert [index // 10 for index in fresh] == order.tolist()


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))]
)
def test_a_copy_of_a_loader_has_workers_of_its_own(copied):
    loader = rk.DataLoader(range(4), batch_size=2, num_workers=1, persistent_workers=True)
    list(loader)
    other = copied(loader)
    batches = iter(loader)
    next(batches)
    assert len(list(other)) == 2
    other._iterator = None  # So that its next pass has new workers.
    assert len(list(other)) == 2
    assert len(list(batches)) == 1
    other.close()
    loader.close()


def test_an_iterator_cannot_be_pickled():
    iterator = iter(rk.DataLoader(range(4)))
    with pytest.raises(NotImplementedError, match="cannot be pickled"):
        pickle.dumps(iterator)
    with pytest.raises(NotImplementedError, match="cannot be pickled"):
        copy.copy(iterator)


def test_a_copy_of_a_loader_keeps_the_sampler_that_was_put_in():
    loader = rk.DataLoader(Noisy(), batch_size=4, shuffle=True, seed=3)
    assert rows(copy.deepcopy(loader)) == rows(loader)
    object.__setattr__(loader, "batch_sampler", BatchSampler(RandomSampler(range(3)), 2, False))
    assert sorted(index for index, _ in rows(pickle.loads(pickle.dumps(loader)))) == [0, 1, 2]
