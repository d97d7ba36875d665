"""What the report says is what happened."""

import json
import os
import signal
import time
from html.parser import HTMLParser

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import rekindle as rk

STAGES = {"load", "collate", "ship", "wait", "consume", "idle"}
RUNNERS = {
    "inline": {},
    "processes": {"num_workers": 2, "executor": "processes"},
    "threads": {"num_workers": 2, "executor": "threads"},
}


class Numbers(Dataset):
    """Rows of 1,000 bytes, each after some time."""

    draws_nothing = True

    def __init__(self, size=50, seconds=0.0):
        self.size, self.seconds = size, seconds

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.full((1000,), index % 256, dtype=torch.uint8)


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        number, workers = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(number, 50, workers))


class Bad(Numbers):
    def __getitem__(self, index):
        if index in (3, 4):
            raise ValueError(f"<b>sample</b> & {index} [red]")
        return super().__getitem__(index)


def pass_over(loader, epochs=1, seconds=0.0):
    samples = batches = 0
    for _ in range(epochs):
        for batch in loader:
            samples += len(batch)
            batches += 1
            time.sleep(seconds)
    return samples, batches


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("drop_last", [False, True])
def test_samples_and_batches_are_what_was_handed_over(runner, drop_last):
    loader = rk.DataLoader(Numbers(), 8, drop_last=drop_last, seed=1, **RUNNERS[runner])
    handed_over = pass_over(loader, epochs=3)
    report = loader.report()
    assert (report.samples, report.batches) == handed_over


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_samples_of_a_stream_are_counted_exactly(workers):
    """Of a stream, only the worker knows that a last batch is not full."""
    loader = rk.DataLoader(Stream(), 8, num_workers=workers, seed=1)
    counted = 0
    for batch in loader:
        counted += len(batch)
        assert len(loader.batch.ids) == len(batch)
    report = loader.report()
    assert counted == report.samples == 50


@pytest.mark.parametrize("runner", RUNNERS)
def test_skipped_samples_are_not_counted(runner):
    loader = rk.DataLoader(Bad(), 8, on_error="skip", error_budget=1, seed=1, **RUNNERS[runner])
    assert pass_over(loader) == (48, 7)
    assert loader.report().samples == 48
    assert len(loader.report().bad_samples) == 2


@pytest.mark.parametrize("runner", RUNNERS)
def test_every_stage_is_there_and_adds_up(runner):
    loader = rk.DataLoader(Numbers(seconds=0.001), 8, seed=1, **RUNNERS[runner])
    iterator = iter(loader)  # starts the workers, which is none of the stages
    started = time.perf_counter()
    pass_over(iterator, seconds=0.002)
    took = time.perf_counter() - started
    report = loader.report()
    assert set(report.stages) == STAGES
    assert all(stage.seconds >= 0 for stage in report.stages.values())
    # Workers are ahead, so they have loaded at least what was handed over, at 1 ms each.
    assert report.stages["load"].calls >= 50
    assert report.stages["load"].seconds >= 0.05
    # The training loop's time is spent waiting, being handed a batch, or on the batch.
    own = sum(report.stages[name].seconds for name in ("wait", "ship", "consume"))
    assert own == pytest.approx(took, abs=0.05)
    assert took <= report.elapsed_seconds < took + 5


@pytest.mark.parametrize("runner", RUNNERS)
def test_bytes_are_counted(runner):
    loader = rk.DataLoader(Numbers(), 8, seed=1, **RUNNERS[runner])
    pass_over(loader)
    assert loader.report().stages["collate"].nbytes >= 50 * 1000


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_slow_data_set_makes_the_loop_wait(runner):
    loader = rk.DataLoader(Numbers(seconds=0.005), 8, seed=1, **RUNNERS[runner])
    pass_over(loader)
    report = loader.report()
    assert report.wait_seconds > 0.05
    assert report.wait_share > 0.8


@pytest.mark.parametrize("runner", ["processes", "threads"])
def test_a_slow_loop_does_not_wait_but_keeps_workers_idle(runner):
    loader = rk.DataLoader(Numbers(96), 8, seed=1, **RUNNERS[runner])
    iterator = iter(loader)
    next(iterator)  # Starting the workers is not the matter here.
    before = loader.report().wait_seconds
    for _ in iterator:
        time.sleep(0.03)
    report = loader.report()
    assert report.stages["consume"].seconds > 0.3
    assert report.wait_seconds - before < 0.1
    assert report.stages["idle"].seconds > 0.3


class Unknown(Numbers):
    draws_nothing = False


def test_waiting_for_the_training_loop_is_not_the_data_sets_time():
    """Threads run unknown code only while the training loop waits for it."""
    loader = rk.DataLoader(Unknown(96), 8, num_workers=2, executor="threads", seed=1)
    pass_over(loader, seconds=0.03)
    assert loader.report().stages["load"].seconds < 0.1


def test_a_report_does_not_change_after_it_was_made():
    loader = rk.DataLoader(Numbers(), 8, seed=1)
    pass_over(loader)
    report = loader.report()
    text, data = str(report), json.dumps(report.to_dict())
    pass_over(loader)
    assert (str(report), json.dumps(report.to_dict())) == (text, data)
    assert loader.report().samples == 100


def test_a_report_on_nothing_is_zero():
    report = rk.DataLoader(Numbers(), 8).report()
    assert (report.samples, report.batches, report.wait_share) == (0, 0, 0.0)
    assert "0 samples" in str(report)


@pytest.mark.parametrize("runner", RUNNERS)
def test_to_dict_is_plain_data(runner):
    loader = rk.DataLoader(Bad(), 8, on_error="skip", error_budget=1, seed=1, **RUNNERS[runner])
    pass_over(loader)
    data = json.loads(json.dumps(loader.report().to_dict()))
    assert data["samples"] == 48
    assert data["workers"] == RUNNERS[runner].get("num_workers", 0)
    assert data["executor"] == runner
    assert set(data["stages"]) == STAGES
    for stage in data["stages"].values():
        assert set(stage) == {"calls", "seconds", "bytes"}
    assert [(bad["id"], bad["epoch"]) for bad in data["bad_samples"]] == [(3, 0), (4, 0)]


class Reader(HTMLParser):
    """Collects a page's text and checks that what is opened is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.tags = [], "", []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)
        assert not {"src", "href"} & {name for name, _ in attributes}

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_to_html_writes_a_page_that_stands_alone(tmp_path):
    loader = rk.DataLoader(Bad(), 8, on_error="skip", error_budget=1, seed=1)
    pass_over(loader)
    loader.report().to_html(tmp_path / "report.html")
    reader = Reader()
    reader.feed((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert reader.open == []
    assert {"table", "tr", "td"} <= set(reader.tags)
    assert "48 samples in 7 batches" in reader.text
    assert "<b>sample</b> & 3" in reader.text  # shown, not obeyed
    assert all(f"{stage}:" in reader.text for stage in STAGES)


def test_a_report_prints_as_a_table():
    loader = rk.DataLoader(Bad(), 8, on_error="skip", error_budget=1, seed=1)
    pass_over(loader)
    text = str(loader.report())
    lines = text.splitlines()
    assert "48 samples in 7 batches" in " ".join(lines[:2])
    assert all(any(f"{stage}:" in line for line in lines) for stage in STAGES)
    assert "bad sample 3 in epoch 0: ValueError: <b>sample</b> & 3 [red]" in text
    assert max(map(len, lines)) <= 100


def test_replaced_workers_are_counted():
    loader = rk.DataLoader(Numbers(200, seconds=0.001), 8, num_workers=2, seed=1)
    iterator = iter(loader)
    next(iterator)
    assert loader.report().replaced_workers == 0
    os.kill(iterator._workers[0].pid, signal.SIGKILL)
    list(iterator)
    report = loader.report()
    assert report.replaced_workers == report.to_dict()["replaced_workers"] == 1
    assert "1 workers replaced" in str(report)
    assert report.samples == 200


def test_a_report_can_be_had_at_any_moment():
    loader = rk.DataLoader(Numbers(), 8, num_workers=2, seed=1)
    seen = []
    for _ in loader:
        report = loader.report()
        seen.append((report.batches, report.samples))
    assert seen == [(n, min(8 * n, 50)) for n in range(1, 8)]


def test_counting_is_cheap():
    """All that is counted for a batch, done alone, takes some microseconds."""
    counters = rk.DataLoader(Numbers(), 8)._counters
    started = time.perf_counter()
    for _ in range(1000):
        for stage in (counters.load, counters.collate, counters.ship, counters.wait):
            stage.add(time.perf_counter() - started, 1000)
        for stage in (counters.consume, counters.idle):
            stage.add(time.perf_counter() - started)
        counters.samples += 8
        counters.batches += 1
    assert (time.perf_counter() - started) / 1000 < 50e-6
