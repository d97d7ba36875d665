"""What is seeded with what: the loader itself, and its workers in each epoch."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from rekindle import keys
from rekindle.choose import between_epochs
from rekindle.state import Position


def draw_seed(put_back: bool) -> int:
    """A seed from torch's global generator, which is put back if its numbers belong to a sampler."""
    kept = torch.default_generator.get_state()
    seed = int(torch.empty((), dtype=torch.int64).random_())
    if put_back:
        torch.default_generator.set_state(kept)
    return seed


@lru_cache(maxsize=8)
def worker_seed(seed: int, epoch: int) -> int:
    """What workers are seeded with in an epoch, in place of the number that torch would draw."""
    return int(keys.seeds(seed, 0, epoch, keys.Step.STREAM)[0] >> np.uint64(1))


def stream_seed(position: Position, seed: int, workers: int, generator: torch.Generator | None) -> int:
    """What torch would seed the workers of a stream with; kept, so that a resumed one starts alike."""
    if position.stream is not None and generator is not None:
        generator.set_state(position.stream["generator"])
    if position.stream is None or position.stream["made"] is None:
        if generator is None:
            drawn = worker_seed(seed, position.epoch)
        else:
            drawn = int(torch.empty((), dtype=torch.int64).random_(generator=generator))
        position.stream = {
            "made": [0] * max(1, workers),
            "turn": 0,
            "base_seed": drawn,
            "generator": None if generator is None else generator.get_state(),
        }
    return int(position.stream["base_seed"])


def before_an_epoch(
    position: Position, order: str, sampler: Any, generator: torch.Generator | None
) -> Position:
    """The position between two epochs, with what the next one will draw from."""
    if order == "sampler" and position.sampler_state is None:
        resume = between_epochs(sampler, generator, ended=position.epoch > 0)
        return Position(position.epoch, sampler_state=resume)
    if order == "stream" and position.stream is None and generator is not None:
        return Position(position.epoch, stream={"made": None, "generator": generator.get_state()})
    return position
