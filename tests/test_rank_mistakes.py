"""What ranks do wrong is an error and not other data: other states, other choices, batches out of order."""

import itertools
import warnings

import numpy as np
import pytest
import torch

import rekindle as rk
from rank_loaders import Drawn, Numbers, loaders_of
from rank_processes import run_ranks, wait_no_longer_than

SIZE = 48


def make_loader(**arguments):
    given = {"batch_size": 4, "shuffle": True, "seed": 3, "shard": "ranks"}
    return rk.DataLoader(Numbers(SIZE), **{**given, **arguments})


def _other_states(rank):
    """Two states of other worlds, at different places of an epoch, both of which begin with step 0 here."""
    states = []
    for steps in (1, 2):
        alone = make_loader(shard=(0, 3), batch_size=8)
        with pytest.warns(RuntimeWarning, match="among 3 ranks"):
            next(itertools.islice(iter(alone), steps - 1, None))
        states.append(alone.state_dict())
    loader = make_loader()
    loader.load_state_dict(states[rank])
    with pytest.raises(rk.RankError, match=r"the number of samples consumed before is 48 on rank 1"):
        next(iter(loader))
    return True


class AnyHalf:
    """A method that no two ranks have the same choice of."""

    needs_feedback = False

    def __init__(self, rank):
        self._rank = rank

    def plan(self, epoch, scores):
        return torch.arange(self._rank * epoch, SIZE // 2 + self._rank * epoch).numpy(), None


def _other_choices(rank):
    loader = make_loader(importance=AnyHalf(rank))
    list(loader)
    with pytest.raises(rk.RankError, match="the feedback of epoch 1: choice is"):
        list(loader)
    return True


def _other_length(rank):
    loader = make_loader()
    list(loader)
    loader.dataset.size += 4
    list(loader)  # All ranks alike.
    if rank == 1:
        loader.dataset.size += 4
        wait_no_longer_than(0.5)
        with pytest.raises(rk.RankError, match="rank 0 has not come"):
            list(loader)
    return True


def _other_batch_size(rank):
    with pytest.raises(rk.RankError, match=r"batch_size is 5 on rank 1") as caught:
        next(iter(make_loader(batch_size=4 + rank)))
    assert "the batch size with which the epoch began is 5 on rank 1" in str(caught.value)
    return True


def _other_epoch(rank):
    loader = make_loader()
    loader.set_epoch(2 * rank)
    with pytest.raises(rk.RankError, match="epoch is 2 on rank 1, and 0 on the others"):
        next(iter(loader))
    assert loader.state_dict()["epoch"] == 2 * rank  # It is where it was put, should it be asked again.
    return True


def _other_epoch_of_a_sampler(rank):
    sampler = torch.utils.data.DistributedSampler(Numbers(SIZE))
    sampler.set_epoch(3 * rank)
    loader = rk.DataLoader(Numbers(SIZE), 4, sampler=sampler, reuse=rk.Refurbish(2), final_transform=_same)
    with pytest.raises(rk.RankError, match="epoch is 3 on rank 1"):
        next(iter(loader))
    return True


def _other_seed_of_a_sampler(rank):
    """As with Accelerate's `use_seedable_sampler=True`, where ranks have seeded torch otherwise."""
    loader = _with_sampler(rank, seed=rank)
    with pytest.raises(rk.RankError, match="the sampler's seed is 1 on rank 1, and 0 on the others"):
        next(iter(loader))
    return True


def _other_rest_of_a_sampler(rank):
    """Both have 23 steps, of which each leaves out, or repeats, something else."""
    loader = _with_sampler(rank, SIZE - 1, drop_last=rank == 1)
    with pytest.raises(rk.RankError, match="drop_last of the sampler is true on rank 1"):
        next(iter(loader))
    return True


def _same_part(rank):
    """`rank=LOCAL_RANK` on two hosts."""
    wait_no_longer_than(5)
    loader = _with_sampler(0)
    with pytest.raises(rk.RankError, match=r"ranks 0, 1 of torch\.distributed all load the part of rank 0"):
        next(iter(loader))
    return True


def _with_sampler(part, size=SIZE, **arguments):
    sampler = torch.utils.data.DistributedSampler(Numbers(size), 2, part, **arguments)
    given = {"sampler": sampler, "seed": 3, "reuse": rk.Refurbish(2), "final_transform": _same}
    return rk.DataLoader(Numbers(size), 1, drop_last=True, **given)


def _other_parameters(rank):
    """They choose equally many samples, in the first epoch."""
    method = rk.InfoBatch(epochs=5 + rank)
    with pytest.raises(rk.RankError, match='importance\'s epochs is "6" on rank 1'):
        next(iter(make_loader(importance=method)))
    return True


def _other_split(rank):
    """`random_split` without a generator: each rank has another part of the dataset."""
    torch.manual_seed(rank)
    images = rk.ArrayImages(np.zeros((2 * SIZE, 8, 8, 3), np.uint8), np.zeros(2 * SIZE, np.int64))
    for dataset in (Numbers(2 * SIZE), images):
        subset, _ = torch.utils.data.random_split(dataset, [SIZE, SIZE])
        with pytest.raises(rk.RankError, match="the subset's indices"):
            next(iter(rk.DataLoader(subset, 4, seed=3, shard="ranks")))
    return True


def _other_steps_of_images(rank):
    def loader(size):
        images = np.zeros((SIZE, 8, 8, 3), np.uint8)
        steps = [rk.transforms.RandomCrop(size), rk.transforms.ToTensor()]
        images = rk.ArrayImages(images, np.zeros(SIZE, np.int64), steps)
        return rk.DataLoader(images, 4, seed=3, shard="ranks")

    next(iter(loader(4)))
    with pytest.raises(rk.RankError, match=r"transform is \"RandomCrop\(size=\(5, 5\).* on rank 1"):
        next(iter(loader(4 + rank)))
    return True


@pytest.mark.parametrize(
    "mistake",
    [
        _other_states, _other_batch_size, _other_choices, _other_length, _other_epoch,
        _other_epoch_of_a_sampler, _other_parameters, _other_split, _other_steps_of_images,
        _other_seed_of_a_sampler, _other_rest_of_a_sampler, _same_part,
    ],
)  # fmt: skip
def test_ranks_that_would_load_something_else_are_named(mistake):
    assert run_ranks(mistake, 2) == [True, True]


def _parts_the_other_way_round(rank):
    """Without a seed: one is decided on for all."""
    loader = rk.DataLoader(Numbers(SIZE), 4, shuffle=True, shard=(1 - rank, 2))
    return [index for ids in loader for index in ids.tolist()]


def test_ranks_may_have_the_parts_of_each_other():
    first, second = run_ranks(_parts_the_other_way_round, 2)
    assert sorted(first + second) == list(range(SIZE))


def _silent_rank(rank, reporting, by_ids):
    loader = make_loader(importance=rk.InfoBatch(epochs=4), seed=5)

    def epoch():
        for ids in loader:
            if rank in reporting:
                loader.feedback(torch.rand(len(ids)))
            if by_ids and rank == 0 and loader.batch.step == 0:
                loader.feedback(torch.rand(SIZE), ids=torch.arange(SIZE))

    try:
        epoch()
        epoch()
    except rk.FeedbackError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("world", "reporting", "named"),
    [(2, [0], "rank 1 of 2"), (3, [1], "ranks 0, 2 of 3"), (2, [0, 1], ""), (2, [], "for epoch 0. Call")],
)
def test_ranks_without_feedback_are_named_on_all_ranks_at_the_end_of_the_epoch(world, reporting, named):
    errors = run_ranks(_silent_rank, world, reporting, False)
    assert len({*errors}) == 1
    assert named in errors[0]
    assert bool(errors[0]) == bool(named)


def test_one_rank_may_report_the_samples_of_all():
    assert run_ranks(_silent_rank, 2, [], True) == ["", ""]


def _resumed_and_silent(rank):
    """What was reported before the state counts; whose reports are left is not known any more."""
    loader = make_loader(importance=rk.InfoBatch(epochs=4), seed=5)
    for ids in itertools.islice(iter(loader), 3):
        loader.feedback(torch.rand(len(ids)))
    state = loader.state_dict()
    resumed = make_loader(importance=rk.InfoBatch(epochs=4), seed=5)
    resumed.load_state_dict(state)
    for ids in resumed:
        if rank == 0:
            resumed.feedback(torch.rand(len(ids)))
    return next(iter(resumed)) is not None


def test_ranks_that_reported_before_a_resume_are_not_silent():
    assert run_ranks(_resumed_and_silent, 2) == [True, True]


def _larger_world(rank, world):
    loader = make_loader(shard=(rank, world))
    with warnings.catch_warnings(record=True, action="always") as caught:
        list(loader), list(loader)
    return [(one.category, str(one.message), one.filename == __file__) for one in caught]


def test_a_shard_of_more_ranks_than_there_are_warns_once():
    for [(category, message, is_here)] in run_ranks(_larger_world, 2, 4):
        assert category is RuntimeWarning
        assert is_here
        assert "among 4 ranks, but torch.distributed has 2" in message
        assert 'shard="ranks"' in message


@pytest.mark.parametrize("world", [1, 2])
def test_a_shard_of_fewer_ranks_is_that_of_ranks_that_share_a_model(world):
    assert run_ranks(_fewer, 2, world) == [[], []]


def _fewer(rank, world):
    return _larger_world(min(rank, world - 1), world)


def test_out_of_order_a_state_within_an_epoch_is_that_of_one_rank():
    def loader(rank, world=2):
        return make_loader(shard=(rank, world), in_order=False, num_workers=1)

    first = loader(0)
    next(batches := iter(first))
    state = first.state_dict()
    loader(0).load_state_dict(state)
    with pytest.raises(rk.StateError, match="saved within an epoch by rank 0, this is rank 1"):
        loader(1).load_state_dict(state)
    with pytest.raises(rk.StateError, match="with in_order=False, it goes on only with as many ranks"):
        loader(0, 3).load_state_dict(state)
    list(batches)
    for rank in range(3):
        loader(rank, 3).load_state_dict(first.state_dict())


GROUPS = [[number, number + 1] for number in range(0, 24, 2)]


def _same(value):
    return value


@pytest.mark.parametrize("drop_last", [False, True])
def test_substituted_near_duplicates_go_on_with_other_ranks(drop_last):
    def loaders(world, batch_size, state=None):
        return loaders_of(
            world, Numbers(SIZE), batch_size, state, shuffle=True, seed=3, drop_last=drop_last,
            final_transform=_same, redundancy=rk.Redundancy(GROUPS, "replace"), reuse=rk.Refurbish(2),
        )  # fmt: skip

    def together(ranks, steps=None):
        return [
            sorted(torch.cat(step).tolist()) for step in itertools.islice(zip(*ranks, strict=True), steps)
        ]

    whole, begun = loaders(2, 4), loaders(2, 4)
    for ranks in (whole, begun):
        together(ranks)
    wanted = together(whole)
    assert together(begun, 3) == wanted[:3]
    assert together(loaders(4, 2, begun[1].state_dict())) == wanted[3:]


def test_dropped_samples_leave_the_views_of_an_epoch_that_others_go_on_with():
    def loaders(world, batch_size, state=None):
        return loaders_of(
            world, Drawn(SIZE), batch_size, state, shuffle=True, seed=3, drop_last=True,
            reuse=rk.Refurbish(3), final_transform=_same,
        )  # fmt: skip

    def views(ranks, steps=None):
        batches = [batch for step in itertools.islice(zip(*ranks, strict=True), steps) for batch in step]
        return {row for ids, drawn in batches for row in zip(ids.tolist(), drawn.tolist(), strict=True)}

    whole, begun = loaders(2, 5), loaders(2, 5)
    views(whole), views(begun)
    wanted, seen = views(whole), views(begun, 2)
    for world in (1, 3):
        assert seen | views(loaders(world, 5, begun[0].state_dict())) <= wanted
