"""Ranks that differ, or do not come, are named: on every rank, by the same error."""

import time

import pytest
import torch.distributed as dist

import rekindle as rk
from rank_processes import run_ranks, wait_no_longer_than
from rekindle.choose import agreement
from rekindle.choose.agreement import agree, decided_by_first_rank, differences


def problem(call, *arguments):
    try:
        return call(*arguments)
    except rk.RankError as error:
        return str(error)


def _meet(rank):
    same = [problem(agree, "a loader", {"seed": 1, "steps": 4}) for _ in range(3)]
    other = problem(agree, "a loader", {"seed": 1, "steps": 4, "dataset_size": 100 - 7 * (rank == 1)})
    again = problem(agree, "a loader", {"seed": 1})
    decided = [decided_by_first_rank("the seed", lambda: 10 + rank) for _ in range(2)]
    dist.barrier()
    left = agreement._met().store.num_keys() if rank == 0 else 0
    return same, other, again, decided, left


def test_all_ranks_hear_who_differs_and_in_what():
    for same, other, again, decided, _ in run_ranks(_meet, 3):
        assert same == [None] * 3
        assert other.startswith(
            "the ranks do not agree on a loader: dataset_size is 93 on rank 1, and 100 on the others"
        )
        assert again is None
        assert decided == [10, 10]


def _come(rank):
    """Rank 1 goes elsewhere, and is too late; rank 0 looks who is there when rank 2 is."""
    store, key = agreement._met().store, "rekindle/the feedback of epoch 3/0"
    if rank < 2:
        while not store.check([f"{key}/answer" if rank == 1 else f"{key}/2"]):
            time.sleep(0.01)
        wait_no_longer_than(0.5)
    return problem(agree, "the feedback of epoch 3", {})


def test_a_rank_that_does_not_come_is_named_and_nobody_hangs():
    for text in run_ranks(_come, 3):
        assert text.startswith("rank 1 has not come to exchange the feedback of epoch 3 within 0.5 s")


def _first_is_missing(rank):
    if rank == 0:
        while not agreement._met().store.check(["gave up"]):
            time.sleep(0.01)
        return ""
    wait_no_longer_than(0.5)
    found = problem(agree, "a loader", {}), problem(decided_by_first_rank, "the seed", lambda: 3)
    agreement._met().store.set("gave up", "")
    return found


def test_rank_0_is_named_by_the_others():
    _, (meeting, decision) = run_ranks(_first_is_missing, 2)
    assert meeting.startswith("rank 0 has not come to exchange a loader")
    assert "waits for rank 0, which decides on the seed" in decision


def test_without_ranks_nobody_waits():
    agree("a loader", {"seed": 1})
    assert decided_by_first_rank("the seed", lambda: 3) == 3


@pytest.mark.parametrize(
    ("values", "named"),
    [([1, 1, 1], ""), ([1, 2, 1], "2 on rank 1"), ([2, 1, 1], "2 on rank 0"), ([1, None], "null on rank 1")],
)
def test_the_ranks_that_are_not_as_most_are_named(values, named):
    assert named in differences("it", [{"seed": value} for value in values])
    assert bool(differences("it", [{"seed": value} for value in values])) == bool(named)


def test_many_ranks_that_differ_are_not_all_listed():
    text = differences("it", [{"seed": rank} for rank in range(100)])
    assert "and 91 more" in text
