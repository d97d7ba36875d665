"""Transforms of other libraries in an `rk.open` dataset: unchanged, seeded for each sample, in processes."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import rekindle as rk
from light_torchvision import transforms as v1
from light_torchvision import v2
from photographs import photographs
from same import same

SAMPLES = 12


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of one photograph: samples differ only by the random numbers drawn for them."""
    folder = tmp_path_factory.mktemp("images") / "a"
    folder.mkdir()
    image = Image.fromarray(np.ascontiguousarray(photographs()[0][:64, :80]))
    for number in range(SAMPLES):
        image.save(folder / f"{number:02}.png")
    return folder.parent


def albumentations() -> Any:
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # or it asks the network for its latest version
    A = pytest.importorskip("albumentations")  # noqa: N806 - the name that its users give it
    return A.Compose(
        [
            A.RandomResizedCrop((32, 32)),
            A.HorizontalFlip(),
            A.OneOf([A.GaussNoise(), A.RandomBrightnessContrast()], p=0.8),
            A.CoarseDropout(),
        ]
    )


def torchvision_v1() -> Any:
    steps = [
        v1.RandomResizedCrop(32),
        v1.RandomHorizontalFlip(),
        v1.RandAugment(),
        v1.ColorJitter(0.4, 0.4, 0.4, 0.1),
        v1.ToTensor(),
        v1.RandomErasing(),
    ]
    return v1.Compose(steps)


def torchvision_v2() -> Any:
    steps = [
        v2.ToImage(),
        v2.RandomResizedCrop(32, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.TrivialAugmentWide(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize((0.5,), (0.25,)),
    ]
    return v2.Compose(steps)


COMPOSES = [albumentations, torchvision_v1, torchvision_v2]


def epochs(compose: Any, root: Path, workers: int) -> list[Any]:
    loader = rk.DataLoader(
        rk.open(root, transform=compose()), batch_size=5, shuffle=True, seed=3, num_workers=workers
    )
    batches = [[torch.as_tensor(part).clone() for part in batch] for _ in range(2) for batch in loader]
    assert loader.report().executor == ("processes" if workers else "inline")
    return batches


@pytest.mark.parametrize("compose", COMPOSES)
def test_the_same_bytes_for_any_number_of_workers(root: Path, compose: Any) -> None:
    alone, one, three = (epochs(compose, root, workers) for workers in (0, 1, 3))
    assert same(alone, one)
    assert same(alone, three)


@pytest.mark.parametrize("compose", COMPOSES)
def test_each_sample_has_its_own_random_numbers_in_each_epoch(root: Path, compose: Any) -> None:
    images = [image for batch, _ in epochs(compose, root, 0) for image in batch]
    assert len({image.numpy().tobytes() for image in images}) == 2 * SAMPLES


@pytest.mark.parametrize("compose", COMPOSES)
def test_a_resumed_epoch_has_the_same_bytes(root: Path, compose: Any) -> None:
    dataset = rk.open(root, transform=compose())
    whole = epochs(compose, root, 0)
    loader = rk.DataLoader(dataset, batch_size=5, shuffle=True, seed=3, num_workers=1)
    batches = iter(loader)
    next(batches)
    resumed = rk.DataLoader(dataset, batch_size=5, shuffle=True, seed=3, num_workers=2)
    resumed.load_state_dict(loader.state_dict())
    assert same([[torch.as_tensor(part) for part in batch] for batch in resumed], whole[1:3])


# Within a list of steps, which are given arrays.

T = rk.transforms
NOT_OF_ARRAYS = {
    "the first step": ([v1.RandomCrop(8), T.ToTensor()], "RandomCrop", "RandomCrop"),
    "v2, which would do nothing": ([v2.RandomCrop(8), T.ToTensor()], "RandomCrop", "RandomCrop"),
    "after a step": ([T.RandomCrop(9), v1.RandomPerspective()], "RandomPerspective", r"Lambda\(function\)"),
    "as a Lambda": ([T.Lambda(v1.RandomPerspective())], "RandomPerspective", r"Lambda\(function\)"),
    "in RandomApply": ([T.RandomApply([v1.RandomCrop(8)])], "RandomCrop", "RandomCrop"),
    "in a Compose": ([v1.Compose([v1.RandomCrop(8), v1.ToTensor()])], "RandomCrop", "RandomCrop"),
    "in RandomChoice": ([v1.RandomChoice([v1.ToTensor(), v1.RandomCrop(8)])], "RandomCrop", "RandomCrop"),
}
OF_ARRAYS = {
    "a conversion": [T.RandomCrop(8), v1.ToTensor()],
    "v2's conversion": [T.RandomCrop(8), v2.ToImage()],
    "of Pillow images that were made": [
        v1.ToPILImage(),
        v1.RandomCrop(8),
        v1.RandomPerspective(),
        v1.ToTensor(),
    ],
    "of tensors": [T.RandomCrop(8), T.ToTensor(), v1.RandomErasing(), v2.Normalize([0.5] * 3, [0.5] * 3)],
    "a Compose of arrays": [v1.Compose([v1.ToTensor(), v1.RandomCrop(8)])],
}


@pytest.mark.parametrize("name", NOT_OF_ARRAYS)
def test_a_torchvision_transform_of_pillow_images_is_refused_in_a_list_of_steps(
    root: Path, name: str
) -> None:
    steps, wrong, instead = NOT_OF_ARRAYS[name]
    message = (
        rf"{wrong} is torchvision's and takes Pillow images, .* an array\. "
        rf"Use {instead} of rekindle\.transforms, or give"
    )
    with pytest.raises(rk.ArgumentError, match=message):
        rk.open(root, transform=steps)
    with pytest.raises(rk.ArgumentError, match=message):
        rk.ArrayImages(np.zeros((2, 20, 20, 3), np.uint8), [0, 1], steps)


@pytest.mark.parametrize("name", OF_ARRAYS)
def test_a_torchvision_transform_of_arrays_or_tensors_works_in_a_list_of_steps(root: Path, name: str) -> None:
    image, _ = rk.open(root, transform=OF_ARRAYS[name])[0]
    assert image.shape == (3, 8, 8)


def test_a_function_gets_a_pillow_image_alone_and_an_array_in_a_list(root: Path) -> None:
    assert isinstance(rk.open(root, transform=lambda image: image)[0][0], Image.Image)
    assert isinstance(rk.open(root, transform=[lambda image: image])[0][0], np.ndarray)
