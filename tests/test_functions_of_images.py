"""Functions of the user among the steps: what they are given is theirs, to keep, to change, or to return."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import rekindle as rk
from naming import named

T = rk.transforms
SAMPLES = 5


def as_tensor(image):
    return torch.from_numpy(image).permute(2, 0, 1)


def in_parts(image):
    return {"tensor": torch.from_numpy(image), "shape": image.shape}


class AsTensor(T.Step):
    def apply(self, image, uniforms):
        return as_tensor(image)


class InParts(T.Step):
    def apply(self, image, uniforms):
        return in_parts(image)


class InAList(T.Step):
    def apply(self, image, uniforms):
        return [torch.from_numpy(image), (image[:4], image.shape)]


class Keeps(T.Step):
    """Gives every image, and keeps it: the last ones are looked at later."""

    def __init__(self):
        self.kept = []

    def apply(self, image, uniforms):
        self.kept.append(image)
        return image


class Painted(T.Step):
    def apply(self, image, uniforms):
        return painted(image)


class Inverted(T.Invert):
    """A step of ours, but for what it does."""

    def apply(self, image, uniforms):
        return torch.from_numpy(image)


def overridden() -> T.Step:
    """A step of ours of which one object alone does something else."""
    step = T.Invert()
    step.apply = lambda image, uniforms: torch.from_numpy(image)
    return step


class Noise(T.Step):
    """Draws as torchvision's transforms do, and not from its uniforms."""

    def apply(self, image, uniforms):
        return torch.rand(2)


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """JPEGs of one size, each of another colour."""
    folder = tmp_path / "photographs" / "all"
    folder.mkdir(parents=True)
    for number in range(SAMPLES):
        Image.new("RGB", (24, 16), (40 * number, 90, 200)).save(folder / f"{number}.jpg")
    return folder.parent


@pytest.mark.parametrize("first", [[], [T.CenterCrop(12)], [T.CenterCrop((16, 24))]], ids=named)
@pytest.mark.parametrize(
    "last", [as_tensor, in_parts, AsTensor(), InParts(), Inverted(), overridden()], ids=named
)
@pytest.mark.parametrize("workers", [0, 1])
def test_tensors_on_the_memory_of_images_are_those_of_their_samples(photographs, first, last, workers):
    wanted = []
    for index in range(SAMPLES):
        made = rk.open(photographs, [*first, last])[index][0]
        wanted.append((made["tensor"] if isinstance(made, dict) else made).clone())
    loader = rk.DataLoader(rk.open(photographs, [*first, last]), batch_size=SAMPLES, num_workers=workers)
    ((batch, _),) = loader
    assert torch.equal(batch["tensor"] if isinstance(batch, dict) else batch, torch.stack(wanted))
    assert len({one.numpy().tobytes() for one in wanted}) == SAMPLES


@pytest.mark.parametrize("workers", [0, 1])
def test_a_list_of_parts_of_an_image_is_that_of_its_sample(photographs, workers):
    loader = rk.DataLoader(rk.open(photographs, [InAList()]), batch_size=SAMPLES, num_workers=workers)
    (((whole, (top, _)), _),) = loader
    assert torch.equal(whole[:, :4], top)
    assert len({one.numpy().tobytes() for one in whole}) == SAMPLES


@pytest.mark.parametrize("settings", [{}, {"num_workers": 2}, {"reuse": rk.Refurbish(2)}], ids=str)
def test_a_method_that_is_assigned_to_a_step_is_called_from_then_on(settings):
    pixels = np.arange(SAMPLES * 48, dtype=np.uint8).reshape(SAMPLES, 4, 4, 3)
    step = T.Invert()
    data = rk.ArrayImages(pixels, range(SAMPLES), [step, T.RandomHorizontalFlip(0.0), T.ToTensor()])
    loader = rk.DataLoader(data, SAMPLES, shuffle=True, **settings)
    plain = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    ((batch, numbers),) = loader
    assert torch.allclose(batch, 1 - plain[numbers])
    step.apply = lambda image, uniforms: image
    ((batch, numbers),) = loader
    assert torch.allclose(batch, plain[numbers])
    loader.close()


def test_images_that_a_step_of_the_users_keeps_stay_as_they_are(photographs):
    step = Keeps()
    _ = [*rk.DataLoader(rk.open(photographs, [step, T.ToTensor()]), batch_size=SAMPLES)]
    assert len({one.tobytes() for one in step.kept}) == SAMPLES


def test_what_a_step_of_the_users_draws_follows_from_the_sample(photographs):
    def drawn(workers):
        loader = rk.DataLoader(rk.open(photographs, [Noise()]), 2, seed=3, num_workers=workers)
        return torch.cat([batch for batch, _ in loader])

    assert torch.equal(drawn(0), drawn(2))
    assert len({*drawn(0).flatten().tolist()}) == 2 * SAMPLES


def painted(image):
    image[:4] = 0
    return image


@pytest.mark.parametrize(
    "steps",
    [[painted], [T.RandomHorizontalFlip(0.0), painted], [T.AutoContrast(), painted, T.ToTensor()]],
    ids=["alone", "flip", "contrast"],
)
@pytest.mark.parametrize("grey", [False, True])
def test_a_function_that_changes_its_image_changes_no_image_of_the_dataset(steps, grey):
    random = np.random.default_rng(3)
    images = random.integers(0, 256, (SAMPLES, 40, 40) if grey else (SAMPLES, 40, 40, 3), dtype=np.uint8)
    images[:, 0, 0], images[:, 0, 1] = 0, 255  # the full range, which AutoContrast leaves alone
    before = images.copy()
    dataset = rk.ArrayImages(images, range(SAMPLES), steps)
    first, again = (next(iter(rk.DataLoader(dataset, SAMPLES)))[0] for _ in range(2))
    assert np.array_equal(images, before)
    assert torch.equal(first, again)
    assert not first.numpy()[:, :, :4].any() or not first.numpy()[:, :4].any()


def test_what_a_function_returns_of_an_image_in_memory_is_its_own():
    images = np.arange(SAMPLES * 48, dtype=np.uint8).reshape(SAMPLES, 4, 4, 3)
    before = images.copy()
    dataset = rk.ArrayImages(images, range(SAMPLES), [as_tensor])
    for image, _ in rk.DataLoader(dataset, batch_size=None):
        image += 1
    assert np.array_equal(images, before)


OURS = [
    [T.RandomHorizontalFlip],
    [T.RandomVerticalFlip],
    [T.Invert],
    [T.Posterize, 4],
    [T.CenterCrop, 12],
    [T.RandomCrop, 12],
    [T.RandomResizedCrop, 12],
    [T.Resize, (12, 12)],
    [T.Pad, 2],
    [T.ColorJitter, 0.5],
    [T.RandomGrayscale, 1.0],
    [T.RandAugment],
    [T.TrivialAugmentWide],
    [T.ToTensor],
    [T.Compose, [T.RandomHorizontalFlip(), T.ToTensor()]],
]


def in_one_colour(kind):
    """A class derived from one of ours, whose results have one colour."""

    class OneColour(kind):
        def apply(self, image, uniforms):
            result = super().apply(image, uniforms)
            result[...] = 0.5 if isinstance(result, torch.Tensor) else 7
            result[:1, :1] = 0  # as no function of single pixels does
            return result

    return OneColour


@pytest.mark.parametrize("arguments", OURS, ids=lambda arguments: arguments[0].__name__)
@pytest.mark.parametrize("in_memory", [False, True])
def test_what_a_class_derived_from_a_step_of_ours_does_is_done(photographs, arguments, in_memory):
    kind, *rest = arguments
    step = in_one_colour(kind)(*rest)
    for steps in ([step], [step, T.RandomHorizontalFlip(0.0)], [T.Pad(1), step, T.ToTensor()]):
        if kind in (T.ToTensor, T.Compose) and steps != [step]:
            continue
        images = np.random.default_rng(1).integers(0, 256, (SAMPLES, 16, 16, 3), dtype=np.uint8)
        data = rk.ArrayImages(images, range(SAMPLES), steps) if in_memory else rk.open(photographs, steps)
        (batch, _), *_ = rk.DataLoader(data, batch_size=SAMPLES)
        assert len(batch.unique()) == 2
        assert len(torch.as_tensor(data[0][0]).unique()) == 2


def test_a_class_that_sets_parameters_alone_is_the_step_of_ours():
    class Always(T.RandomHorizontalFlip):
        def __init__(self):
            super().__init__(1.0)

    images = np.random.default_rng(1).integers(0, 256, (SAMPLES, 16, 16, 3), dtype=np.uint8)
    data = rk.ArrayImages(images, range(SAMPLES), [Always(), T.ToTensor()])
    (batch, _), *_ = rk.DataLoader(data, batch_size=SAMPLES)
    assert data.draws_nothing
    assert torch.equal(batch, torch.from_numpy(images).flip(2).permute(0, 3, 1, 2) / 255)


def test_a_derived_class_is_not_split_into_layers():
    steps = [in_one_colour(T.RandAugment)(num_ops=3), in_one_colour(T.Compose)([T.Invert(), T.Invert()])]
    assert [len(step.layers) for step in steps] == [1, 1]
