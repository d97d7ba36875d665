"""`shard=`, and samplers that mean it: which samples a rank has, in which batches, and what is refused."""

import itertools
import os
import signal

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

import rekindle as rk
from bad_samples import Plain
from rank_processes import run_ranks

SIZE = 48


class Numbers(Plain):
    def __init__(self, size=SIZE, bad=()):
        super().__init__(bad, size)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(SIZE))


def same(value):
    return value


REUSE = {"reuse": rk.Refurbish(3, balance=None), "final_transform": same}


def epochs(loaders, count=1):
    """The ids of each rank's batches, epoch by epoch."""
    return [[[batch.tolist() for batch in loader] for loader in loaders] for _ in range(count)]


# The argument.


@pytest.mark.parametrize(
    "shard", ["rank", 2, (1,), (0, 1, 2), (0.0, 2), (True, 2), (2, 2), (-1, 2), (0, 0), {}]
)
def test_what_is_no_rank_of_a_world_is_refused(shard):
    with pytest.raises(rk.ArgumentError, match="shard"):
        rk.DataLoader(Numbers(), shard=shard, seed=0)


def test_ranks_are_taken_from_what_torchrun_sets_or_it_is_said_what_is_missing(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(rk.ArgumentError, match="from RANK, which is not set, and WORLD_SIZE"):
        rk.DataLoader(Numbers(), shard="ranks")
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    loader = rk.DataLoader(Numbers(), batch_size=4, shard="ranks", seed=1)
    assert len(loader) == 4
    assert torch.cat(list(loader)).tolist() == list(range(2, SIZE, 3))
    with pytest.raises(rk.ArgumentError, match="without seed="):
        rk.DataLoader(Numbers(), shard="ranks")
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(rk.ArgumentError, match="no rank 3 of 3"):
        rk.DataLoader(Numbers(), shard="ranks", seed=1)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"sampler": RandomSampler(range(SIZE))}, "RandomSampler"),
        ({"batch_sampler": BatchSampler(SequentialSampler(range(SIZE)), 4, False)}, "SequentialSampler"),
        ({"sampler": DistributedSampler(range(7), 2, 0)}, "DistributedSampler"),
        ({"shuffle": True, "generator": torch.Generator()}, "generator="),
        ({"sampler": DistributedSampler(range(SIZE), 3, 0)}, "made for rank 0 of 3"),
    ],
)
def test_what_gives_another_order_is_refused_beside_it(arguments, named):
    with pytest.raises(rk.ArgumentError, match=named):
        rk.DataLoader(Numbers(), shard=(0, 2), seed=0, **arguments)


def test_an_iterable_dataset_that_does_not_split_itself_is_refused():
    with pytest.raises(rk.ArgumentError, match="Stream, an IterableDataset"):
        rk.DataLoader(Stream(), shard=(0, 2), seed=0)


def test_importance_that_learns_needs_a_process_group_of_these_ranks():
    with pytest.raises(rk.ArgumentError, match="init_process_group"):
        rk.DataLoader(Numbers(), shuffle=True, shard=(0, 2), seed=0, importance=rk.Buckets())


def test_a_loader_shows_its_shard_and_is_made_again_with_it():
    loader = rk.DataLoader(Numbers(), batch_size=4, shuffle=True, seed=3, shard=(1, 2))
    assert "shard=(1, 2)" in repr(loader)
    again = rk.DataLoader(Numbers(), batch_size=4, shuffle=True, **loader.rekindle)
    assert epochs([again]) == epochs([loader])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("arguments", [{}, REUSE], ids=["plain", "refurbished"])
def test_ranks_share_every_epoch_evenly_with_any_number_of_workers(workers, arguments):
    loaders = [
        rk.DataLoader(
            Numbers(50), 4, True, seed=3, shard=(rank, 4), num_workers=workers * (rank % 2), **arguments
        )
        for rank in range(4)
    ]
    for shares in epochs(loaders, 3):
        assert [len(share) for share in shares] == [len(loader) for loader in loaders] == [4] * 4
        assert [[len(batch) for batch in share] for share in shares] == [[4, 4, 4, 1]] * 4
        ids = [index for share in shares for batch in share for index in batch]
        assert set(ids) == set(range(50))


def test_reuse_keeps_its_gain_and_no_entry_moves():
    loaders = [rk.DataLoader(Numbers(96), 4, True, seed=3, shard=(rank, 4), **REUSE) for rank in range(4)]
    for epoch in range(7):
        fresh = [int(loader.batch.fresh.sum()) for loader in loaders for _ in loader]
        assert sum(fresh) == (96 if epoch == 0 else 32)
        entries = [loader.report().reuse.store.entries for loader in loaders]
        assert entries == [16] * 4, epoch  # Those that the next epoch recomputes are let go.


# Samplers that mean it.


@pytest.mark.parametrize("shuffle", [True, False])
def test_with_something_to_plan_a_distributed_sampler_means_a_shard(shuffle):
    def loader(rank, **arguments):
        return rk.DataLoader(Numbers(), batch_size=4, seed=3, **REUSE, **arguments)

    samplers = [DistributedSampler(range(SIZE), 3, rank, shuffle=shuffle, seed=3) for rank in range(3)]
    by_sampler = [loader(rank, sampler=sampler) for rank, sampler in enumerate(samplers)]
    by_shard = [loader(rank, shuffle=shuffle, shard=(rank, 3)) for rank in range(3)]
    assert epochs(by_sampler, 3) == epochs(by_shard, 3)
    assert len(by_sampler[0]) == 4


def test_a_sampler_without_anything_to_plan_is_followed_as_torch_does():
    samplers = [DistributedSampler(range(SIZE), 2, rank, seed=3) for rank in range(2)]
    for epoch, sampler in itertools.product(range(2), samplers):
        sampler.set_epoch(epoch)
        theirs = torch.utils.data.DataLoader(Numbers(), 4, sampler=sampler)
        assert epochs([rk.DataLoader(Numbers(), 4, sampler=sampler)]) == epochs([theirs])


def test_the_samplers_seed_orders_and_its_epoch_is_the_loaders():
    def loader(seed, epoch=0):
        sampler = DistributedSampler(range(SIZE), 2, 0, seed=seed)
        sampler.set_epoch(epoch)
        return rk.DataLoader(Numbers(), 4, sampler=sampler, seed=3, **REUSE)

    assert epochs([loader(1)]) != epochs([loader(2)])
    begun = loader(1)
    first, second = epochs([begun], 2)
    assert epochs([loader(1, epoch=1)])[0] == second != first


def test_a_samplers_drop_last_leaves_out_what_cannot_be_shared_evenly():
    for drop_last, samples in ((False, 51), (True, 48)):
        samplers = [DistributedSampler(range(50), 3, rank, drop_last=drop_last) for rank in range(3)]
        loaders = [rk.DataLoader(Numbers(50), 4, sampler=one, seed=3, **REUSE) for one in samplers]
        for shares in epochs(loaders, 2):
            assert sum(len(batch) for share in shares for batch in share) == samples


@pytest.mark.parametrize(
    "feature",
    [REUSE, {"importance": rk.RandomSubset(0.5)}, {"redundancy": rk.Redundancy([[0, 1]], "remove")}],
)
def test_all_features_take_a_sampler_that_a_framework_puts_in(feature):
    def made(rank):
        return rk.DataLoader(Numbers(), 4, shuffle=True, seed=3, **feature)

    later = [made(rank) for rank in range(2)]
    for rank, loader in enumerate(later):
        loader.batch_sampler.sampler = DistributedSampler(range(SIZE), 2, rank, seed=3)
    by_shard = [
        rk.DataLoader(Numbers(), 4, shuffle=True, seed=3, shard=(rank, 2), **feature) for rank in range(2)
    ]
    wanted = epochs(by_shard, 2)
    assert epochs(later, 2) == wanted


# Ranks as processes.


def _bad(rank, on_error, workers):
    # All samples that rank 0 has in its second step are bad.
    data = Numbers(SIZE, bad=range(8, 16, 2))
    loader = rk.DataLoader(
        data, 4, shard="ranks", seed=1, on_error=on_error, error_budget=0.5, num_workers=workers
    )
    sampler = DistributedSampler(data, shuffle=False)
    followed = rk.DataLoader(data, 4, sampler=sampler, on_error=on_error, error_budget=0.5)
    return [[batch.tolist() for batch in one] for one in (loader, followed)]


@pytest.mark.parametrize(("on_error", "workers"), [("skip", 0), ("skip", 2), ("substitute", 0)])
def test_bad_samples_leave_the_number_of_steps_as_it_is(on_error, workers):
    for own, followed in run_ranks(_bad, 2, on_error, workers):
        assert len(own) == len(followed) == 6
        assert min(map(len, own + followed)) > 0
        assert not {8, 10, 12, 14} & {index for batch in own + followed for index in batch}


def test_a_budget_of_all_allows_more_bad_samples_than_a_rank_has():
    """With those that it tried in place of its own."""
    for rank in range(6):
        data = Numbers(30, bad=range(0, 30, 2))
        loader = rk.DataLoader(
            data, 5, shuffle=True, shard=(rank, 6), seed=1, on_error="substitute", error_budget=1.0
        )
        for _ in range(8):
            assert [len(batch) for batch in loader] == [5]


def test_without_ranks_a_batch_of_bad_samples_is_left_out():
    loader = rk.DataLoader(Numbers(SIZE, bad=range(8, 12)), 4, on_error="skip", error_budget=0.5)
    assert len(list(loader)) == SIZE // 4 - 1


def _agree(rank):
    torch.manual_seed(rank)
    loader = rk.DataLoader(Numbers(), 4, shuffle=True, shard="ranks")
    shares = [loader.seed, [batch.tolist() for batch in loader]]
    messages = []
    for arguments in ({"dataset": Numbers(SIZE - rank)}, {"batch_size": 4 + rank}, {"seed": rank}):
        with pytest.raises(rk.RankError) as error:
            iter(
                rk.DataLoader(
                    **{"dataset": Numbers(), "batch_size": 4, "seed": 0, "shard": "ranks"} | arguments
                )
            )
        messages.append(str(error.value))
    unshared = rk.DataLoader(Numbers(), 4, shuffle=True, seed=0)
    with pytest.warns(UserWarning, match='Give shard="ranks"') as warned:
        list(unshared)
    list(unshared)  # The second time there is no warning, which would be an error here.
    assert len(warned) == 1
    assert warned[0].filename == __file__
    alone = rk.DataLoader(Numbers(), 4, shuffle=True, seed=0, shard=(0, 1))  # Meant to be: no warning.
    return shares, messages, len(list(alone))


def test_ranks_agree_on_a_seed_and_say_in_what_they_differ():
    (first, messages, _), (second, others, alone) = run_ranks(_agree, 2)
    assert first[0] == second[0]
    assert sorted(index for _, share in (first, second) for batch in share for index in batch) == list(
        range(SIZE)
    )
    assert messages == others
    for message, named in zip(messages, ("dataset_size is 47", "batch_size is 5", "seed is 1"), strict=True):
        assert f"{named} on rank 1" in message
    assert alone == SIZE // 4


def _leave_early(rank):
    loader = rk.DataLoader(
        Numbers(),
        4,
        shuffle=True,
        seed=3,
        shard="ranks",
        importance=rk.Buckets(warmup=1, rate=0.1, confidence=0),
    )
    seen = []
    for epoch in range(3):
        for step, ids in enumerate(loader):
            loader.feedback(ids.float())
            seen.append(ids.tolist())
            if rank == 1 and epoch == 1 and step == 2:
                break
    return len(loader), np.sort(loader._parts.importance.choice.ids).tolist()


def test_a_rank_that_leaves_an_epoch_early_goes_on_to_the_next():
    first, second = run_ranks(_leave_early, 2)
    assert first == second


def _train_and_save(rank, world, steps, state):
    loader = rk.DataLoader(
        Numbers(), 12 // world, shuffle=True, seed=3, shard="ranks", importance=rk.InfoBatch(epochs=8)
    )
    if state is not None:
        loader.load_state_dict(state)
    seen = []
    while len(seen) < steps:
        for ids in loader:
            loader.feedback((ids % 7).float() + loader.batch.epoch)
            seen.append(
                (loader.batch.epoch, list(zip(ids.tolist(), loader.batch.weights.tolist(), strict=True)))
            )
            if len(seen) == steps:
                saved = loader.state_dict() if rank == 0 else None  # Nobody else need be asked.
                torch.distributed.barrier()
                break
    return seen, saved


PAIRS = [(2, 3), (3, 1), (1, 4)]
MORE_PAIRS = [(4, 2), (2, 1), (1, 2), (6, 4), (4, 6), (3, 2), (12, 1), (1, 6), (2, 4)]


@pytest.mark.parametrize(
    ("before", "after"), PAIRS + [pytest.param(*pair, marks=pytest.mark.slow) for pair in MORE_PAIRS]
)
def test_scores_and_choice_go_on_with_another_number_of_ranks(before, after):
    def together(found):
        steps = zip(*(seen for seen, _ in found), strict=True)
        return [(step[0][0], sorted(row for _, rows in step for row in rows)) for step in steps]

    whole = together(run_ranks(_train_and_save, 1, 1, 14, None))
    first = run_ranks(_train_and_save, before, before, 6, None)
    state = first[0][1]
    second = run_ranks(_train_and_save, after, after, 8, state)
    found = together(first) + together(second)
    assert [epoch for epoch, _ in found] == [epoch for epoch, _ in whole]
    for epoch in range(whole[-1][0]):  # The last is not complete, and how it is ordered depends on the ranks.
        mine, theirs = (
            sorted({row[0] for one, rows in run if one == epoch for row in rows}) for run in (found, whole)
        )
        assert mine == theirs


def _killed(rank, path):
    """Trains, saves after each step, and is killed with all other ranks after the fifth."""
    loader = rk.DataLoader(Numbers(), 4, shuffle=True, seed=3, shard="ranks", num_workers=1, **REUSE)
    seen = []
    for ids in loader:
        everyones = [torch.zeros_like(ids) for _ in range(3)]
        torch.distributed.all_gather(everyones, ids)
        seen += torch.cat(everyones).tolist()
        if rank == 0:
            torch.save({"loader": loader.state_dict(), "seen": seen}, path + ".new")
            os.replace(path + ".new", path)
        torch.distributed.barrier()
        if loader.batch.step == 2:
            os.kill(os.getpid(), signal.SIGKILL)


def test_after_kill_9_of_all_ranks_others_go_on_exactly(tmp_path):
    path = str(tmp_path / "state.pt")
    assert run_ranks(_killed, 3, path, killed=True) == [-signal.SIGKILL] * 3
    saved = torch.load(path)
    loaders = [
        rk.DataLoader(Numbers(), 6, shuffle=True, seed=3, shard=(rank, 2), **REUSE) for rank in range(2)
    ]
    for loader in loaders:
        loader.load_state_dict(saved["loader"])
    (shares,) = epochs(loaders)
    rest = [index for share in shares for batch in share for index in batch]
    assert len(rest) == 12
    assert sorted(saved["seen"] + rest) == list(range(SIZE))
