"""The three generators that foreign code draws from: `random`, `numpy.random` and torch's default.

Transforms of other libraries draw from these, so each is seeded from the sample's key before the sample is
made. That costs microseconds, more than many samples do, and most data sets use one generator or none. So a
stream is seeded only once it has been seen to move; `mark` tells cheaply whether it has.

`random` and `numpy.random` are Mersenne Twisters. Their own seeding fills the state of 624 words by a slow
recurrence, and the first draw fills it again. Here the words are made for many samples at once, and put where
the generator keeps them: a fifth of the time.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import _utils

from rekindle import keys

_WORDS = 624


class Stream(Protocol):
    """One global generator."""

    name: str

    def mark(self) -> object:
        """Something that is equal before and after a piece of code only if it drew nothing."""

    def seeder(self, seeds: NDArray[np.uint64]) -> Callable[[int], None]:
        """What starts the generator anew from the seed of a row."""

    def save(self) -> Any:
        """All of the state."""

    def restore(self, state: Any) -> None:
        """Undo everything since `save`."""

    def save_tensor(self) -> torch.Tensor:
        """All of the state, as a tensor for a checkpoint."""

    def restore_tensor(self, state: torch.Tensor) -> None:
        """Undo everything since `save_tensor`."""

    def check_tensor(self, state: torch.Tensor) -> None:
        """Raise an error if `restore_tensor` would."""


class _Python:
    """`random`."""

    name = "python"

    def __init__(self) -> None:
        # CPython's object is a head, the position in the state, and the state.
        self._generator: Any = random._inst
        address = id(self._generator) + object.__basicsize__
        self._memory = _look_at(address)
        self._start = ctypes.c_uint64.from_address(address)  # the position and the first word
        self._table = _table(1)
        self._visible = _moves_with(self._memory, random.random, random.getstate, random.setstate)

    def mark(self) -> object:
        return (self._start.value, self._generator.gauss_next) if self._visible else random.getstate()

    def seeder(self, seeds: NDArray[np.uint64]) -> Callable[[int], None]:
        states = list(_words(self._table, seeds))
        memory, words, generator = self._memory, self._memory[1:], self._generator

        def seed(row: int) -> None:
            words[:] = states[row]
            memory[0] = 0  # the position
            generator.gauss_next = None

        def seed_by_the_book(row: int) -> None:
            random.setstate((random.Random.VERSION, (*states[row].tolist(), 0), None))

        return seed if self._visible else seed_by_the_book

    def save(self) -> Any:
        if not self._visible:
            return random.getstate()
        return self._memory.copy(), self._generator.gauss_next

    def restore(self, state: Any) -> None:
        if self._visible:
            self._memory[:], self._generator.gauss_next = state
        else:
            random.setstate(state)

    def save_tensor(self) -> torch.Tensor:
        _, words, gauss = random.getstate()
        return torch.tensor([*words, float("nan") if gauss is None else gauss], dtype=torch.float64)

    def restore_tensor(self, state: torch.Tensor) -> None:
        random.setstate(self._from(state))

    def check_tensor(self, state: torch.Tensor) -> None:
        random.Random().setstate(self._from(state))

    def _from(self, state: torch.Tensor) -> tuple[Any, ...]:
        *words, gauss = state.tolist()
        kept = None if gauss != gauss else gauss
        return random.Random.VERSION, tuple(int(word) for word in words), kept


class _NumPy:
    """`numpy.random`'s functions (not its `Generator`s, which belong to whoever made them)."""

    name = "numpy"

    def __init__(self) -> None:
        # NumPy says where the state is: the words, then the position. A normal number kept for later is in
        # the object that draws.
        address = np.random.mtrand.get_bit_generator().ctypes.state_address
        self._memory = _look_at(address)
        self._first_word = ctypes.c_uint32.from_address(address)
        self._position = ctypes.c_uint32.from_address(address + 4 * _WORDS)
        gauss = id(np.random.mtrand._rand) + _offset_of_numpys_gauss()
        self._gauss = ctypes.c_double.from_address(gauss)
        self._has_gauss = ctypes.c_int.from_address(gauss - 8)
        self._table = _table(2)
        self._visible = (
            _moves_with(self._memory, np.random.random, np.random.get_state, np.random.set_state)
            and self._sees_gauss()
        )

    def _sees_gauss(self) -> bool:
        kept: Any = np.random.get_state()
        try:
            np.random.seed(1)
            np.random.standard_normal()
            state: Any = np.random.get_state()
            there = self._has_gauss.value == 1 and self._gauss.value == state[4]
            np.random.standard_normal()
            return bool(there and self._has_gauss.value == 0)
        finally:
            np.random.set_state(kept)

    def mark(self) -> object:
        if self._visible:
            return self._first_word.value, self._position.value, self._has_gauss.value
        state = np.random.get_state(legacy=False)
        return state["state"]["pos"], state["state"]["key"].tobytes(), state["has_gauss"]

    def seeder(self, seeds: NDArray[np.uint64]) -> Callable[[int], None]:
        states = list(_words(self._table, seeds))
        words, position, has_gauss = self._memory[:_WORDS], self._position, self._has_gauss

        def seed(row: int) -> None:
            words[:] = states[row]
            position.value = has_gauss.value = 0

        def seed_by_the_book(row: int) -> None:
            np.random.set_state(("MT19937", states[row], 0, 0, 0.0))

        return seed if self._visible else seed_by_the_book

    def save(self) -> Any:
        if not self._visible:
            return np.random.get_state()
        return self._memory.copy(), self._has_gauss.value, self._gauss.value

    def restore(self, state: Any) -> None:
        if self._visible:
            self._memory[:], self._has_gauss.value, self._gauss.value = state
        else:
            np.random.set_state(state)

    def save_tensor(self) -> torch.Tensor:
        state: Any = np.random.get_state()
        return torch.tensor([*state[1].tolist(), *state[2:]], dtype=torch.float64)

    def restore_tensor(self, state: torch.Tensor) -> None:
        np.random.set_state(self._from(state))

    def check_tensor(self, state: torch.Tensor) -> None:
        np.random.RandomState().set_state(self._from(state))

    def _from(self, state: torch.Tensor) -> Any:
        *words, position, has_gauss, gauss = state.tolist()
        array = np.array(words).astype(np.uint32)
        return "MT19937", array, int(position), int(has_gauss), gauss


class _Torch:
    """Torch's default generator on the CPU."""

    name = "torch"

    def __init__(self) -> None:
        # Behind the seed in the generator's memory: how much is left, where it goes on, the words; then the
        # normal numbers kept for later.
        generator: Any = torch.default_generator
        address = generator._cdata + _offset_of_torchs_seed() + 8
        self._front = (ctypes.c_uint64 * 2).from_address(address)
        self._back = (ctypes.c_uint64 * 3).from_address(address + 16 + 4 * _WORDS)
        self._visible = _moves_with(
            np.ctypeslib.as_array(self._front), lambda: float(torch.rand(())), self.save, self.restore
        ) and _moves_with(
            np.ctypeslib.as_array(self._back), lambda: float(torch.randn(())), self.save, self.restore
        )

    def mark(self) -> object:
        if self._visible:
            return *self._front, *self._back
        return torch.default_generator.get_state().numpy().tobytes()

    def seeder(self, seeds: NDArray[np.uint64]) -> Callable[[int], None]:
        numbers: list[int] = (seeds >> np.uint64(1)).tolist()
        # 1 µs; `torch.manual_seed` takes 200, because it asks after every kind of accelerator.
        manual_seed = torch.default_generator.manual_seed

        def seed(row: int) -> None:
            manual_seed(numbers[row])

        return seed

    def save(self) -> Any:
        return torch.default_generator.get_state()

    def restore(self, state: Any) -> None:
        torch.default_generator.set_state(state)

    save_tensor = save
    restore_tensor = restore

    def check_tensor(self, state: torch.Tensor) -> None:
        torch.Generator().set_state(state)


def _offset_of_torchs_seed() -> int:
    """Where a generator of torch's keeps its seed, from its start; found with one that nobody else uses."""
    probe: Any = torch.Generator()
    unlikely = 0x5EED5EED12345678
    probe.manual_seed(unlikely)
    memory = ctypes.string_at(probe._cdata, 256)  # It is larger than that by its 624 words.
    return max(memory.find(unlikely.to_bytes(8, sys.byteorder)), 0)


def _look_at(address: int) -> NDArray[np.uint32]:
    """A generator's own memory: its words and its position."""
    return np.ctypeslib.as_array((ctypes.c_uint32 * (_WORDS + 1)).from_address(address))


def _offset_of_numpys_gauss() -> int:
    """Where a RandomState keeps a normal number for later, from its start."""
    probe = np.random.RandomState(1)
    probe.standard_normal()
    state: Any = probe.get_state()
    memory = ctypes.string_at(id(probe), type(probe).__basicsize__)
    return max(memory.find(struct.pack("d", state[4])), 8)


def _moves_with(
    memory: NDArray[Any],
    draw: Callable[[], float],
    save: Callable[[], Any],
    restore: Callable[[Any], None],
) -> bool:
    """Whether we look at what a draw moves (not so on another Python, or after a change to NumPy)."""
    state, before = save(), memory.copy()
    draw()
    moved = not np.array_equal(memory, before)
    restore(state)
    return moved and np.array_equal(memory, before)


def _table(number: int) -> NDArray[np.uint64]:
    """Fixed random numbers, others for each generator, so that two of them do not draw alike."""
    return keys.split(number, np.arange(_WORDS // 2))


def _words(table: NDArray[np.uint64], seeds: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """The words of a state for each seed: a row of hashes of it (multiplicative, then folded)."""
    bits = table * (seeds | np.uint64(1))[:, None]
    bits ^= bits >> np.uint64(32)
    return bits.view(np.uint32)


STREAMS: tuple[Stream, ...] = (_Python(), _NumPy(), _Torch())


def marks() -> tuple[object, ...]:
    """The marks of all three: equal before and after a piece of code only if it drew nothing."""
    return _MARKS[0](), _MARKS[1](), _MARKS[2]()


_MARKS = [stream.mark for stream in STREAMS]


def seed_like_torch(base_seed: int, worker: int) -> None:
    """Seed all three as torch does in a worker that starts."""
    random.seed(base_seed + worker)
    torch.default_generator.manual_seed(base_seed + worker)
    np.random.seed(_utils.worker._generate_state(base_seed, worker))  # type: ignore[no-untyped-call]
