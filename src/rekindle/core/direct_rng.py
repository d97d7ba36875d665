"""Faster access to the state of `random` and `numpy.random`: in the generators' own memory, with ctypes.

A dataset that draws is seeded before each sample, so a generator's state is set once a sample. The published
way converts 624 words to Python integers and back.

The layout of that memory belongs to CPython and to NumPy. So `direct_python` and `direct_numpy` compare all
that is done here with the published functions, on generators of their own, each time the package is imported;
where a number differs, `global_rng` uses the published functions.
"""

from __future__ import annotations

import _random
import ctypes
import random
import struct
import sys
from collections.abc import Callable
from typing import Protocol, cast

import numpy as np
from numpy.random import MT19937, BitGenerator, RandomState
from numpy.typing import NDArray

from rekindle.core import counter_rng
from rekindle.core.generator_states import WORDS
from rekindle.core.public_rng import NumPyGenerator, PythonGenerator, Restore, Seeder


class _KeepsGauss(Protocol):
    """`random.Random` as it keeps a normal number for the next call, which type stubs omit."""

    gauss_next: float | None


class DirectPythonGenerator(PythonGenerator):
    """`random`, whose state is written where CPython keeps it: the object's head, the position, the words."""

    def __init__(self, generator: random.Random = random._inst) -> None:
        super().__init__(generator)
        self._keeper = cast("_KeepsGauss", generator)
        address = id(generator) + object.__basicsize__
        self._memory = _memory(address)
        self._start = ctypes.c_uint64.from_address(address)  # the position and the first word

    def memory(self) -> list[int]:
        """What the memory holds: the position and the words."""
        numbers: list[int] = self._memory.tolist()
        return numbers

    def mark(self) -> object:
        # Every draw moves the position or, at the end of the words, makes new words. `gauss` keeps a number.
        return self._start.value, self._keeper.gauss_next

    def seeder(self, seeds: NDArray[np.uint64]) -> Seeder:
        states = self._states(seeds)
        memory, words, keeper = self._memory, self._memory[1:], self._keeper

        def seed(row: int) -> None:
            words[:] = states[row]
            memory[0] = 0
            keeper.gauss_next = None

        return seed

    def save(self) -> Restore:
        memory, state, gauss = self._memory, self._memory.copy(), self._keeper.gauss_next

        def restore() -> None:
            memory[:] = state
            self._keeper.gauss_next = gauss

        return restore


class DirectNumPyGenerator(NumPyGenerator):
    """`numpy.random`, whose state is written where NumPy keeps it.

    NumPy publishes the address of the words, which the position follows. A normal number kept for the next
    call is in the RandomState, `gauss_offset` bytes from its start.
    """

    def __init__(
        self,
        gauss_offset: int,
        generator: RandomState = np.random.mtrand._rand,
        bit_generator: Callable[[], BitGenerator] = np.random.mtrand.get_bit_generator,
    ) -> None:
        super().__init__(generator, bit_generator)
        self._own = bit_generator()  # Referenced, so that its memory stays valid if it is exchanged.
        address = self._own.ctypes.state_address
        self._memory = _memory(address)
        self._first_word = ctypes.c_uint32.from_address(address)
        self._position = ctypes.c_uint32.from_address(address + 4 * WORDS)
        self._gauss = ctypes.c_double.from_address(id(generator) + gauss_offset)
        self._has_gauss = ctypes.c_int.from_address(id(generator) + gauss_offset - 8)

    def memory(self) -> list[int]:
        """What the memory holds: the words and the position."""
        numbers: list[int] = self._memory.tolist()
        return numbers

    @property
    def _exchanged(self) -> bool:
        """Whether the user has set another bit generator (`np.random.set_bit_generator`)."""
        return self._bit_generator() is not self._own

    def mark(self) -> object:
        if self._exchanged:
            return super().mark()
        return self._first_word.value, self._position.value, self._has_gauss.value

    def seeder(self, seeds: NDArray[np.uint64]) -> Seeder:
        if self._exchanged:
            return super().seeder(seeds)
        states = self._states(seeds)
        words, position, has_gauss = self._memory[:WORDS], self._position, self._has_gauss

        def seed(row: int) -> None:
            words[:] = states[row]
            position.value = has_gauss.value = 0

        return seed

    def save(self) -> Restore:
        if self._exchanged:
            return super().save()
        state, has_gauss, gauss = self._memory.copy(), self._has_gauss.value, self._gauss.value

        def restore() -> None:
            self._memory[:] = state
            self._has_gauss.value, self._gauss.value = has_gauss, gauss

        return restore


def _memory(address: int) -> NDArray[np.uint32]:
    """The words of a generator and its position, in the order in which it keeps them."""
    return np.ctypeslib.as_array((ctypes.c_uint32 * (WORDS + 1)).from_address(address))


def direct_python() -> DirectPythonGenerator | None:
    """`random` by direct access, if that does exactly what the published functions do."""
    needed = object.__basicsize__ + 4 * (WORDS + 1)
    if sys.implementation.name != "cpython" or _random.Random.__basicsize__ < needed:
        return None
    one, other = random.Random(1), random.Random(1)

    def draws(generator: random.Random) -> list[float]:
        return _draws(generator.random, lambda: generator.gauss(0, 1))

    direct, public = DirectPythonGenerator(one), PythonGenerator(other)
    *words, position = one.getstate()[1]
    if direct.memory() != [position, *words]:  # Found by reading alone, before anything is written.
        return None
    works = _agree(direct, public, lambda: draws(one), lambda: draws(other))
    return DirectPythonGenerator() if works else None


def direct_numpy() -> DirectNumPyGenerator | None:
    """`numpy.random` by direct access, if that does exactly what the published functions do."""
    offset = _gauss_offset()
    if offset is None or type(np.random.mtrand.get_bit_generator()) is not MT19937:
        return None
    bits, other_bits = MT19937(1), MT19937(1)
    one, other = RandomState(bits), RandomState(other_bits)

    def draws(generator: RandomState) -> list[float]:
        return _draws(generator.random_sample, generator.standard_normal)

    direct = DirectNumPyGenerator(offset, one, lambda: bits)
    public = NumPyGenerator(other, lambda: other_bits)
    state = bits.state["state"]
    if direct.memory() != [*state["key"].tolist(), state["pos"]]:
        return None
    works = _agree(direct, public, lambda: draws(one), lambda: draws(other))
    return DirectNumPyGenerator(offset) if works else None


def _gauss_offset() -> int | None:
    """Where a RandomState keeps a normal number for the next call, in bytes; None if it is not found.

    Only reads. The flag for its presence must be 8 bytes before it.
    """
    if sys.implementation.name != "cpython":
        return None
    probe = RandomState(1)
    first = probe.standard_normal()
    gauss: float = probe.get_state(legacy=False)["gauss"]
    offset = ctypes.string_at(id(probe), RandomState.__basicsize__).find(struct.pack("d", gauss))
    if gauss == first or offset < object.__basicsize__ + 8:
        return None
    flag = ctypes.c_int.from_address(id(probe) + offset - 8)
    full = flag.value
    probe.standard_normal()
    return offset if (full, flag.value) == (1, 0) else None


def _draws(uniform: Callable[[], float], normal: Callable[[], float]) -> list[float]:
    """Numbers past the end of a state's words, and an odd number of normal ones: one is left over."""
    return [normal(), *(uniform() for _ in range(WORDS)), normal(), normal()]


def _agree(
    direct: PythonGenerator | NumPyGenerator,
    public: PythonGenerator | NumPyGenerator,
    draw: Callable[[], list[float]],
    draw_public: Callable[[], list[float]],
) -> bool:
    """Whether both draw the same after the same seeds, and `direct` notices draws and undoes them."""
    seeds = counter_rng.seeds(1, np.arange(2))
    for row in range(len(seeds)):
        direct.seeder(seeds)(row)
        public.seeder(seeds)(row)
        before, restore = direct.mark(), direct.save()
        drawn, expected = draw(), draw_public()
        after = direct.mark()
        restore()
        if drawn != expected or after == before or direct.mark() != before or draw() != drawn:
            return False
    return True
