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


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """JPEGs of one size, each of another colour."""
    folder = tmp_path / "photographs" / "all"
    folder.mkdir(parents=True)
    for number in range(SAMPLES):
        Image.new("RGB", (24, 16), (40 * number, 90, 200)).save(folder / f"{number}.jpg")
    return folder.parent


@pytest.mark.parametrize("first", [[], [T.CenterCrop(12)], [T.CenterCrop((16, 24))]], ids=named)
@pytest.mark.parametrize("last", [as_tensor, in_parts, AsTensor()], ids=named)
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
