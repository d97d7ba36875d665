"""A state is refused where a sampler gives other indices than when it was saved, whatever these are."""

import enum
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, Sampler

import rekindle as rk
from rekindle.choose.index_digest import batch_content, extended_digest
from resumable import through_a_file

SIZE = 12


@dataclass(frozen=True)
class Key:
    """An index of a user's own."""

    number: int
    name: str = "x"


class Plain:
    """An index of which nothing says what it is."""

    def __init__(self, number):
        self.number = number


KINDS = {
    "tuples": lambda i: (i, "a", None, 0.5),
    "strings": str,
    "bytes": lambda i: str(i).encode(),
    "lists": lambda i: [i, i + 1],
    "dicts": lambda i: {"index": i},
    "sets": lambda i: frozenset({"fixed", str(i)}),
    "slices": lambda i: slice(i, i + 2),
    "dataclasses": Key,
    "paths": lambda i: Path(f"/data/{i}.png"),
    "enums": enum.Enum("Names", [f"n{i}" for i in range(1, SIZE + 2)]),
    "large integers": lambda i: 2**70 + i,
    "tensors": lambda i: torch.tensor([i, i]),
    "bfloat16": lambda i: torch.tensor([i, i], dtype=torch.bfloat16),
    "arrays": lambda i: np.array([i, i], dtype=np.int16),
    "arrays of objects": lambda i: np.array([str(i), None], dtype=object),
}


class Any(Dataset):
    """Has a sample for every index."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return 0


class Gives(Sampler):
    """Indices of some kind in an order that follows from a seed."""

    def __init__(self, seed, kind):
        self.seed, self.kind = seed, kind

    def __len__(self):
        return SIZE

    def __iter__(self):
        order = random.Random(self.seed).sample(range(1, SIZE + 1), SIZE)
        return (self.kind(i) for i in order)


def loader_with(seed, kind, **options):
    return rk.DataLoader(Any(), sampler=Gives(seed, kind), seed=3, **{"batch_size": 2, **options})


@pytest.mark.parametrize("batch_size", [2, None])
@pytest.mark.parametrize("kind", KINDS)
def test_indices_of_any_kind_are_compared(kind, batch_size):
    loader = loader_with(1, KINDS[kind], batch_size=batch_size)
    iterator = iter(loader)
    next(iterator), next(iterator)
    state, left = through_a_file(loader.state_dict()), len(list(iterator))
    again = loader_with(1, KINDS[kind], batch_size=batch_size)
    again.load_state_dict(state)
    assert len(list(again)) == left
    other = loader_with(2, KINDS[kind], batch_size=batch_size)
    other.load_state_dict(state)
    with pytest.raises(rk.StateError, match="sampler: Gives gives another order"):
        iter(other)


def test_batches_of_a_batch_sampler_that_one_call_loads_are_compared():
    def make(seed):
        sampler = BatchSampler(Gives(seed, int), 4, drop_last=False)
        return rk.DataLoader(Any(), batch_size=None, sampler=sampler)

    loader = make(1)
    next(iter(loader))
    other = make(2)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(rk.StateError, match="another order"):
        iter(other)


def test_indices_of_an_unknown_class_are_gone_on_with_unchecked():
    loader = loader_with(1, Plain)
    next(iter(loader))
    state = loader.state_dict()
    assert state["sampler"]["digest"] is None
    other = loader_with(2, Plain)
    other.load_state_dict(state)
    assert len(list(other)) == SIZE // 2 - 1


def test_indices_that_contain_themselves_are_not_compared():
    index = []
    index.append(index)
    assert batch_content([index], 0).content is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "bc"), ("ab", "c")),
        (["1"], [1]),
        ([0.0], [0]),
        ([b"1"], ["1"]),
        ([[1, 2], [3]], [[1], [2, 3]]),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (torch.zeros(4, dtype=torch.int32), torch.zeros(4, dtype=torch.float32)),
    ],
)
def test_indices_that_differ_have_different_digests(one, other):
    digests = {extended_digest(0, batch_content([index], 0).content) for index in (one, other)}
    assert len(digests) == 2
    assert None not in digests


_PRINTED = """
from rekindle.choose.index_digest import batch_content, extended_digest
from test_sampler_orders import KINDS
print([extended_digest(0, batch_content([kind(3)], 0).content) for kind in KINDS.values()])
"""


def test_digests_are_the_same_in_every_process():
    printed = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", _PRINTED]
        printed.add(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert len(printed) == 1
