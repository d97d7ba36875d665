"""One rank's state is that of all ranks, also of what each has reported: nobody else need be asked."""

import time

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import Dataset

import rekindle as rk
from rank_processes import run_ranks, wait_no_longer_than
from rekindle.choose import agreement
from rekindle.choose.importance.shared_findings import _decoded, _entries
from rekindle.choose.scores import Findings, Loaded, Measured

SIZE = 48


class Numbers(Dataset):
    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return index


def make_loader(batch_size=4, **arguments):
    method = rk.Buckets(warmup=1, rate=0.1, confidence=0)
    return rk.DataLoader(
        Numbers(), batch_size, shuffle=True, seed=3, shard="ranks", importance=method, **arguments
    )


def losses_of(ids, epoch):
    return (ids * 7919 % 31).float() / (1 + epoch)


def report(loader, ids):
    loader.feedback(losses_of(ids, loader.batch.epoch))


def choices(loader, epochs):
    """The samples of some epochs to come, as they are chosen from what is known."""
    found = []
    for _ in range(epochs):
        seen = []
        for ids in loader:
            report(loader, ids)
            seen += ids.tolist()
        everyones = [None] * dist.get_world_size()
        dist.all_gather_object(everyones, seen)
        found.append(sorted({index for one in everyones for index in one}))
    return found


def _saved_by_rank_0(rank, slow):
    """Each step, rank 0 saves alone while all others wait in a barrier, or have gone on."""
    loader, states = make_loader(), []
    for _ in range(2):
        for ids in loader:
            if slow and rank == 1:
                time.sleep(0.02)
            report(loader, ids)
            if rank == 0:
                states.append(loader.state_dict())
            if not slow:
                dist.barrier()
    return states, choices(loader, 1)


@pytest.mark.parametrize("slow", [False, True])
def test_rank_0_alone_saves_what_all_ranks_have_reported(slow):
    (states, next_one), (nothing, same) = run_ranks(_saved_by_rank_0, 2, slow)
    assert not nothing
    assert next_one == same
    for number, state in enumerate(states[:6]):
        measured = state["importance_state"]["measured"]
        assert len(measured["ids"].unique()) == len(measured["ids"]) == 8 * (number + 1)
        assert torch.equal(measured["loss"], losses_of(measured["ids"], 0))
    assert run_ranks(_go_on, 3, states[8]) == [next_one] * 3


def _go_on(rank, state):
    loader = make_loader()
    loader.load_state_dict(state)
    for ids in loader:
        report(loader, ids)
    return choices(loader, 1)


def _pieces_and_gaps(rank):
    """Ranks report in pieces, and rank 1 only on some batches; all save, at different points."""
    loader, states = make_loader(), []
    for step, ids in enumerate(loader):
        if rank == 0 or step % 2:
            for piece in ids.split(2):
                loader.feedback(losses_of(piece, 0))
        if step == 3:
            states.append(loader.state_dict())
        if rank == 0 and step == 4:
            states.append(loader.state_dict())  # Rank 1 goes on, which is enough.
    return [sorted(state["importance_state"]["measured"]["ids"].tolist()) for state in states]


def test_ranks_may_report_in_pieces_and_leave_out_batches():
    (first, later), (second,) = run_ranks(_pieces_and_gaps, 2)
    assert first == second
    assert len(set(first)) == 4 * 4 + 2 * 4
    assert len(set(later)) == 5 * 4 + 2 * 4


def _silent(rank):
    loader, store = make_loader(), agreement._met().store
    ids = next(iter(loader))
    if rank == 0:
        report(loader, ids)
        wait_no_longer_than(0.5)
        with pytest.raises(rk.RankError, match="rank 1 has not reported feedback on batch 0"):
            loader.state_dict()
        store.set("named", "")
    while not store.check(["named"]):
        time.sleep(0.01)
    return True


def test_a_rank_that_is_held_up_without_a_report_is_named():
    assert run_ranks(_silent, 2) == [True, True]


def _two_loaders(rank):
    """Two loaders, one within the other: what is reported to one is not taken for the other's."""
    first, second = make_loader(), make_loader(6)
    len(second) if rank == 0 else None
    outer = iter(first)
    for step, ids in enumerate(second):
        report(second, ids)
        if step == 1:
            report(first, next(outer))
    states = [first.state_dict(), second.state_dict()]
    return [len(state["importance_state"]["measured"]["ids"]) for state in states]


def test_loaders_are_kept_apart():
    assert run_ranks(_two_loaders, 2) == [[8, 0]] * 2


def test_findings_are_read_as_they_were_written():
    ids = torch.arange(300_000).numpy()
    measured = Measured(
        ids,
        ids.astype("f4"),
        ids.astype("f4") / 3,
        ids.astype("f4") / 7,
        (ids % 2).astype("i1"),
        ids.astype("i4"),
    )
    found = Findings(measured, Loaded(ids[:5], ids[:5].astype("f4"), ids[:5]), 1.5, 2.5)
    entries = [*_entries(4, found)]
    assert max(map(len, entries)) < 8 << 20
    steps, parts = zip(*map(_decoded, entries), strict=True)
    assert set(steps) == {4}
    again = Findings.of(parts)
    assert (again.wait_seconds, again.work_seconds) == (1.5, 2.5)
    for column, same in zip((*found.measured, *found.loaded), (*again.measured, *again.loaded), strict=True):
        assert column.dtype == same.dtype
        assert (column == same).all()
