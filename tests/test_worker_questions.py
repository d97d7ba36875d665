"""Code that may tell one worker from another has each batch from one worker, in turn, as with torch."""

from __future__ import annotations

import multiprocessing
import operator
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch.utils.data
from torch.utils.data import Dataset, get_worker_info
from torch.utils.data import get_worker_info as facts

import rekindle as rk
from rekindle.core.analysis.worker_questions import asks_which_worker

FACTS = get_worker_info


def by_a_variable() -> int:
    info = get_worker_info()
    return 0 if info is None else info.seed % 1000


def in_one_line() -> int:
    return info.seed if (info := get_worker_info()) else 0


def imported() -> int:
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    return 0 if info is None else info.id


def passed_on() -> int:
    return number_of(get_worker_info())


def number_of(info: Any) -> int:
    return 0 if info is None else int(operator.attrgetter("id")(info))


def counted() -> int:
    info = get_worker_info()
    return 1 if info is None else info.num_workers


def counted_in_one_line() -> int:
    return info.num_workers if (info := torch.utils.data.get_worker_info()) is not None else 1


def has_one() -> bool:
    return not get_worker_info()


def its_dataset() -> Any:
    info = get_worker_info()
    if info and info.num_workers > 1:
        return info.dataset
    return None


ASK: dict[str, Callable[[], Any]] = {
    "id": lambda: get_worker_info().id,
    "seed": lambda: get_worker_info().seed,
    "module": lambda: torch.utils.data.get_worker_info().seed,
    "another name": lambda: facts().id,
    "getattr": lambda: getattr(get_worker_info(), "se" + "ed"),
    "repr": lambda: f"{get_worker_info()}",
    "pid": lambda: os.getpid(),
    "process": lambda: multiprocessing.current_process().name,
    "thread": lambda: threading.get_ident(),
    "/proc": lambda: open("/proc/self/stat").read(),  # noqa: SIM115
} | {one.__name__: one for one in (by_a_variable, in_one_line, imported, passed_on)}


class Asks(Dataset[Any]):
    """Calls a function for each sample."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self.ask = ask

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return self.ask()


class Seeded(Asks):
    """Seeds a generator by the worker and the sample; some samples take longer."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.001 * (index * 7 % 5))
        info = get_worker_info()
        assert info is not None
        return np.random.default_rng((info.seed, index)).random(), info.id


@pytest.mark.parametrize("name", ASK)
def test_who_may_tell_workers_apart_is_seen(name: str) -> None:
    assert asks_which_worker(Asks(ASK[name]))


def test_who_holds_the_function_that_tells_may_call_it() -> None:
    assert asks_which_worker(Asks(FACTS))


@pytest.mark.parametrize("ask", [counted, counted_in_one_line, has_one, its_dataset])
def test_who_asks_how_many_workers_there_are_does_not_ask_which(ask: Callable[[], Any]) -> None:
    assert not asks_which_worker(Asks(ask))


def test_a_workers_seed_gives_the_same_batches_in_every_run() -> None:
    runs = []
    for _ in range(2):
        batches = [*rk.DataLoader(Seeded(len), 4, num_workers=2, seed=0)]
        assert [ids.tolist() for _, ids in batches] == [[step % 2] * 4 for step in range(6)]
        runs.append([values.tolist() for values, _ in batches])
    assert runs[0] == runs[1]
