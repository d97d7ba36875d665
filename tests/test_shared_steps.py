"""Steps that note something: nobody may read it, once they are done at another time."""

import multiprocessing
from typing import Any

import numpy as np
import pytest
import torch

import rekindle as rk
from light_torchvision import torchvision
from pictures import SIZE, TO_TENSOR, Pictures, loaded

V = torchvision.transforms


def as_usual(data: Pictures, image: Any, index: int) -> Any:
    return data.transform(image), index


# A dataset that does to the mask what a step says that it has done to the image.


class Turns:
    """Turns an image, and notes how often."""

    def __init__(self) -> None:
        self.turns = 0

    def __call__(self, image: Any) -> Any:
        self.turns = int(torch.randint(4, ()))
        return image.rotate(90 * self.turns)


class TurnsAsWell:
    def __init__(self, other: Turns) -> None:
        self.other = other

    def __call__(self, image: Any) -> Any:
        return image.rotate(90 * self.other.turns)


class Crops:
    """Notes where in an object that others have."""

    def __init__(self, note: Any) -> None:
        self.note = note

    def __call__(self, image: Any) -> Any:
        self.note["left"] = int(torch.randint(4, ()))
        return image.crop((self.note["left"], 0, self.note["left"] + 16, 16))


def by_its_step(data: Pictures, image: Any, index: int) -> Any:
    return data.transform(image), TO_TENSOR(image.rotate(90 * data.turn.turns))


def by_a_step_like_it(data: Pictures, image: Any, index: int) -> Any:
    transformed = data.transform(image)
    return transformed, TO_TENSOR(data.mask_step(image))


def by_a_note(data: Pictures, image: Any, index: int) -> Any:
    transformed, left = data.transform(image), data.note["left"]
    return transformed, TO_TENSOR(image.crop((left, 0, left + 16, 16)))


def told_by_its_step(give: Any) -> Pictures:
    turn, note = Turns(), dict[str, int]()
    data: Any = Pictures(V.Compose([Crops(note) if give is by_a_note else turn, TO_TENSOR]), give)
    data.turn, data.mask_step, data.note = (
        turn if give is by_its_step else None,
        TurnsAsWell(turn) if give is by_a_step_like_it else None,
        note if give is by_a_note else None,
    )
    return data


@pytest.mark.parametrize("give", [by_its_step, by_a_step_like_it, by_a_note])
def test_who_reads_what_a_step_has_noted_is_refused(give: Any) -> None:
    for image, mask in loaded(told_by_its_step(give), reuse=None, epochs=1)[0].values():
        assert torch.equal(image, mask)
    with pytest.raises(
        rk.ArgumentError, match=r"steps of Pictures's transform keep something in (Turns|dict)"
    ):
        rk.DataLoader(told_by_its_step(give), shuffle=True, reuse=rk.Refurbish(3))


def test_what_a_step_notes_for_itself_alone_is_its_own_business() -> None:
    data = Pictures(V.Compose([Turns(), TO_TENSOR]), lambda data, image, index: data.transform(image))
    assert len(loaded(data, 1, epochs=1)[0]) == SIZE


# Steps of which one reads what another has noted.

NOTE = {"shift": 0.0}
SHIFT = 0.0


class Object:
    """Of a script's own."""

    shift = 0.0


def drawn() -> float:
    return float(torch.randint(1000, ()))


def in_a_dict() -> Any:
    note = {"shift": 0.0}

    def shift(image: Any) -> Any:
        note["shift"] = drawn()
        return image + note["shift"]

    return shift, lambda image: image - note["shift"]


def in_an_array() -> Any:
    note = np.zeros(1)

    def shift(image: Any) -> Any:
        note[0] = drawn()
        return image + float(note[0])

    return shift, lambda image: image - float(note[0])


def in_an_object_of_both() -> Any:
    note = Object()

    def shift(image: Any) -> Any:
        note.shift = drawn()
        return image + note.shift

    return shift, lambda image: image - note.shift


class Note:
    def set(self, shift: float) -> None:
        self.shift = shift


def by_its_method() -> Any:
    note = Note()

    def shift(image: Any) -> Any:
        note.set(drawn())
        return image + note.shift

    return shift, lambda image: image - note.shift


class Shifts:
    """The first shifts images by what it draws, and the second shifts them back."""

    def __init__(self, note: Any, table: Any) -> None:
        self.note, self.table, self.calls = note, table, 0

    def __call__(self, image: Any) -> Any:
        self.calls += 1
        self.note["shift"] = drawn()
        return image + self.note["shift"] * self.table["times"]


class ShiftsBack(Shifts):
    def __call__(self, image: Any) -> Any:
        return image - self.note["shift"] * self.table["times"]


def in_an_attribute() -> Any:
    note, table = {"shift": 0.0}, {"times": 1.0}
    return Shifts(note, table), ShiftsBack(note, table)


def in_a_class() -> Any:
    def shift(image: Any) -> Any:
        Object.shift = drawn()
        return image + Object.shift

    return shift, lambda image: image - Object.shift


def in_a_global_dict() -> Any:
    def shift(image: Any) -> Any:
        NOTE["shift"] = drawn()
        return image + NOTE["shift"]

    return shift, lambda image: image - NOTE["shift"]


def in_a_global() -> Any:
    def shift(image: Any) -> Any:
        global SHIFT
        SHIFT = drawn()
        return image + SHIFT

    return shift, lambda image: image - SHIFT


@pytest.mark.parametrize(
    "noted",
    [
        in_a_dict,
        in_an_attribute,
        by_its_method,
        in_an_array,
        in_an_object_of_both,
        in_a_class,
        in_a_global_dict,
        in_a_global,
    ],
)
def test_steps_that_read_what_another_has_noted_are_refused(noted: Any) -> None:
    shift, back = noted()
    data = Pictures(V.Compose([TO_TENSOR, shift, V.RandomHorizontalFlip(), back]), as_usual)
    for image, _ in loaded(data, reuse=None, epochs=1)[0].values():
        assert -0.01 < image.min() <= image.max() < 1.01
    with pytest.raises(rk.ArgumentError, match=r"steps of Pictures's transform keep something in "):
        rk.DataLoader(data, 4, shuffle=True, reuse=rk.Refurbish(3, split=3))


TABLE, MEAN = {"by": 10.0}, torch.zeros(1)
FIRST_CALLS, LAST_CALLS = multiprocessing.Value("i", 0), multiprocessing.Value("i", 0)


def first_counted(image: Any) -> Any:
    with FIRST_CALLS.get_lock():
        FIRST_CALLS.value += 1
    return image + 10


def last_counted(image: Any) -> Any:
    with LAST_CALLS.get_lock():
        LAST_CALLS.value += 1
    return image + 10


def test_steps_that_each_count_their_calls_are_split() -> None:
    data = Pictures(V.Compose([TO_TENSOR, first_counted, V.RandomHorizontalFlip(), last_counted]), as_usual)
    for epoch in loaded(data, 3, num_workers=1):
        assert all(20 <= image.min() <= image.max() <= 21 for image, _ in epoch.values())


class Settings:
    shift = 0.0


class Counted:
    """Keeps something of its own, and reads what others only read as well."""

    names = ("calls",)
    table = {"by": 0.0}  # noqa: RUF012 - as many write it

    def __init__(self, settings: Any, values: Any) -> None:
        self.settings, self.values, self.mean = settings, values, MEAN
        self.seen, self.last = dict[str, int](), 0

    def __call__(self, image: Any) -> Any:
        self.seen["calls"] = self.seen.get("calls", 0) + 1
        self.last += 1
        return image + TABLE["by"] + self.settings.shift + self.values["by"] + self.table["by"] + self.mean


def test_steps_that_share_what_none_of_them_changes_are_split() -> None:
    settings, values = Settings(), {"by": 0.0}
    counted = [Counted(settings, values) for _ in range(2)]
    data = Pictures(V.Compose([TO_TENSOR, counted[0], V.RandomHorizontalFlip(), counted[1]]), as_usual)
    for epoch in loaded(data, 3):
        assert all(20 <= image.min() <= image.max() <= 21 for image, _ in epoch.values())
