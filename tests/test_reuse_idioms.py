"""Reuse on what people have: whatever a dataset does with its transform is finished, sample by sample."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, random_split

import rekindle as rk
from light_torchvision import torchvision, v2
from pictures import SIZE, TO_TENSOR, Pictures, T, V, loaded, picture, steps
from same import same

# A dataset that applies its transform to some samples only.


def to_some(data: Pictures, image: Any, index: int) -> Any:
    return (data.transform(image) if index % 2 else TO_TENSOR(image)), index


@pytest.mark.parametrize("split", range(5))
@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_were_not_transformed_are_not_finished(split: int, workers: int) -> None:
    if workers and split % 2:
        return
    for epoch in loaded(Pictures(steps(), to_some), split, num_workers=workers):
        assert sorted(epoch) == list(range(SIZE))
        for index, (image, label) in epoch.items():
            assert label == index
            if index % 2:
                assert image.shape[-1] == 16
                assert 10 <= image.min() <= image.max() <= 12, "each step was done once"
            else:
                assert torch.equal(image, TO_TENSOR(picture(index)))


def test_what_was_done_is_kept_with_what_is_cached(tmp_path: Path) -> None:
    for _ in range(2):  # The second run finds all on disk.
        reuse = rk.Refurbish(3, split=3, memory=0, disk=tmp_path)
        for epoch in loaded(Pictures(steps(), to_some), reuse=reuse):
            assert {int(image.max() > 2) for index, (image, _) in epoch.items() if index % 2} == {1}
            assert {int(image.max() > 2) for index, (image, _) in epoch.items() if not index % 2} == {0}


def changes_one(data: Pictures, image: Any, index: int) -> Any:
    image = data.transform(image)
    return (image * 2 if index == 17 else image), index


def test_a_sample_that_cannot_be_finished_is_named() -> None:
    with pytest.raises(rk.ArgumentError, match=r"sample 17: Pictures uses what .* \(\.__mul__\)"):
        loaded(Pictures(steps(), changes_one), 3)


# What datasets do with a transform.


class Pair(NamedTuple):
    image: Any
    label: int


def as_usual(data: Pictures, image: Any, index: int) -> Any:
    return data.transform(image), index


def alone(data: Pictures, image: Any, index: int) -> Any:
    return data.transform(image)


def in_a_dict(data: Pictures, image: Any, index: int) -> Any:
    return {"id": index, "inputs": {"image": data.transform(image)}}


def in_a_named_tuple(data: Pictures, image: Any, index: int) -> Any:
    return Pair(data.transform(image), index)


def two_views(data: Pictures, image: Any, index: int) -> Any:
    return [data.transform(image), data.transform(image)], index


def as_many_as_its_index(data: Pictures, image: Any, index: int) -> Any:
    return [data.transform(image) for _ in range(index % 4)]


def beside_the_original(data: Pictures, image: Any, index: int) -> Any:
    return image, data.transform(image)


GIVE = [as_usual, alone, in_a_dict, in_a_named_tuple, two_views, as_many_as_its_index, beside_the_original]


def tensors(sample: Any) -> list[Any]:
    if isinstance(sample, dict):
        sample = list(sample.values())
    if isinstance(sample, list | tuple):
        return [tensor for part in sample for tensor in tensors(part)]
    return [sample] if isinstance(sample, torch.Tensor) and sample.dim() == 3 else []


@pytest.mark.parametrize("give", GIVE, ids=lambda give: give.__name__)
@pytest.mark.parametrize("split", [0, 2, 4])
def test_every_result_is_finished_wherever_it_is(give: Any, split: int) -> None:
    data = Pictures(steps(), give)
    seen: dict[int, set[float]] = {}
    for epoch in loaded(data, split):
        for index, sample in epoch.items():
            assert type(sample) is type(data[index])
            views = tensors(sample)
            assert len(views) == len(tensors(data[index]))
            for view in views:
                assert 10 <= view.min() <= view.max() <= 12
                seen.setdefault(index, set()).add(float(view.sum()))
    several = 2 if split == 4 else 4  # in four epochs: cached parts, or views
    if give is not as_many_as_its_index:
        assert np.mean([len(sums) for sums in seen.values()]) >= several - 0.5


def stacked(data: Pictures, image: Any, index: int) -> Any:
    return torch.stack([data.transform(image), data.transform(image)])


def measured(data: Pictures, image: Any, index: int) -> Any:
    image = data.transform(image)
    return image, float(np.asarray(image).mean())


@pytest.mark.parametrize("give", [stacked, measured])
def test_what_is_changed_or_looked_at_afterwards_is_refused_at_construction(give: Any) -> None:
    for split in (1, 3, "auto"):
        with pytest.raises(rk.ArgumentError, match=r"Refurbish.*final_transform=finish"):
            rk.DataLoader(Pictures(steps(), give), 4, shuffle=True, reuse=rk.Refurbish(3, split=split))


class Numbers(Dataset[Any]):
    """The transform makes a number of a number; the label is the same number."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return index, self.transform(index), f"{index}"


def test_a_number_is_told_from_an_equal_one() -> None:
    for epoch in loaded(Numbers(V.Compose([lambda number: number + 1, lambda number: -number])), 0):
        for index, sample in epoch.items():
            assert sample == (index, -index - 1, f"{index}")
    for epoch in loaded(Numbers(V.Compose([str, lambda text: text + "!"])), 1):
        for index, sample in epoch.items():
            assert sample == (index, f"{index}!", f"{index}")
            assert type(sample[1]) is str


# Wrappers that make several views.


class TwoCrops:
    """MoCo's and SimCLR's."""

    def __init__(self, base_transform: Any) -> None:
        self.base_transform = base_transform

    def __call__(self, image: Any) -> Any:
        return [self.base_transform(image), self.base_transform(image)]


class GlobalAndLocal:
    """DINO's."""

    def __init__(self) -> None:
        self.global_crops, self.local_crops = steps(), steps()

    def __call__(self, image: Any) -> Any:
        return [self.global_crops(image), *[self.local_crops(image) for _ in range(2)]]


def test_both_views_of_a_wrapped_compose_are_finished() -> None:
    wrapper = TwoCrops(steps())
    for epoch in loaded(Pictures(wrapper, as_usual), 2):
        for (one, other), _ in epoch.values():
            assert 10 <= min(one.min(), other.min()) <= max(one.max(), other.max()) <= 12
            assert not torch.equal(one, other)
    assert isinstance(wrapper.base_transform, V.Compose), "the wrapper is as it was"


def test_several_pipelines_are_refused_by_name() -> None:
    match = r"several pipelines \(transform.global_crops, transform.local_crops\).*final_transform=finish"
    with pytest.raises(rk.ArgumentError, match=match):
        rk.DataLoader(Pictures(GlobalAndLocal(), as_usual), 4, shuffle=True, reuse=rk.Refurbish(3))


# Images and masks together.


class Segmentation(Dataset[Any]):
    """As torchvision's references do it: one call for image and mask."""

    def __init__(self, transforms: Any) -> None:
        self.transforms = transforms

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        image = torchvision.tv_tensors.Image(TO_TENSOR(picture(index)))
        mask = torchvision.tv_tensors.Mask(image[:1] > 0.5)
        return self.transforms(image, mask)


def test_image_and_mask_stay_together() -> None:
    compose = v2.Compose([v2.RandomCrop(12), v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()])
    for split in range(4):
        views = set()
        for epoch in loaded(Segmentation(compose), split):
            for index, (image, mask) in epoch.items():
                assert torch.equal(image[:1] > 0.5, mask)
                views.add((index, float(image[0, 0, 0]), float(image[0, 0, -1])))
        assert len(views) > 1.5 * SIZE


class Detection(Segmentation):
    """A dict of a target, whose boxes the transform moves; the label is no array."""

    def __getitem__(self, index: int) -> Any:
        image = torchvision.tv_tensors.Image(TO_TENSOR(picture(index)))
        boxes = torchvision.tv_tensors.BoundingBoxes([[2, 2, 9, 9]], format="XYXY", canvas_size=(20, 20))
        image, target = self.transforms(image, {"boxes": boxes, "label": index})
        return image, target


def test_image_and_boxes_stay_together() -> None:
    compose = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()])
    for epoch in loaded(Detection(compose), 1):
        for index, (image, target) in epoch.items():
            assert target["label"] == index
            left, top, right, bottom = target["boxes"][0].int().tolist()
            turned = {"x": left != 2, "y": top != 2}
            whole = TO_TENSOR(picture(index))
            whole = whole.flip(-1) if turned["x"] else whole
            whole = whole.flip(-2) if turned["y"] else whole
            assert torch.equal(image, whole)
            assert (right - left, bottom - top) == (7, 7)


# Datasets of datasets.


def test_concatenated_and_nested_subsets_are_split_like_what_they_consist_of() -> None:
    compose = steps()
    parts = [Pictures(compose, as_usual, 6), Subset(Pictures(compose, as_usual), [3, 5])]
    whole: Any = ConcatDataset(parts)
    nested = Subset(Subset(whole, range(1, 8)), [0, 2, 6])
    halves = random_split(Pictures(compose, as_usual), [0.5, 0.5], torch.Generator().manual_seed(0))
    for data in (whole, nested, *halves):
        for epoch in loaded(data, 2):
            assert sorted(epoch) == list(range(len(data)))
            for index, (image, label) in epoch.items():
                assert label == data[index][1]
                assert 10 <= image.min() <= image.max() <= 12
    other = ConcatDataset([parts[0], Pictures(V.Compose([TO_TENSOR]), as_usual)])
    with pytest.raises(rk.ArgumentError, match=r"different steps.*final_transform=finish"):
        rk.DataLoader(other, 4, shuffle=True, reuse=rk.Refurbish(3))


class Brighter(torch.nn.Module):
    """A step that does not show its parameter."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image + self.by


def brighter(by: float) -> Any:
    return lambda image: image + by


@pytest.mark.parametrize("step", [Brighter, lambda by: V.Lambda(brighter(by))], ids=["module", "lambda"])
def test_steps_that_look_alike_are_compared_by_what_they_do(step: Any) -> None:
    def concatenated(*by: float) -> Any:
        return ConcatDataset(
            [Pictures(V.Compose([TO_TENSOR, step(one), V.RandomHorizontalFlip()]), as_usual, 6) for one in by]
        )

    with pytest.raises(
        rk.ArgumentError, match=r"members of ConcatDataset have different steps.*same Compose"
    ):
        rk.DataLoader(concatenated(10, 100), 4, shuffle=True, reuse=rk.Refurbish(3))
    for epoch in loaded(concatenated(10, 10), 2):
        assert all(10 <= image.min() <= image.max() <= 11 for image, _ in epoch.values())


def test_concatenated_native_datasets_are_split_too() -> None:
    pixels = np.stack([np.asarray(picture(index)) for index in range(12)])
    native = [T.RandomCrop(16), T.RandomHorizontalFlip(), T.ToTensor()]
    halves = [rk.ArrayImages(pixels[at : at + 6], range(at, at + 6), native) for at in (0, 6)]
    whole: Any = ConcatDataset(halves)
    kept = loaded(whole, 1)
    assert same(kept, loaded(whole, 1, memory=0, num_workers=2))
    for epoch in kept:
        for index, (image, label) in epoch.items():
            assert label == index
            assert image.shape == (3, 16, 16)
            assert 0.2 < image.max() <= 1


@pytest.mark.parametrize(
    "data", [[1.0, 2.0], Pictures(lambda image: image, as_usual)], ids=["list", "lambda"]
)
def test_without_steps_the_error_shows_a_final_transform(data: Any) -> None:
    with pytest.raises(rk.ArgumentError, match=r"no steps.*final_transform=finish"):
        rk.DataLoader(data, 1, shuffle=True, reuse=rk.Refurbish(3))


# A dataset that gives an image and its mask the same draws.


def seeded(data: Pictures, image: Any, index: int) -> Any:
    seed = int(torch.randint(2**31, ()))
    torch.manual_seed(seed)
    transformed = data.transform(image)
    torch.manual_seed(seed)
    return transformed, data.transform(image)


def restored(data: Pictures, image: Any, index: int) -> Any:
    state = torch.get_rng_state()
    transformed = data.transform(image)
    torch.set_rng_state(state)
    return transformed, data.transform(image)


@pytest.mark.parametrize("give", [seeded, restored])
def test_who_sets_the_generators_for_image_and_mask_is_refused(give: Any) -> None:
    for image, mask in loaded(Pictures(steps(), give), reuse=None, epochs=1)[0].values():
        assert torch.equal(image, mask)
    with pytest.raises(rk.ArgumentError, match=rf"{give.__name__} sets the random generators itself"):
        rk.DataLoader(Pictures(steps(), give), shuffle=True, reuse=rk.Refurbish(3))


def with_own_generator(data: Pictures, image: Any, index: int) -> Any:
    own = torch.Generator().manual_seed(index)
    return data.transform(image), int(torch.randint(9, (), generator=own))


def test_a_generator_of_the_datasets_own_may_be_seeded() -> None:
    assert len(loaded(Pictures(steps(), with_own_generator), 1, epochs=1)[0]) == SIZE


class ThroughAFunction(Pictures):
    """Calls its Compose in a function that holds it, so it cannot be replaced."""

    def __init__(self, transform: Any) -> None:
        super().__init__(transform, None)
        self.load = lambda index: transform(picture(index))

    def __getitem__(self, index: int) -> Any:
        return self.load(index), index


def test_a_compose_that_cannot_be_replaced_is_refused() -> None:
    with pytest.raises(rk.ArgumentError, match=r"ThroughAFunction does not call its Compose itself"):
        rk.DataLoader(ThroughAFunction(steps()), 4, shuffle=True, reuse=rk.Refurbish(3))
