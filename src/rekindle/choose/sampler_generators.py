"""The random generators that a user's sampler may draw from: saved, put back, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
import xxhash

from rekindle.core.generator_states import check_torch
from rekindle.core.global_rng import GENERATORS, generators_kept
from rekindle.core.state_fields import StateFields

GLOBAL = frozenset(one.name for one in GENERATORS)
Result = TypeVar("Result")


def generators_of(sampler: object, generator: torch.Generator | None) -> dict[str, torch.Tensor]:
    """The state of each generator that a sampler may draw from: the loader's, its own, or the global ones."""
    states = {}
    if generator is not None:
        states["generator"] = generator.get_state()
    own = generator_within(sampler)
    if own is not None and own is not generator:
        states["sampler_generator"] = own.get_state()
    return states or {one.name: one.save_tensor() for one in GENERATORS}


def set_generators(
    states: dict[str, torch.Tensor], sampler: object, generator: torch.Generator | None
) -> None:
    """Restore generators to saved states."""
    own = generator_within(sampler)
    if generator is not None and "generator" in states:
        generator.set_state(states["generator"])
    if own is not None and "sampler_generator" in states:
        own.set_state(states["sampler_generator"])
    for one in GENERATORS:
        if one.name in states:
            one.restore_tensor(states[one.name])


def same_states(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> bool:
    """Whether generators are where others are."""
    pairs = [(some[name], others[name]) for name in some]
    return all(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in pairs)


def global_digest(states: Mapping[str, torch.Tensor]) -> int | None:
    """A number that follows from the states of the global generators; None if these are not among them."""
    if not states.keys() >= GLOBAL:
        return None
    hashed = xxhash.xxh3_64()
    for name in sorted(GLOBAL):
        hashed.update(states[name].numpy().data)
    return hashed.intdigest() >> 1


class OwnStream:
    """The global generators as a sampler finds them: it goes on from states that are not the script's now."""

    def __init__(self, states: Mapping[str, torch.Tensor]) -> None:
        self._restores = [one.save() for one in GENERATORS]
        with generators_kept(GENERATORS):
            for one in GENERATORS:
                one.restore_tensor(states[one.name])
            self._restores = [one.save() for one in GENERATORS]

    def during(self, draw: Callable[[], Result]) -> Result:
        """What drawing from these gives."""
        with generators_kept(GENERATORS):
            for restore in self._restores:
                restore()
            try:
                return draw()
            finally:
                self._restores = [one.save() for one in GENERATORS]

    def states(self) -> dict[str, torch.Tensor]:
        """Where these are."""
        return self.during(lambda: {one.name: one.save_tensor() for one in GENERATORS})


def checked_generators(states: StateFields) -> dict[str, torch.Tensor]:
    """The saved states of generators, each of which `set_generators` will accept; StateError otherwise."""
    return {name: checked_generator(states, name, name) for name in states.names()}


def checked_generator(states: StateFields, name: str, kind: str = "generator") -> torch.Tensor:
    """A field that is the state of a generator of this kind: a global one, or torch's."""
    state, named = states.get(name), {one.name: one for one in GENERATORS}
    try:
        if kind in ("generator", "sampler_generator"):
            return check_torch(state).clone()
        if kind not in named:
            raise ValueError(f"there is no generator of this name, only {', '.join(named)}")
        named[kind].check_tensor(state)
    except (TypeError, ValueError, RuntimeError) as error:
        states.refuse(name, f"the state of this generator cannot be used: {error}")
    copied: torch.Tensor = state.detach().cpu().clone()
    return copied


def generator_within(sampler: object) -> torch.Generator | None:
    """The generator that was passed to a sampler, or to one that it wraps."""
    for _ in range(4):
        own = getattr(sampler, "generator", None)
        if isinstance(own, torch.Generator):
            return own
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
    return None
