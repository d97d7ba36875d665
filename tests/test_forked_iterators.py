"""A script that forks within an epoch: its child cannot take the batches that the main process waits for."""

import json
import os

import pytest
import torch
from torch.utils.data import Dataset

import rekindle as rk

ALL = list(range(64))


class Numbers(Dataset):
    releases_gil = draws_nothing = True

    def __len__(self):
        return len(ALL)

    def __getitem__(self, index):
        return torch.full((3,), index)


def numbers(batches):
    return [number for batch in batches for number in batch[:, 0].tolist()]


def in_a_child(function):
    """What a function returns in a forked child, or the exception that it raises there."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            found = function()
        except BaseException as error:
            found = f"{type(error).__name__}: {error}"
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as file:
        found = json.load(file)
    os.waitpid(pid, 0)
    return found


EXECUTORS = [
    {"num_workers": 2, "executor": "processes"},
    {"num_workers": 2, "executor": "auto"},
    {"num_workers": 2, "executor": "threads"},
    {"num_workers": 2, "persistent_workers": True},
]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("given", EXECUTORS, ids=str)
def test_a_child_takes_no_batch_of_the_epoch_that_its_parent_is_in(given):
    loader = rk.DataLoader(Numbers(), 4, **given)
    iterator = iter(loader)
    seen = numbers([next(iterator)])
    refused = in_a_child(lambda: numbers(iterator))
    assert "WorkerError: this iterator is of process" in refused
    assert "iter(loader)" in refused
    assert in_a_child(lambda: numbers(loader)) == ALL
    assert seen + numbers(iterator) == ALL
    assert numbers(loader) == ALL


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("given", EXECUTORS, ids=str)
def test_a_child_has_workers_of_its_own_where_its_parent_keeps_some_for_the_next_epoch(given):
    loader = rk.DataLoader(Numbers(), 4, **given)
    assert numbers(loader) == ALL
    assert in_a_child(lambda: numbers(loader)) == ALL
    assert numbers(loader) == ALL
