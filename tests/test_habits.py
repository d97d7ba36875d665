"""What the project asks of contributors, it keeps itself."""

import ast
import json
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TESTS = Path(__file__).parent
# Clocks to measure with. Tests wait for what must come (waiting.py), move a clock themselves (clock.py) or
# count (calls.py): a busy machine is slow, not wrong. What takes how long is a question for a benchmark.
STOPWATCHES = {"perf_counter", "monotonic", "process_time", "thread_time"}
STOPWATCHES |= {f"{name}_ns" for name in STOPWATCHES}
MOST_LINES = 400


def test_no_test_measures_time():
    found = {}
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path.name == "waiting.py" or not any(name in text for name in STOPWATCHES):
            continue
        tree = ast.parse(text)
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        if names & STOPWATCHES:
            found[path.name] = names & STOPWATCHES
    assert not found


def test_no_file_of_tests_holds_more_than_one_subject():
    lines = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in TESTS.rglob("*.py")}
    long = {name: count for name, count in lines.items() if count > MOST_LINES}
    assert not long, f"{long}: which second subject moved in?"


BROAD = {"Exception", "BaseException"}


def _swallowed(tree: ast.AST) -> list[int]:
    """The lines where any exception is caught, or suppressed, and neither raised again nor looked at."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and (node.type is None or ast.unparse(node.type) in BROAD):
            body = [part for statement in node.body for part in ast.walk(statement)]
            used = {part.id for part in body if isinstance(part, ast.Name)}
            if node.name not in used and not any(isinstance(part, ast.Raise) for part in body):
                found.append(node.lineno)
        elif isinstance(node, ast.Call) and BROAD & set(map(ast.unparse, node.args)):
            found += [node.lineno] * ast.unparse(node.func).endswith("suppress")
    return found


def test_whatever_swallows_any_error_says_why_nothing_is_lost():
    silent = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if any(f"{word}{kind}" in text for word in ("except ", "suppress(") for kind in BROAD):
            lines = text.splitlines()
            silent += [
                f"{path.name}:{line}" for line in _swallowed(ast.parse(text)) if "#" not in lines[line - 1]
            ]
    assert not silent
    assert _swallowed(ast.parse("try:\n    f()\nexcept Exception:\n    pass")) == [3]


def test_the_versions_of_python_that_are_promised_are_those_that_are_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert project["requires-python"] == f">={promised[0]}"
    workflow = (ROOT / ".github/workflows/checks.yml").read_text(encoding="utf-8")
    (tested,) = re.findall(r"python-version: (\[.+\])", workflow)
    assert json.loads(tested) == promised == ["3.11", "3.12", "3.13", "3.14"]


def test_what_a_workflow_makes_is_a_target_of_the_makefile():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    workflows = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / ".github/workflows").iterdir())
    made = set(re.findall(r"run: make ([\w-]+)", workflows))
    assert made >= {"lint", "test", "release-check"}
    assert made <= targets


@pytest.mark.parametrize("name", ["RELEASING.md", "SECURITY.md", "examples/README.md"])
def test_every_file_that_is_linked_to_exists(name):
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / name).read_text(encoding="utf-8"))
    assert [link for link in links if not ((ROOT / name).parent / link).exists()] == []
