"""What the documents show is run: the README's code, and the examples in docstrings."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import rekindle

ROOT = Path(__file__).parent.parent
DOCUMENTS = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
MODULES = [name for _, name, _ in pkgutil.walk_packages(rekindle.__path__, "rekindle.")]


def code_blocks(document: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if code_blocks(name)])
def test_the_code_of_a_document_runs_from_top_to_bottom(document, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "readme"}
    for number, block in enumerate(code_blocks(document)):
        exec(compile(block, f"{document}, block {number}", "exec"), names)
    if document == "README.md":
        printed = capsys.readouterr().out
        assert "training loop waited for a batch" in printed
        assert "bad sample 13 in epoch 0: OSError: the disk has a scratch" in printed


@pytest.mark.parametrize("module", ["rekindle", *MODULES])
def test_the_examples_in_docstrings_hold(module):
    results = doctest.testmod(importlib.import_module(module))
    assert results.failed == 0


def test_there_are_examples_in_docstrings():
    finder = doctest.DocTestFinder(exclude_empty=True)
    modules = [importlib.import_module(name) for name in ["rekindle", *MODULES]]
    assert sum(bool(test.examples) for module in modules for test in finder.find(module)) >= 4


@pytest.mark.parametrize("document", [*DOCUMENTS, "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_every_file_that_a_document_links_to_exists(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert [link for link in links if not ((ROOT / document).parent / link).exists()] == []


def test_the_architecture_page_names_files_that_exist():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:\w+/)?\w+\.py)`", text))
    source = ROOT / "src" / "rekindle"
    known = {str(path.relative_to(source)) for path in source.rglob("*.py")}
    known |= {path.rpartition("/")[2] for path in known} | {"tests/test_architecture.py"}
    assert named - known == set()
