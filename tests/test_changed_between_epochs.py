"""With persistent_workers=False, an epoch sees all that was changed before it, as with torch's workers."""

from __future__ import annotations

import builtins
import enum
import functools
import os
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

import rekindle as rk
from changing_samples import EPOCHS, SAMPLES, Samples, Scale, Steps, plain

FILES: list[Any] = []  # that a test has opened
SCALE = 1
TABLE = {"nested": [{"scale": (1, [1])}]}


class ReadsGlobal(Samples):
    def __getitem__(self, index: int) -> Any:
        return index * SCALE


class ReadsNested(Samples):
    def __getitem__(self, index: int) -> Any:
        return index * TABLE["nested"][0]["scale"][1][0]  # type: ignore[index]


class ReadsClass(Samples):
    def __getitem__(self, index: int) -> Any:
        return index * self.factor


class ReadsEnvironment(Samples):
    def __getitem__(self, index: int) -> Any:
        return index * int(os.environ.get("REKINDLE_TEST_SCALE", "1"))


class Collate:
    def __init__(self) -> None:
        self.add = 0

    def __call__(self, samples: list[Any]) -> torch.Tensor:
        return torch.tensor(samples) + self.add


def set_global(value: int) -> None:
    global SCALE
    SCALE = value


# The dataset, arguments of the loader, and a change before an epoch.
Case = tuple[Any, dict[str, Any], Callable[[int], None]]


def a_steps_attribute() -> Case:
    step = Scale()
    return Samples(Steps([Scale(2), step])), {}, lambda epoch: setattr(step, "by", epoch)


def a_replaced_step() -> Case:
    steps = Steps([Scale(2), Scale()])
    return Samples(steps), {}, lambda epoch: steps.steps.__setitem__(1, Scale(epoch))


def an_inserted_step() -> Case:
    steps = Steps([Scale(2)])
    return Samples(steps), {}, lambda epoch: steps.steps.insert(0, Scale(epoch + 1))


def the_transform() -> Case:
    dataset = Samples()
    return dataset, {}, lambda epoch: setattr(dataset, "transform", Scale(epoch))


def the_transform_within_a_subset() -> Case:
    dataset = Samples()
    return Subset(dataset, range(6)), {}, lambda epoch: setattr(dataset.transform, "by", epoch)


def the_transform_within_a_concatenation() -> Case:
    dataset = Samples()
    both: Dataset[Any] = ConcatDataset([Samples(), Subset(dataset, [3, 1, 2])])
    return both, {}, lambda epoch: setattr(dataset.transform, "by", epoch)


def a_subsets_indices() -> Case:
    subset = Subset(Samples(), list(range(6)))
    return subset, {}, lambda epoch: subset.indices.__setitem__(2, epoch)  # type: ignore[attr-defined]


def a_few_labels() -> Case:
    dataset = Samples()
    return dataset, {}, lambda epoch: dataset.labels.__setitem__(slice(3, 6), [epoch] * 3)


def a_label_that_is_equal_but_a_float() -> Case:
    dataset = ReadsTable(labels=[1] * SAMPLES)
    return dataset, {}, lambda epoch: dataset.labels.__setitem__(0, float(1) if epoch == 2 else 1)


class ReadsTable(Samples):
    def __getitem__(self, index: int) -> Any:
        return str(type(self.labels[index]))


def labels_in_an_array() -> Case:
    labels = np.zeros(SAMPLES, dtype=np.int64)
    return Samples(labels=labels), {}, lambda epoch: labels.__setitem__(5, epoch)


def labels_in_a_tensor_changed_through_an_array() -> Case:
    labels = np.zeros(SAMPLES, dtype=np.int64)
    return Samples(labels=torch.from_numpy(labels)), {}, lambda epoch: labels.__setitem__(5, epoch)


def labels_in_shared_memory() -> Case:
    labels = torch.zeros(SAMPLES).share_memory_()
    return Samples(labels=labels), {}, lambda epoch: labels.__setitem__(slice(None), epoch)


def a_global() -> Case:
    set_global(1)
    return ReadsGlobal(), {}, set_global


def a_nested_container() -> Case:
    inner: Any = TABLE["nested"][0]["scale"][1]
    return ReadsNested(), {}, lambda epoch: inner.__setitem__(0, epoch)


def a_closure() -> Case:
    by = 1

    def scale(value: float) -> float:
        return value * by

    def change(epoch: int) -> None:
        nonlocal by
        by = epoch

    return Samples(scale), {}, change


def a_default_argument() -> Case:
    def scale(value: float, by: int = 1) -> float:
        return value * by

    return Samples(scale), {}, lambda epoch: setattr(scale, "__defaults__", (epoch,))


def the_argument_of_a_partial() -> Case:
    def scale(by: list[int], value: float) -> float:
        return value * by[0]

    by = [1]
    return Samples(functools.partial(scale, by)), {}, lambda epoch: by.__setitem__(0, epoch)


def the_object_of_a_bound_method() -> Case:
    scale = Scale()
    return Samples(scale.__call__), {}, lambda epoch: setattr(scale, "by", epoch)


def a_class_attribute() -> Case:
    class Own(ReadsClass):
        pass

    return Own(), {}, lambda epoch: setattr(Own, "factor", epoch)


def an_inherited_class_attribute() -> Case:
    class Base(ReadsClass):
        factor = 1

    class Own(Base):
        pass

    return Own(), {}, lambda epoch: setattr(Base, "factor", epoch)


def an_edited_getitem() -> Case:
    class Own(Samples):
        pass

    def edit(epoch: int) -> None:
        Own.__getitem__ = lambda self, index: index * 10 + epoch  # type: ignore[method-assign]

    return Own(), {}, edit


def edited_code() -> Case:
    def scale(value: float) -> float:
        return value

    def edit(epoch: int) -> None:
        if epoch == 2:
            scale.__code__ = (lambda value: value * 7).__code__

    return Samples(scale), {}, edit


def a_redefined_class() -> Case:
    class Own(ReadsClass):
        pass

    class Redefined(ReadsClass):
        factor = 9

    dataset = Own()
    return dataset, {}, lambda epoch: setattr(dataset, "__class__", Redefined if epoch == 2 else Own)


def the_state_of_collate_fn() -> Case:
    collate = Collate()
    return ReadsClass(), {"collate_fn": collate}, lambda epoch: setattr(collate, "add", epoch)


def the_environment() -> Case:
    def change(epoch: int) -> None:
        os.environ["REKINDLE_TEST_SCALE"] = str(epoch)

    return ReadsEnvironment(), {}, change


def the_epoch_of_the_data_set() -> Case:
    class Own(Samples):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __getitem__(self, index: int) -> Any:
            return index + 100 * self.epoch

    dataset = Own()
    return dataset, {}, dataset.set_epoch


def a_slot() -> Case:
    class Slotted:
        __slots__ = ("by",)

        def __call__(self, value: float) -> float:
            return value * self.by  # type: ignore[attr-defined, no-any-return]

    step = Slotted()
    step.by = 1  # type: ignore[attr-defined]
    return Samples(step), {}, lambda epoch: setattr(step, "by", epoch)


def an_attribute_of_a_module() -> Case:
    module = types.ModuleType("settings_of_a_test")
    module.by = 1  # type: ignore[attr-defined]

    def scale(value: float) -> float:
        return value * module.by  # type: ignore[attr-defined, no-any-return]

    return Samples(scale), {}, lambda epoch: setattr(module, "by", epoch)


def a_class_that_is_reached_by_name() -> Case:
    class Settings:
        by = 1

    def scale(value: float) -> float:
        return value * Settings.by

    return Samples(scale), {}, lambda epoch: setattr(Settings, "by", epoch)


def a_base_whose_method_is_called_by_name() -> Case:
    class Base(ReadsClass):
        factor = 1

    class Own(Base):
        def __getitem__(self, index: int) -> Any:
            return Base.__getitem__(self, index)

    return Own(), {}, lambda epoch: setattr(Base, "factor", epoch)


def an_attribute_of_an_enums_member() -> Case:
    class Stage(enum.Enum):
        NOW = 1

    Stage.NOW.by = 1  # type: ignore[attr-defined]

    def scale(value: float) -> float:
        return value * Stage.NOW.by  # type: ignore[attr-defined, no-any-return]

    return Samples(scale), {}, lambda epoch: setattr(Stage.NOW, "by", epoch)


def a_name_added_to_pythons_own() -> Case:
    builtins.REKINDLE_TEST = 1  # type: ignore[attr-defined]

    def scale(value: float) -> float:
        return value * REKINDLE_TEST  # type: ignore[name-defined, no-any-return]  # noqa: F821

    return Samples(scale), {}, lambda epoch: setattr(builtins, "REKINDLE_TEST", epoch)


def whether_gradients_are_computed() -> Case:
    return (
        Samples(lambda value: value * torch.is_grad_enabled()),
        {},
        lambda epoch: torch._C._set_grad_enabled(epoch != 2),
    )


def an_open_file() -> Case:
    file = open(__file__, "rb")  # noqa: SIM115
    FILES.append(file)

    class Own(Samples):
        def __getitem__(self, index: int) -> Any:
            return self.file.name[-3:] + str(self.tag)  # type: ignore[attr-defined]

    dataset = Own(file=file, tag=0)
    return dataset, {}, lambda epoch: setattr(dataset, "tag", epoch)


CASES = [
    a_steps_attribute, a_replaced_step, an_inserted_step, the_transform, the_transform_within_a_subset,
    the_transform_within_a_concatenation, a_subsets_indices, a_few_labels, a_label_that_is_equal_but_a_float,
    labels_in_an_array, labels_in_a_tensor_changed_through_an_array, labels_in_shared_memory, a_global,
    a_nested_container, a_closure, a_default_argument, the_argument_of_a_partial,
    the_object_of_a_bound_method, a_class_attribute, an_inherited_class_attribute, an_edited_getitem,
    edited_code, a_redefined_class,
    the_state_of_collate_fn, the_environment, the_epoch_of_the_data_set, a_slot, an_attribute_of_a_module,
    a_class_that_is_reached_by_name, a_base_whose_method_is_called_by_name, an_attribute_of_an_enums_member,
    a_name_added_to_pythons_own, whether_gradients_are_computed,
    an_open_file,
]  # fmt: skip


def seen(loader: Any, case: Callable[[], Case], **more: Any) -> list[list[Any]]:
    """What each of some epochs gives, with a change before each but the first."""
    dataset, arguments, change = case()
    made = loader(dataset, batch_size=2, **{"num_workers": 1, **arguments, **more})
    epochs = []
    for epoch in range(EPOCHS):
        if epoch:
            change(epoch + 1)
        epochs.append([plain(batch) for batch in made])
    return epochs


def undo() -> None:
    set_global(1)
    TABLE["nested"][0]["scale"][1][0] = 1  # type: ignore[index]
    os.environ.pop("REKINDLE_TEST_SCALE", None)
    torch.set_grad_enabled(True)


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("REKINDLE_TEST_SCALE", raising=False)
    yield
    while FILES:
        FILES.pop().close()
    vars(builtins).pop("REKINDLE_TEST", None)
    undo()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_an_epoch_sees_what_was_changed_before_it(case: Callable[[], Case]) -> None:
    """As torch's loader without workers, which has the changed objects; its workers are forks (see below)."""
    expected = seen(DataLoader, case, num_workers=0)
    undo()
    assert seen(rk.DataLoader, case) == expected


@pytest.mark.parametrize(
    "case", [a_steps_attribute, a_few_labels, a_global, an_open_file], ids=lambda case: case.__name__
)
def test_threads_have_loaded_nothing_ahead_that_was_changed_since(case: Callable[[], Case]) -> None:
    """As torch's workers, which are forked when an epoch begins."""
    expected = seen(DataLoader, case)
    undo()
    assert seen(rk.DataLoader, case, executor="threads") == expected
