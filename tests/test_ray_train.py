"""What Ray Train makes of a loader of ours is one of ours still, with its share of every epoch."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DistributedSampler, WeightedRandomSampler

import rekindle as rk
from rank_loaders import Drawn

SIZE = 24


def finish(sample):
    index, drawn = sample
    return index, drawn, torch.rand(())


class OfTwo(DistributedSampler):
    """Takes rank and world from here, and not from a process group."""

    rank_here = 0

    def __init__(self, dataset, shuffle):
        super().__init__(dataset, 2, self.rank_here, shuffle)


@pytest.fixture(params=["ray.train.torch.train_loop_utils", "ray.train.v2.torch.train_loop_utils"])
def prepare(request, monkeypatch):
    """Ray Train's `prepare_data_loader`, the old one and the present one, in rank r of two."""
    utils = pytest.importorskip(request.param)
    monkeypatch.setattr(utils, "DistributedSampler", OfTwo)
    monkeypatch.setattr(utils, "record_extra_usage_tag", lambda *_: None)
    if "v2" in request.param:
        context = SimpleNamespace(get_world_size=lambda: 2, get_world_rank=lambda: OfTwo.rank_here)
        monkeypatch.setattr(utils.ray.train, "get_context", lambda: context)
        monkeypatch.setattr(utils.ray.train.torch, "get_device", lambda: torch.device("cpu"))
        function = inspect.unwrap(utils.prepare_data_loader)
    else:
        monkeypatch.setattr(utils.session, "get_world_size", lambda: 2)
        monkeypatch.setattr(utils.session, "get_world_rank", lambda: OfTwo.rank_here)
        monkeypatch.setattr(utils, "get_device", lambda: torch.device("cpu"))
        # Without its constructor, which starts Ray.
        accelerator = object.__new__(utils._TorchAccelerator)
        accelerator._seed, accelerator.device_manager = None, None
        function = accelerator.prepare_data_loader

    def prepared(rank, loader=None, **arguments):
        monkeypatch.setattr(OfTwo, "rank_here", rank)
        return function(loader or rk.DataLoader(Drawn(SIZE), 4, seed=3, **arguments))

    return prepared


def rows(loader):
    return [row for batch in loader for row in zip(*(part.tolist() for part in batch), strict=True)]


@pytest.mark.parametrize("feature", ["reuse", "importance", "none"])
def test_it_keeps_our_arguments_and_has_its_share(prepare, feature):
    given = {"final_transform": finish, "on_error": "skip", "prefetch_factor": 3, "num_workers": 1}
    if feature != "none":
        given[feature] = {"reuse": rk.Refurbish(2), "importance": rk.Uniform()}[feature]
    loaders = [prepare(rank, shuffle=True, **given) for rank in range(2)]
    for loader in loaders:
        assert type(loader) is rk.DataLoader
        assert {name: getattr(loader, name) for name in given} == given
        assert loader.seed == 3
    for epoch in range(2):
        for loader in loaders:
            loader.sampler.set_epoch(epoch)
        views = rows(loaders[0]) + rows(loaders[1])
        assert sorted(index for index, _, _ in views) == list(range(SIZE))  # and finished, each of them


def test_a_shard_stays_as_it_is(prepare):
    loaders = [prepare(rank, shuffle=True, shard=(rank, 2)) for rank in range(2)]
    assert sorted(index for loader in loaders for index, _ in rows(loader)) == list(range(SIZE))
    for batch in loaders[0]:  # None is asked for before the loop has had the one before.
        assert batch[0].tolist() == loaders[0].batch.ids.tolist()


def test_torchs_own_loader_is_as_before(prepare):
    prepare(0)  # One of ours was there.
    found = prepare(1, torch.utils.data.DataLoader(Drawn(SIZE), 4))
    assert type(found._dataloader) is torch.utils.data.DataLoader
    assert [index for index, _ in rows(found)] == list(range(1, SIZE, 2))


def test_where_batches_go_to_a_device_our_loader_takes_them_there():
    from rekindle.loader.ray_train import _made_again

    weighted = WeightedRandomSampler([1.0] * SIZE, SIZE)
    batches = [[0, 1], [2, 3]]
    for order in ({}, {"shuffle": True}, {"sampler": weighted}, {"batch_sampler": batches}):
        given = {"batch_size": 4, **order} if "batch_sampler" not in order else order
        loader = rk.DataLoader(Drawn(SIZE), seed=3, drop_last="batch_sampler" not in order, **given)
        again = _made_again(loader, device="cpu")
        assert (again.device, again.seed, again.drop_last) == ("cpu", 3, loader.drop_last)
        assert len(again) == len(loader)
        if order != {"sampler": weighted}:
            assert rows(again) == rows(loader)
