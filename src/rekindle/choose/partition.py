"""Whether the ranks of a distributed run divide the samples, or may draw the same ones."""

from __future__ import annotations

from collections.abc import Sized
from typing import NamedTuple

from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
)

from rekindle.choose import distributed
from rekindle.choose.planned_sampler import PlannedSampler
from rekindle.choose.shard import Shard

# The classes of other libraries, by package and name, whose ranks divide what they wrap.
_DIVIDERS = {
    ("accelerate", "BatchSamplerShard"),
    ("lightning", "DistributedSamplerWrapper"),
    ("lightning", "UnrepeatedDistributedSamplerWrapper"),
    ("lightning_fabric", "DistributedSamplerWrapper"),
    ("pytorch_lightning", "UnrepeatedDistributedSamplerWrapper"),
}
_UNEVEN = {
    ("lightning", "UnrepeatedDistributedSamplerWrapper"),
    ("pytorch_lightning", "UnrepeatedDistributedSamplerWrapper"),
}
# Those whose ranks divide a dataset, though they have an `__iter__` of their own.
_PARTITIONS = {
    ("lightning", "UnrepeatedDistributedSampler"),
    ("pytorch_lightning", "UnrepeatedDistributedSampler"),
    ("torchdata", "StatefulDistributedSampler"),
}
# Those that give a dataset's samples once each, in the same order on every rank.
_ONCE_EACH = {("accelerate", "SeedableRandomSampler")}
# Those that give what they wrap, pass after pass.
_REPEATERS = {("timm", "_RepeatSampler"), ("ultralytics", "_RepeatSampler")}
_MOST_LAYERS = 8
_RANKS = (
    ("rank", "num_replicas"),
    ("process_index", "num_processes"),
    ("data_parallel_rank", "data_parallel_size"),
)


# Of the partitions, those whose ranks have equally many samples in every pass, as `shard=` gives them.
_EVEN_PARTITIONS = {("torchdata", "StatefulDistributedSampler")}


class Share(NamedTuple):
    """Whose draws these are: the rank is a part of their key, if another one may draw the same samples."""

    rank: int = 0
    world: int = 1


def share_of(sampler: object) -> Share:
    """How a sampler's draws are keyed.

    Without the rank, where ranks are known to divide the samples: a view then does not depend on how many
    ranks there are. With it otherwise: then no two ranks have the same view of a sample. The rank is the one
    that the sampler says it has, because ranks that train one copy of a model together must get the same
    batches; failing that, the process's own.
    """
    own = _own_share(sampler)
    share = Share(*distributed.rank_and_world()) if own is None else own
    return Share() if share.world == 1 or _is_partition(sampler) else share


def part_of(sampler: object) -> Share | None:
    """Which part of each epoch a sampler gives, if its ranks divide one order of samples; None if not."""
    own = _own_share(sampler)
    return own if own is not None and _is_partition(sampler) else None


class ShardingSampler(NamedTuple):
    """What a sampler that deals a whole dataset to ranks means, as the loader's own arguments."""

    rank: int
    world: int
    shuffle: bool
    seed: int | None  # of the order; None: the loader's own
    drop_uneven: bool  # Samples that the ranks cannot share evenly are left out, and not repeated.
    batch_size: int | None  # of a rank; None: it gives samples, and no batches
    drop_last: bool
    gathers: bool = False  # What makes up for an uneven rest must come last in what all ranks gather.


def sharding_of(sampler: object, size: int) -> ShardingSampler | None:
    """How a sampler, or a batch sampler, deals a dataset of `size` samples to ranks; None if it does not.

    Known are torch's DistributedSampler and what Lightning and Accelerate put in its place: those of which
    all ranks together have every sample once, in an order that is shuffled or the dataset's own.
    """
    share: tuple[int, int] | None = None
    batch_size, drop_last, drop_uneven, gathers = None, False, False, False
    for layer in layers(sampler):
        maker = _maker(layer)
        if type(layer) is BatchSampler:
            batch_size, drop_last = layer.batch_size, layer.drop_last
            if share is not None and getattr(layers(sampler)[0], "split_batches", False):
                batch_size //= share[1]  # Accelerate's ranks then share each batch.
            drop_uneven |= drop_last and gathers  # Its ranks repeat nothing then.
        elif _name(maker) in _DIVIDERS - _UNEVEN and share is None:
            share = _own_share(layer)
            drop_uneven = isinstance(layer, DistributedSampler) and layer.drop_last
            gathers = _name(maker) == ("accelerate", "BatchSamplerShard")
        elif maker is DistributedSampler or _name(maker) in _EVEN_PARTITIONS:
            assert isinstance(layer, DistributedSampler)
            given, dataset = _own_share(layer), layer.dataset
            if share is not None or given is None or not isinstance(dataset, Sized) or len(dataset) != size:
                return None
            if not _deals_all(layer, size):
                return None
            return ShardingSampler(*given, layer.shuffle, layer.seed, layer.drop_last, batch_size, drop_last)
        elif share is not None and _gives_each_once(layer) and _length(layer) == size:
            shuffle, seed = type(layer) is not SequentialSampler, getattr(layer, "initial_seed", None)
            return ShardingSampler(*share, shuffle, seed, drop_uneven, batch_size, drop_last, gathers)
        else:
            return None
    return None


def _deals_all(sampler: DistributedSampler[object], size: int) -> bool:
    """Whether it still has all samples that it was made with: scripts shorten epochs by these attributes."""
    world = sampler.num_replicas
    samples = Shard(0, world, sampler.drop_last).share(size)
    return (sampler.num_samples, sampler.total_size) == (samples, samples * world)


def _length(sampler: object) -> int:
    return len(sampler) if isinstance(sampler, Sized) else -1


def _own_share(sampler: object) -> Share | None:
    """The rank that a sampler, or one within it, was made for."""
    for layer in layers(sampler):
        for rank, world in _RANKS:
            number, count = getattr(layer, rank, None), getattr(layer, world, None)
            if type(number) is int and type(count) is int:
                return Share(number, count)
    return None


def _is_partition(sampler: object) -> bool:
    for layer in layers(sampler):
        if isinstance(layer, DistributedSampler):
            maker = _maker(layer)
            if _name(maker) in _DIVIDERS:
                continue  # It depends on what it wraps.
            return maker is DistributedSampler or _name(maker) in _PARTITIONS
        if _gives_each_once(layer):
            return _is_divided(sampler)
        if type(layer) is not BatchSampler and _name(_maker(layer)) not in _DIVIDERS | _REPEATERS:
            return False
    return False


def _is_divided(sampler: object) -> bool:
    return any(_name(_maker(layer)) in _DIVIDERS for layer in layers(sampler))


def _gives_each_once(sampler: object) -> bool:
    if isinstance(sampler, PlannedSampler) or type(sampler) in (SequentialSampler, SubsetRandomSampler):
        return True
    if type(sampler) is RandomSampler or _name(type(sampler)) in _ONCE_EACH:
        assert isinstance(sampler, RandomSampler)
        source: object = sampler.data_source
        return not sampler.replacement and isinstance(source, Sized) and sampler.num_samples <= len(source)
    return False


def layers(sampler: object) -> list[object]:
    """The sampler, the one that it wraps, and so on."""
    found: list[object] = []
    while sampler is not None and len(found) < _MOST_LAYERS:
        found.append(sampler)
        inner = getattr(sampler, "batch_sampler", None)
        inner = getattr(sampler, "sampler", None) if inner is None else inner
        if inner is None and _name(_maker(sampler)) in _DIVIDERS:
            # Lightning keeps it in a dataset that gives a sampler's indices.
            inner = getattr(getattr(sampler, "dataset", None), "_sampler", None)
        sampler = inner
    return found


def _maker(sampler: object) -> type:
    """The class whose `__iter__` a sampler has."""
    return next((kind for kind in type(sampler).__mro__ if "__iter__" in vars(kind)), object)


def _name(kind: type) -> tuple[str, str]:
    return kind.__module__.partition(".")[0], kind.__name__
