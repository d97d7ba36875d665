"""The own state of a map-style dataset is saved and restored with the loader, that of each copy as well."""

from __future__ import annotations

import copy
import os
import signal
import warnings
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, RandomSampler

import rekindle as rk
from resumable import through_a_file

SIZE = 10


class Counts(Dataset[Any]):
    """Counts what it has loaded, as its state; a sample shows it, and what the script has set."""

    def __init__(self, size: int = SIZE) -> None:
        self.size, self.loaded, self.stage = size, 0, 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        self.loaded += 1
        return index, self.loaded, self.stage, int(torch.randint(2**40, ()))

    def state_dict(self) -> dict[str, Any]:
        return {"loaded": self.loaded, "within": [{"stage": self.stage}]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded, self.stage = state["loaded"], state["within"][0]["stage"]


class Stage(Counts):
    """Loading changes nothing: only the script does."""

    def __getitem__(self, index: int) -> Any:
        return index, self.stage


def loader_of(workers: int = 0, dataset: Any = None, **options: Any) -> Any:
    dataset = Counts() if dataset is None else dataset
    given = {"collate_fn": list, "seed": 5, **options}
    if "sampler" not in given:
        given["shuffle"] = True
    return rk.DataLoader(dataset, 2, num_workers=workers, **given)


def seeded() -> RandomSampler:
    return RandomSampler(range(SIZE), generator=torch.Generator().manual_seed(3))


WAYS: dict[str, dict[str, Any]] = {
    "inline": {},
    "3 workers": {"workers": 3},
    "3 workers that persist": {"workers": 3, "persistent_workers": True},
    "2 workers, a sampler": {"workers": 2, "sampler": seeded},
    "2 workers, prefetching 4 batches": {"workers": 2, "prefetch_factor": 2},
}


def made(way: str) -> Any:
    options = {name: given() if callable(given) else given for name, given in WAYS[way].items()}
    return loader_of(**options)


@pytest.mark.parametrize("way", WAYS)
def test_what_follows_a_state_is_what_followed_it(way: str) -> None:
    """States before the first batch, within an epoch, behind its last batch and between two epochs."""
    whole: list[list[Any]] = []
    states: list[tuple[int, int, Any]] = []
    with made(way) as loader:
        for epoch in range(2):
            loader.dataset.stage = epoch
            states.append((epoch, 0, through_a_file(loader.state_dict())))
            whole.append([])
            for batch in loader:
                whole[-1].append(batch)
                if len(whole[-1]) in (4, SIZE // 2):
                    states.append((epoch, len(whole[-1]), through_a_file(loader.state_dict())))
    for epoch, batches, state in states:
        with made(way) as other:
            other.load_state_dict(state)
            assert other.dataset.stage == epoch
            found = [[*other]]
            if epoch == 0:
                other.dataset.stage = 1
                found.append([*other])
        assert found == [whole[epoch][batches:], *whole[epoch + 1 :]], (epoch, batches)


def test_each_sample_is_loaded_once_and_by_the_worker_whose_turn_it_is() -> None:
    with loader_of(3, shuffle=False, collate_fn=None) as loader:
        batches = [*loader]
    assert [batch[1].tolist() for batch in batches] == [[n, n + 1] for n in (1, 1, 1, 3, 3)]
    with loader_of(0, shuffle=False) as loader:
        assert [row[1] for batch in loader for row in batch] == [*range(1, SIZE + 1)]
        assert loader.dataset.loaded == SIZE


def test_a_killed_workers_copy_is_restored() -> None:
    with loader_of(2, shuffle=False, prefetch_factor=1) as loader:
        expected = [*loader]
    with loader_of(2, shuffle=False, prefetch_factor=1) as loader:
        iterator = iter(loader)
        found = [next(iterator), next(iterator), next(iterator)]
        os.kill(iterator._workers[0].pid, signal.SIGKILL)
        assert [*found, *iterator] == expected


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (2, 3)])
def test_what_only_the_script_has_changed_goes_into_any_number_of_workers(before: int, after: int) -> None:
    with loader_of(before, Stage()) as loader:
        loader.dataset.stage = 4
        iterator = iter(loader)
        next(iterator)
        loader.dataset.stage = 7  # Workers have copies of before.
        state = loader.state_dict()
    with loader_of(after, Stage()) as other:
        other.load_state_dict(state)
        assert {row[1] for batch in other for row in batch} == {4 if before else 7}


def test_what_workers_have_changed_goes_only_into_as_many() -> None:
    with loader_of(2) as loader:
        next(iter(loader))
        state = loader.state_dict()
    assert state["dataset_state"]["workers"][0] != state["dataset_state"]["workers"][1]
    for workers in (0, 3):
        other = loader_of(workers)
        with pytest.raises(rk.StateError, match=r"dataset_state\.workers: 2 workers .* num_workers=2"):
            other.load_state_dict(state)
        assert other.dataset.loaded == 0


def test_threads_save_the_one_object_unless_they_have_changed_it() -> None:
    with loader_of(2, Stage(), executor="threads") as loader:
        loader.dataset.stage = 4
        next(iter(loader))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            state = loader.state_dict()
    other = loader_of(0, Stage())
    other.load_state_dict(state)
    assert other.dataset.stage == 4
    with loader_of(2, executor="threads") as loader:
        next(iter(loader))
        with pytest.warns(UserWarning, match=r"Counts\.state_dict\(\) in workers.*Threads have loaded"):
            loader.state_dict()


def state_of(value: Any, *, workers: int = 0, loads: bool = True) -> Any:
    """What `state_dict` of a loader gives whose dataset's own gives this, or raises it."""

    class Gives(Stage):
        def state_dict(self) -> Any:
            if isinstance(value, Exception):
                raise value
            return value

    with loader_of(workers, Gives()) as loader:
        if loads:
            next(iter(loader))
        return loader.state_dict()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"order": np.arange(3)}, r"state_dict\(\)\['order'\] is a numpy.ndarray"),
        (ValueError("not yet"), "It failed with ValueError: not yet"),
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_that_cannot_be_saved_is_warned_of(value: Any, reason: str, workers: int) -> None:
    with pytest.warns(UserWarning, match=f"dataset_state: what Gives.*{reason}") as found:
        state = state_of(value, workers=workers)
    assert found[0].filename == __file__
    assert state["dataset_state"] == {"own": None, "workers": None}


def test_a_large_state_is_saved_of_the_scripts_object_but_not_sent_by_workers() -> None:
    large = {"bytes": bytes(2 << 20)}
    with pytest.warns(UserWarning, match="in workers.* bytes, and up to 1,048,576"):
        state = state_of(large, workers=1)
    assert state["dataset_state"]["own"] == large


def test_a_state_of_a_module_is_saved() -> None:
    module = OrderedDict(weight=torch.arange(3.0))
    for workers in (0, 1):
        saved = state_of(module, workers=workers)["dataset_state"]
        assert torch.equal(through_a_file(saved)["own"]["weight"], module["weight"])


class KnowsOnceUsed(Counts):
    """Has no state before its first sample."""

    def state_dict(self) -> dict[str, Any]:
        if not self.loaded:
            raise RuntimeError("nothing was loaded yet")
        return super().state_dict()


def test_a_dataset_that_has_a_state_only_once_it_was_used_is_saved_by_its_workers() -> None:
    with loader_of(2, KnowsOnceUsed(), shuffle=False) as loader:
        iterator = iter(loader)
        found = [next(iterator)]
        state = loader.state_dict()
        found += [*iterator]
    with loader_of(2, KnowsOnceUsed(), shuffle=False) as other:
        other.load_state_dict(state)
        assert [*other] == found[1:]


def test_a_state_without_it_or_for_another_dataset_is_not_taken_in_silence() -> None:
    plain, stateful = loader_of(0, [*range(SIZE)]), loader_of(0)
    with pytest.warns(UserWarning, match=r"nothing of what Counts\.state_dict\(\)"):
        stateful.load_state_dict(plain.state_dict())
    with pytest.raises(rk.StateError, match="dataset_state: saved with a dataset that has"):
        plain.load_state_dict(loader_of(0).state_dict())


def test_an_exception_of_load_state_dict_is_the_loaders() -> None:
    class Refuses(Counts):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise KeyError("stage")

    with loader_of(2) as loader:
        next(iter(loader))
        state = loader.state_dict()
    inline = loader_of(0, Refuses())
    with pytest.raises(KeyError, match="stage"):
        inline.load_state_dict(loader_of(0).state_dict())
    assert inline.state_dict()["step"] == 0
    refuses_in_workers = copy.deepcopy(state)
    refuses_in_workers["dataset_state"]["own"] = None
    with loader_of(2, Refuses()) as other:
        other.load_state_dict(refuses_in_workers)
        with pytest.raises(KeyError, match="stage"):
            next(iter(other))


def test_a_state_is_loaded_into_a_loader_that_was_used() -> None:
    loader = loader_of(0, shuffle=False)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    expected = [*iterator]
    loader.load_state_dict(state)
    assert [*loader] == expected


def test_looking_for_a_state_never_raises() -> None:
    class Anything(Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return index

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            raise LookupError(name)

    for workers in (0, 1):
        loader = rk.DataLoader(Anything(), 2, num_workers=workers)
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
        loader.load_state_dict(loader.state_dict())


class Unscored(Stage):
    """Has a score for each sample, none of which is known yet."""

    def state_dict(self) -> dict[str, Any]:
        return {"scores": torch.full((SIZE,), torch.nan)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scores = state["scores"]


def test_copies_whose_states_are_unknown_numbers_are_the_same() -> None:
    loader = loader_of(2, Unscored())
    next(iter(loader))
    resumed = loader_of(3, Unscored())
    resumed.load_state_dict(loader.state_dict())
    assert resumed.dataset.scores.isnan().all()
