"""Samplers without an end, and samplers that draw from the global generators as they go, resumed anywhere.

The oracle is the run that was not interrupted. A new process is a loader with a sampler made anew.
"""

import random
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler

import rekindle as rk
from resumable import through_a_file
from test_sampler_memory import ARGUMENTS, Counts, InPlace, Own

SIZE = 12


class Repeats:
    """The batches of a sampler, pass after pass, as timm's and Ultralytics' loaders have it."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class DrawsAsItGoes(Sampler):
    """Of all three global generators, one index at a time."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __iter__(self):
        for _ in range(self.count):
            yield (random.randrange(99) + int(np.random.randint(99)) + int(torch.randint(99, ()))) % SIZE


def repeated(sampler):
    return {"batch_sampler": Repeats(BatchSampler(sampler, 5, drop_last=False))}


GLOBAL = {
    "RandomSampler": lambda: repeated(RandomSampler(range(SIZE))),
    "with replacement": lambda: repeated(RandomSampler(range(SIZE), replacement=True)),
    "as it goes": lambda: repeated(DrawsAsItGoes(SIZE)),
    "as it goes, with an end": lambda: {"sampler": DrawsAsItGoes(60), "batch_size": 3},
}
ENDLESS = {
    **GLOBAL,
    "generator": lambda: repeated(RandomSampler(range(SIZE), generator=torch.Generator().manual_seed(5))),
    "own": lambda: repeated(Own(np.random.default_rng(5))),
    "counts": lambda: repeated(Counts()),
    "in place": lambda: repeated(InPlace(list(range(SIZE)), random.Random(5))),
    "of batches": lambda: {"batch_sampler": Repeats(ARGUMENTS["batches"]()["batch_sampler"])},
}
BATCHES, LEFT = 14, 5


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def generators():
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def restore_generators(states):
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def started(kind, workers, state=None):
    loader = rk.DataLoader(range(SIZE), seed=3, num_workers=workers, **ENDLESS[kind]())
    if state is not None:
        loader.load_state_dict(state)
    return loader


def run(kind, workers):
    """All batches of a run, and behind each its state, and what the global generators are."""
    seed_all(1)
    loader = started(kind, workers)
    whole, states = [], []
    for batch in islice(loader, BATCHES):
        whole.append(batch.tolist())
        states.append((through_a_file(loader.state_dict()), generators()))
    return whole, states


@pytest.mark.parametrize("restores", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ENDLESS)
def test_a_sampler_goes_on_from_any_place(kind, workers, restores):
    """Whether or not the script puts the global generators back, from which it draws nothing itself."""
    whole, states = run(kind, workers)
    for done in range(1, BATCHES - LEFT, 1 if workers == 0 else 4):
        state, saved = states[done - 1]
        seed_all(99)
        if restores:
            restore_generators(saved)
        loader = started(kind, workers, state)
        iterator = iter(loader)
        found = [next(iterator).tolist() for _ in range(2)]
        state, saved = through_a_file(loader.state_dict()), generators()  # of a run that was resumed itself
        seed_all(98)
        if restores:
            restore_generators(saved)
        found += [batch.tolist() for batch in islice(started(kind, 0, state), LEFT - 2)]
        assert found == whole[done : done + LEFT], done


@pytest.mark.parametrize("kind", GLOBAL)
def test_the_scripts_own_numbers_are_not_moved(kind):
    """What the script has not put back is its own: the sampler goes on without it."""
    _, states = run(kind, 0)
    loader = started(kind, 0, states[3][0])
    seed_all(7)
    expected = [random.random(), np.random.random_sample(), torch.rand(()).item()]
    seed_all(7)
    list(islice(loader, LEFT))
    assert [random.random(), np.random.random_sample(), torch.rand(()).item()] == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_a_script_that_draws_from_the_same_generators_meanwhile_is_refused(workers):
    """Which of the numbers were the sampler's, nobody knows."""
    seed_all(1)
    loader = started("as it goes, with an end", workers)
    for _ in islice(loader, 9):
        random.random()
    state = loader.state_dict()
    with pytest.raises(rk.StateError, match="gives another order"):
        iter(started("as it goes, with an end", 0, state))


def test_a_script_that_draws_as_well_goes_on_where_it_puts_the_generators_back():
    """A sampler that draws its order at once, in each of its passes."""
    seed_all(1)
    loader = started("RandomSampler", 0)
    whole, states = [], []
    for batch in islice(loader, 3):  # of the first pass
        whole.append(batch.tolist())
        states.append((loader.state_dict(), generators()))
        torch.rand(1)
    for done, (state, saved) in enumerate(states, 1):
        seed_all(99)
        restore_generators(saved)
        left = islice(started("RandomSampler", 0, state), 3 - done)
        assert [batch.tolist() for batch in left] == whole[done:]
