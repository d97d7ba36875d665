"""Pipelines of Albumentations are split between their steps."""

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, Dataset

import rekindle as rk
from pictures import SIZE, loaded, picture
from same import same

# Albumentations.


def albumentations() -> Any:
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("albumentations")


class Arrays(Dataset[Any]):
    """An image, and a mask that shows which pixels are bright."""

    def __init__(self, transform: Any, masks: bool) -> None:
        self.transform, self.masks = transform, masks

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        image = np.asarray(picture(index))
        if not self.masks:
            return self.transform(image=image)["image"], index
        done = self.transform(image=image, mask=image[..., 0] // 128)
        return {"image": done["image"], "mask": done["mask"], "id": index}


@pytest.mark.parametrize("workers", [0, 2])
def test_albumentations_are_split_between_their_steps(workers: int) -> None:
    A = albumentations()  # noqa: N806 - the name that its users give it
    compose = A.Compose([A.RandomCrop(16, 16), A.HorizontalFlip(), A.VerticalFlip(), A.Transpose()])
    first = loaded(Arrays(compose, masks=True), "HorizontalFlip", num_workers=workers)
    views: dict[int, set[bytes]] = {}
    for epoch in first:
        for index, sample in epoch.items():
            image, mask = np.asarray(sample["image"]), np.asarray(sample["mask"])
            assert image.shape == (16, 16, 3)
            assert np.array_equal(image[..., 0] // 128, mask), "both parts of a call draw the same"
            views.setdefault(index, set()).add(image.tobytes())
    assert np.mean([len(seen) for seen in views.values()]) > 2.4
    again = loaded(Arrays(compose, masks=True), "HorizontalFlip")
    assert same(first, again), "it is the same with any workers"
    bare = loaded(Arrays(compose, masks=True), "HorizontalFlip", memory=0)
    assert same(first, bare)


def test_albumentations_in_an_opened_dataset(tmp_path: Path) -> None:
    A = albumentations()  # noqa: N806
    for index in range(8):
        (tmp_path / "a").mkdir(exist_ok=True)
        picture(index).save(tmp_path / "a" / f"{index}.png")
    compose = A.Compose([A.RandomCrop(16, 16), A.HorizontalFlip(), A.VerticalFlip()])
    data = rk.open(tmp_path, transform=compose)
    for split in (1, "auto"):
        kept = loaded(data, split)
        assert same(kept, loaded(data, split, memory=0))
        assert {np.asarray(image).shape for epoch in kept for image, _ in epoch.values()} == {(16, 16, 3)}


@pytest.mark.parametrize("masks", [False, True])
def test_what_albumentations_does_as_one_step_is_refused(masks: bool) -> None:
    A = albumentations()  # noqa: N806
    flips = [A.HorizontalFlip(), A.VerticalFlip()]
    boxes = A.BboxParams("pascal_voc", label_fields=[])
    for compose, reason in (
        (A.Compose(flips, p=0.5), "probability of 0.5"),
        (A.OneOf(flips), "OneOf of Albumentations is one step"),
        (A.Compose(flips, bbox_params=boxes), "boxes or keypoints"),
    ):
        with pytest.raises(rk.ArgumentError, match=rf"{reason}.*final_transform=finish"):
            rk.DataLoader(Arrays(compose, masks), 4, shuffle=True, reuse=rk.Refurbish(3))


def test_concatenated_datasets_with_equal_steps_stay_split_when_they_were_used() -> None:
    A = albumentations()  # noqa: N806 - the name that its users give it

    def concatenated(*limits: float) -> Any:
        return ConcatDataset(
            [Arrays(A.Compose([A.HorizontalFlip(), A.Rotate(limit=one)]), masks=False) for one in limits]
        )

    assert len(loaded(concatenated(30, 30), 1, epochs=3)) == 3
    with pytest.raises(rk.ArgumentError, match="members of ConcatDataset have different steps"):
        loaded(concatenated(30, 60), 1)
