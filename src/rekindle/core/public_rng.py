"""The three global generators, through the functions that Python, NumPy and torch publish for them.

`random` and `numpy.random` are Mersenne Twisters. A sample's state does not come from their own seeding,
which fills 624 words by a slow recurrence: the words are hashes of the sample's key, made for many samples
at once.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.random import BitGenerator, RandomState
from numpy.typing import NDArray

from rekindle.core import counter_rng
from rekindle.core.generator_states import WORDS, check_torch, check_twister
from rekindle.core.state_fields import vector

Seeder: TypeAlias = Callable[[int], None]  # seeds a generator for a row of a batch
Restore: TypeAlias = Callable[[], None]
_States: TypeAlias = "list[NDArray[np.uint32]] | _StatesOfMany"  # by row

_AT_ONCE = 128  # rows whose states are made at a time: 320 KB


class RandomSource(Protocol):
    """A random number generator that a dataset may draw from."""

    def mark(self) -> object:
        """A value that is equal before and after a piece of code only if that drew nothing."""

    def seeder(self, seeds: NDArray[np.uint64]) -> Seeder:
        """A function that seeds the generator with the seed of a row."""

    def save(self) -> Restore:
        """A function that restores the state as it is now; it may be called more than once."""


class GlobalGenerator(RandomSource, Protocol):
    """A random number generator that all code of a process draws from."""

    name: str

    def save_tensor(self) -> torch.Tensor:
        """The state as a tensor, for a checkpoint."""

    def restore_tensor(self, state: torch.Tensor) -> None:
        """Restore a state of `save_tensor`, checked as by `check_tensor`."""

    def check_tensor(self, state: object) -> None:
        """Raise TypeError, ValueError or RuntimeError if this is no state of such a generator."""


class PythonGenerator:
    """Python's `random`, or another generator of its kind."""

    name = "python"

    def __init__(self, generator: random.Random = random._inst) -> None:
        self._generator = generator
        self._table = _table(1)

    def mark(self) -> object:
        return self._generator.getstate()

    def seeder(self, seeds: NDArray[np.uint64]) -> Seeder:
        states, setstate = self._states(seeds), self._generator.setstate

        def seed(row: int) -> None:
            setstate((random.Random.VERSION, (*states[row].tolist(), 0), None))

        return seed

    def _states(self, seeds: NDArray[np.uint64]) -> _States:
        return _states(self._table, seeds)

    def save(self) -> Restore:
        state = self._generator.getstate()
        return lambda: self._generator.setstate(state)

    def save_tensor(self) -> torch.Tensor:
        _, words, gauss = self._generator.getstate()
        return torch.tensor([*words, float("nan") if gauss is None else gauss], dtype=torch.float64)

    def restore_tensor(self, state: torch.Tensor) -> None:
        self._generator.setstate(_python_state(state))

    def check_tensor(self, state: object) -> None:
        _python_state(state)


def _python_state(state: object) -> tuple[int, tuple[int, ...], float | None]:
    """What `setstate` takes; NaN is no normal number kept for the next call."""
    numbers = vector(state, torch.float64).numpy()
    words, position = check_twister(numbers[:-1])
    gauss = float(numbers[-1])
    if math.isinf(gauss):
        raise ValueError(f"expected a normal number or NaN, but got {gauss}")
    return random.Random.VERSION, (*words.tolist(), position), None if math.isnan(gauss) else gauss


class NumPyGenerator:
    """The functions of `numpy.random`, or another generator of their kind."""

    name = "numpy"

    def __init__(
        self,
        generator: RandomState = np.random.mtrand._rand,
        bit_generator: Callable[[], BitGenerator] = np.random.mtrand.get_bit_generator,
    ) -> None:
        self._generator, self._bit_generator = generator, bit_generator
        self._table = _table(2)

    def mark(self) -> object:
        return _comparable(self._generator.get_state(legacy=False))

    def seeder(self, seeds: NDArray[np.uint64]) -> Seeder:
        kind, set_state = type(self._bit_generator()), self._generator.set_state
        no_gauss = {"has_gauss": 0, "gauss": 0.0}
        if kind is not np.random.MT19937:  # exchanged by `np.random.set_bit_generator`
            numbers: list[int] = seeds.tolist()
            return lambda row: set_state({**kind(numbers[row]).state, **no_gauss})
        states = self._states(seeds)

        def seed(row: int) -> None:
            # A list: NumPy copies it word by word, which takes 4 µs; of an array it takes 140 µs.
            state = {"key": states[row].tolist(), "pos": 0}
            set_state({"bit_generator": "MT19937", "state": state, **no_gauss})

        return seed

    def _states(self, seeds: NDArray[np.uint64]) -> _States:
        return _states(self._table, seeds)

    def save(self) -> Restore:
        state = self._generator.get_state(legacy=False)
        return lambda: self._generator.set_state(state)

    def save_tensor(self) -> torch.Tensor:
        state = self._generator.get_state(legacy=False)
        words, position = state["state"]["key"].tolist(), state["state"]["pos"]
        return torch.tensor([*words, position, state["has_gauss"], state["gauss"]], dtype=torch.float64)

    def restore_tensor(self, state: torch.Tensor) -> None:
        self._generator.set_state(_numpy_state(state))

    def check_tensor(self, state: object) -> None:
        _numpy_state(state)


def _numpy_state(state: object) -> tuple[str, NDArray[np.uint32], int, int, float]:
    """What `set_state` takes."""
    numbers = vector(state, torch.float64).numpy()
    words, position = check_twister(numbers[:-2])
    has_gauss, gauss = float(numbers[-2]), float(numbers[-1])
    if has_gauss not in (0, 1) or not math.isfinite(gauss):
        raise ValueError(f"expected 0 or 1 and a normal number, but got {has_gauss} and {gauss}")
    return "MT19937", words, position, int(has_gauss), gauss


def _comparable(state: object) -> object:
    """A bit generator's state with its arrays as bytes."""
    if isinstance(state, dict):
        return tuple((name, _comparable(part)) for name, part in state.items())
    return state.tobytes() if isinstance(state, np.ndarray) else state


class TorchGenerator:
    """Torch's default generator on the CPU."""

    name = "torch"

    def mark(self) -> object:
        return torch.default_generator.get_state().numpy().tobytes()

    def seeder(self, seeds: NDArray[np.uint64]) -> Seeder:
        numbers: list[int] = (seeds >> np.uint64(1)).tolist()
        # 1 µs; `torch.manual_seed` takes 200, because it asks after every kind of accelerator.
        manual_seed = torch.default_generator.manual_seed

        def seed(row: int) -> None:
            manual_seed(numbers[row])

        return seed

    def save(self) -> Restore:
        state = torch.default_generator.get_state()

        def restore() -> None:
            torch.default_generator.set_state(state)

        return restore

    def save_tensor(self) -> torch.Tensor:
        return torch.default_generator.get_state()

    def restore_tensor(self, state: torch.Tensor) -> None:
        torch.default_generator.set_state(check_torch(state))

    def check_tensor(self, state: object) -> None:
        check_torch(state)


class OwnNumPyGenerator:
    """A `numpy.random.Generator` of somebody's own."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._bit_generator = generator.bit_generator

    def mark(self) -> object:
        return _comparable(self._bit_generator.state)

    def seeder(self, seeds: NDArray[np.uint64]) -> Seeder:
        kind, bit_generator, numbers = type(self._bit_generator), self._bit_generator, seeds.tolist()

        def seed(row: int) -> None:
            bit_generator.state = kind(numbers[row]).state

        return seed

    def save(self) -> Restore:
        bit_generator, state = self._bit_generator, self._bit_generator.state

        def restore() -> None:
            bit_generator.state = state

        return restore


class OwnTorchGenerator:
    """A `torch.Generator` of somebody's own, on the CPU."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def mark(self) -> object:
        return self._generator.get_state().numpy().tobytes()

    def seeder(self, seeds: NDArray[np.uint64]) -> Seeder:
        numbers: list[int] = (seeds >> np.uint64(1)).tolist()

        def seed(row: int) -> None:
            self._generator.manual_seed(numbers[row])

        return seed

    def save(self) -> Restore:
        state = self._generator.get_state()

        def restore() -> None:
            self._generator.set_state(state)

        return restore


def _states(table: NDArray[np.uint64], seeds: NDArray[np.uint64]) -> _States:
    """The words of a state for the seed of each row."""
    return list(_words(table, seeds)) if len(seeds) <= _AT_ONCE else _StatesOfMany(table, seeds)


class _StatesOfMany(dict[int, NDArray[np.uint32]]):
    """The same, made for some rows at a time; for rows that come in no order, one by one.

    Those of all rows of `random` and `numpy.random` would take 5 to 10 KB a row, in every worker.
    """

    def __init__(self, table: NDArray[np.uint64], seeds: NDArray[np.uint64]) -> None:
        self._table, self._seeds, self._asked = table, seeds, 0

    def __missing__(self, row: int) -> NDArray[np.uint32]:
        part, before = row // _AT_ONCE, self._asked
        self._asked = part
        if part != before and row % _AT_ONCE:
            words: NDArray[np.uint32] = _words(self._table, self._seeds[row : row + 1])[0]
            return words
        start = part * _AT_ONCE
        self.clear()
        self.update(enumerate(_words(self._table, self._seeds[start : start + _AT_ONCE]), start))
        return self[row]


def _table(number: int) -> NDArray[np.uint64]:
    """Fixed random numbers, others for each generator, so that two generators do not draw alike."""
    return counter_rng.split(number, np.arange(WORDS // 2))


def _words(table: NDArray[np.uint64], seeds: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """The words of a state for each seed: hashes of it (multiplicative, then folded)."""
    bits = table * (seeds | np.uint64(1))[:, None]
    bits ^= bits >> np.uint64(32)
    return bits.view(np.uint32)
