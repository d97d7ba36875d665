"""timm's RandAugment and AutoAugment: which of its operations an image gets."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rekindle.prepare.steps.image_step import ImageStep
from rekindle.prepare.steps.outcomes import Outcomes
from rekindle.prepare.steps.step import Image, Step, Uniforms, is_ours, random_integer
from rekindle.prepare.steps.timm_operations import UNIFORMS, TimmOperation


class TimmRandAugment(ImageStep):
    """Apply `num_layers` operations, each chosen at random; each is done with its own probability.

    Without `choice_weights`, all operations are equally probable and may be chosen more than once. With
    weights, none is chosen twice, as in numpy's choice without replacement.
    """

    def __init__(
        self,
        ops: Sequence[TimmOperation],
        num_layers: int = 2,
        choice_weights: Sequence[float] | None = None,
    ) -> None:
        self.ops, self.num_layers = tuple(ops), num_layers
        self.choice_weights = None if choice_weights is None else tuple(map(float, choice_weights))
        self.uniforms = num_layers * (1 + UNIFORMS)
        self.diversity = _count(self.ops) ** num_layers

    @property
    def layers(self) -> tuple[Step, ...]:
        if self.choice_weights is not None or self.num_layers < 2 or not is_ours(self):
            return (self,)
        return (TimmRandAugment(self.ops, 1),) * self.num_layers

    def outcomes(self, size: tuple[int, int] | None = None) -> Outcomes:
        weights = self.choice_weights or [1 / len(self.ops)] * len(self.ops)
        one = _outcomes(self.ops, weights)
        found = one
        for _ in range(self.num_layers - 1):
            found = found.then(one)
        return found

    def apply(self, image: Image, uniforms: Uniforms) -> Image:
        for number, chosen in enumerate(self.chosen(uniforms)):
            start = number * (1 + UNIFORMS) + 1
            image = self.ops[chosen].apply(image, uniforms[start : start + UNIFORMS])
        return image

    def chosen(self, uniforms: Uniforms) -> list[int]:
        """The numbers of the operations that are chosen."""
        draws = uniforms[:: 1 + UNIFORMS].tolist()
        if self.choice_weights is None:
            return [random_integer(draw, 0, len(self.ops)) for draw in draws]
        left, found = list(self.choice_weights), []
        for draw in draws:
            found.append(_weighted(left, draw))
            left[found[-1]] = 0.0
        return found


class TimmAutoAugment(ImageStep):
    """Apply the operations of one policy, chosen at random, each with its own probability."""

    def __init__(self, policy: Sequence[Sequence[TimmOperation]]) -> None:
        self.policy = tuple(tuple(ops) for ops in policy)
        self.uniforms = 1 + UNIFORMS * max(map(len, self.policy))
        self.diversity = sum(math.prod(_count((op,)) for op in ops) for ops in self.policy)

    def outcomes(self, size: tuple[int, int] | None = None) -> Outcomes:
        groups: list[tuple[float, float]] = []
        continuum = 0.0
        for ops in self.policy:
            found = Outcomes(((1.0, 1.0),))
            for op in ops:
                found = found.then(_outcomes((op,), (1.0,)))
            groups += [(p / len(self.policy), count) for p, count in found.groups]
            continuum += found.continuum / len(self.policy)
        return Outcomes(tuple(groups), continuum)

    def apply(self, image: Image, uniforms: Uniforms) -> Image:
        ops = self.policy[random_integer(uniforms[0], 0, len(self.policy))]
        for number, op in enumerate(ops):
            start = 1 + number * UNIFORMS
            image = op.apply(image, uniforms[start : start + UNIFORMS])
        return image


def _weighted(weights: Sequence[float], draw: float) -> int:
    """The index of a weight, chosen in proportion to it by a uniform random number."""
    reached, total = 0.0, sum(weights)
    last = 0
    for number, weight in enumerate(weights):
        if weight <= 0:
            continue
        reached, last = reached + weight, number
        if draw * total < reached:
            break
    return last


def _count(ops: Sequence[TimmOperation]) -> float:
    """How many distinct outcomes one of the operations can have, without signs and interpolations."""
    if any(op.is_continuous and op.prob > 0 for op in ops):
        return math.inf
    return len(ops) + any(op.prob < 1 for op in ops)


def _outcomes(ops: Sequence[TimmOperation], weights: Sequence[float]) -> Outcomes:
    """How probable the outcomes of one operation, chosen by weight, are."""
    pairs = list(zip(ops, weights, strict=True))
    unchanged = sum(weight * (1 - op.prob) for op, weight in pairs)
    groups = [(weight * op.prob, 1.0) for op, weight in pairs if not op.is_continuous and op.prob > 0]
    if unchanged > 0:
        groups.append((unchanged, 1.0))
    return Outcomes(tuple(groups), sum(weight * op.prob for op, weight in pairs if op.is_continuous))
