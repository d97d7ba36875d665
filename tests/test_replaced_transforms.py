"""torchvision's datasets have their transform twice: which one is split follows from which one they use."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import rekindle as rk
from light_torchvision import torchvision
from one_inspector import one_inspector  # noqa: F401 - a fixture of all tests here

V, D = torchvision.transforms, torchvision.datasets


def steps(size: int) -> Any:
    return V.Compose([V.RandomCrop(size), V.RandomHorizontalFlip(), V.ToTensor()])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(8):
        file = tmp_path / f"class{number % 2}" / f"{number}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((16, 16, 3), number, dtype=np.uint8)).save(file)
    return tmp_path


class Joint(D.ImageFolder):
    """As torchvision's datasets for detection: image and target go through `transforms` together."""

    def __getitem__(self, index: int) -> Any:
        path, target = self.samples[index]
        return self.transforms(self.loader(path), target)


class Both(D.ImageFolder):
    def __getitem__(self, index: int) -> Any:
        path, target = self.samples[index]
        image, target = self.transforms(self.loader(path), target)
        return self.transform(V.functional.to_pil_image(image)), target


def images(dataset: Any) -> list[torch.Tensor]:
    loader = rk.DataLoader(dataset, 4, shuffle=True, reuse=rk.Refurbish(2, split=1), seed=0)
    return [image for _ in range(3) for batch, _ in loader for image in batch]


def test_a_transform_that_was_replaced_is_the_one_that_is_split(folder: Path) -> None:
    dataset = D.ImageFolder(folder, steps(12))
    dataset.transform = steps(10)
    assert {image.shape for image in images(dataset)} == {(3, 10, 10)}


def test_so_is_a_joint_transform(folder: Path) -> None:
    dataset = Joint(folder, steps(12))
    dataset.transforms = D.vision.StandardTransform(steps(10), None)
    assert {image.shape for image in images(dataset)} == {(3, 10, 10)}


def test_a_dataset_that_uses_both_is_refused(folder: Path) -> None:
    dataset = Both(folder, steps(12))
    dataset.transform = steps(10)
    with pytest.raises(rk.ArgumentError, match=r"several pipelines \(transform, transforms.transform\)"):
        images(dataset)
