"""Small images in memory, and a dataset that gives of them what a test wants."""

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

import rekindle as rk
from light_torchvision import torchvision
from photographs import photographs

T, V = rk.transforms, torchvision.transforms
SIZE = 24
TO_TENSOR = V.ToTensor()


def picture(index: int) -> Any:
    return Image.fromarray(np.ascontiguousarray(photographs()[index % 8][index : index + 20, :20]))


class Pictures(Dataset[Any]):
    """Pillow images with a transform, used as `give` says."""

    def __init__(self, transform: Any, give: Any, size: int = SIZE) -> None:
        self.transform, self.give, self.size = transform, give, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.give(self, picture(index), index)


def steps() -> Any:
    """Each leaves its mark: it shows which were done, how often."""
    return V.Compose([V.RandomCrop(16), TO_TENSOR, add_noise, plus_ten])


def add_noise(image: Any) -> Any:
    return image + torch.rand(1)


def plus_ten(image: Any) -> Any:
    return image + 10


def as_it_is(sample: Any) -> Any:
    return sample


def loaded(data: Any, split: Any = "add_noise", epochs: int = 4, **settings: Any) -> list[Any]:
    """All samples of some epochs, by index, as batches of one without a collate function."""
    reuse = settings.pop("reuse", rk.Refurbish(3, split=split))
    loader = rk.DataLoader(data, None, shuffle=True, seed=1, reuse=reuse, collate_fn=as_it_is, **settings)
    found: list[dict[int, Any]] = []
    for _ in range(epochs):
        found.append({})
        for sample in loader:
            found[-1][int(loader.batch.ids[0])] = sample
    loader.close()
    return found
