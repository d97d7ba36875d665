"""torch's loader is the oracle: any script gets from ours what it gets from torch's.

What does not depend on chance is equal to the bit. What does has as many distinct views as torch gives, is
the same for any number of workers, any executor and after a resume, and never the same twice.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch.utils.data
from hypothesis import given, seed, settings
from hypothesis import strategies as st

import rekindle as rk
from differential.scripts import DRAWN_ORDERS, Event, Script, Setup, close, one_epoch, play, scripts, set_up
from differential.views import samples_of, views_of, without_views
from resumable import through_a_file
from same import same

Torch = torch.utils.data.DataLoader
SEED = 3
# Examples of each kind: those with workers take longest.
INLINE, WORKERS, RESUMED, RESUMED_WITH_WORKERS = 240, 15, 40, 7
# The slow run has very many, in parts that are short enough to be watched for hangs. Each part has scripts of
# its own; with another SEED in the environment, others.
PART, SEED_OF_PARTS = 50, int(os.environ.get("SEED", "0"))
MANY, MANY_WITH_WORKERS = range(200), range(50)  # parts of each kind

pytestmark = pytest.mark.filterwarnings("ignore")


def our_options(script: Script) -> dict[str, Any]:
    return {"seed": SEED, **({"executor": script.executor} if script.workers else {})}


def ours(script: Script) -> list[list[Event]]:
    return play(script, rk.DataLoader, **our_options(script))


def our_setup(script: Script) -> Setup:
    return set_up(script, rk.DataLoader, **our_options(script))


def assert_torchs(script: Script, found: list[list[Event]], expected: list[list[Event]]) -> None:
    """The epochs are what torch gives, but for what is drawn."""
    if script.order_is_ours:
        assert_same_samples(script, found, expected)
    else:
        for got, want in zip(found, expected, strict=True):
            assert [kind for kind, _ in got] == [kind for kind, _ in want]
            for (kind, one), (_, other) in zip(got, want, strict=True):
                assert same(*map(without_views, (one, other))) if kind == "batch" else one == other
    if script.draws != "none":
        drawn = list(views_of(found))
        assert len(set(views_of(expected))) == len(list(views_of(expected)))  # or the test means nothing
        assert len(set(drawn)) == len(drawn)


def assert_same_samples(script: Script, found: list[list[Event]], expected: list[list[Event]]) -> None:
    """The order is drawn: the batches have the same sizes, and an epoch the same samples."""
    if script.bad is not None:
        return
    for got, want in zip(found, expected, strict=True):
        assert [len(samples_of(batch)) for _, batch in got] == [len(samples_of(batch)) for _, batch in want]
        if script.stop is None and not script.drop_last:
            assert content(got) == content(want)


def content(events: list[Event]) -> Counter[tuple[int, int]]:
    return Counter((index, label) for _, batch in events for index, label, _ in samples_of(batch))


def check_inline(script: Script) -> None:
    assert_torchs(script, ours(script), play(script, Torch))


def check_workers(script: Script) -> None:
    """With workers: as torch's workers, or (map-style, or threads, which share the dataset) as without."""
    outside = script.change in ("none", "batch sampler")  # of what workers have copies of
    sees_changes = script.executor == "threads" or not script.persistent or outside
    # Torch draws a base seed from the generator for each epoch, but only one for workers that persist.
    order_is_inlines = not (script.order_moves_torchs_generator and script.persistent)
    if script.executor == "threads" and not order_is_inlines:
        script = replace(
            script, change="none"
        )  # Torch's workers that persist do not see it, but our threads.
    if script.order == "generator" and (script.bad is not None or script.stop is not None):
        # RandomSampler draws once more at its end. Whether workers have read that far ahead when the script
        # leaves an epoch decides the next one's order: torch's own differs by the number of workers.
        script = replace(script, epochs=1)
    if script.order == "repeated" and script.batch_size is None:
        # With workers, torch calls `iter(sampler)` twice and follows the second: what a sampler that draws at
        # once draws first is lost. Ours is called once, with any number of workers.
        script = replace(script, batch_size=2)
    found = ours(script)
    shares_dataset = script.executor == "threads" and (script.is_iterable or order_is_inlines)
    theirs = replace(script, workers=0) if shares_dataset else script
    if script.change == "batch sampler":
        theirs = replace(theirs, persistent=False)  # Workers that persist keep the old one in torch alone.
    assert_torchs(script, found, play(theirs, Torch))
    if not script.is_iterable and sees_changes and order_is_inlines and script.stop is None:
        inline = ours(replace(script, workers=0))
        assert_equal(found, inline)


def check_resume(script: Script) -> None:
    """Interrupted at any batch and resumed elsewhere: the same batches as without."""
    # A script that draws its order from torch's global generator has to restore that one itself.
    assert script.seeded or script.order not in DRAWN_ORDERS
    epoch, batches = script.resume
    if script.kind == "only once":
        epoch = 0  # It keeps no state that could be saved.
    whole = ours(script)
    first = our_setup(script)
    found: list[list[Event]] = []
    try:
        for number in range(epoch + 1):
            follow(first.loader, number)
            if number < epoch:
                found.append(one_epoch(script, first.loader, None))
            else:
                found.append(one_epoch(script, first.loader, min(batches, len(whole[epoch]))))
        state = through_a_file(first.loader.state_dict())
    finally:
        close(first.loader)
    second = our_setup(replace(script, workers=script.resumed_with))
    try:
        second.loader.load_state_dict(state)
        follow(second.loader, epoch)
        found[-1] += one_epoch(script, second.loader, None)
        for number in range(epoch + 1, script.epochs):
            follow(second.loader, number)
            found.append(one_epoch(script, second.loader, None))
    finally:
        close(second.loader)
    assert_equal(found, whole)


def follow(loader: Any, epoch: int) -> None:
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(epoch)


def assert_equal(found: list[list[Event]], expected: list[list[Event]]) -> None:
    assert [len(events) for events in found] == [len(events) for events in expected]
    for got, want in zip(found, expected, strict=True):
        for (kind, one), (other_kind, other) in zip(got, want, strict=True):
            assert kind == other_kind
            assert same(one, other)


@settings(max_examples=INLINE)
@given(scripts())
def test_any_script_gets_what_torch_gives(script: Script) -> None:
    check_inline(script)


@settings(max_examples=WORKERS)
@given(scripts(workers=(1, 2)))
def test_any_script_with_workers_gets_what_torch_gives(script: Script) -> None:
    check_workers(script)


@settings(max_examples=RESUMED)
@given(scripts(resumed=True))
def test_any_script_that_is_resumed_gets_what_it_would_have_got(script: Script) -> None:
    check_resume(script)


@settings(max_examples=RESUMED_WITH_WORKERS)
@given(scripts(workers=(1, 0, 2), resumed=True))
def test_any_script_that_is_resumed_with_workers_gets_what_it_would_have_got(script: Script) -> None:
    check_resume(script)


def check_part(part: int, check: Callable[[Script], None], strategy: st.SearchStrategy[Script]) -> None:
    def run(script: Script) -> None:
        check(script)

    seeded = seed(1000 * SEED_OF_PARTS + part)(given(script=strategy)(run))
    settings(max_examples=PART, database=None)(seeded)()


@pytest.mark.slow
@pytest.mark.parametrize("part", MANY)
def test_very_many_scripts_get_what_torch_gives(part: int) -> None:
    check_part(part, check_inline, scripts())


@pytest.mark.slow
@pytest.mark.parametrize("part", MANY_WITH_WORKERS)
def test_very_many_scripts_with_workers_get_what_torch_gives(part: int) -> None:
    check_part(part, check_workers, scripts(workers=(1, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("part", MANY)
def test_very_many_scripts_that_are_resumed_get_what_they_would_have_got(part: int) -> None:
    check_part(part, check_resume, scripts(resumed=True))


@pytest.mark.slow
@pytest.mark.parametrize("part", MANY_WITH_WORKERS)
def test_very_many_scripts_that_are_resumed_with_workers_get_what_they_would_have_got(part: int) -> None:
    check_part(part, check_resume, scripts(workers=(1, 0, 2), resumed=True))
