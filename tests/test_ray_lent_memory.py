"""Memory that is lent to actors: found on this machine only, never lent twice while somebody may write."""

import multiprocessing
import os

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.run.ray import lent_memory
from rekindle.run.ray.lent_memory import Borrowed, Lender, LentMemory


def write_numbers(loan):
    Borrowed().find(loan)[:] = range(loan.nbytes)


def test_what_another_process_writes_is_there():
    memory = LentMemory(200)
    other = multiprocessing.get_context("fork").Process(target=write_numbers, args=[memory.loan])
    other.start()
    other.join()
    assert memory.array.tolist() == [*range(200)]


def test_memory_is_found_by_its_process_number_and_name_together():
    memory = LentMemory(100)
    loan, other = memory.loan, LentMemory(100)
    assert Borrowed().find(loan) is not None
    assert Borrowed().find(None) is None
    for wrong in (
        loan._replace(name="result-0"),
        loan._replace(fd=other.loan.fd),
        loan._replace(fd=0),
        loan._replace(pid=os.getppid()),
        loan._replace(pid=2**22 + 1),
        loan._replace(nbytes=1 << 20),
    ):
        assert Borrowed().find(wrong) is None, wrong
    del memory
    assert Borrowed().find(loan) is None


def test_an_actor_keeps_the_last_few_mapped():
    lent, borrowed = [LentMemory(64) for _ in range(8)], Borrowed()
    for one in lent:
        assert borrowed.find(one.loan) is not None
    loans = [one.loan for one in lent]
    lent.clear()  # Its owner has closed them.
    assert [borrowed.find(loan) is not None for loan in loans] == [False] * 4 + [True] * 4


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["lend", "answer", "copied", "dies"]), st.integers(1, 9000))))
def test_memory_is_lent_to_one_request_at_a_time(happenings):
    lender, at_work, answered = Lender(1), [], []
    for what, number in happenings:
        if what == "lend":
            memory = lender.lend(0, number)
            assert memory.loan.nbytes >= number
            in_use = [one for one, _ in answered] + [one for one, _ in at_work]
            assert not any(memory is one for one in in_use)
            at_work.append((memory, number))
        elif what == "answer" and at_work:
            memory, nbytes = at_work.pop(number % len(at_work))
            memory.array[:nbytes] = number % 256
            answered.append((memory, lender.take_back(0, memory, found=True, nbytes=nbytes)))
        elif what == "copied" and answered:
            answered.pop(number % len(answered))
        elif what == "dies":  # It may go on writing to what it was lent.
            lender.note_new_actor(0)
            given_up, at_work = [memory for memory, _ in at_work], []
            for _ in range(len(given_up) + 1):
                assert not any(lender.lend(0, 1) is one for one in given_up)
    for memory, written in answered:
        assert np.shares_memory(memory.array, written)


def test_who_has_not_found_any_is_lent_no_more():
    lender = Lender(2)
    assert lender.take_back(0, lender.lend(0, 10), found=False, nbytes=0) is None
    assert lender.lend(0, 10) is None
    assert lender.lend(1, 10) is not None
    lender.note_new_actor(0)
    assert lender.lend(0, 10) is not None


def test_without_memory_to_lend_the_object_store_is_used(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lent_memory, "reserve", full)
    assert Lender(1).lend(0, 10) is None
