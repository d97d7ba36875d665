"""What a script changes between two epochs holds for all samples, whatever was cached of them before.

It may be anything that the dataset's code reads. What that code changes itself keeps what was cached, and so
does what it does not read.
"""

import functools
import multiprocessing
import multiprocessing.sharedctypes
import sys
import types
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import rekindle as rk
from light_torchvision import torchvision
from pictures import SIZE, TO_TENSOR, Pictures, as_it_is

V = torchvision.transforms
FACTOR, CALLS = 1.0, 0
TABLE = {"factor": 1.0}
PLAIN = types.SimpleNamespace(factor=1.0, lr=0.1, calls=0)
OWN_MODULE = types.ModuleType("settings_of_a_script")
vars(OWN_MODULE).update(factor=1.0, lr=0.1, __file__="settings_of_a_script.py")
COMPUTED: Counter[int] = Counter()
FAILED: list[int] = []
WEIGHTS = np.ones(4)
SHARED = multiprocessing.Value("d", 1.0)


class Settings:
    factor = 1.0
    lr = 0.1
    calls = 0


class Tally:
    """Counts what it is told of."""

    def __init__(self) -> None:
        self.told = 0

    def tell(self) -> None:
        self.told += 1

    @functools.cached_property
    def size(self) -> float:
        """Kept when it is asked for first."""
        return 1.0


TALLY = Tally()


class Numbers(Dataset[Any]):
    """What a function of the dataset gives, for each sample."""

    factor = 1.0

    def __init__(self, give: Callable[[Any, int], float]) -> None:
        self.give = give
        self.shared = multiprocessing.Value("d", 1.0)
        self.array = multiprocessing.Array("d", [1.0])
        self.raw = multiprocessing.sharedctypes.RawValue("d", 1.0)

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> float:
        return self.give(self, index)


def called() -> float:
    return FACTOR


@functools.lru_cache(maxsize=0)
def remembered() -> float:
    return FACTOR


def closure() -> tuple[Callable[..., float], Callable[[Any, float], None]]:
    """A function that reads a variable, and one that sets it."""
    factor = 1.0

    def change(_: Any, value: float) -> None:
        nonlocal factor
        factor = value

    return lambda data, index: factor, change


def set_global(_: Any, value: float) -> None:
    vars(sys.modules[__name__])["FACTOR"] = value


def set_shared(data: Any, value: float) -> None:
    data.shared.value = value


CHANGES: dict[str, tuple[Callable[..., float], Callable[[Any, float], None]]] = {
    "global": (lambda data, index: FACTOR, set_global),
    "global of a function": (lambda data, index: called(), set_global),
    "global of a function with a memory": (lambda data, index: remembered(), set_global),
    "global dict": (lambda data, index: TABLE["factor"], lambda _, value: TABLE.update(factor=value)),
    "global array": (lambda data, index: WEIGHTS[0], lambda _, value: WEIGHTS.fill(value)),
    "class": (lambda data, index: Settings.factor, lambda _, value: setattr(Settings, "factor", value)),
    "own class": (lambda data, index: data.factor, lambda _, value: setattr(Numbers, "factor", value)),
    "namespace": (lambda data, index: PLAIN.factor, lambda _, value: setattr(PLAIN, "factor", value)),
    "module": (lambda data, index: OWN_MODULE.factor, lambda _, value: setattr(OWN_MODULE, "factor", value)),
    "by its name": (
        lambda data, index: getattr(PLAIN, "fac" + "tor"),
        lambda _, v: setattr(PLAIN, "factor", v),
    ),
    "closure": closure(),
    "shared value": (lambda data, index: data.shared.value, set_shared),
    "shared array": (lambda data, index: data.array[0], lambda data, value: data.array.__setitem__(0, value)),
    "raw value": (lambda data, index: data.raw.value, lambda data, value: setattr(data.raw, "value", value)),
    "global shared value": (
        lambda data, index: SHARED.value,
        lambda _, value: setattr(SHARED, "value", value),
    ),
}


def reading(give: Callable[..., float], workers: int = 0, **settings: Any) -> Any:
    reuse = rk.Refurbish(3, **settings)
    return rk.DataLoader(
        Numbers(give), 6, shuffle=True, seed=1, num_workers=workers, reuse=reuse, final_transform=as_it_is
    )


def values_of(loader: Any) -> set[float]:
    return {value for batch in loader for value in batch.tolist()}


def count_fresh(loader: Any) -> int:
    return sum(int(loader.batch.fresh.sum()) for _ in loader)


@pytest.mark.parametrize(
    ("which", "workers"), [*product(CHANGES, [0, 1]), ("closure", 2), ("shared value", 2)]
)
def test_what_was_changed_holds_for_all_samples(which: str, workers: int) -> None:
    give, change = CHANGES[which]
    loader = reading(give, workers)
    for value in (1.0, 2.0, 3.0):
        change(loader.dataset, value)
        assert values_of(loader) == {value}
    change(loader.dataset, 1.0)
    loader.close()


@pytest.mark.filterwarnings("ignore:Refurbish.*cannot be pickled")
@pytest.mark.parametrize("which", [*CHANGES])
def test_what_was_changed_holds_for_samples_on_disk(which: str, tmp_path: Path) -> None:
    give, change = CHANGES[which]
    loader = reading(give, disk=tmp_path, memory=0)
    for value in (1.0, 2.0):
        change(loader.dataset, value)
        assert values_of(loader) == {value}
    loader.close()
    for value in (3.0, 1.0):  # A later run.
        loader = reading(give, disk=tmp_path, memory=0)
        change(loader.dataset, value)
        assert values_of(loader) == {value}
        loader.close()


def test_that_a_new_cache_begins_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = reading(CHANGES["class"][0])
    with caplog.at_level("INFO", logger="rekindle"):
        assert count_fresh(loader) == SIZE
        assert count_fresh(loader) < SIZE
        assert "a new cache begins" not in caplog.text
        monkeypatch.setattr(Settings, "factor", 2.0)
        assert count_fresh(loader) == SIZE
        assert (
            "Numbers, or what it reads, was changed since the last epoch: a new cache begins" in caplog.text
        )


def test_what_was_changed_within_an_epoch_holds_in_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = reading(CHANGES["namespace"][0])
    for number, _ in enumerate(loader):
        if number == 1:
            monkeypatch.setattr(PLAIN, "factor", 5.0)
            break
    assert values_of(loader) == {5.0}


def test_what_a_step_of_a_compose_reads_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = V.Compose([TO_TENSOR, times_factor, V.RandomHorizontalFlip()])
    data = Pictures(steps, lambda data, image, index: data.transform(image), 6)
    loader = rk.DataLoader(data, 6, reuse=rk.Refurbish(3, split="RandomHorizontalFlip"), shuffle=True)
    assert all(float(batch.max()) <= 1 for batch in loader)
    set_on = monkeypatch.setitem
    set_on(globals(), "FACTOR", 0.0)
    assert all(float(batch.max()) == 0 for batch in loader)


def times_factor(image: Any) -> Any:
    return image * FACTOR


def count_in_global(data: Any, index: int) -> float:
    global CALLS
    CALLS += 1
    return 1.0


def count_items(data: Any, index: int) -> float:
    COMPUTED[index] += 1
    return 1.0


def count_on_a_class(data: Any, index: int) -> float:
    Settings.calls += 1
    PLAIN.calls += 1
    return Settings.factor


def note_in_a_list(data: Any, index: int) -> float:
    FAILED.append(index)
    return 1.0


def tell_an_object(data: Any, index: int) -> float:
    TALLY.tell()
    return 1.0


def count_in_shared_memory(data: Any, index: int) -> float:
    with data.shared.get_lock():
        data.shared.value += 1
    SHARED.value += 1
    data.array[0] += 1
    return 1.0


def count_under_another_name(data: Any, index: int) -> float:
    counter = data.raw
    counter.value += 1
    np.frombuffer(data.array.get_obj())[0] += 1
    return 1.0


def count_in_a_closure() -> Callable[..., float]:
    calls = 0

    def give(data: Any, index: int) -> float:
        nonlocal calls
        calls += 1
        return 1.0

    return give


COUNTS = {
    "global": count_in_global,
    "items": count_items,
    "class": count_on_a_class,
    "list": note_in_a_list,
    "object": tell_an_object,
    "shared": count_in_shared_memory,
    "another name": count_under_another_name,
    "kept property": lambda data, index: TALLY.size,
    "closure": count_in_a_closure(),
}


@pytest.mark.parametrize(("which", "workers"), [*product(COUNTS, [0, 1]), ("items", 2), ("shared", 2)])
def test_what_the_dataset_counts_itself_keeps_what_was_cached(which: str, workers: int) -> None:
    loader = reading(COUNTS[which], workers)
    assert count_fresh(loader) == SIZE
    assert [count_fresh(loader) < SIZE for _ in range(3)] == [True] * 3
    loader.close()


def test_what_stands_beside_a_counter_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = reading(count_on_a_class)
    assert values_of(loader) == {1.0}
    monkeypatch.setattr(Settings, "factor", 2.0)
    assert values_of(loader) == {2.0}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("which", ["class", "namespace", "module"])
def test_what_the_dataset_does_not_read_keeps_what_was_cached(
    which: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner: Any = {"class": Settings, "namespace": PLAIN, "module": OWN_MODULE}[which]
    loader = reading(CHANGES[which][0], workers)
    assert count_fresh(loader) == SIZE
    for epoch in range(3):
        monkeypatch.setattr(owner, "lr", 0.1**epoch)
        monkeypatch.setattr(owner, f"new_{epoch}", epoch, raising=False)
        assert count_fresh(loader) < SIZE
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_object_that_cannot_be_looked_into_keeps_what_was_cached(workers: int) -> None:
    source = iter(range(10**6))
    lines = (line for line in "text")
    loader = reading(lambda data, index: float(source is not lines), workers)
    assert count_fresh(loader) == SIZE
    next(source)
    assert count_fresh(loader) < SIZE
    loader.close()


def test_what_is_too_large_to_be_looked_at_does_not_hide_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    large = torch.zeros(1 << 30, dtype=torch.uint8)  # of which no page is ever written
    loader = reading(lambda data, index: float(large[0]) + FACTOR + len(data))
    assert values_of(loader) == {1.0 + SIZE}
    assert count_fresh(loader) < SIZE
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    assert values_of(loader) == {2.0 + SIZE}


def test_what_only_later_steps_read_keeps_what_was_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Numbers(lambda data, index: 1.0)
    loader = rk.DataLoader(data, 6, shuffle=True, reuse=rk.Refurbish(3), final_transform=scaled)
    assert values_of(loader) == {1.0}
    monkeypatch.setitem(globals(), "FACTOR", 4.0)
    assert count_fresh(loader) < SIZE
    assert values_of(loader) == {4.0}


def scaled(sample: Any) -> Any:
    return sample * FACTOR
