"""Batches on the device, copied one ahead: same batches, same state, only earlier."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import rekindle as rk
from rekindle.choose import EndOfEpoch, unplanned_order
from rekindle.run.in_flight_batch import CollatedBatch
from rekindle.ship.copy_stream import DirectCopy
from rekindle.ship.device_prefetch import OneAhead, ToDevice
from same import same

CPU = torch.device("cpu")


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.rand(3) + index, "index": index, "name": str(index)}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(torch.arange(23))


def load(dataset: Any, **settings: Any) -> Any:
    return rk.DataLoader(dataset, **{"batch_size": 4, "shuffle": True, "seed": 1, **settings})


def wait_until_ready(iterator: Any) -> None:
    """Wait until the workers have finished what they were sent: then the next batch can be copied ahead."""
    engine = iterator._runner
    while hasattr(engine, "_dispatcher") and engine._dispatcher.in_flight:
        engine._receive(0.1)


# The loader.


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_the_same_batches_with_a_device_as_without(workers: int) -> None:
    ours, plain = load(Numbers(), device="cpu", num_workers=workers), load(Numbers())
    for _ in range(2):
        got = [(batch, ours.batch.ids, ours.batch.step) for batch in ours]
        expected = [(batch, plain.batch.ids, plain.batch.step) for batch in plain]
        assert same(got, expected)


def test_tensors_arrive_on_the_device_and_strings_stay() -> None:
    for batch in load(Numbers(), device="meta", num_workers=2):
        assert batch["x"].device.type == batch["index"].device.type == "meta"
        assert isinstance(batch["name"][0], str)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("taken", [1, 3, 5, 6])
def test_the_state_counts_what_was_yielded_not_what_was_copied_ahead(workers: int, taken: int) -> None:
    whole = [batch["index"].tolist() for batch in load(Numbers())]
    loader = load(Numbers(), device="cpu", num_workers=workers)
    iterator = iter(loader)
    for step in range(taken):
        wait_until_ready(iterator)
        next(iterator)
        assert loader.batch.step == step
    assert iterator._ahead.holds, "the next batch was not taken ahead, so this shows nothing"
    saved = loader.state_dict()
    assert saved["step"] == taken
    assert same(saved, _state_without_device(taken))
    resumed = load(Numbers(), device="cpu", num_workers=3 - workers)
    resumed.load_state_dict(saved)
    assert [batch["index"].tolist() for batch in resumed] == whole[taken:]
    # The loader itself is not disturbed.
    assert [batch["index"].tolist() for batch in iterator] == whole[taken:]


def _state_without_device(taken: int) -> dict[str, Any]:
    loader = load(Numbers())
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    return loader.state_dict()


def test_out_of_order_batches_are_resumed_exactly() -> None:
    loader = load(Numbers(), device="cpu", num_workers=3, in_order=False)
    iterator = iter(loader)
    first = []
    for _ in range(3):
        wait_until_ready(iterator)
        first += next(iterator)["index"].tolist()
    saved = loader.state_dict()
    assert saved["step"] + len(saved["ahead"]) == 3
    resumed = load(Numbers(), device="cpu", num_workers=2, in_order=False)
    resumed.load_state_dict(saved)
    rest = [index for batch in resumed for index in batch["index"].tolist()]
    assert sorted(first + rest) == list(range(23))


def test_a_users_sampler_is_resumed_exactly() -> None:
    def make() -> Any:
        generator = torch.Generator().manual_seed(5)
        return load(Numbers(), device="cpu", num_workers=2, generator=generator)

    whole = [batch["index"].tolist() for batch in make()]
    loader = make()
    iterator = iter(loader)
    for _ in range(2):
        wait_until_ready(iterator)
        next(iterator)
    saved = loader.state_dict()
    resumed = make()
    resumed.load_state_dict(saved)
    assert [batch["index"].tolist() for batch in resumed] == whole[2:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_is_resumed_exactly(workers: int) -> None:
    def make() -> Any:
        return rk.DataLoader(Stream(), batch_size=4, device="cpu", num_workers=workers, seed=1)

    whole = [batch.tolist() for batch in make()]
    loader = make()
    iterator = iter(loader)
    for _ in range(3):
        wait_until_ready(iterator)
        next(iterator)
    saved = loader.state_dict()
    assert sum(saved["iterable"]["made"]) == 3
    resumed = make()
    resumed.load_state_dict(saved)
    assert [batch.tolist() for batch in resumed] == whole[3:]


class Flawed(Numbers):
    """Samples 8 and 9, of the third batch, cannot be made."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in (8, 9):
            raise OSError(f"no sample {index}")
        return super().__getitem__(index)


def test_an_exception_is_raised_when_its_batch_is_requested() -> None:
    loader = load(Flawed(), shuffle=False, device="cpu", num_workers=1)
    iterator = iter(loader)
    for _ in range(2):
        wait_until_ready(iterator)
        next(iterator)
    assert iterator._ahead.holds
    with pytest.raises(OSError, match="no sample 8"):
        next(iterator)
    assert next(iterator)["index"].tolist() == [12, 13, 14, 15]


def test_bad_samples_of_the_batch_ahead_are_not_in_the_state() -> None:
    loader = load(Flawed(), shuffle=False, device="cpu", num_workers=1, on_error="skip", error_budget=0.5)
    iterator = iter(loader)
    known = []
    for _ in range(3):
        wait_until_ready(iterator)
        next(iterator)
        known.append(loader.state_dict()["bad_ids"].tolist())
    assert known == [[], [], [8, 9]]


def test_a_pass_can_be_dropped_and_the_loader_closed_with_a_batch_ahead() -> None:
    loader = load(Numbers(), device="cpu", num_workers=2)
    for _ in range(2):
        next(iter(loader))
    iterator = iter(loader)
    next(iterator)
    wait_until_ready(iterator)
    loader.close()
    with pytest.raises(rk.WorkerError, match="was closed within this epoch"):
        next(iterator)
    assert len(list(loader)) == 6


def test_a_batch_that_is_kept_is_not_overwritten() -> None:
    kept = list(load(Numbers(), device="cpu", num_workers=2))
    assert same(kept, list(load(Numbers())))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "reuse",
    [rk.Refurbish(factor=2), rk.Echo(factor=2), rk.Echo(factor=2, after="batch", shuffle=2)],
    ids=repr,
)
def test_reused_batches_arrive_on_the_device_too(reuse: Any, workers: int) -> None:
    options = {"reuse": reuse, "final_transform": _doubled}
    ours = load(Numbers(), device="cpu", num_workers=workers, **options)
    plain = load(Numbers(), **options)
    for _ in range(2):
        got = [(batch, ours.batch.ids, ours.batch.fresh) for batch in ours]
        expected = [(batch, plain.batch.ids, plain.batch.fresh) for batch in plain]
        assert same([one[:2] for one in got], [one[:2] for one in expected])
        recomputed, planned = (torch.cat([fresh for _, _, fresh in one]) for one in (got, expected))
        # With workers, one may compute what another is about to cache, even for the epoch before its own.
        assert torch.equal(recomputed, planned) if workers == 0 else recomputed.any()
    assert ours.report().to_dict()["reuse"] is not None


def _doubled(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "x": sample["x"] * 2}


# One ahead.


class Script:
    """A runner that follows a script; `None` in it is a batch that is not ready yet."""

    closed = False

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.asked: list[str] = []

    def next(self) -> Any:
        self.asked.append("next")
        while (item := self.script.pop(0)) is None:
            pass
        return self._given(item)

    def poll(self) -> Any:
        self.asked.append("poll")
        return self._given(self.script.pop(0)) if self.script else None

    def _given(self, item: Any) -> Any:
        if isinstance(item, Exception):
            raise item
        return item

    def close(self) -> None:
        pass


def made(number: int) -> CollatedBatch:
    order = unplanned_order(0, number, [number], np.array([number]), plain=True)
    return CollatedBatch(order, order.ids, torch.tensor([number]))


def all_of(ahead: OneAhead) -> list[int]:
    got = []
    while not isinstance(sent := ahead.next(), EndOfEpoch):
        ahead.look_ahead()
        got.append(int(ahead.receive(sent)))
    return got


def one_ahead(*script: Any, transform: Any = None) -> OneAhead:
    return OneAhead(Script(*script), ToDevice(DirectCopy(CPU), CPU, transform))


def test_what_is_ready_is_taken_ahead_and_nothing_is_waited_for() -> None:
    ahead = one_ahead(made(0), made(1), None, made(2), EndOfEpoch(0))
    assert all_of(ahead) == [0, 1, 2]
    # 2 was not ready when 1 was yielded: it was asked for, and waited for, only in its turn.
    assert ahead._runner.asked == ["next", "poll", "poll", "next", "poll"]


def test_an_interrupt_while_looking_ahead_loses_nothing() -> None:
    interrupted = []

    def transform(ready: Any, batch: Any) -> Any:
        if int(batch) == 1 and not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        return batch

    ahead = one_ahead(made(0), made(1), made(2), EndOfEpoch(0), transform=transform)
    ahead.next()
    with pytest.raises(KeyboardInterrupt):
        ahead.look_ahead()
    assert all_of(ahead) == [0, 1, 2]


@pytest.mark.parametrize("where", ["runner", "transform"])
def test_an_exception_ahead_waits_for_its_turn_and_later_batches_follow(where: str) -> None:
    def transform(ready: Any, batch: Any) -> Any:
        if where == "transform" and int(batch) == 1:
            raise ValueError("one")
        return batch

    second = made(1) if where == "transform" else ValueError("one")
    ahead = one_ahead(made(0), second, made(2), EndOfEpoch(0), transform=transform)
    sent = ahead.next()
    ahead.look_ahead()
    assert int(ahead.receive(sent)) == 0
    with pytest.raises(ValueError, match="one"):
        ahead.next()
    assert all_of(ahead) == [2]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="takes a CUDA device")
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_on_a_real_gpu_are_the_cpus(workers: int) -> None:
    ours, plain = load(Numbers(), device="cuda", num_workers=workers), load(Numbers())
    for batch, expected in zip(ours, plain, strict=True):
        assert batch["x"].device.type == "cuda"
        assert torch.equal(batch["x"].cpu(), expected["x"])
