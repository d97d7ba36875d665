"""What a checkpoint holds of a method that chooses samples: scores, this epoch's choice, open feedback."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.adaptive import Adaptive
from rekindle.all_ranks import Findings, rank_and_world
from rekindle.choose import Choice, Loaded, Measured, Scores, array_kinds
from rekindle.errors import ArgumentError, StateError

_MEASURED: dict[str, type[np.generic]] = {
    "ids": np.int64,
    "loss": np.float32,
    "probability": np.float32,
    "rival": np.float32,
    "correct": np.int8,
    "age": np.int32,
}
_LOADED: dict[str, type[np.generic]] = {"ids": np.int64, "seconds": np.float32, "nbytes": np.int64}


def save(adaptive: Adaptive) -> dict[str, Any]:
    """The state: numbers, strings and tensors, in dictionaries and lists."""
    scores, choice, method = adaptive.scores, adaptive.choice, adaptive.method
    found = adaptive.found_so_far()
    own = method.state_dict() if hasattr(method, "state_dict") else None
    return {
        "method": adaptive.identity,
        "scores": {name: _tensor(getattr(scores, name)) for name in array_kinds()},
        "seconds": [scores.wait_seconds, scores.work_seconds],
        "epoch": adaptive.epoch,
        "world": 1 if choice is None else choice.world,
        "ids": None if choice is None else _tensor(choice.ids),
        "weights": None if choice is None else _tensor(choice.weights),
        "even_batches": choice is not None and choice.even_batches,
        "measured": {name: _tensor(getattr(found.measured, name)) for name in _MEASURED},
        "loaded": {name: _tensor(getattr(found.loaded, name)) for name in _LOADED},
        "open_seconds": [found.wait_seconds, found.work_seconds],
        "own": _as_tensors(own),
    }


def load(adaptive: Adaptive, state: Any, seed: int) -> None:
    """Put a method where it was; StateError, naming the field, if the state does not fit."""
    if not isinstance(state, dict):
        raise StateError(f"importance: expected what a method needs to be resumed, but got {state!r}")
    here = adaptive.identity
    saved = _field(state, "method")
    if saved != here:
        raise StateError(
            f"importance: the state was saved with {saved!r}, this loader has {here!r}. "
            "Make the loader with the same importance=, or start anew without load_state_dict."
        )
    size = len(adaptive.scores)
    kinds = array_kinds()
    arrays: dict[str, Any] = {
        name: _array(_field(state, "scores"), name, kinds[name], size) for name in kinds
    }
    choice = _choice(state, size)
    measured = Measured(*_columns(_field(state, "measured"), _MEASURED, size))
    loaded = Loaded(*_columns(_field(state, "loaded"), _LOADED, size))
    seconds, open_seconds, epoch = (
        _seconds(state, "seconds"),
        _seconds(state, "open_seconds"),
        _field(state, "epoch"),
    )
    if type(epoch) is not int or epoch < -1 or (epoch == -1) != (choice is None):
        raise StateError(f"importance: a choice of samples for epoch {epoch!r}; was the state edited?")
    _load_own(adaptive.method, state, size)
    adaptive.scores = Scores(seed, **arrays, wait_seconds=seconds[0], work_seconds=seconds[1])
    adaptive.choice, adaptive.epoch = choice, epoch
    adaptive.found_so_far()  # What was found before belongs to nobody now.
    adaptive.held = [Findings(measured, loaded, *open_seconds)]


def _choice(state: dict[str, Any], size: int) -> Choice | None:
    if _field(state, "ids") is None:
        return None
    ids = _array(state, "ids", np.dtype(np.int64))
    _check_ids(ids, size)
    weights = _array(state, "weights", np.dtype(np.float32), len(ids))
    rank, world = rank_and_world()
    if _field(state, "world") != world:
        raise StateError(
            f"importance: the state was saved by one of {state['world']} ranks, and here are {world}. "
            "Save it between two trainings, or resume with as many ranks."
        )
    turns = _array(_field(state, "scores"), "turns", np.dtype(np.int64), size)[ids] - 1
    return Choice(ids, weights, turns, bool(_field(state, "even_batches")), rank, world)


def _columns(found: Any, kinds: dict[str, type[np.generic]], size: int) -> list[Any]:
    ids = _array(found, "ids", np.dtype(np.int64))
    _check_ids(ids, size)
    return [_array(found, name, np.dtype(kind), len(ids)) for name, kind in kinds.items()]


def _seconds(state: dict[str, Any], name: str) -> tuple[float, float]:
    found = _field(state, name)
    if not isinstance(found, list) or [type(one) for one in found] != [float, float]:
        raise StateError(f"importance: {name} must be two numbers, but are {found!r}")
    return found[0], found[1]


def _load_own(method: Any, state: dict[str, Any], size: int) -> None:
    own = _as_arrays(_field(state, "own"))
    if not hasattr(method, "load_state_dict"):
        if own is not None:
            raise StateError(f"importance: {type(method).__name__} has no load_state_dict for what was saved")
        return
    if not isinstance(own, dict):
        raise StateError(f"importance: expected what {type(method).__name__} remembered, but got {own!r}")
    for name, value in own.items():
        if isinstance(value, np.ndarray) and value.ndim and len(value) != size:
            raise StateError(f"importance: {name} has {len(value)} entries, but there are {size} samples")
    try:
        method.load_state_dict(own)
    except (KeyError, TypeError, ArgumentError) as error:
        raise StateError(
            f"importance: {type(method).__name__} cannot use what was saved: {error!r}"
        ) from error


def _field(state: Any, name: str) -> Any:
    if not isinstance(state, dict) or name not in state:
        raise StateError(f"importance: {name} is missing from the state; was it cut short or edited?")
    return state[name]


def _array(state: Any, name: str, kind: np.dtype[Any], length: int | None = None) -> NDArray[Any]:
    found = _field(state, name)
    if not isinstance(found, torch.Tensor) or found.dim() != 1 or found.numpy().dtype != kind:
        raise StateError(f"importance: {name} must be a row of {kind}, but is {found!r}")
    if length is not None and len(found) != length:
        raise StateError(f"importance: {name} has {len(found)} entries in place of {length}")
    return found.numpy().copy()


def _check_ids(ids: NDArray[np.int64], size: int) -> None:
    if len(ids) and not (ids.min() >= 0 and ids.max() < size):
        raise StateError(f"importance: ids from {ids.min()} to {ids.max()}, but there are {size} samples")


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array).copy())


def _as_tensors(own: Any) -> Any:
    if isinstance(own, dict):
        return {name: _as_tensors(value) for name, value in own.items()}
    return _tensor(own) if isinstance(own, np.ndarray) else own


def _as_arrays(own: Any) -> Any:
    if isinstance(own, dict):
        return {name: _as_arrays(value) for name, value in own.items()}
    return own.numpy().copy() if isinstance(own, torch.Tensor) else own
