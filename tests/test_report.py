"""The report counts what happened, and shows it as text, as data and as HTML."""

import dataclasses
import json
import os
import re
import signal
import threading
import time
from html.parser import HTMLParser

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import rekindle as rk
from clock import Clock
from rekindle.run.bad_samples import BadSample

STAGES = {"start", "load", "collate", "ship", "wait", "consume", "idle"}
RUNNERS = {
    "inline": {},
    "processes": {"num_workers": 2, "executor": "processes"},
    "threads": {"num_workers": 2, "executor": "threads"},
}


class Numbers(Dataset):
    """Rows of 1,000 bytes, each after some time, which may be a test's own."""

    draws_nothing = True

    def __init__(self, size=50, seconds=0.0, sleep=time.sleep):
        self.size, self.seconds, self.sleep = size, seconds, sleep

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.sleep(self.seconds)
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


def pass_over(loader, epochs=1, seconds=0.0, sleep=time.sleep):
    samples = batches = 0
    for _ in range(epochs):
        for batch in loader:
            samples += len(batch)
            batches += 1
            sleep(seconds)
    return samples, batches


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("drop_last", [False, True])
def test_samples_and_batches_are_what_was_yielded(runner, drop_last):
    loader = rk.DataLoader(Numbers(), 8, drop_last=drop_last, seed=1, **RUNNERS[runner])
    yielded = pass_over(loader, epochs=3)
    report = loader.report()
    assert (report.samples, report.batches) == yielded


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_samples_of_a_stream_are_counted_exactly(workers):
    """Only the worker knows that the last batch of a stream is not full."""
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
def test_every_stage_is_there_and_adds_up(runner, monkeypatch):
    """Exactly, by a clock that only loading a sample and working on a batch move, each for its own thread."""
    clock = Clock()
    clock.replace(monkeypatch)
    numbers = Numbers(seconds=0.25, sleep=clock.advance)
    loader = rk.DataLoader(numbers, 8, seed=1, **RUNNERS[runner])
    started = clock()
    pass_over(loader, seconds=2.0, sleep=clock.advance)
    took = clock() - started
    report = loader.report()
    assert set(report.stages) == STAGES
    seconds = {name: stage.seconds for name, stage in report.stages.items()}
    # Workers are ahead, so they have loaded at least what was yielded.
    assert report.stages["load"].calls >= 50
    assert seconds["load"] == 0.25 * report.stages["load"].calls
    assert seconds["consume"] == 2.0 * 7
    assert seconds["wait"] == (0.25 * 50 if runner == "inline" else 0)
    assert seconds["collate"] == seconds["idle"] == 0
    # The training loop's time is spent starting, waiting, receiving a batch, or on the batch.
    assert seconds["start"] + seconds["wait"] + seconds["ship"] + seconds["consume"] == took


def test_the_time_to_start_is_stated_by_itself(monkeypatch):
    """Exactly, by a clock that moves when a pass begins, and while the loop is at work on a batch."""
    clock = Clock()
    clock.replace(monkeypatch)

    class Slow(rk.DataLoader):
        def _settings(self, order=None):
            clock.advance(0 if order is None else 3.0)
            return super()._settings(order)

    loader = Slow(Numbers(), 8, seed=1)
    for _ in loader:
        clock.advance(2.0)
        break  # The loop is done with the batch when it asks for the next pass.
    pass_over(loader)
    report = loader.report()
    seconds = {name: stage.seconds for name, stage in report.stages.items()}
    assert report.start_seconds == report.to_dict()["start_seconds"] == seconds["start"] == 6
    assert (seconds["consume"], report.stages["consume"].calls, report.wait_share) == (2, 8, 0)
    assert "started in 6.00 s · waited 0.00 s, 0% of the time after starting" in " ".join(str(report).split())
    assert "2 epochs" in next(line for line in str(report).splitlines() if "start:" in line)
    texts = read_html(report.to_html())
    assert {"6.00 s", "2 epochs"} <= {*texts["dd"], *texts["td"]}


def test_what_was_loaded_ahead_is_explained():
    report = report_on_bad_samples()
    assert "ahead" not in str(report)
    loads = dataclasses.replace(report.stages["load"], calls=66)
    ahead = dataclasses.replace(report, stages=report.stages | {"load": loads})
    line = "load: 16 samples more than yielded, loaded ahead for the next batches"
    assert line in str(ahead).splitlines()
    assert line in read_html(ahead.to_html())["p"]
    replaced = dataclasses.replace(ahead, replaced_workers=1)
    assert f"{line}, or again for a replaced worker" in " ".join(str(replaced).split())


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_table_says_what_each_stage_counts(runner):
    loader = rk.DataLoader(Numbers(), 8, seed=1, **RUNNERS[runner])
    pass_over(loader)
    report = loader.report()
    rows = {row.split(":")[0].strip("│ "): row for row in repr(report).splitlines() if "│" in row}
    loaded = report.stages["load"].calls  # 50, and what was loaded ahead
    for stage, count in {"load": f"{loaded} samples", "wait": "7 batches", "consume": "7 batches"}.items():
        assert count in rows[stage]


@pytest.mark.parametrize("runner", RUNNERS)
def test_bytes_are_counted(runner):
    loader = rk.DataLoader(Numbers(), 8, seed=1, **RUNNERS[runner])
    pass_over(loader)
    assert loader.report().stages["collate"].nbytes >= 50 * 1000


class Unknown(Numbers):
    """Threads run its code only while the training loop waits for it."""

    draws_nothing = False


def test_a_slow_dataset_makes_the_loop_wait(monkeypatch):
    """Exactly, by a clock that only loading moves."""
    clock = Clock(for_each_thread=False)
    clock.replace(monkeypatch)
    loader = rk.DataLoader(Unknown(seconds=0.25, sleep=clock.advance), 8, seed=1)
    pass_over(loader)
    report = loader.report()
    assert report.wait_seconds == report.stages["load"].seconds >= 0.25 * 50
    assert report.stages["consume"].seconds == 0
    assert report.wait_share == 1


def test_a_loop_that_is_at_work_keeps_processes_idle():
    loader = rk.DataLoader(Numbers(96), 8, seed=1, **RUNNERS["processes"])
    pass_over(loader, seconds=0.03)
    report = loader.report()
    assert report.wait_seconds > 0
    assert report.stages["consume"].seconds >= 12 * 0.03
    assert report.stages["idle"].calls > 0
    assert report.stages["idle"].seconds > 0


def test_waiting_for_the_training_loop_is_not_the_datasets_time(monkeypatch):
    """The time that the training loop is at work on a batch is not theirs."""
    clock = Clock(for_each_thread=False)
    clock.replace(monkeypatch)
    loader = rk.DataLoader(Unknown(96), 8, num_workers=2, executor="threads", seed=1)
    pass_over(loader, seconds=1.0, sleep=clock.advance)
    report = loader.report()
    assert report.stages["consume"].seconds == 12
    assert report.stages["load"].seconds == 0


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
    """Collects the texts of a page by their tag, and checks that every tag is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.texts = [], {}

    def handle_starttag(self, tag, attributes):
        if tag != "meta":
            self.open.append(tag)
        assert not {"src", "href"} & {name for name, _ in attributes}

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            self.texts.setdefault(self.open[-1], []).append(data)


def read_html(text):
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader.texts


def report_on_bad_samples():
    loader = rk.DataLoader(Bad(), 8, on_error="skip", error_budget=1, seed=1)
    pass_over(loader)
    return loader.report()


def test_the_page_stands_alone_and_shows_the_report():
    page = report_on_bad_samples().to_html()
    texts = read_html(page)
    assert "prefers-color-scheme: dark" in page
    assert set(texts["th"]) >= STAGES
    figures = dict(zip(texts["dt"], texts["dd"], strict=True))
    assert (figures["samples"], figures["batches"]) == ("48", "7")
    assert texts["summary"] == ["2 bad samples"]
    # Shown, not interpreted.
    assert texts["li"][0] == "sample 3 in epoch 0: ValueError: <b>sample</b> & 3 [red]"
    assert "b" not in texts


def test_to_html_with_a_path_writes_the_page(tmp_path):
    report = report_on_bad_samples()
    assert report.to_html(tmp_path / "report.html") is None
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == report.to_html()


def test_a_file_name_that_is_no_text_can_be_written(tmp_path):
    report = dataclasses.replace(report_on_bad_samples(), importance={"file": "caf\udce9.png"})
    report.to_html(str(tmp_path / "report.html"))
    assert r"caf\udce9.png" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_every_text_in_the_page_is_escaped():
    attack = "<script>alert('&')</script>"
    report = dataclasses.replace(
        report_on_bad_samples(),
        executor=attack,
        importance={attack: attack},
        redundancy={attack: attack},
        bad_samples=[BadSample(0, 3, attack)],
    )
    for text in (report.to_html(), report._repr_html_()):
        assert "<script" not in text
        assert text.count("&lt;script&gt;alert(&#x27;&amp;&#x27;)&lt;/script&gt;") == 6
        assert "script" not in read_html(text)


def test_a_notebook_gets_the_body_of_the_page():
    report = report_on_bad_samples()
    shown = report._repr_html_()
    assert shown in report.to_html()
    assert not re.search("<(html|head|body|!doctype)", shown)
    # Every rule of the style is for the report alone: a notebook is one page with much else in it.
    style = read_html(shown)["style"][0]
    rules = [selector for rule in style.split("}")[:-1] for selector in rule.split("{")[0].split(",")]
    assert rules
    assert all(selector.strip().startswith(".rekindle-report") for selector in rules)


def test_a_report_prints_as_a_table():
    report = report_on_bad_samples()
    text = str(report)
    assert repr(report) == text
    lines = text.splitlines()
    assert "48 samples in 7 batches" in " ".join(lines[:2])
    assert all(any(f"{stage}:" in line for line in lines) for stage in STAGES)
    assert "bad sample 3 in epoch 0: ValueError: <b>sample</b> & 3 [red]" in text
    assert max(map(len, lines)) <= 100


def test_a_report_prints_the_same_in_a_notebook(monkeypatch):
    """A notebook shows the page; rich, left to itself, would show the table as well, and print nothing."""
    report = report_on_bad_samples()
    text = str(report)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert str(report) == text


def test_one_is_not_shown_as_several():
    loader = rk.DataLoader(Numbers(1), 8, num_workers=1, seed=1)
    list(loader)
    assert "1 sample in 1 batch · 1 worker (process)" in " ".join(str(loader.report()).split())


def test_replaced_workers_are_counted():
    loader = rk.DataLoader(Numbers(200, seconds=0.001), 8, num_workers=2, seed=1)
    iterator = iter(loader)
    next(iterator)
    assert loader.report().replaced_workers == 0
    os.kill(iterator._workers[0].pid, signal.SIGKILL)
    list(iterator)
    report = loader.report()
    assert report.replaced_workers == report.to_dict()["replaced_workers"] == 1
    assert "1 worker replaced" in str(report)
    assert report.samples == 200


def test_a_report_can_be_had_at_any_moment():
    loader = rk.DataLoader(Numbers(), 8, num_workers=2, seed=1)
    reports = [loader.report() for _ in loader]
    assert [(report.batches, report.samples) for report in reports] == [
        (n, min(8 * n, 50)) for n in range(1, 8)
    ]
    elapsed = [report.elapsed_seconds for report in reports]
    assert elapsed == sorted(elapsed)
    for report in reports:
        own = sum(report.stages[name].seconds for name in ("wait", "ship", "consume"))
        assert 0 < own < report.elapsed_seconds


@pytest.mark.parametrize("runner", RUNNERS)
def test_counting_takes_as_much_for_large_batches_as_for_small_ones(runner, monkeypatch):
    """What it costs is measured by the benchmark `counters_cost`."""

    def looks_at_the_clock(batch_size):
        clock = Looked()
        clock.replace(monkeypatch)
        pass_over(rk.DataLoader(Numbers(4 * batch_size), batch_size, seed=1, **RUNNERS[runner]))
        return clock.looks

    assert 0 < looks_at_the_clock(64) == looks_at_the_clock(8)


class Looked(Clock):
    """Counts how often the training loop looks at it."""

    looks = 0

    def __call__(self):
        self.looks += threading.current_thread() is threading.main_thread()
        return super().__call__()
