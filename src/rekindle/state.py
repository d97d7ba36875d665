"""Where a loader stands, as plain data that a checkpoint can hold."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch

from rekindle.choose import SamplerOrders, check_generator
from rekindle.errors import StateError
from rekindle.run import BadSample

_VERSION = 1
_MOST = 2**63 - 1


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


def load(state: Any, identity: dict[str, Any], steps: int | None) -> tuple[Position, list[BadSample]]:
    """The position in a state; StateError, naming the field, if the state is another loader's or damaged.

    `steps` is how many batches an epoch has, where that is known.
    """
    if not isinstance(state, dict) or type(state.get("version")) is not int or state["version"] != _VERSION:
        got = state.get("version") if isinstance(state, dict) else type(state).__name__
        raise StateError(
            f"version: expected a state of version {_VERSION}, as state_dict() gives, but got {got!r}"
        )
    for name, here in identity.items():
        saved = _field(state, name)
        if type(saved) is not type(here) or saved != here:
            raise StateError(
                f"{name}: the state was saved with {name}={saved!r}, this loader has {here!r}. "
                f"Make the loader with the same {name}, or start anew without load_state_dict."
            )
    position = Position(
        epoch=_whole(state, "epoch"),
        step=_whole(state, "step"),
        ahead=set(_whole_numbers(state, "ahead")),
        sampler_state=copy.deepcopy(_field(state, "sampler")),
        stream=copy.deepcopy(_field(state, "stream")),
    )
    if steps is not None and position.step > steps:
        raise StateError(f"step: {position.step} batches of an epoch that has {steps}; was the state edited?")
    if identity["order"] == "sampler":
        _check_sampler(position.sampler_state)
    elif position.sampler_state is not None:
        raise StateError("sampler: this loader follows no sampler, but the state has one")
    if position.stream is not None:
        _check_stream(position.stream, identity.get("num_workers", 0))
    reasons = _field(state, "bad_reasons")
    if not isinstance(reasons, list) or not all(isinstance(reason, str) for reason in reasons):
        raise StateError(f"bad_reasons: expected a list of strings, but got {reasons!r}")
    epochs, ids = _whole_numbers(state, "bad_epochs"), _whole_numbers(state, "bad_ids")
    if not len(epochs) == len(ids) == len(reasons):
        raise StateError("bad_ids: as many epochs and reasons as ids belong into a state")
    return position, [BadSample(*one) for one in zip(epochs, ids, reasons, strict=True)]


def _field(state: dict[str, Any], name: str) -> Any:
    if name not in state:
        raise StateError(f"{name}: missing from the state; was it cut short or edited?")
    return state[name]


def _whole(state: dict[str, Any], name: str) -> int:
    value = _field(state, name)
    if type(value) is not int or not 0 <= value <= _MOST:
        raise StateError(f"{name}: expected a whole number from 0 to {_MOST}, but got {value!r}")
    return value


def _whole_numbers(state: dict[str, Any], name: str) -> list[int]:
    values = _field(state, name)
    if not isinstance(values, torch.Tensor) or values.dtype != torch.int64 or values.dim() != 1:
        raise StateError(f"{name}: expected a tensor of whole numbers in one row, but got {values!r}")
    numbers: list[int] = values.tolist()
    return numbers


def _check_sampler(sampler: Any) -> None:
    if not isinstance(sampler, dict):
        raise StateError(f"sampler: expected what a sampler needs to be resumed, but got {sampler!r}")
    _field(sampler, "sampler")
    start = _field(sampler, "start")
    if not isinstance(start, dict):
        raise StateError(f"sampler: expected the states of generators as its start, but got {start!r}")
    for name, saved in start.items():
        check_generator(name, saved)
    if _field(sampler, "step") is not None:
        for name in ("step", "seen", "base_seed"):
            _whole(sampler, name)
        if type(_field(sampler, "draws_seed")) is not bool:
            raise StateError(
                f"sampler: expected draws_seed to be a truth value, got {sampler['draws_seed']!r}"
            )


def _check_stream(stream: Any, workers: int) -> None:
    if not isinstance(stream, dict):
        raise StateError(f"stream: expected what a stream needs to be resumed, but got {stream!r}")
    if _field(stream, "generator") is not None:
        check_generator("generator", stream["generator"])
    made = _field(stream, "made")
    if made is None:  # Saved between two epochs.
        return
    if not isinstance(made, list) or len(made) != workers:
        raise StateError(f"stream: expected one number for each of {workers} workers, but got {made!r}")
    for number in range(workers):
        _whole({"made": made[number]}, "made")
    _whole(stream, "base_seed")
    if _whole(stream, "turn") >= workers:
        raise StateError(f"stream: it is the turn of worker {stream['turn']}, but there are {workers}")
