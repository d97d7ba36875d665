"""An interrupt within `next` (Ctrl-C, say) loses nothing, for a loop that goes on and for a checkpoint."""

import signal
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, IterableDataset, RandomSampler

import rekindle as rk
from interrupted import NEVER, TimeLimitError, ask
from rekindle.core.interrupts import is_interrupt
from same import digest


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), index) + torch.rand(3)


class Constants(Numbers):
    """Loaded by threads of a process."""

    releases_gil = draws_nothing = True

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), index)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for value in range(23):
            yield value + torch.rand(3)


class OwnIterator(IterableDataset[Any]):
    """Its own iterator, and goes on where it stopped: it cannot be asked for a batch a second time."""

    def __init__(self) -> None:
        self.value = 0

    def __iter__(self) -> "OwnIterator":
        return self

    def __next__(self) -> int:
        self.value += 1
        if self.value % 24 == 0:
            raise StopIteration
        return self.value


class Stateful(Stream):
    """A stream with a state, and a number that goes on from epoch to epoch."""

    def __init__(self) -> None:
        self.value = self.start = self.epoch = 0

    def __iter__(self) -> Iterator[Any]:
        self.value, self.start = self.start, 0
        while self.value < 23:
            self.value += 1
            yield self.value - 1 + torch.rand(2), self.epoch
        self.epoch += 1

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start, self.epoch = state["value"], state["epoch"]


def mapped(workers: int, dataset: type[Numbers] = Numbers, **options: Any) -> rk.DataLoader[Any]:
    return rk.DataLoader(dataset(), 4, shuffle=True, seed=3, num_workers=workers, **options)


def sampled(workers: int) -> rk.DataLoader[Any]:
    sampler = RandomSampler(range(24), generator=torch.Generator().manual_seed(1))
    return rk.DataLoader(Numbers(), 4, sampler=sampler, seed=3, num_workers=workers)


def streamed(workers: int, dataset: Callable[[], Any], **options: Any) -> rk.DataLoader[Any]:
    return rk.DataLoader(dataset(), 4, seed=3, num_workers=workers, **options)


def cached_on_disk(workers: int) -> rk.DataLoader[Any]:
    reuse = rk.Refurbish(2, memory=0, disk=FOLDER.name)
    return mapped(workers, reuse=reuse, final_transform=torch.neg)


FOLDER = tempfile.TemporaryDirectory()
KINDS: dict[str, tuple[Callable[[int], rk.DataLoader[Any]], int]] = {
    "inline": (mapped, 0),
    "processes": (mapped, 1),
    "threads": (lambda workers: mapped(workers, executor="threads"), 2),
    "threads of a process": (lambda workers: mapped(workers, Constants), 2),
    "sampler": (sampled, 0),
    "sampler, processes": (sampled, 1),
    "stream": (lambda workers: streamed(workers, Stream), 0),
    "stream, processes": (lambda workers: streamed(workers, Stream), 1),
    "stateful stream": (lambda workers: streamed(workers, Stateful), 0),
    "own iterator": (lambda workers: streamed(workers, OwnIterator), 0),
    "one ahead on the device": (lambda workers: mapped(workers, device="cpu"), 1),
    "cache on disk": (lambda workers: cached_on_disk(workers), 0),
    "echoed batches": (lambda workers: mapped(workers, reuse=rk.Echo(1.5, after="batch", shuffle=4)), 1),
}


# Python prints, and does not raise, what is raised while it closes a generator, or calls back for an object,
# that nobody holds any more.
@pytest.mark.filterwarnings(
    "ignore:(?s)Exception ignored.*(KeyboardInterrupt|TimeLimitError):pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("raised", [KeyboardInterrupt, TimeLimitError])
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_at_any_call_within_next_loses_no_batch(
    kind: str, raised: type[BaseException], every: int
) -> None:
    make, workers = KINDS[kind]
    straight = make(0)
    expected = [[digest(batch) for batch in straight] for _ in range(4 if workers else 50 // every)]
    loader = make(workers)
    stride, most = (8 * every, 300) if workers else (every, NEVER)
    place, beyond = 1, 0
    for number, epoch in enumerate(expected[:-1]):
        iterator, got = iter(loader), list[str]()
        for _ in count():
            asked = ask(iterator, place, raised)
            if asked is None:
                if kind != "own iterator":  # What it gives next is not in a state.
                    # At the end of an epoch, its end has been noted or has not.
                    left = epoch[len(got) : len(got) + 1] or ["end", expected[number + 1][0]]
                    assert next_digest(make, loader) in left, (place, number, len(got))
                place, beyond = place + stride, 0
                asked = ask(iterator, NEVER)
            else:
                beyond += 1  # That call was over before.
            assert asked is not None
            if not asked:
                break
            got.append(digest(asked[0]))
        assert got == epoch
        if beyond > 20 or place > most:
            break
    assert place > 20
    loader.close()


def next_digest(make: Callable[[int], rk.DataLoader[Any]], loader: rk.DataLoader[Any]) -> str:
    """What comes next in a loader that goes on from the state of this one."""
    resumed = make(0)
    resumed.load_state_dict(loader.state_dict())
    for batch in resumed:
        return digest(batch)
    return "end"


def test_an_interrupt_in_the_middle_of_the_end_of_an_epoch_leaves_no_worker_behind() -> None:
    loader = mapped(1)
    for place in range(1, 60, 3):
        iterator = iter(loader)
        workers = iterator._workers  # type: ignore[attr-defined]
        for _ in range(6):
            next(iterator)
        ask(iterator, place)
        assert list(iterator) == []
    loader.close()
    assert not any(worker.is_alive() for worker in workers)


class Interrupted(Numbers):
    """Sends the signal of Ctrl-C to its own process when sample 13 is first loaded."""

    def __init__(self) -> None:
        self.interrupts = 1

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 13 and self.interrupts:
            self.interrupts -= 1
            signal.raise_signal(signal.SIGINT)  # in this thread, not in any
        return torch.tensor(index)


@pytest.fixture
def heeded_interrupts() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also in what a shell runs in its background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeded_interrupts")
def test_a_batch_whose_sample_was_interrupted_comes_again() -> None:
    iterator = iter(rk.DataLoader(Interrupted(), 4))
    got = [next(iterator).tolist() for _ in range(3)]
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    got += [batch.tolist() for batch in iterator]
    assert got == [list(range(first, first + 4)) for first in range(0, 24, 4)]


class Handler:
    """Signal handlers of several kinds, and one that is none."""

    def method(self, *_: object) -> None:
        raise TimeLimitError

    def __call__(self, *_: object) -> None:
        raise TimeLimitError


@pytest.mark.parametrize(
    "handler",
    [Handler().method, Handler(), partial(Handler().method, 1), lambda *_: Handler().method()],
    ids=["method", "object", "partial", "lambda"],
)
def test_what_any_kind_of_signal_handler_raises_is_an_interrupt(handler: Any) -> None:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(TimeLimitError) as raised:
            signal.raise_signal(signal.SIGUSR1)
        assert is_interrupt(raised.value)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not is_interrupt(raised.value)  # It is no handler now.


def test_an_exception_that_is_its_own_cause_is_none() -> None:
    error, other = ValueError(), ValueError()
    error.__cause__, other.__cause__ = other, error
    assert not is_interrupt(error)


class LimitedTime(Numbers):
    """Limits the time of a sample: number 13 takes too long. The handler stays, as many leave it."""

    def __getitem__(self, index: int) -> torch.Tensor:
        signal.signal(signal.SIGALRM, Handler().method)
        signal.setitimer(signal.ITIMER_REAL, 600)
        try:
            if index == 13:
                signal.raise_signal(signal.SIGALRM)
            return torch.tensor(index)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


class LimitedStream(LimitedTime, IterableDataset[Any]):
    """Goes on behind the sample that took too long."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return map(self.__getitem__, range(24))


@pytest.fixture
def own_alarm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def batches_and_errors(loader: Any) -> list[Any]:
    iterator, got = iter(loader), list[Any]()
    for _ in range(12):
        try:
            got.append(next(iterator).tolist())
        except TimeLimitError:
            got.append("time limit")
        except StopIteration:
            return got
    raise AssertionError(got)


@pytest.mark.usefixtures("own_alarm")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("called_before", [False, True])
def test_a_time_limit_that_a_dataset_sets_itself_is_an_error_of_its_sample(
    workers: int, called_before: bool
) -> None:
    if called_before:
        LimitedTime()[0]  # The script looks at a sample: the handler is there before the loader is.
    got = batches_and_errors(rk.DataLoader(LimitedTime(), 4, num_workers=workers))
    assert got == batches_and_errors(TorchLoader(LimitedTime(), 4, num_workers=workers))
    assert got[3] == "time limit"
    skipped = batches_and_errors(rk.DataLoader(LimitedTime(), 4, num_workers=workers, on_error="skip"))
    assert skipped[3] == [12, 14, 15]


@pytest.mark.usefixtures("own_alarm")
def test_a_time_limit_within_a_stream_is_an_error_of_its_batch() -> None:
    got = batches_and_errors(rk.DataLoader(LimitedStream(), 4))
    assert got == batches_and_errors(TorchLoader(LimitedStream(), 4))


class Alarmed(Interrupted):
    """The script's timer runs out when sample 13 is first loaded."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 13 and self.interrupts:
            self.interrupts -= 1
            signal.raise_signal(signal.SIGALRM)
        return torch.tensor(index)


class Announced(Alarmed):
    """The script's timer runs out while the dataset begins to fetch the fourth batch."""

    def will_need(self, indices: list[int]) -> None:
        if indices[0] == 12 and self.interrupts:
            self.interrupts -= 1
            signal.raise_signal(signal.SIGALRM)


class Wrapped(Alarmed):
    """Takes what is raised while it loads for an error of the sample."""

    def __getitem__(self, index: int) -> torch.Tensor:
        try:
            return super().__getitem__(index)
        except Exception as error:
            raise TimeLimitError("no sample") from error


@pytest.mark.usefixtures("own_alarm")
@pytest.mark.parametrize("dataset", [Alarmed, Announced, Wrapped])
def test_a_time_limit_of_the_script_loses_no_batch(dataset: type[Alarmed]) -> None:
    iterator = iter(rk.DataLoader(dataset(), 4))
    got = [next(iterator).tolist() for _ in range(3)]
    signal.signal(signal.SIGALRM, Handler().method)
    signal.setitimer(signal.ITIMER_REAL, 600)
    with pytest.raises(TimeLimitError):
        next(iterator)
    got += [batch.tolist() for batch in iterator]
    assert got == [list(range(first, first + 4)) for first in range(0, 24, 4)]
