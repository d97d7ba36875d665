"""Checks the states of random generators, which the libraries they belong to do not check, or not enough.

All three are Mersenne Twisters (MT19937): 624 words of 32 bits, and a position among them. A position beyond
the words makes NumPy and torch read memory that is not theirs; words that are all 0 stay so, and a loop that
draws until a number fits would never end.
"""

from __future__ import annotations

import struct
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.core.state_fields import vector

WORDS = 624

# Torch's state: the seed, how many words are left, whether it was seeded, the position, then the words, each
# in 8 bytes.
_TORCH_HEAD = struct.Struct("<QiiQ")
_TORCH_WORDS = slice(_TORCH_HEAD.size, _TORCH_HEAD.size + 8 * WORDS)


def check_twister(numbers: NDArray[np.float64]) -> tuple[NDArray[np.uint32], int]:
    """The words and the position that follows them; ValueError if no Mersenne Twister has such ones."""
    if numbers.shape != (WORDS + 1,):
        raise ValueError(f"expected {WORDS} words and a position, but got {len(numbers)} numbers")
    if not ((numbers >= 0) & (numbers < 2**32) & (numbers == np.floor(numbers))).all():
        raise ValueError("expected integers of 32 bits as words")
    words, position = numbers[:WORDS].astype(np.uint32), int(numbers[WORDS])
    _check_position(position)
    _check_words(words)
    return words, position


def check_torch(state: object) -> torch.Tensor:
    """A state of torch's generator on the CPU; TypeError, ValueError or RuntimeError if it is none."""
    found = vector(state, torch.uint8)
    torch.Generator().set_state(found)  # length and flags
    if _layout_is_known():
        left, position, words = _parts(found)
        _check_position(position)
        if left + position > WORDS + 1:  # It would go on beyond the words before it makes new ones.
            raise ValueError(f"{left} words are left after position {position} of {WORDS}")
        _check_words(words)
    return found


def _check_position(position: int) -> None:
    if not 0 <= position <= WORDS:
        raise ValueError(f"expected a position from 0 to {WORDS}, but got {position}")


def _check_words(words: NDArray[np.uint32]) -> None:
    if not words[1:].any() and words[0] < 2**31:  # Of the first one, only the highest bit counts.
        raise ValueError("all words are 0: such a generator only ever draws 0")


def _parts(state: torch.Tensor) -> tuple[int, int, NDArray[np.uint32]]:
    """How many words are left, the position, and the words."""
    memory = state.numpy().tobytes()
    _, left, _, position = _TORCH_HEAD.unpack_from(memory)
    return left, position, np.frombuffer(memory[_TORCH_WORDS], np.uint64).astype(np.uint32)


@lru_cache(maxsize=1)
def _layout_is_known() -> bool:
    """Whether this version of torch lays out a state as above: seen in one before and after a draw."""
    generator = torch.Generator().manual_seed(1)
    states = [generator.get_state()]
    torch.rand(1, generator=generator)
    states.append(generator.get_state())
    if any(len(one) < _TORCH_WORDS.stop for one in states):
        return False
    return [_parts(one)[:2] for one in states] == [(1, 0), (WORDS, 1)]
