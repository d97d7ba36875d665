"""Who decides a loader's order, and which ranks share it: `shard=`, or a sampler that means the same."""

from __future__ import annotations

import os
import warnings
from typing import Any, Literal, NamedTuple, TypeAlias

import torch.utils.data
from torch.utils.data import BatchSampler

from rekindle.choose import OrderKind
from rekindle.choose.agreement import decided_by_first_rank, has_ranks
from rekindle.choose.distributed import rank_and_world
from rekindle.choose.seeding import DrawnSeed, draw_seed
from rekindle.choose.shard import EpochLayout, Shard
from rekindle.core.given_numbers import integer_of
from rekindle.errors import ArgumentError
from rekindle.run.hugging_face import is_hugging_face, split_for

ShardArgument: TypeAlias = Literal["ranks"] | tuple[int, int] | None

_WAYS = (
    'Give shard="ranks" under torch.distributed or torchrun, (rank, world size) as two integers, or None to '
    "load everything in this process."
)


def shard_given(shard: object) -> Shard | None:
    """What `shard=` stands for; ArgumentError if for nothing, or if there are no ranks to take it from."""
    if shard is None:
        return None
    if isinstance(shard, tuple | list) and len(shard) == 2:
        rank, world = map(integer_of, shard)
        if rank is not None and world is not None:
            return Shard(rank, world)
    if shard != "ranks":
        raise ArgumentError(f"shard is {shard!r}. {_WAYS}")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return Shard(*rank_and_world())
    own, all_ranks = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if not (own.isdecimal() and all_ranks.isdecimal()):
        raise ArgumentError(
            'shard="ranks" takes rank and world size from torch.distributed, which is not initialised, or '
            f"from RANK, which is {_shown(own)}, and WORLD_SIZE, which is {_shown(all_ranks)}. Start the "
            "script with torchrun, call torch.distributed.init_process_group() first, or give "
            "shard=(rank, world size)."
        )
    return Shard(int(own), int(all_ranks))


def implied_shard(kind: OrderKind) -> Shard | None:
    """The ranks of torch.distributed, for a loader whose features share samples without being asked."""
    return Shard(*rank_and_world()) if kind.is_planned and has_ranks() else None


class LoaderOrder(NamedTuple):
    """Who decides the order of a loader's samples; if it is planned, for which rank and in which batches."""

    kind: OrderKind
    batch_size: int | None
    drop_last: bool
    shard: Shard | None = None  # None: every process has all samples
    seed: int | None = None  # of the order, where a sampler has one; None: the loader's

    @property
    def layout(self) -> EpochLayout:
        """What its epochs are made for."""
        return EpochLayout(1 if self.shard is None else self.shard.world, self.batch_size or 1)


def check_shard(
    loader: torch.utils.data.DataLoader[object], order: LoaderOrder, shard: Shard | None, *, can_split: bool
) -> None:
    """ArgumentError unless ranks can share the loader's samples in this order, if they are asked to.

    `can_split` says whether an iterable dataset splits itself.
    """
    if shard is None:
        return
    if order.kind is OrderKind.ITERABLE and not can_split:
        raise ArgumentError(
            f"shard={_pair(shard)} does not go with {type(loader.dataset).__name__}, an IterableDataset, "
            "which decides itself what each rank reads. Split it yourself (by rank, then by worker), or use "
            "a map-style dataset or a stream of Hugging Face's datasets."
        )
    if order.kind is OrderKind.SAMPLER:
        what = "generator=" if loader.generator is not None else type(_sampler(loader)).__name__
        raise ArgumentError(
            f"shard={_pair(shard)} plans the order itself, so it does not go with {what}. Leave that out and "
            "use shuffle= and seed=; or leave shard= out, and let a sampler give each rank its samples."
        )
    if order.shard is not None and (order.shard.rank, order.shard.world) != (shard.rank, shard.world):
        raise ArgumentError(
            f"shard={_pair(shard)}, but {type(_sampler(loader)).__name__} was made for rank "
            f"{order.shard.rank} of {order.shard.world}. Leave one of them out."
        )


def split(dataset: object, shard: Shard | None) -> Any:
    """What a rank loads of a dataset: its part of a stream that splits itself, all of any other."""
    if shard is None or not is_hugging_face(dataset):
        return dataset
    return split_for(dataset, shard.rank, shard.world)


def check_seed(
    loader: torch.utils.data.DataLoader[object], shard: Shard | None, asked_for: Shard | None, is_given: bool
) -> None:
    """ArgumentError unless all ranks have the same seed, or can be given one.

    `shard` was `asked_for`, or is that of the loader's sampler.
    """
    if not is_given and shard is not None and shard.world > 1 and part_in_group(shard) is None:
        what = f"shard={_pair(shard)}"
        if asked_for is None:
            what = f"{type(_sampler(loader)).__name__} for rank {shard.rank} of {shard.world},"
        raise ArgumentError(
            f"{what} without seed=: the ranks would each draw another. Give the loader seed=, the same on "
            "all ranks, or initialise torch.distributed first: then rank 0 draws one for all."
        )


def agreed_seed(order: LoaderOrder, drawn: int | None) -> DrawnSeed:
    """A seed that was not given: drawn before, or now, from torch's generator.

    For ranks that share epochs it is the first one's.
    """
    if drawn is None:
        drawn = draw_seed(put_back=order.kind is OrderKind.SAMPLER)
    own = int(drawn)
    if part_in_group(order.shard) is None:
        return DrawnSeed(own)
    return DrawnSeed(decided_by_first_rank("the seed", lambda: own))


def keeps_steps(order: LoaderOrder) -> bool:
    """Whether other ranks wait for each of this one's batches, so that none may be left out."""
    return has_ranks() or (order.shard is not None and order.shard.world > 1)


def is_the_group(shard: Shard | None) -> bool:
    """Whether the ranks that share the samples are those of torch.distributed, which can be asked."""
    return shard is not None and has_ranks() and rank_and_world() == (shard.rank, shard.world)


def part_in_group(shard: Shard | None) -> int | None:
    """Which part this rank has, if there is one for each rank of torch.distributed, in whatever order."""
    is_one_each = shard is not None and has_ranks() and rank_and_world()[1] == shard.world
    return shard.rank if shard is not None and is_one_each else None


def warn_of_ranks(order: LoaderOrder, *, stacklevel: int) -> None:
    """A warning if this process is one of several ranks that load all samples each, or not all together."""
    shard = order.shard
    if shard is not None and has_ranks() and shard.world > rank_and_world()[1]:
        warnings.warn(
            f"shard={_pair(shard)} shares each epoch among {shard.world} ranks, but torch.distributed has "
            f"{rank_and_world()[1]}: what the others should load is not loaded, unless other groups do. "
            'Give shard="ranks" for the ranks that there are.',
            RuntimeWarning,
            stacklevel=stacklevel + 1,
        )
    if order.kind is OrderKind.SHUFFLED and order.shard is None and has_ranks():
        warnings.warn(
            f"this is one of {rank_and_world()[1]} ranks of torch.distributed, and each of them will load "
            'the whole dataset in every epoch. Give shard="ranks", so that they share it, or a '
            "DistributedSampler; shard=(0, 1) if this is meant.",
            stacklevel=stacklevel + 1,
        )


def _shown(variable: str) -> str:
    return repr(variable) if variable else "not set"


def _pair(shard: Shard) -> str:
    return f"({shard.rank}, {shard.world})"


def _sampler(loader: torch.utils.data.DataLoader[object]) -> object:
    batcher = loader.batch_sampler
    return batcher.sampler if type(batcher) is BatchSampler else loader._index_sampler
