"""A Compose whose code is the user's own: what it does with its steps is seen, in every sample."""

from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import rekindle as rk
from light_torchvision import torchvision
from pictures import as_it_is, loaded

V = torchvision.transforms
SIZE, RARE = 24, 17


def number_of(image: torch.Tensor) -> int:
    return int(image.flatten()[0])


class Numbers(Dataset[Any]):
    """Images of their own number, and boxes."""

    def __init__(self, transform: Any, joint: bool = False) -> None:
        self.transform, self.joint = transform, joint

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        image = torch.full((1, 2, 2), float(index))
        if self.joint:
            return (*self.transform(image, {"boxes": torch.ones(2, 4)}), index)
        return self.transform(image), index


def add_hundred(image: torch.Tensor) -> torch.Tensor:
    return image + 100


def doubled(image: torch.Tensor) -> torch.Tensor:
    return image * 2


def add_one(image: torch.Tensor) -> torch.Tensor:
    return image + 1


def of_own_code(call: Any) -> type:
    """A Compose that calls its steps as this says."""

    def created(self: Any, transforms: Any) -> None:
        self.transforms = transforms

    return type("Compose", (), {"__init__": created, "__call__": call})


def in_order(self: Any, image: Any) -> Any:
    for step in self.transforms:
        image = step(image)
        if image is None:
            break
    return image


def wanted(index: int) -> int:
    return (index + 100) * 2 + 1


@pytest.mark.parametrize("split", range(4))
@pytest.mark.parametrize("sequence", [list, tuple])
def test_one_that_does_its_steps_in_order_is_split(split: int, sequence: Any) -> None:
    data = Numbers(of_own_code(in_order)(sequence([add_hundred, doubled, add_one])))
    for epoch in loaded(data, split):
        assert {index: number_of(image) for index, (image, _) in epoch.items()} == {
            index: wanted(index) for index in range(SIZE)
        }


# What is done for one sample only, which is not among those that are tried.


def left_alone(self: Any, image: Any) -> Any:
    return image if number_of(image) == RARE else in_order(self, image)


def stopped_early(self: Any, image: Any) -> Any:
    for step in self.transforms:
        image = step(image)
        if number_of(image) == RARE + 100:
            break
    return image


def without_errors(self: Any, image: Any) -> Any:
    for step in self.transforms:
        try:
            if number_of(image) == RARE + 100:
                raise ValueError("not this one")
            image = step(image)
        except Exception:
            continue
    return image


def twice(self: Any, image: Any) -> Any:
    once = in_order(self, image)
    return in_order(self, image) if RARE_TURNS.pop() else once


def in_another_order(self: Any, image: Any) -> Any:
    steps = self.transforms[::-1] if RARE_TURNS.pop() else self.transforms
    for step in steps:
        image = step(image)
    return image


def changed_at_the_end(self: Any, image: Any) -> Any:
    image = in_order(self, image)
    return image * 0 if RARE_TURNS.pop() else image


def another_at_the_end(self: Any, image: Any) -> Any:
    made = in_order(self, image)
    return image if RARE_TURNS.pop() else made


RARE_TURNS: list[bool] = []


@pytest.mark.parametrize("split", range(3))
@pytest.mark.parametrize("call", [left_alone, stopped_early, without_errors])
def test_one_that_looks_at_images_is_refused(call: Any, split: int) -> None:
    data = Numbers(of_own_code(call)([add_hundred, doubled, add_one]))
    with pytest.raises(rk.ArgumentError, match=r"sample \d+: Numbers, in the code of its Compose, "):
        loaded(data, split)


@pytest.mark.parametrize("split", range(3))
@pytest.mark.parametrize("call", [twice, in_another_order, changed_at_the_end, another_at_the_end])
def test_one_that_does_something_else_for_one_sample_is_refused(call: Any, split: int) -> None:
    data = Numbers(of_own_code(call)([add_hundred, doubled, add_one]))
    RARE_TURNS[:] = [False] * 10_000
    loader = rk.DataLoader(
        data, None, seed=1, reuse=rk.Refurbish(3, split=split), shuffle=True, collate_fn=as_it_is
    )
    found = [next(it) for it in [iter(loader)]]
    assert number_of(found[0][0]) == wanted(found[0][1])
    RARE_TURNS[:] = [True] * 10_000
    with pytest.raises(rk.ArgumentError, match=r"sample \d+: Numbers, in the code of its Compose, "):
        list(loader)


@pytest.mark.parametrize("call", [left_alone, stopped_early, without_errors])
def test_after_the_last_step_it_may_do_what_it_likes(call: Any) -> None:
    data = Numbers(of_own_code(call)([add_hundred, doubled, add_one]))
    for epoch in loaded(data, 3):
        assert all(number_of(image) == number_of(data[index][0]) for index, (image, _) in epoch.items())


# Image and boxes.


def cropped(image: Any, target: Any) -> Any:
    lost = torch.rand(()) < 0.1
    return image + 100, {"boxes": target["boxes"][:0] if lost else target["boxes"]}


def both_doubled(image: Any, target: Any) -> Any:
    return image * 2, {"boxes": target["boxes"] * 2}


def in_pairs(self: Any, image: Any, target: Any) -> Any:
    for step in self.transforms:
        image, target = step(image, target)
    return image, target


def until_boxes_are_left(self: Any, image: Any, target: Any) -> Any:
    while True:
        made, boxes = in_pairs(self, image, target)
        if len(boxes["boxes"]):
            return made, boxes


def with_boxes_noted(self: Any, image: Any, target: Any) -> Any:
    for step in self.transforms:
        image, target = step(image, target)
        target["steps"] = 1
    return image, target


@pytest.mark.parametrize("split", range(3))
def test_image_and_boxes_in_pairs(split: int) -> None:
    for epoch in loaded(Numbers(of_own_code(in_pairs)([cropped, both_doubled]), joint=True), split):
        for index, (image, target, _) in epoch.items():
            assert number_of(image) == 2 * (index + 100)
            assert target["boxes"].unique().tolist() in ([], [2.0])


@pytest.mark.parametrize("split", range(2))
@pytest.mark.parametrize("call", [until_boxes_are_left, with_boxes_noted])
def test_one_that_looks_at_boxes_is_refused(call: Any, split: int) -> None:
    data = Numbers(of_own_code(call)([cropped, both_doubled]), joint=True)
    with pytest.raises(rk.ArgumentError, match=r"Numbers, in the code of its Compose, .*final_transform="):
        loaded(data, split)


class Forward(V.Compose):
    """Torchvision's, which the script has changed."""

    def __call__(self, image: Any) -> Any:
        return left_alone(self, image)


def test_a_subclass_of_a_librarys_counts_as_the_users_own() -> None:
    with pytest.raises(rk.ArgumentError, match="in the code of its Forward"):
        loaded(Numbers(Forward([add_hundred, doubled])), 1)
