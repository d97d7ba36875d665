"""An epoch that is ended from outside says so: a loop that stops short would look like one that is done."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import rekindle as rk

Loader = rk.DataLoader[int]


def _load(loader: Loader) -> None:
    loader.load_state_dict(loader.state_dict())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("end", [rk.DataLoader.close, _load], ids=["close", "load_state_dict"])
def test_the_next_batch_of_an_epoch_that_was_ended_raises(
    end: Callable[[Loader], None], workers: int, persistent: bool
) -> None:
    persistent_workers = persistent and workers > 0
    loader = rk.DataLoader(range(12), 3, num_workers=workers, persistent_workers=persistent_workers)
    batches = iter(loader)
    next(batches)
    end(loader)
    for _ in range(2):
        with pytest.raises(
            rk.WorkerError, match=r"was closed within this epoch, by .* after 1 batch\. Start"
        ):
            next(batches)
    left = [batch.tolist() for batch in loader]
    whole = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert left == (whole[1:] if end is _load else whole)
    loader.close()


@pytest.mark.parametrize("end", [rk.DataLoader.close, _load], ids=["close", "load_state_dict"])
def test_an_epoch_that_was_ended_is_not_done_when_the_loader_is_closed_again(
    end: Callable[[Loader], None],
) -> None:
    loader = rk.DataLoader(range(12), 3)
    batches = iter(loader)
    next(batches)
    end(loader)
    loader.close()
    with pytest.raises(rk.WorkerError, match="was closed within this epoch"):
        next(batches)


def test_an_epoch_that_is_over_stays_over() -> None:
    loader = rk.DataLoader(range(4), 2)
    batches = iter(loader)
    assert len([*batches]) == 2
    loader.close()
    assert next(batches, None) is None
