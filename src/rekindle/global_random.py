"""The three generators that foreign code draws from: `random`, `numpy.random` and torch's default.

Transforms of other libraries draw from these, so each is seeded from the sample's key before the sample is
made. Seeding all three costs 8 µs, more than many samples do, and most data sets use one or none. So a
stream is seeded only once it has been seen to move; `mark` tells cheaply whether it has.
"""

from __future__ import annotations

import ctypes
import random
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import _utils

_WORDS = 624  # of the Mersenne Twister, which all three use


class Stream(Protocol):
    """One global generator."""

    name: str

    def mark(self) -> object:
        """Something that is equal before and after a piece of code only if it drew nothing."""

    def seed(self, seed: int) -> None:
        """Start anew from a 64-bit seed."""

    def save(self) -> Any:
        """All of the state."""

    def restore(self, state: Any) -> None:
        """Undo everything since `save`."""

    def save_tensor(self) -> torch.Tensor:
        """All of the state that a checkpoint needs, as a tensor."""

    def restore_tensor(self, state: torch.Tensor) -> None:
        """Undo everything since `save_tensor`."""


class _Python:
    """`random`."""

    name = "python"

    def __init__(self) -> None:
        # CPython's object holds the position in the state, then the state: two words tell of any draw.
        generator = random._inst
        self._peek = (ctypes.c_uint32 * 2).from_address(id(generator) + object.__basicsize__)
        self._can_peek = _moves_with(self._peek, random.Random.random, generator)

    def mark(self) -> object:
        return bytes(self._peek) if self._can_peek else random.getstate()

    def seed(self, seed: int) -> None:
        random.seed(seed)

    def save(self) -> Any:
        return random.getstate()

    def restore(self, state: Any) -> None:
        random.setstate(state)

    def save_tensor(self) -> torch.Tensor:
        _, words, gauss = random.getstate()
        return torch.tensor([*words, float("nan") if gauss is None else gauss], dtype=torch.float64)

    def restore_tensor(self, state: torch.Tensor) -> None:
        *words, gauss = state.tolist()
        kept = None if gauss != gauss else gauss
        random.setstate((random.Random.VERSION, tuple(int(word) for word in words), kept))


class _NumPy:
    """`numpy.random`'s functions (not its `Generator`s, which belong to whoever made them)."""

    name = "numpy"

    def __init__(self) -> None:
        self._generator = np.random.mtrand.get_bit_generator()
        address = self._generator.ctypes.state_address
        self._position = ctypes.c_int.from_address(address + 4 * _WORDS)
        self._word = ctypes.c_uint32.from_address(address)

    def mark(self) -> object:
        return self._position.value, self._word.value

    def seed(self, seed: int) -> None:
        np.random.seed(seed >> 32)

    def save(self) -> Any:
        return np.random.get_state()

    def restore(self, state: Any) -> None:
        np.random.set_state(state)

    def save_tensor(self) -> torch.Tensor:
        state: Any = np.random.get_state()
        return torch.tensor([*state[1].tolist(), *state[2:]], dtype=torch.float64)

    def restore_tensor(self, state: torch.Tensor) -> None:
        *words, position, has_gauss, gauss = state.tolist()
        array = np.array(words, dtype=np.uint32)
        np.random.set_state(("MT19937", array, int(position), int(has_gauss), gauss))


class _Torch:
    """Torch's default generator on the CPU."""

    name = "torch"

    def mark(self) -> object:
        return torch.default_generator.get_state().numpy().tobytes()

    def seed(self, seed: int) -> None:
        # 1 µs; `torch.manual_seed` takes 200, because it asks after every kind of accelerator.
        torch.default_generator.manual_seed(seed >> 1)

    def save(self) -> Any:
        return torch.default_generator.get_state()

    def restore(self, state: Any) -> None:
        torch.default_generator.set_state(state)

    save_tensor = save
    restore_tensor = restore


def _moves_with(peek: Any, draw: Any, generator: Any) -> bool:
    """Whether what we look at is what a draw changes (false on another Python than CPython)."""
    before = bytes(peek)
    state = generator.getstate()
    draw(generator)
    moved = bytes(peek) != before
    generator.setstate(state)
    return moved and bytes(peek) == before


STREAMS: tuple[Stream, ...] = (_Python(), _NumPy(), _Torch())


def seed_like_torch(base_seed: int, worker: int) -> None:
    """Seed all three as torch does in a worker that starts."""
    random.seed(base_seed + worker)
    torch.default_generator.manual_seed(base_seed + worker)
    np.random.seed(_utils.worker._generate_state(base_seed, worker))  # type: ignore[no-untyped-call]
