"""A function that a script exchanges between two epochs for one of the same code holds for all samples.

So progressive resizing is written: `dataset.transform = make_resize(size)`, `lambda image, size=size: …`.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch.utils.data import Dataset

import rekindle as rk
from light_torchvision import torchvision
from pictures import SIZE, as_it_is

V = torchvision.transforms
Scale = Callable[[Any], Any]
ECHO_AFTER_DECODING, ECHO_AFTER_AUGMENTATION = rk.Echo(2, after="decode"), rk.Echo(2, after="augment")


def in_a_closure(factor: float) -> Scale:
    return lambda value: value * factor


def as_a_default(factor: float) -> Scale:
    return lambda value, factor=factor: value * factor


def as_a_keyword_default(factor: float) -> Scale:
    def scale(value: Any, *, by: float = factor) -> Any:
        return value * by

    return scale


def as_an_attribute(factor: float) -> Scale:
    def scale(value: Any) -> Any:
        return value * vars(scale)["factor"]

    vars(scale)["factor"] = factor
    return scale


def within_another(factor: float) -> Scale:
    scale = in_a_closure(factor)
    return lambda value: scale(value)


class Holds:
    def __init__(self, scale: Scale) -> None:
        self.scale = scale

    def __call__(self, value: Any) -> Any:
        return self.scale(value)


def multiply(scale: Scale, value: Any) -> Any:
    return scale(value)


MAKERS: dict[str, Callable[[float], Scale]] = {
    "closure": in_a_closure,
    "default": as_a_default,
    "keyword default": as_a_keyword_default,
    "attribute": as_an_attribute,
    "nested": within_another,
    "in an object": lambda factor: Holds(Holds(in_a_closure(factor))),
    "in a partial": lambda factor: functools.partial(multiply, as_a_default(factor)),
    "in a Compose": lambda factor: V.Compose([V.Lambda(as_a_default(factor))]),
}


class Ones(Dataset[Any]):
    def __init__(self, transform: Scale) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return self.transform(1.0)


def reading(transform: Scale, workers: int, reuse: Any) -> Any:
    data = Ones(transform)
    settings = {"shuffle": True, "seed": 1, "num_workers": workers, "reuse": reuse}
    return rk.DataLoader(data, 6, final_transform=as_it_is, **settings)


def values_of(loader: Any) -> set[float]:
    return {value for batch in loader for value in batch.tolist()}


def count_fresh(loader: Any) -> int:
    return sum(int(loader.batch.fresh.sum()) for _ in loader)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("which", [*MAKERS])
def test_a_function_of_the_same_code_with_other_variables_holds_for_all_samples(
    which: str, workers: int
) -> None:
    loader = reading(MAKERS[which](1.0), workers, rk.Refurbish(3))
    for factor in (1.0, 2.0, 3.0):
        loader.dataset.transform = MAKERS[which](factor)
        assert values_of(loader) == {factor}
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("reuse", [ECHO_AFTER_DECODING, ECHO_AFTER_AUGMENTATION])
def test_no_sample_of_an_exchanged_function_is_echoed(reuse: rk.Echo, workers: int) -> None:
    loader = reading(in_a_closure(1.0), workers, reuse)
    for factor in (1.0, 2.0, 3.0, 4.0):
        loader.dataset.transform = in_a_closure(factor)
        assert values_of(loader) == {factor}
    loader.close()


@pytest.mark.parametrize("which", ["closure", "default", "keyword default", "nested", "in a partial"])
def test_an_equal_function_in_the_place_of_another_keeps_what_was_cached(which: str) -> None:
    loader = reading(MAKERS[which](2.0), 0, rk.Refurbish(3))
    assert count_fresh(loader) == SIZE
    for _ in range(3):
        loader.dataset.transform = MAKERS[which](2.0)
        assert count_fresh(loader) < SIZE
    loader.dataset.transform = MAKERS[which](3.0)
    assert values_of(loader) == {3.0}


def test_a_function_that_cannot_be_looked_into_is_taken_for_another() -> None:
    loader = reading(in_a_closure(1.0), 0, rk.Refurbish(3))
    assert count_fresh(loader) == SIZE
    for _ in range(2):
        source = iter([5.0] * SIZE)
        loader.dataset.transform = lambda value, source=source: next(source)
        assert values_of(loader) == {5.0}


@pytest.mark.parametrize("split", [0, 1])
def test_a_step_of_images_that_is_exchanged_holds_for_all_samples(split: int) -> None:
    def steps(factor: int) -> list[Any]:
        return [
            rk.transforms.Lambda(lambda image, by=factor: image * by),
            rk.transforms.RandomHorizontalFlip(),
        ]

    images = np.ones((SIZE, 4, 4, 3), np.uint8)
    data = rk.ArrayImages(images, range(SIZE), steps(1))
    loader = rk.DataLoader(data, 6, shuffle=True, reuse=rk.Refurbish(3, split=split))
    for factor in (1, 2, 3):
        data.transform = rk.transforms.Compose(steps(factor))
        assert {int(value) for batch, _ in loader for value in np.unique(batch)} == {factor}
