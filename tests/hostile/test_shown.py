"""Names from data are shown, never obeyed: in the terminal, in progress bars, in reports and pages."""

import io
import os
import shutil
import sys

import numpy as np
import pytest
from PIL import Image

import rekindle as rk
from rekindle.choose.duplicates.groups_file import Group, Member
from rekindle.core import progress
from rekindle.core.printable import printable, printable_lines
from rekindle.tools.cli import main
from rekindle.tools.duplicates_page import write_page

ESCAPE = "\x1b]0;owned\x07\x1b[31m"  # retitles a terminal, and reddens it
MARKUP = "[red]x[/]"
TAG = "<img src=x onerror=alert(1)>'\""
NAMES = [ESCAPE, MARKUP, TAG, "two\nlines", "\u202egnp.tac", "\x9b2J", "\x7f"]
TEXT = " ".join(NAMES) + " \udcff"


def is_clean(text):
    """Whether a terminal does nothing with this but show it, and any stream can encode it."""
    text.encode()
    return all(line.isprintable() for line in text.split("\n"))


def test_what_is_not_printed_as_itself_is_escaped():
    assert printable("café — 猫 [red]") == "café — 猫 [red]"
    assert printable("a\x1b[2J\n\x9b\u202e\udcff\x00") == r"a\x1b[2J\n\x9b\u202e\udcff\x00"
    assert printable_lines("a\x07\nb\r") == "a\\x07\nb\\r"
    assert is_clean(printable(TEXT))


@pytest.fixture
def folder(tmp_path):
    """A class folder of each name, with an image each, and a broken one."""
    root = tmp_path / "data"
    for name in NAMES:
        (root / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(root / name / f"a{ESCAPE}b.png", "PNG")
    (root / NAMES[0] / "\x1b[2Jbroken\n.png").write_bytes(b"nothing")
    return root


@pytest.fixture
def undecodable(tmp_path):
    """A folder whose names are no UTF-8."""
    root = tmp_path / "bytes"
    for name in (b"\xff\xfe", b"plain"):
        place = os.fsencode(root) + b"/" + name
        os.makedirs(place)
        Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
        shutil.copy(tmp_path / "one.png", place + b"/\xe9.png")
    return root


@pytest.mark.parametrize("command", ["info", "verify"])
def test_names_do_nothing_to_a_terminal(folder, capsys, command):
    main([command, str(folder)])
    shown = capsys.readouterr()
    assert is_clean(shown.out)
    assert is_clean(shown.err)
    assert r"\x1b" in shown.out
    found = rk.info(folder) if command == "info" else rk.verify(folder, progress=False)
    assert is_clean(repr(found))


def test_a_name_of_two_lines_is_shown_in_one(folder):
    found = rk.verify(folder, progress=False)
    assert len(repr(found).split("\n")) == found.bad + 1


def test_errors_of_the_command_line_are_escaped(tmp_path, capsys):
    path = tmp_path / f"{ESCAPE}.tar"
    path.write_bytes(b"no tar file" * 100)
    assert main(["info", str(path)]) == 1
    assert main(["info", str(tmp_path / f"missing{ESCAPE}")]) != 0
    assert main(["pack", str(path), str(tmp_path / "x.h5"), "--quiet"]) != 0
    shown = capsys.readouterr()
    assert shown.err
    assert is_clean(shown.out + shown.err)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("command", ["info", "verify", "pack"])
def test_names_that_are_no_utf8_are_shown_by_any_stream(
    undecodable, tmp_path, monkeypatch, command, encoding
):
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    target = [os.fsdecode(os.fsencode(tmp_path) + b"/\xff.tar")] if command == "pack" else []
    assert main([command, str(undecodable), *target]) == 0
    assert main(["info", str(undecodable), "--json"]) == 0
    for stream in streams:
        stream.flush()
    assert b"\xff" not in streams[0].buffer.getvalue()
    if target:
        assert rk.info(target[0]).samples == 2


class Failing:
    """A dataset one of whose samples raises an exception with everything in its text."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 3:
            raise ValueError(f"{TEXT} :smile:")
        return float(index)


def test_a_report_shows_what_exceptions_say_and_obeys_none_of_it():
    loader = rk.DataLoader(Failing(), 2, on_error="skip", error_budget=1.0)
    list(loader)
    report = loader.report()
    text, page, part = repr(report), report.to_html(), report._repr_html_()
    assert is_clean(text)
    assert MARKUP in text
    assert ":smile:" in text.replace("\n", "")
    for html in (page, part):
        html.encode()
        assert "\x1b" not in html
        assert "<img" not in html
        assert "&lt;img" in html
    # A state keeps reasons, and may come from anywhere.
    state = loader.state_dict()
    state["bad_reasons"] = [TEXT]
    other = rk.DataLoader(Failing(), 2, on_error="skip", error_budget=1.0, seed=loader.seed)
    other.load_state_dict(state)
    assert is_clean(repr(other.report()))
    assert "<img" not in other.report().to_html()


def test_a_page_of_near_duplicates_shows_names_as_text(tmp_path):
    images = rk.ArrayImages(np.zeros((2, 8, 8, 3), np.uint8), np.zeros(2, int), [])
    members = tuple(Member(number, f"{TEXT}/{TEXT}{number}", 0.0) for number in range(2))
    groups = rk.RedundantGroups(2, (Group(members, 0, TEXT),), {"measure": TEXT, "threshold": TEXT}, TEXT)
    write_page(groups, images, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_bytes().decode()
    assert "<img src=x" not in page
    assert "alert(1)&gt;&#x27;&quot;" in page
    assert is_clean(page.replace("\n", ""))


def test_a_progress_bar_shows_a_files_name_as_it_is(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "_DELAY", 0.0)
    with progress.byte_progress_bar(f"indexing {MARKUP}{ESCAPE}.tar", 10) as report:
        report(5)
    assert MARKUP in terminal.getvalue()
    assert "\x1b]0;" not in terminal.getvalue()
