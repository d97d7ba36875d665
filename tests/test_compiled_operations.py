"""The compiled operations of augmentation policies, against plain formulas, and against what they replace."""

import itertools

import cv2
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import rekindle as rk
from noise import noise, views_of
from rekindle.prepare.steps import (
    augmentation_ops,
    colour,
    nearest_warp,
    nearest_warp_kernel,
    point_kernels,
    point_operations,
    sharpness_kernel,
)
from rekindle.prepare.steps.blur_and_sharpness import adjust_sharpness
from rekindle.prepare.steps.geometry import WARP_MODES
from rekindle.prepare.steps.parameters import InterpolationMode

T = rk.transforms
SEEDS = st.integers(0, 2**32 - 1)
WITH_KERNELS = (nearest_warp, point_operations, sharpness_kernel)


@pytest.fixture(scope="module", autouse=True)
def _kernels_are_compiled() -> None:
    nearest_warp_kernel.warp()
    for kernel in ("look_up_values", "equalize_values", "stretch_values"):
        getattr(point_kernels, kernel)()
    sharpness_kernel._write()


# Point operations.


def _stretched(image: np.ndarray) -> np.ndarray:
    result = image.copy()
    for channel in range(3):
        values = image[..., channel]
        low, high = int(values.min()), int(values.max())
        if high > low:
            scale = 255.0 / (high - low)
            result[..., channel] = np.clip(values * scale - low * scale, 0, 255).astype(np.uint8)
    return result


def _equalized(image: np.ndarray) -> np.ndarray:
    """Pillow's ImageOps.equalize, with its loops."""
    result = image.copy()
    for channel in range(3):
        counts = np.bincount(image[..., channel].ravel(), minlength=256).tolist()
        used = [count for count in counts if count]
        step = (sum(used) - used[-1]) // 255
        if step:
            before = list(itertools.accumulate(counts, initial=step // 2))[:256]
            table = np.array([min(total // step, 255) for total in before], dtype=np.uint8)
            result[..., channel] = table[image[..., channel]]
    return result


@settings(max_examples=200, deadline=None)
@given(
    height=st.integers(1, 40),
    width=st.integers(1, 150),
    ends=st.tuples(st.integers(0, 255), st.integers(0, 255)).map(sorted),
    seed=SEEDS,
)
@example(height=1, width=1, ends=[9, 9], seed=1)
@example(height=2, width=32, ends=[0, 255], seed=1)
@example(height=1, width=65, ends=[0, 254], seed=1)
def test_autocontrast_and_equalize_are_pillows_formulas(height, width, ends, seed):
    for image in views_of(noise(height, width, *ends, seed)):
        before = image.copy()
        stretched = point_operations.autocontrast(image)
        assert np.array_equal(stretched, _stretched(image))
        assert (stretched is image) == np.array_equal(stretched, image)
        equalized = point_operations.look_up(image, point_operations.equalize_table(image))
        assert np.array_equal(equalized, _equalized(image))
        assert np.array_equal(image, before)


def test_every_range_is_stretched_as_by_its_table():
    """The kernel calculates what the table holds: all 32,640 pairs of darkest and brightest value."""
    stretch = point_kernels.stretch_values()
    memory = np.empty((2, point_kernels.BLOCK), dtype=np.uint8), np.empty((2, point_kernels.BLOCK))
    values = np.arange(256, dtype=np.uint8)
    for low in range(256):
        for high in range(low + 1, 256):
            ramp = np.repeat(values[low : high + 1], 3)
            result = np.empty_like(ramp)
            expected = ramp if stretch(ramp, *memory, result) else None
            if expected is None:
                assert (low, high) == (0, 255)
            else:
                assert np.array_equal(result, point_operations._stretched(low, high)[ramp])


@settings(max_examples=80, deadline=None)
@given(height=st.integers(1, 9), width=st.integers(1, 70), by_channel=st.booleans(), seed=SEEDS)
def test_values_are_looked_up(height, width, by_channel, seed):
    table = np.random.default_rng(seed).integers(0, 256, (256, 3) if by_channel else 256, dtype=np.uint8)
    for image in views_of(noise(height, width, 0, 255, seed)):
        expected = table[image, np.arange(3)] if by_channel else table[image]
        assert np.array_equal(point_operations.look_up(image, table), expected)


# Sharpness and colour.


def _sharpened(image: np.ndarray, factor: float) -> np.ndarray:
    """Rounded once for each of two products and sums, in float32."""
    rest = 1 - factor
    weight, of_means = np.float32(factor + rest * 4 / 13), np.float32(rest * 9 / 13)
    height, width = image.shape[:2]
    sums = sum(
        image[top : height - 2 + top, left : width - 2 + left].astype(int)
        for top in range(3)
        for left in range(3)
    )
    means = ((2 * sums + 9) // 18).astype(np.float64)  # rounded
    inner = (means * of_means + np.float64(np.float32(colour.TRUNCATE))).astype(np.float32)
    total = (image[1:-1, 1:-1] * np.float64(weight) + inner).astype(np.float32)
    result = image.copy()
    result[1:-1, 1:-1] = np.clip(np.rint(total), 0, 255).astype(np.uint8)
    return result


FACTORS = st.one_of(
    st.floats(0, 2),
    # Of these, many sums are halfway between two integers, but for errors of rounding.
    st.integers(3, 60).map(lambda difference: 1 - 1.0001 / difference * 13 / 9),
)


@settings(max_examples=150, deadline=None)
@given(height=st.integers(3, 40), width=st.integers(32, 90), factor=FACTORS, seed=SEEDS)
def test_compiled_sharpness_is_the_formula(height, width, factor, seed):
    image = noise(height, width, 0, 255, seed)
    rest = 1 - factor
    numbers = factor + rest * 4 / 13, rest * 9 / 13, colour.TRUNCATE
    blended = sharpness_kernel._by_kernel()(image, *numbers)
    assert np.array_equal(blended[1:-1, 1:-1], _sharpened(image, factor)[1:-1, 1:-1])


@settings(max_examples=150, deadline=None)
@given(
    height=st.integers(1, 40),
    width=st.integers(1, 90),
    factor=st.one_of(FACTORS, st.floats(2, 5)),
    seed=SEEDS,
)
def test_sharpness_is_opencvs_whatever_does_it(height, width, factor, seed):
    for image in views_of(noise(height, width, 0, 255, seed)):
        sharpened = adjust_sharpness(image, factor)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sharpness_kernel, "compiled_or_later", lambda *_: None)
            assert np.array_equal(sharpened, adjust_sharpness(image, factor))


def test_where_opencv_rounds_sums_in_another_way_its_own_sharpness_is_used(monkeypatch):
    def rounds_twice(image, weight, of_means, offset):
        weight, of_means, offset = (np.float32(number) for number in (weight, of_means, offset))
        means = cv2.blur(image, (3, 3)).astype(np.float32)
        total = image.astype(np.float32) * weight + means * of_means + offset
        return np.clip(np.rint(total), 0, 255).astype(np.uint8)

    assert not sharpness_kernel._blends_as_opencv(rounds_twice)
    monkeypatch.setattr(sharpness_kernel, "_by_opencv", rounds_twice)
    assert sharpness_kernel.compile_blend() is rounds_twice


@settings(max_examples=200, deadline=None)
@given(factor=st.floats(0, 10), mean=st.integers(0, 255))
def test_matrices_of_colours_are_blends(factor, mean):
    def matrix(colours, offset=0.0):
        return np.concatenate([colours, np.full((3, 1), offset + colour.TRUNCATE)], axis=1).astype(np.float32)

    grey = np.array([0.299, 0.587, 0.114])
    assert np.array_equal(colour.brightness_matrix(factor), matrix(np.eye(3) * factor))
    assert np.array_equal(
        colour.contrast_matrix(factor, mean), matrix(np.eye(3) * factor, (1 - factor) * mean)
    )
    assert np.array_equal(colour.saturation_matrix(factor), matrix(np.eye(3) * factor + (1 - factor) * grey))


# All of them.

SPACES = (augmentation_ops.RANDAUGMENT, augmentation_ops.TRIVIALAUGMENT_WIDE, augmentation_ops.AUTOAUGMENT)


@settings(max_examples=150, deadline=None)
@given(
    shape=st.sampled_from([(1, 1), (1, 64), (64, 1), (3, 32), (31, 33), (224, 224), (97, 96)]),
    ends=st.tuples(st.integers(0, 255), st.integers(0, 255)).map(sorted),
    level=st.integers(0, 30),
    sign=st.sampled_from([1, -1]),
    mode=st.sampled_from(WARP_MODES),
    fill=st.tuples(*[st.integers(0, 255)] * 3),
    seed=SEEDS,
)
def test_operations_have_the_same_pixels_before_and_after_they_are_compiled(
    shape, ends, level, sign, mode, fill, seed
):
    image = views_of(noise(*shape, *ends, seed))[seed % 6]
    for space in SPACES:
        name, strength = [*space.items()][seed % len(space)]
        amount = augmentation_ops.magnitude(strength, level, 31, *image.shape[:2])
        arguments = name, sign * amount if strength.signed else amount, mode, fill
        compiled = augmentation_ops.perform(image, *arguments)
        with pytest.MonkeyPatch.context() as patch:
            for module in WITH_KERNELS:
                patch.setattr(module, "compiled_or_later", lambda *_: None)
            assert np.array_equal(compiled, augmentation_ops.perform(image, *arguments))


@pytest.mark.parametrize(
    ("step", "kernels"),
    [
        (T.AutoContrast(), {"stretch_values"}),
        (T.RandomEqualize(), {"look_up_values", "equalize_values"}),
        (T.RandomRotation(9), {"compile_nearest_warp"}),
        (T.RandomAffine(9), {"compile_nearest_warp"}),
        (T.RandomRotation(9, InterpolationMode.BILINEAR), set()),
        (T.RandomAffine(9, interpolation=InterpolationMode.BILINEAR), set()),
        (T.RandomAdjustSharpness(2), {"compile_blend"}),
        (
            T.RandAugment(),
            {"stretch_values", "look_up_values", "equalize_values", "compile_nearest_warp", "compile_blend"},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_step_asks_for_the_kernels_that_it_needs(step, kernels, monkeypatch):
    asked = set()
    for module in WITH_KERNELS:
        monkeypatch.setattr(module, "compiled_or_later", lambda kernel, *_: asked.add(kernel.__name__))
    step.compile_kernels()
    assert asked == kernels
