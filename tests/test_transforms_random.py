"""Random steps draw what torchvision draws: the same distributions, compared by statistics.

Two samples are compared by the Kolmogorov-Smirnov distance, frequencies by their deviation. The numbers are
fixed, so a test either always holds or never; the bounds are those that chance would exceed once in 10,000.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
import torch

import rekindle.transforms as rk
from light_torchvision import transforms
from rekindle.prepare.steps.augmentation_ops import AUTOAUGMENT, RANDAUGMENT, TRIVIALAUGMENT_WIDE
from rekindle.prepare.steps.mixup_cutmix import symmetric_beta

DRAWS = 4000


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(7)


def uniforms(step: object, draws: int = DRAWS) -> np.ndarray:
    return np.random.default_rng(11).random((draws, step.uniforms))  # type: ignore[attr-defined]


def assert_same_distribution(ours: Sequence[float], theirs: Sequence[float]) -> None:
    first, second = np.sort(ours), np.sort(theirs)
    values = np.concatenate([first, second])
    distance = np.abs(
        np.searchsorted(first, values, side="right") / first.size
        - np.searchsorted(second, values, side="right") / second.size
    ).max()
    bound = math.sqrt(-math.log(1e-4 / 2) / 2 * (1 / first.size + 1 / second.size))
    assert distance <= bound


def assert_frequency(hits: Iterable[bool], expected: float) -> None:
    counted = list(hits)
    spread = 3.9 * math.sqrt(expected * (1 - expected) / len(counted))
    assert abs(sum(counted) / len(counted) - expected) <= spread


@pytest.mark.parametrize(
    ("size", "scale", "ratio"),
    [
        ((375, 500), (0.08, 1.0), (3 / 4, 4 / 3)),
        ((1000, 100), (0.08, 1.0), (3 / 4, 4 / 3)),  # seldom fits: the tries and the middle box matter
        ((64, 64), (0.5, 1.0), (0.3, 3.0)),
    ],
)
def test_resized_crops_have_torchvisions_areas_ratios_and_offsets(
    size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float]
) -> None:
    step = rk.RandomResizedCrop(224, scale, ratio)
    image = torch.empty((3, *size))
    ours = [step.window(*size, row).box for row in uniforms(step)]
    theirs = [transforms.RandomResizedCrop.get_params(image, list(scale), list(ratio)) for _ in range(DRAWS)]
    for measure in (
        lambda box: box[2] * box[3],
        lambda box: box[3] / box[2],
        lambda box: box[0],
        lambda box: box[1],
        lambda box: box[2],
    ):
        assert_same_distribution([measure(box) for box in ours], [measure(box) for box in theirs])
    assert all(0 <= top <= top + height <= size[0] for top, _, height, _ in ours)
    assert all(0 <= left <= left + width <= size[1] for _, left, _, width in ours)


@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((40, 48), {}),
        ((32, 32), {"padding": 4}),
        ((20, 50), {"pad_if_needed": True}),
        ((20, 16), {"padding": (1, 2), "pad_if_needed": True}),
    ],
)
def test_crops_have_torchvisions_offsets(size: tuple[int, int], options: dict[str, object]) -> None:
    step = rk.RandomCrop(32, **options)  # type: ignore[arg-type]
    theirs = transforms.RandomCrop(32, **options)
    # An image that tells where each of its pixels comes from.
    rows, columns = np.mgrid[: size[0], : size[1]]
    image = np.dstack([rows + 1, columns + 1, np.full(size, 255)]).astype(np.uint8)
    tensor = torch.from_numpy(image).permute(2, 0, 1)

    def offset(pixels: np.ndarray) -> tuple[int, int]:
        y, x = np.argwhere(pixels[..., 2] == 255)[0]
        return int(pixels[y, x, 0]) - int(y), int(pixels[y, x, 1]) - int(x)

    ours = [offset(step.apply(image, row)) for row in uniforms(step, 1500)]
    others = [offset(theirs(tensor).permute(1, 2, 0).numpy()) for _ in range(1500)]
    for axis in (0, 1):
        assert {offset[axis] for offset in ours} == {offset[axis] for offset in others}
        assert_same_distribution([offset[axis] for offset in ours], [offset[axis] for offset in others])


@pytest.mark.parametrize("p", [0.0, 0.2, 0.5, 1.0])
def test_a_step_is_applied_with_its_probability(p: float) -> None:
    image = np.random.default_rng(0).integers(0, 200, (8, 9, 3)).astype(np.uint8)
    image[0] = image[0, ::-1]
    steps = [
        rk.RandomHorizontalFlip(p),
        rk.RandomVerticalFlip(p),
        rk.RandomGrayscale(p),
        rk.RandomSolarize(10, p),
        rk.RandomPosterize(2, p),
        rk.RandomEqualize(p),
        rk.RandomInvert(p),
        rk.RandomAutocontrast(p),
        rk.RandomAdjustSharpness(3, p),
        rk.RandomApply([rk.Invert()], p),
    ]
    big = np.tile(image, (10, 10, 1))
    for step in steps:
        acted = [not np.array_equal(step.apply(big, row), big) for row in uniforms(step, 800)]
        assert_frequency(acted, p)
        assert step.diversity == (2 if 0 < p < 1 else 1)


def test_colour_jitter_draws_torchvisions_factors_and_orders() -> None:
    options = {"brightness": 0.4, "contrast": (0.5, 3.0), "saturation": 0.2, "hue": 0.1}
    step, theirs = rk.ColorJitter(**options), transforms.ColorJitter(**options)  # type: ignore[arg-type]
    ours = [step.amounts(row) for row in uniforms(step)]
    others = [
        theirs.get_params(theirs.brightness, theirs.contrast, theirs.saturation, theirs.hue)
        for _ in range(DRAWS)
    ]
    for kind in range(4):
        assert_same_distribution(
            [dict(amounts)[kind] for amounts in ours], [drawn[1 + kind] for drawn in others]
        )
    orders = Counter(tuple(kind for kind, _ in amounts) for amounts in ours)
    assert len(orders) == 24
    for order in orders:
        assert_frequency([tuple(kind for kind, _ in amounts) == order for amounts in ours], 1 / 24)
    assert [kind for kind, _ in rk.ColorJitter(contrast=0.3).amounts(uniforms(step)[0])] == [1]


def test_affine_maps_have_torchvisions_amounts() -> None:
    options = {"degrees": (-10, 30), "translate": (0.1, 0.4), "scale": (0.5, 1.5), "shear": (-5, 5, 3, 9)}
    step, theirs = rk.RandomAffine(**options), transforms.RandomAffine(**options)  # type: ignore[arg-type]
    ours = [step.amounts(200, 300, row) for row in uniforms(step)]
    others = [
        theirs.get_params(theirs.degrees, theirs.translate, theirs.scale, theirs.shear, [300, 200])
        for _ in range(DRAWS)
    ]
    for measure in (
        lambda drawn: drawn[0],
        lambda drawn: drawn[1][0],
        lambda drawn: drawn[1][1],
        lambda drawn: drawn[2],
        lambda drawn: drawn[3][0],
        lambda drawn: drawn[3][1],
    ):
        assert_same_distribution([measure(drawn) for drawn in ours], [measure(drawn) for drawn in others])


@pytest.mark.parametrize("size", [(224, 224), (30, 200)])
def test_erased_boxes_are_torchvisions(size: tuple[int, int]) -> None:
    step = rk.RandomErasing(p=1.0)
    ours = [step.box(*size, row) for row in uniforms(step)]
    image = torch.empty((3, *size))
    drawn = [
        transforms.RandomErasing.get_params(image, (0.02, 0.33), (0.3, 3.3), [0.0])[:4] for _ in range(DRAWS)
    ]
    others = [box for box in drawn if box != (0, 0, *size)]  # torchvision's way to say that no box fitted
    found = [box for box in ours if box is not None]
    assert abs(len(found) - len(others)) <= 5 * math.sqrt(DRAWS - min(len(found), len(others)) + 1)
    for part in range(4):
        assert_same_distribution([box[part] for box in found], [box[part] for box in others])
    half = rk.RandomErasing(p=0.5)
    assert_frequency([half.box(*size, row) is not None for row in uniforms(half)], 0.5 * len(found) / DRAWS)


def test_erasing_writes_the_value_or_noise_into_the_box_and_nowhere_else() -> None:
    image = torch.full((3, 60, 80), 5.0)
    drawn = np.array([0.0, 0.9, 0.5, 0.4, 0.6])
    for value, check in (
        (2, lambda box: bool((box == 2).all())),
        ((1.0, 2.0, 3.0), lambda box: box[:, 0, 0].tolist() == [1, 2, 3]),
        ("random", lambda box: abs(float(box.mean())) < 0.1 and abs(float(box.std()) - 1) < 0.1),
    ):
        step = rk.RandomErasing(p=1, value=value)
        top, left, height, width = step.box(60, 80, drawn) or (0, 0, 0, 0)
        result = step.apply(image, drawn)
        assert check(result[:, top : top + height, left : left + width])
        assert int((result != 5).any(0).sum()) == height * width
        assert torch.equal(result, step.apply(image, drawn))
    assert bool((image == 5).all())


def test_randaugment_layers_choose_each_operation_and_sign_equally_often() -> None:
    layer = rk.RandAugment(num_ops=1, magnitude=9).layers[0]
    choices = [layer.choice(224, 224, row) for row in uniforms(layer, 14_000)]  # type: ignore[attr-defined]
    counts = Counter(name for name, _ in choices)
    assert set(counts) == set(RANDAUGMENT)
    for name, strength in RANDAUGMENT.items():
        assert_frequency([chosen == name for chosen, _ in choices], 1 / 14)
        amounts = {amount for chosen, amount in choices if chosen == name}
        assert len(amounts) == (2 if strength.signed else 1)
        if strength.signed:
            assert_frequency([amount < 0 for chosen, amount in choices if chosen == name], 0.5)


def test_trivialaugment_chooses_operations_magnitudes_and_signs_equally_often() -> None:
    step = rk.TrivialAugmentWide()
    choices = [step.choice(32, 32, row) for row in uniforms(step, 14_000)]
    for name, strength in TRIVIALAUGMENT_WIDE.items():
        assert_frequency([chosen == name for chosen, _ in choices], 1 / 14)
        if strength.signed:
            amounts = [amount for chosen, amount in choices if chosen == name]
            assert len({abs(amount) for amount in amounts}) == 31
            assert_frequency([amount < 0 for amount in amounts if amount], 0.5)


@pytest.mark.parametrize("policy", list(rk.AutoAugmentPolicy))
def test_autoaugment_chooses_pairs_equally_and_operations_by_their_probability(
    policy: rk.AutoAugmentPolicy,
) -> None:
    step = rk.AutoAugment(policy)
    theirs = transforms.AutoAugment(transforms.AutoAugmentPolicy(policy.value))
    expected: Counter[str] = Counter()
    for pair in theirs.policies:
        for name, probability, _ in pair:
            expected[name] += probability / len(theirs.policies)
    draws = uniforms(step, 10_000)
    choices = [step.choice(64, 64, row) for row in draws]
    counted = Counter(name for choice in choices for name, _ in choice)
    for name, rate in expected.items():
        assert abs(counted[name] / len(draws) - rate) <= 3.9 * math.sqrt(2 * rate / len(draws)) + 1e-9
    negative = [a < 0 for choice in choices for name, a in choice if AUTOAUGMENT[name].signed and a]
    assert_frequency(negative, 0.5)


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5, 0.8, 1.0, 2.5])
def test_mixing_weights_follow_the_beta_distribution(alpha: float) -> None:
    rows = np.random.default_rng(3).random((DRAWS, 2))
    ours = [symmetric_beta(alpha, row) for row in rows]
    assert_same_distribution(ours, np.random.default_rng(4).beta(alpha, alpha, DRAWS).tolist())
