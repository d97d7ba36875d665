"""What holds for every image step: it is a pure function, declares what it does, and has clear errors."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import rekindle.transforms as rk
from light_torchvision import transforms as torchvision_transforms
from photographs import photographs
from rekindle.errors import ArgumentError
from rekindle.prepare.steps.antialiased_resize import resample
from rekindle.prepare.steps.image_step import ImageStep, more_uniforms

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

STEPS: list[rk.Step] = [
    rk.Resize(40),
    rk.Resize((30, 50), interpolation="bicubic"),
    rk.CenterCrop(60),
    rk.RandomCrop(32, padding=4, pad_if_needed=True, padding_mode="reflect"),
    rk.RandomResizedCrop((48, 32)),
    rk.RandomHorizontalFlip(),
    rk.RandomVerticalFlip(),
    rk.Pad(3),
    rk.RandomRotation(40, expand=True),
    rk.RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 10, interpolation="bilinear"),
    rk.ColorJitter(0.4, 0.4, 0.4, 0.1),
    rk.RandomGrayscale(0.5),
    rk.GaussianBlur(5),
    rk.Solarize(99),
    rk.RandomSolarize(99),
    rk.Posterize(3),
    rk.RandomPosterize(3),
    rk.Equalize(),
    rk.RandomEqualize(),
    rk.AutoContrast(),
    rk.RandomAutocontrast(),
    rk.Sharpness(1.7),
    rk.RandomAdjustSharpness(1.7),
    rk.Invert(),
    rk.RandomInvert(),
    rk.RandAugment(3),
    rk.AutoAugment("cifar10"),
    rk.TrivialAugmentWide(),
    rk.ToTensor(),
    rk.PILToTensor(),
    rk.ConvertImageDtype(torch.float16),
    rk.RandomApply([rk.GaussianBlur(3), rk.ColorJitter(hue=0.2)], p=0.5),
    rk.Compose(
        [
            rk.RandomResizedCrop(33),
            rk.RandAugment(),
            rk.ToTensor(),
            rk.Normalize(MEAN, STD),
            rk.RandomErasing(1),
        ]
    ),
]


def names(step: rk.Step) -> str:
    return type(step).__name__


def as_array(result: object) -> np.ndarray:
    return result.numpy() if isinstance(result, torch.Tensor) else np.asarray(result)


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    return rk.Resize((71, 93))(photographs()[0])


@pytest.mark.parametrize("step", STEPS, ids=names)
def test_a_step_is_a_pure_function_of_image_and_uniforms(step: rk.Step, image: np.ndarray) -> None:
    read_only = image.copy()
    read_only.flags.writeable = False
    copied = pickle.loads(pickle.dumps(step))
    for row in np.random.default_rng(1).random((12, step.uniforms)):
        first = as_array(step.apply(image.copy(), row)).copy()
        assert np.array_equal(first, as_array(step.apply(read_only, row)))
        assert np.array_equal(first, as_array(copied.apply(image, row)))
        window_of_larger = np.pad(image, ((5, 6), (7, 8), (0, 0)))[5:-6, 7:-8]
        assert np.array_equal(first, as_array(step.apply(window_of_larger, row)))


@pytest.mark.parametrize("step", STEPS, ids=names)
def test_the_declared_size_is_the_size_of_the_result(step: rk.Step, image: np.ndarray) -> None:
    for row in np.random.default_rng(2).random((6, step.uniforms)):
        result = step.apply(image, row)
        size = tuple(result.shape[-2:]) if isinstance(result, torch.Tensor) else result.shape[:2]
        if step.size is not None:
            assert size == step.size
        if step.keeps_size:
            assert size == image.shape[:2]
        assert isinstance(result, torch.Tensor) or (result.dtype == np.uint8 and result.shape[2] == 3)


@pytest.mark.parametrize("step", STEPS, ids=names)
def test_layers_with_their_slice_of_the_uniforms_are_equivalent_to_the_step(
    step: rk.Step, image: np.ndarray
) -> None:
    assert step.uniforms == sum(layer.uniforms for layer in step.layers)
    assert step.diversity == math.prod(layer.diversity for layer in step.layers)
    for row in np.random.default_rng(3).random((6, step.uniforms)):
        whole, used = step.apply(image, row), 0
        part = image
        for layer in step.layers:
            part = layer.apply(part, row[used : used + layer.uniforms])
            used += layer.uniforms
        assert np.array_equal(as_array(whole), as_array(part))


def test_steps_work_on_images_of_a_single_pixel() -> None:
    pixel = np.array([[[3, 200, 90]]], dtype=np.uint8)
    for step in STEPS:
        for row in np.random.default_rng(4).random((20, step.uniforms)):
            step.apply(pixel, row)


def test_steps_are_thread_safe(image: np.ndarray) -> None:
    step = rk.Compose([rk.RandomResizedCrop(64), rk.RandAugment(3), rk.ColorJitter(0.4, 0.4, 0.4)])
    rows = np.random.default_rng(5).random((64, step.uniforms))
    expected = [step.apply(image, row) for row in rows]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda row: step.apply(image, row), rows))
    assert all(np.array_equal(one, other) for one, other in zip(expected, results, strict=True))


def test_diversity_follows_the_documented_convention() -> None:
    assert rk.RandAugment(2).diversity == 14**2
    assert [layer.diversity for layer in rk.RandAugment(3).layers] == [14, 14, 14]
    assert (
        rk.TrivialAugmentWide().diversity == 3 + 9 * 31 + 31 + 7
    )  # without magnitude, signed, solarize, posterize
    assert rk.RandomHorizontalFlip().diversity == 2
    assert rk.RandomHorizontalFlip(1).diversity == 1
    assert (
        rk.RandomCrop(3).diversity
        == rk.RandomResizedCrop(3).diversity
        == rk.ColorJitter(1).diversity
        == math.inf
    )
    assert rk.Resize(3).diversity == rk.Invert().diversity == rk.ToTensor().diversity == 1
    assert rk.Compose([rk.RandomHorizontalFlip(), rk.RandomVerticalFlip(), rk.RandAugment(1)]).diversity == 56
    assert 25 < rk.AutoAugment().diversity < 100


def test_compose_knows_the_size_of_the_result() -> None:
    crop, flip = rk.RandomCrop(32), rk.RandomHorizontalFlip()
    assert rk.Compose([crop, flip, rk.ToTensor()]).size == (32, 32)
    assert rk.Compose([crop, rk.Pad(1)]).size == (34, 34)
    assert rk.Compose([flip]).size is None
    assert rk.Compose([flip]).keeps_size
    assert rk.Compose([crop, rk.Lambda(lambda x: x)]).size is None
    assert not rk.Compose([crop, rk.Lambda(lambda x: x)]).releases_gil


def test_a_pillow_image_is_accepted_like_its_array() -> None:
    image = photographs()[0]
    for step in (rk.Resize(32), rk.Compose([rk.CenterCrop(16), rk.ToTensor()]), rk.ToTensor()):
        assert np.array_equal(as_array(step(image)), as_array(step(Image.fromarray(image))))
    assert rk.Invert()(Image.new("L", (4, 3))).tolist() == np.full((3, 4, 3), 255).tolist()


def test_calling_a_step_follows_torchs_global_generator(image: np.ndarray) -> None:
    step = rk.RandomResizedCrop(16)
    torch.manual_seed(3)
    first = step(image)
    torch.manual_seed(3)
    assert np.array_equal(first, step(image))
    assert not np.array_equal(first, step(image))


@settings(max_examples=80, deadline=None)
@given(
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    new=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    mode=st.sampled_from(list(rk.InterpolationMode)),
    seed=st.integers(0, 99),
)
def test_resizing_equals_pillow_for_any_size(
    size: tuple[int, int], new: tuple[int, int], mode: rk.InterpolationMode, seed: int
) -> None:
    image = np.random.default_rng(seed).integers(0, 256, (*size, 3)).astype(np.uint8)
    result = resample(image, (0, 0, *size), new, mode)
    pillow = {"nearest-exact": "nearest"}.get(mode.value, mode.value)
    expected = Image.fromarray(image).resize(new[::-1], Image.Resampling[pillow.upper()])
    difference = np.abs(result.astype(int) - np.asarray(expected))
    assert difference.mean() <= (3 if mode.value in ("bicubic", "lanczos") else 1)


@settings(max_examples=60, deadline=None)
@given(size=st.tuples(st.integers(1, 3000), st.integers(1, 3000)), seed=st.integers(0, 999))
def test_crop_boxes_are_inside_the_image(size: tuple[int, int], seed: int) -> None:
    random = np.random.default_rng(seed)
    for step in (rk.RandomResizedCrop(7), rk.Resize(9), rk.RandomCrop(1)):
        window = step.window(*size, random.random(step.uniforms))  # type: ignore[attr-defined]
        assert window.lies_within(*size)
        assert min(window) >= 0
        assert min(window.height, window.width, *window.size) >= 1


def test_a_constant_image_stays_constant_when_resized() -> None:
    for value in (0, 1, 127, 255):
        image = np.full((417, 333, 3), value, dtype=np.uint8)
        for mode in rk.InterpolationMode:
            assert (resample(image, (0, 0, 417, 333), (50, 61), mode) == value).all()


def test_more_uniforms_are_uniform_and_depend_on_the_given_ones() -> None:
    def drawn(uniforms: list[float]) -> list[float]:
        source = more_uniforms(np.array(uniforms))
        return [next(source) for _ in range(2000)]

    assert drawn([0.1, 0.2]) == drawn([0.1, 0.2])
    assert set(drawn([0.1, 0.2])).isdisjoint(drawn([0.2, 0.1]))
    counts, _ = np.histogram(drawn([0.3]), bins=10, range=(0, 1))
    assert (np.abs(counts - 200) < 60).all()


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: rk.Resize(0), "size is 0"),
    (lambda: rk.Resize((1, 2, 3)), "size is"),
    (lambda: rk.Resize(10, max_size=10), "max_size is 10"),
    (lambda: rk.Resize((10, 10), max_size=20), "max_size is 20"),
    (lambda: rk.Resize(10, interpolation="linear"), "interpolation is 'linear'"),
    (lambda: rk.CenterCrop("a"), "size is 'a'"),
    (lambda: rk.RandomCrop(3, padding=(1, 2, 3)), "padding is"),
    (lambda: rk.RandomCrop(3, padding_mode="mirror"), "padding_mode is 'mirror'"),
    (lambda: rk.RandomCrop(3, fill=(1, 2)), "fill is"),
    (lambda: rk.RandomCrop(3, fill=300), "fill is 300"),
    (lambda: rk.RandomResizedCrop(3, scale=(1, 0.5)), "smaller number first"),
    (lambda: rk.RandomResizedCrop(3, ratio=(0, 1)), "ratio is 0"),
    (lambda: rk.RandomHorizontalFlip(1.5), "p is 1.5"),
    (lambda: rk.RandomVerticalFlip(math.nan), "p is nan"),
    (lambda: rk.RandomRotation(-4), "degrees is -4"),
    (lambda: rk.RandomRotation(4, interpolation="lanczos"), "interpolation is"),
    (lambda: rk.RandomRotation(4, center=(1, 2, 3)), "center is"),
    (lambda: rk.RandomAffine(0, translate=(2, 0)), "translate is 2"),
    (lambda: rk.RandomAffine(0, scale=(0, 1)), "scale is 0"),
    (lambda: rk.ColorJitter(brightness=-1), "brightness is -1"),
    (lambda: rk.ColorJitter(hue=0.6), "hue is 0.6"),
    (lambda: rk.ColorJitter(contrast="a"), "contrast is 'a'"),
    (lambda: rk.GaussianBlur(4), "kernel_size is 4"),
    (lambda: rk.GaussianBlur(3, sigma=0), "sigma is 0"),
    (lambda: rk.Posterize(9), "bits is 9"),
    (lambda: rk.RandomPosterize(0), "bits is 0"),
    (lambda: rk.Solarize("a"), "threshold is 'a'"),
    (lambda: rk.Sharpness(-1), "sharpness_factor is -1"),
    (lambda: rk.RandAugment(0), "num_ops is 0"),
    (lambda: rk.RandAugment(2, 31), "magnitude is 31"),
    (lambda: rk.RandAugment(num_magnitude_bins=1), "num_magnitude_bins is 1"),
    (lambda: rk.AutoAugment("mnist"), "policy is 'mnist'"),
    (lambda: rk.RandomErasing(scale=(0.1, 2)), "scale is 2"),
    (lambda: rk.RandomErasing(value="noise"), "value is 'noise'"),
    (lambda: rk.ConvertImageDtype(torch.int32), "dtype is torch.int32"),
    (lambda: rk.Normalize(MEAN, (1, 0, 1)), "std is"),
    (lambda: rk.Normalize(0.5, 0.5), "mean is 0.5"),  # type: ignore[arg-type]
    (lambda: rk.Normalize((1, 2), (1, 2, 3)), "mean has 2 numbers"),
    (lambda: rk.Lambda(3), "lambd is 3"),  # type: ignore[arg-type]
    (lambda: rk.Compose(rk.Invert()), "Give a list"),  # type: ignore[arg-type]
    (lambda: rk.Compose([rk.Invert]), "not a step"),
    (lambda: rk.Compose([rk.ToTensor(), rk.Resize(3)]), "Resize works on images of bytes"),
    (lambda: rk.Compose([rk.Resize(3), rk.Normalize(MEAN, STD)]), "Put ToTensor"),
    (lambda: rk.Compose([rk.ToTensor(), rk.Compose([rk.Invert()])]), "Invert works on images"),
    (lambda: rk.Compose([rk.ToTensor(), rk.ToTensor()]), "already converted the image"),
    (lambda: rk.MixUp(alpha=0), "alpha is 0"),
    (lambda: rk.CutMix(num_classes=0), "num_classes is 0"),
    (lambda: rk.RandomCrop(9)(np.zeros((8, 8, 3), np.uint8)), "larger than an image of 8 × 8"),
    (lambda: rk.Pad(-5)(np.zeros((8, 8, 3), np.uint8)), "leaves nothing"),
    (lambda: rk.Invert()(torch.zeros(3, 4, 4)), "before ToTensor"),
    (lambda: rk.Invert()(np.zeros((8, 8, 3))), "array of bytes"),
    (lambda: rk.Normalize(MEAN, STD)(np.zeros((8, 8, 3))), "ToTensor"),
    (lambda: rk.RandomErasing(1)(np.zeros((8, 8, 3))), "ToTensor"),
    (lambda: rk.RandomErasing(1, value=(1, 2))(torch.zeros(3, 8, 8)), "value has 2 numbers"),
]


@pytest.mark.parametrize(("make", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_parameter_or_image_is_named_with_what_to_do(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(ArgumentError, match=r"(?i)give|put|remove|set|comes? before") as error:
        make()
    assert message in str(error.value)


def test_every_name_has_torchvisions_parameters_in_its_order() -> None:
    import inspect

    for name in rk.__all__:
        ours, theirs = getattr(rk, name), getattr(torchvision_transforms, name, None)
        if theirs is not None and isinstance(ours, type) and issubclass(ours, rk.Step):
            expected = list(inspect.signature(theirs).parameters)
            positional = [
                one for one in inspect.signature(ours).parameters.values() if one.kind != one.KEYWORD_ONLY
            ]
            assert [one.name for one in positional] == expected, name


def test_the_namespace_exports_what_it_lists() -> None:
    assert sorted(rk.__all__) == sorted(set(rk.__all__))
    assert all(hasattr(rk, name) for name in rk.__all__)
    assert all(issubclass(type(step), ImageStep) for step in STEPS[:28])


def test_how_a_step_is_shown_has_all_of_its_parameters() -> None:
    """Caches on disk are keyed by it."""
    shown = {repr(rk.RandomApply([rk.RandomInvert(p=q)], p=p)) for p in (0.1, 0.2) for q in (0.3, 0.4)}
    assert len(shown) == 4


@pytest.mark.parametrize(
    ("step", "name", "value", "expected"),
    [
        (rk.RandomSolarize(200, p=1), "threshold", 20, rk.RandomSolarize(20, p=1)),
        (rk.RandomPosterize(7, p=1), "bits", 2, rk.RandomPosterize(2, p=1)),
        (rk.RandAugment(1, 0), "magnitude", 30, rk.RandAugment(1, 30)),
        (rk.RandAugment(1, 9), "num_ops", 3, rk.RandAugment(3, 9)),
        (rk.RandomResizedCrop(8, ratio=(1, 1)), "ratio", (3, 3), rk.RandomResizedCrop(8, ratio=(3, 3))),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_parameter_that_is_changed_counts(
    step: rk.Step, name: str, value: object, expected: rk.Step
) -> None:
    image = np.ascontiguousarray(photographs()[0][:40, :60])
    setattr(step, name, value)
    for number in range(4):
        uniforms = np.random.default_rng(number).random(step.uniforms)
        assert np.array_equal(step.apply(image, uniforms), expected.apply(image, uniforms))


def test_a_changed_value_is_what_erasing_writes() -> None:
    step = rk.RandomErasing(p=1)
    step.value = 7
    assert step(torch.zeros(3, 20, 20)).max() == 7
