"""One rank's state of a stream is that of all ranks, while they are in step; else it is refused."""

from itertools import islice
from typing import Any

import pytest
import torch.distributed as dist

import rekindle as rk
from rank_processes import run_ranks
from resumable import through_a_file

SAMPLES = 97


def _rows(lengths: list[int]) -> Any:
    for length in lengths:
        yield from ({"x": 1000 * length + number} for number in range(length))


def stream(kind: str = "plain", lengths: tuple[int, ...] = ()) -> Any:
    datasets = pytest.importorskip("datasets")
    if lengths:
        return datasets.IterableDataset.from_generator(_rows, gen_kwargs={"lengths": list(lengths)})
    rows = datasets.Dataset.from_dict({"x": list(range(SAMPLES))}).to_iterable_dataset(num_shards=6)
    return rows.shuffle(seed=1, buffer_size=7) if kind == "shuffled" else rows


def load(dataset: Any, workers: int, rank: int, world: int | None, **more: Any) -> Any:
    shard = None if world is None else (rank, world)
    context = "fork" if workers else None
    return rk.DataLoader(
        dataset, 4, num_workers=workers, multiprocessing_context=context, seed=0, shard=shard, **more
    )


def batches_of(loader: Any, count: int | None = None) -> list[list[int]]:
    return [batch["x"].tolist() for batch in islice(iter(loader), count)]


def flat(shares: list[list[list[int]]]) -> list[int]:
    return sorted(number for share in shares for batch in share for number in batch)


@pytest.mark.parametrize(
    ("kind", "world", "workers", "steps", "saved_by", "more"),
    [
        ("plain", 2, 0, 3, 0, {}),
        ("shuffled", 3, 2, 3, 0, {}),
        ("plain", 2, 3, 4, 1, {"drop_last": True}),
        ("plain", 2, 1, 3, 0, {"final_transform": dict}),
        ("plain", 2, 1, 5, 0, {"reuse": rk.Echo(2)}),
    ],
)
def test_every_rank_goes_on_from_the_state_of_one(
    kind: str, world: int, workers: int, steps: int, saved_by: int, more: dict[str, Any]
) -> None:
    def make() -> list[Any]:
        return [load(stream(kind), workers, rank, world, **more) for rank in range(world)]

    straight = [(batches_of(loader), batches_of(loader)) for loader in make()]
    begun = make()[saved_by]
    batches_of(begun, steps)
    state = through_a_file(begun.state_dict())
    for (first, second), loader, again in zip(straight, make(), make(), strict=True):
        loader.load_state_dict(state)
        loader.load_state_dict(through_a_file(loader.state_dict()))  # It is that of this rank now.
        head, rest = islice(iter(loader), 1), first[steps:]
        assert [batch["x"].tolist() for batch in head] == rest[:1]
        again.load_state_dict(through_a_file(loader.state_dict()))
        assert batches_of(again) == rest[1:]
        assert batches_of(again) == second


@pytest.mark.parametrize(("world", "workers"), [(2, 0), (3, 2), (None, 1)])
@pytest.mark.parametrize(
    ("kind", "after", "new_workers"),
    [("plain", None, 0), ("plain", 4, 0), ("shuffled", 3, 1), ("plain", 2, 2)],
)
def test_other_ranks_and_workers_go_on_from_the_state_of_one(
    kind: str, world: int | None, workers: int, after: int | None, new_workers: int
) -> None:
    loaders = [load(stream(kind), workers, rank, world) for rank in range(world or 1)]
    shares = [batches_of(loader, 3) for loader in loaders]
    state = through_a_file(loaders[-1].state_dict())
    others = [load(stream(kind), new_workers, rank, after) for rank in range(after or 1)]
    for loader in others:
        loader.load_state_dict(state)
        shares.append(batches_of(loader))
    assert flat(shares) == list(range(SAMPLES))
    assert flat([batches_of(loader) for loader in others]) == list(range(SAMPLES)), "the next epoch has all"


def test_between_two_epochs_one_state_is_enough() -> None:
    first = load(stream(), 0, 1, 2)
    batches_of(first)
    others = [load(stream(), 0, rank, 3) for rank in range(3)]
    for loader in others:
        loader.load_state_dict(through_a_file(first.state_dict()))
        assert loader.state_dict()["epoch"] == 1
    assert flat([batches_of(loader) for loader in others]) == list(range(SAMPLES))


LENGTHS = (20, 9, 20, 20)  # of the shards: the second is worker 0 of rank 1's part


@pytest.mark.parametrize("steps", [4, 5, 6, 7])
@pytest.mark.parametrize("drop_last", [False, True])
def test_parts_of_different_lengths_are_refused_only_once_one_is_used_up(steps: int, drop_last: bool) -> None:
    def make(world: int = 2, workers: int = 2) -> list[Any]:
        return [
            load(stream(lengths=LENGTHS), workers, rank, world, drop_last=drop_last) for rank in range(world)
        ]

    loaders = make()
    shares = [batches_of(loader, steps) for loader in loaders]
    state = loaders[0].state_dict()
    # The part with 9 samples has three batches, or two whole ones.
    is_in_step = steps <= (4 if drop_last else 6)
    for others in (make(), make(1), make(2, 1)):

        def rest(loaders: list[Any] = others) -> list[list[list[int]]]:
            for loader in loaders:
                loader.load_state_dict(state)
            return [batches_of(loader) for loader in loaders]

        if not is_in_step:
            with pytest.raises(rk.StateError, match="a list of the states of all ranks"):
                rest()
        elif drop_last:
            rest()
        else:
            assert flat([*shares, *rest()]) == sorted(row["x"] for row in _rows(list(LENGTHS)))


def test_where_a_worker_of_the_rank_that_saved_has_ended_others_refuse_at_once() -> None:
    saved = load(stream(lengths=LENGTHS), 2, 1, 2)
    batches_of(saved, 7)
    for rank, world in ((0, 2), (0, 1)):
        with pytest.raises(rk.StateError, match="the workers of rank 1 had 3, 4 batches"):
            load(stream(lengths=LENGTHS), 2, rank, world).load_state_dict(saved.state_dict())


@pytest.mark.parametrize("kind", ["plain", "shuffled"])
@pytest.mark.parametrize(
    "chain", [((2, 0), (3, 0), (2, 0)), ((4, 1), (2, 2), (2, 2)), ((3, 0), (2, 2), (None, 1), (2, 0), (4, 0))]
)
def test_a_chain_of_worlds_needs_the_state_of_one_rank_each(kind: str, chain: tuple[Any, ...]) -> None:
    shares: list[Any] = []
    state, saved_by = None, 0
    for at, (world, workers) in enumerate(chain):
        loaders = [load(stream(kind), workers, rank, world) for rank in range(world or 1)]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
            shares.append(batches_of(loader, None if at == len(chain) - 1 else 2))
        saved_by = (saved_by + 1) % len(loaders)
        state = through_a_file(loaders[saved_by].state_dict())
    assert flat(shares) == list(range(SAMPLES))


def test_ranks_of_the_same_world_go_on_with_exactly_their_batches_in_an_epoch_that_others_began() -> None:
    first = load(stream(), 0, 0, 2)
    batches_of(first, 2)
    second = [load(stream(), 0, rank, 3) for rank in range(3)]
    running = []
    for loader in second:
        loader.load_state_dict(first.state_dict())
        running.append(iter(loader))
    for batches in running * 2:
        next(batches)
    state = through_a_file(second[0].state_dict())
    for batches, third in zip(running, [load(stream(), 0, rank, 3) for rank in range(3)], strict=True):
        third.load_state_dict(state)
        assert batches_of(third) == [batch["x"].tolist() for batch in batches]


def test_where_one_rank_says_nothing_of_the_others_the_states_of_all_are_asked_for() -> None:
    """It went on with another number of workers, alone: whether the others did is not known."""
    first = load(stream(), 1, 0, 2)
    batches_of(first, 2)
    second = load(stream(), 2, 0, 2)
    second.load_state_dict(first.state_dict())
    batches_of(second, 1)
    for rank, world in ((1, 2), (0, 3)):
        with pytest.raises(rk.StateError, match="a list of the states of all ranks"):
            load(stream(), 2, rank, world).load_state_dict(second.state_dict())
    load(stream(), 2, 0, 2).load_state_dict(second.state_dict())


@pytest.mark.parametrize("damage", [{"of": 3}, {"of": [{"worker": 2}]}, {"every": 0}])
def test_a_damaged_part_that_others_began_is_refused(damage: dict[str, Any]) -> None:
    state: Any = None
    for world in (2, 3, 2):
        loader = load(stream(), 0, 0, world)
        if state is not None:
            loader.load_state_dict(state)
        batches_of(loader, 1)
        state = loader.state_dict()
    state["iterable"]["begun"][1].update(damage)
    with pytest.raises(rk.StateError, match="begun"):
        load(stream(), 0, 0, 2).load_state_dict(state)


def test_a_damaged_claim_is_refused() -> None:
    first = load(stream(), 1, 0, 2)
    batches_of(first, 2)
    second = load(stream(), 1, 1, 2)
    second.load_state_dict(first.state_dict())
    state = second.state_dict()
    state["iterable"]["datasets"][0]["derived"] = 3
    with pytest.raises(rk.StateError, match="derived: expected a bool"):
        second.load_state_dict(state)


def _saved_by_rank_0(rank: int, state: Any, steps: int | None) -> tuple[Any, list[list[int]]]:
    """Rank 0 saves alone; the others only go on."""
    loader = rk.DataLoader(stream(), 4, shard="ranks", seed=0)
    if state is not None:
        loader.load_state_dict(state)
    found = batches_of(loader, steps)
    saved = loader.state_dict() if rank == 0 else None
    dist.barrier()
    return saved, found


def test_ranks_of_a_group_go_on_from_what_rank_0_saved() -> None:
    begun = run_ranks(_saved_by_rank_0, 2, None, 3)
    state = through_a_file(begun[0][0])
    rest = run_ranks(_saved_by_rank_0, 3, state, None)
    assert flat([share for _, share in begun + rest]) == list(range(SAMPLES))
