"""A Hugging Face stream goes on with another number of workers: no sample is lost or repeated."""

from itertools import islice
from typing import Any

import pytest

import rekindle as rk
from resumable import through_a_file

SAMPLES = 53


def stream(kind: str) -> Any:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": list(range(SAMPLES))}).to_iterable_dataset(num_shards=6)
    if kind == "filtered":
        return rows.filter(_is_odd)
    return rows.shuffle(seed=1, buffer_size=7) if kind == "shuffled" else rows


def _is_odd(row: dict[str, int]) -> bool:
    return row["x"] % 2 == 1


def load(dataset: Any, workers: int, **more: Any) -> Any:
    return rk.DataLoader(
        dataset, 4, num_workers=workers, multiprocessing_context="fork" if workers else None, **more
    )


def values(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["x"].tolist()]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["plain", "shuffled", pytest.param("filtered", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("first", "second", "third"), [(2, 3, 0), (0, 2, 1), pytest.param(1, 0, 2, marks=pytest.mark.slow)]
)
def test_another_number_of_workers_reads_the_rest(kind: str, first: int, second: int, third: int) -> None:
    whole = [number for number in range(SAMPLES) if kind != "filtered" or number % 2]
    loader = load(stream(kind), first)
    seen = values(islice(iter(loader), 3))
    for workers, batches in ((second, 2), (third, None)):
        state = through_a_file(loader.state_dict())
        loader = load(stream(kind), workers)
        loader.load_state_dict(state)
        seen += values(islice(iter(loader), batches))
    assert sorted(seen) == whole
    assert sorted(values(loader)) == whole, "the next epoch has them all"


@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 0)])
def test_a_stream_resumes_in_the_epoch_it_was_told(before: int, after: int) -> None:
    dataset = stream("shuffled")
    dataset.set_epoch(3)
    loader = load(dataset, before)
    seen = values(islice(iter(loader), 5))
    resumed = load(stream("shuffled"), after)
    resumed.load_state_dict(through_a_file(loader.state_dict()))
    assert sorted(seen + values(resumed)) == list(range(SAMPLES))


def test_the_batches_go_on_counting() -> None:
    loader = load(stream("plain"), 2)
    seen = values(islice(iter(loader), 3))
    resumed = load(stream("plain"), 0)
    resumed.load_state_dict(through_a_file(loader.state_dict()))
    steps = [(resumed.batch.step, len(resumed.batch.ids)) for _ in resumed]
    assert [step for step, _ in steps] == list(range(3, 3 + len(steps)))
    assert sum(count for _, count in steps) == SAMPLES - len(seen)


@pytest.mark.parametrize("damage", [{"worker": 2}, {"workers": "two"}, {"skip": -1}, {"state": 3}])
def test_a_damaged_part_is_refused(damage: dict[str, Any]) -> None:
    loader = load(stream("plain"), 0)
    next(iter(loader))
    second = load(stream("plain"), 1)
    second.load_state_dict(loader.state_dict())
    next(iter(second))
    state = second.state_dict()
    state["iterable"]["datasets"][0]["state"]["iterator"]["resumed_parts"][0].update(damage)
    with pytest.raises(rk.StateError, match=next(iter(damage))):
        load(stream("plain"), 0).load_state_dict(state)


def test_any_other_iterable_still_needs_the_same_number_of_workers() -> None:
    state = load(stream("plain"), 2, final_transform=dict).state_dict()
    with pytest.raises(rk.StateError, match="num_workers"):
        load(stream("plain"), 1, final_transform=dict).load_state_dict(state)


@pytest.mark.parametrize(
    ("before", "after"), [((0, 2), (1, 2)), ((0, 2), (0, 1)), ((0, 2), None), (None, (0, 2))]
)
def test_a_streams_state_is_that_of_one_rank_and_no_other(before: Any, after: Any) -> None:
    state = load(stream("plain"), 0, seed=0, shard=before).state_dict()
    load(stream("plain"), 0, seed=0, shard=before).load_state_dict(state)
    with pytest.raises(rk.StateError, match="save that of each rank"):
        load(stream("plain"), 0, seed=0, shard=after).load_state_dict(state)
