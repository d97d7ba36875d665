"""With persistent_workers=False, an epoch sees all that was changed before it, as with torch's workers."""

from __future__ import annotations

import functools
import os
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import rekindle as rk
from rekindle.core.changes import Watched
from rekindle.core.look import Look

T = rk.transforms
EPOCHS, SAMPLES = 2, 12
FILES: list[Any] = []  # that a test has opened
SCALE = 1
TABLE = {"nested": [{"scale": (1, [1])}]}


class Scale:
    def __init__(self, by: float = 1) -> None:
        self.by = by

    def __call__(self, value: float) -> float:
        return value * self.by


class Steps:
    def __init__(self, steps: list[Callable[[float], float]]) -> None:
        self.steps = steps

    def __call__(self, value: float) -> float:
        for step in self.steps:
            value = step(value)
        return value


class Samples(Dataset[Any]):
    """Numbers, after a transform, with labels; `rest` is whatever a test needs."""

    factor = 1

    def __init__(self, transform: Any = None, labels: Any = None, **rest: Any) -> None:
        self.transform = transform or Scale()
        self.labels = [0] * SAMPLES if labels is None else labels
        self.__dict__.update(rest)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return float(self.transform(index)), int(self.labels[index])


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


Case = tuple[
    Any, dict[str, Any], Callable[[int], None]
]  # dataset, arguments of the loader, change before an epoch


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
    an_open_file,
]  # fmt: skip


def seen(loader: Any, case: Callable[[], Case], **more: Any) -> list[list[Any]]:
    """What each of some epochs gives, with a change before each but the first."""
    dataset, arguments, change = case()
    made = loader(dataset, batch_size=2, num_workers=1, **arguments, **more)
    epochs = []
    for epoch in range(EPOCHS):
        if epoch:
            change(epoch + 1)
        epochs.append([plain(batch) for batch in made])
    return epochs


def plain(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    return [plain(one) for one in batch] if isinstance(batch, list | tuple) else batch


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("REKINDLE_TEST_SCALE", raising=False)
    yield
    while FILES:
        FILES.pop().close()
    set_global(1)
    TABLE["nested"][0]["scale"][1][0] = 1  # type: ignore[index]
    os.environ.pop("REKINDLE_TEST_SCALE", None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_an_epoch_sees_what_was_changed_before_it(case: Callable[[], Case]) -> None:
    expected = seen(DataLoader, case)
    set_global(1)
    TABLE["nested"][0]["scale"][1][0] = 1  # type: ignore[index]
    os.environ.pop("REKINDLE_TEST_SCALE", None)
    assert seen(rk.DataLoader, case) == expected


@pytest.mark.parametrize(
    "case", [a_steps_attribute, a_few_labels, a_global, an_open_file], ids=lambda case: case.__name__
)
def test_threads_have_loaded_nothing_ahead_that_was_changed_since(case: Callable[[], Case]) -> None:
    expected = seen(DataLoader, case)
    set_global(1)
    assert seen(rk.DataLoader, case, executor="threads") == expected


# Workers are kept where nothing was changed, and only there.


class Pids(Samples):
    def __getitem__(self, index: int) -> int:
        return os.getpid()


def pids(loader: Any) -> set[int]:
    return {int(pid) for batch in loader for pid in batch}


def test_workers_are_kept_if_nothing_was_changed() -> None:
    samples = [(f"folder/{number}.jpg", number % 10) for number in range(50_000)]
    table = OrderedDict(a=np.arange(5), b={"c": torch.arange(3)})
    dataset = Pids(samples=samples, table=table, rows=[{"a": 1, "b": [2.5]} for _ in range(100)])
    loader = rk.DataLoader(dataset, batch_size=2, shuffle=True, num_workers=2)
    first = pids(loader)
    assert pids(loader) == first
    assert pids(loader) == first
    samples[49_997] = ("folder/49997.jpg", -1)
    assert pids(loader).isdisjoint(first)


def test_workers_start_afresh_where_nothing_can_be_proven() -> None:
    with open(__file__) as file:
        loader = rk.DataLoader(Pids(file=file), batch_size=2, num_workers=1)
        assert pids(loader).isdisjoint(pids(loader))
    loader = rk.DataLoader(Pids(table=np.zeros(300 << 20, dtype=np.uint8)), batch_size=2, num_workers=1)
    assert pids(loader).isdisjoint(pids(loader))


class Counts(Samples):
    """Changes its own copy in the worker."""

    count = 0

    def __getitem__(self, index: int) -> int:
        self.count += 1
        return self.count


class CountedStream(IterableDataset[int]):
    def __init__(self) -> None:
        self.count = 0

    def __iter__(self) -> Iterator[int]:
        self.count += 1
        return iter([self.count] * 4)


@pytest.mark.parametrize("make", [Counts, CountedStream])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_copy_that_a_worker_has_changed_itself_is_not_used_again(make: Any, shuffle: bool) -> None:
    if shuffle and make is CountedStream:
        pytest.skip("streams are not shuffled")
    epochs = []
    for loader in (DataLoader, rk.DataLoader):
        made = loader(make(), batch_size=2, num_workers=1, shuffle=shuffle)
        epochs.append([[plain(batch) for batch in made] for _ in range(EPOCHS)])
    assert epochs[0] == epochs[1]


def test_epochs_shorter_than_what_is_loaded_ahead_go_on() -> None:
    dataset = Samples(Steps([Scale(2)]))
    loader = rk.DataLoader(dataset, batch_size=6, shuffle=True, num_workers=2, prefetch_factor=4)
    workers = []
    for _ in range(12):
        epoch = iter(loader)
        workers.append(epoch._workers)  # type: ignore[attr-defined]
        assert len(list(epoch)) == 2
    assert workers == [workers[0]] * 12


# Datasets of ours.


def images(count: int = 8) -> Any:
    return np.random.default_rng(0).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "change", ["attribute", "replaced", "inserted", "assigned", "labels", "pixels", "subset"]
)
def test_native_data_sets_follow_their_transform_and_labels(workers: int, change: str) -> None:
    flip, pixels, labels = T.RandomHorizontalFlip(p=0), images(), np.arange(8)
    steps = T.Compose([flip, T.ToTensor()])
    dataset = rk.ArrayImages(pixels, labels, steps)
    subset = Subset(dataset, [4, 5, 6, 7])
    loader = rk.DataLoader(subset if change == "subset" else dataset, batch_size=4, num_workers=workers)
    before = list(loader)
    if change == "attribute":
        flip.p = 1.0
    elif change == "replaced":
        steps.transforms[0] = T.RandomHorizontalFlip(p=1)
    elif change == "inserted":
        steps.transforms.insert(0, T.RandomHorizontalFlip(p=1))
    elif change == "assigned":
        dataset.transform = [T.RandomHorizontalFlip(p=1), T.ToTensor()]
    elif change == "labels":
        labels[3] = 77
    elif change == "pixels":
        pixels[:] = pixels[:, :, ::-1].copy()
    else:
        subset.indices[0] = 0  # type: ignore[index]
    after = list(loader)
    if change == "labels":
        assert after[0][1].tolist() == [0, 1, 2, 77]
    elif change == "subset":
        assert after[0][1].tolist() == [0, 5, 6, 7]
    else:
        for (old, _), (new, _) in zip(before, after, strict=True):
            assert torch.equal(new, old.flip(-1))


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_workers_of_native_data_sets_are_kept(executor: Any, tmp_path: Any) -> None:
    for dataset in (rk.ArrayImages(images(), list(range(8)), [T.RandomCrop(6), T.ToTensor()]),):
        loader = rk.DataLoader(dataset, batch_size=4, num_workers=2, executor=executor, shuffle=True)
        first = iter(loader)
        workers = first._workers  # type: ignore[attr-defined]
        list(first)
        assert iter(loader)._workers == workers  # type: ignore[attr-defined]


# Looking runs no code of the user's, and never raises.


class LazyList(list[Any]):
    def __getitem__(self, index: Any) -> Any:
        raise RuntimeError("not now")

    __iter__ = __len__ = __getitem__  # type: ignore[assignment]


class LazyDict(dict[Any, Any]):
    def items(self) -> Any:
        raise RuntimeError("too large to list")

    keys = values = __iter__ = items


class Odd:
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no")


class Hostile:
    def __init__(self) -> None:
        object.__setattr__(self, "value", 1)

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    __setattr__ = __eq__ = __hash__ = __repr__ = __bool__ = __len__ = __getattribute__  # type: ignore[assignment]

    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(name)

    __eq__ = __hash__ = __instancecheck__ = __subclasscheck__ = __getattribute__  # type: ignore[assignment]


def odd_objects() -> dict[str, Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    with torch.inference_mode():
        inference = torch.ones(3)
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    return {
        "lazy list": LazyList("ab"),
        "lazy dict": LazyDict(a=1),
        "odd": Odd(),
        "hostile": Hostile(),
        "hostile list": [Hostile(), Hostile()],
        "metaclass": type.__call__(Meta, "M", (), {}),
        "cycle": cycle,
        "deep": deep,
        "mock": Mock(),
        "inference": inference,
        "sparse": torch.eye(3).to_sparse(),
        "meta": torch.ones(2, device="meta"),
        "objects": np.array([object(), [1]], dtype=object),
        "records": np.zeros(3, dtype=[("a", "i4"), ("b", "O")]),
        "strings": np.array(["a", "bb"]),
        "masked": np.ma.masked_array([1, 2], [0, 1]),
        "view": memoryview(b"abc"),
        "layer": torch.nn.Linear(2, 2),
        "generator": torch.Generator(),
        "namespace": types.SimpleNamespace(a=1),
        "proxy": types.MappingProxyType({"a": 1}),
        "bfloat16": torch.ones(3, dtype=torch.bfloat16),
        "scalar": torch.tensor(3.0),
        "complex": torch.ones(2, dtype=torch.complex64).conj(),
        "nan": float("nan"),
        "iterator": iter([1]),
        "strided": torch.arange(12).reshape(3, 4).t(),
        "bits": np.float32(3),
        "dates": np.array(["2020-01-01"], dtype="datetime64[D]"),
        "wide": np.broadcast_to(np.zeros(1), (1000,)),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", odd_objects())
def test_looking_never_raises_and_finds_the_same_twice(name: str) -> None:
    value = odd_objects()[name]
    holder = Samples(value=value, unseen=1)
    first = Look(holder)
    assert Look(holder, earlier=first).finds_same(first)
    holder.unseen = 2  # type: ignore[attr-defined]
    again = Look(holder, earlier=first)
    assert not (again.is_complete and again.finds_same(first))


def test_looking_at_plain_objects_is_complete() -> None:
    for name in (
        "mock",
        "inference",
        "layer",
        "namespace",
        "bfloat16",
        "strided",
        "bits",
        "complex",
        "strings",
    ):
        assert Look(odd_objects()[name]).is_complete, name


def test_what_is_declared_immutable_is_compared_by_identity() -> None:
    class Declared(Samples):
        immutable_attributes = ("table",)

    dataset = Declared(table=np.zeros(300 << 20, dtype=np.uint8))
    first = Look(dataset)
    assert first.is_complete
    assert Look(dataset, earlier=first).finds_same(first)
    dataset.table = np.zeros(3)  # type: ignore[attr-defined]
    assert not Look(dataset, earlier=first).finds_same(first)


def test_an_array_that_nobody_can_write_to_needs_no_hash() -> None:
    table = np.frombuffer(bytes(300 << 20), dtype=np.uint8)
    assert Look(table).is_complete
    assert Look(table[5:]).is_complete
    writeable = np.zeros(300 << 20, dtype=np.uint8)
    assert not Look(writeable).is_complete
    view = writeable[:]
    view.flags.writeable = False
    assert not Look(view).is_complete


@pytest.mark.parametrize("kind", ["array", "view", "objects"])
def test_a_read_only_array_that_was_made_writeable_and_changed_meanwhile_is_another_one(kind: str) -> None:
    owner = np.zeros(8, dtype=object if kind == "objects" else np.int64)
    table = owner[2:] if kind == "view" else owner
    owner.flags.writeable = table.flags.writeable = False
    dataset = Samples(table=table)
    watched = Watched(dataset)
    assert watched.is_unchanged()
    owner.flags.writeable = True
    owner[5] = 7
    owner.flags.writeable = False
    assert not watched.is_unchanged()


def test_a_tensor_data_set_made_in_inference_mode_is_loaded() -> None:
    with torch.inference_mode():
        data = TensorDataset(torch.arange(8.0))
    for workers in (0, 1):
        assert len(list(rk.DataLoader(data, batch_size=4, num_workers=workers))) == 2
