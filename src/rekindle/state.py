"""Where a loader stands, as plain data that a checkpoint can hold."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch

from rekindle.choose import SamplerOrders
from rekindle.errors import StateError
from rekindle.run import BadSample

_VERSION = 1


@dataclass
class Position:
    """How far a loader has got.

    `step` batches of `epoch` have been handed over (`ahead` lists those beyond the first gap, which there are
    with `in_order=False`). After the last batch, and before the loop has ended, `step` is the epoch's length.
    """

    epoch: int = 0
    step: int = 0
    ahead: set[int] = field(default_factory=set)
    sampler: SamplerOrders | None = None  # a user's sampler that a pass follows
    sampler_state: dict[str, Any] | None = None  # what it takes to resume one
    stream: dict[str, Any] | None = None  # what an iterable data set needs
    begun: bool = False  # a pass goes on from here already

    def how_to_resume_sampler(self) -> dict[str, Any] | None:
        """What a user's sampler needs to go on from here; None for an order of our own."""
        return self.sampler_state if self.sampler is None else self.sampler.resume_after(self.step)

    def deliver(self, step: int) -> None:
        """Note that a batch was handed over."""
        self.ahead.add(step)
        while self.step in self.ahead:
            self.ahead.remove(self.step)
            self.step += 1


def save(identity: dict[str, Any], position: Position, bad: list[BadSample]) -> dict[str, Any]:
    """The state: numbers, strings and tensors, in dictionaries and lists."""
    return {
        "version": _VERSION,
        **identity,
        "epoch": position.epoch,
        "step": position.step,
        "ahead": torch.tensor(sorted(position.ahead), dtype=torch.int64),
        "sampler": copy.deepcopy(position.how_to_resume_sampler()),
        "stream": copy.deepcopy(position.stream),
        "bad_epochs": torch.tensor([one.epoch for one in bad], dtype=torch.int64),
        "bad_ids": torch.tensor([one.id for one in bad], dtype=torch.int64),
        "bad_reasons": [one.reason for one in bad],
    }


def load(state: dict[str, Any], identity: dict[str, Any]) -> tuple[Position, list[BadSample]]:
    """The position in a state; StateError, naming the field, if the state is another loader's."""
    if not isinstance(state, dict) or state.get("version") != _VERSION:
        got = state.get("version") if isinstance(state, dict) else type(state).__name__
        raise StateError(
            f"version: expected a state of version {_VERSION}, as state_dict() gives, but got {got!r}"
        )
    for name, here in identity.items():
        if name not in state:
            raise StateError(f"{name}: missing from the state; was it cut short or edited?")
        if state[name] != here:
            raise StateError(
                f"{name}: the state was saved with {name}={state[name]!r}, this loader has {here!r}. "
                f"Make the loader with the same {name}, or start anew without load_state_dict."
            )
    try:
        position = Position(
            epoch=int(state["epoch"]),
            step=int(state["step"]),
            ahead=set(state["ahead"].tolist()),
            sampler_state=copy.deepcopy(state["sampler"]),
            stream=copy.deepcopy(state["stream"]),
        )
        epochs, ids = state["bad_epochs"].tolist(), state["bad_ids"].tolist()
        bad = [BadSample(*one) for one in zip(epochs, ids, state["bad_reasons"], strict=True)]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise StateError(f"the state cannot be read ({error!r}); was it cut short or edited?") from error
    return position, bad
