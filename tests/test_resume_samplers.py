"""A loader resumes anywhere with other people's orders."""

import random
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler, RandomSampler, Sampler

import rekindle as rk
from resumable import (
    Batches,
    Counted,
    Draws,
    DrawsItsOrder,
    EveryThird,
    Remembers,
    RemembersBatches,
    through_a_file,
)
from same import digest

# Other people's orders.


# Each makes the arguments anew, as a fresh process would.
FOREIGN = {
    "no state": lambda: {"batch_size": 4, "sampler": EveryThird()},
    "draws": lambda: {"batch_size": 4, "sampler": DrawsItsOrder()},
    "RandomSampler": lambda: {"batch_size": 4, "sampler": RandomSampler(range(22))},
    "RandomSampler with a generator": lambda: {
        "batch_size": 4,
        "sampler": RandomSampler(range(22), generator=torch.Generator().manual_seed(5)),
    },
    "stateful": lambda: {"batch_size": 4, "sampler": Remembers()},
    "stateful, batch_size=None": lambda: {"batch_size": None, "sampler": Remembers()},
    "stateful batches": lambda: {"batch_sampler": RemembersBatches()},
    "batches": lambda: {"batch_sampler": Batches()},
    "generator": lambda: {
        "batch_size": 4,
        "shuffle": True,
        "generator": torch.Generator().manual_seed(5),
    },
    "a list": lambda: {"batch_size": 4, "sampler": [5, 3, 1, 1, 8, 9, 20]},
}


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def global_generators():
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def set_global_generators(states):
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", FOREIGN)
def test_any_sampler_resumes_after_any_number_of_batches(kind, workers):
    def make(workers):
        return rk.DataLoader(Draws(), num_workers=workers, seed=3, **FOREIGN[kind]())

    seed_all(1)
    batches, states, generators = [], [], []
    loader = make(workers)
    epochs = [len(loader), 2 * len(loader)]
    for _ in range(2):
        for batch in loader:
            batches.append(batch)
            states.append(through_a_file(loader.state_dict()))
            generators.append(global_generators())
    for k in sorted({1, 2, epochs[0] - 1, epochs[0], epochs[0] + 1, epochs[1] - 1}):
        if not 0 < k < len(states):
            continue
        # Without workers, whose starts take longest, at every second of these places.
        # A checkpoint holds the global generators beside the loader's state, as ever.
        seed_all(99)
        resumed = make(0 if workers or k in (1, epochs[0] - 1, epochs[1] - 1) else 2)
        set_global_generators(generators[k - 1])
        resumed.load_state_dict(states[k - 1])
        end = epochs[0] if k <= epochs[0] else epochs[1]
        assert digest(list(resumed)) == digest(batches[k:end]), f"the rest after {k} batches"
        if k <= epochs[0]:
            assert digest(list(resumed)) == digest(batches[end:]), f"the epoch after {k} batches"


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", FOREIGN)
def test_any_sampler_resumes_between_two_epochs(kind, workers):
    def make(workers):
        return rk.DataLoader(Draws(), num_workers=workers, seed=3, **FOREIGN[kind]())

    seed_all(1)
    loader = make(workers)
    list(loader)
    state, generators = through_a_file(loader.state_dict()), global_generators()
    second = digest(list(loader))
    seed_all(99)
    resumed = make(1 - workers)
    set_global_generators(generators)
    resumed.load_state_dict(state)
    assert digest(list(resumed)) == second


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_pass_that_has_begun_without_a_batch_resumes_at_its_start(kind):
    def make(workers):
        return rk.DataLoader(Draws(), num_workers=workers, seed=3, **FOREIGN[kind]())

    seed_all(1)
    loader = make(0)
    iterator = iter(loader)
    state = loader.state_dict()
    generators = global_generators()
    expected = digest(list(iterator))
    seed_all(99)
    resumed = make(0)
    set_global_generators(generators)
    resumed.load_state_dict(state)
    assert digest(list(resumed)) == expected


@pytest.mark.parametrize("kind", ["no state", "RandomSampler", "generator", "batches"])
def test_replaying_a_sampler_loads_no_sample(kind):
    seed_all(1)
    loader = rk.DataLoader(Counted(), seed=3, **FOREIGN[kind]())
    iterator = iter(loader)
    list(islice(iterator, 3))
    state = loader.state_dict()
    left = [index for batch in iterator for index in batch.tolist()]
    dataset = Counted()
    resumed = rk.DataLoader(dataset, seed=3, **FOREIGN[kind]())
    resumed.load_state_dict(state)
    list(resumed)
    assert dataset.asked == left


def test_replaying_a_sampler_leaves_the_global_generators_alone():
    seed_all(1)
    loader = rk.DataLoader(Draws(), seed=3, **FOREIGN["draws"]())
    next(iter(loader))
    state = loader.state_dict()
    resumed = rk.DataLoader(Draws(), seed=3, **FOREIGN["draws"]())
    resumed.load_state_dict(state)
    seed_all(5)
    before = (random.random(), np.random.random_sample(), torch.rand(()).item())
    seed_all(5)
    iterator = iter(resumed)
    after = (random.random(), np.random.random_sample(), torch.rand(()).item())
    next(iterator)
    assert before == after


# The epoch that a sampler was told.


class Counts(DistributedSampler):
    """Goes to its next epoch when a pass is over, as Accelerate's SeedableRandomSampler does."""

    def __iter__(self):
        yield from super().__iter__()
        self.set_epoch(self.epoch + 1)


def in_epochs(kind=DistributedSampler):
    sampler = kind(range(12), num_replicas=2, rank=1, seed=5)
    return sampler, rk.DataLoader(range(12), batch_size=2, sampler=sampler, seed=3)


def batches(loader):
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("done", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", [DistributedSampler, Counts])
def test_a_state_puts_a_sampler_back_into_its_epoch_where_the_script_does_not(kind, done):
    sampler, loader = in_epochs(kind)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        batches(loader)
    sampler.set_epoch(2)
    state = loader.state_dict()
    iterator = iter(loader)
    for _ in range(done):
        next(iterator)
        state = loader.state_dict()
    due, state = batches(iterator), through_a_file(state)
    sampler.set_epoch(3)
    third = batches(loader)
    for _ in range(2):
        sampler, resumed = in_epochs(kind)
        resumed.load_state_dict(state)
        assert batches(resumed) == due
        loader.load_state_dict(state)  # of which other epochs have been read since
        assert batches(loader) == due
    for set_before in (True, False):  # The script's word counts.
        sampler, resumed = in_epochs(kind)
        if set_before:
            sampler.set_epoch(3)
        resumed.load_state_dict(state)
        sampler.set_epoch(3)
        assert batches(resumed) == third


def test_a_state_without_the_epoch_of_its_sampler_is_loaded_and_a_wrong_one_refused():
    _, loader = in_epochs()
    next(iter(loader))
    state = loader.state_dict()
    for wrong in (-1, "1", 2**40):
        state["sampler"]["epoch"] = wrong
        with pytest.raises(rk.StateError, match=r"sampler\.epoch"):
            loader.load_state_dict(state)
    del state["sampler"]["epoch"]
    loader.load_state_dict(state)
    assert len(batches(loader)) == 2


# A sampler that keeps something of its own which no state has.


class InOrderOf(Sampler):
    """A sampler whose order follows from a number."""

    number = 0

    def __len__(self):
        return 12

    def __iter__(self):
        generator = torch.Generator()
        generator.manual_seed(self.number)
        return iter(torch.randperm(12, generator=generator).tolist())


class WithoutSeed(InOrderOf):
    def __iter__(self):
        return iter(np.random.default_rng().permutation(12).tolist())


def after_batches(done, sampler, **options):
    loader = rk.DataLoader(range(12), batch_size=2, sampler=sampler, seed=3, **options)
    iterator = iter(loader)
    for _ in range(done):
        next(iterator)
    return through_a_file(loader.state_dict()), batches(iterator)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_is_refused_where_a_sampler_gives_another_order(workers):
    state, _ = after_batches(2, WithoutSeed(), num_workers=workers)
    resumed = rk.DataLoader(range(12), batch_size=2, sampler=WithoutSeed(), seed=3, num_workers=workers)
    resumed.load_state_dict(state)
    with pytest.raises(rk.StateError, match=r"sampler: WithoutSeed gives another order .* batch 2"):
        iter(resumed)


def test_a_state_goes_on_where_the_script_puts_its_sampler_back():
    sampler = InOrderOf()
    sampler.number = 7
    state, due = after_batches(2, sampler)
    sampler = InOrderOf()
    resumed = rk.DataLoader(range(12), batch_size=2, sampler=sampler, seed=3)
    resumed.load_state_dict(state)
    with pytest.raises(rk.StateError, match="another order"):
        iter(resumed)
    sampler.number = 7
    assert batches(resumed) == due


def test_a_state_behind_the_last_batch_or_before_the_first_goes_with_any_order():
    for done, left in ((0, 6), (6, 0)):
        state, _ = after_batches(done, InOrderOf())
        resumed = rk.DataLoader(range(12), batch_size=2, sampler=WithoutSeed(), seed=3)
        resumed.load_state_dict(state)
        assert len(batches(resumed)) == left
        assert len(batches(resumed)) == 6


def test_a_digest_that_is_none_is_refused_and_a_state_without_one_loaded():
    state, _ = after_batches(2, InOrderOf())
    resumed = rk.DataLoader(range(12), batch_size=2, sampler=InOrderOf(), seed=3)
    for wrong in (-1, "1", 2**63):
        state["sampler"]["digest"] = wrong
        with pytest.raises(rk.StateError, match=r"sampler\.digest"):
            resumed.load_state_dict(state)
    del state["sampler"]["digest"]
    resumed.load_state_dict(state)
    assert len(batches(resumed)) == 4


# The seed of workers, which torch draws from the generator of the order.

WORKERS = {
    "none": {},
    "workers": {"num_workers": 1, "executor": "threads"},
    "persistent": {"num_workers": 1, "executor": "threads", "persistent_workers": True},
}


@pytest.mark.parametrize("resumed_with", WORKERS)
@pytest.mark.parametrize("saved_with", WORKERS)
def test_all_epochs_after_a_resume_are_those_of_the_run_whether_or_not_workers_persist(
    saved_with, resumed_with
):
    """Persistent workers are seeded once: the generator then gives later epochs another order."""

    def make(way):
        generator = torch.Generator().manual_seed(5)
        return rk.DataLoader(range(12), batch_size=3, shuffle=True, generator=generator, **WORKERS[way])

    loader = make(saved_with)
    whole, states = [], [(0, 0, loader.state_dict())]
    for epoch in range(3):
        whole.append([])
        for batch in loader:
            whole[-1].append(batch.tolist())
            states.append((epoch, len(whole[-1]), through_a_file(loader.state_dict())))
        states.append((epoch + 1, 0, through_a_file(loader.state_dict())))
    for epoch, done, state in states[:-1]:
        resumed = make(resumed_with)
        for _ in range(2):  # Again in the same loader, and what it saves goes on as well.
            resumed.load_state_dict(state)
            state = through_a_file(resumed.state_dict())
            rest = [batches(resumed) for _ in range(epoch, 3)]
            assert rest == [whole[epoch][done:], *whole[epoch + 1 :]], (epoch, done)
