"""What Lightning, Accelerate and timm deal to ranks is what `shard=` does, or is left to them."""

import itertools
from collections import Counter

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import rekindle as rk
from framework_loaders import Line, Noisy, import_frameworks, updated
from rekindle.choose.partition import Share, sharding_of, share_of
from same import same


@pytest.fixture(autouse=True, scope="module")
def _frameworks():
    import_frameworks()


def test_wrappers_of_lightning_and_accelerate_divide_what_has_each_sample_once():
    from accelerate.data_loader import BatchSamplerShard
    from lightning.fabric.utilities.distributed import DistributedSamplerWrapper

    def wrapped(sampler):
        return DistributedSamplerWrapper(sampler, num_replicas=4, rank=2)

    def sharded(sampler):
        return BatchSamplerShard(BatchSampler(sampler, 3, False), 4, 2)

    data = range(12)
    for wrap in (wrapped, sharded):
        assert share_of(wrap(SequentialSampler(data))) == Share()
        assert share_of(wrap(RandomSampler(data))) == Share()
        assert share_of(wrap(WeightedRandomSampler([1.0] * 12, 12))) == Share(2, 4)
        assert share_of(wrap(RandomSampler(data, num_samples=30))) == Share(2, 4)


def test_the_ranks_of_repeated_augmentation_in_timm_have_different_views():
    from timm.data.distributed_sampler import RepeatAugSampler

    ranks = []
    for rank in range(3):
        sampler = RepeatAugSampler(range(12), num_replicas=3, rank=rank, num_repeats=3)
        loader = rk.DataLoader(Noisy(), batch_size=4, sampler=sampler, seed=3)
        ranks.append([row for batch in loader for row in zip(*map(torch.Tensor.tolist, batch), strict=True)])
    assert [index for index, _ in ranks[0]] == [index for index, _ in ranks[1]]
    assert len({row for rank in ranks for row in rank}) == sum(map(len, ranks)) == 12


def test_samplers_that_deal_a_dataset_to_ranks_are_read():
    from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler
    from lightning.fabric.utilities.distributed import DistributedSamplerWrapper

    def read(sampler, size=12):
        found = sharding_of(sampler, size)
        return None if found is None else tuple(found)

    data = range(12)
    distributed = DistributedSampler(data, 4, 2, shuffle=True, seed=6, drop_last=True)
    assert read(distributed) == (2, 4, True, 6, True, None, False, False)
    assert read(BatchSampler(distributed, 5, True)) == (2, 4, True, 6, True, 5, True, False)
    assert read(distributed, size=13) is None
    wrapped = DistributedSamplerWrapper(SequentialSampler(data), num_replicas=4, rank=2)
    assert read(BatchSampler(wrapped, 5, False)) == (2, 4, False, None, False, 5, False, False)
    assert (
        read(DistributedSamplerWrapper(WeightedRandomSampler([1.0] * 12, 12), num_replicas=4, rank=2)) is None
    )
    assert read(DistributedSamplerWrapper(SubsetRandomSampler(range(6)), num_replicas=4, rank=2)) is None
    random = BatchSampler(RandomSampler(data), 6, True)
    assert read(BatchSamplerShard(random, 3, 1)) == (1, 3, True, None, True, 6, True, True)
    assert read(BatchSamplerShard(random, 3, 1, split_batches=True)) == (
        1,
        3,
        True,
        None,
        True,
        2,
        True,
        True,
    )
    seeded = BatchSampler(SeedableRandomSampler(data, data_seed=42), 6, False)
    assert read(BatchSamplerShard(seeded, 3, 1)) == (1, 3, True, 42, False, 6, False, True)
    assert read(random) is None
    assert read(object()) is None


def followed(kind, rank, world=2, seed=5, size=3):
    """A loader that follows what deals an order to ranks, index by index."""
    from accelerate.data_loader import prepare_data_loader
    from lightning.fabric.utilities.distributed import DistributedSamplerWrapper

    if kind == "accelerate":
        loader = rk.DataLoader(Line(24), size, shuffle=True, seed=seed)
        return prepare_data_loader(loader, num_processes=world, process_index=rank)
    sampler = DistributedSampler(Line(24), world, rank, seed=seed)
    if kind == "lightning":
        order = RandomSampler(range(24), generator=torch.Generator().manual_seed(seed))
        sampler = DistributedSamplerWrapper(order, num_replicas=world, rank=rank, shuffle=False)
    return rk.DataLoader(Line(24), size, sampler=sampler, seed=seed)


@pytest.mark.parametrize("kind", ["torch", "lightning", "accelerate"])
def test_the_state_of_one_rank_goes_on_as_that_of_all_that_divide_an_order(kind):
    """Lightning and Accelerate load one state on all ranks."""
    whole = [followed(kind, rank) for rank in range(2)]
    iterators = [iter(loader) for loader in whole]
    for batches in iterators:
        next(batches), next(batches)
    state = whole[0].state_dict()
    for rank, batches in enumerate(iterators):
        loader = followed(kind, rank)
        loader.load_state_dict(state)
        assert same(list(loader), list(batches))
    for rank, world, seed in ((0, 2, 6), (1, 4, 5)):
        loader = followed(kind, rank, world, seed)
        with pytest.raises(rk.StateError, match=r"another order|seed"):
            loader.load_state_dict(state), list(loader)


@pytest.mark.parametrize("kind", ["torch", "lightning", "accelerate"])
@pytest.mark.parametrize(("before", "now"), [(2, 1), (1, 2), (2, 3)])
def test_a_first_batch_that_is_the_same_for_more_or_fewer_ranks_is_no_proof_of_the_order(kind, before, now):
    """Rank 1's samples would come again, or those of no rank not at all."""
    loader = followed(kind, 0, before, size=1)
    first = next(iter(loader))
    state = loader.state_dict()
    assert same(next(iter(followed(kind, 0, now, size=1))), first)
    loader = followed(kind, 0, now, size=1)
    loader.load_state_dict(state)
    if before == 1 and kind == "accelerate":  # Nothing says what divided that order.
        return
    with pytest.raises(rk.StateError, match="another order"):
        list(loader)


def test_a_sampler_that_was_made_shorter_is_followed():
    """By these attributes scripts shorten epochs, as torch's loader then does."""
    sampler = DistributedSampler(range(12), 2, 1, drop_last=True)
    sampler.num_samples, sampler.total_size = 4, 8
    loader = rk.DataLoader(
        Line(12), 2, sampler=sampler, seed=1, reuse=rk.Refurbish(2, balance=None), final_transform=as_is
    )
    assert [index for _, _, ids in loader for index in ids.tolist()] == list(sampler)
    assert len(loader) == 2


def shared(framework):
    """The loaders of two ranks as a framework makes them anew, and as `shard=` says the same."""
    from accelerate.data_loader import prepare_data_loader

    arguments = {
        "batch_size": 4,
        "shuffle": True,
        "seed": 5,
        "reuse": rk.Refurbish(3),
        "final_transform": as_is,
    }
    for rank in range(2):
        loader = rk.DataLoader(Line(), **arguments)
        if framework == "accelerate":
            made_anew = prepare_data_loader(loader, num_processes=2, process_index=rank)
        else:
            made_anew = updated(framework, loader, DistributedSampler(loader.dataset, 2, rank, seed=5))
        yield made_anew, rk.DataLoader(Line(), shard=(rank, 2), **arguments)


def as_is(sample):
    return sample


@pytest.mark.parametrize("framework", ["fabric", "pytorch", "accelerate"])
def test_with_reuse_what_a_framework_puts_in_means_a_shard(framework):
    for made_anew, own in shared(framework):
        for _ in range(3):
            assert same([batch[2] for batch in made_anew], [batch[2] for batch in own])
        fresh = [int(made_anew.batch.fresh.sum()) for _ in made_anew]
        assert 3 <= sum(fresh) <= 8, "a third of what this rank has"


def test_accelerate_takes_over_a_loader_with_a_shard():
    from accelerate.data_loader import prepare_data_loader

    loader = rk.DataLoader(Line(), batch_size=4, shuffle=True, seed=5, shard=(1, 2))
    prepared = prepare_data_loader(loader, num_processes=2, process_index=1)
    assert same([batch[2] for batch in prepared], [batch[2] for batch in loader])
    alone = prepare_data_loader(loader, num_processes=1, process_index=0)
    assert len([batch[2] for batch in alone]) == 8  # One process has everything.


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("size", [2, 7, 14, 17, 18, 20, 24])
def test_what_accelerate_gathers_for_metrics_is_each_sample_once(size, shuffle):
    """As `Accelerator.gather_for_metrics` does: of what all processes have at the end, it takes the first."""
    for world in (1, 2, 4, 5):
        reuse = rk.Refurbish(3, balance=None)
        loaders = _prepared(size, world, reuse=reuse, final_transform=as_is, shuffle=shuffle)
        for _ in range(3):
            assert sorted(_gathered_for_metrics(loaders)) == list(range(size))


def test_what_accelerate_gathers_for_metrics_is_all_that_was_chosen():
    for world in (1, 2, 3):
        chosen = _gathered_for_metrics(_prepared(18, world, importance=rk.RandomSubset(0.5), shuffle=True))
        assert len(set(chosen)) == 9
        assert len(chosen) - 9 < world
        repeated = _gathered_for_metrics(_prepared(7, world, reuse=rk.Echo(2), final_transform=as_is))
        assert min(Counter(repeated).values()) == 2


def test_with_drop_last_accelerates_processes_have_no_sample_twice():
    for size, world in itertools.product((17, 31), (2, 3, 5, 6)):
        given = {"batch_size": 3, "drop_last": True, "shuffle": True, "seed": 5}
        ranks = _prepared(size, world, reuse=rk.Refurbish(3, balance=None), final_transform=as_is, **given)
        torchs = _prepared(size, world, **given)
        assert [len(list(loader)) for loader in ranks] == [len(list(loader)) for loader in torchs]
        samples = [index for loader in ranks for batch in loader for index in batch[2].tolist()]
        assert len(set(samples)) == len(samples)


def _prepared(size, world, **arguments):
    """The loaders that Accelerate makes for its processes."""
    from accelerate.data_loader import prepare_data_loader

    arguments = {"batch_size": 3, "seed": 5} | arguments
    has_shard = arguments.pop("shard", False)
    shards = [(rank, world) if has_shard else None for rank in range(world)]
    for_ranks = [rk.DataLoader(Line(size), shard=shard, **arguments) for shard in shards]
    return [
        prepare_data_loader(loader, num_processes=world, process_index=rank)
        for rank, loader in enumerate(for_ranks)
    ]


def _gathered_for_metrics(loaders):
    samples = []
    for batches in zip(*loaders, strict=True):
        gathered = [index for batch in batches for index in batch[2].tolist()]
        remainders = {loader.remainder for loader in loaders if loader.end_of_dataloader}
        assert len(remainders) < 2
        samples += gathered[: remainders.pop()] if max(remainders, default=0) > 0 else gathered
    return samples


@pytest.mark.parametrize("arguments", [{"reuse": rk.Refurbish(3, balance=None)}, {"shard": True}])
def test_skipping_batches_leaves_the_rest_of_what_each_process_was_to_have(arguments):
    from accelerate.data_loader import skip_first_batches

    for world, epoch in ((2, 0), (3, 0), (3, 1)):
        given, seen, following = (
            {"final_transform": as_is, "shuffle": True, **arguments},
            Counter(),
            Counter(),
        )
        begun, others = (_prepared(26, world, **given) for _ in range(2))
        for first, other in zip(begun, others, strict=True):
            first.set_epoch(epoch)
            batches = iter(first)
            seen.update(index for _ in range(2) for index in next(batches)[2].tolist())
            batches.close()
            other.set_epoch(epoch)
            rest = skip_first_batches(other, 2)
            left = [batch[2].tolist() for batch in rest]
            assert len(left) == len(rest)
            seen.update(itertools.chain(*left))
            following.update(index for batch in other for index in batch[2].tolist())
        assert seen.keys() == following.keys() == set(range(26))
        assert seen.total() - 26 < world
