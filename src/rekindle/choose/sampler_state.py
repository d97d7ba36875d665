"""What it takes to go on with a sampler that is not ours."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, TypeGuard

import torch
from torch.utils.data import BatchSampler

from rekindle.choose.kept_values import Value
from rekindle.choose.partition import Share
from rekindle.choose.sampler_epochs import SamplerEpoch
from rekindle.choose.sampler_generators import GLOBAL, generators_of

# What a sampler keeps, by where and under which name: as plain data, and whether it is the object that was
# there at first.
KeptParts: TypeAlias = dict[str, dict[str, list[Value]]]


class StatefulSampler(Protocol):
    """A sampler that can be resumed, as torchdata and Hugging Face define it."""

    def state_dict(self) -> object:
        """Where it stands."""

    def load_state_dict(self, state: object) -> None:
        """Go on from there."""


@dataclass
class SamplerState:
    """What it takes to go on with a user's sampler: after `step` batches, or at the next epoch (None)."""

    step: int | None
    start: dict[str, torch.Tensor]  # the generators, when the epoch began
    sampler: object = None  # what its own `state_dict` gave
    seen: int = 0  # samples drawn so far
    base_seed: int = 0  # what the workers were seeded with
    draws_seed: bool = True  # that seed was drawn from the same generator, as torch does
    seeds_once: bool | None = None  # and later epochs draw no other: workers persist
    draws: dict[str, torch.Tensor] | None = None  # how often samples were drawn, where that is not replayed
    epoch: int | None = None  # that the sampler was in, by its `set_epoch`, when the epoch began
    drawn: int | None = None  # batches, of which some are not yielded yet; None: as many as `step`
    ended: bool = False  # and there are no others
    digest: int | None = None  # of the samples drawn so far, where they are to be drawn again
    stream: int | None = None  # the digest of the global generators, as it draws from them
    kept_first: KeptParts | None = None  # what a sampler without a state kept when the epoch began
    kept: KeptParts | None = None  # and now, where that is something else
    rank: int | None = None  # whose part of an order this is, which so many ranks divide
    world: int | None = None
    length: int | None = None  # how many batches the sampler said that an epoch has

    def is_of_another_rank(self, part: Share | None) -> bool:
        """Whether it is the state of another rank of those that this part is one of.

        All stand behind as many batches. What these consist of can be compared by the rank itself only.
        """
        return part is not None and self.world == part.world and self.rank not in (None, part.rank)

    def is_of_another_division(self, part: Share | None) -> bool:
        """Whether as many ranks divided the order as do not now: their first batches may be the same."""
        return self.world not in (None, 1 if part is None else part.world)


class WorkerSeeds(NamedTuple):
    """How torch draws the seed of workers from the generator of the order: for each epoch, or once."""

    once: bool = False  # as if workers persist
    kept: int | None = None  # what was drawn, where no other is


def between_epochs(
    sampler: object,
    generator: torch.Generator | None,
    seeds: WorkerSeeds,
    kept: KeptParts | None,
    *,
    ended: bool,
) -> SamplerState:
    """What it takes to begin the next epoch of a sampler elsewhere, or, if none has `ended`, the first."""
    stateful = stateful_part(sampler) if ended else None
    start = generators_of(sampler, generator)
    return SamplerState(
        step=None,
        start={name: start[name] for name in start if name not in GLOBAL},
        sampler=None if stateful is None else copy.deepcopy(stateful.state_dict()),
        base_seed=seeds.kept or 0,
        draws_seed=seeds.kept is None,
        seeds_once=seeds.once,
        epoch=SamplerEpoch(sampler).epoch,
        kept=kept,
    )


def stateful_part(sampler: object) -> StatefulSampler | None:
    """The sampler, or the one that torch's batch sampler wraps, if it can save and load its state."""
    wrapped = wrapped_sampler(sampler)
    return wrapped if _is_stateful(wrapped) else None


def wrapped_sampler(sampler: object) -> object:
    """The sampler that torch's batch sampler wraps, or the one that is given."""
    return sampler.sampler if type(sampler) is BatchSampler else sampler


def _is_stateful(sampler: object) -> TypeGuard[StatefulSampler]:
    return hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict")
