"""A Hugging Face stream is shared by ranks, resumes exactly, and goes on with another number of workers."""

from itertools import islice
from typing import Any

import pytest

import rekindle as rk
from rank_processes import run_ranks
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


def _same(row: dict[str, int]) -> dict[str, int]:
    return row


def concatenated(kind: str) -> Any:
    """Streams one after the other. Parts of them may have other members than the whole."""
    datasets = pytest.importorskip("datasets")
    first, second = (
        datasets.Dataset.from_dict({"x": list(range(*numbers))}).to_iterable_dataset(num_shards=shards)
        for numbers, shards in (((0, 20), 1 if kind == "few" else 3), ((20, SAMPLES), 1))
    )
    if kind == "interleaved":
        both = datasets.concatenate_datasets([first, second])
        more = datasets.Dataset.from_dict({"x": list(range(SAMPLES, 90))}).to_iterable_dataset(num_shards=4)
        strategy = "all_exhausted_without_replacement"
        return datasets.interleave_datasets([both, more], stopping_strategy=strategy)
    # What is behind a map is not read as an Arrow table: the part of a worker without it is read otherwise.
    return datasets.concatenate_datasets([first.map(_same) if kind == "mixed" else first, second])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["few", "mixed", pytest.param("interleaved", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("before", "after"),
    [(2, 2), (2, 0), pytest.param(4, 1, marks=pytest.mark.slow), pytest.param(0, 2, marks=pytest.mark.slow)],
)
def test_concatenated_streams_go_on_with_any_number_of_workers(kind: str, before: int, after: int) -> None:
    whole = values(load(concatenated(kind), before))
    for batches in (1, 3):
        loader = load(concatenated(kind), before)
        seen = values(islice(iter(loader), batches))
        resumed = load(concatenated(kind), after)
        resumed.load_state_dict(through_a_file(loader.state_dict()))
        rest = values(resumed)
        assert sorted(seen + rest) == sorted(whole)
        if before == after:
            assert seen + rest == whole


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


def test_a_share_that_is_not_dealt_again_is_refused_by_another_number_of_ranks() -> None:
    def echoed(rank: int, world: int) -> Any:
        return load(stream("plain"), 0, seed=0, shard=(rank, world), reuse=rk.Echo(2))

    state = echoed(0, 2).state_dict()
    echoed(1, 2).load_state_dict(state)
    with pytest.raises(rk.StateError, match="this one goes on with as many as before"):
        echoed(0, 3).load_state_dict(state)


def read_by(world: int | None, kind: str, workers: int = 0) -> list[Any]:
    """The loaders of so many ranks; None: one that reads everything."""
    if world is None:
        return [load(stream(kind), workers, seed=0)]
    return [load(stream(kind), workers, seed=0, shard=(rank, world)) for rank in range(world)]


def states_of(loaders: list[Any]) -> list[Any]:
    return [through_a_file(loader.state_dict()) for loader in loaders]


@pytest.mark.parametrize("kind", ["plain", "shuffled"])
@pytest.mark.parametrize("worlds", [(2, 3, 1), (3, 2, 4), (None, 2, None), (1, 5, 2)])
def test_another_number_of_ranks_reads_the_rest(kind: str, worlds: tuple[int | None, ...]) -> None:
    loaders = read_by(worlds[0], kind)
    seen = [number for loader in loaders for number in values(islice(iter(loader), 2))]
    for world, batches in ((worlds[1], 1), (worlds[2], None)):
        states, loaders = states_of(loaders), read_by(world, kind)
        counts = []
        for loader in loaders:
            loader.load_state_dict(states)
            numbers = values(islice(iter(loader), batches))
            counts.append(len(numbers))
            seen += numbers
    assert sorted(seen) == list(range(SAMPLES))
    following = [number for loader in loaders for number in values(loader)]
    assert sorted(following) == list(range(SAMPLES)), "the next epoch has them all"


@pytest.mark.parametrize(("before", "after"), [(2, 3), pytest.param(3, 2, marks=pytest.mark.slow)])
def test_other_ranks_with_workers_read_the_rest(before: int, after: int) -> None:
    first = read_by(before, "plain", workers=2)
    seen = [number for loader in first for number in values(islice(iter(loader), 2))]
    states = states_of(first)
    for loader in read_by(after, "plain", workers=1):
        loader.load_state_dict(states)
        seen += values(loader)
    assert sorted(seen) == list(range(SAMPLES))


def test_ranks_that_do_not_divide_the_parts_have_equally_many_samples() -> None:
    first = read_by(2, "plain")
    for loader in first:
        next(iter(loader))
    states, counts = states_of(first), []
    for loader in read_by(3, "plain"):
        loader.load_state_dict(states)
        counts.append(len(values(loader)))
    assert sum(counts) == SAMPLES - 8
    assert max(counts) - min(counts) <= 2  # one for each part


def test_between_two_epochs_and_where_one_rank_has_ended_the_others_rest_is_left() -> None:
    first = read_by(2, "plain")
    ended = [values(first[0]), values(islice(iter(first[1]), 2))]
    states, rest = states_of(first), []
    for loader in read_by(3, "plain"):
        loader.load_state_dict(states)
        rest += values(loader)
    assert sorted(ended[0] + ended[1] + rest) == list(range(SAMPLES))
    whole = read_by(2, "plain")
    for loader in whole:
        values(loader)
    again = read_by(None, "plain")[0]
    again.load_state_dict(states_of(whole))
    assert sorted(values(again)) == list(range(SAMPLES))


def test_what_are_not_the_states_of_all_ranks_is_refused() -> None:
    first = read_by(3, "plain")
    states = states_of(first)
    loader = read_by(2, "plain")[0]
    for wrong in ([], states[:2], [states[0]] * 3, [*states[:2], read_by(2, "plain")[1].state_dict()]):
        with pytest.raises(rk.StateError, match="states of all ranks"):
            loader.load_state_dict(wrong)
    with pytest.raises(rk.StateError, match="seed"):
        loader.load_state_dict([*states[:2], {**states[2], "seed": 1}])
    with pytest.raises(rk.StateError, match="stream_of"):
        loader.load_state_dict([*states[:2], {**states[2], "stream_of": "rank 5 of 3"}])
    with pytest.raises(rk.StateError, match="one rank's state is enough"):
        rk.DataLoader(range(9)).load_state_dict([])


@pytest.mark.parametrize(("workers", "shuffle"), [(0, False), (0, True), (2, False)])
def test_a_stream_of_hugging_face_resumes_exactly_also_from_its_shuffle_buffer(
    workers: int, shuffle: bool
) -> None:
    datasets = pytest.importorskip("datasets")

    def make() -> rk.DataLoader[Any]:
        rows = datasets.Dataset.from_dict({"value": list(range(40))})
        stream = rows.to_iterable_dataset(num_shards=4)
        stream = stream.shuffle(seed=2, buffer_size=7) if shuffle else stream
        return rk.DataLoader(stream, 3, num_workers=workers, seed=1)

    loader = make()
    straight, states = [], [loader.state_dict()]
    for batch in loader:
        straight.append(batch["value"].tolist())
        states.append(loader.state_dict())
    states.append(loader.state_dict())  # between two epochs
    for step in (0, 1, 4, len(straight) - 1, len(straight), len(straight) + 1):
        resumed = make()
        resumed.load_state_dict(through_a_file(states[step]))
        if step <= len(straight):
            assert [batch["value"].tolist() for batch in resumed] == straight[step:], step
        assert [batch["value"].tolist() for batch in resumed] == straight, step
        resumed.close()


def _share_of_a_group(rank: int) -> list[int]:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": list(range(48))}).to_iterable_dataset(num_shards=4)
    return [int(one) for batch in rk.DataLoader(rows, 4, shard="ranks", seed=0) for one in batch["x"]]


def test_ranks_of_a_group_share_a_stream() -> None:
    assert sorted(one for share in run_ranks(_share_of_a_group, 2) for one in share) == list(range(48))
