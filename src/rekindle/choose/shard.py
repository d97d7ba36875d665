"""Which part of an epoch a rank has, and where in the epoch it starts.

An epoch is one sequence of samples for all ranks together. It is fixed when the epoch begins, by the seed,
the epoch, and the world and batch size that it is begun with: its layout. A rank's rows are every `world`-th
of that sequence, so the first `world × batch_size` samples are the first batch of all ranks together. Where
an epoch stands is therefore one number, how many samples of the sequence all ranks together have consumed,
and any other world can go on from there: it cuts what is left into batches of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from rekindle.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of one rank of `world`.

    Every rank has the same number of samples in every epoch. What cannot be divided is made up for by
    repeating a few samples, or, with `drop_last`, left out, as torch's `DistributedSampler` does. Those that
    are repeated are the last rows of some ranks, or, with `repeats_last`, the last of what all ranks gather.

    >>> Shard(rank=1, world=4).share(10), Shard(rank=1, world=4, drop_last=True).share(10)
    (3, 2)
    """

    rank: int = 0
    world: int = 1
    drop_last: bool = False
    repeats_last: bool = False  # in a step of all ranks, one rank's rows behind the other's

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ArgumentError(
                f"shard: there is no rank {self.rank} of {self.world}; ranks are numbered from 0, and there "
                "are as many as the world size says"
            )

    def share(self, samples: int) -> int:
        """How many of so many samples each rank has, repeated ones included."""
        return samples // self.world if self.drop_last else -(-samples // self.world)

    def left_out(self, samples: int, batch_size: int, drop_last: bool) -> int:
        """How many of so many samples are left out of an epoch, of all ranks together.

        That is, if the ranks leave out an incomplete last batch (`drop_last`), or what cannot be divided.

        >>> Shard().left_out(10, 4, drop_last=True), Shard(world=2).left_out(20, 4, drop_last=True)
        (2, 4)
        """
        share = self.share(samples)
        if drop_last:
            share -= share % batch_size
        return max(0, samples - share * self.world)


ONE_RANK = Shard()  # which has all samples


@dataclass(frozen=True, slots=True)
class EpochLayout:
    """What an epoch's sequence of samples is made for: the world and each rank's batch size as it begins."""

    world: int = 1
    batch_size: int = 1

    @property
    def global_batch(self) -> int:
        """How many samples all ranks together have in a step."""
        return self.world * self.batch_size


@dataclass(frozen=True, slots=True)
class EpochStart:
    """Where a rank starts in an epoch that was begun with a layout: a part of it may be consumed already.

    `offset` is how many samples of the sequence come before the first of this rank's steps. `first_step` is
    the step to go on with, counted from there.
    """

    layout: EpochLayout
    offset: int = 0
    first_step: int = 0

    @classmethod
    def after(cls, consumed: int, begun: EpochLayout, now: EpochLayout) -> EpochStart:
        """Go on with the layout `now` where all ranks together have consumed so many samples.

        >>> EpochStart.after(48, EpochLayout(2, 8), EpochLayout(2, 8))
        EpochStart(layout=EpochLayout(world=2, batch_size=8), offset=0, first_step=3)
        >>> EpochStart.after(48, EpochLayout(2, 8), EpochLayout(3, 8))
        EpochStart(layout=EpochLayout(world=2, batch_size=8), offset=48, first_step=0)
        """
        if begun == now and consumed % now.global_batch == 0:
            return cls(begun, first_step=consumed // now.global_batch)
        return cls(begun, offset=consumed)

    def consumed(self, step: int, now: EpochLayout) -> int:
        """How many samples all ranks together have consumed once they have had the steps before `step`."""
        return self.offset + step * now.global_batch
