"""A step of the image pipeline: a pure function of an image and of the random numbers drawn for it.

A step never draws random numbers itself. It declares how many uniforms it needs; the loader draws them for
many samples at once with the counter-based generator (`counter_rng.uniforms`), and the step turns them into
its parameters. So the result depends on the sample's key alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rekindle.core.limits import Limits
from rekindle.prepare.steps.outcomes import Outcomes, uniform

Image: TypeAlias = NDArray[np.uint8]  # height × width × 3, RGB
Uniforms: TypeAlias = NDArray[np.float64]  # random numbers, uniform in [0, 1)
# What passes through a pipeline: an `Image`, a tensor after the conversion, or anything that a Lambda
# returns.
Value: TypeAlias = Any


class Step(ABC):
    """One step of a pipeline. Parameters are plain attributes, named as torchvision names them.

    Attributes:
        uniforms: How many uniform random numbers one sample needs.
        diversity: How many distinct results the step can have for one image: 1 if it is deterministic,
            infinity if it draws from a continuous range.
        knows_diversity: Whether `diversity` is reliable; a user's function may have randomness of its own.
        size: Height and width of the result if they are always the same; None otherwise.
        keeps_size: Whether the result has the height and width of the input.
        releases_gil: Whether (nearly all of) the work runs without the GIL.

    """

    uniforms: int = 0
    diversity: float = 1
    knows_diversity: bool = True
    size: tuple[int, int] | None = None
    keeps_size: bool = False
    releases_gil: bool = True

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """Height and width of the result if all inputs have this size; None if results differ in size."""
        return self.size or (size if self.keeps_size else None)

    def outcomes(self, size: tuple[int, int] | None = None) -> Outcomes:
        """How probable its distinct results are for one image, of this height and width if they are known."""
        return uniform(self.diversity)

    @property
    def parts(self) -> tuple[Step, ...]:
        """The steps that this one always applies one after the other; itself, unless it is a Compose."""
        return (self,)

    @property
    def layers(self) -> tuple[Step, ...]:
        """The smaller steps between which this one can be split; itself if it cannot."""
        return (self,)

    def with_limits(self, limits: Limits) -> Step:
        """The step with limits to the size of its results; itself if these do not grow."""
        return self

    def compile_kernels(self) -> None:  # noqa: B027 (most steps have none)
        """Compile the kernels that the step needs, or load them: once, before there are workers."""

    @abstractmethod
    def apply(self, image: Value, uniforms: Uniforms) -> Value:
        """The result for one image, given `uniforms` random numbers; the input is unchanged."""

    def __call__(self, image: Value) -> Value:
        """Apply to one image with random numbers from torch's global generator, as torchvision does."""
        return self.apply(image, draw_uniforms(self.uniforms))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if name[0] != "_")
        return f"{type(self).__name__}({shown})"


# What a class may define and still do what the class of ours does that it is derived from: set parameters.
_HARMLESS = frozenset(
    {
        "__abstractmethods__", "__annotations__", "__doc__", "__firstlineno__", "__init__", "__module__",
        "__orig_bases__", "__parameters__", "__qualname__", "__repr__", "__slots__", "__static_attributes__",
        "_abc_impl",
    }
)  # fmt: skip


def is_ours(step: Step) -> bool:
    """Whether a step does what its class of ours does: it is no user's own, and overrides no method.

    Only then may something else be run in the place of its `apply`. `step.apply = function` overrides it too.
    """
    ours, kinds = __name__.partition(".")[0], type(step).__mro__
    if any(callable(vars(kind).get(name)) for name in vars(step) for kind in kinds):
        return False
    for kind in kinds:
        if kind.__module__.partition(".")[0] == ours:
            return kind is not Step
        if not _HARMLESS.issuperset(vars(kind)):
            return False
    return False


def draw_uniforms(count: int) -> Uniforms:
    """Random numbers from torch's global generator; with a count of 0 its state does not change."""
    import torch  # Not at the top: decoding an image alone need not wait for torch to load.

    drawn: Uniforms = torch.rand(count, dtype=torch.float64).numpy()
    return drawn


def random_integer(uniform: float, low: int, high: int) -> int:
    """An integer from low to high − 1, chosen by a uniform random number."""
    return min(low + math.floor(uniform * (high - low)), high - 1)


def random_between(uniform: float, low: float, high: float) -> float:
    """A number from low to high, chosen by a uniform random number."""
    return low + uniform * (high - low)
