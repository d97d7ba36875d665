"""The steps on whole batches: the parameters of the CPU's steps, and its pixels within a tolerance."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import rekindle as rk
from photographs import photographs
from rekindle.prepare.device.steps import apply, has_batched_form
from rekindle.prepare.steps.step import Step

T = rk.transforms
NEAREST, BILINEAR, BICUBIC = "nearest", "bilinear", "bicubic"

# What docs/device.md states: the mean difference in grey levels over photographs, and the largest share of
# values that may differ by more than one level.
EXACT = (0.0, 0.0)
ROUNDED = (0.1, 0.0)  # at most one level anywhere
RESIZED = (0.1, 0.001)
MOVED = (0.1, 0.002)  # a neighbouring pixel, where a coordinate is halfway between two
SEVERAL = (0.3, 0.01)  # several operations, of which one can enlarge the difference of another

STEPS: list[tuple[Step, tuple[float, float]]] = [
    (T.Resize(64), RESIZED),
    (T.Resize((97, 301)), RESIZED),
    (T.Resize((97, 30), "hamming"), RESIZED),
    (T.Resize((30, 211), "box"), RESIZED),
    (T.Resize((333, 77), NEAREST), EXACT),
    (T.Resize(64, BICUBIC), RESIZED),
    (T.Resize((240, 90), "lanczos"), RESIZED),
    (T.CenterCrop(64), EXACT),
    (T.CenterCrop(220), EXACT),
    (T.Pad((3, 5, 7, 9), fill=(1, 2, 3)), EXACT),
    (T.Pad(7, padding_mode="reflect"), EXACT),
    (T.Pad(7, padding_mode="edge"), EXACT),
    (T.Pad(7, padding_mode="symmetric"), EXACT),
    (T.Pad(-7), EXACT),
    (T.RandomCrop(120, padding=9, fill=(9, 0, 3)), EXACT),
    (T.RandomCrop(140, pad_if_needed=True, padding_mode="reflect"), EXACT),
    (T.RandomResizedCrop(112), RESIZED),
    (T.RandomResizedCrop(224, interpolation=BICUBIC), RESIZED),
    (T.RandomResizedCrop((60, 90), interpolation=NEAREST), EXACT),
    (T.RandomHorizontalFlip(), EXACT),
    (T.RandomVerticalFlip(), EXACT),
    (T.RandomRotation(40), MOVED),
    (T.RandomRotation(40, BILINEAR, center=(9, 9), fill=(9, 8, 7)), ROUNDED),
    (T.RandomRotation(40, BICUBIC), ROUNDED),
    (T.RandomRotation((180, 180)), EXACT),
    (T.RandomAffine(20, (0.1, 0.2), (0.7, 1.4), 5), MOVED),
    (T.RandomAffine(20, (0.1, 0.2), (0.7, 1.4), (-5, 5, 2, 9), BILINEAR), ROUNDED),
    (T.ColorJitter(brightness=0.4), ROUNDED),
    (T.ColorJitter(contrast=0.4), ROUNDED),
    (T.ColorJitter(saturation=0.4), ROUNDED),
    (T.ColorJitter(saturation=(0, 0)), EXACT),
    (T.ColorJitter(hue=0.4), ROUNDED),
    (T.ColorJitter(0.4, 0.4, 0.4, 0.1), SEVERAL),
    (T.ColorJitter(), EXACT),
    (T.RandomGrayscale(0.5), EXACT),
    (T.GaussianBlur(5), ROUNDED),
    (T.GaussianBlur((23, 9), (0.1, 5.0)), RESIZED),
    (T.Sharpness(1.9), ROUNDED),
    (T.Sharpness(0.1), ROUNDED),
    (T.RandomAdjustSharpness(2.0), ROUNDED),
    (T.Solarize(77.5), EXACT),
    (T.RandomSolarize(100), EXACT),
    (T.Posterize(3), EXACT),
    (T.RandomPosterize(2), EXACT),
    (T.Invert(), EXACT),
    (T.RandomInvert(), EXACT),
    (T.AutoContrast(), EXACT),
    (T.RandomAutocontrast(), EXACT),
    (T.Equalize(), EXACT),
    (T.RandomEqualize(), EXACT),
    (T.RandAugment(2, 9), SEVERAL),
    (T.RandAugment(3, 30, interpolation=BILINEAR), SEVERAL),
    (T.TrivialAugmentWide(), SEVERAL),
    (T.AutoAugment("imagenet"), SEVERAL),
    (T.AutoAugment("cifar10", fill=(3, 4, 5)), SEVERAL),
    (T.AutoAugment("svhn"), SEVERAL),
    (T.RandomApply([T.ColorJitter(0.4), T.RandomHorizontalFlip()], 0.5), ROUNDED),
    (T.Compose([T.RandomHorizontalFlip(), T.Solarize(99)]), EXACT),
    (T.PILToTensor(), EXACT),
    (T.ToTensor(), EXACT),
    (T.ConvertImageDtype(torch.float16), EXACT),
    (T.Compose([T.ToTensor(), T.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))]), EXACT),
    (T.Compose([T.ToTensor(), T.FirstChannel()]), EXACT),
    (T.Compose([T.ToTensor(), T.RandomErasing(0.7)]), EXACT),
    (T.Compose([T.ToTensor(), T.RandomErasing(1, value="random")]), EXACT),
    (T.Compose([T.ToTensor(), T.RandomErasing(1, value=(0.1, 0.2, 0.3))]), EXACT),
]


def some_photographs(height: int = 130, width: int = 121, copies: int = 2) -> NDArray[np.uint8]:
    return np.stack([photograph[:height, :width] for photograph in photographs()] * copies)


def one_by_one(step: Step, images: NDArray[np.uint8], uniforms: NDArray[np.float64]) -> torch.Tensor:
    """The result of the step for each image on the CPU, channels first."""
    made = [step.apply(image, row) for image, row in zip(images, uniforms, strict=True)]
    made = [m if isinstance(m, torch.Tensor) else torch.from_numpy(m.transpose(2, 0, 1).copy()) for m in made]
    return torch.stack(made)


def channels_first(images: NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))


@pytest.mark.parametrize(("step", "tolerance"), STEPS, ids=lambda value: repr(value)[:60])
def test_pixels_are_those_of_the_cpu_within_the_tolerance(step: Step, tolerance: tuple[float, float]) -> None:
    images = some_photographs()
    uniforms = np.random.default_rng(5).random((len(images), step.uniforms))
    given = channels_first(images)
    before = given.clone()
    ours, theirs = apply(step, given, uniforms), one_by_one(step, images, uniforms)
    assert torch.equal(given, before), "what is given is not changed"
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    difference = (ours.double() - theirs.double()).abs()
    mean, beyond_one = tolerance
    assert difference.mean() <= mean
    assert (difference > 1).double().mean() <= beyond_one
    if beyond_one == 0:
        assert difference.max() <= (0 if mean == 0 else 1)


def test_every_image_step_has_a_batched_form() -> None:
    tested = {type(step) for step, _ in STEPS}
    steps = [getattr(T, name) for name in T.__all__]
    steps = [one for one in steps if isinstance(one, type) and issubclass(one, Step)]
    without = {one.__name__ for one in steps} - {one.__name__ for one in tested}
    # In a Compose above, or the base class; what any function does is not known.
    assert without == {"Step", "Lambda", "Normalize", "FirstChannel", "RandomErasing"}


@pytest.mark.parametrize("name", ["ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness"])
@pytest.mark.parametrize("sign", [-1, 1])
def test_magnitudes_have_the_same_sign_and_effect(name: str, sign: int) -> None:
    from rekindle.prepare.device.augmentation_ops import perform
    from rekindle.prepare.steps.augmentation_ops import RANDAUGMENT, magnitude
    from rekindle.prepare.steps.augmentation_ops import perform as on_cpu
    from rekindle.prepare.steps.parameters import InterpolationMode

    images = some_photographs(80, 60, 1)
    amount = sign * magnitude(RANDAUGMENT[name], 20, 31, 80, 60)
    mode, fill = InterpolationMode.NEAREST, (7, 8, 9)
    ours = perform(channels_first(images), [(name, amount)] * len(images), mode, fill)
    theirs = [on_cpu(image, name, amount, mode, fill).transpose(2, 0, 1) for image in images]
    assert (ours.numpy() != np.stack(theirs)).mean() < 0.002


@settings(max_examples=40, deadline=None)
@given(
    step=st.sampled_from([step for step, tolerance in STEPS if tolerance == EXACT and step.size is None]),
    height=st.integers(3, 40),
    width=st.integers(3, 40),
    rows=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_exact_steps_are_exact_for_any_image(
    step: Step, height: int, width: int, rows: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (rows, height, width, 3), dtype=np.uint8)
    images = images // np.uint8(random.integers(1, 200))  # Few values, so that histograms have gaps.
    uniforms = random.random((rows, step.uniforms))
    if isinstance(step, T.Pad):  # It leaves something, and mirrors no more than there is.
        assume(min(height, width) > 2 * max(map(abs, step.padding)))
    assert torch.equal(apply(step, channels_first(images), uniforms), one_by_one(step, images, uniforms))


@pytest.mark.parametrize("kernel", [3, 9])
def test_an_image_smaller_than_the_kernel_is_reflected_as_in_opencv(kernel: int) -> None:
    images = some_photographs(3, 5, 1)
    step = T.GaussianBlur(kernel, 1.5)
    uniforms = np.empty((len(images), 0))
    ours, expected = apply(step, channels_first(images), uniforms), one_by_one(step, images, uniforms)
    difference = ours.int() - expected.int()
    assert difference.abs().max() <= 1


def test_steps_that_cannot_run_on_batches_are_known() -> None:
    class OwnFlip(T.RandomHorizontalFlip):
        def apply(self, image, uniforms):
            return image

    overridden = T.RandomHorizontalFlip()
    overridden.apply = lambda image, uniforms: image
    assert not has_batched_form(OwnFlip())
    assert not has_batched_form(overridden)
    assert not has_batched_form(T.Lambda(np.fliplr))
    assert not has_batched_form(T.RandomRotation(9, expand=True))
    assert not has_batched_form(T.RandomApply([T.Lambda(np.fliplr)]))
    assert not has_batched_form(T.RandomApply([T.CenterCrop(9)]))
    assert has_batched_form(T.RandomApply([T.Sharpness(2)]))
