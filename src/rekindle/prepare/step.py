"""A step of the image pipeline: a pure function of an image and of the numbers drawn for it.

A step never draws random numbers itself. It says how many it needs, the loader draws them for many samples
at once from the counter-based generator (`keys.uniforms`), and the step turns them into what it does. So what
happens to a sample depends on its key alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]  # height × width × 3 (RGB); float32 after the step that converts
Numbers = NDArray[np.float64]  # uniform in [0, 1)


class Step(ABC):
    """One step. Parameters are plain attributes, named as torchvision's are.

    Attributes:
        uniforms: How many uniform numbers a sample takes.
        diversity: How many distinct outcomes the step has for one image: 1 if it is deterministic, infinite
            if it draws from a continuum.
        knows_diversity: Whether that is sure; a function may have randomness of its own.
        size: Height and width of what comes out, if they are always the same; None otherwise.
        keeps_size: Whether height and width of what comes out are those of what goes in.
        releases_gil: Whether (nearly all of) the work lets other threads run.

    """

    uniforms: int = 0
    diversity: float = 1
    knows_diversity: bool = True
    size: tuple[int, int] | None = None
    keeps_size: bool = False
    releases_gil: bool = True

    @property
    def random(self) -> bool:
        return self.uniforms > 0

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """Height and width of what comes out, if all that goes in has this one; None if they differ."""
        return self.size or (size if self.keeps_size else None)

    @property
    def layers(self) -> tuple[Step, ...]:
        """The step as the smaller ones between which it can be cut; itself, if there are none."""
        return (self,)

    @abstractmethod
    def apply(self, image: Any, numbers: Numbers) -> Any:
        """What becomes of the image, given `uniforms` numbers. The image itself is not changed."""

    def __call__(self, image: Any) -> Any:
        """Apply to one image with numbers from torch's global generator, as a torchvision transform does."""
        import torch  # Here and not above: to decode an image, nobody need wait for it to load.

        return self.apply(image, torch.rand(self.uniforms, dtype=torch.float64).numpy())

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if name[0] != "_")
        return f"{type(self).__name__}({shown})"


def whole_number(number: float, low: int, high: int) -> int:
    """A whole number from low to high − 1, from a uniform one."""
    return min(low + math.floor(number * (high - low)), high - 1)


def between(number: float, low: float, high: float) -> float:
    """A number from low to high, from a uniform one."""
    return low + number * (high - low)
