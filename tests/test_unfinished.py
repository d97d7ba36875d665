"""A dataset may do nothing with what a split transform returns but pass it on: in no sample, however rare."""

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, get_worker_info

import rekindle as rk
from light_torchvision import v2
from pictures import SIZE, TO_TENSOR, Pictures, V, loaded, picture, steps

RARE = 17
REUSES = [rk.Refurbish(3), rk.Refurbish(3, split="Normalize"), rk.Echo(2, after="RandomCrop")]


class Blank(Dataset[Any]):
    """Two of 200 images are blank; the next one is given for these, as is seen after the transform."""

    def __init__(self) -> None:
        self.images = torch.rand(200, 3, 40, 40)
        self.images[[17, 140]] = 0
        self.transform = V.Compose(
            [V.RandomCrop(32), V.RandomHorizontalFlip(), V.Normalize([0.5] * 3, [0.25] * 3)]
        )

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> Any:
        image = self.transform(self.images[index])
        return self[index + 1] if image.mean() < -1.9 else (image, index)


@pytest.mark.parametrize("reuse", REUSES, ids=repr)
def test_who_decides_by_what_the_transform_returned_is_refused(reuse: Any) -> None:
    with pytest.raises(
        rk.ArgumentError, match=r"Blank uses what .* returns \(\.mean\).*final_transform=finish"
    ):
        rk.DataLoader(Blank(), 20, shuffle=True, reuse=reuse)


# What is done to one sample only, which is not among those that are tried.


def to_one(operation: Any, caught: bool) -> Any:
    """A dataset's way: `operation` is done with the image of one sample; what that raises may be caught."""

    def give(data: Pictures, image: Any, index: int) -> Any:
        transformed = data.transform(image)
        if index == RARE:
            try:
                operation(transformed)
            except Exception:
                if not caught:
                    raise
        return transformed, index

    return give


USES: dict[str, Any] = {
    "an attribute": lambda image: image.shape,
    "a method": lambda image: image.mean(),
    "hasattr": lambda image: hasattr(image, "mode"),
    "getattr with a default": lambda image: getattr(image, "size", None),
    "an attribute that is set": lambda image: setattr(image, "label", 3),
    "bool": bool,
    "len": len,
    "iteration": list,
    "unpacking": lambda image: [*image],
    "in": lambda image: 3 in image,
    "an index": lambda image: image[0],
    "an item that is set": lambda image: image.__setitem__(0, 1),
    "==": lambda image: image == 1,
    "!=": lambda image: image != 1,
    "<": lambda image: image < 1,
    "a product": lambda image: image * 0,
    "a product the other way": lambda image: 0 * image,
    "a sum in place": lambda image: image.__iadd__(1),
    "a sign": lambda image: -image,
    "a matrix product": lambda image: image @ image,
    "float": float,
    "int": int,
    "a list's index": lambda image: [1, 2][image],
    "np.asarray": np.asarray,
    "np.mean": np.mean,
    "an array's product": lambda image: np.ones(3) * image,
    "an array of objects": lambda image: np.array([image], dtype=object),
    "torch.stack": lambda image: torch.stack([image, image]),
    "torch.as_tensor": torch.as_tensor,
    "torch.from_numpy": torch.from_numpy,
    "torch.tensor": torch.tensor,
    "torch.flip": lambda image: torch.flip(image, [0]),
    "writing into a tensor": lambda image: torch.ones(3).copy_(image),
    "an item of a tensor": lambda image: torch.ones(3).__setitem__(0, image),
    "a tensor's sum": lambda image: torch.ones(3) + image,
    "torch.add": lambda image: torch.add(torch.ones(3), image),
    "a step again": V.RandomHorizontalFlip(1.0),
    "to_tensor": TO_TENSOR,
    "Pillow": lambda image: Image.blend(image, image, 0.5),
    "a hash": lambda image: {image},
    "text": str,
    "repr": repr,
    "an f-string": lambda image: f"{image}",
    "isinstance": lambda image: isinstance(image, torch.Tensor),
    "type ==": lambda image: type(image) == torch.Tensor,  # noqa: E721 - as many write it
    "a dict of types": lambda image: {torch.Tensor: 1}.get(type(image)),
    "the name of its type": lambda image: type(image).__name__,
    "the bases of its type": lambda image: type(image).__mro__,
    "type in": lambda image: type(image) in (torch.Tensor, np.ndarray),
    "a copy": copy.copy,
    "a deep copy": copy.deepcopy,
    "pickle": pickle.dumps,
    "C code that asks nothing": lambda image: "".join([image]),
}


@pytest.mark.parametrize("use", USES)
def test_nothing_can_be_done_with_an_image_that_is_not_finished(use: str) -> None:
    for split in (1, 2):  # Pillow images, and tensors
        data = Pictures(steps(), to_one(USES[use], caught=False))
        with pytest.raises(rk.ArgumentError, match=rf"sample {RARE}: Pictures uses .*final_transform=finish"):
            loaded(data, split, epochs=1)


@pytest.mark.parametrize("use", sorted(USES.keys() - {"C code that asks nothing", "torch.from_numpy"}))
def test_it_is_refused_also_if_the_dataset_catches_the_error(use: str) -> None:
    data = Pictures(steps(), to_one(USES[use], caught=True))
    with pytest.raises(rk.ArgumentError, match=rf"sample {RARE}: Pictures uses .*final_transform=finish"):
        loaded(data, 2, epochs=1)


def another_one(data: Pictures, image: Any, index: int) -> Any:
    try:
        transformed = data.transform(image)
        if index == RARE:
            "".join([transformed])
    except Exception:
        return data[index + 1]
    return transformed, index


def blackened(data: Pictures, image: Any, index: int) -> Any:
    transformed = data.transform(image)
    return (transformed * 0 if index == RARE else transformed), index


def raised_anew(data: Pictures, image: Any, index: int) -> Any:
    transformed = data.transform(image)
    try:
        return transformed, (transformed.mean() if index == RARE else 0)
    except Exception as error:
        raise RuntimeError("no mean") from error


def with_its_mean(data: Pictures, image: Any, index: int) -> Any:
    transformed = data.transform(image)
    return transformed, (float(np.asarray(transformed).mean()) if index == RARE else 0.0)


def in_an_object(data: Pictures, image: Any, index: int) -> Any:
    transformed = data.transform(image)
    return (SimpleNamespace(image=transformed), index) if index == RARE else (transformed, index)


def transformed_twice(data: Pictures, image: Any, index: int) -> Any:
    transformed = data.transform(image)
    return (data.transform(transformed) if index == RARE else transformed), index


@pytest.mark.parametrize(
    "give", [another_one, blackened, raised_anew, with_its_mean, in_an_object, transformed_twice]
)
@pytest.mark.parametrize("workers", [0, 1])
def test_what_one_sample_does_with_it_is_named(give: Any, workers: int) -> None:
    for split in (0, 1, 3):
        data = Pictures(steps(), give)
        with pytest.raises(rk.ArgumentError, match=rf"sample {RARE}: Pictures .*final_transform=finish"):
            loaded(data, split, epochs=1, num_workers=workers)


class Remembers(Pictures):
    """Keeps what its transform returned, for the next epoch."""

    def __init__(self) -> None:
        super().__init__(V.Compose([V.CenterCrop(16), TO_TENSOR]), None)
        self.kept: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.kept:
            self.kept[index] = self.transform(picture(index))
        return self.kept[index], index


def test_what_was_kept_of_another_time_is_refused() -> None:
    for data in (Remembers(), RemembersNumbers(list)):
        with pytest.raises(rk.ArgumentError, match=r"sample \d+: Remembers.* keeps .*final_transform=finish"):
            rk.DataLoader(data, shuffle=True, reuse=rk.Refurbish(2))  # not first in the second epoch


def of_text(text: str) -> Any:
    return [int(part) for part in text.split()]


def plus_hundred(numbers: Any) -> Any:
    return [number + 100 for number in numbers]


class RemembersNumbers(Remembers):
    """As a list of numbers, which may be looked at, but not in another sample."""

    def __init__(self, read: Any) -> None:
        Pictures.__init__(self, V.Compose([of_text, plus_hundred]), None)
        self.read, self.kept = read, {}

    def keep(self, index: int) -> None:
        self.kept[index] = self.transform(f"{index} {index}")

    def __getitem__(self, index: int) -> Any:
        if index not in self.kept:
            self.keep(index)
        return self.read(self.kept[index]), index


@pytest.mark.parametrize("read", [lambda numbers: numbers, list, lambda numbers: numbers[0]])
def test_numbers_that_were_kept_are_refused_too(read: Any) -> None:
    with pytest.raises(rk.ArgumentError, match=r"RemembersNumbers .*final_transform=finish"):
        loaded(RemembersNumbers(read), 1, memory=0)


def keeps_some(worker: int) -> None:
    data: Any = get_worker_info()
    for index in range(SIZE):
        data.dataset.keep(index)


class Prepared(RemembersNumbers):
    def __getitem__(self, index: int) -> Any:
        return self.kept[index] if index in self.kept else self.transform(f"{index} {index}"), index


def test_what_a_worker_init_fn_has_had_transformed_is_refused() -> None:
    data = Prepared(lambda numbers: numbers)
    with pytest.raises(rk.ArgumentError, match=r"Prepared .*outside of `__getitem__`"):
        loaded(data, 1, num_workers=1, worker_init_fn=keeps_some)


def test_types_of_containers_compare_as_those_that_they_stand_for() -> None:
    seen: list[Any] = []

    def give(data: Pictures, image: Any, index: int) -> Any:
        both = data.transform((image, {"label": [index]}))
        image, target = both
        seen.append(
            [
                type(both) == tuple,  # noqa: E721 - as many write it
                type(target) in (dict, list),
                {list: True}.get(type(target["label"])),
                type(both) != tuple,  # noqa: E721
            ]
        )
        return image, target

    assert loaded(Pictures(V.Compose([as_it_is_given, as_it_is_given]), give), 1, epochs=1)
    assert seen
    assert all(one == [True, True, True, False] for one in seen)


def as_it_is_given(sample: Any) -> Any:
    return sample


def passed_on(data: Pictures, image: Any, index: int) -> Any:
    transformed = data.transform(image)
    assert transformed is not None
    return transformed, index


def nothing_if_it_is_dark(image: Any) -> Any:
    return None


def test_last_steps_that_return_none_are_refused() -> None:
    data = Pictures(V.Compose([V.CenterCrop(16), TO_TENSOR, nothing_if_it_is_dark]), passed_on)
    with pytest.raises(rk.ArgumentError, match=r"return None.*final_transform=finish"):
        loaded(data, 2)


# Numbers and containers.


class Texts(Dataset[Any]):
    def __init__(self, transform: Any, give: Any) -> None:
        self.transform, self.give = transform, give

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return self.give(self.transform(f"{index} " * 4), index)


def longer_text(text: str) -> str:
    return text + "!"


def test_the_length_of_a_text_that_is_not_finished_is_refused() -> None:
    data = Texts(V.Compose([str, longer_text]), lambda text, index: (text, len(text) if index == RARE else 0))
    with pytest.raises(rk.ArgumentError, match=rf"sample {RARE}: Texts uses .*\(\.__len__\)"):
        loaded(data, 1)


def one_more(tokens: list[Any]) -> list[Any]:
    return [*tokens, "end"]


def test_a_list_that_the_last_steps_make_longer_may_only_be_passed_on() -> None:
    compose = V.Compose([str.split, one_more])
    for epoch in loaded(Texts(compose, lambda tokens, index: (tokens, index)), 1):
        for index, (tokens, _) in epoch.items():
            assert tokens == [*[f"{index}"] * 4, "end"]
            assert type(tokens) is list
    data = Texts(compose, lambda tokens, index: (tokens, len(tokens) if index == RARE else 0))
    with pytest.raises(rk.ArgumentError, match=rf"sample {RARE}: the last steps change the number of values"):
        loaded(data, 1)


def with_a_weight(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "image": TO_TENSOR(sample["image"]), "label": sample["label"] + 100 * sample["remap"]}


class Dicts(Pictures):
    """The steps take and return dicts; the last one remaps the labels of some."""

    def __init__(self, remapped: bool, give: Any) -> None:
        super().__init__(V.Compose([v2.RandomHorizontalFlip(), with_a_weight]), give)
        self.remapped = remapped

    def __getitem__(self, index: int) -> Any:
        remap = self.remapped and index == RARE
        sample = {"image": picture(index), "label": index, "remap": remap}
        return self.give(self.transform(sample), index)


def as_it_is(sample: Any, index: int) -> Any:
    return sample


def with_its_label(sample: Any, index: int) -> Any:
    return sample, sample["label"]


def with_an_index(sample: Any, index: int) -> Any:
    sample["index"] = torch.tensor([index])
    return sample


def test_values_in_a_dict_may_be_read_if_the_last_steps_leave_them() -> None:
    for epoch in loaded(Dicts(True, as_it_is), 1):
        assert all(sample["label"] == index + 100 * (index == RARE) for index, sample in epoch.items())
        assert {type(sample) for sample in epoch.values()} == {dict}
    for epoch in loaded(Dicts(False, with_its_label), 1):
        assert all(sample["label"] == label == index for index, (sample, label) in epoch.items())
    with pytest.raises(rk.ArgumentError, match=rf"sample {RARE}: the last steps change 17 to 117"):
        loaded(Dicts(True, with_its_label), 1)


def test_what_is_added_to_a_dict_is_not_given_to_the_last_steps() -> None:
    for epoch in loaded(Dicts(False, with_an_index), 1):
        for index, sample in epoch.items():
            assert sample["index"].tolist() == [sample["label"]] == [index]
            assert sample["image"].shape == (3, 20, 20)


def stacked_crops(crops: Any) -> torch.Tensor:
    return torch.stack([TO_TENSOR(crop) for crop in crops])


def test_crops_that_a_last_step_stacks() -> None:
    compose = V.Compose([V.CenterCrop(18), V.FiveCrop(8), stacked_crops])
    for epoch in loaded(Pictures(compose, lambda data, image, index: (data.transform(image), index)), 2):
        assert {tuple(crops.shape) for crops, _ in epoch.values()} == {(5, 3, 8, 8)}
    counted = Pictures(
        compose,
        lambda data, image, index: [data.transform(image)] if index != RARE else [*data.transform(image)],
    )
    with pytest.raises(rk.ArgumentError, match=rf"sample {RARE}: the last steps change the number of values"):
        loaded(counted, 2)
