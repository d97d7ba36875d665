"""`rekindle dedupe` as its users see it: the summary, the file, the page, the exit codes."""

import json
import re
import sys

import pytest

import rekindle as rk
from near_duplicates import folder
from rekindle.fetch.open_source import open_source
from rekindle.tools import duplicates_page
from rekindle.tools.cli import main


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("near") / "train")


def test_the_summary_counts_redundant_samples(root, capsys):
    assert main(["dedupe", str(root)]) == 0
    printed = capsys.readouterr()
    assert "9 samples, 2 groups of near-duplicates with 5 samples; 3 are redundant (33.3%)" in printed.out
    assert printed.err == ""
    assert main(["dedupe", str(root), "--threshold", "0"]) == 0
    assert "1 group of near-duplicates with 2 samples" in capsys.readouterr().out
    assert main(["dedupe", str(root), "--threshold", "0", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["groups"], summary["redundant"], summary["threshold"]) == (1, 1, 0)


def test_there_is_a_progress_bar_on_a_terminal_unless_switched_off(root, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["dedupe", str(root)]) == 0
    assert "reading images" in capsys.readouterr().err
    for switch in ("--quiet", "--json"):
        assert main(["dedupe", str(root), switch]) == 0
        assert capsys.readouterr().err == ""


def test_the_file_can_be_read_by_people_and_by_the_loader(root, tmp_path, capsys):
    target = tmp_path / "groups.json"
    assert main(["dedupe", str(root), "--out", str(target)]) == 0
    saved = json.loads(target.read_text())
    assert saved["samples"] == 9
    assert [group["class"] for group in saved["groups"]] == ["class0", "class0"]
    one = saved["groups"][0]["samples"][0]
    assert one["path"].endswith(".png")
    assert one["distance"] == 0
    assert len([line for line in target.read_text().splitlines() if '"class0"' in line]) == 2
    loader = rk.DataLoader(rk.open(root), redundancy=rk.Redundancy(target))
    assert len(loader) == 9 - 3


def test_a_packed_file_is_read_as_the_other_commands_read_it(root, tmp_path, capsys):
    assert main(["pack", str(root), str(tmp_path / "train.h5")]) == 0
    assert main(["dedupe", str(tmp_path / "train.h5"), "--format", "hdf5", "--images", "images"]) == 0
    assert "2 groups of near-duplicates" in capsys.readouterr().out


def test_the_page_shows_every_member_and_needs_nothing_else(root, tmp_path):
    page = tmp_path / "page.html"
    assert main(["dedupe", str(root), "--html", str(page)]) == 0
    text = page.read_text()
    assert text.count("<img") == text.count("src='data:image/jpeg;base64,") == 5
    assert text.count("<section>") == 2
    assert not re.search(r"https?://|<script|<link|url\(", text)
    assert "prefers-color-scheme: dark" in text
    assert "left out" not in text


def test_the_page_is_bounded_and_counts_what_it_leaves_out(root, tmp_path, monkeypatch):
    monkeypatch.setattr(duplicates_page, "_MOST_GROUPS", 1)
    monkeypatch.setattr(duplicates_page, "_MOST_MEMBERS", 2)
    assert main(["dedupe", str(root), "--html", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    assert "The 1 largest groups are shown; 1 are left out." in text
    assert text.count("<img") == 2
    assert "and 1 more" in text


def test_names_from_the_data_are_text_and_not_markup(tmp_path):
    odd = folder(tmp_path / "odd")
    (odd / "class0").rename(odd / "<b>'&")
    assert main(["dedupe", str(odd), "--html", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    assert "<b>" not in text
    assert "&lt;b&gt;&#x27;&amp;" in text


def test_an_image_that_has_gone_since_is_missing_from_the_page(root, tmp_path):
    copy = folder(tmp_path / "copy")
    dataset = rk.ImageDataset(open_source(str(copy), None))
    groups = rk.find_redundancy(dataset)
    (copy / "class0" / "1.png").unlink()
    duplicates_page.write_page(groups, dataset, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().count("cannot be read now") == 1


def test_what_cannot_be_read_is_named_and_counted(tmp_path, capsys):
    broken = folder(tmp_path / "broken")
    (broken / "class1" / "3.png").write_bytes(b"\x89PNG nothing else")
    assert main(["dedupe", str(broken), "--html", str(tmp_path / "page.html")]) == 0
    printed = capsys.readouterr()
    assert re.search(r"left out: sample \d: '[^']*3\.png' \(sample", printed.err)
    assert "1 sample cannot be read, and is in no group" in printed.out
    assert "1 samples could not be read" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--threshold", "300"], 2, "0 to 255, but got 300"),
        (["--out", "no/such/groups.json"], 2, "no folder 'no/such'"),
        (["--html", "no/such/page.html"], 2, "no folder 'no/such'"),
    ],
)
def test_misuse_is_found_before_the_work(root, arguments, code, message, capsys):
    assert main(["dedupe", str(root), *arguments]) == code
    assert message in capsys.readouterr().err


def test_data_that_is_not_there_or_empty_is_an_error(tmp_path, capsys):
    assert main(["dedupe", str(tmp_path / "nowhere")]) == 1
    (tmp_path / "empty").mkdir()
    assert main(["dedupe", str(tmp_path / "empty")]) == 1
    assert capsys.readouterr().err.count("rekindle: ") == 2
