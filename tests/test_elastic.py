"""A state of some ranks goes on with any other number of them: the rest of the epoch, each sample once."""

import itertools
import random

import pytest
import torch
from torch.utils.data import DistributedSampler

import rekindle as rk
from rank_loaders import Drawn, loaders_of

SIZE, WORLDS = 120, range(1, 13)
PAIRS = [[number, number + 1] for number in range(0, 24, 2)]  # of near-duplicates


def finish(sample):
    index, drawn = sample
    return index, drawn, torch.rand(())


FEATURES = {
    "shuffled": {"shuffle": True},
    "in order": {},
    "refurbished": {"shuffle": True, "reuse": rk.Refurbish(3), "final_transform": finish},
    "echoed": {"shuffle": True, "reuse": rk.Echo(2, after="read", shuffle=8), "final_transform": finish},
    "without near-duplicates": {"shuffle": True, "redundancy": rk.Redundancy(PAIRS, "remove")},
    "chosen": {"shuffle": True, "importance": rk.RandomSubset(0.5)},
    "chosen and refurbished": {
        "shuffle": True,
        "importance": rk.RandomSubset(0.5),
        "reuse": rk.Refurbish(2),
        "final_transform": finish,
    },
}


def ranks(world, batch_size, feature, size=SIZE, **arguments):
    return loaders_of(world, Drawn(size), batch_size, seed=5, **FEATURES[feature], **arguments)


def step_by_step(loaders):
    """What all ranks together have in each step, as a set of views."""
    for batches in zip(*loaders, strict=True):
        yield sorted(row for batch in batches for row in zip(*(part.tolist() for part in batch), strict=True))


def resumed(state, world, batch_size, feature, size=SIZE, **arguments):
    return ranks(world, batch_size, feature, size, state=state, **arguments)


@pytest.mark.parametrize("before", WORLDS)
def test_any_world_goes_on_where_any_other_stood(before):
    first = ranks(before, 2, "shuffled")
    seen = [row for step in itertools.islice(step_by_step(first), 3) for row in step]
    whole = [row for step in step_by_step(ranks(1, 2, "shuffled")) for row in step]
    for after in WORLDS:
        rest = step_by_step(resumed(first[0].state_dict(), after, 2, "shuffled"))
        views = seen + [row for step in rest for row in step]
        assert set(views) >= set(whole)
        assert len(views) - len(whole) < after  # what makes up for a rest that they cannot share evenly


@pytest.mark.parametrize("feature", FEATURES)
def test_with_the_same_global_batch_each_step_has_the_samples_it_would_have_had(feature):
    first = ranks(2, 6, feature)
    for loader in first:
        list(loader)
    all_steps = step_by_step(first)
    begun = list(itertools.islice(all_steps, 4))
    state = first[0].state_dict()
    left = list(all_steps)
    assert begun
    assert left
    for world in (1, 3):
        assert list(step_by_step(resumed(state, world, 12 // world, feature))) == left


@pytest.mark.parametrize(
    "feature", ["refurbished", *(pytest.param(one, marks=pytest.mark.slow) for one in FEATURES)]
)
def test_a_chain_of_worlds_has_every_view_once(feature):
    whole = ranks(5, 2, feature)
    for loader in whole:
        list(loader)  # an epoch before, which each of the others has not seen: views do not depend on caches
    wanted = sorted(row for step in step_by_step(whole) for row in step)
    loaders, views = resumed(_after_an_epoch(feature), 5, 2, feature), []
    for world in (3, 1, 4, 2):
        views += itertools.chain(*itertools.islice(step_by_step(loaders), 2))
        loaders = resumed(loaders[-1].state_dict(), world, 2, feature)
    views += itertools.chain(*step_by_step(loaders))
    extra = len(views) - len(wanted)
    assert set(views) >= set(wanted)
    assert 0 <= extra <= 2


def _after_an_epoch(feature):
    loader = ranks(1, 2, feature)[0]
    list(loader)
    return loader.state_dict()


@pytest.mark.parametrize("drop_last", [False, True])
def test_every_rank_has_the_same_number_of_steps(drop_last):
    chance = random.Random(3)
    for _ in range(2):
        before, after, size = chance.randint(1, 4), chance.randint(1, 4), chance.randint(30, 60)
        first = ranks(before, 3, "refurbished", size, drop_last=drop_last)
        assert len({len(loader) for loader in first}) == 1
        begun = list(itertools.islice(step_by_step(first), 1))
        rest = list(
            step_by_step(resumed(first[0].state_dict(), after, 2, "refurbished", size, drop_last=drop_last))
        )
        views = [row for step in begun + rest for row in step]
        if drop_last:
            assert len(views) == len(set(views))
            assert size - len(views) < before * 3 + after * 2
        else:
            assert {row[0] for row in views} == set(range(size))


def test_the_epoch_after_an_elastic_one_is_that_of_the_new_world():
    first = ranks(4, 3, "refurbished")
    list(itertools.islice(step_by_step(first), 2))
    second = resumed(first[0].state_dict(), 3, 4, "refurbished")
    assert len(list(step_by_step(second))) == (SIZE - 24) // 12
    alone = ranks(3, 4, "refurbished")
    for loader in alone:
        list(loader)
    assert list(step_by_step(second)) == list(step_by_step(alone))


def test_a_state_between_two_epochs_is_of_no_world():
    first = ranks(4, 3, "refurbished")
    for loader in first:
        list(loader)
    second, alone = resumed(first[2].state_dict(), 3, 4, "refurbished"), ranks(3, 4, "refurbished")
    for loader in alone:
        list(loader)
    assert list(step_by_step(second)) == list(step_by_step(alone))


def dealt(rank, seed, **arguments):
    sampler = DistributedSampler(Drawn(SIZE), 2, rank, seed=seed)
    given = {"sampler": sampler, "seed": 5, **FEATURES["refurbished"], "shuffle": None}
    return rk.DataLoader(Drawn(SIZE), 4, **{**given, **arguments})


def test_an_epoch_goes_on_only_in_the_order_of_the_same_seed():
    """A DistributedSampler has a seed of its own, 0 if none is given."""
    first = [dealt(rank, 0) for rank in range(2)]
    views = list(itertools.islice(step_by_step(first), 3))
    state = first[0].state_dict()
    with pytest.raises(rk.StateError, match=r"order_seed: .* seed 0, but here it is drawn from 7, that"):
        dealt(0, 7).load_state_dict(state)
    with pytest.raises(rk.StateError, match=r"order_seed: .* seed 0, but here it is drawn from 5, that"):
        ranks(2, 4, "refurbished")[0].load_state_dict(state)
    loaders = [dealt(rank, 0) for rank in range(2)]
    for loader in loaders:
        loader.load_state_dict(state)
    views += step_by_step(loaders)
    assert sorted(row[0] for step in views for row in step) == list(range(SIZE))
    dealt(0, 7).load_state_dict(loaders[0].state_dict())  # Between two epochs any seed will do.


@pytest.mark.parametrize("value", ["0", None, 0.0, True, 2**80])
def test_a_seed_that_no_order_has_is_refused(value):
    first = ranks(2, 4, "refurbished")
    list(itertools.islice(step_by_step(first), 2))
    with pytest.raises(rk.StateError, match="order_seed"):
        ranks(2, 4, "refurbished")[0].load_state_dict(first[0].state_dict() | {"order_seed": value})


def test_all_ranks_save_the_same():
    loaders = ranks(3, 4, "refurbished")
    list(itertools.islice(step_by_step(loaders), 2))
    states = [repr(loader.state_dict()) for loader in loaders]
    assert len(set(states)) == 1


def test_a_run_without_ranks_goes_on_with_some_and_back():
    alone = rk.DataLoader(Drawn(SIZE), 12, shuffle=True, seed=5)
    steps = (sorted(zip(*(part.tolist() for part in batch), strict=True)) for batch in alone)
    begun, state = list(itertools.islice(steps, 3)), alone.state_dict()
    left = list(steps)
    assert len(begun) == 3
    loaders = resumed(state, 3, 4, "shuffled")
    together = step_by_step(loaders)
    assert list(itertools.islice(together, 2)) == left[:2]
    again = rk.DataLoader(Drawn(SIZE), 12, shuffle=True, seed=5)
    again.load_state_dict(loaders[1].state_dict())
    assert [sorted(zip(*(part.tolist() for part in batch), strict=True)) for batch in again] == left[2:]


def test_whole_batches_that_are_repeated_go_on_only_with_the_same_ranks():
    def loader(rank, world):
        return rk.DataLoader(
            Drawn(SIZE), 4, shuffle=True, seed=5, reuse=rk.Echo(2, after="batch"), shard=(rank, world)
        )

    first = loader(1, 2)
    batches = iter(first)
    next(batches)
    again = loader(0, 2)
    again.load_state_dict(first.state_dict())
    assert len(list(again)) == len(first) - 1
    with pytest.raises(rk.StateError, match="step: saved within an epoch by one of 2 ranks"):
        loader(0, 3).load_state_dict(first.state_dict())


@pytest.mark.parametrize("name", ["world", "begun_world", "begun_batch_size", "offset"])
@pytest.mark.parametrize("value", [-1, 2**80, "many", None, 1.5, True])
def test_a_state_that_no_ranks_can_have_saved_is_refused(name, value):
    loaders = ranks(3, 4, "shuffled")
    list(itertools.islice(step_by_step(loaders), 2))
    state = loaders[0].state_dict()
    state["shard"][name] = value
    with pytest.raises(rk.StateError, match=name):
        ranks(2, 4, "shuffled")[0].load_state_dict(state)
